"""Configurations as objects, and TRL's fields."""

from __future__ import annotations

import copy
import dataclasses
import enum
import inspect
import pathlib
import pickle
import subprocess
import sys
import warnings
from typing import Any

import numpy as np
import pytest
from messages import mentions
import transfer_dock as td
from transfer_dock import _keys, _sections, _trl, _trl_names

from waiting import LONG


def refused(error: type[Exception], *mentioned: str) -> Any:
    """Expects an error whose text has these names."""
    return pytest.raises(error, match=".*".join(["(?s)", *(each.replace(".", r"\.") for each in mentioned)]))


def test_a_key_has_one_value_by_any_of_its_names() -> None:
    config = td.GRPOConfig()
    config.actor.optim.lr = 2e-5
    assert config["actor.optim.lr"] == config.optim.lr == config["optim.lr"] == config.learning_rate == 2e-5
    config.learning_rate = 3e-5
    assert config.actor["optim.lr"] == config["actor"]["optim"]["lr"] == 3e-5
    assert list(config) == ["actor.optim.lr"] and "learning_rate" not in config and "optim.lr" in config


def test_a_key_that_was_not_set_has_the_default_of_the_recipe() -> None:
    assert td.SFTConfig().optim.lr == 1e-5 and td.DPOConfig().optim.lr == 1e-6
    assert td.GRPOConfig().rollout.n == 8 and td.PPOConfig().rollout.n == 1
    assert td.GRPOConfig(recipe="dapo").actor.clip_ratio_high == 0.28
    assert td.SFTConfig().trainer.save_freq == "30min" and td.SFTConfig().data.train_files == []
    assert list(td.SFTConfig()) == []


def test_every_key_has_a_type_and_a_default_that_is_one() -> None:
    for name, key in _sections.tree(_keys.Keys).items():
        for recipe in key.recipes:
            default = key.default(recipe)
            assert key.type(recipe).check(name, default) == default or default in ("", 0), (name, recipe)


def test_only_what_was_set_is_written(tmp_path: pathlib.Path) -> None:
    config = td.Config("sft", optim={"lr": 1e-5, "lr_scheduler_kwargs": {"power": 2}}, data={"train_files": ["a", "b"]})
    config.save(tmp_path / "sft.yaml")
    assert (tmp_path / "sft.yaml").read_text() == (
        'recipe: "sft"\noptim:\n  lr: 1e-05\n  lr_scheduler_kwargs:\n    power: 2.0\ndata:\n  train_files: ["a", "b"]\n'
    )
    assert td.Config.from_yaml(tmp_path / "sft.yaml") == config
    assert config.to_yaml_dict() == {
        "recipe": "sft", "optim": {"lr": 1e-5, "lr_scheduler_kwargs": {"power": 2.0}}, "data": {"train_files": ["a", "b"]},
    }  # fmt: skip


def test_yaml_is_read_as_tdock_train_reads_it() -> None:
    config = td.Config.from_yaml("""
        recipe: grpo
        actor.optim.lr: 1e-6        # which YAML 1.1 takes for a text
        actor: {kl_loss_coef: 0.5}
        data:
          name: no
          train_files: a.jsonl
          shuffle: false
          train_batch_size:
        trainer: {save_freq: 50, run_dir: "runs/${seed}"}
        rollout.n: ${seed}
        epsilon: 0.1
    """)
    assert config.actor.optim.lr == 1e-6 and config.actor.kl_loss_coef == 0.5 and config.actor.clip_ratio_low == 0.1
    assert config.data.name == "no" and config.data.train_files == ["a.jsonl"] and config.data.shuffle is False
    assert "data.train_batch_size" not in config and config.trainer.save_freq == "50"
    assert config["rollout.n"] == "${seed}"


@pytest.mark.parametrize(
    ("text", "mentioned"),
    [
        ("optim.lr: 3\n", ["recipe"]),
        ("recipe: grop\n", ["grop", "grpo"]),
        ("recipe: sft\noptim: {lr: fast}\n", ["optim.lr", "fast"]),
        ("recipe: sft\noptim: {lrr: 3}\n", ["optim.lrr", "optim.lr"]),
        ("recipe: [\n", ["YAML"]),
        ("- a\n- b\n", ["keys", "['a', 'b']"]),
    ],
)
def test_yaml_that_is_none_for_a_run_is_refused(text: str, mentioned: list[str]) -> None:
    with refused(td.InvalidArgument, *mentioned):
        td.Config.from_yaml(text)


