#!/usr/bin/env python3
"""`tdock explain` on runs that hang, have ended or were killed: tests/integration/explain_test.py TDOCK"""

import json
import os
import pathlib
import re
import signal
import stat
import subprocess
import sys
import tempfile
import unittest

from messages import mentions
from waiting import LONG, NEVER, until

tdock = None

# Scores some answers, as many as it is told, and then hangs.
PROGRAM = """
import json, sys, time
most, scored = int(sys.argv[1]), 0
for line in sys.stdin:
    message = json.loads(line)
    if message["type"] == "hello":
        answer = {"type": "hello", "protocol": 1, "name": "odd"}
    else:
        if scored >= most:
            time.sleep(1000)
        scored += len(message["samples"])
        scores = [{"sample": s["sample"], "score": s["sample"] % 2} for s in message["samples"]]
        answer = {"type": "scores", "batch": message["batch"], "scores": scores}
    print(json.dumps(answer), flush=True)
"""


class Explain(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        shared = tempfile.TemporaryDirectory()
        cls.addClassCleanup(shared.cleanup)
        cls.folder = pathlib.Path(shared.name).resolve()
        lines = [json.dumps({"prompt": f"{n:02}>", "answer": f"{n:02}"}) + "\n" for n in range(64)]
        (cls.folder / "train.jsonl").write_text("".join(lines))
        (cls.folder / "program.py").write_text(PROGRAM)
        (cls.folder / "grpo.yaml").write_text("recipe: grpo\n")

    def arguments(self, run, scored, *more):
        return [
            tdock, "train", self.folder / "grpo.yaml", "--run-dir", run, f"data.train_files={self.folder}/train.jsonl",
            f"data.val_files={self.folder}/train.jsonl", "threads=1", "trainer.peak_flops=1e12",
            "trainer.val_before_train=false", "trainer.test_freq=0", "model.alphabet=0123456789>",
            "model.hidden_size=32", "model.num_hidden_layers=1", "data.train_batch_size=8", "data.max_prompt_length=4",
            "data.max_response_length=4", "rollout.n=2", "actor.ppo_mini_batch_size=8", "reward.exact.weight=0",
            f'reward.program=["{sys.executable} {self.folder}/program.py {scored}"]', "reward.batch_size=16",
            f"reward.timeout={NEVER}", "trainer.total_training_steps=4", "rollout.probe_prompts=0", *more,
        ]  # fmt: skip

    def start(self, run, *more):
        process = subprocess.Popen(
            self.arguments(run, 16, *more), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        return process

    def explain(self, run, *options):
        return subprocess.run([tdock, "explain", run, *options], capture_output=True, text=True, timeout=LONG)

    def told(self, process, run, *options):
        """What a run that is alive says of itself; None while it does not answer in time."""
        if process.poll() is not None:
            self.fail(process.stderr.read())
        answered = self.explain(run, *options)
        return answered.stdout if answered.returncode == 0 else None

    def wait_until_it_hangs(self, process, run, step=2):
        said = None

        def hangs():
            nonlocal said
            said = self.told(process, run, "--json")
            answer = json.loads(said) if said else {"stages": []}
            for reward in answer["stages"]:
                if reward["name"] == "reward" and step in (None, answer["step"]):
                    return reward["does"] == "works" and reward["seconds"] > 0.5 and (answer, reward)
            return None

        return until(hangs, lambda: f"a reward that hangs: {said}", every=0.1)

    def test_a_stage_that_hangs_is_named_with_its_rows(self):
        run = self.folder / "together"
        process = self.start(run, "trainer.executor=concurrent")
        answer, reward = self.wait_until_it_hangs(process, run)
        first, last = map(int, re.fullmatch("[0-9]+ rows between ([0-9]+) and ([0-9]+)", reward["which"]).groups())
        self.assertTrue(16 <= first <= last <= 31, reward)
        self.assertEqual(reward["counts"]["leased"], reward["rows"])
        self.assertIn("stages", answer["phase"])
        self.assertGreater(answer["tokens_per_second"], 0)
        advantage = next(stage for stage in answer["stages"] if stage["name"] == "advantage")
        self.assertEqual((advantage["does"], advantage["counts"]["waiting"]), ("waits", 16))
        text = until(lambda: self.told(process, run), "the text")
        self.assertRegex(text, rf"reward: .*\b{reward['rows']} rows between {first} and {last} for [\d.]+ s")
        self.assertRegex(text, "[Ww]riter 'reward' .*under lease")
        self.assertEqual(stat.S_IMODE(os.stat(run / "explain.socket").st_mode), 0o600)

        process.send_signal(signal.SIGKILL)
        process.wait(LONG)
        killed = self.explain(run)
        self.assertEqual(killed.returncode, 1, killed.stderr)
        mentions(killed.stderr, run, "killed")
        process = self.start(run, "trainer.executor=concurrent")
        self.wait_until_it_hangs(process, run)  # the socket that was left is replaced

    def test_stages_that_are_carried_out_in_turn(self):
        run = self.folder / "turn"
        answer, reward = self.wait_until_it_hangs(self.start(run), run)
        self.assertEqual(reward["rows"], 16)
        mentions(reward["dock"], "16 rows", "lease")
        self.assertEqual([stage["name"] for stage in answer["stages"] if stage["does"] == "works"], ["reward"])

    def test_stages_that_answer_ahead(self):
        run = self.folder / "ahead"
        process = self.start(run, "async_training.steps_ahead=1")
        answer, reward = self.wait_until_it_hangs(process, run, step=None)
        self.assertRegex(reward["which"], "^[0-9]+ rows between ")
        step = next(stage for stage in answer["stages"] if stage["name"] == "step")
        self.assertEqual(step["does"], "waits")

    def test_a_run_that_has_ended(self):
        run = self.folder / "ended"
        done = subprocess.run(self.arguments(run, 1000), capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertFalse((run / "explain.socket").exists())
        told = self.explain(run)
        self.assertEqual(told.returncode, 1)
        mentions(told.stderr, f"run {run} ", "ended")

    def test_what_is_no_run(self):
        told = self.explain(self.folder / "none")
        self.assertEqual(told.returncode, 2)
        mentions(told.stderr, self.folder / "none")
        told = self.explain(self.folder)
        self.assertEqual(told.returncode, 2)
        mentions(told.stderr, self.folder)


if __name__ == "__main__":
    tdock = str(pathlib.Path(sys.argv.pop(1)).resolve())
    unittest.main()
