"""transfer_dock.compat.transfer_queue beside others: programs that use the dock itself, other writers, other launchers."""

from __future__ import annotations

import asyncio
import base64
import logging
import os
import pathlib
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import NonTensorStack, TensorDict
from messages import raising
from transfer_queue_data import dense
from waiting import LONG

import transfer_dock as td
import transfer_dock.compat.transfer_queue as tq
from transfer_dock.compat.transfer_queue import _labels


@pytest.fixture
def client() -> Iterator[Any]:
    tq.close()
    tq.init({"controller": {"polling_mode": True}})
    yield tq.get_client()
    tq.close()


@pytest.fixture
def dock(client: Any) -> Any:
    """The dock, as a program uses it that knows nothing of TransferQueue."""
    return td.Dock.connect(client._core.address.local)


def batch(rows: int, **fields: Any) -> TensorDict:
    return TensorDict(fields, batch_size=[rows])


# ---- Consumers that are no tasks.


def test_native_consumers_are_left_alone(client: Any, dock: td.Dock, tmp_path: pathlib.Path) -> None:
    client.put(batch(4, x=torch.arange(4)), partition_id="train")
    dock.register_consumer("train", "native", reads=["x"])
    taken = dock.take("train", "native", 2)
    client.get_meta(["x"], 3, "train", task_name="task")
    tq.save_checkpoint(tmp_path / "saved")
    client.reset_consumption("train")
    assert not client.get_consumption_status("task", "train")[1].any()
    taken.complete([0])
    assert client.get_consumption_status("native", "train")[1].tolist() == [1, 0, 0, 0]
    taken.complete()
    assert client.get_consumption_status("native", "train")[1].tolist() == [1, 1, 0, 0]
    assert not client.check_consumption_status("native", "train")
    with raising(RuntimeError, "'native'", "consumer", "partition 'train'"):
        client.reset_consumption("train", "native")
    with raising(RuntimeError, "'native'", "task", "another name"):
        client.get_meta(["x"], 1, "train", task_name="native")
    assert dock.consumer_status("train", "native").done == 2
    tq.load_checkpoint(tmp_path / "saved")
    assert client.get_consumption_status("task", "train")[1].tolist() == [1, 1, 1, 0]


# ---- Cells, rows and partitions of others.


def test_columns_that_a_native_stage_puts_are_fields(client: Any, dock: td.Dock) -> None:
    tq.kv_batch_put(["a", "b"], "train", batch(2, x=torch.ones(2, 4)), tags=[{"t": 1}, {"t": 2}])
    dock.put("train", {"reward": np.array([0.5, 1], np.float32), "h": np.ones((2, 3), np.float32)}, rows=[0, 1])
    dock.put("train", {"part": [1.0]}, rows=[0])
    assert sorted(tq.kv_batch_get(["a", "b"], "train").keys()) == ["h", "reward", "x"]
    assert sorted(tq.kv_batch_get(["a"], "train").keys()) == ["h", "part", "reward", "x"]
    assert client.kv_retrieve_meta(["a", "b"], "train").field_names == ["h", "reward", "x"]
    assert tq.kv_put("a", "train", None, {"t": 3}).fields == ["h", "part", "reward", "x"]
    meta = client.get_meta(["x", "reward", "h"], 0, "train", mode="force_fetch")
    assert meta.is_ready and meta.get_shapes("h") == [(3,), (3,)]
    assert client.get_data(meta)["reward"].tolist() == [0.5, 1]
    assert client.get_meta(["part"], 0, "train", mode="force_fetch").production_status.tolist() == [1, 0]


def test_rows_that_a_native_stage_puts_are_samples(client: Any, dock: td.Dock) -> None:
    tq.kv_batch_put(["a"], "train", batch(1, x=torch.ones(1, 4)))
    dock.put("train", {"x": [np.ones(4, np.float32), np.ones(2, np.float32)]}, keys=["n", None])
    assert dense(tq.kv_batch_get("n", "train")["x"]).tolist() == [[1, 1, 1, 1]]
    assert dense(tq.kv_batch_get(["n", "a"], "train")["x"]).shape == (2, 4)
    assert client.kv_retrieve_meta(["n", "a"], "train").global_indexes == [1, 0]
    assert client.kv_retrieve_keys([0, 1, 2], "train") == ["a", "n", None]
    meta = client.get_meta(["x"], 3, "train", task_name="task")
    assert meta.get_shapes("x") == [(4,), (4,), (2,)]
    assert [len(row) for row in client.get_data(meta)["x"].unbind()] == [4, 4, 2]
    client.put(batch(3, y=torch.arange(3)), meta)
    assert tq.kv_list("train") == {"train": {"a": {}, "n": {}}}


