"""Runs of `tdock train` whose dock other processes look at and work on: real processes throughout."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import sys

import pytest

import transfer_dock as td

from messages import mentions
from waiting import LONG, until

TDOCK = pathlib.Path(os.environ["TDOCK_BUILD"]) / "tdock"
ROOT = pathlib.Path(os.environ["TDOCK_SOURCE"])
EXAMPLE = ROOT / "examples/external-reward"
ROWS = 32  # of a step

# Takes rows as the reward stage, and does nothing with them.
HOLDER = f"""
import sys, time
import transfer_dock as td
with td.Dock.connect(sys.argv[1]).take("train", "reward", max=5, min=5, timeout={LONG}):
    print("holds", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    lines = [json.dumps({"prompt": f"{i:02}>", "answer": f"{i:02}"[::-1]}) for i in range(40)]
    (tmp_path / "train.jsonl").write_text("\n".join(lines))
    return tmp_path


class Run:
    """A run of an example with a tiny model, three steps of 32 rows."""

    def __init__(
        self, folder: pathlib.Path, name: str, *overrides: str, config: pathlib.Path = EXAMPLE / "grpo.yaml"
    ) -> None:
        self.directory = folder / name
        self.process = subprocess.Popen(
            [
                TDOCK, "train", config, "--run-dir", self.directory, "model.path=",
                "model.alphabet=0123456789>", "model.hidden_size=32", "model.num_hidden_layers=2",
                f"data.train_files={folder}/train.jsonl", "data.val_files=[]", "data.train_batch_size=8", "rollout.n=4",
                "actor.ppo_mini_batch_size=4", "trainer.total_training_steps=3", "threads=1", *overrides,
            ],
            cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *error: object) -> None:
        self.process.kill()
        self.process.communicate()

    def address(self) -> str:

        def exists() -> bool:
            assert self.process.poll() is None, self.process.communicate()[1]
            return (self.directory / "dock.json").exists()

        until(exists, "dock.json")
        return json.loads((self.directory / "dock.json").read_text())["address"]

    def end(self) -> str:
        """Its messages, if it ends well."""
        messages = self.process.communicate(timeout=LONG)[1]
        assert self.process.returncode == 0, messages
        return messages

    def metrics(self, *without: str) -> list[dict[str, float]]:
        """Of each step, without what a clock measured."""
        lines = (self.directory / "metrics.jsonl").read_text().splitlines()
        left_out = ("timing_", "perf/throughput", "perf/time_per_step", "perf/mfu/", "perf/cpu_memory_used_gb", *without)
        return [{k: v for k, v in json.loads(line).items() if not k.startswith(left_out)} for line in lines]


def example_stage(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, EXAMPLE / "reward_stage.py", *arguments], stdout=subprocess.PIPE, text=True)


def ask(*arguments: str) -> str:
    return subprocess.run([f"{TDOCK}-dock", *arguments], capture_output=True, text=True, check=True).stdout


def test_a_run_goes_on_after_its_python_stage_was_killed_and_can_be_looked_at_meanwhile(folder):
    with Run(folder, "run") as run:
        address = run.address()
        holder = subprocess.Popen([sys.executable, "-c", HOLDER, address], stdout=subprocess.PIPE, text=True)
        assert holder.stdout.readline() == "holds\n"
        dock = td.Dock.connect(address)
        until(lambda: dock.consumer_status("train", "reward").ready == ROWS - 5, "all rows of the step")

        status = ask("status", "train", "--address", address)
        reward = next(line.split() for line in status.splitlines() if line.startswith("reward "))
        assert reward[1:5] == [str(ROWS - 5), "0", str(ROWS - 5), "5"], "takeable, waiting, ready, leased"
        explained = ask("explain", "train", "advantage", "--address", address)
        mentions(explained, "'rewards'", "32 rows", "'reward'", "under lease")

        holder.send_signal(signal.SIGKILL)
        holder.communicate()
        versions = []
        stage = td.stage(
            name="reward", reads=["prompt_text", "truth", "data_source", "response_text", "finished"], writes=["rewards"]
        )  # fmt: skip

        @stage
        def reward_of_row(rows):
            versions.append(dock.status("train").weights_version)
            assert all(text.decode().isdecimal() or b">" in text or not text for text in rows["response_text"])
            return {"rewards": [row % 7 + 0.5 for row in rows.ids.tolist()]}

        counts = td.run(dock, "train", [reward_of_row])
        messages = run.end()
    assert counts["reward"].rows == 3 * ROWS
    assert f"tdock dock status train --address {address}" in messages
    mentions(messages, "stage 'reward'", "prompt_text, truth")
    for step, metrics in enumerate(run.metrics()[1:]):
        expected = [row % 7 + 0.5 for row in range(step * ROWS, (step + 1) * ROWS)]
        assert metrics["critic/score/mean"] == sum(expected) / ROWS
        assert metrics["critic/score/max"] == 6.5
        assert metrics["dock/completed/reward"] == (step + 1) * ROWS
    # Two updates in each step.
    assert set(versions) == {None, 2, 4}
    assert not (run.directory / "dock.json").exists()
    assert not pathlib.Path(address.removeprefix("unix:")).exists()


