#!/usr/bin/env python3
"""How many answers to the held-out questions are right before and after each part, and the time of the parts.

usage: examples/real-model/table.py FOLDER

FOLDER/answers has a file of answers for each model, and FOLDER/seconds.txt what `run.sh` wrote: lines with the name of a part and
its seconds, real, and of processors in programs and in the system. points.json in FOLDER gets the same figures.
"""

from __future__ import annotations

import json
import pathlib
import statistics
import sys

from tasks import TASKS, read, scored

MODELS = ["model", "sft", "dpo", "grpo"]  # in their order


def figures_of(answers: list[dict]) -> dict[str, float]:
    """Shares of right answers, of each task and of all, and the mean score."""
    by_task = {task: [answer["score"] for answer in scored(answers) if answer["data_source"] == task] for task in TASKS}
    everything = [number for scores in by_task.values() for number in scores]
    right = {task: statistics.mean(number >= 1 for number in scores) for task, scores in (by_task | {"all": everything}).items()}
    return right | {"mean score": statistics.mean(everything)}


def seconds_of(path: pathlib.Path) -> dict[str, tuple[float, float]]:
    """Seconds of each part: real, and of processors."""
    found: dict[str, tuple[float, float]] = {}
    for line in path.read_text().splitlines():
        name, *numbers = line.split()
        real, user, system = map(float, numbers)
        before = found.get(name, (0.0, 0.0))
        found[name] = (before[0] + real, before[1] + user + system)
    return found


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit(__doc__.splitlines()[2])
    folder = pathlib.Path(sys.argv[1])
    figures = {name: figures_of(read(folder / f"answers/{name}.jsonl")) for name in MODELS if (folder / f"answers/{name}.jsonl").exists()}
    seconds = seconds_of(folder / "seconds.txt")
    (folder / "points.json").write_text(json.dumps({"figures": figures, "seconds": seconds}, indent=1) + "\n")
    print(f"{'right answers':14}" + "".join(f"{name:>22}" for name in [*TASKS, "all"]) + f"{'mean score':>13}{'minutes':>10}{'of CPUs':>10}")
    for name, row in figures.items():
        real, used = seconds.get(name, (0.0, 0.0))
        shares = "".join(f"{row[task]:22.1%}" for task in [*TASKS, "all"])
        print(f"{name:14}{shares}{row['mean score']:13.3f}{real / 60:10.1f}{used / 60:10.1f}")
    real, used = (sum(numbers) for numbers in zip(*seconds.values(), strict=True))
    print(f"{'together':14}{'':79}{real / 60:10.1f}{used / 60:10.1f}")


if __name__ == "__main__":
    main()
