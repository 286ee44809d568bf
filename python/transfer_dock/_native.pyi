"""The extension. The package's classes wrap Dock, DockServer and ServerProcess; Rows, Column and Cancel are public.
What the controller of workers uses follows behind them; of it, Batch and RowsRef are public."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, overload

from numpy import int64, integer, uint64
from numpy.typing import NDArray

from transfer_dock.arguments import Keys, Names, RowsLike
from transfer_dock.status import Kind

class Column:
    """One column of rows that were taken or fetched: a sequence with an item for each row.

    Item i is a read-only array view (for dense and ragged columns; a scalar if rows have no dimensions), a str or bytes;
    None if the row lacks an optional column. Items are made on access.
    """

    @property
    def name(self) -> str:
        """Its name."""
    @property
    def kind(self) -> Kind:
        """"dense", "ragged", "str" or "bytes"."""
    @property
    def dtype(self) -> str:
        """PyTorch's name of the element type, such as "float32"; or "str" or "bytes"."""
    @property
    def row_shape(self) -> tuple[int, ...]:
        """The shape of a row; of a ragged column without its first dimension."""

    def __len__(self) -> int: ...
    @overload
    def __getitem__(self, rows: int | integer[Any]) -> Any:
        """One item; or a list of items, for a slice, an array or list of row numbers, or an array of bool."""
    @overload
    def __getitem__(self, rows: slice | Sequence[int] | NDArray[Any]) -> list[Any]: ...
    def __iter__(self) -> Iterator[Any]: ...
    def has(self, row: int) -> bool:
        """Whether the row has the column; False is possible for optional columns only."""

    def is_whole(self) -> bool:
        """Whether every row has the column."""

    def tolist(self) -> list[Any]:
        """All items; faster than accessing them one by one."""

    def raw(self, row: int) -> bytes | None:
        """The bytes of a row, uninterpreted."""

    def numpy(self, copy: bool = False) -> NDArray[Any]:
        """A dense column as an array of shape (rows, *row_shape): a read-only view if the rows are contiguous, otherwise
        a copy; with copy=True always a copy, which may be written to."""

    def torch(self, copy: bool = False) -> Any:
        """numpy() as a tensor. Without copy=True it must not be written to, which torch does not prevent: the memory is
        the dock's, and over a Unix socket it is mapped read-only, so a write crashes the process."""

    def values(self, copy: bool = False) -> NDArray[Any]:
        """All elements: for a ragged column an array of shape (items of all rows, *row_shape), for a dense one numpy()."""

    def values_torch(self, copy: bool = False) -> Any:
        """values() as a tensor."""

    def bits(self) -> NDArray[Any]:
        """values() for element types that NumPy lacks, as bits: int16 for bfloat16, uint8 for 8-bit floats."""

    def lengths(self) -> NDArray[int64]:
        """The size of the first dimension of each row; for str and bytes the number of bytes."""

    def _private_torch(self) -> Any: ...
    def torch_list(self, copy: bool = False) -> list[Any]:
        """One tensor for each row: slices of values_torch()."""

    def torch_nested(self, copy: bool = False) -> Any:
        """All rows as one nested tensor of the jagged layout, over values_torch()."""

    def to_arrow(self) -> Any:
        """A pyarrow.Array, without a copy where Arrow has the element type and the rows are contiguous; null where a row
        lacks the column. Needs pyarrow."""

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]: ...
    def __dlpack__(self, **options: Any) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...
    def _repr_html_(self) -> str: ...
    def _rows(self) -> Rows: ...

