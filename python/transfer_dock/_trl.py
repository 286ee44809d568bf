"""What TRL's fields are here: which key a name is, and what several of them are together.

The names are those of `tdock train`, _trl_names.py. Here is what a file for `tdock train` cannot say, because it takes
arithmetic: batches in samples of a device, steps of the optimizer, and warm-ups as a share of all steps.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from transfer_dock._key_types import Value
from transfer_dock._sections import Field, Group
from transfer_dock._trl_names import IGNORED, NAMES, OPTIM_NAMES, REFUSED
from transfer_dock.errors import InvalidArgument

# Fields that `tdock train` translates itself.
WRITTEN = ("bf16", "fp16", "loss_type", "importance_sampling_level")
# Fields for the trainers in Python, of which a run knows nothing.
OF_TRAINERS = (
    *("push_to_hub", "hub_model_id", "hub_token", "hub_private_repo", "hub_revision"),
    *("report_to", "run_name", "disable_tqdm", "model_revision", "revision", "model_init_kwargs"),
)
# Fields that combine() makes keys of.
COMBINED = (
    *("per_device_train_batch_size", "gradient_accumulation_steps", "max_steps", "num_train_epochs"),
    *("warmup_steps", "warmup_ratio", "save_strategy", "eval_strategy"),
)
COMBINED_OF_ANSWERS = ("generation_batch_size", "steps_per_generation")
COMBINED_OF_PPO = ("num_mini_batches", "total_episodes")
SPREAD = {name: ("actor.clip_ratio_low", "actor.clip_ratio_high") for name in ("epsilon", "cliprange")}
# TRL's, where only the other factor of a batch was given.
_DEVICE_BATCH = 8
_POSITIVE = {
    *("per_device_train_batch_size", "gradient_accumulation_steps", "generation_batch_size", "steps_per_generation"),
    *("num_mini_batches", "total_episodes"),
}


@dataclass(frozen=True)
class Place:
    """What a name is."""

    kind: Literal["keys", "written", "combined", "trainer", "ignored", "refused"]
    keys: tuple[str, ...] = ()
    why: str = ""
    harmless: tuple[str, ...] = ()


def place(name: str, recipe: str, has: Callable[[str], bool]) -> Place | None:
    """What a name of TRL or PEFT is in a recipe; None if it is none. `has` says whether the recipe has a key."""
    if name in OF_TRAINERS:
        return Place("trainer")
    answers = has("rollout.n")
    mine = COMBINED + (COMBINED_OF_ANSWERS if answers else ()) + (COMBINED_OF_PPO if recipe == "ppo" else ())
    if name in mine:
        return Place("combined")
    if name == "loss_type" and recipe == "sft":
        return Place("refused", (), "the loss is the cross-entropy", ("nll", "chunked_nll"))
    if name in ("bf16", "fp16") or name in WRITTEN and answers or name == "loss_type" and recipe == "dpo":
        return Place("written")
    keys = [f"{section}.{OPTIM_NAMES[name]}" for section in ("optim", "actor.optim", "critic.optim") if name in OPTIM_NAMES]
    if name in SPREAD:
        keys = list(SPREAD[name])
    keys = [key for key in keys if has(key)] or [key for key in NAMES.get(name, ()) if has(key)][:1]
    if keys:
        return Place("keys", tuple(keys))
    for fits in (True, False):
        for kind, rows in (("refused", REFUSED), ("ignored", IGNORED)):
            for why, names in rows:
                if name in names and _names_keys_of(why, has) == fits:
                    reason = why if fits else "this recipe has nothing that it is about"
                    return Place("refused" if kind == "refused" else "ignored", (), reason, names[name])
    return None


def with_effect() -> list[str]:
    """All names that give keys."""
    return [*OPTIM_NAMES, *NAMES, *SPREAD, *WRITTEN, *COMBINED, *COMBINED_OF_ANSWERS, *COMBINED_OF_PPO]


def _names_keys_of(why: str, has: Callable[[str], bool]) -> bool:
    """Whether a recipe has all keys that a reason names."""
    return all(has(key) for key in re.findall(r"(?<![\w.])[a-z_0-9]+(?:\.[a-z_0-9]+)+(?![\w.])", why))


def asks_nothing(value: object, harmless: tuple[str, ...]) -> bool:
    """Whether a value asks for what happens anyway."""
    text = str(value).lower() if isinstance(value, bool) else str(value)
    try:
        return text in harmless or any(float(text) == float(each) for each in harmless)
    except ValueError:
        return False


def check_optimizer(name: str) -> None:
    """Raises InvalidArgument unless a value of TRL's `optim` is AdamW, the only optimizer."""
    name = str(getattr(name, "value", name))
    if name not in ("adamw_torch", "adamw_torch_fused", "adamw_hf", "adamw"):
        hint = "; optim.moment_dtype: int8 takes as little memory" if "8bit" in name else ""
        raise InvalidArgument(f"optim = {name!r} has no equal here: the optimizer is AdamW{hint}")


