"""Trainers in the shape of TRL's. Each starts a run of `tdock train` and follows it.

    from transfer_dock import GRPOConfig, GRPOTrainer

    def brief(completions, **kwargs):
        return [-len(completion) / 100 for completion in completions]

    trainer = GRPOTrainer(
        "HuggingFaceTB/SmolLM2-135M-Instruct", reward_funcs=brief, train_dataset=[{"prompt": "What is a dock?"}],
        args=GRPOConfig(output_dir="runs/brief", max_steps=20),
    )
    trainer.train()

docs/from-trl.md says what differs from TRL's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from transfer_dock import environments, hub, rewards
from transfer_dock._functions_here import FunctionsHere
from transfer_dock._program import Channel
from transfer_dock._records import Formatted, Records
from transfer_dock.config import Config, DPOConfig, GRPOConfig, PPOConfig, RewardConfig, SFTConfig
from transfer_dock.errors import InvalidArgument
from transfer_dock._trainer import Trainer, TrainerCallback

__all__ = [
    "DPOTrainer",
    "GRPOTrainer",
    "PPOTrainer",
    "RewardTrainer",
    "SFTTrainer",
    "TrainerCallback",
]

# Columns that a run reads itself. Others are for reward functions and environments.
_RUN_COLUMNS = ("prompt", "completion")
RewardFuncs = str | Callable[..., Any] | Sequence[str | Callable[..., Any]] | None
# Functions of this process are not killed when they are slow, and what they raise ends the run at once.
_IN_PROCESS = {"reward.batch_size": 256, "reward.timeout": 86400, "reward.retries": 0, "reward.memory_gb": 0}


class SFTTrainer(Trainer):
    """Supervised fine-tuning on conversations, or on prompts and completions."""

    config_type = SFTConfig

    def __init__(
        self, model: Any = None, args: Any = None, *, formatting_func: Callable[[Any], str] | None = None, **kwargs: Any
    ) -> None:
        """formatting_func: makes the text of a row, which is then trained on as it is; default: the row as it is."""
        self._text_of = formatting_func
        super().__init__(model, args, **kwargs)

    def _formatted(self, dataset: Any) -> Any:
        return dataset if self._text_of is None else Formatted(dataset, self._text_of)


class DPOTrainer(Trainer):
    """Direct preference optimisation, on prompts with a chosen and a rejected answer."""

    config_type = DPOConfig

    def __init__(self, model: Any = None, ref_model: Any = None, args: Any = None, **kwargs: Any) -> None:
        """ref_model: None: the model that the run begins with. Another one is refused."""
        if ref_model is not None:
            raise InvalidArgument("'ref_model' is given; the reference is the model that the run begins with: leave it out")
        super().__init__(model, args, **kwargs)


class RewardTrainer(Trainer):
    """A reward model, of pairs of a chosen and a rejected answer."""

    config_type = RewardConfig


class _RewardedTrainer(Trainer):
    """Base of the trainers whose models generate answers."""

    def __init__(
        self,
        model: Any = None,
        reward_funcs: RewardFuncs = None,
        args: Any = None,
        *,
        environment: Any = None,
        environment_factory: Any = None,
        **kwargs: Any,
    ) -> None:
        """reward_funcs: functions of this process in TRL's or verl's style, FILE.py:NAME, or the name of a reward model.

        They are called by another thread, one at a time. environment: a class, or a factory of instances, of one of the
        forms of docs/environments.md, which gives the rewards itself; environment_factory is TRL's name of it. The other
        arguments are those of all trainers.
        """
        super().__init__(model, args, **kwargs)
        functions = [] if reward_funcs is None else reward_funcs
        if isinstance(functions, str) or callable(functions):
            functions = [functions]
        self._functions = list(functions)
        if environment is not None and environment_factory is not None:
            raise InvalidArgument("'environment' and 'environment_factory' are given, which are the same; keep one of them")
        self._environment = environment if environment is not None else environment_factory
        if self._environment is not None and self._functions:
            raise InvalidArgument("'reward_funcs' is given beside an environment, which gives the rewards itself: leave one out")
        for function in self._functions:
            if callable(function):
                rewards.check(function)
            elif not isinstance(function, str):
                raise InvalidArgument(f"a reward function is a {type(function).__name__}; give a function, or a name")
        if self._environment is not None:
            environments.check(self._environment)

    def _add_functions(self, keys: Config, records: Records, functions: FunctionsHere) -> None:
        given = keys.get("reward.function_weights") or ["1"] * len(self._functions)
        if self._functions:
            for key in ("reward.function", "reward.program"):
                if key in keys:
                    raise InvalidArgument(f"'reward_funcs' is given, and the configuration has {key}, too; keep one of them")
            if len(given) != len(self._functions):
                raise InvalidArgument(f"'reward_weights' has {len(given)} weights for {len(self._functions)} reward functions")
            keys["reward.function_weights"] = None
        models = [one for one in self._functions if isinstance(one, str) and ":" not in one]
        if len(models) > 1 or (models and len(self._functions) > 1):
            raise InvalidArgument(f"'reward_funcs' names the reward model {models[0]!r} beside others; a run has one, alone")
        if models:
            if float(given[0]) != 1:
                raise InvalidArgument(f"'reward_weights' is {given}; the rewards of a reward model have the weight 1")
            keys["reward_model.model.path"] = hub.model_folder(models[0])
            return
        weighted = list(zip(self._functions, map(str, given), strict=True)) if self._functions else []
        files = [(one, weight) for one, weight in weighted if isinstance(one, str)]
        here = [(one, weight) for one, weight in weighted if not isinstance(one, str)]
        if files:
            keys["reward.function"] = [one for one, _ in files]
            keys["reward.function_weights"] = [weight for _, weight in files]
        if here:
            keys["reward.program"] = [
                functions.add(rewards.name_of(one), _scores(one, records.types), in_turn=True) for one, _ in here
            ]
            if "reward.program_weights" not in keys:
                keys["reward.program_weights"] = [weight for _, weight in here]
            for key, value in _IN_PROCESS.items():
                if key not in keys:
                    keys[key] = value
        self._add_environment(keys, functions)
        if here or files or self._environment is not None:
            if "data.keep" not in keys:
                keys["data.keep"] = [name for name in records.columns if name not in _RUN_COLUMNS]

    def _add_environment(self, keys: Config, functions: FunctionsHere) -> None:
        if self._environment is not None:
            name = getattr(self._environment, "__name__", type(self._environment).__name__)
            keys["environment.program"] = functions.add(
                name, lambda channel: environments.serve_on(channel, self._environment), in_turn=False
            )


class GRPOTrainer(_RewardedTrainer):
    """Group relative policy optimisation: of the answers to a prompt, those with the higher rewards become likelier."""

    config_type = GRPOConfig


class PPOTrainer(_RewardedTrainer):
    """Proximal policy optimisation, with a critic."""

    config_type = PPOConfig

    def __init__(
        self, model: Any = None, reward_funcs: RewardFuncs = None, args: Any = None, *, value_model: str | None = None, **kwargs: Any
    ) -> None:
        """value_model: what the critic begins with: a folder or a name; default: the reward model, or else the model."""
        super().__init__(model, reward_funcs, args, **kwargs)
        if value_model is not None and not isinstance(value_model, str):
            raise InvalidArgument(f"'value_model' is a {type(value_model).__name__}; give a folder, or a name on the Hub")
        self._value_model = value_model

    def _add_functions(self, keys: Config, records: Records, functions: FunctionsHere) -> None:
        super()._add_functions(keys, records, functions)
        if self._value_model is not None:
            keys["critic.model.path"] = hub.model_folder(self._value_model)
        elif "critic.model.path" not in keys:
            keys["critic.model.path"] = keys.get("reward_model.model.path") or keys.get("model.path")


def _scores(function: Any, types: Mapping[str, str]) -> Callable[[Channel], None]:
    return lambda channel: rewards.serve_on(channel, function, types=types)
