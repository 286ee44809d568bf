#!/usr/bin/env python3
"""A reward in Python for a run of `tdock train`, whose other stages are in C++.

    python examples/external-reward/reward_stage.py RUN_DIRECTORY
    python examples/external-reward/reward_stage.py --address ADDRESS [--partition train]

The first form finds the dock by the file that a run with trainer.serve leaves in its directory; the second is for a dock
that is served elsewhere. It may be started before the run or after, several times to share the work, and again if it was
killed: the rows that it held go to another. It ends with the run.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
import time
from collections.abc import Callable

import transfer_dock as td


def score(response: str, truth: str) -> float:
    """The share of the right answer's characters that are in their places, less a little for each one too many."""
    right = sum(a == b for a, b in zip(response, truth))
    return right / max(len(truth), 1) - 0.01 * max(len(response) - len(truth), 0)


# These options are those of the run's own stage: docs/training.md lists the columns.
@td.stage(
    name="reward",
    reads=["prompt_text", "truth", "data_source", "response_text", "finished"],
    writes=["rewards"],
    batch_size=64,
)
def reward(rows):
    answers = zip(rows["response_text"], rows["truth"])
    return {"rewards": [score(response.decode(errors="replace"), truth.decode()) for response, truth in answers]}


def wait_until(there: Callable[[], bool], what: str, seconds: float) -> None:
    """Says what it waits for, and ends the program if that does not come in time."""
    deadline = time.monotonic() + seconds
    if not there():
        print(f"waiting for {what}", file=sys.stderr)
    while not there():
        if time.monotonic() > deadline:
            sys.exit(f"{what} was not there within {seconds:g} seconds: is the run started, and not over?")
        time.sleep(0.1)


def find(run_directory: pathlib.Path, seconds: float) -> tuple[str, str]:
    """Where the dock of a run is, once it has begun."""
    file = run_directory / "dock.json"
    wait_until(file.exists, f"{file} (of a run with trainer.serve)", seconds)
    found = json.loads(file.read_text())
    return found["address"], found["partition"]


def main() -> None:
    parser = argparse.ArgumentParser(description="A reward stage for a run of tdock train.")
    parser.add_argument("run_directory", nargs="?", type=pathlib.Path)
    parser.add_argument("--address")
    parser.add_argument("--partition", default="train")
    parser.add_argument("--timeout", type=float, default=600, help="seconds to wait for the run to begin (600)")
    arguments = parser.parse_args()
    if (arguments.run_directory is None) == (arguments.address is None):
        parser.error("give either the directory of a run or --address")
    address, partition = arguments.address, arguments.partition
    if arguments.run_directory is not None:
        address, partition = find(arguments.run_directory, arguments.timeout)
    dock = td.Dock.connect(address)
    wait_until(lambda: partition in dock.partitions(), f"partition '{partition}' of {address}", arguments.timeout)
    counts = td.run(dock, partition, [reward])
    print(f"scored {counts['reward'].rows} answers")


if __name__ == "__main__":
    main()