def test_a_configuration_prints_what_differs_from_the_defaults() -> None:
    config = td.GRPOConfig(max_steps=40, rollout={"n": 8, "temperature": 0.5})
    assert repr(config) == "GRPOConfig(max_steps=40, keys={'rollout.temperature': 0.5})"
    assert eval(repr(config), vars(td)) == td.GRPOConfig(max_steps=40, rollout={"temperature": 0.5})
    assert repr(td.Config("dapo")) == "Config(recipe='dapo')" and repr(td.GRPOConfig(recipe="dapo")).count("dapo") == 1


def test_a_configuration_is_a_value() -> None:
    config = td.GRPOConfig(max_steps=40, learning_rate=1e-5)
    for other in (copy.copy(config), copy.deepcopy(config), pickle.loads(pickle.dumps(config))):
        assert other == config and type(other) is td.GRPOConfig
        assert other.to_keys() == config.to_keys()
    copied = copy.deepcopy(config)
    copied.learning_rate = 1e-6
    assert copied != config and config.learning_rate == 1e-5


def test_none_removes_a_key() -> None:
    config = td.GRPOConfig(learning_rate=1e-5, max_steps=None, optim={"beta1": 0.5})
    config.learning_rate = None
    del config["actor.optim.beta1"]
    config.optim = {"beta2": 0.5}  # type: ignore[assignment]
    assert config.keys == {"actor.optim.beta2": 0.5}
    del config.actor.optim.beta2
    assert not config.keys and len(config) == 0


def test_keys_are_given_in_any_form() -> None:
    forms = [
        td.Config("grpo", keys={"actor.optim.lr": 1e-5}),
        td.Config("grpo", **{"actor.optim.lr": 1e-5}),
        td.Config("grpo", actor={"optim": {"lr": 1e-5}}),
        td.Config("grpo", actor={"optim.lr": 1e-5}),
        td.Config("grpo", optim={"lr": 1e-5}),
        td.Config("grpo", learning_rate=1e-5),
    ]
    assert all(config == forms[0] for config in forms)
    forms[0].update({"seed": 3}, device="cuda")
    assert forms[0].keys == {"actor.optim.lr": 1e-5, "seed": 3, "device": "cuda"}
    assert dict(forms[0]) == forms[0].keys == {**forms[0]} and td.Config("grpo", **forms[0]) == forms[0]
    assert forms[0].get("seed") == 3 and forms[0].get("no.key", 5) == 5


class Scheduler(str, enum.Enum):
    COSINE = "cosine"


def test_values_become_those_of_python() -> None:
    config = td.SFTConfig(seed=np.int64(3), learning_rate=np.float32(0.5), lr_scheduler_type=Scheduler.COSINE)  # type: ignore[arg-type]
    config.model.path = pathlib.Path("m")  # type: ignore[assignment]
    config.model.target_modules = {"b", "a"}  # type: ignore[assignment]
    config.data.train_files = ("a", pathlib.Path("b"))  # type: ignore[assignment]
    assert config.keys == {
        "seed": 3, "optim.lr": 0.5, "optim.lr_scheduler_type": "cosine", "model.path": "m",
        "model.target_modules": ["a", "b"], "data.train_files": ["a", "b"],
    }  # fmt: skip
    assert [type(value) for value in config.keys.values()][:3] == [int, float, str]


