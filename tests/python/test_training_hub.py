"""A trainer that takes its model and data from the Hub, and gives a model back, against a stand-in of it on this machine."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import hub_stand_in
from waiting import LONG

sys.path.append(os.path.join(os.environ["TDOCK_SOURCE"], "tests/integration"))
from generate_test import write_model

PROGRAM = """
import transfer_dock as td
args = td.SFTConfig(output_dir="out", max_steps=2, per_device_train_batch_size=4, max_length=64, disable_tqdm=True)
trainer = td.SFTTrainer("org/tiny", args, train_dataset="org/talks", eval_dataset="org/talks")
trainer.train()
print(trainer.push_to_hub("me/mine", private=True, token="writer"))
"""
TALK = '{"messages": [{"role": "user", "content": "1+%d"}, {"role": "assistant", "content": "%d"}]}\n'


def test_a_model_comes_from_the_hub_and_goes_back(tmp_path: pathlib.Path) -> None:
    model = write_model(tmp_path / "model", max_position_embeddings=2048)
    talks = {part: "".join(TALK % (i, i + 1) for i in numbers).encode() for part, numbers in (("train", range(8)), ("test", range(8, 12)))}
    with hub_stand_in.serve() as hub:
        hub.repos["models/org/tiny"] = hub_stand_in.Repo({file.name: file.read_bytes() for file in model.iterdir()})
        hub.repos["datasets/org/talks"] = hub_stand_in.Repo({f"{part}.jsonl": lines for part, lines in talks.items()})
        kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
        environment = kept | {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "cache"), "HF_HUB_DISABLE_XET": "1"}
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM], env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=LONG
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip() == f"{hub.url}/me/mine"
        mine = hub.repos["models/me/mine"]
    assert mine.private and {"README.md", "config.json", "model.safetensors", "tokenizer.json"} == set(mine.files) - {
        "tokenizer_config.json", "special_tokens_map.json", "generation_config.json", "chat_template.jinja",
    }  # fmt: skip
    card = mine.files["README.md"].decode()
    assert "base_model: org/tiny" in card and "- org/talks" in card and "loss" in card
