"""What the attributes of a configuration are: keys, sections of keys, and fields under another system's names.

The values themselves are in the configuration, config.Config; sections are views of it.
"""

from __future__ import annotations

import ast
import functools
import inspect
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar, dataclass_transform, overload

from transfer_dock._key_types import KeyType, Value, key_type, nearest

T = TypeVar("T")
S = TypeVar("S", bound="Section")

RECIPES = ("sft", "rm", "dpo", "ppo", "grpo", "dapo")


class Owner(Protocol):
    """What sections ask of the configuration that has the values. Names have dots."""

    def _get(self, name: str) -> Any: ...
    def _set(self, name: str, value: object) -> None: ...
    def _has(self, name: str) -> bool: ...
    def _own_path(self, path: str) -> str: ...
    def _check_section(self, name: str) -> None: ...
    def __iter__(self) -> Iterator[str]: ...
    def __getitem__(self, name: str) -> Any: ...
    def __setitem__(self, name: str, value: Any) -> None: ...
    def __delitem__(self, name: str) -> None: ...


class Key(Generic[T]):
    """A key: its type and default in each recipe that has it."""

    def __init__(self, *rows: tuple[str, str, str]) -> None:
        """Each row has recipes, with spaces between them or "all", the type there, and the default, as YAML."""
        self._rows = {
            recipe: (kind, default)
            for recipes, kind, default in rows
            for recipe in (RECIPES if recipes == "all" else recipes.split())
        }
        self._name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, at: None, owner: type) -> Self: ...
    @overload
    def __get__(self, at: Group, owner: type) -> T: ...
    def __get__(self, at: Group | None, owner: type) -> Any:
        return self if at is None else at._config._get(at._path + self._name)

    def __set__(self, at: Group, value: T | None) -> None:
        at._config._set(at._path + self._name, value)

    def __delete__(self, at: Group) -> None:
        at._config._set(at._path + self._name, None)

    @property
    def recipes(self) -> tuple[str, ...]:
        """The recipes that have it."""
        return tuple(self._rows)

    def type(self, recipe: str) -> KeyType:
        """Its type in a recipe that has it."""
        return key_type(self._rows[recipe][0])

    def default(self, recipe: str) -> Value:
        """Its default in a recipe that has it."""
        kind, default = self._rows[recipe]
        value = key_type(kind).parse("" if default == '""' else default)
        return value  # type: ignore[return-value]


class Part(Generic[S]):
    """A section in a configuration or another section. A mapping that is assigned to it sets the keys that it has."""

    def __init__(self, kind: type[S]) -> None:
        self.kind = kind
        self._name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, at: None, owner: type) -> Self: ...
    @overload
    def __get__(self, at: Group, owner: type) -> S: ...
    def __get__(self, at: Group | None, owner: type) -> Any:
        if at is None:
            return self
        at._config._check_section(at._path + self._name)
        return self.kind(at._config, f"{at._path}{self._name}.")

    def __set__(self, at: Group, value: Mapping[str, Any] | S | None) -> None:
        at._config._check_section(at._path + self._name)
        at._config._set(at._path + self._name, dict(value) if isinstance(value, Section) else value)


class Field(Generic[T]):
    """A field under TRL's name; None is one that was not given."""

    def __init__(self) -> None:
        self._name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, at: None, owner: type) -> Self: ...
    @overload
    def __get__(self, at: Group, owner: type) -> T | None: ...
    def __get__(self, at: Group | None, owner: type) -> Any:
        return self if at is None else at._config._get(self._name)

    def __set__(self, at: Group, value: T | None) -> None:
        at._config._set(self._name, value)


@dataclass_transform(kw_only_default=True)
class Group:
    """What has keys as attributes."""

    if not TYPE_CHECKING:  # without annotations that would be fields
        _config: Owner
        _path: str

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(self._no_attribute(name))

        def __setattr__(self, name: str, value: object) -> None:
            if not hasattr(type(self), name):
                raise AttributeError(self._no_attribute(name))
            object.__setattr__(self, name, value)
    else:

        @property
        def _config(self) -> Owner:
            raise NotImplementedError

        @property
        def _path(self) -> str:
            raise NotImplementedError

    def __dir__(self) -> list[str]:
        return sorted({*object.__dir__(self)} - {*self._absent()})

    def _absent(self) -> list[str]:
        """Attributes that the recipe does not have."""
        return []

    def _no_attribute(self, name: str) -> str:
        names = [each for each in dir(type(self)) if not each.startswith("_")]
        return f"there is no {self._path}{name}{nearest(name, names)}"


class Section(Group):
    """A section of a configuration: attributes are its keys, and iterating gives the names of those that were set."""

    def __init__(self, config: Owner, path: str) -> None:
        object.__setattr__(self, "_config", config)
        object.__setattr__(self, "_path", path)

    def __iter__(self) -> Iterator[str]:
        path = self._config._own_path(self._path)
        return (key.removeprefix(path) for key in self._config if key.startswith(path))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def keys(self) -> list[str]:
        """The names of the keys that were set, with dots for sections in it."""
        return list(self)

    def __getitem__(self, name: str) -> Any:
        return self._config[self._path + name]

    def __setitem__(self, name: str, value: Any) -> None:
        self._config[self._path + name] = value

    def __repr__(self) -> str:
        return f"<{self._path[:-1]} {dict(self)!r}>"

    def _absent(self) -> list[str]:
        return [each for each in vars(type(self)) if not self._config._has(self._path + each)]


def tree(kind: type[Group], path: str = "") -> dict[str, Key[Any]]:
    """Every key of a class of keys, by its name with dots."""
    found: dict[str, Key[Any]] = {}
    for name, each in vars(kind).items():
        if isinstance(each, Key):
            found[path + name] = each
        elif isinstance(each, Part):
            found |= tree(each.kind, f"{path}{name}.")
    return found


def meaning(kind: type[Group], name: str) -> str:
    """The text below a key or field of a class, which editors show; "" if there is none."""
    *sections, last = name.split(".")
    for section in sections:
        kind = inspect.getattr_static(kind, section).kind
    return next((texts[last] for each in kind.__mro__ if last in (texts := _texts(each))), "")


@functools.cache
def _texts(kind: type) -> dict[str, str]:
    if not issubclass(kind, Group):
        return {}
    (body,) = (each.body for each in ast.parse(inspect.getsource(kind)).body if isinstance(each, ast.ClassDef))
    return {
        field.target.id: str(text.value.value)
        for field, text in zip(body, body[1:], strict=False)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
    }
