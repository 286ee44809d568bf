"""What somebody meets who tries the package for the first time: mistakes, and looking at things."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import numpy as np
import pytest
import torch
from messages import raising
from waiting import LONG

import transfer_dock as td
from transfer_dock.datasets import DockDataset


@pytest.fixture
def train(local: td.Dock) -> td.Dock:
    columns = {"prompt": "str", "tokens": td.column("int32", ragged=True), "reward": "float32"}
    local.create_partition("train", columns)
    local.register_consumer("train", "c", reads=["prompt"])
    return local


def test_take_waits_unless_it_is_told_not_to(dock: td.Dock) -> None:
    dock.create_partition("p", {"x": "int64"})
    dock.register_consumer("p", "c", reads=["x"])
    with pytest.raises(td.DeadlineExceeded, match="waited for 1 row"):
        dock.take("p", "c", timeout=0)
    taken: list[int] = []
    taker = threading.Thread(target=lambda: taken.extend(dock.take("p", "c").ids.tolist()))
    taker.start()
    time.sleep(0.05)  # so that it waits, as it does on a machine that has nothing else to do
    dock.put("p", {"x": [7]})
    taker.join(LONG)
    assert taken == [0]


def test_a_take_is_cancelled_from_another_thread(train: td.Dock) -> None:
    cancel = td.Cancel()
    threading.Timer(0.05, cancel.request).start()
    with pytest.raises(td.Cancelled):
        train.take("train", "c", timeout=None, cancel=cancel)


@pytest.mark.parametrize("wrong", [-1, -0.001, "5", float("nan"), [1]])
def test_a_time_is_a_number_of_seconds(train: td.Dock, wrong: object) -> None:
    @td.stage(reads=["prompt"], name="c")
    def stage(rows: td.Taken) -> None: ...

    def join(timeout: object) -> None:
        runner = td.Runner(train, "train", [stage]).start()
        try:
            runner.join(timeout)  # type: ignore[arg-type]
        finally:
            runner.stop()

    calls: list[Callable[[], object]] = [
        lambda: train.take("train", "c", timeout=wrong),  # type: ignore[arg-type]
        lambda: train.fetch("train", [0], ["prompt"], timeout=wrong),  # type: ignore[arg-type]
        lambda: train.put("train", {"prompt": ["a"]}, timeout=wrong),  # type: ignore[arg-type]
        lambda: td.Dock.connect("unix:/none", reconnect_for=wrong),  # type: ignore[arg-type]
        lambda: td.Dock.connect("unix:/none", answer_within=wrong),  # type: ignore[arg-type]
        lambda: td.serve(session_grace=wrong),  # type: ignore[arg-type]
        lambda: DockDataset(train, "train", "c", batch_size=1, timeout=wrong),  # type: ignore[arg-type]
        lambda: join(wrong),
    ]
    for call in calls:
        with raising(td.InvalidArgument, repr(wrong), "of seconds"):
            call()


def test_columns_are_named(train: td.Dock) -> None:
    with raising(td.InvalidArgument, "'columns'", "a list", "a dict"):
        train.create_partition("p", columns=["prompt", "reward"])  # type: ignore[arg-type]
    with raising(td.InvalidArgument, "'data'", "a list", "a dict"):
        train.put("train", [{"prompt": "a"}])  # type: ignore[arg-type]
    assert train.partitions() == ["train"] and train.status("train").rows == 0


@pytest.mark.parametrize(
    ("argument", "call"),
    [
        ("reads", lambda dock: dock.register_consumer("train", "d", reads="prompt")),
        ("writes", lambda dock: dock.register_consumer("train", "d", reads=[], writes="prompt")),
        ("retain_for", lambda dock: dock.create_partition("p", retain_for="c")),
        ("columns", lambda dock: dock.fetch("train", [0], "prompt")),
        ("columns", lambda dock: DockDataset(dock, "train", "c", batch_size=1, columns="prompt")),
        ("keys", lambda dock: dock.find("train", "a")),
        ("keys", lambda dock: dock.put("train", {"prompt": ["a"]}, keys="a")),
        ("having", lambda dock: dock.list("train", having="prompt")),
        ("reads", lambda dock: td.stage(reads="prompt")(len)),
        ("writes", lambda dock: td.stage(reads=[], writes="prompt")(len)),
    ],
)
def test_one_str_is_no_list_of_names(train: td.Dock, argument: str, call: Callable[[td.Dock], object]) -> None:
    with raising(td.InvalidArgument, f"'{argument}'", "a list"):
        call(train)


@pytest.mark.parametrize(
    ("given", "name"),
    [
        (np.float32, "float32"),
        (np.dtype("int8"), "int8"),
        (np.bool_, "bool"),
        (torch.bfloat16, "bfloat16"),
        (torch.float8_e5m2, "float8_e5m2"),
        (bool, "bool"),
        (str, "str"),
        (bytes, "bytes"),
    ],
)
def test_dtypes_of_other_libraries_are_types_of_columns(local: td.Dock, given: td.schema.DTypeLike, name: str) -> None:
    local.create_partition("p", {"x": given, "y": td.column(given)})
    local.create_partition("p", {"x": name, "y": td.column(name)})  # it is there with these options


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (float, "float32 or float64"),
        (int, "int32 or int64"),
        (np.complex64, "complex64"),
        (np.dtype(">f4"), "other order"),
        (torch.complex64, "complex64"),
        (np.uint16, "the types are bool, uint8"),
        (3, "the types are bool, uint8"),
    ],
)
def test_other_dtypes_are_refused(given: td.schema.DTypeLike, why: str) -> None:
    with pytest.raises(td.InvalidArgument, match=why):
        td.column(given)