def test_native_bytes_are_bytes_and_are_never_unpickled(client: Any, dock: td.Dock) -> None:
    evil = b"\xff\x01" + pickle.dumps({"never": "read"})
    cells = [b"\x80abc", b"text", evil]
    dock.create_partition("native", {"b": "bytes", "s": "str"})
    dock.put("native", {"b": cells, "s": ["a", "b", "c"]}, keys=["0", "1", "2"])
    for meta in [
        client.get_meta(["b"], 3, "native", task_name="task"),
        client.get_meta(["b"], 0, "native", mode="force_fetch"),
    ]:
        assert list(client.get_data(meta)["b"]) == cells
    got = tq.kv_batch_get(["0", "1", "2"], "native")
    assert list(got["b"]) == cells and list(got["s"]) == ["a", "b", "c"]
    with raising(td.InvalidArgument, "'s'", "byte 0", "UTF-8"):
        dock.put("native", {"s": [evil]}, rows=[1], overwrite=True)
    evil_text = "\U0010ffff" + base64.b64encode(evil).decode()
    dock.put("native", {"s": [evil_text]}, rows=[1], overwrite=True)
    assert list(tq.kv_batch_get(["0", "1"], "native")["s"]) == ["a", evil_text]
    # An object that a native stage replaced.
    tq.kv_put("o", "train", {"o": {"k": 1}})
    dock.put("train", {"o": [b"\xfe"]}, rows=[0], overwrite=True)
    assert list(tq.kv_batch_get("o", "train")["o"]) == [b"\xfe"]


def test_objects_and_strings_share_a_field(client: Any, dock: td.Dock) -> None:
    like_an_object = "\U0010ffffAAAA"
    values: list[Any] = ["a", "b", None, {"x": b"\xff"}, "c", b"\xff\xfe", like_an_object]
    for at, count in ((0, 2), (2, 3), (5, 2)):
        keys = [f"k{i}" for i in range(at, at + count)]
        tq.kv_batch_put(keys, "p", batch(count, o=NonTensorStack(*values[at : at + count])))
    keys = [f"k{i}" for i in range(len(values))]
    assert tq.kv_batch_get(keys, "p")["o"].tolist() == values
    # What a native stage reads is text.
    assert all(isinstance(text, str) for text in dock.fetch("p", range(len(values)), ["o"])["o"].tolist())


def test_a_native_partition_takes_its_own_fields_and_no_others(client: Any, dock: td.Dock) -> None:
    dock.create_partition("native", {"x": td.column("float32", (2,)), "y": "int64"})
    meta = client.put(batch(2, x=torch.ones(2, 2), y=torch.arange(2)), partition_id="native")
    assert dense(client.get_data(meta)["x"]).tolist() == [[1, 1], [1, 1]]
    for metadata in (None, meta):
        with raising(ValueError, "field 'z'", "['x', 'y']", "growing=True"):
            client.put(batch(2, x=torch.ones(2, 2), z=torch.ones(2)), metadata, partition_id="native")
    assert client.kv_retrieve_keys([0, 1], "native") == [None, None]


def test_a_checkpoint_has_native_columns(client: Any, dock: td.Dock, tmp_path: pathlib.Path) -> None:
    dense, ragged = np.arange(12, dtype=np.float32).reshape(2, 2, 3), [np.ones((2, 3)), np.ones((0, 3))]
    dock.create_partition("native", {"d": td.column("float32", (2, 3)), "r": td.column("float64", (3,), ragged=True)})
    dock.put("native", {"d": dense, "r": ragged}, keys=["a", "b"])
    tq.save_checkpoint(tmp_path / "saved")
    dock.drop_partition("native")
    tq.load_checkpoint(tmp_path / "saved")
    rows = dock.fetch("native", dock.find("native", ["a", "b"]), ["d", "r"])
    assert np.array_equal(rows["d"].numpy(), dense)
    assert [one.shape for one in rows["r"]] == [(2, 3), (0, 3)]


# ---- Writers beside each other.


