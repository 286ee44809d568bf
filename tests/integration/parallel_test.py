#!/usr/bin/env python3
"""Runs whose model several ranks train together: tests/integration/parallel_test.py TDOCK [--nightly]

--nightly: every number of ranks, stage of ZeRO and recipe, and more processes that are killed.
"""

import array
import json
import math
import os
import pathlib
import random
import shutil
import signal
import struct
import subprocess
import sys
import time
import unittest

from messages import mentions
from rank_runs import NOT_SILENT, ROOT, RankRuns, free_port
from waiting import LONG, NEVER

nightly = False
DOUBLE = ["model.compute_dtype=float64"]
# Enough micro-batches for four ranks, whatever their number.
MICRO = {
    "sft": ["data.micro_batch_size_per_gpu=2"], "dpo": ["data.micro_batch_size_per_gpu=2"],
    "ppo": ["actor.ppo_micro_batch_size_per_gpu=2", "critic.ppo_micro_batch_size_per_gpu=2"],
    "grpo": ["actor.ppo_micro_batch_size_per_gpu=2"],
}  # fmt: skip


def tensors_of(path):
    """The tensors of a file of weights or of state, float64 or float32: name -> numbers."""
    with open(path, "rb") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        head = json.loads(file.read(size))
        data = file.read()
    found = {}
    for name, entry in head.items():
        if name == "__metadata__":
            continue
        numbers = array.array({"F64": "d", "F32": "f"}[entry["dtype"]])
        begin, end = entry["data_offsets"]
        numbers.frombytes(data[begin:end])
        found[name] = numbers
    return found


def difference(one, other):
    """The norm of the difference, relative to that of the first."""
    norm = math.sqrt(sum(x * x for x in one))
    return math.sqrt(sum((x - y) ** 2 for x, y in zip(one, other, strict=True))) / (norm or 1)


