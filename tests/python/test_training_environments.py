"""Runs of `tdock train` whose answers are episodes with environments in Python."""

from __future__ import annotations

import collections
import json

import pytest

from messages import mentions
from test_training import ROOT, Run, folder
from waiting import LONG

__all__ = ["folder"]

CONFIG = ROOT / "examples/python-environment/grpo.yaml"


def trained(folder, name: str, *overrides: str) -> tuple[list[dict[str, float]], str]:
    """The metrics of its steps, and its messages."""
    with Run(folder, name, *overrides, config=CONFIG) as run:
        messages = run.end()
    return run.metrics()[1:], messages


def test_the_example_asks_a_second_time(folder):
    steps, _ = trained(folder, "run")
    assert len(steps) == 3
    for metrics in steps:
        assert 1 < metrics["episode/turns"] <= 2
        assert metrics["critic/score/mean"] == pytest.approx(metrics["reward/digits/mean"], abs=1e-6)
    assert any(metrics["reward/digits/std"] > 0 for metrics in steps)


COUNTS = '''
class Env:
    def reset(self, answer: int, level: int, seed, **kwargs):
        assert kwargs["prompt"] == f"{answer:02}"[::-1] + ">" and level == answer, (kwargs, level)
        with open("FOLDER/seeds", "a") as file: print(kwargs["prompt"], seed, file=file)
        return "0>"
    def get_reward(self): return 0.5
'''


def test_samples_of_a_prompt_share_a_seed_and_a_cut_episode_has_its_reward(folder):
    rows = [json.loads(line) for line in (folder / "train.jsonl").read_text().splitlines()]
    lines = [json.dumps(row | {"level": int(row["answer"])}) for row in rows]
    (folder / "train.jsonl").write_text("\n".join(lines))
    (folder / "mine.py").write_text(COUNTS.replace("FOLDER", str(folder)))
    steps, _ = trained(
        folder, "run", f"environment.function={folder}/mine.py:Env", "data.keep=[level]", "data.max_response_length=3",
        "rollout.probe_prompts=0",
    )  # fmt: skip
    assert all(metrics["reward/Env/mean"] == 0.5 for metrics in steps)
    assert any(0 < metrics["episode/truncated"] < 1 for metrics in steps)
    trial, *seeds = (tuple(line.split()) for line in (folder / "seeds").read_text().splitlines())
    assert len(seeds) == 3 * 32 and all(count == 4 for count in collections.Counter(seeds).values()), seeds


AGENT = '''
class Agent:
    async def run(self, sampling_params, raw_prompt_ids, extra_info=None):
        said = await self.server_manager.generate(request_id="a", prompt_ids=raw_prompt_ids, sampling_params=sampling_params)
        ids, mask = list(said.token_ids), [1] * len(said.token_ids)
        if len(ids) < self.config.data.max_response_length - 2:
            more = await self.server_manager.generate(
                request_id="a", prompt_ids=raw_prompt_ids + ids + [0], sampling_params=sampling_params | {"max_tokens": 1})
            ids, mask = ids + [0] + more.token_ids, mask + [0] + [1] * len(more.token_ids)
        return {"prompt_ids": raw_prompt_ids, "response_ids": ids, "response_mask": mask, "reward_score": len(ids) / 8}
'''


def test_an_agent_loop_trains(folder):
    (folder / "mine.py").write_text(AGENT)
    steps, _ = trained(folder, "run", f"environment.function={folder}/mine.py:Agent")
    assert all(metrics["reward/reward/mean"] == metrics["critic/score/mean"] > 0 for metrics in steps)
    assert any(metrics["reward/reward/std"] > 0 for metrics in steps)
    assert any(metrics["episode/observation_tokens"] > 0 for metrics in steps)


def test_a_run_with_a_class_that_raises_stops_with_its_line_and_one_with_a_wrong_name_does_not_start(folder):
    (folder / "mine.py").write_text("class Env:\n    def reset(self, **kwargs):\n        return 1 / 0\n")
    for name, names in (
        ("Env", ["ZeroDivisionError", "(mine.py:3, in reset: return 1 / 0)"]),
        ("Enf", ["mine.py", "'Enf'", "Env?"]),
    ):
        with Run(
            folder, name, f"environment.function={folder}/mine.py:{name}", "environment.retries=0",
            "environment.max_restarts=0", config=CONFIG,
        ) as run:  # fmt: skip
            messages = run.process.communicate(timeout=LONG)[1]
        assert run.process.returncode == 2, messages  # refused before anything is written
        mentions(messages.replace("\\'", "'"), *names)
