"""The verbs of a dock as coroutines."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Concatenate, ParamSpec, TypeVar

from transfer_dock import _native, call_threads
from transfer_dock.calls import DockCalls, Taken
from transfer_dock.errors import DockError, InvalidArgument
from transfer_dock.partition import PartitionOf, of_partition

P = ParamSpec("P")
R = TypeVar("R")


def _give_back(future: Future[Any]) -> None:
    """Gives back rows that were taken by a call whose caller no longer waits."""
    if future.cancelled() or future.exception() is not None:
        return
    taken = future.result()
    if isinstance(taken, Taken) and taken.lease is not None:
        try:
            taken.release()
        except DockError:
            pass  # then they come back when the lease expires


def _verb(call: Callable[Concatenate[DockCalls, P], R]) -> Callable[Concatenate[AsyncDock, P], Coroutine[Any, Any, R]]:
    @functools.wraps(call)
    async def run(self: AsyncDock, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await call_threads.run(lambda: call(self._dock, *args, **kwargs))

    return run


def _waiting_verb(
    call: Callable[Concatenate[DockCalls, P], R],
) -> Callable[Concatenate[AsyncDock, P], Coroutine[Any, Any, R]]:
    @functools.wraps(call)
    async def run(self: AsyncDock, /, *args: P.args, **kwargs: P.kwargs) -> R:
        if kwargs.get("cancel") is not None:
            raise InvalidArgument("'cancel' is for the calls that block: cancel the task that awaits this one")
        cancel = _native.Cancel()
        kwargs["cancel"] = cancel
        future = call_threads.start(lambda: call(self._dock, *args, **kwargs))

        def abandon() -> None:
            cancel.request()
            future.add_done_callback(_give_back)

        try:
            return await asyncio.wrap_future(future)
        except DockError:
            raise
        except BaseException:
            # The task was cancelled, or its coroutine dropped. Cancelling may have to call a server, so it runs in a
            # thread. During interpreter shutdown no new thread can start; then the call ends with the process.
            try:
                call_threads.start(abandon)
            except RuntimeError:
                pass
            raise

    return run


class AsyncDock:
    """The type of ``dock.aio``: the verbs of :class:`transfer_dock.Dock` with the same arguments, to be awaited.

        async with await dock.aio.take("p", "c", max=8) as rows:
            await dock.aio.put("p", {"y": …}, rows=rows.ids, lease=rows)

    The methods of the rows themselves, such as rows.put, block: use the verbs here, with the rows as their ``lease``.

    Calls run in threads of their own, never in the event loop's. Cancelling a task that waits in put, take or fetch, or
    dropping its coroutine, ends the call; rows that it took in the meantime are given back. The end of the program does
    not wait for calls.
    """

    def __init__(self, dock: DockCalls) -> None:
        self._dock = dock

    def partition(self, name: str) -> AsyncPartition:
        """The verbs of one partition: they do not ask for its name. Asks the dock nothing, and is not awaited."""
        return AsyncPartition(self, name)

    put = _waiting_verb(DockCalls.put)
    take = _waiting_verb(DockCalls.take)
    fetch = _waiting_verb(DockCalls.fetch)
    create_partition = _verb(DockCalls.create_partition)
    drop_partition = _verb(DockCalls.drop_partition)
    export_partition = _verb(DockCalls.export_partition)
    import_partition = _verb(DockCalls.import_partition)
    partitions = _verb(DockCalls.partitions)
    register_consumer = _verb(DockCalls.register_consumer)
    drop_consumer = _verb(DockCalls.drop_consumer)
    complete = _verb(DockCalls.complete)
    release = _verb(DockCalls.release)
    renew = _verb(DockCalls.renew)
    drop = _verb(DockCalls.drop)
    requeue = _verb(DockCalls.requeue)
    commit = _verb(DockCalls.commit)
    rollback = _verb(DockCalls.rollback)
    publish_weights = _verb(DockCalls.publish_weights)
    find = _verb(DockCalls.find)
    list = _verb(DockCalls.list)
    seal = _verb(DockCalls.seal)
    clear = _verb(DockCalls.clear)
    status = _verb(DockCalls.status)
    consumer_status = _verb(DockCalls.consumer_status)
    row_status = _verb(DockCalls.row_status)
    explain = _verb(DockCalls.explain)


class AsyncPartition(PartitionOf[AsyncDock]):
    """What ``dock.aio.partition(name)`` is: the verbs of :class:`transfer_dock.Partition`, to be awaited.

        async with await train.take("c", max=8) as rows:
            await train.put({"y": …}, rows=rows.ids, lease=rows)
    """

    put = of_partition(AsyncDock.put)
    take = of_partition(AsyncDock.take)
    fetch = of_partition(AsyncDock.fetch)
    register_consumer = of_partition(AsyncDock.register_consumer)
    drop_consumer = of_partition(AsyncDock.drop_consumer)
    complete = of_partition(AsyncDock.complete)
    release = of_partition(AsyncDock.release)
    renew = of_partition(AsyncDock.renew)
    drop = of_partition(AsyncDock.drop)
    requeue = of_partition(AsyncDock.requeue)
    commit = of_partition(AsyncDock.commit)
    rollback = of_partition(AsyncDock.rollback)
    publish_weights = of_partition(AsyncDock.publish_weights)
    find = of_partition(AsyncDock.find)
    list = of_partition(AsyncDock.list)
    seal = of_partition(AsyncDock.seal)
    clear = of_partition(AsyncDock.clear)
    status = of_partition(AsyncDock.status)
    consumer_status = of_partition(AsyncDock.consumer_status)
    row_status = of_partition(AsyncDock.row_status)
    explain = of_partition(AsyncDock.explain)
