#!/usr/bin/env python3
"""The page of 50 runs of 100,000 steps, in Chromium: tests/nightly/run_page.py TDOCK [RUNS STEPS]

Prints what it costs, and fails where that is more than docs/live-page.md promises. What may take so many seconds on an
idle machine may take longer in proportion to the load, as a test may (scripts/run_tests.py). Needs 1.5 GB of disk: the
logs of 50 runs are those of three, which grow together.
"""

import http.client
import json
import os
import pathlib
import random
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "tests/integration"), str(ROOT / "scripts")]
from browser import Browser  # noqa: E402
from run_tests import load  # noqa: E402
from waiting import LONG  # noqa: E402

STAGES = ("rollout", "reward", "ref", "advantage", "actor")
OWN_LOGS = 3
CHOSEN = ["val/accuracy", "val/reward/mean", "critic/score/mean", "actor/entropy", "timing_s/step"]


def write_logs(run, steps, seed):
    """As GRPO writes them: about 100 metrics of each step, five spans, and twelve answers of each thousandth step."""
    rng = random.Random(seed)
    names = CHOSEN[2:] + [f"timing_s/{stage}" for stage in STAGES] + [f"actor/metric_{i}" for i in range(90)]
    form = '{"phase":"grpo","step":%d' + "".join(f',"{name}":%.6g' for name in names) + "%s}\n"
    span = '{"phase":"grpo","step":%d,"stage":"%s","what":"work","begin":%.6f,"end":%.6f,"rows":16}\n'
    with (
        open(run / "metrics.jsonl", "w") as metrics,
        open(run / "timeline.jsonl", "w") as timeline,
        open(run / "samples.jsonl", "w") as samples,
    ):
        for step in range(1, steps + 1):
            x = 1 / (1 + step / 5000) + 0.05 * rng.random()
            val = ',"val/accuracy":%.4f,"val/reward/mean":%.4f' % (1 - x, 1 - x) if step % 100 == 0 else ""
            metrics.write(form % (step, *(x * (1 + k) for k in range(len(names))), val))
            for i, stage in enumerate(STAGES):
                timeline.write(span % (step, stage, step + i / 5, step + i / 5 + 0.15))
            for i in range(12 if step % 1000 == 0 else 0):
                sample = {"phase": "grpo", "step": step, "prompt": "What is the sum? " * 20, "truth": "15", "reward": i % 2}
                samples.write(json.dumps(sample | {"response": "Let me think. " * 60, "correct": i % 2 == 1}) + "\n")


def make_runs(folder, count, steps):
    for n in range(count):
        run = folder / f"run-{n:02}"
        (run / "tensorboard").mkdir(parents=True)
        (run / "config.yaml").write_text("recipe: grpo\n")
        if n < OWN_LOGS:
            write_logs(run, steps, n)
            continue
        for log in ("metrics", "timeline", "samples"):
            os.link(folder / f"run-{n % OWN_LOGS:02}/{log}.jsonl", run / f"{log}.jsonl")


class Figures:
    def __init__(self):
        self.failed = []
        self.load = load()

    def tell(self, name, value, most, unit):
        most *= self.load if unit in ("s", "ms") else 1
        print(f"{name:55} {value:10.2f} {unit}, at most {most:g}", flush=True)
        if value > most:
            self.failed.append(name)


def resident(pid, key="VmRSS"):
    """In MiB."""
    return int(re.search(key + r":\s+(\d+)", pathlib.Path(f"/proc/{pid}/status").read_text())[1]) / 1024


class Page:
    def __init__(self, address, runs):
        self.browser, self.runs = Browser(), runs
        self.browser.call("Performance.enable")
        self.begun = time.monotonic()
        self.browser.open(address)

    def shown_after(self):
        """Seconds to the first paint of something, to the rows of all runs, and to their curves."""
        self.browser.wait(f"document.querySelectorAll('#part-runs tbody tr').length === {self.runs}")
        rows = time.monotonic() - self.begun
        self.browser.wait(f"document.querySelectorAll('#part-curves svg path').length >= {self.runs}")
        curves = time.monotonic() - self.begun
        paint = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
        return self.browser.ask(paint) / 1000, rows, curves

    def metric(self, name):
        return next(m["value"] for m in self.browser.call("Performance.getMetrics")["metrics"] if m["name"] == name)


