"""What programs of TransferQueue count on beyond its verbs: the forms of results, modules, files, what init() returns."""

from __future__ import annotations

import asyncio
import importlib.resources
import pathlib
import pickle
from collections.abc import Callable
from typing import Any

import omegaconf
import pytest
import torch
from tensordict import TensorDict

import transfer_dock as td
import transfer_dock.compat.transfer_queue as tq


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
    with pytest.raises(FileNotFoundError, match="index.json"):
        client.load_storage_checkpoint(str(tmp_path / "nothing"))
    (tmp_path / "other.pkl").write_bytes(pickle.dumps({}))
    with pytest.raises(ValueError, match="no checkpoint of a controller"):
        client.load_controller_checkpoint(str(tmp_path / "other.pkl"))
    tq.save_checkpoint(tmp_path / "whole")
    (tmp_path / "whole" / "controller_state.pkl").unlink()
    with pytest.raises(FileNotFoundError, match="controller_state"):
        tq.load_checkpoint(tmp_path / "whole")
