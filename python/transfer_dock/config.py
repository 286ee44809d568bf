"""Configurations of `tdock train` as objects.

import transfer_dock as td

config = td.Config(recipe="grpo", model={"path": "my-model"}, data={"train_files": "prompts.jsonl"})
config.actor.optim.lr = 1e-6
config["rollout.n"] = 4
config.save("grpo.yaml")

SFTConfig, RewardConfig, DPOConfig, GRPOConfig and PPOConfig also know TRL's names: docs/from-trl.md.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import inspect
import os
import pathlib
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Self, cast

from transfer_dock import _trl
from transfer_dock._key_types import Value, flattened, nearest, nested, to_yaml
from transfer_dock._keys import Keys
from transfer_dock._sections import RECIPES, Field, Key, Part, Section, meaning, tree
from transfer_dock._trl_fields import DPOFields, GRPOFields, PPOFields, RewardFields, SFTFields
from transfer_dock._trl_names import NAMES
from transfer_dock.errors import InvalidArgument, NotFound

_TABLE = tree(Keys)


class ConfigWarning(UserWarning):
    """A setting was accepted that has no effect here. The text says why, and what has."""


class _Given(dict[str, Any]):
    """The keys that were set. A call gives their names, so that ``dict(config)`` does what it does of a mapping."""

    def __call__(self) -> list[str]:
        return list(self)


class _Values:
    """Other keys that the constructor takes, and all that were set."""

    def __get__(self, at: Config | None, owner: type) -> Any:
        return self if at is None else _Given(at.items())

    def __set__(self, at: Config, values: Mapping[str, Any] | None) -> None:
        at.update(values or {})


class Config(Keys):
    """The configuration of a run: its recipe, and the keys that were set; the others have their defaults.

    ``config.optim.lr``, ``config["optim.lr"]`` and ``config["optim"]["lr"]`` are the same key, as is
    ``config.learning_rate`` of the classes with TRL's names. What is assigned is checked against the key's type, and
    None removes it. Iterating gives the keys that were set. Not thread-safe.
    """

    def __init__(self, recipe: str | None = None, **keys: Any) -> None:
        """Keys are sections (``optim={"lr": 1e-5}``), keys with dots (``keys={"optim.lr": 1e-5}``), or TRL's names."""
        recipe = self._recipe_of(recipe)
        object.__setattr__(self, "_recipe", recipe)
        object.__setattr__(self, "_values", {})
        object.__setattr__(self, "_fields", {})
        object.__setattr__(self, "_notes", {})
        self.update(keys)

    if not TYPE_CHECKING:  # without annotations that would be fields
        _recipe: str
        _values: dict[str, Value]  # by the names of `tdock train`
        _fields: dict[str, Any]  # under TRL's names, for to_keys() and trainers
        _notes: dict[str, str]
        _RECIPES = RECIPES
    else:
        _RECIPES: ClassVar[tuple[str, ...]]
        _recipe: ClassVar[str]
        _values: ClassVar[dict[str, Value]]
        _fields: ClassVar[dict[str, Any]]
        _notes: ClassVar[dict[str, str]]

    def __init_subclass__(cls) -> None:
        """Gives the class the signature that type checkers see, for those who complete names in a notebook."""
        named = ["recipe", "keys", *(name for name in dir(cls) if isinstance(getattr(cls, name, None), (Field, Key, Part)))]
        parameters = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None) for name in named]
        cls.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]

    @classmethod
    def _recipe_of(cls, recipe: str | None) -> str:
        recipe = recipe or (cls._RECIPES[0] if cls is not Config else None)
        if recipe not in cls._RECIPES:
            hint = nearest(recipe, cls._RECIPES) if recipe else ""
            raise InvalidArgument(f"recipe must be one of {', '.join(cls._RECIPES)}, not {recipe!r}{hint}")
        return recipe

    @property
    def _config(self) -> Config:
        return self

    @property
    def _path(self) -> str:
        return ""

    @property
    def recipe(self) -> str:
        """The recipe: sft, rm, dpo, ppo, grpo or dapo."""
        return self._recipe

    @property
    def notes(self) -> list[str]:
        """What was set without an effect, and why."""
        return [f"{name}: {why}" for name, why in self._notes.items()]

    @classmethod
    def from_yaml(cls, source: str | os.PathLike[str]) -> Self:
        """The configuration in a file for `tdock train`, or in a text of several lines."""
        text, where = str(source), "the text"
        if "\n" not in text and ": " not in text:
            text, where = pathlib.Path(source).read_text(), os.fspath(source)
        keys = flattened(_parsed(text, where))
        recipe = keys.pop("recipe", None)
        if recipe is None and cls is Config:
            raise InvalidArgument(f'{where} has no recipe; write "recipe: sft", or another one\'s name, at its top')
        config = cls(recipe=None if recipe is None else str(recipe))
        try:
            for name, value in keys.items():
                config._set(name, config._read(name, value))
        except InvalidArgument as error:
            raise InvalidArgument(f"{where}: {error}") from None
        return config

    @classmethod
    def from_trl(cls, arguments: object) -> Self:
        """The configuration that TRL's SFTConfig, RewardConfig, DPOConfig or GRPOConfig asks for.

        Fields with TRL's defaults are left out: docs/from-trl.md tells which of them differ from those here.
        """
        kinds = {kind.__name__: kind for kind in (SFTConfig, RewardConfig, DPOConfig, GRPOConfig, PPOConfig)}
        found = next((kinds[each.__name__] for each in type(arguments).__mro__ if each.__name__ in kinds), None)
        if found is None:
            raise InvalidArgument(f"{type(arguments).__name__} is not one of TRL's {', '.join(kinds)}")
        if cls is not Config and cls is not found:
            raise InvalidArgument(f"{type(arguments).__name__} is the configuration of {found.__name__}, not {cls.__name__}")
        config = found()
        config.update_from(arguments)
        return config  # type: ignore[return-value]

    def update_from(self, arguments: object) -> None:
        """Sets the fields of an object of TRL or PEFT, such as a LoraConfig, that do not have their defaults there."""
        self.update(_given_fields(arguments))

    def update(self, values: Mapping[str, Any] | Iterable[tuple[str, Any]] = (), /, **keys: Any) -> None:
        """Sets several keys: with dots, or as nested sections."""
        given = {**dict(values), **keys}
        for name in sorted(given, key=lambda name: name not in _trl.SPREAD):  # others say more than these
            value = given[name]
            if name == "keys":
                self.update(value or {})
            elif name == "recipe":
                self._check_recipe(value)
            else:
                self._set(name, dict(value) if isinstance(value, Section) else value)

    def to_keys(
        self, recipe: str | None = None, *, samples: int | None = None, processes: int = 1
    ) -> dict[str, Value]:
        """The keys that were set, with what TRL's fields are together: batches, steps, warm-ups.

        Args:
            recipe: one of the same keys, such as ``"dapo"`` of a GRPOConfig; None: the configuration's own.
            samples: those of the training data, for what TRL says in epochs or shares of them.
            processes: those that train together, since TRL's batches are those of one.
        """
        if recipe not in (None, self._recipe):
            other = Config(recipe)
            other.update({**self._values, **self._fields})
            return other.to_keys(samples=samples, processes=processes)
        combination = _trl.Combination(self._fields, self._values, self._get, self._is_known)
        combined = combination.combine(samples, processes)
        for note in combination.notes:
            warnings.warn(note, ConfigWarning, stacklevel=_frames_of_package())
        return self._values | combined

    def to_yaml_dict(self, *, samples: int | None = None, processes: int = 1) -> dict[str, Any]:
        """What a file for `tdock train` has: the recipe, and nested sections of to_keys()."""
        return {"recipe": self._recipe, **nested(self.to_keys(samples=samples, processes=processes))}

    def to_yaml(self) -> str:
        """The same as YAML."""
        return to_yaml(self.to_yaml_dict())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes a file for `tdock train`."""
        pathlib.Path(path).write_text(self.to_yaml())

    def describe(self, name: str) -> str:
        """What a key means, with its type and default, as docs/configuration.md has it; of a field also which key it is."""
        place = self._place(name)
        if place is None:
            raise NotFound(self._unknown(name))
        if place.kind == "keys" and name not in place.keys and self._own_name(name) not in place.keys:
            return f"{' and '.join(place.keys)}: {meaning(Keys, place.keys[0])}"
        return meaning(Keys, place.keys[0]) if place.keys else meaning(type(self), name) or place.why

    def items(self) -> list[tuple[str, Any]]:
        """The keys that were set, and their values."""
        return [(name, self[name]) for name in self]

    def get(self, name: str, default: Any = None) -> Any:
        """The value of a key, or its default; `default` if there is no such key."""
        return self[name] if name in self or self._has(name) else default

    if TYPE_CHECKING:
        keys: _Values = _Values()
    else:
        keys = _Values()
        keys.__doc__ = "Keys by their names with dots: those that were set, and in the constructor those to set."

    def __iter__(self) -> Iterator[str]:
        return iter([*self._values, *self._fields])

    def __len__(self) -> int:
        return len(self._values) + len(self._fields)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._own_name(name) in {*self._values, *self._fields}

    def __getitem__(self, name: str) -> Any:
        try:
            return self._get(name)
        except AttributeError as error:
            raise NotFound(str(error)) from None

    def __setitem__(self, name: str, value: Any) -> None:
        self._set(name, value)

    def __delitem__(self, name: str) -> None:
        self._set(name, None)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Config):
            return NotImplemented
        return (self._recipe, self._values, self._fields) == (other._recipe, other._values, other._fields)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        differing = {key: value for key, value in self.items() if value != self.default(key)}
        fields = [f"{name}={differing.pop(name)!r}" for name in self._fields if name in differing]
        recipe = [f"recipe={self._recipe!r}"] if type(self) is Config or self._recipe != self._RECIPES[0] else []
        keys = [f"keys={differing!r}"] if differing else []
        return f"{type(self).__name__}({', '.join([*recipe, *fields, *keys])})"

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name.startswith("_"):
                raise AttributeError(name)  # before it is made, as in copies
            return self._get(name)

        def __setattr__(self, name: str, value: object) -> None:
            if hasattr(type(self), name):
                object.__setattr__(self, name, value)
            elif self._place(name) is None:
                raise AttributeError(self._unknown(name))
            else:
                self._set(name, value)

    def _absent(self) -> list[str]:
        return [name for name in vars(Keys) if not name.startswith("_") and not self._has(name)]

    # The names of keys.

    def _own_name(self, name: str) -> str:
        """The key that a name is: `optim` is that of the actor, where only models in sections have one."""
        if not self._is_known(name) and self._is_known(f"actor.{name}") and name.startswith("optim"):
            return f"actor.{name}"
        return name

    def _own_path(self, path: str) -> str:
        return self._own_name(path.removesuffix(".")) + "."

    def _is_known(self, name: str) -> bool:
        if name in _TABLE:
            return self._recipe in _TABLE[name].recipes
        return any(key.startswith(name + ".") and self._recipe in each.recipes for key, each in _TABLE.items())

    def _has(self, name: str) -> bool:
        """Whether the recipe has a key or section."""
        return self._is_known(self._own_name(name))

    def _key(self, name: str) -> Key[Any] | None:
        own = self._own_name(name)
        return _TABLE[own] if own in _TABLE and self._is_known(own) else None

    def _place(self, name: str) -> _trl.Place | None:
        if self._key(name):
            return _trl.Place("keys", (self._own_name(name),))
        return _trl.place(name, self._recipe, self._is_known)

    def _unknown(self, name: str) -> str:
        recipes = _recipes_with(name)
        if recipes:
            return f"the recipe {self._recipe} has no {name}, as {', '.join(recipes)} have"
        others = [key for key in (*NAMES.get(name, ()), *_trl.SPREAD.get(name, ())) if key in _TABLE]
        if others:
            return f"the recipe {self._recipe} has no {name}, which is {others[0]} of {', '.join(_TABLE[others[0]].recipes)}"
        known = [key for key, each in _TABLE.items() if self._recipe in each.recipes]
        known += [each for each in _trl.with_effect() if self._place(each)]
        last = [key for key in known if key.rpartition(".")[2] == name]
        near = f"; did you mean {' or '.join(repr(key) for key in last[:2])}?" if last else nearest(name, known)
        return f"there is no key {name}{near}"

    # Their values.

    def _check_section(self, name: str) -> None:
        """Raises AttributeError if the recipe has no such section."""
        if not self._has(name):
            raise AttributeError(self._unknown(name))

    def default(self, name: str) -> Any:
        """The default of a key in this recipe; None of one that has none."""
        key = self._key(name)
        return key.default(self._recipe) if key else None

    def _get(self, name: str) -> Any:
        place = self._place(name)
        if place is None:
            if self._has(name):
                group: Any = self
                for each in name.split("."):
                    group = getattr(group, each)
                return group
            raise AttributeError(self._unknown(name))
        if place.kind == "keys":
            return self._values.get(place.keys[0], self.default(place.keys[0]))
        return self._values.get(name, self._fields.get(name))

    def _set(self, name: str, value: object) -> None:
        place = self._place(name)
        if name == "optim" and isinstance(value, str):
            _trl.check_optimizer(value)
            return
        if isinstance(value, Mapping) and (place is None or place.kind not in ("ignored", "trainer")):
            for each, inner in value.items():
                self._set(f"{name}.{each}", inner)
            return
        if place is None:
            if value is None and self._has(name):
                for key in [key for key in self._values if key.startswith(self._own_path(name))]:
                    del self._values[key]
                return
            if self._has(name):
                raise InvalidArgument(f"{name} is a section: give its keys, as in {{'…': …}}, not {value!r}")
            raise InvalidArgument(self._unknown(name))
        if value is None:
            for key in (*place.keys, name):
                self._values.pop(key, None)
                self._fields.pop(key, None)
            self._notes.pop(name, None)
        elif place.kind == "keys":
            for key in place.keys:
                called = name if key == self._own_name(name) else f"{name} ({key} here)"
                self._values[key] = _checked(called, key, _TABLE[key], self._recipe, value)
        elif place.kind == "written":
            self._values[name] = self._written(name, value)
        elif place.kind == "combined":
            self._fields[name] = _trl.check_combined(name, value)
        elif place.kind == "trainer":
            self._fields[name] = value
        elif not _trl.asks_nothing(value, place.harmless):
            self._set_foreign(name, place, value)

    def _written(self, name: str, value: object) -> Value:
        if isinstance(value, list) and len(value) == 1:
            value = value[0]  # TRL's DPO has lists of losses
        wanted: type = bool if name in ("bf16", "fp16") else str
        if not isinstance(value, wanted):
            raise InvalidArgument(f"{name} must be {'true or false' if wanted is bool else 'a text'}, not {value!r}")
        return cast(Value, value)

    def _set_foreign(self, name: str, place: _trl.Place, value: object) -> None:
        if place.kind == "refused":
            raise InvalidArgument(f"{name} = {value!r} has no equal here: {place.why}")
        if name not in self._notes:
            self._notes[name] = place.why
            warnings.warn(f"{name} has no effect: {place.why}", ConfigWarning, stacklevel=_frames_of_package())

    def _read(self, name: str, value: object) -> object:
        """A value of YAML, whose numbers are texts, as one of Python."""
        place = self._place(name)
        if not isinstance(value, str) or place is None:
            return value
        if place.kind == "keys":
            return _TABLE[place.keys[0]].type(self._recipe).parse(value)
        for parse in (int, float):
            with contextlib.suppress(ValueError):
                return parse(value)
        return {"true": True, "false": False}.get(value.lower(), value)

    def _check_recipe(self, recipe: object) -> None:
        if recipe not in (None, self._recipe):
            raise InvalidArgument(f"the recipe of this configuration is {self._recipe}; make another for {recipe!r}")


class SFTConfig(SFTFields, _trl.TrainingFields, Config):
    """The configuration of supervised fine-tuning (recipe ``sft``), also under the names of TRL's SFTConfig.

    A field that is None was not given and has the default here, not TRL's.
    """

    _RECIPES: ClassVar[tuple[str, ...]] = ("sft",)


class RewardConfig(RewardFields, _trl.TrainingFields, Config):
    """The configuration of a reward model (recipe ``rm``), also under the names of TRL's RewardConfig."""

    _RECIPES: ClassVar[tuple[str, ...]] = ("rm",)