class Parallel(RankRuns):
    def checkpoint(self, run, step):
        return self.folder / run / f"checkpoints/step-{step:06d}"

    def on_ranks(self, recipe, run, ranks, zero, *overrides, expect=0, options=()):
        stage = ["zero_stage"] if recipe in ("sft", "rm", "dpo") else ["actor.zero_stage"]
        stage += ["critic.zero_stage"] if recipe == "ppo" else []
        launched = self.launch(recipe, run, *[f"{key}={zero}" for key in stage], *MICRO[recipe], *overrides,
                               nproc=ranks, options=options)  # fmt: skip
        output = self.finish(launched)
        self.assertEqual(launched.returncode, expect, output)
        return output

    def assert_same_losses(self, one, other, bound, after=-1):
        first, second = ([step for step in self.metrics(run) if step["step"] > after] for run in (one, other))
        self.assertEqual([step["step"] for step in first], [step["step"] for step in second])
        compared = 0
        for a, b in zip(first, second, strict=True):
            for name, value in a.items():
                if name.startswith(("timing", "perf/", "dock/", "runtime/")) or not isinstance(value, float):
                    continue
                compared += 1
                self.assertLessEqual(abs(value - b[name]), bound * max(abs(value), 1e-3), f"{name}: {value}, {b[name]}")
        self.assertGreater(compared, 10)

    def test_one_float64_step_is_that_of_one_process(self):
        cases = [("sft", 2, 3), ("dpo", 2, 1), ("ppo", 2, 3), ("grpo", 2, 0)]
        if nightly:
            cases = [(recipe, ranks, zero) for recipe in ("sft", "dpo", "ppo", "grpo") for ranks in (1, 2, 4)
                     for zero in (0, 1, 3)]  # fmt: skip
        one_step = [*DOUBLE, "trainer.total_training_steps=1"]
        alone = set()
        for recipe, ranks, zero in cases:
            with self.subTest(recipe=recipe, ranks=ranks, zero=zero):
                steps = one_step + (["critic.model.compute_dtype=float64"] if recipe == "ppo" else [])
                if recipe not in alone:
                    self.train(recipe, f"{recipe}_alone", *MICRO[recipe], *steps)
                    alone.add(recipe)
                run = f"{recipe}_{ranks}_{zero}"
                self.on_ranks(recipe, run, ranks, zero, *steps)
                self.assert_same_losses(f"{recipe}_alone", run, 1e-12)
                self.assert_same_weights(f"{recipe}_alone", run, 1e-12)

    def assert_same_weights(self, one, other, bound):
        """Of the policy, and where it has one, the critic, as they are left for use."""
        first, second = self.all_tensors(one), self.all_tensors(other)
        self.assertEqual(first.keys(), second.keys())
        for name, numbers in first.items():
            self.assertLessEqual(difference(numbers, second[name]), bound, name)

    def all_tensors(self, run):
        return {
            (path.parent.name, name): numbers
            for path in (self.folder / run).glob("checkpoint*/model.safetensors")
            for name, numbers in tensors_of(path).items()
        }

    def test_a_run_goes_on_with_another_number_of_ranks(self):
        steps = [*DOUBLE, "trainer.total_training_steps=4", "trainer.max_checkpoints_to_keep=0"]
        self.train("grpo", "alone", *MICRO["grpo"], *steps)
        before = "alone"
        for step, (ranks, zero) in enumerate([(4, 3), (2, 1), (1, 0)] if nightly else [(2, 3), (3, 1), (1, 0)], start=1):
            run = f"after_{step}"
            output = self.on_ranks("grpo", run, ranks, zero, *steps, f"trainer.resume_mode={self.checkpoint(before, step)}")
            mentions(output, "going on", self.checkpoint(before, step))
            self.assert_same_losses("alone", run, 1e-9, after=step)
            self.assert_parts_of(ranks, zero, self.checkpoint(run, step + 1))
            before = run

    def assert_parts_of(self, ranks, zero, folder):
        """With stage 3 no file has the weights whole, and each rank has written nearly as much."""
        self.assertEqual((folder / "model.safetensors").exists(), zero < 3)
        files = [folder / "state.safetensors", *folder.glob("state-rank-*.safetensors")]
        self.assertEqual(len(files), ranks if zero > 0 else 1)
        if zero == 3:
            sizes = [path.stat().st_size for path in files]
            self.assertLess(max(sizes), 0.5 * sum(sizes) + 20000 if ranks > 2 else 0.6 * sum(sizes))

    def test_the_average_of_the_weights_is_that_of_one_process(self):
        steps = [*DOUBLE, "trainer.ema_decay=0.9", "trainer.total_training_steps=2", "trainer.max_checkpoints_to_keep=0"]
        self.train("sft", "alone", *MICRO["sft"], *steps)
        self.assertIn("checkpoint-ema", {folder for folder, name in self.all_tensors("alone")})
        for ranks, zero in [(2, 0), (2, 1), (4, 2), (4, 3)] if nightly else [(2, 3)]:
            run = f"{ranks}_{zero}"
            self.on_ranks("sft", run, ranks, zero, *steps)
            self.on_ranks("sft", f"{run}_on", 3 if zero == 3 else 2, (zero + 1) % 4, *steps,
                          f"trainer.resume_mode={self.checkpoint(run, 1)}")  # fmt: skip
            for other in (run, f"{run}_on"):
                self.assert_same_weights("alone", other, 1e-12)

    def test_answers_learned_beside_are_those_of_one_process(self):
        steps = [*DOUBLE, "actor.ptx_coef=0.5", f"data.ptx_files=[{self.base}/sft.jsonl]", "actor.ptx_batch_size=6",
                 "trainer.total_training_steps=2", "trainer.max_checkpoints_to_keep=0"]  # fmt: skip
        self.train("grpo", "alone", *MICRO["grpo"], *steps)
        self.assertGreater(self.metrics("alone")[-1]["actor/ptx_tokens"], 0)
        for ranks, zero in [(2, 0), (4, 1), (4, 3)] if nightly else [(2, 3)]:
            run = f"{ranks}_{zero}"
            self.on_ranks("grpo", run, ranks, zero, *steps)
            self.on_ranks("grpo", f"{run}_on", 3, 1, *steps, f"trainer.resume_mode={self.checkpoint(run, 1)}")
            for other in (run, f"{run}_on"):
                self.assert_same_losses("alone", other, 1e-9, after=1)
                self.assert_same_weights("alone", other, 1e-12)

    def test_answers_ahead_come_from_ranks_that_train(self):
        for zero in (0, 3):
            run = f"ahead_{zero}"
            self.on_ranks("grpo", run, 2, zero, "async_training.steps_ahead=1", "trainer.total_training_steps=4")
            steps = self.metrics(run)
            self.assertEqual(steps[-1]["dock/completed/actor"], 4 * 16 * 4)
            self.assertGreater(max(step.get("async/staleness/max", 0) for step in steps), 0)

    def refusal_of_homes(self, prepare, *overrides):
        """What both ranks say that are started in folders of their own, which prepare(rank, folder) has filled."""
        port = str(free_port())
        started = []
        for rank in range(2):
            home = self.folder / f"home_{rank}"
            home.mkdir()
            prepare(rank, home)
            arguments = self.arguments("grpo", "by_hand", f"resources.join_timeout={NEVER}", *overrides)
            arguments[0] = str(ROOT / arguments[0])
            environment = self.environment | {
                "RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2",
                "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
            }  # fmt: skip
            started.append(subprocess.Popen([self.tdock, "train", *arguments], cwd=home, env=environment,
                                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))  # fmt: skip
            self.addCleanup(started[-1].kill)
        errors = [process.communicate(timeout=LONG)[1] for process in started]
        said = {error[error.index("tdock train: ") :] for error in errors}
        self.assertEqual(len(said), 1, errors)
        return said.pop()

    def test_ranks_with_other_weights_are_named(self):
        def prepare(rank, home):
            shutil.copytree(self.base / "sft/checkpoint", home / "checkpoint")
            if rank == 1:
                weights = home / "checkpoint/model.safetensors"
                weights.write_bytes(weights.read_bytes()[:-4] + struct.pack("<f", 0.5))

        mentions(self.refusal_of_homes(prepare, "model.path=checkpoint"), "rank 0", "stage 'actor' of rank 1")

    def test_ranks_with_other_answers_to_learn_beside_are_named(self):
        lines = (self.base / "sft.jsonl").read_text().splitlines(keepends=True)[:100]

        def prepare(rank, home):
            (home / "ptx.jsonl").write_text("".join(lines[rank:]))

        said = self.refusal_of_homes(prepare, "actor.ptx_coef=1", "data.ptx_files=[ptx.jsonl]")
        mentions(said, "rank 0", "stage 'actor' of rank 1")

    def test_a_checkpoint_that_lacks_a_part_or_has_another_is_refused_by_all_ranks(self):
        keep = "trainer.max_checkpoints_to_keep=0"
        self.on_ranks("grpo", "saved", 2, 3, keep)
        one, two = (self.checkpoint("saved", step) for step in (1, 2))
        files = ("state-rank-1-of-2.json", "state-rank-1-of-2.safetensors")

        def lost(folder):
            for file in files:
                (folder / file).unlink()

        def of_another_save(folder):
            for file in files:
                shutil.copy(one / file, folder / file)

        def stray(folder):
            (folder / "state-rank-3-of-4.safetensors").write_bytes((one / files[1]).read_bytes())

        cases = [  # whether the manifest still has the files, and what is named
            ("lost", lost, True, ["state-rank-1-of-2.json"]),
            ("lost_unnoticed", lost, False, ["numbers [", "no part"]),
            ("of_another_save", of_another_save, True, ["state-rank-1-of-2", "checksum", "manifest.json"]),
            ("of_another_save_unnoticed", of_another_save, False, ["state-rank-1-of-2", "not list", "manifest.json"]),
            ("stray", stray, True, ["state-rank-3-of-4.safetensors", "not list", "manifest.json"]),
        ]
        for name, change, listed, names in cases if nightly else [cases[0], *cases[3:]]:
            with self.subTest(name):
                folder = self.folder / name
                shutil.copytree(two, folder)
                change(folder)
                manifest = json.loads((folder / "manifest.json").read_text())
                if not listed:  # as of an older version, which has no checksum of its own
                    manifest["files"] = {path: of for path, of in manifest["files"].items() if path not in files}
                    manifest["version"] = 1
                    del manifest["manifest_xxh3"]
                    (folder / "manifest.json").write_text(json.dumps(manifest))
                resumed = ["actor.zero_stage=3", *MICRO["grpo"], keep, f"trainer.resume_mode={folder}"]
                errors = self.ranks_by_hand(resumed, resumed, run=f"from_{name}")
                self.assert_same_error(errors, *names, folder)

    def test_preflight_says_what_each_rank_keeps(self):
        arguments = self.arguments("grpo", "none", "actor.zero_stage=1", "actor.ppo_micro_batch_size_per_gpu=8")
        del arguments[1:3]
        done = subprocess.run([self.tdock, "preflight", *arguments, "--ranks", "4"], cwd=ROOT, capture_output=True,
                              text=True, timeout=LONG)  # fmt: skip
        self.assertEqual(done.returncode, 0, done.stderr)
        mentions(done.stdout, "4 ranks", "actor.zero_stage is 1")
        self.assertRegex(done.stdout, r"\n  zero 3 +[\d.]+ [KMG]iB")
        mentions(done.stdout, "2 micro-batches", "actor.ppo_micro_batch_size_per_gpu")

    def test_the_same_ranks_come_to_the_same_bits(self):
        for zero in (0, 1, 3) if nightly else (3,):
            for run in ("one", "two"):
                self.on_ranks("grpo", f"{run}_{zero}", 2, zero)
            self.assertEqual(self.weights(f"one_{zero}"), self.weights(f"two_{zero}"))

    def test_curves_are_those_of_one_process(self):
        steps = "trainer.total_training_steps=10"
        for kind, dtype, bound in (("double", "float64", 1e-9), ("float", "float32", 0.02)):
            precision = f"model.compute_dtype={dtype}"
            self.train("grpo", f"{kind}_alone", *MICRO["grpo"], precision, steps)
            self.on_ranks("grpo", kind, 4 if nightly else 2, 1, precision, steps)
            one, other = self.metrics(f"{kind}_alone"), self.metrics(kind)
            for a, b in zip(one, other, strict=True):
                for name in ("actor/pg_loss", "critic/rewards/mean", "actor/grad_norm"):
                    if name in a:
                        self.assertLessEqual(abs(a[name] - b[name]), bound * max(1.0, abs(a[name])), f"{kind} {name}")

    def test_a_rank_that_is_killed_ends_the_others_and_leaves_a_whole_checkpoint(self):
        moments = random.Random(2)
        for number in range(20 if nightly else 1):
            run = f"killed_{number}"
            rank, zero = 1 - number % 2, (3, 1, 0)[number % 3]
            launched = self.launch("grpo", run, f"actor.zero_stage={zero}", *MICRO["grpo"], NOT_SILENT,
                                   "trainer.total_training_steps=100000", nproc=2)  # fmt: skip
            process = self.process_of(rank, launched)
            self.await_step(run, 2, launched)
            self.await_checkpoint(run, launched)
            time.sleep(moments.uniform(0, 1))
            os.kill(process, signal.SIGKILL)
            output = self.finish(launched, within=LONG)
            self.assertNotEqual(launched.returncode, 0, output)
            self.assertRegex(output, rf"(?m)^tdock launch: rank {rank} .*signal 9 ")
            done = max(step["step"] for step in self.metrics(run))
            resumed = self.launch("grpo", run, f"actor.zero_stage={zero}", *MICRO["grpo"], NOT_SILENT,
                                  "trainer.total_training_steps=100000", nproc=2)  # fmt: skip
            self.await_step(run, done + 2, resumed)
            resumed.send_signal(signal.SIGINT)
            mentions(self.finish(resumed, within=LONG), "going on", "saved in")


if __name__ == "__main__":
    RankRuns.tdock = str(pathlib.Path(sys.argv.pop(1)).resolve())
    if "--nightly" in sys.argv:
        sys.argv.remove("--nightly")
        nightly = True
    unittest.main()
