"""What a task has consumed.

A task is a consumer that takes each row once, without a lease: what was handed out is consumed. Mostly a task always
asks for the same fields. Then the consumer reads them, has the name of the task, and finds the next rows by itself.

A task that asks for other fields than before has consumed a row all the same. From then on it is a consumer that reads
nothing, by the name of the task behind a `*`, and the rows that have the fields are looked for in the table. The first
consumer is dropped, so that whoever still uses it finds out. Tasks whose rows a sampler chooses (_sampling.py) are of
this kind from the start.

A consumer without a `*` and without a note on what it reads is no task: a program that uses the dock itself registered it.
Its status is told, and nothing else is done to it.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import time
from collections.abc import Sequence
from typing import Any

import transfer_dock as td
from transfer_dock.compat.transfer_queue._store import ATTEMPTS, SERVICE, Store, name_of

# How long to sleep between two looks for rows that are not there yet, where the dock cannot wait for them.
_LOOK_AGAIN = 0.005
# A server that answers so late does not answer any more: that is an error, and not a lack of rows.
_LATE = 10.0


class NotATaskError(td.NotFound, RuntimeError):
    """A consumer that a program registered which uses the dock itself."""


class Tasks:
    """The tasks of the partitions of a dock. Thread-safe: what it remembers, others may change at any time."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._dock = store.dock
        # What the task's consumer reads; none: it is of the second kind.
        self._reads: dict[tuple[str, str], tuple[str, ...] | None] = {}

    @staticmethod
    def fast_name(task: str) -> str:
        return "=" + task if task.startswith(("*", "=")) else task

    @staticmethod
    def general_name(task: str) -> str:
        return "*" + task

    def take(self, partition: str, task: str, fields: Sequence[str], count: int, timeout: float = 0.0) -> Any:
        """The next ``count`` rows with these fields, or None if they are not there in time."""
        wanted = tuple(sorted(set(fields)))
        began = time.monotonic()
        for attempt in itertools.count():
            left = max(0.0, timeout - (time.monotonic() - began))
            try:
                if self._reads_of(partition, task, wanted) is None:
                    return self._take_listed(partition, task, fields, count, left)
                return self._dock.take(partition, self.fast_name(task), count, min=count, timeout=left)
            except td.DeadlineExceeded:
                if time.monotonic() - began > timeout + _LATE:
                    raise
                return None
            except td.NotFound:
                # The consumer is gone, or the partition is, or is not there yet.
                self._reads.pop((partition, task), None)
                if not self._store.exists(partition):
                    if left == 0.0:
                        return None
                    time.sleep(_LOOK_AGAIN)
                elif attempt >= ATTEMPTS:
                    raise
        return None

    def _reads_of(self, partition: str, task: str, wanted: tuple[str, ...]) -> tuple[str, ...] | None:
        key = (partition, task)
        if key not in self._reads:
            self._reads[key] = self._register(partition, task, wanted)
        elif self._reads[key] not in (None, wanted):
            self.generalize(partition, task)
        return self._reads[key]

    def _register(self, partition: str, task: str, wanted: tuple[str, ...]) -> tuple[str, ...] | None:
        if self.general_name(task) in self._dock.status(partition).consumers:
            return None
        # The note first: whoever finds the consumer finds it too.
        noted, is_new = _claim_note(self._dock, partition, task, wanted)
        if noted != wanted:
            self.generalize(partition, task)
            return None
        try:
            self._dock.register_consumer(partition, self.fast_name(task), reads=list(wanted), at_most_once=True)
        except td.AlreadyExists:
            if is_new:
                _clear_note(self._dock, partition, task)
            self.generalize(partition, task)
            return None
        general = self.general_name(task) in self._dock.status(partition).consumers
        return None if general else wanted

    def generalize(self, partition: str, task: str) -> None:
        """Makes the task one that may ask for any fields; what it has consumed stays consumed.

        A row that another process takes at this very moment, by the consumer that is replaced, can be handed out again.
        Raises NotATaskError.
        """
        fast = self.fast_name(task)
        reads = self._note_of(partition, fast, task)
        self._dock.register_consumer(partition, self.general_name(task), reads=[], at_most_once=True)
        if reads is not None:
            self.mark(partition, task, self._done(partition, fast, reads))
            self._drop(partition, fast)
        self._reads[(partition, task)] = None

    def _note_of(self, partition: str, consumer: str, task: str) -> tuple[str, ...] | None:
        """What a consumer of the first kind reads, None if it is not there. Raises NotATaskError."""
        if consumer not in self._dock.status(partition).consumers:
            return None
        try:
            return _read_note(self._dock, partition, task)
        except td.NotFound:
            raise NotATaskError(
                f"'{task}' is a consumer of partition '{partition}' that a program registered which uses the dock itself: "
                "give the task another name"
            ) from None

    def ensure_general(self, partition: str, task: str) -> None:
        """As ``generalize``, unless it is known to be one already."""
        if self._reads.get((partition, task), ()) is not None:
            self.generalize(partition, task)

    def mark(self, partition: str, task: str, rows: Sequence[int]) -> None:
        """Rows are consumed by a task that may ask for any fields; those that are already stay so."""
        general = self.general_name(task)
        for _ in range(ATTEMPTS):
            wanted = set(rows)
            left = [one.row for one in self._store.listing(partition, ready_for=general) if one.row in wanted]
            if not left:
                return
            try:
                self.take_these(partition, task, left)
                return
            except (td.FailedPrecondition, td.NotFound):
                pass  # somebody else took or cleared one of them

    def _done(self, partition: str, consumer: str, reads: Sequence[str]) -> list[int]:
        """What a consumer of the first kind has taken: rows that have all it reads, and are not before it."""
        before = {one.row for one in self._store.listing(partition, ready_for=consumer)}
        return [one.row for one in self._store.listing(partition, having=reads) if one.row not in before]

    def _done_of_others(self, partition: str, consumer: str, rows: Sequence[int]) -> list[int]:
        """What a consumer that is no task has done."""
        counted = self._dock.consumer_status(partition, consumer)
        before = {one.row for one in self._store.listing(partition, ready_for=consumer)}
        left = [row for row in rows if row not in before]
        if counted.waiting == counted.leased == counted.quarantined == 0:
            return left
        return [row for row in left if self._is_done(partition, consumer, row)]

    def _is_done(self, partition: str, consumer: str, row: int) -> bool:
        consumers = self._dock.row_status(partition, row).consumers
        return any(one.consumer == consumer and one.state == "done" for one in consumers)

    def _take_listed(self, partition: str, task: str, fields: Sequence[str], count: int, timeout: float) -> Any:
        deadline = time.monotonic() + timeout
        while True:
            rows = self.candidates(partition, task, fields, count)
            if len(rows) == count:
                try:
                    self.take_these(partition, task, rows)
                except td.FailedPrecondition:
                    continue  # somebody else was faster
                return self._store.fetch(partition, rows, list(dict.fromkeys(fields)))
            if time.monotonic() >= deadline:
                return None
            time.sleep(_LOOK_AGAIN)

    def take_these(self, partition: str, task: str, rows: Sequence[int]) -> None:
        """Rows are consumed by a task that may ask for any fields. Raises FailedPrecondition if one was already."""
        self._dock.take(partition, self.general_name(task), len(rows), rows=list(rows), timeout=0)

    def candidates(self, partition: str, task: str, fields: Sequence[str], count: int) -> list[int]:
        """The first rows, at most ``count``, that a task that may ask for any fields could have now."""
        if not set(fields) <= self._store.types(partition).keys():
            return []
        listing = self._store.listing(
            partition, having=list(dict.fromkeys(fields)), ready_for=self.general_name(task), page=max(1, count)
        )
        return [one.row for one in itertools.islice(listing, count)]

    # ---- Looking, and starting over.

    def consumed(self, partition: str, task: str) -> tuple[list[int], list[bool]] | None:
        """The rows of a partition and whether the task has consumed them; None if there is no such partition."""
        try:
            rows = [one.row for one in self._store.listing(partition)]
            consumers = self._dock.status(partition).consumers
            if self.general_name(task) in consumers:
                ready = self._store.listing(partition, ready_for=self.general_name(task))
                done = set(rows) - {one.row for one in ready}
            elif self.fast_name(task) in consumers:
                try:
                    done = set(self._done(partition, self.fast_name(task), _read_note(self._dock, partition, task)))
                except td.NotFound:
                    done = set(self._done_of_others(partition, self.fast_name(task), rows))
            else:
                done = set()
        except td.NotFound:
            return None
        return rows, [row in done for row in rows]

    def _noted(self, partition: str) -> list[tuple[str, tuple[str, ...] | None]]:
        """The tasks of a partition, and what their consumers read, None for those of the second kind."""
        noted: list[tuple[str, tuple[str, ...] | None]] = []
        for name in self._dock.status(partition).consumers:
            task = name[1:] if name.startswith(("*", "=")) else name
            try:
                reads = None if name == self.general_name(task) else _read_note(self._dock, partition, task)
            except td.NotFound:
                continue  # it is no task
            noted.append((task, reads))
        return noted

    def progress(self, partition: str) -> dict[str, int]:
        """By task, how many rows it has consumed. Raises NotFound."""
        tasks = self._noted(partition)
        consumers = self._dock.status(partition).consumers
        done: dict[str, int] = {}
        for task, reads in tasks:
            name = self.general_name(task) if reads is None else self.fast_name(task)
            if name in consumers:
                done[task] = consumers[name].done
        return done

    def all_of(self, partition: str) -> list[tuple[str, tuple[str, ...] | None, list[int]]]:
        """The tasks of a partition: their names, what their consumers read, and the rows that they have consumed."""
        tasks: list[tuple[str, tuple[str, ...] | None, list[int]]] = []
        for task, reads in self._noted(partition):
            found = self.consumed(partition, task)
            tasks.append((task, reads, [row for row, done in zip(*(found or ([], []))) if done]))
        return tasks

    def restore(self, partition: str, task: str, reads: Sequence[str] | None, rows: Sequence[int]) -> None:
        """A task as ``all_of`` told of it, in a partition that is as it was."""
        if reads is None:
            self.generalize(partition, task)
            self.mark(partition, task, rows)
        elif self._register(partition, task, tuple(reads)) is not None and rows:
            self._dock.take(partition, self.fast_name(task), len(rows), rows=list(rows), timeout=0)

    def is_consumed(self, partition: str, task: str) -> bool:
        """Whether there are rows, all that are expected, and the task has consumed them all. Costs the same always."""
        name_of("task_name", task)
        try:
            status = self._dock.status(name_of("partition_id", partition))
        except td.NotFound:
            return False
        name = self.general_name(task) if self.general_name(task) in status.consumers else self.fast_name(task)
        if status.rows == 0 or name not in status.consumers or status.consumers[name].done < status.rows:
            return False
        return self._store.free_slots(partition) == 0

    def explain(self, partition: str, task: str) -> str:
        """What keeps a task from having more, for people."""
        try:
            consumers = self._dock.status(partition).consumers
            for name in (self.general_name(task), self.fast_name(task)):
                if name in consumers:
                    return self._dock.explain(partition, name)
        except td.NotFound:
            return f"There is no partition '{partition}'."
        return "The task has not consumed anything yet."

    def reset(self, partition: str, task: str | None) -> None:
        """Nothing is consumed any more, by the task or by any. Raises NotATaskError."""
        try:
            consumers = set(self._dock.status(name_of("partition_id", partition)).consumers)
            if task is not None:
                name_of("task_name", task)
                self._note_of(partition, self.fast_name(task), task)
                tasks = [task]
            else:
                tasks = [one for one, _ in self._noted(partition)]
        except NotATaskError:
            raise
        except td.NotFound:
            return
        for one in tasks:
            # The note first: who registers the task again meanwhile notes it again.
            _clear_note(self._dock, partition, one)
            for name in consumers.intersection([self.fast_name(one), self.general_name(one)]):
                self._drop(partition, name)
        self.forget(partition)

    def _drop(self, partition: str, consumer: str) -> None:
        try:
            self._dock.drop_consumer(partition, consumer)
        except td.NotFound:
            pass  # somebody else did it

    def forget(self, partition: str) -> None:
        """What is remembered of a partition: it was cleared, or others may have changed it."""
        for key in [key for key in self._reads if key[0] == partition]:
            del self._reads[key]


