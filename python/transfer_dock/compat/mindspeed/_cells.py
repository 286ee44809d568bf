"""Columns whose cells are tensors of any type and shape.

A column of a dock has one element type, and its rows differ in their first dimension only. What fits the first rows of
a column is stored as it is. Other cells are packed into rows of that type, and
so are first rows that hold nothing by their shape, such as (n, 0), into rows of numbers:

    elements, as bytes │ zeros │ shape, number of the dtype, rank, mark: int64 each
                                                                 └ the same in all packed cells

In a column of bool, each bit is an element.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable
from typing import Any

import torch

from transfer_dock import _native
from transfer_dock.errors import InvalidArgument

# Their positions are in packed cells.
_DTYPES = (
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16,
    torch.float32, torch.float64,
)  # fmt: skip
# 64 bits that no data ends in by chance.
_MARK = 0x2D619C5EF37B40A8
_WORD = 8


def column_of(column: _native.Column) -> Any:
    """A copy of a column: a tensor, or a list of its rows."""
    if column.kind == "dense":
        return column.torch(copy=True)
    return column.torch_list(copy=True) if column.kind == "ragged" else column.tolist()


class Cells:
    """The types of a dock's columns. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._types: dict[str, tuple[torch.dtype, torch.Size]] = {}
        self._packed: set[str] = set()

    def fit(self, name: str, rows: list[Any]) -> list[Any]:
        """The rows as the column takes them; rows that are no tensors as they are."""
        if not rows or not all(isinstance(row, torch.Tensor) for row in rows):
            return rows
        first = next((row for row in rows if row.numel()), rows[0])
        with self._lock:
            # Rows of nothing, such as (n, 0), say nothing of the shape, and no cell could be packed into such rows.
            row_shape = first.shape[1:] if math.prod(first.shape[1:]) else torch.Size()
            dtype, shape = self._types.setdefault(name, (first.dtype, row_shape))
            fits = [row.dtype == dtype and row.shape[1:] == shape for row in rows]
            if all(fits):
                return rows
            fitted = []
            for row, fit in zip(rows, fits, strict=True):
                # An empty row has no type that matters.
                empty = row.dim() == 1 and not row.numel() and not shape
                fitted.append(row if fit else row.to(dtype) if empty else _packed(name, row, dtype, shape))
                if not fit and not empty:
                    self._packed.add(name)
        return fitted

    def any_packed(self, names: Iterable[str]) -> bool:
        """Whether one of these columns may hold packed cells."""
        with self._lock:
            return not self._packed.isdisjoint(names)

    def read(self, name: str, rows: list[Any]) -> list[Any]:
        """What ``fit`` was given."""
        if not self.any_packed([name]):
            return rows
        return [_unpacked(row) if isinstance(row, torch.Tensor) else row for row in rows]


def _packed(name: str, row: torch.Tensor, dtype: torch.dtype, shape: torch.Size) -> torch.Tensor:
    if row.dtype not in _DTYPES:
        raise InvalidArgument(f"column '{name}': cells of {row.dtype} cannot be stored beside those of {dtype}")
    elements = row.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    words = torch.tensor([*row.shape, _DTYPES.index(row.dtype), row.dim(), _MARK])
    # Whole rows of the column, and whole words.
    unit = math.lcm(dtype.itemsize * math.prod(shape), _WORD)
    zeros = -(elements.numel() + words.numel() * _WORD) % unit
    cell = torch.cat([elements, torch.zeros(zeros, dtype=torch.uint8), words.view(torch.uint8)])
    return (_bits(cell) if dtype == torch.bool else cell.view(dtype)).reshape(-1, *shape)


def _bits(data: torch.Tensor) -> torch.Tensor:
    """Bytes as a column of bool takes them."""
    return (data[:, None] >> torch.arange(8) & 1).flatten().to(torch.bool)


def _bytes(cell: torch.Tensor) -> torch.Tensor:
    """The elements of a cell, in memory that is aligned for each type."""
    flat = cell.reshape(-1).contiguous()
    if flat.dtype != torch.bool:
        return flat.view(torch.uint8).clone()
    if flat.numel() % 8:
        return torch.empty(0, dtype=torch.uint8)
    return (flat.reshape(-1, 8) * (1 << torch.arange(8))).sum(1).to(torch.uint8)


def _unpacked(cell: torch.Tensor) -> torch.Tensor:
    data = _bytes(cell)
    if data.numel() < 3 * _WORD or data.numel() % _WORD:
        return cell
    words = data.view(torch.int64)
    if int(words[-1]) != _MARK:
        return cell
    rank = int(words[-2])
    dtype, shape = _DTYPES[int(words[-3])], words[words.numel() - 3 - rank : words.numel() - 3].tolist()
    return data[: math.prod(shape) * dtype.itemsize].view(dtype).reshape(shape)
