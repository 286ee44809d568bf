"""Samples of TransferQueue as rows of a dock.

    partition        a partition that grows; it is made by whoever puts into it first
    global index     the row's id: it counts within the partition, and is never used again
    key              the row's key
    tag, custom_meta, the shapes of fields     the row's tags (_labels.py)
    task             a consumer (_tasks.py)

Nothing is kept here but what can be asked for again: any number of clients, in any processes, share one dock. Every row
that is put here has a cell in the column `MARK`, so that a fetch of that column tells the keys and tags of rows without
their data. Rows, cells and partitions of programs that use the dock itself have neither that nor labels.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
from tensordict import TensorDict

import transfer_dock as td
from transfer_dock.compat.transfer_queue import _fields, _labels
from transfer_dock.compat.transfer_queue._puts import ASIDE, Put
from transfer_dock.compat.transfer_queue.metadata import BatchMeta

logger = logging.getLogger(__name__)

MARK = "~"
# Partitions of this name and beginning belong to this package, and are not the user's.
SERVICE = "~transfer_queue"
_SLOTS = "~slots/"

# How many rows a listing asks for at once.
_PAGE = 10_000
# So many keys, or rows, are looked for one by one where some of them are not there, or not put here.
_FEW = 16
# How many tags a put may have.
_MAX_TAGS = 64
# How often to go back and look again when others change what a call works on.
ATTEMPTS = 20

T = TypeVar("T")


class StorageKeyNotFoundError(KeyError, RuntimeError):
    """A sample, or one of its fields, does not exist: it was cleared, or was not put yet."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class Described(NamedTuple):
    """The metadata of rows."""

    ids: list[int]
    keys: list[str | None]
    tags: list[dict[str, str]]


def name_of(what: str, value: Any) -> str:
    """The name of a partition or a task, if it is one."""
    if not isinstance(value, str) or not value:
        raise td.InvalidArgument(f"{what} is {value!r}; give a name, a str")
    return value


def service_cell(dock: td.Dock, row: int, column: str, timeout: float = 0.0) -> bytes:
    """A cell of the partition SERVICE. Raises DeadlineExceeded if it is not there in time."""
    cell = dock.fetch(SERVICE, [row], [column], timeout=timeout)[column].raw(0)
    assert cell is not None, "a fetch returns cells that are there"
    return cell


