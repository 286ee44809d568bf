"""The real TransferQueue in this process, without Ray: its controller, two storage units and a client."""

from __future__ import annotations

import logging
import os
from typing import Any

os.environ.setdefault("TQ_NUM_THREADS", "1")
os.environ.setdefault("TQ_LOGGING_LEVEL", "CRITICAL")

import transfer_queue
import transfer_queue.controller
import transfer_queue.interface
import transfer_queue.storage

for name in list(logging.root.manager.loggerDict):
    if name.startswith("transfer_queue"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


def _class_of(actor: Any) -> Any:
    """The class that Ray made an actor of."""
    return actor.__ray_metadata__.modified_class


class _NeverFilled(list[int]):
    """Indexes to be used again: none."""

    def extend(self, indexes: Any) -> None:
        del indexes


def _never_use_indexes_again(controller: Any) -> None:
    """As ours: both hand samples out in the order of their indexes."""
    plain = controller.load_checkpoint

    def load_checkpoint(path: str) -> None:
        plain(path)
        controller.index_manager.reusable_indexes = _NeverFilled()

    controller.index_manager.reusable_indexes = _NeverFilled()
    controller.load_checkpoint = load_checkpoint


def _make_room_for_inserted(controller: Any) -> None:
    """The controller makes no room for the status of samples that are inserted without data, and fails on them later."""
    plain = controller.get_metadata

    def get_metadata(*arguments: Any, **named: Any) -> Any:
        meta = plain(*arguments, **named)
        for partition, index in zip(meta.partition_ids, meta.global_indexes, strict=True):
            controller.partitions[partition].ensure_samples_capacity(index + 1)
        return meta

    controller.get_metadata = get_metadata


class Peer:
    """A system, and TransferQueue's functions bound to it."""

    def __init__(self, sampler: Any = None, polling_mode: bool = True) -> None:
        chosen = transfer_queue.SequentialSampler if sampler is None else sampler
        self.controller = _class_of(transfer_queue.controller.TransferQueueController)(chosen, polling_mode)
        _never_use_indexes_again(self.controller)
        _make_room_for_inserted(self.controller)
        config = {"total_storage_size": None, "num_data_storage_units": 2}
        self._units = [_class_of(transfer_queue.storage.SimpleStorageUnit)(config) for _ in range(2)]
        infos = {unit.storage_unit_id: unit.get_zmq_server_info() for unit in self._units}
        self.client = transfer_queue.TransferQueueClient("peer", self.controller.get_zmq_server_info())
        self.client.initialize_storage_manager("SimpleStorage", {"zmq_info": infos})
        # What init() would set.
        transfer_queue.interface._TQ_CLIENT = self.client
        transfer_queue.interface._TQ_CONTROLLER = self.controller
        self.module = transfer_queue

    def drop(self, partition: str) -> None:
        """What clear_partition forgets: a partition without samples stays."""
        self.controller.clear_partition(partition)

    def close(self) -> None:
        transfer_queue.interface._TQ_CLIENT = None
        transfer_queue.interface._TQ_CONTROLLER = None
        self.client.close()
