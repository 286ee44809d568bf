"""Calls that wait: ended by Ctrl-C, by cancelling a task, and never in the way of other threads."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

import numpy as np
import pytest

import transfer_dock as td

from conftest import connect
from waiting import LONG, NEVER, ends, turns_of_others


@pytest.fixture
def waiting(dock: td.Dock) -> td.Dock:
    """A partition "p" with room for two rows, and a consumer "c" that waits for "y"."""
    dock.create_partition("p", {"x": "int64", "y": "int64"}, growing=True, max_rows=2)
    dock.register_consumer("p", "c", reads=["y"])
    dock.put("p", {"x": [1, 2]})
    return dock


WAITS: dict[str, Callable[[td.Dock], Any]] = {
    "take": lambda dock: dock.take("p", "c", timeout=NEVER),
    "take for ever": lambda dock: dock.take("p", "c", timeout=None),
    "fetch": lambda dock: dock.fetch("p", [0], ["y"], timeout=NEVER),
    "put": lambda dock: dock.put("p", {"x": [3]}, timeout=NEVER),
    "large put": lambda dock: dock.put("p", {"x": np.zeros(1, np.int64), "z": np.zeros((1, 1 << 20))}, timeout=NEVER),
}


@pytest.mark.parametrize("wait", WAITS)
def test_ctrl_c_ends_a_wait(waiting: td.Dock, wait: str) -> None:
    interrupt = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    give_up = threading.Timer(LONG, waiting.close)
    give_up.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            interrupt.start()
            WAITS[wait](waiting)
        interrupt.join()
    finally:
        give_up.cancel()
    # And the dock goes on, which was not closed to end the wait.
    waiting.put("p", {"y": [1, 2]}, rows=[0, 1])
    assert len(waiting.take("p", "c", max=2)) == 2


def test_a_signal_handler_that_raises_nothing_does_not_end_a_wait(waiting: td.Dock) -> None:
    handled = []
    before = signal.signal(signal.SIGUSR1, lambda *_: handled.append(waiting.put("p", {"y": [1]}, rows=[0])))
    try:
        timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGUSR1))
        timer.start()
        assert waiting.take("p", "c", timeout=LONG).ids.tolist() == [0]
        timer.join()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert len(handled) == 1


def error_of_a_wait(wait: str, kind: str, server: td.Server, pause: float) -> type[td.DockError]:
    """How a wait ends whose dock is closed so many seconds after it began, or was about to."""
    dock = connect(kind, server)
    dock.create_partition("p", {"x": "int64", "y": "int64"}, growing=True, max_rows=2)
    dock.register_consumer("p", "c", reads=["y"])
    dock.put("p", {"x": [1, 2]})

    def call() -> type[td.DockError]:
        with pytest.raises(td.DockError) as caught:
            WAITS[wait](dock)
        return type(caught.value)

    closing = threading.Timer(pause, dock.close)
    closing.start()
    error = ends(call, f"{wait} of a {kind} dock that is closed")
    closing.join()
    if kind != "local":
        with connect(kind, server) as other:
            other.drop_partition("p")
    return error


@pytest.mark.parametrize("wait", ["take for ever", "fetch", "put", "large put"])
def test_closing_ends_the_waits_of_a_dock(server: td.Server, wait: str) -> None:
    for kind in ("local", "unix", "tcp"):
        pause = 0.2
        # On a loaded machine the dock may be closed before the call has begun.
        while (error := error_of_a_wait(wait, kind, server, pause)) is td.FailedPrecondition:
            pause *= 2
            assert pause < LONG
        assert error is td.Cancelled, kind


def test_a_wait_ends_when_what_it_waits_for_comes(waiting: td.Dock) -> None:
    def fill() -> None:
        waiting.put("p", {"y": [1, 2]}, rows=[0, 1])

    timer = threading.Timer(0.2, fill)
    timer.start()
    assert len(waiting.take("p", "c", max=2, min=2, timeout=LONG)) == 2
    timer.join()
    assert waiting.fetch("p", [1], ["y"], timeout=LONG)["y"].numpy().tolist() == [2]


def test_other_threads_run_while_one_waits(waiting: td.Dock) -> None:
    results: list[td.Taken] = []
    threads = [threading.Thread(target=lambda: results.append(waiting.take("p", "c", timeout=LONG))) for _ in range(2)]
    for thread in threads:
        thread.start()
    waiting.put("p", {"y": [1, 2]}, rows=[0, 1])
    for thread in threads:
        thread.join(LONG)
    assert sorted(int(taken.ids[0]) for taken in results) == [0, 1]


def test_other_threads_run_while_one_copies(local: td.Dock) -> None:
    local.create_partition("p")
    given = np.zeros((256, 1 << 18), np.float32)

    def turns_during_a_put() -> int:
        turns = turns_of_others(lambda: local.put("p", {"x": given}))
        local.clear("p", everything=True)
        return turns

    # 256 MiB take 50 ms and more. Another thread may not get a processor meanwhile, but not every time.
    assert any(turns_during_a_put() > 5 for _ in range(50))


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(coroutine, LONG))


def test_coroutines_do_what_the_verbs_do(dock: td.Dock) -> None:
    async def flow() -> None:
        await dock.aio.create_partition("p", {"x": "int64", "y": "int64"})
        await dock.aio.register_consumer("p", "c", reads=["x"], writes=["y"])
        ids = await dock.aio.put("p", {"x": [1, 2]}, keys=["a", "b"])
        taken = await dock.aio.take("p", "c", max=2)
        await dock.aio.put("p", {"y": taken["x"].numpy() * 2}, rows=taken.ids, lease=taken)
        assert (await dock.aio.fetch("p", ids, ["y"]))["y"].numpy().tolist() == [2, 4]
        assert (await dock.aio.find("p", ["b"])).tolist() == [1]
        assert (await dock.aio.status("p")).consumers["c"].done == 2
        with pytest.raises(td.NotFound):
            await dock.aio.status("q")
        await dock.aio.drop_partition("p")

    run(flow())


def test_many_coroutines_wait_and_the_loop_goes_on(dock: td.Dock) -> None:
    async def flow() -> None:
        await dock.aio.create_partition("p", {"x": "int64"})
        await dock.aio.register_consumer("p", "c", reads=["x"])
        takers = [asyncio.create_task(dock.aio.take("p", "c", timeout=LONG)) for _ in range(50)]
        # The put is made while all of them wait; and the loop does other things.
        ticks = 0
        for _ in range(20):
            await asyncio.sleep(0.005)
            ticks += 1
        await dock.aio.put("p", {"x": np.arange(50)})
        rows = [int(taken.ids[0]) for taken in await asyncio.gather(*takers)]
        assert ticks == 20 and sorted(rows) == list(range(50))

    run(flow())


def test_cancelling_a_task_cancels_its_call(waiting: td.Dock) -> None:
    async def flow() -> None:
        task = asyncio.create_task(waiting.aio.take("p", "c", timeout=NEVER))
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        # The call of the task takes nothing any more, or gives it back.
        await waiting.aio.put("p", {"y": [1, 2]}, rows=[0, 1])
        taken = await waiting.aio.take("p", "c", max=2, min=2, timeout=LONG)
        assert taken.redeliveries.tolist() == [0, 0]

    ends(lambda: run(flow()), "the cancelled call")


def test_rows_that_a_coroutine_takes_are_completed_in_it(dock: td.Dock) -> None:
    dock.create_partition("p", {"x": "int64", "y": "int64"})
    dock.register_consumer("p", "c", reads=["x"], writes=["y"])
    dock.put("p", {"x": [1, 2, 3, 4]})

    async def flow() -> None:
        async with await dock.aio.take("p", "c", max=2) as rows:
            await dock.aio.put("p", {"y": rows["x"].numpy()}, rows=rows.ids, lease=rows)
        async with await dock.aio.take("p", "c") as rows:
            assert (await dock.aio.renew("p", rows)) == rows.expires
        with pytest.raises(ZeroDivisionError):
            async with await dock.aio.take("p", "c") as rows:
                1 / 0

    run(flow())
    status = dock.consumer_status("p", "c")
    assert (status.done, status.ready) == (3, 1)


def test_rows_for_a_coroutine_that_was_dropped_come_back(waiting: td.Dock) -> None:
    loop = asyncio.new_event_loop()
    coroutine = waiting.aio.take("p", "c", max=2, timeout=NEVER)
    task = loop.create_task(coroutine)
    loop.run_until_complete(asyncio.sleep(0.1))
    coroutine.close()
    task.cancel()
    loop.close()
    waiting.put("p", {"y": [1, 2]}, rows=[0, 1])
    assert len(waiting.take("p", "c", max=2, min=2, timeout=LONG)) == 2


# What a program may be doing when it ends.
ENDINGS = {
    "calls in a daemon thread": """
