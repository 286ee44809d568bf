"""The docks of MindSpeed-RL's Transfer Dock, by their names and with their calls, on a dock of ours.

    from transfer_dock.compat.mindspeed import GRPOTransferDock

    td = GRPOTransferDock(prompts_num=8, n_samples_per_prompt=4)
    td.put_prompts_experience({"prompts": prompts}, 4)
    batch, indexes = td.get_experience("actor_rollout", ["prompts", "prompt_length"], 8)
    td.put_experience({"responses": responses}, indexes)

Tensors go in and come out as there: columns that are padded to one length, with ``original_length``. docs/mindspeed.md
says what differs from the original, and why: waits end, rows of a consumer that dies come back, and the indexes that a
get returns remember their rows, so that a late put does not land in another batch.

A dock of this kind lives in the process that makes it; ``ray.remote(GRPOTransferDock)`` works as with the original. Its
rows may be in a dock that is served (``dock=``), where others see them as a partition.
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
    """Row numbers that a call returned, with the rows that were there: puts through it are refused when they are gone.

    Plain lists of numbers mean what is at these indexes when they are used; so do parts of this list, but for part().
    padding_rows: how many rows of the batch repeat the last one; puts pass over them.
    """

    def __init__(self, handle: _native.ExperienceIndexes) -> None:
        super().__init__(handle.indexes)
        self.handle = handle
        self.padding_rows = handle.padding_rows

    def part(self, begin: int, count: int) -> Indexes:
        """``count`` of them from ``begin`` on: to put a batch in parts."""
        return Indexes(self.handle.slice(begin, count))


def _handle(indexes: Sequence[int]) -> _native.ExperienceIndexes:
    if isinstance(indexes, Indexes):
        return indexes.handle
    return _native.ExperienceIndexes([int(index) for index in indexes])


def _dict(data: Mapping[str, Any]) -> dict[str, Any]:
    return {str(name): value for name, value in data.items()}


def _tensors(rows: _native.Rows) -> dict[str, Any]:
    """The columns as tensors of one's own; of str and bytes lists."""
    return {name: _column(rows[name]) for name in rows.columns}


def _column(column: _native.Column) -> Any:
    if column.kind == "dense":
        return column.torch(copy=True)
    return column.torch_list(copy=True) if column.kind == "ragged" else column.tolist()


