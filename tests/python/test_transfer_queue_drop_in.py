"""What programs of TransferQueue count on beyond its verbs: the forms of results, modules, files, what init() returns."""

from __future__ import annotations

import asyncio
import importlib.resources
import pathlib
import pickle
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from typing import Any

import omegaconf
import pytest
import torch
from tensordict import TensorDict

import transfer_dock as td
import transfer_dock.compat.transfer_queue as tq
from messages import mentions, raising
from waiting import LONG


def numbers(rows: int, start: int = 0) -> TensorDict:
    return TensorDict({"x": torch.arange(start, start + rows)}, batch_size=[rows])


VALUES = [torch.arange(3), torch.rand(2), "text", None, torch.tensor(1.5), torch.arange(4), torch.rand(2, 2), b"\xff"]


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    return type(a) is type(b) and bool(a == b)


@pytest.mark.parametrize("first", range(len(VALUES)))
def test_rows_of_a_field_keep_the_kind_and_the_dtype_that_each_has(
    client: Any, first: int, tmp_path: pathlib.Path
) -> None:
    """TransferQueue says that a put of another dtype succeeded; get_data fails later."""
    values = [VALUES[first], *VALUES]
    keys = [f"{i}" for i in range(len(values))]

    def check(got: TensorDict) -> None:
        rows = got["x"].unbind() if isinstance(got["x"], torch.Tensor) else got["x"].tolist()
        assert all(map(same, rows, values)), rows

    for key, value in zip(keys, values, strict=True):
        tq.kv_put(key, "train", {"x": value})
    check(tq.kv_batch_get(keys, "train"))
    values.reverse()
    for key, value in zip(keys, values, strict=True):
        tq.kv_put(key, "train", {"x": value})
        got = tq.kv_batch_get(key, "train")["x"]
        assert same(got[0] if isinstance(got, torch.Tensor) else got.tolist()[0], value)
    tq.save_checkpoint(tmp_path / "saved")
    tq.load_checkpoint(tmp_path / "saved")
    assert client.check_production_status(["x"], "train")
    assert client.kv_retrieve_meta(keys, "train").field_names == ["x"]
    check(client.get_data(client.get_meta(["x"], len(keys), "train", task_name="t")))


ROWS = [
    [(4,), (5,)],
    [(4,), (4,)],
    [(4,)],
    [(0,), (3,)],
    [(0,), (0,)],
    [(4, 3), (5, 3)],
    [(3, 4), (3, 5)],
    [(3, 0), (3, 2)],
    [(3, 4), (3, 4)],
    [(3, 0), (4, 0)],
    [(2, 3, 4), (2, 5, 4)],
    [(2, 3, 4), (2, 3, 5)],
    [(1, 3, 8, 8), (1, 3, 8, 8)],
]


def test_a_nested_result_is_the_one_that_torch_makes_of_the_rows(client: Any) -> None:
    """With its lengths, by which torch pads, and the dimension that is ragged; also where all rows are alike."""
    for i, shapes in enumerate(ROWS):
        rows = [torch.rand(shape) for shape in shapes]
        for j, row in enumerate(rows):
            tq.kv_put(f"{j}", f"p{i}", {"x": row})
        got = tq.kv_batch_get([f"{j}" for j in range(len(rows))], f"p{i}")["x"]
        wanted = torch.nested.as_nested_tensor(rows, layout=torch.jagged)
        assert got.layout == torch.jagged and got._ragged_idx == wanted._ragged_idx
        assert (got._min_seqlen, got._max_seqlen) == (wanted._min_seqlen, wanted._max_seqlen)
        assert torch.equal(got.offsets(), wanted.offsets()) and got.lengths() is None
        assert torch.equal(got.values(), wanted.values())
        if got.dim() == 2:
            assert got.to_padded_tensor(0.0).shape == (len(rows), max(shape[0] for shape in shapes))
    # Those that a stage of the dock's own put, in a column of one shape, and a whole batch.
    dock = td.Dock.connect(client._core.address.local)
    dock.create_partition("native", {"x": td.column("float32", (2, 3))}, growing=True)
    dock.put("native", {"x": torch.rand(4, 2, 3)})
    put = client.put(TensorDict({"x": torch.rand(4, 2, 3)}, batch_size=[4]), partition_id="batch")
    for meta in (client.get_meta(["x"], 4, "native", mode="force_fetch"), put):
        got = client.get_data(meta)["x"]
        assert got.layout == torch.jagged and (got._min_seqlen, got._max_seqlen) == (2, 2)
        assert got.values().shape == (8, 3)


