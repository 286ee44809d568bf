"""Metrics of a run at trackers: everything once, whatever dies in between."""

from __future__ import annotations

import fcntl
import json
import math
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import threading
import types
from collections.abc import Iterator, Sequence
from typing import Any

import mlflow
import pytest
from wandb.proto import wandb_internal_pb2

from transfer_dock import follow, trackers
from transfer_dock.run_folder import MetricsFile, RunFolderError, is_running

from messages import mentions, raising
from waiting import LONG

CONFIG = "recipe: sft\nseed: 3\noptim:\n  lr: 1.0e-05\ndata:\n  train_files: [a, b]\n"
# For this process, too.
os.environ |= {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "MLFLOW_DISABLE_TELEMETRY": "true"}


def line(step: int, **more: Any) -> str:
    return json.dumps({"phase": "sft", "step": step, "train/loss": 1 / (step + 1), **more}) + "\n"


def lines(steps: Sequence[int]) -> str:
    return "".join(map(line, steps))


class Run:
    """The folder of a run, and those who follow it."""

    def __init__(self, parent: pathlib.Path, capture: pytest.CaptureFixture[str]) -> None:
        self._capture = capture
        self.folder = parent / "runs" / "sft-001"
        self.folder.mkdir(parents=True)
        (self.folder / "config.yaml").write_text(CONFIG)
        self.metrics = self.folder / "metrics.jsonl"
        self.uri = f"sqlite:///{parent}/mlflow.db"

    def begin(self) -> int:
        """Holds the lock as a run does; the caller closes it."""
        fd = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT)
        fcntl.flock(fd, fcntl.LOCK_EX)
        return fd

    def finish(self) -> None:
        (self.folder / "checkpoint").mkdir()
        (self.folder / "checkpoint/config.json").write_text("{}")

    def append(self, text: str) -> None:
        with self.metrics.open("a") as file:
            file.write(text)

    def _arguments(self, tracker: str, *more: str) -> list[str]:
        uri = ["--tracking-uri", self.uri] if tracker == "mlflow" else []
        return [str(self.folder), f"--{tracker}", "--poll", "0.02", *uri, *more]

    def follow(self, tracker: str, *arguments: str) -> tuple[int, str]:
        """The exit code of a follower in this process, and what it says."""
        self._capture.readouterr()
        before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            code = follow.main(self._arguments(tracker, *arguments))
        except SystemExit as stopped:
            code = int(stopped.code or 0)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        return code, self._capture.readouterr().err

    def follower(self, tracker: str, *arguments: str) -> subprocess.Popen[str]:
        """One in a process of its own, which is about to send."""
        command = [sys.executable, "-m", "transfer_dock.follow", *self._arguments(tracker, *arguments)]
        process = subprocess.Popen(command, cwd=self.folder.parent, stderr=subprocess.PIPE, text=True)
        assert process.stderr is not None
        said = ""
        while "goes to" not in (line := process.stderr.readline()):
            said += line
            assert line, f"it ended: {said}"
        return process

    def arrived(self, tracker: str) -> list[tuple[int, float]]:
        """(step, loss) of everything that the tracker has, sorted."""
        return sorted(self._in_mlflow() if tracker == "mlflow" else self._in_wandb())

    def in_mlflow(self) -> Any:
        """Its only run in MLflow."""
        client = mlflow.MlflowClient(self.uri)
        experiment = client.get_experiment_by_name("transfer-dock")
        assert experiment is not None
        (run,) = client.search_runs([experiment.experiment_id])
        return run

    def _in_mlflow(self) -> Iterator[tuple[int, float]]:
        for metric in mlflow.MlflowClient(self.uri).get_metric_history(self.in_mlflow().info.run_id, "train/loss"):
            yield metric.step, metric.value

    def _in_wandb(self) -> Iterator[tuple[int, float]]:
        (file,) = self.folder.glob("wandb/offline-run-*/*.wandb")
        for record in wandb_records(file.read_bytes()):
            if record.HasField("history"):
                items = {item.key or item.nested_key[0]: json.loads(item.value_json) for item in record.history.item}
                assert items["_step"] == record.history.step.num
                yield items["_step"], items["train/loss"]


