"""Time limits of tests that hold on a machine under any load."""

from __future__ import annotations

import concurrent.futures
import contextlib
import sys
import threading
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

# Longest wait, in seconds, for something that must happen. A wait ends as soon as it does, so that only a test that
# fails takes this long.
LONG = 300.0
# Timeout, in seconds, that must not be what ends a wait.
NEVER = 86400.0


def until(condition: Callable[[], object], what: str) -> None:
    """Returns once the condition is true."""
    deadline = time.monotonic() + LONG
    while not condition():
        assert time.monotonic() < deadline, f"it never came: {what}"
        time.sleep(0.01)


def answered(call: Callable[[], T], late: type[Exception] | tuple[type[Exception], ...]) -> T:
    """Answer of a server that has little time for it, if need be after several calls that raise `late`."""
    answers: list[T] = []

    def answer() -> bool:
        with contextlib.suppress(late):
            answers.append(call())
        return bool(answers)

    until(answer, "an answer in time")
    return answers[0]


def ends(work: Callable[[], T], what: str) -> T:
    """Result of work that must end: in a thread of its own, so that a test fails instead of hanging."""
    future: concurrent.futures.Future[T] = concurrent.futures.Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    assert concurrent.futures.wait([future], LONG).done, f"it never ended: {what}"
    return future.result()


def turns_of_others(work: Callable[[], object]) -> int:
    """Number of turns that another thread had during the work: about none if the work keeps the interpreter's lock."""
    turns, working = 0, False
    over = threading.Event()

    def take_turns() -> None:
        nonlocal turns
        while not over.is_set():
            turns += working
            time.sleep(0.0005)

    other = threading.Thread(target=take_turns)
    interval = sys.getswitchinterval()
    other.start()
    sys.setswitchinterval(LONG)  # Python itself takes the lock from nobody
    try:
        working = True
        work()
        working = False
    finally:
        sys.setswitchinterval(interval)
        over.set()
        other.join()
    return turns
