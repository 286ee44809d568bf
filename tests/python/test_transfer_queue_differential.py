"""transfer_dock.compat.transfer_queue against the real TransferQueue: the same calls, the same answers.

What is different on purpose is in test_transfer_queue.py; docs/transferqueue.md lists it.
"""

from __future__ import annotations

import pathlib
import random
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import transfer_queue as theirs
import transfer_queue.sampler.seqlen_balanced_sampler as their_balance
from transfer_queue_peer import Peer
from transfer_queue_programs import Program, Side

import transfer_dock.compat.transfer_queue as ours
import transfer_dock.compat.transfer_queue.sampler.seqlen_balanced_sampler as our_balance

CALLS = 80
SECONDS = 25.0
LEAST = 8


@pytest.fixture(scope="module")
def both() -> Iterator[tuple[Any, Any]]:
    peer = Peer()
    ours.init({"controller": {"polling_mode": True}})
    yield ours.get_client(), peer
    ours.close()
    peer.close()


def sides_of(both: tuple[Any, Any], folder: pathlib.Path) -> tuple[Side, Side]:
    client, peer = both
    sides = Side(ours, client, folder / "ours"), Side(theirs, peer.client, folder / "theirs", peer.drop)
    for side in sides:
        side.folder.mkdir(parents=True)
        for partition in side.client.get_partition_list():
            side.clear_partition(random.Random(0), partition)
    return sides


def test_random_programs_get_the_same_answers(both: tuple[Any, Any], tmp_path: pathlib.Path) -> None:
    begin, seed = time.monotonic(), 0
    while seed < LEAST or time.monotonic() - begin < SECONDS:
        Program(seed, *sides_of(both, tmp_path / str(seed))).run(CALLS)
        seed += 1


# ---- Without a server.


def metas(draw: random.Random, module: Any, seeds: list[int]) -> list[Any]:
    """Batches of the same random content from either module."""
    made = []
    for seed in seeds:
        one = random.Random(seed)
        size = one.randint(0, 5)
        schema: dict[str, Any] = {}
        for name in one.sample(["a", "b", "c"], one.randint(0, 3)):
            schema[name] = {"dtype": one.choice(["f", "i"]), "shape": (2,), "is_nested": False, "is_non_tensor": False}
            if one.random() < 0.4:
                shapes = [(one.randint(1, 3),) for _ in range(size)]
                schema[name] = {**schema[name], "shape": None, "is_nested": True, "per_sample_shapes": shapes}
        first = one.choice([0, 0, 5])
        made.append(
            module.BatchMeta(
                global_indexes=list(range(first, first + size)),
                partition_ids=[one.choice("pq") for _ in range(size)] if one.random() < 0.4 else ["p"] * size,
                field_schema=schema,
                production_status=[one.randint(0, 1) for _ in range(size)],
                extra_info={one.choice("xy"): one.choice([1, 2, np.arange(3)])} if one.random() < 0.5 else {},
                custom_meta=[{"n": one.randint(0, 9)} for _ in range(size)],
            )
        )
    return made


def state_of(meta: Any) -> Any:
    return (
        meta.global_indexes,
        meta.partition_ids,
        {name: dict(schema) for name, schema in sorted(meta.field_schema.items())},
        meta.production_status.tolist(),
        sorted((key, repr(value)) for key, value in meta.extra_info.items()),
        meta.custom_meta,
        meta.is_ready,
        meta.field_names,
        len(meta),
        [(one.global_index, one.partition_id, one.production_status, dict(one.custom_meta)) for one in meta.samples],
        [{name: dict(schema) for name, schema in one.fields.items()} for one in meta.samples],
    )


def result_of(call: Any) -> Any:
    try:
        result = call()
    except (ValueError, IndexError, KeyError, TypeError, RuntimeError) as error:
        return type(error).__name__
    return [state_of(one) for one in (result if isinstance(result, list) else [result])]


def in_place(meta: Any, change: Any) -> Any:
    change(meta)
    return meta


@pytest.mark.parametrize("seed", range(300))
def test_batches_have_the_same_algebra(seed: int) -> None:
    draw = random.Random(seed)
    seeds = [draw.randrange(40) for _ in range(3)]
    picked = [draw.randrange(-1, 5) for _ in range(draw.randint(0, 4))]
    chunks, fields = draw.randint(1, 4), draw.sample("abcd", 2)
    forms: list[Any] = [
        lambda module, a, b, c: a.select_samples(picked),
        lambda module, a, b, c: a.select_fields(fields),
        lambda module, a, b, c: a.chunk(chunks),
        lambda module, a, b, c: a.chunk_by_partition(),
        lambda module, a, b, c: a.union(b),
        lambda module, a, b, c: a.union(a.select_fields(fields)),
        lambda module, a, b, c: module.BatchMeta.concat([a, b, c]),
        lambda module, a, b, c: module.BatchMeta.concat([a, b, c], validate=False),
        lambda module, a, b, c: module.BatchMeta.concat(a.chunk(chunks)),
        lambda module, a, b, c: in_place(a, lambda meta: meta.reorder(picked)),
        lambda module, a, b, c: in_place(a, lambda meta: meta.reorder(list(range(len(a)))[::-1])),
        lambda module, a, b, c: in_place(a, lambda meta: meta.update_custom_meta([{"k": 1}] * 3)),
        lambda module, a, b, c: in_place(a, lambda meta: meta.clear_custom_meta()),
        lambda module, a, b, c: [a[1:], a[::-1], a[-1]],
        lambda module, a, b, c: a[7],
        lambda module, a, b, c: a["x"],
        lambda module, a, b, c: module.BatchMeta.empty({"x": 1}),
    ]
    for number, form in enumerate(forms):
        answers = [result_of(lambda: form(module, *metas(draw, module, seeds))) for module in (ours, theirs)]
        assert answers[0] == answers[1], f"form {number}"


