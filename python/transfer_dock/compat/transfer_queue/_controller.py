"""What the actor TransferQueueController does: it tells where the dock is and how it is set, and answers for it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from transfer_dock.compat.transfer_queue import _checkpoint, _server, _snapshot
from transfer_dock.compat.transfer_queue._sampling import SamplerHost
from transfer_dock.compat.transfer_queue._store import Store
from transfer_dock.compat.transfer_queue.client import TransferQueueClient
from transfer_dock.compat.transfer_queue.metadata import BatchMeta
from transfer_dock.compat.transfer_queue.sampler import SequentialSampler


class TransferQueueController:
    """``init`` makes it for the dock at ``address``. Who makes one without an address starts a dock with it.

    Errors are those of clients.
    """

    def __init__(self, sampler: Any = SequentialSampler, polling_mode: bool = False, address: str = "") -> None:
        self._server: _server.Server | None = None
        self._host: SamplerHost | None = None
        self._address = _server.Address.parse(address) if address else self._start(sampler, polling_mode)
        self._client: TransferQueueClient | None = None
        self._config: Any = None

    def _start(self, sampler: Any, polling_mode: bool) -> _server.Address:
        whole = _server.complete({"controller": {"sampler": sampler, "polling_mode": polling_mode}})
        chosen = _server.sampler_of(whole)
        self._server = _server.Server(whole)
        address = self._server.address
        settings = _server.Settings(
            polling=polling_mode,
            sampled=type(chosen) is not SequentialSampler,
            slots=int(os.environ.get("TQ_PRE_ALLOC_SAMPLE_NUM", 1)),
            conf={**whole, "controller": {**whole["controller"], "sampler": type(chosen).__name__, "zmq_info": address}},
        )
        dock = address.connect(name=f"controller of {_server.host_name()}")
        _server.write_settings(dock, settings)
        if settings.sampled:
            self._host = SamplerHost(Store(dock, settings.slots), chosen)
            self._host.start()
        return address

    def _of_dock(self) -> TransferQueueClient:
        if self._client is None:
            self._client = TransferQueueClient("TransferQueueController", self._address, _host=self._host)
        return self._client

    def address(self) -> str:
        """Where the dock is, as text."""
        return self._address.to_variable()

    def get_zmq_server_info(self) -> _server.Address:
        """Where the dock is: what clients take as ``controller_info``."""
        return self._address

    def get_config(self) -> Any:
        """The whole configuration: that of who started the system, or what was stored since."""
        if self._config is None:
            self._config = _server.as_users_see_it(self._of_dock()._core.settings.conf)
        return self._config

    def store_config(self, conf: Any) -> None:
        """For ``get_config``; nothing else changes."""
        self._config = conf

    def list_partitions(self) -> list[str]:
        return self._of_dock().get_partition_list()

    def get_partition_index_range(self, partition_id: str) -> list[int]:
        """The indexes of its samples, ascending; none if there is no such partition."""
        if not self._of_dock()._core.store.exists(partition_id):
            return []
        return [one.row for one in self._of_dock()._core.store.listing(partition_id)]

    def get_partition_snapshot(self, partition_id: str) -> _snapshot.DataPartitionStatus | None:
        """All that is known of its samples, as of the call; None if there is no such partition."""
        return _snapshot.partition_of(self._of_dock()._core, partition_id)

    def get_metadata(
        self,
        data_fields: list[str],
        partition_id: str,
        mode: str = "fetch",
        task_name: str | None = None,
        batch_size: int | None = None,
        sampling_config: dict[str, Any] | None = None,
    ) -> BatchMeta:
        return self._of_dock().get_meta(data_fields, batch_size or 0, partition_id, mode, task_name, sampling_config)

    def get_consumption_status(
        self, partition_id: str, task_name: str
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        return self._of_dock().get_consumption_status(task_name, partition_id)

    def get_production_status(
        self, partition_id: str, data_fields: list[str]
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        return self._of_dock().get_production_status(data_fields, partition_id)

    def reset_consumption(self, partition_id: str, task_name: str | None = None) -> None:
        self._of_dock().reset_consumption(partition_id, task_name)

    def clear_partition(self, partition_id: str, clear_consumption: bool = True) -> None:
        self._of_dock().clear_partition(partition_id)

    def kv_retrieve_meta(self, keys: list[str], partition_id: str, create: bool = False) -> BatchMeta:
        return self._of_dock().kv_retrieve_meta(keys, partition_id, create)

    def kv_retrieve_keys(self, global_indexes: list[int], partition_id: str) -> list[str | None]:
        return self._of_dock().kv_retrieve_keys(global_indexes, partition_id)

    def save_checkpoint(self, path: str) -> None:
        _checkpoint.save_controller(self._of_dock()._core, Path(path))

    def load_checkpoint(self, path: str) -> None:
        _checkpoint.load_controller(self._of_dock()._core, Path(path))
