"""The metadata of batches: which samples they have, and their fields. It travels between processes instead of the data."""

from __future__ import annotations

import copy
import dataclasses
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

logger = logging.getLogger(__name__)

FieldSchema = dict[str, Any]


def _same(a: Any, b: Any) -> bool:
    """Whether two values of ``extra_info`` are equal, arrays and tensors included."""
    if type(a) is not type(b):
        return False
    if hasattr(a, "shape") and hasattr(a, "dtype"):
        return bool(a.dtype == b.dtype and a.shape == b.shape and (a == b).all())
    try:
        return bool(a == b)
    except (TypeError, ValueError, RuntimeError):
        return False


def _merge_extra_info(who: str, parts: Iterable[Mapping[str, Any] | None]) -> dict[str, Any]:
    """The union of the parts. ValueError if two of them have different values for a key."""
    infos = [part or {} for part in parts]
    if any(info.keys() != infos[0].keys() for info in infos):
        logger.warning("%s: extra_info has other keys in some parts; taking those of all", who)
    merged: dict[str, Any] = {}
    for i, info in enumerate(infos):
        for key, value in info.items():
            if key in merged and not _same(merged[key], value):
                raise ValueError(
                    f"{who}: extra_info key '{key}' has conflicting values and cannot be merged: "
                    f"{merged[key]!r}, and in part {i} {value!r}"
                )
            merged.setdefault(key, value)
    return merged


def _spans(size: int, chunks: int, who: str) -> list[range]:
    """The spans of chunks of ``size`` samples whose sizes differ by at most one, larger ones first."""
    if size < chunks:
        logger.warning("%s of %d samples into %d chunks: some are empty", who, size, chunks)
    base, larger = divmod(size, chunks)
    spans, start = [], 0
    for i in range(chunks):
        end = start + base + (i < larger)
        spans.append(range(start, end))
        start = end
    return spans


class SampleView:
    """One sample of a batch, read-only."""

    __slots__ = ("_batch", "_position")

    def __init__(self, batch: BatchMeta, position: int) -> None:
        self._batch = batch
        self._position = position

    @property
    def global_index(self) -> int:
        return self._batch.global_indexes[self._position]

    @property
    def partition_id(self) -> str:
        return self._batch.partition_ids[self._position]

    @property
    def production_status(self) -> int:
        return int(self._batch.production_status[self._position])

    @property
    def custom_meta(self) -> Mapping[str, Any]:
        return MappingProxyType(self._batch.custom_meta[self._position])

    @property
    def fields(self) -> Mapping[str, Mapping[str, Any]]:
        """By field, its ``dtype``, this sample's ``shape``, ``is_nested`` and ``is_non_tensor``."""
        fields: dict[str, Mapping[str, Any]] = {}
        for name, schema in self._batch.field_schema.items():
            of_sample = {key: value for key, value in schema.items() if key != "per_sample_shapes"}
            if schema.get("per_sample_shapes") is not None:
                of_sample["shape"] = schema["per_sample_shapes"][self._position]
            fields[name] = MappingProxyType(of_sample)
        return MappingProxyType(fields)

    def __repr__(self) -> str:
        return (
            f"SampleView(global_index={self.global_index}, partition_id={self.partition_id!r}, "
            f"production_status={self.production_status}, fields={list(self._batch.field_schema)})"
        )


class SampleViews(Sequence[SampleView]):
    """The samples of a batch, each created on access."""

    def __init__(self, batch: BatchMeta) -> None:
        self._batch = batch

    def __len__(self) -> int:
        return self._batch.size

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [SampleView(self._batch, i) for i in range(*index.indices(len(self)))]
        return SampleView(self._batch, range(len(self))[index])

    def __iter__(self) -> Iterator[SampleView]:
        return (SampleView(self._batch, i) for i in range(len(self)))


