"""Fields of TensorDicts as columns of a dock, and back.

    rows of rank 0          a dense column
    rows of higher rank     a ragged column of one dimension; the label of a row (_labels.py) has its shape
    everything else         a column of text where the first rows were all strings, else one of bytes: a str as its UTF-8,
                            other objects behind a byte 0xFF, which UTF-8 never has; in a column of text as Base64

Only cells whose row's label says that they are objects are read as such. Those that were not put by this package have no
label: they are the tensors, strings and bytes that the dock says. What comes back is memory of the caller's own, which he
may write to.
"""

from __future__ import annotations

import base64
import math
import pickle
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from tensordict import NonTensorData, NonTensorStack, TensorDict

from transfer_dock.compat.transfer_queue._labels import FieldLabel, PutField, Shape

# Those that a dock holds: other tensors are kept as objects.
_DTYPES = {
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
}
_NOT_OF_NUMPY = {torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2}

_BYTES = b"\xff\x00"
_PICKLE = b"\xff\x01"
_TENSOR = b"\xff\x02"
_OBJECT = b"\xff"
# What an object in a column of text begins with: a code point that no text has.
_BEGIN = "\U0010ffff"
_BASE64 = _BEGIN.encode()


def objects_of(name: str, value: Any, rows: int) -> list[Any]:
    """One object for each row."""
    if isinstance(value, NonTensorData):
        data = value.data
        # TensorDict does not cut what it does not know: the rows are the elements of what it was given.
        value = data if isinstance(data, (list, tuple, np.ndarray)) else [data] * rows
    elif isinstance(value, NonTensorStack):
        value = value.tolist()
    if len(value) != rows:
        raise ValueError(
            f"Inconsistent batch dimension for field '{name}': expected batch_size[0]={rows}, "
            f"got len(value)={len(value)}"
        )
    return [value[i] for i in range(rows)]


def _rows_of(name: str, value: Any, rows: int) -> list[torch.Tensor]:
    """The rows of a nested tensor."""
    tensors = list(value.unbind())
    if len(tensors) != rows:
        raise ValueError(
            f"Inconsistent batch dimension for field '{name}': expected batch_size[0]={rows}, "
            f"got nested tensor composed of {len(tensors)} tensors"
        )
    return tensors


def _check_rows(name: str, value: torch.Tensor, rows: int) -> None:
    if value.dim() == 0 or value.shape[0] != rows:
        raise ValueError(
            f"Inconsistent batch dimension for field '{name}': expected batch_size[0]={rows}, "
            f"got value.shape={tuple(value.shape)}"
        )


def schema_of(data: TensorDict) -> dict[str, dict[str, Any]]:
    """The ``field_schema`` of a batch: what ``BatchMeta`` says of its fields. Raises ValueError."""
    rows = data.batch_size[0]
    schema: dict[str, dict[str, Any]] = {}
    for name, value in data.items():
        if not isinstance(value, torch.Tensor):
            objects_of(name, value, rows)
            schema[name] = {"dtype": None, "shape": None, "is_nested": False, "is_non_tensor": True}
        elif value.is_nested:
            shapes = [tuple(tensor.shape) for tensor in _rows_of(name, value, rows)]
            schema[name] = {"dtype": value.dtype, "shape": shapes[0], "is_nested": True, "is_non_tensor": False}
            schema[name]["per_sample_shapes"] = shapes
        else:
            _check_rows(name, value, rows)
            # A row of rank 0 is said to have one element.
            shape = tuple(value.shape[1:]) or (1,)
            schema[name] = {"dtype": value.dtype, "shape": shape, "is_nested": False, "is_non_tensor": False}
    return schema


def encode_object(value: Any) -> bytes:
    """A cell of a bytes column."""
    if type(value) is str and not value.startswith(_BEGIN):
        return value.encode()
    if type(value) is bytes:
        return _BYTES + value
    if type(value) is torch.Tensor and value.layout == torch.strided:
        # Not all dtypes can be pickled.
        told = (str(value.dtype).removeprefix("torch."), tuple(value.shape))
        flat = value.detach().cpu().contiguous().reshape(-1)
        return _TENSOR + pickle.dumps((*told, flat.view(torch.uint8).numpy().tobytes()))
    return _PICKLE + pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)


def decode_object(cell: bytes) -> Any:
    """What ``encode_object`` was given."""
    if cell.startswith(_BASE64):
        cell = base64.b64decode(cell[len(_BASE64) :])
    if not cell.startswith((_BYTES, _PICKLE, _TENSOR)):
        return _str_or_bytes(cell)
    body = memoryview(cell)[2:]
    if cell.startswith(_BYTES):
        return bytes(body)
    if cell.startswith(_PICKLE):
        return pickle.loads(body)
    name, shape, data = pickle.loads(body)
    dtype = getattr(torch, name)
    if not data:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).view(dtype).reshape(shape)


