"""Servers: as a process of their own, and inside this one."""

from __future__ import annotations

import gc
import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import transfer_dock as td
from transfer_dock.executables import find

from messages import raising
from processes import is_running
from waiting import LONG, answered, ends, turns_of_others, until

LATE = (td.Unavailable, td.DeadlineExceeded)


def await_end(pid: int) -> None:
    until(lambda: not is_running(pid), f"process {pid} ends")


def answers_of(dock: td.Dock) -> list[Any]:
    """What a dock answers to a little of everything."""
    seen: list[Any] = []

    def tell(call: Any) -> None:
        try:
            answer = call()
        except td.DockError as error:
            seen.append((type(error).__name__, str(error)))
            return
        if isinstance(answer, td.Rows):
            values = {name: rows.tolist() for name, rows in ((n, answer[n]) for n in answer.columns)}
            answer = (
                answer.ids.tolist(),
                {name: [np.asarray(v).tolist() for v in one] for name, one in values.items()},
            )
        seen.append(answer.tolist() if isinstance(answer, np.ndarray) else answer)

    dock.create_partition(
        "same", {"d": td.column("float32", (2,)), "r": td.column("int64", ragged=True), "s": "str", "b": "bytes"}
    )
    dock.register_consumer("same", "c", reads=["d", "s"], writes=["r"])
    data = {"d": np.arange(6, dtype=np.float32).reshape(3, 2), "s": ["a", "", "ü"], "b": [b"\x00", b"", b"x" * 99_999]}
    tell(lambda: dock.put("same", data, keys=["x", "y", None], tags={"t": "1"}))
    tell(lambda: dock.fetch("same", [2, 0], ["d", "s", "b"]))
    tell(lambda: dock.fetch("same", [0], ["r"]))
    tell(lambda: dock.fetch("same", [1, 0, 1, 1], ["r", "d"]))
    tell(lambda: [len(dock.fetch("same", [1] * 500_000, ["d"])), dock.fetch("same", [2, 0] * 50_000, ["d"]).ids.sum()])
    tell(lambda: dock.fetch("same", [9], ["d"]))
    tell(lambda: dock.take("same", "c", max=2))
    tell(lambda: dock.put("same", {"d": np.zeros((1, 3), np.float32)}))
    tell(lambda: dock.put("same", {"d": np.zeros((1, 2), np.float32), "q": [1]}))
    tell(lambda: dock.find("same", ["y", "x"]))
    tell(lambda: dock.find("same", ["z"]))
    tell(lambda: [row.to_dict() for row in dock.list("same")[0]])
    tell(lambda: dock.clear("same", tags={"t": "2"}))
    tell(lambda: dock.create_partition("same", {"d": "float32"}))
    tell(lambda: dock.status("same").to_dict() | {"held_bytes": None})
    tell(lambda: dock.status("nope"))
    dock.drop_partition("same")
    return seen


def test_every_way_to_a_dock_gives_the_same(server: td.Server, tmp_path: pathlib.Path) -> None:
    with td.DockServer(listen="127.0.0.1:0", socket=str(tmp_path / "s")) as inside:
        docks = [td.Dock.local(), td.Dock.connect(server.address), td.Dock.connect(server.tcp_address), inside.dock,
                 td.Dock.connect(inside.address), td.Dock.connect(inside.tcp_address)]  # fmt: skip
        first, *others = [answers_of(dock) for dock in docks]
        assert len(first) == 16
        for other in others:
            assert other == first


def test_a_server_has_addresses_and_an_end() -> None:
    with td.serve() as server:
        assert server.address.startswith("unix:/") and server.tcp_address.startswith("127.0.0.1:")
        folder = pathlib.Path(server.address.removeprefix("unix:")).parent
        assert is_running(server.pid) and folder.is_dir()
        assert server.connect().partitions() == []
        dock = answered(lambda: td.Dock.connect(server.address, reconnect_for=0.2), LATE)
    assert not is_running(server.pid) and not folder.exists()
    with raising(td.Unavailable, server.address, "200ms"):
        dock.partitions()
    assert server.close() == 0, "closing again does nothing"


