#!/usr/bin/env python3
"""Ranks that train together, killed in each phase of a run: tests/integration/kill_phases_test.py TDOCK [--nightly]

Whichever rank is killed, and whatever it is doing, the others end with an error that names it, and the same command goes on from
the newest checkpoint, which is whole. --nightly: every phase, rank and form of sharding, in place of some.
"""

import contextlib
import json
import os
import pathlib
import random
import re
import shutil
import signal
import sys
import threading
import time
import unittest

from messages import mentions
from rank_runs import NOT_SILENT, SILENCE, RankRuns
from waiting import LONG, NEVER, until

nightly = False
moments = random.Random(3)
# Large enough that a rank takes a while to write its part, with few samples.
MODEL = ["model.hidden_size=128", "model.intermediate_size=512", "model.num_hidden_layers=4"]
LARGE_MODEL = ["model.hidden_size=256", "model.intermediate_size=1024", "model.num_hidden_layers=4"]
RUN = [NOT_SILENT, f"resources.join_timeout={NEVER}", "resources.log_calls=true", "trainer.total_training_steps=100000"]
RECIPE = {
    "grpo": ["rollout.n=2", "actor.ppo_mini_batch_size=4", "actor.ppo_micro_batch_size_per_gpu=2"],
    "ppo": ["actor.ppo_mini_batch_size=4", "actor.ppo_micro_batch_size_per_gpu=2",
            "critic.ppo_micro_batch_size_per_gpu=2"],
}  # fmt: skip
# Whose steps have them; with stage 3 also gather_weights.
PHASES = {
    "grpo": ["generate_sequences", "compute_log_prob", "compute_ref_log_prob", "update_actor", "snapshot_state",
             "write_state"],
    "ppo": ["compute_values", "update_critic"],
}  # fmt: skip
ATTEMPTS = 5  # at a phase that comes once in a run, and was over before the signal came


def ended(method):
    """The pattern of the line of a call that has ended, with the seconds that it took."""
    return rf"{method} has ended \w+ ([\d.]+) s"


class Output:
    """The lines of a process, as they come."""

    def __init__(self, launched):
        self.lines, self.changed, self.over = [], threading.Condition(), False
        self.verdict = None  # from here on the launcher repeats lines
        self.launched = launched
        self.thread = threading.Thread(target=self.read, daemon=True)
        self.thread.start()

    def read(self):
        for line in self.launched.stdout:
            with self.changed:
                if self.verdict is None and line.startswith("tdock launch: "):
                    self.verdict = len(self.lines)
                self.lines.append(line)
                self.changed.notify_all()
        with self.changed:
            self.over = True
            self.changed.notify_all()

    def find(self, pattern, begin=0):
        """The number of the first such line of a rank, or None."""
        with self.changed:
            lines = enumerate(self.lines[begin : self.verdict], begin)
            return next((number for number, line in lines if re.search(pattern, line)), None)

    def wait_for(self, pattern, begin=0):
        """The number of the first such line from `begin` on."""
        end = time.monotonic() + LONG
        with self.changed:
            while True:
                for number in range(begin, len(self.lines)):
                    if re.search(pattern, self.lines[number]):
                        return number
                begin = len(self.lines)
                if self.over or time.monotonic() > end:
                    raise AssertionError(f"no line has '{pattern}':\n{self.text()}")
                self.changed.wait(1)

    def text(self):
        return "".join(self.lines)


def is_stopped(process):
    """All of its threads: one that waits for a disk stops only once it has renamed a file."""
    states = []
    for thread in pathlib.Path(f"/proc/{process}/task").iterdir():
        try:
            states.append((thread / "stat").read_text().rpartition(")")[2].split()[0])
        except OSError:  # it has ended
            continue
    return all(state == "T" for state in states)


def stop(*processes):
    """Returns once none of them does anything."""
    for process in processes:
        os.kill(process, signal.SIGSTOP)
    until(lambda: all(is_stopped(process) for process in processes), "the stop of the processes", every=0)


