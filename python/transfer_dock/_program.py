"""What the programs that `tdock train` starts have in common: the protocol, the files that users name, and texts.

Needs nothing but Python 3.10.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import json
import os
import re
import sys
import traceback
from collections.abc import Iterable, Sequence
from types import ModuleType
from typing import Any

PROTOCOL = 1
LONGEST_LINE = 16 << 20  # bytes
LONGEST_ERROR = 2000  # characters
_SHOWN = 80  # characters of a value in an error

# Names that users' code gives the truth.
TRUTHS = ("truth", "ground_truth", "solution", "answer", "label", "target", "reference_answer")

Record = dict[str, Any]  # a message of the protocol, or a part of one


class ProgramError(Exception):
    """What a user names cannot be served, or what started this program does not follow the protocol."""


class Told(ValueError):
    """What users' code has made of a sample or an episode is of no use; the text says all of it."""


# ---- the protocol ----


class Channel:
    """Messages to and from the host, over two file descriptors, which may be the same."""

    def __init__(self, input: int, output: int) -> None:
        self._input, self._output = input, output
        self._unread = b""

    @classmethod
    def standard(cls, what: str) -> Channel:
        """Takes the standard input and output away from everything else in this process and its children.

        what: this program, for people who start it: "a reward program".
        """
        channel = cls(os.dup(0), os.dup(1))
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        os.dup2(2, 1)
        if sys.stdout is not None:
            sys.stdout.flush()  # what was printed before
        sys.stdout = sys.stderr
        if os.isatty(channel._input):
            print(f"this is {what}: `tdock train` talks to it over its standard input", file=sys.stderr)
        return channel

    def note(self, text: str) -> None:
        """Tells people what they may want to know."""
        print(f"note: {text}", file=sys.stderr)

    def failed(self, error: BaseException) -> bool:
        """Is told what users' code has raised. True: the host ends because of it, so nothing is tried again."""
        return False

    def read(self) -> Record | None:
        """The next message, or None at the end."""
        parts, size = [self._unread], len(self._unread)
        while b"\n" not in parts[-1] and size <= LONGEST_LINE:
            part = os.read(self._input, 1 << 20)  # unbuffered: no lock is held while nothing comes
            if not part:
                return None
            parts.append(part)
            size += len(part)
        line, _, self._unread = b"".join(parts).partition(b"\n")
        if len(line) >= LONGEST_LINE:  # its end counts, too
            raise ProgramError(f"a line of more than {LONGEST_LINE >> 20} MiB arrived")
        try:
            message = json.loads(line)
        except ValueError as error:
            raise ProgramError(f"what arrived is not JSON: {error}: {shown(line)}") from None
        if not isinstance(message, dict):
            raise ProgramError(f"what arrived is not an object: {shown(message)}")
        return message

    def read_hello(self) -> Record | None:
        """The first message, whose `columns` are names; None if nothing comes."""
        hello = self.read()
        if hello is None:
            return None
        if hello.get("type") != "hello" or hello.get("protocol") != PROTOCOL:
            raise ProgramError(f"a hello of protocol {PROTOCOL} was to come first, not {shown(hello)}")
        columns = hello.get("columns") or []
        if not isinstance(columns, list) or not all(isinstance(one, str) for one in columns):
            raise ProgramError(f"the hello's columns are not a list of names: {shown(columns)}")
        return hello | {"columns": columns}

    def write(self, line: bytes) -> None:
        left = memoryview(line)
        while left:
            left = left[os.write(self._output, left) :]


