"""Rewards for sums whose answers are written from their last digit to their first, as TRL and verl have them.

    tdock train examples/python-reward/grpo.yaml
"""

from __future__ import annotations


def digits(completions, answer, **kwargs):
    """TRL's style: lists in, a list out. The share of the answer's digits that are in their places."""
    return [
        sum(a == b for a, b in zip(completion, truth)) / max(len(truth), 1)
        for completion, truth in zip(completions, answer)
    ]


def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    """verl's style: one sample. Whether the answer is right, and as a part, by how many characters it is too long."""
    return {
        "score": float(solution_str == ground_truth),
        "too_long": max(len(solution_str) - len(ground_truth), 0),
    }
