"""The status of partitions, consumers and rows: snapshots as of the call."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from transfer_dock import tables

Kind = Literal["dense", "ragged", "str", "bytes"]
CellState = Literal["empty", "partial", "ready"]
RowState = Literal["waiting", "ready", "leased", "quarantined", "done"]


class _Status:
    def to_dict(self) -> dict[str, Any]:
        """All fields, recursively, as dicts, lists and numbers: ready for JSON."""
        return dataclasses.asdict(self)  # type: ignore[call-overload, no-any-return]

    def _repr_html_(self) -> str:
        """For a notebook."""
        return tables.as_html(type(self).__name__, ["", ""], [[name, str(value)] for name, value in vars(self).items()])


@dataclass(frozen=True)
class ConsumerStatus(_Status):
    """Counters of a consumer. Every existing row is in one of the first five states."""

    waiting: int
    ready: int
    leased: int
    quarantined: int
    done: int
    # The done rows that may still be rolled back; and the last step that was committed.
    uncommitted: int
    committed_step: int | None
    # Rows, or groups for a consumer of groups, that a take could return now.
    takeable: int
    # Since it was registered: rows that it completed, rows whose lease expired, and rows that it gave back unfinished.
    completed: int
    expired: int
    unfinished: int
    # Rows that were too old for it and were sent back or dropped; and rows that it must process again.
    sent_back: int
    stale_dropped: int
    reset: int


@dataclass(frozen=True)
class ColumnStatus(_Status):
    """A column. One that a consumer reads but that was never put has no kind and no dtype."""

    name: str
    kind: Kind | None
    dtype: str | None  # of numbers
    row_shape: tuple[int, ...]
    ready_cells: int


@dataclass(frozen=True, repr=False)
class PartitionStatus(_Status):
    """Counters of a partition."""

    sealed: bool
    weights_version: int | None
    rows: int
    groups: int
    incomplete_groups: int
    retain_for: list[str]
    # Bytes that cells occupy, including those that only views hold.
    held_bytes: int
    columns: list[ColumnStatus]
    consumers: dict[str, ConsumerStatus]

    def __repr__(self) -> str:
        return f"<{self._title()}\n{tables.as_text(*self._columns())}\n\n{tables.as_text(*self._consumers())}>"

    def _repr_html_(self) -> str:
        """For a notebook."""
        return tables.as_html(self._title(), *self._columns()) + tables.as_html("", *self._consumers())

    def _title(self) -> str:
        """Without its name, which it does not know."""
        groups = f" in {self.groups} groups ({self.incomplete_groups} incomplete)" if self.groups else ""
        sealed = ", sealed" if self.sealed else ""
        version = f", weights of version {self.weights_version}" if self.weights_version is not None else ""
        return f"PartitionStatus: {self.rows} rows{groups}, {_size(self.held_bytes)}{sealed}{version}"

    def _columns(self) -> tuple[list[str], list[list[str]]]:
        return ["column", "kind", "dtype", "row shape", "ready"], [
            [one.name, one.kind or "–", one.dtype or "–", str(one.row_shape), str(one.ready_cells)] for one in self.columns
        ]

    def _consumers(self) -> tuple[list[str], list[list[str]]]:
        states = ("waiting", "ready", "leased", "quarantined", "done")
        return ["consumer", *states], [
            [name, *(str(getattr(one, state)) for state in states)] for name, one in self.consumers.items()
        ]


@dataclass(frozen=True)
class CellStatus(_Status):
    """One column of a row."""

    column: str
    state: CellState
    bytes: int
    weights_version: int | None
    # The consumer under whose lease it was put.
    writer: str | None


@dataclass(frozen=True)
class RowConsumerStatus(_Status):
    """The state of a row for one consumer."""

    consumer: str
    state: RowState
    missing: list[str]
    redeliveries: int
    # Of a leased row; times are Unix times.
    lease: int | None
    taken: float | None
    expires: float | None
    uncommitted_step: int | None


@dataclass(frozen=True)
class RowStatus(_Status):
    """Everything about one row."""

    row: int
    group: int | None
    key: str | None
    tags: dict[str, str]
    age: int
    epoch: int
    cells: list[CellStatus]
    consumers: list[RowConsumerStatus]


@dataclass(frozen=True)
class ListedRow(_Status):
    """A row, as Dock.list returns it."""

    row: int
    group: int | None
    key: str | None
    tags: dict[str, str]
    age: int
    epoch: int


def _size(count: int) -> str:
    """Of bytes."""
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= factor:
            return f"{count / factor:.1f} {unit}"
    return f"{count} bytes"


def partition_status(told: Mapping[str, Any]) -> PartitionStatus:
    """Of what the extension tells."""
    columns = [ColumnStatus(**one) for one in told["columns"]]
    consumers = {name: ConsumerStatus(**one) for name, one in told["consumers"].items()}
    return PartitionStatus(**{**told, "columns": columns, "consumers": consumers})


def row_status(told: Mapping[str, Any]) -> RowStatus:
    """Of what the extension tells."""
    cells = [CellStatus(**one) for one in told["cells"]]
    consumers = [RowConsumerStatus(**one) for one in told["consumers"]]
    return RowStatus(**{**told, "cells": cells, "consumers": consumers})
