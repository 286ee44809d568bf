"""Reward functions in Python for `tdock train`: makes a reward program from a function.

    tdock train grpo.yaml reward.function=my_rewards.py:accuracy

starts such a program itself. One of your own, for reward.program, ends with

    if __name__ == "__main__":
        serve(accuracy)

A function is written as TRL's or verl's are, and recognised by its parameters (docs/rewards.md):

    def accuracy(completions, solution, **kwargs):                            # TRL: lists in, a list of scores out
    def compute_score(data_source, solution_str, ground_truth, extra_info):   # verl: one sample, one score
    def compute_scores(data_sources, solution_strs, ground_truths, extra_infos):   # verl, in batches

This file needs nothing but Python 3.10, so that any environment can run it: `python rewards.py my_rewards.py:accuracy`.
"""

from __future__ import annotations

import asyncio
import decimal
import difflib
import importlib
import importlib.util
import inspect
import json
import math
import numbers
import os
import re
import sys
import traceback
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, BinaryIO, Union

__all__ = ["RewardError", "RewardFunction", "serve"]

# A function, an object that is called like one, or several by name, whose scores are added.
RewardFunction = Union[Callable[..., Any], Mapping[str, Callable[..., Any]]]

_PROTOCOL = 1
_LONGEST_LINE = 16 << 20  # bytes
_ANSWERS_PER_LINE = 256
_LONGEST_MESSAGE = 2000  # characters, of one sample
_MOST_PARTS = 64  # of one sample
_SHOWN = 80  # characters of a value in an error


class RewardError(Exception):
    """A function cannot serve as a reward, or what started this program does not follow the protocol."""


class _BadScore(ValueError):
    """What a function returned is no score; the text says all of it."""


_Record = dict[str, Any]  # the answer for one sample, as it is sent
_Emit = Callable[[list[_Record]], None]


def serve(function: RewardFunction, *, name: str | None = None) -> None:
    """Scores what arrives at the standard input until it is closed. Call it in the main thread, last.

    name: what errors call the function; default: its own name. What is printed meanwhile, by child processes as well,
    goes to the standard error. Raises RewardError if the function has parameters that it cannot be given, or what
    arrives is not the protocol.
    """
    channel = _Channel()
    try:
        _serve(function, name, channel)
    except BrokenPipeError:
        pass  # nobody is left to read the scores
    except KeyboardInterrupt:
        raise SystemExit(130) from None


# ---- samples ----


@dataclass(frozen=True)
class _Sample:
    number: int  # in its batch
    prompt: str
    completion: str
    finished: bool
    truth: str
    source: str
    messages: list[Any] | None
    columns: dict[str, str]

    @staticmethod
    def read(sample: Any) -> _Sample:
        if not isinstance(sample, dict) or not isinstance(sample.get("sample"), int):
            raise RewardError(f"a sample without its number: {_shown(sample)}")
        texts = {key: sample.get(key, "") for key in ("prompt", "completion", "truth", "source")}
        columns = sample.get("columns") or {}
        for key, text in [*texts.items(), *columns.items()]:
            if not isinstance(text, str):
                raise RewardError(f"sample {sample['sample']}: '{key}' is not a text: {_shown(text)}")
        messages = sample.get("messages") or None
        if messages is not None and not isinstance(messages, list):
            raise RewardError(f"sample {sample['sample']}: 'messages' is not a list: {_shown(messages)}")
        finished = bool(sample.get("finished", True))
        return _Sample(sample["sample"], finished=finished, messages=messages, columns=columns, **texts)


def _from_json(text: str) -> Any:
    """The list or object that a text is, or the text."""
    if text[:1] in ("[", "{"):
        try:
            return json.loads(text)
        except ValueError:
            pass
    return text


def _truth_from_json(text: str) -> Any:
    """Objects and lists of texts are read; other lists stay texts, since [0, 1] may be a mathematical answer."""
    value = _from_json(text)
    if isinstance(value, list) and not (value and all(isinstance(one, str) for one in value)):
        return text
    return value


_ELEMENT = re.compile(
    r"(?:typing\.)?(?:Optional\[)?(?:(?:typing\.|collections\.abc\.)?(?:[Ll]ist|Sequence|Iterable)\[)?"
    r"(int|float|bool|str)\]*(?:\s*\|\s*None)?"
)
_Read = Callable[[_Sample], Any]


