"""Configurations of the Python package, as `tdock` takes them."""

from __future__ import annotations

import json
import os
import pathlib
import re
import subprocess
from typing import Any

import pytest
import transfer_dock as td
from transfer_dock import _trl, _trl_names
from transfer_dock._trl import Place, place

from waiting import LONG

TDOCK = pathlib.Path(os.environ["TDOCK_BUILD"]) / "tdock"
TINY: dict[str, Any] = {
    "model": {"alphabet": "0123456789+=", "hidden_size": 32, "num_hidden_layers": 2},
    "threads": 1,
    "seed": 3,
}


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    records = [{"prompt": f"{i}+1=", "chosen": f"{i + 1}", "rejected": f"{i}", "answer": f"{i + 1}"} for i in range(64)]
    for name, keys in {"prompts": ("prompt", "answer"), "pairs": ("prompt", "chosen", "rejected")}.items():
        lines = [json.dumps({key: record[key] for key in keys}) for record in records]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    return tmp_path


def tdock(folder: pathlib.Path, verb: str, config: td.Config, **keywords: Any) -> str:
    """What a command prints; it must take the configuration."""
    (folder / "config.yaml").write_text(td.config.to_yaml(config.to_yaml_dict(**keywords)))
    done = subprocess.run([TDOCK, verb, folder / "config.yaml"], cwd=folder, capture_output=True, text=True, timeout=LONG)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def sft(folder: pathlib.Path, **fields: Any) -> td.SFTConfig:
    return td.SFTConfig(**TINY, data={"train_files": folder / "prompts.jsonl", "max_length": 32}, **fields)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The folder of a tiny model."""
    folder = tmp_path_factory.mktemp("model")
    (folder / "prompts.jsonl").write_text('{"prompt": "1+1=", "answer": "2"}\n' * 8)
    tdock(folder, "train", sft(folder, output_dir=str(folder / "run"), max_steps=1, per_device_train_batch_size=8))
    return folder / "run/checkpoint"


def test_a_run_has_the_keys_that_the_fields_are(folder: pathlib.Path, model: pathlib.Path) -> None:
    config = td.SFTConfig(
        data={"train_files": folder / "prompts.jsonl", "max_length": 32}, model_name_or_path=str(model),
        output_dir=str(folder / "run"), learning_rate=2e-4, per_device_train_batch_size=4, warmup_ratio=0.5,
        gradient_accumulation_steps=2, max_steps=2, lr_scheduler_type="cosine", weight_decay=0.0, max_grad_norm=0.5,
        adam_beta2=0.95, bf16=False, gradient_checkpointing=True, save_strategy="no", eval_strategy="no",
        lora_r=4, lora_alpha=8, lora_target_modules=["q_proj", "v_proj"], save_total_limit=1, data_seed=5,
    )  # fmt: skip
    tdock(folder, "train", config)
    ran = td.Config.from_yaml(folder / "run/config.yaml")
    for key, value in config.to_keys().items():
        if key not in ("bf16", "model.target_modules"):
            assert ran[key] == value, key
    assert ran.model.target_modules == "q_proj,v_proj" and ran.optim.lr_warmup_steps == 1
    assert td.Config.from_yaml(ran.to_yaml()) == ran


@pytest.mark.parametrize("recipe", ["grpo", "dapo"])
def test_a_batch_of_answers_is_what_a_run_makes_of_it(folder: pathlib.Path, recipe: str) -> None:
    config = td.GRPOConfig(
        recipe=recipe, **TINY, data={"train_files": folder / "prompts.jsonl", "max_prompt_length": 16},
        reward={"exact": {"weight": 1}}, num_generations=4, max_completion_length=16, per_device_train_batch_size=8,
        gradient_accumulation_steps=2, steps_per_generation=4, num_iterations=2, max_steps=8, learning_rate=1e-5,
        beta=0.04, epsilon=0.2, epsilon_high=0.28, loss_type="grpo" if recipe == "grpo" else "dr_grpo", scale_rewards="none",
        importance_sampling_level="sequence" if recipe == "grpo" else None, temperature=0.9,
    )  # fmt: skip
    told = tdock(folder, "preflight", config)
    assert re.search(r"real_train_batch_size +32 ", told) and re.search(r"steps +2\n", told), told
    assert config.to_keys()["data.train_batch_size"] == 8


@pytest.mark.parametrize("batch", [128, 100, 48, 37, 17, 8, 1])
def test_optimizer_steps_of_a_batch_are_those_that_tdock_chooses(folder: pathlib.Path, batch: int) -> None:
    config = td.GRPOConfig(**TINY, data={"train_files": folder / "prompts.jsonl", "max_prompt_length": 16})
    config.update({"data.train_batch_size": batch, "data.max_response_length": 16, "rollout.n": 2, "reward.exact.weight": 1})
    config.data.drop_last = False
    (chosen,) = re.findall(r"optimizer_steps +(\d+) ", tdock(folder, "preflight", config))
    config.max_steps = int(chosen) * 3
    assert config.to_keys()["trainer.total_training_steps"] == 3


def test_preferences_are_taken(folder: pathlib.Path) -> None:
    data = {"train_files": folder / "pairs.jsonl", "max_length": 32}
    dpo = td.DPOConfig(**TINY, data=data, beta=0.2, loss_type=["ipo"], per_device_train_batch_size=8, max_steps=2)
    assert re.search(r"steps +2\n", tdock(folder, "preflight", dpo))
    rm = td.RewardConfig(**TINY, data=data, center_rewards_coefficient=0.01, warmup_ratio=0.5, per_device_train_batch_size=16)
    tdock(folder, "preflight", rm, samples=64)


def test_a_critic_is_taken(folder: pathlib.Path, model: pathlib.Path) -> None:
    config = td.PPOConfig(
        model={"path": model}, critic={"model": {"path": model}}, reward={"exact": {"weight": 1}},
        data={"train_files": folder / "prompts.jsonl", "max_prompt_length": 16}, learning_rate=1e-5, response_length=16, per_device_train_batch_size=4, num_mini_batches=2, num_ppo_epochs=2,
        total_episodes=32, kl_coef=0.05, cliprange=0.2, cliprange_value=0.2, gamma=1.0, lam=0.95,
    )  # fmt: skip
    assert re.search(r"steps +4\n", tdock(folder, "preflight", config))


# Values for names that cannot have an arbitrary number.
VALUES: dict[str, Any] = {
    "lr_scheduler_type": "cosine", "gradient_checkpointing": True, "target_modules": "q_proj", "output_dir": "out",
    "lora_target_modules": "q_proj", "modules_to_save": "norm", "lora_modules_to_save": "norm", "shuffle_dataset": False,
    "dataset_text_field": "body", "dataloader_drop_last": False, "eval_on_start": False, "scale_rewards": "none",
    "reward_weights": [1], "kl_estimator": "k3", "lr_scheduler_kwargs.warmup_type": "cosine", "model_name_or_path": "m",
    "lr_scheduler_kwargs.decay_type": "linear", "delta": 2, "sft_model_path": "m", "reward_model_path": "m",
    "reward_model_name_or_path": "m",
}  # fmt: skip
WHOLE = re.compile(r"steps|epochs|generations|length|size|limit|iterations|num_workers|seed|^(lora_)?r$|tokens|timescale")


@pytest.mark.parametrize("recipe", ["sft", "rm", "dpo", "ppo", "grpo"])
def test_tdock_takes_each_name_for_the_same_key(folder: pathlib.Path, recipe: str) -> None:
    """All names in one file, which is wrong if one of them is unknown or a value cannot be; other mistakes may be there."""
    given: dict[str, Any] = {}
    keys: set[str] = set()
    known = td.Config(recipe)
    for name in [*_trl_names.OPTIM_NAMES, *_trl_names.NAMES, *_trl.SPREAD]:
        found = place(name, recipe, known._is_known) or Place("refused")
        if found.kind == "keys" and not keys & {*found.keys} and not name.startswith("model."):
            keys |= {*found.keys}
            given[name] = VALUES.get(name, 2 if WHOLE.search(name) else 0.25)
    assert len(given) > 20
    config = td.Config(recipe, keys=given)
    assert set(config) == keys
    told = {}
    for form, text in {"names": td.config.to_yaml({"recipe": recipe, **given}), "keys": config.to_yaml()}.items():
        (folder / "config.yaml").write_text(text)
        done = subprocess.run([TDOCK, "preflight", folder / "config.yaml"], capture_output=True, text=True, timeout=LONG)
        problems = re.sub(r"config\.yaml:\d+", "config.yaml", done.stderr)
        told[form] = sorted({re.sub(r"[\w.]+ \(([\w.]+) here\)", r"\1", line) for line in problems.splitlines()})
    assert told["names"] == told["keys"]


# Names without a key, with a value that asks for something else.
FOREIGN = [
    *("neftune_noise_alpha", "adam_epsilon", "dataset_name", "load_best_model_at_end", "logging_steps", "report_to"),
    *("dataloader_pin_memory", "bf16_full_eval", "use_vllm", "top_p", "sync_ref_model", "trust_remote_code", "max_grad_norm"),
]


@pytest.mark.parametrize("recipe", ["sft", "dpo", "grpo", "ppo"])
def test_tdock_skips_and_refuses_the_same_names(folder: pathlib.Path, recipe: str) -> None:
    known = td.Config(recipe)
    for name in FOREIGN:
        found = place(name, recipe, known._is_known)
        assert found is not None
        text = td.config.to_yaml({"recipe": recipe, name: 0.5, "data": {"train_files": ["prompts.jsonl"]}})
        (folder / "config.yaml").write_text(text)
        done = subprocess.run([TDOCK, "preflight", "--lenient", folder / "config.yaml"], capture_output=True, text=True,
                              cwd=folder, timeout=LONG)  # fmt: skip
        refused = re.search(rf":\d+: {name}\b(?!: skipped)", done.stderr) is not None
        if found.kind != "trainer":
            assert refused == (found.kind == "refused"), (name, found, done.stderr)
