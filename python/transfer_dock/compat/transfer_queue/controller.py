"""The controller, an actor of Ray: ``TransferQueueController.options(name=…).remote(sampler=…, polling_mode=…)``."""

from __future__ import annotations

import ray

from transfer_dock.compat.transfer_queue._controller import TransferQueueController as _Controller
from transfer_dock.compat.transfer_queue._snapshot import DataPartitionStatus

__all__ = ["DataPartitionStatus", "TransferQueueController"]

TransferQueueController = ray.remote(num_cpus=0)(_Controller)
