"""Where the dock is: starting a server, and finding one that another process started.

Other processes find it, in this order, by
  - `backend.TransferDock.address` in the configuration given to `init`;
  - the variable TDOCK_TRANSFER_QUEUE, which `init` sets for the processes that its own starts;
  - the named actor of Ray, where Ray is running.
"""

from __future__ import annotations

import copy
import dataclasses
import importlib.util
import json
import os
import pickle
import secrets
import socket
import sys
import urllib.parse
from collections.abc import Callable, Mapping
from typing import Any

import transfer_dock as td
from transfer_dock.compat.transfer_queue._store import SERVICE, service_cell
from transfer_dock.compat.transfer_queue.sampler import (
    BaseSampler,
    GRPOGroupNSampler,
    RankAwareSampler,
    SeqlenBalancedSampler,
    SequentialSampler,
)

VARIABLE = "TDOCK_TRANSFER_QUEUE"
_TOKEN_VARIABLE = VARIABLE + "_TOKEN"
ACTOR = "TransferQueueController"
NAMESPACE = "transfer_queue"
_SETTINGS = "settings"

# As in config.yaml, which programs load.
_DEFAULTS: dict[str, Any] = {
    "metrics": {"enabled": False, "host": "127.0.0.1", "port": 0, "endpoint": None},
    "controller": {"sampler": "SequentialSampler", "polling_mode": False, "zmq_info": None},
    "backend": {
        "storage_backend": "SimpleStorage",
        "SimpleStorage": {
            "total_storage_size": None,
            "num_data_storage_units": 2,
            "required_node_resource": None,
            "zmq_info": None,
        },
        "TransferDock": {
            # Of a server that runs already: "HOST:PORT" or "unix:/PATH".
            "address": None,
            "token": "",
            # Of a server that init() starts: where it listens, and the most that it may hold.
            "listen": None,
            "memory": 0,
        },
    },
}
_SAMPLERS = {
    sampler.__name__: sampler
    for sampler in (SequentialSampler, GRPOGroupNSampler, RankAwareSampler, SeqlenBalancedSampler)
}


# ---- Configuration.


