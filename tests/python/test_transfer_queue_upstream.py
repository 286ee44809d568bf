"""TransferQueue's own tests, tutorials and recipes, as its package carries them, on transfer_dock's module.

docs/transferqueue.md has the same numbers and cases. transfer_queue_upstream.py says which cases are not applicable, and why. The
programs that take a minute each run with TDOCK_UPSTREAM=all.
"""

from __future__ import annotations

import itertools
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
from waiting import LONG

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
SLOW = [
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
        timeout=4 * LONG,
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
        timeout=4 * LONG,
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0 and "Traceback" not in said, said[-8000:]


PROGRAMS = [str(path.relative_to(PACKAGES)) for path in sorted((PACKAGES / "tutorial").glob("*.py"))] + SLOW[1:]


@pytest.mark.parametrize("path", [path for path in PROGRAMS if path not in SLOW or os.environ.get("TDOCK_UPSTREAM") == "all"])
def test_its_tutorials_and_recipes_end_well(path: str, address: str) -> None:
    run_program(path, address)


def table(text: str, head: str) -> list[list[str]]:
    """Cells of the lines below the one line that begins like this."""
    _, found, below = text.partition(f"\n| {head}")
    assert found and f"\n| {head}" not in below, head
    lines = itertools.takewhile(lambda line: line.startswith("|"), below.splitlines()[2:])
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_the_documentation_has_the_same_counts() -> None:
    text = (pathlib.Path(os.environ["TDOCK_SOURCE"]) / "docs" / "transferqueue.md").read_text()
    counts = {}
    for file, passed in CASES.items():
        name = f"`{'e2e/' if file in ON_RAY else ''}{file}`"
        counts[name] = [str(passed), str(len(NOT_APPLICABLE.get(file, {})))]
    for folder in ("tutorial", "recipe"):
        programs = [path for path in PROGRAMS if path.startswith(f"{folder}/")]
        counts[f"`{folder}/`: {len(programs)} programs"] = [str(len(programs)), "0"]
    assert {name: told for name, *told in table(text, "file of TransferQueue")} == counts
    cases = [case.rpartition("::")[2] for cases in NOT_APPLICABLE.values() for case in cases]
    told = [case for named, _ in table(text, "case | why |") for case in re.findall("`([^`]+)`", named)]
    assert sorted(told) == sorted(cases)
    assert NOT_APPLICABLE.keys() <= CASES.keys() == {*ALONE, *ON_RAY} and set(SLOW) <= set(PROGRAMS)
