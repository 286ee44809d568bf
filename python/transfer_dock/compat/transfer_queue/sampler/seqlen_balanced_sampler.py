"""Batches of nearly the same number of tokens for each data-parallel rank."""

from __future__ import annotations

import heapq
from typing import Any

from transfer_dock.compat.transfer_queue.sampler.grpo_group_n_sampler import GRPOGroupNSampler

# The sum of its items, how many there are, and the items: their positions and lengths. Compared in this order.
_Bin = tuple[int, int, list[tuple[int, int]]]


class _Split:
    """Some items in k bins, the fullest first."""

    def __init__(self, bins: list[_Bin]) -> None:
        self.bins = sorted(bins, reverse=True)

    def __lt__(self, other: _Split) -> bool:
        """What differs most comes first, and then what has the fullest bin."""
        mine, theirs = self.bins[0][0] - self.bins[-1][0], other.bins[0][0] - other.bins[-1][0]
        return mine > theirs if mine != theirs else self.bins[0] > other.bins[0]

    def join(self, other: _Split) -> _Split:
        """The fullest of one into the emptiest of the other."""
        pairs = zip(self.bins, reversed(other.bins), strict=True)
        return _Split([(a[0] + b[0], a[1] + b[1], a[2] + b[2]) for a, b in pairs])


def get_seqlen_balanced_partitions(seqlen_list: list[int], k_partitions: int, equal_size: bool) -> list[list[int]]:
    """The positions of the lengths in ``k_partitions`` sets of nearly equal sums, each set ascending.

    The largest differencing method of Karmarkar and Karp (1982). With ``equal_size`` the sets have equally many items.
    Raises AssertionError if that is not possible, or if there are fewer items than sets.
    """
    if len(seqlen_list) < k_partitions:
        raise AssertionError(f"number of items: {len(seqlen_list)} < k_partitions: {k_partitions}")
    if equal_size and len(seqlen_list) % k_partitions != 0:
        raise AssertionError(f"{len(seqlen_list)} items cannot make {k_partitions} sets of equal size")
    items = sorted((length, position) for position, length in enumerate(seqlen_list))
    heap: list[_Split] = []
    step = k_partitions if equal_size else 1
    for start in range(0, len(items), step):
        bins: list[_Bin] = [(length, 1, [(position, length)]) for length, position in items[start : start + step]]
        heapq.heappush(heap, _Split(bins + [(0, 0, [])] * (k_partitions - step)))
    while len(heap) > 1:
        widest = heapq.heappop(heap)
        heapq.heappush(heap, widest.join(heapq.heappop(heap)))
    return [sorted(position for position, _ in contents) for _, _, contents in heap[0].bins]


class SeqlenBalancedSampler(GRPOGroupNSampler):
    """Splits whole prompt groups among the data-parallel ranks so that each has nearly as many tokens.

    A sample's length is ``total_lengths`` of its tags (``custom_meta``); without it, it counts 1.
    """

    def __init__(self, n_samples_per_prompt: int = 1, dp_size: int = 1) -> None:
        """Raises ValueError unless both are positive."""
        super().__init__(n_samples_per_prompt=n_samples_per_prompt)
        if dp_size <= 0:
            raise ValueError(f"dp_size must be positive, got {dp_size}")
        self.dp_size = dp_size

    def sample(
        self,
        ready_indexes: list[int],
        batch_size: int,
        task_name: str = "",
        partition_id: str = "",
        *args: Any,
        **kwargs: Any,
    ) -> tuple[list[int], list[int]]:
        """The share of ``dp_rank`` in batch ``batch_index``: ``batch_size`` samples, or none if there are fewer.

        The first rank that asks for a batch decides for all ranks: ``batch_size`` · ``dp_size`` samples are consumed
        then, so that no other batch gets what a slower rank has not asked for yet. Raises ValueError unless
        ``batch_size`` is a multiple of the size of a group.
        """
        rank, batch = kwargs.get("dp_rank", 0), kwargs.get("batch_index", 0)
        if not 0 <= rank < self.dp_size:
            return [], []
        mine = self._batches_of(partition_id, task_name, rank)
        if batch in mine:
            share, _ = mine[batch]
            return list(share), list(share)
        if batch_size % self.n_samples_per_prompt != 0:
            raise ValueError(
                f"batch_size ({batch_size}) must be a multiple of n_samples_per_prompt ({self.n_samples_per_prompt})"
            )
        chosen = self._whole_groups(ready_indexes, batch_size * self.dp_size)
        if not chosen:
            return [], []
        for other, share in enumerate(self._shares(chosen, kwargs.get("partition"))):
            self._batches_of(partition_id, task_name, other)[batch] = (share, list(share))
        share, _ = mine[batch]
        return list(share), chosen

    def _shares(self, chosen: list[int], partition: Any) -> list[list[int]]:
        n = self.n_samples_per_prompt
        notes = {} if partition is None else partition.get_custom_meta(chosen)
        lengths = [notes.get(index, {}).get("total_lengths", 1) for index in chosen]
        groups = [chosen[i : i + n] for i in range(0, len(chosen), n)]
        of_groups = [sum(lengths[i : i + n]) for i in range(0, len(lengths), n)]
        sets = get_seqlen_balanced_partitions(of_groups, self.dp_size, equal_size=True)
        return [[index for group in picked for index in groups[group]] for picked in sets]
