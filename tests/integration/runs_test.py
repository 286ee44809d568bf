#!/usr/bin/env python3
"""`tdock runs` on folders of runs: tests/integration/runs_test.py TDOCK"""

import fcntl
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

from messages import mentions
from waiting import LONG

tdock = None


def manifest(step, **metrics):
    return json.dumps(
        {"format": "transfer-dock checkpoint", "version": 1, "step": step, "part": 0,
         "saved": "2026-11-23T20:15:00+00:00", "metrics": metrics, "files": {}}
    )  # fmt: skip


class Runs(unittest.TestCase):
    def setUp(self):
        parent = tempfile.TemporaryDirectory()
        self.addCleanup(parent.cleanup)
        self.parent = pathlib.Path(parent.name).resolve()
        self.root = self.parent / "runs"

    def tdock(self, *arguments, code=0):
        result = subprocess.run(
            [tdock, "runs", *map(str, arguments)], cwd=self.parent, capture_output=True, text=True, timeout=LONG
        )
        self.assertEqual(result.returncode, code, result.stderr + result.stdout)
        self.assertEqual(result.stderr == "", code == 0, result.stderr)
        return result.stdout if code == 0 else result.stderr

    def make(self, name, config="", accuracies=(), finished=False, checkpoints=()):
        """A run; `checkpoints` are the accuracies after steps 1, 2, …"""
        run = self.root / name
        (run / "tensorboard").mkdir(parents=True)
        (run / "config.yaml").write_text(f'recipe: grpo\nseed: 1\ntrainer:\n  run_dir: "{run}"\n{config}')
        lines = [
            {"phase": "grpo", "step": step, "val/accuracy": value, "perf/x": 1} for step, value in enumerate(accuracies)
        ]
        (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        if finished:
            (run / "checkpoint").mkdir()
            (run / "checkpoint/config.json").write_text("{}")
        for step, accuracy in enumerate(checkpoints, 1):
            folder = run / f"checkpoints/step-{step:06}"
            folder.mkdir(parents=True)
            (folder / "manifest.json").write_text(manifest(step, **{"val/accuracy": accuracy}))
            (folder / "state.safetensors").write_bytes(b"x" * 5000)
        return run

    def lock(self, run):
        fd = os.open(run / "lock", os.O_RDWR | os.O_CREAT)
        fcntl.flock(fd, fcntl.LOCK_EX)
        return fd

    def checkpoints(self, run):
        return sorted(path.name for path in (run / "checkpoints").iterdir())

    def test_help_names_every_command_and_option(self):
        self.assertIn("--json", self.tdock("list", "--help"))
        self.assertIn("--all", self.tdock("show", "--help"))
        self.assertIn("--html", self.tdock("compare", "--help"))
        for option in ("--root", "--checkpoints", "--keep", "--best", "--failed", "--unfinished", "--yes"):
            self.assertIn(option, self.tdock("prune", "--help"))

    def test_list_tells_how_each_run_stands(self):
        self.make("a", accuracies=[0.25, 0.5], finished=True, config="  total_training_steps: 9\n")
        b = self.make("demo/b", accuracies=[0.25], checkpoints=[0.1])
        (b / "metrics.jsonl").write_text('{"phase":"grpo","step":0,"val/accuracy":0.25,"val/loss":3,"train/loss":2}\n')
        self.make("c")
        fd = self.lock(self.make("d", checkpoints=[0.1]))
        heading, *lines = self.tdock("list").splitlines()
        self.assertEqual(heading.split(), ["RUN", "RECIPE", "STATE", "STEP", "METRICS", "SIZE", "CHANGED"])
        starts = [r"runs/a +grpo +finished +1 of 9 +val/accuracy 0.5 \(step 1\) ", "runs/c +grpo +failed ", "runs/d +grpo +running "]
        starts.append(r"runs/demo/b +grpo +interrupted +0 +val/accuracy 0.25 \(step 0\), train/loss 2 ")
        for line, start in zip(lines, starts, strict=True):
            self.assertRegex(line, "^" + start)
        os.close(fd)
        told = json.loads(self.tdock("list", "runs", "--json"))
        self.assertEqual([run["state"] for run in told], ["finished", "failed", "interrupted", "interrupted"])
        self.assertEqual(told[0]["metrics"], {"perf/x": 1, "val/accuracy": 0.5})
        self.assertEqual((told[0]["path"], told[0]["last_step"], told[1]["last_step"]), ("runs/a", 1, None))
        size = sum(path.stat().st_size for path in (self.root / "a").rglob("*") if path.is_file())
        self.assertEqual(told[0]["bytes"], size)

    def test_list_of_nothing(self):
        mentions(self.tdock("list", code=2), "folder runs")
        self.root.mkdir()
        self.assertEqual(self.tdock("list"), "no runs in runs\n")
        self.assertEqual(self.tdock("list", "--json"), "[]\n")

    def test_show_tells_what_there_is_and_how_to_go_on(self):
        run = self.make("a", accuracies=[0.25, 0.5, 0.125], checkpoints=[0.5, 0.125])
        (run / "checkpoints/step-000003").mkdir()
        text = self.tdock("show", "runs/a")
        self.assertRegex(text, r"state +interrupted\nlast step +2\n")
        self.assertRegex(text, r"to go \w+ +tdock train runs/a/config.yaml\n")
        self.assertRegex(text, r"step 1 \(best\) +6 KiB +2026-.* val/accuracy 0.5 +runs/a/checkpoints/step-000001\n")
        self.assertRegex(text, r"step 2 +6 KiB +2026-.* val/accuracy 0.125 +runs")
        self.assertRegex(text, r"step 3 .*manifest .*step-000003")
        self.assertRegex(text, r"val/accuracy +0.125 +2 +0.125 +0.5\n")
        self.assertNotIn("perf/x", text)
        self.assertIn("perf/x", self.tdock("show", "runs/a", "--all"))
        self.assertNotIn("tdock train", self.tdock("show", self.make("b", finished=True)))
        self.assertRegex(self.tdock("show", self.make("c")), "to repeat .*trainer.run_dir=")

    def test_compare_tells_what_differs(self):
        a = self.make("a", config="  save_freq: \"5\"\noptim:\n  lr: 0.1\n  own: x\n", accuracies=[0.5, 0.25])
        b = self.make("b", config='  save_freq: ""\noptim:\n  lr: 0.2\n', accuracies=[0.75])
        text = self.tdock("compare", a, b)
        self.assertRegex(text, r"optim.lr +0.1 +0.2\n")
        self.assertRegex(text, r"optim.own +x +–\n")
        self.assertRegex(text, r'trainer.save_freq +5 +""\n')
        self.assertRegex(text, r"val/accuracy +0.25 \(step 1\) \(best 0.5\) +0.75 \(step 0\) \(best 0.75\)\n")
        self.assertNotIn("seed", text)
        self.assertNotIn("run_dir", text)
        same = self.make("c", '  save_freq: ""\noptim:\n  lr: 0.2\n')
        mentions(self.tdock("compare", b, same), "configurations", "same")
        mentions(self.tdock("compare", a, self.parent, code=2), self.parent)
        self.tdock("compare", a, code=2)

    def test_compare_writes_a_page(self):
        a, b = self.make("a", accuracies=[0.5, 0.25]), self.make("b", accuracies=[0.125])
        self.assertIn("wrote page.html", self.tdock("compare", a, b, "--html", "page.html"))
        self.assertIn("val/accuracy", (self.parent / "page.html").read_text())
        (b / "metrics.jsonl").unlink()
        self.assertIn("metrics.jsonl", self.tdock("compare", a, b, "--html", "other.html", code=2))
        self.assertFalse((self.parent / "other.html").exists())

    def test_prune_removes_nothing_without_yes(self):
        run = self.make("a", checkpoints=[0.5, 0.1, 0.2, 0.3])
        text = self.tdock("prune", "--checkpoints")
        self.assertRegex(text, r"5,\d+ +runs/a/checkpoints/step-000002 +\w")
        self.assertRegex(text, r"--yes .*10,\d+ bytes\n")
        self.assertEqual(len(self.checkpoints(run)), 4)
        self.tdock("prune", "--unfinished")
        self.assertTrue(run.exists())

    def test_prune_keeps_the_newest_and_the_best_checkpoint(self):
        run = self.make("a", checkpoints=[0.5, 0.1, 0.2, 0.3])
        (run / "checkpoints/step-000009").mkdir()
        (run / "checkpoints/.step-000010").mkdir()
        (run / "checkpoints/mine").mkdir()
        self.assertRegex(self.tdock("prune", run, "--checkpoints", "--keep", 2, "--yes"), "step-000009 .*manifest")
        self.assertEqual(self.checkpoints(run), ["mine", "step-000001", "step-000003", "step-000004"])
        self.assertIn("removed", self.tdock("prune", run, "--checkpoints", "--yes"))
        self.assertEqual(self.checkpoints(run), ["mine", "step-000001", "step-000004"])
        self.assertRegex(self.tdock("prune", run, run, "--checkpoints", "--yes"), r"\Anothing .*\n\Z")
        self.assertRegex(self.tdock("prune", run, "--checkpoints", "--best", "x", code=2), """metric ["']x["']""")

    def test_prune_goes_by_the_metric_of_the_run(self):
        own = '  best_metric: "val/accuracy"\n  best_mode: min\n'
        run = self.make("a", config=own, checkpoints=[0.5, 0.1, 0.2, 0.3])
        self.assertRegex(self.tdock("show", run), r"step 2 \(best\) .* val/accuracy 0.1 ")
        self.tdock("prune", run, "--checkpoints", "--yes")
        self.assertEqual(self.checkpoints(run), ["step-000002", "step-000004"])

    def test_prune_removes_runs_that_did_not_end(self):
        finished, failed = self.make("a", finished=True), self.make("b")
        interrupted, running = self.make("c", checkpoints=[0.1]), self.make("d")
        fd = self.lock(running)
        self.assertIn("left alone: runs/d is running", self.tdock("prune", "--failed", "--yes"))
        self.assertEqual([run.exists() for run in (finished, failed, interrupted, running)], [True, False, True, True])
        self.tdock("prune", "--root", self.root, "--unfinished", "--yes")
        self.assertEqual([run.exists() for run in (finished, failed, interrupted, running)], [True, False, False, True])
        self.assertIn("is running", self.tdock("prune", running, "--unfinished", "--checkpoints", "--yes"))
        self.assertTrue(running.exists())
        os.close(fd)

    def test_prune_refuses_what_is_no_run(self):
        other = self.root / "other"
        other.mkdir(parents=True)
        (other / "config.yaml").write_text("name: mine\n")
        run = self.make("a")
        mentions(self.tdock("prune", run, other, "--failed", "--yes", code=2), other)
        self.assertRegex(self.tdock("prune", "--unfinished", "--root", other, "--yes"), r"\Anothing .*\n\Z")
        self.assertTrue(run.exists() and other.exists())
        mentions(self.tdock("prune", run, code=2), "--checkpoints", "--failed", "--unfinished")
        self.assertIn("--keep requires --checkpoints", self.tdock("prune", run, "--failed", "--keep", 2, code=2))


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    tdock = os.path.abspath(sys.argv.pop(1))
    unittest.main()
