"""Clients: samples by their metadata (``BatchMeta``). Samples by keys are in interface.py."""

from __future__ import annotations

import asyncio
import functools
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import torch
from tensordict import TensorDict

from transfer_dock.compat.transfer_queue import _checkpoint
from transfer_dock.compat.transfer_queue._core import Core
from transfer_dock.compat.transfer_queue._sampling import SamplerHost
from transfer_dock.compat.transfer_queue._server import Address
from transfer_dock.compat.transfer_queue.metadata import BatchMeta

# How long get_meta(mode="fetch") waits for samples, unless it polls; in seconds.
_FETCH_TIMEOUT = max(
    float(os.environ.get("TQ_CONTROLLER_GET_METADATA_TIMEOUT", 1)),
    float(os.environ.get("TQ_CONTROLLER_GET_METADATA_CHECK_INTERVAL", 5)),
)
_FIRST_PAUSE = 0.001
_LONGEST_PAUSE = 0.02

T = TypeVar("T")


# Calls of asynchronous clients run here: they wait for answers of the server, which come quickly.
@functools.cache
def _executor(pid: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=16, thread_name_prefix=f"transfer-queue-{pid}")


def _pauses(timeout: float) -> Iterator[float]:
    """How long to sleep between attempts, until the time is up."""
    deadline, pause = time.monotonic() + timeout, _FIRST_PAUSE
    while (left := deadline - time.monotonic()) > 0:
        yield min(pause, left)
        pause = min(2 * pause, _LONGEST_PAUSE)