class BatchMeta:
    """The samples of a batch: their indexes, the metadata of their fields, and the notes of users.

    ``global_indexes`` and ``partition_ids`` identify the samples: an index counts within its partition.
    ``field_schema`` has for each field ``dtype`` (None for a field without tensors), ``shape`` (of each sample),
    ``is_nested``, ``is_non_tensor``, and if shapes differ, ``per_sample_shapes``, one for each sample.
    ``production_status`` is an int8 array, 1 for samples whose fields are all there. ``custom_meta`` has a dictionary
    for each sample, ``extra_info`` one for the batch. Not thread-safe.
    """

    __slots__ = (
        "global_indexes",
        "partition_ids",
        "field_schema",
        "production_status",
        "extra_info",
        "custom_meta",
        "_taken",
    )

    def __init__(
        self,
        global_indexes: Sequence[int],
        partition_ids: Sequence[str],
        field_schema: Mapping[str, FieldSchema] | None = None,
        production_status: Any = None,
        extra_info: Mapping[str, Any] | None = None,
        custom_meta: Sequence[Mapping[str, Any]] | None = None,
        _custom_backend_meta: Any = None,
    ) -> None:
        """Raises ValueError if an argument with an entry for each sample has another number of entries.

        ``_custom_backend_meta`` is used by TransferQueue's storage: accepted and ignored.
        """
        self.global_indexes = list(global_indexes)
        self.partition_ids = list(partition_ids)
        size = len(self.global_indexes)
        if len(self.partition_ids) != size:
            raise ValueError(
                f"Length mismatch: global_indexes has {size}, partition_ids has {len(self.partition_ids)}"
            )
        self.field_schema: dict[str, FieldSchema] = {
            name: dict(schema) for name, schema in (field_schema or {}).items()
        }
        for name, schema in self.field_schema.items():
            shapes = schema.get("per_sample_shapes")
            if shapes is not None and len(shapes) != size:
                raise ValueError(f"Field '{name}' per_sample_shapes length {len(shapes)} != batch_size {size}")
        if production_status is None:
            self.production_status = np.zeros(size, dtype=np.int8)
        else:
            self.production_status = np.array(production_status, dtype=np.int8, copy=True)
            if len(self.production_status) != size:
                raise ValueError(f"production_status length {len(self.production_status)} != batch_size {size}")
        self.extra_info = dict(extra_info or {})
        self.custom_meta: list[dict[str, Any]] = [dict(meta) for meta in custom_meta or ({} for _ in range(size))]
        if len(self.custom_meta) != size:
            raise ValueError(f"custom_meta length {len(self.custom_meta)} != batch_size {size}")
        # The rows that came with the answer, for the client that asked: what get_data need not ask for again.
        self._taken: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__ if name != "_taken"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            setattr(self, name, value)
        # Deserializers that do not copy give read-only arrays.
        if not self.production_status.flags.writeable:
            self.production_status = self.production_status.copy()
        self._taken = None

    @property
    def size(self) -> int:
        return len(self.global_indexes)

    def __len__(self) -> int:
        return len(self.global_indexes)

    @property
    def field_names(self) -> list[str]:
        """Sorted."""
        return sorted(self.field_schema)

    @property
    def samples(self) -> SampleViews:
        return SampleViews(self)

    @property
    def is_ready(self) -> bool:
        """Whether there are samples, and all of them have all the fields."""
        return self.size > 0 and bool((self.production_status == 1).all())

    def _schema(self, field_name: str) -> FieldSchema:
        if field_name not in self.field_schema:
            raise KeyError(f"Field '{field_name}' not found in field_schema; there are {self.field_names}")
        return self.field_schema[field_name]

    def get_dtypes(self, field_name: str) -> list[Any]:
        """The dtype of each sample. Raises KeyError."""
        return [self._schema(field_name).get("dtype")] * self.size

    def get_shapes(self, field_name: str) -> list[Any]:
        """The shape of each sample, None for a field without tensors. Raises KeyError."""
        schema = self._schema(field_name)
        shapes = schema.get("per_sample_shapes")
        return [schema.get("shape")] * self.size if shapes is None else list(shapes)

    # ---- Notes on the batch.

    def get_extra_info(self, key: str, default: Any = None) -> Any:
        return self.extra_info.get(key, default)

    def set_extra_info(self, key: str, value: Any) -> None:
        self.extra_info[key] = value

    def get_all_extra_info(self) -> dict[str, Any]:
        """A deep copy."""
        return copy.deepcopy(self.extra_info)

    def update_extra_info(self, info_dict: Mapping[str, Any]) -> None:
        self.extra_info.update(info_dict)

    def remove_extra_info(self, key: str) -> Any:
        """Removes an entry and returns it, or None."""
        return self.extra_info.pop(key, None)

    def clear_extra_info(self) -> None:
        self.extra_info.clear()

    def has_extra_info(self, key: str) -> bool:
        return key in self.extra_info

    # ---- Notes on samples.

    def get_all_custom_meta(self) -> list[dict[str, Any]]:
        """A deep copy, in the order of the samples."""
        return copy.deepcopy(self.custom_meta)

    def update_custom_meta(self, custom_meta: Sequence[Mapping[str, Any]] | None) -> None:
        """Adds to the notes of each sample. Raises ValueError unless there is one dictionary for each."""
        if custom_meta is None:
            return
        if len(custom_meta) != self.size:
            raise ValueError(
                f"The length of custom_meta list {len(custom_meta)} must match the batch size: {self.size}"
            )
        for old, new in zip(self.custom_meta, custom_meta, strict=True):
            old.update(new)

    def clear_custom_meta(self) -> None:
        self.custom_meta = [{} for _ in range(self.size)]

    # ---- Algebra. Results share nothing with the batches that they were made from.

    def add_fields(self, tensor_dict: Any, set_all_ready: bool = True) -> BatchMeta:
        """Adds the fields of a TensorDict to the metadata, in place. Returns itself.

        Raises ValueError if the TensorDict has another number of samples.
        """
        from transfer_dock.compat.transfer_queue._fields import schema_of

        rows = tensor_dict.batch_size[0]
        if rows == 0:
            logger.warning("add_fields with a TensorDict without samples: nothing is added")
            return self
        if rows != self.size:
            raise ValueError(f"add_fields batch size mismatch: self.size={self.size} vs tensor_dict={rows}")
        self.field_schema.update(schema_of(tensor_dict))
        if set_all_ready:
            self.production_status[:] = 1
        return self

    def select_samples(self, sample_indices: Sequence[int]) -> BatchMeta:
        """The samples at these positions, in this order. Raises ValueError for one that does not exist."""
        picked = list(sample_indices)
        if any(i < 0 or i >= self.size for i in picked):
            raise ValueError(f"Sample indices must be in range [0, {self.size})")
        schema = {}
        for name, field in self.field_schema.items():
            schema[name] = dict(field)
            if field.get("per_sample_shapes") is not None:
                schema[name]["per_sample_shapes"] = [field["per_sample_shapes"][i] for i in picked]
        return BatchMeta(
            global_indexes=[self.global_indexes[i] for i in picked],
            partition_ids=[self.partition_ids[i] for i in picked],
            field_schema=schema,
            production_status=self.production_status[picked] if picked else None,
            extra_info=self.extra_info,
            custom_meta=[copy.deepcopy(self.custom_meta[i]) for i in picked],
        )

    def select_fields(self, field_names: Iterable[str]) -> BatchMeta:
        """All samples, with those of the fields that the batch has."""
        picked = self.copy()
        picked.field_schema = {
            name: picked.field_schema[name] for name in field_names if name in picked.field_schema
        }
        return picked

    def copy(self) -> BatchMeta:
        """A deep copy."""
        return BatchMeta(
            global_indexes=self.global_indexes,
            partition_ids=self.partition_ids,
            field_schema=copy.deepcopy(self.field_schema),
            production_status=self.production_status,
            extra_info=copy.deepcopy(self.extra_info),
            custom_meta=copy.deepcopy(self.custom_meta),
        )

    def __getitem__(self, item: Any) -> BatchMeta:
        if isinstance(item, slice):
            return self.select_samples(range(*item.indices(self.size)))
        if not isinstance(item, (int, np.integer)):
            raise TypeError(f"Indexing with {type(item)} is not supported.")
        if not -self.size <= item < self.size:
            raise IndexError("BatchMeta index out of range")
        return self.select_samples([int(item) % self.size])

    def chunk(self, chunks: int) -> list[BatchMeta]:
        """Consecutive batches whose sizes differ by at most one; larger ones come first."""
        return [self.select_samples(span) for span in _spans(self.size, chunks, "chunk")]

    def chunk_by_partition(self) -> list[BatchMeta]:
        """A batch for each partition, in the order of their first samples."""
        positions: dict[str, list[int]] = {}
        for i, partition in enumerate(self.partition_ids):
            positions.setdefault(partition, []).append(i)
        return [self.select_samples(of_partition) for of_partition in positions.values()]

    def union(self, other: BatchMeta | None) -> BatchMeta:
        """The same samples with the fields and notes of both; in conflicts, those of ``other``.

        A sample is ready if it is in both. Raises ValueError if the samples differ.
        """
        if other is None or other.size == 0:
            return self.copy()
        if self.size == 0:
            return other.copy()
        for what in ("global_indexes", "partition_ids"):
            mine, theirs = getattr(self, what), getattr(other, what)
            if mine != theirs:
                raise ValueError(f"BatchMeta.union: {what} do not match: {mine} and {theirs}")
        merged, added = self.copy(), other.copy()
        merged.field_schema.update(added.field_schema)
        merged.production_status &= added.production_status
        merged.extra_info.update(added.extra_info)
        merged.update_custom_meta(added.custom_meta)
        return merged

    @classmethod
    def concat(cls, data: Sequence[BatchMeta], validate: bool = True) -> BatchMeta:
        """Concatenates batches; batches without samples are left out.

        Raises ValueError if fields or their dtypes differ (``validate``), or extra_info conflicts.
        """
        parts = [part for part in data or () if part is not None and part.size > 0]
        if not parts:
            logger.warning("BatchMeta.concat of no samples")
            return cls.empty()
        first = parts[0]
        if validate:
            for i, part in enumerate(parts):
                _check_same_fields(first, part, i)
        schema = {name: _concat_schema(name, parts) for name in first.field_schema}
        return BatchMeta(
            global_indexes=[index for part in parts for index in part.global_indexes],
            partition_ids=[partition for part in parts for partition in part.partition_ids],
            field_schema=schema,
            production_status=np.concatenate([part.production_status for part in parts]),
            extra_info=_merge_extra_info("BatchMeta.concat", (part.extra_info for part in parts)),
            custom_meta=[meta for part in parts for meta in part.custom_meta],
        )

    def reorder(self, indices: Sequence[int]) -> None:
        """Reorders the samples, in place. Raises ValueError unless each position is named once."""
        order = list(indices)
        if len(order) != self.size:
            raise ValueError(f"Indices length {len(order)} mismatch batch size {self.size}")
        if len(set(order)) != self.size:
            raise ValueError("Indices contain duplicates")
        if any(i < 0 or i >= self.size for i in order):
            raise ValueError(f"Reorder indices must be in range [0, {self.size})")
        self.global_indexes = [self.global_indexes[i] for i in order]
        self.partition_ids = [self.partition_ids[i] for i in order]
        self.production_status = self.production_status[order]
        self.custom_meta = [self.custom_meta[i] for i in order]
        for schema in self.field_schema.values():
            if schema.get("per_sample_shapes") is not None:
                schema["per_sample_shapes"] = [schema["per_sample_shapes"][i] for i in order]
        self._taken = None

    @classmethod
    def empty(cls, extra_info: Mapping[str, Any] | None = None) -> BatchMeta:
        """A batch without samples."""
        return cls([], [], extra_info=extra_info)

    def __str__(self) -> str:
        return (
            f"BatchMeta(size={self.size}, field_names={self.field_names}, is_ready={self.is_ready}, "
            f"global_indexes={self.global_indexes}, extra_info={self.extra_info})"
        )


