"""Whole steps of TRL's trainers beside ours: the same weights, the same samples, and then the same weights after it.

TRL's side is its trainer class as it is, with its AdamW, its clipping and its loss; only the answers are given to it. Ours is
`tdock_update`, the stages that training runs, of samples that are packed and cut into micro-batches.

In float64 transformers still computes norms, rotations and (eagerly) attention weights of Llama in float32; of OPT nothing.
"""

import copy
import os
import random

import pytest
import torch
from datasets import Dataset
from decoders import OPT
from safetensors.torch import load_file
from transformers import AutoModelForSequenceClassification, OPTConfig
from updates import KINDS, PACKED, moved_model, our_update, samples, saved_model, word_tokenizer

# Of the norm of each tensor, where each must have moved further than ten times that.
TOLERANCE = {"float32": 1e-4, "float64": 1e-6}
CONFIGS = {"llama": KINDS["llama"], "opt": OPTConfig(**OPT | {"pad_token_id": 0}, enable_bias=False)}  # whose padding is not trained
CASES = [("llama", "float32"), ("opt", "float64")]
# With a smaller eps, the first step of a weight whose gradient is nearly 0 would be as large as any, and its sign a matter of rounding.
OPTIMIZER = {"lr": 2e-3, "beta1": 0.9, "beta2": 0.95, "eps": 1e-6, "weight_decay": 0.1, "clip_grad": 0.5}
KL = 0.05


def arguments(config, folder, batch, **options):
    """The configuration of a TRL trainer that takes its step with all samples at once."""
    return config(
        str(folder), use_cpu=True, bf16=False, report_to=[], save_strategy="no", disable_tqdm=True, disable_dropout=True,
        gradient_checkpointing=False, per_device_train_batch_size=batch, lr_scheduler_type="constant",
        learning_rate=OPTIMIZER["lr"], adam_beta1=OPTIMIZER["beta1"], adam_beta2=OPTIMIZER["beta2"],
        adam_epsilon=OPTIMIZER["eps"], weight_decay=OPTIMIZER["weight_decay"], max_grad_norm=OPTIMIZER["clip_grad"],
        **{"max_steps": 1} | options,
    )  # fmt: skip


class Models:
    """The same models on both sides: one that is trained and a reference, saved as files and in memory."""

    def __init__(self, kind, dtype, folder, value_head=False):
        self.folder, self.dtype = folder, dtype
        config = copy.deepcopy(CONFIGS[kind])
        options = {}
        if value_head:
            config.num_labels = 1
            options["kind"] = AutoModelForSequenceClassification
        self.trained = self.converted(saved_model(config, folder / "model", **options))
        self.before = {name: weight.detach().clone() for name, weight in self.trained.named_parameters()}
        self.reference = self.converted(moved_model(copy.deepcopy(CONFIGS[kind]), folder / "reference"))
        self.trained.config._name_or_path = str(folder / "reference")  # where some trainers load it from

    def converted(self, model):
        model.set_attn_implementation("sdpa")  # the eager one is not a number in float64 where there is padding
        return model.to(getattr(torch, self.dtype))

    def our_step(self, batch):
        """The weights after our step, and its figures."""
        figures = our_update(
            self.folder / "model", self.folder / "out", batch | PACKED | {"optimizer": OPTIMIZER},
            "--dtype", self.dtype, "--reference", self.folder / "reference",
        )  # fmt: skip
        return load_file(self.folder / "out/model.safetensors"), figures["metrics"]

    def differences(self, ours):
        """Between our weights and those that TRL has left in the model, relative to the norm of each tensor."""
        theirs = dict(self.trained.named_parameters())
        assert ours.keys() == theirs.keys()
        differences = {}
        for name, weight in theirs.items():
            norm = weight.norm().item()
            assert weight.dtype == ours[name].dtype == getattr(torch, self.dtype), name
            assert (weight - self.before[name]).norm() > 10 * TOLERANCE[self.dtype] * norm, f"{name} has hardly moved"
            differences[name] = (weight - ours[name]).norm().item() / norm
        return differences

    def check(self, batch, row=0):
        """Our step is TRL's; and one with a token of one row changed is not."""
        ours, figures = self.our_step(batch)
        assert figures["actor/grad_norm"] > OPTIMIZER["clip_grad"], "nothing was clipped"
        differences = self.differences(ours)
        assert max(differences.values()) < TOLERANCE[self.dtype], differences
        other = [dict(each) for each in batch["rows"]]
        other[row]["responses"] = other[row]["responses"][:-1] + [other[row]["responses"][-1] % 50 + 2]
        perturbed, _ = self.our_step(batch | {"rows": other})
        assert max(self.differences(perturbed).values()) > 10 * TOLERANCE[self.dtype], "a change that nobody would see"
        return figures


@pytest.fixture(params=CASES, ids="-".join)
def models(request, tmp_path):
    return Models(*request.param, tmp_path)


@pytest.fixture
def models_with_value_head(request, tmp_path):
    return Models(*request.param, tmp_path, value_head=True)


def scored_rows(groups, per_group):
    """Each group has rewards that differ by hundreds, beside which what is added to a deviation does not count."""
    rng = random.Random(6)
    rows = samples(groups, per_group)
    for i, row in enumerate(rows):
        row["reward"] = 1000.0 * (i % per_group) + rng.randrange(500)
    return rows


def words(tokens):
    return " ".join(f"t{token:02}" for token in tokens)


def prompts_of(rows, per_group):
    return Dataset.from_dict({"prompt": [words(row["prompt"]) for row in rows[::per_group]]})


