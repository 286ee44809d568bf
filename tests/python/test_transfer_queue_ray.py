"""transfer_dock.compat.transfer_queue where Ray runs: actors and tasks find the system by the name of an actor."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
import ray
import torch
from tensordict import TensorDict

import transfer_dock.compat.transfer_queue as tq
from waiting import LONG


@pytest.fixture(scope="module")
def machines() -> Iterator[None]:
    ray.init(num_cpus=2, include_dashboard=False, object_store_memory=78 * 2**20, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.fixture
def cluster(machines: None) -> Iterator[None]:
    yield
    tq.close()


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
    found = ray.get(work.remote(), timeout=LONG)
    assert found["host"] != os.getpid() and not found["told"] and found["polling"]
    assert tq.kv_batch_get("answer", "train")["y"][0].tolist() == [0, 2, 4]
    # What programs ask the actor for.
    actor = ray.get_actor("TransferQueueController", namespace="transfer_queue")
    config = ray.get(actor.get_config.remote(), timeout=LONG)
    assert config.controller.polling_mode and config.backend.storage_backend == "SimpleStorage"
    joined = tq.TransferQueueClient("joined", config.controller.zmq_info)
    assert joined.get_partition_list() == ray.get(actor.list_partitions.remote()) == ["train"]
    meta = joined.get_meta(["x"], 1, "train", task_name="task")
    assert ray.get(actor.get_consumption_status.remote("train", "task"))[1].tolist() == [1, 0]
    assert ray.get(actor.kv_retrieve_keys.remote(meta.global_indexes, "train")) == ["question"]
    ray.get(actor.store_config.remote({"another": 1}))
    assert ray.get(actor.get_config.remote()) == {"another": 1}
    # For workers on other machines.
    address = tq.get_client()._core.address
    assert address.token and address.tcp.rpartition(":")[0] == ray.util.get_node_ip_address()
    tq.close()
    with pytest.raises(ValueError):
        ray.get_actor("TransferQueueController", namespace="transfer_queue")


def test_a_controller_that_a_program_makes_starts_a_dock(cluster: None) -> None:
    from transfer_dock.compat.transfer_queue.controller import TransferQueueController
    from transfer_dock.compat.transfer_queue.storage import SimpleStorageUnit
    from transfer_dock.compat.transfer_queue.utils.zmq_utils import process_zmq_server_info

    sampler = tq.GRPOGroupNSampler(n_samples_per_prompt=2)
    controller = TransferQueueController.options(name="mine").remote(sampler=sampler, polling_mode=True)
    units = {i: SimpleStorageUnit.remote(storage_unit_size=8) for i in range(2)}
    infos = process_zmq_server_info({"controller": controller})
    client = tq.TransferQueueClient("client", infos["controller"])
    client.initialize_storage_manager("SimpleStorage", {"zmq_info": process_zmq_server_info(units)})
    client.put(TensorDict({"x": torch.arange(4)}, batch_size=[4]), partition_id="train")
    for first in (0, 2):
        meta = client.get_meta(["x"], 2, "train", task_name="task")
        assert client.get_data(meta)["x"].tolist() == [first, first + 1]
    assert ray.get(controller.get_consumption_status.remote("train", "task"))[1].all()
    client.close()
    ray.kill(controller)