def _check_same_fields(first: BatchMeta, part: BatchMeta, number: int) -> None:
    if part.field_names != first.field_names:
        raise ValueError(
            f"BatchMeta.concat: field_names mismatch at chunk[{number}]: expected {first.field_names}, "
            f"got {part.field_names}"
        )
    for name in first.field_names:
        ours, theirs = first.field_schema[name].get("dtype"), part.field_schema[name].get("dtype")
        if ours != theirs:
            raise ValueError(f"Field '{name}' dtype mismatch in concat: chunk[0]={ours}, chunk[{number}]={theirs}")


def _concat_schema(name: str, parts: Sequence[BatchMeta]) -> FieldSchema:
    schemas = [part.field_schema.get(name, {}) for part in parts]
    first = schemas[0]
    nested = any(schema.get("is_nested") for schema in schemas)
    shapes = [
        shape for part in parts for shape in (part.get_shapes(name) if name in part.field_schema else [None] * part.size)
    ]
    differ = len({shape for shape in shapes if shape is not None}) > 1
    merged: FieldSchema = {
        "dtype": first.get("dtype"),
        "shape": None if nested or differ else first.get("shape"),
        "is_nested": nested or differ,
        "is_non_tensor": first.get("is_non_tensor", False),
    }
    if nested or differ:
        merged["per_sample_shapes"] = shapes
    return merged


