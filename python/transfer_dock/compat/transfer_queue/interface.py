"""The functions of the module: starting and ending, samples by keys, checkpoints."""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tensordict import NonTensorStack, TensorDict

from transfer_dock.compat.transfer_queue import _checkpoint, _server, _snapshot
from transfer_dock.compat.transfer_queue._sampling import SamplerHost
from transfer_dock.compat.transfer_queue._store import Store
from transfer_dock.compat.transfer_queue.client import TransferQueueClient
from transfer_dock.compat.transfer_queue.metadata import KVBatchMeta
from transfer_dock.compat.transfer_queue.sampler import SequentialSampler

logger = logging.getLogger(__name__)

Parser = Callable[[Any], Any]


class _System:
    """The state of the system in this process, of which there is exactly one."""

    def __init__(self) -> None:
        self.mu = threading.RLock()
        self.client: TransferQueueClient | None = None
        # Only in the process that started it.
        self.server: _server.Server | None = None
        self.publication: _server.Publication | None = None
        self.host: SamplerHost | None = None
        self.metrics: Any = None
        # Whether this process's settings are in force.
        self.first = False
        self.pid = 0

    def attach(self, address: _server.Address) -> TransferQueueClient:
        if self.client is None:
            name = f"TransferQueueClient_{os.getpid()}"
            self.client = TransferQueueClient(name, address, _host=self.host)
        return self.client

    def find(self) -> TransferQueueClient | None:
        """The client of this process; if there is none, joins a system that another process started."""
        with self.mu:
            if self.client is None:
                address = _server.find()
                if address is not None:
                    self.attach(address)
            return self.client


_system = _System()


def _client() -> TransferQueueClient:
    client = _system.find()
    if client is None:
        raise AssertionError("TransferQueueController has not been initialized yet. Please call init() first.")
    return client


# ---- Starting and ending.


def init(conf: Any = None) -> Any:
    """Starts the system, or joins the one that another process started.

    ``conf`` is a DictConfig or a dictionary with the settings that differ from the defaults:

        controller.sampler                   a name, a class or an object: "SequentialSampler"
        controller.polling_mode              get_meta returns nothing instead of waiting for samples: False
        metrics.enabled, metrics.host, .port serve metrics for Prometheus: False, 127.0.0.1, any port
        backend.TransferDock.address, token  of a running server (``tdock-dock serve``): none, one is started
        backend.TransferDock.listen, memory  of the server that is started: where it listens, and its memory limit

    Settings of TransferQueue's storage are accepted and ignored. Returns the whole configuration if this call started the
    system, and ``conf`` as it is if it joined one; the actor ``TransferQueueController`` tells the configuration of that.
    Raises ValueError or TypeError for an invalid sampler, ImportError where metrics lack their packages.
    """
    with _system.mu:
        whole = _server.complete(conf)
        options = whole["backend"]["TransferDock"]
        given = options["address"] and _server.Address.parse(options["address"], options["token"])
        address = _join_or_find(given)
        if address is None and _system.client is not None:
            return conf
        sampler = _server.sampler_of(whole)
        server = metrics = None
        if address is None:
            server = _server.Server(whole)
            address = server.address
        whole["controller"]["zmq_info"] = address
        try:
            metrics = _serve_metrics(whole, server)
            settings = _server.Settings(
                polling=bool(whole["controller"]["polling_mode"]),
                sampled=type(sampler) is not SequentialSampler,
                slots=int(os.environ.get("TQ_PRE_ALLOC_SAMPLE_NUM", 1)),
                conf={**whole, "controller": {**whole["controller"], "sampler": type(sampler).__name__}},
            )
            if _start(server, address, settings, sampler):
                _system.metrics, metrics = metrics, None
        except BaseException:
            if server is not None:
                server.close()
            raise
        finally:
            if metrics is not None:
                metrics.close()
        return _server.as_users_see_it(_client()._core.settings.conf)


def _join_or_find(given: _server.Address | None) -> _server.Address | None:
    """Joins a running system, at this address or where it is found. Returns the address of a dock without a system."""
    address = given or _server.find()
    if _system.client is None and address is not None:
        try:
            _system.attach(address)
        except _server.NotInitializedError:
            return address
    return None


def _serve_metrics(whole: dict[str, Any], server: _server.Server | None) -> Any:
    """What serves them, or None; the configuration says where, then."""
    options = whole["metrics"]
    if not options["enabled"]:
        return None
    from transfer_dock.compat.transfer_queue.metrics import TQMetricsExporter  # needs Prometheus' package

    exporter = TQMetricsExporter(snapshot=lambda: _snapshot.counters_of(_client()._core))
    if server is not None:
        exporter.register_storage_units({"dock": server.metrics})
    options["endpoint"] = exporter.start(options["host"], options["port"])
    return exporter


