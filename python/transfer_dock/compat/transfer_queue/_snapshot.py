"""What the controller tells of partitions: a whole one, as of the call, and counters of all."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

import transfer_dock as td
from transfer_dock.compat.transfer_queue import _labels


@dataclasses.dataclass
class DataPartitionStatus:
    """A partition as of the call; to change it changes nothing else.

    ``production_status`` is int8 [1 + the largest index, fields], by index and by ``field_name_mapping``; of
    ``consumption_status`` each task's is int8 [1 + the largest index]. ``custom_meta`` has the samples with notes.
    """

    partition_id: str
    global_indexes: set[int] = dataclasses.field(default_factory=set)
    field_name_mapping: dict[str, int] = dataclasses.field(default_factory=dict)
    production_status: torch.Tensor = dataclasses.field(default_factory=lambda: torch.zeros(0, 0, dtype=torch.int8))
    consumption_status: dict[str, torch.Tensor] = dataclasses.field(default_factory=dict)
    custom_meta: dict[int, dict[str, Any]] = dataclasses.field(default_factory=dict)
    keys_mapping: dict[str, int] = dataclasses.field(default_factory=dict)
    revert_keys_mapping: dict[int, str] = dataclasses.field(default_factory=dict)

    @property
    def total_samples_num(self) -> int:
        return len(self.global_indexes)

    @property
    def total_fields_num(self) -> int:
        return len(self.field_name_mapping)

    @property
    def allocated_samples_num(self) -> int:
        return int(self.production_status.shape[0])

    @property
    def allocated_fields_num(self) -> int:
        return int(self.production_status.shape[1])


def partition_of(core: Any, partition: str) -> DataPartitionStatus | None:
    """None if there is no such partition."""
    store = core.store
    try:
        listed = list(store.listing(partition))
        fields = list(store.types(partition))
        having = [[one.row for one in store.listing(partition, having=[field])] for field in fields]
        tasks = core.tasks.all_of(partition)
    except td.NotFound:
        return None
    rows = 1 + max((one.row for one in listed), default=-1)
    produced = torch.zeros(rows, len(fields), dtype=torch.int8)
    for column, there in enumerate(having):
        produced[[row for row in there if row < rows], column] = 1
    keys = {one.key: one.row for one in listed if one.key is not None}
    notes = {one.row: _labels.notes_of(one.tags) for one in listed}
    return DataPartitionStatus(
        partition_id=partition,
        global_indexes={one.row for one in listed},
        field_name_mapping={field: column for column, field in enumerate(fields)},
        production_status=produced,
        consumption_status={task: _marked(rows, done) for task, _, done in tasks},
        custom_meta={row: note for row, note in notes.items() if note},
        keys_mapping=keys,
        revert_keys_mapping={row: key for key, row in keys.items()},
    )


def _marked(rows: int, done: list[int]) -> torch.Tensor:
    marks = torch.zeros(rows, dtype=torch.int8)
    marks[[row for row in done if row < rows]] = 1
    return marks


def counters_of(core: Any) -> dict[str, Any]:
    """What ``TQMetricsExporter.update_controller_snapshot`` takes; a few calls for each partition, however large it is.

    The samples that have data are those of the field that most have.
    """
    partitions: dict[str, Any] = {}
    for name in core.store.partitions():
        try:
            status, columns, tasks = core.dock.status(name), core.store.columns(name), core.tasks.progress(name)
        except td.NotFound:
            continue  # it was cleared meanwhile
        every = max(status.rows, 1)
        produced = max((column.ready_cells for column in columns), default=0) / every
        partitions[name] = {
            "total_samples_num": status.rows,
            "production_statistics": {task: {"production_progress": produced} for task in ("all", *tasks)},
            "consumption_statistics": {task: {"consumption_progress": done / every} for task, done in tasks.items()},
        }
    allocated = sum(told["total_samples_num"] for told in partitions.values())
    return {"partitions": partitions, "global_index_allocated": allocated, "global_index_reusable": 0}