class DPOConfig(DPOFields, _trl.TrainingFields, Config):
    """The configuration of direct preference optimization (recipe ``dpo``), also under the names of TRL's DPOConfig."""

    _RECIPES: ClassVar[tuple[str, ...]] = ("dpo",)


class GRPOConfig(GRPOFields, _trl.AnswerFields, Config):
    """The configuration of reinforcement on groups of answers, also under the names of TRL's GRPOConfig.

    ``recipe="dapo"`` has the same keys, with DAPO's defaults.
    """

    _RECIPES: ClassVar[tuple[str, ...]] = ("grpo", "dapo")


class PPOConfig(PPOFields, _trl.PPOOnlyFields, Config):
    """The configuration of reinforcement with a critic (recipe ``ppo``), also under the names of TRL's PPOConfig."""

    _RECIPES: ClassVar[tuple[str, ...]] = ("ppo",)


def _recipes_with(name: str) -> list[str]:
    """The recipes with a key or section."""
    keys = [key for key in _TABLE if key == name or key.startswith(name + ".")]
    return list(dict.fromkeys(recipe for key in keys for recipe in _TABLE[key].recipes))


def _checked(called: str, key: str, entry: Key[Any], recipe: str, value: object) -> Value:
    try:
        return entry.type(recipe).check(key, value)
    except InvalidArgument as error:
        if called == key:
            raise
        raise InvalidArgument(str(error).replace(key, called, 1)) from None


