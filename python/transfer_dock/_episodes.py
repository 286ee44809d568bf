"""What an episode begins with, and what an environment says in it."""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ._program import TRUTHS, ProgramError, Record, Told, as_element, from_json, meant, names, shown


@dataclass(frozen=True)
class Row:
    prompt: str
    messages: list[Record]
    prompt_ids: list[int]
    truth: str
    source: str
    columns: dict[str, str]
    whole: Record  # as it arrived

    @staticmethod
    def read(row: Any) -> Row:
        if not isinstance(row, dict):
            raise ProgramError(f"the row of an episode is no object: {shown(row)}")
        texts = {key: row.get(key) or "" for key in ("prompt", "truth", "source")}
        columns = row.get("columns") or {}
        for key, text in [*texts.items(), *columns.items()]:
            if not isinstance(text, str):
                raise ProgramError(f"'{key}' of a row is not a text: {shown(text)}")
        return Row(messages=row.get("messages") or [], prompt_ids=row.get("prompt_ids") or [], columns=columns,
                    whole=row, **texts)  # fmt: skip

    def turns(self) -> list[Record]:
        return self.messages or [{"role": "user", "content": self.prompt}]

    def column(self, name: str) -> Any:
        return from_json(self.columns.get(name, ""))


_ELEMENT = re.compile(r"(?:typing\.)?(?:Optional\[)?(int|float|bool|str)\]?(?:\s*\|\s*None)?")


def _argument(parameter: inspect.Parameter, text: str, what: str) -> Any:
    """Values arrive as texts; the annotation says what a number was."""
    annotation = parameter.annotation
    if not isinstance(annotation, str):
        annotation = "" if annotation is parameter.empty else inspect.formatannotation(annotation)
    match = _ELEMENT.fullmatch(annotation.strip("\"'"))
    return as_element(match[1], text, what) if match else from_json(text)


class RowArguments:
    """What of a row a function is called with, by the names of its parameters."""

    def __init__(self, what: str, function: Callable[..., Any], given: Sequence[str] = ()) -> None:
        """what: the function, in errors. given: names of values that each call brings."""
        self._what, self._given = what, tuple(given)
        self._parameters = list(inspect.signature(function).parameters.values())
        self._columns: set[str] = set()

    def bind(self, columns: Sequence[str]) -> None:
        """The columns of the run. Raises ProgramError for a parameter that nothing is known for."""
        self._columns = set(columns)
        known = {"prompt", "seed", "source", "data_source", *TRUTHS, *columns, *self._given}
        for parameter in self._parameters:
            required = parameter.default is parameter.empty and parameter.kind not in (
                parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL,
            )  # fmt: skip
            if required and (parameter.name not in known or parameter.kind is parameter.POSITIONAL_ONLY):
                raise ProgramError(f"{self._what} needs '{parameter.name}': no column of that name is kept; name it in "
                                   f"data.keep (kept: {names(columns)})")  # fmt: skip

    def of(self, seed: int, row: Row, brought: Mapping[str, Any] = {}) -> Record:
        given: dict[str, Callable[[inspect.Parameter], Any]] = {"prompt": lambda _: row.messages or row.prompt}
        for name in TRUTHS:
            given[name] = lambda parameter: _argument(parameter, row.truth, "the truth")
        given |= {"source": lambda _: row.source, "data_source": lambda _: row.source, "seed": lambda _: seed}
        for name in self._columns - {"prompt"}:
            given[name] = lambda parameter: _argument(
                parameter, row.columns.get(parameter.name, ""), f"column '{parameter.name}'"
            )
        given |= {name: lambda parameter: brought[parameter.name] for name in brought}
        arguments: Record = {}
        for parameter in self._parameters:
            if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
                continue
            # Any other default is an option of the function, whatever its name.
            named = parameter.name in ("prompt", *self._columns, *brought) or parameter.default in (
                parameter.empty, None,
            )  # fmt: skip
            if parameter.name in given and named:
                arguments[parameter.name] = given[parameter.name](parameter)
        if any(parameter.kind is parameter.VAR_KEYWORD for parameter in self._parameters):
            rest = {"prompt", *TRUTHS, *self._columns, *brought} - {parameter.name for parameter in self._parameters}
            plain = inspect.Parameter
            arguments |= {name: given[name](plain(name, plain.KEYWORD_ONLY)) for name in sorted(rest)}
        return arguments


