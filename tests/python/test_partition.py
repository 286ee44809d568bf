"""Handles of a partition."""

from __future__ import annotations

import asyncio
import inspect
import pickle

import numpy as np
import pytest

import transfer_dock as td
from transfer_dock.calls import AsyncDock, AsyncPartition

from messages import raising
from waiting import LONG


@pytest.fixture
def train(dock: td.Dock) -> td.Partition:
    """A partition that a scorer fills and a trainer reads."""
    dock.create_partition("train", {"prompt": "str", "reward": "float32"})
    train = dock.partition("train")
    train.register_consumer("scorer", reads=["prompt"], writes=["reward"])
    train.register_consumer("trainer", reads=["prompt", "reward"], checkpointed=True)
    return train


def test_calls_go_to_its_partition(dock: td.Dock, train: td.Partition) -> None:
    dock.create_partition("eval")
    ids = train.put({"prompt": ["1+1=", "2+2=", "3+3="]}, keys=["a", "b", "c"], tags={"split": "easy"})
    assert train.find(["c", "a"]).tolist() == [2, 0]
    with train.take("scorer", 8, timeout=LONG) as rows:
        rows.put({"reward": [1.0, 0.5, 0.0]})
    assert train.fetch(ids, ["reward"])["reward"].numpy().tolist() == [1.0, 0.5, 0.0]
    assert [row.row for row in train.list({"split": "easy"}, having=["reward"])[0]] == [0, 1, 2]
    taken = train.take("trainer", max=2)
    assert train.renew(taken) == taken.expires
    train.complete(taken, [0], step=0)
    train.release(taken)
    train.rollback("trainer", -1)
    train.drop(rows=[2])
    assert (train.consumer_status("trainer").ready, train.row_status(2).consumers[1].state) == (2, "done")
    train.publish_weights(3)
    train.seal()
    assert train.status().sealed and train.status().weights_version == 3
    assert "'trainer'" in train.explain("trainer")
    assert train.clear(everything=True) == 3
    train.drop_consumer("scorer")
    assert list(train.status().consumers) == ["trainer"] and dock.status("eval").rows == 0


def test_it_is_a_name_and_no_more(dock: td.Dock) -> None:
    train = dock.partition("train")
    assert (train.name, repr(train)) == ("train", "Partition('train')")
    with raising(td.NotFound, "partition 'train'"):
        train.status()
    dock.create_partition("train")
    assert train.status().rows == 0
    with raising(TypeError, "'partition'"):
        train.clear(partition="eval", everything=True)  # type: ignore[call-arg]


def test_coroutines_have_handles_too(dock: td.Dock, train: td.Partition) -> None:
    async def score() -> None:
        calls = dock.aio.partition("train")
        await calls.put({"prompt": ["1+1=", "2+2="]})
        async with await calls.take("scorer", max=8, timeout=LONG) as rows:
            await calls.put({"reward": np.ones(2, np.float32)}, rows=rows.ids, lease=rows)
        assert (await calls.consumer_status("scorer")).done == 2

    asyncio.run(score())


def test_a_coroutine_that_is_cancelled_ends_its_call(dock: td.Dock, train: td.Partition) -> None:
    async def cancel() -> None:
        task = asyncio.create_task(dock.aio.partition("train").take("trainer", timeout=None))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())


def test_it_can_be_pickled_where_its_dock_can(remote: td.Dock, local: td.Dock) -> None:
    remote.create_partition("train")
    again = pickle.loads(pickle.dumps(remote.partition("train")))
    assert again.status().rows == 0
    with raising(TypeError, "local dock", "DockServer"):
        pickle.dumps(local.partition("train"))


@pytest.mark.parametrize(("dock", "handle"), [(td.Dock, td.Partition), (AsyncDock, AsyncPartition)])
def test_it_has_every_call_that_asks_for_a_partition(dock: type, handle: type) -> None:
    expected = {}
    for name, call in inspect.getmembers(dock, inspect.isfunction):
        signature = inspect.signature(call)
        names = list(signature.parameters)
        if names[:2] == ["self", "partition"]:
            expected[name] = (names[:1] + names[2:], signature.return_annotation, call.__doc__)
    there = {
        name: (list(inspect.signature(call).parameters), inspect.signature(call).return_annotation, call.__doc__)
        for name, call in inspect.getmembers(handle, inspect.isfunction)
        if not name.startswith("_")
    }
    assert there == expected and len(there) == 21
