"""Whole prompt groups."""

from __future__ import annotations

from typing import Any

from transfer_dock.compat.transfer_queue.sampler.base import BaseSampler


class GRPOGroupNSampler(BaseSampler):
    """Hands out the n samples of a prompt together.

    The samples of a prompt are put one after another: those with the indexes k·n to k·n + n - 1 of a partition are
    one group, so samples of two prompts are never taken for one.
    """

    def __init__(self, n_samples_per_prompt: int = 1) -> None:
        """Raises ValueError unless ``n_samples_per_prompt`` is positive."""
        super().__init__()
        if n_samples_per_prompt <= 0:
            raise ValueError(f"n_samples_per_prompt must be positive, got {n_samples_per_prompt}")
        self.n_samples_per_prompt = n_samples_per_prompt

    def sample(
        self,
        ready_indexes: list[int],
        batch_size: int,
        task_name: str = "",
        partition_id: str = "",
        *args: Any,
        **kwargs: Any,
    ) -> tuple[list[int], list[int]]:
        """``batch_size`` samples in whole groups, those that began first; none if there are fewer.

        With a ``dp_rank`` and a ``batch_index`` the same batch is handed out again to whoever asks for it. Raises
        ValueError unless ``batch_size`` is a multiple of the size of a group.
        """
        rank, batch = kwargs.get("dp_rank"), kwargs.get("batch_index")
        if rank is not None:
            batches = self._batches_of(partition_id, task_name, rank)
            if batch in batches:
                before, consumed = batches[batch]
                return before, consumed
        chosen = self._whole_groups(ready_indexes, batch_size)
        result = (chosen, list(chosen))
        if rank is not None and chosen:
            batches[batch] = result
        return result

    def _whole_groups(self, ready_indexes: list[int], samples: int) -> list[int]:
        n = self.n_samples_per_prompt
        if samples % n != 0:
            raise ValueError(f"batch_size ({samples}) must be a multiple of n_samples_per_prompt ({n})")
        chosen: list[int] = []
        group: list[int] = []
        for index in sorted(ready_indexes):
            if group and index // n != group[0] // n:
                group = []
            group.append(index)
            if len(group) == n:
                chosen += group
                group = []
            if len(chosen) == samples:
                return chosen
        return []