class Rows:
    """Rows that were taken or fetched: views of the dock's memory, which stays unchanged as long as a view exists.

    rows["reward"] is a column, rows[3] one row as a dict, rows[2:5] are some rows. Iteration gives the rows as dicts;
    dict(rows) gives the columns by name. Pickling copies: what is unpickled has memory of its own, and no lease.
    """

    @property
    def ids(self) -> NDArray[uint64]:
        """The ids of the rows."""
    @property
    def groups(self) -> NDArray[uint64]:
        """The group of each row; transfer_dock.NO_GROUP for one without."""
    @property
    def row_keys(self) -> list[str | None]:
        """The key of each row; None for one without."""
    @property
    def tags(self) -> list[dict[str, str]]:
        """The tags of each row."""
    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
    @property
    def ages(self) -> NDArray[int64]:
        """How often each row was given back unfinished, or sent back."""
    @property
    def epochs(self) -> NDArray[int64]:
        """How often each row was sent back: results computed from its earlier cells are refused."""
    @property
    def redeliveries(self) -> NDArray[int64]:
        """How often each row was handed to this consumer before, and came back because a lease expired."""

    def __init__(self, rows: Rows) -> None: ...
    def __len__(self) -> int: ...
    @overload
    def __getitem__(self, key: str) -> Column:
        """A column by its name; one row, by its number, as a dict; or some rows, for a slice, an array or list of row
        numbers, or an array of bool: views of the same memory."""
    @overload
    def __getitem__(self, key: int | integer[Any]) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, key: slice | Sequence[int] | NDArray[Any]) -> Rows: ...
    def __contains__(self, name: object) -> bool:
        """Whether there is this column."""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """The rows, each as a dict of its items by column."""

    def keys(self) -> list[str]:
        """The names of the columns."""

    def values(self) -> list[Column]:
        """The columns."""

    def items(self) -> list[tuple[str, Column]]:
        """The names of the columns and the columns."""

    def cell(self, column: str, row: int) -> Any:
        """One cell: a read-only view of an array, a str or bytes."""

    def weights_versions(self, column: str) -> NDArray[int64]:
        """The version of the weights that made each cell; -1: none. For a cell in several pieces, the smallest."""

    def pieces(self, column: str, row: int) -> list[tuple[int, int]]:
        """Which version made which part of a cell: pairs of the item where the part ends and its version."""

    def numpy(self, copy: bool = False) -> dict[str, Any]:
        """Every column that all rows have: dense ones as arrays, ragged ones as lists of views, str and bytes as
        lists."""

    def torch(self, copy: bool = False) -> dict[str, Any]:
        """numpy() with tensors."""

    def to_arrow(self) -> Any:
        """A pyarrow.Table of the columns: see Column.to_arrow(). Needs pyarrow."""

    def to_pandas(self) -> Any:
        """A pandas.DataFrame with a copy of the columns, whose index are the ids. Needs pandas."""

    def _repr_html_(self) -> str: ...
    def _select(self, rows: Any, columns: Names) -> Rows: ...

class Cancel:
    """Cancels the calls that it is passed to."""

    def __init__(self) -> None: ...
    def request(self) -> None: ...

class Dock:
    @staticmethod
    def local() -> Dock: ...
    @staticmethod
    def connect(**options: Any) -> Dock: ...
    def close(self) -> None: ...
    def import_partition(self, image: bytes, /) -> None: ...
    def put(
        self,
        data: dict[str, Any] | None,
        rows: RowsLike | None,
        timeout: float | None,
        cancel: Cancel | None,
        /,
        **request: Any,
    ) -> NDArray[uint64]: ...
    def take(
        self, timeout: float | None, cancel: Cancel | None, /, **request: Any
    ) -> tuple[Rows, int | None, float]: ...
    def fetch(self, timeout: float | None, cancel: Cancel | None, /, **request: Any) -> Rows: ...
    # The verbs that never wait, each with the fields of its request.
    def __getattr__(self, verb: str, /) -> Callable[..., Any]: ...

class DockServer:
    address: str
    tcp_address: str

    def __init__(self, **options: Any) -> None: ...
    def warnings(self) -> list[str]: ...
    def dock(self) -> Dock: ...
    def close(self, drain: float) -> None: ...

class ServerProcess:
    pid: int
    lines: list[str]

    def __init__(self, command: Sequence[str], /) -> None: ...
    def close(self, drain: float) -> int: ...

class ExperienceIndexes:
    indexes: list[int]
    rows: list[int]
    lease: int
    padding_rows: int

    @overload
    def __init__(self, indexes: Sequence[int]) -> None: ...
    @overload
    def __init__(self, indexes: Sequence[int], rows: Sequence[int], lease: int, padding_rows: int) -> None: ...
    def __len__(self) -> int: ...
    def slice(self, begin: int, count: int) -> ExperienceIndexes: ...

