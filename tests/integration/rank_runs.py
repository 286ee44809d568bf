"""What tests of runs of several processes share: small runs of each recipe, and their processes."""

import json
import os
import pathlib
import socket
import subprocess
import tempfile
import unittest
import uuid

from messages import mentions
from waiting import LONG, NEVER, until

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
MARK = "TDOCK_RANKS_TEST"
SMALL = [
    "data.train_batch_size=16", "trainer.total_training_steps=4", "trainer.test_freq=0", "trainer.val_max_samples=16",
    "trainer.save_freq=1",
]  # fmt: skip
# Seconds without a sign of life after which a process that is stopped counts as hanging. One that only runs slowly gives some.
SILENCE = 10
# A process that ends is noticed at once.
NOT_SILENT = f"resources.silence_timeout={NEVER}"
APART = ["resources.pools=[train=1, rollout=1, ref=1]", "resources.roles=[rollout=rollout, ref=ref]"]
# Of each recipe: the file, the data, and what makes it small.
RECIPES = {
    "sft": ("rlhf/sft", "sft", []),
    "rm": ("rlhf/rm", "pairs", []),
    "dpo": ("rlhf/dpo", "pairs", []),
    # Its prompts have no answers to compare with.
    "grpo": ("arithmetic/grpo", "prompts", ["rollout.n=4", "actor.ppo_mini_batch_size=4", "actor.use_kl_loss=true",
                                            "actor.kl_loss_coef=0.1", "reward.format.weight=1",
                                            "reward.format.pattern=[0-9]",
                                            "algorithm.rollout_correction.bypass_mode=false"]),
    "dapo": ("arithmetic/dapo", "prompts", ["rollout.n=4", "actor.ppo_mini_batch_size=4", "data.gen_batch_size=16",
                                            "reward.function=[examples/rlhf/rule.py:hidden_rule]"]),
    "ppo": ("rlhf/ppo", "prompts", ["actor.ppo_mini_batch_size=4", "trainer.critic_warmup=0"]),
}  # fmt: skip


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class RankRuns(unittest.TestCase):
    tdock = None
    MODEL = ["model.hidden_size=32", "model.num_hidden_layers=2"]
    with_reward_model = True  # which ppo needs

    @classmethod
    def setUpClass(cls):
        cls.shared = tempfile.TemporaryDirectory()
        cls.base = pathlib.Path(cls.shared.name)
        subprocess.run(["python3", "examples/rlhf/make_data.py", cls.base, "1"], cwd=ROOT, check=True)
        models = [("sft", "sft", cls.MODEL), ("rm", "pairs", [f"model.path={cls.base}/sft/checkpoint"])]
        for name, data, more in models if cls.with_reward_model else models[:1]:
            subprocess.run(
                [cls.tdock, "train", f"examples/rlhf/{name}.yaml", "--run-dir", cls.base / name, *SMALL, *more,
                 f"data.train_files={cls.base}/{data}.jsonl", f"data.val_files={cls.base}/{data}_validation.jsonl"],
                cwd=ROOT, check=True, capture_output=True,
            )  # fmt: skip

    @classmethod
    def tearDownClass(cls):
        cls.shared.cleanup()

    def setUp(self):
        parent = tempfile.TemporaryDirectory()
        self.addCleanup(parent.cleanup)
        self.folder = pathlib.Path(parent.name)
        self.mark = uuid.uuid4().hex
        self.environment = os.environ | {MARK: self.mark}

    def arguments(self, recipe, run, *overrides):
        file, data, small = RECIPES[recipe]
        more = [] if recipe == "sft" else [f"model.path={self.base}/sft/checkpoint"]
        if recipe == "ppo":
            more += [f"critic.model.path={self.base}/rm/checkpoint", f"reward_model.model.path={self.base}/rm/checkpoint"]
        return [
            f"examples/{file}.yaml", "--run-dir", str(self.folder / run), f"data.train_files={self.base}/{data}.jsonl",
            f"data.val_files={self.base}/{data}_validation.jsonl", *SMALL, *more, *small, *overrides,
        ]  # fmt: skip

    def train(self, recipe, run, *overrides):
        done = subprocess.run([self.tdock, "train", *self.arguments(recipe, run, *overrides)], cwd=ROOT, capture_output=True,
                              text=True)  # fmt: skip
        self.assertEqual(done.returncode, 0, done.stderr)
        return self.weights(run)

    def launch(self, recipe, run, *overrides, nproc=3, options=()):
        launched = subprocess.Popen(
            [self.tdock, "launch", "--nproc", str(nproc), *options, *self.arguments(recipe, run, *overrides)], cwd=ROOT,
            env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        self.addCleanup(launched.stdout.close)
        self.addCleanup(launched.kill)
        return launched

    def ranks_by_hand(self, *overrides_of_ranks, run="by_hand", **variables):
        """Starts `tdock train` for each but those whose overrides are None, and returns what they say at their ends."""
        port = variables.pop("MASTER_PORT", str(free_port()))
        started = []
        for rank, overrides in enumerate(overrides_of_ranks):
            if overrides is None:
                continue
            environment = self.environment | {
                "RANK": str(rank), "WORLD_SIZE": str(len(overrides_of_ranks)), "LOCAL_RANK": str(rank),
                "LOCAL_WORLD_SIZE": str(len(overrides_of_ranks)), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
            }  # fmt: skip
            environment = {name: value for name, value in (environment | variables).items() if value is not None}
            started.append(subprocess.Popen(
                [self.tdock, "train", *self.arguments("grpo", run, f"resources.join_timeout={NEVER}", *overrides)],
                cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))  # fmt: skip
            self.addCleanup(started[-1].kill)
        ended = [process.communicate(timeout=LONG) for process in started]
        for process in started:
            self.assertIn(process.returncode, (1, 2))
        self.assertEqual(self.processes(), {})
        return [error for _, error in ended]

    def assert_same_error(self, errors, *parts):
        said = [error[error.index("tdock train: ") :] for error in errors]
        self.assertEqual(len(set(said)), 1, errors)
        mentions(said[0], *parts)

    def weights(self, run):
        return (self.folder / run / "checkpoint/model.safetensors").read_bytes()

    def finish(self, launched, within=None):
        """The output of a run that ends by itself, in `within` seconds if it has nothing more to do, and leaves no process."""
        output, _ = launched.communicate(timeout=within)
        self.assertEqual(self.processes(), {}, f"these processes are left:\n{output}")
        return output

    def processes(self):
        """Of this test: process -> its rank; the launcher and those that supervise have none."""
        found = {}
        for entry in pathlib.Path("/proc").iterdir():
            try:
                variables = (entry / "environ").read_bytes().split(b"\0")
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
                command = (entry / "cmdline").read_bytes().split(b"\0")
            except (OSError, ValueError):
                continue
            if f"{MARK}={self.mark}".encode() not in variables or state == "Z":
                continue
            rank = next((v[5:].decode() for v in variables if v.startswith(b"RANK=")), None)
            found[int(entry.name)] = rank if b"train" in command else None
        return found

    def said_by(self, launched):
        """The output of a run that has ended."""
        return launched.stdout.read()

    def await_condition(self, condition, what, launched, every=0.01):
        """Waits until the condition is true while the run goes on, and returns its value."""

        def holds():
            value = condition()
            if not value and launched.poll() is not None:
                self.fail(f"the run ended before {what}: {self.said_by(launched)}")
            return value

        return until(holds, what, every)

    def process_of(self, rank, launched):
        def found():
            return next((process for process, of in self.processes().items() if of == str(rank)), None)

        return self.await_condition(found, f"the start of rank {rank}", launched)

    def metrics(self, run):
        """Of the steps so far; a line that is being written, or was when the run was killed, is none."""
        path = self.folder / run / "metrics.jsonl"
        whole = path.read_text().rpartition("\n")[0] if path.exists() else ""
        return [json.loads(line) for line in whole.splitlines()]

    def await_checkpoint(self, run, launched):
        """Checkpoints are written while the run goes on: it may be steps ahead of the first that is whole."""
        checkpoints = self.folder / run / "checkpoints"
        self.await_condition(lambda: any(checkpoints.glob("step-*/manifest.json")), "a checkpoint", launched)

    def await_step(self, run, step, launched):
        self.await_condition(lambda: any(of["step"] >= step for of in self.metrics(run)), f"step {step}", launched)
