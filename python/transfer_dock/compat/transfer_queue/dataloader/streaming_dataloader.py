"""A DataLoader over a StreamingDataset."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from transfer_dock.compat.transfer_queue.dataloader.streaming_dataset import Batch, StreamingDataset


def _as_it_is(batch: Any) -> Any:
    return batch


class StreamingDataLoader(torch.utils.data.DataLoader[Batch]):
    """Iterates over the ``(TensorDict, BatchMeta)`` of a StreamingDataset, which makes the batches.

    With ``num_workers``, that many processes fetch the data, and share the batches of their rank.
    """

    dataset: StreamingDataset

    def __init__(
        self,
        dataset: StreamingDataset,
        num_workers: int = 0,
        collate_fn: Callable[[Any], Any] | None = None,
        pin_memory: bool = False,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
    ) -> None:
        """All arguments but ``dataset`` are those of ``torch.utils.data.DataLoader``."""
        super().__init__(
            dataset=dataset,
            batch_size=None,
            num_workers=num_workers,
            collate_fn=collate_fn or _as_it_is,
            pin_memory=pin_memory,
            worker_init_fn=worker_init_fn,
            multiprocessing_context=multiprocessing_context,
            prefetch_factor=prefetch_factor,
            persistent_workers=persistent_workers,
            pin_memory_device=pin_memory_device,
        )

    def reset(self) -> None:
        """Restarts from the first fetched batch; only in this process, that is, without workers."""
        self.dataset.reset()

    def step(self, partition_id: str) -> None:
        """Continues with another partition."""
        self.dataset.step(partition_id)

    def get_buffer(self) -> list[Batch]:
        """The batches that were fetched in this process."""
        return self.dataset.buffer
