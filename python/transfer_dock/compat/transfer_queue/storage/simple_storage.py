"""The storage units that programs make by themselves, actors of Ray: they hold nothing, because the dock holds the data."""

from __future__ import annotations

import uuid
from typing import Any

import ray

from transfer_dock.compat.transfer_queue._server import Address

__all__ = ["SimpleStorageUnit"]


class _SimpleStorageUnit:
    """Takes what TransferQueue's takes, and ignores it."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.storage_unit_id = f"SU_{uuid.uuid4().hex[:8]}"

    def get_zmq_server_info(self) -> Address:
        """For ``initialize_storage_manager``, which ignores it."""
        return Address()

    def shutdown(self) -> None:
        """Nothing is to be ended."""


SimpleStorageUnit = ray.remote(num_cpus=0)(_SimpleStorageUnit)
