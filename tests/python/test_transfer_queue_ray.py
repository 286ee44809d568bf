"""transfer_dock.compat.transfer_queue where Ray runs: actors and tasks find the system by the name of an actor."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
import ray
import torch

import transfer_dock.compat.transfer_queue as tq


@pytest.fixture
def cluster() -> Iterator[None]:
    ray.init(num_cpus=2, include_dashboard=False, object_store_memory=78 * 2**20, log_to_driver=False)
    try:
        yield
    finally:
        tq.close()
        ray.shutdown()


def test_workers_of_ray_find_the_system(cluster: None) -> None:
    # Inside, so that it travels by value: workers cannot import this file.
    @ray.remote(num_cpus=0)
    def work() -> dict[str, Any]:
        import os

        import transfer_dock.compat.transfer_queue as tq

        told = "TDOCK_TRANSFER_QUEUE" in os.environ
        tq.init()
        tq.kv_put("answer", "train", {"y": tq.kv_batch_get("question", "train")["x"][0] * 2})
        return {"told": told, "polling": tq.get_client()._core.settings.polling, "host": os.getpid()}

    tq.init({"controller": {"polling_mode": True}})
    tq.kv_put("question", "train", {"x": torch.arange(3)})
    found = ray.get(work.remote(), timeout=120)
    assert found["host"] != os.getpid() and not found["told"] and found["polling"]
    assert tq.kv_batch_get("answer", "train")["y"][0].tolist() == [0, 2, 4]
    # For workers on other machines.
    address = tq.get_client()._core.address
    assert address.token and address.tcp.rpartition(":")[0] == ray.util.get_node_ip_address()
    tq.close()
    with pytest.raises(ValueError):
        ray.get_actor("TransferQueueController", namespace="transfer_queue")
