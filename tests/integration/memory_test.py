#!/usr/bin/env python3
"""What `tdock preflight` estimates is within 15 % of the memory that training takes: tests/integration/memory_test.py TDOCK"""

import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile
import unittest

from waiting import LONG

MIB = {"MiB": 1, "GiB": 1024}
tdock = None


class Runs:
    """Runs of one step of a model with these sizes on a file of numbers that are to be reversed."""

    def __init__(self, executable, folder, sizes, digits, answer_tokens, batch):
        self.tdock, self.folder = pathlib.Path(executable).resolve(), folder
        draw = random.Random(1)
        numbers = ["".join(draw.choices("0123456789", k=digits)) for _ in range(100)]
        data = folder / "data.jsonl"
        data.write_text("".join(f'{{"prompt": "{n}=", "answer": "{n[::-1]}"}}\n' for n in numbers))
        for recipe in ("sft", "grpo"):
            (folder / f"{recipe}.yaml").write_text(f"recipe: {recipe}\n")
        positions = 4 * digits + answer_tokens
        shared = [f"data.train_files={data}", "trainer.total_training_steps=2"]
        sft = ["sft.yaml", *shared, f"data.max_length={2 * digits + 10}", f"data.train_batch_size={batch}"]
        sized = [f"model.{key}={value}" for key, value in sizes.items()]
        sized += [f"model.num_key_value_heads={sizes['num_attention_heads']}", "model.alphabet=0123456789="]
        trained = f"model.path={folder}/full/checkpoint"
        self.arguments = {
            "full": [*sft, *sized, f"model.max_position_embeddings={positions}"],
            "adapters": [*sft, trained, "model.lora_rank=16"],
            "grpo": ["grpo.yaml", *shared, trained, f"data.max_prompt_length={digits + 10}",
                     f"data.max_response_length={answer_tokens}", "data.train_batch_size=4",
                     "actor.ppo_mini_batch_size=2", "rollout.n=4"],
        }  # fmt: skip

    def compare(self, name, threads):
        """The estimate and the largest resident set of training, in MiB. The others need the model of "full"."""
        arguments = [*self.arguments[name], f"threads={threads}"]
        told = subprocess.run(
            [self.tdock, "preflight", *arguments], cwd=self.folder, capture_output=True, text=True, check=True, timeout=LONG
        )
        number, unit = re.search(r"together +([\d.]+) (MiB|GiB)", told.stdout).groups()
        run_dir = self.folder / (name if threads == 2 else f"{name}-{threads}")
        with open(self.folder / "log", "w") as log:
            train = subprocess.Popen(
                [self.tdock, "train", *arguments, "--run-dir", run_dir], cwd=self.folder, stdout=log, stderr=log
            )
            _, status, usage = os.wait4(train.pid, 0)
            train.returncode = os.waitstatus_to_exitcode(status)
        assert train.returncode == 0, (self.folder / "log").read_text()
        return float(number) * MIB[unit], usage.ru_maxrss / 1024


class Memory(unittest.TestCase):
    def test_the_estimate_is_near_what_training_takes(self):
        sizes = {"hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 4, "num_attention_heads": 4}
        with tempfile.TemporaryDirectory() as folder:
            runs = Runs(tdock, pathlib.Path(folder), sizes, digits=60, answer_tokens=32, batch=8)
            for name in ("full", "adapters", "grpo"):
                with self.subTest(name):
                    estimate, measured = runs.compare(name, 2)
                    print(f"{name}: {estimate:.0f} MiB estimated, {measured:.0f} MiB measured")
                    self.assertLess(abs(estimate / measured - 1), 0.15)


if __name__ == "__main__":
    tdock = sys.argv.pop(1)
    unittest.main()
