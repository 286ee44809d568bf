"""A dock for the tasks and actors of a Ray cluster.

    import ray, transfer_dock as td

    ray.init()
    dock = td.ray.start(memory="8GiB")             # in the driver

    @ray.remote
    def work():
        dock = td.ray.connect()                    # in any task or actor, on any machine of the cluster

The server runs beside an actor of Ray. Who is on its machine reads through shared memory, others over TCP, with a token
that they get from the actor. The connections are not encrypted: for a network that others can listen to, start a server
with ``tls_certificate`` yourself (:func:`transfer_dock.serve`).
"""

from __future__ import annotations

import importlib
import os
import threading
import time
from typing import Any

from transfer_dock.arguments import seconds
from transfer_dock.dock import Dock
from transfer_dock.errors import DeadlineExceeded, FailedPrecondition, NotFound, Unavailable
from transfer_dock.server import serve

# A server gives calls ten seconds to end.
_LONGEST_CLOSE = 30.0
# That of the actors.
NAMESPACE = "transfer_dock"


def _ray() -> Any:
    ray = importlib.import_module("ray")
    if not ray.is_initialized():
        raise FailedPrecondition("this process is in no Ray cluster: call ray.init() first")
    return ray


def _machine() -> str:
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


class _Server:
    """What the actor is."""

    def __init__(self, memory: int | str) -> None:
        self._token = os.urandom(16).hex()
        self._server = serve(listen=f"{_ray().util.get_node_ip_address()}:0", memory=memory, token=self._token)

    def where(self) -> dict[str, str]:
        return {
            "local": self._server.address,
            "machine": _machine(),
            "tcp": self._server.tcp_address,
            "token": self._token,
        }

    def close(self) -> None:
        self._server.close()


def start(name: str = "dock", *, memory: int | str = 0, timeout: float = 60.0, **options: Any) -> Dock:
    """Starts the cluster's dock of this name, or connects to it if it was started already.

    It ends with the program that started it (Ray: with its job), or with stop(). memory: the limit on what cells may
    occupy, in bytes or as "8GiB"; 0: no limit. timeout: for how many seconds to wait until Ray has started the actor.
    options: of the actor, such as ``resources`` or ``scheduling_strategy``, which say on which machine it is to run.

    Raises DeadlineExceeded (Ray goes on trying), and FailedPrecondition if Ray was not started.
    """
    wait = seconds("timeout", timeout)
    actor = _ray().remote(_Server)
    options = {"num_cpus": 0, "name": name, "namespace": NAMESPACE, "get_if_exists": True, **options}
    return _connected(name, actor.options(**options).remote(memory), wait)


def connect(name: str = "dock", *, timeout: float = 60.0) -> Dock:
    """The cluster's dock of this name, for tasks, actors and other programs.

    Waits up to ``timeout`` seconds for it to be started. The result can be pickled: where it is unpickled, it connects
    in the way that is right there. Raises NotFound if there is none, FailedPrecondition if Ray was not started.
    """
    ray = _ray()
    deadline = time.monotonic() + seconds("timeout", timeout)
    while True:
        try:
            actor = ray.get_actor(name, namespace=NAMESPACE)
            return _connected(name, actor, max(deadline - time.monotonic(), 1.0))
        except ValueError:
            if time.monotonic() >= deadline:
                raise NotFound(
                    f"the Ray cluster has no dock '{name}': one of its programs calls transfer_dock.ray.start('{name}')"
                ) from None
        time.sleep(0.05)


def stop(name: str = "dock") -> None:
    """Ends the cluster's dock of this name: waiting calls fail with Unavailable. Raises NotFound if there is none."""
    ray = _ray()
    try:
        actor = ray.get_actor(name, namespace=NAMESPACE)
    except ValueError:
        raise NotFound(f"the Ray cluster has no dock '{name}'") from None
    try:
        ray.get(actor.close.remote(), timeout=_LONGEST_CLOSE)
    except ray.exceptions.RayError:
        pass  # it is dead already, or hangs: the server ends with it
    ray.kill(actor)


def _connected(name: str, actor: Any, wait: float) -> Dock:
    ray = _ray()
    try:
        where = ray.get(actor.where.remote(), timeout=min(wait, threading.TIMEOUT_MAX))
    except ray.exceptions.GetTimeoutError:
        raise DeadlineExceeded(
            f"the actor of the cluster's dock '{name}' did not answer within {wait:g} seconds: Ray may have no machine "
            "for it (ray status)"
        ) from None
    except ray.exceptions.RayActorError as error:
        raise Unavailable(f"the actor of the cluster's dock '{name}' has died: {error}") from None
    here = where["machine"] == _machine() and os.path.exists(where["local"].removeprefix("unix:"))
    dock = Dock.connect(where["local"] if here else where["tcp"], token=where["token"])
    dock._elsewhere = (connect, (name,))
    # The server lives as long as somebody knows the actor.
    dock._server = actor
    return dock
