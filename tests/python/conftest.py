"""Docks to test: inside the process, over a Unix socket, and over TCP."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import transfer_dock as td

# Long enough for anything that is to happen; nothing is to take so long.
LONG = 60.0


@pytest.fixture(scope="session")
def server() -> Iterator[td.Server]:
    with td.serve() as server:
        yield server


def connect(kind: str, server: td.Server) -> td.Dock:
    if kind == "local":
        return td.Dock.local()
    return td.Dock.connect(server.address if kind == "unix" else server.tcp_address)


@pytest.fixture(params=["local", "unix", "tcp"])
def dock(request: pytest.FixtureRequest, server: td.Server) -> Iterator[td.Dock]:
    yield from _fresh(connect(request.param, server))


@pytest.fixture(params=["unix", "tcp"])
def remote(request: pytest.FixtureRequest, server: td.Server) -> Iterator[td.Dock]:
    yield from _fresh(connect(request.param, server))


@pytest.fixture
def local() -> td.Dock:
    return td.Dock.local()


def _fresh(dock: td.Dock) -> Iterator[td.Dock]:
    try:
        yield dock
    finally:
        for name in dock.partitions():
            dock.drop_partition(name)
        dock.close()
