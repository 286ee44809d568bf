"""Docks of a Ray cluster, and the example with actors."""

from __future__ import annotations

import os
import pathlib
import runpy
from typing import Any

import pytest
import ray
from messages import raising
from waiting import LONG

import transfer_dock as td

ROOT = pathlib.Path(os.environ["TDOCK_SOURCE"])


def test_without_a_cluster_nothing_starts() -> None:
    for call in (td.ray.start, td.ray.connect, td.ray.stop):
        with pytest.raises(td.FailedPrecondition, match="call ray.init"):
            call()


def test_tasks_share_a_dock(cluster: None) -> None:
    with pytest.raises(td.NotFound, match="transfer_dock.ray.start\\('mine'\\)"):
        td.ray.connect("mine", timeout=0)
    dock = td.ray.start("mine", memory="64MiB")
    dock.create_partition("p", {"x": "int64", "y": "int64"})
    dock.put("p", {"x": [1, 2, 3]})

    # Inside, so that it travels by value: workers cannot import this file.
    @ray.remote(num_cpus=0)
    def double(given: td.Dock, rows: td.Rows) -> tuple[int, Any, list[int]]:
        import os

        import transfer_dock as td

        found = td.ray.connect("mine")
        found.put("p", {"y": given.fetch("p", [0, 1, 2], ["x"])["x"].numpy() * 2}, rows=[0, 1, 2])
        return os.getpid(), found.fetch("p", [1], ["y"]), rows["x"].tolist()

    pid, answer, seen = ray.get(double.remote(dock, dock.fetch("p", [2], ["x"])), timeout=LONG)
    assert pid != os.getpid() and answer["y"].tolist() == [4] and seen == [3]
    # Whoever starts it once more gets the one that is there.
    assert td.ray.start("mine").status("p").rows == 3
    td.ray.stop("mine")
    with pytest.raises(td.NotFound):
        td.ray.stop("mine")


def test_a_dock_that_no_machine_can_hold_is_not_waited_for_long(cluster: None) -> None:
    with raising(td.DeadlineExceeded, "'nowhere'", "0.5 seconds"):
        td.ray.start("nowhere", timeout=0.5, resources={"a machine of its own": 1})


def test_small_takes_share_the_work(local: td.Dock) -> None:
    local.create_partition("p", {"x": "int64"})
    local.register_consumer("p", "greedy", reads=["x"])
    local.register_consumer("p", "fair", reads=["x"])
    local.register_consumer("p", "dealt", reads=["x"], ranks=2)
    local.put("p", {"x": list(range(100))})
    assert len(local.take("p", "greedy", 1000)) == 100
    assert [len(local.take("p", "fair", 8)) for _ in range(2)] == [8, 8]
    assert [len(local.take("p", "dealt", 1000, rank=rank)) for rank in range(2)] == [50, 50]


def test_the_example_of_reward_workers_runs(cluster: None, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(ROOT / "examples/python/ray_rewards.py"))["main"]()
    told, shares = capsys.readouterr().out.splitlines()
    assert told == "400 answers scored, 321 of them right" and shares.startswith("by each worker: [")