@pytest.mark.parametrize(
    ("name", "value", "mentioned"),
    [
        ("data.train_batch_size", 0, ["data.train_batch_size", "integer ≥ 1 and ≤ 1048576", "0"]),
        ("data.train_batch_size", 2.5, ["integer", "2.5"]),
        ("data.train_batch_size", True, ["integer", "True"]),
        ("optim.lr", "fast", ["optim.lr", "number > 0", "'fast'"]),
        ("optim.lr", float("nan"), ["number > 0", "nan"]),
        ("learning_rate", -1, ["learning_rate", "optim.lr here", "number > 0", "-1"]),
        ("optim.beta1", 1, ["number ≥ 0 and < 1", "1"]),
        ("optim.lr_scheduler_type", "cosin", ["constant, linear, cosine", "'cosin'", "'cosine'"]),
        ("data.shuffle", "yes", ["true", "false", "'yes'"]),
        ("device", "", ["device", "text, not empty"]),
        ("trainer.run_dir", 0.5, ["text", "0.5"]),
        ("data.train_files", 3, ["list", "3"]),
        ("data.train_files", [["a"]], ["list"]),
        ("num_train_epochs", 0.5, ["num_train_epochs", "trainer.total_epochs", "0.5", "trainer.total_training_steps"]),
        ("per_device_train_batch_size", 0, ["per_device_train_batch_size", "integer ≥ 1", "0"]),
        ("max_steps", "ten", ["max_steps", "number", "'ten'"]),
        ("warmup_ratio", 10, ["warmup_ratio", "from 0 to 1", "10"]),
        ("save_strategy", "best", ["save_strategy", "no, steps or epoch", "'best'"]),
        ("bf16", "auto", ["bf16", "true", "false", "'auto'"]),
    ],
)
def test_a_value_that_cannot_be_is_refused_when_it_is_assigned(name: str, value: object, mentioned: list[str]) -> None:
    with refused(td.InvalidArgument, *mentioned):
        td.SFTConfig()[name] = value


@pytest.mark.parametrize(
    ("name", "mentioned"),
    [
        ("optim.lrr", ["optim.lrr", "optim.lr"]),
        ("lerning_rate", ["lerning_rate", "learning_rate"]),
        ("lr", ["lr", "optim.lr"]),
        ("rollout.n", ["sft", "rollout.n", "ppo, grpo, dapo"]),
        ("num_generations", ["sft", "num_generations", "rollout.n", "ppo, grpo, dapo"]),
        ("actor", ["sft", "actor", "ppo, grpo, dapo"]),
    ],
)
def test_a_name_that_is_none_is_told_with_the_right_one(name: str, mentioned: list[str]) -> None:
    for set_it in (
        lambda: td.SFTConfig(**{name: 3}),  # type: ignore[arg-type]
        lambda: td.Config("sft").update({name: 3}),
        lambda: td.SFTConfig(keys={name: 3}),  # type: ignore[arg-type]
    ):
        with refused(td.InvalidArgument, *mentioned):
            set_it()
    with refused(td.NotFound, *mentioned):
        td.SFTConfig()[name]
    if "." not in name:
        with refused(AttributeError, *mentioned):
            getattr(td.SFTConfig(), name)
        with refused(AttributeError, *mentioned):
            setattr(td.SFTConfig(), name, 3)


def test_a_section_tells_of_a_key_that_it_does_not_have() -> None:
    with refused(AttributeError, "optim.lrr", "lr"):
        td.SFTConfig().optim.lrr = 3  # type: ignore[attr-defined]
    with refused(AttributeError, "optim.lrr", "lr"):
        td.SFTConfig().optim.lrr  # type: ignore[attr-defined]


def test_attributes_are_those_of_the_recipe() -> None:
    assert "actor" in dir(td.GRPOConfig()) and "actor" not in dir(td.SFTConfig())
    assert "lr" in dir(td.SFTConfig().optim) and not hasattr(td.SFTConfig(), "actor")


def test_every_key_is_documented_for_editors() -> None:
    source = inspect.getsource(_keys).splitlines()
    declared = [i for i, line in enumerate(source) if ": Key[" in line or ": Part[" in line]
    assert len(declared) > 400
    for i in declared:
        assert source[i + 1].strip().startswith('"""') and "Key[Any]" not in source[i], source[i]


