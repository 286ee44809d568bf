#!/usr/bin/env python3
"""A small copy of examples/tools, in which a model talks with a calculator: tests/integration/tools_test.py TDOCK"""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

tdock = None
ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
GRPO = "examples/tools/grpo.yaml"


def run(*arguments):
    return subprocess.run([tdock, *arguments], cwd=ROOT, capture_output=True, text=True)


class Tools(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        subprocess.run(["python3", "examples/tools/make_data.py", cls.folder], cwd=ROOT, check=True)
        cls.supervised = run(
            "train", "examples/tools/sft.yaml", "--run-dir", str(cls.folder / "sft"),
            f"data.train_files={cls.folder}/demonstrations.jsonl",
            f"data.val_files={cls.folder}/demonstrations_validation.jsonl", "model.hidden_size=32",
            "model.num_hidden_layers=2", "trainer.total_training_steps=40", "optim.lr=5e-3", "trainer.test_freq=0",
        )  # fmt: skip
        cls.arguments = [
            GRPO, f"model.path={cls.folder}/sft/checkpoint", f"data.train_files={cls.folder}/train.jsonl",
            f"data.val_files={cls.folder}/test.jsonl", "data.train_batch_size=16", "actor.ppo_mini_batch_size=16",
            "trainer.total_training_steps=2", "trainer.val_max_samples=32",
        ]  # fmt: skip

    def test_a_preflight_begins_an_episode_and_a_probe_plays_some(self):
        result = run("preflight", *self.arguments, "--probe=4")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("environment calculator: an episode begun", result.stdout)
        self.assertIn("probe: 32 answers to 4 prompts", result.stdout)

    def test_episodes_are_trained_on_and_shown(self):
        run_dir = self.folder / "grpo"
        result = run("train", *self.arguments, "--run-dir", str(run_dir))
        self.assertEqual(result.returncode, 0, self.supervised.stderr + result.stderr)
        last = json.loads((run_dir / "metrics.jsonl").read_text().splitlines()[-1])
        for name in ("reward/correct/mean", "episode/turns", "episode/observation_tokens", "val/turns/mean"):
            self.assertIn(name, last)
        self.assertGreater(last["episode/turns"], 1, "it has learnt to ask")
        samples = [json.loads(line) for line in (run_dir / "samples.jsonl").read_text().splitlines()]
        self.assertTrue(any("]" in sample["response"] for sample in samples))

    def test_rewards_of_two_kinds_are_refused(self):
        result = run("train", *self.arguments, "--run-dir", str(self.folder / "refused"), "reward.exact.weight=1")
        self.assertEqual(result.returncode, 2)
        self.assertIn("the environment", result.stderr)
        self.assertFalse((self.folder / "refused").exists())


if __name__ == "__main__":
    tdock = str(pathlib.Path(sys.argv.pop(1)).resolve())
    unittest.main()
