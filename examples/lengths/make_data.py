#!/usr/bin/env python3
"""From one letter to another in strides, round the alphabet, as JSON lines: answers of 1 to 26 letters, most of them short.

usage: examples/lengths/make_data.py FOLDER [SEED]

The prompt is "t3c=" and the answer "twzc": every third letter from t on, where a follows z, up to c. Strides are 1, 3, 5, 7 and
9, with which every letter is reached. Of the problems with answers of up to 7 letters all are used, of the others one in
eight. Writes test.jsonl (300 problems), validation.jsonl (150) and train.jsonl (the rest), each problem in one file; and
train_permuted.jsonl, where each training problem has the answer of another one, so that there is nothing to learn.
"""

import json
import pathlib
import random
import sys

LETTERS = "abcdefghijklmnopqrstuvwxyz"
STRIDES = (1, 3, 5, 7, 9)
SHORT = 7
SHARE_OF_LONG = 1 / 8
SIZES = {"test": 300, "validation": 150}


def problem(first, stride, length):
    """A prompt and its answer."""
    answer = "".join(LETTERS[(first + i * stride) % len(LETTERS)] for i in range(length))
    return {"prompt": f"{answer[0]}{stride}{answer[-1]}=", "answer": answer}


def problems(generator):
    """All that are used, shuffled."""
    every = [
        problem(first, stride, length)
        for first in range(len(LETTERS))
        for stride in STRIDES
        for length in range(1, len(LETTERS) + 1)
    ]
    long = [problem for problem in every if len(problem["answer"]) > SHORT]
    chosen = [problem for problem in every if len(problem["answer"]) <= SHORT]
    chosen += generator.sample(long, round(len(long) * SHARE_OF_LONG))
    generator.shuffle(chosen)
    return chosen


def write(file, problems):
    file.write_text("".join(json.dumps(problem) + "\n" for problem in problems))


def main():
    if not 2 <= len(sys.argv) <= 3:
        sys.exit("usage: examples/lengths/make_data.py FOLDER [SEED]")
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    generator = random.Random(int(sys.argv[2]) if len(sys.argv) > 2 else 1)
    rest = problems(generator)
    for name, size in SIZES.items():
        write(folder / f"{name}.jsonl", rest[:size])
        rest = rest[size:]
    write(folder / "train.jsonl", rest)
    answers = [problem["answer"] for problem in rest]
    generator.shuffle(answers)
    write(folder / "train_permuted.jsonl", [{**problem, "answer": text} for problem, text in zip(rest, answers)])


if __name__ == "__main__":
    main()