def test_the_label_is_that_of_the_last_put_whatever_the_clocks_say(
    client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    meta = client.put(batch(1, x=torch.zeros(1, 2, 3), o=NonTensorStack({"k": 1})), partition_id="train")
    monkeypatch.setattr("time.time_ns", lambda: 0)
    for shape in [(1, 3, 2), (1, 5, 2), (1, 2, 3)]:
        client.put(batch(1, x=torch.ones(shape), y=torch.ones(1)), meta)
        again = client.get_meta(["x"], 1, "train", mode="force_fetch")
        assert dense(client.get_data(again)["x"]).shape == shape == (1, *again.get_shapes("x")[0])
    many = {f"f{i}": torch.full((1, 2, 1 + i), i) for i in range(70)}
    client.put(batch(1, **many), meta)
    got = client.get_data(client.get_meta(list(many), 1, "train", mode="force_fetch"))
    assert all(torch.equal(dense(got[name]), many[name]) for name in many)


def test_a_label_that_contradicts_the_cell_does_not_hold(client: Any, dock: td.Dock) -> None:
    meta = client.put(batch(2, x=torch.zeros(2, 2, 3)), partition_id="train")
    dock.put("train", {"x": [np.ones(5, np.float32)]}, rows=[1], overwrite=True)
    assert [tuple(row.shape) for row in client.get_data(meta)["x"]] == [(2, 3), (5,)]


def test_a_put_of_new_and_old_keys_is_all_or_nothing(client: Any) -> None:
    for size in (2, 20_000):
        partition = f"of {size}"
        tq.kv_batch_put(["a"], partition, batch(1, x=torch.ones(1, size)))
        refused = batch(2, x=torch.ones(2, size), y=torch.ones(2), **{"z" * 300: torch.ones(2)})
        for keys in (["a", "b"], ["b", "a"]):
            with raising(ValueError, "a name", "bytes", "255"):
                tq.kv_batch_put(keys, partition, refused, tags=[{"t": 1}, {"t": 2}])
        assert tq.kv_list(partition) == {partition: {"a": {}}}
        assert client.check_production_status(["x"], partition)
        mixed = batch(3, x=torch.arange(3.0).reshape(3, 1), o=NonTensorStack("r", {"s": 1}, "t"))
        put = tq.kv_batch_put(["b", "a", "c"], partition, mixed, tags=[{"t": 0}, {"t": 1}, {}])
        assert put.tags == [{"t": 0}, {"t": 1}, {}]
        got = tq.kv_batch_get(["a", "b", "c"], partition)
        assert dense(got["x"]).tolist() == [[1], [0], [2]] and list(got["o"]) == [{"s": 1}, "r", "t"]


def test_a_put_that_fails_after_it_made_keys_takes_them_back(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    tq.kv_batch_put(["a"], "train", batch(1, x=torch.ones(1)))

    def fail(*arguments: Any) -> None:
        raise td.ResourceExhausted("no memory")

    monkeypatch.setattr(client._core.store, "write", fail)
    with pytest.raises(MemoryError):
        tq.kv_batch_put(["a", "b"], "train", batch(2, x=torch.ones(2)))
    assert list(tq.kv_list("train")["train"]) == ["a"]


def test_tags_of_two_writers_of_a_key_are_both_there(client: Any) -> None:
    for i in range(20):
        tq.kv_put(f"k{i}", "train", {"x": torch.ones(2)}, {"base": 1})
        barrier = threading.Barrier(2)

        def write(name: str, key: str = f"k{i}", barrier: threading.Barrier = barrier) -> None:
            barrier.wait()
            tq.kv_put(key, "train", None, {name: (1, "ä" * 3000)})

        threads = [threading.Thread(target=write, args=(name,)) for name in "ab"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    note = (1, "ä" * 3000)
    assert all(tags == {"base": 1, "a": note, "b": note} for tags in tq.kv_list("train")["train"].values())
    # Notes that take the place of all.
    meta = client.kv_retrieve_meta(["k0"], "train")
    meta.clear_custom_meta()
    meta.update_custom_meta([{"b": 2}])
    client.set_custom_meta(meta)
    assert tq.kv_list("train")["train"]["k0"] == {"b": 2}
    assert tq.kv_put("k0", "train", None, {"a": 3}).tags == [{"b": 2, "a": 3}]
    assert tq.kv_list("train")["train"]["k0"] == {"b": 2, "a": 3}


def test_data_that_this_process_changed_is_asked_for_again(client: Any) -> None:
    other = tq.TransferQueueClient("other", client._core.address)
    client.put(batch(2, x=torch.zeros(2, 3)), partition_id="train")
    metas = [client.get_meta(["x"], 2, "train", task_name=f"t{i}") for i in range(2)]
    other.put(batch(2, x=torch.ones(2, 3)), other.get_meta(["x"], 2, "train", mode="force_fetch"))
    assert client.get_data(metas[0])["x"].all()
    other.clear_samples(metas[1])
    with pytest.raises(tq.StorageKeyNotFoundError):
        client.get_data(metas[1])


def test_notes_and_labels_of_any_name_come_back() -> None:
    fields = [_labels.PutField(name, (i,), False) for i, name in enumerate(["a,b", "%", "*$", "%1", "~", "x" * 250])]
    for new in (True, False):
        tags = _labels.label_put(fields, 1, new)
        assert isinstance(tags, dict) and all(len(name.encode()) <= 255 for name in tags)
        assert {name: label.shape for name, label in _labels.fields_of(tags).items()} == {
            field.name: field.shapes for field in fields
        }
    notes = {"/": 1, "=": 2, "": 3, "=/1": 4, 5: 6, ("a",): 7}
    assert _labels.notes_of(_labels.added_tags({}, notes)) == notes
    assert _labels.notes_of(_labels.note_tags(notes)) == notes


# ---- Finding the server, and ending.


def test_a_launcher_may_name_a_plain_server(monkeypatch: pytest.MonkeyPatch) -> None:
    tq.close()
    with td.serve(token="secret") as server:
        monkeypatch.setenv("TDOCK_TRANSFER_QUEUE", server.tcp_address)
        monkeypatch.setenv("TDOCK_TRANSFER_QUEUE_TOKEN", "secret")
        for _ in range(2):
            with raising(RuntimeError, "no process", "init"):
                tq.kv_list()
            tq.init({"controller": {"polling_mode": True}})
            tq.kv_put("a", "train", {"x": torch.ones(2)})
            child = "import transfer_dock.compat.transfer_queue as tq; tq.init(); print(tq.get_client()._core.settings.polling, tq.kv_list())"
            told = subprocess.run([sys.executable, "-c", child], capture_output=True, text=True, check=True, timeout=LONG)
            assert told.stdout.strip() == "True {'train': {'a': {}}}"
            tq.close()
            assert os.environ["TDOCK_TRANSFER_QUEUE"] == server.tcp_address
            assert os.environ["TDOCK_TRANSFER_QUEUE_TOKEN"] == "secret"


def test_who_joined_by_an_address_ends_its_own_part_only(client: Any) -> None:
    address = client._core.address.local
    child = (
        "import transfer_dock.compat.transfer_queue as tq\n"
        f"tq.init({{'backend': {{'TransferDock': {{'address': '{address}'}}}}}})\n"
        "tq.close()"
    )
    environment = {key: value for key, value in os.environ.items() if key != "TDOCK_TRANSFER_QUEUE"}
    subprocess.run([sys.executable, "-c", child], env=environment, check=True, timeout=LONG)
    assert tq.TransferQueueClient("late", client._core.address).get_partition_list() == []


def test_a_process_may_end_without_closing() -> None:
    program = (
        "import transfer_dock.compat.transfer_queue as tq, time\n"
        "tq.init({'controller': {'sampler': 'GRPOGroupNSampler'}}); time.sleep(0.2); print('leaving')"
    )
    environment = {key: value for key, value in os.environ.items() if key != "TDOCK_TRANSFER_QUEUE"}
    for _ in range(3):
        ended = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=LONG
        )
        assert (ended.returncode, ended.stdout) == (0, "leaving\n"), ended.stderr


def test_a_sampler_serves_on_after_the_dock_did_not_answer(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("transfer_dock.compat.transfer_queue._sampling._AGAIN_AFTER", 0.01)
    tq.close()
    tq.init({"controller": {"polling_mode": True, "sampler": "GRPOGroupNSampler"}})
    host = tq.interface._system.host
    assert host is not None
    plain, left, over = host._store.dock.take, [None] * 3, threading.Event()

    def take(*arguments: Any, **named: Any) -> Any:
        if left:
            left.pop()
            raise td.Unavailable("a hiccup")
        over.set()
        return plain(*arguments, **named)

    with caplog.at_level(logging.ERROR):
        monkeypatch.setattr(host._store.dock, "take", take)
        assert over.wait(LONG)
    assert [record.getMessage().count("hiccup") for record in caplog.records] == [1]
    child = "import transfer_dock.compat.transfer_queue as tq; tq.init(); tq.get_client()._core.sampler.clear_cache('train')"
    subprocess.run([sys.executable, "-c", child], check=True, timeout=LONG)
    tq.close()


def test_what_only_transfer_queue_uses_is_accepted(client: Any) -> None:
    async def look() -> list[str]:
        await client.async_kv_list(socket=None)
        return list(await client.async_get_partition_list(None))

    assert asyncio.run(look()) == []
    assert tq.BatchMeta([0], ["p"], _custom_backend_meta=[{"x": {}}]).size == 1