def check_combined(name: str, value: Any) -> Any:
    """The value of a field that combine() takes, or InvalidArgument."""
    if name in ("save_strategy", "eval_strategy"):
        value = getattr(value, "value", value)
        value = {False: "no"}.get(value, value)
        known = ("no", "steps", "epoch")
        if value not in known:
            raise InvalidArgument(f"{name} must be {', '.join(known[:-1])} or {known[-1]}, not {value!r}")
        return value
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise InvalidArgument(f"{name} must be a number, not {value!r}")
    if name in _POSITIVE and (value < 1 or value != int(value)):
        raise InvalidArgument(f"{name} must be an integer ≥ 1, not {value!r}")
    if name == "num_train_epochs" and (value < 0 or value != int(value)):
        raise InvalidArgument(
            f"{name} (trainer.total_epochs here) must be an integer ≥ 0, not {value!r}; "
            "for a part of the data set trainer.total_training_steps"
        )
    if name == "max_steps" and value != int(value):
        raise InvalidArgument(f"{name} must be an integer, not {value!r}")
    if name in ("warmup_steps", "warmup_ratio") and value < 0:
        raise InvalidArgument(f"{name} must not be below 0, not {value!r}")
    if name == "warmup_ratio" and value > 1:
        raise InvalidArgument(f"{name} is a share of the steps, from 0 to 1, not {value!r}")
    return value if 0 < value < 1 else int(value)


