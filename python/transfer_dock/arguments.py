"""Arguments of calls: the types of some, and checks that the extension does not make."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal, Protocol, TypeVar, Union

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