def wandb_records(data: bytes) -> Iterator[Any]:
    """The records of a .wandb file: 7 bytes of header, then a LevelDB log of protobuf messages."""
    record, at = b"", 7
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        length, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        record += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield wandb_internal_pb2.Record.FromString(record)
            record = b""


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """MLflow takes a second to make one."""
    path = tmp_path_factory.mktemp("store") / "mlflow.db"
    mlflow.MlflowClient(f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture
def run(tmp_path: pathlib.Path, empty_store: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> Run:
    shutil.copy(empty_store, tmp_path)
    return Run(tmp_path, capsys)


def expected(steps: Sequence[int]) -> list[tuple[int, float]]:
    return [(step, 1 / (step + 1)) for step in steps]


BOTH = pytest.mark.parametrize("tracker", ["mlflow", "wandb"])


@BOTH
def test_a_run_that_has_ended_is_sent_whole_and_once(run: Run, tracker: str) -> None:
    run.append(lines(range(40)))
    run.finish()
    code, said = run.follow(tracker)
    assert code == 0
    mentions(said, "40 steps", "step 39", "finished")
    assert run.follow(tracker)[0] == 0
    assert run.arrived(tracker) == expected(range(40))


@BOTH
def test_a_living_run_is_followed_to_its_end(run: Run, tracker: str) -> None:
    lock = run.begin()
    run.append(lines(range(3)) + line(3)[:20])
    with run.follower(tracker) as follower:
        run.append(line(3)[20:] + lines(range(4, 9)))
        run.finish()
        os.close(lock)
        said = follower.communicate(timeout=LONG)[1]
    assert follower.returncode == 0
    mentions(said, "step 8", "finished")
    assert run.arrived(tracker) == expected(range(9))


@BOTH
def test_killed_at_any_moment_it_sends_every_step_once(run: Run, tracker: str) -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)  # pytest shows it where the test fails
    moments = random.Random(seed)
    steps = 3000
    run.append(lines(range(steps)))
    for _ in range(3):
        with run.follower(tracker) as follower:
            threading.Event().wait(moments.uniform(0, 0.3))
            follower.kill()
        run.append(lines(range(steps, steps + 10)))
        steps += 10
    run.finish()
    assert run.follow(tracker)[0] == 0
    assert run.arrived(tracker) == expected(range(steps))


@BOTH
def test_a_run_that_stops_and_is_resumed_goes_on_behind_the_last_step(run: Run, tracker: str) -> None:
    os.close(run.begin())
    run.append(lines(range(10)) + '{"phase": "sf')
    mentions(run.follow(tracker, "--wait", "0")[1], "step 9", "stopped")
    run.metrics.write_text(lines(range(6)) + line(6, later=1) + lines(range(7, 14)))
    run.finish()
    mentions(run.follow(tracker)[1], "step 13", "finished")
    assert run.arrived(tracker) == expected(range(14))


def test_mlflow_gets_the_configuration_and_how_the_run_ended(run: Run) -> None:
    run.append(line(0, bad=None, **{"val/accuracy/a@b//c": 0.5}))
    os.close(run.begin())
    assert run.follow("mlflow", "--wait", "0", "--name", "mine")[0] == 0
    there = run.in_mlflow()
    assert there.info.run_name == "mine" and there.info.status == "KILLED"
    assert there.data.params == {"recipe": "sft", "seed": "3", "optim.lr": "1e-05", "data.train_files": '["a", "b"]'}
    (odd,) = [name for name in there.data.metrics if name.startswith("val/accuracy/a_b/_/c-")]
    assert there.data.metrics[odd] == 0.5 and math.isnan(there.data.metrics["bad"])

    lock = run.begin()
    assert run.follow("mlflow", "--once")[0] == 0
    assert run.in_mlflow().info.status == "RUNNING"
    os.close(lock)
    run.finish()
    (run.folder / "config.yaml").write_text("recipe: sft\nseed: 4\n")
    assert run.follow("mlflow")[0] == 0
    assert run.in_mlflow().info.status == "FINISHED"
    assert run.in_mlflow().data.params["seed"] == "3", "MLflow keeps the first value"


def test_steps_with_more_metrics_than_a_call_takes_arrive_whole(run: Run) -> None:
    run.append("".join(line(step, **{f"m{i}": i for i in range(2500 * step)}) for step in range(2)))
    run.finish()
    assert run.follow("mlflow")[0] == 0
    metrics = run.in_mlflow().data.metrics
    assert len(metrics) == 2502 and metrics["m2499"] == 2499 and metrics["step"] == 1


def test_wandb_gets_the_configuration(run: Run) -> None:
    run.append(line(0, bad=None))
    run.finish()
    assert run.follow("wandb", "--project", "p", "--name", "n")[0] == 0
    (file,) = run.folder.glob("wandb/offline-run-*/*.wandb")
    (told,) = [record.run for record in wandb_records(file.read_bytes()) if record.HasField("run")]
    assert (told.project, told.display_name) == ("p", "n")
    config = {item.key: json.loads(item.value_json) for item in told.config.update}
    assert config["optim"] == {"lr": 1e-05} and config["seed"] == 3


def test_a_server_of_wandb_says_where_to_go_on(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    logged: list[int] = []
    begun: dict[str, Any] = {}
    there = types.SimpleNamespace(
        step=5, url="https://wandb/x", log=lambda _, step, commit: logged.append(step), finish=lambda exit_code: None
    )
    fake = types.SimpleNamespace(
        Error=RuntimeError,
        teardown=lambda: None,
        Settings=lambda **settings: settings,
        setup=lambda: types.SimpleNamespace(settings=types.SimpleNamespace(mode="online")),
        init=lambda **options: begun.update(options) or there,
    )
    monkeypatch.setitem(sys.modules, "wandb", fake)
    kept = tmp_path / "wandb/offline-run-1-abc"
    kept.mkdir(parents=True)
    tracker = trackers.Wandb(trackers.RunInfo("abc", tmp_path, "p", "n", {}))
    assert (tracker.last_step, begun["id"], begun["resume"]) == (4, "abc", "allow")
    assert kept.exists(), "only a new offline run replaces it"
    path = tmp_path / "metrics.jsonl"
    path.write_text(lines(range(8)))
    tracker.send(MetricsFile(path, tracker.last_step).read())
    tracker.close("finished")
    assert logged == [5, 6, 7]


@BOTH
def test_a_follower_that_is_told_to_end_does(run: Run, tracker: str) -> None:
    lock = run.begin()
    run.append(lines(range(5)))
    with run.follower(tracker, "--poll", "1000") as follower:
        code, said = run.follow(tracker)
        assert code == 2
        mentions(said, "another process", f"follow-{tracker}")
        follower.send_signal(signal.SIGTERM)
        follower.communicate(timeout=LONG)
    assert follower.returncode == 128 + signal.SIGTERM
    assert run.follow(tracker, "--once")[0] == 0
    assert run.arrived(tracker) == expected(range(5))
    os.close(lock)


def test_a_file_that_was_cut_repeats_nothing_and_skips_nothing(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "metrics.jsonl"
    file = MetricsFile(path, after=-1)
    assert file.read() == []

    def told() -> list[int]:
        steps: list[int] = []
        while batch := file.read():
            steps += [step.number for step in batch]
        return steps

    path.write_text(lines(range(10)))
    assert told() == list(range(10))
    path.write_text(lines(range(4)))  # shorter
    assert told() == []
    path.write_text(lines(range(11)))  # as before, and on
    assert told() == [10]
    path.write_text(lines(range(4)) + "".join(line(step, seconds=step / 7) for step in range(4, 13)))  # longer at once
    assert told() == [11, 12]
    path.write_text("")
    assert told() == []
    path.write_text(lines(range(13)) + line(13).rstrip("\n"))
    assert told() == []
    with path.open("a") as more:
        more.write("\n")
    assert told() == [13]
    path.unlink()
    assert told() == []


def test_long_files_are_read_in_pieces(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transfer_dock.run_folder._BLOCK_BYTES", 100)
    path = tmp_path / "metrics.jsonl"
    path.write_text(lines(range(50)))
    file = MetricsFile(path, after=20)
    told = []
    while batch := file.read():
        told += [step.number for step in batch]
    assert told == list(range(21, 50))
    with path.open("a") as more:
        more.write("x" * 100)
    with pytest.raises(RunFolderError, match="longer than 100 bytes"):
        file.read()


@pytest.mark.parametrize(
    "text",
    ["[]", "{", '{"phase": "a"}', '{"phase": "a", "step": "1"}', '{"phase": "a", "step": 1, "x": "y"}', "[" * 9999,
     '{"phase": "a", "step": 1, "x": [1]}', '{"phase": "a", "step": 1, "x": true}', '{"step": 1}', ""],
)  # fmt: skip
def test_a_line_that_no_run_writes_is_named(tmp_path: pathlib.Path, text: str) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(line(0) + text + "\n")
    with raising(RunFolderError, "metrics.jsonl", f"byte {len(line(0))} "):
        MetricsFile(path, after=-1).read()


def test_calls_that_cannot_work_say_why(run: Run, tmp_path: pathlib.Path) -> None:
    code, said = run.follow("mlflow", "--poll", "soon")
    assert code == 2 and "--poll" in said
    assert "WANDB_BASE_URL" in run.follow("wandb", "--tracking-uri", "x")[1]
    (run.folder / "config.yaml").write_text("- 1\n")
    mentions(run.follow("mlflow")[1], "config.yaml", "no configuration")
    (run.folder / "config.yaml").unlink()
    code, said = run.follow("mlflow", "--wait", "0.1")
    assert code == 2
    mentions(said, str(run.folder), "config.yaml")
    assert list(run.folder.iterdir()) == []


@pytest.mark.parametrize(("tracker", "package"), [("wandb", "wandb"), ("mlflow", "mlflow")])
def test_a_tracker_that_is_not_installed_is_named(run: Run, tracker: str, package: str) -> None:
    program = f"import sys; sys.modules['{package}'] = None; from transfer_dock.follow import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", program, str(run.folder), f"--{tracker}"], capture_output=True, text=True, timeout=LONG
    )
    assert done.returncode == 2 and f"pip install {package}" in done.stderr and "Traceback" not in done.stderr


def test_a_lock_that_nobody_holds_is_no_run(run: Run) -> None:
    assert not is_running(run.folder)
    lock = run.begin()
    assert is_running(run.folder)
    os.close(lock)
    assert not is_running(run.folder)
