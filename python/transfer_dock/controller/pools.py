"""Pools of processes, and the roles that share them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

from transfer_dock import _native
from transfer_dock.errors import InvalidArgument


class ResourcePool:
    """How many processes each node has: ``ResourcePool([8, 8])``. Ranks are numbered by node."""

    def __init__(self, process_on_nodes: Sequence[int], name: str = "") -> None:
        self.process_on_nodes = list(process_on_nodes)
        self.name = name
        if not self.process_on_nodes or any(not isinstance(one, int) or one < 1 for one in self.process_on_nodes):
            raise InvalidArgument(
                f"process_on_nodes is {process_on_nodes!r}; give the number of processes of each node, such as [8, 8]"
            )

    @property
    def world_size(self) -> int:
        return sum(self.process_on_nodes)

    @property
    def local_world_size_list(self) -> list[int]:
        """By rank: how many processes its node has."""
        return [count for count in self.process_on_nodes for _ in range(count)]

    @property
    def local_rank_list(self) -> list[int]:
        """By rank: which of them it is."""
        return [local for count in self.process_on_nodes for local in range(count)]

    @property
    def node_list(self) -> list[int]:
        """By rank: its node."""
        return [node for node, count in enumerate(self.process_on_nodes) for _ in range(count)]

    def __repr__(self) -> str:
        return f"ResourcePool({self.process_on_nodes}, name={self.name!r})"


@dataclass
class ResourcePoolManager:
    """Which pool each role runs in.

    resource_pool_spec: the processes on each node, by the name of a pool. mapping: the pool of each role. available:
    how many processes each node of the cluster has; None: as many as the pools need.
    """

    resource_pool_spec: Mapping[str, Sequence[int]]
    mapping: Mapping[str, str]
    available: Sequence[int] | None = None
    resource_pool_dict: dict[str, ResourcePool] = field(default_factory=dict)

    def create_resource_pool(self) -> dict[str, ResourcePool]:
        """Makes the pools.

        InvalidArgument lists every pool that is short of processes, with its roles, and every role of a pool that does
        not exist.
        """
        wanted = [(name, list(counts)) for name, counts in self.resource_pool_spec.items()]
        nodes = self.available
        if nodes is None:
            nodes = [sum(counts) for counts in zip_longest(*(counts for _, counts in wanted), fillvalue=0)]
        _native.place_pools(list(nodes), wanted, dict(self.mapping))
        self.resource_pool_dict = {name: ResourcePool(counts, name) for name, counts in wanted}
        return self.resource_pool_dict

    def get_resource_pool(self, role: str) -> ResourcePool:
        """The pool of a role."""
        if role not in self.mapping:
            raise InvalidArgument(f"there is no role '{role}'; there are {', '.join(sorted(self.mapping))}")
        if not self.resource_pool_dict:
            self.create_resource_pool()
        return self.resource_pool_dict[self.mapping[role]]

    def get_n_gpus(self) -> int:
        """The number of processes of all pools, each of which has a device of its own."""
        return sum(sum(counts) for counts in self.resource_pool_spec.values())
