"""The column types of a partition."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import SupportsIndex, Union

from transfer_dock.errors import InvalidArgument


@dataclass(frozen=True)
class ColumnType:
    """The type of a column: made by :func:`column`.

    dtype: PyTorch's name: "bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32",
        "float64", "float8_e4m3fn", "float8_e5m2"; or "str" or "bytes", whose rows have any length.
    shape: of a row; of a ragged column, of a step along its first dimension.
    ragged: whether the first dimension varies from row to row.
    """

    dtype: str
    shape: tuple[int, ...] = ()
    ragged: bool = False


# A column of create_partition: the result of column(), or just a dtype for a column of single values.
ColumnLike = Union[ColumnType, str]


def column(dtype: str, shape: Sequence[int] | int = (), *, ragged: bool = False) -> ColumnType:
    """The type of a column; see :class:`ColumnType`.

    >>> column("int64", ragged=True)
    ColumnType(dtype='int64', shape=(), ragged=True)
    """
    given = (shape,) if isinstance(shape, SupportsIndex) else tuple(shape)
    try:
        sizes = tuple(operator.index(size) for size in given)
    except TypeError:
        raise InvalidArgument(f"'shape' is {shape!r}; give the integers of a row's dimensions") from None
    return ColumnType(_name(dtype), sizes, ragged)


def _name(dtype: object) -> str:
    """Accepts "float32", torch.float32, numpy.float32 and numpy.dtype("float32"), and the types str and bytes."""
    if isinstance(dtype, str):
        return dtype
    if isinstance(dtype, type):
        return dtype.__name__
    return str(dtype).removeprefix("torch.")


def specs(columns: Mapping[str, ColumnLike] | None) -> list[tuple[str, str, bool, list[int]]]:
    """The columns in the form that the extension takes."""
    named = []
    for name, type_ in (columns or {}).items():
        one = type_ if isinstance(type_, ColumnType) else ColumnType(_name(type_))
        named.append((name, one.dtype, one.ragged, list(one.shape)))
    return named
