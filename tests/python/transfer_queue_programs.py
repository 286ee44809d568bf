"""Random programs of TransferQueue's verbs, run on two implementations at the same time.

A program is a sequence of calls, drawn from a seed; what earlier calls returned is used by later ones. Each call is made
on both systems, and what they answer is brought into a form in which both should be equal:

  - samples are numbered in the order in which the program made them: each system has indexes of its own;
  - tensors are lists of rows, so that a field of equal rows may be a tensor here and a nested tensor there;
  - what has no order is sorted;
  - an error is its kind.
"""

from __future__ import annotations

import asyncio
import dataclasses
import pathlib
import random
from collections.abc import Callable
from typing import Any

import torch
from tensordict import TensorDict
from transfer_queue_data import FIELDS, field_names, make_data

PARTITIONS = ["train@0", "train@1", "val"]
TASKS = ["rollout", "reward", "actor"]
KEYS = [f"key_{i}" for i in range(12)]


class Differs(AssertionError):
    """The two systems answered differently."""


# ---- What both answer.

# What is kept, and the answer in the common form, or a function that makes it when samples have their numbers.
Answer = tuple[Any, Any]


def _row(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return ("tensor", str(value.dtype), tuple(value.shape), value.to(torch.float64).tolist())
    return ("object", repr(value))


def rows_of(value: Any) -> list[Any]:
    """The rows of a field."""
    if isinstance(value, torch.Tensor):
        return [_row(one) for one in value.unbind(0)]
    return [_row(one) for one in value.tolist()]


def same_data(data: TensorDict) -> Any:
    return (list(data.batch_size), {name: rows_of(data.get(name)) for name in sorted(data.keys())})


@dataclasses.dataclass
class Side:
    """One of the two systems."""

    module: Any
    client: Any
    folder: pathlib.Path
    # Called after a partition was cleared.
    drop: Callable[[str], None] = lambda partition: None
    # The number of each sample, by partition and index.
    numbers: dict[tuple[str, int], int] = dataclasses.field(default_factory=dict)
    # What the program kept, by its place in the program.
    kept: list[Any] = dataclasses.field(default_factory=list)

    def number(self, partition: str, index: int) -> int:
        return self.numbers.setdefault((partition, int(index)), -1)

    def samples(self, meta: Any) -> list[tuple[str, int]]:
        pairs = zip(meta.partition_ids, meta.global_indexes, strict=True)
        return [(partition, self.number(partition, index)) for partition, index in pairs]

    def clear_partition(self, draw: random.Random, partition: str) -> Answer:
        self.call("clear_partition", draw, partition)
        self.drop(partition)
        return None, None

    def call(self, name: str, draw: random.Random, *arguments: Any, **named: Any) -> Any:
        """A verb of the client or of the module, in its blocking or its asynchronous form."""
        holder = self.module if name.startswith("kv_") and hasattr(self.module, name) else self.client
        if draw.random() < 0.25:
            return asyncio.run(getattr(holder, "async_" + name)(*arguments, **named))
        return getattr(holder, name)(*arguments, **named)


def same_meta(side: Side, meta: Any, shapes: bool = True) -> Any:
    """All that a BatchMeta says, sample by sample. What it says of fields that no sample has is left open."""
    if meta.size == 0:
        return ("no samples", meta.extra_info)
    fields = {}
    for name in meta.field_names if shapes and meta.production_status.any() else []:
        schema = meta.field_schema[name]
        of_rows = [None if shape is None else tuple(shape) for shape in meta.get_shapes(name)]
        ready = [shape if meta.production_status[i] else None for i, shape in enumerate(of_rows)]
        fields[name] = (str(schema["dtype"]), bool(schema["is_non_tensor"]), ready)
    return {
        "samples": side.samples(meta),
        "fields": meta.field_names,
        "schema": fields,
        "status": meta.production_status.tolist(),
        "ready": meta.is_ready,
        "notes": meta.custom_meta,
        "extra": meta.extra_info,
    }


def same_keys(meta: Any) -> Any:
    return (meta.keys, meta.tags, meta.partition_id, sorted(meta.fields or ()), meta.extra_info)


def same_status(side: Side, partition: str, found: tuple[Any, Any]) -> Any:
    index, status = found
    if index is None:
        return None
    # Which column stands for which field is not said.
    rows = status.reshape(len(index), -1).tolist()
    return sorted((side.number(partition, one), sorted(of_row)) for one, of_row in zip(index.tolist(), rows))


# ---- Programs.

Call = Callable[[Side, random.Random], Answer]


class Program:
    """Draws calls, makes them on both sides, and compares the answers. Raises Differs, with the calls so far."""

    def __init__(self, seed: int, ours: Side, peer: Side) -> None:
        self._draw = random.Random(seed)
        self._seed = seed
        self._sides = (ours, peer)
        self._log: list[str] = []
        self._next_number = 0
        # Of each kept BatchMeta and KVBatchMeta, its place.
        self._metas: list[int] = []
        self._key_metas: list[int] = []
        # Which fields a sample has been put, and which samples were cleared.
        self._cleared: set[tuple[str, int]] = set()

    def run(self, calls: int) -> None:
        kinds = [
            (self._put_new, 5),
            (self._insert, 2),
            (self._put_more, 5),
            (self._fetch, 8),
            (self._force_fetch, 2),
            (self._get_data, 5),
            (self._note, 3),
            (self._clear_samples, 1),
            (self._clear_partition, 1),
            (self._look, 6),
            (self._reset, 1),
            (self._kv_put, 4),
            (self._kv_batch_put, 4),
            (self._kv_get, 6),
            (self._kv_look, 4),
            (self._kv_clear, 1),
            (self._algebra, 5),
            (self._checkpoint, 0.3),
        ]
        chosen = self._draw.choices([kind for kind, _ in kinds], weights=[weight for _, weight in kinds], k=calls)
        for kind in chosen:
            kind()
        self._drain()

    # -- Both sides.

    def _both(self, text: str, call: Call, created: bool = False, keep: list[int] | None = None) -> Any:
        """Makes a call on both sides and compares. Returns our answer in the common form, None for an error.

        ``call`` returns what is to be kept and the answer in the common form. With ``created``, the samples of what is
        kept are new.
        """
        seed = self._draw.random()
        answers = []
        for side in self._sides:
            try:
                kept, answer = self._numbered(side, call, random.Random(seed), created)
                answers.append(("ok", answer, None))
                side.kept.append(kept)
            except Exception as error:  # all errors are answers
                answers.append(("error", None, error))
                side.kept.append(None)
        self._next_number += 1000 * created
        place = len(self._sides[0].kept) - 1
        (ours, our_answer, our_error), (peers, peer_answer, peer_error) = answers
        self._log.append(f"{place}: {text} -> {ours if our_error is None else repr(our_error)}")
        same_error = our_error is None or peer_error is None or _same_kind(our_error, peer_error)
        if ours != peers or our_answer != peer_answer or not same_error:
            raise Differs(
                f"program {self._seed}, call {place}\n  ours  {our_answer} {our_error!r}\n"
                f"  peer  {peer_answer} {peer_error!r}\n" + "\n".join(self._log[-40:])
            )
        if keep is not None and ours == "ok":
            keep.append(place)
        return our_answer

    def _numbered(self, side: Side, call: Call, draw: random.Random, created: bool) -> Answer:
        kept, answer = call(side, draw)
        if not created:
            return kept, answer
        for i, (partition, index) in enumerate(zip(kept.partition_ids, kept.global_indexes, strict=True)):
            # A key that was there keeps its number.
            if side.numbers.get((partition, int(index)), -1) < 0:
                side.numbers[(partition, int(index))] = self._next_number + i
        return kept, answer(side) if callable(answer) else answer

    def _partition(self) -> str:
        return self._draw.choice(PARTITIONS)

    def _fields(self, most: int = 4) -> list[str]:
        return self._draw.sample(sorted(FIELDS), self._draw.randint(1, most))

    def _data(self, rows: int, fields: list[str]) -> TensorDict:
        return make_data(self._draw, rows, fields)

    def _is_alive(self, place: int) -> bool:
        meta = self._sides[0].kept[place]
        return meta.size > 0 and not self._cleared.intersection(
            (partition, int(index)) for partition, index in zip(meta.partition_ids, meta.global_indexes, strict=True)
        )

    def _alive(self, one_partition: bool = False) -> int | None:
        places = [place for place in self._metas[-30:] if self._is_alive(place)]
        if one_partition:
            places = [place for place in places if len(set(self._sides[0].kept[place].partition_ids)) == 1]
        return self._draw.choice(places) if places else None

    # -- Calls.

    def _put_new(self) -> None:
        partition, rows = self._partition(), self._draw.randint(1, 6)
        data = self._data(rows, self._fields())

        def call(side: Side, draw: random.Random) -> Answer:
            meta = side.call("put", draw, data.clone(), partition_id=partition)
            return meta, lambda of: same_meta(of, meta)

        self._both(f"put {rows} {sorted(data.keys())} into {partition}", call, created=True, keep=self._metas)

    def _insert(self) -> None:
        partition, rows, fields = self._partition(), self._draw.randint(1, 6), self._fields()

        def call(side: Side, draw: random.Random) -> Answer:
            meta = side.call("get_meta", draw, fields, rows, partition, mode="insert")
            # Kept without the fields, of which the peer says what other samples have.
            return meta.select_fields([]), lambda of: same_meta(of, meta, shapes=False)

        self._both(f"insert {rows} into {partition}", call, created=True, keep=self._metas)

    def _put_more(self) -> None:
        place = self._alive(one_partition=True)
        if place is None:
            return
        size = self._sides[0].kept[place].size
        picked = sorted(self._draw.sample(range(size), self._draw.randint(1, size)))
        data = self._data(len(picked), self._fields())
        notes = [{"step": self._draw.randint(0, 9)} for _ in picked] if self._draw.random() < 0.3 else None

        def call(side: Side, draw: random.Random) -> Answer:
            meta = side.kept[place].select_samples(picked)
            meta.update_custom_meta(notes)
            put = side.call("put", draw, data.clone(), meta)
            return put, same_meta(side, put)

        self._both(f"put {sorted(data.keys())} of {picked} of {place}", call, keep=self._metas)

    def _fetch(self) -> None:
        partition, task, fields = self._partition(), self._draw.choice(TASKS), self._fields(2)
        rows = self._draw.randint(1, 5)

        def call(side: Side, draw: random.Random) -> Answer:
            meta = side.call("get_meta", draw, fields, rows, partition, task_name=task)
            return meta, same_meta(side, meta)

        self._both(f"fetch {rows} {fields} of {partition} for {task}", call, keep=self._metas)

    def _force_fetch(self) -> None:
        partition, fields = self._partition(), self._fields()

        def call(side: Side, draw: random.Random) -> Answer:
            meta = side.call("get_meta", draw, fields, 0, partition, mode="force_fetch")
            order = sorted(range(meta.size), key=lambda i: side.samples(meta)[i])
            return meta, same_meta(side, meta.select_samples(order))

        self._both(f"force_fetch {fields} of {partition}", call)

    def _get_data(self) -> None:
        places = self._metas[-30:]
        if not places:
            return
        place = self._draw.choice(places)
        if not self._is_alive(place):
            return
        fields = self._fields() if self._draw.random() < 0.3 else None

        def call(side: Side, draw: random.Random) -> Answer:
            meta = side.kept[place]
            if fields is not None:
                meta = meta.select_fields(fields)
            return None, same_data(side.call("get_data", draw, meta))

        self._both(f"get_data of {fields} of {place}", call)

    def _note(self) -> None:
        place = self._alive()
        if place is None:
            return
        kinds: list[Any] = [1, 0.5, "text", None, [1, {"a": []}]]
        size = self._sides[0].kept[place].size
        notes = [{self._draw.choice("abc"): self._draw.choice(kinds)} for _ in range(size)]

        def call(side: Side, draw: random.Random) -> Answer:
            side.kept[place].update_custom_meta(notes)
            side.call("set_custom_meta", draw, side.kept[place])
            return None, None

        self._both(f"note {notes} on {place}", call)

    def _clear_samples(self) -> None:
        place = self._alive()
        if place is None:
            return
        size = self._sides[0].kept[place].size
        picked = self._draw.sample(range(size), self._draw.randint(1, size))

        def call(side: Side, draw: random.Random) -> Answer:
            side.call("clear_samples", draw, side.kept[place].select_samples(picked))
            return None, None

        self._both(f"clear {picked} of {place}", call)
        self._now_cleared(self._sides[0].kept[place].select_samples(picked))

    def _now_cleared(self, meta: Any) -> None:
        pairs = zip(meta.partition_ids, meta.global_indexes, strict=True)
        self._cleared.update((partition, int(index)) for partition, index in pairs)

    def _clear_partition(self) -> None:
        partition = self._partition()
        self._both(f"clear {partition}", lambda side, draw: side.clear_partition(draw, partition))
        self._forget(partition)

    def _forget(self, partition: str) -> None:
        """What was kept of a partition is about samples that are not there any more; its indexes may come again."""
        ours = self._sides[0]
        self._metas = [place for place in self._metas if partition not in ours.kept[place].partition_ids]
        self._cleared = {one for one in self._cleared if one[0] != partition}
        for side in self._sides:
            side.numbers = {key: number for key, number in side.numbers.items() if key[0] != partition}

    def _look(self) -> None:
        partition, task, fields = self._partition(), self._draw.choice(TASKS), self._fields(3)
        looks: dict[str, Call] = {
            "get_consumption_status": lambda side, draw: (
                None,
                same_status(side, partition, side.call("get_consumption_status", draw, task, partition)),
            ),
            "check_consumption_status": lambda side, draw: (
                None,
                side.call("check_consumption_status", draw, task, partition),
            ),
            "get_production_status": lambda side, draw: (
                None,
                same_status(side, partition, side.call("get_production_status", draw, fields, partition)),
            ),
            "check_production_status": lambda side, draw: (
                None,
                side.call("check_production_status", draw, fields, partition),
            ),
            "get_partition_list": lambda side, draw: (None, sorted(side.call("get_partition_list", draw))),
        }
        name = self._draw.choice(sorted(looks))
        self._both(f"{name} {partition} {task} {fields}", looks[name])

    def _reset(self) -> None:
        partition, task = self._partition(), self._draw.choice([*TASKS, None])
        self._both(
            f"reset_consumption {partition} {task}",
            lambda side, draw: (None, side.call("reset_consumption", draw, partition, task)),
        )

    # -- Samples by keys.

    def _keys(self, most: int = 5) -> list[str]:
        return self._draw.sample(KEYS, self._draw.randint(1, most))

    def _number_keys(self, partition: str, keys: list[str]) -> None:
        """Samples that a put by keys made get their numbers."""

        def call(side: Side, draw: random.Random) -> Answer:
            meta = side.client.kv_retrieve_meta(keys, partition)
            return meta, lambda of: of.samples(meta)

        self._both(f"numbers of {keys} of {partition}", call, created=True)

    def _kv_put(self) -> None:
        partition, key = self._partition(), self._draw.choice(KEYS)
        data = self._data(1, self._fields()) if self._draw.random() < 0.8 else None
        fields: Any = data
        if data is not None and self._draw.random() < 0.5 and not {"ragged", "vectors"} & set(data.keys()):
            fields = {
                name: data[name][0] if isinstance(data[name], torch.Tensor) else data[name].tolist()[0]
                for name in data.keys()
            }
        tag = {"n": self._draw.randint(0, 9)} if self._draw.random() < 0.6 else None

        def call(side: Side, draw: random.Random) -> Answer:
            given = fields.clone() if isinstance(fields, TensorDict) else fields
            meta = side.call("kv_put", draw, key, partition, given, tag)
            return meta, same_keys(meta)

        answer = self._both(f"kv_put {key} {partition} {field_names(data)} {tag}", call, keep=self._key_metas)
        if answer is not None:
            self._number_keys(partition, [key])

    def _kv_batch_put(self) -> None:
        partition, keys = self._partition(), self._keys()
        rows = len(keys) + (self._draw.random() < 0.05)
        data = self._data(rows, self._fields()) if self._draw.random() < 0.8 else None
        tags = [{"n": i, "t": [i]} for i in range(len(keys))] if self._draw.random() < 0.6 else None

        def call(side: Side, draw: random.Random) -> Answer:
            given = None if data is None else data.clone()
            meta = side.call("kv_batch_put", draw, list(keys), partition, given, tags)
            return meta, same_keys(meta)

        answer = self._both(
            f"kv_batch_put {keys} {partition} {field_names(data)} {tags}", call, keep=self._key_metas
        )
        if answer is not None:
            self._number_keys(partition, keys)

    def _kv_get(self) -> None:
        partition, keys = self._partition(), self._keys(3)
        fields: Any = self._draw.choice([None, None, self._fields(3), self._fields(1)[0]])
        if self._key_metas and self._draw.random() < 0.3:
            place = self._draw.choice(self._key_metas)
            self._both(
                f"kv_batch_get_by_meta {place} {fields}",
                lambda side, draw: (None, same_data(side.call("kv_batch_get_by_meta", draw, side.kept[place], fields))),
            )
            return
        asked: Any = keys[0] if self._draw.random() < 0.2 else keys
        self._both(
            f"kv_batch_get {asked} {partition} {fields}",
            lambda side, draw: (None, same_data(side.call("kv_batch_get", draw, asked, partition, fields))),
        )

    def _kv_look(self) -> None:
        partition = self._draw.choice([*PARTITIONS, None])
        if partition is None or self._draw.random() < 0.5:
            self._both(f"kv_list {partition}", lambda side, draw: (None, side.call("kv_list", draw, partition)))
            return
        keys = self._keys(3)
        if self._draw.random() < 0.5:

            def retrieve(side: Side, draw: random.Random) -> Answer:
                meta = side.call("kv_retrieve_meta", draw, keys, partition)
                return meta, same_meta(side, meta)

            self._both(f"kv_retrieve_meta {keys} {partition}", retrieve, keep=self._metas)
            return

        def names(side: Side, draw: random.Random) -> Answer:
            indexes = [index for (of, index), number in side.numbers.items() if of == partition and number >= 0]
            numbers = {side.number(partition, index): index for index in indexes}
            asked = [numbers[number] for number in sorted(numbers)]
            return None, side.call("kv_retrieve_keys", draw, asked, partition)

        self._both(f"kv_retrieve_keys {partition}", names)

    def _kv_clear(self) -> None:
        partition, keys = self._partition(), self._keys(3)

        def call(side: Side, draw: random.Random) -> Answer:
            found = side.client.kv_retrieve_meta(keys, partition)
            side.call("kv_clear", draw, keys, partition)
            return found, side.samples(found)

        if self._both(f"kv_clear {keys} {partition}", call) is not None:
            self._now_cleared(self._sides[0].kept[-1])

    # -- The rest.

    def _algebra(self) -> None:
        if len(self._metas) < 2:
            return
        one, other = self._draw.choices(self._metas[-12:], k=2)
        size = self._sides[0].kept[one].size
        order = self._draw.sample(range(size), size)
        chunks = self._draw.randint(1, 4)

        def reordered(meta: Any) -> Any:
            copied = meta.copy()
            copied.reorder(order)
            return [copied]

        forms: dict[str, Callable[[Any, Any, Side], list[Any]]] = {
            "chunk": lambda a, b, side: a.chunk(chunks),
            "chunk_by_partition": lambda a, b, side: a.chunk_by_partition(),
            "union": lambda a, b, side: [a.union(b)],
            "union of fields": lambda a, b, side: [a.select_fields(a.field_names[:1]).union(a)],
            "concat": lambda a, b, side: [side.module.BatchMeta.concat([a, b])],
            "concat of chunks": lambda a, b, side: [side.module.BatchMeta.concat(a.chunk(chunks))],
            "reorder": lambda a, b, side: reordered(a),
            "slice": lambda a, b, side: [a[1:], a[::2], a[-1]],
        }
        name = self._draw.choice(sorted(forms))

        def call(side: Side, draw: random.Random) -> Answer:
            results = forms[name](side.kept[one], side.kept[other], side)
            shapes = name != "concat"  # the peer forgets the shapes of the second of two tensors
            return results[0], [same_meta(side, result, shapes) for result in results]

        self._both(f"{name} of {one} and {other}", call)

    def _checkpoint(self) -> None:
        def save(side: Side, draw: random.Random) -> Answer:
            side.module.save_checkpoint(side.folder / "checkpoint", metadata={"step": 1})
            return None, None

        def load(side: Side, draw: random.Random) -> Answer:
            side.module.load_checkpoint(side.folder / "checkpoint")
            return None, None

        partition = self._partition()
        self._both("save_checkpoint", save)
        self._both(f"clear {partition}", lambda side, draw: side.clear_partition(draw, partition))
        self._both("load_checkpoint", load)

    def _drain(self) -> None:
        """What is there in the end."""
        for partition in PARTITIONS:
            for field in sorted(FIELDS):

                def call(side: Side, draw: random.Random) -> Answer:
                    meta = side.client.get_meta([field], 0, partition, mode="force_fetch")
                    there = [i for i in range(meta.size) if meta.production_status[i]]
                    order = sorted(there, key=lambda i: side.samples(meta)[i])
                    picked = meta.select_samples(order)
                    return None, (same_meta(side, picked), same_data(side.client.get_data(picked)))

                self._both(f"all of {field} of {partition}", call)


def _same_kind(ours: Exception, peers: Exception) -> bool:
    """Whether who expects the peer's error catches ours too."""
    return isinstance(ours, type(peers)) or type(ours).__name__ == type(peers).__name__
