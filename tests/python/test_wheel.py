"""The wheels, as their users get them: repaired, and installed into environments of their own."""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile

import pytest
from waiting import LONG

ROOT = pathlib.Path(os.environ["TDOCK_SOURCE"])
BUILD = pathlib.Path(os.environ["TDOCK_BUILD"])
HAS_TDOCK = (BUILD / "tdock").exists()
needs_tdock = pytest.mark.skipif(not HAS_TDOCK, reason="this build is one without libtorch")

OWN = f"cp{sys.version_info.major}{sys.version_info.minor}"
EXECUTABLES = ["tdock", "tdock-serve", "tdock-runs", "tdock-launch"] if HAS_TDOCK else []
PLUGINS = sorted(path.name for path in BUILD.glob("libtdock_*.so")) if HAS_TDOCK else []


def attempt(*command: str | pathlib.Path, timeout: float = LONG) -> subprocess.CompletedProcess[str]:
    # Nothing of the build is to be found.
    hidden = ("PYTHONPATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    return subprocess.run(command, env=environment, cwd="/", capture_output=True, text=True, timeout=timeout)


def run(*command: str | pathlib.Path, timeout: float = LONG) -> str:
    done = attempt(*command, timeout=timeout)
    assert done.returncode == 0, f"{command} exits {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, pathlib.Path]:
    """By the first part of their tags: cp311, cp312."""
    made = run(ROOT / "scripts/wheel.sh", tmp_path_factory.mktemp("wheel"), BUILD, timeout=1500).split()
    return {path.name.split("-")[2]: path for path in map(pathlib.Path, made)}


@pytest.fixture(scope="module")
def wheel(wheels: dict[str, pathlib.Path]) -> pathlib.Path:
    return wheels[OWN]


def packages_of(python: pathlib.Path) -> pathlib.Path:
    return pathlib.Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())


def borrow(python: pathlib.Path, folder: str | pathlib.Path) -> None:
    """Lets an environment see the packages of another one, which may have .pth files."""
    (packages_of(python) / "borrowed.pth").write_text(f"import site; site.addsitedir({str(folder)!r})\n")


def link(python: pathlib.Path, name: str) -> None:
    """Puts a package of the environment that runs the tests beside those of another one."""
    found = __import__(name).__file__
    assert found is not None
    for folder in pathlib.Path(found).parent.parent.glob(f"{name}*"):
        (packages_of(python) / folder.name).symlink_to(folder)


