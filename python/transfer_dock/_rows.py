"""What Rows and Column do that needs no speed: the extension calls these functions as their methods."""

from __future__ import annotations

import importlib
import operator
from collections.abc import Iterator
from typing import Any

import numpy

from transfer_dock import _native, tables
from transfer_dock._native import Column, Rows
from transfer_dock.errors import InvalidArgument

# How many rows and columns a repr shows.
_SHOWN_ROWS = 8
_SHOWN_ITEMS = 16
# Element types that NumPy does not have.
_ONLY_TORCH = ("bfloat16", "float8_e4m3fn", "float8_e5m2")


# ---- Some rows.


def _positions(of: Rows | Column, key: Any) -> list[int]:
    """Which rows a slice, a list, an array of numbers or one of bool names. Raises IndexError, InvalidArgument."""
    size = len(of)
    if isinstance(key, slice):
        return list(range(*key.indices(size)))
    try:
        array = None if isinstance(key, (str, bytes)) else numpy.asarray(key)
    except ValueError:
        array = None  # lists of different lengths
    if array is not None and array.ndim == 1 and array.dtype == bool:
        if len(array) != size:
            raise IndexError(f"a mask of {len(array)} for {size} rows")
        return list(numpy.flatnonzero(array).tolist())
    if array is None or array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        what = "the name of a column, " if isinstance(of, Rows) else ""
        raise InvalidArgument(
            f"[{tables.shortened(repr(key))}]: give {what}the number of a row, a slice, or a list or array of row "
            "numbers or of bool"
        )
    found = []
    for row in array.tolist():
        if not -size <= row < size:
            raise IndexError(f"row {row} of {size}")
        found.append(row % size)
    return found


def _is_one(key: Any) -> bool:
    return hasattr(key, "__index__") and not getattr(key, "shape", ()) and not isinstance(key, (bool, numpy.bool_))


def some_rows(rows: Rows, key: Any) -> Any:
    """rows[key], where the key is no str."""
    if _is_one(key):
        row = operator.index(key)
        if not -len(rows) <= row < len(rows):
            raise IndexError(f"row {row} of {len(rows)}")
        return {name: items_of(rows._select([row % len(rows)], [name])[name])[0] for name in rows.columns}
    return rows._select(_positions(rows, key), rows.columns)


def some_items(column: Column, key: Any) -> Any:
    """column[key], where the key is neither a slice nor, for what the extension sees, a number."""
    if _is_one(key):
        return column[operator.index(key)]
    return [column[row] for row in _positions(column, key)]


def each_row(rows: Rows) -> Iterator[dict[str, Any]]:
    names = rows.columns
    for items in zip(*(items_of(rows[name]) for name in names), strict=True) if names else ():
        yield dict(zip(names, items, strict=True))


def items_of(column: Column) -> list[Any]:
    """tolist(), with tensors where NumPy does not have the element type."""
    if column.dtype not in _ONLY_TORCH:
        return column.tolist()
    there = [row for row in range(len(column)) if column.has(row)]
    found = column._rows()._select(there, [column.name])[column.name]
    tensors = iter(found.torch_list() if column.kind == "ragged" else list(found.torch()) if there else [])
    return [next(tensors) if column.has(row) else None for row in range(len(column))]


def columns_of(rows: Rows) -> list[Column]:
    return [rows[name] for name in rows.columns]


def named_columns_of(rows: Rows) -> list[tuple[str, Column]]:
    return [(name, rows[name]) for name in rows.columns]


def unpickled(described: Any, columns: Any) -> Rows:
    """What pickle calls by its name."""
    return _native._rows_of_state(described, columns)


def pickled_column(column: Column) -> tuple[Any, ...]:
    rows = column._rows()
    return operator.getitem, (rows._select(range(len(rows)), [column.name]), column.name)


# ---- To look at.


def _shown(column: Column, row: int) -> str:
    if not column.has(row):
        return "–"
    if column.dtype in _ONLY_TORCH:
        return "…"  # torch would take long to import, only to show a number
    item = column[row]
    if isinstance(item, (str, bytes)):
        return repr(item if len(item) < 200 else item[:200])
    array = numpy.asarray(item)
    if array.ndim == 0:
        return str(item)
    if array.size > _SHOWN_ITEMS:
        return f"{numpy.array2string(array.reshape(-1)[:4], separator=', ')[:-1]}, …] {'×'.join(map(str, array.shape))}"
    return numpy.array2string(array, separator=", ")


