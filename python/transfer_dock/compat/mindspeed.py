"""The classes of MindSpeed-RL's Transfer Dock, with the same names and calls, on top of this package's dock.

    from transfer_dock.compat.mindspeed import GRPOTransferDock

    td = GRPOTransferDock(prompts_num=8, n_samples_per_prompt=4)
    td.put_prompts_experience({"prompts": prompts}, 4)
    batch, indexes = td.get_experience("actor_rollout", ["prompts", "prompt_length"], 8)
    td.put_experience({"responses": responses}, indexes)

Tensors have the same form as there: columns padded to one length, with ``original_length``. docs/mindspeed.md lists the
differences from the original and their reasons: waits end, rows of a consumer that dies come back, and the indexes that a
get returns refer to their rows, so that a late put cannot reach another batch.

Such a dock belongs to the process that makes it. ``GRPOTransferDock.remote(…)`` makes it in an actor of Ray, as the
original's class does. Its rows may be in a served dock (``dock=``), where other processes see them as a partition.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from tensordict import TensorDict

from transfer_dock import _native
from transfer_dock.compat._mindspeed_batches import (
    LENGTHS,
    get_current_dp_range_indexes,
    pack_experience_columns,
    pad_experience,
    pad_multiple,
    padding_dict_to_tensor_dict,
    put_prompts_experience,
    remove_padding_and_split_to_list,
    remove_padding_tensor_dict_to_dict,
    rows_of,
    trans_input_to_experience,
    truncate_middle_and_pad,
    truncate_prompt_and_pad,
    truncate_rows,
    unpack_pad_experience,
)
from transfer_dock.compat._mindspeed_workers import TransferDockWorker, TransferDockWorkers
from transfer_dock.dock import Dock
from transfer_dock.errors import InvalidArgument, NotFound

__all__ = [
    "DAPOTransferDock",
    "GRPOTransferDock",
    "Indexes",
    "MMGRPOTransferDock",
    "Metric",
    "PPOTransferDock",
    "TransferDock",
    "TransferDockWorker",
    "TransferDockWorkers",
    "UnknownName",
    "get_current_dp_range_indexes",
    "pack_experience_columns",
    "pad_experience",
    "pad_multiple",
    "padding_dict_to_tensor_dict",
    "put_prompts_experience",
    "remove_padding_and_split_to_list",
    "remove_padding_tensor_dict_to_dict",
    "trans_input_to_experience",
    "truncate_middle_and_pad",
    "truncate_prompt_and_pad",
    "truncate_rows",
    "unpack_pad_experience",
]

_LOGGER = logging.getLogger(__name__)
_TIMEOUT = 300.0


class UnknownName(NotFound, ValueError):
    """No such column or consumer, or rows that are gone; a ValueError as in the original."""


@contextlib.contextmanager
def _named() -> Iterator[None]:
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


def _handle(indexes: Sequence[int]) -> _native.ExperienceIndexes:
    if isinstance(indexes, Indexes):
        return indexes.handle
    return _native.ExperienceIndexes([int(index) for index in indexes])


def _tensors(rows: _native.Rows) -> dict[str, Any]:
    """Copies of the columns as tensors; str and bytes as lists."""
    return {name: _column(rows[name]) for name in rows.columns}


def _column(column: _native.Column) -> Any:
    if column.kind == "dense":
        return column.torch(copy=True)
    return column.torch_list(copy=True) if column.kind == "ragged" else column.tolist()


class _Actor:
    """Makes a class what the original's is: an actor of Ray by ``remote``, which serves many workers at once."""

    @classmethod
    def remote(cls, *args: Any, **kwargs: Any) -> Any:
        """An actor with such a dock: its handle."""
        return cls.options().remote(*args, **kwargs)

    @classmethod
    def options(cls, **options: Any) -> Any:
        """The class as an actor with these options of Ray, such as num_cpus; ``remote`` makes one."""
        import ray

        return ray.remote(**{"max_concurrency": 100, **options})(cls)


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
        """timeout: how many seconds a read waits for cells; None: 300. timeout_interval: ignored, since nothing polls.
        dock: holds the rows; None: a new local dock. partition: the partition of the rows; None: a unique name.
        """
        del timeout_interval
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
        self.ignored_rows = 0
        self.dock = Dock.local() if dock is None else dock
        self.partition = partition or f"mindspeed-{uuid.uuid4().hex[:12]}"
        self._lock = threading.Lock()
        consumers: list[tuple[str, list[str], bool | None]] = [(name, [], None) for name in addition_consumers]
        self._native = _native.MindSpeedDock(
            self.dock._native, self._kind, self.partition, prompts_num, n_samples_per_prompt, list(columns),
            list(addition_columns), consumers, max_age, gbs_train, _TIMEOUT if timeout is None else timeout,
            lease_seconds, seed,
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
        with _named():
            self._native.put_experience(dict(zip(names, experience, strict=True)), _handle(indexes), keep)

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
        with _named():
            rows = self._native.get(list(experience_columns), _handle(indexes))
        return [rows[name].torch_list(copy=True) for name in experience_columns]

    def get_experience_data(self) -> dict[str, list[torch.Tensor | None]]:
        """The cell of each column and index, or None."""
        ready = self._native.experience_data()
        data: dict[str, list[torch.Tensor | None]] = {}
        for name in self._native.experience_status():
            data[name] = [None] * self.max_len
            if name not in ready:
                continue
            indexes, rows = ready[name]
            for index, row in zip(indexes, rows[name].torch_list(copy=True), strict=True):
                data[name][index] = row
        return data

    def get_experience_status(self) -> dict[str, torch.Tensor]:
        """Whether each column is ready at each index: int32 (max_len,), 0 or 1."""
        return _as_flags(self._native.experience_status())

    def get_experience_len(self) -> int:
        """The number of rows."""
        return self._native.experience_len()

    def clear_indexes(self, indexes: Sequence[int] | None = None) -> None:
        """Clears these indexes, or all."""
        self._native.clear_indexes(None if indexes is None else [int(index) for index in indexes])


def _as_flags(status: Mapping[str, Sequence[bool]]) -> dict[str, torch.Tensor]:
    return {name: torch.tensor(flags, dtype=torch.int32) for name, flags in status.items()}


class Metric:
    """Values by name: what a dock without ``metrics`` of its program keeps."""

    def __init__(self) -> None:
        self.metric: dict[str, Any] = {}

    def update(self, key: str = "", value: Any = None, cumulate: bool = False) -> None:
        """Sets a value, or those of a dict; cumulate: adds a list of values, or one value, to what is there."""
        for name, one in (value if isinstance(value, Mapping) else {key: value}).items():
            there = self.metric.get(name, [])
            if not cumulate or not isinstance(there, list):
                self.metric[name] = one
            else:
                self.metric[name] = [*there, *(one if isinstance(one, Sequence | torch.Tensor) else [one])]

    def reset(self) -> None:
        """Forgets all values."""
        self.metric = {}


class GRPOTransferDock(TransferDock, _Actor):
    """The dock of GRPO: its columns and consumers, and any additional ones."""

    _kind = "grpo"

    def __init__(
        self,
        prompts_num: int,
        n_samples_per_prompt: int,
        metrics: Any = None,
        max_age: int = 1,
        GBS_train: int = 0,
        addition_columns: Sequence[str] | None = None,
        addition_consumers: Sequence[str] | None = None,
        timeout: float | None = None,
        timeout_interval: float | None = None,
        *,
        dock: Dock | None = None,
        partition: str | None = None,
        lease_seconds: float = 3600.0,
        seed: int = 0,
    ) -> None:
        """metrics: an object with ``update`` and ``reset``, as Metric has; None: a Metric. max_age, GBS_train: if
        max_age is above 1, unfinished responses are resumed, and GBS_train prompts make a training batch.
        lease_seconds: how long a consumer may hold rows. seed: of random choices. The others as for TransferDock.
        """
        del timeout_interval
        self.metrics = Metric() if metrics is None else metrics
        self.cur_index = 0
        self._make(
            prompts_num, n_samples_per_prompt, [], addition_columns or [], addition_consumers or [], max_age, GBS_train,
            timeout, dock, partition, lease_seconds, seed,
        )  # fmt: skip

    def put_prompts_experience(
        self,
        batch: Mapping[str, Any],
        n_samples_per_prompt: int | None = None,
        dataset_additional_keys: Sequence[str] | None = None,
        indexes: Sequence[int] | None = None,
        add_another_batch: bool = False,
    ) -> Indexes:
        """Puts what the function of this name makes of the batch, with the dock's n."""
        n = self.n_samples_per_prompt
        if n_samples_per_prompt not in (None, n):
            raise InvalidArgument(f"this dock has {n} samples of a prompt, not {n_samples_per_prompt}")
        data, where = put_prompts_experience(batch, n, dataset_additional_keys, indexes, add_another_batch)
        self.put_experience(data, where, is_prompt=True)
        return Indexes(_handle(where))

    def get_experience(
        self,
        consumer: str,
        experience_columns: Sequence[str],
        experience_count: int | None = None,
        dp_size: int = 1,
        indexes: Sequence[int] | None = None,
        get_n_samples: bool = True,
        use_batch_seqlen_balance: bool = False,
        allow_partial_ready_data: bool = False,
        *,
        target_seq_len: float | None = None,
        timeout: float | None = 0.0,
        padded: bool = True,
    ) -> tuple[Mapping[str, Any], Indexes] | tuple[None, None]:
        """Hands rows to a consumer, which holds them from now on; (None, None) if there are not enough yet, or all are
        done.

        experience_count: how many to sample, whole prompt groups with get_n_samples; indexes: exactly these instead.
        use_batch_seqlen_balance: sets of nearly equal length. allow_partial_ready_data: ignored, as in the original.
        target_seq_len: prefer rows of about this length. timeout: how many seconds to wait for enough rows before
        raising DeadlineExceeded; None: forever. padded: a TensorDict of columns padded to one length with zeros, and
        ``original_length``; otherwise a dict of lists of rows.
        """
        del allow_partial_ready_data
        resumes = consumer == "actor_rollout" and self.max_age > 1
        # The rollout gets the ages in any case.
        columns = [name for name in experience_columns if not (resumes and name == "age")]
        with _named():
            got = self._native.get_experience(
                consumer, columns, experience_count, dp_size, None if indexes is None else _handle(indexes),
                get_n_samples, use_batch_seqlen_balance, target_seq_len, timeout, padded and not resumes,
            )  # fmt: skip
        if got is None:
            return None, None
        rows, handle, lengths = got
        batch = _tensors(rows)
        if resumes:
            # A column that nobody has put yet would be int64.
            batch = dict(zip(*trans_input_to_experience(batch), strict=True))
            if "responses" in batch:
                # What unpadding there takes for an empty response.
                none = torch.tensor([-1], dtype=torch.int32)
                batch["responses"] = [row if len(row) else none for row in batch["responses"]]
            return padding_dict_to_tensor_dict(batch) if padded else batch, Indexes(handle)
        if lengths is not None:
            batch[LENGTHS] = torch.from_numpy(lengths)
        return TensorDict.from_dict(batch) if padded else batch, Indexes(handle)

    def complete(self, consumer: str, indexes: Sequence[int]) -> None:
        """Makes rows that a consumer holds done: for consumers that put nothing."""
        with _named():
            self._native.complete(consumer, _handle(indexes))

    def release(self, consumer: str, indexes: Sequence[int]) -> None:
        """Gives rows that a consumer holds back: they can be sampled again."""
        with _named():
            self._native.release(consumer, _handle(indexes))

    def all_consumed(self, consumer: str, get_n_samples: bool = True) -> bool:
        """Whether every row is handed out; with max_age above 1, whether a training batch is. get_n_samples: ignored,
        as in the original.
        """
        del get_n_samples
        with _named():
            return self._native.all_consumed(consumer)

    def clear(self, consumer: str = "actor_train") -> None:
        """Clears the dock and its metrics; with max_age above 1, only the rows that the consumer has consumed."""
        with _named():
            self._native.clear(consumer)
        with self._lock:
            self.cur_index = 0
            self.metrics.reset()

    def prefetch_request_index(self, experience_num: int) -> list[int] | None:
        """The next row numbers; fewer at the end, then None."""
        if experience_num < 1:
            raise InvalidArgument(f"asked for {experience_num} row numbers; ask for at least 1")
        with self._lock:
            begin = self.cur_index
            if begin >= self.max_len:
                return None
            self.cur_index += experience_num
        return list(range(begin, min(begin + experience_num, self.max_len)))

    def get_cur_index(self) -> int:
        """How many row numbers were asked for since the last clear."""
        return self.cur_index

    def get_incomplete_response_num(self) -> int:
        """The number of prompts whose response is missing or incomplete; with max_age 1, where responses have no such
        state, the number of prompts, as in the original.
        """
        if self.max_age > 1:
            return self._native.incomplete_response_num()
        return sum(self._native.experience_status()["prompts"])

    def get_update_ready(self, require_max_age_all_finished: bool = True) -> bool:
        """Whether GBS_train groups have all their responses and, unless told otherwise, no response that has its last
        round is unfinished. The other consumers see the complete groups from now on.
        """
        ready = self._native.all_consumed("actor_rollout") if self.max_age > 1 else self.GBS_train == 0
        if not ready or not require_max_age_all_finished:
            return ready
        # With max_age 1, no response counts as finished.
        finished = self._native.experience_status()["responses"] if self.max_age > 1 else [False] * self.max_len
        return all(done for age, done in zip(self._native.ages(), finished, strict=True) if age == self.max_age - 1)

    def get_consumer_status(self) -> dict[str, torch.Tensor]:
        """Whether each index is handed out to each consumer: int32 (max_len,), 0 or 1."""
        return _as_flags(self._native.consumer_status())

    def get_metrics(self) -> Any:
        """A copy of the metrics: ``get_metrics().metric`` are the values by name."""
        with self._lock:
            return copy.deepcopy(self.metrics)

    def update_metrics(self, key: str = "", value: Any = None, cumulate: bool = False) -> None:
        """Sets a metric, or those of a dict, or adds to their lists of values."""
        with self._lock:
            self.metrics.update(key, value, cumulate=cumulate)


class PPOTransferDock(GRPOTransferDock):
    """The dock of PPO: that of GRPO, with values and critics."""

    _kind = "ppo"


class DAPOTransferDock(GRPOTransferDock):
    """The dock of DAPO: that of GRPO, with dynamic sampling."""

    _kind = "dapo"


_MULTIMODAL = (
    "image", "pixel_values", "image_grid_thw", "image_shape", "labels", "vit_embeds", "position_ids", "image_num",
    "video", "video_shape", "video_fps", "video_num",
)  # fmt: skip
# Rows are joined along their second dimension.
_FLAT = ("image", "video")


class MMGRPOTransferDock(_Actor):
    """Images and videos, once for each prompt."""

    def __init__(
        self,
        prompts_num: int,
        n_samples_per_prompt: int,
        reuse_image_embeds: bool = False,
        timeout: float | None = None,
        timeout_interval: float | None = None,
        *,
        dock: Dock | None = None,
        partition: str | None = None,
    ) -> None:
        """reuse_image_embeds: consumers read vit_embeds instead of pixels. The others as for TransferDock."""
        del timeout_interval
        self.n_samples_per_prompt = n_samples_per_prompt
        self.dock = Dock.local() if dock is None else dock
        self.partition = partition or f"mindspeed-mm-{uuid.uuid4().hex[:12]}"
        self._native = _native.MultimodalDock(
            self.dock._native, self.partition, prompts_num, n_samples_per_prompt, reuse_image_embeds,
            _TIMEOUT if timeout is None else timeout,
        )  # fmt: skip

    def put_experience(self, batch: Mapping[str, Any], indexes: Sequence[int]) -> None:
        """Rows of columns for the first of these prompts; columns that the dock does not have are left out, so that a
        worker may put all that it has. Images and videos are (channels, length), of any length.
        """
        for name, value in batch.items():
            if name not in _MULTIMODAL or value is None:
                continue
            rows = rows_of(value)
            if name in _FLAT:
                # The dock's rows vary in their first dimension.
                rows = [row.transpose(0, 1).contiguous() if row.dim() == 2 else row for row in rows]
            prompts = [int(index) for index in indexes[: len(rows)]]
            if len(prompts) < len(rows):
                raise InvalidArgument(f"column '{name}' has {len(rows)} rows for {len(prompts)} prompts")
            if prompts:
                self._native.put_experience({name: rows}, prompts)

    def _rows(self, columns: Sequence[str], indexes: Sequence[int], get_n_samples: bool) -> _native.Rows:
        with _named():
            return self._native.get_experience(list(columns), [int(index) for index in indexes], get_n_samples)

    def get_experience(
        self, consumer: Any, experience_columns: Any = None, indexes: Any = None, get_n_samples: bool = True
    ) -> dict[str, Any]:
        """The prompts of these sample indexes, of every n-th with get_n_samples: tensors, with the rows of images and
        videos concatenated; image_num, video_num and video_fps are (prompts, 1), labels a list. Without indexes: {}.

        consumer: ignored, and may be left out: (experience_columns, indexes).
        """
        if not isinstance(consumer, str):
            get_n_samples = indexes if isinstance(indexes, bool) else get_n_samples
            experience_columns, indexes = consumer, experience_columns
        if indexes is None or not experience_columns:
            return {}
        rows = self._rows(experience_columns, indexes, get_n_samples)
        return {name: self._joined(name, rows[name]) for name in rows.columns}

    @staticmethod
    def _joined(name: str, column: _native.Column) -> Any:
        if column.kind != "ragged" or name == "labels":
            return _column(column)
        values = column.values_torch(copy=True)
        return values.transpose(0, 1).contiguous() if name in _FLAT and values.dim() == 2 else values

    def get_experience_dict(
        self, experience_columns: Sequence[str], indexes: Sequence[int] | None = None, get_n_samples: bool = True
    ) -> dict[str, list[Any]]:
        """The same prompts, a row for each, as they were put."""
        if indexes is None or not experience_columns:
            return {}
        rows = self._rows(experience_columns, indexes, get_n_samples)
        return {name: self._apart(name, rows[name]) for name in rows.columns}

    @staticmethod
    def _apart(name: str, column: _native.Column) -> list[Any]:
        if column.kind not in ("dense", "ragged"):
            return column.tolist()
        rows = column.torch_list(copy=True)
        return [row.transpose(0, 1).contiguous() if name in _FLAT and row.dim() == 2 else row for row in rows]

    def get_columns(self, consumer: str) -> list[str]:
        """The columns that the consumer reads; none while one of them has no data."""
        return self._native.get_columns(consumer)

    def clear(self) -> None:
        """Clears the dock."""
        self._native.clear()