def _element(annotation: str) -> str:
    """int, float, bool or str, if that is what an annotation says that a parameter, or each of its values, is."""
    match = _ELEMENT.fullmatch(annotation)
    return match[1] if match else ""


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
        raise _BadScore(f"{what} is no {element}, as its annotation says, but {_shown(text)}") from None


def _column(name: str, annotation: str) -> _Read:
    """Columns arrive as texts; the annotation says what a number was."""
    element = _element(annotation)
    if element:
        return lambda sample: _as(element, sample.columns.get(name, ""), f"column '{name}'")
    return lambda sample: _from_json(sample.columns.get(name, ""))


def _truth_as(annotation: str) -> _Read:
    element = _element(annotation)
    return (lambda sample: _as(element, sample.truth, "the truth")) if element else _truth


def _truth(sample: _Sample) -> Any:
    return _truth_from_json(sample.truth)


# ---- styles of functions ----


def _as_turn(sample: _Sample) -> list[dict[str, str]]:
    return [{"role": "assistant", "content": sample.completion}]


def _extra_info(sample: _Sample) -> Any:
    info = _from_json(sample.columns.get("extra_info", "")) or {}
    if isinstance(info, dict):  # what verl adds to it
        info.setdefault("num_turns", None)
        info.setdefault("rollout_reward_scores", {})
    return info


def _source(sample: _Sample) -> str:
    return sample.source


def _completion(sample: _Sample) -> str:
    return sample.completion


# Names that reward functions give the truth.
_TRUTHS = ("truth", "ground_truth", "solution", "answer", "label", "target", "reference_answer")


@dataclass(frozen=True)
class _Style:
    """What the functions of one system are called with."""

    name: str
    batches: bool  # a parameter is a list of the values of all samples
    recognised: frozenset[str]  # a function with one of these parameters has this style
    passed: Mapping[str, _Read]  # by keyword
    others: Mapping[str, _Read]  # under further names, where no kept column has them


def _plural(reads: Mapping[str, _Read]) -> dict[str, _Read]:
    return {name if name.endswith("s") else name + "s": read for name, read in reads.items()}


_RESPONSES = ("solution_str", "predict_str", "model_output", "response", "completion")
_OTHERS: dict[str, _Read] = {name: _truth for name in _TRUTHS} | {
    "data_source": _source, "source": _source, "finished": lambda sample: sample.finished,
}  # fmt: skip
_VERL: dict[str, _Read] = {
    "data_source": _source, "solution_str": _completion, "ground_truth": _truth, "extra_info": _extra_info,
}  # fmt: skip
_STYLES = (
    _Style("verl in batches", True, frozenset({"data_sources", "solution_strs", "ground_truths", "extra_infos"}),
           _plural(_VERL), {}),
    _Style("verl", False, frozenset(_RESPONSES), _VERL,
           _OTHERS | dict.fromkeys(_RESPONSES, _completion) | {"prompt": lambda sample: sample.prompt}),
    _Style("TRL", True, frozenset({"completions", "prompts", "completion_ids"}),
           {"prompts": lambda sample: sample.messages or sample.prompt,
            "completions": lambda sample: _as_turn(sample) if sample.messages else sample.completion}, _OTHERS),
)  # fmt: skip
# What TRL passes and a run of tdock cannot, with what else to do.
_MISSING = {
    "completion_ids": "the numbers of tokens are not sent to reward programs; use the text in `completions`",
    "trainer_state": "the state of a trainer is not sent to reward programs",
    "environments": "there are no environments here",
    "reward_router_address": "there is no router of reward models here; give the address in the function itself",
    "reward_model_tokenizer": "there is no tokenizer of a reward model here; load it in the function itself",
}


def _texts(style: _Style, name: str, annotation: str) -> _Read | None:
    """An annotation decides between texts and lists of messages; without one, the prompt's form does."""
    if style.name != "TRL" or name not in ("prompts", "completions"):
        return None
    if _element(annotation) == "str":
        return _completion if name == "completions" else lambda sample: sample.prompt
    if "dict" in annotation.lower():
        if name == "completions":
            return _as_turn
        return lambda sample: sample.messages or [{"role": "user", "content": sample.prompt}]
    return None


_LOGS = ("log_extra", "log_metric")


class _Logs:
    """What a function of TRL's style says beside its scores: log_extra becomes messages, log_metric parts."""

    def __init__(self, samples: int) -> None:
        self._samples = samples
        self.messages: list[list[str]] = [[] for _ in range(samples)]
        self.parts: dict[str, float] = {}

    def log_extra(self, column: str, values: Iterable[Any]) -> None:
        listed = list(values)
        if len(listed) != self._samples:
            raise ValueError(f"log_extra('{column}') got {len(listed)} values for {self._samples} samples")
        for messages, value in zip(self.messages, listed):
            messages.append(f"{column}: {value}")

    def log_metric(self, name: str, value: Any) -> None:
        self.parts[name] = _number(value)


