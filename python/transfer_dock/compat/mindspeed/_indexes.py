"""Row numbers that remember their rows."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from transfer_dock import _native
from transfer_dock.errors import NotFound


def whole(name: str, value: Any) -> int:
    """A parameter that is a whole number. TypeError for anything else, as in the original."""
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{name} is {value!r}; give a whole number") from None


def row_numbers(indexes: Iterable[Any]) -> list[int]:
    """Indexes as numbers. TypeError for anything else, as in the original."""
    try:
        return [operator.index(index) for index in indexes]
    except TypeError:
        raise TypeError(f"indexes are {indexes!r}; give the numbers of rows, such as [0, 1]") from None


class UnknownName(NotFound, ValueError):
    """No such column or consumer, or rows that are gone; a ValueError as in the original."""


@contextlib.contextmanager
def named() -> Iterator[None]:
    """Raises what is not found as UnknownName."""
    try:
        yield
    except NotFound as error:
        raise UnknownName(str(error)) from None


class Indexes(list[int]):
    """Row numbers that a call returned, tied to the rows they meant: a put with them is refused once those are gone.

    A plain list of numbers means the rows at these indexes at the time of the call; so does a slice of this list: use
    part() instead. padding_rows: how many rows at the end of the batch repeat the last one; puts ignore them.
    """

    def __init__(self, handle: _native.ExperienceIndexes) -> None:
        super().__init__(handle.indexes)
        self.handle = handle
        self.padding_rows = handle.padding_rows

    def __reduce__(self) -> tuple[Any, ...]:
        handle = self.handle
        return _indexes, (handle.indexes, handle.rows, handle.lease, handle.padding_rows)

    def part(self, begin: int, count: int) -> Indexes:
        """``count`` of them from ``begin`` on, to put a batch in parts."""
        return Indexes(self.handle.slice(begin, count))


def _indexes(indexes: list[int], rows: list[int], lease: int, padding_rows: int) -> Indexes:
    return Indexes(_native.ExperienceIndexes(indexes, rows, lease, padding_rows))


def handle_of(indexes: Sequence[int]) -> _native.ExperienceIndexes:
    """What the dock takes for these numbers."""
    if isinstance(indexes, Indexes):
        return indexes.handle
    return _native.ExperienceIndexes(row_numbers(indexes))
