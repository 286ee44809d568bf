"""Reward functions in Python for `tdock train`: makes a reward program from a function.

    tdock train grpo.yaml reward.function=my_rewards.py:accuracy

starts such a program itself. One of your own, for reward.program, ends with

    if __name__ == "__main__":
        serve(accuracy)

A function is written as TRL's or verl's are, and recognised by its parameters (docs/rewards.md):

    def accuracy(completions, solution, **kwargs):                            # TRL: lists in, a list of scores out
    def compute_score(data_source, solution_str, ground_truth, extra_info):   # verl: one sample, one score
    def compute_scores(data_sources, solution_strs, ground_truths, extra_infos):   # verl, in batches

This file and _program.py beside it need nothing but Python 3.10, so that any environment can run them:
`python rewards.py my_rewards.py:accuracy`.
"""

from __future__ import annotations

import asyncio
import decimal
import functools
import inspect
import itertools
import math
import numbers
import os
import re
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence, Set, Sized
from dataclasses import dataclass, field
from types import CodeType, ModuleType
from typing import Any, Union

if not __package__:  # run as a script: what it needs is beside it
    _programs = sys.modules["tdock_programs"] = ModuleType("tdock_programs")
    _programs.__path__ = [os.path.dirname(os.path.abspath(__file__))]
    __package__ = "tdock_programs"

from ._program import (
    LONGEST_ERROR,
    PROTOCOL,
    TRUTHS,
    Channel,
    ProgramError,
    Record,
    Told,
    as_element,
    cut,
    find,
    from_json,
    leave_own_folder,
    line_of,
    names,
    shown,
    where,
)

__all__ = ["RewardError", "RewardFunction", "serve"]

# A function, an object that is called like one, or several by name, whose scores are added.
RewardFunction = Union[Callable[..., Any], Mapping[str, Callable[..., Any]]]

_WHAT = "a reward program"
_ANSWERS_PER_LINE = 256
_MOST_PARTS = 64  # of one sample


class RewardError(ProgramError):
    """A function cannot serve as a reward, or what started this program does not follow the protocol."""


_Emit = Callable[[list[Record]], None]


def serve(function: RewardFunction, *, name: str | None = None) -> None:
    """Scores what arrives at the standard input until it is closed. Call it in the main thread, last.

    name: what errors call the function; default: its own name. What is printed meanwhile, by child processes as well,
    goes to the standard error. Raises RewardError if the function has parameters that it cannot be given, or what
    arrives is not the protocol.
    """
    channel = Channel.standard(_WHAT)
    try:
        serve_on(channel, function, name)
    except ProgramError as error:
        raise RewardError(str(error)) from None
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
            raise RewardError(f"a sample without its number: {shown(sample)}")
        texts = {key: sample.get(key, "") for key in ("prompt", "completion", "truth", "source")}
        columns = sample.get("columns") or {}
        for key, text in [*texts.items(), *columns.items()]:
            if not isinstance(text, str):
                raise RewardError(f"sample {sample['sample']}: '{key}' is not a text: {shown(text)}")
        messages = sample.get("messages") or None
        if messages is not None and not isinstance(messages, list):
            raise RewardError(f"sample {sample['sample']}: 'messages' is not a list: {shown(messages)}")
        finished = bool(sample.get("finished", True))
        return _Sample(sample["sample"], finished=finished, messages=messages, columns=columns, **texts)


def _truth_from_json(text: str) -> Any:
    """Objects and lists of texts are read; other lists stay texts, since [0, 1] may be a mathematical answer."""
    value = from_json(text)
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


def _column(name: str, annotation: str) -> _Read:
    """Columns arrive as texts; the annotation says what a number was."""
    element = _element(annotation)
    if element:
        return lambda sample: as_element(element, sample.columns.get(name, ""), f"column '{name}'")
    return lambda sample: from_json(sample.columns.get(name, ""))


def _truth_as(annotation: str) -> _Read:
    element = _element(annotation)
    return (lambda sample: as_element(element, sample.truth, "the truth")) if element else _truth


def _truth(sample: _Sample) -> Any:
    return _truth_from_json(sample.truth)


_Given = tuple[_Sample, dict[str, Any]]  # a sample, and the arguments that are read from it

# ---- styles of functions ----


def _as_turn(sample: _Sample) -> list[dict[str, str]]:
    return [{"role": "assistant", "content": sample.completion}]


def _extra_info(sample: _Sample) -> Any:
    info = from_json(sample.columns.get("extra_info", "")) or {}
    if isinstance(info, dict):  # what verl adds to it
        info.setdefault("num_turns", None)
        info.setdefault("rollout_reward_scores", {})
    return info


def _source(sample: _Sample) -> str:
    return sample.source


