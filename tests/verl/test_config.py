"""verl's own default files, as its wheel ships them, are configurations of tdock."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess

import pytest
import verl

TDOCK = pathlib.Path(os.environ["TDOCK_BUILD"]) / "tdock"
MODEL = pathlib.Path(__file__).parents[1] / "data" / "checkpoint_1"
CONFIGS = pathlib.Path(verl.__file__).parent / "trainer" / "config"
BATCH = 1024  # prompts of a step in these files


@pytest.mark.parametrize("recipe", ["ppo", "grpo"])
@pytest.mark.parametrize("name", ["ppo_trainer", "ppo_megatron_trainer"])
def test_a_default_file_loads_with_few_notes(name: str, recipe: str, tmp_path: pathlib.Path) -> None:
    data = tmp_path / "train.jsonl"
    data.write_text("".join(json.dumps({"prompt": f"{i % 100:02}>", "answer": f"{i % 100:02}"[::-1]}) + "\n" for i in range(BATCH)))
    overrides = [
        f"recipe={recipe}", f"data.train_files=[{data}]", "data.val_files=[]", "data.max_prompt_length=8",
        "data.max_response_length=8", f"actor_rollout_ref.model.path={MODEL}", "trainer.device=cpu",
    ]  # fmt: skip
    overrides += [f"critic.model.path={MODEL}"] if recipe == "ppo" else ["algorithm.adv_estimator=grpo", "rollout.n=4"]
    command = [TDOCK, "preflight", CONFIGS / f"_generated_{name}.yaml", "--lenient", *overrides]
    checked = subprocess.run(command, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr
    notes = [line for line in checked.stderr.splitlines() if line.startswith("note: ")]
    assert 0 < len(notes) <= 40, checked.stderr
    assert "unknown" not in checked.stderr