def test_a_server_can_be_only_where_it_is_wanted(tmp_path: pathlib.Path) -> None:
    with td.serve(listen=None, socket=str(tmp_path / "only.sock")) as server:
        assert (server.address, server.tcp_address) == (f"unix:{tmp_path}/only.sock", "")
        server.connect().create_partition("p")
    with td.serve(socket="none") as server:
        assert server.address == server.tcp_address
        server.connect().create_partition("p")


def test_a_server_ends_with_the_process_that_started_it() -> None:
    program = "import transfer_dock as td, threading, time\n"
    # Not with the thread: another one goes on.
    program += (
        "out = []\nthread = threading.Thread(target=lambda: out.append(td.serve()))\nthread.start(); thread.join()\n"
    )
    program += "assert out[0].connect().partitions() == []\nprint(out[0].pid, flush=True)\ntime.sleep(600)\n"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        assert is_running(pid)
        process.send_signal(signal.SIGKILL)
    await_end(pid)


def test_a_program_that_is_killed_leaves_no_folder() -> None:
    program = "import transfer_dock as td, time\nserver = td.serve(token='secret')\n"
    program += "print(server.pid, server.address, flush=True)\ntime.sleep(600)\n"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pid, address = process.stdout.readline().split()
        folder = pathlib.Path(address.removeprefix("unix:")).parent
        assert sorted(file.name for file in folder.iterdir()) == ["dock.sock", "token"]
        process.send_signal(signal.SIGKILL)
    await_end(int(pid))
    until(lambda: not folder.exists(), f"{folder} goes")


WAITS = {
    "thread": "import threading\nthreading.Thread(target=dock.take, args=('p', 'c'), kwargs={'timeout': None}, daemon=True).start()\n",
    "aio": "import asyncio\nasync def main():\n    task = asyncio.create_task(dock.aio.take('p', 'c', timeout=None))\n"
    "    await asyncio.sleep(0.3)\n    raise SystemExit\nasyncio.run(main())\n",
}


@pytest.mark.parametrize("how", WAITS)
@pytest.mark.parametrize("kind", ["address", "tcp_address"])
def test_a_program_that_exits_while_it_waits_stops_nobody_else(server: td.Server, how: str, kind: str) -> None:
    dock = server.connect()
    for partition in ("p", "held"):
        dock.create_partition(partition, {"x": "int64"})
        dock.register_consumer(partition, "c", reads=["x"])
    dock.put("held", {"x": [1]})
    program = f"import time, transfer_dock as td\ndock = td.Dock.connect({getattr(server, kind)!r})\n"
    program += "held = dock.take('held', 'c')\n" + WAITS[how] + "time.sleep(0.3)\n"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=LONG, stderr=subprocess.DEVNULL)
    # Its session ends a second later, and gives back what it holds. Meanwhile no call takes as long as thousands of
    # calls to another server: nearly a second, if the machine has nothing else to do.
    calls, over = 0, threading.Event()
    with td.serve() as another, another.connect() as other:

        def call_another() -> None:
            nonlocal calls
            while not over.is_set():
                other.partitions()
                calls += 1

        control = threading.Thread(target=call_another)
        control.start()
        try:
            most, begin = 0, time.monotonic()
            while time.monotonic() < begin + 1.8 or dock.consumer_status("held", "c").leased:
                assert time.monotonic() < begin + LONG, "the session does not end"
                assert control.is_alive(), "nothing to compare with"
                before = calls
                assert dock.partitions() == ["held", "p"]
                most = max(most, calls - before)
        finally:
            over.set()
            control.join()
    assert most < 2000
    dock.drop_partition("p")
    dock.drop_partition("held")


