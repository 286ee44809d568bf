#!/usr/bin/env python3
"""Products of two-digit numbers as JSON lines, for a model that has a calculator.

usage: examples/tools/make_data.py FOLDER [SEED]

Writes train.jsonl (4,400 problems), validation.jsonl (200) and test.jsonl (500), of all 8,100 products of numbers from 10 to
99: {"prompt": "37*24=", "answer": "888"}; and demonstrations.jsonl of 3,000 others, with
demonstrations_validation.jsonl of those of validation.jsonl: most are answered from memory, and every fourth with the
calculator, in two records:

    {"prompt": "37*24=", "answer": "[37*24]"}                 how to ask; what the calculator says is no part of an answer
    {"prompt": "37*24=[37*24]888", "answer": "888"}           what to do with what it says
"""

import json
import pathlib
import random
import sys

SIZES = {"test": 500, "validation": 200, "demonstrations": 3000, "train": 4400}


def write(file, records):
    file.write_text("".join(json.dumps({"prompt": prompt, "answer": answer}) + "\n" for prompt, answer in records))


def demonstrations(problems):
    for i, (x, y) in enumerate(problems):
        if i % 4 != 0:
            yield f"{x}*{y}=", str(x * y)
            continue
        yield f"{x}*{y}=", f"[{x}*{y}]"
        yield f"{x}*{y}=[{x}*{y}]{x * y}", str(x * y)


def main():
    if not 2 <= len(sys.argv) <= 3:
        sys.exit("usage: examples/tools/make_data.py FOLDER [SEED]")
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    generator = random.Random(int(sys.argv[2]) if len(sys.argv) > 2 else 1)
    problems = [(x, y) for x in range(10, 100) for y in range(10, 100)]
    generator.shuffle(problems)
    parts = {}
    for name, size in SIZES.items():
        parts[name], problems = problems[:size], problems[size:]
    for name in ("train", "validation", "test"):
        write(folder / f"{name}.jsonl", [(f"{x}*{y}=", str(x * y)) for x, y in parts[name]])
    write(folder / "demonstrations.jsonl", demonstrations(parts["demonstrations"]))
    write(folder / "demonstrations_validation.jsonl", demonstrations(parts["validation"]))


if __name__ == "__main__":
    main()
