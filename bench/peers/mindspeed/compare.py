#!/usr/bin/env python3
"""Runs the same calls on MindSpeed-RL's docks and on transfer_dock.compat.mindspeed: results, random calls, and times.

usage: PYTHONPATH=build/release/python .venv-peers/bin/python bench/peers/mindspeed/compare.py CHECKOUT [--calls 4000]

CHECKOUT is a clone of MindSpeed-RL (docs/mindspeed.md names the commit). Its docks, its functions for batches and its
metrics are loaded from there as they are; what they import besides, which needs an NPU, is replaced. Prints the tables
of docs/mindspeed.md, and exits with 1 if a random call differs.
"""

from __future__ import annotations

import argparse
import importlib.util
import pathlib
import random
import sys
import time
import types
import warnings
from collections.abc import Callable
from typing import Any

import torch

from transfer_dock.compat import mindspeed as ours

Namespace = types.SimpleNamespace


class _Silent:
    def __init__(self, *_: Any) -> None:
        pass

    def info(self, *_: Any) -> None:
        pass


def module(name: str, **names: Any) -> types.ModuleType:
    made = types.ModuleType(name)
    made.__dict__.update(names, __path__=[])
    sys.modules[name] = made
    return made


def load(checkout: pathlib.Path) -> Namespace:
    """The original's classes and functions."""
    for name in ("mindspeed_rl", "mindspeed_rl.utils", "mindspeed_rl.trainer", "mindspeed_rl.trainer.utils", "PIL"):
        module(name)
    module("mindspeed_rl.utils.loggers", Loggers=_Silent)
    module("mindspeed_rl.utils.utils", mstx_timer_decorator=lambda function: function)
    module("PIL.Image")
    sys.modules["PIL"].__dict__["Image"] = None
    module("torchvision", transforms=module("torchvision.transforms"))
    loaded = Namespace()
    for name in ("utils.pad_process", "utils.metrics", "trainer.utils.transfer_dock", "trainer.utils.mm_transfer_dock"):
        path = checkout / "mindspeed_rl" / (name.replace(".", "/") + ".py")
        spec = importlib.util.spec_from_file_location(f"mindspeed_rl.{name}", path)
        assert spec is not None and spec.loader is not None, path
        made = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = made
        spec.loader.exec_module(made)
        vars(loaded).update({key: value for key, value in vars(made).items() if not key.startswith("_")})
    # They are actors of Ray; here they are objects.
    for name in ("GRPOTransferDock", "MMGRPOTransferDock"):
        setattr(loaded, name, getattr(loaded, name).__ray_metadata__.modified_class)
    return loaded


def row(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers)


def put_prompts(side: Any, *arguments: Any) -> Any:
    dock = side.GRPOTransferDock(*arguments)
    data, indexes = side.put_prompts_experience({"prompts": [row(1, 2), row(3)]}, 2, [])
    dock.put_experience(data, indexes, is_prompt=True)
    return dock


def stored(side: Any, column: str, *puts: Any) -> Any:
    """What comes back of rows at 0, 1, … that were put, each after a clear if None was before it."""
    dock = side.GRPOTransferDock(2, 2, side.Metric(), 1, 2)
    first = 0
    for rows in puts:
        if rows is None:
            dock.clear()
            first = 0
            continue
        dock.put_experience({column: rows}, list(range(first, first + len(rows))))
        first += len(rows)
    return dock.get_experience("trainer", [column], indexes=list(range(first)))[0][column]


def images(side: Any, *sizes: int) -> Any:
    dock = side.MMGRPOTransferDock(2, 2)
    dock.put_experience({"image": [torch.ones(1, size) for size in sizes]}, [0, 1, 2, 3])
    return dock


def counted(side: Any) -> Any:
    dock = side.GRPOTransferDock(1, 1, side.Metric())
    dock.update_metrics("timing/x", value=[2.0, 1.0], cumulate=True)
    dock.update_metrics("timing/x", value=[3.0], cumulate=True)
    dock.update_metrics(value={"a": 1})
    return dock.get_metrics().metric


def first_round(side: Any) -> Any:
    dock = put_prompts(side, 2, 2, side.Metric(), 2, 1)
    columns = ["prompts", "responses", "response_length", "age"]
    batch, indexes = dock.get_experience("actor_rollout", columns, 4, get_n_samples=False)
    return batch["responses"], batch["response_length"], batch["age"], list(indexes)


def state(side: Any) -> Any:
    dock = put_prompts(side, 2, 2, side.Metric(), 1, 2)
    numbers = [dock.prefetch_request_index(3) for _ in range(3)]
    return bool(dock.get_update_ready()), int(dock.get_incomplete_response_num()), numbers, dock.get_cur_index()


MASKED = {"attention_mask": [row(1), row(1, 1)], "position_ids": [row(0), row(0, 1, 2)], "x": [torch.ones(1)] * 2}

