#!/usr/bin/env python3
"""Two-digit addition as JSON lines: a task small enough to learn in minutes on a CPU.

usage: examples/arithmetic/make_data.py FOLDER [SEED]

Writes train.jsonl (8,744 problems), validation.jsonl (256) and test.jsonl (1,000): all 10,000 problems, each in one
file, x+y always in the file of y+x; and train_permuted.jsonl, where each training problem has the answer of another one, so
that there is nothing to learn. The prompt is "37+85=". The answer has its last digit first, "221" for 122: the order
in which a model that writes one digit after another can compute the carries.
"""

import json
import pathlib
import random
import sys

SIZES = {"test": 1000, "validation": 256, "train": 8744}


def split(seed):
    """The files' problems. Pairs go, shuffled, into the first file that has room for both (one if x = y)."""
    generator = random.Random(seed)
    pairs = [(x, y) for x in range(100) for y in range(x, 100)]
    generator.shuffle(pairs)
    files = {name: [] for name in SIZES}
    for x, y in pairs:
        problems = [(x, y)] if x == y else [(x, y), (y, x)]
        name = next(name for name, size in SIZES.items() if len(files[name]) + len(problems) <= size)
        files[name] += problems
    for problems in files.values():
        generator.shuffle(problems)
    return files


def write(file, problems, answers):
    lines = [json.dumps({"prompt": f"{x:02}+{y:02}=", "answer": answer}) for (x, y), answer in zip(problems, answers)]
    file.write_text("\n".join(lines) + "\n")


def main():
    if not 2 <= len(sys.argv) <= 3:
        sys.exit("usage: examples/arithmetic/make_data.py FOLDER [SEED]")
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    for name, problems in split(seed).items():
        answers = [str(x + y)[::-1] for x, y in problems]
        write(folder / f"{name}.jsonl", problems, answers)
        if name == "train":
            random.Random(seed).shuffle(answers)
            write(folder / "train_permuted.jsonl", problems, answers)


if __name__ == "__main__":
    main()
