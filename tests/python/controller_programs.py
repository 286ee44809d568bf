"""Workers for test_controller.py: classes that processes import."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from typing import Any

from transfer_dock.controller import (
    Batch,
    Dispatch,
    Execute,
    RowsRef,
    Worker,
    make_nd_compute_dataproto_dispatch_fn,
    register,
)


def by_hand(group: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
    """Rank i gets its number times the argument."""
    return tuple([value * rank for rank in range(group.world_size)] for value in args), {
        key: [value] * group.world_size for key, value in kwargs.items()
    }


def total(group: Any, results: list[int]) -> int:
    return sum(results)


class Echo(Worker):
    """Returns what it is given, and the rank."""

    def __init__(self, offset: int = 0, *, fail_on: int = -1) -> None:
        if self.rank == fail_on:
            raise ValueError(f"no model for rank {self.rank}")
        self.offset = offset
        self.seen: list[str] = []

    @register(Dispatch.ONE_TO_ALL)
    def one_to_all(self, x: Any) -> Any:
        return [self.rank, x]

    @register()
    def all_to_all(self, x: Any, y: Any = None) -> Any:
        return [self.rank, x, y]

    @register(dispatch_mode=Dispatch.DP_COMPUTE)
    def dp(self, x: int, scale: int) -> int:
        return x * scale + self.offset

    @register(Dispatch.DP_COMPUTE_PROTO)
    def proto(self, batch: Batch) -> Batch:
        return Batch({"x": batch["x"].numpy() * 10, "rank": [self.rank] * len(batch)})

    @register(Dispatch.DP_COMPUTE_PROTO.padded())
    def padded(self, batch: Batch) -> Batch:
        return Batch({"x": batch["x"].numpy(), "rank": [self.rank] * len(batch)})

    @register(Dispatch.DP_COMPUTE_PROTO_WITH_FUNC)
    def with_func(self, function: str, batch: Batch) -> Batch:
        return Batch({"x": {"twice": lambda x: 2 * x}[function](batch["x"].numpy())})

    @register(Dispatch.DP_COMPUTE_METRIC)
    def metric(self, batch: Batch) -> dict[str, Any]:
        return {"rank": self.rank, "rows": batch["x"].tolist()}

    @register(make_nd_compute_dataproto_dispatch_fn("actor"))
    def mesh(self, batch: Batch) -> Batch:
        self.seen.append(",".join(str(x) for x in batch["x"].tolist()))
        return Batch({"x": batch["x"].numpy(), "rank": [self.rank] * len(batch)})

    @register(Dispatch.MEGATRON_COMPUTE)
    def megatron(self, x: str) -> Any:
        return f"{self.rank}:{x}"

    @register(Dispatch.MEGATRON_COMPUTE_PROTO)
    def megatron_proto(self, batch: Batch) -> Batch:
        return Batch({"x": batch["x"].numpy(), "rank": [self.rank] * len(batch)})

    @register(Dispatch.MEGATRON_PP_AS_DP)
    def pp_as_dp(self, x: str) -> str:
        self.seen.append(x)
        return x

    @register(Dispatch.MEGATRON_PP_AS_DP_PROTO)
    def pp_as_dp_proto(self, batch: Batch) -> Batch:
        self.seen.append("".join(batch["text"].tolist()))
        return batch

    @register(Dispatch.MEGATRON_PP_ONLY)
    def pp_only(self, x: int) -> list[int]:
        return [self.rank, x]

    @register(Dispatch.ONE_TO_ALL, Execute.RANK_ZERO)
    def rank_zero(self, x: int, *, add: int = 0) -> int:
        return x + add + self.rank

    @register({"dispatch_fn": by_hand, "collect_fn": total})
    def own(self, x: int, plus: int = 0) -> int:
        return x + plus

    @register({"dispatch_fn": by_hand, "collect_fn": total}, blocking=False)
    def own_later(self, x: int) -> int:
        return x

    @register(Dispatch.DP_COMPUTE_PROTO, blocking=False)
    def later(self, batch: Batch) -> Batch:
        return Batch({"x": batch["x"].numpy() + 1})

    @register(Dispatch.DP_COMPUTE_PROTO, materialize_futures=False)
    def reference(self, rows: RowsRef) -> RowsRef:
        return RowsRef(rows.partition, rows.rows, ["y"], {"rank0": 0})

    @register(Dispatch.ONE_TO_ALL)
    def echo(self, value: Any) -> Any:
        return value

    @register(Dispatch.ONE_TO_ALL)
    def seen_so_far(self) -> list[str]:
        return self.seen

    @register(Dispatch.ONE_TO_ALL)
    def fail(self, rank: int) -> int:
        if self.rank == rank:
            raise RuntimeError("out of memory on purpose")
        return 0

    def unregistered(self, x: int) -> int:
        return x + self.rank


class Process(Worker):
    """What only a process can do."""

    @register(Dispatch.ONE_TO_ALL)
    def environment(self) -> dict[str, Any]:
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")
        return {name: os.environ[name] for name in names} | {"rank": self.rank, "pid": os.getpid()}

    @register(Dispatch.ONE_TO_ALL, blocking=False)
    def sleep(self, seconds: float, rank: int = -1) -> int:
        print(f"rank {self.rank} sleeps", flush=True)
        if rank in (-1, self.rank):
            time.sleep(seconds)
        return self.rank

    @register(Dispatch.ONE_TO_ALL)
    def exit(self, rank: int) -> None:
        if self.rank == rank:
            print("the disk is full", file=sys.stderr, flush=True)
            os._exit(3)

    @register(Dispatch.DP_COMPUTE_PROTO)
    def score(self, batch: Batch) -> Batch:
        return Batch({"y": batch["x"].numpy() + 0.5}, {"metrics": {"rows": len(batch)}})

    @register(Dispatch.DP_COMPUTE_PROTO)
    async def score_soon(self, batch: Batch) -> Batch:
        return await asyncio.to_thread(self.score, batch)

    @register(Dispatch.DP_COMPUTE_PROTO)
    def score_in_dock(self, batch: Batch) -> RowsRef:
        rows = self.dock.put("train", {"y": batch["x"].numpy() * 2}, rows=batch["id"].numpy())
        return RowsRef("train", rows, ["y"], {"made": "here"})


class Ref(Worker):
    def __init__(self, name: str) -> None:
        self.name = name

    @register(Dispatch.ONE_TO_ALL)
    def who(self) -> str:
        return f"{self.name} {self.rank} {os.getpid()}"
