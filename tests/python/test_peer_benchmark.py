"""bench/peers/transferqueue: that it runs, and reports in the form of `tdock bench`."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

from waiting import LONG

RUN = pathlib.Path(os.environ["TDOCK_SOURCE"]) / "bench/peers/transferqueue/run.py"
NAMES = ["python/small_complex/shm/get", "python/compat/small_complex/get", "python/compat/fetch32/rows=1000"]


def run(*arguments: str) -> str:
    done = subprocess.run([sys.executable, str(RUN), *arguments], capture_output=True, text=True, timeout=4 * LONG)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_both_systems_are_measured_and_return_the_same_data(tmp_path: pathlib.Path) -> None:
    told = run("--quick", "--runs", "2", "--json", str(tmp_path / "figures.json"), *NAMES)
    report = json.loads((tmp_path / "figures.json").read_text())
    assert [result["name"] for result in report["results"]] == NAMES
    for result in report["results"]:
        assert result["name"] in told
        assert result["of"] == "TransferQueue" and result["ratio"] > 0 and result["median"] > 0
        assert len(result["runs"]) == len(result["reference_runs"]) == 2
    assert {"cpu", "cores", "memory_bytes", "kernel", "load_average", "time"} <= report["machine"].keys()
    assert report["settings"] == {"runs": 2, "threads": os.cpu_count(), "quick": True, "device": "cpu"}


def test_names_choose_benchmarks() -> None:
    assert run("--list", "python/put16").splitlines() == ["python/put16/clients=4  rows/s", "python/put16/tcp/clients=4  rows/s"]
    wrong = subprocess.run([sys.executable, str(RUN), "nonsense"], capture_output=True, text=True, timeout=4 * LONG)
    assert wrong.returncode == 2 and "no benchmark nonsense" in wrong.stderr
