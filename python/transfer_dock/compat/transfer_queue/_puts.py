"""The data of a put, as the columns of a dock and the labels of the rows.

A column of a dock has the kind and the dtype of the first put. Rows of a field that are of others are objects: they go into
the column where that is one of bytes or text, and else into a second one, whose name is that of the field behind `ASIDE`.
Then the field's own column has cells that say nothing, so that whoever waits for the field finds it, and the label says
where the object is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import torch
from tensordict import TensorDict

from transfer_dock.compat.transfer_queue import _fields, _labels

ASIDE = "~aside/"


class Put(NamedTuple):
    columns: dict[str, Any]
    fields: list[_labels.PutField]
    rows: int
    size: int  # in bytes

    @staticmethod
    def of(data: TensorDict | None, rows: int, parser: Callable[[Any], Any] | None = None) -> Put:
        if data is None:
            return Put({}, [], rows, 0)
        columns, fields = _fields.encode(data if parser is None else _parse(data, rows, parser), rows)
        return Put(columns, fields, rows, sum(_bytes_of(value) for value in data.values()))

    def at(self, positions: Sequence[int]) -> Put:
        """Of the rows at these positions, ascending."""
        if len(positions) == self.rows:
            return self
        columns = {
            name: [value[i] for i in positions] if isinstance(value, list) else value[list(positions)]
            for name, value in self.columns.items()
        }
        return Put(columns, [field.at(positions) for field in self.fields], len(positions), self.size)

    def tags(self, new: bool, notes: Sequence[dict[str, str]] = ()) -> Any:
        """The tags of new rows, or of others, with notes of each row; None if there is nothing to say."""
        labels = _labels.label_put(self.fields, self.rows, new) if self.fields else {}
        return (_labels.merge(labels, notes) if notes else labels) or None

    def fitted(self, columns: Iterable[Any]) -> Put:
        """As a partition takes it that has these columns: this put itself if it fits, or nothing is known of its fields."""
        known = {column.name: column for column in columns if column.kind is not None}
        changed = dict(self.columns)
        fields = [
            field if field.name not in known else self._fit(field, known[field.name], changed)
            for field in self.fields
        ]
        if all(changed[name] is value for name, value in self.columns.items()):
            return self
        return self._replace(columns=changed, fields=fields)

    def _fit(self, field: _labels.PutField, column: Any, changed: dict[str, Any]) -> _labels.PutField:
        cells = self.columns[field.name]
        if column.kind in ("dense", "ragged"):
            if field.shapes is not None and _dtype_of(cells) == column.dtype:
                if isinstance(cells, list) == (column.kind == "ragged" or bool(column.row_shape)):
                    return field
            changed[ASIDE + field.name] = self._objects(field)
            changed[field.name] = _nothing(column, self.rows)
            return _labels.PutField(field.name, None, False, aside=True)
        objects = cells if field.shapes is None else self._objects(field)
        if column.kind == "str":
            objects = _fields.objects_as_text(objects)
        if objects is not cells:
            changed[field.name] = objects
        return _labels.PutField(field.name, None, False)

    def _objects(self, field: _labels.PutField) -> list[bytes]:
        cells = self.columns[field.name]
        if field.shapes is None:
            return [cell.encode() if type(cell) is str else cell for cell in cells]
        shapes = _labels.shapes_of(field, self.rows)
        return [
            _fields.encode_object(torch.as_tensor(cell).reshape(shape)) for cell, shape in zip(cells, shapes, strict=True)
        ]


def _dtype_of(cells: Any) -> str:
    dtype = cells[0].dtype if isinstance(cells, list) else cells.dtype
    return str(dtype).removeprefix("torch.")


def _nothing(column: Any, rows: int) -> Any:
    """Cells without a meaning."""
    dtype = getattr(torch, column.dtype)
    if column.kind == "dense":
        return torch.zeros((rows, *column.row_shape), dtype=dtype)
    return [torch.zeros((0, *column.row_shape), dtype=dtype)] * rows


def _parse(data: TensorDict, rows: int, parser: Callable[[Any], Any]) -> Mapping[str, Any]:
    """The data after the user's parser, which gets lists if the rows' shapes differ, and tensors otherwise."""
    batch: dict[str, Any] = {}
    for name, value in data.items():
        if not isinstance(value, torch.Tensor):
            batch[name] = _fields.objects_of(name, value, rows)
        else:
            batch[name] = list(value.unbind()) if value.is_nested else value
    names = set(batch)
    parsed = parser(batch)
    if not isinstance(parsed, dict):
        raise TypeError(f"data_parser must return a dict, got {type(parsed).__name__}")
    if set(parsed) != names:
        raise ValueError(f"data_parser must not change dict keys: {sorted(names)}, got: {sorted(parsed)}")
    for name, value in parsed.items():
        if len(value) != rows:
            raise ValueError(f"data_parser changed the number of elements for key '{name}': {rows}, got {len(value)}")
    return cast("Mapping[str, Any]", parsed)


def _bytes_of(value: Any) -> int:
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size()
    return sum(len(one) if isinstance(one, (str, bytes)) else 1024 for one in getattr(value, "tolist", list)())
