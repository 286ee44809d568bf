"""What the oracle tests share: the programs under test, and a short run of the trainer.

TDOCK_BUILD is the build folder, build/release where it is not set. TDOCK_RUN_DIR is the directory of a finished run;
where it is not set, a short one is made, of a model with grouped-query attention.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")  # several threads spin, which takes longer on a busy machine
os.environ.setdefault("HF_HUB_OFFLINE", "1")

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.append(str(ROOT / "tests/integration"))  # for messages.py and waiting.py
BUILD = Path(os.environ.get("TDOCK_BUILD", ROOT / "build/release")).resolve()


def run_program(name, *arguments, **options):
    """The standard output of a program of the build."""
    result = subprocess.run([BUILD / name, *map(str, arguments)], cwd=ROOT, capture_output=True, **options)
    assert result.returncode == 0, f"{name}: {result.stderr.decode()}"
    return result.stdout


@pytest.fixture(scope="session")
def run_dir(tmp_path_factory):
    if "TDOCK_RUN_DIR" in os.environ:
        return Path(os.environ["TDOCK_RUN_DIR"])
    folder = tmp_path_factory.mktemp("runs")
    return train_addition(
        folder, folder / "short", "model.hidden_size=48", "model.intermediate_size=96", "model.num_hidden_layers=2",
        "model.num_key_value_heads=2",
    )  # fmt: skip


def train_addition(data, folder, *overrides):
    """Sixty supervised steps on addition, whose files are written to the folder `data`."""
    subprocess.run(["python3", "examples/arithmetic/make_data.py", data], cwd=ROOT, check=True)
    run_program(
        "tdock", "train", "examples/arithmetic/sft.yaml", "--run-dir", folder, f"data.train_files={data}/train.jsonl",
        f"data.val_files={data}/validation.jsonl", "trainer.total_training_steps=60", "trainer.test_freq=30",
        "trainer.stop_when=", *overrides,
    )  # fmt: skip
    return folder
