"""Environments in Python for `tdock train`: makes an environment program from a class.

    tdock train grpo.yaml environment.function=my_tools.py:Calculator

starts such a program itself. One of your own, for environment.program, ends with

    if __name__ == "__main__":
        serve(Calculator)

A class is written as TRL's or verl's are, or in our own form, and recognised by its methods (docs/environments.md):

    class Calculator:                                   # TRL: methods are tools; it is over at an answer without calls
        def reset(self, answer: str, **kwargs): ...
        def multiply(self, a: int, b: int) -> int: ...  # with a docstring that describes a and b
        def get_reward(self) -> float: ...

    class Game:                                         # ours
        def reset(self, seed, row): ...
        def step(self, message): return {"observation": "…", "rewards": {"won": 1.0}, "done": True}

    class Agent:                                        # verl: an agent loop
        async def run(self, sampling_params, **kwargs): ...

This file needs nothing but Python 3.10, so that any interpreter can run it:
`python environments.py my_tools.py:Calculator`.
"""

from __future__ import annotations

import argparse
import asyncio
import concurrent.futures
import dataclasses
import difflib
import enum
import functools
import importlib
import importlib.util
import inspect
import json
import math
import os
import queue
import re
import sys
import threading
import traceback
import types
import typing
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["BadEnvironment", "Observation", "serve"]

_PROTOCOL = 1
_LONGEST_LINE = 16 << 20  # bytes
_LONGEST_ERROR = 2000  # characters
_SHOWN = 80  # characters of a value in an error
_EPISODES = 64  # at the same time

Record = dict[str, Any]  # a message of the protocol, or a part of one


class BadEnvironment(Exception):
    """A class cannot serve as an environment, or what started this program does not follow the protocol."""


class _Told(Exception):
    """What an environment returned is of no use; the text says all of it."""


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


def serve(environment: Any, *, name: str | None = None, episodes: int = _EPISODES) -> None:
    """Plays the episodes that arrive at the standard input until it is closed. Call it in the main thread, last.

    environment: a class, or what makes instances: a factory without arguments, or a functools.partial of an agent loop.
    name: what errors call it; default: its own name.
    episodes: how many are played at the same time, unless the class has concurrent_episodes; with 1, no two methods run
    at the same time.

    What is printed meanwhile, by child processes as well, goes to the standard error. Raises BadEnvironment if it has
    none of the forms, or what arrives is not the protocol.
    """
    channel = _Channel()
    try:
        _serve(environment, name, episodes, channel)
    except BrokenPipeError:
        pass  # nobody is left to play with
    except KeyboardInterrupt:
        raise SystemExit(130) from None


# ---- schemas of tools, as get_json_schema of transformers makes them ----

_SCALARS: dict[Any, str] = {int: "integer", float: "number", str: "string", bool: "boolean", type(None): "null"}
_TYPES: dict[Any, str] = _SCALARS | {list: "array", tuple: "array", dict: "object"}


def _schema(tool: Callable[..., Any]) -> Record:
    """The JSON schema of a function, from its annotations and its docstring in Google's style."""
    name = getattr(tool, "__name__", "operation")
    doc = inspect.getdoc(tool)
    if not doc:
        raise BadEnvironment(f"the tool '{name}' has no docstring, from which the model learns what it does")
    description, described, returned = _read_docstring(doc.strip())
    parameters = inspect.signature(tool).parameters
    for one in parameters.values():
        if one.annotation is one.empty:
            raise BadEnvironment(f"the tool '{name}' does not say the type of '{one.name}': annotate it")
    hints = typing.get_type_hints(tool)
    properties: dict[str, Record] = {}
    for parameter, hint in hints.items():
        if parameter == "return":
            continue
        try:
            properties[parameter] = _schema_of(hint)
        except _Told as error:
            raise BadEnvironment(f"the tool '{name}', parameter '{parameter}': {error}") from None
        if parameter not in described:
            raise BadEnvironment(f"the docstring of the tool '{name}' does not describe '{parameter}' under Args:")
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
        except _Told:
            pass  # the model never writes it
    return {"type": "function", "function": function}


def _choices(text: str, tool: str, parameter: str) -> list[Any]:
    try:
        values = json.loads(text)
    except ValueError:
        values = None
    if not isinstance(values, list):
        raise BadEnvironment(f"the tool '{tool}', parameter '{parameter}': its choices are no JSON list: {text}")
    return values


