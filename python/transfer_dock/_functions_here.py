"""Functions of this process as programs of a run that another process carries out."""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import shlex
import shutil
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from typing import Any

from transfer_dock._program import Channel, Record

# The variable that tells the programs where the socket is: their files stay the same when a run goes on.
_WHERE = "TDOCK_FUNCTIONS_HERE"
_SECONDS = 10.0  # for a program to say what it wants
_LONGEST_FOLDER = 90  # bytes: the path of a socket has at most 107

Serve = Callable[[Channel], None]


class _Connection(Channel):
    """One run of a program. `turn` is held except while it waits for a message."""

    def __init__(self, connection: socket.socket, turn: threading.Lock | None, failed: Callable[[BaseException], None]):
        super().__init__(connection.fileno(), connection.fileno())
        self._turn, self._tell = turn, failed

    def read(self) -> Record | None:
        if self._turn is None:
            return super().read()
        self._turn.release()
        try:
            return super().read()
        finally:
            self._turn.acquire()

    def note(self, text: str) -> None:
        pass  # who calls a function here knows how

    def failed(self, error: BaseException) -> bool:
        self._tell(error)
        return True


class FunctionsHere:
    """Serves functions of this process to a run: each is a program, a file that the run starts.

    They are called by other threads than the caller's. Those with ``in_turn`` are called one at a time.
    """

    def __init__(self, folder: pathlib.Path) -> None:
        """folder: where the files of programs are put. It is made when there is one."""
        self._folder = folder
        self._served: dict[str, tuple[Serve, bool]] = {}
        self._turn = threading.Lock()
        self._lock = threading.Lock()
        self.error: BaseException | None = None  # the first that one of them has raised
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._private = self._path = ""

    def environment(self) -> Mapping[str, str]:
        """What the run's environment must have."""
        return {_WHERE: self._path} if self._path else {}

    def _listen(self) -> None:
        self._private = tempfile.mkdtemp(prefix="transfer-dock-")
        if len(os.fsencode(self._private)) > _LONGEST_FOLDER:
            os.rmdir(self._private)
            self._private = tempfile.mkdtemp(prefix="transfer-dock-", dir="/tmp")
        self._path = os.path.join(self._private, "functions")
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self._path)
        self._listener.listen()
        self._acceptor = threading.Thread(target=self._accept, daemon=True, name="functions of a run")
        self._acceptor.start()

    def add(self, name: str, serve: Serve, *, in_turn: bool) -> str:
        """The command line of a program that ``serve`` is carried out for. Its file is called like the function."""
        name = re.sub(r"[^\w.+-]+", "_", name).strip("_.") or "function"
        unique, number = name, 1
        while unique in self._served:
            number += 1
            unique = f"{name}_{number}"
        if not self._served:
            self._listen()
        self._served[unique] = (serve, in_turn)
        self._folder.mkdir(parents=True, exist_ok=True)
        file = self._folder / unique
        relay = pathlib.Path(__file__).with_name("_relay.py")
        words = [sys.executable, "-I", "-S", str(relay)]
        file.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "${_WHERE}" {shlex.quote(unique)}\n')
        file.chmod(0o755)
        return shlex.quote(str(file))

    def close(self) -> None:
        """Ends all connections; a function that is being called goes on in its thread."""
        if not self._served:
            return
        self._listener.shutdown(socket.SHUT_RDWR)
        self._acceptor.join()
        self._listener.close()
        with self._lock:
            for connection in self._open:
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(1.0)
        shutil.rmtree(self._private, ignore_errors=True)

    def _accept(self) -> None:
        while True:
            try:
                connection = self._listener.accept()[0]
            except OSError:
                return  # closed
            with self._lock:
                self._open.add(connection)
            thread = threading.Thread(target=self._serve, args=[connection], daemon=True, name="functions of a run")
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            connection.settimeout(_SECONDS)
            name = b""
            while not name.endswith(b"\n"):
                byte = connection.recv(1)
                if not byte or len(name) > 4096:
                    return
                name += byte
            connection.settimeout(None)
            serve, in_turn = self._served[name[:-1].decode()]
            if in_turn:
                with self._turn:
                    serve(_Connection(connection, self._turn, self._fail))
            else:
                serve(_Connection(connection, None, self._fail))
        except OSError:
            pass  # the run has ended
        except BaseException as error:
            self._fail(error)
        finally:
            with self._lock, contextlib.suppress(OSError):
                self._open.discard(connection)
                connection.shutdown(socket.SHUT_RDWR)  # a thread may still be reading
            connection.close()

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            self.error = self.error or error

    def __enter__(self) -> FunctionsHere:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()
