"""Stages in Python, beside each other and beside other takers."""

from __future__ import annotations

import asyncio
import threading

import numpy
import pytest

import transfer_dock as td
from transfer_dock.stages import Runner, StageError, run, stage

from messages import raising
from waiting import LONG, until


@pytest.fixture
def dock() -> td.Dock:
    dock = td.Dock.local()
    dock.create_partition(
        "train", {"prompt": "str", "response": "str", "reward": td.column("float32"), "best": td.column("int64")},
        group_size=2,
    )  # fmt: skip
    return dock


@stage(reads=["prompt"], writes=["response"], batch_size=4)
def answer(rows):
    return {"response": [prompt.upper() for prompt in rows["prompt"].tolist()]}


LONG_LEASE = {"lease_seconds": LONG}
loops = set()


@stage(reads=["response"], writes=["reward"], batch_size=3)
async def reward(rows):
    loops.add(id(asyncio.get_running_loop()))
    await asyncio.sleep(0)
    return {"reward": numpy.array([len(text) for text in rows["response"].tolist()], dtype=numpy.float32)}


@stage(reads=["reward"], writes=["best"], unit="group", batch_size=2)
def best(rows):
    rewards, groups = rows["reward"].numpy(), rows.groups
    return {"best": numpy.array([int(one == rewards[groups == group].max()) for one, group in zip(rewards, groups)])}