CALLS: dict[str, Callable[[Any], Any]] = {
    "int64": lambda side: stored(side, "responses", torch.ones(1, 2, dtype=torch.int64)),
    "int64 of 2**31": lambda side: stored(side, "responses", torch.tensor([[2**31]])),
    "(2, 3), after a clear (2, 4)": lambda s: stored(s, "labels", torch.ones(2, 2, 3), None, torch.ones(2, 2, 4)),
    "lists, then stacked": lambda s: stored(s, "labels", [torch.ones(2), torch.ones(1)], torch.ones(2, 3)),
    "float32, after a clear int64": lambda s: stored(s, "labels", torch.ones(2, 1), None, torch.ones(2, 1).long()),
    "(2, 3) and (2, 4)": lambda side: stored(side, "labels", [torch.ones(2, 3), torch.ones(2, 4)]),
    "unknown column": lambda side: stored(side, "x", [row(1)]),
    "metrics": counted,
    "first round of partial rollout": first_round,
    "update_ready, incomplete, prefetch, cur_index": state,
    "images of 12 and 27": lambda s: images(s, 12, 27).get_experience("", ["image"], [0, 1, 2, 3])["image"].shape,
    "images of 12 and 12": lambda s: images(s, 12, 12).get_experience("", ["image"], [0, 1, 2, 3])["image"].shape,
    "get_experience_dict": lambda s: [x.shape for x in images(s, 1, 2).get_experience_dict(["image"], [2, 0])["image"]],
    "images without indexes": lambda side: images(side, 1).get_experience("", ["image"]),
    "pad_experience": lambda side: dict(side.pad_experience(MASKED, 9, 2)),
    "pack_experience_columns": lambda side: side.pack_experience_columns("", MASKED, 2),
}


def shown(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype)[6:]} {value.tolist() if value.numel() < 9 else tuple(value.shape)}"
    if isinstance(value, torch.Size):
        return str(tuple(value))
    if isinstance(value, dict):
        return ", ".join(f"{name}: {shown(one)}" for name, one in value.items()) or "{}"
    if isinstance(value, list | tuple):
        return "; ".join(shown(one) for one in value)
    return repr(value)


def answer(call: Callable[[Any], Any], side: Any) -> str:
    try:
        return shown(call(side))
    except Exception as error:  # What it raises is its answer.
        return f"{type(error).__name__}: {str(error)[:70]}"


def same(a: Any, b: Any) -> bool:
    if a is None or b is None:
        return a is b
    return a.dtype == b.dtype and torch.equal(a, b)


class RandomCalls:
    """The same random calls on a dock of each side; counts those that differ."""

    COLUMNS = ("prompts", "responses", "labels", "advantages", "rm_scores")
    TYPES = (torch.int64, torch.int32, torch.float32, torch.float64, torch.bool, torch.int8, torch.bfloat16)

    def __init__(self, theirs: Any, seed: int) -> None:
        self.theirs, self.random = theirs, random.Random(seed)
        torch.manual_seed(seed)
        self.calls, self.different = 0, 0

    def run(self, calls: int) -> None:
        while self.calls < calls:
            prompts, n = self.random.choice([(2, 2), (3, 1), (2, 3)])
            self.rows = prompts * n
            self.docks = [side.GRPOTransferDock(prompts, n, side.Metric(), 1, prompts) for side in (self.theirs, ours)]
            for _ in range(40):
                self.calls += 1
                self.random.choice([self.put, self.put, self.get, self.get, self.look, self.clear])()

    def note(self, equal: bool, what: str) -> None:
        if not equal:
            self.different += 1
            print(f"different: {what}", file=sys.stderr)

    def cells(self, count: int) -> Any:
        choose = self.random
        if choose.random() < 0.4:
            shape = [choose.randint(1, 3) for _ in range(choose.randint(1, 3))]
            return torch.randint(0, 2, (count, *shape)).to(choose.choice(self.TYPES))
        kinds = [choose.choice(self.TYPES)] * count
        if choose.random() < 0.3:
            kinds = [choose.choice(self.TYPES) for _ in range(count)]
        ranks = [choose.choice([1, 1, 1, 2, 3]) for _ in range(count)]
        shapes = [[choose.randint(1, 4) for _ in range(rank)] for rank in ranks]
        return [torch.randint(0, 2, shape).to(kind) for shape, kind in zip(shapes, kinds, strict=True)]

    def put(self) -> None:
        indexes = self.random.sample(range(self.rows), self.random.randint(1, self.rows))
        data = {name: self.cells(len(indexes)) for name in self.random.sample(self.COLUMNS, 2)}
        # The first stays, so that there is something to put.
        indexes = [index if at == 0 or self.random.random() < 0.8 else -1 for at, index in enumerate(indexes)]
        for dock in self.docks:
            dock.put_experience(data, list(indexes))

    def get(self) -> None:
        name = self.random.choice(self.COLUMNS)
        ready = self.docks[0].get_experience_status()[name].nonzero().flatten().tolist()
        if not ready:
            return
        indexes = [self.random.choice(ready) for _ in range(self.random.randint(1, 4))]
        theirs, mine = (dock._get([name], indexes)[0] for dock in self.docks)
        self.note(all(map(same, theirs, mine)), f"_get of {name}")
        batches = []
        for dock in self.docks:
            try:
                batches.append(dock.get_experience("trainer", [name], indexes=indexes)[0])
            except (RuntimeError, ValueError):  # It cannot stack them; the rows are handed out all the same.
                batches.append(None)
        # What the original cannot stack, ours may.
        if batches[0] is not None:
            mine = {} if batches[1] is None else batches[1]
            equal = all(same(batches[0][key], mine.get(key)) for key in batches[0].keys())
            self.note(equal, f"get_experience of {name}")

    def look(self) -> None:
        theirs, mine = (dock.get_experience_data() for dock in self.docks)
        self.note(theirs.keys() == mine.keys(), "columns")
        for name, cells in theirs.items():
            self.note(all(map(same, cells, mine[name])), f"data of {name}")
        for method in ("get_experience_status", "get_consumer_status"):
            theirs, mine = (getattr(dock, method)() for dock in self.docks)
            self.note(all(torch.equal(theirs[name], mine[name]) for name in theirs), method)
        theirs, mine = (bool(dock.all_consumed("trainer")) for dock in self.docks)
        self.note(theirs == mine, "all_consumed")

    def clear(self) -> None:
        for dock in self.docks:
            dock.clear()


