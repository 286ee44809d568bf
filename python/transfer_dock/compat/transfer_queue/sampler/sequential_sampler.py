"""First come, first served."""

from __future__ import annotations

from typing import Any

from transfer_dock.compat.transfer_queue.sampler.base import BaseSampler


class SequentialSampler(BaseSampler):
    """The samples that are ready, by their indexes. The dock does it by itself, in one call."""

    def sample(
        self, ready_indexes: list[int], batch_size: int, *args: Any, **kwargs: Any
    ) -> tuple[list[int], list[int]]:
        """The first ``batch_size``, or all if there are fewer."""
        chosen = list(ready_indexes[:batch_size])
        return chosen, chosen
