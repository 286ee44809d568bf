"""How many rows a worker of each stage takes at a time: the settings ``*_dispatch_size``."""

from __future__ import annotations

import dataclasses
from typing import Any

from transfer_dock.errors import InvalidArgument


@dataclasses.dataclass
class _Size:
    """Of ``rows`` rows, shared by ``parts`` workers; at most what a worker has of ``limit`` rows, if there is one."""

    stage: str
    rows: int
    parts: int = 1
    limit: int | None = None
    whole_groups: bool = False

    @property
    def setting(self) -> str:
        return f"{self.stage}_dispatch_size"


def _replicas(name: str, config: Any, resource: Any) -> int:
    ranks = config.tensor_model_parallel_size * config.pipeline_model_parallel_size * config.context_parallel_size
    if resource.num_npus < ranks:
        raise InvalidArgument(f"{name}: a replica has {ranks} ranks, and there are {resource.num_npus} devices")
    return int(resource.num_npus // ranks)


def _sizes(
    actor: Any, ref: Any, reward: Any, rl: Any, generate: Any, critic: Any, vit: Any, nodes: int
) -> list[_Size]:
    n = rl.n_samples_per_prompt
    rows = actor.global_batch_size * n
    trained = rl.filter_groups_train_batch_size * n if rl.filter_groups_enable else rows
    replicas = _replicas("the actor", actor, rl.actor_resource)
    engine = generate.infer_tensor_parallel_size * generate.infer_pipeline_parallel_size
    generating = rl.actor_resource.num_npus // engine
    sizes = [
        _Size("actor_rollout", rows, generating, rows),
        _Size("actor_logprob", trained, replicas, rows),
        _Size("actor_update", trained, replicas, rows),
        _Size("adv", trained),
    ]
    rewarded = reward.global_batch_size * n
    if rl.filter_groups_enable:
        sizes.append(_Size("dynamic_sampling", rewarded, nodes, rewarded, whole_groups=True))
    if rl.reward_resource:
        sizes.append(_Size("reward", rewarded, _replicas("the reward model", reward, rl.reward_resource), rewarded))
    else:
        sizes.append(_Size("reward", rewarded, nodes))
    if ref:
        read = ref.global_batch_size * n
        sizes.append(_Size("ref", read, _replicas("the reference", ref, rl.reference_resource), read))
    if rl.reuse_image_embeds:
        seen, parts = rows, replicas
        if rl.colocate_actor_and_vit:
            seen, parts = vit.global_batch_size * n, _replicas("the vision model", vit, rl.vit_resource)
        sizes.append(_Size("actor_image_embeds", seen, parts, seen))
    if rl.critic_resource:
        valued, parts = critic.global_batch_size * n, _replicas("the critic", critic, rl.critic_resource)
        sizes += [_Size(f"critic_{stage}", valued, parts, valued) for stage in ("update", "value")]
        sizes.append(_Size("kl", valued, 1, valued))
    return sizes


def set_dispatch_sizes(
    actor_config: Any,
    ref_config: Any,
    reward_config: Any,
    rl_config: Any,
    generate_config: Any,
    critic_config: Any = None,
    vit_config: Any = None,
    *,
    nodes: int = 1,
) -> None:
    """Sets those of rl_config's dispatch sizes that are None or 0, to all rows that a worker has of a batch, and checks
    them all. The configurations have the original's attributes, of which only sizes and resources are read.

    nodes: how many machines compute rules and sample dynamically.

    Raises InvalidArgument, which is a ValueError.
    """
    n = rl_config.n_samples_per_prompt
    least = rl_config.mini_batch_size / _replicas("the actor", actor_config, rl_config.actor_resource)
    update = rl_config.actor_update_dispatch_size
    if update and update < least:
        raise InvalidArgument(f"actor_update_dispatch_size is {update}, below a rank's mini-batch of {least:g} rows")
    configs = (actor_config, ref_config, reward_config, rl_config, generate_config, critic_config, vit_config)
    for size in _sizes(*configs, nodes):
        value = getattr(rl_config, size.setting, None) or size.rows // size.parts
        if value < 1 or size.rows % value != 0:
            raise InvalidArgument(f"{size.setting} is {value}; it must divide the {size.rows} rows of a batch")
        if size.limit is not None and value > size.limit // size.parts:
            most = size.limit // size.parts
            raise InvalidArgument(f"{size.setting} is {value}; each of {size.parts} workers has {most} rows")
        if size.whole_groups and value % n != 0:
            raise InvalidArgument(f"{size.setting} is {value}; it must be a multiple of the {n} samples of a prompt")
        setattr(rl_config, size.setting, value)