class Combination:
    """The keys that fields of a configuration are together."""

    def __init__(
        self, fields: Mapping[str, Any], values: Mapping[str, Value], get: Callable[[str], Any], has: Callable[[str], bool]
    ) -> None:
        """`fields` have the names of TRL, `values` are the keys that were set, and `get` knows the defaults, too."""
        self._fields = fields
        self._values = values
        self._get = get
        self._answers = has("rollout.n")
        self._optim = [each for each in ("optim", "actor.optim", "critic.optim") if has(f"{each}.lr")]
        self.keys: dict[str, Value] = {}
        self.notes: list[str] = []  # for people

    def combine(self, samples: int | None, processes: int) -> dict[str, Value]:
        """The keys. `samples` are those of the training data, if that is known."""
        if self._answers:
            self._batch_of_answers(processes)
        else:
            self._batch(processes)
        self._steps()
        per_epoch = None if samples is None else max(samples // self._now("data.train_batch_size"), 1)
        self._warmup(per_epoch)
        for name, key, every in (("save_strategy", "trainer.save_freq", str), ("eval_strategy", "trainer.test_freq", int)):
            if self._fields.get(name) == "no":
                self._add(name, key, every(0))
            elif self._fields.get(name) == "epoch" and per_epoch is not None:
                self._add(name, key, every(per_epoch))
        return self.keys

    def _now(self, key: str) -> Any:
        return self.keys.get(key, self._get(key))

    def _add(self, name: str, key: str, value: Value) -> None:
        if self._values.get(key, value) != value:
            raise InvalidArgument(f"{name} makes {key} {value}, which is set to {self._values[key]}; keep one of them")
        self.keys[key] = value

    def _given(self, *names: str) -> str:
        """The first of these fields that was given, or ""."""
        return next((name for name in names if name in self._fields), "")

    def _batch(self, processes: int) -> None:
        name = self._given("per_device_train_batch_size", "gradient_accumulation_steps")
        if not name:
            return
        device = self._fields.get("per_device_train_batch_size", _DEVICE_BATCH)
        self._add(name, "data.train_batch_size", device * self._fields.get("gradient_accumulation_steps", 1) * processes)
        if "per_device_train_batch_size" in self._fields:
            self._add(name, "data.micro_batch_size_per_gpu", device)

    def _batch_of_answers(self, processes: int) -> None:
        name = self._given(
            *("per_device_train_batch_size", "gradient_accumulation_steps"),
            *("generation_batch_size", "steps_per_generation", "num_mini_batches"),
        )
        if not name:
            return
        device = self._fields.get("per_device_train_batch_size", _DEVICE_BATCH)
        accumulated = self._fields.get("gradient_accumulation_steps", 1)
        passes = self._fields.get("steps_per_generation", accumulated * self._fields.get("num_mini_batches", 1))
        batch = self._fields.get("generation_batch_size", device * processes * passes)
        if self._given("generation_batch_size") and self._given("steps_per_generation"):
            raise InvalidArgument("generation_batch_size and steps_per_generation are the same thing; keep one of them")
        n = self._now("rollout.n")
        mini = device * processes * accumulated
        for what, of, answers in (("a batch", name, batch), ("an optimizer step", "gradient_accumulation_steps", mini)):
            if answers % n != 0:
                below = answers // n * n
                right = f"{below} or {below + n}" if below else str(n)
                raise InvalidArgument(
                    f"{of}: the {answers} answers of {what} are no whole groups of num_generations = {n}; "
                    f"the nearest that are: {right}"
                )
        self._add(name, "data.train_batch_size", batch // n)
        self._add(name, "actor.ppo_mini_batch_size", mini // n)
        if "per_device_train_batch_size" in self._fields:
            self._add(name, "actor.ppo_micro_batch_size_per_gpu", device)

    def _optimizer_steps(self) -> int:
        """Optimizer steps in a step of the run."""
        if not self._answers:
            return 1
        batch = self._now("data.train_batch_size")
        # As tdock train chooses it where it is 0.
        fitting = [each for each in range(32, 15, -1) if batch % each == 0]
        mini = self._now("actor.ppo_mini_batch_size") or (fitting[0] if fitting else batch)
        return int(max(batch // mini, 1) * self._now("actor.ppo_epochs"))

    def _steps(self) -> None:
        """max_steps counts steps of the optimizer and goes through the data as often as that takes."""
        given = self._fields.get("max_steps", -1)
        if given > 0:
            in_step = self._optimizer_steps()
            steps = math.ceil(given / in_step)
            if given % in_step != 0:
                self.notes.append(
                    f"max_steps = {given} becomes {steps * in_step}: a step of the run, of {self._now('data.train_batch_size')} "
                    f"prompts, has {in_step} optimizer steps; per_device_train_batch_size makes it smaller"
                )
            self._add("max_steps", "trainer.total_training_steps", steps)
        elif "num_train_epochs" in self._fields:
            self._add("num_train_epochs", "trainer.total_epochs", self._fields["num_train_epochs"])
        if "total_episodes" in self._fields:
            answers = self._now("data.train_batch_size") * self._now("rollout.n")
            steps = math.ceil(self._fields["total_episodes"] / answers)
            self._add("total_episodes", "trainer.total_training_steps", steps)

    def _warmup(self, per_epoch: int | None) -> None:
        name = self._given("warmup_ratio", "warmup_steps")
        given = self._fields.get(name, 0)
        if name == "warmup_ratio" and given == 1 or 0 < given < 1:
            steps = self._now("trainer.total_training_steps")
            if not steps and per_epoch is not None:
                steps = max(self._now("trainer.total_epochs"), 1) * per_epoch
            if not steps:
                raise InvalidArgument(
                    f"{name} = {given} is a share of all steps, and how many there are is not known: set max_steps or "
                    f"trainer.total_training_steps, or {self._optim[0]}.lr_warmup_steps instead"
                )
            given = math.ceil(steps * given)
        elif name:
            given = math.ceil(given / self._optimizer_steps())
        for section in self._optim if name else []:
            self._add(name, f"{section}.lr_warmup_steps", given)


class TrainingFields(Group):
    """Fields that are no names of keys."""

    per_device_train_batch_size: Field[int] = Field()
    """Samples in a pass; data.train_batch_size is the product of this, gradient_accumulation_steps and the number of processes."""
    gradient_accumulation_steps: Field[int] = Field()
    """Passes in an optimizer step."""
    max_steps: Field[int] = Field()
    """Optimizer steps, however often the data are gone through for them (trainer.total_training_steps)."""
    num_train_epochs: Field[float] = Field()
    """How often the data are gone through (trainer.total_epochs), unless max_steps says."""
    warmup_steps: Field[float] = Field()
    """Optimizer steps in which the learning rate rises, or below 1 their share."""
    warmup_ratio: Field[float] = Field()
    """The share of all steps in which the learning rate rises."""
    save_strategy: Field[Literal["no", "steps", "epoch"]] = Field()
    """When the run is saved: save_steps says for "steps"."""
    eval_strategy: Field[Literal["no", "steps", "epoch"]] = Field()
    """When the run is validated: eval_steps says for "steps"."""
    bf16: Field[bool] = Field()
    """Activations in bfloat16 (model.compute_dtype)."""
    fp16: Field[bool] = Field()
    """Activations in float16 (model.compute_dtype)."""
    loss_type: Field[str | list[str]] = Field()
    """The loss; docs/from-trl.md has those that exist here."""
    push_to_hub: Field[bool] = Field()
    """The trainer uploads the model when it has trained it (hub.push)."""
    hub_model_id: Field[str] = Field()
    """The repository for that."""
    hub_token: Field[str] = Field()
    """The token for that."""
    hub_private_repo: Field[bool] = Field()
    """Whether a new one is private."""
    hub_revision: Field[str] = Field()
    """The branch for that."""
    report_to: Field[str | list[str]] = Field()
    """The trackers that follow the run."""
    run_name: Field[str] = Field()
    """The run's name there."""
    disable_tqdm: Field[bool] = Field()
    """Whether no progress is shown."""


class AnswerFields(TrainingFields):
    """Those of recipes that generate answers. Batches are then in answers, not prompts."""

    generation_batch_size: Field[int] = Field()
    """Answers of a step: data.train_batch_size is as many prompts as have these, num_generations each."""
    steps_per_generation: Field[int] = Field()
    """Passes over the answers of a step: generation_batch_size in passes of per_device_train_batch_size."""
    epsilon: Field[float] = Field()
    """The ratio is clipped this far from 1 on both sides (actor.clip_ratio_low, actor.clip_ratio_high)."""
    importance_sampling_level: Field[Literal["token", "sequence"]] = Field()
    """Ratios of tokens, or of whole answers, which is GSPO (actor.policy_loss.loss_mode)."""


class PPOOnlyFields(AnswerFields):
    """Those of PPO."""

    num_mini_batches: Field[int] = Field()
    """Optimizer steps of a step."""
    total_episodes: Field[int] = Field()
    """Answers that are trained on in all (trainer.total_training_steps)."""
    cliprange: Field[float] = Field()
    """As epsilon."""