def test_a_configuration_describes_its_keys() -> None:
    told = td.SFTConfig().describe("optim.lr")
    assert "Peak" in told and "number > 0" in told and "0.00001 of sft, rm, 1.0e-06 of dpo" in told
    assert td.GRPOConfig().describe("optim.beta2") == td.GRPOConfig().describe("actor.optim.beta2")
    assert td.PPOConfig().describe("learning_rate").startswith("actor.optim.lr and critic.optim.lr: ")
    assert "num_generations" in td.GRPOConfig().describe("generation_batch_size")
    assert "AdamW" in td.SFTConfig().describe("adam_epsilon")
    with refused(td.NotFound, "optim.lrr", "optim.lr"):
        td.SFTConfig().describe("optim.lrr")


def test_names_are_completed_where_there_is_no_type_checker() -> None:
    named = inspect.signature(td.GRPOConfig).parameters
    assert {"recipe", "keys", "learning_rate", "num_generations", "max_steps", "actor", "seed"} <= named.keys()
    assert "num_generations" not in inspect.signature(td.SFTConfig).parameters


# TRL's fields.


def keys_of(config: td.Config, *names: str, **keywords: Any) -> list[Any]:
    made = config.to_keys(**keywords)
    return [made.get(name) for name in names]


def test_a_batch_is_that_of_a_device_times_accumulation_and_processes() -> None:
    names = ("data.train_batch_size", "data.micro_batch_size_per_gpu")
    assert keys_of(td.SFTConfig(), *names) == [None, None]
    assert keys_of(td.SFTConfig(per_device_train_batch_size=4), *names) == [4, 4]
    assert keys_of(td.DPOConfig(per_device_train_batch_size=4, gradient_accumulation_steps=2), *names) == [8, 4]
    assert keys_of(td.RewardConfig(gradient_accumulation_steps=4), *names) == [32, None]
    assert keys_of(td.SFTConfig(per_device_train_batch_size=4), *names, processes=3) == [12, 4]


def test_a_batch_of_answers_is_groups_of_prompts() -> None:
    names = ("data.train_batch_size", "actor.ppo_mini_batch_size", "actor.ppo_micro_batch_size_per_gpu")
    grpo = td.GRPOConfig
    assert keys_of(grpo(per_device_train_batch_size=8, num_generations=4), *names) == [2, 2, 8]
    assert keys_of(grpo(per_device_train_batch_size=4, gradient_accumulation_steps=2), *names) == [1, 1, 4]
    assert keys_of(grpo(per_device_train_batch_size=16, steps_per_generation=4), *names) == [8, 2, 16]
    assert keys_of(grpo(per_device_train_batch_size=8, generation_batch_size=64), *names) == [8, 1, 8]
    assert keys_of(grpo(per_device_train_batch_size=8), *names, processes=2) == [2, 2, 8]
    ppo = td.PPOConfig(per_device_train_batch_size=4, gradient_accumulation_steps=2, num_mini_batches=3)
    assert keys_of(ppo, *names) == [24, 8, 4]


def test_a_batch_that_is_no_whole_groups_is_refused() -> None:
    with refused(td.InvalidArgument, "per_device_train_batch_size", "12", "num_generations = 8", "8 or 16"):
        td.GRPOConfig(per_device_train_batch_size=12).to_keys()
    with refused(td.InvalidArgument, "gradient_accumulation_steps", "4", "num_generations = 8"):
        td.GRPOConfig(per_device_train_batch_size=4, steps_per_generation=4).to_keys()
    with refused(td.InvalidArgument, "generation_batch_size", "steps_per_generation"):
        td.GRPOConfig(generation_batch_size=64, steps_per_generation=4).to_keys()


def test_a_field_and_a_key_that_disagree_are_refused() -> None:
    with refused(td.InvalidArgument, "per_device_train_batch_size", "data.train_batch_size", "4", "16"):
        td.SFTConfig(per_device_train_batch_size=4, data={"train_batch_size": 16}).to_keys()
    assert td.SFTConfig(per_device_train_batch_size=4, data={"train_batch_size": 4}).to_keys()


