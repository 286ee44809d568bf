"""TRL's own quick-start programs and scripts, run with this project's trainers: only the import is changed."""

import importlib
import importlib.metadata
import re
import sys

import pytest

from conftest import BUILD
from generate_test import write_model

sys.path.insert(0, str(BUILD / "python"))

import datasets  # noqa: E402
import trl  # noqa: E402
import trl.rewards  # noqa: E402

TRAINERS = ["SFTTrainer", "GRPOTrainer", "DPOTrainer", "RewardTrainer"]
TEMPLATE = (
    "{%- for m in messages %}<{{ m.role }}>{{ m.content }}<eos>{%- endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)


def turn(role, content):
    return {"role": role, "content": content}


QUESTIONS = [f"What is {a} plus {b}?" for a in range(4) for b in range(4)]
ANSWERS = [str(a + b) for a in range(4) for b in range(4)]
PAIRS = {
    "chosen": [[turn("user", q), turn("assistant", a)] for q, a in zip(QUESTIONS, ANSWERS)],
    "rejected": [[turn("user", q), turn("assistant", "No.")] for q in QUESTIONS],
}
# The columns of the data sets that the programs name.
DATA = {
    "trl-lib/Capybara": {
        "source": ["a"] * 16, "messages": PAIRS["chosen"], "num_turns": [1] * 16,
    },
    "trl-lib/DeepMath-103K": {"prompt": [[turn("user", q)] for q in QUESTIONS], "solution": [f"${a}$" for a in ANSWERS]},
    "trl-lib/ultrafeedback_binarized": {**PAIRS, "score_chosen": [8.0] * 16, "score_rejected": [2.0] * 16},
}  # fmt: skip


def accuracy_reward(completions, solution, **kwargs):
    """In place of TRL's of this name, whose parser of mathematics needs another antlr4 than omegaconf does."""
    return [float(truth.strip("$") in completion[0]["content"]) for completion, truth in zip(completions, solution)]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working folder, in which every model that the programs name is."""
    (tmp_path / "Qwen").mkdir()
    for name in ("Qwen2.5-0.5B", "Qwen2.5-0.5B-Instruct", "Qwen3-0.6B"):
        write_model(tmp_path / "Qwen" / name, chat_template=TEMPLATE, max_position_embeddings=2048)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(trl.rewards, "accuracy_reward", accuracy_reward)
    monkeypatch.setattr(datasets, "load_dataset", lambda name, split=None, **_: datasets.Dataset.from_dict(DATA[name]))
    return tmp_path


def quick_start(trainer):
    """The program of TRL's README that uses a trainer."""
    text = importlib.metadata.metadata("trl").get_payload()
    programs = [code for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if f"{trainer}(" in code]
    assert len(programs) == 1, programs
    return programs[0]


@pytest.mark.parametrize("trainer", TRAINERS)
def test_a_quick_start_runs_after_changing_the_import(trainer, folder):
    program = quick_start(trainer)
    changed = re.sub(rf"from trl import {trainer}\b", f"from transfer_dock import {trainer}", program)
    assert changed != program
    names = {}
    exec(compile(changed, trainer, "exec"), names)
    trained = names["trainer"]
    assert trained.metrics[-1]["step"] >= 1
    assert (folder / trained.model_folder / "model.safetensors").exists()


SCRIPTS = {
    "sft": ("SFTTrainer", "trl-lib/Capybara", ["--eval_strategy", "steps", "--eval_steps", "1", "--max_length", "64"]),
    "dpo": ("DPOTrainer", "trl-lib/ultrafeedback_binarized", ["--use_peft", "--lora_r", "4", "--beta", "0.2"]),
    "reward": ("RewardTrainer", "trl-lib/ultrafeedback_binarized", ["--warmup_steps", "1"]),
    "grpo": (
        "GRPOTrainer", "trl-lib/DeepMath-103K",
        ["--reward_funcs", "accuracy_reward", "think_format_reward", "--num_generations", "4", "--max_completion_length", "8",
         "--temperature", "0.9"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_runs_with_our_trainer(script, folder, monkeypatch):
    import transfer_dock

    name, data, options = SCRIPTS[script]
    module = importlib.import_module(f"trl.scripts.{script}")
    monkeypatch.setattr(trl, name, getattr(transfer_dock, name))
    splits = {each: datasets.Dataset.from_dict(DATA[data]) for each in ("train", "test")}
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: datasets.DatasetDict(splits))
    arguments = [
        "--model_name_or_path", "Qwen/Qwen2.5-0.5B", "--dataset_name", data, "--output_dir", str(folder / "out"),
        "--max_steps", "2", "--per_device_train_batch_size", "8", "--learning_rate", "1e-4", "--report_to", "none",
        "--use_cpu", "true", *options,
    ]  # fmt: skip
    parsed = module.make_parser().parse_args_and_config(args=arguments, fail_with_unknown_args=False)
    module.main(*parsed)
    assert (folder / "out/model.safetensors").exists() and (folder / "out/run/metrics.jsonl").exists()
