"""The steps of verl's trainer that use TransferQueue, unedited, on transfer_dock's module.

It runs in .venv-verl, where `import transfer_queue` is transfer_dock.compat.transfer_queue (see CMakeLists.txt).
"""

from __future__ import annotations

import pathlib
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import omegaconf
import pytest
import tensordict
import torch
import transfer_queue as tq
from tensordict import TensorDict
from verl.protocol import DataProto
from verl.trainer.ppo import padding_utils
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer, ReplayBufferAsync
from verl.trainer.ppo.v1.trainer_base import PPOTrainer
from verl.utils import tensordict_utils as tu

import transfer_dock.compat.transfer_queue

EXAMPLE = pathlib.Path(__file__).parents[2] / "examples" / "verl" / "transfer_dock.yaml"
CONFIG = omegaconf.OmegaConf.create(
    {
        "algorithm": {
            "adv_estimator": "grpo",
            "gamma": 1.0,
            "lam": 1.0,
            "use_kl_in_reward": False,
            "norm_adv_by_std_in_grpo": False,
        },
        "actor_rollout_ref": {
            "rollout": {"n": 2, "temperature": 1.0, "calculate_log_probs": False},
            "actor": {"loss_agg_mode": "token-mean", "loss_scale_factor": None},
        },
    }
)
LENGTHS = {"a_0_0": (3, 2), "a_1_0": (3, 4), "b_0_0": (5, 4), "b_1_0": (5, 1)}


@pytest.fixture(autouse=True)
def system() -> Iterator[None]:
    assert tq is transfer_dock.compat.transfer_queue
    # The configuration that the example gives verl's trainer, which passes it to init as it is.
    tq.init(omegaconf.OmegaConf.load(EXAMPLE).transfer_queue)
    yield
    tq.close()


def roll_out(keys: list[str] | None = None) -> None:
    """What verl's agent loops put: prompts, whose tags say what becomes of them, and the answers to them."""
    for uid in "ab":
        tq.kv_put(uid, "train", {"raw_prompt": [{"role": "user", "content": uid}]}, tag("running"))
    for key in keys or LENGTHS:
        prompt, response = LENGTHS[key]
        fields = {
            "uid": key[0],
            "raw_prompt": [{"role": "user", "content": key[0]}],
            "prompts": torch.arange(prompt),
            "responses": torch.arange(response),
            "input_ids": torch.arange(prompt + response),
            "attention_mask": torch.ones(prompt + response, dtype=torch.int64),
            "position_ids": torch.arange(prompt + response),
            "response_mask": torch.ones(response, dtype=torch.int64),
            "loss_mask": torch.ones(response, dtype=torch.int64),
            "num_turns": 2,
        }
        tq.kv_batch_put([key], "train", tu.list_of_dict_to_tensordict([fields]), [{"seq_len": prompt + response}])
    for uid in "ab":
        tq.kv_put(uid, "train", None, tag("finished"))


def tag(status: str) -> dict[str, Any]:
    return {"is_prompt": True, "status": status, "global_steps": 1}


def sampled(kind: type = ReplayBuffer, mode: str = "sync") -> Any:
    buffer = kind(mode, omegaconf.OmegaConf.create({}), 1, "drop", omegaconf.OmegaConf.create({}), poll_interval=0.01)
    batch, _ = buffer.sample(1, "train", 2)
    return batch


@pytest.mark.parametrize(("kind", "mode"), [(ReplayBuffer, "sync"), (ReplayBufferAsync, "separate_async")])
def test_the_replay_buffer_hands_out_whole_groups_once(kind: type, mode: str) -> None:
    roll_out()
    batch = sampled(kind, mode)
    assert sorted(batch.keys) == sorted(LENGTHS) and batch.partition_id == "train"
    assert [tag["seq_len"] for tag in batch.tags] == [sum(LENGTHS[key]) for key in batch.keys]
    assert sorted(tq.kv_list("train")["train"]) == sorted(LENGTHS), "the prompts are gone, their answers stay"


def test_a_batch_is_padded_to_a_multiple() -> None:
    roll_out()
    batch = padding_utils.upsample_batch_to_divisible_size(sampled(), 6, eos_token_id=9)
    assert len(batch) == 6 and [bool(tag.get("is_padding")) for tag in batch.tags] == [False] * 4 + [True] * 2
    data = tq.kv_batch_get(batch.keys, "train", ["responses", "response_mask", "rm_scores", "uid"][:2])
    assert data["responses"].offsets().diff().tolist() == [LENGTHS[key][1] for key in batch.keys[:4]] + [1, 1]
    assert data["response_mask"][4].tolist() == [0]


