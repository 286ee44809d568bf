"""Docks to test: local ones, and remote ones by each transport."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import transfer_dock as td


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


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """A cluster of Ray on this machine."""
    import ray

    ray.init(num_cpus=2, include_dashboard=False, object_store_memory=78 * 2**20, log_to_driver=False)
    try:
        yield
    finally:
        ray.shutdown()


@pytest.fixture
def system() -> Iterator[Callable[..., Any]]:
    """Starts systems of TransferQueue's module: each call ends the one before."""
    import transfer_dock.compat.transfer_queue as tq

    def start(**controller: Any) -> Any:
        tq.close()
        return tq.init({"controller": {"polling_mode": True, **controller}})

    yield start
    tq.close()


@pytest.fixture
def client(system: Callable[..., Any]) -> Any:
    import transfer_dock.compat.transfer_queue as tq

    system()
    return tq.get_client()
