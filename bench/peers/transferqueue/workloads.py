"""What is measured: TransferQueue's own workloads, on both systems."""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import socket
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import systems
import torch
from harness import Benchmark, Run, seconds
from tensordict import NonTensorStack, TensorDict

import transfer_dock as td

GIGA = 1e9
PARTITION = "bench"

Sides = tuple[Run, Run]


# ---- The data of TransferQueue's performance test.


def _size(quick: bool) -> tuple[int, int]:
    return (64, 256) if quick else (1024, 8192)


def _simple(quick: bool) -> dict[str, Any]:
    rows, length = _size(quick)
    return {f"field_{i}": torch.randn(rows, length) for i in range(9)}


def _sweep(fields: int) -> Callable[[bool], dict[str, Any]]:
    """256 MB in 256 rows."""

    def make(quick: bool) -> dict[str, Any]:
        length = (1000 if quick else 1_000_000) // 4 // fields
        return {f"field_{i}": torch.randn(256, length) for i in range(fields)}

    return make


def _complex(quick: bool) -> dict[str, Any]:
    """A third dense, a third jagged with lengths from 1 to ``length``, a third strings of 4 · ``length`` bytes."""
    rows, length = _size(quick)
    data: dict[str, Any] = {f"dense_{i}": torch.randn(rows, length) for i in range(3)}
    lengths = np.linspace(1, length, rows).round().astype(np.int64)
    offsets = torch.from_numpy(np.concatenate([[0], np.cumsum(lengths)]))
    for i in range(3):
        values = torch.randn(int(lengths.sum()))
        data[f"jagged_{i}"] = torch.nested.nested_tensor_from_jagged(values, offsets)
    letters = np.frombuffer(b"0123456789abcdef", dtype=np.uint8)
    draw = np.random.default_rng(1)
    for i in range(3):
        texts = letters[draw.integers(0, 16, size=(rows, 4 * length))]
        data[f"text_{i}"] = [row.tobytes().decode() for row in texts]
    return data


def _bytes_of(data: dict[str, Any]) -> int:
    total = 0
    for value in data.values():
        if isinstance(value, list):
            total += sum(map(len, value))
        else:
            tensor = value.values() if value.is_nested else value
            total += tensor.numel() * tensor.element_size()
    return total


def _as_tensordict(data: dict[str, Any], rows: int) -> TensorDict:
    fields = {name: NonTensorStack(*value) if isinstance(value, list) else value for name, value in data.items()}
    return TensorDict(fields, batch_size=[rows])


# ---- Reading every byte.


def _read(value: Any) -> float:
    if isinstance(value, torch.Tensor):
        return float((value.values() if value.is_nested else value).sum())
    return float(sum(text.count("\n") for text in value))


def _read_tensordict(batch: TensorDict) -> float:
    return sum(_read(batch[name]) for name in batch.keys())


def _read_rows(rows: td.Rows) -> float:
    total = 0.0
    for name in rows.columns:
        column = rows[name]
        if column.kind == "dense":
            total += _read(column.torch())
        else:
            total += _read(column.values_torch() if column.kind == "ragged" else column.tolist())
    return total


# The first and the last row of each field.
Ends = dict[str, tuple[Any, Any]]


def _ends_of_tensordict(batch: TensorDict) -> Ends:
    ends = {}
    for name in batch.keys():
        value = batch[name]
        rows = value.unbind() if isinstance(value, torch.Tensor) else list(value)
        ends[name] = (rows[0], rows[-1])
    return ends


def _ends_of_rows(rows: td.Rows) -> Ends:
    def row(column: Any, i: int) -> Any:
        return column[i] if column.kind == "str" else torch.tensor(column[i])

    return {name: (row(rows[name], 0), row(rows[name], len(rows) - 1)) for name in rows.columns}


def _check(ours: Any, theirs: Any) -> None:
    """Raises AssertionError unless both sides return the same data: in sum, and in the same order."""
    sums = ours.get(), theirs.get()
    if abs(sums[0] - sums[1]) > 1e-3 * abs(sums[1]) + 1:
        raise AssertionError(f"the two systems returned different data: sums {sums[0]} and {sums[1]}")
    mine, other = ours.ends(), theirs.ends()
    if mine.keys() != other.keys():
        raise AssertionError(f"the two systems returned different fields: {sorted(mine)} and {sorted(other)}")
    for name, rows in mine.items():
        for one, two in zip(rows, other[name], strict=True):
            if not (torch.equal(one, two) if isinstance(one, torch.Tensor) else one == two):
                raise AssertionError(f"the two systems returned different rows of '{name}', or in another order")


# ---- Throughput.


