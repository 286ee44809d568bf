"""The docks of experience: rows by their number."""

from __future__ import annotations

import functools
import logging
import threading
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from transfer_dock import _native
from transfer_dock.compat.mindspeed._actors import TIMEOUT
from transfer_dock.compat.mindspeed._batches import (
    remove_padding_tensor_dict_to_dict,
    rows_of,
    trans_input_to_experience,
)
from transfer_dock.compat.mindspeed._cells import Cells
from transfer_dock.compat.mindspeed._indexes import Indexes, UnknownName, handle_of, named, row_numbers, whole
from transfer_dock.compat.mindspeed._views import CellList, Flags
from transfer_dock.dock import Dock
from transfer_dock.errors import FailedPrecondition, InvalidArgument

_PACKAGE = "transfer_dock.compat.mindspeed"
_LOGGER = logging.getLogger(_PACKAGE)


def as_flags(status: Mapping[str, Sequence[bool]]) -> dict[str, torch.Tensor]:
    """By name: int32 (rows,), 0 or 1."""
    return {name: torch.tensor(flags, dtype=torch.int32) for name, flags in status.items()}


def _rows(name: str, rows: Any) -> list[Any]:
    # put_experience gives lists of tensors, which are not looked through again.
    return rows if isinstance(rows, list) and rows and isinstance(rows[0], torch.Tensor) else rows_of(name, rows)


