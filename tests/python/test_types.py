"""The types of the package, as users' checkers see them."""

from __future__ import annotations

import inspect
import os
import pathlib
import subprocess
import sys

import transfer_dock as td
from transfer_dock import _native, controller

from waiting import LONG

ROOT = pathlib.Path(os.environ["TDOCK_SOURCE"])
PACKAGE = pathlib.Path(os.environ["TDOCK_BUILD"]) / "python"


def check(folder: pathlib.Path, *what: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--cache-dir", str(folder / "cache"), *what],
        env=os.environ | {"MYPYPATH": str(PACKAGE)}, cwd=folder, capture_output=True, text=True, timeout=4 * LONG,
    )  # fmt: skip
    return done.stdout + done.stderr


def test_the_package_is_typed_strictly(tmp_path: pathlib.Path) -> None:
    assert check(tmp_path, "-p", "transfer_dock") == ""


PROGRAM = """
import transfer_dock as td

dock = td.Dock.local()
dock.create_partition("p", {"x": td.column("float32", (2,)), "s": "str"})
ids = dock.put("p", {"s": ["a"]}, keys=["k"], timeout=None)
with dock.take("p", "c", max=2) as taken:
    taken.put({"x": taken["s"].lengths()})
    reveal_type(taken)
reveal_type(dock.fetch("p", ids, ["x"])["x"].numpy())
reveal_type(dock.status("p").consumers["c"].ready)
reveal_type(dock.list("p")[0][0].key)


async def take() -> None:
    reveal_type(await dock.aio.take("p", "c", max=2, timeout=1.0))
    reveal_type(await dock.aio.partition("p").take("c", max=2, timeout=1.0))
    await dock.aio.partition("p").take("p", "c")


dock.take("p", max="2")
p = dock.partition("p")
reveal_type(p.take("c", max=2))
p.take(max="2")
p.put({"s": ["a"]}, key=["k"])
"""


def test_users_get_types(tmp_path: pathlib.Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    told = check(tmp_path, "program.py")
    for revealed in ("transfer_dock.calls.Taken", "numpy.ndarray", "int", "str | None"):
        assert f'note: Revealed type is "{revealed}' in told
    assert told.count('note: Revealed type is "transfer_dock.calls.Taken') == 4
    assert 'Missing positional argument "consumer"' in told and "Too few arguments" in told
    assert told.count('incompatible type "str"; expected "int"') == 3
    assert 'Unexpected keyword argument "key"' in told
    assert told.count("error:") == 6


# Each line is an error, but for those of the last part.
WRONG = """
import numpy as np
import torch
import transfer_dock as td
from transfer_dock.datasets import DockDataset

dock = td.Dock.local()
dock.register_consumer("p", "c", reads="prompt")
dock.register_consumer("p", "c", reads=["prompt"], writes="reward")
dock.fetch("p", [0], "prompt")
dock.find("p", "key")
dock.put("p", {"x": [1]}, keys="key")
dock.create_partition("p", retain_for="c")
DockDataset(dock, "p", "c", batch_size=1, columns="x")
td.stage(reads="prompt")
td.stage(reads=["prompt"], unit="rows")
dock.register_consumer("p", "c", reads=["x"], sampler="random")
dock.register_consumer("p", "c", reads=["x"], stale="keep")
dock.row_status("p", 0).consumers[0].state == "done!"
dock.create_partition("p", {"x": int})
td.column(float)
"""
RIGHT = """
dock.register_consumer("p", "c", reads=("prompt",), writes=[], unit="group", sampler="uniform", stale="drop")
dock.put("p", {"x": [1, 2]}, keys=["a", None])
dock.create_partition("p", {"x": np.float32, "y": np.dtype("int64"), "z": torch.bfloat16, "s": str, "b": "bytes"})
td.column(torch.float8_e4m3fn, 3)
dock.take("p", "c", cancel=td.Cancel())
"""


def test_mistakes_are_found_before_a_program_runs(tmp_path: pathlib.Path) -> None:
    (tmp_path / "program.py").write_text(WRONG + RIGHT)
    told = check(tmp_path, "program.py")
    lines = [int(line.split(":")[1]) for line in told.splitlines() if "error:" in line]
    first = WRONG.splitlines().index('dock.register_consumer("p", "c", reads="prompt")') + 1
    assert lines == [*range(first, len(WRONG.splitlines()) + 1)], told


def test_no_public_signature_has_a_private_parameter() -> None:
    for kind in (td.Dock, td.Partition, type(td.Dock.local().aio), td.Taken, td.Server, td.DockServer, td.Runner):
        for name, function in inspect.getmembers(kind, inspect.isfunction):
            if not name.startswith("_"):
                private = [one for one in inspect.signature(function).parameters if one.startswith("_")]
                assert not private, f"{kind.__name__}.{name}"


def test_the_stubs_name_what_the_extension_has() -> None:
    stubs = (ROOT / "python/transfer_dock/_native.pyi").read_text()
    controller_kinds = (
        *(_native.Batch, _native.RowsRef, _native.Future, _native.WorkerGroup),
        *(_native.Controller, _native.Calls, _native.Session),
    )
    for kind in (td.Column, td.Rows, td.Cancel, _native.Dock, _native.DockServer, _native.ServerProcess, *controller_kinds):
        own = stubs[stubs.index(f"\nclass {kind.__name__}:") + 1 :]
        own = own[: own.find("\nclass ") if "\nclass " in own else len(own)]
        there = {
            name
            for name in vars(kind)
            if not name.startswith("__") or name in ("__len__", "__getitem__", "__iter__", "__contains__")
        }
        # The verbs that never wait come from one list, and have no lines of their own.
        for name in there if kind is not _native.Dock else ():
            assert f"def {name}(" in own or f"    {name}: " in own, f"{kind.__name__}.{name} is not in the stubs"


def test_everything_that_is_public_is_documented() -> None:
    kinds = (td.DockError, td.Dock, td.DockServer, td.Partition, td.Server, td.Taken)
    kinds += (controller.WorkerGroup, controller.Controller, controller.Future, controller.ResourcePoolManager)
    for name, thing in [
        *((name, getattr(td, name)) for name in td.__all__),
        *((name, getattr(controller, name)) for name in controller.__all__),
    ]:
        if inspect.isclass(thing) and issubclass(thing, kinds):
            assert inspect.getdoc(thing), name
            for member, function in inspect.getmembers(thing, inspect.isfunction):
                if not member.startswith("_"):
                    assert inspect.getdoc(function), f"{name}.{member}"
