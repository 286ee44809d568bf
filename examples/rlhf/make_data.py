#!/usr/bin/env python3
"""Data for learning from preferences, small enough to train on in a minute on a CPU.

usage: examples/rlhf/make_data.py FOLDER [SEED]

Prompts are four different letters and a colon. Most answers have ten letters, some fewer or more. A share of the letters is
from the prompt's; it differs from answer to answer, so that the hidden rule (rule.py) gives anything from 0 points to 10.

    sft.jsonl, sft_validation.jsonl      prompts with such an answer
    pairs.jsonl                          two answers to a prompt, of which one was preferred
    pairs_permuted.jsonl                 the same pairs with the preferences of other pairs: nothing can be learned from them
    pairs_validation.jsonl               held-out pairs, in which the better answer is always the preferred one
    prompts.jsonl, prompts_validation.jsonl

Preferences are drawn as in Bradley and Terry's model: the first answer is preferred with the probability
σ(its points − the other's), so that one in twelve of pairs.jsonl is the wrong way round. What is held out has sets of letters
that no other file has.
"""

import itertools
import json
import math
import pathlib
import random
import sys

from rule import LENGTH, points

LETTERS = "abcdefghijklmnop"
SIZES = {"sft": 40000, "pairs": 20000, "prompts": 8000}
HELD_OUT = {"sft": 256, "pairs": 500, "prompts": 256}


def draw_prompt(generator, sets):
    return "".join(generator.sample(generator.choice(sets), 4)) + ":"


def draw_answer(generator, prompt):
    share = generator.betavariate(0.6, 0.9)
    wanted = prompt.rstrip(":")
    others = [letter for letter in LETTERS if letter not in wanted]
    length = LENGTH if generator.random() < 0.75 else generator.randint(1, LENGTH + 3)
    return "".join(generator.choice(wanted if generator.random() < share else others) for _ in range(length))


def draw_pair(generator, sets, noisy):
    """A prompt, two answers, and whether the first is preferred. Answers of equally many points are not compared."""
    prompt = draw_prompt(generator, sets)
    ahead = 0
    while ahead == 0:
        answers = [draw_answer(generator, prompt) for _ in range(2)]
        ahead = points(prompt, answers[0]) - points(prompt, answers[1])
    first = generator.random() < 1 / (1 + math.exp(-ahead)) if noisy else ahead > 0
    return prompt, answers, first


def records(pairs, preferences):
    return [
        {"prompt": prompt, "chosen": answers[not first], "rejected": answers[first]}
        for (prompt, answers, _), first in zip(pairs, preferences)
    ]


def make(seed):
    generator = random.Random(seed)
    sets = list(itertools.combinations(LETTERS, 4))
    generator.shuffle(sets)
    files = {}
    # A tenth of the sets of letters is held out.
    for sizes, letters, suffix in ((SIZES, sets[182:], ""), (HELD_OUT, sets[:182], "_validation")):
        prompts = [draw_prompt(generator, letters) for _ in range(sizes["sft"])]
        files["sft" + suffix] = [{"prompt": prompt, "answer": draw_answer(generator, prompt)} for prompt in prompts]
        pairs = [draw_pair(generator, letters, noisy=not suffix) for _ in range(sizes["pairs"])]
        preferences = [first for *_, first in pairs]
        files["pairs" + suffix] = records(pairs, preferences)
        if not suffix:
            generator.shuffle(preferences)
            files["pairs_permuted"] = records(pairs, preferences)
        files["prompts" + suffix] = [{"prompt": draw_prompt(generator, letters)} for _ in range(sizes["prompts"])]
    return files


def main():
    if not 2 <= len(sys.argv) <= 3:
        sys.exit("usage: examples/rlhf/make_data.py FOLDER [SEED]")
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, lines in make(int(sys.argv[2]) if len(sys.argv) > 2 else 1).items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in lines))


if __name__ == "__main__":
    main()