class AsyncTransferQueueClient:
    """The verbs as coroutines. Thread-safe; it may be used in several event loops.

    ``socket`` is accepted as in TransferQueue, and ignored.
    """

    def __init__(
        self,
        client_id: str,
        controller_info: Address,
        zmq_io_threads: int | None = None,
        zmq_max_sockets: int | None = None,
        *,
        _host: SamplerHost | None = None,
    ) -> None:
        """``controller_info`` is ``controller.zmq_info`` of the configuration that ``init`` returns.

        Arguments for ZeroMQ are accepted and ignored. Raises TypeError for an invalid address, RuntimeError before
        ``init``, and the error if it cannot connect.
        """
        if controller_info is None:
            raise ValueError("controller_info cannot be None")
        if not isinstance(controller_info, Address):
            raise TypeError(f"controller_info must be what init() returned, got {type(controller_info)}")
        self.client_id = client_id
        self._core = Core(client_id, controller_info, _host)

    def initialize_storage_manager(self, manager_type: str, config: Any) -> None:
        """Does nothing: the dock holds the data."""

    async def _run(self, verb: Callable[..., T], *arguments: Any) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(_executor(os.getpid()), functools.partial(verb, *arguments))

    def close(self) -> None:
        """Ends the connection."""
        self._core.dock.close()

    async def async_get_meta(
        self,
        data_fields: list[str],
        batch_size: int,
        partition_id: str,
        mode: str = "fetch",
        task_name: str | None = None,
        sampling_config: dict[str, Any] | None = None,
        socket: Any = None,
    ) -> BatchMeta:
        """As ``TransferQueueClient.get_meta``, but no thread is blocked while it waits.

        A fetch that is cancelled while the dock answers may have consumed the samples already.
        """
        core = self._core
        look = core.look(data_fields, batch_size, partition_id, mode, task_name, sampling_config)
        meta = await self._run(look, 0.0)
        for pause in _pauses(0.0 if meta is not None or core.settings.polling else _FETCH_TIMEOUT):
            await asyncio.sleep(pause)
            meta = await self._run(look, 0.0)
            if meta is not None:
                break
        return core.or_nothing(meta, batch_size, partition_id, task_name)

    async def async_put(
        self,
        data: TensorDict,
        metadata: BatchMeta | None = None,
        partition_id: str | None = None,
        data_parser: Callable[[Any], Any] | None = None,
    ) -> BatchMeta:
        return await self._run(self._core.put, data, metadata, partition_id, data_parser)

    async def async_get_data(self, metadata: BatchMeta) -> TensorDict:
        return await self._run(self._core.get, metadata)

    async def async_set_custom_meta(self, metadata: BatchMeta, socket: Any = None) -> None:
        await self._run(self._core.set_notes, metadata)

    async def async_clear_partition(self, partition_id: str) -> None:
        await self._run(self._core.clear_partition, partition_id)

    async def async_clear_samples(self, metadata: BatchMeta) -> None:
        await self._run(self._core.clear, metadata)

    async def async_get_consumption_status(
        self, task_name: str, partition_id: str, socket: Any = None
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        return await self._run(self._core.consumption, task_name, partition_id)

    async def async_get_production_status(
        self, data_fields: list[str], partition_id: str, socket: Any = None
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        return await self._run(self._core.production, data_fields, partition_id)

    async def async_check_consumption_status(self, task_name: str, partition_id: str) -> bool:
        return await self._run(self._core.tasks.is_consumed, partition_id, task_name)

    async def async_check_production_status(self, data_fields: list[str], partition_id: str) -> bool:
        return await self._run(self._core.is_produced, data_fields, partition_id)

    async def async_reset_consumption(self, partition_id: str, task_name: str | None = None, socket: Any = None) -> bool:
        await self._run(self._core.tasks.reset, partition_id, task_name)
        return True

    async def async_get_partition_list(self, socket: Any = None) -> list[str]:
        return await self._run(self._core.store.partitions)

    async def async_kv_retrieve_meta(
        self, keys: list[str] | str, partition_id: str, create: bool = False, socket: Any = None
    ) -> BatchMeta:
        return await self._run(self._core.retrieve, keys, partition_id, create)

    async def async_kv_retrieve_keys(
        self, global_indexes: list[int] | int, partition_id: str, socket: Any = None
    ) -> list[str | None]:
        return await self._run(self._core.kv_keys, global_indexes, partition_id)

    async def async_kv_list(self, partition_id: str | None = None, socket: Any = None) -> dict[str, dict[str, Any]]:
        return await self._run(self._core.kv_list, partition_id)

    async def async_save_controller_checkpoint(self, path: str, socket: Any = None) -> None:
        await self._run(_checkpoint.save_controller, self._core, Path(path))

    async def async_load_controller_checkpoint(self, path: str, socket: Any = None) -> None:
        await self._run(_checkpoint.load_controller, self._core, Path(path))

    async def async_save_storage_checkpoint(self, checkpoint_dir: str) -> None:
        await self._run(_checkpoint.save_storage, self._core, Path(checkpoint_dir))

    async def async_load_storage_checkpoint(self, checkpoint_dir: str) -> None:
        await self._run(_checkpoint.load_storage, self._core, Path(checkpoint_dir))


class TransferQueueClient(AsyncTransferQueueClient):
    """The verbs as blocking calls, in addition to the coroutines. Thread-safe."""

    def get_meta(
        self,
        data_fields: list[str],
        batch_size: int,
        partition_id: str,
        mode: str = "fetch",
        task_name: str | None = None,
        sampling_config: dict[str, Any] | None = None,
    ) -> BatchMeta:
        """The metadata of ``batch_size`` samples: depending on the mode,

            "fetch"         the next ones that have all ``data_fields`` and that the task has not consumed; marks them consumed
            "force_fetch"   all samples of the partition, and which of them have the fields
            "insert"        new ones, without fields

        A fetch waits up to TQ_CONTROLLER_GET_METADATA_TIMEOUT or TQ_CONTROLLER_GET_METADATA_CHECK_INTERVAL seconds (1
        and 5), the longer of the two, and then raises NotEnoughSamples, a RuntimeError and a TimeoutError; in polling
        mode it returns an empty batch at once. Other callers are not blocked. An error of a sampler raises RuntimeError.
        """
        core = self._core
        look = core.look(data_fields, batch_size, partition_id, mode, task_name, sampling_config)
        timeout = 0.0 if core.settings.polling else _FETCH_TIMEOUT
        # The dock wakes up waiting calls by itself; a sampler must be asked again.
        meta = look(0.0 if core.settings.sampled else timeout)
        for pause in _pauses(0.0 if meta is not None or not core.settings.sampled else timeout):
            time.sleep(pause)
            meta = look(0.0)
            if meta is not None:
                break
        return core.or_nothing(meta, batch_size, partition_id, task_name)

    def put(
        self,
        data: TensorDict,
        metadata: BatchMeta | None = None,
        partition_id: str | None = None,
        data_parser: Callable[[Any], Any] | None = None,
    ) -> BatchMeta:
        """Stores fields of the samples of ``metadata``, or of new ones of a partition, all or none.

        Notes of ``metadata`` (``custom_meta``) replace the samples' earlier notes. Returns ``metadata``, or
        that of the new samples, with the fields. ``data_parser`` gets the fields as a dictionary and returns them,
        with the same names and numbers of rows, as they are to be stored; it runs in this process.

        Raises ValueError for data that does not fit, StorageKeyNotFoundError for samples that were cleared.
        """
        return self._core.put(data, metadata, partition_id, data_parser)

    def get_data(self, metadata: BatchMeta) -> TensorDict:
        """The fields of the samples of ``metadata``, in its order, as the caller's own memory.

        Large fields are not copied before they are written to: until their tensors are gone, so much of the server's
        memory is in use, also if the samples are cleared.

        Tensors of rank 0 are returned as one tensor; others as a nested tensor of the jagged layout, also where all
        samples have one shape. Raises StorageKeyNotFoundError for missing samples or fields.
        """
        return self._core.get(metadata)

    def set_custom_meta(self, metadata: BatchMeta) -> None:
        """Replaces the samples' notes by those of ``metadata``. Raises StorageKeyNotFoundError."""
        self._core.set_notes(metadata)

    def clear_partition(self, partition_id: str) -> None:
        """Removes a partition and its consumption records. A partition that does not exist is not an error."""
        self._core.clear_partition(partition_id)

    def clear_samples(self, metadata: BatchMeta) -> None:
        """Removes samples; those that do not exist are ignored."""
        self._core.clear(metadata)

    def get_consumption_status(
        self, task_name: str, partition_id: str
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """The samples of a partition, int64 [samples], and which the task has consumed, int8 [samples].

        Expected samples (TQ_PRE_ALLOC_SAMPLE_NUM) that were not put yet come last. None, None: no such partition.
        """
        return self._core.consumption(task_name, partition_id)

    def get_production_status(
        self, data_fields: list[str], partition_id: str
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """The samples of a partition, int64 [samples], and which fields they have, int8 [samples, fields].

        The fields are in the order in which they were added to the partition. None, None if it lacks one of them.
        """
        return self._core.production(data_fields, partition_id)

    def check_consumption_status(self, task_name: str, partition_id: str) -> bool:
        """Whether there are samples, and the task has consumed all of them. Constant time."""
        return self._core.tasks.is_consumed(partition_id, task_name)

    def check_production_status(self, data_fields: list[str], partition_id: str) -> bool:
        """Whether all samples have these fields. Constant time."""
        return self._core.is_produced(data_fields, partition_id)

    def reset_consumption(self, partition_id: str, task_name: str | None = None) -> bool:
        """Lets a task, or all tasks, consume everything again. Returns True."""
        self._core.tasks.reset(partition_id, task_name)
        return True

    def get_partition_list(self) -> list[str]:
        """Sorted."""
        return self._core.store.partitions()

    def kv_retrieve_meta(self, keys: list[str] | str, partition_id: str, create: bool = False) -> BatchMeta:
        """The metadata of the samples of these keys, with the fields that all of them have.

        Keys that do not exist are left out, or created with ``create``. Raises TypeError and ValueError for invalid
        keys.
        """
        return self._core.retrieve(keys, partition_id, create)

    def kv_retrieve_keys(self, global_indexes: list[int] | int, partition_id: str) -> list[str | None]:
        """The keys of samples, None for those without. Raises RuntimeError if there is no such partition."""
        return self._core.kv_keys(global_indexes, partition_id)

    def kv_list(self, partition_id: str | None = None) -> dict[str, dict[str, Any]]:
        """As the function ``kv_list``."""
        return self._core.kv_list(partition_id)

    def save_controller_checkpoint(self, path: str) -> None:
        """Writes what tasks have consumed and the memory of the sampler into a file. Raises OSError."""
        _checkpoint.save_controller(self._core, Path(path))

    def load_controller_checkpoint(self, path: str) -> None:
        """What ``save_controller_checkpoint`` wrote, for the partitions that are there. Raises OSError, ValueError."""
        _checkpoint.load_controller(self._core, Path(path))

    def save_storage_checkpoint(self, checkpoint_dir: str) -> None:
        """Writes all samples, and what tasks have consumed, into a folder. Raises OSError."""
        _checkpoint.save_storage(self._core, Path(checkpoint_dir))

    def load_storage_checkpoint(self, checkpoint_dir: str) -> None:
        """What ``save_storage_checkpoint`` wrote, in the place of all. Raises FileNotFoundError, ValueError."""
        _checkpoint.load_storage(self._core, Path(checkpoint_dir))
