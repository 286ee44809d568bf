"""TRL's own configurations, as the Python package takes them over, and the table of docs/from-trl.md."""

import dataclasses
import os
import pathlib
import re
import sys
import warnings

import pytest
import trl

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(pathlib.Path(os.environ["TDOCK_BUILD"]) / "python"))
td = pytest.importorskip("transfer_dock")

KINDS = {"SFT": "SFTConfig", "Reward": "RewardConfig", "DPO": "DPOConfig", "GRPO": "GRPOConfig"}


def made(kind, **fields):
    return getattr(trl, KINDS[kind])(use_cpu=True, report_to="none", **fields)


@pytest.mark.parametrize("kind", KINDS)
def test_an_object_with_defaults_sets_nothing(kind):
    with warnings.catch_warnings():
        warnings.simplefilter("error", td.ConfigWarning)
        config = td.Config.from_trl(made(kind))
    assert type(config).__name__ == KINDS[kind] and dict(config.items()) == {}


@pytest.mark.parametrize("kind", KINDS)
def test_every_field_is_known(kind):
    config = getattr(td, KINDS[kind])()
    for field in dataclasses.fields(made(kind)):
        known = config._place(field.name) or config._has(field.name) or field.name == "lr_scheduler_kwargs"
        assert known, f"{field.name} has no row in src/trainer/recipes/trl_names.cc"


def test_an_object_is_what_its_fields_say():
    arguments = made("GRPO", learning_rate=1e-5, num_generations=4, per_device_train_batch_size=8, beta=0.04, bf16=False,
                     gradient_accumulation_steps=2, steps_per_generation=4, lr_scheduler_type="cosine", max_steps=20,
                     lr_scheduler_kwargs={"num_cycles": 0.5}, loss_type="dr_grpo", scale_rewards=False, epsilon_high=0.28)  # fmt: skip
    assert td.Config.from_trl(arguments).to_keys() == {
        "actor.optim.lr": 1e-5, "rollout.n": 4, "actor.kl_loss_coef": 0.04, "bf16": False, "loss_type": "dr_grpo",
        "actor.optim.lr_scheduler_type": "cosine", "actor.optim.lr_scheduler_kwargs.num_cycles": 0.5,
        "algorithm.norm_adv_by_std_in_grpo": False, "actor.clip_ratio_high": 0.28, "data.train_batch_size": 8,
        "actor.ppo_mini_batch_size": 4, "trainer.total_training_steps": 10,
    }  # fmt: skip
    with pytest.raises(td.InvalidArgument, match="neftune_noise_alpha"):
        td.Config.from_trl(made("SFT", neftune_noise_alpha=5))
    with pytest.raises(td.InvalidArgument, match="adafactor"):
        td.Config.from_trl(made("SFT", optim="adafactor"))


def test_other_defaults_are_those_of_the_table():
    page = (ROOT / "docs/from-trl.md").read_text()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines() if line.startswith("| `")]
    told = {row[0].strip("`"): dict(zip(KINDS, row[1:])) for row in rows if len(row) == 6}
    for kind in KINDS:
        usual, config = made(kind), getattr(td, KINDS[kind])()
        for name, defaults in told.items():
            value = getattr(usual, name, "")
            assert defaults[kind] == str(getattr(value, "value", value)), (name, kind)
        for field in dataclasses.fields(usual):
            place, value = config._place(field.name), getattr(usual, field.name)
            if place is None or place.kind != "keys" or value is None or field.name in told:
                continue
            other = getattr(td, KINDS[kind])(keys={field.name: value})
            differs = [key for key in other if other[key] != other.default(key)]
            # Names of the same, and what says when and where rather than what is trained.
            same = {"output_dir", "activation_checkpointing", "eval_on_start", "dataloader_num_workers", "dataset_text_field"}
            assert not differs or field.name in same, f"{field.name} of {KINDS[kind]} is {value}: docs/from-trl.md lacks it"
