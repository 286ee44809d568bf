"""Docks in other processes: pickled, and forked."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

import transfer_dock as td

from messages import raising
from waiting import LONG, NEVER, until


def in_child(body: Callable[[], object]) -> None:
    """Runs in a forked process, which fails by raising."""
    pid = os.fork()
    if pid == 0:
        signal.alarm(int(LONG))
        try:
            body()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@pytest.fixture
def flow(remote: td.Dock) -> td.Dock:
    remote.create_partition("p", {"x": "int64"})
    remote.register_consumer("p", "c", reads=["x"])
    remote.put("p", {"x": np.arange(100)})
    return remote


def test_a_pickled_dock_connects_to_the_same_server(flow: td.Dock) -> None:
    other = pickle.loads(pickle.dumps(flow))
    assert other.partitions() == ["p"]
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(td.Dock.partitions, (flow,)) == ["p"]


def test_a_local_dock_cannot_be_pickled_or_forked() -> None:
    dock = td.Dock.local()
    with pytest.raises(TypeError, match="serve it"):
        pickle.dumps(dock)

    def use() -> None:
        with raising(td.FailedPrecondition, "dock", "process", "forked"):
            dock.partitions()

    in_child(use)
    assert dock.partitions() == []


def test_waits_in_a_local_dock_of_a_child_end() -> None:
    def wait() -> None:
        dock = td.Dock.local()
        dock.create_partition("p", {"x": "int64"})
        dock.register_consumer("p", "c", reads=["x"])
        with pytest.raises(td.DeadlineExceeded):
            dock.take("p", "c", timeout=0.01)

    # The thread that ends waits is not there in a child.
    wait()
    in_child(wait)


def test_children_connect_anew_and_the_parent_goes_on(flow: td.Dock) -> None:
    mine = flow.take("p", "c", max=10)
    rows = flow.fetch("p", [99], ["x"])

    def use() -> None:
        assert rows["x"].numpy().tolist() == [99]
        assert flow.take("p", "c", max=10).ids.tolist() == list(range(10, 20))
        # A child has children, too.
        in_child(lambda: flow.partitions() and None)

    for _ in range(3):
        in_child(use)
        assert rows["x"].numpy().tolist() == [99]
        # The child is gone, and its lease with it, after a second.
        until(lambda: flow.consumer_status("p", "c").leased == 10, "the child's rows come back")
    mine.complete()
    assert flow.consumer_status("p", "c").done == 10


def test_closing_in_a_child_leaves_the_parent_its_leases(flow: td.Dock) -> None:
    mine = flow.take("p", "c", max=10)

    def use() -> None:
        flow.partitions()
        flow.close()

    in_child(use)
    in_child(flow.close)
    mine.complete()
    assert flow.consumer_status("p", "c").done == 10


def test_children_put_whatever_the_threads_of_their_parent_did(flow: td.Dock) -> None:
    stop = threading.Event()

    def work() -> None:
        dock = td.Dock.local()
        dock.create_partition("q")
        while not stop.is_set():
            dock.put("q", {"x": [b"abc", b"d"], "y": [[1], [2, 3]]})
            dock.clear("q", everything=True)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(20):
            in_child(lambda: flow.put("p", {"x": [1]}) is None)
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_a_child_that_ends_as_python_does_leaves_the_parent_its_views(flow: td.Dock, server: td.Server) -> None:
    program = f"""
import os, sys, transfer_dock as td
dock = td.Dock.connect({server.address!r})
rows = dock.fetch("p", range(100), ["x"])
view = rows["x"].numpy()
pid = os.fork()
if pid == 0:
    sys.exit(0)  # destroys what it has, so far as Python does
assert os.waitpid(pid, 0)[1] == 0
held = dock.status("p").held_bytes
dock.clear("p", everything=True)
assert view.tolist() == list(range(100))
assert 0 < dock.status("p").held_bytes <= held, "the parent still looks at the rows"
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=LONG)


def test_calls_that_wait_are_not_ended_by_a_fork(flow: td.Dock) -> None:
    flow.clear("p", everything=True)
    results: list[td.Taken] = []
    thread = threading.Thread(target=lambda: results.append(flow.take("p", "c", timeout=NEVER)))
    thread.start()
    for _ in range(3):
        in_child(lambda: flow.partitions() and None)
    flow.put("p", {"x": [7]})
    thread.join(LONG)
    assert results[0]["x"].numpy().tolist() == [7]


def test_a_session_ends_with_the_parent_though_a_child_lives_on(server: td.Server) -> None:
    dock = td.Dock.connect(server.address)
    dock.create_partition("orphans", {"x": "int64"})
    dock.register_consumer("orphans", "c", reads=["x"])
    dock.put("orphans", {"x": [1]})
    for address in (server.address, server.tcp_address):
        program = f"""
import os, transfer_dock as td
dock = td.Dock.connect({address!r})
dock.take("orphans", "c")
if os.fork() == 0:
    os.read(0, 1)  # until the test closes it
    os._exit(0)
os._exit(0)
"""
        with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE) as parent:
            assert parent.wait(LONG) == 0
            # A second later the row is there again.
            dock.take("orphans", "c", timeout=LONG).release()
    dock.drop_partition("orphans")


def test_a_child_of_a_process_that_serves_over_tcp(tmp_path: Any) -> None:
    with td.DockServer(listen="127.0.0.1:0", socket=str(tmp_path / "s")) as server:
        over_tcp = td.Dock.connect(server.tcp_address)
        server.dock.create_partition("p")

        def use() -> None:
            assert server.dock.partitions() == ["p"], "over the socket"
            assert td.Dock.connect(server.address).partitions() == ["p"]
            assert over_tcp.partitions() == ["p"]

        in_child(use)
        assert over_tcp.partitions() == server.dock.partitions() == ["p"]


class Taking(torch.utils.data.IterableDataset):  # type: ignore[type-arg]
    def __init__(self, dock: td.Dock) -> None:
        self.dock = dock

    def __iter__(self) -> Iterator[list[int]]:
        while True:
            try:
                with self.dock.take("p", "c", max=8, timeout=LONG) as rows:
                    yield rows["x"].numpy().tolist()
            except td.EndOfData:
                return


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_loaders_with_workers_read_every_row_once(flow: td.Dock, method: str) -> None:
    flow.seal("p")
    loader = torch.utils.data.DataLoader(
        Taking(flow), batch_size=None, num_workers=2, multiprocessing_context=method, timeout=LONG, in_order=False
    )
    assert sorted(number for batch in loader for number in batch) == list(range(100))
    assert flow.consumer_status("p", "c").done == 100
