"""What the oracle tests share: the programs under test, and a short run of the trainer.

TDOCK_BUILD is the build folder, build/release where it is not set. TDOCK_RUN_DIR is the directory of a finished run;
where it is not set, a short one is made, of a model with grouped-query attention.
"""

import os
import subprocess
from pathlib import Path

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")  # several threads spin, which takes longer on a busy machine
os.environ.setdefault("HF_HUB_OFFLINE", "1")

ROOT = Path(__file__).resolve().parent.parent.parent
BUILD = Path(os.environ.get("TDOCK_BUILD", ROOT / "build/release")).resolve()


def run_program(name, *arguments, **options):
    """Runs a program of the build; its standard output."""
    result = subprocess.run([BUILD / name, *map(str, arguments)], cwd=ROOT, capture_output=True, timeout=240, **options)
    assert result.returncode == 0, f"{name}: {result.stderr.decode()}"
    return result.stdout


@pytest.fixture(scope="session")
def run_dir(tmp_path_factory):
    if "TDOCK_RUN_DIR" in os.environ:
        return Path(os.environ["TDOCK_RUN_DIR"])
    folder = tmp_path_factory.mktemp("runs") / "short"
    run_program(
        "tdock", "train", "examples/arithmetic/grpo.yaml", "--run-dir", folder,
        "model.hidden_size=48", "model.intermediate_size=96", "model.num_hidden_layers=2",
        "model.num_key_value_heads=2", "warmup.max_steps=60", "warmup.target_accuracy=1", "warmup.test_freq=30",
        "data.train_batch_size=32", "actor.ppo_mini_batch_size=16", "trainer.total_training_steps=2",
    )  # fmt: skip
    return folder
