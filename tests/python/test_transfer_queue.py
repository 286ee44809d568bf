"""What transfer_dock.compat.transfer_queue does otherwise than TransferQueue, on purpose, and what cannot be compared.

The names of tests state the behaviour; where TransferQueue does something else, the test says what.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import pathlib
import pickle
import signal
import threading
from collections.abc import Callable
from typing import Any

import omegaconf
import pytest
import torch
from tensordict import NonTensorStack, TensorDict
from messages import raising
from transfer_queue_data import dense
from waiting import LONG, NEVER, ends, until

import transfer_dock as td
import transfer_dock.compat.transfer_queue as tq


def numbers(rows: int, start: int = 0) -> TensorDict:
    return TensorDict({"x": torch.arange(start, start + rows)}, batch_size=[rows])


# How long a get waits for samples, unless it polls.
FETCH_TIMEOUT = "transfer_dock.compat.transfer_queue.client._FETCH_TIMEOUT"


# ---- Faults of TransferQueue.


def test_groups_are_those_that_were_put_and_never_neighbours(system: Callable[..., Any]) -> None:
    """TransferQueue takes any n neighbours for a group: here samples 1 and 2, of two prompts."""
    system(sampler=tq.GRPOGroupNSampler(n_samples_per_prompt=2))
    client = tq.get_client()
    meta = client.put(numbers(4), partition_id="train")
    reward = TensorDict({"reward": torch.ones(2)}, batch_size=[2])
    client.put(reward, meta.select_samples([1, 2]))
    assert client.get_meta(["reward"], 2, "train", task_name="t").size == 0
    client.put(reward[:1], meta.select_samples([3]))
    assert client.get_meta(["reward"], 2, "train", task_name="t").global_indexes == [2, 3]
    assert client.get_meta(["reward"], 2, "train", task_name="t").size == 0


def test_a_native_column_takes_its_own_dtype_only(client: Any) -> None:
    dock = td.Dock.connect(client._core.address.local)
    dock.create_partition("native", {"logp": td.column("float32", ragged=True)})
    half = TensorDict({"logp": torch.ones(2, 3, dtype=torch.float16)}, batch_size=[2])
    with pytest.raises(ValueError, match="'logp' holds ragged float32.*; given ragged float16"):
        client.put(half, partition_id="native")
    meta = client.put(half.float(), partition_id="native")
    with pytest.raises(ValueError, match="'logp' holds ragged float32.*; given ragged float16"):
        client.put(half, meta)
    assert torch.equal(dense(client.get_data(meta)["logp"]), torch.ones(2, 3))


def test_who_waits_for_samples_keeps_nobody_waiting(
    system: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """TransferQueue's controller sleeps, and answers nobody, while a get waits."""
    monkeypatch.setattr(FETCH_TIMEOUT, NEVER)
    system(polling_mode=False)
    client = tq.get_client()
    client.put(numbers(4), partition_id="train")
    answer: list[Any] = []
    waiting = threading.Thread(
        target=lambda: answer.append(client.get_meta(["x"], 8, "train", task_name="t")), daemon=True
    )
    waiting.start()
    for _ in range(100):
        ends(client.get_partition_list, "a call beside one that waits")
    assert not answer
    client.put(numbers(4), partition_id="train")
    waiting.join(timeout=LONG)
    assert answer[0].global_indexes == list(range(8))


