"""What random programs of TransferQueue's verbs put: fields of every kind, drawn from a seed."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from tensordict import NonTensorStack, TensorDict


def dense(field: torch.Tensor) -> torch.Tensor:
    """A nested tensor whose rows are alike, or any other one, as one that is not nested."""
    return torch.stack(list(field.unbind())) if field.is_nested else field


def _nested(rows: list[torch.Tensor]) -> torch.Tensor:
    return torch.nested.as_nested_tensor(rows, layout=torch.jagged)


def _tensor(make: Callable[[list[int]], torch.Tensor], *shape: int) -> Callable[[random.Random, int], Any]:
    return lambda draw, rows: make([draw.randrange(-100, 100) for _ in range(rows * _size(shape))]).reshape(rows, *shape)


def _size(shape: tuple[int, ...]) -> int:
    size = 1
    for one in shape:
        size *= one
    return size


def _varying(draw: random.Random, rows: int) -> torch.Tensor:
    """A tensor whose rows are of another length in another put."""
    return _tensor(lambda v: torch.tensor(v, dtype=torch.int64), draw.randint(1, 5))(draw, rows)


def _ragged(draw: random.Random, rows: int) -> torch.Tensor:
    return _nested([torch.tensor([draw.random() for _ in range(draw.randint(1, 6))]) for _ in range(rows)])


def _ragged_vectors(draw: random.Random, rows: int) -> torch.Tensor:
    return _nested([torch.full((draw.randint(1, 4), 3), float(draw.randint(0, 9))) for _ in range(rows)])


def _strings(draw: random.Random, rows: int) -> Any:
    return NonTensorStack(*["".join(draw.choices("abcöß漢\n", k=draw.randint(0, 9))) for _ in range(rows)])


# No tuples: the peer makes lists of them.
def _objects(draw: random.Random, rows: int) -> Any:
    return NonTensorStack(*[draw.choice([{"a": draw.random()}, [1, "x"], None, 7, b"\xff\x00"]) for _ in range(rows)])


# By name: what TensorDicts of this field hold.
FIELDS: dict[str, Callable[[random.Random, int], Any]] = {
    "ids": _tensor(lambda v: torch.tensor(v, dtype=torch.int64), 4),
    "reward": _tensor(lambda v: torch.tensor(v, dtype=torch.float32)),
    "hidden": _tensor(lambda v: torch.tensor(v, dtype=torch.bfloat16), 2, 3),
    "mask": _tensor(lambda v: torch.tensor(v) > 0, 5),
    "varying": _varying,
    "ragged": _ragged,
    "vectors": _ragged_vectors,
    "text": _strings,
    "objects": _objects,
}


def field_names(data: TensorDict | None) -> list[str] | None:
    return None if data is None else sorted(data.keys())


def make_data(draw: random.Random, rows: int, fields: list[str]) -> TensorDict:
    return TensorDict({name: FIELDS[name](draw, rows) for name in fields}, batch_size=[rows])