def trainer() -> Any:
    """What the steps below ask of a trainer: verl's own methods, with models that are functions of the tokens."""

    def compute_rm_score(data: DataProto) -> DataProto:
        seen.append(data)
        width = data.batch["responses"].shape[1]
        lengths = data.batch["attention_mask"][:, -width:].sum(1)
        scores = torch.zeros(len(lengths), width)
        scores[torch.arange(len(lengths)), lengths - 1] = lengths.float()
        output = DataProto(batch=TensorDict({"rm_scores": scores}, batch_size=len(lengths)))
        output.non_tensor_batch["acc"] = np.arange(len(lengths))
        output.meta_info["reward_extra_keys"] = ["acc"]
        return output

    def compute_log_prob(batch: Any) -> Any:
        ids = tq.kv_batch_get(batch.keys, batch.partition_id, ["input_ids"])["input_ids"]
        rows = [-row.float() for row in ids.unbind()]
        nested = torch.nested.as_nested_tensor(rows, layout=torch.jagged)
        fields = TensorDict({"log_probs": nested, "entropy": nested * 2}, batch_size=[len(rows)])
        return tq.kv_batch_put(batch.keys, batch.partition_id, fields)

    seen: list[DataProto] = []
    return types.SimpleNamespace(
        config=CONFIG,
        tokenizer=types.SimpleNamespace(pad_token_id=0),
        reward_loop_manager=types.SimpleNamespace(compute_rm_score=compute_rm_score, seen=seen),
        actor_rollout_wg=types.SimpleNamespace(compute_log_prob=compute_log_prob),
        _lengths_to_mask=PPOTrainer._lengths_to_mask,
    )


def test_reward_old_log_probs_and_advantages_follow_each_other() -> None:
    roll_out()
    batch, metrics, mine = sampled(), {}, trainer()
    keys = list(batch.keys)
    lengths = [LENGTHS[key][1] for key in keys]
    batch = PPOTrainer._compute_reward_colocate(mine, batch, metrics)
    (asked,) = mine.reward_loop_manager.seen
    assert asked.batch["prompts"].shape == (4, 5) and asked.batch["responses"].shape == (4, 4)
    assert [one[0]["content"] for one in asked.non_tensor_batch["raw_prompt"]] == [key[0] for key in keys]
    scores = tq.kv_batch_get(keys, "train", ["rm_scores", "acc"])
    assert [row.sum().item() for row in scores["rm_scores"].unbind()] == lengths
    assert torch.as_tensor(scores["acc"]).tolist() == [0, 1, 2, 3]

    batch = PPOTrainer._compute_old_log_prob(mine, batch, metrics)
    old = tq.kv_batch_get(keys, "train", ["old_log_probs"])["old_log_probs"]
    # verl's log-probabilities of a response begin at the last token of the prompt.
    for key, row in zip(keys, old.unbind(), strict=True):
        prompt, response = LENGTHS[key]
        assert row.tolist() == [-float(i) for i in range(prompt - 1, prompt + response - 1)]
    assert metrics["actor/entropy"] == pytest.approx(2 * sum(row.sum().item() for row in old.unbind()) / sum(lengths))

    batch = PPOTrainer._compute_advantage(mine, batch, metrics)
    assert "advantages" in batch.fields and "returns" in batch.fields
    advantages = tq.kv_batch_get(keys, "train", ["advantages"])["advantages"]
    # GRPO without division: a score less the mean of its group, at each token.
    mean = {uid: sum(LENGTHS[key][1] for key in keys if key[0] == uid) / 2 for uid in "ab"}
    for key, length, row in zip(keys, lengths, advantages.unbind(), strict=True):
        assert row.tolist() == pytest.approx([length - mean[key[0]]] * length)


def test_both_tensordicts_work() -> None:
    """This one is the oldest; the tests of the package run with a new one."""
    major, minor = map(int, tensordict.__version__.split(".")[:2])
    assert (major, minor) <= (0, 10)
    rows = [torch.rand(4), torch.rand(5)]
    data = TensorDict({"x": torch.nested.as_nested_tensor(rows, layout=torch.jagged)}, batch_size=[2])
    data["text"] = tensordict.NonTensorStack("a", {"b": None})
    tq.kv_batch_put(["a", "b"], "p", data)
    got = tq.kv_batch_get(["b", "a"], "p")
    assert got["x"].to_padded_tensor(0.0).shape == (2, 5) and torch.equal(got["x"][1], rows[0])
    assert list(got["text"]) == [{"b": None}, "a"] and got.to_padded_tensor()["x"].shape == (2, 5)