class Store:
    """The samples in a dock. Thread-safe.

    ``slots`` is how many samples a partition is expected to get: a task has not consumed it all before so many were
    put. Errors are those of the dock, and where it says so, of the Python library.
    """

    def __init__(self, dock: td.Dock, slots: int = 1) -> None:
        self.dock = dock
        self._slots = slots

    # ---- Partitions.

    def partitions(self) -> list[str]:
        return [name for name in self.dock.partitions() if not name.startswith(("~transfer_queue", _SLOTS))]

    def exists(self, partition: str) -> bool:
        return partition in self.dock.partitions()

    def create(self, partition: str, columns: dict[str, td.ColumnType] | None = None) -> None:
        """A partition that is there is left as it is. Raises ValueError for a name that this package uses."""
        if partition.startswith("~"):
            raise ValueError(f"partition_id '{partition}': names that begin with '~' belong to the dock")
        if self._slots > 1:
            slots = _SLOTS + partition
            self.dock.create_partition(slots, columns={MARK: td.column("uint8")})
            self.dock.register_consumer(slots, "puts", reads=[MARK], at_most_once=True)
            try:
                marks = np.zeros(self._slots, dtype=np.uint8)
                self.dock.put(slots, {MARK: marks}, keys=[str(i) for i in range(self._slots)])
            except td.AlreadyExists:
                pass  # somebody else made it at the same time
        try:
            self.dock.create_partition(partition, columns={MARK: td.column("uint8"), **(columns or {})}, growing=True)
        except td.AlreadyExists:
            pass  # with the columns of a checkpoint

    def drop(self, partition: str) -> bool:
        """Whether it was there."""
        for name in (_SLOTS + partition, partition):
            try:
                self.dock.drop_partition(name)
                dropped = True
            except td.NotFound:
                dropped = False
        return dropped

    def in_partition(self, partition: str, call: Callable[[], T]) -> T:
        """What the call returns; if the partition is not there, it is made first."""
        try:
            return call()
        except td.NotFound:
            if self.exists(partition):
                raise
        self.create(partition)
        return call()

    def free_slots(self, partition: str) -> int:
        """How many samples are expected that were not put yet."""
        if self._slots <= 1:
            return 0
        try:
            return int(self.dock.consumer_status(_SLOTS + partition, "puts").ready)
        except td.NotFound:
            return 0

    # ---- Looking.

    def listing(
        self,
        partition: str,
        *,
        having: Sequence[str] = (),
        ready_for: str | None = None,
        start: int = 0,
        page: int = _PAGE,
    ) -> Iterator[Any]:
        """The rows of a partition, ascending; with these fields, and ready for this consumer."""
        position: int | None = start
        while position is not None:
            rows, position = self.dock.list(
                partition, having=list(having), ready_for=ready_for, start=position, limit=page
            )
            yield from rows

    def find(self, partition: str, keys: Sequence[str]) -> list[int | None]:
        """The row of each key, None for a key that no row has."""
        found = self._find_all(partition, keys)
        if found is not None:
            return found
        try:
            rows = self.dock.status(partition).rows
        except td.NotFound:
            return [None] * len(keys)
        if len(keys) > _FEW and rows <= _PAGE * len(keys) // 10:
            by_key = {one.key: one.row for one in self.listing(partition) if one.key is not None}
            return [by_key.get(key) for key in keys]
        return self._find_halves(partition, keys)

    def _find_all(self, partition: str, keys: Sequence[str]) -> list[int | None] | None:
        """None if one is not there."""
        try:
            return [int(row) for row in self.dock.find(partition, list(keys))]
        except td.NotFound:
            return None

    def _find_halves(self, partition: str, keys: Sequence[str]) -> list[int | None]:
        """Of keys of which one is not there."""
        if len(keys) == 1:
            return [None]
        half = len(keys) // 2
        parts = []
        for part in (keys[:half], keys[half:]):
            parts += self._find_all(partition, part) or self._find_halves(partition, part)
        return parts

    def describe(self, partition: str, rows: Sequence[int]) -> Described:
        """Rows, without data. Raises StorageKeyNotFoundError for a row that is not there."""
        if len(rows) > 1:
            try:
                found = self.dock.fetch(partition, list(rows), [MARK])
                return Described([int(row) for row in found.ids], list(found.row_keys), list(found.tags))
            except (td.NotFound, td.DeadlineExceeded):
                pass  # one of them is gone, or was not put here
        try:
            if len(rows) <= _FEW:
                of_rows: list[Any] = [self.dock.row_status(partition, row) for row in rows]
            else:
                wanted = set(rows)
                listed = {one.row: one for one in self.listing(partition, start=min(rows)) if one.row in wanted}
                of_rows = [listed[row] for row in rows]
        except td.NotFound as error:
            raise StorageKeyNotFoundError(str(error)) from None
        except KeyError as error:
            raise StorageKeyNotFoundError(f"row {error} of partition '{partition}' is gone, or never was") from None
        return Described([one.row for one in of_rows], [one.key for one in of_rows], [one.tags for one in of_rows])

    def fields_of_row(self, partition: str, row: int) -> list[str]:
        """The fields that a row has, sorted. Raises StorageKeyNotFoundError."""
        try:
            cells = self.dock.row_status(partition, row).cells
        except td.NotFound as error:
            raise StorageKeyNotFoundError(str(error)) from None
        return sorted(cell.column for cell in cells if cell.state == "ready" and _is_field(cell.column))

    def common_fields(self, partition: str, rows: Sequence[int], tags: Sequence[dict[str, str]]) -> list[str]:
        """The fields that all of these rows have, which have these tags; sorted. Raises StorageKeyNotFoundError."""
        labelled = set.intersection(*(set(_labels.fields_of(of_row)) for of_row in tags))
        # A field without a label may be there all the same: others put it.
        return [
            field
            for field in self.fields_of_row(partition, rows[0])
            if field in labelled or len(rows) == 1 or self._all_have(partition, rows, field)
        ]

    def _all_have(self, partition: str, rows: Sequence[int], field: str) -> bool:
        try:
            self.dock.fetch(partition, list(rows), [field])
        except (td.NotFound, td.DeadlineExceeded):
            return False
        return True

    def having(self, partition: str, listed: Sequence[Any], columns: Sequence[Any]) -> dict[str, set[int]]:
        """By field, which of all the rows of a partition have it."""
        labels = [set(_labels.fields_of(one.tags)) for one in listed]
        found: dict[str, set[int]] = {}
        for column in columns:
            rows = {one.row for one, fields in zip(listed, labels, strict=True) if column.name in fields}
            if column.ready_cells != len(rows):  # others put some of them
                rows = {one.row for one in self.listing(partition, having=[column.name])}
            found[column.name] = rows
        return found

    def next_row(self, partition: str) -> int:
        """The id that the next row gets."""

        def was_given(row: int) -> bool:
            try:
                self.dock.row_status(partition, row)
            except td.NotFound as error:
                return "is gone" in str(error)  # and not: there never was one
            return True

        step, following = 1, 0
        while was_given(following + step - 1):
            following += step
            step *= 2
        while step > 1:
            step //= 2
            if was_given(following + step - 1):
                following += step
        return following

    def types(self, partition: str) -> dict[str, str | None]:
        """By field, the dock's name of its dtype, None for fields without tensors; of those that were ever put."""
        return {column.name: column.dtype for column in self.columns(partition)}

    def columns(self, partition: str) -> list[Any]:
        """The columns of fields that were ever put."""
        return [column for column in self.all_columns(partition) if _is_field(column.name)]

    def all_columns(self, partition: str) -> list[Any]:
        """Those, and the columns beside them."""
        columns = self.dock.status(partition).columns
        return [column for column in columns if column.kind is not None and column.name != MARK]

    # ---- Putting.

    def insert(
        self,
        partition: str,
        count: int,
        put: Put | None = None,
        notes: Sequence[dict[str, str]] = (),
        keys: Sequence[str] | None = None,
    ) -> list[int]:
        """New rows, with these fields and the tags of notes. Raises AlreadyExists for a key that is there."""
        named = None if keys is None else list(keys)

        def insert(put: Put) -> Any:
            tags, columns = put.tags(new=True, notes=notes), put.columns
            try:
                return self.dock.put(
                    partition, {MARK: np.zeros(count, dtype=np.uint8), **columns}, keys=named, tags=tags
                )
            except td.NotFound as error:
                if not self.exists(partition):
                    raise
                self._check_columns(partition, columns, error)
            # Another client made the partition, with these columns and no others.
            return self.dock.put(partition, columns or None, new_rows=0 if columns else count, keys=named, tags=tags)

        given = put or Put.of(None, count)
        made = self.in_partition(partition, lambda: self._fitting(partition, given, insert))
        self.use_slots(partition, count)
        return [int(row) for row in made]

    def _fitting(self, partition: str, put: Put, call: Callable[[Put], T]) -> T:
        """What the call returns, for a put that fits the columns of the partition; mostly it does as it is."""
        try:
            return call(put)
        except td.InvalidArgument as error:
            fitted = put.fitted(self.dock.status(partition).columns)
            if fitted is put:
                raise
            try:
                return call(fitted)
            except KeyError as missing:
                # Others made the partition, and it takes no columns but its own.
                raise (error if "no column" in str(missing) else missing) from None

    def _check_columns(self, partition: str, columns: dict[str, Any], error: td.NotFound) -> None:
        """Raises ValueError if a put raised ``error`` because the partition does not take these columns."""
        if "no column" not in str(error):
            return
        has = {column.name for column in self.dock.status(partition).columns}
        missing = sorted(name for name in columns.keys() - has if _is_field(name))
        if missing:
            raise ValueError(
                f"partition '{partition}' has no field '{missing[0]}', but {sorted(filter(_is_field, has))}: it was not made here, "
                "and takes other fields only if it is made with growing=True"
            ) from None

    def use_slots(self, partition: str, count: int) -> None:
        """So many samples that were expected are there."""
        if self._slots <= 1 or count == 0:
            return
        try:
            self.dock.take(_SLOTS + partition, "puts", count, timeout=0)
        except (td.DeadlineExceeded, td.NotFound):
            pass  # more than were expected

    def write(self, partition: str, rows: Sequence[int], put: Put, notes: Sequence[dict[str, str]]) -> None:
        """Fields, and the tags of notes, of rows that are there, in place of what they had. Raises StorageKeyNotFoundError.

        It is all or nothing up to 64 tags; those beyond are there a moment later.
        """
        if not put.columns and not any(notes):
            return

        def write(put: Put) -> None:
            first, *others = _batches(put.tags(new=False, notes=notes))
            try:
                self.dock.put(partition, put.columns or None, rows=list(rows), tags=first, overwrite=True)
                for more in others:
                    self.dock.put(partition, rows=list(rows), tags=more)
            except td.NotFound as error:
                self._check_columns(partition, put.columns, error)
                raise StorageKeyNotFoundError(str(error)) from None

        self._fitting(partition, put, write)

    def clear(self, partition: str, rows: Sequence[int]) -> None:
        """Rows that are not there are left alone."""
        try:
            self.dock.clear(partition, rows=list(rows))
            return
        except td.NotFound:
            if not self.exists(partition):
                return
        wanted = set(rows)
        present = [listed.row for listed in self.listing(partition, start=min(wanted)) if listed.row in wanted]
        if present:
            self.dock.clear(partition, rows=present)

    # ---- Getting.

    def _fetch(self, partition: str, rows: Sequence[int], fields: Sequence[str]) -> Any:
        try:
            return self.dock.fetch(partition, list(rows), list(fields))
        except (td.NotFound, td.DeadlineExceeded) as error:
            raise StorageKeyNotFoundError(str(error)) from None

    def fetch(self, partition: str, rows: Sequence[int], fields: Sequence[str]) -> Any:
        """Views of rows, each named once. Raises StorageKeyNotFoundError for a row or a cell that is not there."""
        return self._fetch(partition, rows, fields)

    def get(self, partition_ids: Sequence[str], rows: Sequence[int], fields: Sequence[str]) -> TensorDict:
        """The fields of rows, in their order; they may be of several partitions, and be named several times."""
        places = list(zip(partition_ids, rows, strict=True))
        if len(set(places)) == len(places) and len(set(partition_ids)) == 1:
            return self.decode(partition_ids[0], self.fetch(partition_ids[0], rows, fields), fields)
        unique: dict[str, dict[int, int]] = {}
        for partition, row in places:
            of_partition = unique.setdefault(partition, {})
            of_partition.setdefault(row, len(of_partition))
        parts = {
            partition: self.decode(partition, self.fetch(partition, list(wanted), fields), fields)
            for partition, wanted in unique.items()
        }
        values = {}
        for field in fields:
            cut = {partition: _cut(part, field) for partition, part in parts.items()}
            values[field] = _fields.pack([cut[partition][unique[partition][row]] for partition, row in places])
        return TensorDict(values, batch_size=[len(places)])

    def decode(self, partition: str, rows: Any, fields: Sequence[str]) -> TensorDict:
        """What rows of a partition hold, as memory of the caller's own."""
        labels = _labels.fields_of_rows(rows.tags)
        if all(of_row is labels[0] for of_row in labels) and not any(label.aside for label in labels[0].values()):
            alike = {field: _fields.decode_alike(rows[field], labels[0].get(field)) for field in fields}
            return TensorDict(alike, batch_size=[len(rows)])
        values = {
            field: self._decode(partition, rows, field, [of_row.get(field) for of_row in labels]) for field in fields
        }
        return TensorDict(values, batch_size=[len(rows)])

    def _decode(
        self, partition: str, rows: Any, field: str, labels: Sequence[_labels.FieldLabel | None]
    ) -> Any:
        column = rows[field]
        if not any(label is not None and label.aside for label in labels):
            return _fields.decode(column, labels)
        told = _fields.labels_of(column, labels)
        positions = [i for i, label in enumerate(told) if label is not None and label.aside]
        if not positions:
            return _fields.decode(column, labels)
        aside = self._fetch(partition, [int(rows.ids[i]) for i in positions], [ASIDE + field])[ASIDE + field]
        return _fields.decode_mixed(column, told, {position: aside.raw(i) for i, position in enumerate(positions)})

    # ---- What is known of samples.

    def meta(
        self,
        partition: str,
        described: Described,
        fields: Sequence[str],
        columns: Sequence[Any],
        having: dict[str, set[int]] | None = None,
    ) -> BatchMeta:
        """What the labels say of rows, or else ``columns`` of the partition.

        Rows that have all known ``fields`` are ready: by ``having``, or all of them.
        """
        known = {column.name: column for column in columns if column.name in fields}
        labels = _labels.fields_of_rows(described.tags)
        schema = {}
        for field in (field for field in dict.fromkeys(fields) if field in known):
            there = described.ids if having is None else having[field]
            if there:
                column = known[field]
                plain = _labels.FieldLabel(tuple(column.row_shape), False) if column.kind == "dense" else None
                told = [
                    of_row.get(field, plain) if row in there else None
                    for row, of_row in zip(described.ids, labels, strict=True)
                ]
                schema[field] = _fields.schema_for(column.dtype, told)
        ready = [having is None or all(row in having[field] for field in known) for row in described.ids]
        return _batch(partition, described.ids, described.tags, schema, [bool(known) and one for one in ready])

    def meta_of(self, partition: str, rows: Any, fields: Sequence[str]) -> BatchMeta:
        """What is known of rows that were handed out with these fields."""
        labels = _labels.fields_of_rows(rows.tags)
        schema = {}
        for field in fields:
            column = rows[field]
            dtype = None if column.kind in ("str", "bytes") else column.dtype
            told = _fields.labels_of(column, [of_row.get(field) for of_row in labels])
            schema[field] = _fields.schema_for(dtype, told)
        return _batch(partition, rows.ids, rows.tags, schema, [True] * len(rows))