def calls():
    while True:
        try:
            dock.take("p", "c", timeout=0.0005)
        except td.DeadlineExceeded:
            pass
threading.Thread(target=calls, daemon=True).start()
time.sleep(0.2)
""",
    "a wait in a daemon thread": """
threading.Thread(target=lambda: dock.take("p", "c", timeout=None), daemon=True).start()
time.sleep(0.2)
""",
    "a task that nobody awaits": """
loop = asyncio.new_event_loop()
task = loop.create_task(dock.aio.take("p", "c", timeout=None))
loop.run_until_complete(asyncio.sleep(0.1))
""",
}


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("make", ["td.Dock.local()", "td.serve().connect()"])
def test_programs_end_whatever_their_threads_do(ending: str, make: str) -> None:
    program = f"""
import asyncio, threading, time, transfer_dock as td
dock = {make}
dock.create_partition("p", {{"x": "int64"}})
dock.register_consumer("p", "c", reads=["x"])
{ENDINGS[ending]}
print("ends")
"""
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=LONG)
        assert (done.returncode, done.stdout) == (0, "ends\n"), done.stderr
        assert "terminate" not in done.stderr and "leaked" not in done.stderr


def test_a_program_that_is_interrupted_ends(server: td.Server) -> None:
    program = f"""
import transfer_dock as td
dock = td.Dock.connect({server.address!r})
dock.create_partition("interrupted", {{"x": "int64"}})
dock.register_consumer("interrupted", "c", reads=["x"])
try:
    print("waits", flush=True)
    dock.take("interrupted", "c", timeout=None)
finally:
    dock.drop_partition("interrupted")
"""
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "waits\n"
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=LONG)
    assert process.returncode == -signal.SIGINT and "KeyboardInterrupt" in errors
