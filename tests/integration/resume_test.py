#!/usr/bin/env python3
"""Runs of `tdock train` that are killed or told to stop, and go on: tests/integration/resume_test.py TDOCK [KILLS]

KILLS is how often runs are killed in all; 5 by default. What a run that was killed leaves in the end must have the checksums of
one that was not.
"""

import hashlib
import json
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest

from messages import mentions
from waiting import LONG, until

tdock, kills = None, 5


def train(*arguments):
    """A process with these arguments, once it has ended."""
    return subprocess.run([tdock, "train", *map(str, arguments)], capture_output=True, text=True)


class Training:
    """A process, which ends with the block."""

    def __init__(self, *arguments):
        self.process = subprocess.Popen(
            [tdock, "train", *map(str, arguments)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.communicate()

    def wait_for(self, condition, what):
        def holds():
            value = condition()
            if not value and self.process.poll() is not None:
                raise AssertionError(f"ended before {what}: {self.process.stderr.read()}")
            return value

        until(holds, what, every=0.001)

    def end(self, by):
        """Sends the signal, and gives the exit code and what it said."""
        self.process.send_signal(by)
        said = self.process.communicate(timeout=LONG)[1]
        return self.process.returncode, said


def steps(run):
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    return [json.loads(line)["step"] for line in lines if line.endswith("\n")]


def places(run):
    folder = run / "checkpoints"
    return sorted(path.name for path in folder.iterdir() if path.name.startswith("step-")) if folder.exists() else []


def checksums(run):
    """Of what the run trained, and of the state of the optimizer."""
    last = f"checkpoints/{places(run)[-1]}"
    names = [*(run / last).glob("*.safetensors"), *run.glob("checkpoint*/*.safetensors")]
    return {str(path.relative_to(run)): hashlib.sha256(path.read_bytes()).hexdigest() for path in names}


class Resume(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.shared = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.shared.cleanup)
        cls.folder = pathlib.Path(cls.shared.name)
        numbers = random.Random(1).sample(range(10000), 1000)
        lines = [json.dumps({"prompt": f"{n:04}>", "answer": f"{n:04}"[::-1]}) + "\n" for n in numbers]
        (cls.folder / "train.jsonl").write_text("".join(lines[:900]))
        (cls.folder / "val.jsonl").write_text("".join(lines[900:]))
        data = [f"data.train_files={cls.folder}/train.jsonl", f"data.val_files={cls.folder}/val.jsonl"]
        usual = [*data, "threads=2", "trainer.peak_flops=1e12", "trainer.save_freq=3"]
        (cls.folder / "sft.yaml").write_text("recipe: sft\n")
        cls.sft = [
            cls.folder / "sft.yaml", *usual, "model.alphabet=0123456789>", "model.hidden_size=64",
            "model.num_hidden_layers=2", "model.dropout=0.1", "trainer.ema_decay=0.9", "data.train_batch_size=32",
            "data.max_length=16", "data.max_response_length=8", "optim.lr=1e-3", "trainer.total_training_steps=400",
        ]  # fmt: skip
        done = train(*cls.sft, "--run-dir", cls.folder / "sft")
        assert done.returncode == 0, done.stderr
        (cls.folder / "grpo.yaml").write_text("recipe: grpo\n")
        cls.grpo = [
            cls.folder / "grpo.yaml", *usual, f"model.path={cls.folder}/sft/checkpoint", "model.lora_rank=4",
            "model.dropout=0.05", "data.train_batch_size=16", "data.max_prompt_length=8", "data.max_response_length=8",
            "rollout.n=4", "actor.ppo_mini_batch_size=4", "actor.optim.lr=1e-3", "trainer.total_training_steps=60",
        ]  # fmt: skip

    def kill_and_go_on(self, arguments, run, count, draw, goes_on=()):
        """Kills the run as often, at random moments and about its saving, and lets it end."""
        for number in range(count):
            with Training(*arguments, "--run-dir", run, *(goes_on if number else ())) as training:
                training.wait_for(lambda: places(run), "the first checkpoint")
                begun = len(steps(run))
                further = draw.randrange(1, 30)
                training.wait_for(lambda: len(steps(run)) != begun, "a step")
                if number % 2:
                    newest = places(run)[-1]
                    training.wait_for(
                        lambda: any((run / "checkpoints").glob(".step-*")) or places(run)[-1] != newest,
                        "a checkpoint that is being written, or has been meanwhile",
                    )
                else:
                    time.sleep(draw.random() * 0.02 * further)
                code, said = training.end(signal.SIGKILL)
                if code == 0:  # a run may be over after the first kill
                    return self.assertGreater(number, 0, said)
                self.assertEqual(code, -signal.SIGKILL, said)
        done = train(*arguments, "--run-dir", run, *goes_on)
        self.assertEqual(done.returncode, 0, done.stderr)

    def check_kills(self, name, arguments, whole, count, goes_on=()):
        run = self.folder / f"{name}-killed"
        draw = random.Random(count)
        self.kill_and_go_on(arguments, run, count, draw, goes_on)
        self.assertEqual(steps(run), steps(whole))
        self.assertEqual(checksums(run), checksums(whole))
        self.assertFalse(list((run / "checkpoints").glob(".*")), "something unfinished was left")

    def test_supervised_runs_that_are_killed_end_with_the_same_weights_bit_for_bit(self):
        self.check_kills("sft", self.sft, self.folder / "sft", kills - kills // 2, goes_on=["threads=1"])

    def test_reinforcement_learning_that_is_killed_ends_with_the_same_weights_bit_for_bit(self):
        whole = self.folder / "grpo"
        done = train(*self.grpo, "--run-dir", whole)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.check_kills("grpo", self.grpo, whole, kills // 2)

    def test_signals_save_and_say_how_to_go_on(self):
        run = self.folder / "signals"
        endless = [*self.sft, "trainer.total_training_steps=1000000", "trainer.save_freq=0", "--run-dir", run]
        for by, code in ((signal.SIGTERM, 143), (signal.SIGINT, 130)):
            with Training(*endless) as training:
                begun = len(steps(run)) if places(run) else 0
                training.wait_for(lambda: (run / "metrics.jsonl").exists() and len(steps(run)) > begun, "a step")
                returned, said = training.end(by)
            self.assertEqual(returned, code, said)
            found = re.search(r"interrupted .*\bstep (\d+).* saved in (\S+)\. .*: tdock train (\S+)\n", said)
            self.assertIsNotNone(found, said)
            self.assertEqual(pathlib.Path(found[2]).name, places(run)[-1])
            self.assertEqual(steps(run), list(range(int(found[1]) + 1)))
            endless = [found[3]]
        saved = places(run)
        with Training(run / "config.yaml") as training:
            training.wait_for(lambda: len(steps(run)) > int(found[1]) + 2, "two steps")
            training.process.send_signal(signal.SIGUSR1)
            training.wait_for(lambda: places(run)[-1] != saved[-1], "a checkpoint")
            now = len(steps(run))
            training.wait_for(lambda: len(steps(run)) > now, "another step")
            training.end(signal.SIGKILL)

    def test_one_process_at_a_time_uses_the_folder_of_a_run(self):
        run = self.folder / "locked"
        arguments = [*self.sft, "trainer.total_training_steps=1000000", "--run-dir", run]
        with Training(*arguments) as training:
            training.wait_for(lambda: places(run), "a checkpoint")
            second = train(*arguments)
            self.assertEqual(second.returncode, 2)
            mentions(second.stderr, run, f"process {training.process.pid} on ")
            third = train(*arguments, "--allow-changed", "seed", "seed=9")
            mentions(third.stderr, run, "in use")
            training.end(signal.SIGKILL)
        changed = train(*arguments, "optim.lr=0.5")
        self.assertEqual(changed.returncode, 2)
        self.assertIn("optim.lr was 0.001 and is 0.5", changed.stderr)
        limited = train(
            *arguments, "optim.lr=0.5", "--allow-changed", "optim.lr", "trainer.max_minutes=0.01", "trainer.save_freq=0"
        )
        self.assertEqual(limited.returncode, 130, limited.stderr)
        mentions(limited.stderr, "going on", f"{run}/checkpoints/step-", "trainer.max_minutes")

    def test_a_server_that_survives_gives_back_what_a_killed_run_did_after_its_checkpoint(self):
        run, socket = self.folder / "served", self.folder / "dock.sock"
        command = [tdock, "dock", "serve", "--listen", "none", "--socket", socket]
        server = subprocess.Popen([str(part) for part in command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.addCleanup(server.wait, LONG)
        self.addCleanup(server.kill)
        try:
            until(socket.exists, "the socket of the dock")
            arguments = [*self.grpo, f"trainer.dock=unix:{socket}", "trainer.total_training_steps=30"]
            own = self.folder / "own-dock"
            done = train(*self.grpo, "trainer.total_training_steps=30", "--run-dir", own)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.kill_and_go_on(arguments, run, 2, random.Random(3))
            self.assertIsNone(server.poll())
            self.assertEqual(steps(run), steps(own))
            self.assertEqual(checksums(run), checksums(own))
            left = subprocess.run(
                [tdock, "dock", "status", "--address", f"unix:{socket}"], capture_output=True, text=True, timeout=LONG
            )
            self.assertNotIn("train", left.stdout, "nothing is left of a run that has ended")
        finally:
            server.terminate()
            server.wait(timeout=LONG)


if __name__ == "__main__":
    tdock = os.path.abspath(sys.argv[1])
    if len(sys.argv) > 2:
        kills = int(sys.argv[2])
    unittest.main(argv=sys.argv[:1])