def line_of(message: Record) -> bytes:
    try:
        text = json.dumps(message, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise Told(f"what it said cannot be written as JSON: {error}") from None
    line = text.encode("utf-8", "replace") + b"\n"  # UTF-8 has no halves of surrogate pairs
    if len(line) > LONGEST_LINE:
        raise Told(f"what it said has {len(line) >> 20} MiB as JSON, and may have {LONGEST_LINE >> 20}")
    return line


def from_json(text: str) -> Any:
    """The list or object that a text is, or the text."""
    if text[:1] in ("[", "{"):
        try:
            return json.loads(text)
        except (ValueError, RecursionError):  # the latter of what is nested too deep
            pass
    return text


def as_element(element: str, text: str, what: str) -> Any:
    """The int, float, bool or str, as `element` says, that was sent as a text; None for an empty one."""
    if element == "str":
        return text
    if text == "":
        return None
    try:
        if element == "bool":
            return {"true": True, "false": False, "1": True, "0": False}[text.lower()]
        return float(text) if element == "float" else int(text)
    except (KeyError, ValueError):
        raise Told(f"{what} is no {element}, as its annotation says, but {shown(text)}") from None


# ---- what users name ----


def find(which: str, what: str) -> tuple[Any, str]:
    """The object that FILE.py:NAME or MODULE:NAME names, and its name. what: "a function"."""
    file, colon, name = which.rpartition(":")
    if not colon or not file or not name:
        raise ProgramError(f"'{which}' is not FILE.py:NAME or MODULE:NAME, a file and the name of {what} in it")
    module = _module(file)
    try:
        return getattr(module, name), name
    except AttributeError:
        there = [one for one in vars(module) if not one.startswith("_") and callable(getattr(module, one))]
        near = difflib.get_close_matches(name, there, 3)
        raise ProgramError(f"{file} has no '{name}'; {meant(near, there)}") from None


def _module(named: str) -> ModuleType:
    """A file, or a module that is installed."""
    is_file = named.endswith(".py")
    try:
        return _load(os.path.abspath(named), named) if is_file else importlib.import_module(named)
    except (Exception, SystemExit) as error:
        if isinstance(error, ProgramError):
            raise
        file = os.path.abspath(named) if is_file else None
        raise ProgramError(f"{named} cannot be imported: {why(error, file)}") from None


def _load(path: str, shown_path: str) -> ModuleType:
    if not os.path.isfile(path):
        raise ProgramError(f"there is no file {shown_path}" + ("" if path == shown_path else f" ({path})"))
    folder, name = os.path.dirname(path), os.path.basename(path)[:-3]
    # As when a script is run: its neighbours can be imported, and processes that it starts find it by its name.
    sys.path.insert(0, folder)
    if name in sys.modules or name in sys.stdlib_module_names or not name.isidentifier():
        name = "file_of_user_" + re.sub(r"\W", "_", name)
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ProgramError(f"{shown_path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def leave_own_folder() -> None:
    """Of a program that was run as a script: the files of its folder would hide packages such as `datasets`."""
    own = os.path.basename(sys.argv[0])
    if sys.path and os.path.isfile(sys.argv[0]) and os.path.isfile(os.path.join(sys.path[0], own)):
        del sys.path[0]


# ---- texts ----


def cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def shown(value: Any) -> str:
    try:
        return cut(" ".join(repr(value).split()), _SHOWN)
    except Exception as error:
        return f"a {type(value).__name__} whose repr raises {type(error).__name__}"


def names(some: Iterable[Any]) -> str:
    listed = [str(name) for name in some]
    return cut(", ".join(listed), 500) if listed else "none"


def meant(near: Sequence[str], there: Iterable[str]) -> str:
    return f"did you mean {' or '.join(near)}?" if near else f"there are: {names(there)}"


def _is_inside(filename: str) -> bool:
    """Of this package, or of Python's import."""
    own = _is_inside.__code__.co_filename
    if filename == own or filename.startswith("<frozen "):
        return True
    return os.path.dirname(own) != "" and os.path.dirname(filename) == os.path.dirname(own)


def where(error: BaseException, file: str | None) -> str:
    """The last line of the user's file that an error came through, or else the line that raised it."""
    trace = traceback.extract_tb(error.__traceback__)
    frames = [one for one in trace if one.filename == file or not _is_inside(one.filename)]
    if not frames:
        return ""
    frame = next((one for one in reversed(frames) if one.filename == file), frames[-1])
    line = f": {frame.line}" if frame.line else ""
    place = "" if frame.name == "<module>" else f", in {frame.name}"
    return f" ({os.path.basename(frame.filename)}:{frame.lineno}{place}{line})"


def why(error: BaseException, file: str | None) -> str:
    return str(error) if isinstance(error, Told) else f"{type(error).__name__}: {error}" + where(error, file)