def _start(
    server: _server.Server | None, address: _server.Address, settings: _server.Settings, sampler: Any
) -> bool:
    """False if it joined the system of another process, which was first."""
    dock = address.connect(name=f"init of {_server.host_name()}")
    first = _server.write_settings(dock, settings)
    try:
        publication = _server.Publication(address, _make_actor)
    except ValueError:
        logger.info("another process of this Ray cluster was first: joining it")
        if server is not None:
            server.close()
        _system.find()
        return False
    _system.server, _system.publication, _system.pid, _system.first = server, publication, os.getpid(), first
    if first and settings.sampled:
        _system.host = SamplerHost(Store(dock, settings.slots), sampler)
        _system.host.start()
    _system.attach(address)
    return first


def _make_actor(address: _server.Address) -> Any:
    """The actor by which other processes find the dock. Raises ValueError if there is one already."""
    from transfer_dock.compat.transfer_queue.controller import TransferQueueController  # needs Ray

    options = {"name": _server.ACTOR, "namespace": _server.NAMESPACE}
    return TransferQueueController.options(**options).remote(address=address.to_variable())


def close() -> None:
    """Ends this process's part of the system; in the process that started it, the whole system. Never raises."""
    with _system.mu:
        mine = _system.pid == os.getpid()
        if mine and _system.first and _system.server is None and _system.client is not None:
            _server.clear_settings(_system.client._core.dock)
        others = [_system.metrics, _system.host, _system.publication, _system.server] if mine else []
        parts = [_system.client, *others]
        _system.client = _system.host = _system.publication = _system.server = _system.metrics = None
        _system.first = False
        for part in parts:
            try:
                if part is not None:
                    part.close()
            except Exception as error:  # whatever it is, the rest must be ended too
                logger.warning("closing %s: %s", type(part).__name__, error)


# A program may end without it: its server and the sampler's thread have to end before the interpreter does.
atexit.register(close)


def get_client() -> TransferQueueClient:
    """The client of this process. Raises AssertionError before ``init``."""
    if _system.client is None:
        raise AssertionError("Please initialize the TransferQueue first by calling `tq.init()`!")
    return _system.client


def get_metrics_endpoint() -> str | None:
    """``host:port`` where ``/metrics`` is, under TransferQueue's names; None if there are none, or no system."""
    client = _system.find()
    endpoint: str | None = None if client is None else client._core.settings.conf["metrics"]["endpoint"]
    return endpoint


# ---- Samples by keys.


def _as_batch(fields: Any) -> TensorDict | None:
    """One sample as a batch of one."""
    if fields is None or isinstance(fields, TensorDict):
        return fields
    if not isinstance(fields, dict):
        raise ValueError("`fields` can only be dict or TensorDict")
    batch: dict[str, Any] = {}
    for name, value in fields.items():
        if not isinstance(value, torch.Tensor):
            batch[name] = NonTensorStack(value)
        elif value.is_nested:
            raise ValueError("Please use (async)kv_batch_put for batch operation")
        else:
            batch[name] = value.unsqueeze(0)
    return TensorDict(batch, batch_size=[1])


def _check_batch(keys: list[str], fields: TensorDict | None, tags: list[dict[str, Any]] | None) -> None:
    if fields is None and tags is None:
        raise ValueError("Please provide at least one parameter of `fields` or `tags`.")
    if fields is not None and fields.batch_size[0] != len(keys):
        raise ValueError(
            f"`keys` with length {len(keys)} does not match the `fields` TensorDict with "
            f"batch_size {fields.batch_size[0]}"
        )


def _fields_of(meta: KVBatchMeta, select_fields: list[str] | str | None) -> list[str] | None:
    if meta.partition_id is None:
        raise ValueError("Must provide partition_id in the input KVBatchMeta.")
    if select_fields is None:
        return meta.fields
    picked = [select_fields] if isinstance(select_fields, str) else select_fields
    if meta.fields is None or any(field not in meta.fields for field in picked):
        raise ValueError(
            f"Some fields assigned in select_fields not found in the metadata. "
            f"Assigned: {picked}; Fields in KVBatchMeta: {meta.fields}."
        )
    return picked


def kv_put(
    key: str,
    partition_id: str,
    fields: TensorDict | dict[str, Any] | None = None,
    tag: dict[str, Any] | None = None,
    data_parser: Parser | None = None,
) -> KVBatchMeta:
    """Puts one sample: fields, as a dictionary or a TensorDict of one row, notes (``tag``), or both.

    An existing key keeps its other fields and notes. Returns the key, all its notes and the names of its fields. Raises
    ValueError if there is nothing to put.
    """
    if fields is None and tag is None:
        raise ValueError("Please provide at least one parameter of fields or tag.")
    tags = None if tag is None else [tag]
    return _client()._core.kv_put([key], partition_id, _as_batch(fields), tags, data_parser)