def test_init_returns_what_it_was_given_where_the_system_runs(client: Any) -> None:
    assert tq.init() is None
    given = {"controller": {"polling_mode": False}}
    assert tq.init(given) is given and tq.get_client()._core.settings.polling


def test_the_configuration_is_a_resource_of_the_package(system: Callable[..., Any]) -> None:
    from transfer_dock.compat.transfer_queue import _server

    loaded = omegaconf.OmegaConf.load(importlib.resources.files("transfer_dock.compat.transfer_queue") / "config.yaml")
    assert omegaconf.OmegaConf.to_container(loaded) == _server._DEFAULTS
    tq.close()
    loaded.controller.polling_mode = True
    assert tq.init(loaded).controller.polling_mode


def test_the_helpers_that_programs_import_do_as_those_of_transfer_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("common", "enum_utils", "logging_utils", "zmq_utils"):
        importlib.import_module(f"transfer_dock.compat.transfer_queue.utils.{name}")
    for package in ("transfer_queue", "transfer_dock.compat.transfer_queue"):
        enums = importlib.import_module(package + ".utils.enum_utils")
        assert [one.value for one in enums.Role] == [f"TransferQueue{name}" for name in ("Controller", "Storage", "Client")]
        assert enums.ProductionStatus.READY_FOR_CONSUME == enums.ProductionStatus("1")
        with pytest.raises(ValueError, match="nobody is not a valid Role"):
            enums.Role("nobody")
        common = importlib.import_module(package + ".utils.common")
        for text, value in {" Yes": True, "on": True, "1": True, "0": False, "": False, "maybe": False}.items():
            monkeypatch.setenv("TQ_TEST", text)
            assert common.get_env_bool("TQ_TEST", not value) is value
        assert common.get_env_bool("TQ_NOT_SET", True)
        with common.limit_pytorch_auto_parallel_threads(1):
            assert torch.get_num_threads() == 1
        assert issubclass(importlib.import_module(package + ".storage").StorageKeyNotFoundError, KeyError)


def test_the_two_halves_of_a_checkpoint_can_be_saved_by_themselves(
    system: Callable[..., Any], tmp_path: pathlib.Path
) -> None:
    system(sampler=tq.GRPOGroupNSampler(n_samples_per_prompt=2))
    client = tq.get_client()
    client.put(numbers(4), partition_id="train")
    assert client.get_meta(["x"], 2, "train", task_name="t").global_indexes == [0, 1]
    client.save_storage_checkpoint(str(tmp_path))
    client.save_controller_checkpoint(str(tmp_path / "state.pkl"))
    assert client.get_meta(["x"], 2, "train", task_name="t").size == 2
    assert client.check_consumption_status("t", "train")
    client.load_controller_checkpoint(str(tmp_path / "state.pkl"))
    assert client.get_consumption_status("t", "train")[1].tolist() == [1, 1, 0, 0]
    client.put(numbers(2), partition_id="train")
    asyncio.run(client.async_load_storage_checkpoint(str(tmp_path)))
    assert client.get_data(client.get_meta(["x"], 2, "train", task_name="t"))["x"].tolist() == [2, 3]
    with pytest.raises(FileNotFoundError, match="storage_unit_info.json"):
        client.load_storage_checkpoint(str(tmp_path / "nothing"))
    (tmp_path / "other.pkl").write_bytes(pickle.dumps({}))
    with raising(ValueError, "other.pkl", "controller"):
        client.load_controller_checkpoint(str(tmp_path / "other.pkl"))
    tq.save_checkpoint(tmp_path / "whole")
    (tmp_path / "whole" / "controller_state.pkl").unlink()
    with pytest.raises(FileNotFoundError, match="controller_state"):
        tq.load_checkpoint(tmp_path / "whole")


