"""A handle of one partition: the calls of a dock that ask for its name, without it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Concatenate, Generic, ParamSpec, TypeVar

from transfer_dock.calls import DockCalls

P = ParamSpec("P")
R = TypeVar("R")
D = TypeVar("D")


class PartitionOf(Generic[D]):
    """The calls of a dock for the partition ``name``."""

    def __init__(self, dock: D, name: str) -> None:
        self._dock = dock
        self.name = name

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"


def of_partition(call: Callable[Concatenate[D, str, P], R]) -> Callable[Concatenate[PartitionOf[D], P], R]:
    """A call of a dock without its first argument, the partition's name."""

    @functools.wraps(call)
    def run(self: PartitionOf[D], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return call(self._dock, self.name, *args, **kwargs)

    signature = inspect.signature(call)
    self, _, *others = signature.parameters.values()
    run.__signature__ = signature.replace(parameters=[self, *others])  # type: ignore[attr-defined]
    return run


class Partition(PartitionOf[DockCalls]):
    """What ``dock.partition(name)`` is: the calls of :class:`transfer_dock.Dock` for one partition.

        train = dock.partition("train")
        train.put({"prompt": ["37+85="]})
        with train.take("reward", max=8, timeout=60) as rows:
            …

    They are those of the dock without their first argument, the partition's name. The handle holds nothing else: it
    may be made before the partition is, and the partition may be dropped and made again. Thread-safe, and may be
    pickled where its dock may.
    """

    put = of_partition(DockCalls.put)
    take = of_partition(DockCalls.take)
    fetch = of_partition(DockCalls.fetch)
    register_consumer = of_partition(DockCalls.register_consumer)
    drop_consumer = of_partition(DockCalls.drop_consumer)
    complete = of_partition(DockCalls.complete)
    release = of_partition(DockCalls.release)
    renew = of_partition(DockCalls.renew)
    drop = of_partition(DockCalls.drop)
    requeue = of_partition(DockCalls.requeue)
    commit = of_partition(DockCalls.commit)
    rollback = of_partition(DockCalls.rollback)
    publish_weights = of_partition(DockCalls.publish_weights)
    find = of_partition(DockCalls.find)
    list = of_partition(DockCalls.list)
    seal = of_partition(DockCalls.seal)
    clear = of_partition(DockCalls.clear)
    status = of_partition(DockCalls.status)
    consumer_status = of_partition(DockCalls.consumer_status)
    row_status = of_partition(DockCalls.row_status)
    explain = of_partition(DockCalls.explain)
