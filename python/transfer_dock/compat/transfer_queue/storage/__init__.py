"""Errors of what holds the data: the dock."""

from transfer_dock.compat.transfer_queue._store import StorageKeyNotFoundError

__all__ = ["StorageKeyNotFoundError"]
