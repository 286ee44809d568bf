#!/usr/bin/env python3
"""The live page of runs in Chromium: tests/integration/page_test.py TDOCK"""

import json
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import unittest

from browser import Browser
from messages import mentions
from waiting import LONG, NEVER

tdock = None
HOSTILE = "<script>alert(1)</script>"

# Scores as many answers as it is told, and then waits until there is a file.
PROGRAM = """
import json, os, sys, time
most, go, scored = int(sys.argv[1]), sys.argv[2], 0
for line in sys.stdin:
    message = json.loads(line)
    if message["type"] == "hello":
        answer = {"type": "hello", "protocol": 1, "name": "gate"}
    else:
        while scored >= most and not os.path.exists(go):
            time.sleep(0.02)
        scored += len(message["samples"])
        scores = [{"sample": s["sample"], "score": s["sample"] % 2} for s in message["samples"]]
        answer = {"type": "scores", "batch": message["batch"], "scores": scores}
    print(json.dumps(answer), flush=True)
"""


class Page(unittest.TestCase):
    def setUp(self):
        shared = tempfile.TemporaryDirectory()
        self.addCleanup(shared.cleanup)
        self.folder = pathlib.Path(shared.name).resolve()

    def start(self, *arguments):
        """A process, and the address that it prints on either stream."""
        process = subprocess.Popen(
            [tdock, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        said = []
        for line in process.stdout:
            said.append(line)
            if address := re.search(r"is at (http://\S+)", line):
                threading.Thread(target=process.stdout.read, daemon=True).start()
                return process, address[1]
        self.fail("".join(said))

    def refused(self, *arguments):
        done = subprocess.run([tdock, *map(str, arguments)], capture_output=True, text=True, timeout=LONG)
        self.assertEqual(done.returncode, 2, done.stdout + done.stderr)
        return done.stderr

    def browser(self, *arguments, **options):
        browser = Browser(*arguments, **options)
        self.addCleanup(browser.close)
        return browser

    def train(self, *more):
        lines = [json.dumps({"prompt": f"{n:02}>", "answer": f"{n:02}"}) + "\n" for n in range(64)]
        (self.folder / "train.jsonl").write_text("".join(lines))
        hostile = [json.dumps({"prompt": f"{HOSTILE}{n}>", "answer": f"{n}"}) + "\n" for n in range(8)]
        (self.folder / "val.jsonl").write_text("".join(hostile))
        (self.folder / "program.py").write_text(PROGRAM)
        (self.folder / "grpo.yaml").write_text("recipe: grpo\n")
        program = f"{sys.executable} {self.folder}/program.py {8 + 16} {self.folder}/go"
        return self.start(
            "train", self.folder / "grpo.yaml", "--run-dir", self.folder / "runs/live", "--page", ":0",
            f"data.train_files={self.folder}/train.jsonl", f"data.val_files={self.folder}/val.jsonl", "threads=1",
            "trainer.peak_flops=1e12", "trainer.test_freq=0", "model.alphabet=0123456789><scriptale()/",
            "model.hidden_size=32", "model.num_hidden_layers=1", "data.train_batch_size=8", "data.max_prompt_length=40",
            "data.max_response_length=4", "rollout.n=2", "actor.ppo_mini_batch_size=8", "reward.exact.weight=0",
            f'reward.program=["{program}"]', "reward.batch_size=16", f"reward.timeout={NEVER}",
            "trainer.total_training_steps=2", "rollout.probe_prompts=0", *more,
        )  # fmt: skip

    def make(self, name, steps, recipe="sft"):
        run = self.folder / "runs" / name
        (run / "tensorboard").mkdir(parents=True)
        (run / "config.yaml").write_text(f"recipe: {recipe}\n")
        with open(run / "metrics.jsonl", "w") as file:
            for step in range(1, steps + 1):
                spike = 1000 if step == steps // 3 else 0
                file.write(json.dumps({"phase": recipe, "step": step, "train/loss": 1 / step + spike}) + "\n")
        return run

    def test_a_run_that_trains_shows_its_next_step_without_being_loaded_again(self):
        process, address = self.train("trainer.executor=concurrent")
        page = self.browser()
        page.open(address)
        page.wait("document.querySelector('#part-now')?.textContent.includes('reward')")
        page.wait("phases[0]?.last_step === 1")
        # Who waits for whom, the rows by state, and the machine.
        now = page.wait(
            "(text => /advantage.*waits for.*held the row under lease/s.test(text) && text)"
            "(document.querySelector('#part-now').textContent)"
        )
        self.assertIn("The machine", now)
        self.assertIn("GiB of", now)
        # Samples are text.
        page.wait(f"document.querySelector('#part-samples')?.textContent.includes({json.dumps(HOSTILE)})")
        self.assertEqual(page.ask("document.querySelectorAll('main script').length"), 0)
        page.ask("window.stays = 1")
        (self.folder / "go").touch()
        page.wait("[...document.querySelectorAll('.tile')].some(t => /Steps\\s*2/.test(t.textContent))")
        self.assertEqual(page.ask("window.stays"), 1)
        self.assertEqual(process.wait(LONG), 0)
        page.wait("document.getElementById('lost').textContent !== ''")
        # The report that it leaves has the same script.
        page.open((self.folder / "runs/live/report.html").as_uri())
        page.wait("document.querySelectorAll('svg path').length > 0 && Boolean(document.querySelector('nav input'))")
        self.assertIn(HOSTILE, page.ask("document.querySelector('#part-samples').textContent"))
        others = [problem for problem in page.problems if "net::ERR" not in problem]
        self.assertEqual(others, [])

    def test_the_keyboard_reaches_everything_and_a_screen_reader_has_it_as_text(self):
        run = self.make("one", 30)
        _, address = self.start("runs", "page", run, "--address", ":0")
        page = self.browser(width=360, height=740, dark=True)
        page.open(address)
        page.wait("document.querySelectorAll('svg path').length > 0 && Boolean(document.querySelector('nav input'))")
        self.assertLessEqual(page.ask("document.documentElement.scrollWidth"), 360)
        reached = set()
        for _ in range(30):
            page.press("Tab")
            name = "document.activeElement.getAttribute('aria-label')"
            reached.add(page.ask(f"{name} || document.activeElement.textContent.slice(0, 30)"))
            if page.ask("document.activeElement === document.body"):
                break  # once around
            if page.ask("document.activeElement.matches('svg')"):
                self.assertNotEqual(page.ask("getComputedStyle(document.activeElement).outlineStyle"), "none")
                page.press("Home")
                said = page.ask("document.querySelector('[role=status]').textContent")
                self.assertRegex(said, "^Loss, step 1: training 1$")
            if page.ask("document.activeElement.getAttribute('aria-label') === 'Loss as a table'"):
                page.press("Enter", "\r")
                self.assertEqual(page.ask("document.querySelectorAll('.as-table tbody tr').length"), 30)
                page.press("Enter", "\r")
        self.assertLessEqual({"To the content", "Loss by step", "Loss as a table", "Resolved configuration"}, reached)
        tree = page.call("Accessibility.getFullAXTree")["nodes"]
        roles = [(node["role"]["value"], node.get("name", {}).get("value")) for node in tree if "role" in node]
        self.assertTrue(any(role == "navigation" and name for role, name in roles), roles)
        self.assertTrue(any(role in ("image", "img") and name == "Loss by step" for role, name in roles) or
                        any(role == "table" for role, _ in roles))  # fmt: skip
        unnamed = page.ask("[...document.querySelectorAll('button, a, input')].filter(e => "
                           "!(e.getAttribute('aria-label') || e.textContent.trim() || e.closest('label'))).length")
        self.assertEqual(unnamed, 0)
        self.assertEqual(page.ask("document.querySelectorAll('[tabindex=\"0\"]:not([aria-label])').length"), 0)
        self.assertEqual(page.problems, [])

    def test_the_list_of_runs_can_be_used_by_keyboard_and_screen_reader(self):
        for name in ("first", "second"):
            self.make(name, 20)
        _, address = self.start("runs", "page", self.folder / "runs", "--address", ":0")
        page = self.browser(width=360, height=740)
        page.open(address)
        page.wait("document.querySelectorAll('#part-curves svg path').length === 2")
        page.wait("document.querySelectorAll('#part-now .meters li').length > 0")
        self.assertLessEqual(page.ask("document.documentElement.scrollWidth"), 360)
        reached = []
        while len(reached) < 30:
            page.press("Tab")
            name = "document.activeElement.getAttribute('aria-label')"
            reached.append(page.ask(f"{name} || document.activeElement.textContent.slice(0, 30)"))
            if page.ask("document.activeElement === document.body"):
                break  # once around
            if reached[-1] == "Curves of second":
                page.press(" ", " ")
                page.wait("document.querySelectorAll('#part-curves svg path').length === 1")
        self.assertEqual(reached[:1] + reached[4:-1], [
            "To the content", "Runs", "Curves of first", "first", "Curves of second", "second",
            "Which metrics, at most 8", "train/loss on a logarithmic scale", "train/loss as a table", "train/loss by step",
        ])  # fmt: skip
        tree = page.call("Accessibility.getFullAXTree")["nodes"]
        found = {(node["role"]["value"], node.get("name", {}).get("value")) for node in tree if "role" in node}
        self.assertLessEqual({("region", "Runs"), ("checkbox", "Curves of first"), ("link", "second"),
                              ("image", "train/loss by step")}, found)  # fmt: skip
        self.assertEqual(page.problems, [])

    def test_many_runs_stand_side_by_side_and_new_ones_appear(self):
        for n in range(12):
            self.make(f"run-{n:02}", 600)
        process, address = self.start("runs", "page", self.folder / "runs", "--address", ":0")
        page = self.browser()
        page.open(address)
        page.wait("document.querySelectorAll('#part-runs tbody tr').length === 12")
        page.wait("document.querySelectorAll('#part-curves svg path').length === 12")
        self.assertGreaterEqual(page.ask("Math.max(...groups[0].cards[0].chart.lines[0].spikes.high)"), 1000)
        page.ask("document.querySelector('#part-runs input').focus()")
        page.wait("document.querySelectorAll('#part-curves path[opacity=\"0.12\"]').length === 11")
        page.ask("document.querySelector('#part-runs input').blur()")
        self.make("later", 5)
        html = self.folder / "comparison.html"
        runs = [self.folder / "runs" / f"run-{n:02}" for n in range(3)]
        compare = [tdock, "runs", "compare", *runs, "--html", html]
        subprocess.run(compare, check=True, capture_output=True, timeout=LONG)
        page.wait("document.querySelectorAll('#part-runs tbody tr').length === 13")
        page.ask("document.querySelector('a[href*=later]').click()")
        page.wait("document.querySelector('h1')?.textContent === 'SFT: later'")
        page.wait("document.querySelectorAll('svg path').length > 0")
        page.open(html.as_uri())
        page.wait("document.querySelectorAll('svg path').length >= 3 && document.querySelectorAll('nav a').length >= 3")
        self.assertEqual(page.problems, [])
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(LONG), 0)

    def test_logs_with_absurd_numbers_leave_the_page_at_work(self):
        run = self.make("absurd", 20)
        with open(run / "metrics.jsonl", "a") as file:
            for step, loss in ((21, "1e308"), (22, "-1e308"), (23, "null"), (2**63 - 1, "1e-320"), (-(2**63), "1e999")):
                file.write(f'{{"phase":"sft","step":{step},"train/loss":{loss},"val/loss":{loss}}}\n')
            file.write('{"phase":"sft","step":24,"train/loss":')  # torn
        spans = [(0, 1), (1e18, 1e18), (-1e300, 1e300), (2, 3)]
        with open(run / "timeline.jsonl", "w") as file:
            for begin, end in spans:
                span = {"phase": "sft", "step": 1, "stage": "actor", "what": "work", "begin": begin, "end": end, "rows": 1}
                file.write(json.dumps(span) + "\n")
        _, address = self.start("runs", "page", run, "--address", ":0")
        page = self.browser()
        page.open(address)
        page.wait("/3 lines of the logs could not be read/.test(document.querySelector('#part-head')?.textContent)")
        page.wait("document.querySelectorAll('#part-timeline rect').length === 2")
        page.wait("document.querySelectorAll('#part-charts svg path').length > 0 && Boolean(lastValues)")
        self.assertNotIn("NaN", page.ask("[...document.querySelectorAll('path')].map(p => p.getAttribute('d')).join()"))
        self.assertEqual(page.problems, [])

    def test_errors_say_what_would_be_right(self):
        self.make("one", 1)
        mentions(self.refused("runs", "page", self.folder / "none"), self.folder / "none")
        self.assertIn("such as :8080", self.refused("runs", "page", self.folder / "runs", "--address", "host"))
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen()
            port = listener.getsockname()[1]
            train = ["train", self.folder / "x.yaml", "model.alphabet=0123456789", "data.max_length=64", "--page"]
            (self.folder / "x.yaml").write_text("recipe: sft\ndata: {train_files: x.jsonl}\n")
            for command in (["runs", "page", self.folder / "runs", "--address"], train):
                mentions(self.refused(*command, f":{port}"), f"127.0.0.1:{port}", "in use", "or :0")


if __name__ == "__main__":
    tdock = str(pathlib.Path(sys.argv.pop(1)).resolve())
    unittest.main()
