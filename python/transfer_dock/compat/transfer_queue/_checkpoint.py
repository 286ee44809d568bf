"""All samples of a dock in a folder, and back.

    metadata.json                      what the user noted
    controller_state.pkl               JSON: by partition what its tasks have consumed, and the memory of the sampler
    simple_storage/storage_unit_info.json    the units that data is in: one, the dock
    simple_storage/index.json          the partitions: names, number of parts, and by task what it reads or none
    simple_storage/<n>/rows-<m>.npz    some rows of partition n: see _save_part
    simple_storage/<n>/tasks.npz       by the number of the task, the rows that it has consumed
    simple_storage/sampler.pkl         the memory of the sampler, if there is one

Rows get the ids back that they had. Consumers that are no tasks, and what programs that use the dock itself have said of
a partition, such as its groups and budgets, are not in it.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import transfer_dock as td
from transfer_dock.compat.transfer_queue._store import MARK, Store
from transfer_dock.compat.transfer_queue._tasks import Tasks, clear_notes

_PART = 1024
_METADATA = "metadata.json"
_CONTROLLER = "controller_state.pkl"
_FOLDER = "simple_storage"
_UNITS = "storage_unit_info.json"


def save(client: Any, folder: Path, metadata: dict[str, Any]) -> None:
    """Writes aside, and puts it in the place of what was there. Raises OSError; then what was there stays."""
    aside, old = folder.with_name(folder.name + ".tmp"), folder.with_name(folder.name + ".old")
    shutil.rmtree(aside, ignore_errors=True)
    try:
        client.save_storage_checkpoint(str(aside))
        client.save_controller_checkpoint(str(aside / _CONTROLLER))
        told = {"storage_saved": True, "user_metadata": metadata}
        (aside / _METADATA).write_text(json.dumps(told, indent=2))
        # What is renamed must be on the disk: what was there before is deleted.
        for path in (*aside.rglob("*"), aside):
            _sync(path)
        if folder.exists():
            shutil.rmtree(old, ignore_errors=True)
            folder.rename(old)
        aside.rename(folder)
        _sync(folder.parent)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        if old.exists() and not folder.exists():
            old.rename(folder)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _sync(path: Path) -> None:
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def save_storage(core: Any, folder: Path) -> None:
    """Everything but what the user noted, into a folder that has no such part yet. Raises OSError."""
    (folder / _FOLDER).mkdir(parents=True)
    (folder / _FOLDER / _UNITS).write_text(json.dumps([{"position": 0, "storage_unit_id": "dock"}]))
    names = core.store.partitions()
    index = [_save_partition(core, name, folder / _FOLDER / str(i)) for i, name in enumerate(names)]
    (folder / _FOLDER / "index.json").write_text(json.dumps(index, indent=2))
    if core.settings.sampled:
        (folder / _FOLDER / "sampler.pkl").write_bytes(core.sampler.save())


def save_controller(core: Any, path: Path) -> None:
    """What tasks have consumed, and the memory of the sampler. Raises OSError."""
    partitions = {name: core.tasks.all_of(name) for name in core.store.partitions()}
    sampler = base64.b64encode(core.sampler.save()).decode() if core.settings.sampled else None
    path.write_text(json.dumps({"partitions": partitions, "sampler": sampler}))


def load_controller(core: Any, path: Path) -> None:
    """Tasks have consumed what they had when the file was written, in the partitions that are there and were then.

    Raises OSError, and ValueError for a file that is none of these.
    """
    partitions, sampler = _read_controller(path)
    for name in set(core.store.partitions()).intersection(partitions):
        core.tasks.reset(name, None)
        there = {one.row for one in core.store.listing(name)}
        for task, reads, rows in partitions[name]:
            core.tasks.restore(name, task, reads, [row for row in rows if row in there])
    if core.settings.sampled and sampler is not None:
        core.sampler.load(sampler)


def _read_controller(path: Path) -> tuple[dict[str, list[Any]], bytes | None]:
    """By partition its tasks, what they read and their rows; the memory of the sampler."""
    try:
        told = json.loads(path.read_bytes())
        partitions, sampler = dict(told["partitions"]), told["sampler"]
        partitions = {name: [(task, reads, list(rows)) for task, reads, rows in partitions[name]] for name in partitions}
        return partitions, None if sampler is None else base64.b64decode(sampler)
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is no checkpoint of a controller of Transfer Dock: {error}") from None


def _save_partition(core: Any, name: str, folder: Path) -> dict[str, Any]:
    folder.mkdir()
    store: Store = core.store
    listed = list(store.listing(name))
    having = {
        field: {one.row for one in store.listing(name, having=[field])}
        for field in sorted(column.name for column in store.all_columns(name))
    }
    parts = 0
    for begin in range(0, len(listed), _PART):
        _save_part(store, name, listed[begin : begin + _PART], having, folder / f"rows-{parts}.npz")
        parts += 1
    tasks = core.tasks.all_of(name)
    consumed = {str(i): np.array(rows, dtype=np.uint64) for i, (_, _, rows) in enumerate(tasks)}
    np.savez(folder / "tasks.npz", allow_pickle=False, **consumed)
    return {
        "partition": name,
        "parts": parts,
        "columns": [
            [one.name, one.dtype or one.kind, one.kind == "ragged", list(one.row_shape)] for one in store.all_columns(name)
        ],
        "next_row": store.next_row(name),
        "tasks": [{"task": task, "reads": None if reads is None else list(reads)} for task, reads, _ in tasks],
        "free_slots": store.free_slots(name),
    }


def _save_part(
    store: Store, name: str, listed: Sequence[Any], having: dict[str, set[int]], path: Path
) -> None:
    """`ids`; `labels`: JSON with the keys and tags; and of each column the positions of the rows that have it, their
    lengths, and all their bytes one after another."""
    ids = [one.row for one in listed]
    labels = json.dumps({"keys": [one.key for one in listed], "tags": [one.tags for one in listed]})
    arrays: dict[str, Any] = {
        "ids": np.array(ids, dtype=np.uint64),
        "labels": np.frombuffer(labels.encode(), dtype=np.uint8),
    }
    columns: list[dict[str, Any]] = []
    for field, rows in having.items():
        positions = [i for i, row in enumerate(ids) if row in rows]
        if not positions:
            continue
        column = store.fetch(name, [ids[i] for i in positions], [field])[field]
        number = len(columns)
        columns.append({"name": field, "kind": column.kind, "dtype": column.dtype, "shape": list(column.row_shape)})
        arrays[f"{number}.positions"] = np.array(positions, dtype=np.int64)
        if column.kind in ("str", "bytes"):
            cells = [column.raw(i) for i in range(len(column))]
            arrays[f"{number}.lengths"] = np.array([len(cell) for cell in cells], dtype=np.int64)
            arrays[f"{number}.bytes"] = np.frombuffer(b"".join(cells), dtype=np.uint8)
        else:
            values = column.values_torch() if column.kind == "ragged" else column.torch()
            arrays[f"{number}.bytes"] = values.reshape(-1).view(torch.uint8).numpy()
            if column.kind == "ragged":
                arrays[f"{number}.lengths"] = column.lengths()
    arrays["columns"] = np.frombuffer(json.dumps(columns).encode(), dtype=np.uint8)
    np.savez(path, allow_pickle=False, **arrays)


def load(client: Any, folder: Path) -> None:
    """Raises FileNotFoundError or ValueError before anything is changed."""
    old = folder.with_name(folder.name + ".old")
    if not folder.exists() and old.exists():
        # Saving was interrupted between the two renames.
        old.rename(folder)
    for path in (folder, folder / _METADATA, folder / _CONTROLLER):
        if not path.exists():
            raise FileNotFoundError(f"not a checkpoint: {path} is missing")
    _read_controller(folder / _CONTROLLER)
    client.load_storage_checkpoint(str(folder))
    client.load_controller_checkpoint(str(folder / _CONTROLLER))


def load_storage(core: Any, folder: Path) -> None:
    """What ``save_storage`` wrote, in the place of all that is there.

    Raises FileNotFoundError, and ValueError where a file is damaged or the data is not all in the dock, before anything
    is changed. Reads all files twice for that.
    """
    for path in (folder / _FOLDER / _UNITS, folder / _FOLDER / "index.json"):
        if not path.exists():
            raise FileNotFoundError(f"not a checkpoint of Transfer Dock: {path} is missing")
    with _undamaged(folder / _FOLDER / _UNITS):
        units = list(json.loads((folder / _FOLDER / _UNITS).read_bytes()))
    if len(units) != 1:
        raise ValueError(f"storage unit count mismatch: {folder} has {len(units)}, and there is one, the dock")
    with _undamaged(folder / _FOLDER / "index.json"):
        index = list(json.loads((folder / _FOLDER / "index.json").read_bytes()))
        for told in index:
            _declared(told)
            _ = told["partition"], int(told["parts"]), int(told["next_row"]), int(told["free_slots"])
            _ = [(one["task"], one["reads"]) for one in told["tasks"]]
    for i, told in enumerate(index):
        _check_partition(told, folder / _FOLDER / str(i))
    for name in core.store.partitions():
        core.clear_partition(name)
    for i, told in enumerate(index):
        _load_partition(core, told, folder / _FOLDER / str(i))
    sampler = folder / _FOLDER / "sampler.pkl"
    if core.settings.sampled and sampler.exists():
        core.sampler.load(sampler.read_bytes())


@contextlib.contextmanager
def _undamaged(path: Path) -> Iterator[None]:
    """What reading the file raises is a ValueError that names it, and FileNotFoundError if there is none."""
    try:
        yield
    except FileNotFoundError:
        raise FileNotFoundError(f"not a whole checkpoint of Transfer Dock: {path} is missing") from None
    except Exception as error:
        raise ValueError(f"{path} of the checkpoint is damaged: {type(error).__name__}: {error}") from error


def _check_partition(told: dict[str, Any], folder: Path) -> None:
    """Reads all files of a partition, as loading does. Archives have checksums of what is in them."""
    for part in range(told["parts"]):
        path = folder / f"rows-{part}.npz"
        with _undamaged(path), np.load(path, allow_pickle=False) as arrays:
            ids, labels = arrays["ids"].tolist(), json.loads(bytes(arrays["labels"]))
            if not len(ids) == len(labels["keys"]) == len(labels["tags"]):
                raise ValueError(f"{len(ids)} rows, {len(labels['keys'])} keys and {len(labels['tags'])} tags")
            for i, column in enumerate(json.loads(bytes(arrays["columns"]))):
                _part_of_column(arrays, i, column, ids)
    path = folder / "tasks.npz"
    with _undamaged(path), np.load(path, allow_pickle=False) as arrays:
        for i in range(len(told["tasks"])):
            arrays[str(i)].tolist()


def _part_of_column(arrays: Any, number: int, column: dict[str, Any], ids: Sequence[int]) -> tuple[list[int], Any]:
    """The rows that have the column, and their cells."""
    rows = [ids[position] for position in arrays[f"{number}.positions"].tolist()]
    lengths = arrays[f"{number}.lengths"] if f"{number}.lengths" in arrays else None
    return rows, _cells(column, arrays[f"{number}.bytes"], len(rows), lengths)


def _declared(told: dict[str, Any]) -> dict[str, Any]:
    return {field: td.column(dtype, ragged=ragged, shape=shape) for field, dtype, ragged, shape in told["columns"]}


def _load_partition(core: Any, told: dict[str, Any], folder: Path) -> None:
    name, store, tasks = told["partition"], core.store, core.tasks
    store.create(name, _declared(told))
    following = 0
    for part in range(told["parts"]):
        with np.load(folder / f"rows-{part}.npz", allow_pickle=False) as arrays:
            following = _load_part(store.dock, name, arrays, following)
    _skip(store.dock, name, told["next_row"] - following)
    store.use_slots(name, max(0, store.free_slots(name) - told["free_slots"]))
    clear_notes(store.dock, name)
    with np.load(folder / "tasks.npz", allow_pickle=False) as arrays:
        for i, one in enumerate(told["tasks"]):
            tasks.restore(name, one["task"], one["reads"], arrays[str(i)].tolist())


def _load_part(dock: td.Dock, name: str, arrays: Any, following: int) -> int:
    """Returns the id that the next row gets."""
    ids = arrays["ids"].tolist()
    labels = json.loads(bytes(arrays["labels"]))
    for begin, end in _runs(ids):
        _skip(dock, name, ids[begin] - following)
        marks = np.zeros(end - begin, dtype=np.uint8)
        made = dock.put(name, {MARK: marks}, keys=labels["keys"][begin:end], tags=labels["tags"][begin:end])
        if made.tolist() != ids[begin:end]:
            raise RuntimeError(f"others put into partition '{name}' while it was loaded")
        following = ids[end - 1] + 1
    for i, column in enumerate(json.loads(bytes(arrays["columns"]))):
        rows, cells = _part_of_column(arrays, i, column, ids)
        dock.put(name, {column["name"]: cells}, rows=rows)
    return following


def _skip(dock: td.Dock, name: str, ids: int) -> None:
    """Rows in place of those that had been cleared, cleared again: ids are not given twice."""
    if ids > 0:
        dock.clear(name, rows=dock.put(name, new_rows=ids))


def _runs(ids: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Where ids follow each other without a gap."""
    begin = 0
    for i in range(1, len(ids) + 1):
        if i == len(ids) or ids[i] != ids[i - 1] + 1:
            yield begin, i
            begin = i


def _cells(
    column: dict[str, Any], data: np.ndarray[Any, Any], rows: int, lengths: np.ndarray[Any, Any] | None
) -> Any:
    if column["kind"] in ("str", "bytes"):
        assert lengths is not None
        ends = np.cumsum(lengths).tolist()
        cells = [data[end - length : end].tobytes() for end, length in zip(ends, lengths.tolist(), strict=True)]
        return cells
    values = torch.from_numpy(data).view(getattr(torch, column["dtype"]))
    if lengths is None:
        return values.view(rows, *column["shape"])
    return list(torch.split(values.view(int(lengths.sum()), *column["shape"]), lengths.tolist()))
