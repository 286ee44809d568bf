#!/usr/bin/env python3
"""Runs the examples that learn on several seeds and holds each against the bars in its file.

usage: tests/nightly/learning.py TDOCK [--only FOLDER/RECIPE]… [--seeds 0,1,2]

An example is one command, examples/FOLDER/run.sh RECIPE, and its control the same on permuted data, from which nothing can be
learned, or without the tool that it needs. The comments of examples/FOLDER/RECIPE.yaml have the bars, a line each:

    # Bar: METRIC >= NUMBER [at step N]
    # Control: METRIC <= NUMBER [with KEY=VALUE…]

A metric is the last one of that name in the run's metrics.jsonl, or one that the example's own points.json has, or
`seconds`: the time of all parts of the example; of a processor, if that is less, as on a machine that others use. Every
example must take less than ten minutes on two idle cores.
"""

import argparse
import dataclasses
import json
import operator
import os
import pathlib
import re
import resource
import subprocess
import sys
import tempfile
import time

EXAMPLES = [
    "arithmetic/grpo", "arithmetic/rloo", "arithmetic/dapo", "arithmetic/async", "lengths/partial",
    "rlhf/rm", "rlhf/ppo", "rlhf/dpo", "tools/grpo",
]  # fmt: skip
LONGEST_SECONDS = 600
BAR = re.compile(r"# (Bar|Control): (\S+) (>=|<=) ([\d.]+)(?: at step (\d+))?(?: with (.+))?")
ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


@dataclasses.dataclass
class Bar:
    metric: str
    sign: str
    bound: float
    step: int | None
    is_control: bool
    overrides: list[str]

    def value(self, figures):
        return figures[self.metric][-1 if self.step is None else self.step]

    def is_met(self, figures):
        return {">=": operator.ge, "<=": operator.le}[self.sign](self.value(figures), self.bound)

    def __str__(self):
        step = "" if self.step is None else f" at step {self.step}"
        return f"{self.metric} {self.sign} {self.bound:g}{step}"


def bars_of(example):
    bars = []
    for line in (ROOT / f"examples/{example}.yaml").read_text().splitlines():
        if not line.startswith(("# Bar:", "# Control:")):
            continue
        match = BAR.fullmatch(line)
        if match is None:
            sys.exit(f"examples/{example}.yaml: this is no bar: {line}")
        kind, metric, sign, bound, step, overrides = match.groups()
        bars.append(
            Bar(metric, sign, float(bound), int(step) if step else None, kind == "Control", (overrides or "").split())
        )
    if {bar.is_control for bar in bars} != {False, True}:
        sys.exit(f"examples/{example}.yaml needs a bar and a control")
    return bars


def figures_of(run):
    """Metric -> step -> value; step -1 has the last one."""
    figures = {}
    for line in (run / "metrics.jsonl").read_text().splitlines():
        record = json.loads(line)
        for name, value in record.items():
            figures.setdefault(name, {}).update({record["step"]: value, -1: value})
    if (run / "points.json").exists():
        evaluation = json.loads((run / "points.json").read_text())
        figures.update({name: {-1: value} for name, value in evaluation.items()})
    return figures


def processor_seconds():
    """Of all processes that have ended below this one."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run(tdock, example, seed, out, control=None):
    """The figures of an example, or of its control with these overrides."""
    folder, recipe = example.split("/")
    permuted = [] if control is None else ["permuted", *control]
    start, used = time.monotonic(), processor_seconds()
    done = subprocess.run(
        [ROOT / f"examples/{folder}/run.sh", recipe, out, str(seed), *permuted],
        env=os.environ | {"TDOCK": tdock}, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    if done.returncode != 0:
        sys.exit(f"{example}, seed {seed}: {done.stderr[-2000:]}")
    figures = figures_of(out / (recipe + ("_permuted" if permuted else "")))
    figures["seconds"] = {-1: min(time.monotonic() - start, processor_seconds() - used)}
    return figures


def check(tdock, example, seed):
    """Prints a row for each bar; whether all are met."""
    bars = bars_of(example)
    longest = Bar("seconds", "<=", LONGEST_SECONDS, None, False, [])
    if not any(bar.metric == "seconds" for bar in bars):
        bars.append(longest)
    met = True
    with tempfile.TemporaryDirectory() as parent:
        out = pathlib.Path(parent) / "run"
        learned = run(tdock, example, seed, out)
        for bar in bars:
            # The control finds the first parts done, which it shares with the example.
            figures = run(tdock, example, seed, out, bar.overrides) if bar.is_control else learned
            met &= bar.is_met(figures)
            print(
                f"{example:16} {seed:4}  {'control' if bar.is_control else '':7}  {str(bar):30} {bar.value(figures):8.3f}"
                f"{'' if bar.is_met(figures) else '   MISSED'}",
                flush=True,
            )
    return met


def main():
    parser = argparse.ArgumentParser(usage=__doc__.splitlines()[2].removeprefix("usage: "))
    parser.add_argument("tdock", type=pathlib.Path)
    parser.add_argument("--only", action="append", choices=EXAMPLES)
    parser.add_argument("--seeds", default="0,1,2")
    arguments = parser.parse_args()
    tdock = str(arguments.tdock.resolve())
    print(f"{'example':16} seed           {'bar':30}   figure")
    met = True
    for example in arguments.only or EXAMPLES:
        for seed in arguments.seeds.split(","):
            met &= check(tdock, example, int(seed))
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