class MindSpeedDock:
    def __init__(
        self,
        dock: Dock,
        kind: str,
        partition: str,
        prompts_num: int,
        n_samples_per_prompt: int,
        columns: Sequence[str],
        addition_columns: Sequence[str],
        addition_consumers: Sequence[tuple[str, Sequence[str], bool | None]],
        max_age: int,
        gbs_train: int,
        timeout: float,
        lease_seconds: float,
        seed: int,
        /,
    ) -> None: ...
    def put_experience(self, data: dict[str, Any], indexes: ExperienceIndexes, keep: bool) -> None: ...
    def get_experience(
        self,
        consumer: str,
        columns: Sequence[str],
        count: int | None,
        dp_size: int,
        indexes: ExperienceIndexes | None,
        get_n_samples: bool,
        balance: bool,
        target_seq_len: float | None,
        timeout: float | None,
        padded: bool,
    ) -> tuple[Rows, ExperienceIndexes, NDArray[int64] | None] | None: ...
    def get(self, columns: Sequence[str], indexes: ExperienceIndexes, /) -> Rows: ...
    def complete(self, consumer: str, indexes: ExperienceIndexes, /) -> None: ...
    def release(self, consumer: str, indexes: ExperienceIndexes, /) -> None: ...
    def all_consumed(self, consumer: str, /) -> bool: ...
    def clear(self, consumer: str, /) -> None: ...
    def clear_indexes(self, indexes: Sequence[int] | None) -> None: ...
    def prefetch_request_index(self, count: int, /) -> list[int] | None: ...
    def incomplete_response_num(self) -> int: ...
    def experience_data(self) -> dict[str, tuple[list[int], Rows]]: ...
    def experience_status(self) -> dict[str, list[bool]]: ...
    def consumer_status(self) -> dict[str, list[bool]]: ...
    def experience_len(self) -> int: ...
    def ages(self) -> list[int]: ...

class MultimodalDock:
    def __init__(
        self,
        dock: Dock,
        partition: str,
        prompts_num: int,
        n_samples_per_prompt: int,
        reuse_image_embeds: bool,
        timeout: float,
        /,
    ) -> None: ...
    def put_experience(self, data: dict[str, Any], prompts: Sequence[int], /) -> None: ...
    def get_experience(self, columns: Sequence[str], indexes: Sequence[int], get_n_samples: bool, /) -> Rows: ...
    def get_columns(self, consumer: str, /) -> list[str]: ...
    def clear(self) -> None: ...

class Batch:
    """Rows of named columns, and meta about all of them. Immutable, with memory of its own.

    Batch({"tokens": [[1, 2], [3]], "reward": array}, {"step": 7}): columns as those of a put (docs/python.md); meta are
    bool, int, float, str, and lists and dicts of these. len(): the number of rows. batch["reward"]: a Column.
    batch[2:4]: some rows. Errors name the column, the row or the key.
    """

    columns: list[str]
    meta: dict[str, Any]

    def __init__(self, columns: Mapping[str, Any] | None = None, meta: Mapping[str, Any] | None = None) -> None: ...
    def __len__(self) -> int: ...
    @overload
    def __getitem__(self, key: str) -> Column: ...
    @overload
    def __getitem__(self, key: slice) -> Batch: ...
    def __contains__(self, name: str) -> bool: ...
    def rows(self) -> Rows:
        """All columns, as a dock would give them, with the row numbers 0, 1, …"""

    def numpy(self) -> dict[str, Any]:
        """Copies of all columns: dense ones as arrays, ragged ones as lists of arrays, str and bytes as lists."""

    def torch(self) -> dict[str, Any]:
        """The same with tensors."""

    def select(self, names: Sequence[str], /) -> Batch:
        """These columns, in this order."""

    def rename(self, names: Mapping[str, str], /) -> Batch:
        """Each column from the first name to the second, all at once."""

    def select_rows(self, rows: Sequence[int], /) -> Batch:
        """These rows in this order, repeats allowed."""

    def union(self, other: Batch, /) -> Batch:
        """The columns and the meta of both; what both have must be equal."""

    def repeat(self, times: int, interleave: bool = True) -> Batch:
        """Every row so often: AABB, or ABAB without ``interleave``."""

    def chunk(self, count: int, /) -> list[Batch]:
        """As many parts, of as many rows each."""

    def real_rows(self) -> Batch:
        """Without the rows that were added as padding: whose weight in the column "row_weights" is 0."""

    @staticmethod
    def concat(batches: Sequence[Batch], /) -> Batch:
        """All rows of one batch after another. The values of the meta key "metrics" become lists."""

