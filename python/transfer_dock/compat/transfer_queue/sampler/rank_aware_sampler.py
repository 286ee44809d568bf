"""The same samples for all processes of a data-parallel rank."""

from __future__ import annotations

from typing import Any

from transfer_dock.compat.transfer_queue.sampler.base import BaseSampler


class RankAwareSampler(BaseSampler):
    """Hands each batch of a data-parallel rank out to whoever asks for it.

    The first process of a rank that asks for batch k gets the next samples; the others of that rank, asking for batch
    k, get the same.
    """

    def sample(
        self,
        ready_indexes: list[int],
        batch_size: int,
        dp_rank: int,
        batch_index: int,
        task_name: str,
        partition_id: str,
        *args: Any,
        **kwargs: Any,
    ) -> tuple[list[int], list[int]]:
        """``batch_size`` samples, or none if there are fewer. Raises ValueError for a negative rank."""
        if dp_rank < 0:
            raise ValueError(f"dp_rank {dp_rank} must be greater than or equal to 0")
        batches = self._batches_of(partition_id, task_name, dp_rank)
        if batch_index not in batches:
            chosen = list(ready_indexes[:batch_size])
            if len(chosen) < batch_size:
                return [], []
            batches[batch_index] = chosen
        chosen = batches[batch_index]
        return list(chosen), list(chosen)