class TransferDock:
    """Columns of ``prompts_num * n_samples_per_prompt`` rows, put and got by their numbers."""

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
        """timeout: how many seconds a read waits for cells. timeout_interval: not needed, nothing polls. dock: where
        the rows are; None: in one of its own. partition: their name there.
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
        """Stores rows of columns at these indexes. What was there before is replaced.

        data_dict: tensors of as many rows as there are indexes, lists of tensors, or padded tensors with
        ``original_length``. is_prompt: not needed. keep: the consumer that holds the rows has more to come for them.

        Raises NotFound and FailedPrecondition for indexes of a get whose rows are gone, or are somebody else's now.
        """
        del is_prompt
        data = _dict(data_dict)
        lengths = data.pop(_LENGTHS, None)
        flat = None if lengths is None else [int(length) for length in lengths.flatten().tolist()]
        self._native.put_experience(data, _handle(indexes), flat, keep)

    def _get(self, experience_columns: Sequence[str], indexes: Sequence[int]) -> list[list[torch.Tensor]]:
        """Rows of columns, column after column, without consuming them; waits until they are there."""
        rows = self._native.get(list(experience_columns), _handle(indexes))
        return [rows[name].torch_list(copy=True) for name in experience_columns]

    def get_experience_data(self) -> dict[str, list[torch.Tensor | None]]:
        """Of each column and index the cell, or None."""
        data: dict[str, list[torch.Tensor | None]] = {}
        for name, (indexes, rows) in self._native.experience_data().items():
            data[name] = [None] * self.max_len
            for index, row in zip(indexes, rows[name].torch_list(copy=True), strict=True):
                data[name][index] = row
        return data

    def get_experience_status(self) -> dict[str, torch.Tensor]:
        """Of each column and index whether it is ready: int32 (max_len,), 0 or 1."""
        return _as_flags(self._native.experience_status())

    def get_experience_len(self) -> int:
        """How many rows there are."""
        return self._native.experience_len()

    def clear_indexes(self, indexes: Sequence[int] | None = None) -> None:
        """Empties these indexes, or all."""
        self._native.clear_indexes(None if indexes is None else [int(index) for index in indexes])


def _as_flags(status: Mapping[str, Sequence[bool]]) -> dict[str, torch.Tensor]:
    import torch

    return {name: torch.tensor(flags, dtype=torch.int32) for name, flags in status.items()}


class GRPOTransferDock(TransferDock):
    """The dock of GRPO: its columns and consumers, and what is added to them."""

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
        """max_age, GBS_train: above 1, unfinished responses are resumed, and GBS_train prompts are a training batch.
        lease_seconds: how long a consumer may hold rows. seed: of random choices. metrics: not needed, the dock has its
        own. The others as for TransferDock.
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
        """Puts each row of ``prompts`` n times, with its prompt_length, and the additional columns that the batch has.

        indexes: from 0 on, if none are given; add_another_batch: behind a first batch of the same size.
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
        """Rows for a consumer, which are its own from now on; (None, None) if there are not enough yet, or all are
        done.

        experience_count: how many are sampled, whole prompt groups with get_n_samples; indexes: exactly these instead.
        use_batch_seqlen_balance: sets of nearly equal length. target_seq_len: prefers rows of about this length.
        timeout: how many seconds to wait for enough rows, and then to raise DeadlineExceeded; None: for ever. padded:
        columns of one length, padded with zeros, and ``original_length``; otherwise lists of rows.
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
        """Rows that a consumer holds are done: for those that put nothing."""
        self._native.complete(consumer, _handle(indexes))

    def release(self, consumer: str, indexes: Sequence[int]) -> None:
        """Rows that a consumer holds can be sampled again."""
        self._native.release(consumer, _handle(indexes))

    def all_consumed(self, consumer: str) -> bool:
        """Whether everything is handed out; with max_age above 1, whether a training batch is."""
        return self._native.all_consumed(consumer)

    def clear(self, consumer: str = "actor_train") -> None:
        """Empties the dock; with max_age above 1, only what the consumer has consumed."""
        self._native.clear(consumer)

    def prefetch_request_index(self, experience_count: int) -> list[int] | None:
        """The next row numbers, fewer at the end, None after it."""
        return self._native.prefetch_request_index(experience_count)

    def get_incomplete_response_num(self) -> int:
        """Prompts whose response is not there or not complete."""
        return self._native.incomplete_response_num()

    def get_consumer_status(self) -> dict[str, torch.Tensor]:
        """Of each consumer and index whether it is handed out: int32 (max_len,), 0 or 1."""
        return _as_flags(self._native.consumer_status())

    def get_metrics(self) -> dict[str, list[float]]:
        """The values of each metric: the last one, or all that were cumulated."""
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
        """reuse_image_embeds: consumers read vit_embeds in place of pixels. The others as for TransferDock."""
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
        """The prompts of these sample indexes, of every n-th with get_n_samples: tensors, in which the rows of images
        and videos lie one behind the other; image_num, video_num and video_fps are (prompts, 1).
        """
        rows = self._native.get_experience(list(experience_columns), [int(index) for index in indexes], get_n_samples)
        return {
            name: rows[name].values_torch(copy=True) if rows[name].kind == "ragged" else _column(rows[name])
            for name in rows.columns
        }

    def get_columns(self, consumer: str) -> list[str]:
        """What the consumer reads; empty while one of the columns has no data."""
        return self._native.get_columns(consumer)

    def clear(self) -> None:
        """Empties the dock."""
        self._native.clear()