@dataclass
class _Function:
    """A function of one style, bound to the columns of a run."""

    name: str
    function: Callable[..., Any]
    style: _Style
    loop: _Loop
    reads: dict[str, _Read] = field(default_factory=dict)
    logs: list[str] = field(default_factory=list)  # which of log_extra and log_metric it is given

    def bind(self, columns: Sequence[str]) -> None:
        """Finds what each parameter is to be given; the columns are the run's data.keep."""
        missing = []
        parameters = _parameters(self.name, self.function)
        for parameter in parameters:
            if parameter.kind is parameter.VAR_KEYWORD:
                self._bind_rest(columns, {one.name for one in parameters})
            elif parameter.kind is parameter.VAR_POSITIONAL:
                continue
            elif not self._bind_one(parameter, columns) and parameter.default is parameter.empty:
                missing.append(parameter.name)
        if missing:
            raise RewardError("\n".join(self._why_missing(name, columns) for name in missing))
        if _extra_info in self.reads.values() and "extra_info" not in columns:
            print(f"note: '{self.name}' gets an empty extra_info: data.keep does not name it", file=sys.stderr)

    def _bind_one(self, parameter: inspect.Parameter, columns: Sequence[str]) -> bool:
        name, annotation = parameter.name, _annotation(parameter)
        read = _texts(self.style, name, annotation) or self.style.passed.get(name)
        if read is None and name in self.style.recognised:
            read = self.style.others.get(name)
        if read is None and name in columns:
            read = _column(name, annotation)
        if read is None and name in _LOGS and self.style.name == "TRL":
            self.logs.append(name)
            return True
        # Any other default is an option of the function, whatever its name.
        if read is None and parameter.default in (parameter.empty, None):
            read = self.style.others.get(name)
        if read is None:
            return False
        self.reads[name] = _truth_as(annotation) if read is _truth else read
        return True

    def _bind_rest(self, columns: Sequence[str], named: set[str]) -> None:
        """What **kwargs gets; it is the last parameter. named: those before it."""
        rest = dict(self.style.passed)
        if self.style.name == "TRL":
            kept = {name: _column(name, "") for name in columns if name not in ("prompt", "completion")}
            rest = dict.fromkeys(_TRUTHS, _truth) | kept | rest
            self.logs = list(_LOGS)
        elif set(_RESPONSES) & self.reads.keys():
            rest.pop("solution_str", None)  # it has the response under another name
        self.reads |= {name: read for name, read in rest.items() if name not in named}

    def _why_missing(self, name: str, columns: Sequence[str]) -> str:
        why = _MISSING.get(name, f"no column of that name is kept; name it in data.keep (kept: {_names(columns)})")
        return f"reward function '{self.name}' needs '{name}': {why}"

    def score(self, samples: Sequence[_Sample], emit: _Emit) -> None:
        if self.style.batches:
            self._score_batch(samples, emit)
        else:
            self._score_each(samples, emit)

    def _score_each(self, samples: Sequence[_Sample], emit: _Emit) -> None:
        waiting: list[Coroutine[Any, Any, None]] = []

        async def finish(sample: _Sample, value: Awaitable[Any]) -> None:
            try:
                record = self._record(sample, await value, _Logs(1), 0)
            except (Exception, SystemExit) as error:
                record = self._failure(sample, error)
            emit([record])

        for sample in samples:
            try:
                value = self.function(**{name: read(sample) for name, read in self.reads.items()})
                if inspect.isawaitable(value):
                    waiting.append(finish(sample, value))
                    continue
                record = self._record(sample, value, _Logs(1), 0)
            except (Exception, SystemExit) as error:
                record = self._failure(sample, error)
            emit([record])
        if waiting:
            self.loop.run(_all(waiting))

    def _score_batch(self, samples: Sequence[_Sample], emit: _Emit) -> None:
        try:
            records = self._call(samples)
        except (Exception, SystemExit) as error:
            if len(samples) == 1:
                emit([self._failure(samples[0], error)])
                return
            for sample in samples:  # the others need not suffer from the one that it raises for
                self._score_batch([sample], emit)
            return
        emit(records)

    def _call(self, samples: Sequence[_Sample]) -> list[_Record]:
        logs = _Logs(len(samples))
        arguments = {name: [read(sample) for sample in samples] for name, read in self.reads.items()}
        value = self.function(**arguments, **{name: getattr(logs, name) for name in self.logs})
        if inspect.isawaitable(value):
            value = self.loop.run(_result(value))
        if hasattr(value, "tolist"):  # an array or tensor
            value = value.tolist()
        if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable):
            raise _BadScore(f"it returned {_shown(value)}, and not a list of scores")
        scores = list(value)
        if len(scores) != len(samples):
            raise _BadScore(f"it returned {len(scores)} scores for {_counted(len(samples), 'sample')}")
        records = []
        for index, (sample, score) in enumerate(zip(samples, scores)):
            try:
                records.append(self._record(sample, score, logs, index))
            except Exception as error:
                records.append(self._failure(sample, error))
        return records

    def _record(self, sample: _Sample, value: Any, logs: _Logs, index: int) -> _Record:
        parts, messages = dict(logs.parts), list(logs.messages[index])
        if isinstance(value, Mapping):
            if "score" not in value:
                raise _BadScore(f"it returned a dict without 'score', with {_names(value)}")
            for name, part in value.items():
                if name != "score":
                    _add_part(str(name), part, parts, messages)
            value = value["score"]
        elif isinstance(value, tuple) and value and not self.style.batches:
            value = value[0]  # as of verl's own functions, whose first is the score
        if value is None and self.style.name == "TRL":
            score = None
        else:
            score = _number(value)
        record: _Record = {"sample": sample.number, "score": score}
        if parts:
            record["parts"] = dict(list(parts.items())[:_MOST_PARTS])
        if len(parts) > _MOST_PARTS:
            messages.append(f"{len(parts) - _MOST_PARTS} parts more than {_MOST_PARTS} were left out")
        if messages:
            record["message"] = _cut("; ".join(messages), _LONGEST_MESSAGE)
        return record

    def _failure(self, sample: _Sample, error: BaseException) -> _Record:
        if isinstance(error, _BadScore):
            what = str(error)
        else:
            what = f"{type(error).__name__}: {error}" + _where(error, self.function)
        text = f"reward function '{self.name}', sample {sample.number}: {what}"
        return {"sample": sample.number, "error": _cut(text, _LONGEST_MESSAGE)}


