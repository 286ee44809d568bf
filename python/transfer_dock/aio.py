"""The verbs of a dock as coroutines."""

from __future__ import annotations

import asyncio
import os
import queue
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, TypeVar

from transfer_dock import _native
from transfer_dock.dock import Dock, Taken
from transfer_dock.errors import DockError

P = ParamSpec("P")
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


def _in_a_thread(call: Callable[[], R]) -> Future[R]:
    found = _threads.get(os.getpid())
    if found is None:
        found = _threads.setdefault(os.getpid(), _Threads())
    return found.submit(call)


def _give_back(future: Future[Any]) -> None:
    """Rows that were handed out to somebody who does not wait for them any more."""
    if future.cancelled() or future.exception() is not None:
        return
    taken = future.result()
    if isinstance(taken, Taken) and taken.lease is not None:
        try:
            taken.release()
        except DockError:
            pass  # then they come back when the lease is over


def _verb(call: Callable[Concatenate[Dock, P], R]) -> Callable[Concatenate[AsyncDock, P], Coroutine[Any, Any, R]]:
    async def run(self: AsyncDock, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await asyncio.wrap_future(_in_a_thread(lambda: call(self._dock, *args, **kwargs)))

    run.__doc__, run.__name__ = call.__doc__, call.__name__
    return run


def _waiting_verb(
    call: Callable[Concatenate[Dock, P], R],
) -> Callable[Concatenate[AsyncDock, P], Coroutine[Any, Any, R]]:
    async def run(self: AsyncDock, /, *args: P.args, **kwargs: P.kwargs) -> R:
        cancel = _native.Cancel()
        kwargs["_cancel"] = cancel
        future = _in_a_thread(lambda: call(self._dock, *args, **kwargs))

        def abandon() -> None:
            cancel.request()
            future.add_done_callback(_give_back)

        try:
            return await asyncio.wrap_future(future)
        except DockError:
            raise
        except BaseException:
            # The task was cancelled, or its coroutine dropped. In a thread, because a server is told, or asked to take
            # rows back; when the interpreter ends there are no new ones, and the process takes the call with it.
            try:
                _in_a_thread(abandon)
            except RuntimeError:
                pass
            raise

    run.__doc__, run.__name__ = call.__doc__, call.__name__
    return run


class AsyncDock:
    """What ``dock.aio`` is: the verbs of :class:`transfer_dock.Dock` with the same arguments, to be awaited.

        async with await dock.aio.take("p", "c", max=8) as rows:
            await dock.aio.put("p", {"y": …}, rows=rows.ids, lease=rows)

    The methods of rows, as rows.put, are calls of their own that do block: the verbs take the rows as their ``lease``.

    They run in threads of their own, never in the event loop's. Cancelling a task that waits in put, take or fetch, or
    dropping its coroutine, ends the call; rows that it was handed meanwhile are given back. The end of a program does
    not wait for calls.
    """

    def __init__(self, dock: Dock) -> None:
        self._dock = dock

    async def _exit(
        self,
        taken: Taken,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await asyncio.wrap_future(_in_a_thread(lambda: taken.__exit__(kind, error, trace)))

    put = _waiting_verb(Dock.put)
    take = _waiting_verb(Dock.take)
    fetch = _waiting_verb(Dock.fetch)
    create_partition = _verb(Dock.create_partition)
    drop_partition = _verb(Dock.drop_partition)
    partitions = _verb(Dock.partitions)
    register_consumer = _verb(Dock.register_consumer)
    drop_consumer = _verb(Dock.drop_consumer)
    complete = _verb(Dock.complete)
    release = _verb(Dock.release)
    renew = _verb(Dock.renew)
    drop = _verb(Dock.drop)
    requeue = _verb(Dock.requeue)
    commit = _verb(Dock.commit)
    rollback = _verb(Dock.rollback)
    publish_weights = _verb(Dock.publish_weights)
    find = _verb(Dock.find)
    list = _verb(Dock.list)
    seal = _verb(Dock.seal)
    clear = _verb(Dock.clear)
    status = _verb(Dock.status)
    consumer_status = _verb(Dock.consumer_status)
    row_status = _verb(Dock.row_status)
    explain = _verb(Dock.explain)