@contextlib.contextmanager
def _dock(transport: str) -> Iterator[td.Dock]:
    with td.serve() as server:
        dock = td.Dock.connect(server.address if transport == "shm" else server.tcp_address)
        yield dock
        dock.close()


class _Native:
    """The package's own interface."""

    def __init__(self, dock: td.Dock, data: dict[str, Any], keys: list[str]) -> None:
        self._dock = dock
        self._data = data
        self._keys = keys
        dock.create_partition(PARTITION)

    def put(self) -> None:
        self._dock.put(PARTITION, self._data, keys=self._keys)

    def _fetch(self) -> td.Rows:
        rows = self._dock.find(PARTITION, self._keys)
        return self._dock.fetch(PARTITION, rows, list(self._data))

    def get(self) -> float:
        return _read_rows(self._fetch())

    def ends(self) -> Ends:
        return _ends_of_rows(self._fetch())

    def clear(self) -> None:
        self._dock.clear(PARTITION, everything=True)


class _Verbs:
    """TransferQueue's interface: theirs, or ours."""

    def __init__(self, module: Any, data: dict[str, Any], keys: list[str]) -> None:
        self._module = module
        self._data = _as_tensordict(data, len(keys))
        self._keys = keys

    def put(self) -> None:
        self._module.kv_batch_put(keys=self._keys, partition_id=PARTITION, fields=self._data)

    def _fetch(self) -> TensorDict:
        return self._module.kv_batch_get(keys=self._keys, partition_id=PARTITION)

    def get(self) -> float:
        return _read_tensordict(self._fetch())

    def ends(self) -> Ends:
        return _ends_of_tensordict(self._fetch())

    def clear(self) -> None:
        self._module.kv_clear(keys=self._keys, partition_id=PARTITION)


@contextlib.contextmanager
def _ours(kind: str, data: dict[str, Any], keys: list[str]) -> Iterator[Any]:
    if kind == "compat":
        import transfer_dock.compat.transfer_queue as tq

        tq.init({"controller": {"polling_mode": True}})
        try:
            yield _Verbs(tq, data, keys)
        finally:
            tq.close()
        return
    with _dock(kind) as dock:
        yield _Native(dock, data, keys)


def _throughput(kind: str, make: Callable[[bool], dict[str, Any]], verb: str) -> Any:
    @contextlib.contextmanager
    def prepare(quick: bool) -> Iterator[Sides]:
        import transfer_queue

        data = make(quick)
        keys = [f"test_key_{i}" for i in range(len(next(iter(data.values()))))]
        size = _bytes_of(data) / GIGA
        with systems.transfer_queue_system() as address, _ours(kind, data, keys) as ours:
            client = address.connect()
            theirs = _Verbs(transfer_queue, data, keys)
            ours.put()
            theirs.put()
            _check(ours, theirs)

            def put(side: Any) -> float:
                side.clear()
                return size / seconds(side.put)

            def get(side: Any) -> float:
                return size / seconds(side.get)

            one = put if verb == "put" else get
            yield lambda: one(ours), lambda: one(theirs)
            client.close()

    return prepare


# ---- Bare sockets: the same bytes over TCP, in memory that is there already, and nothing done with them.


def _keep_bytes(address: Connection, size: int) -> None:
    """A process that receives ``size`` bytes for each byte ``p``, and sends them for each ``g``."""
    kept = memoryview(bytearray(size))
    with socket.create_server(("127.0.0.1", 0)) as server:
        address.send(server.getsockname()[1])
        stream, _ = server.accept()
    with stream:
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while what := stream.recv(1):
            if what == b"g":
                stream.sendall(kept)
                continue
            at = 0
            while at < size:
                at += stream.recv_into(kept[at:])
            stream.sendall(b"!")


class _Sockets:
    def __init__(self, stream: socket.socket, data: dict[str, Any]) -> None:
        self._stream = stream
        self._data = data
        self._received = memoryview(bytearray(int(_bytes_of(data))))

    def put(self) -> None:
        self._stream.sendall(b"p")
        for value in self._data.values():
            if isinstance(value, list):
                self._stream.sendall("".join(value).encode())
            else:
                tensor = value.values() if value.is_nested else value
                self._stream.sendall(memoryview(tensor.numpy()).cast("B"))
        self._stream.recv(1)

    def get(self) -> float:
        self._stream.sendall(b"g")
        at, total = 0, 0.0
        while at < len(self._received):
            at += self._stream.recv_into(self._received[at:])
        at = 0
        for value in self._data.values():
            tensor = None if isinstance(value, list) else value.values() if value.is_nested else value
            size = sum(map(len, value)) if tensor is None else tensor.numel() * tensor.element_size()
            part = self._received[at : at + size]
            at += size
            if tensor is not None:
                total += _read(torch.frombuffer(part, dtype=tensor.dtype))
                continue
            text, begin = bytes(part).decode(), 0
            for row in value:
                total += text.count("\n", begin, begin + len(row))
                begin += len(row)
        return total

    def clear(self) -> None:
        pass