@dataclass
class _Several:
    """Functions whose scores are added, each a part of the sum."""

    name: str
    functions: list[_Function]

    def bind(self, columns: Sequence[str]) -> None:
        for function in self.functions:
            function.bind(columns)

    def score(self, samples: Sequence[_Sample], emit: _Emit) -> None:
        answered: list[dict[int, _Record]] = []
        for function in self.functions:
            records: list[_Record] = []
            function.score(samples, records.extend)
            answered.append({record["sample"]: record for record in records})
        emit([self._sum(sample.number, [records[sample.number] for records in answered]) for sample in samples])

    def _sum(self, sample: int, records: list[_Record]) -> _Record:
        errors = [record["error"] for record in records if "error" in record]
        if errors:
            return {"sample": sample, "error": _cut("; ".join(errors), _LONGEST_MESSAGE)}
        parts: dict[str, float] = {}
        for function, record in zip(self.functions, records):
            if record["score"] is not None:
                parts[function.name] = record["score"]
        summed: _Record = {"sample": sample, "score": sum(parts.values()) if parts else None, "parts": parts}
        messages = [record["message"] for record in records if "message" in record]
        if messages:
            summed["message"] = _cut("; ".join(messages), _LONGEST_MESSAGE)
        return summed


def _prepare(function: RewardFunction, name: str | None, loop: _Loop) -> _Function | _Several:
    if isinstance(function, Mapping):
        if not function or len(function) > _MOST_PARTS:
            raise RewardError(f"a dict of reward functions has 1 to {_MOST_PARTS} of them, not {len(function)}")
        parts = [_prepare_one(one, str(part), loop) for part, one in function.items()]
        return _Several(name or "+".join(part.name for part in parts), parts)
    return _prepare_one(function, name, loop)