class RowsRef:
    """Rows of a dock by their ids, with columns and meta: cut by rows like a batch, and fetched by whoever needs them.

    real_rows: so many of the first rows are real, if the call was padded; otherwise all.
    """

    partition: str
    rows: NDArray[uint64]
    columns: list[str]
    meta: dict[str, Any]
    real_rows: int

    def __init__(self, partition: str, rows: Any, columns: Sequence[str], meta: Mapping[str, Any] | None = None) -> None: ...
    def __len__(self) -> int: ...
    def _fetched(self, columns: Batch, /) -> Batch: ...

class Future:
    def __init__(self) -> None: ...
    def ready(self) -> bool: ...
    def get(self, timeout: float | None) -> Any: ...
    def set(self, result: Any) -> None: ...
    def fail(self, code: int, text: str, /) -> None: ...

class WorkerGroup:
    ranks: int
    role: str

    def start(
        self, method: str, mode: str, mesh: str, pad: bool, rank_zero: bool, arguments: Sequence[Any], /
    ) -> Future: ...
    def start_split(self, method: str, mode: str, by_rank: Sequence[Sequence[Any]], /) -> Future: ...
    def with_timeout(self, seconds: float, /) -> WorkerGroup: ...
    def subgroup(self, ranks: Sequence[int], meshes: _Meshes, /) -> WorkerGroup: ...
    def spawn(self, roles: Sequence[str], /) -> dict[str, WorkerGroup]: ...

class Controller:
    address: str

    def __init__(
        self,
        listen: str,
        token: str,
        world_size: int,
        is_rank_zero: bool,
        setup: Mapping[str, str],
        silence: float,
        /,
    ) -> None: ...
    def await_workers(self, timeout: float | None) -> None: ...
    def welcome(self, value: Any) -> None: ...
    def await_serving(self, timeout: float | None) -> None: ...
    def name(self, rank: int, /) -> str: ...
    def group(self, ranks: Sequence[int], role: str, meshes: _Meshes, timeout: float, /) -> WorkerGroup: ...
    def end(self, code: int, text: str, /) -> None: ...
    def close(self) -> None: ...

class Calls:
    def __init__(self) -> None: ...
    def next(self) -> tuple[int, str, list[Any], float] | None: ...
    def answer(self, call: int, result: Any) -> None: ...
    def refuse(self, call: int, code: int, text: str, /) -> None: ...
    def await_close(self) -> None: ...
    def close(self, why: str, /) -> None: ...
    @staticmethod
    def group(workers: Sequence[Calls], role: str, meshes: _Meshes, timeout: float, /) -> WorkerGroup: ...

class Session:
    calls: Calls

    def __init__(
        self,
        address: str,
        token: str,
        rank: int,
        world_size: int,
        name: str,
        setup: Mapping[str, str],
        connect_timeout: float,
        silence: float,
        /,
    ) -> None: ...
    def await_welcome(self, timeout: float | None) -> Any: ...
    def serve(self, names: Sequence[str], /) -> None: ...
    def fail(self, code: int, text: str, timeout: float) -> None: ...
    def notify(self, kind: str, text: str, /) -> None: ...
    def check_end(self) -> None: ...
    def close(self) -> None: ...

_Meshes = Mapping[str, Sequence[tuple[str, int]]]

def _rows_of_state(described: Any, columns: Any) -> Rows: ...
def place_pools(
    nodes: Sequence[int], pools: Sequence[tuple[str, Sequence[int]]], pool_of_role: Mapping[str, str], /
) -> dict[str, list[tuple[int, int, int]]]: ...
def die_with(parent: int, /) -> None: ...
def _before_fork() -> None: ...
def _after_fork_in_parent() -> None: ...
def _after_fork_in_child() -> None: ...