@pytest.fixture(scope="module")
def python(wheel: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A new environment with the wheel, which sees torch, ray, grpcio and pyarrow of the one that runs the tests."""
    folder = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", folder)
    python = folder / "bin/python"
    run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index", "--no-deps", wheel)
    borrow(python, sysconfig.get_path("purelib"))
    return python


@pytest.fixture
def bare(python: pathlib.Path, tmp_path: pathlib.Path) -> pathlib.Path:
    """A new environment with numpy and the package alone."""
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare")
    bare = tmp_path / "bare/bin/python"
    for folder in packages_of(python).glob("transfer_dock*"):
        shutil.copytree(folder, packages_of(bare) / folder.name, copy_function=os.link)
    link(bare, "numpy")
    return bare


def test_they_fit_most_systems_and_have_everything(wheels: dict[str, pathlib.Path]) -> None:
    assert wheels.keys() <= {OWN, "cp312"}
    for tag, wheel in wheels.items():
        abi = tag if tag == OWN else "abi3"
        # The glibc of Debian 12, at the latest.
        glibc = re.search(rf"-{tag}-{abi}-manylinux_2_([0-9]+)_x86_64", wheel.name)
        assert glibc is not None and int(glibc[1]) <= 36, wheel.name
        assert wheel.stat().st_size < 40 << 20
        names = zipfile.ZipFile(wheel).namelist()
        programs = [f"bin/{name}" for name in ("tdock-dock", *EXECUTABLES, *PLUGINS)]
        modules = ["__init__.py", "__main__.py", "executables.py", "_native.pyi", "py.typed", "controller/groups.py"]
        modules += [f"compat/{name}/__init__.py" for name in ("transfer_queue", "mindspeed", "drop_in/transfer_queue")]
        for name in programs + modules:
            assert f"transfer_dock/{name}" in names
        assert any(name.endswith("/LICENSE") for name in names)
        assert ("transfer_dock/_native.abi3.so" in names) == (abi == "abi3")
        # Each with the number that auditwheel gives it.
        libraries = [pathlib.PurePath(name).name for name in names if name.startswith("transfer_dock.libs/")]
        brought = {match[0] for match in (re.match(r"lib[a-z]+", name) for name in libraries) if match is not None}
        own = {"libabsl", "libcrypto", "libprometheus", "libssl", "libxxhash", "libyaml"}
        of_trainers = {"libbrotlicommon", "libbrotlidec", "libbrotlienc", "libcpp", "libpcre", "libseccomp", "libsentencepiece", "libsimdjson", "libutf"}
        assert brought - own <= (of_trainers if HAS_TDOCK else set())
        assert all(name.startswith("transfer_dock") for name in names), "nothing beside the package"


@needs_tdock
def test_what_it_asks_for_is_what_the_executables_are_linked_with(wheel: pathlib.Path) -> None:
    archive = zipfile.ZipFile(wheel)
    [metadata] = [name for name in archive.namelist() if name.endswith("/METADATA")]
    asked = re.findall(r"^Requires-Dist: (.*)$", archive.read(metadata).decode(), re.MULTILINE)
    version = archive.read("transfer_dock/bin/torch_version").decode().strip()
    assert f"torch=={version}; extra == 'train'" in [one.replace('"', "'") for one in asked]
    assert (ROOT / "requirements/torch.txt").read_text().split() == [f"torch=={version}"]
    arrow = re.search(r"^pyarrow==(\d+\.\d+)", (ROOT / "requirements/parquet.txt").read_text(), re.MULTILINE)
    assert arrow is not None
    assert f"pyarrow=={arrow[1]}.*; extra == 'parquet'" in [one.replace('"', "'") for one in asked]


# Its extension is loaded by the Python that it was built with; a newer one is no part of the tests' environments.
def test_the_extension_for_later_pythons_is_loaded_by_one(wheels: dict[str, pathlib.Path], tmp_path: pathlib.Path) -> None:
    if "cp312" not in wheels:
        pytest.skip("no Python 3.12 or later to build it with")
    cache = (ROOT / "build/wheel-abi3/CMakeCache.txt").read_text()
    later = re.search(r"^TDOCK_PYTHON_EXECUTABLE:FILEPATH=(.+)$", cache, re.MULTILINE)
    assert later is not None
    zipfile.ZipFile(wheels["cp312"]).extractall(tmp_path)
    program = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("_native", sys.argv[1])
native = importlib.util.module_from_spec(spec)
spec.loader.exec_module(native)
print(native.Cancel())
"""
    assert "Cancel" in run(later[1], "-c", program, tmp_path / "transfer_dock/_native.abi3.so")


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


# vLLM's environment is made by `scripts/setup.sh vllm`.
LIBRARIES = [f"{folder}/{name}" for folder, name in ((".venv-oracle", "transformers"), (".venv-generate-vllm", "vllm"))
             if list(ROOT.glob(f"{folder}/lib/python3*/site-packages/{name}"))]  # fmt: skip


@pytest.mark.parametrize("library", LIBRARIES)
def test_it_works_beside_libraries_of_models(bare: pathlib.Path, library: str) -> None:
    environment, name = library.split("/")
    for entry in packages_of(bare).glob("numpy*"):
        entry.unlink()
    borrow(bare, next((ROOT / environment).glob("lib/python3*/site-packages")))
    program = f"""
import torch, {name}, transfer_dock as td
with td.serve() as server:
    dock = server.connect()
    dock.create_partition("p", {{"x": "float32"}})
    print(dock.fetch("p", dock.put("p", {{"x": torch.ones(2)}}), ["x"])["x"].torch().sum().item())
"""
    assert run(bare, "-c", program).splitlines()[-1] == "2.0"


def test_its_executables_are_commands(python: pathlib.Path, tmp_path: pathlib.Path) -> None:
    for command in ([python.parent / "tdock-dock"], [python.parent / "tdock", "dock"]):
        assert run(*command, "--version").strip()
        assert "--socket" in run(*command, "serve", "--help")
    # As pipx does it: the commands are in a folder of PATH, and links to those of the environment.
    (tmp_path / "tdock").symlink_to(python.parent / "tdock")
    assert run("/usr/bin/env", "-i", f"PATH={tmp_path}", "tdock", "dock", "--version").strip()
    if HAS_TDOCK:
        assert run("/usr/bin/env", "-i", f"PATH={tmp_path}", "tdock", "--version").strip()
        assert "--model" in run(python, "-m", "transfer_dock", "serve", "--help")  # started by tdock
        assert "--nproc" in run(python, "-m", "transfer_dock", "launch", "--help")
        assert "prune" in run(python, "-m", "transfer_dock", "runs", "--help")


# From a file that the plugin for Parquet reads.
@needs_tdock
def test_it_trains_and_answers(python: pathlib.Path, tmp_path: pathlib.Path) -> None:
    import pyarrow
    import pyarrow.parquet

    tdock = python.parent / "tdock"
    problems = [(a, b) for a in range(10, 40) for b in range(10, 30)]
    rows = {"prompt": [f"{a}+{b}=" for a, b in problems], "answer": [str(a + b)[::-1] for a, b in problems]}
    pyarrow.parquet.write_table(pyarrow.table(rows), tmp_path / "train.parquet")
    options = [f"data.train_files={tmp_path}/train.parquet", f"data.val_files={tmp_path}/train.parquet"]
    options += ["trainer.total_training_steps=1", "data.train_batch_size=16"]
    run(tdock, "train", ROOT / "examples/arithmetic/sft.yaml", "--run-dir", tmp_path / "run", *options)
    answer = run(tdock, "generate", "--model", tmp_path / "run/checkpoint", "--prompt", "37+25=", "--max-new-tokens", "4")
    assert re.fullmatch(r"[0-9+=]*\n", answer)


@needs_tdock
def test_libraries_of_neighbours_are_found_without_variables(bare: pathlib.Path) -> None:
    link(bare, "torch")
    link(bare, "pyarrow")
    programs = packages_of(bare) / "transfer_dock/bin"
    for name in (*EXECUTABLES, *PLUGINS):
        found = run("ldd", programs / name)
        assert "not found" not in found, found
        if name in EXECUTABLES:
            assert f"{programs}/../../torch/lib/libtorch.so" in found
    assert run(programs / "tdock", "--version").strip()


@needs_tdock
def test_it_says_which_torch_it_needs(bare: pathlib.Path) -> None:
    ask = (bare, "-m", "transfer_dock", "train", "run.yaml")
    version = (ROOT / "requirements/torch.txt").read_text().strip().partition("==")[2]
    for named in ("transfer-dock 0.1.0", f"torch {version}", "no torch", 'pip install "transfer-dock[train]"\n'):
        assert named in attempt(*ask).stderr
    assert attempt(*ask).returncode == 2
    assert run(bare, "-m", "transfer_dock", "dock", "--version").strip()
    torch = packages_of(bare) / "torch"
    torch.mkdir()
    (torch / "__init__.py").write_text("raise RuntimeError('it was imported')")
    (torch / "version.py").write_text("__version__ = '2.6.0+cu124'\n")
    assert "torch 2.6.0+cu124" in attempt(*ask).stderr


def test_uv_installs_it(wheel: pathlib.Path, tmp_path: pathlib.Path) -> None:
    uv = shutil.which("uv", path=f"{pathlib.Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if uv is None:
        pytest.skip("no uv in the environment of the tests: requirements/peers.txt")
    python = tmp_path / "environment/bin/python"
    run(uv, "venv", "--offline", "--no-config", "--quiet", "--python", sys.executable, tmp_path / "environment")
    for mode in ("copy", "symlink"):
        install = [uv, "pip", "install", "--offline", "--no-config", "--quiet", "--cache-dir", tmp_path / "cache"]
        run(*install, "--link-mode", mode, "--reinstall", "--no-deps", "--python", python, wheel)
        borrow(python, sysconfig.get_path("purelib"))
        assert run(python.parent / "tdock", "--version" if HAS_TDOCK else "dock").strip()
        assert run(python, "-c", "import transfer_dock as td; print(td.serve().pid)").strip()


def test_neither_torch_nor_what_it_is_compared_with_is_needed(bare: pathlib.Path) -> None:
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
    assert run(bare, "-c", program) == "[1.5] False\n"