def series_at(endpoint: str | None) -> dict[str, float]:
    with urllib.request.urlopen(f"http://{endpoint}/metrics", timeout=LONG) as answer:
        lines = answer.read().decode().splitlines()
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))}


def test_metrics_have_the_names_of_transfer_queue_and_follow_the_dock(system: Callable[..., Any]) -> None:
    import transfer_queue.metrics as theirs

    import transfer_dock.compat.transfer_queue.metrics as ours

    assert {one.name for one in ours.TQMetricsExporter().registry.collect()} == {
        one.name for one in theirs.TQMetricsExporter().registry.collect()
    }
    tq.close()
    conf = tq.init({"controller": {"polling_mode": True}, "metrics": {"enabled": True}})
    endpoint = tq.get_metrics_endpoint()
    assert endpoint is not None and conf.metrics.endpoint == endpoint
    tq.kv_batch_put(["a", "b"], "train", numbers(2))
    tq.get_client().get_meta(["x"], 1, "train", task_name="t")
    tq.get_client().get_meta(["x"], 1, "gone", mode="insert")
    series = series_at(endpoint)
    assert series['tq_partition_samples_total{partition_id="train"}'] == 2
    assert series['tq_partition_production_progress{partition_id="train",task_name="all"}'] == 1
    assert series['tq_partition_production_progress{partition_id="gone",task_name="all"}'] == 0
    assert series['tq_partition_consumption_progress{partition_id="train",task_name="t"}'] == 0.5
    assert series['tq_storage_active_keys_total{storage_unit_id="dock"}'] == 3 == series["tq_global_index_allocated_total"]
    assert series['tq_storage_memory_rss_bytes{storage_unit_id="dock"}'] > 0
    tq.get_client().clear_partition("gone")
    series = series_at(endpoint)
    assert series["tq_partitions_total"] == 1 and not [name for name in series if "gone" in name]
    tq.close()
    with pytest.raises(OSError):
        series_at(endpoint)


def test_the_actor_tells_all_of_a_partition(client: Any) -> None:
    from transfer_dock.compat.transfer_queue._controller import TransferQueueController

    controller = TransferQueueController(address=client._core.address.to_variable())
    assert controller.get_partition_snapshot("train") is None
    tq.kv_batch_put(["a", "b", "c"], "train", numbers(3), [{"n": 1}, {}, {"n": 3}])
    tq.kv_put("b", "train", {"y": torch.ones(2)})
    tq.kv_clear("a", "train")
    client.get_meta(["x"], 1, "train", task_name="t")
    told = controller.get_partition_snapshot("train")
    assert told is not None and told.keys_mapping == {"b": 1, "c": 2} and told.revert_keys_mapping == {1: "b", 2: "c"}
    assert told.global_indexes == {1, 2} and told.custom_meta == {2: {"n": 3}}
    assert told.production_status[[1, 2]][:, told.field_name_mapping["x"]].tolist() == [1, 1]
    assert told.production_status[[1, 2]][:, told.field_name_mapping["y"]].tolist() == [1, 0]
    assert {task: marks.tolist() for task, marks in told.consumption_status.items()} == {"t": [0, 1, 0]}
    assert (told.total_samples_num, told.total_fields_num) == (2, 2)


def test_a_program_that_is_not_edited_imports_it_under_its_own_name() -> None:
    shown = subprocess.run(
        [sys.executable, "-m", "transfer_dock.compat"], check=True, timeout=LONG, capture_output=True, text=True
    )
    program = """
import sys
sys.path.insert(0, sys.argv[1])
import transfer_queue as tq, transfer_queue.metadata as metadata
from transfer_queue.sampler import BaseSampler
import transfer_dock.compat.transfer_queue as ours
assert tq is ours and metadata is ours.metadata and BaseSampler is ours.BaseSampler
assert metadata.__spec__.name == metadata.__name__ == "transfer_dock.compat.transfer_queue.metadata"
try:
    import transfer_queue.storage.clients
except ModuleNotFoundError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", program, shown.stdout.strip()], check=True, timeout=LONG, capture_output=True, text=True
    )
    mentions(done.stdout, "'storage.clients'")
    assert shown.stdout.startswith(str(pathlib.Path(td.__path__[0])))
