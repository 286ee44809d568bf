"""The types of configuration keys, as `tdock train --keys` writes them: "integer ≥ 0 and ≤ 1024", "float32 or int8"."""

from __future__ import annotations

import difflib
import enum
import functools
import json
import math
import numbers
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from transfer_dock._trl_names import OTHER_CHOICES, OTHER_VALUES
from transfer_dock.errors import InvalidArgument

Scalar = str | int | float | bool
Value = Scalar | list[Scalar]

_LIMIT = re.compile(r"(≥|>|≤|<) (-?[\d.e+-]+)")


def nearest(name: str, names: Iterable[str]) -> str:
    """"; did you mean 'NAME'?", or "" if no name is near."""
    found = difflib.get_close_matches(name, list(names), n=1, cutoff=0.6)
    return f"; did you mean {found[0]!r}?" if found else ""


@dataclass(frozen=True)
class KeyType:
    """What a key may be."""

    text: str  # as the list of keys has it
    kind: Literal["integer", "number", "switch", "text", "texts", "names", "choice"]
    limits: tuple[tuple[str, float], ...] = ()
    choices: tuple[str, ...] = ()

    def check(self, key: str, given: object) -> Value:
        """The value as it is kept. Raises InvalidArgument, which names the key and what would be right."""
        value = _plain(given)
        if isinstance(value, str) and (value == "???" or "${" in value):
            return value  # a reference to another key, which `tdock train` resolves
        text = _as_text(value)
        other = OTHER_VALUES.get(key, {}).get(text)
        if other is not None:
            value = self.parse(other)
        elif text not in self.choices and OTHER_CHOICES.get(text) in self.choices:
            value = OTHER_CHOICES[text]
        taken = getattr(self, f"_take_{self.kind}")(value)
        if taken is None or not all(_holds(taken, *limit) for limit in self.limits):
            hint = nearest(value, self.choices) if isinstance(value, str) else ""
            raise InvalidArgument(f"{key} must be {self._described()}, not {given!r}{hint}")
        return taken  # type: ignore[no-any-return]

    def parse(self, text: str) -> object:
        """The value that a text stands for in YAML; the text itself if it stands for none of this type."""
        if self.kind in ("integer", "number"):
            for kind in (int, float):
                try:
                    return kind(text)
                except ValueError:
                    pass
        if self.kind == "switch" and text.lower() in ("true", "false"):
            return text.lower() == "true"
        if self.kind == "texts" and text.startswith("["):
            return [each.strip().strip('"') for each in text[1:-1].split(",") if each.strip()]
        return json.loads(text) if self.kind in ("text", "names") and re.fullmatch(r'".*"', text) else text

    def _described(self) -> str:
        if self.kind in ("integer", "number"):
            return f"{'an' if self.kind == 'integer' else 'a'} {self.text}"
        return f"a {self.text}" if self.kind in ("text", "texts") else self.text

    def _take_integer(self, value: object) -> int | None:
        if isinstance(value, float) and value.is_integer():
            return int(value)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def _take_number(self, value: object) -> float | None:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            return None
        return float(value)

    def _take_switch(self, value: object) -> bool | None:
        return value if isinstance(value, bool) else None

    def _take_text(self, value: object) -> str | None:
        if isinstance(value, (int, float)) and not isinstance(value, bool) and float(value).is_integer():
            value = str(int(value))  # such as trainer.save_freq
        return value if isinstance(value, str) and (value or self.text == "text") else None

    def _take_choice(self, value: object) -> str | None:
        text = _as_text(value)
        return text if text in self.choices else None

    def _take_texts(self, value: object) -> list[Scalar] | None:
        if isinstance(value, str):
            return [value] if value else []
        good = isinstance(value, list) and all(isinstance(each, Scalar) for each in value)
        return value if good else None  # type: ignore[return-value]

    def _take_names(self, value: object) -> Value | None:
        return value if isinstance(value, str) else self._take_texts(value)


@functools.cache
def key_type(text: str) -> KeyType:
    """The type that a row of the list of keys names."""
    if text.startswith(("integer", "number")):
        limits = tuple((sign, float(limit)) for sign, limit in _LIMIT.findall(text))
        return KeyType(text, "integer" if text.startswith("integer") else "number", limits)
    kinds: dict[str, Literal["switch", "text", "texts", "names"]] = {
        "true or false": "switch",
        "text": "text",
        "text, not empty": "text",
        "list of texts": "texts",
        "list, or text with commas": "names",
    }
    if text in kinds:
        return KeyType(text, kinds[text])
    return KeyType(text, "choice", choices=tuple(re.split(r", | or ", text)))


def _plain(given: object) -> object:
    """Python's own types of a value: of NumPy's numbers, paths, enumerations, tuples and sets."""
    if isinstance(given, enum.Enum):
        return given.value
    if isinstance(given, os.PathLike):
        return os.fspath(given)
    if isinstance(given, bool | str | int | float):
        return given
    if isinstance(given, numbers.Integral):
        return int(given)
    if isinstance(given, numbers.Real):
        return float(given)
    if type(given).__name__ == "bool" and hasattr(given, "item"):  # NumPy's
        return bool(given)
    if isinstance(given, (set, frozenset)):
        return sorted(given)
    if isinstance(given, Sequence) and not isinstance(given, (bytes, bytearray)):
        return [_plain(each) for each in given]
    return given


def _as_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _holds(value: Any, sign: str, limit: float) -> bool:
    return bool({"≥": value >= limit, ">": value > limit, "≤": value <= limit, "<": value < limit}[sign])


def flattened(values: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    """{"a.b": value} of {"a": {"b": value}}."""
    flat: dict[str, object] = {}
    for name, value in values.items():
        if not isinstance(name, str):
            raise InvalidArgument(f"the name of a key must be a text, not {name!r}")
        if isinstance(value, Mapping):
            flat |= flattened(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat


def nested(flat: Mapping[str, Value]) -> dict[str, Any]:
    """The inverse of flattened()."""
    tree: dict[str, Any] = {}
    for key, value in flat.items():
        *sections, name = key.split(".")
        at = tree
        for section in sections:
            at = at.setdefault(section, {})
        at[name] = value
    return tree


def to_yaml(tree: Mapping[str, Any], indent: str = "") -> str:
    """YAML of sections, whose values are as in JSON."""
    lines = ""
    for name, value in tree.items():
        if isinstance(value, Mapping):
            lines += f"{indent}{name}:\n{to_yaml(value, indent + '  ')}"
        else:
            lines += f"{indent}{name}: {json.dumps(value, ensure_ascii=False)}\n"
    return lines
