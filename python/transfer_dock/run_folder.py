"""The folder of a training run, read while the run writes it."""

from __future__ import annotations

import fcntl
import json
import os
import pathlib
from dataclasses import dataclass

# How much of a file is read at a time, and therefore the longest line.
_BLOCK_BYTES = 16 << 20


class RunFolderError(Exception):
    """A file of the folder is not what a run writes. The text names the file and the place in it."""


@dataclass(frozen=True)
class Step:
    """A line of metrics.jsonl. What was not a finite number is NaN."""

    number: int
    metrics: dict[str, float]


class MetricsFile:
    """The steps in a run's metrics.jsonl, in their order. Not thread-safe.

    A run that is resumed cuts the file back to its checkpoint and takes the steps behind it again; those that were
    returned already are passed over then.
    """

    def __init__(self, path: pathlib.Path, after: int) -> None:
        """Steps up to ``after`` are passed over. The file need not exist yet."""
        self._path = path
        self._after = after
        self._offset = 0  # of the first line that was not read
        self._last_line = b""  # the one before it

    def read(self) -> list[Step]:
        """The next steps, some MB of them at most; none once the last complete line has been read."""
        while True:
            begin = self._offset
            lines = self._complete_lines()
            if lines is None:
                return []
            steps = []
            for line in lines.splitlines(keepends=True):
                step = self._parse(line, begin)
                begin += len(line)
                if step.number > self._after:
                    steps.append(step)
                    self._after = step.number
            if steps:
                return steps

    def _complete_lines(self) -> bytes | None:
        """Moves behind the lines that it returns; None if there are none."""
        try:
            fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            block = os.pread(fd, len(self._last_line) + _BLOCK_BYTES, self._offset - len(self._last_line))
            if block.startswith(self._last_line):
                block = block[len(self._last_line) :]
            else:  # the file was cut, and perhaps went on
                self._offset, self._last_line = 0, b""
                block = os.pread(fd, _BLOCK_BYTES, 0)
        finally:
            os.close(fd)
        lines = block[: block.rfind(b"\n") + 1]
        if not lines:
            if len(block) == _BLOCK_BYTES:
                raise RunFolderError(
                    f"{self._path}: the line at byte {self._offset} is longer than {_BLOCK_BYTES} bytes"
                )
            return None
        self._offset += len(lines)
        self._last_line = lines[lines.rfind(b"\n", 0, -1) + 1 :]
        return lines

    def _parse(self, line: bytes, offset: int) -> Step:
        try:
            record = json.loads(line)
            number = record.pop("step")
            record.pop("phase")
            if not isinstance(number, int) or not all(_is_number(value) for value in record.values()):
                raise ValueError
            nan = float("nan")
            return Step(number, {name: nan if value is None else float(value) for name, value in record.items()})
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
            text = line[:80].decode(errors="replace").rstrip()
            raise RunFolderError(
                f'{self._path}: the line at byte {offset} must be {{"phase": …, "step": N, "metric": number, …}}, '
                f"not {text!r}"
            ) from None


def _is_number(value: object) -> bool:
    return value is None or (isinstance(value, (int, float)) and not isinstance(value, bool))


def is_running(folder: pathlib.Path) -> bool:
    """Whether a process holds the lock that a run has on its folder while it lives."""
    try:
        fd = os.open(folder / "lock", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def is_finished(folder: pathlib.Path) -> bool:
    """Whether the run has trained to its end, and left its model."""
    return (folder / "checkpoint" / "config.json").exists()
