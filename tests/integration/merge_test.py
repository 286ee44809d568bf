#!/usr/bin/env python3
"""Checkpoints of real runs made into models for use: tests/integration/merge_test.py TDOCK"""

import contextlib
import fcntl
import json
import os
import pathlib
import resource
import shutil
import signal
import subprocess
import sys
import unittest

from messages import mentions
from rank_runs import RankRuns
from waiting import LONG, until


@contextlib.contextmanager
def full_pipe():
    """The end to write to of a pipe that nobody reads and that has no room."""
    reads, writes = os.pipe()
    os.write(writes, bytes(fcntl.fcntl(writes, fcntl.F_SETPIPE_SZ, 4096)))
    try:
        yield writes
    finally:
        os.close(reads)
        os.close(writes)


class Merge(RankRuns):
    """Of a run of three ranks, each with a part of the weights, and of one that trained adapters."""

    with_reward_model = False
    STEPS = ["data.micro_batch_size_per_gpu=2", "trainer.total_training_steps=2", "optim.lr=0.01"]

    MODEL = ["model.hidden_size=64", "model.num_hidden_layers=2", "model.tie_word_embeddings=false"]

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        runs = cls("run_all")
        runs.folder, runs.mark, runs.environment = cls.base, "merge_test", dict(os.environ)
        adapted = ["model.lora_rank=4", 'model.target_modules="q_proj, down_proj"']
        for run, nproc, more in (("parts", 3, []), ("adapted_parts", 2, adapted)):
            launched = runs.launch("dpo", run, "zero_stage=3", *cls.STEPS, *more, nproc=nproc)
            output = runs.finish(launched)
            assert launched.returncode == 0, output
        runs.train("dpo", "adapted", *cls.STEPS, "model.lora_rank=4")

    def run_all(self):
        """What setUpClass() makes a case of."""

    def tdock_merge(self, *arguments, expect=0, **more):
        done = subprocess.run([self.tdock, "merge", *map(str, arguments)], capture_output=True, text=True, timeout=LONG, **more)
        if expect is None:
            self.assertNotEqual(done.returncode, 0, done.stdout + done.stderr)
        else:
            self.assertEqual(done.returncode, expect, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def merge(self, source, target, *more, **options):
        return self.tdock_merge("--local_dir", source, "--target_dir", target, *more, **options)

    def test_parts_of_all_ranks_are_the_model_that_the_run_has_left(self):
        target = self.folder / "merged"
        self.assertNotIn("model.safetensors", os.listdir(self.base / "parts/checkpoints/step-000002"))
        said = self.merge(self.base / "parts", target)
        self.assertIn("step-000002", said)
        self.assertIn("merged file 1 of 1", said)
        # To the bit, in both ways of asking; and with the parts themselves.
        self.assertIn("the same: ", self.tdock_merge("test", target, self.base / "parts/checkpoint"))
        self.assertIn("the same: ", self.tdock_merge("test", "--local_dir", self.base / "parts", "--test_hf_dir", target))
        for name in os.listdir(self.base / "parts/checkpoint"):
            if "token" in name or "template" in name:
                self.assertEqual((target / name).read_bytes(), (self.base / "parts/checkpoint" / name).read_bytes(), name)
        self.assertEqual([name for name in os.listdir(self.folder) if name.startswith(".")], [])

    def test_the_first_difference_is_named(self):
        one, other = self.base / "parts/checkpoint", self.folder / "changed"
        shutil.copytree(one, other)
        path = other / "model.safetensors"
        data = bytearray(path.read_bytes())
        size = int.from_bytes(data[:8], "little")
        entries = json.loads(data[8 : 8 + size])
        name = "model.layers.1.mlp.down_proj.weight"
        begin = 8 + size + entries[name]["data_offsets"][0] + 4 * (2 * entries[name]["shape"][1] + 5)
        data[begin : begin + 4] = bytes([0, 0, 0x80, 0x3F])  # 1.0
        path.write_bytes(data)
        config = json.loads((other / "config.json").read_text())
        (other / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 0.5}))
        said = self.tdock_merge("test", one, other, expect=1)
        self.assertRegex(said, rf"weight {name}: at \[2, 5\] -?[0-9.e-]+, and 1 \(1 of \d+ numbers differ, by ")
        self.assertRegex(said, r"config.json: rms_norm_eps is \S+, and 0.5")
        other_dtype = self.folder / "bf16"
        self.merge(one, other_dtype, "--dtype", "bfloat16")
        self.assertIn("dtype float32, and bfloat16", self.tdock_merge("test", one, other_dtype, expect=1))
        self.assertIn("the same", self.tdock_merge("test", one, other_dtype, "--dtype", "bfloat16"))

    def test_an_untied_head_is_kept_and_a_missing_one_is_named(self):
        source = self.folder / "source"
        shutil.copytree(self.base / "parts/checkpoint", source)
        self.merge(source, self.folder / "whole")
        self.assertIn(b'"lm_head.weight"', (self.folder / "whole/model.safetensors").read_bytes()[:20000])
        path = source / "model.safetensors"
        data = path.read_bytes()
        path.write_bytes(data.replace(b'"lm_head.weight"', b'"lm_tail.weight"'))
        said = self.merge(source, self.folder / "tail", expect=2)
        self.assertIn("has no lm_head.weight", said)
        self.assertFalse((self.folder / "tail").exists())

    def test_adapters_are_merged_as_the_run_merged_them(self):
        checkpoint = self.base / "adapted/checkpoints/step-000002"
        self.assertIn("adapter_model.safetensors", os.listdir(checkpoint))
        for source, target in ((checkpoint, "one"), (self.base / "adapted/checkpoint/adapter", "two")):
            self.merge(source, self.folder / target)
            self.assertIn("the same: ", self.tdock_merge("test", self.folder / target, self.base / "adapted/checkpoint"))
        self.assertIn("differ", self.tdock_merge("test", self.base / "sft/checkpoint", self.folder / "one", expect=1))
        moved = self.folder / "moved"
        shutil.copytree(checkpoint, moved)
        (moved / "manifest.json").unlink()
        config = json.loads((moved / "adapter_config.json").read_text())
        (moved / "adapter_config.json").write_text(json.dumps(config | {"base_model_name_or_path": "no/such"}))
        said = self.merge(moved, self.folder / "three", expect=2)
        self.assertIn("--base", said)
        self.merge(moved, self.folder / "three", "--base", self.base / "sft/checkpoint")
        self.assertIn("the same: ", self.tdock_merge("test", self.folder / "three", self.base / "adapted/checkpoint"))

    def test_parts_of_adapters_are_merged_into_the_model_that_is_named(self):
        source, target = self.base / "adapted_parts", self.folder / "merged"
        self.assertNotIn("adapter_config.json", os.listdir(source / "checkpoints/step-000002"))
        self.assertIn("--base", self.merge(source, target, expect=2))
        self.merge(source, target, "--base", self.base / "sft/checkpoint")
        self.assertIn("the same: ", self.tdock_merge("test", target, source / "checkpoint"))
        self.assertIn("differ", self.tdock_merge("test", target, self.base / "sft/checkpoint", expect=1))

    def test_a_full_disk_leaves_no_folder_and_the_next_call_goes_on(self):
        target, work = self.folder / "merged", self.folder / ".merged.merging"
        small = ["--max_shard_size", "5KB"]

        def limited():  # a file larger than this cannot be written, as on a full disk
            resource.setrlimit(resource.RLIMIT_FSIZE, (45_000, 45_000))

        said = self.merge(self.base / "parts", target, *small, expect=1, preexec_fn=limited)
        self.assertRegex(said, r"\b\d+ of \d+ files\b")
        mentions(said, target, work)
        self.assertFalse(target.exists())
        kept = {path: path.stat().st_mtime_ns for path in work.glob("*.safetensors")}
        self.assertGreater(len(kept), 0)
        self.assertFalse((work / "config.json").exists())
        # One of those that are kept is damaged meanwhile: it is written again.
        damaged = sorted(kept)[0]
        data = bytearray(damaged.read_bytes())
        data[-1] ^= 1
        damaged.write_bytes(data)
        said = self.merge(self.base / "parts", target, *small)
        self.assertIn(f"of which {len(kept) - 1} ", said)
        for path, changed in kept.items():
            if path != damaged:
                self.assertEqual((target / path.name).stat().st_mtime_ns, changed, path)
        index = json.loads((target / "model.safetensors.index.json").read_text())
        self.assertEqual(set(index["weight_map"].values()), {path.name for path in target.glob("*.safetensors")})
        self.assertIn("the same: ", self.tdock_merge("test", target, self.base / "parts/checkpoint"))
        self.assertFalse(work.exists())
        mentions(self.merge(self.base / "parts", target, *small, expect=2), target)

    def test_a_merge_that_is_killed_goes_on(self):
        target, work = self.folder / "merged", self.folder / ".merged.merging"
        arguments = [self.tdock, "merge", "--local_dir", self.base / "parts", "--target_dir", target,
                     "--max_shard_size", "1KB"]  # fmt: skip
        with full_pipe() as pipe:  # so that it waits once it says that a file is done
            killed = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=pipe)
            self.addCleanup(killed.kill)
            until(lambda: (work / "merge.json").exists(), "the first file")
            killed.send_signal(signal.SIGKILL)
            killed.wait()
        self.assertFalse(target.exists())
        self.assertTrue(work.exists())
        self.assertRegex(self.merge(self.base / "parts", target, "--max_shard_size", "1KB"), r"of which [1-9]\d* ")
        self.assertIn("the same: ", self.tdock_merge("test", target, self.base / "parts/checkpoint"))

    def test_a_damaged_or_incomplete_checkpoint_is_refused_by_name(self):
        for damage, words in (
            (lambda folder: (folder / "state-rank-1-of-3.safetensors").unlink(), "state-rank-1-of-3.safetensors"),
            (lambda folder: os.truncate(folder / "state.safetensors", 5000), "state.safetensors has 5000 bytes"),
            (lambda folder: (folder / "manifest.json").write_text("{"), "manifest.json"),
        ):
            source = self.folder / "damaged"
            shutil.copytree(self.base / "parts/checkpoints/step-000002", source)
            damage(source)
            said = self.merge(source, self.folder / "none", expect=None)
            self.assertIn(words, said)
            self.assertFalse((self.folder / "none").exists())
            shutil.rmtree(source)

    def test_what_is_not_supported_is_refused_by_name(self):
        for more, words in (
            (["--trust-remote-code"], "--trust-remote-code"), (["--hf_upload_path", "me/it"], "--hf_upload_path"),
            (["--backend", "deepspeed"], "--backend deepspeed"),
        ):  # fmt: skip
            self.assertIn(words, self.merge(self.base / "parts", self.folder / "none", *more, expect=2))
        self.assertIn("no folder", self.merge(self.folder / "nothing", self.folder / "none", expect=2))

    def peaks_with(self, layers):
        """The most memory, in bytes, while a model of so many weights of 4 MiB is merged, and while it is compared."""
        source, size = self.folder / f"of-{layers}", 1 << 20
        shutil.copytree(self.base / "parts/checkpoint", source)
        header = {}
        for i in range(layers):
            begin = 4 * size * i
            header[f"model.layers.{i}.w"] = {"dtype": "F32", "shape": [1024, 1024], "data_offsets": [begin, begin + 4 * size]}
        header["lm_head.weight"] = {"dtype": "F32", "shape": [0], "data_offsets": [4 * size * layers] * 2}
        text = json.dumps(header).encode()
        with open(source / "model.safetensors", "wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            for i in range(layers):
                file.write(bytes([i + 1]) * 4 * size)

        def peak(*arguments):
            child = subprocess.Popen([self.tdock, *map(str, arguments)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            _, status, usage = os.wait4(child.pid, 0)
            child.returncode = os.waitstatus_to_exitcode(status)
            self.assertEqual(child.returncode, 0)
            return usage.ru_maxrss * 1024

        target = self.folder / f"merged-{layers}"
        merging = peak("merge", "--local_dir", source, "--target_dir", target, "--dtype", "bfloat16")
        comparing = peak("merge", "test", source, source)
        for folder in (source, target):
            shutil.rmtree(folder)
        return merging, comparing

    def test_memory_does_not_grow_with_the_model(self):
        """What 40 weights more take, 160 MiB, is next to nothing."""
        for few, many in zip(self.peaks_with(8), self.peaks_with(48)):
            self.assertLess(many - few, 24 << 20)


if __name__ == "__main__":
    RankRuns.tdock = str(pathlib.Path(sys.argv.pop(1)).resolve())
    unittest.main()