def test_the_example_finds_a_run_by_its_directory(folder):
    stage = example_stage(str(folder / "run"))
    with Run(folder, "run") as run:
        run.end()
    assert stage.communicate(timeout=LONG)[0] == f"scored {3 * ROWS} answers\n"


def test_the_example_waits_no_longer_than_it_is_told(folder):
    stage = [sys.executable, EXAMPLE / "reward_stage.py", folder / "none", "--timeout", "0.2"]
    ended = subprocess.run(stage, capture_output=True, text=True, timeout=LONG)
    assert ended.returncode == 1
    mentions(ended.stderr, f"{folder}/none/dock.json", "trainer.serve", "0.2 seconds")


def test_the_example_works_on_a_dock_that_is_served_elsewhere(folder):
    with td.serve() as server:
        stage = example_stage("--address", server.address)
        with Run(folder, "run", "trainer.serve=", f"trainer.dock={server.address}") as run:
            run.end()
        assert stage.communicate(timeout=LONG)[0] == f"scored {3 * ROWS} answers\n"
        assert server.connect().partitions() == []
    assert [metrics["dock/completed/reward"] for metrics in run.metrics()[1:]] == [ROWS, 2 * ROWS, 3 * ROWS]
    assert any(metrics["critic/score/max"] not in (0, 1) for metrics in run.metrics()[1:]), "as no rule in C++ does"


def test_the_metrics_do_not_depend_on_where_the_dock_is(folder):
    here = "trainer.external_stages=[]"
    with td.serve() as server:
        runs = [
            Run(folder, "embedded", here, "trainer.serve="),
            Run(folder, "served", here, "trainer.serve=unix"),
            Run(folder, "elsewhere", here, "trainer.serve=", f"trainer.dock={server.tcp_address}"),
        ]
        for run in runs:
            with run:
                run.end()
    embedded, served, elsewhere = [run.metrics() for run in runs]
    assert len(embedded) == 4
    assert served == embedded
    for metrics in (*embedded, *elsewhere):  # rows stay on a dock that outlives the run until they are in a checkpoint
        for name in ("dock/rows", "dock/held_bytes"):
            metrics.pop(name, None)
    assert elsewhere == embedded


def test_a_stage_that_nobody_carries_out_is_named_after_its_time(folder):
    with Run(folder, "run", "--serve=127.0.0.1:0", "trainer.external_timeout=0.3") as run:
        messages = run.process.communicate(timeout=LONG)[1]
    assert run.process.returncode == 1
    mentions(messages, "grpo: step 1: stage 'reward'", "put rewards", "300ms", "0 of 32 rows", "127.0.0.1:")


def test_a_dock_that_others_could_reach_without_a_token_is_refused(folder):
    with Run(folder, "run", "trainer.serve=0.0.0.0:0") as run:
        messages = run.process.communicate(timeout=LONG)[1]
    assert run.process.returncode == 2
    mentions(messages, "trainer.serve", "'0.0.0.0:0'", "a token")
    assert not run.directory.exists()


def test_ctrl_c_ends_a_run_that_waits_for_another_process_with_the_token(folder):
    (folder / "token").write_text("s3cret\n")
    with Run(folder, "run", "--serve=127.0.0.1:0", f"trainer.dock_token_file={folder}/token") as run:
        address = run.address()
        with pytest.raises(td.Unauthenticated):
            td.Dock.connect(address)
        dock = td.Dock.connect(address, token="s3cret")
        until(lambda: dock.consumer_status("train", "reward").ready == ROWS, "all rows of the step")
        run.process.send_signal(signal.SIGINT)
        messages = run.process.communicate(timeout=LONG)[1]
    assert run.process.returncode == 130
    mentions(messages, "interrupted", "step 0", str(run.directory))
    assert f"tdock dock status train --address {address} --token-file {folder}/token" in messages