class Config(dict[str, Any]):
    """A dictionary whose entries are attributes too."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"there is no '{name}' in the configuration, but {sorted(self)}") from None

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def __reduce__(self) -> tuple[Any, ...]:
        return Config, (dict(self),)


def _plain(conf: Any) -> Any:
    """The configuration as dictionaries, whatever it comes as."""
    if type(conf).__module__.split(".")[0] == "omegaconf":
        from omegaconf import OmegaConf

        conf = OmegaConf.to_container(conf, resolve=True)
    if isinstance(conf, Mapping):
        return {key: _plain(value) for key, value in conf.items()}
    return conf


def _merged(base: Any, over: Any) -> Any:
    if not isinstance(base, dict) or not isinstance(over, dict):
        return over
    merged = {key: _merged(value, over[key]) if key in over else copy.deepcopy(value) for key, value in base.items()}
    return {**merged, **{key: value for key, value in over.items() if key not in base}}


def complete(conf: Any) -> dict[str, Any]:
    """The configuration with everything that it leaves out."""
    merged: dict[str, Any] = _merged(_DEFAULTS, _plain(conf or {}))
    return merged


def as_users_see_it(conf: dict[str, Any]) -> Any:
    """A DictConfig where there is OmegaConf, else the like of it."""
    if importlib.util.find_spec("omegaconf") is not None:
        from omegaconf import OmegaConf

        return OmegaConf.create(conf, flags={"allow_objects": True})
    return Config({key: as_users_see_it(value) if isinstance(value, dict) else value for key, value in conf.items()})


def sampler_of(conf: dict[str, Any]) -> BaseSampler:
    """Raises ValueError for a name that no sampler has, TypeError for what is none."""
    sampler = conf["controller"]["sampler"]
    if isinstance(sampler, str):
        if sampler not in _SAMPLERS:
            raise ValueError(f"Could not find sampler {sampler}; there are {sorted(_SAMPLERS)}")
        sampler = _SAMPLERS[sampler]
    if isinstance(sampler, type) and issubclass(sampler, BaseSampler):
        sampler = sampler()
    if not isinstance(sampler, BaseSampler):
        raise TypeError(f"sampler {sampler!r} must be an instance or subclass of BaseSampler")
    return sampler


# ---- Where the dock is.


def _machine() -> str:
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


class Address:
    """How to reach a dock: what the configuration has as ``controller.zmq_info``. Immutable; can be pickled."""

    # OmegaConf takes dataclasses apart, so this is none.
    def __init__(self, local: str = "", machine: str = "", tcp: str = "", token: str = "") -> None:
        """``local`` is "unix:/PATH" and ``machine`` where it is one, ``tcp`` "HOST:PORT": at least one of the two."""
        self.local = local
        self.machine = machine
        self.tcp = tcp
        self.token = token

    @staticmethod
    def parse(text: str, token: str = "") -> Address:
        """Of what users write."""
        if text.startswith("{"):
            return Address(**json.loads(text))
        if text.startswith("unix:"):
            return Address(local=text, machine=_machine(), token=token)
        return Address(tcp=text, token=token)

    def __str__(self) -> str:
        return self.local or self.tcp

    def __repr__(self) -> str:
        return f"Address({str(self)!r})"

    def to_variable(self) -> str:
        return json.dumps(self.__dict__)

    def connect(self, name: str) -> td.Dock:
        """Through shared memory where that is possible. Raises Unavailable if no server answers."""
        here = bool(self.local) and self.machine == _machine() and os.path.exists(self.local.removeprefix("unix:"))
        return td.Dock.connect(self.local if here or not self.tcp else self.tcp, token=self.token or None, name=name)


class Server:
    """A server in a process of its own, which ends with this one."""

    def __init__(self, conf: dict[str, Any]) -> None:
        options = conf["backend"]["TransferDock"]
        listen, token = options["listen"], options["token"]
        if listen is None:
            # Ray's other machines shall reach it.
            listen = f"{_ray().util.get_node_ip_address()}:0" if _ray() is not None else "127.0.0.1:0"
            token = token or secrets.token_hex(16)
        self._process = td.serve(
            listen=listen,
            memory=options["memory"],
            token=token or None,
            metrics="127.0.0.1:0" if conf["metrics"]["enabled"] else None,
        )
        self.address = Address(self._process.address, _machine(), self._process.tcp_address, token)
        # The URL of the dock's own metrics.
        self.metrics = self._process.status_url and urllib.parse.urljoin(self._process.status_url, "metrics")

    def close(self) -> None:
        self._process.close()


# ---- What clients of one dock agree on.


@dataclasses.dataclass(frozen=True)
class Settings:
    polling: bool
    # A sampler chooses, and not the dock.
    sampled: bool
    # How many samples a partition is expected to get.
    slots: int
    conf: dict[str, Any]


def write_settings(dock: td.Dock, settings: Settings) -> bool:
    """False if another process was first: its settings hold."""
    columns = {name: td.column("bytes") for name in ("settings", "value", "request", "answer")}
    dock.create_partition(SERVICE, columns=columns)
    try:
        dock.put(SERVICE, {"settings": [pickle.dumps(settings)]}, keys=[_SETTINGS])
        return True
    except td.AlreadyExists:
        return False


class NotInitializedError(RuntimeError):
    """A dock for which nobody called ``init``."""


def read_settings(dock: td.Dock) -> Settings:
    """Raises NotInitializedError."""
    try:
        rows = dock.find(SERVICE, [_SETTINGS])
        settings: Settings = pickle.loads(service_cell(dock, int(rows[0]), "settings"))
    except td.NotFound:
        raise NotInitializedError("no process has called init() for this dock: one of them has to, first") from None
    return settings


def clear_settings(dock: td.Dock) -> None:
    """The process that called ``init`` leaves a server that others started: the next one may say what holds."""
    try:
        dock.drop_partition(SERVICE)
    except td.DockError:
        pass  # the server is gone, or somebody else did it


# ---- Finding it.


def _ray() -> Any:
    """Ray, if this process uses it."""
    ray = sys.modules.get("ray")
    return ray if ray is not None and ray.is_initialized() else None


def find() -> Address | None:
    """The dock of a system that was started already, if there is one."""
    variable = os.environ.get(VARIABLE)
    if variable:
        return Address.parse(variable, os.environ.get(_TOKEN_VARIABLE, ""))
    ray = _ray()
    if ray is None:
        return None
    try:
        actor = ray.get_actor(ACTOR, namespace=NAMESPACE)
    except ValueError:
        return None
    return Address.parse(ray.get(actor.address.remote()))


class Publication:
    """Lets other processes find the dock, until it is closed."""

    def __init__(self, address: Address, make_actor: Callable[[Address], Any]) -> None:
        """``make_actor`` is called where Ray runs. Raises ValueError if another process of the Ray cluster was first."""
        self._actor = None
        if _ray() is not None:
            self._actor = make_actor(address)
        # What whoever launched this process says of servers.
        self._before = {name: os.environ.get(name) for name in (VARIABLE, _TOKEN_VARIABLE)}
        os.environ[VARIABLE] = address.to_variable()

    def close(self) -> None:
        for name, value in self._before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
        ray = _ray()
        if self._actor is not None and ray is not None:
            ray.kill(self._actor)
        self._actor = None


def host_name() -> str:
    return f"{socket.gethostname()}:{os.getpid()}"
