"""Tensors of transfer_dock.compat.transfer_queue are their holder's own, though large ones are not copied.

The memory of the dock is mapped so that whoever writes to a page gets a copy of it. Each test has the dock reuse the
memory of its rows, and so fails if the tensors show what is there.
"""

from __future__ import annotations

import os
import pathlib
import signal
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict

import transfer_dock as td
import transfer_dock.compat.transfer_queue as tq
from waiting import LONG, answered, until

ROWS, LENGTH = 16, 1 << 17
KEYS = [f"k{i}" for i in range(ROWS)]


def batch(value: float, rows: int = ROWS) -> TensorDict:
    """Rows of ``value``, ``value`` + 1, …"""
    of_rows = value + torch.arange(rows, dtype=torch.float32)
    return TensorDict({"x": of_rows[:, None].expand(rows, LENGTH).contiguous()}, batch_size=[rows])


def put(value: float) -> None:
    tq.kv_batch_put(keys=KEYS, partition_id="p", fields=batch(value))


def get() -> torch.Tensor:
    """All elements, in one dimension."""
    values = tq.kv_batch_get(keys=KEYS, partition_id="p")["x"].values()
    assert isinstance(values, torch.Tensor)
    return values


def shows(tensor: torch.Tensor, value: float) -> bool:
    return torch.equal(tensor.view(ROWS, LENGTH), batch(value)["x"])


def reuse() -> None:
    """Has the dock write over what is free of its memory: the rows are cleared, and others come and go."""
    tq.kv_clear(keys=KEYS, partition_id="p")
    for value in (1e6, 2e6, 3e6):
        put(value)
        tq.kv_clear(keys=KEYS, partition_id="p")


def private_maps() -> int:
    """How many copy-on-write mappings of a dock's memory this process has."""
    with open("/proc/self/maps", encoding="ascii") as maps:
        return sum("tdock-segment" in line and "rw-p" in line for line in maps)


def is_stopped(pid: int) -> bool:
    """Whether all threads of a process are."""
    threads = pathlib.Path(f"/proc/{pid}/task").glob("*/stat")
    return all(thread.read_text().rpartition(")")[2].split()[0] == "T" for thread in threads)


@pytest.fixture(autouse=True)
def queue() -> Any:
    torch.set_num_threads(1)  # a forked process has no pool of threads, and OpenMP waits for it
    tq.init({"controller": {"polling_mode": True}})
    try:
        yield
    finally:
        tq.close()


def test_a_large_tensor_is_not_copied_and_its_mapping_goes_with_it() -> None:
    before = private_maps()
    put(0)
    tensor = get()
    assert private_maps() == before + 1
    kept = tensor[5:6]
    del tensor
    assert private_maps() == before + 1
    del kept
    assert private_maps() == before


def test_small_tensors_are_copied() -> None:
    before = private_maps()
    tq.kv_batch_put(keys=["a"], partition_id="p", fields=TensorDict({"x": torch.ones(1, 64)}, batch_size=[1]))
    tensor = tq.kv_batch_get(keys=["a"], partition_id="p")["x"]
    assert private_maps() == before
    tensor.values().add_(1)


def test_who_writes_changes_no_other_tensor_and_not_the_dock() -> None:
    put(0)
    mine, other = get(), get()
    mine.view(ROWS, LENGTH)[3:12] = -1
    assert shows(other, 0)
    assert shows(get(), 0)
    other.zero_()
    assert mine.view(ROWS, LENGTH)[:, 0].tolist() == [0, 1, 2] + [-1] * 9 + [12, 13, 14, 15]
    assert shows(get(), 0)


def test_fields_of_one_get_do_not_share_pages() -> None:
    rows = batch(0)
    # Not whole pages: the end of one field and the beginning of the other may share one in the dock.
    odd = {name: rows["x"][:, : LENGTH - 100 - i].contiguous() for i, name in enumerate("abc")}
    tq.kv_batch_put(keys=KEYS, partition_id="p", fields=TensorDict(odd, batch_size=[ROWS]))
    got = tq.kv_batch_get(keys=KEYS, partition_id="p")
    for name in odd:
        got[name].values().fill_(float(ord(name)))
    for name in odd:
        assert (got[name].values() == ord(name)).all()


@pytest.mark.parametrize("written", [False, True])
def test_what_is_replaced_and_cleared_meanwhile_stays(written: bool) -> None:
    put(0)
    tensor = get()
    if written:
        tensor[::5000] += 7
    expected = tensor.clone()
    put(100)
    assert shows(get(), 100)
    assert torch.equal(tensor, expected)
    reuse()
    tq.get_client().clear_partition("p")
    put(200)
    assert torch.equal(tensor, expected)


