#!/usr/bin/env python3
"""Trains with model.kernels=portable here and on emulated processors: tests/nightly/portable.py TDOCK

The weights must be the same, bit for bit. Needs qemu-x86_64 (`scripts/setup.sh emulator`).
"""

import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PROCESSORS = ["Nehalem", "Haswell"]  # without AVX, and with AVX2
SHORT = ["model.kernels=portable", "trainer.evaluations=[]", "data.val_files=[]", "trainer.stop_when="]
LONG = 1200


class Portable(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        subprocess.run([sys.executable, ROOT / "examples/arithmetic/make_data.py", self.folder], check=True, timeout=LONG)

    def weights(self, processor, recipe, *keys):
        """Returns the weights that a run has trained on this processor; None: on that of this machine."""
        run = self.folder / f"{recipe}-{processor}"
        emulator = [] if processor is None else ["qemu-x86_64", "-cpu", processor]
        done = subprocess.run(
            [*emulator, tdock, "train", ROOT / f"examples/arithmetic/{recipe}.yaml", "--run-dir", run,
             f"data.train_files={self.folder}/train.jsonl", *SHORT, *keys],
            capture_output=True, text=True, timeout=LONG,
        )  # fmt: skip
        self.assertEqual(done.returncode, 0, done.stderr)
        return (run / "checkpoint/model.safetensors").read_bytes()

    def check(self, recipe, *keys):
        here = self.weights(None, recipe, *keys)
        for processor in PROCESSORS:
            with self.subTest(processor):
                self.assertTrue(self.weights(processor, recipe, *keys) == here)

    def test_sft_in_float32(self):
        self.check("sft", "trainer.total_training_steps=2")

    def test_grpo_in_bfloat16_with_rollouts_in_int8(self):
        self.weights(None, "sft", "trainer.total_training_steps=2")
        self.check(
            "grpo", "trainer.total_training_steps=1", f"model.path={self.folder}/sft-None/checkpoint",
            "model.compute_dtype=bfloat16", "rollout.quantization=int8",
            "data.train_batch_size=16", "actor.ppo_mini_batch_size=8",
        )  # fmt: skip


if __name__ == "__main__":
    tdock = str(pathlib.Path(sys.argv.pop(1)).resolve())
    unittest.main()
