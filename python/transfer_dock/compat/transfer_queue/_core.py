"""The verbs of a client, blocking; client.py has them as users call them."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from tensordict import TensorDict

import transfer_dock as td
from transfer_dock.compat.transfer_queue import _labels
from transfer_dock.compat.transfer_queue._puts import Put
from transfer_dock.compat.transfer_queue._sampling import SamplerClient, SamplerHost
from transfer_dock.compat.transfer_queue._server import Address, Settings, read_settings
from transfer_dock.compat.transfer_queue._store import (
    ATTEMPTS,
    Described,
    StorageKeyNotFoundError,
    Store,
    name_of,
)
from transfer_dock.compat.transfer_queue._tasks import Tasks, clear_notes
from transfer_dock.compat.transfer_queue.metadata import BatchMeta, KVBatchMeta

logger = logging.getLogger(__name__)

# A put of more bytes is not tried as one of new keys before the first of them was looked for.
_SMALL_BYTES = 1 << 16


class NotEnoughSamples(RuntimeError, TimeoutError):
    """There were not enough samples within the time that get_meta waits."""


def _keys_of(keys: Any) -> list[str]:
    if isinstance(keys, str):
        return [keys]
    if not isinstance(keys, list):
        raise TypeError("Only string or list of strings are allowed as `keys`.")
    if not keys:
        raise ValueError("Received an empty list as keys.")
    if not all(isinstance(key, str) for key in keys):
        raise TypeError("Not all elements in `keys` are strings.")
    return keys


class Core:
    """All verbs. Thread-safe."""

    # How often something was changed in this process, by dock and partition: what was handed out before is not the
    # latest then. Shared by the clients of the process.
    _changes: ClassVar[dict[tuple[str, str], int]] = {}

    def __init__(self, client_id: str, address: Address, host: SamplerHost | None) -> None:
        self.client_id = client_id
        self.address = address
        self.dock = address.connect(name=client_id)
        try:
            self.settings: Settings = read_settings(self.dock)
        except BaseException:
            self.dock.close()
            raise
        self.store = Store(self.dock, self.settings.slots)
        self.tasks = Tasks(self.store)
        self._host = host
        self._host_pid = os.getpid()

    @property
    def sampler(self) -> SamplerHost | SamplerClient:
        if self._host is not None and os.getpid() == self._host_pid:
            return self._host
        return SamplerClient(self.store)

    def _changed(self, partition: str) -> None:
        place = (str(self.address), partition)
        self._changes[place] = self._changes.get(place, 0) + 1

    def _state(self, partition: str) -> tuple[str, int]:
        """Of a partition of this dock: another one after it was changed here."""
        return str(self.address), self._changes.get((str(self.address), partition), 0)

    # ---- Samples that there are.

    def insert(self, fields: Sequence[str] | None, count: int | None, partition: str) -> BatchMeta:
        if fields is None:
            raise RuntimeError("Must provide data_fields for inserting new data")
        if count is None or count < 1:
            raise RuntimeError(f"must provide batch_size for inserting new data, and not {count}")
        rows = self.store.insert(partition, count)
        nothing = {"dtype": None, "shape": None, "is_nested": False, "is_non_tensor": False}
        return BatchMeta(rows, [partition] * count, {name: dict(nothing) for name in fields})

    def everything(self, fields: Sequence[str], partition: str) -> BatchMeta:
        try:
            listed = list(self.store.listing(partition))
            columns = [column for column in self.store.columns(partition) if column.name in fields]
            having = self.store.having(partition, listed, columns)
        except td.NotFound as error:
            raise RuntimeError(str(error)) from None
        described = Described(
            [one.row for one in listed], [one.key for one in listed], [one.tags for one in listed]
        )
        return self.store.meta(partition, described, fields, columns, having)

    def fetch(
        self, fields: list[str], count: int, partition: str, task: str, config: dict[str, Any] | None, timeout: float
    ) -> BatchMeta | None:
        """None if there are not so many yet."""
        fields = list(fields)
        state = self._state(partition)
        if self.settings.sampled:
            chosen = self.sampler.sample(partition, task, fields, count, config or {})
            if chosen is None:
                return None
            if not chosen:
                if self.settings.polling:
                    return None
                raise RuntimeError(f"Sampler returned no samples of the {count} or more that task '{task}' could have.")
            rows = self.store.fetch(partition, chosen, list(dict.fromkeys(fields)))
        else:
            rows = self.tasks.take(partition, task, fields, count, timeout)
            if rows is None:
                return None
        meta = self.store.meta_of(partition, rows, fields)
        meta._taken = (state, rows)
        return meta

    def look(
        self,
        fields: Any,
        count: Any,
        partition: str,
        mode: str,
        task: str | None,
        config: dict[str, Any] | None,
    ) -> Callable[[float], BatchMeta | None]:
        """What get_meta does, as a function of how long it may take; None if there are not enough samples."""
        name_of("partition_id", partition)
        if count is not None and not hasattr(count, "__index__"):
            raise RuntimeError(f"batch_size is {count!r}; give a whole number")
        if config is not None and not isinstance(config, Mapping):
            raise RuntimeError(f"sampling_config is {config!r}; give a dict")
        if mode == "insert":
            return lambda timeout: self.insert(fields, count, partition)
        if mode == "force_fetch":
            return lambda timeout: self.everything(fields or (), partition)
        if mode != "fetch":
            raise RuntimeError(f"Invalid mode: {mode}; there are 'fetch', 'force_fetch' and 'insert'")
        if task is None or count is None or not fields:
            raise RuntimeError("must provide task_name, batch_size and data_fields in fetch mode")
        name_of("task_name", task)
        if count < 1:
            raise RuntimeError(f"batch_size is {count}; it must be positive")
        return lambda timeout: self.fetch(fields, count, partition, task, config, timeout)

    def or_nothing(self, meta: BatchMeta | None, count: int, partition: str, task: str | None) -> BatchMeta:
        if meta is not None:
            return meta
        if self.settings.polling:
            return BatchMeta.empty()
        raise NotEnoughSamples(
            f"Timeout while waiting for {count} samples of partition '{partition}' for task '{task}'. "
            + self.tasks.explain(partition, str(task))
        )

    # ---- Data.

    def put(
        self,
        data: TensorDict,
        meta: BatchMeta | None,
        partition: str | None,
        parser: Callable[[Any], Any] | None,
    ) -> BatchMeta:
        rows = data.batch_size[0]
        if meta is None:
            if partition is None:
                raise ValueError("partition_id must be provided if metadata is not given")
            if rows == 0:
                raise ValueError("metadata cannot be none or empty")
            ids = self.store.insert(name_of("partition_id", partition), rows, Put.of(data, rows, parser))
            meta = BatchMeta(ids, [partition] * rows)
        else:
            self._put_to(data, rows, meta, parser)
        for changed in set(meta.partition_ids):
            self._changed(changed)
        meta._taken = None
        return meta.add_fields(data)

    def _put_to(self, data: TensorDict, rows: int, meta: BatchMeta, parser: Callable[[Any], Any] | None) -> None:
        if meta.size == 0:
            raise ValueError("metadata cannot be none or empty")
        if len(set(meta.partition_ids)) > 1:
            raise ValueError(f"a put is to one partition, not to {sorted(set(meta.partition_ids))}: chunk_by_partition")
        if rows != meta.size:
            raise ValueError(f"the data has {rows} samples, and the metadata {meta.size}")
        notes = [_labels.note_tags(of_row) for of_row in meta.custom_meta]
        self.store.write(meta.partition_ids[0], meta.global_indexes, Put.of(data, rows, parser), notes)

    def get(self, meta: BatchMeta | None) -> TensorDict:
        if meta is None or meta.size == 0 or not meta.field_schema:
            logger.warning("[%s]: get_data of no samples or no fields", self.client_id)
            return TensorDict({}, batch_size=0)
        taken, meta._taken = meta._taken, None
        fields = meta.field_names
        if taken is not None and taken[0] == self._state(meta.partition_ids[0]):
            if set(fields) <= set(taken[1].columns):
                return self.store.decode(meta.partition_ids[0], taken[1], fields)
        return self.store.get(meta.partition_ids, meta.global_indexes, fields)

    def set_notes(self, meta: BatchMeta) -> None:
        for part in meta.chunk_by_partition():
            notes = [_labels.note_tags(of_row) for of_row in part.custom_meta]
            self.store.write(part.partition_ids[0], part.global_indexes, Put.of(None, part.size), notes)

    # ---- Clearing.

    def clear_partition(self, partition: str) -> None:
        if not self.store.drop(name_of("partition_id", partition)):
            logger.warning("[%s]: there is no partition '%s' to clear", self.client_id, partition)
            return
        clear_notes(self.dock, partition)
        self.tasks.forget(partition)
        self._changed(partition)
        if self.settings.sampled:
            self.sampler.clear_cache(partition)

    def clear(self, meta: BatchMeta) -> None:
        if not isinstance(meta, BatchMeta):
            raise RuntimeError(f"clear_samples is given {meta!r}; give a BatchMeta")
        if meta.size == 0:
            logger.warning("[%s]: clear_samples of no samples", self.client_id)
            return
        for part in meta.chunk_by_partition():
            self.store.clear(part.partition_ids[0], list(dict.fromkeys(part.global_indexes)))
            self._changed(part.partition_ids[0])

    # ---- Status.

    def consumption(self, task: str, partition: str) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        found = self.tasks.consumed(name_of("partition_id", partition), name_of("task_name", task))
        if found is None:
            return None, None
        rows, done = found
        # Those that are expected come after those that there are.
        free = self.store.free_slots(partition)
        first = max(rows, default=-1) + 1
        index = torch.tensor(rows + list(range(first, first + free)), dtype=torch.long)
        return index, torch.tensor(done + [False] * free, dtype=torch.int8)

    def production(
        self, fields: Sequence[str], partition: str
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        try:
            known = self.store.types(name_of("partition_id", partition))
            if not fields or any(field not in known for field in fields):
                return None, None
            rows = [one.row for one in self.store.listing(partition)]
            # In the order in which the partition got them.
            columns = [
                {one.row for one in self.store.listing(partition, having=[field])} for field in known if field in fields
            ]
        except td.NotFound:
            return None, None
        free = self.store.free_slots(partition)
        first = max(rows, default=-1) + 1
        index = torch.tensor(rows + list(range(first, first + free)), dtype=torch.long)
        status = [[row in column for column in columns] for row in rows] + [[False] * len(columns)] * free
        return index, torch.tensor(status, dtype=torch.int8).reshape(len(index), len(columns))

    def is_produced(self, fields: Sequence[str], partition: str) -> bool:
        try:
            status = self.dock.status(name_of("partition_id", partition))
        except td.NotFound:
            return False
        cells = {column.name: column.ready_cells for column in status.columns if column.kind is not None}
        if not fields or any(cells.get(field, -1) != status.rows for field in fields):
            return False
        return self.store.free_slots(partition) == 0

    # ---- Keys.

    def retrieve(self, keys: Any, partition: str, create: bool) -> BatchMeta:
        names = _keys_of(keys)
        rows = self._rows_of(names, name_of("partition_id", partition), create)
        present = [row for row in rows if row is not None]
        if not present:
            logger.warning("[%s]: partition '%s' has none of the keys %s", self.client_id, partition, names)
            return BatchMeta.empty()
        # A key that is asked for twice is there twice.
        unique = list(dict.fromkeys(present))
        described = self.store.describe(partition, unique)
        fields = self.store.common_fields(partition, unique, described.tags)
        meta = self.store.meta(partition, described, fields, self.store.columns(partition))
        return meta if len(unique) == len(present) else meta.select_samples([unique.index(row) for row in present])

    def _rows_of(self, keys: list[str], partition: str, create: bool) -> list[int | None]:
        rows = self.store.find(partition, keys)
        for _ in range(ATTEMPTS):
            missing = list(dict.fromkeys(key for key, row in zip(keys, rows, strict=True) if row is None))
            if not missing or not create:
                return rows
            try:
                self.store.insert(partition, len(missing), keys=missing)
            except td.AlreadyExists:
                pass  # somebody else made one of them
            rows = self.store.find(partition, keys)
        raise RuntimeError(f"the keys of partition '{partition}' change while they are looked for")

    def kv_put(
        self,
        keys: list[str],
        partition: str,
        data: TensorDict | None,
        tags: list[dict[str, Any]] | None,
        parser: Callable[[Any], Any] | None,
    ) -> KVBatchMeta:
        _keys_of(keys)
        name_of("partition_id", partition)
        if len(set(keys)) != len(keys):
            raise ValueError("Got duplicated keys.")
        if tags is not None and len(tags) != len(keys):
            raise ValueError(f"keys with length {len(keys)} does not match length of tags {len(tags)}")
        put = Put.of(data, len(keys), parser)
        # Mostly all keys are new, or none.
        new = put.size < _SMALL_BYTES or self.store.find(partition, keys[:1]) == [None]
        made: list[int] = []
        try:
            for attempt in range(ATTEMPTS):
                rows = [None] * len(keys) if new and attempt == 0 else self.store.find(partition, keys)
                absent = [i for i, row in enumerate(rows) if row is None]
                try:
                    if absent:
                        made += self._kv_insert(keys, partition, put, tags, absent)
                    return self._kv_write(keys, partition, rows, put, tags)
                except (td.AlreadyExists, StorageKeyNotFoundError):
                    continue  # somebody else made or cleared one meanwhile
            raise RuntimeError(f"the keys of partition '{partition}' change while they are put")
        except BaseException:
            if made:
                self.store.clear(partition, made)
            raise
        finally:
            self._changed(partition)

    def _kv_insert(
        self, keys: list[str], partition: str, put: Put, tags: list[dict[str, Any]] | None, positions: list[int]
    ) -> list[int]:
        """Rows of the keys at these positions. Raises AlreadyExists, and what a dock says of data that does not fit."""
        part = put.at(positions)
        notes = [tags[i] if tags is not None else {} for i in positions]
        noted = [_labels.note_tags(note) for note in notes] if any(notes) else []
        return self.store.insert(partition, len(positions), part, noted, [keys[i] for i in positions])

    def _kv_write(
        self,
        keys: list[str],
        partition: str,
        rows: Sequence[int | None],
        put: Put,
        tags: list[dict[str, Any]] | None,
    ) -> KVBatchMeta:
        """Puts to the keys that had rows."""
        notes = [dict(one) for one in tags] if tags is not None else [{} for _ in keys]
        positions = [i for i, row in enumerate(rows) if row is not None]
        fields = set(put.columns)
        if positions:
            there = [int(row) for row in rows if row is not None]
            before = self.store.describe(partition, there).tags
            common = self.store.common_fields(partition, there, before)
            fields = fields.union(common) if len(there) == len(keys) else fields
            added = [_labels.added_tags(of_row, notes[i]) for i, of_row in zip(positions, before, strict=True)]
            for i, of_row in zip(positions, before, strict=True):
                notes[i] = {**_labels.notes_of(of_row), **notes[i]}
            part = put.at(positions)
            if part.columns or any(added):
                self.store.write(partition, there, part, added if any(added) else [])
        return KVBatchMeta(keys, notes, partition, sorted(fields), {})

    def kv_get(self, keys: Any, partition: str, fields: Any) -> TensorDict:
        found = self.store.find(name_of("partition_id", partition), _keys_of(keys))
        rows = [row for row in found if row is not None]
        if not rows:
            raise ValueError("keys or partition were not found!")
        wanted = [fields] if isinstance(fields, str) else fields
        unique = list(dict.fromkeys(rows))
        # Mostly they all have the same fields.
        asked = sorted(set(wanted)) if wanted else self.store.fields_of_row(partition, rows[0])
        if asked and len(unique) == len(rows):
            try:
                return self.store.decode(partition, self.store.fetch(partition, rows, asked), asked)
            except StorageKeyNotFoundError:
                pass  # not all have them, or one was cleared: see below
        common = self.store.common_fields(partition, unique, self.store.describe(partition, unique).tags)
        if not common:
            raise ValueError("Some fields are not ready in all the requested keys!")
        picked = common if wanted is None else sorted(set(wanted).intersection(common))
        if not picked:
            logger.warning("[%s]: no fields of %s are there for all keys", self.client_id, wanted)
            return TensorDict({}, batch_size=0)
        return self.store.get([partition] * len(rows), rows, picked)

    def kv_list(self, partition: str | None) -> dict[str, dict[str, Any]]:
        listed: dict[str, dict[str, Any]] = {}
        for name in self.store.partitions() if partition is None else [name_of("partition_id", partition)]:
            try:
                listed[name] = {
                    one.key: _labels.notes_of(one.tags) for one in self.store.listing(name) if one.key is not None
                }
            except td.NotFound:
                logger.info("[%s]: there is no partition '%s'", self.client_id, name)
        return listed

    def kv_clear(self, keys: Any, partition: str) -> None:
        found = self.store.find(name_of("partition_id", partition), _keys_of(keys))
        rows = [row for row in found if row is not None]
        if rows:
            self.store.clear(partition, list(dict.fromkeys(rows)))
            self._changed(partition)

    def kv_keys(self, global_indexes: Any, partition: str) -> list[str | None]:
        if isinstance(global_indexes, int):
            global_indexes = [global_indexes]
        if not isinstance(global_indexes, list):
            raise TypeError("Only int or list of int are allowed as `global_indexes`.")
        if not global_indexes:
            raise ValueError("Received an empty list as `global_indexes`.")
        if not all(isinstance(index, int) for index in global_indexes):
            raise TypeError("Not all elements in `global_indexes` are int.")
        if not self.store.exists(name_of("partition_id", partition)):
            raise RuntimeError(f"there is no partition '{partition}'")
        wanted = set(global_indexes)
        try:
            rows = self.store.describe(partition, list(dict.fromkeys(global_indexes)))
            keys = dict(zip((int(row) for row in rows.ids), rows.keys, strict=True))
        except StorageKeyNotFoundError:
            keys = {one.row: one.key for one in self.store.listing(partition) if one.row in wanted}
        return [keys.get(index) for index in global_indexes]
