#!/usr/bin/env python3
"""Trains the example on seeds 0, 1 and 2 and holds each run against its bars: tests/nightly/learning.py TDOCK

Held-out greedy accuracy 0.15 to 0.50 after the warm-up, at least 0.75 at step 100 and 0.95 at step 200; the whole run,
warm-up included, in less than 150 s on two idle cores.
"""

import json
import pathlib
import subprocess
import sys
import tempfile
import time


def train(tdock, seed, folder):
    start = time.monotonic()
    subprocess.run(
        [tdock, "train", "examples/arithmetic/grpo.yaml", "--seed", str(seed), "--run-dir", str(folder)],
        check=True,
        timeout=1200,
        stdout=subprocess.DEVNULL,
    )
    seconds = time.monotonic() - start
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    grpo = [record for record in records if record["phase"] == "grpo"]
    return seconds, {r["step"]: r["val/test_accuracy"] for r in grpo if "val/test_accuracy" in r}, grpo


def main():
    failed = False
    print("seed  warm-up  step 100  step 200  seconds  tokens/s")
    for seed in (0, 1, 2):
        with tempfile.TemporaryDirectory() as parent:
            seconds, accuracy, grpo = train(sys.argv[1], seed, pathlib.Path(parent) / "run")
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
