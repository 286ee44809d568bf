"""The extension. The package's classes wrap Dock, DockServer and ServerProcess; Rows, Column and Cancel are public."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, overload

from numpy import int64, uint64
from numpy.typing import NDArray

class Column:
    """One column of rows that were taken or fetched: a sequence with an item for each row.

    Item i is a read-only array view (for dense and ragged columns; a scalar if rows have no dimensions), a str or bytes;
    None if the row lacks an optional column. Items are made on access.

    kind: "dense", "ragged", "str" or "bytes". dtype: PyTorch's name, or "str" or "bytes". row_shape: of a row; of a
    ragged column without its first dimension.
    """

    name: str
    kind: str
    dtype: str
    row_shape: tuple[int, ...]

    def __len__(self) -> int: ...
    @overload
    def __getitem__(self, row: int) -> Any: ...
    @overload
    def __getitem__(self, row: slice) -> list[Any]: ...
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
        a copy; with ``copy`` always a copy, which may be written to."""

    def torch(self, copy: bool = False) -> Any:
        """The same as a tensor. Without ``copy`` it must not be written to, which torch does not prevent: the memory is
        the dock's, and over a Unix socket it is mapped read-only, so a write crashes the process."""

    def values(self, copy: bool = False) -> NDArray[Any]:
        """All elements: for a ragged column an array of shape (items of all rows, *row_shape), for a dense one numpy()."""

    def values_torch(self, copy: bool = False) -> Any:
        """The same as a tensor."""

    def bits(self) -> NDArray[Any]:
        """values() for element types that NumPy lacks, as bits: int16 for bfloat16, uint8 for 8-bit floats."""

    def lengths(self) -> NDArray[int64]:
        """The size of the first dimension of each row; for str and bytes the number of bytes."""

    def torch_list(self, copy: bool = False) -> list[Any]:
        """One tensor for each row: slices of values_torch()."""

    def torch_nested(self, copy: bool = False) -> Any:
        """All rows as one nested tensor of the jagged layout, over values_torch()."""

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]: ...
    def __dlpack__(self, **options: Any) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...

class Rows:
    """Rows that were taken or fetched: views of the dock's memory, which stays unchanged as long as a view exists.

    ids: uint64 array. groups: uint64 array, NO_GROUP for rows without one. ages, epochs, redeliveries: int64 arrays.
    """

    ids: NDArray[uint64]
    groups: NDArray[uint64]
    keys: list[str | None]
    tags: list[dict[str, str]]
    columns: list[str]
    ages: NDArray[int64]
    epochs: NDArray[int64]
    redeliveries: NDArray[int64]

    def __init__(self, rows: Rows) -> None: ...
    def __len__(self) -> int: ...
    def __getitem__(self, column: str) -> Column: ...
    def __contains__(self, column: str) -> bool: ...
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
        """The same with tensors."""

class Cancel:
    """Cancels the calls that it is passed to."""

    def __init__(self) -> None: ...
    def request(self) -> None: ...

