#!/usr/bin/env python3
"""How many points of the hidden rule (rule.py) a model's answers have, beside those of the model that it began as.

usage: examples/rlhf/evaluate.py TDOCK PROMPTS BEFORE AFTER [SEED]

BEFORE and AFTER are folders of models. Each answers every prompt of PROMPTS four times at temperature 1, through `tdock
generate`. Prints a line of JSON: mean and standard deviation of the points before, the mean after, and the gain, which
is how far the mean rose in standard deviations of the points before.
"""

import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

from rule import points


def points_of(tdock, model, prompts, seed):
    with tempfile.TemporaryDirectory() as folder:
        answers = pathlib.Path(folder) / "answers.jsonl"
        subprocess.run(
            [tdock, "generate", "--model", model, "--input", prompts, "--output", str(answers), "--samples", "4",
             "--temperature", "1", "--max-new-tokens", "16", "--seed", str(seed)],
            check=True, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        records = [json.loads(line) for line in answers.read_text().splitlines()]
    return [points(record["prompt"], record["text"]) for record in records]


def main():
    if not 5 <= len(sys.argv) <= 6:
        sys.exit("usage: examples/rlhf/evaluate.py TDOCK PROMPTS BEFORE AFTER [SEED]")
    tdock, prompts, *models = sys.argv[1:5]
    seed = int(sys.argv[5]) if len(sys.argv) > 5 else 1
    before, after = (points_of(tdock, model, prompts, seed) for model in models)
    mean, deviation = statistics.mean(before), statistics.stdev(before)
    figures = {
        "rule/before/mean": mean,
        "rule/before/std": deviation,
        "rule/after/mean": statistics.mean(after),
        "rule/gain": (statistics.mean(after) - mean) / deviation,
    }
    print(json.dumps({name: round(value, 4) for name, value in figures.items()}))


if __name__ == "__main__":
    main()