@pytest.mark.parametrize(
    "models,epochs", [(("llama", "float32"), 2), (("llama", "float64"), 1), (("opt", "float64"), 2)], indirect=["models"],
    ids=lambda x: str(x) if isinstance(x, int) else "-".join(x),
)  # fmt: skip
def test_grpo(models, epochs, tmp_path):
    from trl import GRPOConfig, GRPOTrainer

    os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"  # of the function that gives it the answers
    rows = scored_rows(3, 4)

    def answers(prompts, trainer):
        assert prompts == [words(row["prompt"]) for row in rows]
        return {
            "prompt_ids": [row["prompt"] for row in rows],
            "completion_ids": [row["responses"] for row in rows],
            "env_mask": [row["response_mask"] for row in rows],
            "logprobs": None,
        }

    trainer = GRPOTrainer(
        models.trained, lambda completions, **_: [row["reward"] for row in rows],
        arguments(
            GRPOConfig, tmp_path / "trl", len(rows), max_steps=epochs, num_iterations=epochs, num_generations=4,
            shuffle_dataset=False, beta=KL, epsilon=0.2, epsilon_high=0.28, loss_type="dapo", use_bias_correction_kl=False,
        ),
        processing_class=word_tokenizer(), train_dataset=prompts_of(rows, 4), rollout_func=answers,
    )  # fmt: skip
    models.converted(trainer.ref_model)
    trainer.train()
    figures = models.check(
        {"objective": "grpo", "group_size": 4, "rows": rows, "epochs": epochs, "kl_coef": KL, "clip_low": 0.2, "clip_high": 0.28}
    )
    assert (figures["actor/pg_clipfrac"] > 0.05) == (epochs == 2)


def test_rloo(models, tmp_path):
    from trl import RLOOConfig, RLOOTrainer

    rows = scored_rows(3, 4)
    for row in rows:
        row["response_mask"] = [1] * len(row["responses"])

    class GivenAnswers(RLOOTrainer):
        def _generate_single_turn(self, prompt_ids, images, multimodal_fields):
            assert prompt_ids == [row["prompt"] for row in rows]
            return [row["responses"] for row in rows]

    trainer = GivenAnswers(
        models.trained, lambda completions, **_: [row["reward"] for row in rows],
        arguments(
            RLOOConfig, tmp_path / "trl", len(rows), num_generations=4, shuffle_dataset=False, beta=KL, epsilon=0.2,
            epsilon_high=0.28,
        ),
        processing_class=word_tokenizer(), train_dataset=prompts_of(rows, 4),
    )  # fmt: skip
    models.converted(trainer.ref_model)
    trainer.train()
    models.check({"objective": "rloo", "group_size": 4, "rows": rows, "kl_coef": KL, "clip_low": 0.2, "clip_high": 0.28})


def pairs(count):
    """Groups of two answers to a prompt, the better one first; each ends with the end token."""
    rows = samples(count, 2)
    for row in rows:
        row["responses"][-1] = 1
        row["response_mask"] = [1] * len(row["responses"])
    return rows


def row_pairs(rows):
    return zip(rows[::2], rows[1::2])


@pytest.mark.parametrize(
    "models,loss,smoothing",
    [(CASES[0], "sigmoid", 0.0), *((CASES[1], *loss) for loss in (("sigmoid", 0.0), ("robust", 0.1), ("ipo", 0.0)))],
    indirect=["models"], ids=lambda x: "-".join(x) if isinstance(x, tuple) else str(x),
)  # fmt: skip
def test_dpo(models, loss, smoothing, tmp_path):
    from trl import DPOConfig, DPOTrainer

    rows = pairs(6)
    data = [
        {"prompt": words(a["prompt"]), "chosen": " " + words(a["responses"]), "rejected": " " + words(b["responses"])}
        for a, b in row_pairs(rows)
    ]
    trainer = DPOTrainer(
        models.trained, models.reference,
        arguments(DPOConfig, tmp_path / "trl", len(data), beta=0.5, loss_type=loss, label_smoothing=smoothing),
        processing_class=word_tokenizer(), train_dataset=Dataset.from_list(data),
    )  # fmt: skip
    trainer.train()
    models.check(
        {"objective": "dpo", "group_size": 2, "rows": rows, "beta": 0.5, "loss_type": loss, "label_smoothing": smoothing,
         "average_log_prob": loss == "ipo"}
    )  # fmt: skip


# Nothing but the centring moves a bias behind the last norm, which changes all scores alike.
@pytest.mark.parametrize(
    "models_with_value_head,more", [(("llama", "float32"), False), (("opt", "float64"), True)],
    ids=["llama-float32-plain", "opt-float64-centred-margins"], indirect=["models_with_value_head"],
)  # fmt: skip
def test_reward_model(models_with_value_head, more, tmp_path):
    from trl import RewardConfig, RewardTrainer

    models, rows = models_with_value_head, pairs(6)
    for i, row in enumerate(rows):
        row["margin"] = 0.25 * (i // 2 % 3) if more else 0.0
    data = [
        {"chosen_ids": a["prompt"] + a["responses"], "rejected_ids": b["prompt"] + b["responses"]}
        | ({"margin": a["margin"]} if more else {})
        for a, b in row_pairs(rows)
    ]
    trainer = RewardTrainer(
        models.trained,
        arguments(RewardConfig, tmp_path / "trl", len(data), center_rewards_coefficient=0.1 if more else None),
        processing_class=word_tokenizer(), train_dataset=Dataset.from_list(data),
    )  # fmt: skip
    trainer.train()
    models.check(
        {"objective": "reward", "group_size": 2, "rows": rows, "centre_coef": 0.1 if more else 0.0, "use_margin": more}
    )