def _type(column: Column) -> str:
    if column.kind in ("str", "bytes"):
        return column.kind
    sizes = ["?"] if column.kind == "ragged" else []
    sizes += [str(size) for size in column.row_shape]
    return f"{column.dtype}[{', '.join(sizes)}]" if sizes else column.dtype


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _table(rows: Rows) -> tuple[list[str], list[list[str]]]:
    columns = columns_of(rows)
    ids = rows.ids[:_SHOWN_ROWS].tolist()
    lines = [[str(id), *(_shown(column, row) for column in columns)] for row, id in enumerate(ids)]
    if len(rows) > _SHOWN_ROWS:
        lines.append(["…"] * (len(columns) + 1))
    return ["row", *(f"{column.name}: {_type(column)}" for column in columns)], lines


def _title(rows: Rows) -> str:
    what = f"{type(rows).__name__}: {_count(len(rows), 'row')}"
    if hasattr(rows, "lease"):
        return f"{what}, {'without a lease' if rows.lease is None else f'lease {rows.lease}'}"
    return what


def text_of_rows(rows: Rows) -> str:
    return f"<{_title(rows)}\n{tables.as_text(*_table(rows))}>"


def html_of_rows(rows: Rows) -> str:
    return tables.as_html(_title(rows), *_table(rows))


def _title_of_column(column: Column) -> str:
    return f"Column '{column.name}': {_type(column)}, {_count(len(column), 'row')}"


def text_of_column(column: Column) -> str:
    items = [tables.shortened(_shown(column, row)) for row in range(min(len(column), _SHOWN_ROWS))]
    items += ["…"] if len(column) > _SHOWN_ROWS else []
    return f"<{_title_of_column(column)}: {', '.join(items)}>"


def html_of_column(column: Column) -> str:
    lines = [[str(row), _shown(column, row)] for row in range(min(len(column), _SHOWN_ROWS))]
    lines += [["…", "…"]] if len(column) > _SHOWN_ROWS else []
    return tables.as_html(_title_of_column(column), ["", column.name], lines)


# ---- For other libraries.


def arrow_of_column(column: Column) -> Any:
    pyarrow = importlib.import_module("pyarrow")

    if column.kind in ("str", "bytes"):
        return pyarrow.array(column.tolist(), pyarrow.large_string() if column.kind == "str" else pyarrow.large_binary())
    if not column.is_whole():
        # Those that are there, and nulls between them.
        there = [row for row in range(len(column)) if column.has(row)]
        places = iter(range(len(there)))
        rows = column._rows()._select(there, [column.name])
        return rows[column.name].to_arrow().take(
            pyarrow.array([next(places) if column.has(row) else None for row in range(len(column))], pyarrow.int64())
        )  # fmt: skip
    values = column.values()
    array = pyarrow.array(values.reshape(-1))
    for size in reversed(column.row_shape):
        if size == 0:
            raise InvalidArgument(f"column '{column.name}' has rows of the shape {column.row_shape}, which Arrow lacks")
        array = pyarrow.FixedSizeListArray.from_arrays(array, size)
    if column.kind == "dense":
        return array
    offsets = numpy.concatenate([[0], numpy.cumsum(column.lengths())])
    return pyarrow.LargeListArray.from_arrays(pyarrow.array(offsets, pyarrow.int64()), array)


def arrow_of_rows(rows: Rows) -> Any:
    pyarrow = importlib.import_module("pyarrow")

    return pyarrow.table({name: arrow_of_column(column) for name, column in named_columns_of(rows)})


def pandas_of_rows(rows: Rows) -> Any:
    pandas = importlib.import_module("pandas")

    def values(column: Column) -> Any:
        if column.kind == "dense" and column.row_shape == () and column.is_whole():
            return column.numpy(copy=True)
        items = [numpy.array(item) if isinstance(item, numpy.ndarray) else item for item in column.tolist()]
        return pandas.Series(items, index=index, dtype=object)

    index = pandas.Index(rows.ids, name="row")
    return pandas.DataFrame({name: values(column) for name, column in named_columns_of(rows)}, index=index)
