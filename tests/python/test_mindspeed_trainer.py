"""A trainer of MindSpeed-RL's design runs on its docks, under Ray: each row is trained on once, with its own values."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from typing import Any

import pytest
import ray
import torch

import mindspeed_program
import mindspeed_ranks
from waiting import LONG
from mindspeed_program import RuleReward, Trainer, Worker, response_of, settings

# Workers do not find the modules of tests.
for module in (mindspeed_program, mindspeed_ranks):
    ray.cloudpickle.register_pickle_by_value(module)

PROMPTS = [[7, 3], [2, 9, 4], [5], [8, 1, 6], [3, 3, 1], [4, 9]]


@pytest.fixture(scope="module")
def workers(cluster: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[list[Any], list[Any], Any]]:
    folder = str(tmp_path_factory.mktemp("groups"))
    made = ray.remote(num_cpus=0, max_concurrency=1)(Worker)
    actors = [made.remote(folder, rank, 2) for rank in range(2)]
    references = [made.remote(folder, 0, 1)]
    yield actors, references, ray.remote(num_cpus=0)(RuleReward).remote()


def batches(size: int) -> Iterator[dict[str, Any]]:
    for begin in range(0, len(PROMPTS), size):
        part = PROMPTS[begin : begin + size]
        yield {"prompts": [torch.tensor(prompt) for prompt in part], "labels": torch.ones(len(part), 1)}


def check(trained: list[Any], weight: float) -> list[tuple[int, ...]]:
    """Each row has the values that its prompt and number give; the prompts."""
    seen = []
    by_prompt: dict[tuple[int, ...], list[Any]] = {}
    for ids, tokens, advantages, old, reference in trained:
        prompt = ids[: len(ids) - len(tokens)]
        assert tokens == response_of(prompt, prompt[-1]) and ids == prompt + tokens
        assert old == [-weight * token for token in tokens] and reference == [-float(token) for token in tokens]
        assert len(set(advantages)) == 1 and len(advantages) == len(tokens)
        by_prompt.setdefault(tuple(prompt[:-1]), []).append((sum(tokens), advantages[0], prompt[-1]))
        seen.append(tuple(prompt[:-1]))
    for rows in by_prompt.values():
        assert sorted(number for _, _, number in rows) == [0, 1], "a sample is missing, or there twice"
        scores = torch.tensor([float(score) for score, _, _ in rows])
        expected = (scores - scores.mean()) / (scores.std() + 1e-6)
        assert torch.allclose(torch.tensor([advantage for _, advantage, _ in rows]), expected, atol=1e-4)
    return seen


def test_three_iterations_of_grpo(workers: tuple[list[Any], list[Any], Any]) -> None:
    trainer = Trainer(*workers, settings(prompts=2, max_age=1))
    history = trainer.fit(batches(2), 3)
    for iteration, (trained, metrics) in enumerate(history):
        seen = check(trained, weight=1.0 + iteration)
        expected = [tuple(prompt) for prompt in PROMPTS[2 * iteration : 2 * iteration + 2] for _ in range(2)]
        assert sorted(seen) == sorted(expected)
        assert sum(metrics["actor/rows"]) == 4
        scores = [sum(tokens) for _, tokens, *_ in trained]
        assert metrics["score"] == pytest.approx(sum(scores) / 4)
    ray.kill(trainer.dock)


def test_responses_are_resumed_over_iterations(workers: tuple[list[Any], list[Any], Any]) -> None:
    trainer = Trainer(*workers, settings(prompts=2, max_age=3))
    history = trainer.fit(batches(2), 3)
    seen: list[tuple[int, ...]] = []
    for iteration, (trained, metrics) in enumerate(history):
        seen += check(trained, weight=1.0 + iteration)
        assert sum(metrics["actor/rows"]) == 4
    assert sorted(seen) == sorted(tuple(prompt) for prompt in PROMPTS for _ in range(2))
    assert ray.get(trainer.dock.get_experience_status.remote(), timeout=LONG)["prompts"].sum() == 0
    ray.kill(trainer.dock)
