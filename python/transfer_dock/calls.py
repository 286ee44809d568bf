"""The calls of a dock: those that block, for one partition without its name, and as coroutines."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine, Mapping, Sequence
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from transfer_dock import _native, call_threads, schema
from transfer_dock import status as statuses
from transfer_dock._native import Cancel, Rows
from transfer_dock.arguments import ColumnData, Keys, Names, RowIds, RowsLike, Sampler, Stale, TagsLike, Unit, by_name
from transfer_dock.errors import DockError, FailedPrecondition, InvalidArgument

P = ParamSpec("P")
R = TypeVar("R")
D = TypeVar("D")

# For how many seconds a take waits unless it says otherwise.
TAKE_TIMEOUT = 60.0


class Taken(Rows):
    """Rows that a consumer took, and the lease on them.

    As a context manager, it completes the rows that are still leased at the end of the block, or gives them back if the
    block raises. Its put() completes the rows that it names. In a coroutine, use ``async with``, and put with
    ``await dock.aio.put(…, rows=rows.ids, lease=rows)``.
    """

    # None if the consumer is at_most_once: then the rows are done already.
    lease: int | None
    # When the lease expires, as a Unix time; infinite if never. Puts after that are refused.
    expires: float

    def __init__(self, rows: Rows, dock: DockCalls, partition: str, lease: int | None, expires: float) -> None:
        super().__init__(rows)
        self._dock = dock
        self._partition = partition
        self._left: set[int] | None = None
        self.lease = lease
        self.expires = expires

    def put(
        self,
        data: Mapping[str, ColumnData],
        *,
        rows: RowsLike | None = None,
        keep: bool = False,
        step: int | None = None,
        partial: bool = False,
        overwrite: bool = False,
        weights_version: int | None = None,
    ) -> RowIds:
        """Puts columns of these rows (default: all of them, in their order) under the lease, which makes them done.

        With ``keep`` they stay leased; with ``partial`` they are given back, and their age grows by one.
        """
        named = self.ids if rows is None else rows
        return self._dock.put(
            self._partition, data, rows=named, lease=self, keep=keep, step=step, partial=partial, overwrite=overwrite,
            weights_version=weights_version,
        )  # fmt: skip

    def complete(self, rows: RowsLike | None = None, *, step: int | None = None) -> None:
        """Makes rows done without a put: the named ones, or all that the lease still holds."""
        self._dock.complete(self._partition, self, rows, step=step)

    def release(self, rows: RowsLike | None = None) -> None:
        """Gives rows back: they are ready again, in their old place."""
        self._dock.release(self._partition, self, rows)

    def drop(self, rows: RowsLike | None = None) -> None:
        """Makes rows done for all consumers."""
        self._dock.drop(self._partition, self, rows if rows is not None or self.lease is not None else self.ids)

    def renew(self) -> float:
        """Extends the lease to its full duration from now. Returns when it expires, as a Unix time."""
        return self._dock.renew(self._partition, self)

    def __enter__(self) -> Taken:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.lease is None or self._left == set():
            return
        if error is None:
            self.complete()
            return
        try:
            self.release()
        except DockError:
            # The lease may be over, or the dock gone: the rows come back by themselves, and the block's error is
            # raised.
            pass

    async def __aenter__(self) -> Taken:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await call_threads.run(lambda: self.__exit__(kind, error, trace))

    def _the_lease(self) -> int:
        if self.lease is None:
            raise FailedPrecondition(
                "these rows have no lease: the consumer is at_most_once, so they are done already"
            )
        return self.lease

    def _are_over(self, rows: RowsLike | None) -> None:
        """The lease no longer holds these rows."""
        if rows is None:
            self._left = set()
            return
        if self._left is None:
            self._left = set(self.ids.tolist())
        self._left.difference_update(int(row) for row in rows)


class DockCalls:
    """What :class:`transfer_dock.Dock` can be asked; :class:`AsyncDock` has them as coroutines."""

    def __init__(self, native: _native.Dock) -> None:
        self._native = native

    # ---- Partitions and consumers.

    def create_partition(
        self,
        name: str,
        columns: Mapping[str, schema.ColumnLike] | None = None,
        *,
        growing: bool | None = None,
        group_size: int = 1,
        retain_for: Names = (),
        max_rows: int = 0,
        max_bytes: int = 0,
        row_bytes: int = 0,
        refuse_nan: bool = False,
    ) -> None:
        """Creates a partition; does nothing if it exists with equal options.

        columns: by name, a type from :func:`transfer_dock.column` or a dtype. None: puts add columns (``growing``).
        group_size: rows per group, unless the put that starts the group says otherwise. retain_for: the consumers that
        rows are retained for: a row is released once all of them are done with it; none: rows stay until they are
        cleared. max_rows, max_bytes: the budget; puts of new rows wait until they fit. row_bytes: the least that a row
        counts for. refuse_nan: refuse puts with a NaN.

        Raises AlreadyExists for a partition with different options, InvalidArgument for invalid options.
        """
        growing = columns is None if growing is None else growing
        self._native.create_partition(**{**_options(locals()), "columns": schema.specs(columns)})

    def drop_partition(self, name: str) -> None:
        """Removes a partition and everything in it. Raises NotFound."""
        self._native.drop_partition(partition=name)

    def export_partition(self, name: str) -> bytes:
        """Everything that a partition is at one moment: options, consumers and what they have done, rows and cells.

        Raises NotFound.
        """
        image: bytes = self._native.export_partition(partition=name)
        return image

    def import_partition(self, image: bytes) -> None:
        """Makes the partition of an image, which from then on does what the exported one would have done.

        All or nothing. What was leased is ready again in its old place. Raises AlreadyExists for a partition that is
        there, FailedPrecondition for an image of another version, and InvalidArgument or DataLoss for bytes that are
        no image, or a damaged one.
        """
        self._native.import_partition(image)

    def partitions(self) -> list[str]:
        """The names of the partitions, sorted."""
        names: list[str] = self._native.list_partitions()
        return names

    def register_consumer(
        self,
        partition: str,
        name: str,
        *,
        reads: Names,
        reads_optional: Names = (),
        writes: Names = (),
        unit: Unit = "row",
        sampler: Sampler = "first_come",
        seed: int = 0,
        length_column: str = "",
        ranks: int = 1,
        lease_seconds: float = 600.0,
        max_deliveries: int = 5,
        max_version_lag: int | None = None,
        stale: Stale = "send_back",
        at_most_once: bool = False,
        checkpointed: bool = False,
    ) -> None:
        """Registers a consumer: what it reads, and what it writes. Repeating it with equal options changes nothing.

        unit: "row" or "group". sampler: "first_come", "uniform" (by ``seed``) or "length_balanced" (by the lengths of
        ``length_column``). ranks: deal the rows out to this many data-parallel ranks. lease_seconds: how long it may
        hold the rows that it takes; may be infinite. max_deliveries: a row whose lease has expired this many times is
        quarantined. max_version_lag: by how many versions of the weights what it reads may be behind the published
        version; rows that are older are sent back or dropped (``stale``: "send_back" or "drop"). at_most_once: rows are
        done as soon as they are handed out. checkpointed: what it completes becomes final only with :meth:`commit`.
        """
        self._native.register_consumer(**_options(locals()))

    def drop_consumer(self, partition: str, name: str) -> None:
        """Removes a consumer, its leases and its record of completed rows."""
        self._native.drop_consumer(partition=partition, consumer=name)

    def publish_weights(self, partition: str, version: int) -> None:
        """Announces that weights of this version make cells from now on. Raises FailedPrecondition for a lower
        version.
        """
        self._native.publish_weights(partition=partition, version=version)

    def seal(self, partition: str) -> None:
        """Accepts no new rows from now on. Raises FailedPrecondition if a group is incomplete."""
        self._native.seal(partition=partition)

    # ---- Rows.

    def put(
        self,
        partition: str,
        data: Mapping[str, ColumnData] | None = None,
        *,
        rows: RowsLike | None = None,
        new_rows: int = 0,
        lease: int | Taken | None = None,
        keep: bool = False,
        step: int | None = None,
        groups: RowsLike | None = None,
        group_size: int = 0,
        keys: Keys | None = None,
        tags: TagsLike | None = None,
        partial: bool = False,
        epochs: RowsLike | None = None,
        overwrite: bool = False,
        weights_version: int | None = None,
        timeout: float | None = 0.0,
        cancel: Cancel | None = None,
    ) -> RowIds:
        """Stores columns of rows, all or nothing, and returns the row ids: uint64 array.

        data: by column, one row for each

            step along the first dimension of an array or tensor   dense; ragged if the schema says so
            array, tensor or list of numbers in a list             ragged; dense if the schema says so
            number in a list                                       the schema's type, otherwise int64, float32 or bool
            str or bytes in a list                                 str, bytes
            row of a nested tensor                                 ragged

        Element types are not converted: one that does not fit raises InvalidArgument.

        rows: the rows to fill; None: new ones. new_rows: without data, how many rows to create. lease: of the rows,
        which the put makes done; ``keep`` leaves them leased. step: of a checkpointed consumer. groups: the group of
        each new row; group_size: of groups that start here. keys: of new rows, each unique or None. tags: a dict for
        all rows, or one for each. partial: the cells are not complete yet. epochs: of the rows when they were handed
        out. overwrite: replace cells that are ready. weights_version: of the weights that made the cells. timeout: how
        long to wait for room, in a partition with a budget; cancel: ends that wait.

        The dock copies the data: arrays may be changed once the call returns.
        """
        if data is not None and type(data) is not dict:
            data = by_name(data)
        lease_id = lease.lease if isinstance(lease, Taken) else lease
        # Some are for new rows, others for rows that exist: the extension refuses what does not belong together.
        given = {
            "lease": lease_id, "keep": keep, "step": step, "groups": groups, "keys": keys, "tags": tags,
            "partial": partial, "epochs": epochs, "overwrite": overwrite, "weights_version": weights_version,
        }  # fmt: skip
        given = {name: value for name, value in given.items() if value is not None and value is not False}
        sizes = {"new_rows": new_rows, "group_size": group_size}
        given |= {name: size for name, size in sizes.items() if type(size) is not int or size != 0}
        ids = self._native.put(data, rows, timeout, cancel, partition=partition, **given)
        if not keep:
            _are_over(lease, ids)
        return ids

    def take(
        self,
        partition: str,
        consumer: str,
        max: int = 1,
        *,
        min: int = 1,
        rank: int = 0,
        rows: RowsLike | None = None,
        timeout: float | None = TAKE_TIMEOUT,
        cancel: Cancel | None = None,
    ) -> Taken:
        """Takes rows (groups, for a consumer of groups) that are ready: at least ``min``, up to ``max``. Waits for them.

        rank: for a consumer with ranks. rows: exactly these, which have to be ready: for them it does not wait, but raises
        FailedPrecondition; a fetch waits for the columns of rows. timeout: for how many seconds to wait until ``min`` are
        ready, 60 by default; 0: what is ready now, or DeadlineExceeded; None: as long as it takes. cancel: ends the
        wait from another thread.

        Raises DeadlineExceeded, which names what is missing and which consumer holds it, EndOfData when no more rows
        can come, and Cancelled.
        """
        handed, lease, expires = self._native.take(
            timeout, cancel, partition=partition, consumer=consumer, max=max, min=min, rank=rank, rows=rows
        )
        return Taken(handed, self, partition, lease, expires)

    def fetch(
        self,
        partition: str,
        rows: RowsLike,
        columns: Names,
        *,
        timeout: float | None = 0.0,
        cancel: Cancel | None = None,
    ) -> Rows:
        """Reads columns of rows without consuming, in the order of ``rows``.

        timeout: for how many seconds to wait until all cells are ready; cancel: ends that wait.
        """
        return self._native.fetch(timeout, cancel, partition=partition, rows=rows, columns=columns)

    def complete(
        self, partition: str, lease: int | Taken, rows: RowsLike | None = None, *, step: int | None = None
    ) -> None:
        """Makes rows of a lease done without a put; None: all that it still holds."""
        self._native.complete(partition=partition, lease=_id_of(lease), rows=rows, step=step)
        _are_over(lease, rows)

    def release(self, partition: str, lease: int | Taken, rows: RowsLike | None = None) -> None:
        """Gives rows of a lease back: they are ready again, in their old place."""
        self._native.release(partition=partition, lease=_id_of(lease), rows=rows)
        _are_over(lease, rows)

    def renew(self, partition: str, lease: int | Taken) -> float:
        """Extends a lease to its full duration from now. Returns when it expires, as a Unix time."""
        expires: float = self._native.renew(partition=partition, lease=_id_of(lease))
        if isinstance(lease, Taken):
            lease.expires = expires
        return expires

    def drop(self, partition: str, lease: int | Taken | None = None, rows: RowsLike | None = None) -> None:
        """Makes rows done for all consumers: the named ones, or all of the lease."""
        lease_id = lease.lease if isinstance(lease, Taken) else lease
        self._native.drop(partition=partition, lease=lease_id or 0, rows=rows)
        _are_over(lease, rows)

    def requeue(self, partition: str, consumer: str, rows: RowsLike | None = None) -> None:
        """Makes quarantined rows ready again: the named ones, or all."""
        self._native.requeue(partition=partition, consumer=consumer, rows=rows)

    def commit(self, partition: str, consumer: str, step: int) -> None:
        """Makes final what a checkpointed consumer completed under steps up to this one."""
        self._native.commit(partition=partition, consumer=consumer, step=step)

    def rollback(self, partition: str, consumer: str, step: int, weights_version: int | None = None) -> None:
        """Makes the rows that a checkpointed consumer completed after this step ready again, and ends its leases.

        weights_version: of the weights that are restored; cells made in part by later weights are sent back.
        """
        self._native.rollback(**_options(locals()))

    def find(self, partition: str, keys: Names) -> RowIds:
        """The rows with these keys, in the order of the keys: uint64 array. Raises NotFound, naming a key that no row
        has.
        """
        rows: RowIds = self._native.find_rows(partition=partition, keys=keys)
        return rows

    def list(
        self,
        partition: str,
        tags: Mapping[str, str] | None = None,
        *,
        ready_for: str | None = None,
        having: Names = (),
        start: int = 0,
        limit: int = 1000,
    ) -> tuple[Sequence[statuses.ListedRow], int | None]:
        """Rows from ``start`` on, and the start of the next page: None at the end.

        tags: only rows with all of these. ready_for: only rows ready for this consumer. having: only rows with these
        columns ready.
        """
        rows, following = self._native.list(
            partition=partition, tags=tags, ready_for=ready_for or "", having=having, start=start, limit=limit
        )
        return [statuses.ListedRow(**row) for row in rows], following

    def clear(
        self,
        partition: str,
        rows: RowsLike | None = None,
        *,
        groups: RowsLike | None = None,
        tags: Mapping[str, str] | None = None,
        everything: bool = False,
    ) -> int:
        """Removes rows, whatever their state: by id, by group, by tags, or all. Returns how many."""
        removed: int = self._native.clear(**_options(locals()))
        return removed

    # ---- Status.

    def status(self, partition: str) -> statuses.PartitionStatus:
        """Counters of a partition, its columns and consumers."""
        return statuses.partition_status(self._native.get_status(partition=partition))

    def consumer_status(self, partition: str, consumer: str) -> statuses.ConsumerStatus:
        """Counters of a consumer."""
        return statuses.ConsumerStatus(**self._native.get_consumer_status(partition=partition, consumer=consumer))

    def row_status(self, partition: str, row: int) -> statuses.RowStatus:
        """Everything about one row: its cells, which consumers put them, and its state for each consumer."""
        return statuses.row_status(self._native.get_row_status(partition=partition, row=row))

    def explain(self, partition: str, consumer: str) -> str:
        """Why a consumer cannot take more rows; for people to read."""
        text: str = self._native.explain(partition=partition, consumer=consumer)
        return text


class PartitionOf(Generic[D]):
    """The calls of a dock for the partition ``name``."""

    def __init__(self, dock: D, name: str) -> None:
        self._dock = dock
        self.name = name

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"


def of_partition(call: Callable[Concatenate[D, str, P], R]) -> Callable[Concatenate[PartitionOf[D], P], R]:
    """A call of a dock without its first argument, the partition's name."""

    @functools.wraps(call)
    def run(self: PartitionOf[D], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return call(self._dock, self.name, *args, **kwargs)

    signature = inspect.signature(call)
    self, _, *others = signature.parameters.values()
    run.__signature__ = signature.replace(parameters=[self, *others])  # type: ignore[attr-defined]
    return run


class Partition(PartitionOf[DockCalls]):
    """What ``dock.partition(name)`` is: the calls of :class:`transfer_dock.Dock` for one partition.

        train = dock.partition("train")
        train.put({"prompt": ["37+85="]})
        with train.take("reward", max=8, timeout=60) as rows:
            …

    They are those of the dock without their first argument, the partition's name. The handle holds nothing else: it
    may be made before the partition is, and the partition may be dropped and made again. Thread-safe, and may be
    pickled where its dock may.
    """

    put = of_partition(DockCalls.put)
    take = of_partition(DockCalls.take)
    fetch = of_partition(DockCalls.fetch)
    register_consumer = of_partition(DockCalls.register_consumer)
    drop_consumer = of_partition(DockCalls.drop_consumer)
    complete = of_partition(DockCalls.complete)
    release = of_partition(DockCalls.release)
    renew = of_partition(DockCalls.renew)
    drop = of_partition(DockCalls.drop)
    requeue = of_partition(DockCalls.requeue)
    commit = of_partition(DockCalls.commit)
    rollback = of_partition(DockCalls.rollback)
    publish_weights = of_partition(DockCalls.publish_weights)
    find = of_partition(DockCalls.find)
    list = of_partition(DockCalls.list)
    seal = of_partition(DockCalls.seal)
    clear = of_partition(DockCalls.clear)
    status = of_partition(DockCalls.status)
    consumer_status = of_partition(DockCalls.consumer_status)
    row_status = of_partition(DockCalls.row_status)
    explain = of_partition(DockCalls.explain)


# ---- As coroutines.


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
        kwargs["cancel"] = cancel = Cancel()
        return await call_threads.run_until_cancelled(
            lambda: call(self._dock, *args, **kwargs), cancel.request, _give_back
        )

    return run


def _give_back(result: object) -> None:
    if isinstance(result, Taken) and result.lease is not None:
        result.release()


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


def _options(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a method by their names."""
    return {name: value for name, value in arguments.items() if name != "self"}


def _id_of(lease: int | Taken) -> int:
    return lease._the_lease() if isinstance(lease, Taken) else lease


def _are_over(lease: int | Taken | None, rows: RowsLike | None) -> None:
    """Records in the lease that these rows are no longer leased."""
    if isinstance(lease, Taken):
        lease._are_over(rows)
