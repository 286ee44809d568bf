"""The docks of experience: rows by their number."""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from transfer_dock import _native
from transfer_dock.compat.mindspeed._actors import TIMEOUT
from transfer_dock.compat.mindspeed._batches import remove_padding_tensor_dict_to_dict, trans_input_to_experience
from transfer_dock.compat.mindspeed._cells import Cells
from transfer_dock.compat.mindspeed._indexes import Indexes, handle_of, named
from transfer_dock.dock import Dock
from transfer_dock.errors import InvalidArgument

_LOGGER = logging.getLogger("transfer_dock.compat.mindspeed")


def as_flags(status: Mapping[str, Sequence[bool]]) -> dict[str, torch.Tensor]:
    """By name: int32 (rows,), 0 or 1."""
    return {name: torch.tensor(flags, dtype=torch.int32) for name, flags in status.items()}


class TransferDock:
    """Columns of ``prompts_num * n_samples_per_prompt`` rows, which are put and read by their numbers.

    Attributes: ignored_rows: how many rows were put with an index below 0, which are padding, and not stored.
    """

    _kind = "plain"

    def __init__(
        self,
        prompts_num: int,
        n_samples_per_prompt: int,
        experience_columns: Sequence[str] | None,
        timeout: float | None = None,
        timeout_interval: float | None = None,
        *,
        dock: Dock | None = None,
        partition: str | None = None,
    ) -> None:
        """timeout: how many seconds a read waits for cells; None: 300. timeout_interval: unused, since nothing polls.
        dock: holds the rows; None: a new local dock. partition: the partition of the rows; None: a unique name.
        """
        self.timeout_interval = 5 if timeout_interval is None else timeout_interval
        self._make(
            prompts_num, n_samples_per_prompt, experience_columns or [], [], [], 1, 0,
            timeout, dock, partition, 3600.0, 0,
        )  # fmt: skip

    def _make(
        self,
        prompts_num: int,
        n_samples_per_prompt: int,
        columns: Sequence[str],
        addition_columns: Sequence[str],
        addition_consumers: Sequence[str],
        max_age: int,
        gbs_train: int,
        timeout: float | None,
        dock: Dock | None,
        partition: str | None,
        lease_seconds: float,
        seed: int,
    ) -> None:
        self.prompts_num = prompts_num
        self.n_samples_per_prompt = n_samples_per_prompt
        self.max_len = prompts_num * n_samples_per_prompt
        self.max_age = max_age
        self.GBS_train = gbs_train
        self.timeout = TIMEOUT if timeout is None else timeout
        self.ignored_rows = 0
        self.dock = Dock.local() if dock is None else dock
        self.partition = partition or f"mindspeed-{uuid.uuid4().hex[:12]}"
        self._lock = threading.Lock()
        self._cells = Cells()
        consumers: list[tuple[str, list[str], bool | None]] = [(name, [], None) for name in addition_consumers]
        self._native = _native.MindSpeedDock(
            self.dock._native, self._kind, self.partition, prompts_num, n_samples_per_prompt, list(columns),
            list(addition_columns), consumers, max_age, gbs_train, self.timeout, lease_seconds, seed,
        )  # fmt: skip

    def put_experience(
        self,
        data_dict: Mapping[str, Any],
        indexes: Sequence[int],
        is_prompt: bool = False,
        *,
        keep: bool = False,
    ) -> None:
        """Stores rows of columns at these indexes, replacing what was there; rows of indexes below 0 are ignored.

        data_dict: tensors with a row for each index, lists of tensors, or padded tensors with ``original_length``; a
        column that is None is left out. int64 becomes int32, which the values must fit. is_prompt: ignored. keep: the
        consumer that holds the rows will put more columns for them.

        Raises UnknownName or FailedPrecondition for the indexes of a get whose rows are gone or were handed out again.
        """
        del is_prompt
        names, experience = trans_input_to_experience(remove_padding_tensor_dict_to_dict(data_dict))
        if not isinstance(indexes, Indexes):
            indexes = [int(index) for index in indexes]
            kept = [position for position, index in enumerate(indexes) if index >= 0]
            if len(kept) < len(indexes):
                self._note_ignored(len(indexes) - len(kept))
                if not kept:
                    return
                experience = [self._rows_at(name, rows, kept) for name, rows in zip(names, experience, strict=True)]
                indexes = [indexes[position] for position in kept]
        cells = {name: self._cells.fit(name, rows) for name, rows in zip(names, experience, strict=True)}
        with named():
            self._native.put_experience(cells, handle_of(indexes), keep)

    def _put(self, experience_columns: Sequence[str], experience: Sequence[Any], indexes: Sequence[int]) -> None:
        """Stores rows of columns, given column by column."""
        self.put_experience(dict(zip(experience_columns, experience, strict=True)), indexes)

    @staticmethod
    def _rows_at(name: str, rows: list[Any], positions: list[int]) -> list[Any]:
        # A worker may leave out the padding itself.
        if len(rows) <= positions[-1]:
            raise InvalidArgument(f"column '{name}' has {len(rows)} rows, too few for the index at {positions[-1]}")
        return [rows[position] for position in positions]

    def _note_ignored(self, count: int) -> None:
        with self._lock:
            first = self.ignored_rows == 0
            self.ignored_rows += count
        if first:
            _LOGGER.warning(
                "dock '%s': %d rows were put with an index below 0: padding, which is not stored; ignored_rows counts "
                "such rows from here on",
                self.partition,
                count,
            )

    def _get(self, experience_columns: Sequence[str], indexes: Sequence[int]) -> list[list[torch.Tensor]]:
        """Rows of columns, column by column, without consuming them; waits until they are ready."""
        if len(indexes) == 0:
            return [[] for _ in experience_columns]
        with named():
            rows = self._native.get(list(experience_columns), handle_of(indexes))
        return [self._cells.read(name, rows[name].torch_list(copy=True)) for name in experience_columns]

    def get_experience_data(self) -> dict[str, list[torch.Tensor | None]]:
        """The cell of each column and index, or None."""
        ready = self._native.experience_data()
        data: dict[str, list[torch.Tensor | None]] = {}
        for name in self._native.experience_status():
            data[name] = [None] * self.max_len
            if name not in ready:
                continue
            indexes, rows = ready[name]
            for index, row in zip(indexes, self._cells.read(name, rows[name].torch_list(copy=True)), strict=True):
                data[name][index] = row
        return data

    @property
    def experience_data(self) -> dict[str, list[torch.Tensor | None]]:
        """get_experience_data(): a copy."""
        return self.get_experience_data()

    @property
    def experience_data_status(self) -> dict[str, torch.Tensor]:
        """get_experience_status(): a copy."""
        return self.get_experience_status()

    @property
    def experience_columns(self) -> list[str]:
        """The names of the columns."""
        return list(self._native.experience_status())

    def get_experience_status(self) -> dict[str, torch.Tensor]:
        """Whether each column is ready at each index: int32 (max_len,), 0 or 1."""
        return as_flags(self._native.experience_status())

    def get_experience_len(self) -> int:
        """The number of rows."""
        return self._native.experience_len()

    def clear_indexes(self, indexes: Sequence[int] | None = None) -> None:
        """Clears these indexes, or all."""
        self._native.clear_indexes(None if indexes is None else [int(index) for index in indexes])
