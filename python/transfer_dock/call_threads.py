"""Threads that make calls of a dock for coroutines."""

from __future__ import annotations

import asyncio
import os
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from transfer_dock.errors import DockError

R = TypeVar("R")


class _Threads:
    """Threads for calls: as many as there are calls that run, so that none waits for the end of another one. Those of
    an executor would be awaited when the program ends, and a call may wait for ever.
    """

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = queue.SimpleQueue()
        # One for each thread for which no call is there.
        self._idle = threading.Semaphore(0)

    def submit(self, call: Callable[[], R]) -> Future[R]:
        future: Future[R] = Future()
        self._calls.put((future, call))
        if not self._idle.acquire(blocking=False):
            threading.Thread(target=self._work, name="transfer-dock", daemon=True).start()
        return future

    def _work(self) -> None:
        while True:
            self._run(*self._calls.get())
            self._idle.release()

    @staticmethod
    def _run(future: Future[R], call: Callable[[], R]) -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            answer = call()
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(answer)


# By process: threads are not in those that are forked.
_threads: dict[int, _Threads] = {}


def start(call: Callable[[], R]) -> Future[R]:
    """Makes the call in a thread."""
    found = _threads.get(os.getpid())
    if found is None:
        found = _threads.setdefault(os.getpid(), _Threads())
    return found.submit(call)


async def run(call: Callable[[], R]) -> R:
    """Makes the call in a thread, and waits for it without blocking the event loop."""
    return await asyncio.wrap_future(start(call))


async def run_until_cancelled(
    call: Callable[[], R], cancel: Callable[[], None], give_back: Callable[[R], None]
) -> R:
    """The same for a call that waits. If its task is cancelled, or its coroutine dropped, ``cancel`` ends the call, and
    ``give_back`` gets what it returns nevertheless.
    """
    future = start(call)

    def give(over: Future[R]) -> None:
        if over.cancelled() or over.exception() is not None:
            return
        try:
            give_back(over.result())
        except DockError:
            pass  # then rows come back when their lease expires

    def abandon() -> None:
        cancel()
        future.add_done_callback(give)

    try:
        return await asyncio.wrap_future(future)
    except DockError:
        raise
    except BaseException:
        # Cancelling may have to call a server, so it runs in a thread. During interpreter shutdown no new thread can
        # start; then the call ends with the process.
        try:
            start(abandon)
        except RuntimeError:
            pass
        raise