def test_the_dock_has_its_memory_back_when_the_tensor_is_gone() -> None:
    put(0)
    status = tq.get_client()._core.dock.status
    # Of the partition that is left; all rows are cleared.
    tq.kv_batch_put(keys=["other"], partition_id="p", fields=batch(0, 1))
    tensor = get()
    held = status("p").held_bytes
    tq.kv_clear(keys=KEYS, partition_id="p")
    assert status("p").held_bytes >= tensor.numel() * 4
    part = tensor[-1:]
    del tensor
    assert status("p").held_bytes >= ROWS * LENGTH * 4
    del part
    until(lambda: status("p").held_bytes <= held - ROWS * LENGTH * 4, "the memory of the tensor")


def test_tensors_outlast_the_connection_and_the_server() -> None:
    put(0)
    tensor = get()
    tq.close()
    assert shows(tensor, 0)
    tensor += 1
    assert shows(tensor, 1)
    del tensor
    tq.init({"controller": {"polling_mode": True}})


def test_a_server_that_answers_too_late_keeps_what_tensors_show() -> None:
    cells = np.zeros((ROWS, LENGTH), np.float32)
    with td.serve() as server:
        dock, other = server.connect(answer_within=0.3), server.connect()
        other.create_partition("p", {"x": td.column("float32", (LENGTH,))})
        ids = other.put("p", {"x": cells})
        tensor = answered(lambda: dock.fetch("p", ids, ["x"]), td.DeadlineExceeded)["x"]._private_torch()
        assert private_maps() > 0
        os.kill(server.pid, signal.SIGSTOP)
        try:
            until(lambda: is_stopped(server.pid), "the stop of the server")
            with pytest.raises(td.DeadlineExceeded):
                dock.status("p")
        finally:
            os.kill(server.pid, signal.SIGCONT)
        time.sleep(2)  # a session without a connection would have ended
        other.clear("p", ids)
        for _ in range(3):
            other.clear("p", other.put("p", {"x": cells + 7}))
        assert not tensor.any()
        assert answered(lambda: dock.status("p"), td.DeadlineExceeded).rows == 0


class Child:
    """A forked process that does something when it is told to, and fails by raising."""

    def __init__(self, body: Callable[[], object]) -> None:
        there, self._go = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            signal.alarm(int(LONG))
            os.close(self._go)
            try:
                os.read(there, 1)
                body()
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        os.close(there)

    def run(self) -> None:
        os.close(self._go)
        assert os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1]) == 0


def test_a_forked_process_has_what_its_parent_had_even_if_the_parent_releases_it() -> None:
    put(0)
    tensors = [get(), get()]
    tensors[1][:100] = -5

    def body() -> None:
        assert shows(tensors[0], 0)
        assert (tensors[1][:100] == -5).all()
        assert tensors[1][100:LENGTH].eq(0).all()
        tensors[0].fill_(9)
        tensors.clear()

    child = Child(body)
    tensors.clear()
    reuse()
    child.run()


def test_a_forked_process_changes_and_releases_nothing_of_its_parent() -> None:
    put(0)
    tensors = [get()]

    def body() -> None:
        tensors[0].fill_(9)
        tensors.clear()

    Child(body).run()
    reuse()
    assert shows(tensors[0], 0)
    # It goes on without copies, as does the child, which makes its own connection.
    put(0)
    before = private_maps()
    tensor = get()
    assert private_maps() == before + 1

    def get_there() -> None:
        tensors.clear()
        count = private_maps()
        mine = get()
        assert private_maps() == count + 1
        assert shows(mine, 0)

    Child(get_there).run()
    assert shows(tensor, 0)


def test_a_fork_releases_what_the_tensors_no_longer_need_of_the_dock() -> None:
    put(0)
    tensor = get()
    Child(lambda: None).run()
    tq.kv_clear(keys=KEYS, partition_id="p")
    dock = tq.get_client()._core.dock
    until(lambda: dock.status("p").held_bytes < ROWS * LENGTH * 4, "the memory of the rows")
    assert shows(tensor, 0)


def test_threads_that_get_and_write_do_not_disturb_each_other_nor_forks() -> None:
    put(0)
    over = threading.Event()
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            while not over.is_set():
                tensor = get()
                assert shows(tensor, 0)
                tensor.fill_(number)
                time.sleep(0)
                assert (tensor == number).all()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in (1, 2, 3)]
    for thread in threads:
        thread.start()
    tensor = get()
    for _ in range(5):

        def body(tensor: torch.Tensor = tensor) -> None:
            assert shows(tensor, 0)

        child = Child(body)
        del tensor, body
        child.run()
        tensor = get()
    over.set()
    for thread in threads:
        thread.join(LONG)
    assert not errors
    assert shows(get(), 0)


def test_tensors_over_tcp_are_their_holders_too() -> None:
    with td.serve() as server, td.Dock.connect(server.tcp_address) as dock:
        dock.create_partition("p", growing=True)
        rows = dock.put("p", {"x": batch(0)["x"]})
        one, other = (dock.fetch("p", rows, ["x"])["x"]._private_torch() for _ in range(2))
        one.fill_(5)
        assert shows(other, 0)
        assert shows(dock.fetch("p", rows, ["x"])["x"].torch(), 0)
