"""Ray's placement, and settings of the environment. Only what places actors needs Ray."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import torch


def get_placement_group(num_ray_actors: int, num_cpus_per_actor: int = 1) -> Any:
    """A placement group, once it is there, with a bundle for each actor, spread over the nodes."""
    import ray

    group = ray.util.placement_group([{"CPU": num_cpus_per_actor}] * num_ray_actors, strategy="SPREAD")
    ray.get(group.ready())
    return group


def get_node_round_robin_scheduling_strategies(
    num_actors: int, required_node_resource: str | None = None
) -> list[Any]:
    """A strategy for each actor, which together go round the nodes that are alive and have the resource.

    Raises ValueError if no node has it, RuntimeError if there is no node.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    nodes = sorted(
        node["NodeID"]
        for node in ray.nodes()  # type: ignore[no-untyped-call]
        if node["Alive"] and (required_node_resource is None or node["Resources"].get(required_node_resource, 0) > 0)
    )
    if not nodes and required_node_resource is not None:
        raise ValueError(f"No alive Ray nodes provide custom resource {required_node_resource!r}")
    if not nodes:
        raise RuntimeError("No alive Ray nodes found. Is Ray initialized?")
    return [NodeAffinitySchedulingStrategy(nodes[i % len(nodes)], soft=False) for i in range(num_actors)]


@contextlib.contextmanager
def limit_pytorch_auto_parallel_threads(target_num_threads: int | None = None, info: str = "") -> Iterator[None]:
    """Lets torch use so many threads inside, at most one for each core; by default 16."""
    before, cores = torch.get_num_threads(), os.cpu_count() or 1
    torch.set_num_threads(min(16 if target_num_threads is None else target_num_threads, cores))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def get_env_bool(env_key: str, default: bool = False) -> bool:
    """Whether a variable says true, 1, yes, y or on."""
    value = os.environ.get(env_key)
    return default if value is None else value.strip().lower() in ("true", "1", "yes", "y", "on")