def _beside_sockets(make: Callable[[bool], dict[str, Any]], verb: str) -> Any:
    @contextlib.contextmanager
    def prepare(quick: bool) -> Iterator[Sides]:
        data = make(quick)
        keys = [f"test_key_{i}" for i in range(len(next(iter(data.values()))))]
        size = _bytes_of(data) / GIGA
        mine, other = multiprocessing.Pipe()
        process = multiprocessing.get_context("spawn").Process(target=_keep_bytes, args=(other, _bytes_of(data)))
        process.start()
        with socket.create_connection(("127.0.0.1", mine.recv())) as stream, _ours("tcp", data, keys) as ours:
            stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            theirs = _Sockets(stream, data)
            ours.put()
            theirs.put()
            if abs(ours.get() - theirs.get()) > 1e-3 * abs(ours.get()) + 1:
                raise AssertionError("the sockets carried different data")

            def one(side: Any) -> float:
                if verb == "put":
                    side.clear()
                return size / seconds(side.put if verb == "put" else side.get)

            yield lambda: one(ours), lambda: one(theirs)
        process.join()

    return prepare


# ---- Small puts.


def _row(rows: int) -> dict[str, Any]:
    """9 fields of 32 bytes."""
    return {f"field_{i}": torch.randn(rows, 8) for i in range(9)}