def seconds(call: Callable[[], Any], runs: int = 5) -> float:
    taken = []
    for _ in range(runs):
        begin = time.perf_counter()
        call()
        taken.append(time.perf_counter() - begin)
    return min(taken)


def times(theirs: Any, prompts: int, n: int, longest: int) -> None:
    rows, part = prompts * n, prompts * n // 8
    sizes = torch.randint(1, longest, (rows,), generator=torch.Generator().manual_seed(0)).tolist()
    tokens = [torch.ones(size, dtype=torch.int32) for size in sizes]
    lengths = [torch.tensor([size], dtype=torch.int32) for size in sizes]
    data = {"prompts": tokens, "responses": tokens, "input_ids": tokens, "response_length": lengths}
    data["prompt_length"] = lengths
    padded = ours.padding_dict_to_tensor_dict(data)
    columns = ["responses", "input_ids", "response_length"]
    few = {name: data[name][:part] for name in columns}
    packed = ours.pack_experience_columns("", few, part)
    found: dict[str, list[float]] = {}
    for side in (theirs, ours):
        dock = side.GRPOTransferDock(prompts, n, side.Metric(), 1, prompts)
        consumers = iter(("ref_log_prob", "actor_log_prob", "rule_reward", "compute_advantage"))
        calls = {
            "put_experience, 5 padded columns": lambda: dock.put_experience(padded, list(range(rows))),
            "put_experience, lists": lambda: dock.put_experience(data, list(range(rows))),
            "get_experience by indexes": lambda: dock.get_experience("trainer", columns, indexes=list(range(part))),
            "get_experience sampled": lambda: dock.get_experience(next(consumers), columns, part),
            "remove_padding_tensor_dict_to_dict": lambda: side.remove_padding_tensor_dict_to_dict(padded),
            "pack_experience_columns": lambda: side.pack_experience_columns("", few, part),
            "unpack_pad_experience": lambda: side.unpack_pad_experience(*packed, 0, 2),
        }
        for name, call in calls.items():
            found.setdefault(name, []).append(seconds(call, 4))
    for name, (a, b) in found.items():
        print(f"| {name} | {rows:,} of up to {longest:,} tokens | {a * 1e3:.1f} | {b * 1e3:.1f} |")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("checkout", type=pathlib.Path)
    parser.add_argument("--calls", type=int, default=4000, help="how many random calls")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    theirs = load(given.checkout)
    print("| call | original | here |\n|---|---|---|")
    for name, call in CALLS.items():
        there, here = answer(call, theirs), answer(call, ours)
        print(f"| {name} | {there} | {'the same' if here == there else here} |")
    calls = RandomCalls(theirs, given.seed)
    calls.run(given.calls)
    print(f"\n{calls.calls} random calls, {calls.different} different\n\n| call | rows | original, ms | here, ms |")
    print("|---|---|---|---|")
    times(theirs, 256, 8, 1024)
    times(theirs, 512, 16, 128)
    return 1 if calls.different else 0


if __name__ == "__main__":
    sys.exit(main())