# ---- what comes back ----


@dataclass
class Observation:
    """What an environment of our own says: returned by reset() and step(), which may return such a dict instead.

    messages: a text of the user, a turn {"role": …, "content": …}, a list of turns, or None for nothing.
    rewards: numbers by name, or one; over an episode they are added up.
    done: the episode is over; truncated: it is over before its end.
    continues: of reset(): the text is the end of the prompt's last message, and no turn of its own.
    error: this try of the episode has failed, and why.
    """

    messages: Any = None
    rewards: Any = None
    done: bool = False
    truncated: bool = False
    continues: bool = False
    error: str | None = None


_ROLES = ("user", "system", "developer", "tool", "function")
_FIELDS = ("observation", "messages", "rewards", "done", "truncated", "continues", "error")


def observation_of(value: Any) -> Record:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {one.name: getattr(value, one.name) for one in dataclasses.fields(value)}
    elif value is None or isinstance(value, (str, list)) or (isinstance(value, Mapping) and "role" in value):
        value = {"observation": value}
    if not isinstance(value, Mapping):
        raise Told(f"it returned {shown(value)} ({type(value).__name__}), and not a text, a list of messages, a dict "
                    "or an Observation")  # fmt: skip
    for key in value:
        if key not in _FIELDS:
            near = difflib.get_close_matches(str(key), _FIELDS, 1)
            raise Told(f"it returned a dict with '{key}'; {meant(near, _FIELDS)}")
    if value.get("error") is not None:
        return {"error": str(value["error"])}
    if "observation" in value and "messages" in value:
        raise Told("it returned a dict with both 'observation' and 'messages', which are the same")
    return {
        "messages": _messages(value.get("observation", value.get("messages"))),
        "rewards": rewards_of(value.get("rewards")),
        **{name: _flag(name, value.get(name)) for name in ("done", "truncated", "continues")},
    }


def _messages(said: Any) -> list[Record]:
    if said is None:
        return []
    if isinstance(said, str):
        return [{"role": "user", "content": said}]
    turns = [said] if isinstance(said, Mapping) else said
    if not isinstance(turns, list):
        raise Told(f"an observation is a text, a message or a list of messages, not {shown(said)}")
    for turn in turns:
        if not isinstance(turn, Mapping) or turn.get("role") not in _ROLES:
            raise Told(f"a message of an observation has a role, one of {names(_ROLES)}: {shown(turn)}")
    return [{**turn, "content": content_of(turn.get("content"), "a message has the content")} for turn in turns]


def _flag(name: str, value: Any) -> bool:
    """True or false, those of numpy and torch included; absent: false."""
    plain = value
    if callable(getattr(value, "item", None)):
        try:
            plain = value.item()
        except (ValueError, RuntimeError):
            plain = None
    if value is not None and (plain is None or plain not in (True, False)):
        raise Told(f"'{name}' is true or false, not {shown(value)} ({type(value).__name__})")
    return bool(plain)


def rewards_of(rewards: Any) -> dict[str, float]:
    """None, alone or of a name: no reward."""
    if rewards is None:
        return {}
    if isinstance(rewards, Mapping):
        return {str(name): _number(value) for name, value in rewards.items() if value is not None}
    return {"reward": _number(rewards)}


def _number(value: Any) -> float:
    """A finite float from any number, those of numpy and torch included."""
    try:
        number = math.nan if isinstance(value, (str, bytes)) else float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise Told(f"a reward is a finite number, not {shown(value)} ({type(value).__name__})")
    return number


def content_of(value: Any, what: str, of_tool: bool = False) -> str:
    """The text of a content: a text, or a list of parts that are texts. What else a tool returned is written as one."""
    if isinstance(value, list) and value and all(isinstance(part, dict) and "type" in part for part in value):
        for part in value:
            if part["type"] != "text" or not isinstance(part.get("text"), str):
                raise Told(f"{what} a part that is no text: {shown(part)}")
        return "".join(part["text"] for part in value)
    if not of_tool and not isinstance(value, str):
        raise Told(f"{what} {shown(value)} ({type(value).__name__}), which is no text")
    return str(value)