def _given_fields(arguments: object) -> dict[str, Any]:
    """The fields of a dataclass of TRL or PEFT that do not have their defaults."""
    if not dataclasses.is_dataclass(arguments) or isinstance(arguments, type):
        raise InvalidArgument(f"{arguments!r} has no fields; it must be an object such as trl.SFTConfig(…)")
    usual = _usual(type(arguments))
    given = {}
    for field in dataclasses.fields(arguments):
        default = getattr(usual, field.name, field.default)
        value = getattr(arguments, field.name)
        if field.init and not field.name.startswith("_") and value is not None and value != default:
            given[field.name] = value
    if "steps_per_generation" in {field.name for field in dataclasses.fields(arguments)}:
        given.pop("generation_batch_size", None)  # TRL computes one of the two from the other
    return given


def _usual(kind: Any) -> Any:
    """An object with its defaults, since what is computed from them is one, too; None if none can be made."""
    for keywords in ({}, {"use_cpu": True}):  # TRL's refuse bfloat16 where there is no GPU
        with contextlib.suppress(Exception):
            return kind(**keywords)
    return None


def _parsed(text: str, where: str) -> dict[str, Any]:
    """The mapping in a text of YAML, or of JSON, whose scalars are texts, and None what is null."""
    try:
        yaml = importlib.import_module("yaml")
    except ModuleNotFoundError:
        raise InvalidArgument("reading YAML takes a package: pip install pyyaml") from None

    class Loader(yaml.SafeLoader):  # type: ignore[name-defined,misc]
        """Numbers stay as they are written: YAML 1.1, which the package reads, takes 1e-6 and `no` differently."""

        yaml_implicit_resolvers = {
            first: [each for each in rows if each[0].endswith((":null", ":merge"))]
            for first, rows in yaml.SafeLoader.yaml_implicit_resolvers.items()
        }

    try:
        parsed = yaml.load(text, Loader)
    except yaml.YAMLError as error:
        raise InvalidArgument(f"{where} is not YAML: {error}") from None
    if not isinstance(parsed, dict):
        raise InvalidArgument(f"{where} must have keys and values, not {parsed!r}")
    return parsed


def _frames_of_package() -> int:
    """The stacklevel of a warning for the caller of the package."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("transfer_dock"):
        level, frame = level + 1, frame.f_back
    return level
