"""The docks of MindSpeed-RL as actors of Ray, with workers in other processes."""

from __future__ import annotations

from typing import Any

import pytest
import ray
import torch

from transfer_dock.compat.mindspeed import GRPOTransferDock, TransferDockWorker, TransferDockWorkers

from waiting import LONG, until

PROMPTS = {"prompts": [torch.tensor([1, 2]), torch.tensor([3])]}


def get(reference: Any) -> Any:
    return ray.get(reference, timeout=LONG)


def test_docks_are_actors(cluster: None) -> None:
    docks = [GRPOTransferDock.options(num_cpus=0).remote(2, 2), ray.remote(num_cpus=0)(GRPOTransferDock).remote(2, 2)]
    for dock in docks:
        assert get(dock.put_prompts_experience.remote(PROMPTS, 2)) == [0, 1, 2, 3]
        batch, indexes = get(dock.get_experience.remote("actor_rollout", ["prompts", "prompt_length"], 2))
        assert batch["prompts"].dtype == torch.int32 and indexes in ([0, 1], [2, 3])
        # A worker broadcasts the numbers: they are a list, of which it makes tensors and longer lists.
        assert torch.tensor([*indexes, -1]).tolist()[:2] == indexes
        get(dock.put_experience.remote(data_dict={"responses": [torch.tensor([7])] * 2}, indexes=indexes))
        get(dock.update_metrics.remote("timing/x", value=[2.0, 1.0], cumulate=True))
        assert get(dock.get_metrics.remote()).metric == {"timing/x": [2.0, 1.0]}
        assert not get(dock.all_consumed.remote("actor_rollout", True))
        get(dock.clear.remote())
        with pytest.raises(ValueError):
            get(dock.put_experience.remote({"responses": [torch.tensor([7])] * 2}, indexes))
    # Workers that wait for rows do not hold up the one that puts them.
    waiting = [docks[0]._get.remote(["responses"], [index]) for index in (0, 1, 2, 3) * 5]
    get(docks[0].put_experience.remote({"responses": [torch.tensor([7])] * 4}, [0, 1, 2, 3]))
    assert [answer[0][0].tolist() for answer in ray.get(waiting, timeout=LONG)] == [[7]] * 20


def test_workers_are_given_their_docks(cluster: None) -> None:
    class Worker(TransferDockWorker):
        def consumed(self) -> Any:
            return ray.get(self.td.all_consumed.remote("actor_train", True)), self.sampling_transfer_dock is None

        def images(self) -> Any:
            return self.mm_td

    dock = GRPOTransferDock.options(num_cpus=0).remote(1, 1)
    worker = ray.remote(num_cpus=0)(Worker).remote()
    with pytest.raises(ValueError, match="init_transfer_dock"):
        get(worker.consumed.remote())
    TransferDockWorkers([worker]).sync_init_transfer_dock(dock, None)
    assert get(worker.consumed.remote()) == (False, True)
    with pytest.raises(ValueError, match="mm_td"):
        get(worker.images.remote())


def test_rows_whose_answer_is_lost_come_back(cluster: None) -> None:
    # A worker that dies with its answer: nobody puts anything, and the lease ends.
    dock = GRPOTransferDock.remote(2, 2, timeout=0.1, lease_seconds=0.5)
    get(dock.put_prompts_experience.remote(PROMPTS, 2))

    @ray.remote(num_cpus=0, max_retries=0)
    def worker(dock: Any) -> None:
        import os

        assert len(ray.get(dock.get_experience.remote("actor_rollout", ["prompts"], 4))[1]) == 4
        os._exit(1)

    with pytest.raises(ray.exceptions.WorkerCrashedError):
        get(worker.remote(dock))

    def came_back() -> bool:
        return get(dock.get_experience.remote("actor_rollout", ["prompts"], 4)) != (None, None)

    until(came_back, "the rows of the worker that is gone")
    ray.kill(dock)
