#!/usr/bin/env python3
"""Some steps of the examples that train asynchronously, and on partial rollouts: tests/integration/asynchronous_test.py TDOCK"""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

tdock = None
ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
STEPS = 6
PROMPTS = 16  # of a step, four of them in a mini-batch, with four samples each
SMALL = [
    f"data.train_batch_size={PROMPTS}", "actor.ppo_mini_batch_size=4", "rollout.n=4",
    f"trainer.total_training_steps={STEPS}", "trainer.test_freq=0", "trainer.val_max_samples=32",
]  # fmt: skip


def run(*arguments):
    return subprocess.run([tdock, *arguments], cwd=ROOT, capture_output=True, text=True)


class Asynchronous(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def train(self, example, *overrides):
        """The metrics of each step of examples/EXAMPLE.yaml, after a few of the first part."""
        parts = pathlib.Path("examples") / example
        subprocess.run(["python3", parts.parent / "make_data.py", self.folder], cwd=ROOT, check=True)
        first = run(
            "train", str(parts.parent / "sft.yaml"), "--run-dir", str(self.folder / "sft"),
            f"data.train_files={self.folder}/train.jsonl", f"data.val_files={self.folder}/validation.jsonl",
            "model.hidden_size=32", "model.num_hidden_layers=2", "trainer.total_training_steps=3", "trainer.test_freq=0",
            "trainer.val_max_samples=32",
        )  # fmt: skip
        self.assertEqual(first.returncode, 0, first.stderr)
        result = run(
            "train", f"{parts}.yaml", "--run-dir", str(self.folder / "run"), f"model.path={self.folder}/sft/checkpoint",
            f"data.train_files={self.folder}/train.jsonl", f"data.val_files={self.folder}/test.jsonl",
            *SMALL, *overrides,
        )  # fmt: skip
        self.assertEqual(result.returncode, 0, result.stderr)
        records = [json.loads(line) for line in (self.folder / "run/metrics.jsonl").read_text().splitlines()]
        steps = [record for record in records if "actor/pg_loss" in record]
        self.assertEqual([step["step"] for step in steps], list(range(1, STEPS + 1)))
        self.assertEqual(steps[-1]["dock/completed/actor"], STEPS * PROMPTS * 4)
        return steps

    def test_addition_is_trained_on_one_step_off(self):
        steps = self.train("arithmetic/async")
        oldest = max(step.get("async/staleness/max", 0) for step in steps)
        self.assertTrue(0 < oldest <= 4, f"{oldest}, at most the optimizer steps of one step")
        self.assertTrue(all("rollout_corr/rollout_is_mean" in step for step in steps))
        self.assertTrue(any(step["rollout_corr/max_abs_diff"] > 0 for step in steps), "all was answered by the policy")

    def test_long_answers_are_interrupted_and_gone_on_with(self):
        steps = self.train("lengths/partial")
        # Hardly an answer of a model that knows nothing ends in the first of four pieces.
        self.assertGreater(sum(step["rollout/unfinished"] for step in steps), PROMPTS)
        self.assertGreater(sum(step["rollout/continued"] for step in steps), PROMPTS)
        self.assertGreater(max(step["response_length/max"] for step in steps), 8)


if __name__ == "__main__":
    tdock = str(pathlib.Path(sys.argv.pop(1)).resolve())
    unittest.main()