def kill_stopped(process, other):
    """Kills a stopped process, and lets the other go on, which the launcher may already have ended."""
    os.kill(process, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError):
        os.kill(other, signal.SIGCONT)


class KillPhases(RankRuns):
    MODEL = MODEL
    prompts = 8  # of a step

    def setUp(self):
        super().setUp()
        self.outputs = {}  # by the launcher

    def begin(self, recipe, run, zero, *overrides, options=()):
        """A run of two ranks: its process and its output."""
        stages = [f"{key}.zero_stage={zero}" for key in (("actor", "critic") if recipe == "ppo" else ("actor",))]
        arguments = [*RUN, f"data.train_batch_size={self.prompts}", *RECIPE[recipe], *stages, *overrides]
        launched = self.launch(recipe, run, *arguments, nproc=2, options=options)
        self.outputs[launched] = Output(launched)
        return launched, self.outputs[launched]

    def said_by(self, launched):
        return self.outputs[launched].text()

    def end(self, launched, output, rank):
        """After a rank was killed: the others end, and say which it was."""
        launched.wait(timeout=LONG)
        output.thread.join(timeout=LONG)
        self.assertNotEqual(launched.returncode, 0, output.text())
        self.assertEqual(self.processes(), {}, f"these processes are left:\n{output.text()}")
        self.assertRegex(output.text(), rf"(?m)^tdock launch: rank {rank} .*signal 9 ")
        for line in output.lines:
            if f"[rank {1 - rank}] tdock train: " in line:
                self.assertIn(f"rank {rank}", line.partition("tdock train: ")[2], output.text())

    def unfinished(self, run):
        return sorted((self.folder / run / "checkpoints").glob(".step-*"))

    def newest(self, run):
        """The newest checkpoint, whose files are as its manifest says; their contents are compared when a run goes on."""
        whole = sorted((self.folder / run / "checkpoints").glob("step-*"))
        if not whole:
            return None
        files = json.loads((whole[-1] / "manifest.json").read_text())["files"]
        for name, entry in files.items():
            self.assertEqual((whole[-1] / name).stat().st_size, entry["bytes"], name)
        self.assertIn("state-rank-1-of-2.safetensors", files)
        return whole[-1]

    def await_progress(self, run, launched, output, newest):
        """The run goes on from there, comes to a later step, and saves it. Returns the number of the line that says so."""
        if newest is not None:
            output.wait_for(f"going on .*{newest.name}")
        begin = int(newest.name[5:]) if newest is not None else 0
        self.await_step(run, begin + 1, launched)
        manifest = self.folder / run / f"checkpoints/step-{begin + 1:06d}/manifest.json"
        self.await_condition(manifest.exists, f"checkpoint {begin + 1}", launched)
        # Older checkpoints may still be on their way out.
        earlier = lambda: [path for path in self.unfinished(run) if path.name <= f".step-{begin + 1:06d}"]
        self.await_condition(lambda: not earlier(), "the removal of what is not whole", launched)
        return len(output.lines)

    # ---- In a method.

    def kill_in_method(self, recipe, run, zero, rank, method):
        """Whether the rank was killed while it was in the method."""
        newest = self.newest(run)
        launched, output = self.begin(recipe, run, zero)
        ranks = [self.process_of(number, launched) for number in range(2)]
        begins = 0 if method == "load_state" else self.await_progress(run, launched, output, newest)
        end = time.monotonic() + LONG
        while True:
            begins = output.wait_for(f"{method} begins", begins)
            time.sleep(moments.uniform(0, 0.3 * self.seconds_of(method, output)))
            stop(*ranks)
            if output.find(ended(method), begins) is None or method == "load_state" or time.monotonic() > end:
                break
            for process in ranks:
                os.kill(process, signal.SIGCONT)
            begins += 1
        kill_stopped(ranks[rank], ranks[1 - rank])
        self.end(launched, output, rank)
        return output.find(ended(method), begins) is None

    def seconds_of(self, method, output):
        """That it took the last time."""
        with output.changed:
            took = [re.search(ended(method), line) for line in output.lines]
        return next((float(found[1]) for found in reversed(took) if found), 0)

    def kill_while_joining(self, recipe, run, zero, rank, _):
        launched, output = self.begin(recipe, run, zero)
        process = self.process_of(rank, launched)
        if rank == 0 or moments.random() < 0.5:
            output.wait_for("rank 0 of 2: waiting")
        os.kill(process, signal.SIGKILL)
        self.end(launched, output, rank)
        return output.find("carries out") is None

    # ---- In the middle of a save.

    def kill_in_save(self, recipe, run, zero, rank, _):
        """While rank 1 has written a part of its file: nothing is certain but what is there while both are stopped."""
        newest = self.newest(run)
        launched, output = self.begin(recipe, run, zero)
        ranks = [self.process_of(number, launched) for number in range(2)]
        self.await_progress(run, launched, output, newest)
        whole = (self.newest(run) / "state-rank-1-of-2.safetensors").stat().st_size
        self.await_condition(lambda: self.stopped_in_save(run, whole, ranks), "the middle of a save", launched, every=0)
        kill_stopped(ranks[rank], ranks[1 - rank])
        self.end(launched, output, rank)
        left = self.unfinished(run)
        if rank == 0:  # which would have removed it
            self.assertEqual(len(left), 1)
            self.assertFalse((left[0] / "manifest.json").exists())
        return True

    def is_half_written(self, run, whole):
        for folder in self.unfinished(run):
            try:
                files = {name: (folder / name).stat().st_size for name in os.listdir(folder)}
            except OSError:  # it is a checkpoint now
                continue
            part = [size for name, size in files.items() if name.startswith("state-rank-1-of-2.safetensors.")]
            if "state.json" in files and part and 0 < part[0] < whole and "manifest.json" not in files:
                return True
        return False

    def stopped_in_save(self, run, whole, ranks):
        if not self.is_half_written(run, whole):
            return False
        stop(ranks[1], ranks[0])
        if self.is_half_written(run, whole):
            return True
        for process in ranks:
            os.kill(process, signal.SIGCONT)
        return False

    # ---- Tests.

    def killed_in(self, recipe, zero, phases):
        """One run, killed in each of these phases in turn, which is started again each time."""
        run = f"{recipe}_{zero}"
        for phase, rank in phases:
            kill = {"joining": self.kill_while_joining, "save": self.kill_in_save}.get(phase, self.kill_in_method)
            with self.subTest(recipe=recipe, zero=zero, phase=phase, rank=rank):
                killed = any(kill(recipe, run, zero, rank, phase) for _ in range(ATTEMPTS))
                self.assertTrue(killed, f"{phase} was over each time before rank {rank} was killed")
        newest = self.newest(run)
        launched, output = self.begin(recipe, run, zero)
        self.await_progress(run, launched, output, newest)
        launched.send_signal(signal.SIGINT)
        launched.wait(timeout=LONG)
        output.thread.join(timeout=LONG)
        mentions(output.text(), "saved in")
        self.assertEqual(self.processes(), {})
        self.assertEqual(self.unfinished(run), [])

    def test_a_rank_that_is_killed_ends_the_others_and_leaves_a_whole_checkpoint(self):
        if not nightly:
            return self.killed_in("grpo", 3, [("save", 1), ("save", 0)])
        for recipe, methods in PHASES.items():
            for zero in (1, 3):
                phases = [*methods, "joining", "load_state", "save", *(["gather_weights"] if zero == 3 else [])]
                self.killed_in(recipe, zero, [(phase, rank) for phase in phases for rank in range(2)])

    STEPS = ["trainer.total_training_steps=5", "trainer.save_freq=3"]  # the last checkpoint is the second

    def test_a_rank_that_is_killed_while_the_last_checkpoint_is_written_ends_the_others(self):
        if not nightly:
            self.skipTest("nightly")
        for zero in (1, 3):
            launched, output = self.begin("grpo", f"whole_{zero}", zero, *self.STEPS)
            self.assertEqual(launched.wait(), 0, output.text())
            for rank in range(2):
                with self.subTest(zero=zero, rank=rank):
                    run = f"last_{zero}_{rank}"
                    killed = any(self.kill_at_the_end(run, zero, rank) for _ in range(ATTEMPTS))
                    self.assertTrue(killed, "the last checkpoint was written before the rank was killed")
                    if rank == 0:  # which otherwise leaves the model, without that checkpoint
                        launched, output = self.begin("grpo", run, zero, *self.STEPS)
                        self.assertEqual(launched.wait(), 0, output.text())
                    self.assertEqual(self.weights(run), self.weights(f"whole_{zero}"))

    def kill_at_the_end(self, run, zero, rank):
        shutil.rmtree(self.folder / run, ignore_errors=True)
        launched, output = self.begin("grpo", run, zero, *self.STEPS)
        process = self.process_of(rank, launched)
        output.wait_for("write_state begins", output.wait_for(ended("write_state")) + 1)
        os.kill(process, signal.SIGKILL)
        self.end(launched, output, rank)
        return self.newest(run).name == "step-000003"

    def test_a_rank_that_is_killed_and_started_again_comes_to_the_same_weights(self):
        steps = ["trainer.total_training_steps=4"]
        for zero in (1, 3) if nightly else (3,):
            launched, output = self.begin("grpo", f"whole_{zero}", zero, *steps)
            self.assertEqual(launched.wait(), 0, output.text())
            for rank in range(2) if nightly else (1,):
                with self.subTest(zero=zero, rank=rank):
                    run = f"again_{zero}_{rank}"
                    launched, output = self.begin("grpo", run, zero, *steps, options=["--restarts", "2"])
                    process = self.process_of(rank, launched)
                    self.await_checkpoint(run, launched)
                    output.wait_for("update_actor begins", len(output.lines))
                    os.kill(process, signal.SIGKILL)
                    self.assertEqual(launched.wait(), 0, output.text())
                    output.thread.join(timeout=LONG)
                    mentions(output.text(), "going on", f"{run}/checkpoints/step-")
                    self.assertEqual(self.weights(run), self.weights(f"whole_{zero}"))

    def test_rank_0_that_is_stopped_while_it_trains_ends_the_others(self):
        for number, zero in enumerate((0, 1, 2, 3) * 3 if nightly else (3,)):
            with self.subTest(zero=zero):
                launched, output = self.begin("grpo", f"stopped_{number}", zero, f"resources.silence_timeout={SILENCE}",
                                              options=["--grace", "0.5"])  # fmt: skip
                process = self.process_of(0, launched)
                line = output.wait_for(ended("update_actor"))
                took = float(re.search(ended("update_actor"), output.lines[line])[1])
                output.wait_for("update_actor begins", line)
                time.sleep(moments.choice([0, moments.uniform(0, 0.5 * took)]))  # it may be before the first operation
                stop(process)
                said = output.wait_for(r"\[rank 1\] tdock train: ")
                self.assertRegex(output.lines[said], rf"tdock train: rank 0, .*\b{SILENCE}s")
                launched.wait(timeout=LONG)
                output.thread.join(timeout=LONG)
                self.assertNotEqual(launched.returncode, 0, output.text())
                self.assertEqual(self.processes(), {}, output.text())


if __name__ == "__main__":
    RankRuns.tdock = str(pathlib.Path(sys.argv.pop(1)).resolve())
    if "--nightly" in sys.argv:
        sys.argv.remove("--nightly")
        nightly = True
        KillPhases.MODEL, KillPhases.prompts = LARGE_MODEL, 16  # then short methods take longer
    KillPhases.with_reward_model = nightly
    unittest.main()
