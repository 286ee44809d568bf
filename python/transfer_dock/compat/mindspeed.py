"""The classes of MindSpeed-RL's Transfer Dock, with the same names and calls, on top of this package's dock.

    from transfer_dock.compat.mindspeed import GRPOTransferDock

    td = GRPOTransferDock(prompts_num=8, n_samples_per_prompt=4)
    td.put_prompts_experience({"prompts": prompts}, 4)
    batch, indexes = td.get_experience("actor_rollout", ["prompts", "prompt_length"], 8)
    td.put_experience({"responses": responses}, indexes)

Tensors have the same form as there: columns padded to one length, with ``original_length``. docs/mindspeed.md lists the
differences from the original and their reasons: waits end, rows of a consumer that dies come back, and the indexes that a
get returns refer to their rows, so that a late put cannot reach another batch.

Such a dock belongs to the process that makes it; ``ray.remote(GRPOTransferDock)`` works as with the original. Its rows
may be in a served dock (``dock=``), where other processes see them as a partition.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from transfer_dock import _native
from transfer_dock.dock import Dock
from transfer_dock.errors import InvalidArgument

if TYPE_CHECKING:
    import torch

_LENGTHS = "original_length"


class Indexes(list[int]):
    """Row numbers that a call returned, tied to the rows they meant: a put with them is refused once those are gone.

    A plain list of numbers means the rows at these indexes at the time of the call; so does a slice of this list: use
    part() instead. padding_rows: how many rows at the end of the batch repeat the last one; puts ignore them.
    """

    def __init__(self, handle: _native.ExperienceIndexes) -> None:
        super().__init__(handle.indexes)
        self.handle = handle
        self.padding_rows = handle.padding_rows

    def part(self, begin: int, count: int) -> Indexes:
        """``count`` of them from ``begin`` on, to put a batch in parts."""
        return Indexes(self.handle.slice(begin, count))


def _handle(indexes: Sequence[int]) -> _native.ExperienceIndexes:
    if isinstance(indexes, Indexes):
        return indexes.handle
    return _native.ExperienceIndexes([int(index) for index in indexes])


def _dict(data: Mapping[str, Any]) -> dict[str, Any]:
    return {str(name): value for name, value in data.items()}


def _tensors(rows: _native.Rows) -> dict[str, Any]:
    """Copies of the columns as tensors; str and bytes as lists."""
    return {name: _column(rows[name]) for name in rows.columns}


def _column(column: _native.Column) -> Any:
    if column.kind == "dense":
        return column.torch(copy=True)
    return column.torch_list(copy=True) if column.kind == "ragged" else column.tolist()


class TransferDock:
    """Columns of ``prompts_num * n_samples_per_prompt`` rows, which are put and read by their numbers."""

    _kind = "plain"

    def __init__(
        self,
        prompts_num: int,
        n_samples_per_prompt: int,
        experience_columns: Sequence[str],
        timeout: float = 300.0,
        timeout_interval: float = 5.0,
        *,
        dock: Dock | None = None,
        partition: str | None = None,
    ) -> None:
        """timeout: how many seconds a read waits for cells. timeout_interval: ignored, since nothing polls. dock: holds
        the rows; None: a new local dock. partition: the partition of the rows; None: a unique name.
        """
        del timeout_interval
        self._make(
            prompts_num, n_samples_per_prompt, experience_columns, [], [], 1, 0, timeout, dock, partition, 3600.0, 0
        )

    def _make(
        self,
        prompts_num: int,
        n_samples_per_prompt: int,
        columns: Sequence[str],
        addition_columns: Sequence[str],
        addition_consumers: Sequence[str],
        max_age: int,
        gbs_train: int,
        timeout: float,
        dock: Dock | None,
        partition: str | None,
        lease_seconds: float,
        seed: int,
    ) -> None:
        self.prompts_num = prompts_num
        self.n_samples_per_prompt = n_samples_per_prompt
        self.max_len = prompts_num * n_samples_per_prompt
        self.dock = Dock.local() if dock is None else dock
        self.partition = partition or f"mindspeed-{uuid.uuid4().hex[:12]}"
        consumers: list[tuple[str, list[str], bool | None]] = [(name, [], None) for name in addition_consumers]
        self._native = _native.MindSpeedDock(
            self.dock._native, self._kind, self.partition, prompts_num, n_samples_per_prompt, list(columns),
            list(addition_columns), consumers, max_age, gbs_train, timeout, lease_seconds, seed,
        )  # fmt: skip

    def put_experience(
        self,
        data_dict: Mapping[str, Any],
        indexes: Sequence[int],
        is_prompt: bool = False,
        *,
        keep: bool = False,
    ) -> None:
        """Stores rows of columns at these indexes, replacing what was there.

        data_dict: tensors with a row for each index, lists of tensors, or padded tensors with ``original_length``.
        is_prompt: ignored. keep: the consumer that holds the rows will put more columns for them.

        Raises NotFound or FailedPrecondition for the indexes of a get whose rows are gone or were handed out again.
        """
        del is_prompt
        data = _dict(data_dict)
        lengths = data.pop(_LENGTHS, None)
        flat = None if lengths is None else [int(length) for length in lengths.flatten().tolist()]
        self._native.put_experience(data, _handle(indexes), flat, keep)

    def _get(self, experience_columns: Sequence[str], indexes: Sequence[int]) -> list[list[torch.Tensor]]:
        """Rows of columns, column by column, without consuming them; waits until they are ready."""
        rows = self._native.get(list(experience_columns), _handle(indexes))
        return [rows[name].torch_list(copy=True) for name in experience_columns]

    def get_experience_data(self) -> dict[str, list[torch.Tensor | None]]:
        """The cell of each column and index, or None."""
        data: dict[str, list[torch.Tensor | None]] = {}
        for name, (indexes, rows) in self._native.experience_data().items():
            data[name] = [None] * self.max_len
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
    import torch

    return {name: torch.tensor(flags, dtype=torch.int32) for name, flags in status.items()}


class GRPOTransferDock(TransferDock):
    """The dock of GRPO: its columns and consumers, and any additional ones."""

    _kind = "grpo"

    def __init__(
        self,
        prompts_num: int,
        n_samples_per_prompt: int,
        metrics: Any = None,
        addition_columns: Sequence[str] | None = None,
        addition_consumers: Sequence[str] | None = None,
        max_age: int = 1,
        GBS_train: int = 0,
        timeout: float = 300.0,
        timeout_interval: float = 5.0,
        *,
        dock: Dock | None = None,
        partition: str | None = None,
        lease_seconds: float = 3600.0,
        seed: int = 0,
    ) -> None:
        """max_age, GBS_train: if max_age is above 1, unfinished responses are resumed, and GBS_train prompts make a
        training batch. lease_seconds: how long a consumer may hold rows. seed: of random choices. metrics: ignored, the
        dock has its own. The others as for TransferDock.
        """
        del metrics, timeout_interval
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
        """Puts each row of ``prompts`` n times, with its prompt_length and the additional columns that the batch has.

        indexes: default: from 0 on; add_another_batch: put after a first batch of the same size.
        """
        if n_samples_per_prompt not in (None, self.n_samples_per_prompt):
            raise InvalidArgument(
                f"this dock has {self.n_samples_per_prompt} samples of a prompt, not {n_samples_per_prompt}"
            )
        where = None if indexes is None else [int(index) for index in indexes]
        additional = list(dataset_additional_keys or [])
        return Indexes(self._native.put_prompts_experience(_dict(batch), additional, where, add_another_batch))

    def get_experience(
        self,
        consumer: str,
        experience_columns: Sequence[str],
        experience_count: int | None = None,
        dp_size: int = 1,
        indexes: Sequence[int] | None = None,
        get_n_samples: bool = True,
        use_batch_seqlen_balance: bool = False,
        *,
        target_seq_len: float | None = None,
        timeout: float | None = 0.0,
        padded: bool = True,
    ) -> tuple[dict[str, Any], Indexes] | tuple[None, None]:
        """Hands rows to a consumer, which holds them from now on; (None, None) if there are not enough yet, or all are
        done.

        experience_count: how many to sample, whole prompt groups with get_n_samples; indexes: exactly these instead.
        use_batch_seqlen_balance: sets of nearly equal length. target_seq_len: prefer rows of about this length. timeout:
        how many seconds to wait for enough rows before raising DeadlineExceeded; None: forever. padded: columns padded
        to one length with zeros, and ``original_length``; otherwise lists of rows.
        """
        got = self._native.get_experience(
            consumer, list(experience_columns), experience_count, dp_size,
            None if indexes is None else _handle(indexes), get_n_samples, use_batch_seqlen_balance, target_seq_len,
            timeout, padded,
        )  # fmt: skip
        if got is None:
            return None, None
        rows, handle, lengths = got
        batch = _tensors(rows)
        if lengths is not None:
            import torch

            batch[_LENGTHS] = torch.from_numpy(lengths)
        return batch, Indexes(handle)

    def complete(self, consumer: str, indexes: Sequence[int]) -> None:
        """Makes rows that a consumer holds done: for consumers that put nothing."""
        self._native.complete(consumer, _handle(indexes))

    def release(self, consumer: str, indexes: Sequence[int]) -> None:
        """Gives rows that a consumer holds back: they can be sampled again."""
        self._native.release(consumer, _handle(indexes))

    def all_consumed(self, consumer: str) -> bool:
        """Whether every row is handed out; with max_age above 1, whether a training batch is."""
        return self._native.all_consumed(consumer)

    def clear(self, consumer: str = "actor_train") -> None:
        """Clears the dock; with max_age above 1, only the rows that the consumer has consumed."""
        self._native.clear(consumer)

    def prefetch_request_index(self, experience_count: int) -> list[int] | None:
        """The next row numbers; fewer at the end, then None."""
        return self._native.prefetch_request_index(experience_count)

    def get_incomplete_response_num(self) -> int:
        """The number of prompts whose response is missing or incomplete."""
        return self._native.incomplete_response_num()

    def get_consumer_status(self) -> dict[str, torch.Tensor]:
        """Whether each index is handed out to each consumer: int32 (max_len,), 0 or 1."""
        return _as_flags(self._native.consumer_status())

    def get_metrics(self) -> dict[str, list[float]]:
        """The values of each metric: the last one, or all if they were cumulated."""
        return self._native.metrics()

    def update_metrics(self, key: str, value: float, cumulate: bool = False) -> None:
        """Sets a metric, or adds to its values."""
        self._native.update_metrics(key, float(value), cumulate)


class PPOTransferDock(GRPOTransferDock):
    """The dock of PPO: that of GRPO, with values and critics."""

    _kind = "ppo"


class DAPOTransferDock(GRPOTransferDock):
    """The dock of DAPO: that of GRPO, with dynamic sampling."""

    _kind = "dapo"


class MMGRPOTransferDock:
    """Images and videos, once for each prompt."""

    def __init__(
        self,
        prompts_num: int,
        n_samples_per_prompt: int,
        reuse_image_embeds: bool = False,
        timeout: float = 300.0,
        *,
        dock: Dock | None = None,
        partition: str | None = None,
    ) -> None:
        """reuse_image_embeds: consumers read vit_embeds instead of pixels. The others as for TransferDock."""
        self.dock = Dock.local() if dock is None else dock
        self.partition = partition or f"mindspeed-mm-{uuid.uuid4().hex[:12]}"
        self._native = _native.MultimodalDock(
            self.dock._native, self.partition, prompts_num, n_samples_per_prompt, reuse_image_embeds, timeout
        )

    def put_experience(self, batch: Mapping[str, Any], indexes: Sequence[int]) -> None:
        """One row for each prompt number."""
        self._native.put_experience(_dict(batch), [int(index) for index in indexes])

    def get_experience(
        self, experience_columns: Sequence[str], indexes: Sequence[int], get_n_samples: bool = True
    ) -> dict[str, Any]:
        """The prompts of these sample indexes, of every n-th with get_n_samples: tensors, with the rows of images and
        videos concatenated; image_num, video_num and video_fps are (prompts, 1).
        """
        rows = self._native.get_experience(list(experience_columns), [int(index) for index in indexes], get_n_samples)
        return {
            name: rows[name].values_torch(copy=True) if rows[name].kind == "ragged" else _column(rows[name])
            for name in rows.columns
        }

    def get_columns(self, consumer: str) -> list[str]:
        """The columns that the consumer reads; none while one of them has no data."""
        return self._native.get_columns(consumer)

    def clear(self) -> None:
        """Clears the dock."""
        self._native.clear()