def _is_field(column: str) -> bool:
    return column != MARK and not column.startswith(ASIDE)


def _batch(
    partition: str, rows: Sequence[int], tags: Sequence[dict[str, str]], schema: dict[str, Any], ready: list[bool]
) -> BatchMeta:
    return BatchMeta(
        global_indexes=[int(row) for row in rows],
        partition_ids=[partition] * len(rows),
        field_schema=schema,
        production_status=ready,
        custom_meta=[_labels.notes_of(of_row) for of_row in tags],
    )


def _batches(tags: Any) -> list[Any]:
    """Tags, for all rows or for each, as so many as puts take."""
    of_rows = [tags] if isinstance(tags, dict) else list(tags or ())
    most = max(map(len, of_rows), default=0)
    if most <= _MAX_TAGS:
        return [tags]
    cut = [
        [dict(itertools.islice(of_row.items(), begin, begin + _MAX_TAGS)) for of_row in of_rows]
        for begin in range(0, most, _MAX_TAGS)
    ]
    return [part[0] if isinstance(tags, dict) else part for part in cut]


def _cut(part: TensorDict, field: str) -> list[Any]:
    value = part.get(field)
    return list(value.tolist() if hasattr(value, "tolist") and not hasattr(value, "is_nested") else value.unbind(0))