def objects_as_text(cells: list[Any]) -> list[Any]:
    """Cells of a put as a column of text takes them: these themselves where none is an object."""
    if not any(type(cell) is bytes and cell.startswith(_OBJECT) for cell in cells):
        return cells
    return [_BASE64 + base64.b64encode(cell) if cell.startswith(_OBJECT) else cell for cell in map(_as_bytes, cells)]


def _as_bytes(cell: str | bytes) -> bytes:
    return cell.encode() if isinstance(cell, str) else cell


def _str_or_bytes(cell: bytes) -> str | bytes:
    try:
        return cell.decode()
    except UnicodeDecodeError:
        return cell


def _flat_rows(tensors: Sequence[torch.Tensor] | torch.Tensor, dtype: torch.dtype) -> list[Any]:
    """The rows as arrays of one dimension; neighbours of one tensor stay neighbours."""
    if isinstance(tensors, torch.Tensor):
        flat = tensors.detach().cpu().contiguous().flatten(1)
        return list(flat.unbind(0)) if dtype in _NOT_OF_NUMPY else list(flat.numpy())
    rows = [tensor.detach().cpu().contiguous().reshape(-1) for tensor in tensors]
    return rows if dtype in _NOT_OF_NUMPY else [row.numpy() for row in rows]


def _encode_objects(name: str, objects: list[Any]) -> tuple[Any, PutField]:
    if all(isinstance(one, torch.Tensor) and not one.is_nested for one in objects):
        dtypes = {one.dtype for one in objects}
        ranks = {one.dim() for one in objects}
        if len(dtypes) == 1 and dtypes <= _DTYPES and (0 not in ranks or ranks == {0}):
            shapes = [tuple(one.shape) for one in objects]
            if ranks == {0}:
                return torch.stack(objects).detach().cpu(), PutField(name, (), False)
            return _flat_rows(objects, *dtypes), PutField(name, shapes, False)
    if all(type(one) is str and not one.startswith(_BEGIN) for one in objects):
        return objects, PutField(name, None, False)
    return [encode_object(one) for one in objects], PutField(name, None, False)


def encode(data: TensorDict | Mapping[str, Any], rows: int) -> tuple[dict[str, Any], list[PutField]]:
    """The columns of a put, and what their labels say. Raises ValueError for another number of rows."""
    columns: dict[str, Any] = {}
    fields: list[PutField] = []
    for name, value in data.items():
        if isinstance(value, torch.Tensor) and value.dtype not in _DTYPES:
            value = list(value.unbind())
        if not isinstance(value, torch.Tensor):
            columns[name], field = _encode_objects(name, objects_of(name, value, rows))
            fields.append(field)
        elif value.is_nested:
            tensors = _rows_of(name, value, rows)
            shapes = [tuple(tensor.shape) for tensor in tensors]
            columns[name] = _flat_rows(tensors, value.dtype)
            fields.append(PutField(name, shapes[0] if len(set(shapes)) == 1 else shapes, True))
        else:
            _check_rows(name, value, rows)
            # As a list, also where the rows are alike: later ones may not be, so the column is to be a ragged one.
            columns[name] = value.detach().cpu() if value.dim() == 1 else _flat_rows(value, value.dtype)
            fields.append(PutField(name, tuple(value.shape[1:]), False))
    return columns, fields


def pack(values: Sequence[Any]) -> Any:
    """Objects as one field: tensors as a tensor, everything else as a stack of objects."""
    if not all(isinstance(value, torch.Tensor) for value in values) or len({value.dtype for value in values}) > 1:
        return NonTensorStack(*values)
    if all(value.dim() == 0 for value in values):
        return torch.stack(list(values))
    dim = _ragged_dim([tuple(value.shape) for value in values])
    try:
        return torch.nested.as_nested_tensor(list(values), layout=torch.strided if dim is None else torch.jagged)
    except (RuntimeError, TypeError):
        # Tensors of different ranks, for instance.
        return NonTensorStack(*values)


def _ragged_dim(shapes: Sequence[Shape]) -> int | None:
    """The one dimension in which the rows differ, 0 if in none; None if the jagged layout cannot have them."""
    first = shapes[0]
    if not first or any(len(shape) != len(first) for shape in shapes):
        return None
    differ = [dim for dim, sizes in enumerate(zip(*shapes, strict=True)) if any(size != sizes[0] for size in sizes)]
    return None if len(differ) > 1 else sum(differ)


def _jagged(values: torch.Tensor, lengths: Sequence[int], dim: int) -> torch.Tensor:
    """Rows that follow each other along ``dim`` as a nested tensor over ``values``, of which nothing is copied."""
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    # The lengths are what torch pads by; without them it takes the longest row to be as long as all together.
    return torch.nested.nested_tensor_from_jagged(
        values, torch.from_numpy(offsets), jagged_dim=dim + 1, min_seqlen=min(lengths), max_seqlen=max(lengths)
    )