def _put1(kind: str) -> Any:
    @contextlib.contextmanager
    def prepare(quick: bool) -> Iterator[Sides]:
        import transfer_queue

        calls = 20 if quick else 500
        data = _row(1)
        names = itertools.count()
        with systems.transfer_queue_system() as address, _ours("compat" if kind == "compat" else "shm", {}, []) as ours:
            client = address.connect()
            batch = _as_tensordict(data, 1)

            def verbs(module: Any, count: int) -> float:
                def body() -> None:
                    for _ in range(count):
                        module.kv_batch_put(keys=[f"k{next(names)}"], partition_id=PARTITION, fields=batch)

                return seconds(body) / count * 1e3

            def native() -> float:
                def body() -> None:
                    for _ in range(calls):
                        ours._dock.put(PARTITION, data, keys=[f"k{next(names)}"])

                return seconds(body) / calls * 1e3

            # The peer is slow: fewer calls give the same mean. Its client.put takes as long as its kv_batch_put.
            theirs = lambda: verbs(transfer_queue, max(20, calls // 5))  # noqa: E731
            yield (native if kind != "compat" else lambda: verbs(ours._module, calls)), theirs
            client.close()

    return prepare


# How many puts each client makes into a partition: TransferQueue's become slower with the size of a partition.
_PUTS = 100


def _put_from(kind: str, where: Any, number: int, start: Any, orders: Connection) -> None:
    """A client process: when it is told to, puts 16 rows at a time for so many seconds, and says how many it put."""
    torch.set_num_threads(1)
    data, names = _row(16), itertools.count()
    if kind == "native":
        dock = td.Dock.connect(where)

        def put() -> None:
            count = next(names)
            if count % _PUTS == 0:
                dock.create_partition(f"{PARTITION} {number} {count // _PUTS}")
            dock.put(f"{PARTITION} {number} {count // _PUTS}", data)

    else:
        batch = _as_tensordict(data, 16)
        if kind == "compat":
            import transfer_dock.compat.transfer_queue as module

            client: Any = module.TransferQueueClient(f"client {number}", where)
        else:
            client = where.connect()

        def put() -> None:
            client.put(batch, partition_id=f"{PARTITION} {number} {next(names) // _PUTS}")

    put()
    while True:
        orders.send("ready")
        length = orders.recv()
        start.wait()
        done, until = 0, time.monotonic() + length
        while time.monotonic() < until:
            put()
            done += 16
        orders.send(done)


class _Clients:
    """Four client processes."""

    def __init__(self, kind: str, where: Any) -> None:
        context = multiprocessing.get_context("spawn")
        # Kept: it ends with this object, and the processes open it late.
        self._start = start = context.Barrier(4)
        self._orders = []
        self._processes = []
        for number in range(4):
            orders, other = context.Pipe()
            process = context.Process(target=_put_from, args=(kind, where, number, start, other), daemon=True)
            process.start()
            # So that a process that ends is seen.
            other.close()
            self._orders.append(orders)
            self._processes.append(process)

    def run(self, length: float) -> float:
        """The rows per second of all together."""
        for orders in self._orders:
            if orders.recv() != "ready":
                raise RuntimeError("a client process is out of step")
        for orders in self._orders:
            orders.send(length)
        return sum(orders.recv() for orders in self._orders) / length

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.join()


def _put16(kind: str) -> Any:
    @contextlib.contextmanager
    def prepare(quick: bool) -> Iterator[Sides]:
        length = 0.5 if quick else 3.0
        with systems.transfer_queue_system() as address, contextlib.ExitStack() as stack:
            if kind == "compat":
                import transfer_dock.compat.transfer_queue as tq

                where: Any = tq.init({"controller": {"polling_mode": True}}).controller.zmq_info
                stack.callback(tq.close)
            else:
                server = stack.enter_context(td.serve())
                where = server.tcp_address if kind == "tcp" else server.address
            sides = [_Clients("compat" if kind == "compat" else "native", where), _Clients("peer", address)]
            for side in sides:
                stack.callback(side.close)
            yield lambda: sides[0].run(length), lambda: sides[1].run(length)

    return prepare


# ---- The next rows of a large table.


def _fetch32(kind: str, rows: int) -> Any:
    @contextlib.contextmanager
    def prepare(quick: bool) -> Iterator[Sides]:
        total = 2000 if quick else rows
        calls = 5
        with systems.transfer_queue_system() as address, _ours("compat" if kind == "compat" else "shm", {}, []) as ours:
            theirs = address.connect()
            if kind == "compat":
                mine: Any = ours._module.get_client()
            else:
                mine = ours._dock
            for begin in range(0, total, 50_000):
                ids = torch.arange(8 * min(50_000, total - begin)).reshape(-1, 8)
                theirs.put(TensorDict({"ids": ids}, batch_size=[len(ids)]), partition_id=PARTITION)
                if kind == "compat":
                    mine.put(TensorDict({"ids": ids}, batch_size=[len(ids)]), partition_id=PARTITION)
                else:
                    mine.put(PARTITION, {"ids": ids})

            # Each run starts over with the first row, so that a table suffices for any number of runs; the first call
            # makes the task again, and is not counted.
            def verbs(client: Any, count: int) -> float:
                def body() -> None:
                    meta = client.get_meta(["ids"], 32, PARTITION, task_name="task")
                    if meta.size != 32:
                        raise AssertionError(f"{meta.size} rows were returned, and not 32")
                    _read_tensordict(client.get_data(meta))

                client.reset_consumption(PARTITION, "task")
                body()
                return seconds(lambda: [body() for _ in range(count)]) / count * 1e3

            def native() -> float:
                def body() -> None:
                    _read_rows(mine.take(PARTITION, "task", 32, min=32, timeout=0))

                with contextlib.suppress(td.NotFound):
                    mine.drop_consumer(PARTITION, "task")
                mine.register_consumer(PARTITION, "task", reads=["ids"], at_most_once=True)
                body()
                return seconds(lambda: [body() for _ in range(calls)]) / calls * 1e3

            yield (native if kind != "compat" else lambda: verbs(mine, calls)), lambda: verbs(theirs, 2)
            theirs.close()

    return prepare


def all_benchmarks() -> list[Benchmark]:
    made = []
    for kind in ("shm", "tcp", "compat"):
        for name, make in (("small_simple", _simple), ("small_complex", _complex)):
            for verb in ("put", "get"):
                place = f"compat/{name}" if kind == "compat" else f"{name}/{kind}"
                made.append(Benchmark(f"python/{place}/{verb}", "GB/s", _throughput(kind, make, verb)))
        for fields in (1, 8, 32):
            for verb in ("put", "get"):
                place = "compat/sweep" if kind == "compat" else f"sweep/{kind}"
                make = _sweep(fields)
                made.append(Benchmark(f"python/{place}/{verb}/fields={fields}", "GB/s", _throughput(kind, make, verb)))
    for name, make in (("small_simple", _simple), ("small_complex", _complex)):
        for verb in ("put", "get"):
            prepare = _beside_sockets(make, verb)
            made.append(Benchmark(f"python/sockets/{name}/{verb}", "GB/s", prepare, of="bare Python sockets"))
    for kind in ("native", "tcp", "compat"):
        place = {"native": "put16", "tcp": "put16/tcp", "compat": "compat/put16"}[kind]
        made.append(Benchmark(f"python/{place}/clients=4", "rows/s", _put16(kind)))
    for kind in ("native", "compat"):
        place = "compat/" if kind == "compat" else ""
        made.append(Benchmark(f"python/{place}put1", "ms", _put1(kind), higher_is_better=False))
        for rows in (1_000, 1_000_000):
            name = f"python/{place}fetch32/rows={rows}"
            made.append(Benchmark(name, "ms", _fetch32(kind, rows), higher_is_better=False))
    return made
