"""The wheel, as its users get it: repaired, and installed into an environment of its own."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys
import sysconfig
import zipfile

import pytest
from waiting import LONG

ROOT = pathlib.Path(os.environ["TDOCK_SOURCE"])


def run(*command: str | pathlib.Path, timeout: float = LONG) -> str:
    # Nothing of the build is to be found.
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "LD_LIBRARY_PATH")}
    done = subprocess.run(command, env=environment, cwd="/", capture_output=True, text=True, timeout=timeout)
    assert done.returncode == 0, f"{command} exits {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return pathlib.Path(run(ROOT / "scripts/wheel.sh", str(tmp_path_factory.mktemp("wheel")), timeout=1500).strip())


@pytest.fixture(scope="module")
def python(wheel: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A new environment with the wheel, which sees torch, ray, grpcio and pyarrow of the one that runs the tests."""
    folder = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", folder)
    python = folder / "bin/python"
    run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index", "--no-deps", str(wheel))
    packages = pathlib.Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    # addsitedir: what is there has .pth files of its own.
    (packages / "borrowed.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    return python


def test_it_fits_most_systems_and_has_everything(wheel: pathlib.Path) -> None:
    version = f"cp{sys.version_info.major}{sys.version_info.minor}"
    assert f"-{version}-{version}-manylinux_2_" in wheel.name
    assert wheel.stat().st_size < 64 << 20
    names = zipfile.ZipFile(wheel).namelist()
    for name in ("__init__.py", "_native.pyi", "py.typed", "bin/tdock-dock", "compat/transfer_queue/__init__.py", "compat/mindspeed/__init__.py", "compat/drop_in/transfer_queue/__init__.py", "controller/groups.py"):
        assert f"transfer_dock/{name}" in names
    assert any(name.endswith("/LICENSE") for name in names)
    libraries = [name for name in names if ".so" in name]
    # Each with the number that auditwheel gives it.
    brought = {re.match(r"lib[a-z]+", pathlib.PurePath(name).name)[0] for name in libraries if name.startswith("transfer_dock.libs/")}
    assert brought == {"libabsl", "libcrypto", "libprometheus", "libssl", "libxxhash"}
    assert all(name.startswith("transfer_dock") for name in names), "nothing beside the package"


# gRPC's Python package, ray and pyarrow bring Abseil and TLS of their own.
PROGRAM = """
import concurrent.futures, pathlib, sys
for name in sys.argv[1:]:
    __import__(name)
import grpc, pyarrow, pyarrow.compute, ray, torch, transfer_dock as td

here = pathlib.Path(td.__file__).parent
assert here.parent.name == "site-packages" and sys.prefix in str(here), here

class Twice(grpc.GenericRpcHandler):
    def service(self, details):
        return grpc.unary_unary_rpc_method_handler(lambda request, context: request * 2)

others = grpc.server(concurrent.futures.ThreadPoolExecutor(2), handlers=[Twice()])
port = others.add_insecure_port("127.0.0.1:0")
others.start()

with td.serve() as server, td.DockServer(listen="127.0.0.1:0") as inside:
    for address in (server.address, server.tcp_address, inside.tcp_address):
        dock = td.Dock.connect(address)
        dock.create_partition("train", {"text": "str", "tokens": td.column("int64", ragged=True), "reward": "bfloat16"})
        dock.register_consumer("train", "trainer", reads=["text", "tokens", "reward"])
        tokens = [torch.arange(n) for n in (1, 2, 3)]
        dock.put("train", {"text": ["a", "b", "c"], "tokens": tokens, "reward": torch.ones(3, dtype=torch.bfloat16)})
        with dock.take("train", "trainer", max=3) as rows:
            assert rows["text"].tolist() == ["a", "b", "c"]
            assert pyarrow.compute.sum(pyarrow.array(rows["tokens"].values())).as_py() == 4
            assert float(rows["reward"].torch().sum()) == 3.0
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            assert channel.unary_unary("/other/Twice")(b"ab", timeout=300) == b"abab"
        dock.close()
others.stop(None)

maps = pathlib.Path("/proc/self/maps").read_text().splitlines()
native = {line.split()[-1] for line in maps if "/libabsl" in line or "/libxxhash" in line}
assert native and all("transfer_dock.libs" in path for path in native), native
print("fine")
"""


@pytest.mark.parametrize("first", ["transfer_dock", "grpc", "ray", "pyarrow", "torch"])
def test_it_works_beside_packages_with_libraries_of_their_own(python: pathlib.Path, first: str) -> None:
    assert run(python, "-c", PROGRAM, first).splitlines()[-1] == "fine"


def test_the_server_in_it_is_a_command(python: pathlib.Path) -> None:
    command = python.parent / "tdock-dock"
    assert run(command, "--version").strip()
    assert "--socket" in run(command, "serve", "--help")


def test_neither_torch_nor_what_it_is_compared_with_is_needed(wheel: pathlib.Path, tmp_path: pathlib.Path) -> None:
    run(sys.executable, "-m", "venv", tmp_path / "bare")
    packages = run(tmp_path / "bare/bin/python", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
    zipfile.ZipFile(wheel).extractall(packages)
    import numpy

    for folder in pathlib.Path(numpy.__file__).parent.parent.glob("numpy*"):
        (pathlib.Path(packages) / folder.name).symlink_to(folder)
    program = """
import sys, transfer_dock as td, transfer_dock.stages, transfer_dock.controller as tc
dock = td.Dock.local()
dock.create_partition("p", {"x": "float32"})
class Twice:
    @tc.register(tc.Dispatch.DP_COMPUTE)
    def double(self, x):
        return 2 * x

with tc.WorkerGroup.in_process(tc.ClassWithInitArgs(Twice), 2) as group:
    assert group.double([1, 2]) == [2, 4]
print(dock.fetch("p", dock.put("p", {"x": [1.5]}), ["x"])["x"].numpy(), "torch" in sys.modules)
"""
    assert run(tmp_path / "bare/bin/python", "-c", program) == "[1.5] False\n"
