"""Arguments of calls: the types of some, and checks that the extension does not make."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, Protocol, SupportsIndex, TypeVar, Union

import numpy
import numpy.typing

from transfer_dock.errors import InvalidArgument

T_co = TypeVar("T_co", covariant=True)


class ListOf(Protocol[T_co]):
    """A list, a tuple, or another collection; not a bare str, which is a sequence of str, too.

    What a type checker goes by: ``in`` asks a list for any object, and a str for a str.
    """

    def __contains__(self, value: object, /) -> bool: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[T_co]: ...


# Such as ["prompt", "reward"].
Names = ListOf[str]
# The names of rows: None for a row without one.
Keys = ListOf[Union[str, None]]

RowIds = numpy.typing.NDArray[numpy.uint64]
# Row ids as an argument.
RowsLike = Union[RowIds, numpy.typing.NDArray[numpy.int64], Sequence[int], Sequence[SupportsIndex]]
# A column's values as an argument: see Dock.put.
ColumnData = Any
TagsLike = Union[Mapping[str, str], Sequence[Mapping[str, str]]]

Unit = Literal["row", "group"]
Sampler = Literal["first_come", "uniform", "length_balanced"]
Stale = Literal["send_back", "drop"]


def refuse_one_str(what: str, given: object) -> None:
    """Raises InvalidArgument where a list of names is wanted and one str was given."""
    if isinstance(given, str):
        raise InvalidArgument(f"{what} is the str {given!r}; give a list of names: [{given!r}]")


def seconds(argument: str, given: object, *, most: float = math.inf) -> float:
    """A number of seconds, 0 or more. Raises InvalidArgument for anything else."""
    try:
        # float() would also read text.
        number = math.nan if isinstance(given, (str, bytes)) else float(given)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not 0 <= number <= most:
        raise InvalidArgument(f"'{argument}' is {given!r}; give a number of seconds, 0 or more")
    return number


def by_name(data: object) -> dict[str, ColumnData]:
    """The columns of a put, which are a mapping or at least have items()."""
    items = getattr(data, "items", None)
    if not callable(items):
        raise InvalidArgument(
            f"'data' is a {type(data).__name__}; give a dict of columns by name, such as "
            '{"prompt": ["37+85=", "12+30="], "reward": [1.0, 0.0]}'
        )
    return dict(items())