@pytest.mark.parametrize("seed", range(100))
def test_batches_of_keys_have_the_same_algebra(seed: int) -> None:
    def parts(module: Any) -> list[Any]:
        draw = random.Random(seed)
        made = []
        for i in range(3):
            keys = [f"{i if draw.random() < 0.9 else 0}/{k}" for k in range(draw.randint(0, 4))]
            fields = draw.choice([None, ["a"], ["a", "b"], ["b", "a"]])
            extra = draw.choice([None, {}, {"x": 1}, {"x": 2}])
            made.append(module.KVBatchMeta(keys, [{"k": key} for key in keys], draw.choice("pp"), fields, extra))
        return made

    def answer(call: Any) -> Any:
        try:
            result = call()
        except (ValueError, RuntimeError, IndexError) as error:
            return type(error).__name__
        results = result if isinstance(result, list) else [result]
        return [(one.keys, one.tags, one.partition_id, one.fields, one.extra_info, one.size) for one in results]

    draw = random.Random(seed)
    order = [draw.randrange(4) for _ in range(draw.randint(0, 4))]
    forms: list[Any] = [
        lambda module, made: module.KVBatchMeta.concat(made),
        lambda module, made: module.KVBatchMeta.concat(made[0].chunk(3)),
        lambda module, made: made[0].chunk(2),
        lambda module, made: made[0].select_keys([f"0/{i}" for i in order]),
        lambda module, made: in_place(made[0], lambda meta: meta.reorder(order)),
        lambda module, made: module.KVBatchMeta(["a", "a"], [{}, {}]),
        lambda module, made: module.KVBatchMeta(["a"], []),
    ]
    for number, form in enumerate(forms):
        answers = [answer(lambda: form(module, parts(module))) for module in (ours, theirs)]
        assert answers[0] == answers[1], f"form {number}"


@pytest.mark.parametrize("seed", range(500))
def test_lengths_are_balanced_the_same_way(seed: int) -> None:
    draw = random.Random(seed)
    sets, equal = draw.randint(1, 5), draw.random() < 0.5
    items = sets * draw.randint(1, 6) if equal else draw.randint(sets, 20)
    lengths = [draw.randint(1, draw.choice([3, 10, 1000])) for _ in range(items)]
    try:
        expected = their_balance.get_seqlen_balanced_partitions(lengths, sets, equal)
    except AssertionError:
        return  # the peer refuses sets without items
    assert our_balance.get_seqlen_balanced_partitions(lengths, sets, equal) == expected


class Notes:
    """What samplers ask of a partition."""

    def get_custom_meta(self, indexes: list[int]) -> dict[int, dict[str, int]]:
        return {index: {"total_lengths": 1 + index * 7 % 13} for index in indexes if index % 5}


@pytest.mark.parametrize("seed", range(100))
def test_samplers_choose_the_same(seed: int) -> None:
    draw = random.Random(seed)
    n, ranks = draw.randint(1, 3), draw.randint(1, 3)
    pairs = [
        (ours.SequentialSampler(), theirs.SequentialSampler()),
        (ours.RankAwareSampler(), theirs.RankAwareSampler()),
        (ours.GRPOGroupNSampler(n), theirs.GRPOGroupNSampler(n)),
        (ours.SeqlenBalancedSampler(n, ranks), theirs.SeqlenBalancedSampler(n, ranks)),
    ]
    for mine, other in pairs:
        # Whole groups only: of groups that are not whole the peer makes others.
        ready = [index for group in range(12) if draw.random() < 0.8 for index in range(group * n, group * n + n)]
        left = list(ready)
        for batch in range(3):
            size = n * draw.randint(1, 2)
            # All ranks ask for a batch before one asks for the next: else the peer hands samples out twice.
            for rank in draw.sample(range(ranks), ranks) * 2:
                config = {"dp_rank": rank, "batch_index": batch, "task_name": "t", "partition_id": "p"}
                if isinstance(mine, (ours.SequentialSampler,)):
                    config = {}
                ours_chose, ours_consumed = mine(left, size, partition=Notes(), **config)
                theirs_chose, _ = other(left, size, partition=Notes(), **config)
                assert ours_chose == theirs_chose
                assert mine.has_cached_result("p", "t", config) == other.has_cached_result("p", "t", config)
                if not isinstance(mine, ours.SeqlenBalancedSampler):
                    left = [index for index in left if index not in ours_consumed]
            if isinstance(mine, ours.SeqlenBalancedSampler):
                handed = {index for of_rank in mine._states["p"]["t"].values() for index in of_rank.get(batch, ([],))[0]}
                left = [index for index in left if index not in handed]
        mine.clear_cache("p")
        other.clear_cache("p")
        assert mine._states == {} == other._states
