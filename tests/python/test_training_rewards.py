"""Runs of `tdock train` whose rewards are functions in Python, and programs in other languages."""

from __future__ import annotations

import pytest

from messages import mentions
from test_training import ROOT, Run, folder
from waiting import LONG

__all__ = ["folder"]

CONFIG = ROOT / "examples/python-reward/grpo.yaml"


def failed(run: Run) -> str:
    messages = run.process.communicate(timeout=LONG)[1]
    assert run.process.returncode == 2, messages  # refused before anything is written
    return messages.replace("\\'", "'")


def test_the_example_adds_its_two_functions_by_their_weights(folder):
    with Run(folder, "run", config=CONFIG) as run:
        run.end()
    steps = run.metrics()[1:]
    assert len(steps) == 3
    for metrics in steps:
        summed = 0.5 * metrics["reward/digits/mean"] + metrics["reward/compute_score/mean"]
        assert metrics["critic/score/mean"] == pytest.approx(summed, abs=1e-6)
        assert metrics["reward/digits/failed"] == metrics["reward/compute_score/failed"] == 0
    assert any(metrics["reward/digits/std"] > 0 for metrics in steps)


def test_what_a_function_needs_may_be_a_kept_column(folder):
    (folder / "mine.py").write_text("""
import re
def kept(completions, prompts, **kwargs):
    assert all(re.fullmatch("[0-9][0-9]>", prompt) for prompt in prompts), prompts
    assert kwargs["answer"] == [prompt[1::-1] for prompt in prompts], kwargs
    print("printed by the function")
    return [int(answer) for answer in kwargs["answer"]]
""")
    one = [f"reward.function={folder}/mine.py:kept", "reward.function_weights=[]", "data.keep=[answer]"]
    with Run(folder, "run", *one, config=CONFIG) as run:
        messages = run.end()
    assert "reward kept: printed by the function" in messages
    assert all(metrics["critic/score/mean"] > 1 for metrics in run.metrics()[1:])


def test_a_run_stops_with_the_line_of_a_function_that_raises(folder):
    (folder / "mine.py").write_text("def fragile(solution_str, ground_truth):\n    return 1 / 0\n")
    with Run(
        folder, "run", f"reward.function={folder}/mine.py:fragile", "reward.function_weights=[]", "reward.retries=0",
        config=CONFIG,
    ) as run:  # fmt: skip
        messages = failed(run)
    mentions(messages, "ZeroDivisionError", "(mine.py:2, in fragile: return 1 / 0)")


def test_a_run_stops_with_both_counts_of_a_function_that_scores_too_few(folder):
    (folder / "mine.py").write_text("def few(completions, **kwargs):\n    return []\n")
    with Run(
        folder, "run", f"reward.function={folder}/mine.py:few", "reward.function_weights=[]", config=CONFIG
    ) as run:  # fmt: skip
        messages = failed(run)
    mentions(messages, "reward function 'few'", "0 scores for", "one score", "(mine.py:1)", "try 1")
    assert "try 2" not in messages


def test_a_run_says_which_functions_there_are(folder):
    (folder / "mine.py").write_text("def accuracy(completions):\n    return completions\n")
    with Run(
        folder, "run", f"reward.function={folder}/mine.py:acuracy", "reward.function_weights=[]",
        "reward.max_restarts=0", config=CONFIG,
    ) as run:  # fmt: skip
        messages = failed(run)
    mentions(messages, "mine.py", "'acuracy'", "accuracy?")


def test_programs_in_other_languages(folder):
    programs = ROOT / "examples/reward-programs"
    with Run(
        folder, "run", "reward.function=[]", "reward.function_weights=[]",
        f"reward.program=['{programs}/digits.pl', '{programs}/short.sh 3']", config=CONFIG,
    ) as run:  # fmt: skip
        run.end()
    assert all("reward/digits.pl/mean" in metrics and "reward/short.sh/mean" in metrics for metrics in run.metrics()[1:])