def _completion(sample: _Sample) -> str:
    return sample.completion


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
_OTHERS: dict[str, _Read] = {name: _truth for name in TRUTHS} | {
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
            raise Told(f"log_extra('{column}') got {len(listed)} values for {_counted(self._samples, 'sample')}; it "
                       "takes one for each")  # fmt: skip
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
    channel: Channel
    loop: _Loop
    recognised_by: str  # what of its signature decided on the style
    reads: dict[str, _Read] = field(default_factory=dict)
    logs: list[str] = field(default_factory=list)  # which of log_extra and log_metric it is given
    noted_repeat: bool = False

    def bind(self, columns: Sequence[str], types: Mapping[str, str]) -> None:
        """Finds what each parameter is to be given; the columns are the run's data.keep. types: those that are known."""
        missing = []
        parameters = _parameters(self.name, self.function)
        for parameter in parameters:
            if parameter.kind is parameter.VAR_KEYWORD:
                self._bind_rest(columns, types, {one.name for one in parameters})
            elif parameter.kind is parameter.VAR_POSITIONAL:
                continue
            elif not self._bind_one(parameter, columns, types) and parameter.default is parameter.empty:
                missing.append(parameter.name)
        if missing:
            raise RewardError("\n".join(self._why_missing(name, columns) for name in missing))
        if _extra_info in self.reads.values() and "extra_info" not in columns:
            self.channel.note(f"'{self.name}' gets an empty extra_info: data.keep does not name it")
        how = "lists, with a value for each sample of a batch" if self.style.batches else "one sample at a time"
        self.channel.note(
            f"reward function '{self.name}'{self._place()} is called with {how}: it has {self.recognised_by}"
        )

    def _bind_one(self, parameter: inspect.Parameter, columns: Sequence[str], types: Mapping[str, str]) -> bool:
        name, annotation = parameter.name, _annotation(parameter)
        read = _texts(self.style, name, annotation) or self.style.passed.get(name)
        if read is None and name in self.style.recognised:
            read = self.style.others.get(name)
        if read is None and name in columns:
            read = _column(name, annotation if _element(annotation) else types.get(name, annotation))
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

    def _bind_rest(self, columns: Sequence[str], types: Mapping[str, str], named: set[str]) -> None:
        """What **kwargs gets; it is the last parameter. named: those before it."""
        rest = dict(self.style.passed)
        if self.style.name == "TRL":
            kept = {name: _column(name, types.get(name, "")) for name in columns if name not in ("prompt", "completion")}
            rest = dict.fromkeys(TRUTHS, _truth) | kept | rest
            self.logs = list(_LOGS)
        elif set(_RESPONSES) & self.reads.keys():
            rest.pop("solution_str", None)  # it has the response under another name
        self.reads |= {name: read for name, read in rest.items() if name not in named}

    def _why_missing(self, name: str, columns: Sequence[str]) -> str:
        why = _MISSING.get(name, f"no column of that name is kept; name it in data.keep (kept: {names(columns)})")
        return f"reward function '{self.name}' needs '{name}': {why}"

    def score(self, samples: Sequence[_Sample], emit: _Emit) -> None:
        given: list[_Given] = []
        for sample in samples:
            try:
                given.append((sample, {name: read(sample) for name, read in self.reads.items()}))
            except Exception as error:
                emit([self._failure(sample, error)])
        if self.style.batches:
            self._score_batch(given, emit)
        else:
            self._score_each(given, emit)

    def _score_each(self, given: Sequence[_Given], emit: _Emit) -> None:
        waiting: list[Coroutine[Any, Any, None]] = []

        async def finish(sample: _Sample, value: Awaitable[Any]) -> None:
            try:
                record = self._record(sample, await value, _Logs(1), 0)
            except (Exception, SystemExit) as error:
                record = self._failure(sample, error)
            emit([record])

        for sample, arguments in given:
            try:
                value = self.function(**arguments)
                if inspect.isawaitable(value):
                    waiting.append(finish(sample, value))
                    continue
                record = self._record(sample, value, _Logs(1), 0)
            except (Exception, SystemExit) as error:
                record = self._failure(sample, error)
            emit([record])
        if waiting:
            self.loop.run(_all(waiting))

    def _score_batch(self, given: Sequence[_Given], emit: _Emit) -> None:
        if not given:
            return
        try:
            records = self._call(given)
        except Told as error:  # it did not keep to what it promises; another call could only hide that
            records = [self._failure(sample, error) for sample, _ in given]
        except (Exception, SystemExit) as error:
            if len(given) > 1 and not self.channel.failed(error):  # the others need not suffer from the one that it raises for
                self._note_repeat(error, len(given))
                for sample, _ in given:
                    self.score([sample], emit)
                return
            records = [self._failure(sample, error) for sample, _ in given]
        emit(records)

    def _note_repeat(self, error: BaseException, samples: int) -> None:
        if not self.noted_repeat:
            self.channel.note(
                f"reward function '{self.name}' raised {type(error).__name__} for {samples} samples; whenever it raises "
                "for several, it is called again with each of them alone"
            )
        self.noted_repeat = True

    def _call(self, given: Sequence[_Given]) -> list[Record]:
        logs = _Logs(len(given))
        arguments = {name: [values[name] for _, values in given] for name in self.reads}
        value = self.function(**arguments, **{name: getattr(logs, name) for name in self.logs})
        if inspect.isawaitable(value):
            value = self.loop.run(_result(value))
        records = []
        for index, ((sample, _), score) in enumerate(zip(given, _listed(value, len(given)))):
            try:
                records.append(self._record(sample, score, logs, index))
            except Exception as error:
                records.append(self._failure(sample, error))
        return records

    def _record(self, sample: _Sample, value: Any, logs: _Logs, index: int) -> Record:
        parts, messages = dict(logs.parts), list(logs.messages[index])
        if isinstance(value, Mapping):
            if "score" not in value:
                raise Told(f"it returned a dict without 'score', with {names(value)}")
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
        record: Record = {"sample": sample.number, "score": score}
        if parts:
            record["parts"] = dict(list(parts.items())[:_MOST_PARTS])
        if len(parts) > _MOST_PARTS:
            messages.append(f"{len(parts) - _MOST_PARTS} parts more than {_MOST_PARTS} were left out")
        if messages:
            record["message"] = cut("; ".join(messages), LONGEST_ERROR)
        return record

    def _place(self) -> str:
        """Where the function begins: " (mine.py:3)"."""
        code = _code_of(self.function)
        return f" ({os.path.basename(code.co_filename)}:{code.co_firstlineno})" if code else ""

    def _failure(self, sample: _Sample, error: BaseException) -> Record:
        broken = isinstance(error, Told)  # then another try would say the same, or hide it
        if broken:
            what = f"{error}{self._place()}"
        else:
            self.channel.failed(error)
            code = _code_of(self.function)
            what = f"{type(error).__name__}: {error}" + where(error, code.co_filename if code else None)
        text = f"reward function '{self.name}', sample {sample.number}: {what}"
        record: Record = {"sample": sample.number, "error": cut(text, LONGEST_ERROR)}
        return record | {"retry": False} if broken else record


@dataclass
class _Several:
    """Functions whose scores are added, each a part of the sum."""

    name: str
    functions: list[_Function]

    def bind(self, columns: Sequence[str], types: Mapping[str, str]) -> None:
        for function in self.functions:
            function.bind(columns, types)

    def score(self, samples: Sequence[_Sample], emit: _Emit) -> None:
        answered: list[dict[int, Record]] = []
        for function in self.functions:
            records: list[Record] = []
            function.score(samples, records.extend)
            answered.append({record["sample"]: record for record in records})
        emit([self._sum(sample.number, [records[sample.number] for records in answered]) for sample in samples])

    def _sum(self, sample: int, records: list[Record]) -> Record:
        failed = [record for record in records if "error" in record]
        if failed:
            error = cut("; ".join(record["error"] for record in failed), LONGEST_ERROR)
            final = any("retry" in record for record in failed)
            return {"sample": sample, "error": error} | ({"retry": False} if final else {})
        parts: dict[str, float] = {}
        for function, record in zip(self.functions, records):
            if record["score"] is not None:
                parts[function.name] = record["score"]
        summed: Record = {"sample": sample, "score": sum(parts.values()) if parts else None, "parts": parts}
        messages = [record["message"] for record in records if "message" in record]
        if messages:
            summed["message"] = cut("; ".join(messages), LONGEST_ERROR)
        return summed


def _prepare(function: RewardFunction, name: str | None, channel: Channel, loop: _Loop) -> _Function | _Several:
    if isinstance(function, Mapping):
        if not function or len(function) > _MOST_PARTS:
            raise RewardError(f"a dict of reward functions has 1 to {_MOST_PARTS} of them, not {len(function)}")
        parts = [_prepare_one(one, str(part), channel, loop) for part, one in function.items()]
        return _Several(name or name_of(function), parts)
    return _prepare_one(function, name, channel, loop)


def name_of(function: Any) -> str:
    """What a function is called where nobody names it."""
    if isinstance(function, Mapping):
        return "+".join(map(str, function))
    return str(getattr(function, "__name__", type(function).__name__))


def _prepare_one(function: Any, name: str | None, channel: Channel, loop: _Loop) -> _Function:
    name = name or name_of(function)
    if inspect.isclass(function):
        try:
            function = function()
        except TypeError as error:
            raise RewardError(f"'{name}' is a class that cannot be made without arguments ({error}): name an "
                              "instance of it") from None  # fmt: skip
    if not callable(function):
        raise RewardError(f"'{name}' is {shown(function)}, which cannot be called")
    parameters = _parameters(name, function)
    known = {parameter.name for parameter in parameters}
    if any(p.kind is p.POSITIONAL_ONLY and p.default is p.empty for p in parameters):
        raise RewardError(f"reward function '{name}{inspect.signature(function)}' has parameters without a keyword")
    for style in _STYLES:
        if recognised := style.recognised & known:
            return _Function(name, function, style, channel, loop, f"the parameter {min(recognised)}")
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return _Function(name, function, _STYLES[-1], channel, loop, "only **kwargs")
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


def _listed(value: Any, samples: int) -> list[Any]:
    """What a function in batches returned, if it is a score for each sample."""
    if hasattr(value, "tolist"):  # an array or tensor
        value = value.tolist()
    right = (f"it must return a list with one score for each of the {_counted(samples, 'sample')}, in their order; "
             "a function that scores one sample has the parameter solution_str in place of lists")  # fmt: skip
    if isinstance(value, (str, bytes, Mapping, Set)) or not isinstance(value, Iterable):
        raise Told(f"it returned {shown(value)} ({type(value).__name__}) for {_counted(samples, 'sample')}; {right}")
    scores = value if isinstance(value, list) else list(itertools.islice(value, samples + 1))  # it may be endless
    if len(scores) != samples:
        more = "" if isinstance(value, Sized) or len(scores) < samples else "at least "
        count = len(value) if isinstance(value, Sized) else len(scores)
        raise Told(f"it returned {more}{_counted(count, 'score')} for {_counted(samples, 'sample')}; {right}")
    return scores


def _number(value: Any) -> float:
    """A finite float from any number, those of numpy and torch included."""
    number = value
    if not isinstance(number, (int, float)) and callable(getattr(number, "item", None)):
        try:
            number = number.item()
        except (ValueError, RuntimeError):
            raise Told(f"a score is one number, not {shown(value)}") from None
    if not isinstance(number, (numbers.Real, decimal.Decimal)):
        raise Told(f"a score is a number, not {shown(value)} ({type(value).__name__})")
    try:
        score = float(number)
    except OverflowError:
        score = math.inf
    if not math.isfinite(score):
        raise Told(f"a score is a finite number, not {shown(value)}")
    return score


def _add_part(name: str, value: Any, parts: dict[str, float], messages: list[str]) -> None:
    """Numbers are parts; other entries of a dict are told in the message."""
    try:
        parts[name] = _number(value)
    except Told:
        messages.append(f"{name}: {value if isinstance(value, str) else shown(value)}")


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _code_of(function: Any) -> CodeType | None:
    while isinstance(function, functools.partial):
        function = function.func
    function = inspect.unwrap(function)
    code = getattr(function, "__code__", None) or getattr(getattr(type(function), "__call__", None), "__code__", None)
    return code if isinstance(code, CodeType) else None


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


def check(function: RewardFunction) -> None:
    """Raises RewardError if it has the parameters of no reward function."""
    _prepare(function, None, Channel(-1, -1), _Loop())


def serve_on(
    channel: Channel, function: RewardFunction, name: str | None = None, types: Mapping[str, str] | None = None
) -> None:
    """Scores what arrives until the channel is closed. types: of columns: int, float, bool or str."""
    loop = _Loop()
    try:
        prepared = _prepare(function, name, channel, loop)
        hello = channel.read_hello()
        if hello is None:
            return
        prepared.bind(hello["columns"], types or {})
        channel.write(line_of({"type": "hello", "protocol": PROTOCOL, "name": prepared.name}))
        while (message := channel.read()) is not None:
            _score(prepared, message, channel)
    finally:
        loop.close()


def _score(prepared: _Function | _Several, message: Mapping[str, Any], channel: Channel) -> None:
    batch, samples = message.get("batch"), message.get("samples")
    if message.get("type") != "score" or not isinstance(batch, int) or not isinstance(samples, list):
        raise RewardError(f"a message with samples to score was to come, not {shown(message)}")

    def emit(records: list[Record]) -> None:
        for begin in range(0, len(records), _ANSWERS_PER_LINE):
            scores = records[begin : begin + _ANSWERS_PER_LINE]
            channel.write(line_of({"type": "scores", "batch": batch, "scores": scores}))

    if samples:
        prepared.score([_Sample.read(sample) for sample in samples], emit)


# ---- the command line ----


def _main(arguments: Sequence[str]) -> int:
    if len(arguments) != 1 or arguments[0].startswith("-"):
        print("usage: python -m transfer_dock.rewards FILE.py:NAME", file=sys.stderr)
        return 2
    leave_own_folder()
    channel = Channel.standard(_WHAT)  # first of all, since the file may print while it is imported
    try:
        function, name = find(arguments[0], "a function")
        serve_on(channel, function, name)
    except ProgramError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        pass  # nobody is left to read the scores
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
