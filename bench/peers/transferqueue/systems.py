"""The two systems, each with its servers in processes of their own."""

from __future__ import annotations

import contextlib
import functools
import logging
import multiprocessing
import os
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

STORAGE_UNITS = 2

_context = multiprocessing.get_context("spawn")


def _quiet() -> None:
    os.environ.setdefault("TQ_LOGGING_LEVEL", "CRITICAL")
    logging.disable(logging.WARNING)


def _serve(kind: str, ready: Connection) -> None:
    """A process of TransferQueue: tells how to reach it, and goes on until its parent ends it."""
    _quiet()
    import transfer_queue
    from transfer_queue.controller import TransferQueueController
    from transfer_queue.storage import SimpleStorageUnit

    # The classes that Ray makes actors of.
    if kind == "controller":
        controller = TransferQueueController.__ray_metadata__.modified_class
        server = controller(transfer_queue.SequentialSampler, True)
        ready.send(server.get_zmq_server_info())
    else:
        unit = SimpleStorageUnit.__ray_metadata__.modified_class
        server = unit({"total_storage_size": None, "num_data_storage_units": STORAGE_UNITS})
        ready.send((server.storage_unit_id, server.get_zmq_server_info()))
    ready.recv()


class Address:
    """How to reach a TransferQueue: can be pickled."""

    def __init__(self, controller: Any, units: dict[str, Any]) -> None:
        self._controller = controller
        self._units = units

    def connect(self) -> Any:
        """A client, which is also what the module's verbs use in this process."""
        _quiet()
        import transfer_queue
        import transfer_queue.interface

        client = transfer_queue.TransferQueueClient(f"client {os.getpid()}", self._controller)
        client.initialize_storage_manager("SimpleStorage", {"zmq_info": self._units})
        transfer_queue.interface._TQ_CLIENT = client
        return client


@functools.cache
def _start() -> Address:
    """The processes are daemons: they end with this one."""
    ends = []
    for kind in ["controller"] + ["unit"] * STORAGE_UNITS:
        end, other = _context.Pipe()
        _context.Process(target=_serve, args=(kind, other), daemon=True).start()
        # So that a process that ends is seen.
        other.close()
        ends.append(end)
    told = []
    for end in ends:
        if not end.poll(300):
            raise RuntimeError("TransferQueue did not start within 300 s")
        told.append(end.recv())
    _keep.extend(ends)
    return Address(told[0], dict(told[1:]))


_keep: list[Connection] = []


@contextlib.contextmanager
def transfer_queue_system() -> Iterator[Address]:
    """A controller and storage units of TransferQueue: the same for all benchmarks, and empty."""
    address = _start()
    try:
        yield address
    finally:
        client = address.connect()
        for partition in client.get_partition_list():
            client.clear_partition(partition)
        client.close()
