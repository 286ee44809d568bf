"""A dock's state as the original's classes see it: tensors of flags and lists of cells that they read, and set.

They are copies of the moment at which they were read; setting an item calls the dock as well. So a class of one's own may
hand rows out by ``self.experience_consumer_status[consumer][rows] = 1``, and store a cell by
``self.experience_data[column][row] = cell``.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

# Called with the rows whose flags become 1, and those whose become 0.
Change = Callable[[list[int], list[int]], None]


class Flags(Tensor):
    """int32 (rows,), 0 or 1. Results of operations on it are plain tensors."""

    _change: Change

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return torch._C._disabled_torch_function_impl(func, types, args, kwargs or {})

    @staticmethod
    def of(flags: Sequence[bool], change: Change) -> Flags:
        made = torch.tensor(flags, dtype=torch.int32).as_subclass(Flags)
        made._change = change
        return made

    def __setitem__(self, indices: Any, value: Any) -> None:
        plain = self.as_subclass(Tensor)
        before = plain.clone()
        plain[indices] = value
        try:
            self._change(_rows_of(plain > before), _rows_of(plain < before))
        except BaseException:
            plain.copy_(before)
            raise


def _rows_of(mask: Tensor) -> list[int]:
    rows: list[int] = mask.nonzero().flatten().tolist()
    return rows


class CellList(list[Any]):
    """The cells of a column, None where there is none."""

    def __init__(self, cells: Sequence[Any], put: Callable[[int, Any], None]) -> None:
        """put: stores a cell."""
        super().__init__(cells)
        self._put = put

    def __setitem__(self, index: Any, cell: Any) -> None:
        row = operator.index(index)
        if -len(self) <= row < 0:  # the dock ignores rows below 0
            row += len(self)
        self._put(row, cell)
        super().__setitem__(row, cell)