def kv_batch_put(
    keys: list[str],
    partition_id: str,
    fields: TensorDict | None = None,
    tags: list[dict[str, Any]] | None = None,
    data_parser: Parser | None = None,
) -> KVBatchMeta:
    """As ``kv_put``, with one sample for each key, all or none. Raises ValueError for a wrong number of rows or tags."""
    _check_batch(keys, fields, tags)
    return _client()._core.kv_put(keys, partition_id, fields, tags, data_parser)


def kv_batch_get(
    keys: list[str] | str, partition_id: str, select_fields: list[str] | str | None = None
) -> TensorDict:
    """The samples of these keys, with these fields; default: the fields that all of them have.

    Keys that do not exist are left out. Raises ValueError if no key exists, or they have no field in common.
    """
    return _client()._core.kv_get(keys, partition_id, select_fields)


def kv_batch_get_by_meta(meta: KVBatchMeta, select_fields: list[str] | str | None = None) -> TensorDict:
    """The samples that a put returned, with these fields; default: those of ``meta``. Raises ValueError."""
    fields = _fields_of(meta, select_fields)
    return _client()._core.kv_get(meta.keys, str(meta.partition_id), fields)


def kv_list(partition_id: str | None = None) -> dict[str, dict[str, Any]]:
    """The notes of each key of a partition, or of all: ``{partition: {key: {name: value}}}``."""
    return _client()._core.kv_list(partition_id)


def kv_clear(keys: list[str] | str, partition_id: str) -> None:
    """Removes samples; keys that do not exist are ignored."""
    _client()._core.kv_clear(keys, partition_id)


async def async_kv_put(
    key: str,
    partition_id: str,
    fields: TensorDict | dict[str, Any] | None = None,
    tag: dict[str, Any] | None = None,
    data_parser: Parser | None = None,
) -> KVBatchMeta:
    """As ``kv_put``."""
    if fields is None and tag is None:
        raise ValueError("Please provide at least one parameter of fields or tag.")
    batch, tags = _as_batch(fields), None if tag is None else [tag]
    client = _client()
    return await client._run(client._core.kv_put, [key], partition_id, batch, tags, data_parser)


async def async_kv_batch_put(
    keys: list[str],
    partition_id: str,
    fields: TensorDict | None = None,
    tags: list[dict[str, Any]] | None = None,
    data_parser: Parser | None = None,
) -> KVBatchMeta:
    """As ``kv_batch_put``."""
    _check_batch(keys, fields, tags)
    client = _client()
    return await client._run(client._core.kv_put, keys, partition_id, fields, tags, data_parser)


async def async_kv_batch_get(
    keys: list[str] | str, partition_id: str, select_fields: list[str] | str | None = None
) -> TensorDict:
    """As ``kv_batch_get``."""
    client = _client()
    return await client._run(client._core.kv_get, keys, partition_id, select_fields)


async def async_kv_batch_get_by_meta(
    meta: KVBatchMeta, select_fields: list[str] | str | None = None
) -> TensorDict:
    """As ``kv_batch_get_by_meta``."""
    fields = _fields_of(meta, select_fields)
    return await async_kv_batch_get(meta.keys, str(meta.partition_id), fields)


async def async_kv_list(partition_id: str | None = None) -> dict[str, dict[str, Any]]:
    """As ``kv_list``."""
    client = _client()
    return await client._run(client._core.kv_list, partition_id)


async def async_kv_clear(keys: list[str] | str, partition_id: str) -> None:
    """As ``kv_clear``."""
    client = _client()
    await client._run(client._core.kv_clear, keys, partition_id)


# ---- Checkpoints.


def save_checkpoint(
    checkpoint_dir: str | Path, *, include_storage: bool = True, metadata: dict[str, Any] | None = None
) -> None:
    """Writes all partitions, with what tasks have consumed, into a folder; it is there as a whole or not at all.

    ``metadata`` goes into ``metadata.json`` there. Data is always written: it is nowhere else. Raises RuntimeError
    before ``init``, OSError where it cannot write.
    """
    client = _system.client
    if client is None:
        raise RuntimeError("TransferQueue is not initialized. Call tq.init() first.")
    if not include_storage:
        logger.warning("include_storage=False: the data is saved nevertheless, as it would be lost")
    _checkpoint.save(client, Path(checkpoint_dir), metadata or {})


def load_checkpoint(checkpoint_dir: str | Path) -> None:
    """Makes everything as it was when the folder was written; what was there is removed.

    Raises RuntimeError before ``init``, FileNotFoundError where the folder or a file of it is missing, ValueError for one
    that is not ours.
    """
    client = _system.client
    if client is None:
        raise RuntimeError("TransferQueue is not initialized. Call tq.init() first.")
    _checkpoint.load(client, Path(checkpoint_dir))