def _prepare_one(function: Any, name: str | None, loop: _Loop) -> _Function:
    name = name or str(getattr(function, "__name__", type(function).__name__))
    if inspect.isclass(function):
        try:
            function = function()
        except TypeError as error:
            raise RewardError(f"'{name}' is a class that cannot be made without arguments ({error}): name an "
                              "instance of it") from None  # fmt: skip
    if not callable(function):
        raise RewardError(f"'{name}' is {_shown(function)}, which cannot be called")
    parameters = _parameters(name, function)
    names = {parameter.name for parameter in parameters}
    if any(p.kind is p.POSITIONAL_ONLY and p.default is p.empty for p in parameters):
        raise RewardError(f"reward function '{name}{inspect.signature(function)}' has parameters without a keyword")
    for style in _STYLES:
        if style.recognised & names:
            return _Function(name, function, style, loop)
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return _Function(name, function, _STYLES[-1], loop)
    raise RewardError(
        f"'{name}{inspect.signature(function)}' has the parameters of no reward function, which are (completions, …) "
        "in TRL's style, (data_source, solution_str, ground_truth, extra_info) or (data_sources, solution_strs, "
        "ground_truths, extra_infos) in verl's"
    )


def _parameters(name: str, function: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError) as error:
        raise RewardError(f"the parameters of reward function '{name}' are unknown: {error}") from None


def _annotation(parameter: inspect.Parameter) -> str:
    if parameter.annotation is parameter.empty:
        return ""
    if isinstance(parameter.annotation, str):
        return parameter.annotation.strip("\"'")
    return inspect.formatannotation(parameter.annotation)


# ---- scores ----


def _number(value: Any) -> float:
    """A finite float from any number, those of numpy and torch included."""
    number = value
    if not isinstance(number, (int, float)) and callable(getattr(number, "item", None)):
        try:
            number = number.item()
        except (ValueError, RuntimeError):
            raise _BadScore(f"a score is one number, not {_shown(value)}") from None
    if not isinstance(number, (numbers.Real, decimal.Decimal)):
        raise _BadScore(f"a score is a number, not {_shown(value)} ({type(value).__name__})")
    try:
        score = float(number)
    except OverflowError:
        score = math.inf
    if not math.isfinite(score):
        raise _BadScore(f"a score is a finite number, not {_shown(value)}")
    return score


def _add_part(name: str, value: Any, parts: dict[str, float], messages: list[str]) -> None:
    """Numbers are parts; other entries of a dict are told in the message."""
    try:
        parts[name] = _number(value)
    except _BadScore:
        messages.append(f"{name}: {value if isinstance(value, str) else _shown(value)}")


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


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _where(error: BaseException, function: Callable[..., Any] | None = None, file: str | None = None) -> str:
    """The last line of the user's file that an error came through, or else the line that raised it."""
    if function is not None:
        code = getattr(inspect.unwrap(function), "__code__", None)
        code = code or getattr(getattr(type(function), "__call__", None), "__code__", None)
        file = code.co_filename if code else None
    own = _where.__code__.co_filename
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename != own or own == file]
    if not frames:
        return ""
    frame = next((one for one in reversed(frames) if one.filename == file), frames[-1])
    line = f": {frame.line}" if frame.line else ""
    place = "" if frame.name == "<module>" else f", in {frame.name}"
    return f" ({os.path.basename(frame.filename)}:{frame.lineno}{place}{line})"


# ---- coroutines ----


