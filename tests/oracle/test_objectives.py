"""One update of the actor beside transformers and TRL: the loss and the gradient of every trained parameter.

`tdock_update` runs the stages that training runs, on the same weights and the same samples. Ours are packed, prompts that
samples share are computed once, and the batch is cut into micro-batches; theirs is one padded batch.
"""

import random

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from updates import KINDS, PACKED, moved_model, our_update, samples, saved_model, word_tokenizer

TOLERANCE = 1e-5  # of the loss, and of each gradient relative to its largest element


def adapted(model, folder):
    torch.manual_seed(3)
    model = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", r=4, lora_alpha=6, target_modules="all-linear"))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.normal_(0, 0.1)
    model.save_pretrained(folder)
    return model.eval()


def padded(lists, left=False):
    width = max(map(len, lists))
    return torch.tensor([[0] * (width - len(x)) + x if left else x + [0] * (width - len(x)) for x in lists])


def response_log_probs(model, row):
    ids = torch.tensor([row["prompt"] + row["responses"]])
    log_probs = model(input_ids=ids).logits[0, len(row["prompt"]) - 1 : -1].log_softmax(-1)
    return log_probs.gather(1, torch.tensor(row["responses"])[:, None])[:, 0]


def check_gradients(model, file):
    """Compares those that we saved with those that backward() left in the parameters of theirs."""
    ours = load_file(file)
    theirs = {
        name.replace(".default", ""): parameter.grad
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    }
    assert ours.keys() == theirs.keys()
    for name, gradient in theirs.items():
        largest = gradient.abs().max().item()
        assert largest > 1e-3, f"{name}: a gradient that says nothing"
        assert (ours[name] - gradient).abs().max().item() < TOLERANCE * largest, name


@pytest.mark.parametrize("lora", [False, True], ids=["all", "lora"])
@pytest.mark.parametrize("kind", KINDS)
def test_sft_has_the_loss_and_gradients_of_transformers(kind, lora, tmp_path):
    model = saved_model(KINDS[kind], tmp_path / "model")
    options = []
    if lora:
        model = adapted(model, tmp_path / "adapters")
        options = ["--adapters", tmp_path / "adapters"]
    rows = samples(5, 2)
    ours = our_update(tmp_path / "model", tmp_path / "out", {"objective": "sft", "group_size": 2, "rows": rows, **PACKED}, *options)

    ids = [row["prompt"] + row["responses"] for row in rows]
    labels = [
        [-100] * len(row["prompt"]) + [t if m else -100 for t, m in zip(row["responses"], row["response_mask"])]
        for row in rows
    ]
    present = padded([[1] * len(x) for x in ids])
    loss = model(
        input_ids=padded(ids), attention_mask=present, labels=padded(labels).masked_fill(present == 0, -100)
    ).loss
    loss.backward()
    assert abs(ours["metrics"]["train/loss"] - loss.item()) < TOLERANCE
    check_gradients(model, tmp_path / ("out/adapter_model.safetensors" if lora else "out/model.safetensors"))


