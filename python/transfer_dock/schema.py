"""The column types of a partition."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, SupportsIndex, Union

import numpy

from transfer_dock.errors import InvalidArgument

# PyTorch's names of the element types, and those of columns of text.
DTYPES = (
    *("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"),
    *("float8_e4m3fn", "float8_e5m2", "str", "bytes"),
)


class TorchDType(Protocol):
    """torch.dtype, for programs that have torch."""

    @property
    def is_floating_point(self) -> bool: ...
    @property
    def is_complex(self) -> bool: ...


# "float32", numpy.float32, numpy.dtype("float32"), torch.float32; str, bytes and bool.
DTypeLike = Union[str, "numpy.dtype[Any]", type[numpy.generic], TorchDType, type[str], type[bytes], type[bool]]


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
ColumnLike = Union[ColumnType, DTypeLike]


def column(dtype: DTypeLike, shape: Sequence[int] | int = (), *, ragged: bool = False) -> ColumnType:
    """The type of a column; see :class:`ColumnType`.

    dtype: a name, or a dtype of NumPy or PyTorch: "float32", numpy.float32, numpy.dtype("float32") and torch.float32
    are the same.

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
    """Of a DTypeLike. Names given as a str are checked by the dock."""
    if isinstance(dtype, str):
        return dtype
    name = dtype.__name__ if isinstance(dtype, type) else str(dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise InvalidArgument(f"there is no column type for {dtype!r}{_instead(dtype)}; the types are {', '.join(DTYPES)}")
    return name


def _instead(dtype: object) -> str:
    if dtype is float:
        return ", which says no size (float32 or float64)"
    if dtype is int:
        return ", which says no size (int32 or int64)"
    if isinstance(dtype, numpy.dtype) and dtype.newbyteorder("=").name in DTYPES and not dtype.isnative:
        return ", whose bytes are in the other order"
    return ""


def specs(columns: Mapping[str, ColumnLike] | None) -> list[tuple[str, str, bool, list[int]]]:
    """The columns in the form that the extension takes."""
    if columns is not None and not hasattr(columns, "items"):
        raise InvalidArgument(
            f"'columns' is a {type(columns).__name__}; give a dict of types by name, such as "
            '{"prompt": "str", "tokens": transfer_dock.column("int32", ragged=True)}'
        )
    named = []
    for name, type_ in (columns or {}).items():
        one = type_ if isinstance(type_, ColumnType) else column(type_)
        named.append((name, one.dtype, one.ragged, list(one.shape)))
    return named
