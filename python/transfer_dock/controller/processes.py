"""The processes of a group of workers on this machine: starting them, their output, and their end."""

from __future__ import annotations

import contextlib
import multiprocessing.spawn
import os
import pickle
import selectors
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from transfer_dock.controller.pools import ResourcePool
from transfer_dock.errors import DeadlineExceeded, InvalidArgument, Unavailable

# How many lines of its output an error about a worker has.
_LAST_LINES = 20
# How long the system may take to start all processes.
_START_WITHIN = 60.0
_PROGRAM = "import sys; sys.path[:] = {path!r}; from transfer_dock.controller.child import main; main()"


def environments(pool: ResourcePool, role: str, more: Mapping[str, str]) -> list[dict[str, str]]:
    """By rank: the variables of its process, as torchrun sets them."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    size = str(pool.world_size)
    common = {
        **os.environ,
        "WORLD_SIZE": size,
        "GROUP_WORLD_SIZE": str(len(pool.process_on_nodes)),
        "ROLE_NAME": role,
        "ROLE_WORLD_SIZE": size,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "PYTHONUNBUFFERED": "1",
    }
    if pool.world_size > 1:  # as torchrun: each process is to be given its share of the machine
        common.setdefault("OMP_NUM_THREADS", "1")
    places = zip(pool.node_list, pool.local_rank_list, pool.local_world_size_list, strict=True)
    return [
        {
            **common,
            "RANK": str(rank),
            "ROLE_RANK": str(rank),
            "GROUP_RANK": str(node),
            "LOCAL_RANK": str(local),
            "LOCAL_WORLD_SIZE": str(local_size),
            **more,
        }
        for rank, (node, local, local_size) in enumerate(places)
    ]


def payload(init: object, job: Mapping[str, Any]) -> bytes:
    """What a worker reads at its start: ``job``, how to become like this program, and ``init``, pickled."""
    main = sys.modules["__main__"]
    if getattr(main, "__file__", None) is None and getattr(main, "__spec__", None) is None:
        for cls in getattr(init, "values", lambda: [])():
            if cls.cls.__module__ == "__main__":
                raise InvalidArgument(
                    f"class {cls.cls.__qualname__} is defined in a program that is no file, from which workers cannot "
                    "import it: move it to a module"
                )
    try:
        pickled = pickle.dumps(init)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise InvalidArgument(
            f"the class of the workers and the arguments of its constructor must be picklable: {error}. Define the "
            "class at the top level of a module; make in the constructor what cannot be pickled"
        ) from error
    preparation = multiprocessing.spawn.get_preparation_data("worker")
    preparation.pop("authkey", None)  # refuses to be pickled, and is not needed
    return pickle.dumps({**job, "preparation": preparation, "init": pickled})


class _Process:
    def __init__(self, rank: int, popen: subprocess.Popen[bytes]) -> None:
        self.rank = rank
        self.popen = popen
        self.lines: deque[str] = deque(maxlen=_LAST_LINES)
        self.partial = b""
        self.returncode: int | None = None


class Processes:
    """One process for each environment. Thread-safe.

    They are started by a thread of their own, which then reads what they print and waits for them: the system kills
    them when that thread ends, and with it at the latest when this process does, however it ends.
    """

    def __init__(self, name: str, on_line: Callable[[int, str], None] | None, on_exit: Callable[[int], None]) -> None:
        """on_line: called with a rank and a line that it has printed; None: lines go to this process's standard error.
        on_exit: called when one has ended. Both are called by the thread of this object."""
        self._name = name
        self._on_line = on_line or self._print
        self._on_exit = on_exit
        self._changed = threading.Condition()
        self._all: list[_Process] = []
        self._started: BaseException | bool = False
        self._owner = os.getpid()
        self._thread: threading.Thread | None = None

    def start(self, environment: Sequence[Mapping[str, str]], data: bytes) -> None:
        """Returns when all have been started."""
        self._thread = threading.Thread(
            target=self._run, args=(environment, data), name="transfer-dock-workers", daemon=True
        )
        self._thread.start()
        with self._changed:
            if not self._changed.wait_for(lambda: self._started, _START_WITHIN):
                raise DeadlineExceeded(f"the workers of '{self._name}' were not started within {_START_WITHIN:g} s")
        if isinstance(self._started, BaseException):
            raise Unavailable(f"the workers of '{self._name}' cannot be started: {self._started}")

    def pid(self, rank: int) -> int:
        return self._all[rank].popen.pid

    def pids(self) -> list[int]:
        return [one.popen.pid for one in self._all]

    def await_exit(self, timeout: float, ranks: Sequence[int] | None = None) -> bool:
        """Whether these, or all, have ended within ``timeout`` seconds."""
        chosen = self._all if ranks is None else [self._all[rank] for rank in ranks]
        with self._changed:
            return self._changed.wait_for(lambda: all(one.returncode is not None for one in chosen), timeout)

    def end(self, grace: float) -> None:
        """Waits ``grace`` seconds for them to end by themselves; then kills them, and what they have started."""
        if os.getpid() != self._owner:
            return
        # The collector of garbage may call this from the thread that notices their end.
        waits = threading.current_thread() is not self._thread
        if waits and self.await_exit(grace):
            return
        for one in self._all:
            if one.returncode is None:
                _kill(one.popen.pid)
        if waits:
            self.await_exit(30.0)

    def describe(self, rank: int) -> str:
        """What there is to say about one: whether it has ended, and its last lines."""
        one = self._all[rank]
        with self._changed:
            code, lines = one.returncode, list(one.lines)
        if code is None:
            state = "is running"
        elif code < 0:
            state = f"was killed by {signal.Signals(-code).name}"
        else:
            state = f"has ended with exit code {code}"
        text = f"rank {rank} of '{self._name}', process {one.popen.pid}, {state}"
        return text + ("; its last lines:\n    " + "\n    ".join(lines) if lines else "; it has printed nothing")

    # ---- The thread.

    def _run(self, environment: Sequence[Mapping[str, str]], data: bytes) -> None:
        selector = selectors.DefaultSelector()
        try:
            self._start_all(environment, data, selector)
            started: BaseException | bool = True
        except Exception as error:
            started = error
        with self._changed:
            self._started = started
            self._changed.notify_all()
        if started is not True:
            for one in self._all:
                _kill(one.popen.pid)
        while selector.get_map():
            for key, _ in selector.select():
                one, pidfd = key.data
                if pidfd is None:
                    self._read(one, selector)
                else:
                    selector.unregister(pidfd)
                    os.close(pidfd)
                    self._reap(one, selector)

    def _start_all(
        self, environment: Sequence[Mapping[str, str]], data: bytes, selector: selectors.BaseSelector
    ) -> None:
        # In memory, and without a name: no other user can read it.
        memory = os.memfd_create("transfer-dock-worker")
        try:
            with open(memory, "wb", closefd=False) as file:
                file.write(data)
            for rank, variables in enumerate(environment):
                popen = subprocess.Popen(
                    [sys.executable, "-c", _PROGRAM.format(path=sys.path)],
                    stdin=memory,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    env=variables,
                    start_new_session=True,
                )
                one = _Process(rank, popen)
                assert popen.stdout is not None
                os.set_blocking(popen.stdout.fileno(), False)
                self._all.append(one)
                pidfd = os.pidfd_open(popen.pid)
                selector.register(popen.stdout, selectors.EVENT_READ, (one, None))
                selector.register(pidfd, selectors.EVENT_READ, (one, pidfd))
        finally:
            os.close(memory)

    def _read(self, one: _Process, selector: selectors.BaseSelector) -> None:
        """Reads what there is."""
        output = one.popen.stdout
        assert output is not None
        while not output.closed:
            try:
                data = os.read(output.fileno(), 1 << 16)
            except BlockingIOError:
                return
            if data:
                *lines, one.partial = (one.partial + data).split(b"\n")
            else:
                lines, one.partial = ([one.partial] if one.partial else []), b""
                selector.unregister(output)
                output.close()
            for line in lines:
                text = line.decode(errors="replace").rstrip("\r")
                with self._changed:
                    one.lines.append(text)
                try:
                    self._on_line(one.rank, text)
                except Exception:  # without this thread, the workers end
                    traceback.print_exc()

    def _reap(self, one: _Process, selector: selectors.BaseSelector) -> None:
        _kill(one.popen.pid)  # what it has started; its number is not free before the wait below
        code = one.popen.wait()
        self._read(one, selector)  # its last lines
        with self._changed:
            one.returncode = code
            self._changed.notify_all()
        self._on_exit(one.rank)

    def _print(self, rank: int, line: str) -> None:
        with contextlib.suppress(ValueError):  # it is closed: this process ends
            print(f"[{self._name} rank {rank}] {line}", file=sys.stderr, flush=True)


def _kill(leader: int) -> None:
    """A process and those that it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)
