"""The controller, an actor of Ray: ``TransferQueueController.options(name=…).remote(sampler=…, polling_mode=…)``."""

from __future__ import annotations

import ray

from transfer_dock.compat.transfer_queue._controller import TransferQueueController as _Controller

TransferQueueController = ray.remote(num_cpus=0)(_Controller)
