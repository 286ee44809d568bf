"""Programs of this package as children of this process, which they do not outlive."""

from __future__ import annotations

import collections
import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence

from transfer_dock import executables

_LINES = 200  # of its messages, kept
# Starts a program and passes on the signals whose numbers arrive as bytes at its standard input. At the end of that input,
# which is that of this process, the program gets one SIGTERM. (PR_SET_PDEATHSIG alone would come again for each thread of a
# process that ends, and when the thread that started the program does.) Ends as the program does.
_WATCHER = """
import ctypes, os, select, signal, sys
watcher, program = os.getpid(), os.fork()
if program == 0:
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG, of a parent with one thread
    if os.getppid() != watcher:
        os._exit(128 + signal.SIGTERM)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    try:
        os.execv(sys.argv[1], sys.argv[1:])
    except OSError as error:
        sys.exit(f"{sys.argv[1]}: {error.strerror}")
for output in (1, 2):
    os.close(output)
ended = os.pidfd_open(program)
sources = [0, ended]
while ended not in (ready := select.select(sources, [], [])[0]):
    numbers = os.read(0, 64)
    for number in numbers or [signal.SIGTERM]:
        os.kill(program, number)
    if not numbers:
        sources.remove(0)
code = os.waitstatus_to_exitcode(os.waitpid(program, 0)[1])
if code < 0:
    if -code not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(-code, signal.SIG_DFL)
    os.kill(watcher, -code)
os._exit(code)
"""


class Child:
    """A program that runs. Threads read what it writes, line by line. Thread-safe.

    It gets no signals of the terminal, so that Ctrl-C is this process's to pass on. When this process ends, however that
    happens, it gets SIGTERM.
    """

    def __init__(
        self,
        command: Sequence[str | os.PathLike[str]],
        say: Callable[[str], None],
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """say: is called with each line of its standard error, in another thread."""
        self.lines: collections.deque[str] = collections.deque(maxlen=_LINES)
        self._say = say
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _WATCHER, *(os.fspath(word) for word in command)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0,
            env={**executables.environment(), **(environment or {})}, start_new_session=True,
        )  # fmt: skip
        self._printed: list[str] = []
        self._readers = [
            threading.Thread(target=self._read_errors, daemon=True, name="messages of a run"),
            threading.Thread(target=self._read_output, daemon=True, name="output of a run"),
        ]
        for reader in self._readers:
            reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def _read_errors(self) -> None:
        with open(self._process.stderr.fileno(), encoding="utf-8", errors="replace", closefd=False) as lines:  # type: ignore[union-attr]
            for line in lines:
                self.lines.append(line.rstrip("\n"))
                # Reading goes on whatever becomes of the line: the program would stop at a full pipe.
                with contextlib.suppress(Exception):
                    self._say(line.rstrip("\n"))

    def _read_output(self) -> None:
        with open(self._process.stdout.fileno(), encoding="utf-8", errors="replace", closefd=False) as lines:  # type: ignore[union-attr]
            self._printed.extend(line.rstrip("\n") for line in lines)

    def poll(self) -> int | None:
        """Its exit code, negative for a signal, or None while it runs."""
        return self._process.poll()

    def wait(self, seconds: float | None = None) -> int | None:
        """Its exit code, or None if it still runs after ``seconds``."""
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def signal(self, number: int) -> None:
        """Does nothing if it has ended."""
        with contextlib.suppress(BrokenPipeError, ValueError):  # closed by the program, or by end()
            self._process.stdin.write(bytes([number]))  # type: ignore[union-attr]

    def output(self) -> list[str]:
        """Lines of its standard output. Waits until all is read, so call it after the end of the program."""
        for reader in self._readers:
            reader.join(10.0)  # a process of its own may hold the pipe open
        return self._printed

    def end(self, seconds: float) -> int:
        """SIGTERM, and SIGKILL after ``seconds``. Returns its exit code."""
        if self.poll() is None:
            self.signal(signal.SIGTERM)
            if self.wait(seconds) is None:
                self.signal(signal.SIGKILL)
        code = self._process.wait()
        self.output()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            assert pipe is not None
            pipe.close()
        return code
