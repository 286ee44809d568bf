#!/usr/bin/env python3
"""Patterns that go on for a given length, as JSON lines: answers of 1 to 28 characters, most of them short.

usage: examples/lengths/make_data.py FOLDER [SEED]

The prompt is "ab05=" and the answer "ababa": the two letters in turn, five characters long. Of the problems with answers of up
to 7 characters all are used, of the others one in eight. Writes test.jsonl (400 problems), validation.jsonl (200) and
train.jsonl (the rest), each problem in one file; and train_permuted.jsonl, where each training problem has the answer of
another one, so that there is nothing to learn.
"""

import json
import pathlib
import random
import sys

LETTERS = "abcdefghijklmnop"
SHORT = 7
LONGEST = 28
SHARE_OF_LONG = 1 / 8
SIZES = {"test": 400, "validation": 200}


def answer(problem):
    pattern, length = problem
    return (pattern * LONGEST)[:length]


def problems(generator):
    """All that are used, shuffled: pairs of a pattern and a length."""
    patterns = [x + y for x in LETTERS for y in LETTERS]
    chosen = [(pattern, length) for pattern in patterns for length in range(1, SHORT + 1)]
    long = [(pattern, length) for pattern in patterns for length in range(SHORT + 1, LONGEST + 1)]
    chosen += generator.sample(long, round(len(long) * SHARE_OF_LONG))
    generator.shuffle(chosen)
    return chosen


def write(file, problems, answers):
    lines = [
        json.dumps({"prompt": f"{pattern}{length:02}=", "answer": text})
        for (pattern, length), text in zip(problems, answers)
    ]
    file.write_text("\n".join(lines) + "\n")


def main():
    if not 2 <= len(sys.argv) <= 3:
        sys.exit("usage: examples/lengths/make_data.py FOLDER [SEED]")
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    generator = random.Random(int(sys.argv[2]) if len(sys.argv) > 2 else 1)
    rest = problems(generator)
    for name, size in SIZES.items():
        write(folder / f"{name}.jsonl", rest[:size], map(answer, rest[:size]))
        rest = rest[size:]
    answers = [answer(problem) for problem in rest]
    write(folder / "train.jsonl", rest, answers)
    generator.shuffle(answers)
    write(folder / "train_permuted.jsonl", rest, answers)


if __name__ == "__main__":
    main()