def test_max_steps_counts_steps_of_the_optimizer() -> None:
    name = "trainer.total_training_steps"
    assert keys_of(td.SFTConfig(max_steps=10), name) == [10]
    assert keys_of(td.SFTConfig(max_steps=-1), name) == [None]
    assert keys_of(td.GRPOConfig(max_steps=100), name) == [25], "128 prompts in mini-batches of 32"
    assert keys_of(td.GRPOConfig(max_steps=100, per_device_train_batch_size=8), name) == [100]
    assert keys_of(td.GRPOConfig(max_steps=100, num_iterations=2, per_device_train_batch_size=8), name) == [50]
    with pytest.warns(td.ConfigWarning) as told:
        assert keys_of(td.GRPOConfig(max_steps=10), name) == [3]
    mentions(told[0].message, "max_steps = 10", "12", "4 optimizer steps")
    assert keys_of(td.PPOConfig(total_episodes=1000), name) == [8]


def test_max_steps_go_through_the_data_as_often_as_it_takes() -> None:
    names = ("trainer.total_training_steps", "trainer.total_epochs")
    assert keys_of(td.SFTConfig(num_train_epochs=2), *names) == [None, 2]
    assert keys_of(td.SFTConfig(num_train_epochs=2, max_steps=10), *names) == [10, None]


def test_a_warm_up_is_steps_or_a_share_of_them() -> None:
    name = "optim.lr_warmup_steps"
    assert keys_of(td.SFTConfig(warmup_steps=7), name) == [7]
    assert keys_of(td.SFTConfig(warmup_steps=0.1, max_steps=50), name) == [5]
    assert keys_of(td.SFTConfig(warmup_ratio=0.1, max_steps=11), name) == [2]
    assert keys_of(td.SFTConfig(warmup_ratio=0.5, num_train_epochs=2), name, samples=320) == [10]
    assert keys_of(td.SFTConfig(warmup_ratio=0), name) == [0]
    both = ("actor.optim.lr_warmup_steps", "critic.optim.lr_warmup_steps")
    assert keys_of(td.PPOConfig(warmup_steps=8), *both) == [2, 2], "four optimizer steps in a step"
    with refused(td.InvalidArgument, "warmup_ratio = 0.1", "max_steps", "optim.lr_warmup_steps"):
        td.SFTConfig(warmup_ratio=0.1).to_keys()


def test_strategies_say_how_often_a_run_is_saved_and_validated() -> None:
    names = ("trainer.save_freq", "trainer.test_freq")
    assert keys_of(td.SFTConfig(save_strategy="no", eval_strategy="no"), *names) == ["0", 0]
    steps = td.SFTConfig(save_strategy="steps", eval_strategy="steps", save_steps=50, eval_steps=5)  # type: ignore[arg-type]
    assert keys_of(steps, *names) == ["50", 5]
    assert keys_of(td.SFTConfig(save_strategy="epoch", eval_strategy="epoch"), *names, samples=320) == ["10", 10]
    assert keys_of(td.SFTConfig(save_strategy="epoch"), *names) == [None, None]


def test_a_ratio_that_is_clipped_on_both_sides() -> None:
    assert td.GRPOConfig(epsilon_high=0.3, epsilon=0.1).keys == {"actor.clip_ratio_low": 0.1, "actor.clip_ratio_high": 0.3}
    assert td.PPOConfig(cliprange=0.1).keys == {"actor.clip_ratio_low": 0.1, "actor.clip_ratio_high": 0.1}


def test_fields_without_an_effect_are_noted_once() -> None:
    with warnings.catch_warnings(record=True, action="always") as told:
        config = td.SFTConfig(logging_steps=5, dataloader_pin_memory=True, output_dir="out")
        config.logging_steps = 6
    assert [each.category for each in told] == [td.ConfigWarning] * 2 and {each.filename for each in told} == {__file__}
    assert "logging_steps" in str(told[0].message) and "trainer.run_dir" in str(told[0].message)
    assert [note.partition(":")[0] for note in config.notes] == ["logging_steps", "dataloader_pin_memory"]
    assert config.keys == {"trainer.run_dir": "out"}


