"""Watching a dock: how far each consumer is, as a table that is drawn again and again."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, TextIO

from transfer_dock import tables
from transfer_dock.arguments import seconds
from transfer_dock.calls import DockCalls
from transfer_dock.status import ConsumerStatus, PartitionStatus

_HEAD = ["partition", "rows", "consumer", "waiting", "ready", "leased", "quarantined", "done", ""]
_BAR = 20


def bar_of(consumer: ConsumerStatus | None) -> str:
    """How much is done."""
    if consumer is None:
        return ""
    states = (consumer.waiting, consumer.ready, consumer.leased, consumer.quarantined, consumer.done)
    return _bar(consumer.done, sum(states))


def _bar(done: int, rows: int) -> str:
    filled = _BAR * done // rows if rows else 0
    return f"{'█' * filled}{'░' * (_BAR - filled)} {100 * done // rows if rows else 0:3d}%"


def _lines(partitions: Mapping[str, PartitionStatus]) -> list[list[str]]:
    lines = []
    for partition, status in partitions.items():
        what = [partition, f"{status.rows}{' sealed' if status.sealed else ''}"]
        for name, one in status.consumers.items():
            states = (one.waiting, one.ready, one.leased, one.quarantined, one.done)
            lines.append([*what, name, *(str(state) for state in states), bar_of(one)])
            what = ["", ""]
        if not status.consumers:
            lines.append([*what, "–", *[""] * 6])
    return lines


def text_of(title: str, partitions: Mapping[str, PartitionStatus]) -> str:
    return f"{title}\n{tables.as_text(_HEAD, _lines(partitions))}"


def html_of(title: str, partitions: Mapping[str, PartitionStatus]) -> str:
    return tables.as_html(title, _HEAD, _lines(partitions))


class Screen:
    """Where a table is drawn over the last one: the output of a notebook's cell, a terminal; a file gets one after the
    other.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._lines = 0
        self._notebook: Any = None
        # IPython has told of itself if this is one of its programs.
        ipython = sys.modules.get("IPython")
        shell = ipython.get_ipython() if ipython is not None and stream is None else None
        if shell is not None and type(shell).__name__ == "ZMQInteractiveShell":
            self._notebook = __import__("IPython.display", fromlist=["display"])
            self._handle: Any = None

    @property
    def in_notebook(self) -> bool:
        return self._notebook is not None

    @property
    def is_live(self) -> bool:
        """Whether a table takes the place of the last one."""
        return self.in_notebook or self._stream.isatty()

    def draw(self, text: Callable[[], str], html: Callable[[], str]) -> None:
        if self._notebook is not None:
            shown = self._notebook.HTML(html())
            if self._handle is None:
                self._handle = self._notebook.display(shown, display_id=True)
            else:
                self._handle.update(shown)
            return
        drawn = text()
        # Up to where the last one began, and from there on nothing.
        over = f"\x1b[{self._lines}A\x1b[J" if self._lines and self._stream.isatty() else ""
        self._stream.write(f"{over}{drawn}\n")
        self._stream.flush()
        self._lines = drawn.count("\n") + 1

    def keep(self) -> None:
        """What was drawn stays: something is written below it."""
        self._lines = 0


def _is_over(partitions: Mapping[str, PartitionStatus]) -> bool:
    """Whether all that there is is done."""
    return bool(partitions) and all(
        status.sealed and all(not one.waiting + one.ready + one.leased for one in status.consumers.values())
        for status in partitions.values()
    )


def watch(
    dock: DockCalls,
    partition: str | None = None,
    *,
    every: float = 1.0,
    timeout: float | None = None,
    stream: TextIO | None = None,
) -> None:
    """Shows how far each consumer of a dock is, as a live table in a terminal or a notebook.

    Returns when every partition is sealed and no consumer has rows left to do, after ``timeout`` seconds, or with Ctrl-C.
    partition: only this one. every: seconds between two looks. stream: where to write, default standard error; one that
    is no terminal gets a table when something has changed.

    Raises NotFound for a partition that is not there, and Unavailable when the dock does not answer.
    """
    every = seconds("every", every)
    deadline = None if timeout is None else time.monotonic() + seconds("timeout", timeout)
    screen = Screen(stream)
    last: dict[str, PartitionStatus] | None = None
    try:
        while True:
            now = {name: dock.status(name) for name in ([partition] if partition is not None else dock.partitions())}
            if now != last:
                screen.draw(lambda: text_of(repr(dock), now), lambda: html_of(repr(dock), now))
            last = now
            left = every if deadline is None else min(every, deadline - time.monotonic())
            if _is_over(now) or left <= 0:
                return
            time.sleep(left)
    except KeyboardInterrupt:
        return