@pytest.fixture(scope="module")
def grpo_trainer(tmp_path_factory):
    """Makes TRL's trainer of a model; its import takes seconds."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    def make(model, reward=None, **options):
        arguments = GRPOConfig(
            str(tmp_path_factory.mktemp("trl")), use_cpu=True, bf16=False, report_to=[], gradient_checkpointing=False,
            disable_dropout=True, num_generations=4, per_device_train_batch_size=4,
            use_bias_correction_kl=False,  # which would multiply the KL by the ratio
            **options,
        )  # fmt: skip
        trainer = GRPOTrainer(
            model, reward or (lambda completions, **_: [0.0] * len(completions)), arguments, processing_class=word_tokenizer(),
            train_dataset=Dataset.from_dict({"prompt": ["t02 t03"] * 8}),
        )  # fmt: skip
        trainer.current_gradient_accumulation_steps = 1  # which its training loop sets
        return trainer

    return make


@pytest.mark.parametrize("old", ["fresh", "stale"])
@pytest.mark.parametrize("kind,lora,loss_type", [("llama", False, "dapo"), ("qwen2-tied", True, "bnpo")])
def test_grpo_has_the_loss_and_gradients_of_trl(kind, lora, loss_type, old, tmp_path, grpo_trainer):
    model = saved_model(KINDS[kind], tmp_path / "model")
    reference = moved_model(KINDS[kind], tmp_path / "reference")
    options = ["--reference", tmp_path / "reference"]
    if lora:
        model = adapted(model, tmp_path / "adapters")
        options += ["--adapters", tmp_path / "adapters"]
    rows = samples(3, 4)
    rng = random.Random(6)
    for row in rows:
        row["reward"] = rng.choice([0.0, 0.25, 1.0])
    with torch.no_grad():
        ref = [response_log_probs(reference, row).tolist() for row in rows]
        now = [response_log_probs(model, row).tolist() for row in rows]
    if old == "stale":
        for row, log_probs in zip(rows, now):
            row["old_log_probs"] = [value + rng.gauss(0, 0.3) for value in log_probs]
    loss_options = {"kl_coef": 0.05, "clip_low": 0.2, "clip_high": 0.28}
    ours = our_update(
        tmp_path / "model", tmp_path / "out",
        {"objective": "grpo", "rows": rows, "group_size": 4, **loss_options, **PACKED}, *options,
    )  # fmt: skip
    our_loss = ours["metrics"]["actor/pg_loss"] + 0.05 * ours["metrics"]["actor/kl_loss"]

    model.config._name_or_path = str(tmp_path / "reference")  # where TRL loads it from
    trainer = grpo_trainer(model, beta=0.05, epsilon=0.2, epsilon_high=0.28, loss_type=loss_type)
    inputs = {
        "prompt_ids": padded([row["prompt"] for row in rows], left=True),
        "prompt_mask": padded([[1] * len(row["prompt"]) for row in rows], left=True),
        "completion_ids": padded([row["responses"] for row in rows]),
        "completion_mask": padded([[1] * len(row["responses"]) for row in rows]),
        "tool_mask": padded([row["response_mask"] for row in rows]),
        "advantages": torch.tensor(ours["advantages"]),
        "old_per_token_logps": padded([row["old_log_probs"] for row in rows]) if old == "stale" else None,
        "ref_per_token_logps": padded(ref),
        "num_items_in_batch": torch.tensor(sum(sum(row["response_mask"]) for row in rows)),
    }
    model.train()
    loss = trainer._compute_loss(trainer.model, inputs)
    loss.backward()
    clipped = ours["metrics"]["actor/pg_clipfrac"]
    assert clipped == 0 if old == "fresh" else 0.1 < clipped < 0.9
    assert abs(our_loss - loss.item()) < TOLERANCE
    check_gradients(model, tmp_path / ("out/adapter_model.safetensors" if lora else "out/model.safetensors"))


def test_grpo_has_the_advantages_of_trl(tmp_path, grpo_trainer):
    """Those of scale_rewards="group": the deviation has the divisor n - 1, and TRL adds 1e-4 to it where we add 1e-6."""
    model = saved_model(KINDS["llama"], tmp_path / "model")
    rows = samples(4, 4)
    for row, reward in zip(rows, [0, 1, 0, 0, 0.5, 0.25, -2, 8, 1, 1, 1, 1, 1000, 1001, 1002, 1002.5]):
        row["reward"] = reward
    ours = our_update(
        tmp_path / "model", tmp_path / "out",
        {"objective": "grpo", "rows": rows, "group_size": 4, "kl_coef": 0, "clip_low": 0.2, "clip_high": 0.2, **PACKED},
        "--reference", tmp_path / "model",
    )  # fmt: skip
    trainer = grpo_trainer(
        model, lambda completions, **_: [float(row["reward"]) for row in rows], max_completion_length=3,
        scale_rewards="group",
    )  # fmt: skip
    theirs = trainer._generate_and_score_completions([{"prompt": "t02 t03"} for _ in rows])["advantages"]
    rewards = torch.tensor([row["reward"] for row in rows], dtype=torch.float64).view(4, 4)
    deviation = rewards.std(1, correction=1).repeat_interleave(4)
    ours = torch.tensor(ours["advantages"], dtype=torch.float64) * (deviation + 1e-6) / (deviation + 1e-4)
    assert theirs[8:12].tolist() == ours[8:12].tolist() == [0] * 4
    assert (theirs - ours).abs().max() < TOLERANCE
