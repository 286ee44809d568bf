"""Schemas of tools, as get_json_schema of transformers makes them."""

from __future__ import annotations

import enum
import inspect
import json
import re
import types
import typing
from collections.abc import Callable, Sequence
from typing import Any

from ._program import ProgramError, Record, Told, shown

_SCALARS: dict[Any, str] = {int: "integer", float: "number", str: "string", bool: "boolean", type(None): "null"}
_TYPES: dict[Any, str] = _SCALARS | {list: "array", tuple: "array", dict: "object"}


def schema_of_tool(tool: Callable[..., Any]) -> Record:
    """The JSON schema of a function, from its annotations and its docstring in Google's style."""
    name = getattr(tool, "__name__", "operation")
    doc = inspect.getdoc(tool)
    if not doc:
        raise ProgramError(f"the tool '{name}' has no docstring, from which the model learns what it does")
    description, described, returned = _read_docstring(doc.strip())
    parameters = inspect.signature(tool).parameters
    for one in parameters.values():
        if one.annotation is one.empty:
            raise ProgramError(f"the tool '{name}' does not say the type of '{one.name}': annotate it")
    hints = typing.get_type_hints(tool)
    properties: dict[str, Record] = {}
    for parameter, hint in hints.items():
        if parameter == "return":
            continue
        try:
            properties[parameter] = _schema_of(hint)
        except Told as error:
            raise ProgramError(f"the tool '{name}', parameter '{parameter}': {error}") from None
        if parameter not in described:
            raise ProgramError(f"the docstring of the tool '{name}' does not describe '{parameter}' under Args:")
        text = described[parameter]
        choices = re.search(r"\(choices:\s*(.*?)\)\s*$", text, re.IGNORECASE)
        if choices:
            values = _choices(choices[1], name, parameter)
            properties[parameter]["enum"] = [one.strip() if isinstance(one, str) else one for one in values]
            text = text[: choices.start()].strip()
        properties[parameter]["description"] = text
    schema: Record = {"type": "object", "properties": properties}
    required = [one.name for one in parameters.values() if one.default is one.empty]
    if required:
        schema["required"] = required
    function: Record = {"name": name, "description": description, "parameters": schema}
    if "return" in hints:
        try:
            function["return"] = _schema_of(hints["return"])
            if returned is not None:
                function["return"]["description"] = returned
        except Told:
            pass  # the model never writes it
    return {"type": "function", "function": function}


def _choices(text: str, tool: str, parameter: str) -> list[Any]:
    try:
        values = json.loads(text)
    except ValueError:
        values = None
    if not isinstance(values, list):
        raise ProgramError(f"the tool '{tool}', parameter '{parameter}': its choices are no JSON list: {text}")
    return values


def _schema_of(hint: Any) -> Record:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is None:
        if isinstance(hint, type) and issubclass(hint, enum.Enum):
            return _one_of([member.value for member in hint])
        if hint is Any:
            return {}
        if hint not in _TYPES:
            raise Told(f"there is no JSON schema for {shown(hint)}, but for int, float, str, bool, list, tuple, "
                        "dict, Literal, Union and Enum")  # fmt: skip
        return {"type": _TYPES[hint]}
    if origin is typing.Union or origin is getattr(types, "UnionType", None):
        return _any_of(arguments)
    if origin is typing.Literal:
        return _one_of(list(arguments))
    if origin is list:
        return {"type": "array", "items": _schema_of(arguments[0])}
    if origin is tuple:
        if len(arguments) < 2 or ... in arguments:
            raise Told(f"a tuple of a length that is not known ({shown(hint)}); use list")
        return {"type": "array", "prefixItems": [_schema_of(one) for one in arguments]}
    if origin is dict:
        return {"type": "object", "additionalProperties": _schema_of(arguments[1])}
    raise Told(f"there is no JSON schema for {shown(hint)}")


def _one_of(values: list[Any]) -> Record:
    if not values or any(type(value) not in _SCALARS for value in values):
        raise Told(f"the values {shown(values)} are not all int, float, str, bool or None")
    kinds = list(dict.fromkeys(_SCALARS[type(value)] for value in values))
    return {"type": kinds[0] if len(kinds) == 1 else kinds, "enum": values}


def _any_of(hints: Sequence[Any]) -> Record:
    schemas = [_schema_of(one) for one in hints if one is not type(None)]
    if len(schemas) == 1:
        union = schemas[0]
    elif all(one.keys() == {"type"} and isinstance(one["type"], str) for one in schemas):
        kinds = sorted({one["type"] for one in schemas})
        union = {"type": kinds[0] if len(kinds) == 1 else kinds}
    else:
        union = {"anyOf": schemas}
    if type(None) in hints:
        union["nullable"] = True
    return union


def _read_docstring(doc: str) -> tuple[str, dict[str, str], str | None]:
    """What it says of the function, of each parameter, and of what it returns."""
    description = re.split(r"Args:|Returns:|Raises:", doc, maxsplit=1)[0].strip()
    described: dict[str, list[str]] = {}
    parts = re.split(r"\n\s*Args:\n", doc, maxsplit=1)
    if len(parts) == 2:
        indent, lines = "", []
        for line in re.split(r"Returns:|Raises:", parts[1], maxsplit=1)[0].split("\n"):
            begins = re.fullmatch(r"([ \t]*)(\w+):(.*)", line)
            # A line that is indented deeper belongs to the parameter above it.
            if begins and not (described and line.startswith((indent + " ", indent + "\t"))):
                indent, lines = begins[1], [begins[3].strip()]
                described[begins[2]] = lines
            elif described and line.strip():
                lines.append(line.strip())
    parts = re.split(r"\n\s*Returns:\n", doc, maxsplit=1)
    returned = parts[1].split("Raises:")[0].strip() if len(parts) == 2 else None
    return description, {name: " ".join(filter(None, lines)) for name, lines in described.items()}, returned