def test_a_wait_ends_and_says_what_is_missing(system: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    system(polling_mode=False)
    client = tq.get_client()
    client.put(numbers(4), partition_id="train")
    monkeypatch.setattr(FETCH_TIMEOUT, 0.2)
    with raising(TimeoutError, "8 samples", "partition 'train'", "task 't'", "4 rows"):
        client.get_meta(["x"], 8, "train", task_name="t")
    with pytest.raises(RuntimeError, match="no partition 'other'"):
        client.get_meta(["x"], 1, "other", task_name="t")
    with pytest.raises(RuntimeError):
        asyncio.run(client.async_get_meta(["x"], 8, "train", task_name="t"))
    monkeypatch.setattr(FETCH_TIMEOUT, LONG)
    assert client.get_meta(["x"], 4, "train", task_name="t").size == 4


def test_calls_end_when_the_server_was_killed(client: Any) -> None:
    """TransferQueue's clients hang."""
    meta = client.put(numbers(4), partition_id="train")
    os.kill(tq.interface._system.server._process.pid, signal.SIGKILL)
    for call in (lambda: client.get_data(meta), lambda: client.put(numbers(1), partition_id="train")):
        with pytest.raises(ConnectionError):
            ends(call, "a call to a dead server")


def test_workers_of_a_rank_read_each_batch_once(system: Callable[..., Any]) -> None:
    """Two workers of TransferQueue's loader read every batch twice."""
    config = system(sampler="RankAwareSampler")
    tq.get_client().put(numbers(24), partition_id="train")
    for rank_process in range(2):  # a second process of the same rank reads the same
        dataset = tq.StreamingDataset(config, 4, 2, ["x"], "train", "actor", 0, should_check_consumption_status=True)
        loader = tq.StreamingDataLoader(dataset, num_workers=2, multiprocessing_context="fork")
        batches = [data["x"].tolist() for data, _ in loader]
        assert sorted(sum(batches, [])) == list(range(24)), rank_process
        assert all(len(batch) == 2 for batch in batches)


def test_cleared_samples_free_their_memory(client: Any) -> None:
    """In TransferQueue two samples of a put keep the memory of all 1,024."""
    data = TensorDict({"x": torch.randn(1024, 16384)}, batch_size=[1024])
    meta = client.put(data, partition_id="train")
    held = client._core.dock.status("train").held_bytes
    assert held >= 1024 * 16384 * 4
    client.clear_samples(meta.select_samples(range(1, 1023)))
    until(lambda: client._core.dock.status("train").held_bytes < held / 100, "the memory of cleared samples")
    left = client.get_data(meta.select_samples([0, 1023]))["x"]
    assert torch.equal(dense(left), data["x"][[0, 1023]])


def test_no_sample_is_in_two_balanced_batches(system: Callable[..., Any]) -> None:
    """In TransferQueue what a slow rank has not asked for yet goes into the next batch of a fast one, too."""
    system(sampler=tq.SeqlenBalancedSampler(n_samples_per_prompt=2, dp_size=2))
    client = tq.get_client()
    meta = client.put(numbers(16), partition_id="train")
    meta.update_custom_meta([{"total_lengths": 1 + i} for i in range(16)])
    client.set_custom_meta(meta)
    handed: list[int] = []
    for rank, batch in [(0, 0), (0, 1), (1, 0), (1, 1)]:
        config = {"dp_rank": rank, "batch_index": batch, "task_name": "t", "partition_id": "train"}
        got = client.get_meta(["x"], 4, "train", task_name="t", sampling_config=config)
        assert got.size == 4
        handed += got.global_indexes
        again = client.get_meta(["x"], 4, "train", task_name="t", sampling_config=config)
        assert again.global_indexes == got.global_indexes
    assert sorted(handed) == list(range(16))
    assert client.check_consumption_status("t", "train")


def test_a_put_to_a_cleared_sample_is_refused(client: Any) -> None:
    """TransferQueue makes it a sample again, without its other fields."""
    meta = client.put(numbers(2), partition_id="train")
    client.clear_samples(meta.select_samples([0]))
    more = TensorDict({"y": torch.ones(2)}, batch_size=[2])
    with pytest.raises(tq.StorageKeyNotFoundError, match="row 0 is gone"):
        client.put(more, meta)
    assert not client.check_production_status(["y"], "train")
    with pytest.raises(KeyError):
        client.get_data(meta.select_samples([0]))


def test_a_malformed_request_to_the_sampler_harms_nobody(system: Callable[..., Any]) -> None:
    system(sampler="RankAwareSampler")
    client = tq.get_client()
    client.put(numbers(4), partition_id="train")
    dock = client._core.dock
    for request in (b"", b"no pickle", pickle.dumps(("_sample", ())), pickle.dumps(7)):
        row = dock.put("~transfer_queue", {"request": [request]})
        good, error = pickle.loads(dock.fetch("~transfer_queue", row, ["answer"], timeout=LONG)["answer"][0])
        assert not good and error
    with pytest.raises(RuntimeError, match="dp_rank"):
        client.get_meta(["x"], 2, "train", task_name="t")
    config = {"dp_rank": 0, "batch_index": 0, "task_name": "t", "partition_id": "train"}
    assert client.get_meta(["x"], 2, "train", task_name="t", sampling_config=config).size == 2


def test_stages_of_both_kinds_work_on_one_partition(client: Any) -> None:
    dock = td.Dock.connect(client._core.address.local)
    client.put(TensorDict({"ids": torch.arange(6).reshape(2, 3)}, batch_size=[2]), partition_id="train")
    dock.register_consumer("train", "reward", reads=["ids"], writes=["reward", "logp"])
    with dock.take("train", "reward", max=2) as rows:
        lengths = [len(ids) for ids in rows["ids"]]
        rows.put({"reward": torch.tensor(lengths, dtype=torch.float32), "logp": [torch.ones(3), torch.ones(2)]})
    meta = client.get_meta(["ids", "reward", "logp"], 2, "train", task_name="actor")
    got = client.get_data(meta)
    assert got["reward"].tolist() == [3, 3] and [len(row) for row in got["logp"].unbind()] == [3, 2]
    assert client.check_production_status(["reward"], "train")


# ---- What comes back is the caller's own.


def test_data_can_be_written_to_and_the_dock_does_not_see_it(client: Any) -> None:
    data = TensorDict(
        {
            "a": torch.zeros(3, 4),
            "b": torch.zeros(3, dtype=torch.bfloat16),
            "n": torch.nested.as_nested_tensor([torch.zeros(1), torch.zeros(2), torch.zeros(3)], layout=torch.jagged),
        },
        batch_size=[3],
    )
    meta = client.put(data, partition_id="train")
    client.get_data(meta)["a"].fill_(1)
    client.get_data(meta)["b"].fill_(1)
    client.get_data(meta)["n"].values().fill_(1)
    again = client.get_data(meta)
    assert not again["a"].any() and not again["b"].any() and not again["n"].values().any()


def test_every_dtype_and_shape_comes_back(client: Any) -> None:
    dtypes = [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16]
    dtypes += [torch.bfloat16, torch.float32, torch.float64, torch.float8_e4m3fn, torch.float8_e5m2]
    dtypes += [torch.complex64, torch.uint16]  # kept as objects
    for dtype in dtypes:
        for shape in [(2,), (2, 3), (2, 1, 2), (2, 0), (2, 3, 0)]:
            values = (torch.arange(24).reshape(-1)[: torch.Size(shape).numel()].reshape(shape) % 2).to(dtype)
            name = f"{dtype}/{len(shape)}/{shape[-1]}"
            meta = client.put(TensorDict({name: values.clone()}, batch_size=[2]), partition_id="train")
            got = dense(client.get_data(meta)[name])
            assert got.dtype == dtype and got.shape == values.shape
            assert torch.equal(got.view(torch.uint8), values.view(torch.uint8)), name


def test_rows_that_agree_in_nothing_come_back(client: Any) -> None:
    rows = [torch.randn(2, 3), torch.randn(4, 1), torch.randn(1, 1)]
    nested = torch.nested.as_nested_tensor(rows, layout=torch.strided)
    meta = client.put(TensorDict({"image": nested}, batch_size=[3]), partition_id="train")
    got = client.get_data(meta)["image"]
    assert all(torch.equal(a, b) for a, b in zip(got.unbind(), rows, strict=True))
    one = client.get_data(meta.select_samples([1]))["image"]
    assert torch.equal(one[0] if one.is_nested else one.squeeze(0), rows[1])


def test_any_object_comes_back(client: Any) -> None:
    objects = [{"a": (1, 2)}, None, b"\xff\x01", "text", ["x", torch.ones(2)], 1.5]
    meta = client.put(TensorDict({"o": NonTensorStack(*objects)}, batch_size=[6]), partition_id="train")
    got = client.get_data(meta)["o"]
    assert list(got)[:4] == objects[:4] and got[5] == 1.5
    assert torch.equal(got[4][1], torch.ones(2))
    client.put(TensorDict({"o": NonTensorStack("only", "text")}, batch_size=[2]), partition_id="train")
    assert list(client.get_data(client.get_meta(["o"], 0, "train", mode="force_fetch"))["o"])[6:] == ["only", "text"]
    client.put(TensorDict({"t": NonTensorStack("only", "text")}, batch_size=[2]), partition_id="texts")
    client.put(TensorDict({"t": NonTensorStack(b"\xff", "text")}, batch_size=[2]), partition_id="texts")
    got = client.get_data(client.get_meta(["t"], 0, "texts", mode="force_fetch"))["t"]
    assert list(got) == ["only", "text", b"\xff", "text"]


def test_notes_of_any_size_and_kind_come_back(client: Any) -> None:
    notes = {"long": "ä" * 5000, "tuple": (1, (2,)), "nested": {"a": [1, None, 0.5]}, "set": {1, 2}}
    tq.kv_put("k", "train", None, notes)
    assert tq.kv_list("train") == {"train": {"k": notes}}
    assert tq.kv_put("k", "train", None, {"long": "short"}).tags == [{**notes, "long": "short"}]
    assert tq.kv_list("train")["train"]["k"]["long"] == "short"


def test_many_fields_come_back(client: Any) -> None:
    data = TensorDict({f"a_field_with_a_long_name_{i}": torch.full((2, i + 1), i) for i in range(60)}, batch_size=[2])
    meta = tq.kv_batch_put(["a", "b"], "train", data)
    assert len(meta.fields) == 60
    got = tq.kv_batch_get(["b"], "train")
    assert all(torch.equal(dense(got[name]), data[name][1:]) for name in data.keys())


# ---- Tasks.


def test_a_task_consumes_a_sample_whatever_fields_it_asks_for(client: Any) -> None:
    client.put(TensorDict({"x": torch.arange(8), "y": torch.arange(8)}, batch_size=[8]), partition_id="train")
    assert client.get_meta(["x"], 2, "train", task_name="t").global_indexes == [0, 1]
    assert client.get_meta(["x", "y"], 2, "train", task_name="t").global_indexes == [2, 3]
    assert client.get_meta(["y"], 2, "train", task_name="t").global_indexes == [4, 5]
    other = tq.TransferQueueClient("other", client._core.address)
    assert other.get_meta(["x"], 2, "train", task_name="t").global_indexes == [6, 7]
    assert client.check_consumption_status("t", "train")
    assert client.get_consumption_status("t", "train")[1].tolist() == [1] * 8
    assert client.get_meta(["x"], 8, "train", task_name="u").size == 8


def test_clients_learn_that_a_task_asks_for_other_fields(client: Any) -> None:
    client.put(TensorDict({"x": torch.arange(8), "y": torch.arange(8)}, batch_size=[8]), partition_id="train")
    other = tq.TransferQueueClient("other", client._core.address)
    assert client.get_meta(["x"], 2, "train", task_name="t").global_indexes == [0, 1]
    assert other.get_meta(["x"], 2, "train", task_name="t").global_indexes == [2, 3]
    assert client.get_meta(["y"], 1, "train", task_name="t").global_indexes == [4]
    assert other.get_meta(["x"], 1, "train", task_name="t").global_indexes == [5]
    other.reset_consumption("train", "t")
    assert client.get_meta(["x"], 8, "train", task_name="t").size == 8


def test_threads_share_a_task_without_losing_or_doubling(client: Any) -> None:
    client.put(numbers(400), partition_id="train")
    handed: list[int] = []
    fields = [["x"], ["x", "y"]]
    client.put(
        TensorDict({"y": torch.arange(400)}, batch_size=[400]), client.get_meta(["x"], 0, "train", mode="force_fetch")
    )

    def consume(number: int) -> None:
        while (meta := client.get_meta(fields[number % 2], 4, "train", task_name="t")).size:
            handed.extend(meta.global_indexes)

    # One kind of request first: what is taken while a task changes its kind may be handed out twice.
    client.get_meta(["x"], 4, "train", task_name="t")
    handed.extend(client.get_meta(["y"], 4, "train", task_name="t").global_indexes)
    threads = [threading.Thread(target=consume, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=LONG)
    assert sorted(handed) == list(range(4, 400))


def test_expected_samples_are_not_consumed_before_they_are_put(
    system: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TQ_PRE_ALLOC_SAMPLE_NUM", "6")
    system()
    client = tq.get_client()
    client.put(numbers(4), partition_id="train")
    client.get_meta(["x"], 4, "train", task_name="t")
    assert not client.check_consumption_status("t", "train")
    assert client.get_consumption_status("t", "train")[1].tolist() == [1, 1, 1, 1, 0, 0]
    tq.kv_batch_put(["a", "b"], "train", numbers(2))
    client.get_meta(["x"], 2, "train", task_name="t")
    assert client.check_consumption_status("t", "train")
    client.clear_partition("train")
    assert client.get_partition_list() == []


class EveryOther(tq.BaseSampler):
    """Hands out every other sample, and remembers how often it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def sample(
        self, ready_indexes: list[int], batch_size: int, *args: Any, **kwargs: Any
    ) -> tuple[list[int], list[int]]:
        self.calls += 1
        if kwargs.get("fail"):
            raise KeyError("asked to fail")
        chosen = ready_indexes[::2][:batch_size]
        assert kwargs["partition"].kv_retrieve_keys(chosen) == [None] * len(chosen)
        return chosen, chosen

    def save_checkpoint(self) -> dict[str, Any]:
        return {**super().save_checkpoint(), "calls": self.calls}

    def load_checkpoint(self, state: dict[str, Any]) -> None:
        super().load_checkpoint(state)
        self.calls = state["calls"]


def test_samplers_of_ones_own_serve_all_processes(system: Callable[..., Any], tmp_path: pathlib.Path) -> None:
    sampler = EveryOther()
    system(sampler=sampler)
    client = tq.get_client()
    client.put(numbers(8), partition_id="train")
    assert client.get_meta(["x"], 2, "train", task_name="t").global_indexes == [0, 2]
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(_fetch_elsewhere, (2,)) == [1, 4]
        with pytest.raises(RuntimeError, match="KeyError: 'asked to fail'"):
            pool.apply(_fetch_elsewhere, (1, {"fail": True}))
    assert sampler.calls == 3
    tq.save_checkpoint(tmp_path / "saved")
    sampler.calls = 0
    tq.load_checkpoint(tmp_path / "saved")
    assert sampler.calls == 3
    assert client.get_consumption_status("t", "train")[1].tolist() == [1, 1, 1, 0, 1, 0, 0, 0]


def _fetch_elsewhere(rows: int, config: dict[str, Any] | None = None) -> list[int]:
    tq.init()
    meta = tq.get_client().get_meta(["x"], rows, "train", task_name="t", sampling_config=config)
    assert tq.get_client().get_data(meta)["x"].tolist() == meta.global_indexes
    return meta.global_indexes


# ---- Processes.


def _put_elsewhere(partition: str) -> dict[str, Any]:
    meta = tq.kv_batch_put(["a", "b"], partition, numbers(2), [{"n": 1}, {"n": 2}])
    tq.close()  # ends this process's part only
    return {"keys": meta.keys, "tags": meta.tags}


@pytest.mark.parametrize("how", ["fork", "spawn"])
def test_other_processes_find_the_system(client: Any, how: str) -> None:
    with multiprocessing.get_context(how).Pool(1) as pool:
        assert pool.apply(_put_elsewhere, ("train",)) == {"keys": ["a", "b"], "tags": [{"n": 1}, {"n": 2}]}
    assert tq.kv_batch_get(["b", "a"], "train")["x"].tolist() == [1, 0]


def test_a_server_that_runs_already_can_be_used(system: Callable[..., Any]) -> None:
    tq.close()
    with td.serve(listen="127.0.0.1:0", token="secret") as server:
        for address in (server.address, server.tcp_address):
            tq.init({"backend": {"TransferDock": {"address": address, "token": "secret"}}})
            client = tq.get_client()
            meta = client.put(numbers(3), partition_id=f"over {address.split(':')[0]}")
            assert client.get_data(meta)["x"].tolist() == [0, 1, 2]
            tq.close()


def test_a_closed_system_is_gone_and_can_be_started_again(system: Callable[..., Any]) -> None:
    system()
    tq.kv_put("a", "train", None, {"n": 1})
    tq.close()
    with pytest.raises(AssertionError, match="init"):
        tq.kv_list()
    with pytest.raises(AssertionError, match="init"):
        tq.get_client()
    assert tq.get_metrics_endpoint() is None
    with pytest.raises(RuntimeError, match="init"):
        tq.save_checkpoint("/nowhere")
    system()
    assert tq.kv_list() == {}


def test_configurations_of_omegaconf_are_understood(system: Callable[..., Any]) -> None:
    tq.close()
    conf = tq.init(omegaconf.OmegaConf.create({"controller": {"polling_mode": True}, "metrics": {"enabled": True}}))
    assert conf.controller.polling_mode and conf.backend.storage_backend == "SimpleStorage"
    again = tq.TransferQueueClient("again", pickle.loads(pickle.dumps(conf)).controller.zmq_info)
    assert again.get_meta(["x"], 1, "train", task_name="t").size == 0
    assert str(tq.get_metrics_endpoint()).startswith("127.0.0.1:")


def test_a_sampler_that_is_none_is_refused(system: Callable[..., Any]) -> None:
    tq.close()
    with pytest.raises(ValueError, match="Could not find sampler Nonsense"):
        tq.init({"controller": {"sampler": "Nonsense"}})
    with raising(TypeError, "BaseSampler", "int"):
        tq.init({"controller": {"sampler": int}})


# ---- Checkpoints.


def test_a_checkpoint_has_everything_and_the_same_indexes(client: Any, tmp_path: pathlib.Path) -> None:
    data = TensorDict(
        {
            "b": torch.randn(6, 2, 3).to(torch.bfloat16),
            "n": torch.nested.as_nested_tensor([torch.arange(i % 3) for i in range(6)], layout=torch.jagged),
            "r": torch.arange(6.0),
            "s": NonTensorStack(*["a", {"b": 1}, "c", "d", "e", "f"]),
        },
        batch_size=[6],
    )
    keyed = tq.kv_batch_put([f"k{i}" for i in range(6)], "train", data.clone(), [{"n": i} for i in range(6)])
    client.put(numbers(2), partition_id="empty")
    client.clear_samples(client.get_meta(["x"], 0, "empty", mode="force_fetch"))
    tq.kv_clear(["k1", "k4"], "train")
    client.get_meta(["r"], 2, "train", task_name="t")
    meta = client.get_meta(["r", "s"], 0, "train", mode="force_fetch")
    for _ in range(2):
        tq.save_checkpoint(tmp_path / "saved", metadata={"step": 3})
    assert "step" in (tmp_path / "saved" / "metadata.json").read_text()
    tq.kv_clear(keyed.keys, "train")
    client.put(numbers(3), partition_id="other")
    tq.load_checkpoint(tmp_path / "saved")
    assert client.get_partition_list() == ["empty", "train"]
    again = client.get_meta(["r", "s"], 0, "train", mode="force_fetch")
    assert again.global_indexes == meta.global_indexes == [0, 2, 3, 5]
    assert list(client.get_data(meta)["s"]) == ["a", "c", "d", "f"]
    got = tq.kv_batch_get(["k5", "k0"], "train")
    assert torch.equal(dense(got["b"]), data["b"][[5, 0]]) and [len(row) for row in got["n"]] == [2, 0]
    assert tq.kv_list("train") == {"train": {f"k{i}": {"n": i} for i in (0, 2, 3, 5)}}
    assert client.get_consumption_status("t", "train")[1].tolist() == [1, 1, 0, 0]
    assert client.put(numbers(1), partition_id="train").global_indexes == [6]
    with pytest.raises(FileNotFoundError, match="nothing"):
        tq.load_checkpoint(tmp_path / "nothing")


@pytest.mark.parametrize("part", ["0/rows-0.npz", "1/rows-0.npz", "1/tasks.npz", "index.json", "../controller_state.pkl"])
def test_a_damaged_checkpoint_changes_nothing(client: Any, tmp_path: pathlib.Path, part: str) -> None:
    for name in ("a", "b"):
        client.put(numbers(3), partition_id=name)
        client.get_meta(["x"], 2, name, task_name="t")
    tq.save_checkpoint(tmp_path / "saved")
    client.put(numbers(2), partition_id="b")

    def refused(error: type[Exception]) -> None:
        with pytest.raises(error, match=pathlib.Path(part).name):
            tq.load_checkpoint(tmp_path / "saved")
        assert client.get_partition_list() == ["a", "b"]
        assert client.get_meta(["x"], 0, "b", mode="force_fetch").size == 5
        assert client.get_consumption_status("t", "b")[1].tolist() == [1, 1, 0, 0, 0]

    path = tmp_path / "saved" / "simple_storage" / part
    whole = path.read_bytes()
    middle = len(whole) // 4
    for damaged in (whole[: len(whole) // 2], b"", whole[:middle] + b"\0" * middle + whole[2 * middle :]):
        path.write_bytes(damaged)
        refused(ValueError)
    path.unlink()
    refused(FileNotFoundError)
    path.write_bytes(whole)
    tq.load_checkpoint(tmp_path / "saved")
    assert client.get_meta(["x"], 0, "b", mode="force_fetch").size == 3


def test_a_checkpoint_is_on_the_disk_before_it_has_its_name(
    client: Any, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    plain = os.fsync

    def fsync(opened: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{opened}"))
        plain(opened)

    monkeypatch.setattr(os, "fsync", fsync)
    client.put(numbers(3), partition_id="a")
    tq.save_checkpoint(tmp_path / "saved")
    paths = [tmp_path / "saved", *(tmp_path / "saved").rglob("*")]
    aside = {str(tmp_path / "saved.tmp" / path.relative_to(tmp_path / "saved")) for path in paths}
    assert set(synced[:-1]) == aside and synced[-1] == str(tmp_path)


# ---- Loaders and coroutines.


def test_a_loader_of_one_process_can_start_over_and_go_on(system: Callable[..., Any]) -> None:
    config = system(sampler="RankAwareSampler")
    client = tq.get_client()
    client.put(numbers(6), partition_id="first")
    client.put(numbers(3, start=100), partition_id="second")
    dataset = tq.StreamingDataset(config, 3, 2, ["x"], "first", "actor", 0, should_check_consumption_status=True)
    loader = tq.StreamingDataLoader(dataset)
    assert [data["x"].tolist() for data, _ in loader] == [[0, 1], [2], [3, 4], [5]]
    assert [meta.global_indexes for _, meta in loader] == []
    loader.reset()
    assert [meta.global_indexes for _, meta in loader] == [[0, 1], [2], [3, 4], [5]]
    assert len(loader.get_buffer()) == 2
    loader.step("second")
    assert [data["x"].tolist() for data, _ in loader] == [[100, 101], [102]]


def test_a_stream_waits_for_samples(system: Callable[..., Any]) -> None:
    config = system(sampler="RankAwareSampler")
    stream = iter(tq.StreamingDataset(config, 2, 2, ["x"], "train", "actor", 0))
    later = threading.Timer(0.2, lambda: tq.get_client().put(numbers(2), partition_id="train"))
    later.start()
    data, meta = next(stream)
    later.join()
    assert data["x"].tolist() == [0, 1] and meta.size == 2


def test_coroutines_run_beside_each_other(system: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FETCH_TIMEOUT, LONG)
    system(polling_mode=False)
    client = tq.get_client()

    async def stage(task: str) -> list[int]:
        meta = await client.async_get_meta(["x"], 4, "train", task_name=task)
        return (await client.async_get_data(meta))["x"].tolist()

    async def program() -> list[Any]:
        stages = [asyncio.create_task(stage(f"t{i}")) for i in range(40)]
        await asyncio.sleep(0.05)
        await tq.async_kv_batch_put(["a", "b", "c", "d"], "train", numbers(4))
        return await asyncio.gather(*stages)

    assert asyncio.run(program()) == [[0, 1, 2, 3]] * 40


def test_a_parser_makes_what_is_stored(client: Any) -> None:
    def load(fields: dict[str, Any]) -> dict[str, Any]:
        fields["url"] = [torch.full((len(one),), float(i)) for i, one in enumerate(fields["url"])]
        fields["x"] = fields["x"] * 2
        return fields

    data = TensorDict({"url": NonTensorStack("a", "bb"), "x": torch.arange(2)}, batch_size=[2])
    meta = client.put(data, partition_id="train", data_parser=load)
    got = client.get_data(meta)
    assert [row.tolist() for row in got["url"].unbind()] == [[0.0], [1.0, 1.0]] and got["x"].tolist() == [0, 2]
    with raising(ValueError, "data_parser", "keys"):
        client.put(data, partition_id="train", data_parser=lambda fields: {"x": fields["x"]})
    with raising(ValueError, "data_parser", "url"):
        client.put(data, partition_id="train", data_parser=lambda fields: {**fields, "url": ["a"]})
    with raising(TypeError, "data_parser", "dict"):
        client.put(data, partition_id="train", data_parser=lambda fields: None)