class TransferDock:
    """Columns of ``prompts_num * n_samples_per_prompt`` rows, which are put and read by their numbers.

    A class of one's own may derive from it, and from the docks below, as from the original's. put_experience calls its
    ``_put``, and a get its ``_wait_for_data`` and ``_get``.

    Attributes: experience_columns: the names of the columns; ignored_rows: how many rows were put with an index below 0,
    which are padding, and not stored.
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
        self.prompts_num = whole("prompts_num", prompts_num)
        self.n_samples_per_prompt = whole("n_samples_per_prompt", n_samples_per_prompt)
        self.max_len = self.prompts_num * self.n_samples_per_prompt
        self.max_age = whole("max_age", max_age)
        self.GBS_train = whole("GBS_train", gbs_train)
        self.timeout = TIMEOUT if timeout is None else timeout
        self.ignored_rows = 0
        self.dock = Dock.local() if dock is None else dock
        self.partition = partition or f"mindspeed-{uuid.uuid4().hex[:12]}"
        self._lock = threading.Lock()
        self._cells = Cells()
        consumers: list[tuple[str, list[str], bool | None]] = [
            (name, [], None) for name in self._names("consumer", addition_consumers)
        ]
        self._native = _native.MindSpeedDock(
            self.dock._native, self._kind, self.partition, self.prompts_num, self.n_samples_per_prompt,
            self._names("column", columns), self._names("column", addition_columns), consumers, self.max_age,
            self.GBS_train, self.timeout, lease_seconds, seed,
        )  # fmt: skip
        self.experience_columns: list[str] = list(dict.fromkeys(columns)) or list(self._native.experience_status())

    def _names(self, what: str, names: Iterable[Any]) -> list[str]:
        """Names that the dock can look for."""
        listed = list(names)
        for name in listed:
            if not isinstance(name, str):
                raise UnknownName(f"dock '{self.partition}' has no {what} {name!r}; give a str")
        return listed

    def _is_own(self, method: str) -> bool:
        """True if a class of one's own has overridden the method."""
        return not getattr(self, method).__module__.startswith(_PACKAGE)

    def put_experience(
        self,
        data_dict: Mapping[str, Any] | None,
        indexes: Sequence[int] | None = None,
        is_prompt: bool = False,
        *,
        keep: bool = False,
    ) -> None:
        """Stores rows of columns at these indexes, replacing what was there; rows of indexes below 0 are ignored.

        data_dict: tensors with a row for each index, lists of tensors, or padded tensors with ``original_length``; a
        column that is None is left out, and without any column nothing is stored. int64 becomes int32, which the values
        must fit. is_prompt: ignored. keep: the consumer that holds the rows will put more columns for them.

        Raises InvalidArgument without indexes; UnknownName or FailedPrecondition for the indexes of a get whose rows are
        gone or were handed out again.
        """
        del is_prompt
        names, experience = trans_input_to_experience(remove_padding_tensor_dict_to_dict(data_dict))
        if keep:
            self._put(names, experience, indexes, keep=True)
        else:
            self._put(names, experience, indexes)

    def _put(
        self,
        experience_columns: Sequence[str],
        experience: Sequence[Any],
        indexes: Sequence[int] | None = None,
        *,
        keep: bool = False,
    ) -> None:
        """Stores rows of columns, given column by column."""
        if indexes is None or len(indexes) == 0:
            raise InvalidArgument(f"a put into dock '{self.partition}' needs indexes: the number of each row")
        names = self._names("column", experience_columns)
        if len(names) != len(experience):
            raise InvalidArgument(f"there are rows of {len(experience)} columns, and {len(names)} names: {names}")
        if not isinstance(indexes, Indexes):
            numbers = row_numbers(indexes)
            kept = [position for position, index in enumerate(numbers) if index >= 0]
            if len(kept) < len(numbers):
                self._note_ignored(len(numbers) - len(kept))
                experience = [self._rows_at(name, rows, kept) for name, rows in zip(names, experience, strict=True)]
            indexes = [numbers[position] for position in kept]
        if not names or not indexes:
            return
        cells = {name: self._cells.fit(name, _rows(name, rows)) for name, rows in zip(names, experience, strict=True)}
        with named():
            self._native.put_experience(cells, handle_of(indexes), keep)

    @staticmethod
    def _rows_at(name: str, rows: list[Any], positions: list[int]) -> list[Any]:
        # A worker may leave out the padding itself.
        if positions and len(rows) <= positions[-1]:
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
        names = self._names("column", experience_columns)
        self._wait_for_own(names, indexes)
        with named():
            rows = self._native.get(names, handle_of(indexes))
        return [self._cells.read(name, rows[name].torch_list(copy=True)) for name in names]

    def _wait_for_data(self, single_column: str, indexes: Sequence[int]) -> None:
        """Waits until these cells of a column are ready. DeadlineExceeded after ``timeout`` seconds."""
        with named():
            self._native.get(self._names("column", [single_column]), handle_of(indexes))

    def _wait_for_own(self, columns: Sequence[str], indexes: Sequence[int]) -> None:
        # The dock's own reads wait.
        for name in columns if self._is_own("_wait_for_data") else ():
            self._wait_for_data(name, indexes)

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
        """get_experience_data(): a copy. Setting a cell stores it."""

        def put(column: str, index: int, cell: Any) -> None:
            if cell is None:
                self._refuse_flags(column, [], [index])
            self._put([column], [[cell]], [index])

        data = self.get_experience_data()
        return {name: CellList(cells, functools.partial(put, name)) for name, cells in data.items()}

    @property
    def experience_data_status(self) -> dict[str, torch.Tensor]:
        """get_experience_status(): a copy. Setting a flag is an error: cells are put, and rows cleared."""
        status = self._native.experience_status()
        return {name: Flags.of(flags, functools.partial(self._refuse_flags, name)) for name, flags in status.items()}

    @staticmethod
    def _refuse_flags(column: str, ready: list[int], empty: list[int]) -> None:
        if ready or empty:
            raise FailedPrecondition(
                f"whether column '{column}' is ready at {ready or empty} follows from its cells; store cells with _put, "
                "and clear rows with _clear_experience_data_and_status"
            )

    def get_experience_status(self) -> dict[str, torch.Tensor]:
        """Whether each column is ready at each index: int32 (max_len,), 0 or 1."""
        return as_flags(self._native.experience_status())

    def get_experience_len(self) -> int:
        """The number of rows."""
        return self._native.experience_len()

    def clear_indexes(self, indexes: Sequence[int] | None = None) -> None:
        """Clears these indexes, or all; nobody has consumed them then."""
        self._native.clear_indexes(None if indexes is None else row_numbers(indexes))

    def _clear_experience_data_and_status(self, indexes: Sequence[int] | None = None) -> None:
        """clear_indexes by the original's name."""
        self.clear_indexes(indexes)