def _schema_of(hint: Any) -> Record:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is None:
        if isinstance(hint, type) and issubclass(hint, enum.Enum):
            return _one_of([member.value for member in hint])
        if hint is Any:
            return {}
        if hint not in _TYPES:
            raise _Told(f"there is no JSON schema for {_shown(hint)}, but for int, float, str, bool, list, tuple, "
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
            raise _Told(f"a tuple of a length that is not known ({_shown(hint)}); use list")
        return {"type": "array", "prefixItems": [_schema_of(one) for one in arguments]}
    if origin is dict:
        return {"type": "object", "additionalProperties": _schema_of(arguments[1])}
    raise _Told(f"there is no JSON schema for {_shown(hint)}")


def _one_of(values: list[Any]) -> Record:
    if not values or any(type(value) not in _SCALARS for value in values):
        raise _Told(f"the values {_shown(values)} are not all int, float, str, bool or None")
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


# ---- rows ----

# Names that environments give the truth.
_TRUTHS = ("truth", "ground_truth", "solution", "answer", "label", "target", "reference_answer")
_ELEMENT = re.compile(r"(?:typing\.)?(?:Optional\[)?(int|float|bool|str)\]?(?:\s*\|\s*None)?")


@dataclass(frozen=True)
class _Row:
    prompt: str
    messages: list[Record]
    prompt_ids: list[int]
    truth: str
    source: str
    columns: dict[str, str]
    whole: Record  # as it arrived

    @staticmethod
    def read(row: Any) -> _Row:
        if not isinstance(row, dict):
            raise BadEnvironment(f"the row of an episode is no object: {_shown(row)}")
        texts = {key: row.get(key) or "" for key in ("prompt", "truth", "source")}
        columns = row.get("columns") or {}
        for key, text in [*texts.items(), *columns.items()]:
            if not isinstance(text, str):
                raise BadEnvironment(f"'{key}' of a row is not a text: {_shown(text)}")
        return _Row(messages=row.get("messages") or [], prompt_ids=row.get("prompt_ids") or [], columns=columns,
                    whole=row, **texts)  # fmt: skip

    def turns(self) -> list[Record]:
        return self.messages or [{"role": "user", "content": self.prompt}]

    def column(self, name: str) -> Any:
        return _from_json(self.columns.get(name, ""))


def _from_json(text: str) -> Any:
    """The list or object that a text is, or the text."""
    if text[:1] in ("[", "{"):
        try:
            return json.loads(text)
        except ValueError:
            pass
    return text


def _as(element: str, text: str, what: str) -> Any:
    if element == "str":
        return text
    if text == "":
        return None
    try:
        if element == "bool":
            return {"true": True, "false": False, "1": True, "0": False}[text.lower()]
        return float(text) if element == "float" else int(text)
    except (KeyError, ValueError):
        raise _Told(f"{what} is no {element}, as its annotation says, but {_shown(text)}") from None


def _argument(parameter: inspect.Parameter, text: str, what: str) -> Any:
    """Values arrive as texts; the annotation says what a number was."""
    annotation = parameter.annotation
    if not isinstance(annotation, str):
        annotation = "" if annotation is parameter.empty else inspect.formatannotation(annotation)
    match = _ELEMENT.fullmatch(annotation.strip("\"'"))
    return _as(match[1], text, what) if match else _from_json(text)


# ---- environments ----


class _Thread:
    """Runs the methods of one environment, one after the other and in one thread, to which connections may be bound."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[tuple[concurrent.futures.Future[Any], Callable[[], Any]] | None]
        self._calls = queue.SimpleQueue()
        threading.Thread(target=self._run, daemon=True, name="environment").start()

    def submit(self, function: Callable[[], Any]) -> concurrent.futures.Future[Any]:
        future: concurrent.futures.Future[Any] = concurrent.futures.Future()
        self._calls.put((future, function))
        return future

    def stop(self) -> None:
        """After what has been submitted."""
        self._calls.put(None)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            future, function = call
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(function())
            except StopIteration as error:  # which a future cannot have
                future.set_exception(RuntimeError(f"StopIteration {error}").with_traceback(error.__traceback__))
            except BaseException as error:
                future.set_exception(error)


class _Instance:
    """One object of the user's class. It plays one episode at a time, and may be used again once that is over."""

    def __init__(self, factory: Callable[[], Any]) -> None:
        self._thread = _Thread()
        self._made = self._thread.submit(factory)

    def object(self) -> Any:
        """Waits until it is made, and raises what that raised."""
        return self._made.result()

    async def made(self) -> Any:
        return await asyncio.wrap_future(self._made)

    async def in_thread(self, function: Callable[[], Any]) -> Any:
        return await asyncio.wrap_future(self._thread.submit(function))

    async def call(self, method: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        if inspect.iscoroutinefunction(method):
            return await method(*arguments, **named)
        result = await self.in_thread(functools.partial(method, *arguments, **named))
        return await result if inspect.isawaitable(result) else result

    def discard(self) -> None:
        self._thread.stop()


class _Form:
    """How an environment of one system is played."""

    name: str
    tools: list[Record]
    concludes: bool  # it is asked what an episode was worth that a limit ended
    instances: list[_Instance]  # that play no episode

    def bind(self, columns: Sequence[str]) -> None:
        """Finds what methods are to be given; the columns are the run's data.keep."""

    async def reset(self, instance: _Instance, seed: int, row: _Row) -> Record:
        raise NotImplementedError

    async def step(self, instance: _Instance, message: Record) -> Record:
        raise NotImplementedError

    async def conclude(self, instance: _Instance) -> Record:
        raise NotImplementedError


class _Own(_Form):
    """reset(seed, row) and step(message), and conclude() if it likes."""

    def __init__(self, name: str, instance: _Instance) -> None:
        self.name, self.instances = name, [instance]
        environment = instance.object()
        if not callable(getattr(environment, "step", None)):
            raise BadEnvironment(f"environment '{name}' has reset(seed, row), but no step(message)")
        self.concludes = callable(getattr(environment, "conclude", None))
        tools = getattr(environment, "tools", None) or []
        self.tools = [one if isinstance(one, dict) else _schema(one) for one in tools]

    async def reset(self, instance: _Instance, seed: int, row: _Row) -> Record:
        return _observation(await instance.call((await instance.made()).reset, seed, row.whole))

    async def step(self, instance: _Instance, message: Record) -> Record:
        return _observation(await instance.call((await instance.made()).step, message))

    async def conclude(self, instance: _Instance) -> Record:
        return _observation(await instance.call((await instance.made()).conclude))


class _Trl(_Form):
    """TRL's: methods are tools, and the episode is over when the model calls none."""

    def __init__(self, name: str, instance: _Instance) -> None:
        self.name, self.instances = name, [instance]
        environment = instance.object()
        self._type = type(environment)
        methods = [one for one, _ in inspect.getmembers(self._type, inspect.isfunction)]
        self._tools = [one for one in methods if one not in ("reset", "get_reward") and not one.startswith("_")]
        self.concludes = "get_reward" in methods
        self.tools = [_schema(getattr(environment, one)) for one in self._tools]
        self._parameters = list(inspect.signature(environment.reset).parameters.values())
        self._columns: set[str] = set()
        self._noted: set[str] = set()

    def bind(self, columns: Sequence[str]) -> None:
        self._columns = set(columns)
        known = {"prompt", "seed", "source", "data_source", *_TRUTHS, *columns}
        for parameter in self._parameters:
            required = parameter.default is parameter.empty and parameter.kind not in (
                parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL,
            )  # fmt: skip
            if required and (parameter.name not in known or parameter.kind is parameter.POSITIONAL_ONLY):
                raise BadEnvironment(f"environment '{self.name}': reset needs '{parameter.name}': no column of that "
                                     f"name is kept; name it in data.keep (kept: {_names(columns)})")  # fmt: skip

    def _arguments(self, seed: int, row: _Row) -> Record:
        given: dict[str, Callable[[inspect.Parameter], Any]] = {"prompt": lambda _: row.messages or row.prompt}
        for name in _TRUTHS:
            given[name] = lambda parameter: _argument(parameter, row.truth, "the truth")
        given |= {"source": lambda _: row.source, "data_source": lambda _: row.source, "seed": lambda _: seed}
        for name in self._columns - {"prompt"}:
            given[name] = lambda parameter: _argument(
                parameter, row.columns.get(parameter.name, ""), f"column '{parameter.name}'"
            )
        arguments: Record = {}
        for parameter in self._parameters:
            if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
                continue
            # Any other default is an option of the environment, whatever its name.
            named = parameter.name in ("prompt", *self._columns) or parameter.default in (parameter.empty, None)
            if parameter.name in given and named:
                arguments[parameter.name] = given[parameter.name](parameter)
        if any(parameter.kind is parameter.VAR_KEYWORD for parameter in self._parameters):
            rest = {"prompt", *_TRUTHS, *self._columns} - {parameter.name for parameter in self._parameters}
            plain = inspect.Parameter
            arguments |= {name: given[name](plain(name, plain.KEYWORD_ONLY)) for name in sorted(rest)}
        return arguments

    async def reset(self, instance: _Instance, seed: int, row: _Row) -> Record:
        environment = await instance.made()
        said = await instance.call(environment.reset, **self._arguments(seed, row))
        if said is None:
            return _observation({})
        text = _content(said, "reset returned")
        return _observation({"observation": text, "continues": True})

    async def conclude(self, instance: _Instance) -> Record:
        rewards = {}
        if self.concludes and (reward := await instance.call((await instance.made()).get_reward)) is not None:
            rewards = {self._type.__name__: reward}
        return _observation({"rewards": rewards, "done": True})

    async def step(self, instance: _Instance, message: Record) -> Record:
        environment = await instance.made()
        calls = message.get("tool_calls")
        if not calls:
            return await self.conclude(instance)
        if not isinstance(calls, list):
            raise BadEnvironment(f"the tool calls of a message are no list: {_shown(calls)}")
        results = await self._answer(instance, environment, calls)
        contents = [_content(result, f"the tool '{name}' returned", of_tool=True) for name, result in results]
        turns = [{"role": "tool", "name": name, "content": text} for (name, _), text in zip(results, contents)]
        return _observation(turns)

    async def _answer(self, instance: _Instance, environment: Any, calls: list[Any]) -> list[tuple[str, Any]]:
        """Names and results of calls, in TRL's order: first those of functions, then those of coroutines."""
        now: list[tuple[str, Callable[[], Any]]] = []
        later: list[tuple[str, Callable[[], Any]]] = []
        for call in calls:
            function = call.get("function") if isinstance(call, dict) else None
            if not isinstance(function, dict):
                raise BadEnvironment(f"a tool call is no function with a name: {_shown(call)}")
            name, arguments = str(function.get("name")), function.get("arguments")
            if name not in self._tools:
                now.append((name, functools.partial(_raise, ValueError(f"Tool {name} not found."))))
                continue
            tool = getattr(environment, name)
            call_it = functools.partial(_call_tool, tool, {} if arguments is None else arguments)
            (later if inspect.iscoroutinefunction(tool) else now).append((name, call_it))

        def run() -> list[tuple[str, Any]]:
            return [(name, self._result(name, tool)) for name, tool in now]

        async def wait(name: str, tool: Callable[[], Any]) -> tuple[str, Any]:
            try:
                return name, await tool()
            except (Exception, SystemExit) as error:
                return name, self._failed(name, error)

        results = await instance.in_thread(run) if now else []
        return [*results, *await asyncio.gather(*(wait(name, tool) for name, tool in later))]

    def _result(self, name: str, tool: Callable[[], Any]) -> Any:
        try:
            return tool()
        except (Exception, SystemExit) as error:
            return self._failed(name, error)

    def _failed(self, name: str, error: BaseException) -> Record:
        """The model is told of it; people are told once for each place, since it may be a mistake of the tool."""
        where = _where(error, _file_of(self._type))
        if where and where not in self._noted:
            self._noted.add(where)
            print(f"note: the model is told that the tool '{name}' raised {type(error).__name__}: {error}{where}",
                  file=sys.stderr)  # fmt: skip
        return {"error": str(error)}


def _raise(error: Exception) -> Any:
    raise error


def _call_tool(tool: Callable[..., Any], arguments: Any) -> Any:
    return tool(**arguments)


def _content(value: Any, what: str, of_tool: bool = False) -> str:
    """The text of a content: a text, or a list of parts that are texts. What else a tool returned is written as one."""
    if isinstance(value, list) and value and all(isinstance(part, dict) and "type" in part for part in value):
        for part in value:
            if part["type"] != "text" or not isinstance(part.get("text"), str):
                raise _Told(f"{what} a part that is no text: {_shown(part)}")
        return "".join(part["text"] for part in value)
    if not of_tool and not isinstance(value, str):
        raise _Told(f"{what} {_shown(value)} ({type(value).__name__}), which is no text")
    return str(value)


# ---- what environments return ----

_ROLES = ("user", "system", "developer", "tool", "function")
_FIELDS = ("observation", "messages", "rewards", "done", "truncated", "continues", "error")


def _observation(value: Any) -> Record:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {one.name: getattr(value, one.name) for one in dataclasses.fields(value)}
    elif value is None or isinstance(value, (str, list)) or (isinstance(value, Mapping) and "role" in value):
        value = {"observation": value}
    if not isinstance(value, Mapping):
        raise _Told(f"it returned {_shown(value)} ({type(value).__name__}), and not a text, a list of messages, a dict "
                    "or an Observation")  # fmt: skip
    for key in value:
        if key not in _FIELDS:
            near = difflib.get_close_matches(str(key), _FIELDS, 1)
            raise _Told(f"it returned a dict with '{key}'; {_meant(near, _FIELDS)}")
    if value.get("error") is not None:
        return {"error": str(value["error"])}
    if "observation" in value and "messages" in value:
        raise _Told("it returned a dict with both 'observation' and 'messages', which are the same")
    return {
        "messages": _messages(value.get("observation", value.get("messages"))),
        "rewards": _rewards(value.get("rewards")),
        "done": bool(value.get("done", False)),
        "truncated": bool(value.get("truncated", False)),
        "continues": bool(value.get("continues", False)),
    }


def _messages(said: Any) -> list[Record]:
    if said is None:
        return []
    if isinstance(said, str):
        return [{"role": "user", "content": said}]
    turns = [said] if isinstance(said, Mapping) else said
    if not isinstance(turns, list):
        raise _Told(f"an observation is a text, a message or a list of messages, not {_shown(said)}")
    for turn in turns:
        if not isinstance(turn, Mapping) or turn.get("role") not in _ROLES:
            raise _Told(f"a message of an observation has a role, one of {_names(_ROLES)}: {_shown(turn)}")
    return [{**turn, "content": _content(turn.get("content"), "a message has the content")} for turn in turns]


def _rewards(rewards: Any) -> dict[str, float]:
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
        raise _Told(f"a reward is a finite number, not {_shown(value)} ({type(value).__name__})")
    return number


# ---- agent loops, as verl has them ----


class _Config(dict[str, Any]):
    """The part of verl's configuration that there is here; where verl is, it is a DictConfig instead."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"agents' configuration has no '{name}' here; it has: {_names(self)}") from None


_NO_LIMIT = 1 << 20  # tokens


def _config(model: str, sampling: Mapping[str, Any]) -> Any:
    length = sampling.get("max_tokens") or _NO_LIMIT
    turns = {"max_user_turns": None, "max_assistant_turns": None, "max_parallel_calls": 1,
             "max_tool_response_length": 256, "tool_response_truncate_side": "middle", "tool_config_path": None,
             "function_tool_path": None, "format": "hermes"}  # fmt: skip
    rollout = {"prompt_length": _NO_LIMIT, "response_length": length, "temperature": sampling.get("temperature", 1.0),
               "top_p": sampling.get("top_p", 1.0), "top_k": -1, "calculate_log_probs": True, "multi_turn": turns,
               "full_determinism": False}  # fmt: skip
    data: Record = {"max_prompt_length": _NO_LIMIT, "max_response_length": length, "apply_chat_template_kwargs": {},
                    "mm_processor_kwargs": {}, "tool_config_path": None}  # fmt: skip
    whole = {"actor_rollout_ref": {"model": {"path": model}, "rollout": rollout}, "data": data}
    if omegaconf := sys.modules.get("omegaconf"):  # imported by verl
        return omegaconf.OmegaConf.create(whole)

    def wrap(value: Any) -> Any:
        return _Config({key: wrap(one) for key, one in value.items()}) if isinstance(value, dict) else value

    return wrap(whole)


@dataclass
class TokenOutput:
    """What generate() returns, with the fields of verl's own."""

    token_ids: list[int]
    log_probs: list[float]
    stop_reason: str  # "length", or else "completed"
    num_preempted: int | None = None
    routed_experts: Any = None
    extra_fields: Record = field(default_factory=dict)


# How the host samples unless the run says otherwise; log-probs are of that.
_SAMPLING = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "repetition_penalty": 1.0, "min_p": 0.0, "n": 1,
             "stop": None, "stop_token_ids": None}  # fmt: skip


class _ServerManager:
    """Asks the host for completions, under the name that verl's agent loops know."""

    def __init__(self, sampling: Record, ask: Callable[[Record], Awaitable[Record]]) -> None:
        self._sampling, self._ask = sampling, ask

    async def generate(self, request_id: Any = None, *, prompt_ids: Any, sampling_params: Mapping[str, Any] = {},
                       **others: Any) -> TokenOutput:  # fmt: skip
        """One completion of the prompt. request_id, by which verl chooses a server, has no effect.

        Raises ValueError for images and for other sampling than the run's; RuntimeError if the host cannot generate.
        """
        for name in ("image_data", "video_data", "audio_data", "mm_processor_output"):
            if others.get(name):
                raise ValueError(f"{name}: only texts are generated here")
        limit = 0
        for key, value in sampling_params.items():
            if key in ("max_tokens", "max_new_tokens"):
                limit = int(value or 0)
            elif key in _SAMPLING and value not in (None, []):
                of_run = (_SAMPLING | self._sampling)[key]
                if value != of_run:
                    raise ValueError(f"sampling_params has {key}={_shown(value)}, and the run {_shown(of_run)}, which "
                                     "log-probs are of: change it there")  # fmt: skip
        request = {"prompt_ids": _ids(prompt_ids, "prompt_ids")}
        answer = await self._ask(request | ({"max_tokens": limit} if limit > 0 else {}))
        if answer.get("error") is not None:
            raise RuntimeError(f"no completion was generated: {answer['error']}")
        version = answer.get("weights_version", 0)
        steps = {"global_steps": version, "min_global_steps": version, "max_global_steps": version}
        stopped = "length" if answer.get("stop_reason") == "length" else "completed"
        return TokenOutput(answer["token_ids"], answer.get("log_probs") or [], stopped, extra_fields=steps)


def _ids(value: Any, what: str) -> list[int]:
    if hasattr(value, "tolist"):
        value = value.tolist()
    if not isinstance(value, (list, tuple)) or not all(isinstance(one, (int, float)) for one in value):
        raise _Told(f"{what} is not a list of token ids: {_shown(value)}")
    return [int(one) for one in value]


class _Agents:
    """A class of agent loops, of which an instance is made for each episode, as verl does."""

    tools: list[Record] = []

    def __init__(self, name: str, factory: Any) -> None:
        self.name, self.factory = name, factory
        self._model = ""
        try:
            parameters = inspect.signature(factory).parameters.values()
        except (TypeError, ValueError) as error:
            raise BadEnvironment(f"the parameters of agent '{name}' are unknown: {error}") from None
        self._takes = {one.name for one in parameters}
        self._takes_all = any(one.kind is one.VAR_KEYWORD for one in parameters)
        missing = [one.name for one in parameters if one.default is one.empty and one.name not in self._parts({})
                   and one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]  # fmt: skip
        if missing:
            raise BadEnvironment(f"agent '{name}' is made with {_names(missing)}, which agent loops are not given: "
                                 "bind it with functools.partial")  # fmt: skip

    def bind(self, model: str) -> None:
        self._model = model

    def _parts(self, sampling: Mapping[str, Any], server: Any = None) -> dict[str, Callable[[], Any]]:
        """What verl makes agent loops with."""
        config = functools.partial(_config, self._model, sampling)
        return {
            "trainer_config": lambda: types.SimpleNamespace(config=config()),
            "server_manager": lambda: server,
            "tokenizer": self._tokenizer,
            "processor": lambda: None,
            "hf_model_type": self._model_type,
            "dataset_cls": lambda: None,
            "data_config": lambda: types.SimpleNamespace(config=config().data),
            "dataset_config": lambda: config().data,
            "tools": lambda: types.SimpleNamespace(tools=[]),
        }

    @functools.cache
    def _tokenizer(self) -> Any:
        try:
            transformers = importlib.import_module("transformers")
        except ImportError as error:
            raise RuntimeError(f"the tokenizer of an agent is loaded with transformers, which {sys.executable} cannot "
                               f"import: {error}") from None  # fmt: skip
        return transformers.AutoTokenizer.from_pretrained(self._model)

    def _model_type(self) -> str | None:
        try:
            with open(os.path.join(self._model, "config.json"), encoding="utf-8") as file:
                kind = json.load(file).get("model_type")
            return kind if isinstance(kind, str) else None
        except OSError:
            return None  # a model that is made by the run

    def _make(self, sampling: Mapping[str, Any], server: _ServerManager) -> Any:
        parts = self._parts(sampling, server)
        given = {name: make() for name, make in parts.items() if self._takes_all or name in self._takes}
        if given or not inspect.isclass(self.factory):
            return self.factory(**given)
        # A class that is made without arguments has these as attributes.
        attributes: dict[str, Callable[[], Any]] = {
            **{name: parts[name] for name in ("server_manager", "tokenizer", "processor")},
            "config": functools.partial(_config, self._model, sampling),
            "rollout_config": lambda: _config(self._model, sampling).actor_rollout_ref.rollout,
            "data_config": lambda: _config(self._model, sampling).data,
            "loop": asyncio.get_running_loop,
        }
        return _with_attributes(self.factory, attributes)

    async def run(self, row: _Row, seed: int, sampling: Record, server: _ServerManager) -> Record:
        agent = self._make(sampling, server)
        arguments = _verl_row(row) | {"seed": seed}
        parameters = inspect.signature(agent.run).parameters.values()
        if any(one.kind is one.VAR_KEYWORD for one in parameters):
            named = {one.name for one in parameters}
            arguments = {name: value for name, value in arguments.items() if name != "seed" or name in named}
        else:
            arguments = {one.name: arguments[one.name] for one in parameters if one.name in arguments}
        asked = ("temperature", "top_p", "top_k", "repetition_penalty")  # as verl does
        sampling_params = {name: (_SAMPLING | sampling)[name] for name in asked} | {"logprobs": True}
        return _agent_output(await agent.run(sampling_params, **arguments))


def _with_attributes(kind: Any, attributes: Mapping[str, Callable[[], Any]]) -> Any:
    """An instance with these attributes, where its class sets none, made when they are first looked at."""

    class Agent(kind):  # type: ignore[misc]
        def __getattr__(self, name: str) -> Any:
            if name not in attributes:
                known = _names(attributes)
                raise AttributeError(f"'{kind.__name__}' has no '{name}', nor is it given to agents: {known} are")
            value = attributes[name]()
            setattr(self, name, value)
            return value

    Agent.__name__, Agent.__qualname__, Agent.__module__ = kind.__name__, kind.__qualname__, kind.__module__
    return Agent()


def _verl_row(row: _Row) -> Record:
    """The fields that verl's data set gives agents."""
    extra = row.column("extra_info") or {}
    kept = {name: row.column(name) for name in row.columns}
    fields: Record = {
        "raw_prompt": row.turns(), "raw_prompt_ids": row.prompt_ids, "data_source": row.source, "extra_info": extra,
        "reward_model": {"style": "rule", "ground_truth": _from_json(row.truth)}, "index": 0,
    }  # fmt: skip
    if isinstance(extra, dict):
        fields |= {name: extra.get(name, {}) for name in ("tools_kwargs", "interaction_kwargs")}
        fields["index"] = extra.get("index", 0)
    return fields | kept


def _agent_output(output: Any) -> Record:
    if isinstance(output, list):
        raise _Told(f"run returned a list of {len(output)} outputs; here an episode has one")

    def get(name: str, needed: bool = True) -> Any:
        if isinstance(output, Mapping) and name in output:
            return output[name]
        if not isinstance(output, Mapping) and hasattr(output, name):
            return getattr(output, name)
        if needed:
            raise _Told(f"run returned {_shown(output)} without '{name}'")
        return None

    ids = {name: _ids(get(name), name) for name in ("prompt_ids", "response_ids", "response_mask")}
    response, mask = ids["response_ids"], ids["response_mask"]
    if len(mask) != len(response) or not set(mask) <= {0, 1}:
        raise _Told(f"run returned a response_mask of {len(mask)} values for {len(response)} response_ids; it has a 0 "
                    "or 1 for each")  # fmt: skip
    return {"type": "output", **ids, "rewards": _rewards(get("reward_score", needed=False))}


# ---- texts ----


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _shown(value: Any) -> str:
    try:
        return _cut(" ".join(repr(value).split()), _SHOWN)
    except Exception as error:
        return f"a {type(value).__name__} whose repr raises {type(error).__name__}"


def _names(names: Iterable[Any]) -> str:
    listed = [str(name) for name in names]
    return _cut(", ".join(listed), 500) if listed else "none"


def _meant(near: Sequence[str], there: Iterable[str]) -> str:
    return f"did you mean {' or '.join(near)}?" if near else f"there are: {_names(there)}"


def _file_of(kind: Any) -> str | None:
    return getattr(sys.modules.get(getattr(kind, "__module__", "")), "__file__", None)


def _where(error: BaseException, file: str | None) -> str:
    """The last line of the user's file that an error came through, or else the line that raised it."""
    own = _where.__code__.co_filename
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename != own or own == file]
    if not frames:
        return ""
    frame = next((one for one in reversed(frames) if one.filename == file), frames[-1])
    line = f": {frame.line}" if frame.line else ""
    place = "" if frame.name == "<module>" else f", in {frame.name}"
    return f" ({os.path.basename(frame.filename)}:{frame.lineno}{place}{line})"