def put(dock: td.Dock, prompts: list[str]) -> numpy.ndarray:
    return dock.put("train", {"prompt": prompts}, groups=[row // 2 for row in range(len(prompts))])


def test_stages_fill_what_the_stages_before_have_made(dock):
    ids = put(dock, [f"{'x' * row}!" for row in range(10)])
    dock.seal("train")
    loops.clear()
    counts = run(dock, "train", [answer, reward, best], threads=2)
    assert len(loops) <= 2, "one for each thread"
    assert {name: one.rows for name, one in counts.items()} == {"answer": 10, "reward": 10, "best": 10}
    rows = dock.fetch("train", ids, ["response", "reward", "best"])
    assert rows["response"].tolist()[3] == "XXX!"
    assert rows["reward"].numpy().tolist() == [row + 1 for row in range(10)]
    assert rows["best"].numpy().tolist() == [0, 1] * 5


def test_a_stage_is_still_a_function():
    assert answer({"prompt": numpy.array(["a"])}) == {"response": ["A"]}
    assert answer.name == "answer" and answer.with_options(batch_size=7).batch_size == 7


def test_a_stage_that_writes_nothing_completes_its_rows(dock):
    seen = []

    @stage(reads=["prompt"])
    def look(rows):
        seen.extend(rows["prompt"].tolist())

    put(dock, ["a", "b"])
    dock.seal("train")
    run(dock, "train", [look])
    assert sorted(seen) == ["a", "b"]
    assert dock.consumer_status("train", "look").done == 2


def test_an_error_names_the_stage_and_the_rows_and_gives_them_back(dock):
    @stage(reads=["prompt"], writes=["response"])
    def broken(rows):
        raise RuntimeError("no tokenizer")

    ids = put(dock, ["a", "b"])
    with pytest.raises(StageError, match=r"stage 'broken', rows .*: RuntimeError: no tokenizer") as caught:
        run(dock, "train", [broken, reward])
    assert caught.value.rows == ids.tolist()
    assert dock.consumer_status("train", "broken").ready == 2


@pytest.mark.parametrize(
    ("columns", "why"),
    [({"reward": [1.0, 2.0]}, "writes"), (["a"], "by name"), ({"response": ["only one"]}, "rows"), (None, "writes")],
)
def test_what_a_function_returns_is_checked(dock, columns, why):
    @stage(reads=["prompt"], writes=["response"])
    def wrong(rows):
        return columns

    put(dock, ["a", "b"])
    with pytest.raises(StageError, match=why):
        run(dock, "train", [wrong])
    assert dock.consumer_status("train", "wrong").ready == 2


def test_stop_ends_waits_and_finishes_what_is_begun(dock):
    begun, go_on = threading.Event(), threading.Event()

    @stage(reads=["prompt"], writes=["response"])
    def slow(rows):
        begun.set()
        assert go_on.wait(LONG)
        return {"response": rows["prompt"].tolist()}

    ids = put(dock, ["a", "b"])
    runner = Runner(dock, "train", [slow, reward]).start()
    assert begun.wait(LONG)
    runner.stop()
    assert not runner.join(timeout=0.05)
    go_on.set()
    assert runner.join(timeout=LONG)
    assert dock.fetch("train", ids, ["response"])["response"].tolist() == ["a", "b"]


def test_a_lease_lasts_as_long_as_the_function_works(dock, monkeypatch):
    register, renew, ends = dock.register_consumer, dock.renew, []
    # A longer one than the stage's: a renewal that comes too late on a loaded machine loses no row.
    monkeypatch.setattr(dock, "register_consumer", lambda *names, **options: register(*names, **options | LONG_LEASE))
    monkeypatch.setattr(dock, "renew", lambda partition, lease: ends.append(renew(partition, lease)))

    @stage(reads=["prompt"], writes=["response"], lease_seconds=0.09)
    def slow(rows):
        ((_, every),) = runner._renewals._due.values()
        assert every < 0.09 / 2, "one renewal may be late"
        until(lambda: len(ends) >= 4, "renewals for as long as the lease lasts")
        assert rows.expires < ends[0] < ends[-1]
        return {"response": rows["prompt"].tolist()}

    put(dock, ["a", "b"])
    dock.seal("train")
    runner = Runner(dock, "train", [slow])
    runner.start().join()
    assert runner.counts["slow"].batches == 1
    assert dock.consumer_status("train", "slow").expired == 0
    assert not runner._renewals._due


def test_stages_share_rows_with_takers_elsewhere():
    with td.DockServer(listen="127.0.0.1:0") as server:
        here, there = server.dock, td.Dock.connect(server.tcp_address)
        here.create_partition("train", {"prompt": "str", "response": "str"})
        ids = here.put("train", {"prompt": [str(row) for row in range(64)]})
        here.seal("train")
        both = [Runner(dock, "train", [answer]).start() for dock in (here, there)]
        for runner in both:
            assert runner.join(timeout=LONG)
        assert sum(runner.counts["answer"].rows for runner in both) == 64
        assert here.fetch("train", ids, ["response"])["response"].tolist() == [str(row) for row in range(64)]


def test_options_are_checked():
    with raising(td.InvalidArgument, "'reads'", "'len'", "['prompt']"):
        stage(reads="prompt")(len)
    with pytest.raises(td.InvalidArgument, match="min_batch"):
        stage(reads=["prompt"], min_batch=3, batch_size=2)(len)
    with pytest.raises(td.InvalidArgument, match="min_batch"):
        answer.with_options(batch_size=0)
    with pytest.raises(td.InvalidArgument, match="their step"):
        stage(reads=["prompt"], checkpointed=True)(len)
    with pytest.raises(td.InvalidArgument, match="same name"):
        Runner(td.Dock.local(), "train", [answer, answer])
    with raising(td.InvalidArgument, "'answer'", "2 ranks", "rank="):
        Runner(td.Dock.local(), "train", [answer.with_options(consumer={"ranks": 2})])


def test_ranks_share_the_rows(dock):
    put(dock, [str(row) for row in range(8)])
    dock.seal("train")
    shared = answer.with_options(consumer={"ranks": 2})
    counts = [run(dock, "train", [shared], rank=rank)["answer"].rows for rank in (0, 1)]
    assert counts == [4, 4]


def test_an_error_is_told_once(dock, caplog):
    @stage(reads=["prompt"], writes=["response"])
    def broken(rows):
        raise RuntimeError("no tokenizer")

    put(dock, ["a", "b"])
    with pytest.raises(StageError):
        run(dock, "train", [broken])
    assert "another error" not in caplog.text
    with pytest.raises(td.FailedPrecondition, match="not started"):
        Runner(dock, "train", [answer]).join()
