"""The programs of the documentation."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys
import textwrap

from waiting import LONG

ROOT = pathlib.Path(os.environ["TDOCK_SOURCE"])


def programs(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


def run(program: str, folder: pathlib.Path | None = None) -> str:
    return subprocess.run(
        [sys.executable, "-c", program], cwd=folder, check=True, stdout=subprocess.PIPE, text=True, timeout=LONG
    ).stdout


def test_the_guide_does_what_it_says(tmp_path: pathlib.Path) -> None:
    # The first is that of test_training_trainers.py.
    _, configuration, local, served, handle, stages, batches, coroutines = programs("docs/python.md")
    assert run(local) == "[0. 1.]\n"
    # The same with a server: its lines in place of the local dock.
    assert "dock = td.Dock.local()\n" in local
    assert run(local.replace("dock = td.Dock.local()\n", served)) == "[0. 1.]\n"
    assert run(handle) == "['37+85=', '12+30='] [1. 0.]\n"
    assert run(stages) == "['37+85=', '37+85='] [1. 0.]\n"
    assert run(batches) == "2 2.0\n" * 4
    assert run(configuration, tmp_path) == "True 1.0 ['optim.lr']\n"
    assert run(coroutines) == "[3. 2.]\n"


def test_the_page_about_trl_does_what_it_says(tmp_path: pathlib.Path) -> None:
    (program,) = programs("docs/from-trl.md")
    assert run(program, tmp_path) == "256 8\n"


def test_the_guide_of_controllers_does_what_it_says(tmp_path: pathlib.Path) -> None:
    (program,) = programs("docs/python-controller.md")
    file = tmp_path / "program.py"  # workers import it
    file.write_text(program)
    told = subprocess.run([sys.executable, file], check=True, stdout=subprocess.PIPE, text=True, timeout=LONG).stdout
    assert told.splitlines() == [
        "['rank 0 of 2', 'rank 1 of 2']",
        "[4.5 4.  0.  0.5] {'metrics': {'longest': [9, 1]}}",
    ]


def test_the_readme_does_what_it_says() -> None:
    _, program = programs("README.md")  # the first is that of test_training_trainers.py
    assert run(program) == "['37+85=', '12+30='] [1. 0.]\n"


def test_the_package_shows_an_example_that_works() -> None:
    import transfer_dock

    assert transfer_dock.__doc__ is not None
    example = transfer_dock.__doc__.split("\n\n", 1)[1]
    assert run(textwrap.dedent(example)) == "['37+85=', '12+30='] [1. 0.]\n"