def test_a_server_whose_errors_nobody_reads_ends_in_time(tmp_path: pathlib.Path) -> None:
    read, write = os.pipe()
    os.set_blocking(write, False)
    with pytest.raises(BlockingIOError):
        while True:
            os.write(write, b"x" * 4096)
    os.set_blocking(write, True)
    command = [str(find("tdock-dock")), "serve", "--listen", "none", "--socket", str(tmp_path / "s"), "--drain", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=write, text=True) as process:
        try:
            assert process.stdout is not None
            assert "ready\n" in process.stdout  # reads as far as that
            process.terminate()
            process.wait(LONG)
        finally:
            process.kill()
    os.close(read)
    os.close(write)


def test_a_normal_end_is_silent(capfd: pytest.CaptureFixture[str]) -> None:
    server = td.serve()
    server.connect().create_partition("p")
    assert server.close() == 0
    assert capfd.readouterr() == ("", "")


def test_a_program_that_forgets_its_server_ends() -> None:
    program = "import transfer_dock as td\nserver = td.serve()\nprint(server.pid)"
    done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, check=True, timeout=LONG)
    await_end(int(done.stdout))


def test_closing_ends_waits_at_once_and_calls_in_time() -> None:
    with td.serve() as server:
        dock = answered(lambda: td.Dock.connect(server.address, reconnect_for=0.5), LATE)
        dock.create_partition("p", {"x": "int64"})
        dock.register_consumer("p", "c", reads=["x"])
        assert ends(lambda: server.close(drain=2 * LONG), "the server, which has nothing to wait for") == 0
        with pytest.raises(td.Unavailable):
            dock.take("p", "c", timeout=LONG)


def stalls(work: Callable[[], object]) -> bool:
    """True if the work takes a while, in which no other thread runs."""
    begin = time.monotonic()
    turns = turns_of_others(work)
    return time.monotonic() - begin > 0.5 and turns <= 10


def drops_without_a_stall() -> bool:
    servers = [td.serve()]
    pid = servers[0].pid
    docks = [td.Dock.connect(servers[0].address), td.Dock.connect(servers[0].tcp_address)]
    os.kill(pid, signal.SIGSTOP)

    def drop() -> None:
        servers.clear()
        gc.collect()

    stalled = [stalls(docks.clear), stalls(drop)]
    assert not is_running(pid)
    return not any(stalled)


def test_other_threads_run_while_a_server_that_hangs_is_dropped() -> None:
    # To end it takes 2 s. What else the machine does may stall other threads once, but not every time.
    assert any(drops_without_a_stall() for _ in range(10))


def test_tokens_over_tcp(tmp_path: pathlib.Path) -> None:
    (tmp_path / "token").write_text("secret-of-the-file\n")
    for options in ({"token": "secret-of-the-call"}, {"token_file": str(tmp_path / "token")}):
        with td.serve(socket="none", **options) as server:  # type: ignore[arg-type]
            for wrong in ({}, {"token": "another-secret-token"}):
                with pytest.raises(td.Unauthenticated):
                    td.Dock.connect(server.address, **wrong)
            td.Dock.connect(server.address, **options).create_partition("p")  # type: ignore[arg-type]
            if "token" in options:
                assert server.connect().partitions() == ["p"]
        with td.DockServer(listen="127.0.0.1:0", **options) as inside:  # type: ignore[arg-type]
            with pytest.raises(td.Unauthenticated):
                td.Dock.connect(inside.address)
            assert td.Dock.connect(inside.address, **options).partitions() == []  # type: ignore[arg-type]


def test_tls(tmp_path: pathlib.Path) -> None:
    key, certificate = str(tmp_path / "key.pem"), str(tmp_path / "certificate.pem")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost", "-addext",
         "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", key, "-out", certificate],
        check=True, capture_output=True, timeout=LONG,
    )  # fmt: skip
    with td.serve(tls_certificate=certificate, tls_key=key) as server:
        dock = td.Dock.connect(server.tcp_address, tls_ca=certificate)
        dock.create_partition("p")
        assert dock.fetch("p", dock.put("p", {"x": [1]}), ["x"])["x"].numpy().tolist() == [1]
        with pytest.raises(td.DockError):
            td.Dock.connect(server.tcp_address, reconnect_for=0.5)