def _nested(column: Any, shapes: Sequence[Shape]) -> Any:
    """The rows of a ragged column as a nested tensor, or what comes nearest to it."""
    if all(shape == () for shape in shapes):
        return column._private_torch().view(-1)
    dim = 0 if all(shape is shapes[0] for shape in shapes) else _ragged_dim(shapes)
    if dim == 0:
        lengths = [shape[0] for shape in shapes]
        values = column._private_torch().view(sum(lengths), *shapes[0][1:])
        return _jagged(values, lengths, 0)
    parts = torch.split(column.values_torch().view(-1), [math.prod(shape) for shape in shapes])
    rows = [row.view(shape) for row, shape in zip(parts, shapes, strict=True)]
    if dim is None:
        return pack([row.clone() for row in rows])
    return _jagged(torch.cat(rows, dim), [shape[dim] for shape in shapes], dim)


def decode_alike(column: Any, label: FieldLabel | None) -> Any:
    """As ``decode``, of rows that all have this label."""
    rows = len(column)
    if column.kind == "ragged" and label is not None and label.shape:
        lengths = column.lengths()
        if math.prod(column.row_shape) * int(lengths.min()) == math.prod(label.shape) and lengths.min() == lengths.max():
            values = column._private_torch().view(rows * label.shape[0], *label.shape[1:])
            return _jagged(values, [label.shape[0]] * rows, 0)
    return decode(column, [label] * rows)


def labels_of(column: Any, labels: Sequence[FieldLabel | None]) -> list[FieldLabel | None]:
    """How the rows of a column were put: their labels, or what the dock says where they have none, or it is of a cell
    that others have replaced since. None for strings and bytes that are no objects."""
    if column.kind in ("str", "bytes"):
        return [None if label is None or label.shape is not None else label for label in labels]
    if column.kind == "dense":
        plain = FieldLabel(tuple(column.row_shape), False)
        return [label if label is not None and (label.aside or label.shape == plain.shape) else plain for label in labels]
    lengths = column.lengths().tolist()
    items = math.prod(column.row_shape)
    first = labels[0] if labels else None
    if first is not None and first.shape is not None and all(label is first for label in labels):
        length = math.prod(first.shape)
        if all(items * of_row == length for of_row in lengths):
            return list(labels)
    return [
        label
        if label is not None and _is_of(label, items * length)
        else FieldLabel((length, *column.row_shape), False)
        for label, length in zip(labels, lengths, strict=True)
    ]


def _is_of(label: FieldLabel, elements: int) -> bool:
    """Whether it can be the label of a cell of so many elements."""
    return elements == 0 if label.aside else label.shape is not None and math.prod(label.shape) == elements


def _decode_text(column: Any, labels: Sequence[FieldLabel | None]) -> Any:
    if column.kind == "str":
        texts = column.tolist()
        if not any(text.startswith(_BEGIN) for text in texts):
            return NonTensorStack(*texts)
    plain = bytes if column.kind == "bytes" else _str_or_bytes
    return pack(
        [
            plain(column.raw(i)) if label is None else decode_object(column.raw(i))
            for i, label in enumerate(labels_of(column, labels))
        ]
    )


def decode_mixed(column: Any, labels: Sequence[FieldLabel | None], aside: Mapping[int, bytes]) -> Any:
    """As ``decode``, of a column of tensors; the rows at some positions are the objects of these cells instead."""
    rows = column.torch_list(copy=True)
    told = [label or FieldLabel((), False) for label in labels_of(column, labels)]
    return pack(
        [
            decode_object(aside[i]) if i in aside else row.reshape(label.shape or ())
            for i, (row, label) in enumerate(zip(rows, told, strict=True))
        ]
    )


def decode(column: Any, labels: Sequence[FieldLabel | None]) -> Any:
    """A column of rows that a dock handed out, as a field of a TensorDict.

    Tensors of rank 0 come back as one tensor; others as a nested one of the jagged layout, also where all are alike, unless
    they differ in more than one dimension: then of the strided layout, or as a stack of objects.
    """
    if column.kind in ("str", "bytes"):
        return _decode_text(column, labels)
    if column.kind == "dense":
        values = column._private_torch()
        return values if values.dim() == 1 else _jagged(values.flatten(0, 1), [values.shape[1]] * len(values), 0)
    return _nested(column, [label.shape or () for label in labels_of(column, labels) if label is not None])


def schema_for(dtype: str | None, labels: Sequence[FieldLabel | None]) -> dict[str, Any]:
    """What ``BatchMeta`` says of a field, from its rows' labels. ``dtype`` is the dock's name, None for objects.

    Rows without a label, or one without a shape, do not have the field, or others put it, and nothing is said of them.
    """
    if dtype is None or (labels and all(label is not None and label.aside for label in labels)):
        return {"dtype": None, "shape": None, "is_nested": False, "is_non_tensor": True}
    shapes = [None if label is None or label.shape is None else label.shape or (1,) for label in labels]
    there = [shape for shape in shapes if shape is not None]
    nested = any(label is not None and label.nested for label in labels)
    differ = any(shape != there[0] for shape in there)
    schema = {
        "dtype": getattr(torch, dtype),
        "shape": None if nested or differ or not there else there[0],
        "is_nested": nested or differ,
        "is_non_tensor": False,
    }
    if nested or differ:
        schema["per_sample_shapes"] = shapes
    return schema