# ---- Notes on tasks: what the consumer of the first kind reads, for whoever asks what it has consumed.


def _key_of(partition: str, task: str) -> str:
    return "reads/" + hashlib.sha256(json.dumps([partition, task]).encode()).hexdigest()


def _claim_note(
    dock: td.Dock, partition: str, task: str, reads: tuple[str, ...]
) -> tuple[tuple[str, ...], bool]:
    """Notes what the task reads, unless it is noted already. Returns what is noted, and whether this did it."""
    key = _key_of(partition, task)
    for _ in range(ATTEMPTS):
        try:
            tags = {"partition": partition, "reads": key}
            dock.put(SERVICE, {"value": [json.dumps(reads)]}, keys=[key], tags=tags)
            return reads, True
        except td.AlreadyExists:
            pass
        try:
            return _read_note(dock, partition, task), False
        except td.NotFound:
            pass  # it was cleared meanwhile
    return reads, False


def _clear_note(dock: td.Dock, partition: str, task: str) -> None:
    dock.clear(SERVICE, tags={"reads": _key_of(partition, task)})


def _read_note(dock: td.Dock, partition: str, task: str) -> tuple[str, ...]:
    rows = dock.find(SERVICE, [_key_of(partition, task)])
    return tuple(json.loads(dock.fetch(SERVICE, rows, ["value"])["value"][0]))


def clear_notes(dock: td.Dock, partition: str) -> None:
    """The partition was cleared."""
    dock.clear(SERVICE, tags={"partition": partition})
