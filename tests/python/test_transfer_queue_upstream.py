"""TransferQueue's own tests, tutorials and recipes, as its package carries them, on transfer_dock's module.

docs/transferqueue.md has the same numbers. transfer_queue_upstream.py says which cases are not applicable, and why. The
programs that take a minute each run with TDOCK_UPSTREAM=all.
"""

from __future__ import annotations

import json
import os
import pathlib
import re
import subprocess
import sys
from typing import Any

import pytest
import ray
import transfer_queue
from transfer_queue_upstream import NOT_APPLICABLE

import transfer_dock.compat

HERE = pathlib.Path(__file__).parent
PACKAGES = pathlib.Path(transfer_queue.__file__).resolve().parent.parent
DROP_IN = pathlib.Path(transfer_dock.compat.__file__).parent / "drop_in"

# How many cases pass; those that are skipped are for storage that is not installed.
CASES = {
    "test_metadata.py": 47,
    "test_samplers.py": 64,
    "test_streaming_dataset.py": 3,
    "test_metrics.py": 15,
    "test_kv_interface_e2e.py": 56,
    "test_e2e_lifecycle_consistency.py": 8,
    "test_checkpoint_e2e.py": 12,
}
ALONE = ["test_metadata.py", "test_samplers.py", "test_streaming_dataset.py", "test_metrics.py"]
ON_RAY = ["test_kv_interface_e2e.py", "test_e2e_lifecycle_consistency.py", "test_checkpoint_e2e.py"]
# They sleep most of a minute.
LONG = [
    "tutorial/06_streaming_dataloader.py",
    "recipe/simple_use_case/relax_demo.py",
    "recipe/simple_use_case/single_controller_demo.py",
]


def environment(**more: str) -> dict[str, str]:
    found = {name: value for name, value in os.environ.items() if not name.startswith("TDOCK_TRANSFER_QUEUE")}
    path = os.pathsep.join([str(DROP_IN), str(HERE), found["PYTHONPATH"]])
    return {**found, "PYTHONPATH": path, "RAY_DEDUP_LOGS": "0", **more}


def run_files(folder: pathlib.Path, files: list[str], tmp_path: pathlib.Path, **more: str) -> dict[str, Any]:
    report = tmp_path / "report.json"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "transfer_queue_upstream"]
        + ["--rootdir", str(folder), "--basetemp", str(tmp_path / "base"), "--tb=short", *files],
        cwd=folder,
        env=environment(TDOCK_UPSTREAM_REPORT=str(report), **more),
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    told: dict[str, Any] = json.loads(report.read_text())
    return told


def test_what_it_tests_without_ray(tmp_path: pathlib.Path) -> None:
    told = run_files(PACKAGES / "tests", ALONE, tmp_path)
    assert told == {file: {"passed": CASES[file], "others": {}} for file in ALONE}


@pytest.fixture(scope="module")
def address() -> Any:
    """Of a cluster that all programs join: to start one each would take most of the time."""
    with pytest.MonkeyPatch.context() as patch:
        # Workers have the environment in which the cluster was started.
        patch.setenv("PYTHONPATH", environment()["PYTHONPATH"])
        context = ray.init(num_cpus=16, include_dashboard=False, object_store_memory=78 * 2**20, log_to_driver=False)
    yield context.address_info["gcs_address"]
    ray.shutdown()


def test_what_it_tests_on_ray(address: str, tmp_path: pathlib.Path) -> None:
    told = run_files(PACKAGES / "tests" / "e2e", ON_RAY, tmp_path, RAY_ADDRESS=address)
    assert {file: one["passed"] for file, one in told.items()} == {file: CASES[file] for file in ON_RAY}
    assert {outcome for one in told.values() for outcome in one["others"].values()} <= {"skipped"}


def run_program(path: str, address: str) -> None:
    done = subprocess.run(
        [sys.executable, str(PACKAGES / path)],
        env=environment(RAY_ADDRESS=address),
        capture_output=True,
        text=True,
        timeout=280,
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0 and "Traceback" not in said, said[-8000:]


PROGRAMS = [str(path.relative_to(PACKAGES)) for path in sorted((PACKAGES / "tutorial").glob("*.py"))] + LONG[1:]


@pytest.mark.parametrize("path", [path for path in PROGRAMS if path not in LONG or os.environ.get("TDOCK_UPSTREAM") == "all"])
def test_its_tutorials_and_recipes_end_well(path: str, address: str) -> None:
    run_program(path, address)


def test_the_documentation_says_so() -> None:
    text = (pathlib.Path(os.environ["TDOCK_SOURCE"]) / "docs" / "transferqueue.md").read_text()
    for file, passed in CASES.items():
        left_out = len(NOT_APPLICABLE.get(file, {}))
        assert re.search(rf"\| `(e2e/)?{file}` \| {passed} \| {left_out} \|", text), file
    for cases in NOT_APPLICABLE.values():
        for case in cases:
            assert f"`{case.rpartition('::')[2]}`" in text, case
    assert len(PROGRAMS) == 8 and set(LONG) <= set(PROGRAMS)