class Listener:
    """Counts the bytes of events."""

    def __init__(self, port, target):
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.sendall(f"GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        self.socket.settimeout(0.2)

    def bytes_in(self, seconds):
        """Without those of the machine, which come each second."""
        got, end = b"", time.monotonic() + seconds
        while time.monotonic() < end:
            try:
                got += self.socket.recv(1 << 20)
            except TimeoutError:
                pass
        return sum(len(event) for event in got.split(b"\n\n") if b"event: machine" not in event)


def measure(process, address, folder, runs, steps, figures):
    port = int(address.rstrip("/").rsplit(":", 1)[1])

    def whole():
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LONG)
        connection.request("GET", "/api/runs")
        read = [run["read"] for run in json.load(connection.getresponse())["runs"]]
        connection.close()
        return len(read) == runs and min(read) == 1

    begun = time.monotonic()
    early = Page(address, runs)
    paint, rows, _ = early.shown_after()
    figures.tell("while the logs are read: first paint", paint, 3, "s")
    figures.tell("while the logs are read: all runs in the table", rows, 5, "s")
    while not whole():
        time.sleep(0.5)
    took = time.monotonic() - begun
    figures.tell("all logs read", took, runs * steps / 20_000, "s")
    figures.tell("the page's share of a processor meanwhile", early.metric("TaskDuration") / took, 0.4, "")
    early.browser.close()
    page = Page(address, runs)
    paint, rows, curves = page.shown_after()
    figures.tell("first paint", paint, 2, "s")
    figures.tell("all runs in the table", rows, 3, "s")
    figures.tell("all curves", curves, 6, "s")
    figures.tell("memory of the page's script", page.metric("JSHeapUsedSize") / 2**20, 150, "MiB")
    highlighted = "(t => {highlight('run-03'); return performance.now() - t})(performance.now())"
    figures.tell("a run brought to the fore", page.browser.ask(highlighted), 50, "ms")

    listener = Listener(port, f"/events?tags={','.join(CHOSEN)}")
    figures.tell("bytes of a page that is opened", listener.bytes_in(3) / 1e6, 5, "MB")
    figures.tell("bytes in 5 s in which nothing happens", listener.bytes_in(5) / 1e3, 1, "kB")
    line = json.loads((folder / "run-00/metrics.jsonl").read_bytes()[-20_000:].strip().split(b"\n")[-1])
    before, slowest, most = page.metric("TaskDuration"), 0, 0
    for step in range(steps + 1, steps + 6):
        begun = time.monotonic()
        for n in range(min(OWN_LOGS, runs)):
            with open(folder / f"run-{n:02}/metrics.jsonl", "a") as file:
                file.write(json.dumps(line | {"step": step}) + "\n")
        page.browser.wait(f"[...all.runs.values()].filter(run => run.step === {step}).length === {runs}")
        slowest = max(slowest, time.monotonic() - begun)
        most = max(most, listener.bytes_in(1.5))
    figures.tell("a step of all runs, until it is shown", slowest, 3, "s")
    figures.tell("a step of all runs, bytes", most / 1e3, 150, "kB")
    figures.tell("a step of all runs, work of the page", (page.metric("TaskDuration") - before) / 5, 1, "s")
    if page.browser.problems:
        figures.failed += page.browser.problems
    page.browser.close()
    figures.tell("memory of the server", resident(process.pid), 500, "MiB")
    figures.tell("memory of the server, at most", resident(process.pid, "VmHWM"), 600, "MiB")


def main():
    tdock, runs, steps = sys.argv[1], *map(int, sys.argv[2:4] or (50, 100_000))
    figures = Figures()
    with tempfile.TemporaryDirectory() as shared:
        folder = pathlib.Path(shared)
        make_runs(folder, runs, steps)
        process = subprocess.Popen(
            [tdock, "runs", "page", folder, "--address", ":0"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        try:
            for line in process.stdout:
                if address := re.search(r"is at (http://\S+)", line):
                    break
            else:
                raise RuntimeError("tdock runs page does not say where it is")
            threading.Thread(target=process.stdout.read, daemon=True).start()
            measure(process, address[1], folder, runs, steps, figures)
        finally:
            process.kill()
            process.wait()
    if figures.failed:
        sys.exit(f"more than it may be: {', '.join(figures.failed)}")


if __name__ == "__main__":
    main()
