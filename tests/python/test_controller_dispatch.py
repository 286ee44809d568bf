"""How calls are divided over workers, and what comes back: with workers that are threads of this process."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Iterator
from typing import Any

import numpy
import pytest
import transfer_dock as td
from controller_programs import Echo, by_hand, total
from messages import mentions, raising
from waiting import LONG
from transfer_dock.controller import (
    Batch,
    ClassWithInitArgs,
    Controller,
    Dispatch,
    DispatchMode,
    Execute,
    Method,
    ResourcePool,
    ResourcePoolManager,
    RowsRef,
    Worker,
    WorkerGroup,
    create_colocated_worker_cls,
    make_nd_compute_dataproto_dispatch_fn,
    register,
    register_dispatch_mode,
)


@pytest.fixture
def group() -> Iterator[WorkerGroup]:
    with WorkerGroup.in_process(ClassWithInitArgs(Echo), 4, name="echo", timeout=LONG) as group:
        yield group


def numbers(rows: int) -> Batch:
    return Batch({"x": list(range(rows))})


def column(batch: Batch, name: str) -> list[Any]:
    return batch[name].numpy().tolist()


# ---- The table of modes.


def test_one_to_all_gives_each_the_argument(group: WorkerGroup) -> None:
    assert group.one_to_all("x") == [[0, "x"], [1, "x"], [2, "x"], [3, "x"]]


def test_all_to_all_divides_lists_of_as_many_and_replicates_the_rest(group: WorkerGroup) -> None:
    assert group.all_to_all(["a", "b", "c", "d"], y=[1, 2]) == [
        [0, "a", [1, 2]],
        [1, "b", [1, 2]],
        [2, "c", [1, 2]],
        [3, "d", [1, 2]],
    ]


def test_dp_compute_gives_each_its_element(group: WorkerGroup) -> None:
    assert group.dp([1, 2, 3, 4], scale=[10, 10, 100, 100]) == [10, 20, 300, 400]
    with raising(td.InvalidArgument, "'dp'", "argument 0", "of 4,", "of 3"):
        group.dp([1, 2, 3], [1, 1, 1])


def test_dp_compute_proto_cuts_rows_and_concatenates_in_order(group: WorkerGroup) -> None:
    result = group.proto(numbers(8))
    assert column(result, "x") == [0, 10, 20, 30, 40, 50, 60, 70]
    assert column(result, "rank") == [0, 0, 1, 1, 2, 2, 3, 3]
    with pytest.raises(td.InvalidArgument, match="10 rows"):
        group.proto(numbers(10))


def test_padding_is_neither_counted_nor_returned_and_the_callers_batch_is_as_it_was(group: WorkerGroup) -> None:
    batch = numbers(5)
    result = group.padded(batch)
    assert column(result, "x") == [0, 1, 2, 3, 4] and result.columns == ["x", "rank"]
    assert batch == numbers(5)


def test_with_func_replicates_the_first_argument(group: WorkerGroup) -> None:
    assert column(group.with_func("twice", numbers(4)), "x") == [0, 2, 4, 6]


def test_metrics_are_a_list_with_every_result(group: WorkerGroup) -> None:
    assert [one["rows"] for one in group.metric(numbers(8))] == [[0, 1], [2, 3], [4, 5], [6, 7]]


def of_eight() -> WorkerGroup:
    sizes = {"tp": 2, "dp": 2, "pp": 2}
    return WorkerGroup.in_process(ClassWithInitArgs(Echo), 8, meshes={"actor": sizes, "megatron": sizes}, timeout=LONG)


def test_a_mesh_replicates_over_all_but_dp_and_collects_of_the_last_pp() -> None:
    with of_eight() as group:
        result = group.mesh(numbers(8))
        assert column(result, "x") == list(range(8))
        assert column(result, "rank") == [4] * 4 + [6] * 4
        low, high = ["0,1,2,3"], ["4,5,6,7"]
        assert group.seen_so_far() == [low, low, high, high, low, low, high, high]


def test_megatron_modes_use_the_mesh_of_that_name() -> None:
    with of_eight() as group:
        assert group.megatron(["a", "b"]) == ["4:a", "6:b"]
        assert column(group.megatron_proto(numbers(4)), "rank") == [4, 4, 6, 6]
        assert group.pp_only(7) == [[0, 7], [4, 7]]


def test_pp_as_dp_counts_pipeline_stages_as_data_parallel_ranks() -> None:
    mesh = {"megatron": {"dp": 4, "pp": 2}}
    with WorkerGroup.in_process(ClassWithInitArgs(Echo), 8, meshes=mesh, timeout=LONG) as group:
        assert group.pp_as_dp(list("ABCDEFGH")) == list("ABCDEFGH")
        assert "".join(one[0] for one in group.seen_so_far()) == "ACEGBDFH"  # pp 0, then pp 1
        result = group.pp_as_dp_proto(Batch({"text": list("ABCDEFGH")}))
        assert result["text"].tolist() == list("ABCDEFGH")
        assert "".join(one[1] for one in group.seen_so_far()) == "ACEGBDFH"


def test_a_mesh_that_the_group_lacks_is_named(group: WorkerGroup) -> None:
    with pytest.raises(td.NotFound, match="no mesh 'actor'"):
        group.mesh(numbers(4))
    with pytest.raises(td.InvalidArgument, match="mesh 'actor'.*tp 3"):
        WorkerGroup.in_process(ClassWithInitArgs(Echo), 4, meshes={"actor": {"tp": 3, "dp": 1}})


def test_rank_zero_runs_on_one_and_returns_its_result(group: WorkerGroup) -> None:
    assert group.rank_zero(3, add=4) == 7
    with pytest.raises(td.InvalidArgument, match="RANK_ZERO"):
        register(Dispatch.DP_COMPUTE_PROTO, Execute.RANK_ZERO)(lambda self, batch: batch)


VERL = """RANK_ZERO ONE_TO_ALL ALL_TO_ALL DP_COMPUTE DP_COMPUTE_PROTO DP_COMPUTE_PROTO_WITH_FUNC DP_COMPUTE_METRIC
DIRECT_ROLLOUT_METHOD MEGATRON_COMPUTE MEGATRON_COMPUTE_PROTO MEGATRON_PP_AS_DP MEGATRON_PP_AS_DP_PROTO
MEGATRON_PP_ONLY"""
INSTEAD = {
    "RANK_ZERO": ["Execute.RANK_ZERO", "Dispatch.ONE_TO_ALL"],
    "ALL": ["Execute.ALL"],
    "DIRECT_ROLLOUT_METHOD": ["execute_all", "execute_rank_zero"],
    "ND_MESH": ["make_nd_compute_dataproto_dispatch_fn"],
    "DP_COMPUT": ["DP_COMPUTE"],
}


@pytest.mark.parametrize("name", VERL.split())
def test_each_mode_of_verl_is_there_or_says_what_to_write(name: str) -> None:
    if name not in INSTEAD:
        assert Dispatch[name] is getattr(Dispatch, name) and Dispatch[name].name == name
        assert Dispatch[name] in list(Dispatch)
        register(name)(lambda self, x: x)


@pytest.mark.parametrize("name", INSTEAD)
def test_a_name_that_is_no_mode_says_what_to_write(name: str) -> None:
    with raising(AttributeError, f"'{name}'", *INSTEAD[name]):
        getattr(Dispatch, name)
    for use in (register, lambda name: Dispatch[name], lambda name: Method(DispatchMode(name))):
        if name != "ND_MESH" or use is register:
            with raising(td.InvalidArgument, f"'{name}'", *INSTEAD[name]):
                use(name)
    assert not hasattr(Dispatch, name) and name not in [mode.name for mode in Dispatch]


def test_execute_modes_have_names() -> None:
    class Zero(Worker):
        @register(Dispatch.ONE_TO_ALL, "RANK_ZERO")
        def where(self) -> int:
            return self.rank

    with WorkerGroup.in_process(ClassWithInitArgs(Zero), 2) as group:
        assert group.where() == 0
    wrong: Any
    for wrong in ("RANK0", "rank_zero", None, 1, Dispatch.ONE_TO_ALL):
        with raising(td.InvalidArgument, "execute_mode", "Execute.ALL", "Execute.RANK_ZERO"):
            register(Dispatch.ONE_TO_ALL, wrong)
    with raising(td.InvalidArgument, "dispatch_mode", "execute_mode=Execute.RANK_ZERO"):
        register(Execute.RANK_ZERO)  # type: ignore[arg-type]


# ---- Modes of one's own.


def test_own_functions_split_and_collect(group: WorkerGroup) -> None:
    assert group.own(2, plus=1) == (0 + 2 + 4 + 6) + 4
    later = group.own_later(2)
    assert later.get(LONG) == 12
    assert group.echo(group.own_later(5)) == [30] * 4  # passed on before it is ready
    with pytest.raises(TypeError, match="'own'"):
        group.own()


def test_a_mode_can_be_registered_by_name_once() -> None:
    mode = register_dispatch_mode("TEST_BY_HAND", by_hand, total)
    try:
        assert Dispatch.TEST_BY_HAND is mode  # type: ignore[attr-defined]

        class Adder:
            @register("TEST_BY_HAND")
            def add(self, x: int) -> int:
                return x + 1

        with WorkerGroup.in_process(ClassWithInitArgs(Adder), 3) as group:
            assert group.add(10) == 33
        with pytest.raises(td.InvalidArgument, match="already"):
            register_dispatch_mode("test_by_hand", by_hand, total)
        with pytest.raises(td.InvalidArgument, match="already"):
            register_dispatch_mode("RANK_ZERO", by_hand, total)
    finally:
        del Dispatch.TEST_BY_HAND  # type: ignore[attr-defined]
    with pytest.raises(td.InvalidArgument, match="DP_COMPUTE_PROTO"):
        register("DP_COMPUTE_PROT")


def test_a_split_for_another_number_of_ranks_is_refused(group: WorkerGroup) -> None:
    mode = DispatchMode("HALF", dispatch_fn=lambda group, x: (([x, x],), {}), collect_fn=total)
    half = WorkerGroup._over(group._core, "echo", {"echo": Method(mode)}, group._members)
    with pytest.raises(td.InvalidArgument, match=r"'echo' \(HALF\).*2 ranks; there are 4"):
        half.echo(1)


# ---- Values, futures, errors.


def test_values_come_back_as_they_were(group: WorkerGroup) -> None:
    value = {"none": None, "flag": True, "whole": -(2**63), "real": 0.1, "text": "ü\0", "list": [1, [], {}]}
    assert group.echo(value)[3] == value
    assert group.echo((1, numpy.float32(0.5), numpy.int64(7), numpy.bool_(True)))[0] == [1, 0.5, 7, True]
    batch = Batch({"t": ["a", "bc"], "ragged": [[1, 2], [3]], "b": [b"\0", b""]}, {"step": 7, "m": {"lr": [1e-6]}})
    assert group.echo(batch)[2] == batch


def test_tensors_are_columns(group: WorkerGroup) -> None:
    torch = pytest.importorskip("torch")
    x = torch.arange(8, dtype=torch.bfloat16).reshape(4, 2)
    batch = group.echo(Batch({"x": x}))[0]
    assert batch["x"].dtype == "bfloat16" and torch.equal(batch.torch()["x"], x)
    assert group.echo(torch.tensor(3))[0] == 3


def test_a_batch_does_not_change_with_the_array_that_it_was_made_of() -> None:
    array = numpy.zeros(4)
    batch = Batch({"x": array})
    array += 1
    assert column(batch, "x") == [0, 0, 0, 0]


@pytest.mark.parametrize(
    ("value", "names"),
    [
        (len, ["argument 0", "len", "the name", "function"]),
        (Echo, ["argument 0", "Echo", "the name", "class"]),
        (numpy.zeros(3), ["argument 0", "Batch({'x': x})"]),
        ({1: 2}, ["argument 0", "key 1", "str"]),
        ([{"a": object()}], ["argument 0[0]['a']", "object"]),
        (2**64, ["argument 0"]),
    ],
)
def test_what_cannot_be_passed_is_named_with_what_can(group: WorkerGroup, value: Any, names: list[str]) -> None:
    with raising(td.InvalidArgument, *names):
        group.echo(value)


def test_results_that_cannot_be_passed_fail_their_call_only() -> None:
    class Maker:
        @register(Dispatch.ONE_TO_ALL)
        def make(self, good: bool) -> Any:
            return 1 if good else object()

    with WorkerGroup.in_process(ClassWithInitArgs(Maker), 2) as group:
        with raising(td.InvalidArgument, "'make'", "the result", "object"):
            group.make(False)
        assert group.make(True) == [1, 1]


def test_futures_are_passed_on_unfetched(group: WorkerGroup) -> None:
    first = group.later(numbers(4))
    second = group.later(first)
    assert column(group.proto(group.later(second)), "x") == [30, 40, 50, 60]
    assert first.done() and column(second.get(LONG), "x") == [2, 3, 4, 5]


def test_a_future_that_failed_fails_the_call_that_was_given_it(group: WorkerGroup) -> None:
    failed = group.execute_all_async("fail", 2)
    with raising(td.InternalError, "'echo'", "argument 0", "'fail'", "RuntimeError"):
        group.echo(failed)


def test_an_error_names_method_role_and_rank_and_shows_where_it_was_raised(group: WorkerGroup) -> None:
    with raising(td.InternalError, "'fail' of 'echo'", "rank 2 (echo)", "RuntimeError: out of", "controller_programs.py"):
        group.fail(2)


def test_a_call_ends_at_its_time_and_names_who_has_not_answered() -> None:
    let_go = threading.Event()

    class Waiter(Worker):
        @register(Dispatch.ONE_TO_ALL)
        def wait(self) -> int:
            return 0 if self.rank == 0 else int(let_go.wait(LONG))

    with WorkerGroup.in_process(ClassWithInitArgs(Waiter), 2, name="waiter", timeout=LONG) as group:

        def told(timeout: float) -> str:
            with pytest.raises(td.DeadlineExceeded) as caught:
                group.with_timeout(timeout).wait()
            return str(caught.value)

        mentions(told(0.05), "'wait' of 'waiter'", "50ms", "rank 1 (waiter)")
        timeout = 0.05
        while "rank 0" in told(timeout):  # It answers, if it has the time.
            timeout *= 2
            assert timeout < LONG
        future = group.execute_all_async("wait")
        with pytest.raises(td.DeadlineExceeded, match="still running"):
            future.get(0.01)
        let_go.set()
        assert future.get(LONG) == [0, 1]


def test_signals_end_a_wait() -> None:
    let_go = threading.Event()

    class Waiter:
        @register(Dispatch.ONE_TO_ALL)
        def wait(self) -> bool:
            signal.pthread_kill(main, signal.SIGALRM)
            return let_go.wait(LONG)

    main = threading.main_thread().ident

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with WorkerGroup.in_process(ClassWithInitArgs(Waiter), 1) as group:
            try:
                with pytest.raises(KeyboardInterrupt):
                    group.wait()
            finally:
                let_go.set()
    finally:
        signal.signal(signal.SIGALRM, before)


def test_an_error_of_a_constructor_is_the_error_of_the_group() -> None:
    with pytest.raises(ValueError, match="no model for rank 1"):
        WorkerGroup.in_process(ClassWithInitArgs(Echo, fail_on=1), 2)


def test_after_shutdown_calls_are_cancelled(group: WorkerGroup) -> None:
    group.shutdown()
    with pytest.raises(td.Cancelled, match="shut down"):
        group.echo(1)


# ---- Coroutines.


class Async(Worker):
    """Methods that are awaited, beside others."""

    beaten = threading.Event()
    let_go = threading.Event()

    def __init__(self) -> None:
        self.done: list[str] = []

    @register(Dispatch.ONE_TO_ALL)
    async def start(self) -> int:
        self.task = asyncio.create_task(self._beat())
        return threading.get_ident()

    async def _beat(self) -> None:
        for _ in range(3):
            await asyncio.sleep(0)
        self.beaten.set()

    @register(Dispatch.ONE_TO_ALL)
    def thread(self) -> int:
        return threading.get_ident()

    @register(Dispatch.DP_COMPUTE_PROTO)
    async def score(self, batch: Batch) -> Batch:
        await asyncio.sleep(0)
        return Batch({"x": batch["x"].numpy() + self.rank})

    @register(Dispatch.ONE_TO_ALL, blocking=False)
    async def wait(self) -> None:
        await asyncio.to_thread(self.let_go.wait, LONG)
        self.done.append("wait")

    @register(Dispatch.ONE_TO_ALL, blocking=False)
    def finish(self) -> list[str]:
        return [*self.done, "finish"]

    @register(Dispatch.ONE_TO_ALL, Execute.RANK_ZERO)
    async def fail(self, *, cancelled: bool = False) -> None:
        if cancelled:
            raise asyncio.CancelledError
        raise RuntimeError("out of memory on purpose")


@pytest.fixture
def coroutines() -> Iterator[WorkerGroup]:
    Async.beaten.clear()
    Async.let_go.clear()
    with WorkerGroup.in_process(ClassWithInitArgs(Async), 2, name="async", timeout=LONG) as group:
        yield group
        Async.let_go.set()


def test_results_of_coroutines_are_collected_as_any(coroutines: WorkerGroup) -> None:
    assert column(coroutines.score(numbers(4)), "x") == [0, 1, 3, 4]


def test_the_loop_of_a_worker_goes_on_between_its_calls_in_its_thread(coroutines: WorkerGroup) -> None:
    threads = coroutines.start()
    assert Async.beaten.wait(LONG), "the task waits for a call"
    assert coroutines.thread() == threads and len(set(threads)) == 2


def test_a_call_begins_when_the_coroutine_before_it_has_ended(coroutines: WorkerGroup) -> None:
    first, second = coroutines.wait(), coroutines.finish()
    assert not second.done()
    Async.let_go.set()
    assert second.get(LONG) == [["wait", "finish"]] * 2 and first.done()


def test_errors_of_coroutines_are_those_of_the_call(coroutines: WorkerGroup) -> None:
    with raising(td.InternalError, "'fail' of 'async'", "rank 0", "RuntimeError: out of", "in fail"):
        coroutines.fail()
    with raising(td.InternalError, "'fail' of 'async'", "rank 0", "cancelled"):
        coroutines.fail(cancelled=True)
    assert len(coroutines.thread()) == 2


def test_a_method_may_return_what_is_to_be_awaited() -> None:
    class Plain:
        @register(Dispatch.ONE_TO_ALL)
        def later(self, x: int) -> Any:
            return asyncio.sleep(0, 2 * x)

        @register(Dispatch.ONE_TO_ALL)
        def now(self, x: int) -> int:
            return x

    with WorkerGroup.in_process(ClassWithInitArgs(Plain), 2, timeout=LONG) as group:
        assert [group.now(1), group.later(2), group.now(3), group.later(4)] == [[1] * 2, [4] * 2, [3] * 2, [8] * 2]


# ---- Groups.


def test_part_of_a_group_has_ranks_of_its_own(group: WorkerGroup) -> None:
    part = group.subgroup([3, 1], meshes={"actor": {"dp": 2}})
    assert part.world_size == 2 and part.one_to_all("x") == [[3, "x"], [1, "x"]]
    assert column(part.mesh(numbers(2)), "rank") == [3, 1]
    with pytest.raises(td.InvalidArgument, match="rank 4"):
        group.subgroup([4])


def test_public_methods_can_be_executed_unregistered(group: WorkerGroup) -> None:
    assert group.execute_all("unregistered", [10, 20, 30, 40]) == [10, 21, 32, 43]
    assert group.execute_rank_zero("unregistered", 10) == 10
    with raising(td.NotFound, "'unregistred'", "'unregistered'"):
        group.execute_all("unregistred", 1)
    with pytest.raises(AttributeError, match="unregistered.*registered: all_to_all"):
        group.unregistered(1)


def test_roles_share_workers() -> None:
    roles = create_colocated_worker_cls({"one": ClassWithInitArgs(Echo, 100), "two": ClassWithInitArgs(Echo, 200)})
    with WorkerGroup.in_process(roles, 2) as group:
        groups = group.spawn(["one", "two"])
        assert groups["one"].dp([1, 2], [1, 1]) == [101, 102] and groups["two"].dp([1, 2], [1, 1]) == [201, 202]
        with raising(td.InvalidArgument, "'three'", "one, two"):
            group.spawn(["three"])


def test_a_registered_name_that_groups_have_is_refused() -> None:
    class Bad:
        @register()
        def shutdown(self) -> None: ...

    with pytest.raises(td.InvalidArgument, match="shutdown"):
        WorkerGroup.in_process(ClassWithInitArgs(Bad), 1)


def test_a_method_that_overrides_is_registered_as_the_one_that_it_overrides() -> None:
    class Derived(Echo):
        def rank_zero(self, x: int, *, add: int = 0) -> int:
            return -super().rank_zero(x, add=add)

    with WorkerGroup.in_process(ClassWithInitArgs(Derived), 2) as group:
        assert group.rank_zero(3, add=1) == -4


# ---- Rows of a dock.


def dock_with(rows: int) -> td.Dock:
    dock = td.Dock.local()
    dock.create_partition("train", {"x": "int64", "y": "int64"})
    dock.put("train", {"x": list(range(rows))})
    return dock


def test_rows_of_a_dock_are_cut_and_fetched_by_those_who_get_them() -> None:
    with WorkerGroup.in_process(ClassWithInitArgs(Echo), 2, dock=dock_with(5), timeout=LONG) as group:
        rows = RowsRef("train", [3, 0, 4, 1], ["x"], {"step": 1})
        assert column(group.proto(rows), "x") == [30, 0, 40, 10]
        assert column(group.padded(RowsRef("train", [3, 0, 4], ["x"])), "x") == [3, 0, 4]
        assert group.reference(rows) == RowsRef("train", [3, 0, 4, 1], ["y"], {"rank0": 0})


def test_rows_for_workers_without_a_dock_are_refused(group: WorkerGroup) -> None:
    with pytest.raises(td.FailedPrecondition, match="materialize_futures=False"):
        group.proto(RowsRef("train", [0, 1, 2, 3], ["x"]))


# ---- Batches.


def test_the_algebra_of_batches() -> None:
    batch = Batch({"x": [0, 1, 2, 3], "t": list("abcd")}, {"step": 1})
    assert len(batch) == 4 and batch.columns == ["x", "t"] and "x" in batch and "y" not in batch
    assert column(batch[1:3], "x") == [1, 2] and column(batch[::-2], "x") == [3, 1]
    assert batch.select(["t"]).columns == ["t"] and batch.rename({"x": "z"}).columns == ["z", "t"]
    assert column(batch.select_rows([3, 3]), "x") == [3, 3]
    assert column(batch[:2].repeat(2), "x") == [0, 0, 1, 1]
    assert column(batch[:2].repeat(2, interleave=False), "x") == [0, 1, 0, 1]
    assert Batch.concat(batch.chunk(2)) == batch
    assert batch.select(["x"]).union(batch.select(["t"])) == batch
    assert batch.meta == {"step": 1} and "4 rows" in repr(batch)
    assert Batch() == Batch({}) and len(Batch(meta={"a": 1})) == 0
    for wrong in (lambda: batch.select_rows([4]), lambda: batch[0], lambda: Batch({"x": [1]}, {"a": None})):
        with pytest.raises(td.InvalidArgument):
            wrong()
    with pytest.raises(td.NotFound, match="'z'"):
        batch["z"]


# ---- Pools.


def test_pools_number_their_processes_by_node() -> None:
    pool = ResourcePool([2, 1])
    assert pool.world_size == 3
    assert (pool.node_list, pool.local_rank_list, pool.local_world_size_list) == ([0, 0, 1], [0, 1, 0], [2, 2, 1])
    with pytest.raises(td.InvalidArgument, match=r"\[8, 8\]"):
        ResourcePool([2, 0])


def test_a_manager_says_which_pools_lack_processes() -> None:
    spec, mapping = {"train": [4, 4], "rollout": [8]}, {"actor": "train", "critic": "train", "ref": "rollout"}
    manager = ResourcePoolManager(spec, mapping)
    assert manager.get_resource_pool("critic").process_on_nodes == [4, 4] and manager.get_n_gpus() == 16
    with raising(td.InvalidArgument, "'ref'", "'rollout'", "available 4", "desired 8"):
        ResourcePoolManager(spec, mapping, available=[8, 8]).create_resource_pool()
    with pytest.raises(td.InvalidArgument, match="'nowhere'"):
        ResourcePoolManager(spec, {"actor": "nowhere"}).create_resource_pool()
    with pytest.raises(td.InvalidArgument, match="no role 'judge'"):
        manager.get_resource_pool("judge")


# ---- Others.


def test_the_mode_of_a_mesh_has_its_name_and_padding() -> None:
    mode = make_nd_compute_dataproto_dispatch_fn("critic", pad=True)
    assert (mode.name, mode.mesh, mode.pad) == ("ND_MESH", "critic", True)


def test_a_controller_whose_workers_do_not_come_says_which() -> None:
    with Controller(3) as controller:
        with raising(td.DeadlineExceeded, "3 ranks", "1, 2", controller.address):
            controller.begin(timeout=0.1)
        with pytest.raises(td.FailedPrecondition, match="await_workers"):
            controller.group({"x": Dispatch.ONE_TO_ALL})