def _why(error: BaseException, file: str | None) -> str:
    return str(error) if isinstance(error, _Told) else f"{type(error).__name__}: {error}" + _where(error, file)


# ---- the protocol ----


class _Channel:
    """The standard input and output, which are taken away from everything else in this process and its children."""

    def __init__(self) -> None:
        self._input, self._output = os.dup(0), os.dup(1)
        self._unread = b""
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        os.dup2(2, 1)
        if sys.stdout is not None:
            sys.stdout.flush()  # what was printed before
        sys.stdout = sys.stderr
        if os.isatty(self._input):
            print("this is an environment program: `tdock train` talks to it over its standard input", file=sys.stderr)

    def read(self) -> Record | None:
        """The next message, or None at the end."""
        parts, size = [self._unread], len(self._unread)
        while b"\n" not in parts[-1] and size <= _LONGEST_LINE:
            part = os.read(self._input, 1 << 20)  # unbuffered: no lock is held while nothing comes
            if not part:
                return None
            parts.append(part)
            size += len(part)
        line, _, self._unread = b"".join(parts).partition(b"\n")
        if len(line) > _LONGEST_LINE:
            raise BadEnvironment(f"a line of more than {_LONGEST_LINE >> 20} MiB arrived")
        try:
            message = json.loads(line)
        except ValueError as error:
            raise BadEnvironment(f"what arrived is not JSON: {error}: {_shown(line)}") from None
        if not isinstance(message, dict):
            raise BadEnvironment(f"what arrived is not an object: {_shown(message)}")
        return message

    def write(self, line: bytes) -> None:
        left = memoryview(line)
        while left:
            left = left[os.write(self._output, left) :]


