#!/usr/bin/env python3
"""Runs examples/real-model on several seeds, holds each part against its bar, and its control, which learns from nothing that is true.

usage: tests/nightly/real_model.py TDOCK [--seeds 0,1,2] [--folder FOLDER] [--no-controls]

Runs in .venv-real-model. Each part begins where the one before it ended, and must raise the share of right answers to the 600
held-out questions; the scores are reasoning-gym's. The controls begin there, too, and take as many steps:

    sft     each question has the answer of another one of its task
    dpo     of each pair, a coin decides which answer is the chosen one
    grpo    rewards are drawn by lot

With --folder, what it has already of the runs is kept; --seeds 1 runs one seed only.
"""

import argparse
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
EXAMPLE = ROOT / "examples/real-model"
sys.path.append(str(EXAMPLE))
from make_model import make_model  # noqa: E402
from table import figures_of, seconds_of  # noqa: E402
from tasks import read, write  # noqa: E402

BEFORE = {"sft": "model", "dpo": "sft", "grpo": "dpo"}
GAINS = {"sft": 0.3, "dpo": 0.03, "grpo": 0.04}  # bars: right answers after a part less those before it, at least
CONTROL_GAINS = {"sft": 0.2, "dpo": 0.005, "grpo": 0.01}  # at most; that of sft learns to say some relationship
LONGEST_MINUTES = 30  # of processors, for all parts: a quarter of an hour on two idle cores


def permuted(records, seed):
    """Each question with the answer of another one of its task."""
    by_task = {}
    for record in records:
        by_task.setdefault(record["data_source"], []).append(record)
    made = []
    for group in by_task.values():
        answers = [record["answer"] for record in group]
        random.Random(seed).shuffle(answers)
        made += [record | {"answer": answer} for record, answer in zip(group, answers, strict=True)]
    random.Random(seed).shuffle(made)
    return made


def tossed(pairs, seed):
    """Pairs of which a coin decides what was preferred."""
    coin = random.Random(seed)
    swap = {"chosen": "rejected", "rejected": "chosen"}
    return [{swap.get(key, key): value for key, value in pair.items()} if coin.random() < 0.5 else pair for pair in pairs]


def overrides_of_control(part, folder, seed):
    """Writes the data of a control; the keys that use them."""
    data = folder / f"{part}_control.jsonl"
    if part == "sft":
        write(data, permuted(read(folder / "sft.jsonl"), seed))
    if part == "dpo":
        write(data, tossed(read(folder / "pairs.jsonl"), seed))
    if part == "grpo":
        return [f"data.train_files={folder}/grpo.jsonl", "reward.function=examples/real-model/tasks.py:score_by_lot"]
    return [f"data.train_files={data}"]


def control(tdock, part, folder, model, seed):
    """The figures of a control."""
    run = folder / f"{part}_control"
    before = model if part == "sft" else folder / BEFORE[part] / "checkpoint"
    answers = folder / f"answers/{part}_control.jsonl"
    if not (run / "checkpoint/config.json").exists():
        called(
            [tdock, "train", EXAMPLE / f"{part}.yaml", "--seed", seed, "--run-dir", run, f"model.path={before}", "data.val_files=[]",
             *overrides_of_control(part, folder, seed)]
        )  # fmt: skip
    called(
        [tdock, "generate", "--model", run / "checkpoint", "--chat", "--input", folder / "validation.jsonl", "--output", answers,
         "--temperature", "0", "--max-new-tokens", "16"]
    )  # fmt: skip
    return figures_of(read(answers))


def called(command, **environment):
    done = subprocess.run(list(map(str, command)), cwd=ROOT, env=os.environ | environment, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command[:3]))}: {done.stderr[-2000:]}")
    return done.stdout


def check(tdock, folder, model, seed, with_controls):
    """Prints what was measured beside the bars; whether all are met."""
    print(called([EXAMPLE / "run.sh", folder, seed], TDOCK=tdock, MODEL=str(model)), flush=True)
    figures = {name: figures_of(read(folder / f"answers/{name}.jsonl")) for name in ["model", *BEFORE]}
    rows = [(part, "", figures[part]["all"] - figures[before]["all"], ">=", GAINS[part]) for part, before in BEFORE.items()]
    if with_controls:
        for part, before in BEFORE.items():
            gain = control(tdock, part, folder, model, seed)["all"] - figures[before]["all"]
            rows.append((part, "control", gain, "<=", CONTROL_GAINS[part]))
    minutes = sum(used for _, used in seconds_of(folder / "seconds.txt").values()) / 60
    rows.append(("all parts", "minutes of processors", minutes, "<=", LONGEST_MINUTES))
    # A run's own validation asks the same questions; it computes in bfloat16, `tdock generate` in float32.
    own = json.loads((folder / "grpo/evaluation.json").read_text())
    rows.append(("grpo", "own validation, apart", abs(own["after"]["val/accuracy"] - figures["grpo"]["all"]), "<=", 0.02))
    met = True
    for part, kind, value, sign, bound in rows:
        good = value >= bound if sign == ">=" else value <= bound
        met &= good
        print(f"seed {seed}  {part:10} {kind:22} {value:8.3f} {sign} {bound:g}{'' if good else '   MISSED'}", flush=True)
    return met


def main():
    parser = argparse.ArgumentParser(usage=__doc__.splitlines()[2].removeprefix("usage: "))
    parser.add_argument("tdock", type=pathlib.Path)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--folder", type=pathlib.Path)
    parser.add_argument("--no-controls", action="store_true")
    arguments = parser.parse_args()
    met = True
    with tempfile.TemporaryDirectory() as temporary:
        folder = (arguments.folder or pathlib.Path(temporary)).resolve()
        model = make_model(folder / "model")
        for seed in arguments.seeds.split(","):
            met &= check(str(arguments.tdock.resolve()), folder / f"seed-{seed}", model, int(seed), not arguments.no_controls)
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
