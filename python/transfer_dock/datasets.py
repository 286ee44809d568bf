"""Rows of a dock as a torch dataset: micro-batches as they become ready, separate for each data-parallel rank."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, ItemsView, Iterator, KeysView
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from transfer_dock.arguments import Names, refuse_one_str, seconds
from transfer_dock.dock import Dock, Taken
from transfer_dock.errors import DeadlineExceeded, DockError, EndOfData, FailedPrecondition, InvalidArgument


@dataclass
class MicroBatch:
    """Columns of the same rows by name: tensors for numbers (nested tensors for ragged columns), lists for strings.

    Not a Mapping, because a DataLoader would turn that into a dict; use dict(batch) to get one.
    """

    columns: dict[str, Any]
    # uint64 in the dock; int64 here, which torch supports better.
    rows: torch.Tensor
    partition: str
    # None: the rows are done already.
    lease: int | None

    def __getitem__(self, name: str) -> Any:
        return self.columns[name]

    def __contains__(self, name: object) -> bool:
        return name in self.columns

    def __len__(self) -> int:
        """The number of rows."""
        return len(self.rows)

    def keys(self) -> KeysView[str]:
        return self.columns.keys()

    def items(self) -> ItemsView[str, Any]:
        return self.columns.items()

    def complete(self, dock: Dock, *, step: int | None = None) -> None:
        """Completes the rows once they are trained on; for a checkpointed consumer, under this step."""
        if self.lease is None:
            raise FailedPrecondition("these rows have no lease: they are done already")
        dock.complete(self.partition, self.lease, self.rows.numpy().astype("uint64"), step=step)

    def release(self, dock: Dock) -> None:
        """Gives the rows back: they are ready again."""
        if self.lease is None:
            raise FailedPrecondition("these rows have no lease: they are done already")
        dock.release(self.partition, self.lease, self.rows.numpy().astype("uint64"))

    def pin_memory(self) -> MicroBatch:
        """For DataLoader(pin_memory=True)."""
        pinned = {name: one.pin_memory() if isinstance(one, torch.Tensor) else one for name, one in self.columns.items()}
        return MicroBatch(pinned, self.rows, self.partition, self.lease)


def to_micro_batch(taken: Taken, columns: Names | None = None) -> MicroBatch:
    """Copies of the columns (default: those that the consumer reads and that all the rows have)."""
    copies: dict[str, Any] = {}
    for name in [name for name in taken.columns if taken[name].is_whole()] if columns is None else columns:
        column = taken[name]
        if column.kind in ("str", "bytes"):
            copies[name] = column.tolist()
        elif column.kind == "ragged":
            copies[name] = column.torch_nested(copy=True)
        else:
            copies[name] = column.torch(copy=True)
    return MicroBatch(copies, torch.from_numpy(taken.ids.astype("int64")), taken._partition, taken.lease)


class DockDataset(IterableDataset[Any]):
    """Streams the rows of a consumer until the partition is sealed and every row is done.

    Iterate over it, or over loader(), which has workers. Every row goes to exactly one rank once, however many loaders
    and workers the rank has: they share the rank's rows. A worker process makes its own connection to the dock.

    For a DataLoader of your own, pass ``batch_size=None``, and with several workers ``in_order=False``: otherwise it
    may wait for a worker that has nothing while the others hold all rows.

    A batch's rows are done when the next batch is requested, that is, when this process is finished with it. With
    ``hold=True`` they are done when the trainer calls MicroBatch.complete(), and come back if it dies before that: for
    loaders with workers, which request batches ahead of the trainer, and for checkpointed consumers. Batches that a
    loader holds when iteration stops early come back with MicroBatch.release(), or when their lease expires.
    """

    def __init__(
        self,
        dock: Dock,
        partition: str,
        consumer: str,
        *,
        batch_size: int,
        min_batch: int | None = None,
        rank: int = 0,
        columns: Names | None = None,
        hold: bool = False,
        timeout: float | None = None,
        collate: Callable[[Taken], Any] | None = None,
    ) -> None:
        """consumer: must be registered, with one of its ``ranks`` for each data-parallel rank.

        batch_size: rows (groups, for a consumer of groups) of a micro-batch; min_batch: the least, by default
        ``batch_size``; the last ones may be smaller. timeout: how many seconds to wait for a batch before iteration
        raises DeadlineExceeded, which says what is missing; None: as long as it takes. collate: converts the rows to
        what is yielded; its views are valid only until the next batch is requested. Default: a MicroBatch of copies.
        """
        if batch_size < 1 or not 1 <= (batch_size if min_batch is None else min_batch) <= batch_size:
            raise InvalidArgument(f"a micro-batch has 1 <= min_batch <= batch_size rows, not {min_batch}, {batch_size}")
        refuse_one_str("'columns'", columns)
        self.dock = dock
        self.partition = partition
        self.consumer = consumer
        self.batch_size = batch_size
        self.min_batch = batch_size if min_batch is None else min_batch
        self.rank = rank
        self.columns = columns
        self.hold = hold
        self.timeout = None if timeout is None else seconds("timeout", timeout)
        self.collate = collate

    def loader(self, num_workers: int = 0, **options: Any) -> DataLoader[Any]:
        """A torch DataLoader of these batches. options: further arguments of DataLoader, such as
        ``pin_memory=True``.
        """
        return DataLoader(self, batch_size=None, num_workers=num_workers, in_order=False, **options)

    def __iter__(self) -> Iterator[Any]:
        while (taken := self._take()) is not None:
            try:
                batch = to_micro_batch(taken, self.columns) if self.collate is None else self.collate(taken)
            except BaseException:
                _give_back(taken)
                raise
            try:
                yield batch
            except BaseException:
                # The loop was left before this batch was finished.
                if not self.hold:
                    _give_back(taken)
                raise
            if not self.hold and taken.lease is not None:
                taken.complete()

    def _take(self) -> Taken | None:
        """None at the end."""
        worker = get_worker_info()
        # One of several workers checks the others every second: see _others_have_the_rest().
        slices = worker is not None and worker.num_workers > 1
        until = math.inf if self.timeout is None else time.monotonic() + self.timeout
        while True:
            left = max(until - time.monotonic(), 0.0)
            wait = min(left, 1.0) if slices else left
            try:
                return self.dock.take(
                    self.partition, self.consumer, self.batch_size, min=self.min_batch, rank=self.rank,
                    timeout=None if wait == math.inf else wait,
                )  # fmt: skip
            except EndOfData:
                return None
            except DeadlineExceeded:
                if slices and self._others_have_the_rest():
                    return None
                if wait >= left:
                    raise

    def _others_have_the_rest(self) -> bool:
        """Whether other workers hold all remaining rows: a loader that keeps the order of its workers waits for this
        one first, so the others' batches would never be finished.
        """
        status = self.dock.status(self.partition)
        consumer = status.consumers[self.consumer]
        return status.sealed and consumer.waiting == consumer.ready == 0 and consumer.leased > 0


def _give_back(taken: Taken) -> None:
    if taken.lease is None:
        return
    with contextlib.suppress(DockError):  # the lease is over, or the dock gone: the rows come back by themselves
        taken.release()
