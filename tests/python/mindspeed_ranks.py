"""Ranks of a model replica for tests: what Megatron and vLLM say of them, over gloo."""

from __future__ import annotations

import datetime
import multiprocessing
import pathlib
import sys
import traceback
import types
from collections.abc import Callable, Sequence
from typing import Any

import torch.distributed as dist

from waiting import LONG


class Megatron:
    """A parallel state of Megatron: rank = tensor + tensors * (context + contexts * (data + datas * pipeline))."""

    def __init__(self, tensors: int, contexts: int, pipelines: int) -> None:
        """All ranks of the default process group must make it."""
        rank, world = dist.get_rank(), dist.get_world_size()
        sizes = (tensors, contexts, world // (tensors * contexts * pipelines), pipelines)
        self._place = _place(rank, sizes)
        self._tensor = _group(sizes, [0])
        self._context = _group(sizes, [1])
        self._data = _group(sizes, [2])
        self._pipeline = _group(sizes, [3])
        self._model = _group(sizes, [0, 3])
        self._last = self._place[3] == pipelines - 1

    def get_tensor_model_parallel_rank(self) -> int:
        return self._place[0]

    def get_tensor_model_parallel_src_rank(self) -> int:
        return self._tensor[1][0]

    def get_tensor_model_parallel_group(self) -> Any:
        return self._tensor[0]

    def get_context_parallel_rank(self) -> int:
        return self._place[1]

    def get_context_parallel_global_ranks(self) -> list[int]:
        return self._context[1]

    def get_context_parallel_group(self) -> Any:
        return self._context[0]

    def get_pipeline_model_parallel_rank(self) -> int:
        return self._place[3]

    def get_pipeline_model_parallel_first_rank(self) -> int:
        return self._pipeline[1][0]

    def get_pipeline_model_parallel_group(self) -> Any:
        return self._pipeline[0]

    def is_pipeline_last_stage(self, ignore_virtual: bool = False) -> bool:
        return self._last

    def get_model_parallel_group(self) -> Any:
        return self._model[0]

    def get_data_parallel_rank(self) -> int:
        return self._place[2]

    def get_data_parallel_world_size(self) -> int:
        return len(self._data[1])


def _place(rank: int, sizes: Sequence[int]) -> list[int]:
    place = []
    for size in sizes:
        place.append(rank % size)
        rank //= size
    return place


def _group(sizes: Sequence[int], along: Sequence[int]) -> tuple[Any, list[int]]:
    """This rank's group of those that differ in these dimensions only, and their ranks. Every rank makes all groups."""
    mine: Any = None
    groups: dict[tuple[int, ...], list[int]] = {}
    for rank in range(dist.get_world_size()):
        place = _place(rank, sizes)
        groups.setdefault(tuple(0 if i in along else at for i, at in enumerate(place)), []).append(rank)
    for ranks in groups.values():
        group = dist.new_group(ranks)
        if dist.get_rank() in ranks:
            mine = group, ranks
    return mine


def install_vllm(tensors: int) -> None:
    """Makes vllm.distributed.parallel_state, and MindSpeed-RL's list of its groups: replicas of so many ranks."""
    group, ranks = _group((tensors, dist.get_world_size() // tensors), [0])
    alone, _ = _group((1, dist.get_world_size()), [0])
    rank = dist.get_rank()
    state = types.ModuleType("vllm.distributed.parallel_state")
    tensor = types.SimpleNamespace(first_rank=ranks[0], device_group=group)
    pipeline = types.SimpleNamespace(first_rank=rank, device_group=alone, rank_in_group=0, is_last_rank=True)
    state.__dict__.update(
        get_tensor_model_parallel_group=lambda: tensor,
        get_tensor_model_parallel_rank=lambda: rank - ranks[0],
        get_pipeline_model_parallel_group=lambda: pipeline,
    )
    adapter = types.ModuleType("mindspeed_rl.models.rollout.vllm_adapter.vllm_parallel_state")
    groups = [list(range(first, first + tensors)) for first in range(0, dist.get_world_size(), tensors)]
    adapter.__dict__["get_vllm_tp_group_ranks"] = lambda: groups
    distributed = types.ModuleType("vllm.distributed")
    distributed.__dict__["parallel_state"] = state
    for module in (state, adapter, distributed):
        sys.modules[module.__name__] = module
    names = ("vllm", "mindspeed_rl", "mindspeed_rl.models", "mindspeed_rl.models.rollout")
    for name in (*names, "mindspeed_rl.models.rollout.vllm_adapter"):
        sys.modules.setdefault(name, types.ModuleType(name))


def join(store: pathlib.Path, rank: int, world: int) -> None:
    """Makes the default process group."""
    file, timeout = dist.FileStore(str(store), world), datetime.timedelta(seconds=LONG)
    dist.init_process_group("gloo", store=file, rank=rank, world_size=world, timeout=timeout)


def on_ranks(folder: pathlib.Path, world: int, work: Callable[[int], Any]) -> list[Any]:
    """What the work returned on each rank, each in a process of its own that is forked from this one."""
    context = multiprocessing.get_context("fork")

    def run(rank: int, pipe: Any) -> None:
        try:
            join(folder / "store", rank, world)
            pipe.send((True, work(rank)))
        except BaseException:
            pipe.send((False, traceback.format_exc()))

    processes, pipes = [], []
    for rank in range(world):
        mine, its = context.Pipe(duplex=False)
        processes.append(context.Process(target=run, args=(rank, its), daemon=True))
        pipes.append(mine)
        processes[-1].start()
    answers = []
    try:
        for rank, pipe in enumerate(pipes):
            assert pipe.poll(LONG), f"rank {rank} is silent"
            answers.append(pipe.recv())
    finally:
        for process in processes:
            process.kill()
            process.join()
    for ok, answer in answers:
        assert ok, answer
    return [answer for _, answer in answers]