class _Loop:
    """One event loop for all batches: what a coroutine opens, such as a client of a server, belongs to its loop."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            asyncio.set_event_loop(self._loop)
        return self._loop.run_until_complete(coroutine)

    def close(self) -> None:
        if self._loop is not None:
            asyncio.set_event_loop(None)
            self._loop.close()


async def _result(awaitable: Awaitable[Any]) -> Any:
    return await awaitable


async def _all(waiting: Sequence[Coroutine[Any, Any, None]]) -> None:
    await asyncio.gather(*waiting)


# ---- the protocol ----


class _Channel:
    """The standard input and output, which are taken away from everything else in this process and its children."""

    def __init__(self) -> None:
        self._input: BinaryIO = os.fdopen(os.dup(0), "rb")
        self._output = os.dup(1)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        os.dup2(2, 1)
        if sys.stdout is not None:
            sys.stdout.flush()  # what was printed before
        sys.stdout = sys.stderr
        if self._input.isatty():
            print("this is a reward program: `tdock train` talks to it over its standard input", file=sys.stderr)

    def read(self) -> dict[str, Any] | None:
        """The next message, or None at the end."""
        line = self._input.readline(_LONGEST_LINE + 1)
        if not line:
            return None
        if len(line) > _LONGEST_LINE:
            raise RewardError(f"a line of more than {_LONGEST_LINE >> 20} MiB arrived")
        try:
            message = json.loads(line)
        except ValueError as error:
            raise RewardError(f"what arrived is not JSON: {error}: {_shown(line)}") from None
        if not isinstance(message, dict):
            raise RewardError(f"what arrived is not an object: {_shown(message)}")
        return message

    def write(self, message: Mapping[str, Any]) -> None:
        text = json.dumps(message, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        left = memoryview(text.encode("utf-8", "replace") + b"\n")  # UTF-8 has no halves of surrogate pairs
        while left:
            left = left[os.write(self._output, left) :]


def _serve(function: RewardFunction, name: str | None, channel: _Channel) -> None:
    loop = _Loop()
    try:
        prepared = _prepare(function, name, loop)
        hello = channel.read()
        if hello is None:
            return
        if hello.get("type") != "hello" or hello.get("protocol") != _PROTOCOL:
            raise RewardError(f"a hello of protocol {_PROTOCOL} was to come first, not {_shown(hello)}")
        columns = hello.get("columns") or []
        if not isinstance(columns, list) or not all(isinstance(one, str) for one in columns):
            raise RewardError(f"the hello's columns are not a list of names: {_shown(columns)}")
        prepared.bind(columns)
        channel.write({"type": "hello", "protocol": _PROTOCOL, "name": prepared.name})
        while (message := channel.read()) is not None:
            _score(prepared, message, channel)
    finally:
        loop.close()


def _score(prepared: _Function | _Several, message: Mapping[str, Any], channel: _Channel) -> None:
    batch, samples = message.get("batch"), message.get("samples")
    if message.get("type") != "score" or not isinstance(batch, int) or not isinstance(samples, list):
        raise RewardError(f"a message with samples to score was to come, not {_shown(message)}")

    def emit(records: list[_Record]) -> None:
        for begin in range(0, len(records), _ANSWERS_PER_LINE):
            scores = records[begin : begin + _ANSWERS_PER_LINE]
            channel.write({"type": "scores", "batch": batch, "scores": scores})

    if samples:
        prepared.score([_Sample.read(sample) for sample in samples], emit)


# ---- the command line ----


def _module(where: str) -> ModuleType:
    """A file, or a module that is installed."""
    try:
        if not where.endswith(".py"):
            return importlib.import_module(where)
        return _load(os.path.abspath(where), where)
    except (Exception, SystemExit) as error:
        if isinstance(error, RewardError):
            raise
        file = os.path.abspath(where) if where.endswith(".py") else None
        what = f"{type(error).__name__}: {error}" + _where(error, file=file)
        raise RewardError(f"{where} cannot be imported: {what}") from None


def _load(path: str, shown: str) -> ModuleType:
    if not os.path.isfile(path):
        raise RewardError(f"there is no file {shown}" + ("" if path == shown else f" ({path})"))
    folder, name = os.path.dirname(path), os.path.basename(path)[:-3]
    # As when a script is run: its neighbours can be imported, and processes that it starts find it by its name.
    sys.path.insert(0, folder)
    if name in sys.modules or name in sys.stdlib_module_names or not name.isidentifier():
        name = "reward_file_" + re.sub(r"\W", "_", name)
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise RewardError(f"{shown} cannot be read as a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _find(which: str) -> tuple[RewardFunction, str]:
    where, colon, name = which.rpartition(":")
    if not colon or not where or not name:
        raise RewardError(f"'{which}' is not FILE.py:NAME or MODULE:NAME, a file and the name of a function in it")
    module = _module(where)
    try:
        function: RewardFunction = getattr(module, name)
    except AttributeError:
        there = [one for one in vars(module) if not one.startswith("_") and callable(getattr(module, one))]
        near = difflib.get_close_matches(name, there, 3)
        told = f"did you mean {' or '.join(near)}?" if near else f"there are: {_names(there)}"
        raise RewardError(f"{where} has no '{name}'; {told}") from None
    return function, name


def _main(arguments: Sequence[str]) -> int:
    if len(arguments) != 1 or arguments[0].startswith("-"):
        print("usage: python -m transfer_dock.rewards FILE.py:NAME", file=sys.stderr)
        return 2
    # Run as a script, the files of its folder would hide packages such as `datasets`.
    if sys.path and os.path.isfile(os.path.join(sys.path[0], "rewards.py")) and os.path.isfile(sys.argv[0]):
        del sys.path[0]
    channel = _Channel()  # first of all, since the file may print while it is imported
    try:
        function, name = _find(arguments[0])
        _serve(function, name, channel)
    except RewardError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        pass  # nobody is left to read the scores
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
