"""One controller, many workers: verl's programming model.

A class of workers says how each of its methods is called; the controller calls a whole group as one object:

    class Scorer(Worker):
        @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
        def score(self, batch):
            return Batch({"reward": batch["length"].numpy() * 0.5})

    with WorkerGroup(ResourcePool([4]), ClassWithInitArgs(Scorer)) as group:
        scored = group.score(batch)

docs/python-controller.md is the guide.
"""

from transfer_dock._native import Batch, RowsRef
from transfer_dock.controller.dispatch import (
    Dispatch,
    DispatchMode,
    Execute,
    Method,
    make_nd_compute_dataproto_dispatch_fn,
    register,
    register_dispatch_mode,
)
from transfer_dock.controller.groups import (
    Colocated,
    Controller,
    Future,
    WorkerGroup,
    create_colocated_worker_cls,
)
from transfer_dock.controller.pools import ResourcePool, ResourcePoolManager
from transfer_dock.controller.workers import ClassWithInitArgs, Worker, fetch, join

__all__ = [
    "Batch",
    "ClassWithInitArgs",
    "Colocated",
    "Controller",
    "Dispatch",
    "DispatchMode",
    "Execute",
    "Future",
    "Method",
    "ResourcePool",
    "ResourcePoolManager",
    "RowsRef",
    "Worker",
    "WorkerGroup",
    "create_colocated_worker_cls",
    "fetch",
    "join",
    "make_nd_compute_dataproto_dispatch_fn",
    "register",
    "register_dispatch_mode",
]
