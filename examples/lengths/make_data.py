#!/usr/bin/env python3
"""Two letters in turn, up to a length, as JSON lines: answers of 1 to 28 letters, most of them short.

usage: examples/lengths/make_data.py FOLDER [SEED]

The prompt is "ab05=" and the answer "ababa". Lengths are 1 to 8, 12, 20 and 28; three quarters of the problems have a
length of at most 8. Writes test.jsonl (400 problems), validation.jsonl (200) and train.jsonl (the rest), each problem in one
file; and train_permuted.jsonl, where each training problem has the answer of another one, so that there is nothing to learn.
"""

import json
import pathlib
import random
import sys

LETTERS = "abcdefghijklmnop"
SHORT = range(1, 9)
LONG = (12, 20, 28)
SIZES = {"test": 400, "validation": 200}


def problems(generator):
    """Prompts with their answers, shuffled: all short ones, and a third as many long ones."""
    pairs = [x + y for x in LETTERS for y in LETTERS]
    chosen = [(pair, length) for pair in pairs for length in SHORT]
    chosen += generator.sample([(pair, length) for pair in pairs for length in LONG], len(chosen) // 3)
    generator.shuffle(chosen)
    return [{"prompt": f"{pair}{length:02}=", "answer": (pair * length)[:length]} for pair, length in chosen]


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
