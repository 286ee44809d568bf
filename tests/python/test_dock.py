"""Verbs of a dock: of a local one, and through each transport."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest

import transfer_dock as td

from conftest import connect
from messages import mentions, raising
from waiting import LONG, until


@pytest.fixture
def flow(dock: td.Dock) -> td.Dock:
    """A partition "p" that a scorer fills and a trainer reads."""
    dock.create_partition("p", {"prompt": "str", "reward": "float32"})
    dock.register_consumer("p", "scorer", reads=["prompt"], writes=["reward"])
    dock.register_consumer("p", "trainer", reads=["prompt", "reward"], checkpointed=True)
    return dock


def test_a_sample_travels_through_its_stages(flow: td.Dock) -> None:
    ids = flow.put(
        "p", {"prompt": ["1+1=", "2+2="]}, groups=[7, 7], group_size=2, keys=["one", None], tags={"split": "easy"}
    )
    assert ids.dtype == np.uint64 and ids.tolist() == [0, 1]
    before = time.time()
    taken = flow.take("p", "scorer", max=8)
    assert taken.lease and before + 599 <= taken.expires <= time.time() + 601
    assert taken.ids.tolist() == [0, 1] and taken.groups.tolist() == [7, 7]
    assert taken.row_keys == ["one", None] and taken.tags == [{"split": "easy"}] * 2
    assert taken.columns == ["prompt"] and taken["prompt"].tolist() == ["1+1=", "2+2="]
    taken.put({"reward": [1.0, 0.5]}, weights_version=3)
    with flow.take("p", "trainer", max=8) as rows:
        assert rows["reward"].numpy().tolist() == [1.0, 0.5]
        assert rows.weights_versions("reward").tolist() == [3, 3] and rows.weights_versions("prompt").tolist() == [
            -1,
            -1,
        ]
        assert rows.pieces("reward", 0) == [(1, 3)]
        rows.complete(step=0)
    assert flow.consumer_status("p", "trainer").done == 2


def test_partitions_have_names_and_options(dock: td.Dock) -> None:
    columns = {
        "a": td.column("float32", 4),
        "b": td.column(np.int64, ragged=True),
        "c": td.column("bytes"),
        "d": str,
        "e": np.float64,
    }
    dock.create_partition("p", columns, retain_for=["x"], group_size=2)  # type: ignore[arg-type]
    dock.create_partition("p", columns, retain_for=["x"], group_size=2)  # type: ignore[arg-type]
    dock.create_partition("another")
    assert dock.partitions() == ["another", "p"]
    with pytest.raises(td.AlreadyExists, match="group"):
        dock.create_partition("p", columns, retain_for=["x"], group_size=3)  # type: ignore[arg-type]
    status = dock.status("p")
    assert [(one.name, one.kind, one.dtype, one.row_shape) for one in status.columns] == [
        ("a", "dense", "float32", (4,)), ("b", "ragged", "int64", ()), ("c", "bytes", None, ()), ("d", "str", None, ()),
        ("e", "dense", "float64", ()),
    ]  # fmt: skip
    dock.drop_partition("p")
    with raising(td.NotFound, "partition 'p'", "another"):
        dock.status("p")


@pytest.mark.parametrize(
    ("columns", "names"),
    [({"a": "float31"}, ["column 'a'", "'float31'", "float32", "'str'", "'bytes'"]),
     ({"a": td.column("str", ragged=True)}, ["neither ragged"]), ({"a": td.column("int8", (-1,))}, ["negative"])],
)  # fmt: skip
def test_columns_that_cannot_be_are_refused(
    local: td.Dock, columns: dict[str, td.ColumnType], names: list[str]
) -> None:
    with raising(td.InvalidArgument, *names):
        local.create_partition("p", columns)


def test_choices_are_named(local: td.Dock) -> None:
    local.create_partition("p")
    with pytest.raises(td.InvalidArgument, match="'unit' is 'row' or 'group', not 'rows'"):
        local.register_consumer("p", "c", reads=["x"], unit="rows")
    with pytest.raises(td.InvalidArgument, match="'sampler' is"):
        local.register_consumer("p", "c", reads=["x"], sampler="x")
    with pytest.raises(td.InvalidArgument, match="'reads' is a str; give a list of str"):
        local.register_consumer("p", "c", reads="x")


def test_rows_without_cells_and_tags_of_rows_that_are_there(dock: td.Dock) -> None:
    dock.create_partition("p")
    ids = dock.put("p", new_rows=3, keys=["a", "b", "c"])
    dock.put("p", rows=ids[:2], tags=[{"n": "1"}, {"n": "2"}])
    rows, following = dock.list("p")
    assert [(row.row, row.key, row.tags, row.group) for row in rows] == [
        (0, "a", {"n": "1"}, None), (1, "b", {"n": "2"}, None), (2, "c", {}, None),
    ]  # fmt: skip
    assert following is None
    assert dock.list("p", {"n": "2"})[0][0].row == 1
    page, following = dock.list("p", limit=2)
    assert [row.row for row in page] == [0, 1] and following == 2
    assert [row.row for row in dock.list("p", start=following)[0]] == [2]
    assert dock.find("p", ["c", "a"]).tolist() == [2, 0]
    with pytest.raises(td.NotFound, match="'zz'"):
        dock.find("p", ["a", "zz"])


def test_list_finds_what_a_consumer_could_have(flow: td.Dock) -> None:
    ids = flow.put("p", {"prompt": ["a", "b"]})
    flow.put("p", {"reward": [1.0]}, rows=ids[1:])
    assert [row.row for row in flow.list("p", having=["reward"])[0]] == [1]
    assert [row.row for row in flow.list("p", ready_for="trainer")[0]] == [1]


def test_rows_may_be_named_in_many_ways(dock: td.Dock) -> None:
    dock.create_partition("p")
    ids = dock.put("p", {"x": np.arange(4)})
    for some in (
        ids[1:3],
        ids[1:3].astype(np.int64),
        [1, 2],
        (np.uint64(1), 2),
        range(1, 3),
        np.array([9, 1, 2], np.int32)[1:],
    ):
        assert dock.fetch("p", some, ["x"])["x"].numpy().tolist() == [1, 2]
    for wrong, names in [
        ([-1], ["'rows'", "-1"]),
        (["a"], ["'rows'", "'a'"]),
        (5, ["'rows'", "an array", "a list"]),
        (np.array([-1]), ["'rows'", "-1"]),
    ]:
        with raising(td.InvalidArgument, *names):
            dock.fetch("p", wrong, ["x"])  # type: ignore[arg-type]


def test_no_rows_are_not_all_rows(flow: td.Dock) -> None:
    flow.put("p", {"prompt": ["a", "b"]})
    taken = flow.take("p", "scorer", max=2)
    none: list[int] = []
    taken.complete(none)
    taken.release(none)
    flow.drop("p", taken.lease, none)
    flow.requeue("p", "scorer", none)
    assert flow.clear("p", none) == 0 and flow.clear("p", groups=none) == 0
    assert flow.consumer_status("p", "scorer").leased == 2
    with pytest.raises(td.InvalidArgument, match="'rows' is empty"):
        flow.put("p", {"prompt": ["c"]}, rows=none)
    with pytest.raises(td.InvalidArgument, match="'rows' is empty"):
        flow.take("p", "trainer", rows=none)
    # Whatever is empty, and however it says so.
    for nothing in ((), np.array([], np.uint64), iter(none)):
        taken.complete(nothing)  # type: ignore[arg-type]
    assert flow.consumer_status("p", "scorer").leased == 2


def test_what_is_no_list_of_rows_is_refused(flow: td.Dock) -> None:
    flow.put("p", {"prompt": ["a"]})
    for wrong in (np.array(5), 5, object()):
        with raising(td.InvalidArgument, "'rows'", "an array", "a list"):
            flow.clear("p", wrong)  # type: ignore[arg-type]
        with raising(td.InvalidArgument, "'rows'", "an array", "a list"):
            flow.release("p", 1, wrong)  # type: ignore[arg-type]


def test_what_is_for_new_rows_and_what_is_for_rows_that_exist_do_not_mix(flow: td.Dock) -> None:
    ids = flow.put("p", {"prompt": ["a"]})
    for name, value in [
        ("lease", 1), ("keep", True), ("step", 0), ("partial", True), ("epochs", [0]), ("overwrite", True),
    ]:  # fmt: skip
        with raising(td.InvalidArgument, f"'{name}'", "'rows'"):
            flow.put("p", {"prompt": ["b"]}, **{name: value})  # type: ignore[arg-type]
    for name, value in [("new_rows", 1), ("groups", [1]), ("group_size", 2), ("keys", ["k"])]:
        with raising(td.InvalidArgument, f"'{name}'", "new rows"):
            flow.put("p", {"reward": [1.0]}, rows=ids, **{name: value})  # type: ignore[arg-type]
    with raising(td.InvalidArgument, "'timeout'"):
        flow.put("p", {"reward": [1.0]}, rows=ids, timeout=-1)
    flow.put("p", rows=ids, tags={"split": "easy"})
    assert flow.status("p").rows == 1 and flow.row_status("p", 0).tags == {"split": "easy"}


def test_epochs_are_not_cut(flow: td.Dock) -> None:
    ids = flow.put("p", {"prompt": ["a"]})
    with raising(td.InvalidArgument, "'epochs'", "4294967296", "2^32"):
        flow.put("p", {"reward": [1.0]}, rows=ids, epochs=[2**32])


def test_texts_that_are_none_are_named(dock: td.Dock) -> None:
    dock.create_partition("p")
    half = "a\ud800"
    for wrong in ({"tags": {half: "b"}}, {"tags": {"b": half}}, {"keys": [half]}, {"data": {half: [1]}}):
        with raising(td.InvalidArgument, r"'a\ud800'", "UTF-8"):
            dock.put("p", **({"data": {"x": [1]}} | wrong))  # type: ignore[arg-type]


def test_tags_may_hold_zeros(dock: td.Dock) -> None:
    dock.create_partition("p")
    ids = dock.put("p", {"x": [1, 2]}, tags=[{"t": "a\0b"}, {"t": "a"}])
    assert dock.fetch("p", ids, ["x"]).tags == [{"t": "a\0b"}, {"t": "a"}]
    assert [row.row for row in dock.list("p", tags={"t": "a\0b"})[0]] == [0]


def test_a_lease_is_completed_at_the_end_of_its_block(flow: td.Dock) -> None:
    flow.put("p", {"prompt": ["a", "b", "c"]})
    with flow.take("p", "scorer", max=2) as taken:
        taken.put({"reward": [1.0]}, rows=taken.ids[:1])
    status = flow.consumer_status("p", "scorer")
    assert (status.done, status.ready, status.leased) == (2, 1, 0)
    with flow.take("p", "scorer", max=2) as taken:
        taken.put({"reward": [1.0]})
    assert flow.consumer_status("p", "scorer").done == 3


def test_a_lease_is_given_back_if_its_block_raises(flow: td.Dock) -> None:
    flow.put("p", {"prompt": ["a", "b"]})
    with pytest.raises(ZeroDivisionError), flow.take("p", "scorer", max=2) as taken:
        taken.put({"reward": [1.0]}, rows=[0])
        1 / 0
    status = flow.consumer_status("p", "scorer")
    assert (status.done, status.ready) == (1, 1)
    with pytest.raises(ZeroDivisionError), flow.take("p", "scorer") as taken:
        taken.release()
        1 / 0


def test_a_put_that_names_the_lease_completes_its_rows(flow: td.Dock) -> None:
    flow.put("p", {"prompt": ["a", "b", "c"]})
    with flow.take("p", "scorer", max=2) as taken:
        flow.put("p", {"reward": [1.0, 1.0]}, rows=taken.ids, lease=taken)
    with flow.take("p", "scorer", max=2) as taken:
        flow.put("p", {"reward": [1.0]}, rows=taken.ids, lease=taken, keep=True)
        assert flow.renew("p", taken) == taken.expires
        flow.complete("p", taken, taken.ids)
    assert flow.consumer_status("p", "scorer").done == 3


def test_what_a_stage_may_do_under_its_lease(flow: td.Dock) -> None:
    flow.put("p", {"prompt": ["a", "b", "c"]})
    taken = flow.take("p", "scorer", max=3)
    taken.put({"reward": [1.0, 1.0, 1.0]}, keep=True)
    assert flow.consumer_status("p", "scorer").leased == 3
    taken.put({"reward": [2.0]}, rows=[0], overwrite=True)
    taken.release([1])
    taken.drop([2])
    status = flow.consumer_status("p", "scorer")
    assert (status.done, status.ready, status.leased) == (2, 1, 0)
    again = flow.take("p", "scorer", rows=[1])
    for renew in (again.renew, lambda: flow.renew("p", again.lease or 0)):
        before = time.time()
        assert before + 599 <= renew() <= time.time() + 601
    flow.release("p", again.lease or 0)
    with pytest.raises(td.FailedPrecondition, match="lease"):
        again.put({"reward": [3.0]}, overwrite=True)


def test_at_most_once_means_no_lease(dock: td.Dock) -> None:
    dock.create_partition("p")
    dock.register_consumer("p", "c", reads=["x"], at_most_once=True)
    dock.put("p", {"x": [1, 2]})
    with dock.take("p", "c") as taken:
        assert taken.lease is None and math.isinf(taken.expires)
        with raising(td.FailedPrecondition, "no lease", "at_most_once"):
            taken.release()
    assert dock.consumer_status("p", "c").done == 1


def test_groups_are_taken_whole(dock: td.Dock) -> None:
    dock.create_partition("p", group_size=2)
    dock.register_consumer("p", "c", reads=["x"], unit="group")
    dock.put("p", {"x": [1, 2, 3]}, groups=np.array([5, 6, 6]))
    taken = dock.take("p", "c", max=2)
    assert taken.groups.tolist() == [6, 6] and taken["x"].numpy().tolist() == [2, 3]
    status = dock.status("p")
    assert (status.groups, status.incomplete_groups) == (2, 1)
    with pytest.raises(td.FailedPrecondition, match="group 5"):
        dock.seal("p")


def test_samplers_and_ranks(dock: td.Dock) -> None:
    dock.create_partition("p", {"x": td.column("int64", ragged=True)})
    dock.register_consumer("p", "uniform", reads=["x"], sampler="uniform", seed=3)
    dock.register_consumer("p", "balanced", reads=["x"], sampler="length_balanced", length_column="x")
    dock.register_consumer("p", "ranks", reads=["x"], ranks=2)
    dock.put("p", {"x": [np.arange(1 + i) for i in range(16)]})
    chosen = dock.take("p", "uniform", max=16).ids.tolist()
    assert sorted(chosen) == list(range(16)) and chosen != sorted(chosen)
    sums = [dock.take("p", "balanced", max=4, min=4)["x"].lengths().sum() for _ in range(4)]
    assert max(sums) - min(sums) <= 2
    shares = [set(dock.take("p", "ranks", max=16, rank=rank).ids.tolist()) for rank in (0, 1)]
    assert len(shares[0]) == len(shares[1]) == 8 and not shares[0] & shares[1]


def test_steps_are_committed_and_rolled_back(flow: td.Dock) -> None:
    flow.put("p", {"prompt": ["a", "b"], "reward": [1.0, 1.0]})
    flow.take("p", "trainer").complete(step=0)
    flow.take("p", "trainer").complete(step=1)
    flow.commit("p", "trainer", 0)
    status = flow.consumer_status("p", "trainer")
    assert (status.uncommitted, status.committed_step) == (1, 0)
    flow.rollback("p", "trainer", 0)
    assert flow.consumer_status("p", "trainer").ready == 1
    with pytest.raises(td.FailedPrecondition):
        flow.rollback("p", "trainer", -1)


def test_rows_of_old_weights_are_sent_back(dock: td.Dock) -> None:
    dock.create_partition("p", {"prompt": "str", "answer": "str"})
    dock.register_consumer("p", "rollout", reads=["prompt"], writes=["answer"])
    dock.register_consumer("p", "trainer", reads=["prompt", "answer"], max_version_lag=1)
    ids = dock.put("p", {"prompt": ["a"]})
    dock.take("p", "rollout").put({"answer": ["b"]}, weights_version=1)
    dock.publish_weights("p", 3)
    with pytest.raises(td.DeadlineExceeded):
        dock.take("p", "trainer", timeout=0)
    assert dock.consumer_status("p", "trainer").sent_back == 1
    again = dock.take("p", "rollout")
    assert again.epochs.tolist() == [1]
    again.release()
    with pytest.raises(td.FailedPrecondition, match="sent back"):
        dock.put("p", {"answer": ["c"]}, rows=ids, epochs=[0])
    dock.put("p", {"answer": ["c"]}, rows=ids, epochs=[1], weights_version=3)
    with pytest.raises(td.FailedPrecondition):
        dock.publish_weights("p", 2)


def test_unfinished_cells_come_back_older(dock: td.Dock) -> None:
    dock.create_partition("p", {"prompt": "str", "answer": td.column("int32", ragged=True)})
    dock.register_consumer("p", "rollout", reads=["prompt"], reads_optional=["answer"], writes=["answer"])
    dock.put("p", {"prompt": ["a"]})
    dock.take("p", "rollout").put({"answer": [np.arange(2, dtype=np.int32)]}, partial=True, weights_version=1)
    again = dock.take("p", "rollout")
    assert again.ages.tolist() == [1] and again["answer"][0].tolist() == [0, 1]
    again.put({"answer": [np.arange(5, dtype=np.int32)]}, weights_version=2)
    rows = dock.fetch("p", [0], ["answer"])
    assert rows.pieces("answer", 0) == [(2, 1), (5, 2)] and rows.weights_versions("answer").tolist() == [1]


def test_lost_rows_are_quarantined_until_they_are_requeued(remote: td.Dock, server: td.Server) -> None:
    remote.create_partition("p", {"x": "int64"})
    remote.register_consumer("p", "c", reads=["x"], max_deliveries=1)
    remote.put("p", {"x": [1]})
    other = td.Dock.connect(server.address)
    other.take("p", "c")
    del other  # not closed, which would give the row back
    # The server gives the session up a second later.
    until(lambda: remote.row_status("p", 0).consumers[0].state == "quarantined", "the row is quarantined")
    with raising(td.DeadlineExceeded, "quarantined"):
        remote.take("p", "c", timeout=0.05)
    remote.requeue("p", "c")
    assert remote.take("p", "c").redeliveries.tolist() == [0]


def test_the_end_of_data(flow: td.Dock) -> None:
    flow.put("p", {"prompt": ["a"]})
    flow.seal("p")
    with pytest.raises(td.FailedPrecondition, match="sealed"):
        flow.put("p", {"prompt": ["b"]})
    flow.take("p", "scorer").complete()
    with pytest.raises(td.EndOfData) as caught:
        flow.take("p", "scorer", timeout=LONG)
    assert caught.value.code == "EndOfData"
    assert flow.clear("p", everything=True) == 1
    flow.put("p", {"prompt": ["b"]})


def test_clear_by_id_group_and_tags(dock: td.Dock) -> None:
    dock.create_partition("p")
    ids = dock.put("p", {"x": [1, 2, 3, 4]}, groups=[1, 2, 3, 4], tags=[{}, {}, {"a": "b"}, {}])
    assert dock.clear("p", ids[:1]) == 1
    assert dock.clear("p", groups=[2]) == 1
    assert dock.clear("p", tags={"a": "b"}) == 1
    assert dock.status("p").rows == 1
    with pytest.raises(td.InvalidArgument):
        dock.clear("p")


def test_budgets_make_puts_wait_and_fail(dock: td.Dock) -> None:
    dock.create_partition("p", {"x": "int64"}, max_rows=2)
    dock.put("p", {"x": [1, 2]})
    with pytest.raises(td.DeadlineExceeded):
        dock.put("p", {"x": [3]}, timeout=0.05)
    with pytest.raises(td.ResourceExhausted, match="max_rows is 2"):
        dock.put("p", {"x": [3, 4, 5]})
    with pytest.raises(td.AlreadyExists):
        dock.put("p", {"x": [3]}, rows=[0])
    dock.put("p", {"x": [3]}, rows=[0], overwrite=True)


def test_nan_is_refused_where_it_comes_in(dock: td.Dock) -> None:
    dock.create_partition("p", {"x": "float32"}, refuse_nan=True)
    with pytest.raises(td.InvalidArgument, match="NaN"):
        dock.put("p", {"x": [1.0, math.nan]})


def test_statuses_say_everything(flow: td.Dock) -> None:
    ids = flow.put("p", {"prompt": ["abc"]}, groups=[4], keys=["k"], tags={"a": "b"}, weights_version=2)
    taken = flow.take("p", "scorer")
    status = flow.status("p")
    assert (status.rows, status.groups, status.sealed, status.weights_version) == (1, 1, False, None)
    assert status.held_bytes > 0 and status.consumers["scorer"].leased == 1
    assert status.to_dict()["consumers"]["trainer"]["waiting"] == 1
    row = flow.row_status("p", int(ids[0]))
    assert (row.row, row.group, row.key, row.tags, row.age, row.epoch) == (0, 4, "k", {"a": "b"}, 0, 0)
    assert [(c.column, c.state, c.bytes, c.weights_version) for c in row.cells] == [
        ("prompt", "ready", 3, 2),
        ("reward", "empty", 0, None),
    ]
    scorer, trainer = row.consumers
    assert (scorer.state, scorer.lease, trainer.state, trainer.missing) == (
        "leased",
        taken.lease,
        "waiting",
        ["reward"],
    )
    assert scorer.taken and scorer.expires and scorer.expires - scorer.taken == pytest.approx(600, abs=1)
    mentions(flow.explain("p", "trainer"), "'reward'", "'scorer'", f"lease {taken.lease}")
    flow.drop_consumer("p", "scorer")
    assert list(flow.status("p").consumers) == ["trainer"]


def test_errors_are_also_what_python_calls_them() -> None:
    bases = {td.InvalidArgument: ValueError, td.NotFound: KeyError, td.DeadlineExceeded: TimeoutError,
             td.ResourceExhausted: MemoryError, td.Unavailable: ConnectionError, td.Unauthenticated: PermissionError,
             td.Unimplemented: NotImplementedError}  # fmt: skip
    for error, base in bases.items():
        assert issubclass(error, td.DockError) and issubclass(error, base)
        assert str(error("there is no x")) == "there is no x" and error.code == error.__name__


def test_a_closed_dock_says_so(dock: td.Dock) -> None:
    dock.create_partition("mine")
    dock.drop_partition("mine")
    other = td.Dock.local()
    with other:
        assert other.partitions() == []
    with raising(td.FailedPrecondition, "dock", "closed"):
        other.partitions()


@pytest.mark.parametrize("kind", ["unix", "tcp"])
def test_closing_gives_back_what_is_leased_though_views_live_on(server: td.Server, kind: str) -> None:
    mine, other = connect(kind, server), connect(kind, server)
    mine.create_partition("closing", {"x": "int64"})
    mine.register_consumer("closing", "c", reads=["x"])
    mine.put("closing", {"x": np.arange(6)})
    first, second, third = (other.take("closing", "c", max=2) for _ in range(3))
    second.complete()
    third.complete(third.ids[:1])
    view = first["x"].numpy()
    other.close()
    status = mine.consumer_status("closing", "c")
    assert (status.leased, status.done) == (0, 3), "at once"
    assert view.tolist() == first["x"].numpy().tolist() == [0, 1]
    again = mine.take("closing", "c", max=2)
    assert again.ids.tolist() == [0, 1] and again.redeliveries.tolist() == [0, 0]
    mine.drop_partition("closing")


def test_a_partition_goes_on_in_another_dock(local: td.Dock) -> None:
    local.create_partition("train", {"prompt": "str", "reward": "float32"})
    local.register_consumer("train", "scorer", reads=["prompt"], writes=["reward"])
    local.put("train", {"prompt": ["a", "b", "c"]})
    with local.take("train", "scorer", 1) as rows:
        rows.put({"reward": [0.5]})
    image = local.export_partition("train")
    with pytest.raises(td.AlreadyExists, match="'train'"):
        local.import_partition(image)
    other = td.Dock.local()
    with pytest.raises(td.DataLoss):
        other.import_partition(image[:-1])
    other.import_partition(image)
    assert other.export_partition("train") == image
    assert other.take("train", "scorer", 8)["prompt"].tolist() == ["b", "c"]


def test_a_partition_goes_from_one_process_to_another(remote: td.Dock, local: td.Dock) -> None:
    remote.create_partition("moving", {"prompt": "str"})
    remote.register_consumer("moving", "reader", reads=["prompt"])
    remote.put("moving", {"prompt": ["a", "b"]})
    image = remote.export_partition("moving")
    local.import_partition(image)
    assert local.take("moving", "reader", 8)["prompt"].tolist() == ["a", "b"]
    remote.drop_partition("moving")
    remote.import_partition(image)
    assert remote.export_partition("moving") == image
    with pytest.raises(td.InvalidArgument):
        remote.import_partition(b"")
    remote.drop_partition("moving")