def test_memory_is_bounded() -> None:
    with td.serve(memory="64MiB") as server:
        dock = server.connect()
        dock.create_partition("p")
        with pytest.raises(td.ResourceExhausted):
            dock.put("p", {"x": np.zeros((1, 1 << 24))})
        dock.put("p", {"x": np.zeros((1, 1 << 20))})
    with pytest.raises(ValueError, match="'8 apples'"):
        td.serve(memory="8 apples")


def test_the_status_page() -> None:
    with td.serve(metrics="127.0.0.1:0") as server:
        assert server.status_url is not None
        server.connect().create_partition("shown")
        with urllib.request.urlopen(server.status_url + "metrics", timeout=LONG) as page:
            assert b"tdock_partitions 1" in page.read()


def test_servers_that_cannot_start_say_why(tmp_path: pathlib.Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(td.InvalidArgument, match="65535"):
        td.serve(listen="127.0.0.1:99999")
    with raising(td.InvalidArgument, "--listen", "'foo'", "no port"):
        td.serve(listen="foo")
    for wrong in (-1, "8 apples", 1):
        with pytest.raises(td.InvalidArgument, match="memory"):
            td.serve(memory=wrong)
    with pytest.raises(td.InvalidArgument, match="session_grace"):
        td.serve(session_grace=float("nan"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with raising(td.Unavailable, address, "another process"):
            td.serve(metrics=address)
    assert capfd.readouterr().err == "", "the exception says it"
    with pytest.raises(td.NotFound, match="no-such-program"):
        td.serve(program=tmp_path / "no-such-program")
    with pytest.raises(td.FailedPrecondition, match="token"):
        td.DockServer(listen="0.0.0.0:0")
    with raising(td.InvalidArgument, "an address", "a socket"):
        td.DockServer()
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(td.DockError):
        td.DockServer(listen=f"127.0.0.1:{taken.getsockname()[1]}")


def test_addresses_that_are_wrong(tmp_path: pathlib.Path) -> None:
    with raising(td.InvalidArgument, "'host:port'", "'unix:/path'", "'nonsense'"):
        td.Dock.connect("nonsense")
    with raising(td.Unavailable, f"unix:{tmp_path}/nobody", "100ms"):
        td.Dock.connect(f"unix:{tmp_path}/nobody", reconnect_for=0.1)


def test_a_server_inside_shares_its_dock(tmp_path: pathlib.Path) -> None:
    with td.DockServer(socket=str(tmp_path / "s")) as server:
        server.dock.create_partition("p", {"x": "int64"})
        with td.Dock.connect(server.address) as client:
            client.put("p", {"x": [1, 2]})
        assert server.dock.status("p").rows == 2
        assert server.tcp_address == "" and server.warnings == []
    assert server.dock.status("p").rows == 2, "the dock stays"


def test_a_server_that_is_restarted_is_found_again(tmp_path: pathlib.Path) -> None:
    path = str(tmp_path / "s")
    server = td.serve(socket=path)
    started = int(time.time())
    dock = td.Dock.connect(server.address)
    dock.create_partition("p", {"x": "int64"})
    dock.register_consumer("p", "c", reads=["x"])
    dock.put("p", {"x": [1]})
    taken = dock.take("p", "c")
    os.kill(server.pid, signal.SIGKILL)
    await_end(server.pid)
    while int(time.time()) <= started:  # servers that start within a second cannot tell their leases apart
        time.sleep(0.05)
    with td.serve(socket=path):
        assert dock.partitions() == []
        with raising(td.FailedPrecondition, f"lease {taken.lease}", "started"):
            taken.complete()
    server.close()
