"""Groups of workers in processes of their own: started, killed, stopped, orphaned, and in other languages."""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator

import pytest
import transfer_dock as td
from controller_programs import Echo, Process, Ref
from messages import mentions, raising
from processes import is_running
from transfer_dock.controller import (
    Batch,
    ClassWithInitArgs,
    Controller,
    Dispatch,
    ResourcePool,
    RowsRef,
    Worker,
    WorkerGroup,
    create_colocated_worker_cls,
    join,
    register,
)
from transfer_dock.controller.processes import Processes
from waiting import LONG, NEVER, until

PEER = pathlib.Path(os.environ["TDOCK_BUILD"]) / "controller_peer"
HERE = pathlib.Path(__file__).parent


def start(cls: type = Process, *args: object, size: int = 2, **options: object) -> WorkerGroup:
    pool, options = ResourcePool([size]), {"silence": LONG, **options}
    return WorkerGroup(pool, ClassWithInitArgs(cls, *args), start_timeout=LONG, **options)  # type: ignore[arg-type]


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors about workers that end are not raised before they have ended, however long that takes."""
    await_exit = Processes.await_exit
    monkeypatch.setattr(Processes, "await_exit", lambda self, timeout, ranks=None: await_exit(self, LONG, ranks))


@pytest.fixture(scope="module")
def group(server: td.Server) -> Iterator[WorkerGroup]:
    dock = td.Dock.connect(server.address)
    pool, cls = ResourcePool([2, 1]), ClassWithInitArgs(Process)
    with WorkerGroup(pool, cls, dock=dock, start_timeout=LONG, timeout=LONG, silence=LONG) as group:
        yield group
    dock.close()


# ---- What a group does.


def test_each_process_has_the_variables_of_torchrun(group: WorkerGroup) -> None:
    told = group.environment()
    assert [int(one["RANK"]) for one in told] == [one["rank"] for one in told] == [0, 1, 2]
    assert [(one["LOCAL_RANK"], one["LOCAL_WORLD_SIZE"], one["GROUP_RANK"]) for one in told] == [
        ("0", "2", "0"),
        ("1", "2", "0"),
        ("0", "1", "1"),
    ]
    assert {one["WORLD_SIZE"] for one in told} == {"3"}
    assert len({(one["MASTER_ADDR"], one["MASTER_PORT"]) for one in told}) == 1
    assert [one["pid"] for one in told] == group.pids and os.getpid() not in group.pids


def test_batches_travel_and_metrics_become_lists(group: WorkerGroup) -> None:
    scored = group.score(Batch({"x": [1.0, 2.0, 3.0]}))
    assert scored["y"].tolist() == [1.5, 2.5, 3.5] and scored.meta == {"metrics": {"rows": [1, 1, 1]}}


def test_methods_may_be_coroutines(group: WorkerGroup) -> None:
    scored = group.score_soon(Batch({"x": [1.0, 2.0, 3.0]}))
    assert scored["y"].tolist() == [1.5, 2.5, 3.5] and scored.meta == {"metrics": {"rows": [1, 1, 1]}}


def test_calls_are_carried_out_in_order(group: WorkerGroup) -> None:
    slow = group.sleep(0.2)
    quick = group.execute_all_async("environment")
    quick.get(LONG)
    assert slow.done() and slow.get(LONG) == [0, 1, 2]


def test_rows_are_fetched_by_the_workers_and_their_results_stay_in_the_dock(
    group: WorkerGroup, server: td.Server
) -> None:
    with td.Dock.connect(server.address) as dock:
        dock.create_partition("train", {"x": "int64", "y": "int64", "id": "int64"})
        try:
            ids = dock.put("train", {"x": [1, 2, 3, 4, 5, 6], "id": list(range(6))})
            result = group.score_in_dock(RowsRef("train", ids, ["x", "id"]))
            assert isinstance(result, RowsRef) and result.rows.tolist() == ids.tolist()
            assert result.meta == {"made": "here"}
            assert dock.fetch("train", ids, ["y"])["y"].tolist() == [2, 4, 6, 8, 10, 12]
        finally:
            dock.drop_partition("train")


def test_a_fork_of_the_controller_leaves_the_group_alone(group: WorkerGroup) -> None:
    child = os.fork()
    if child == 0:
        try:
            group.environment()
        except td.FailedPrecondition:
            group.shutdown()
            os._exit(0)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert len(group.environment()) == 3


def test_roles_share_processes() -> None:
    roles = create_colocated_worker_cls({"actor": ClassWithInitArgs(Ref, "a"), "ref": ClassWithInitArgs(Ref, "r")})
    with WorkerGroup(ResourcePool([2]), roles, start_timeout=LONG, silence=LONG) as group:
        groups = group.spawn()
        pids = group.pids
        assert groups["actor"].who() == [f"a 0 {pids[0]}", f"a 1 {pids[1]}"]
        assert groups["ref"].who() == [f"r 0 {pids[0]}", f"r 1 {pids[1]}"]
    assert not any(map(is_running, pids))


# ---- What goes wrong.


def test_a_worker_that_ends_fails_its_calls_with_its_last_lines(patient: None) -> None:
    lines: list[tuple[int, str]] = []
    with start(on_line=lambda rank, line: lines.append((rank, line))) as group:
        with raising(td.Unavailable, "'exit'", "'Process'", "rank 1 (Process)", "exit code 3", "the disk is full"):
            group.exit(1)
        assert (1, "the disk is full") in lines
        with raising(td.Unavailable, "'environment'", "rank 1"):  # and so do later calls
            group.environment()


def test_a_killed_worker_fails_the_call_that_it_runs_at_once(patient: None) -> None:
    lines: list[tuple[int, str]] = []
    with start(on_line=lambda rank, line: lines.append((rank, line))) as group:
        call = group.sleep(NEVER, 0)
        until(lambda: (0, "rank 0 sleeps") in lines, "rank 0 sleeps")
        os.kill(group.pids[0], signal.SIGKILL)
        with raising(td.Unavailable, "'sleep'", "rank 0 ", "SIGKILL", "rank 0 sleeps"):
            call.get(LONG)


def message_of_the_stopped(silence: float) -> str:
    """The error of a call to two workers of which rank 1 is stopped. All are dead afterwards."""
    try:
        group = start(silence=silence)
    except td.Unavailable as error:
        return str(error)
    pids = group.pids
    try:
        os.kill(pids[1], signal.SIGSTOP)
        with pytest.raises(td.Unavailable) as caught:
            group.environment()
    finally:
        group.shutdown(grace=0.1)
    assert not any(map(is_running, pids))
    return str(caught.value)


def test_a_stopped_worker_is_noticed_by_its_silence_and_killed_at_the_end() -> None:
    silence, told = 1.0, ""
    # A loaded machine may silence the other worker and the controller as well, but not for any length of time.
    while "'environment'" not in told or "rank 1 " not in told or "rank 0 " in told:
        assert silence < LONG, told
        told = message_of_the_stopped(silence)
        silence *= 4
    mentions(told, "'environment'", "rank 1 ", "no sign", "is running")


def test_a_call_that_takes_too_long_names_the_rank_and_what_it_printed() -> None:
    lines: list[tuple[int, str]] = []
    with start(on_line=lambda rank, line: lines.append((rank, line))) as group:
        pids = group.pids

        def told(timeout: float) -> str:
            with pytest.raises(td.DeadlineExceeded) as caught:
                group.with_timeout(timeout).environment()
            return str(caught.value)

        group.sleep(NEVER, 1)
        until(lambda: (1, "rank 1 sleeps") in lines, "rank 1 sleeps")
        mentions(told(0.5), "'environment'", "500ms", "rank 1 (Process)", "is running", "rank 1 sleeps")
        timeout = 0.5
        while "rank 0 " in told(timeout):  # It answers, if it has the time.
            timeout *= 2
            assert timeout < LONG
        group.shutdown(grace=0.1)  # although it hangs
        assert not any(map(is_running, pids))


def test_a_constructor_that_fails_fails_the_group_and_leaves_nothing(patient: None) -> None:
    lines: list[str] = []
    cls = ClassWithInitArgs(Echo, fail_on=1)
    with raising(td.InternalError, "rank 1 (Echo)", "ValueError: no model for rank 1"):
        WorkerGroup(ResourcePool([2]), cls, start_timeout=LONG, on_line=lambda rank, line: lines.append(line))
    assert any("no model for rank 1" in line for line in lines)


def test_a_process_that_ends_before_it_joins_is_shown(patient: None) -> None:
    with raising(td.Unavailable, "rank 0", "exit code 1", "No module"):
        start(size=1, environment={"PYTHONPLATLIBDIR": "nowhere", "PYTHONHOME": "/nonexistent"})


def test_classes_and_arguments_that_cannot_be_sent_are_refused() -> None:
    class Local:
        pass

    with pytest.raises(td.InvalidArgument, match="picklable"):
        start(Local)
    with pytest.raises(td.InvalidArgument, match="picklable"):
        start(Ref, threading.Lock())


def test_a_controller_that_is_killed_leaves_no_worker(tmp_path: pathlib.Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent(
            """
            import subprocess, sys, threading, time
            from controller_programs import Process
            from transfer_dock.controller import *

            if __name__ == "__main__":
                made = []
                # The thread that starts a group may end.
                starter = threading.Thread(
                    target=lambda: made.append(WorkerGroup(ResourcePool([2]), ClassWithInitArgs(Process)))
                )
                starter.start()
                starter.join()
                made[0].sleep(1000, 0)
                made[0].subgroup([1]).environment()
                print(*made[0].pids, flush=True)
                time.sleep(1000)
            """
        )
    )
    environment = {**os.environ, "PYTHONPATH": f"{HERE}:{os.environ['PYTHONPATH']}"}
    with subprocess.Popen(
        [sys.executable, program], env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as controller:
        assert controller.stdout is not None
        pids = [int(pid) for pid in controller.stdout.readline().split()]
        assert len(pids) == 2 and all(map(is_running, pids))
        os.kill(pids[1], signal.SIGSTOP)  # this one cannot notice anything itself
        controller.kill()
        until(lambda: not any(map(is_running, pids)), "the workers have left")


# ---- Other languages.


class Python:
    """What controller_peer calls."""

    def double(self, x: int) -> int:
        return 2 * x

    def score(self, batch: Batch) -> Batch:
        return Batch({"score": batch["x"].numpy() * 10})


def test_python_workers_join_a_controller_in_cpp() -> None:
    environment = {**os.environ, "TDOCK_TOKEN": "secret"}
    with subprocess.Popen([PEER, "controller", "2"], env=environment, stdout=subprocess.PIPE, text=True) as peer:
        assert peer.stdout is not None
        address = peer.stdout.readline().strip()
        welcomes: list[object] = []
        errors: list[BaseException] = []

        def work(rank: int) -> None:
            try:
                join(address, "secret", rank, 3, Python(), name="python", on_welcome=welcomes.append)
            except BaseException as error:
                errors.append(error)

        workers = [threading.Thread(target=work, args=(rank,)) for rank in (1, 2)]
        for worker in workers:
            worker.start()
        assert peer.stdout.readline() == "2 4; 10 20 30 40\n"
        for worker in workers:
            worker.join(LONG)
        assert not errors and welcomes == [{"step": 3}, {"step": 3}]
        assert peer.wait(LONG) == 0


def test_functions_of_a_worker_that_joins_may_be_coroutines() -> None:
    async def double(x: int) -> int:
        return 2 * x

    with Controller(2) as controller:
        worker = threading.Thread(target=join, args=(controller.address, "", 1, 2, {"double": double}))
        worker.start()
        controller.begin(timeout=LONG)
        assert controller.group({"double": "DP_COMPUTE"}, timeout=LONG).double([4]) == [8]
    worker.join(LONG)
    assert not worker.is_alive()


def test_a_worker_says_why_it_cannot_join() -> None:
    environment = {**os.environ, "TDOCK_TOKEN": "secret"}
    with subprocess.Popen(
        [PEER, "controller", "1"], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as peer:
        assert peer.stdout is not None and peer.stderr is not None
        address = peer.stdout.readline().strip()
        with pytest.raises(KeyError, match="model"):
            join(address, "secret", 1, 2, Python(), on_welcome=lambda welcome: [welcome["model"]])
        assert "KeyError: 'model'" in peer.stderr.read() and peer.wait(LONG) == 1


def test_a_python_controller_drives_workers_in_cpp() -> None:
    with Controller(3, token="secret") as controller:
        environment = {**os.environ, "TDOCK_TOKEN": "secret"}
        peers = [
            subprocess.Popen([PEER, "worker", controller.address, str(rank), "3"], env=environment) for rank in (1, 2)
        ]
        try:
            controller.begin({"step": 3}, timeout=LONG)
            methods = {"double": Dispatch.DP_COMPUTE, "score": Dispatch.DP_COMPUTE_PROTO}
            group = controller.group(methods, name="cpp", timeout=LONG)
            assert group.double([3, 4]) == [6, 8]
            import numpy

            scored = group.score(Batch({"x": numpy.arange(4, dtype=numpy.float32)}))
            assert scored["score"].tolist() == [0, 10, 20, 30]
            with pytest.raises(td.InvalidArgument, match="'double'.*argument 0.*expected an int64"):
                group.double(["a", "b"])
            peers[0].kill()
            with pytest.raises(td.Unavailable, match=r"(?s)rank 1 \(cpp\) is gone.*welcomed with an object of 1"):
                group.double([3, 4])
            controller.close()
            assert peers[1].wait(LONG) == 0
        finally:
            for peer in peers:
                peer.kill()
                peer.wait()


class Talker(Worker):
    @register(Dispatch.ONE_TO_ALL)
    def leave(self) -> None:
        self.log("the disk is full")
        sys.exit(1)


def test_a_worker_that_joined_tells_its_controller_its_last_lines() -> None:
    with Controller(2) as controller:

        def work() -> None:
            with contextlib.suppress(SystemExit):
                join(controller.address, "", 1, 2, Talker(), name="talker")

        worker = threading.Thread(target=work)
        worker.start()
        controller.begin(timeout=LONG)
        group = controller.group(Talker)
        with pytest.raises((td.InternalError, td.Unavailable), match="SystemExit: 1|is gone"):
            group.leave()
        worker.join(LONG)
        with pytest.raises(td.Unavailable, match=r"(?s)rank 1 \(talker\) is gone.*the disk is full"):
            group.leave()


def test_a_worker_whose_controller_is_gone_leaves() -> None:
    controller = Controller(2)
    address = controller.address
    ended: list[BaseException | None] = []

    def work() -> None:
        try:
            join(address, "", 1, 2, Python())
            ended.append(None)
        except BaseException as error:
            ended.append(error)

    worker = threading.Thread(target=work)
    worker.start()
    controller.begin(timeout=LONG)
    controller.close()
    worker.join(LONG)
    assert ended == [None]
