#!/usr/bin/env python3
"""An environment of `verifiers` trains a model by its URL alone: tests/nightly/agents.py TDOCK

Its tasks and its agent are in letters_taskset.py, and run in .venv-verifiers.
"""

import json
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PYTHON = ROOT / ".venv-verifiers/bin/python"


def train(tdock, folder, name, **overrides):
    """The mean reward of each step."""
    settings = {
        "model.path": "", "model.alphabet": "0123456789>ab", "model.hidden_size": 32, "model.num_hidden_layers": 1,
        "data.train_files": folder / "train.jsonl", "data.val_files": "[]", "data.train_batch_size": 8,
        "data.max_response_length": 16, "rollout.n": 8, "rollout.probe_prompts": 0, "actor.ppo_mini_batch_size": 8,
        "actor.kl_loss_coef": 0, "environment.function": "tests/nightly/letters_taskset.py:solve",
        "environment.python": PYTHON, "environment.max_turns": 4,
    } | {key.replace("__", "."): value for key, value in overrides.items()}  # fmt: skip
    command = [tdock, "train", "examples/python-environment/grpo.yaml", "--run-dir", folder / name]
    subprocess.run([*command, *(f"{key}={value}" for key, value in settings.items())], cwd=ROOT, check=True)
    steps = [json.loads(line) for line in (folder / name / "metrics.jsonl").read_text().splitlines()][1:]
    assert all(step["episode/forks"] == 0 for step in steps), steps
    return [step["reward/a/mean"] for step in steps]


def main():
    tdock = pathlib.Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        lines = [json.dumps({"prompt": f"{i:02}>", "answer": str(i)}) for i in range(40)]
        (folder / "train.jsonl").write_text("\n".join(lines))
        learned = train(tdock, folder, "learned", actor__optim__lr=2e-2, trainer__total_training_steps=12)
        control = train(tdock, folder, "control", actor__optim__lr=1e-12, trainer__total_training_steps=3)
    print(f"verifiers: the reward rises to {learned[-1]:.2f} from {learned[0]:.2f}; {control[-1]:.2f} without learning")
    assert learned[-1] > 0.5 and max(control) < 0.2, (learned, control)


if __name__ == "__main__":
    main()
