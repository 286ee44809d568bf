#!/usr/bin/env python3
"""Runs whose prompts are answered by servers: tests/integration/rollout_servers_test.py TDOCK [--nightly]"""

import contextlib
import http.client
import http.server
import json
import math
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import threading
import unittest

from generate_test import write_model
from messages import mentions
from waiting import LONG, until

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
# Steps are slow while there is a file "slow" beside it.
REWARD = """
import pathlib, time

def letters(prompts, completions, **kwargs):
    if (pathlib.Path(__file__).parent / "slow").exists():
        time.sleep(0.5)
    return [sum("a" <= c <= "z" for c in text) / 8 for text in completions]
"""
STEPS = 4
tdock = None
nightly = False


class Server:
    """A process that serves until its test ends, and says its port in a line that it writes."""

    def __init__(self, test, command, pattern):
        self.process = subprocess.Popen(
            list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        test.addCleanup(self.end)
        self.lines = []
        self.pattern = re.compile(pattern)
        self.port = None
        self.ready = threading.Event()
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        for line in self.process.stdout:
            self.lines.append(line)
            if self.port is None and (found := self.pattern.search(line)):
                self.port = int(found[1])
                self.ready.set()
        self.ready.set()

    @property
    def url(self):
        if not self.ready.wait(LONG) or self.port is None:
            raise AssertionError("".join(self.lines))
        return f"http://127.0.0.1:{self.port}"

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(LONG)

    def end(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(LONG)
        self.reader.join(LONG)
        self.process.stdout.close()

    def answered(self):
        """Tokens of its answers so far."""
        self.url  # noqa: B018: waits
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=LONG)
        with contextlib.closing(connection):
            connection.request("GET", "/metrics")
            text = connection.getresponse().read().decode()
        lines = [line for line in text.splitlines() if line.startswith("tdock_serve_answer_tokens")]
        return sum(float(line.split()[-1]) for line in lines)


class RolloutServers(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.shared = pathlib.Path(folder.name)
        cls.model = write_model(cls.shared / "model", max_position_embeddings=64)
        (cls.shared / "reward.py").write_text(REWARD)
        lines = [json.dumps({"prompt": f"{i:02}=", "answer": "x"}) for i in range(32)]
        (cls.shared / "data.jsonl").write_text("\n".join(lines))
        cls.expected = {}  # weights without servers, by steps

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def serve(self, model=None):
        command = [tdock, "serve", "--model", model or self.model, "--port", "0", "--threads", "1"]
        return Server(self, command, r"http://127\.0\.0\.1:(\d+)")

    def command(self, run, *overrides, steps=STEPS):
        return [
            str(argument)
            for argument in [
                tdock, "train", "examples/arithmetic/grpo.yaml", "--run-dir", run, f"model.path={self.model}",
                f"data.train_files={self.shared}/data.jsonl", f"data.val_files={self.shared}/data.jsonl",
                f"reward.function=[{self.shared}/reward.py:letters]", "data.train_batch_size=8", "rollout.n=4",
                "actor.ppo_mini_batch_size=4", "actor.optim.lr=0.01", "actor.optim.lr_warmup_steps=0", "threads=1",
                f"trainer.total_training_steps={steps}", "trainer.test_freq=0", "trainer.val_before_train=false",
                "trainer.val_max_samples=4", *overrides,
            ]
        ]  # fmt: skip

    def train(self, run, *overrides, steps=STEPS):
        done = subprocess.run(
            self.command(run, *overrides, steps=steps), cwd=ROOT, capture_output=True, text=True
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        return self.steps(run)

    @staticmethod
    def steps(run):
        """The metrics of each step that trained."""
        text = (run / "metrics.jsonl").read_text() if (run / "metrics.jsonl").exists() else ""
        records = [json.loads(line) for line in text.splitlines() if line.endswith("}")]
        return [record for record in records if "actor/pg_loss" in record]

    @staticmethod
    def weights(run):
        return (run / "checkpoint/model.safetensors").read_bytes()

    def alone(self, steps=STEPS):
        """The weights that a run has without servers."""
        if steps not in self.expected:
            run = self.shared / f"alone{steps}"
            self.train(run, steps=steps)
            self.expected[steps] = self.weights(run)
            self.assertNotEqual(self.expected[steps], (self.model / "model.safetensors").read_bytes())
        return self.expected[steps]

    def await_steps(self, process, run, count):
        def has():
            self.assertIsNone(process.poll(), f"ended before step {count}")
            return len(self.steps(run)) >= count

        until(has, f"step {count}", every=0.02)

    @contextlib.contextmanager
    def slow_steps(self):
        slow = self.shared / "slow"
        slow.touch()
        try:
            yield
        finally:
            slow.unlink()

    def test_the_trained_weights_are_those_of_a_run_without_servers(self):
        servers = [self.serve(), self.serve()]
        expected = self.alone()
        steps = self.train(self.folder / "run", f"rollout.servers=[{servers[0].url}, {servers[1].url}]")
        self.assertEqual(self.weights(self.folder / "run"), expected)
        self.assertEqual([step["rollout/servers"] for step in steps], [2] * STEPS)
        for step in steps:  # which was computed here, and is the same to the bit
            self.assertEqual(step["rollout_corr/max_abs_diff"], 0)
        self.assertTrue(all(server.answered() > 0 for server in servers))

    def test_a_server_dies_and_another_comes_while_the_run_goes_on(self):
        steps = 40
        first, second, third = self.serve(), self.serve(), self.serve()
        expected = self.alone(steps)
        listed = self.folder / "servers"
        listed.write_text(f"{first.url}\n{second.url}\n")
        third.url  # noqa: B018: is there
        run = self.folder / "run"
        command = self.command(run, f"rollout.servers_file={listed}", steps=steps)
        with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
            try:
                with self.slow_steps():
                    self.await_steps(process, run, 2)
                    self.assertGreater(second.answered(), 0)
                    second.kill()
                    listed.write_text(f"{first.url}\n{second.url}\n{third.url}\n")
                    until(lambda: process.poll() is not None or third.answered() > 0, "an answer of the third server")
                _, errors = process.communicate()
            finally:
                process.kill()
        self.assertEqual(process.returncode, 0, errors)
        self.assertEqual(self.weights(run), expected)
        self.assertGreater(third.answered(), 0)
        self.assertEqual(self.steps(run)[-1]["rollout/servers"], 2)

    def test_a_killed_trainer_goes_on_with_the_servers_that_it_left(self):
        steps = 10
        server = self.serve()
        expected = self.alone(steps)
        run = self.folder / "run"
        overrides = [f"rollout.servers=[{server.url}]", "trainer.save_freq=2"]
        with self.slow_steps(), subprocess.Popen(
            self.command(run, *overrides, steps=steps), cwd=ROOT, stderr=subprocess.DEVNULL
        ) as process:
            try:
                self.await_steps(process, run, 5)
            finally:
                process.kill()
        alone = subprocess.run(
            self.command(run, "trainer.save_freq=2", steps=steps), cwd=ROOT, capture_output=True, text=True, timeout=LONG
        )
        mentions(alone.stderr, "rollout.servers was some and is none")
        self.train(run, *overrides, steps=steps)
        self.assertEqual(self.weights(run), expected)

    def test_ahead_of_training_rows_have_the_version_of_their_weights(self):
        server = self.serve()
        for weights in ("in_flight", "wait"):
            steps = self.train(
                self.folder / weights, f"rollout.servers=[{server.url}]", "async_training.steps_ahead=1",
                f"async_training.weights={weights}", "algorithm.rollout_correction.rollout_is=token", steps=8,
            )  # fmt: skip
            staleness = [step["async/staleness/max"] for step in steps if "async/staleness/max" in step]
            self.assertTrue(staleness)
            self.assertTrue(all(0 <= old <= 4 for old in staleness), staleness)
            wrong = [step["rollout/server_wrong_version"] for step in steps if "rollout/server_wrong_version" in step]
            self.assertEqual((bool(wrong), sum(wrong)), (True, 0))
            self.assertTrue(any(step["rollout_corr/max_abs_diff"] > 0 for step in steps), "all was the policy's")

    def test_a_server_of_another_kind_reads_folders_and_differs_by_little(self):
        other = Server(
            self, [ROOT / ".venv-oracle/bin/python", ROOT / "tests/integration/other_server.py", self.model], r"^(\d+)$"
        )
        figures = self.train(
            self.folder / "run", f"rollout.servers=[{other.url}]", "rollout.server_weights=folder", "rollout.n=8",
            "actor.optim.lr=0.02", "actor.kl_loss_coef=0.001", steps=30 if nightly else 10,
        )  # fmt: skip
        for step in figures:
            self.assertTrue(math.isfinite(step["rollout_corr/kl"]))
            self.assertLess(abs(step["rollout_corr/kl"]), 1e-4)
            self.assertLess(step["rollout_corr/max_abs_diff"], 1e-3)
        scores = [step["critic/score/mean"] for step in figures]
        self.assertGreater(scores[-1], 2 * scores[0], scores)

    def test_episodes_are_those_of_a_run_without_servers(self):
        if not nightly:
            self.skipTest("the model must learn to end its turns")
        data = self.folder / "data"
        subprocess.run(["python3", "examples/arithmetic/make_data.py", data], cwd=ROOT, check=True)
        subprocess.run(
            [tdock, "train", "examples/arithmetic/sft.yaml", "--run-dir", self.folder / "sft",
             f"data.train_files={data}/train.jsonl", f"data.val_files={data}/validation.jsonl", "model.hidden_size=32",
             "model.num_hidden_layers=2", "trainer.total_training_steps=60", "trainer.test_freq=0"],
            cwd=ROOT, check=True, capture_output=True,
        )  # fmt: skip
        model = self.folder / "sft/checkpoint"
        server = self.serve(model)
        episodes = [
            f"model.path={model}", "data.train_batch_size=16", "rollout.n=4", "actor.ppo_mini_batch_size=8",
            f"data.train_files={data}/train.jsonl", f"data.val_files={data}/test.jsonl", "trainer.test_freq=0",
            "trainer.val_before_train=false", "trainer.val_max_samples=4", "trainer.total_training_steps=3",
        ]  # fmt: skip
        for run, more in (("alone", []), ("servers", [f"rollout.servers=[{server.url}]"])):
            done = subprocess.run(
                [tdock, "train", "examples/python-environment/grpo.yaml", "--run-dir", self.folder / run,
                 *episodes, *more],
                cwd=ROOT, capture_output=True, text=True,
            )  # fmt: skip
            self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.weights(self.folder / "servers"), self.weights(self.folder / "alone"))
        self.assertGreater(self.steps(self.folder / "servers")[0]["episode/turns"], 1)

    def test_what_cannot_be_is_refused_before_anything_is_written(self):
        done = subprocess.run(
            self.command(
                self.folder / "run", "rollout.servers=[a:8000]", "algorithm.rollout_correction.bypass_mode=true",
                "rollout.quantization=int8", "rollout.server_weights=none", "algorithm.adv_estimator=remax",
            ),
            cwd=ROOT, capture_output=True, text=True, timeout=LONG,
        )  # fmt: skip
        self.assertNotEqual(done.returncode, 0)
        mentions(done.stderr, "'a:8000'", "bypass_mode", "remove rollout.quantization", "algorithm.adv_estimator", "rloo",
                 "rollout.server_weights")  # fmt: skip
        gone = "http://127.0.0.1:9"
        done = subprocess.run(
            self.command(self.folder / "run", f"rollout.servers=[{gone}]"),
            cwd=ROOT, capture_output=True, text=True, timeout=LONG,
        )  # fmt: skip
        self.assertNotEqual(done.returncode, 0)
        self.assertIn(gone, done.stderr)
        self.assertFalse((self.folder / "run").exists())

    def test_a_vllm_that_takes_no_weights_is_refused_before_anything_is_written(self):
        class Handler(http.server.BaseHTTPRequestHandler):
            said = {
                "/v1/models": {"object": "list", "data": [{"id": "m", "owned_by": "vllm", "max_model_len": 64}]},
                "/version": {"version": "0.32.0"},
            }

            def log_message(self, *arguments):
                pass

            def do_GET(self):
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                body = json.dumps(self.said.get(self.path, {"detail": "Not Found"})).encode()
                self.send_response(200 if self.path in self.said else 404)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_POST = do_GET

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        url = f"http://127.0.0.1:{server.server_address[1]}"
        lacks = ["/collective_rpc", "404", "VLLM_SERVER_DEV_MODE=1"]
        for weights, names in (("stream", ["folder"]), ("folder", lacks)):
            done = subprocess.run(
                self.command(self.folder / "run", f"rollout.servers=[{url}]", f"rollout.server_weights={weights}"),
                cwd=ROOT, capture_output=True, text=True, timeout=LONG,
            )  # fmt: skip
            self.assertNotEqual(done.returncode, 0)
            mentions(done.stderr, url, "vLLM 0.32.0", f"rollout.server_weights: {weights}", *names)
            self.assertFalse((self.folder / "run").exists())


if __name__ == "__main__":
    if "--nightly" in sys.argv:
        sys.argv.remove("--nightly")
        nightly = True
    tdock = str(pathlib.Path(sys.argv.pop(1)).resolve())
    unittest.main()
