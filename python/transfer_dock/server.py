"""Dock servers for other processes: in a process of their own, or inside this one."""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
import weakref
from types import TracebackType
from typing import Any

from transfer_dock import _native, executables, tables
from transfer_dock.arguments import seconds
from transfer_dock.dock import Dock
from transfer_dock.errors import InvalidArgument

# Seconds: the server takes no infinite times.
_LONGEST = sys.float_info.max

_UNITS = {"": 1, "B": 1, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}


def _bytes(memory: int | str) -> int:
    if isinstance(memory, int) and memory >= 0:
        return memory
    found = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]*)?)\s*([A-Za-z]*)\s*", str(memory))
    if found is None or found[2].upper() not in _UNITS:
        raise InvalidArgument(f"memory is '{memory}'; give a number of bytes, or a size such as '512MiB' or '8GiB'")
    return int(float(found[1]) * _UNITS[found[2].upper()])


class Server:
    """A server process that :func:`serve` started. It ends when it is closed, and at the latest with this process."""

    # Addresses for Dock.connect: of the Unix socket, and of TCP; "" if it does not listen there.
    address: str
    tcp_address: str
    # The URL of the status page and the metrics, if they are served.
    status_url: str | None
    pid: int

    def __init__(self, process: _native.ServerProcess, folder: str, token: str | None) -> None:
        """Use serve()."""
        self._process = process
        self._token = token
        self._clean = weakref.finalize(self, _clean, os.getpid(), folder)
        self.pid = process.pid
        self.address, self.tcp_address, self.status_url = "", "", None
        for line in process.lines:
            if line.startswith("tcp "):
                self.tcp_address = line.removeprefix("tcp ")
            elif line.startswith("unix:"):
                self.address = line
            elif line.startswith("status "):
                self.status_url = line.removeprefix("status ")
        self.address = self.address or self.tcp_address

    def connect(self, **options: Any) -> Dock:
        """Connects to its dock: Dock.connect(self.address) with the token. The dock keeps the server alive."""
        dock = Dock.connect(self.address, **{"token": self._token, **options})
        dock._server = self
        return dock

    def close(self, drain: float = 10.0) -> int:
        """Ends it: waiting calls fail with Unavailable, others get ``drain`` seconds. Returns its exit code."""
        code = self._process.close(seconds("drain", drain, most=_LONGEST))
        self._clean()
        return code

    def __repr__(self) -> str:
        return f"<Server {_told(self)}, process {self.pid}>"

    def _repr_html_(self) -> str:
        """For a notebook."""
        return _html(self, [["process", str(self.pid)], ["status page", self.status_url or "none: give serve() metrics="]])

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _told(server: Server | DockServer) -> str:
    both = server.tcp_address and server.tcp_address != server.address
    return f"at {server.address}" + (f" and {server.tcp_address}" if both else "")


def _html(server: Server | DockServer, more: list[list[str]]) -> str:
    lines = [["address", server.address], ["TCP address", server.tcp_address or "none"], *more]
    return tables.as_html(type(server).__name__, ["", ""], lines)


def _clean(owner: int, folder: str) -> None:
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)


def serve(
    listen: str | None = "127.0.0.1:0",
    socket: str | None = None,
    *,
    memory: int | str = 0,
    token: str | None = None,
    token_file: str | None = None,
    tls_certificate: str | None = None,
    tls_key: str | None = None,
    tls_ca: str | None = None,
    insecure: bool = False,
    metrics: str | None = None,
    session_grace: float = 1.0,
    program: str | os.PathLike[str] | None = None,
) -> Server:
    """Starts a server in a process of its own and returns when it is ready.

    listen: "host:port" for TCP, port 0 for any free port; None: no TCP. socket: the path of the Unix socket; None: one
    in a new temporary folder; "none": no socket. memory: the limit on what cells may occupy, in bytes or as "8GiB"; 0:
    no limit. token, token_file: the token that clients must present over TCP. tls_*: paths of PEM files. insecure:
    accept unauthenticated clients. metrics: "host:port" of the status page and the metrics. session_grace: how many
    seconds a client's session outlives its last connection. program: another server than this package's.

    If the server does not start, raises one of the dock's errors with the server's reason.
    """
    memory_bytes, grace = _bytes(memory), repr(seconds("session_grace", session_grace, most=_LONGEST))
    folder = tempfile.mkdtemp(prefix="transfer-dock-")
    try:
        if token is not None:
            token_file = os.path.join(folder, "token")
            with open(os.open(token_file, os.O_WRONLY | os.O_CREAT, 0o600), "w", encoding="utf-8") as file:
                file.write(token)
        command = [str(program or executables.find("tdock-dock")), "serve", "--listen", listen or "none"]
        command += ["--socket", os.path.join(folder, "dock.sock") if socket is None else socket]
        # The actual drain time is given to close().
        command += ["--memory", str(memory_bytes), "--drain", "3600", "--session-grace", grace, "--owned-folder", folder]
        for flag, value in [("--token-file", token_file), ("--tls-cert", tls_certificate), ("--tls-key", tls_key),
                            ("--tls-ca", tls_ca), ("--metrics", metrics)]:  # fmt: skip
            command += [flag, value] if value is not None else []
        return Server(_native.ServerProcess(command + (["--insecure"] if insecure else [])), folder, token)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


class DockServer:
    """A server inside this process, which can use the dock without a connection."""

    # Addresses for Dock.connect: of the Unix socket if there is one, otherwise of TCP; and of TCP.
    address: str
    tcp_address: str
    # Warnings about its security, in sentences.
    warnings: list[str]
    dock: Dock

    def __init__(
        self,
        listen: str | None = None,
        socket: str | None = None,
        *,
        memory: int | str = 0,
        token: str | None = None,
        token_file: str | None = None,
        tls_certificate: str | None = None,
        tls_key: str | None = None,
        tls_ca: str | None = None,
        insecure: bool = False,
        session_grace: float = 1.0,
    ) -> None:
        """listen: "host:port" for TCP; socket: the path of a Unix socket; at least one of them. session_grace: how many
        seconds a client's session outlives its last connection. The others as for :func:`serve`.
        """
        self._native = _native.DockServer(
            listen=listen or "", socket=socket or "", memory_bytes=_bytes(memory), token=token or "",
            token_file=token_file or "", tls_certificate=tls_certificate or "", tls_key=tls_key or "",
            tls_ca=tls_ca or "", insecure=insecure, session_grace=session_grace,
        )  # fmt: skip
        self.address = self._native.address
        self.tcp_address = self._native.tcp_address
        self.warnings = self._native.warnings()
        connect = {
            "address": self.address,
            "token": token or "",
            "token_file": token_file or "",
            "tls_ca": tls_ca or "",
        }
        self.dock = Dock(self._native.dock(), connect)

    def close(self, drain: float = 10.0) -> None:
        """Ends the connections: waiting calls fail with Unavailable, others get ``drain`` seconds. The dock stays."""
        self._native.close(drain)

    def __repr__(self) -> str:
        return f"<DockServer {_told(self)}, in this process>"

    def _repr_html_(self) -> str:
        """For a notebook."""
        return _html(self, [["warning", warning] for warning in self.warnings])

    def __enter__(self) -> DockServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
