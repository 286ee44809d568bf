"""What holds the data: the dock. Here are its errors, and the names that programs of TransferQueue import."""

from typing import Any

from transfer_dock.compat.transfer_queue._store import StorageKeyNotFoundError

__all__ = ["SimpleStorageUnit", "StorageKeyNotFoundError"]


def __getattr__(name: str) -> Any:
    if name != "SimpleStorageUnit":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from transfer_dock.compat.transfer_queue.storage.simple_storage import SimpleStorageUnit  # needs Ray

    return SimpleStorageUnit
