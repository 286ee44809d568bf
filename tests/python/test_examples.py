"""The examples in examples/python and examples/plain-client. That of Ray is in test_ray.py."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import re
import subprocess
import sys
from typing import Any

import pytest
import transfer_dock as td
from waiting import LONG

EXAMPLES = pathlib.Path(os.environ["TDOCK_SOURCE"]) / "examples/python"


def run(name: str, python: str = sys.executable) -> list[str]:
    offline = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [python, str(EXAMPLES / name)], env=offline, stdout=subprocess.PIPE, text=True, check=True, timeout=4 * LONG
    )
    return done.stdout.splitlines()


@pytest.mark.parametrize("kind", ["unix", "tcp", "token"])
def test_the_plain_client_needs_no_package(kind: str, server: td.Server) -> None:
    with td.DockServer(listen="127.0.0.1:0", token="open-sesame") as guarded:
        arguments = {"unix": [server.address], "tcp": [server.tcp_address], "token": [guarded.tcp_address, "open-sesame"]}[kind]
        program = EXAMPLES.parent / "plain-client/client.py"
        # -S: without packages.
        done = subprocess.run([sys.executable, "-S", program, *arguments], env={}, stdout=subprocess.PIPE, text=True, check=True, timeout=LONG)
    assert done.stdout.splitlines() == ["put [0, 1, 2]", "0 seven 0.5", "1  -1.0", "2 11 2.0", "done"]


def test_the_environment_loop_plays_every_episode() -> None:
    assert run("async_environment.py") == ["100 episodes of 1 to 7 guesses", "mean reward 0.192"]


def test_the_trainer_goes_on_from_its_checkpoint() -> None:
    assert run("torch_trainer.py") == [
        "died: 40 rows done, 8 of them not committed",
        "step 20: 160 rows done, 0 of them not committed",
    ]


def test_trl_learns_from_the_samples_of_a_dock() -> None:
    # In the environment of tests that has TRL.
    *_, told = run("trl_grpo.py", str(EXAMPLES.parent.parent / ".venv-oracle/bin/python"))
    first, last = map(float, re.findall(r"-?\d+\.\d+", told))
    assert first < 0.4 and last > 0.6


def test_the_notebook_runs(capsys: pytest.CaptureFixture[str]) -> None:
    notebook = json.loads((EXAMPLES / "first_hour.ipynb").read_text())
    names: dict[str, Any] = {}
    shown = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        assert cell["cell_type"] == "markdown" or cell["outputs"] == []
        if cell["cell_type"] == "code":
            # The last expression of a cell is shown.
            *_, last = source.splitlines()
            with contextlib.suppress(SyntaxError):
                compile(last, "last", "eval")
                source = source.removesuffix(last) + f"shown = {last}"
            exec(compile(source, "cell", "exec"), names)
            shown.append(names.pop("shown", None))
    assert repr(shown[0]) == repr(td.Dock.local())
    assert repr(shown[2]).startswith("<Rows: 4 rows\n") and "'10+7='" in repr(shown[2])
    assert "of 200 are right" in shown[3]
    assert repr(shown[4]).startswith("<PartitionStatus: 200 rows in 50 groups")
    assert "stage" in capsys.readouterr().err