def _line(message: Record) -> bytes:
    try:
        text = json.dumps(message, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise _Told(f"what it said cannot be written as JSON: {error}") from None
    line = text.encode("utf-8", "replace") + b"\n"  # UTF-8 has no halves of surrogate pairs
    if len(line) > _LONGEST_LINE:
        raise _Told(f"what it said has {len(line) >> 20} MiB as JSON, and may have {_LONGEST_LINE >> 20}")
    return line


@dataclass(eq=False)
class _Episode:
    number: int
    inbox: asyncio.Queue[Record] = field(default_factory=asyncio.Queue)  # steps
    answers: dict[int, asyncio.Future[Record]] = field(default_factory=dict)  # that an agent waits for, by request
    requests: int = 0
    task: asyncio.Task[None] | None = None


class _Program:
    """Plays the episodes that the host names, until its input ends. All but read_all() runs in the event loop."""

    def __init__(self, served: _Form | _Agents, factory: Any, channel: _Channel) -> None:
        self._served, self._factory, self._channel = served, factory, channel
        self._file = _file_of(getattr(factory, "func", factory))
        self._what = ("agent" if isinstance(served, _Agents) else "environment") + f" '{served.name}'"
        self._episodes: dict[int, _Episode] = {}

    async def play(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        threading.Thread(target=self._read_all, daemon=True, name="input").start()
        await self._ended

    def _read_all(self) -> None:
        try:
            while True:
                try:
                    message = self._channel.read()
                except BadEnvironment as error:
                    self._loop.call_soon_threadsafe(self._end, error)
                    return
                if message is None:
                    self._loop.call_soon_threadsafe(self._end, None)
                    return
                self._loop.call_soon_threadsafe(self._receive, message)
        except RuntimeError:
            pass  # the loop is closed: the program ends

    def _end(self, error: Exception | None) -> None:
        if self._ended.done():
            return
        if error is None:
            self._ended.set_result(None)
        else:
            self._ended.set_exception(error)

    def _receive(self, message: Record) -> None:
        try:
            kind, number = message.get("type"), message.get("episode")
            begins = "run" if isinstance(self._served, _Agents) else "reset"
            known = ("run", "generated", "end") if begins == "run" else ("reset", "step", "conclude", "end")
            if not isinstance(number, int) or kind not in known:
                raise BadEnvironment(f"a message of an episode was to come, not {_shown(message)}")
            episode = self._episodes.get(number)
            if kind == begins:
                self._begin(number, message)
            elif kind == "end":
                if episode is not None and episode.task is not None:
                    del self._episodes[number]
                    episode.task.cancel()
            elif kind == "generated":
                answer = episode.answers.pop(message.get("request", -1), None) if episode is not None else None
                if answer is not None and not answer.done():
                    answer.set_result(message)
            elif episode is None or (kind == "step" and not isinstance(message.get("message"), dict)):
                raise BadEnvironment(f"episode {number} is not under way, or waits for another message: {message}")
            else:
                episode.inbox.put_nowait(message)
        except BadEnvironment as error:
            self._end(error)

    def _begin(self, number: int, message: Record) -> None:
        if number in self._episodes:
            raise BadEnvironment(f"episode {number} began twice")
        seed, row = message.get("seed"), _Row.read(message.get("row"))
        if not isinstance(seed, int):
            raise BadEnvironment(f"episode {number} has no seed: {_shown(seed)}")
        episode = self._episodes[number] = _Episode(number)
        if isinstance(self._served, _Agents):
            sampling = message.get("sampling") or {}
            coroutine = self._run_agent(self._served, episode, seed, row, sampling)
        else:
            coroutine = self._play_episode(self._served, episode, seed, row)
        episode.task = self._loop.create_task(coroutine)
        episode.task.add_done_callback(lambda task: self._say_cancelled(episode, task))

    def _say_cancelled(self, episode: _Episode, task: asyncio.Task[None]) -> None:
        """What a user's own code cancelled has not said anything."""
        if task.cancelled() and not self._ended.done():
            self._fail(episode, "", _Told("it was cancelled by its own code"))

    def _say(self, episode: _Episode, record: Record, *, last: bool) -> None:
        line = _line({"type": "observation", "episode": episode.number} | record)
        if self._episodes.get(episode.number) is not episode:
            return  # it was given up
        if last:
            del self._episodes[episode.number]
        try:
            self._channel.write(line)
        except OSError as error:
            self._end(error)

    def _fail(self, episode: _Episode, doing: str, error: BaseException) -> None:
        text = f"{self._what}{doing}: {_why(error, self._file)}"
        self._say(episode, {"error": _cut(text, _LONGEST_ERROR)}, last=True)

    async def _play_episode(self, form: _Form, episode: _Episode, seed: int, row: _Row) -> None:
        instance = form.instances.pop() if form.instances else _Instance(self._factory)
        doing, reusable = ", reset", False
        try:
            record = await form.reset(instance, seed, row)
            while True:
                over = "error" in record or record["done"] or record["truncated"]
                self._say(episode, record, last=over)
                reusable = "error" not in record
                if over:
                    return
                message = await episode.inbox.get()
                doing, reusable = f", {message['type']}", False
                if message["type"] == "step":
                    record = await form.step(instance, message["message"])
                else:
                    record = await form.conclude(instance) | {"done": True}
        except BadEnvironment as error:
            self._end(error)
        except (Exception, SystemExit) as error:
            self._fail(episode, doing, error)
        finally:
            if reusable:
                form.instances.append(instance)
            else:
                instance.discard()

    async def _run_agent(self, agents: _Agents, episode: _Episode, seed: int, row: _Row, sampling: Record) -> None:
        async def ask(request: Record) -> Record:
            number, episode.requests = episode.requests, episode.requests + 1
            answer: asyncio.Future[Record] = self._loop.create_future()
            episode.answers[number] = answer
            self._say(episode, {"type": "generate", "request": number} | request, last=False)
            return await answer

        try:
            self._say(episode, await agents.run(row, seed, sampling, _ServerManager(sampling, ask)), last=True)
        except (Exception, SystemExit) as error:
            self._fail(episode, "", error)


# ---- preparing ----


def _is_agent(kind: Any) -> bool:
    run = getattr(kind, "run", None)
    return callable(run) and "sampling_params" in inspect.signature(run).parameters


def _prepare(target: Any, name: str | None) -> _Form | _Agents:
    kind = target.func if isinstance(target, functools.partial) else target
    given, name = name, name or str(getattr(kind, "__name__", type(kind).__name__))
    if isinstance(target, Mapping):
        raise BadEnvironment(f"'{name}' is a dict of environments; a run has one: name that")
    if not callable(target):
        hint = ": name its class" if hasattr(target, "reset") or hasattr(target, "run") else ""
        raise BadEnvironment(f"'{name}' is {_shown(target)}, and no class of environments{hint}")
    if isinstance(kind, type) and _is_agent(kind):
        if not inspect.iscoroutinefunction(inspect.unwrap(getattr(kind, "run"))):
            raise BadEnvironment(f"agent '{name}': run is not a coroutine function: begin it with async def")
        return _Agents(name, target)
    instance = _Instance(target)
    try:
        environment = instance.object()
    except (Exception, SystemExit) as error:
        raise BadEnvironment(f"'{name}' cannot be made without arguments: {_why(error, _file_of(kind))}") from None
    reset = getattr(type(environment), "reset", None)
    if not callable(reset):
        there = [one for one, _ in inspect.getmembers(type(environment), callable) if not one.startswith("_")]
        near = difflib.get_close_matches("reset", there, 1, 0.5) + difflib.get_close_matches("run", there, 1, 0.7)
        raise BadEnvironment(
            f"'{name}' is no environment, which has reset(**row) and tools as in TRL, reset(seed, row) and "
            f"step(message), or async run(sampling_params, **kwargs) as agent loops of verl; it has: {_names(there)}"
            + (f"; {_meant(near, there)}" if near else "")
        )
    if not isinstance(kind, type):
        name = given or type(environment).__name__  # of what a factory makes
    own = {"seed", "row"} <= inspect.signature(environment.reset).parameters.keys()
    return _Own(name, instance) if own else _Trl(name, instance)


def _serve(environment: Any, name: str | None, episodes: int, channel: _Channel) -> None:
    served = _prepare(environment, name)
    hello = channel.read()
    if hello is None:
        return
    if hello.get("type") != "hello" or hello.get("protocol") != _PROTOCOL:
        raise BadEnvironment(f"a hello of protocol {_PROTOCOL} was to come first, not {_shown(hello)}")
    columns = hello.get("columns") or []
    if not isinstance(columns, list) or not all(isinstance(one, str) for one in columns):
        raise BadEnvironment(f"the hello's columns are not a list of names: {_shown(columns)}")
    if isinstance(served, _Agents):
        served.bind(str(hello.get("model") or ""))
    else:
        served.bind(columns)
    channel.write(_line({
        "type": "hello", "protocol": _PROTOCOL, "name": served.name, "tools": served.tools,
        "kind": "agent" if isinstance(served, _Agents) else "environment",
        "concludes": not isinstance(served, _Agents) and served.concludes,
        "episodes": int(getattr(environment, "concurrent_episodes", episodes)),
    }))  # fmt: skip
    asyncio.run(_Program(served, environment, channel).play())


# ---- the command line ----


def _module(where: str) -> types.ModuleType:
    """A file, or a module that is installed."""
    try:
        if not where.endswith(".py"):
            return importlib.import_module(where)
        return _load(os.path.abspath(where), where)
    except (Exception, SystemExit) as error:
        if isinstance(error, BadEnvironment):
            raise
        file = os.path.abspath(where) if where.endswith(".py") else None
        raise BadEnvironment(f"{where} cannot be imported: {_why(error, file)}") from None


def _load(path: str, shown: str) -> types.ModuleType:
    if not os.path.isfile(path):
        raise BadEnvironment(f"there is no file {shown}" + ("" if path == shown else f" ({path})"))
    folder, name = os.path.dirname(path), os.path.basename(path)[:-3]
    # As when a script is run: its neighbours can be imported, and processes that it starts find it by its name.
    sys.path.insert(0, folder)
    if name in sys.modules or name in sys.stdlib_module_names or not name.isidentifier():
        name = "environment_file_" + re.sub(r"\W", "_", name)
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise BadEnvironment(f"{shown} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _find(which: str) -> tuple[Any, str]:
    where, colon, name = which.rpartition(":")
    if not colon or not where or not name:
        raise BadEnvironment(f"'{which}' is not FILE.py:NAME or MODULE:NAME, a file and the name of a class in it")
    module = _module(where)
    try:
        return getattr(module, name), name
    except AttributeError:
        there = [one for one in vars(module) if not one.startswith("_") and callable(getattr(module, one))]
        near = difflib.get_close_matches(name, there, 3)
        raise BadEnvironment(f"{where} has no '{name}'; {_meant(near, there)}") from None


def _main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m transfer_dock.environments", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("environment", metavar="FILE.py:NAME", help="a class in a file, or MODULE:NAME")
    parser.add_argument("--episodes", type=int, default=_EPISODES, help="at the same time (default: %(default)s)")
    options = parser.parse_args(arguments)
    # Run as a script, the files of its folder would hide packages such as `datasets`.
    if sys.path and os.path.isfile(os.path.join(sys.path[0], "environments.py")) and os.path.isfile(sys.argv[0]):
        del sys.path[0]
    channel = _Channel()  # first of all, since the file may print while it is imported
    try:
        environment, name = _find(options.environment)
        _serve(environment, name, options.episodes, channel)
    except BadEnvironment as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        pass  # nobody is left to play with
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
