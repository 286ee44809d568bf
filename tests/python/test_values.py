"""Values that are not what a call expects: refused with an error of the dock, and never a crash."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import transfer_dock as td

from messages import raising

HUGE = 2**70


def make(dock: td.Dock) -> None:
    dock.create_partition("p", {"x": "int64", "text": "str"})
    dock.register_consumer("p", "c", reads=["x"])


@pytest.mark.parametrize("seconds", [math.nan, -1, -0.5, "soon", [1], 10**400])
def test_times_that_are_none(dock: td.Dock, seconds: Any) -> None:
    make(dock)
    calls: list[Callable[[], Any]] = [
        lambda: dock.take("p", "c", timeout=seconds),
        lambda: dock.fetch("p", [0], ["x"], timeout=seconds),
        lambda: dock.put("p", {"x": [1]}, timeout=seconds),
        lambda: dock.register_consumer("p", "other", reads=["x"], lease_seconds=seconds),
        lambda: td.Dock.connect("unix:/nowhere", reconnect_for=seconds),
        lambda: td.Dock.connect("unix:/nowhere", answer_within=seconds),
    ]
    for call in calls:
        with raising(td.InvalidArgument, "of seconds"):
            call()


@pytest.mark.parametrize("number", [HUGE, -HUGE, 1.5, "1", None])
def test_integers_that_are_none_or_too_large(dock: td.Dock, number: Any) -> None:
    make(dock)
    calls: list[Callable[[], Any]] = [
        lambda: dock.take("p", "c", number),
        lambda: dock.take("p", "c", min=number),
        lambda: dock.take("p", "c", rank=number),
        lambda: dock.put("p", new_rows=number),
        lambda: dock.put("p", {"x": [1]}, group_size=number),
        lambda: dock.row_status("p", number),
        lambda: dock.list("p", start=number),
        lambda: dock.list("p", limit=number),
        lambda: dock.commit("p", "c", number),
        lambda: dock.publish_weights("p", number),
        lambda: dock.create_partition("q", group_size=number),
        lambda: dock.create_partition("q", max_bytes=number),
        lambda: dock.create_partition("q", {"x": td.column("int64", (number,))}),
        lambda: dock.register_consumer("p", "d", reads=["x"], seed=number),
        lambda: dock.register_consumer("p", "d", reads=["x"], ranks=number),
    ]
    for call in calls:
        with pytest.raises((td.InvalidArgument, TypeError)) as caught:
            call()
        if number is not None:
            assert isinstance(caught.value, td.InvalidArgument)
    for call in (lambda: dock.put("p", {"x": [1]}, step=HUGE), lambda: dock.complete("p", HUGE)):
        with pytest.raises(td.InvalidArgument):
            call()


def test_names_with_half_a_surrogate_pair(dock: td.Dock) -> None:
    make(dock)
    half = "a\ud800"
    calls: list[Callable[[], Any]] = [
        lambda: dock.create_partition(half),
        lambda: dock.create_partition("q", {half: "int64"}),
        lambda: dock.register_consumer("p", half, reads=["x"]),
        lambda: dock.register_consumer("p", "d", reads=[half]),
        lambda: dock.take(half, "c"),
        lambda: dock.take("p", half),
        lambda: dock.put("p", {half: [1]}),
        lambda: dock.put("p", {"text": [half]}),
        lambda: dock.put("p", {"x": [1]}, keys=[half]),
        lambda: dock.put("p", {"x": [1]}, tags={half: "a"}),
        lambda: dock.status(half),
        lambda: dock.explain("p", half),
        lambda: dock.drop_partition(half),
        lambda: td.Dock.connect(half),
    ]
    for call in calls:
        with pytest.raises(td.InvalidArgument):
            call()


def test_the_mask_of_an_array_is_not_lost(dock: td.Dock) -> None:
    dock.create_partition("p", {"x": td.column("float32")})
    array = np.ma.masked_array(np.array([1, 2], dtype=np.float32), mask=[False, True])
    for data in (array, [array[0], array[1:]]):
        with pytest.raises(td.InvalidArgument):
            dock.put("p", {"x": data})
    with pytest.raises(td.InvalidArgument, match="masked"):
        dock.put("p", {"x": array})
    rows = dock.put("p", {"x": np.ma.masked_array(array.data, mask=False)})
    assert dock.fetch("p", rows, ["x"])["x"].numpy().tolist() == [1, 2]


class Clears:
    """Number that empties its list, or its dict, when it is asked for its value."""

    def __init__(self, container: Any) -> None:
        self.container = container

    def __index__(self) -> int:
        self.container.clear()
        return 0

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        self.container.clear()
        return np.array([1])

    def __repr__(self) -> str:
        self.container.clear()
        return "cleared"


def test_items_that_change_the_container_they_are_in(dock: td.Dock) -> None:
    make(dock)
    for call in (
        lambda items: dock.fetch("p", items, ["x"]),
        lambda items: dock.put("p", {"x": [1] * 1000}, groups=items),
        lambda items: dock.put("p", {"x": [1] * 1000}, keys=items),
        lambda items: dock.take("p", "c", rows=items),
        lambda items: dock.register_consumer("p", "d", reads=items),
        lambda items: dock.put("p", {"x": items}),
    ):
        items: list[Any] = []
        items += [Clears(items) for _ in range(1000)]
        with pytest.raises(td.DockError):
            call(items)
    data: dict[str, Any] = {}
    data.update({f"c{i}": Clears(data) for i in range(100)})
    dock.create_partition("grows")
    # It may be what it was at first, or refused; but nothing of it is read after it has gone.
    try:
        dock.put("grows", data)
    except td.DockError:
        pass


def test_errors_travel_to_other_processes() -> None:
    @td.stage(reads=["x"])
    def broken(rows: td.Taken) -> None:
        raise RuntimeError("no tokenizer")

    dock = td.Dock.local()
    make(dock)
    ids = dock.put("p", {"x": [1, 2]})
    with pytest.raises(td.StageError) as caught:
        td.Runner(dock, "p", [broken]).start().join()
    again = pickle.loads(pickle.dumps(caught.value))
    assert isinstance(again, td.StageError)
    assert str(again) == str(caught.value)
    assert again.stage.name == "broken" and again.rows == ids.tolist()
    with raising(RuntimeError, "stage", "process"):
        again.stage(None)
    error = pickle.loads(pickle.dumps(td.NotFound("no 'x'")))
    assert isinstance(error, td.NotFound) and str(error) == "no 'x'"
