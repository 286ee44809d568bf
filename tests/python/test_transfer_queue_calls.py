"""Wrong calls of TransferQueue's module: their exceptions, with messages that name the mistake."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import TensorDict
from messages import raising

import transfer_dock as td
import transfer_dock.compat.transfer_queue as tq


@pytest.mark.parametrize("name", [None, 5, "", ["train"]])
def test_names_are_strings(client: Any, name: Any) -> None:
    data = TensorDict({"x": torch.ones(1, 2)}, batch_size=[1])
    for call in (
        lambda: client.put(data, partition_id=name or 0),
        lambda: client.get_meta(["x"], 1, name, task_name="t"),
        lambda: client.clear_partition(name),
        lambda: client.get_consumption_status("t", name),
        lambda: client.get_production_status(["x"], name),
        lambda: client.check_consumption_status("t", name),
        lambda: client.check_production_status(["x"], name),
        lambda: client.reset_consumption(name),
        lambda: client.kv_retrieve_meta(["k"], name),
        lambda: client.kv_retrieve_keys([0], name),
        lambda: tq.kv_put("k", name, {"x": torch.ones(2)}),
        lambda: tq.kv_batch_get(["k"], name),
        lambda: tq.kv_clear(["k"], name),
    ):
        with raising(td.InvalidArgument, "partition_id", "str"):
            call()
    for call in (
        lambda: client.get_meta(["x"], 1, "train", task_name=name or 0),
        lambda: client.get_consumption_status(name, "train"),
        lambda: client.check_consumption_status(name, "train"),
    ):
        with raising(td.InvalidArgument, "task_name", "str"):
            call()


def test_wrong_calls_raise_what_the_original_raises(client: Any) -> None:
    for count in ("2", 2.5, [2]):
        with raising(RuntimeError, "batch_size", repr(count)):
            client.get_meta(["x"], count, "train", task_name="t")
    with raising(RuntimeError, "sampling_config", "'x'"):
        client.get_meta(["x"], 2, "train", task_name="t", sampling_config="x")
    for meta in (None, 5):
        with raising(RuntimeError, "clear_samples", repr(meta)):
            client.clear_samples(meta)
    assert tq.BatchMeta.concat(None).size == 0  # type: ignore[arg-type]
