#!/usr/bin/env python3
"""Tasks of the package reasoning-gym, and their rewards, which are the package's own scores.

usage: examples/real-model/tasks.py data FOLDER [SEED]    writes sft.jsonl, prompts.jsonl, grpo.jsonl and validation.jsonl
       examples/real-model/tasks.py pairs ANSWERS FILE    writes preferences, made of answers of `tdock generate`

A record has the question as `prompt`, its `answer`, the `metadata` that the package scores with, and the name of the task as
`data_source`. No question is in two files. With all of it a program of your own may import make_tasks, make_pairs and score.
"""

from __future__ import annotations

import json
import pathlib
import random
import sys

try:
    import reasoning_gym
except ImportError as error:
    lacking = (
        f"{sys.executable} lacks the package {error.name}: run `scripts/setup.sh real-model`, and use "
        ".venv-real-model/bin/python, or `pip install` what requirements/real_model.txt names"
    )
    if __name__ == "__main__":
        sys.exit(f"tasks.py: {lacking}")
    raise ImportError(lacking) from error

# Small enough that a model of this size learns something in minutes.
TASKS = {
    "chain_sum": {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 2},
    "family_relationships": {"min_family_size": 4, "max_family_size": 4},
}
SIZES = {"validation": 300, "sft": 480, "prompts": 600, "grpo": 480}  # of each task


def make_tasks(seed: int = 1, sizes: dict[str, int] = SIZES) -> dict[str, list[dict]]:
    """The records of each file; no question is there twice."""
    files: dict[str, list[dict]] = {name: [] for name in sizes}
    for task, options in TASKS.items():
        wanted, records = sum(sizes.values()), {}
        # Numbers near one another give the same questions: an entry is drawn with the sum of the seed and its number.
        entries = reasoning_gym.create_dataset(task, seed=seed * 1_000_000, size=20 * wanted, **options)
        for entry in entries:
            record = {"prompt": entry["question"], "answer": entry["answer"], "metadata": entry["metadata"], "data_source": task}
            records.setdefault(entry["question"], record)
            if len(records) == wanted:
                break
        if len(records) < wanted:
            raise ValueError(
                f"{task} has {len(records)} different questions with {options}, and {wanted} are wanted: ask for fewer, or "
                "for longer ones"
            )
        # Those that came first are the easier ones, of which there are few.
        left = random.Random(seed).sample(list(records.values()), wanted)
        for name, size in sizes.items():
            files[name] += [left.pop() for _ in range(size)]
    for records in files.values():
        random.Random(seed).shuffle(records)
    return files


def text_of(completion: str | list[dict]) -> str:
    """An answer is a text, or turns of a conversation."""
    return completion if isinstance(completion, str) else completion[-1]["content"]


def score(completions, answer: list[str], metadata: list[dict], **kwargs) -> list[float]:
    """A reward function in TRL's style: the scores that reasoning-gym gives, from 0 to 1."""
    scores = []
    for completion, truth, about in zip(completions, answer, metadata, strict=True):
        scorer = reasoning_gym.get_score_answer_fn(about["source_dataset"])
        scores.append(float(scorer(text_of(completion).strip(), {"answer": truth, "metadata": about})))
    return scores


def score_by_lot(completions, **kwargs) -> list[float]:
    """A control: rewards that have nothing to do with the answers."""
    return [random.random() for _ in completions]


def scored(answers: list[dict]) -> list[dict]:
    """Answers of `tdock generate` to records of make_tasks, with their scores."""
    scores = score(*([answer[key] for answer in answers] for key in ("text", "answer", "metadata")))
    return [answer | {"score": number} for answer, number in zip(answers, scores, strict=True)]


def make_pairs(answers: list[dict]) -> list[dict]:
    """For each question that the model answers rightly at some times only, one of its right answers and its worst one.

    Both are its own, so that what is preferred is likely already: pairs with right answers that it never gives teach it to
    give neither of the two.
    """
    by_question: dict[str, list[dict]] = {}
    for answer in scored(answers):
        by_question.setdefault(answer["prompt"], []).append(answer)
    pairs = []
    for prompt, own in by_question.items():
        worst, best = (choose(own, key=lambda answer: answer["score"]) for choose in (min, max))
        if worst["score"] < 1 <= best["score"]:
            pairs.append({"prompt": prompt, "chosen": best["text"], "rejected": worst["text"], "data_source": best["data_source"]})
    return pairs


def read(path: str) -> list[dict]:
    return [json.loads(line) for line in pathlib.Path(path).read_text().splitlines()]


def write(path: pathlib.Path, records: list[dict]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def main() -> None:
    match sys.argv[1:]:
        case ["data", folder, *seed] if len(seed) <= 1 and all(text.isdecimal() for text in seed):
            for name, records in make_tasks(*map(int, seed)).items():
                write(pathlib.Path(folder) / f"{name}.jsonl", records)
        case ["pairs", answers, file]:
            try:
                write(pathlib.Path(file), make_pairs(read(answers)))
            except (OSError, ValueError, KeyError) as error:
                sys.exit(f"tasks.py: {answers} must have what `tdock generate` wrote for prompts.jsonl: {error!r}")
        case _:
            sys.exit("\n".join(__doc__.splitlines()[2:4]))


if __name__ == "__main__":
    main()
