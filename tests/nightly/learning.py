#!/usr/bin/env python3
"""Trains the example on seeds 0, 1 and 2 and holds each run against its bars: tests/nightly/learning.py TDOCK

Held-out greedy accuracy 0.15 to 0.50 after the supervised part, at least 0.75 at step 100 of reinforcement and 0.95 at
step 200; both together in less than 150 s on two idle cores.
"""

import json
import pathlib
import subprocess
import sys
import tempfile
import time


def train(tdock, seed, folder):
    start = time.monotonic()
    subprocess.run(["python3", "examples/arithmetic/make_data.py", str(folder), str(seed)], check=True)
    for recipe, overrides in (
        ("sft", [f"data.val_files={folder}/validation.jsonl"]),
        ("grpo", [f"data.val_files={folder}/test.jsonl", f"model.path={folder}/sft/checkpoint"]),
    ):
        subprocess.run(
            [tdock, "train", f"examples/arithmetic/{recipe}.yaml", "--seed", str(seed), "--run-dir", str(folder / recipe),
             f"data.train_files={folder}/train.jsonl", *overrides],
            check=True,
            timeout=1200,
            stdout=subprocess.DEVNULL,
        )  # fmt: skip
    seconds = time.monotonic() - start
    grpo = [json.loads(line) for line in (folder / "grpo/metrics.jsonl").read_text().splitlines()]
    return seconds, {r["step"]: r["val/accuracy"] for r in grpo if "val/accuracy" in r}, grpo


def main():
    failed = False
    print("seed      sft  step 100  step 200  seconds  tokens/s")
    for seed in (0, 1, 2):
        with tempfile.TemporaryDirectory() as parent:
            seconds, accuracy, grpo = train(sys.argv[1], seed, pathlib.Path(parent))
        met = 0.15 <= accuracy[0] <= 0.50 and accuracy[100] >= 0.75 and accuracy[200] >= 0.95 and seconds < 150
        failed |= not met
        throughput = [r["perf/throughput"] for r in grpo if "perf/throughput" in r]
        print(
            f"{seed:4}  {accuracy[0]:7.3f}  {accuracy[100]:8.3f}  {accuracy[200]:8.3f}  {seconds:7.1f}"
            f"  {sum(throughput) / len(throughput):8.0f}{'' if met else '   misses a bar'}"
        )
        stages = sorted(key for key in grpo[-1] if key.startswith("timing_s/"))
        print("      " + ", ".join(f"{k[9:]} {sum(r.get(k, 0) for r in grpo):.1f} s" for k in stages), flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