class Dock:
    @staticmethod
    def local() -> Dock: ...
    @staticmethod
    def connect(
        address: str,
        token: str,
        token_file: str,
        tls_ca: str,
        tls_certificate: str,
        tls_key: str,
        name: str,
        reconnect_for: float,
        answer_within: float,
        /,
    ) -> Dock: ...
    def close(self) -> None: ...
    def create_partition(
        self,
        name: str,
        columns: Sequence[tuple[str, str, bool, Sequence[int]]],
        growing: bool,
        group_size: int,
        retain_for: Sequence[str],
        max_rows: int,
        max_bytes: int,
        row_bytes: int,
        refuse_nan: bool,
        /,
    ) -> None: ...
    def drop_partition(self, name: str, /) -> None: ...
    def export_partition(self, name: str, /) -> bytes: ...
    def import_partition(self, image: bytes, /) -> None: ...
    def partitions(self) -> list[str]: ...
    def register_consumer(
        self,
        partition: str,
        name: str,
        reads: Sequence[str],
        reads_optional: Sequence[str],
        writes: Sequence[str],
        unit: str,
        sampler: str,
        seed: int,
        length_column: str,
        ranks: int,
        lease_seconds: float,
        max_deliveries: int,
        max_version_lag: int | None,
        stale: str,
        at_most_once: bool,
        checkpointed: bool,
        /,
    ) -> None: ...
    def drop_consumer(self, partition: str, consumer: str, /) -> None: ...
    def publish_weights(self, partition: str, version: int, /) -> None: ...
    def seal(self, partition: str, /) -> None: ...
    def put(
        self,
        partition: str,
        data: dict[str, Any] | None,
        rows: Any,
        new_rows: int,
        lease: int,
        keep: bool,
        step: int | None,
        groups: Any,
        group_size: int,
        keys: Sequence[str | None] | None,
        tags: Any,
        partial: bool,
        epochs: Any,
        overwrite: bool,
        weights_version: int | None,
        timeout: float | None,
        cancel: Cancel | None,
    ) -> NDArray[uint64]: ...
    def take(
        self,
        partition: str,
        consumer: str,
        max: int,
        min: int,
        rank: int,
        rows: Any,
        timeout: float | None,
        cancel: Cancel | None,
    ) -> tuple[Rows, int | None, float]: ...
    def fetch(
        self, partition: str, rows: Any, columns: Sequence[str], timeout: float | None, cancel: Cancel | None
    ) -> Rows: ...
    def complete(self, partition: str, lease: int, rows: Any, step: int | None) -> None: ...
    def release(self, partition: str, lease: int, rows: Any) -> None: ...
    def renew(self, partition: str, lease: int, /) -> float: ...
    def drop(self, partition: str, lease: int, rows: Any) -> None: ...
    def requeue(self, partition: str, consumer: str, rows: Any) -> None: ...
    def commit(self, partition: str, consumer: str, step: int, /) -> None: ...
    def rollback(self, partition: str, consumer: str, step: int, weights_version: int | None) -> None: ...
    def find(self, partition: str, keys: Sequence[str], /) -> NDArray[uint64]: ...
    def list(
        self,
        partition: str,
        tags: Mapping[str, str] | None,
        ready_for: str,
        having: Sequence[str],
        start: int,
        limit: int,
    ) -> tuple[Sequence[dict[str, Any]], int | None]: ...
    def clear(
        self, partition: str, rows: Any, groups: Any, tags: Mapping[str, str] | None, everything: bool
    ) -> int: ...
    def status(self, partition: str, /) -> dict[str, Any]: ...
    def consumer_status(self, partition: str, consumer: str, /) -> dict[str, Any]: ...
    def row_status(self, partition: str, row: int, /) -> dict[str, Any]: ...
    def explain(self, partition: str, consumer: str, /) -> str: ...

class DockServer:
    address: str
    tcp_address: str

    def __init__(
        self,
        listen: str,
        socket: str,
        memory: int,
        token: str,
        token_file: str,
        tls_certificate: str,
        tls_key: str,
        tls_ca: str,
        insecure: bool,
        session_grace: float,
        /,
    ) -> None: ...
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
    padding_rows: int

    def __init__(self, indexes: Sequence[int]) -> None: ...
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
    def put_experience(
        self, data: dict[str, Any], indexes: ExperienceIndexes, original_length: Sequence[int] | None, keep: bool
    ) -> None: ...
    def put_prompts_experience(
        self, data: dict[str, Any], additional: Sequence[str], indexes: Sequence[int] | None, add_another_batch: bool
    ) -> ExperienceIndexes: ...
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
    def metrics(self) -> dict[str, list[float]]: ...
    def update_metrics(self, key: str, value: float, cumulate: bool, /) -> None: ...

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

def _before_fork() -> None: ...
def _after_fork_in_parent() -> None: ...
def _after_fork_in_child() -> None: ...
