"""What the recipes rm, dpo and ppo leave, as `transformers` opens it: its scores are those that our validation has computed.

The answers are conversations, so that the template puts tokens behind the reply, which must not be scored.
"""

import json

import pytest
import torch
from test_training import conversations, jsonl, make_model, opened, train, turn
from transformers import AutoModelForSequenceClassification, AutoTokenizer

WRONG = "i do not know."


def preferences(path, pairs):
    """Who is asked for a colour should name one."""
    jsonl(
        path,
        [{"prompt": [turn("user", q)], "chosen": [turn("assistant", a)], "rejected": [turn("assistant", WRONG)]} for q, a in pairs],
    )


def scores(folder, pairs):
    """Of the last token of each answer, by the class that has a score for a sequence."""
    model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert model.config.num_labels == 1
    found = []
    for question, answer in pairs:
        text = tokenizer.apply_chat_template([turn("user", question), turn("assistant", answer)], tokenize=False)
        ids = tokenizer(text.removesuffix("\n"), add_special_tokens=False, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            found.append(model(ids).logits[0, 0].item())
    return found


@pytest.mark.parametrize("kind", ["llama-tied", "qwen2"])
def test_the_chain_ends_in_models_that_transformers_opens(kind, tmp_path):
    make_model(tmp_path / "model", kind)
    pairs = list(conversations(340, 5))
    preferences(tmp_path / "train.jsonl", pairs[:300]), preferences(tmp_path / "held_out.jsonl", pairs[300:])
    common = [f"data.train_files={tmp_path}/train.jsonl", f"data.val_files={tmp_path}/held_out.jsonl", "data.max_length=256"]
    metrics = train(
        "rm", tmp_path / "rm", f"model.path={tmp_path / 'model'}", *common, "optim.lr=2e-3", "trainer.total_training_steps=20"
    )
    reward_model = tmp_path / "rm/run/checkpoint"
    chosen = scores(reward_model, pairs[300:])
    rejected = scores(reward_model, [(question, WRONG) for question, _ in pairs[300:]])
    assert metrics[-1]["val/accuracy"] >= 0.9
    assert abs(sum(chosen) / 40 - metrics[-1]["val/chosen/mean"]) < 1e-3
    assert abs(sum(rejected) / 40 - metrics[-1]["val/rejected/mean"]) < 1e-3

    train("dpo", tmp_path / "dpo", f"model.path={tmp_path / 'model'}", *common, "optim.lr=1e-3", "trainer.total_training_steps=3")
    opened(tmp_path / "dpo/run/checkpoint")

    jsonl(tmp_path / "prompts.jsonl", [{"prompt": [turn("user", q)]} for q, _ in pairs[:64]])
    train(
        "ppo", tmp_path / "ppo", f"model.path={tmp_path / 'model'}", f"critic.model.path={reward_model}",
        f"reward_model.model.path={reward_model}", f"data.train_files={tmp_path}/prompts.jsonl", "data.train_batch_size=16",
        f"data.val_files={tmp_path}/prompts.jsonl", "trainer.evaluations=[win_rate]", "critic.optim.lr=1e-3",
        "data.max_prompt_length=96", "data.max_response_length=16", "actor.ppo_mini_batch_size=16", "actor.optim.lr=1e-3",
        "trainer.total_training_steps=2",
    )  # fmt: skip
    opened(tmp_path / "ppo/run/checkpoint")
    critic = AutoModelForSequenceClassification.from_pretrained(tmp_path / "ppo/run/checkpoint-critic", dtype=torch.float32)
    before = AutoModelForSequenceClassification.from_pretrained(reward_model, dtype=torch.float32)
    assert not torch.equal(critic.score.weight, before.score.weight), "it was trained"
    evaluation = json.loads((tmp_path / "ppo/run/evaluation.json").read_text())
    assert evaluation["before"]["val/win_rate"] == 0.5 and evaluation["saved"] == evaluation["after"]