@dataclasses.dataclass
class KVBatchMeta:
    """Samples by their keys: what the ``kv_`` verbs return and take.

    ``tags`` has a dictionary for each key. ``fields`` are those that all samples have. Raises ValueError for keys or
    fields that are duplicated, or if there are not as many tags as keys.
    """

    keys: list[str] = dataclasses.field(default_factory=list)
    tags: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    partition_id: str | None = None
    fields: list[str] | None = None
    extra_info: dict[str, Any] | None = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(self.keys) != len(self.tags):
            raise ValueError(f"keys and tags must have same length, but got {len(self.keys)} and {len(self.tags)}")
        if len(set(self.keys)) != len(self.keys):
            raise ValueError("Got duplicated keys.")
        if self.fields is not None and len(set(self.fields)) != len(self.fields):
            raise ValueError("Got duplicated fields.")
        self.tags = copy.deepcopy(self.tags)
        self.extra_info = copy.deepcopy(self.extra_info)

    @property
    def size(self) -> int:
        return len(self.keys)

    def __len__(self) -> int:
        return len(self.keys)

    def __str__(self) -> str:
        return f"KVBatchMeta(size={self.size}, field_names={self.fields}, extra_info={self.extra_info})"

    def _at(self, positions: Iterable[int]) -> KVBatchMeta:
        picked = list(positions)
        return KVBatchMeta(
            keys=[self.keys[i] for i in picked],
            tags=[self.tags[i] for i in picked],
            partition_id=self.partition_id,
            fields=self.fields,
            extra_info=self.extra_info,
        )

    def select_keys(self, keys_to_select: Sequence[str]) -> KVBatchMeta:
        """The samples of these keys. Raises ValueError for one named twice, RuntimeError for one that does not exist."""
        if len(set(keys_to_select)) != len(keys_to_select):
            raise ValueError("Contain duplicate keys.")
        position = {key: i for i, key in enumerate(self.keys)}
        missing = [key for key in keys_to_select if key not in position]
        if missing:
            raise RuntimeError(f"Keys {missing} not found in current batch.")
        return self._at(position[key] for key in keys_to_select)

    def reorder(self, indexes: Sequence[int]) -> None:
        """Reorders the samples, in place. Raises ValueError unless each position is named once."""
        if len(indexes) != self.size:
            raise ValueError(
                f"Attempted to reorder with indexes length {len(indexes)} that does not match "
                f"the batch size {self.size}."
            )
        if len(set(indexes)) != len(indexes):
            raise ValueError("Contain duplicate indexes.")
        self.keys = [self.keys[i] for i in indexes]
        self.tags = [self.tags[i] for i in indexes]

    def chunk(self, chunks: int) -> list[KVBatchMeta]:
        """Consecutive batches whose sizes differ by at most one; larger ones come first."""
        return [self._at(span) for span in _spans(self.size, chunks, "chunk")]

    @classmethod
    def concat(cls, data: Sequence[KVBatchMeta]) -> KVBatchMeta:
        """Concatenates batches; batches without samples are left out.

        Raises ValueError if partitions or fields differ, or extra_info conflicts.
        """
        parts = [part for part in data if part is not None and part.size > 0]
        if not parts:
            logger.warning("KVBatchMeta.concat of no samples")
            return cls()
        first = parts[0]
        for part in parts:
            if part.fields is not None and set(part.fields) != set(first.fields or ()):
                raise ValueError("Field names do not match for concatenation.")
            if part.partition_id != first.partition_id:
                raise ValueError("Partition do not match for concatenation.")
        return cls(
            keys=[key for part in parts for key in part.keys],
            tags=[tag for part in parts for tag in part.tags],
            partition_id=first.partition_id,
            fields=first.fields,
            extra_info=_merge_extra_info("KVBatchMeta.concat", (part.extra_info for part in parts)) or None,
        )
