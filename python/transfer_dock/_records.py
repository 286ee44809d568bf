"""Data sets of Python as files that a run reads."""

from __future__ import annotations

import csv
import datetime
import importlib
import json
import math
import os
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from transfer_dock import hub
from transfer_dock.errors import InvalidArgument

_FORMS = (
    "give a list of dicts, a datasets.Dataset, a pandas.DataFrame, a pyarrow.Table, a dict of columns, the path of a "
    "file or folder, or the name of a data set on the Hub"
)
_BATCH = 1000  # rows
_TYPES = ("int", "float", "bool", "str")


@dataclass(frozen=True)
class Records:
    """What a run reads. columns: of the first record; empty where nobody has looked into the file.

    types: int, float, bool or str, of columns all of whose values are known to be one of these.
    """

    files: list[str]
    columns: list[str]
    types: dict[str, str] = field(default_factory=dict)
    rows: int | None = None  # None: nobody has counted them


@dataclass(frozen=True)
class Formatted:
    """A data set of texts that a function makes of the rows of another."""

    dataset: Any
    text_of: Callable[[Any], str]


def records_of(dataset: Any, file: pathlib.Path, *, what: str, split: str, revision: str | None = None) -> Records:
    """Writes a data set to ``file``, or names the files that it is in.

    what: the argument, for errors. split: the part that is read of a folder or of a data set on the Hub. Raises
    InvalidArgument for what is no data set, has no rows, or has values that JSON cannot hold.
    """
    if isinstance(dataset, (str, os.PathLike)):
        files = hub.data_files(os.fspath(dataset), split=split, revision=revision)
        return Records(files, _columns_of(files[0]))
    types: dict[str, set[str]] = {}
    try:
        rows = _write(_rows(dataset, what), types, file, what)
    finally:
        _partial(file).unlink(missing_ok=True)
    known = {name: "float" if kinds == {"int", "float"} else kinds.pop() for name, kinds in types.items()
             if len(kinds) == 1 or kinds == {"int", "float"}}  # fmt: skip
    return Records([str(file)], list(types), {name: kind for name, kind in known.items() if kind in _TYPES}, rows)


def _columns_of(path: str) -> list[str]:
    """Of the first record of a file of JSON lines, of Parquet where pyarrow is installed, or of CSV."""
    if path.endswith((".jsonl", ".ndjson")):
        with open(path, encoding="utf-8") as lines:
            try:
                first = json.loads(next(lines, "{}"))
            except ValueError:
                return []  # the run says what is wrong, and where
        return list(first) if isinstance(first, dict) else []
    if path.endswith(".parquet"):
        try:
            parquet = importlib.import_module("pyarrow.parquet")
        except ImportError:
            return []
        return list(parquet.read_schema(path).names)
    if path.endswith(".csv"):
        with open(path, encoding="utf-8", newline="") as text:
            return next(csv.reader(text), [])
    return []


def _rows(dataset: Any, what: str) -> Iterator[Mapping[str, Any]]:
    if isinstance(dataset, Formatted):
        for number, row in enumerate(_rows(dataset.dataset, what)):
            text = dataset.text_of(row)
            if not isinstance(text, str):
                raise InvalidArgument(f"'formatting_func' made a {type(text).__name__} of row {number}; it makes a str")
            yield {"text": text}
        return
    kind = type(dataset).__name__
    if kind in ("DatasetDict", "IterableDatasetDict"):
        parts = ", ".join(map(repr, dataset))
        raise InvalidArgument(f"'{what}' has several parts ({parts}); give one, such as dataset[{next(iter(dataset))!r}]")
    if callable(getattr(dataset, "to_batches", None)):  # a pyarrow.Table
        for batch in dataset.to_batches(max_chunksize=_BATCH):
            yield from batch.to_pylist()
    elif callable(getattr(dataset, "itertuples", None)):  # a pandas.DataFrame
        names = [str(name) for name in dataset.columns]
        for values in dataset.itertuples(index=False, name=None):
            yield dict(zip(names, values, strict=True))
    elif isinstance(dataset, Mapping):
        lengths = {str(name): len(values) for name, values in dataset.items()}
        if len(set(lengths.values())) > 1:
            raise InvalidArgument(f"the columns of '{what}' have different lengths: {lengths}")
        for values in zip(*dataset.values(), strict=True):
            yield dict(zip(lengths, values, strict=True))
    elif isinstance(dataset, Iterator):
        raise InvalidArgument(f"'{what}' is a {kind}, which can be read once; give a list, such as list({what})")
    elif isinstance(dataset, Iterable) and not isinstance(dataset, (bytes, bytearray)):
        for number, row in enumerate(dataset):
            if not isinstance(row, Mapping):
                raise InvalidArgument(f"row {number} of '{what}' is a {type(row).__name__} and not a dict; {_FORMS}")
            yield row
    else:
        raise InvalidArgument(f"'{what}' is a {kind}; {_FORMS}")


def _write(rows: Iterator[Mapping[str, Any]], types: dict[str, set[str]], file: pathlib.Path, what: str) -> int:
    """The number of rows. Notes the types of each column's values, those that are missing left out."""
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = _partial(file)
    number = 0
    # Halves of surrogate pairs, which UTF-8 does not have, are replaced.
    with open(partial, "w", encoding="utf-8", errors="replace") as lines:
        for number, row in enumerate(rows):
            try:
                plain = {str(name): _plain(value) for name, value in row.items()}
                line = json.dumps(plain, ensure_ascii=False, allow_nan=False, default=_from_library)
            except (TypeError, ValueError):
                raise InvalidArgument(_why_not(row, number, what)) from None
            lines.write(line + "\n")
            for name, value in plain.items():
                kinds = types.setdefault(name, set())
                if value is not None:
                    kinds.add(type(value).__name__)
    if not types:
        raise InvalidArgument(f"'{what}' has no rows")
    partial.replace(file)
    return number + 1


def _partial(file: pathlib.Path) -> pathlib.Path:
    return file.with_name(file.name + ".new")


def _plain(value: Any) -> Any:
    """Python's own value for one of a library. Missing numbers of pandas are None, as missing texts are."""
    if value is None or isinstance(value, (str, bool, int, list, dict)):
        return value
    if isinstance(value, float):
        return None if math.isnan(value) else value
    return _plain(_from_library(value))


def _from_library(value: Any) -> Any:
    """A value of numpy, torch or pandas as Python's own. TypeError for another."""
    if type(value).__name__ in ("NAType", "NaTType"):
        return None
    if isinstance(value, (datetime.date, datetime.datetime)):
        return value.isoformat()
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, (tuple, set)):
        return list(value)
    convert = getattr(value, "tolist", None) or getattr(value, "item", None)
    if callable(convert):
        return convert()
    raise TypeError


def _why_not(row: Mapping[str, Any], number: int, what: str) -> str:
    for name, value in row.items():
        try:
            json.dumps(_plain(value), allow_nan=False, default=_from_library)
        except (TypeError, ValueError):
            return (
                f"row {number} of '{what}': column '{name}' is a {type(value).__name__} that JSON cannot hold; "
                "give texts, finite numbers, or lists and dicts of them"
            )
    return f"row {number} of '{what}' cannot be written as JSON"