def test_fields_that_would_change_the_result_are_refused_with_the_reason() -> None:
    for recipe, field, value, mentioned in [
        ("sft", "neftune_noise_alpha", 5, []),
        ("sft", "adam_epsilon", 1e-6, ["AdamW"]),
        ("sft", "packing", True, ["data.train_batch_size"]),
        ("sft", "loss_type", "dft", ["cross-entropy"]),
        ("grpo", "top_p", 0.9, ["rollout.temperature"]),
        ("grpo", "mask_truncated_completions", True, []),
        ("dpo", "sync_ref_model", True, ["reference"]),
        ("ppo", "vf_coef", 0.1, ["critic.optim.lr"]),
    ]:
        with refused(td.InvalidArgument, field, *mentioned):
            td.Config(recipe)[field] = value


def test_fields_that_ask_for_what_happens_anyway_say_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        config = td.GRPOConfig(top_p=1.0, adam_epsilon=1e-8, use_vllm=False, dtype="float32", report_to="none", push_to_hub=False)
        td.SFTConfig(packing=False, loss_type="nll")
    assert config.to_keys() == {} and config.notes == []
    assert config.report_to == "none" and config.push_to_hub is False


@dataclasses.dataclass
class _Training:
    output_dir: str | None = None
    learning_rate: float = 1e-6
    per_device_train_batch_size: int = 8
    bf16: bool | None = None
    logging_steps: float = 10
    num_generations: int = 8
    steps_per_generation: int | None = None
    generation_batch_size: int | None = None
    loss_type: str = "dapo"

    def __post_init__(self) -> None:
        """As TRL's."""
        self.bf16 = True if self.bf16 is None else self.bf16
        self.steps_per_generation = self.steps_per_generation or 1
        self.generation_batch_size = self.per_device_train_batch_size * self.steps_per_generation


def test_an_object_of_trl_is_taken_over() -> None:
    kind = type("GRPOConfig", (_Training,), {})
    assert td.Config.from_trl(kind()) == td.GRPOConfig()
    config = td.Config.from_trl(kind(learning_rate=1e-5, per_device_train_batch_size=16, num_generations=4, bf16=False))
    assert config == td.GRPOConfig(learning_rate=1e-5, per_device_train_batch_size=16, num_generations=4, bf16=False)
    assert type(config) is td.GRPOConfig and config.data.train_batch_size == 128 and config.to_keys()["data.train_batch_size"] == 4
    with refused(td.InvalidArgument, "GRPOConfig", "SFTConfig"):
        td.SFTConfig.from_trl(kind())
    with refused(td.InvalidArgument, "dict"):
        td.Config.from_trl({})


def test_a_configuration_of_adapters_is_taken_over() -> None:
    @dataclasses.dataclass
    class LoraConfig:
        r: int = 8
        lora_alpha: int = 8
        target_modules: set[str] | None = None
        task_type: str | None = None

    config = td.SFTConfig()
    config.update_from(LoraConfig(r=16, target_modules={"v_proj", "q_proj"}))
    assert config.keys == {"model.lora_rank": 16, "model.target_modules": ["q_proj", "v_proj"]}


def test_the_keys_of_another_recipe() -> None:
    config = td.GRPOConfig(learning_rate=1e-5, max_steps=40)
    assert config.to_keys("dapo") == config.to_keys()
    with refused(td.InvalidArgument, "sft", "actor.optim.lr"):
        config.to_keys("sft")


def test_names_of_trl_lead_to_keys() -> None:
    """The generated table names keys that there are, and fields that _trl.py makes keys of are in no other place."""
    keys = _sections.tree(_keys.Keys)
    assert {key for names in _trl_names.NAMES.values() for key in names} <= keys.keys()
    assert {f"optim.{name}" for name in _trl_names.OPTIM_NAMES.values()} <= keys.keys()
    assert not set(_trl.WRITTEN) & _trl_names.NAMES.keys()


def test_yaml_takes_a_package_that_is_named(tmp_path: pathlib.Path) -> None:
    program = "import sys; sys.modules['yaml'] = None; import transfer_dock as td\ntd.Config('sft', seed=3).save('a.yaml')\n"
    done = subprocess.run([sys.executable, "-c", program + "td.Config.from_yaml('a.yaml')"], cwd=tmp_path, capture_output=True,
                          text=True, timeout=LONG)  # fmt: skip
    assert (tmp_path / "a.yaml").exists() and "pyyaml" in done.stderr
