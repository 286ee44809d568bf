"""Stages in Python: functions that take part in a run alongside any other stages.

    @stage(reads=["prompt", "response"], writes=["reward"], batch_size=32)
    def reward(rows):
        pairs = zip(rows["prompt"].tolist(), rows["response"].tolist())
        return {"reward": [score(prompt, response) for prompt, response in pairs]}

    run(Dock.connect("unix:/run/dock.sock"), "train", [reward])
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, NoReturn, Union

from transfer_dock import tables, watching
from transfer_dock._native import Cancel
from transfer_dock.arguments import Names, Unit, refuse_one_str, seconds
from transfer_dock.dock import ColumnData, Dock, Taken
from transfer_dock.errors import (
    Cancelled,
    DeadlineExceeded,
    DockError,
    EndOfData,
    FailedPrecondition,
    InvalidArgument,
)

Columns = Union[Mapping[str, ColumnData], None]
# Takes rows and returns the columns that its stage writes, one value for each row; may be a coroutine function.
StageFunction = Callable[[Taken], Any]

_log = logging.getLogger("transfer_dock")


@dataclass(frozen=True)
class Stage:
    """A function together with the options of its consumer. Calling the stage calls the function."""

    function: StageFunction
    name: str
    reads: Names
    writes: Names = ()
    unit: Unit = "row"
    # The function gets at least min_batch and at most batch_size rows, or groups, per call.
    batch_size: int = 32
    min_batch: int = 1
    lease_seconds: float = 600.0
    # Further options of Dock.register_consumer.
    consumer: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        refuse_one_str(f"'reads' of stage '{self.name}'", self.reads)
        refuse_one_str(f"'writes' of stage '{self.name}'", self.writes)
        if not 1 <= self.min_batch <= self.batch_size:
            raise InvalidArgument(
                f"stage '{self.name}' takes 1 <= min_batch <= batch_size rows, not {self.min_batch} to {self.batch_size}"
            )
        if self.consumer.get("checkpointed"):
            raise InvalidArgument(
                f"stage '{self.name}': a stage cannot be a checkpointed consumer, whose rows are completed under "
                "steps: take its rows with Dock.take or DockDataset(hold=True), and complete them with their step"
            )

    @property
    def ranks(self) -> int:
        """The number of data-parallel ranks that its rows are dealt out to."""
        return int(self.consumer.get("ranks", 1))

    def __call__(self, rows: Taken) -> Any:
        return self.function(rows)

    def with_options(self, **options: Any) -> Stage:
        """A copy with other values of these fields."""
        return replace(self, **options)

    def register(self, dock: Dock, partition: str) -> None:
        """Registers it as a consumer; repeating that changes nothing."""
        dock.register_consumer(
            partition, self.name, reads=list(self.reads), writes=list(self.writes), unit=self.unit,
            lease_seconds=self.lease_seconds, **self.consumer,
        )  # fmt: skip


def stage(
    *,
    reads: Names,
    writes: Names = (),
    unit: Unit = "row",
    name: str | None = None,
    batch_size: int = 32,
    min_batch: int = 1,
    lease_seconds: float = 600.0,
    **consumer: Any,
) -> Callable[[StageFunction], Stage]:
    """Makes a stage from a function of rows, which returns the columns that it writes, or None if it writes none.

    unit: "row", or "group": then the function gets whole groups, each in adjacent rows (``rows.groups``). name: of the
    consumer; default: the function's name. lease_seconds: leases are renewed while the function runs, so this is how
    long it takes until the rows of a dead process come back. Further arguments are those of
    :meth:`Dock.register_consumer`.
    """
    # tuple() would split a string into characters.
    columns_read = reads if isinstance(reads, str) else tuple(reads)
    columns_written = writes if isinstance(writes, str) else tuple(writes)

    def make(function: StageFunction) -> Stage:
        return Stage(
            function, name or function.__name__, columns_read, columns_written, unit, batch_size, min_batch,
            lease_seconds, dict(consumer),
        )  # fmt: skip

    return make


def _elsewhere(rows: Taken) -> NoReturn:
    raise RuntimeError("the function of this stage is in the process in which it raised an error")


class StageError(RuntimeError):
    """A stage's function raised an error, which is the ``__cause__``, or returned an invalid result.

    Its rows were given back, unless its consumer is at_most_once: then they are not delivered again.
    """

    def __init__(self, stage: Stage, rows: Sequence[int], why: str) -> None:
        shown = ", ".join(str(row) for row in rows[:8]) + (", …" if len(rows) > 8 else "")
        super().__init__(f"stage '{stage.name}', rows {shown}: {why}")
        self.stage = stage
        self.rows = list(rows)
        self._why = why

    def __reduce__(self) -> tuple[Any, ...]:
        # A decorated function cannot be pickled: its name is the stage's.
        return StageError, (replace(self.stage, function=_elsewhere), self.rows, self._why)


@dataclass
class StageCounts:
    """Counters of one stage of a runner."""

    batches: int = 0
    rows: int = 0
    seconds_working: float = 0.0
    seconds_waiting: float = 0.0


class Runner:
    """Runs stages on the rows of one partition, each in threads of its own, until no more rows can come.

    A batch is done when its columns are put. If a function raises, its rows are given back, all stages stop, and join()
    raises StageError. As a context manager, it starts, and joins at the end of the block; if the block raises, it
    stops. Thread-safe.
    """

    def __init__(
        self, dock: Dock, partition: str, stages: Sequence[Stage], *, threads: int = 1, rank: int | None = None
    ) -> None:
        """Registers the stages. threads: per stage; Python runs only one at a time, except while they wait. rank: of
        this process, for stages with ranks.
        """
        if threads < 1:
            raise InvalidArgument(f"a stage needs at least one thread, not {threads}")
        for one in stages:
            if one.ranks > 1 and rank is None:
                raise InvalidArgument(f"stage '{one.name}' has {one.ranks} ranks: give this process's rank (rank=)")
        self._rank = rank or 0
        self._dock = dock
        self._partition = partition
        self._lock = threading.Lock()
        self._cancels: set[Cancel] = set()
        self._stopped = False
        self._error: BaseException | None = None
        self._started = False
        self.counts = {one.name: StageCounts() for one in stages}
        if len(self.counts) != len(stages):
            raise InvalidArgument(f"two stages have the same name: {[one.name for one in stages]}")
        for one in stages:
            one.register(dock, partition)
        self._threads = [
            threading.Thread(target=self._work, args=(one,), name=f"stage {one.name} {number}", daemon=True)
            for one in stages
            for number in range(threads)
        ]
        self._renewals = _Renewals(dock, partition)

    def start(self) -> Runner:
        """Starts the threads. Call it once."""
        self._started = True
        self._renewals.start()
        for thread in self._threads:
            thread.start()
        return self

    def stop(self) -> None:
        """Ends waits; the threads finish their current batches first. Returns at once."""
        with self._lock:
            self._stopped = True
            cancels = list(self._cancels)
        for cancel in cancels:
            cancel.request()

    def join(self, timeout: float | None = None) -> bool:
        """Waits until all stages have ended; returns False after ``timeout`` seconds. Raises the error that ended
        them.
        """
        if not self._started:
            raise FailedPrecondition("the stages were not started: call start(), or use the runner in a with statement")
        deadline = None if timeout is None else time.monotonic() + seconds("timeout", timeout)
        for thread in self._threads:
            # In short waits, so that Ctrl-C is handled.
            while thread.is_alive():
                left = 0.2 if deadline is None else min(0.2, deadline - time.monotonic())
                if left <= 0:
                    return False
                thread.join(left)
        self._renewals.stop()
        if self._error is not None:
            raise self._error
        return True

    def __enter__(self) -> Runner:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.join()
            return
        self.stop()
        try:
            self.join()
        except Exception as second:
            if second is not error:
                _log.error("while another error ended the block: %s", second)

    def _work(self, one: Stage) -> None:
        try:
            # One event loop for all batches: what a coroutine opens, such as a client of a server, belongs to its loop.
            with asyncio.Runner() as loop:
                while self._do_batch(one, loop):
                    pass
        except BaseException as error:
            with self._lock:
                self._error = self._error or error
            self.stop()

    def _do_batch(self, one: Stage, loop: asyncio.Runner) -> bool:
        """False at the end."""
        begun = time.monotonic()
        taken = self._take(one)
        if taken is None:
            return False
        taken_at = time.monotonic()
        with self._renewals.hold(taken, one.lease_seconds):
            self._apply(one, taken, loop)
        with self._lock:
            counts = self.counts[one.name]
            counts.batches += 1
            counts.rows += len(taken)
            counts.seconds_waiting += taken_at - begun
            counts.seconds_working += time.monotonic() - taken_at
        return True

    def _take(self, one: Stage) -> Taken | None:
        cancel = Cancel()
        with self._lock:
            if self._stopped:
                return None
            self._cancels.add(cancel)
        try:
            while True:
                try:
                    return self._dock.take(
                        self._partition, one.name, one.batch_size, min=one.min_batch,
                        rank=self._rank if one.ranks > 1 else 0, timeout=60.0, cancel=cancel,
                    )  # fmt: skip
                except DeadlineExceeded as nothing:
                    _log.info("stage '%s' is still waiting: %s", one.name, nothing)
        except (EndOfData, Cancelled):
            return None
        finally:
            with self._lock:
                self._cancels.discard(cancel)

    def _apply(self, one: Stage, taken: Taken, loop: asyncio.Runner) -> None:
        try:
            columns = one.function(taken)
            if inspect.isawaitable(columns):
                columns = loop.run(_result(columns))
            self._publish(one, taken, columns)
        except BaseException as error:
            ids = taken.ids.tolist()
            try:
                if taken.lease is not None:
                    taken.release()
            except DockError as lost:
                # The lease has expired, or the dock is gone: the rows come back by themselves.
                _log.warning("stage '%s' could not give rows back: %s", one.name, lost)
            if isinstance(error, Exception):
                raise StageError(one, ids, f"{type(error).__name__}: {error}") from error
            raise

    @staticmethod
    def _publish(one: Stage, taken: Taken, columns: Columns) -> None:
        if columns is not None and not isinstance(columns, Mapping):
            raise InvalidArgument(f"a stage returns its columns by name, or None, not {type(columns).__name__}")
        got, promised = set(columns or ()), set(one.writes)
        if got != promised:
            raise InvalidArgument(f"the stage writes {sorted(promised)}, but its function returned {sorted(got)}")
        if columns:
            taken.put(columns)
        elif taken.lease is not None:
            taken.complete()


def run(
    dock: Dock,
    partition: str,
    stages: Sequence[Stage],
    *,
    threads: int = 1,
    rank: int | None = None,
    progress: bool = False,
) -> dict[str, StageCounts]:
    """Runs stages until the partition is sealed and they are done with all rows. Returns the counters of each.

    progress: show how far they are, as a live table in a terminal (on standard error) or a notebook; elsewhere a table
    every ten seconds. Raises StageError if a function fails; Ctrl-C stops all stages after their current batches.
    """
    with Runner(dock, partition, stages, threads=threads, rank=rank) as runner:
        if progress:
            _show_progress(runner, dock, partition)
        runner.join()
    return runner.counts


def _show_progress(runner: Runner, dock: Dock, partition: str) -> None:
    """Until the stages have ended."""
    screen = watching.Screen()
    begun = time.monotonic()

    def draw() -> None:
        try:
            consumers = dock.status(partition).consumers
        except DockError as error:
            # The stages meet it, too, and say so.
            _log.debug("no progress is shown: %s", error)
            return
        took = time.monotonic() - begun
        lines = [
            [name, str(one.batches), str(one.rows), f"{one.rows / took:.1f}", watching.bar_of(consumers.get(name))]
            for name, one in runner.counts.items()
        ]
        title, head = f"partition '{partition}' after {took:.0f} s", ["stage", "batches", "rows", "rows/s", "done"]
        screen.draw(lambda: f"{title}\n{tables.as_text(head, lines)}", lambda: tables.as_html(title, head, lines))

    try:
        while not runner.join(0.5 if screen.is_live else 10.0):
            draw()
    finally:
        draw()


async def _result(awaitable: Any) -> Any:
    return await awaitable


class _Renewals:
    """Renews the leases of batches while functions work on them."""

    def __init__(self, dock: Dock, partition: str) -> None:
        self._dock = dock
        self._partition = partition
        self._changed = threading.Condition()
        self._due: dict[int, tuple[float, float]] = {}  # by lease: when it is to be renewed, and every how many seconds
        self._stopping = False
        self._thread = threading.Thread(target=self._renew, name="stage leases", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        with self._changed:
            self._stopping = True
            self._changed.notify()
        self._thread.join()

    def hold(self, taken: Taken, lease_seconds: float) -> _Held:
        return _Held(self, taken.lease, lease_seconds / 3)

    def add(self, lease: int, every: float) -> None:
        with self._changed:
            self._due[lease] = (time.monotonic() + every, every)
            self._changed.notify()

    def remove(self, lease: int) -> None:
        with self._changed:
            self._due.pop(lease, None)

    def _renew(self) -> None:
        with self._changed:
            while not self._stopping:
                now = time.monotonic()
                first = min((at for at, _ in self._due.values()), default=None)
                if first is None or first > now:
                    wait = None if first is None else min(first - now, threading.TIMEOUT_MAX)
                    self._changed.wait(wait)
                    continue
                lease = next(one for one, (at, _) in self._due.items() if at <= now)
                every = self._due[lease][1]
                self._due[lease] = (now + every, every)
                self._changed.release()
                try:
                    self._dock.renew(self._partition, lease)
                except DockError as error:
                    # The batch is done by now, or the lease is lost: then the put fails.
                    _log.debug("lease %d: %s", lease, error)
                finally:
                    self._changed.acquire()


@dataclass
class _Held:
    renewals: _Renewals
    lease: int | None
    every: float

    def __enter__(self) -> None:
        if self.lease is not None:
            self.renewals.add(self.lease, self.every)

    def __exit__(self, *error: object) -> None:
        if self.lease is not None:
            self.renewals.remove(self.lease)
