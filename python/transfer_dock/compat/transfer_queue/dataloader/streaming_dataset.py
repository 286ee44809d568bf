"""Micro-batches for training, as samples become ready."""

from __future__ import annotations

import dataclasses
import logging
import os
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import torch
from tensordict import TensorDict
from torch.utils.data import IterableDataset, get_worker_info

from transfer_dock.compat.transfer_queue.client import TransferQueueClient
from transfer_dock.compat.transfer_queue.metadata import BatchMeta

logger = logging.getLogger(__name__)

# The longest sleep between two looks for samples, in seconds.
_LONGEST_PAUSE = float(os.environ.get("TQ_STREAMING_DATASET_EMPTY_BATCH_SLEEP_INTERVAL", 0.05))

Batch = tuple[TensorDict, BatchMeta]


class StreamingDataset(IterableDataset[Batch]):
    """Batches of a partition for one data-parallel rank, cut into micro-batches.

    Processes with the same ``dp_rank`` get the same batches if the sampler ensures it (RankAwareSampler). Several
    workers of a DataLoader share the batches of their rank: worker w of n has the batches w, w + n, w + 2n, ….

    Without ``should_check_consumption_status`` it goes on for ever, and waits for samples. With it, it ends when the
    task has consumed all samples of the partition and all batches were handed out.
    """

    def __init__(
        self,
        config: Any,
        batch_size: int,
        micro_batch_size: int,
        data_fields: list[str],
        partition_id: str,
        task_name: str,
        dp_rank: int,
        should_check_consumption_status: bool = False,
        fetch_batch_fn: Callable[..., Any] | None = None,
        process_batch_fn: Callable[..., Any] | None = None,
    ) -> None:
        """``config`` is what ``init`` returned. ``fetch_batch_fn`` and ``process_batch_fn`` replace
        ``default_fetch_batch_fn`` and ``chunk_batch_fn``. Raises ValueError.
        """
        if micro_batch_size < 1:
            raise ValueError(f"micro_batch_size must be >= 1, got {micro_batch_size}")
        if len(data_fields) < 1:
            raise ValueError(f"data_fields must be a list with at least one field name, got {data_fields}")
        if dp_rank < 0:
            raise ValueError(f"dp_rank {dp_rank} must be greater than or equal to 0")
        super().__init__()
        self.config = config
        self.batch_size = batch_size
        self.micro_batch_size = micro_batch_size
        self.data_fields = data_fields
        self.partition_id = partition_id
        self.task_name = task_name
        self.dp_rank = dp_rank
        self.should_check_consumption_status = should_check_consumption_status
        self.fetch_batch_fn = fetch_batch_fn or default_fetch_batch_fn
        self.process_batch_fn = process_batch_fn or chunk_batch_fn
        self.sampling_config = {"dp_rank": dp_rank, "task_name": task_name}
        # What was fetched, to go through it again after reset(); and the number of the next batch.
        self.buffer: list[Batch] = []
        self.batch_index = 0
        self._tq_client: TransferQueueClient | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_tq_client": None}

    def _client(self) -> TransferQueueClient:
        if self._tq_client is None:
            name = f"StreamingDataset_{uuid.uuid4().hex[:8]}"
            self._tq_client = TransferQueueClient(name, self.config.controller.zmq_info)
            # This loop waits, not the calls: it has to see that everything is consumed.
            settings = self._tq_client._core.settings
            self._tq_client._core.settings = dataclasses.replace(settings, polling=True)
        return self._tq_client

    def _is_over(self) -> bool:
        return self.should_check_consumption_status and self._client().check_consumption_status(
            self.task_name, self.partition_id
        )

    def __iter__(self) -> Iterator[Batch]:
        worker = get_worker_info()
        first, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        pause = 0.001
        while True:
            if self.batch_index < len(self.buffer):
                batch = self.buffer[self.batch_index]
                self.batch_index += 1
                yield from self.process_batch_fn(*batch, micro_batch_size=self.micro_batch_size)
                continue
            # Before the last look for samples, so that none is missed.
            over = self._is_over()
            data, meta = self.fetch_batch_fn(
                tq_client=self._client(),
                data_fields=self.data_fields,
                batch_size=self.batch_size,
                partition_id=self.partition_id,
                task_name=self.task_name,
                sampling_config=self.sampling_config,
                batch_index=first + step * self.batch_index,
            )
            if data is not None:
                self.buffer.append((data, meta))
                pause = 0.001
            elif over:
                return
            else:
                time.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)

    def reset(self) -> None:
        """Restarts from the first fetched batch."""
        self.batch_index = 0

    def step(self, partition_id: str) -> None:
        """Continues with another partition."""
        self.buffer = []
        self.batch_index = 0
        self.partition_id = partition_id


def default_fetch_batch_fn(
    tq_client: TransferQueueClient,
    data_fields: list[str],
    batch_size: int,
    partition_id: str,
    task_name: str,
    sampling_config: dict[str, Any],
    batch_index: int,
) -> tuple[TensorDict | None, BatchMeta]:
    """A batch and its metadata; None and an empty BatchMeta if there are not enough samples yet."""
    meta = tq_client.get_meta(
        data_fields=data_fields,
        batch_size=batch_size,
        partition_id=partition_id,
        task_name=task_name,
        sampling_config={**sampling_config, "batch_index": batch_index, "partition_id": partition_id},
    )
    return (None if meta.size == 0 else tq_client.get_data(meta)), meta


def chunk_batch_fn(td: TensorDict, batch_meta: BatchMeta, micro_batch_size: int = 1) -> list[Batch]:
    """The batch in pieces of ``micro_batch_size`` samples; the last one may be smaller.

    Raises TypeError for anything but a TensorDict, ValueError for an invalid size.
    """
    if not isinstance(td, TensorDict):
        raise TypeError(f"Expected TensorDict, got {type(td).__name__}")
    if not isinstance(micro_batch_size, int) or micro_batch_size <= 0:
        raise ValueError(f"micro_batch_size must be a positive integer, got {micro_batch_size}")
    if len(td.batch_size) == 0:
        raise ValueError("Input TensorDict must have non-empty batch_size")
    rows = td.batch_size[0]
    if micro_batch_size > rows:
        raise ValueError(f"micro_batch_size ({micro_batch_size}) exceeds total batch size ({rows})")
    # Nested tensors cannot be cut along the samples: their rows are put together anew.
    nested = {
        name: (value.unbind(0), value.layout)
        for name, value in td.items()
        if isinstance(value, torch.Tensor) and value.is_nested
    }
    plain = td.exclude(*nested)
    pieces: list[Batch] = []
    for begin in range(0, rows, micro_batch_size):
        end = min(begin + micro_batch_size, rows)
        piece = plain[begin:end]
        for name, (tensors, layout) in nested.items():
            piece[name] = torch.nested.as_nested_tensor(list(tensors[begin:end]), layout=layout)
        pieces.append((piece, batch_meta[begin:end]))
    return pieces
