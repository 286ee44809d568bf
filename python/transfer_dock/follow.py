"""Sends the metrics of a training run to Weights & Biases or MLflow, while the run writes them or later.

    python -m transfer_dock.follow runs/grpo-001 --mlflow --tracking-uri sqlite:///mlflow.db

It can be killed and started again at any time: every step is sent once.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import pathlib
import re
import secrets
import signal
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from transfer_dock import tables
from transfer_dock.run_folder import MetricsFile, RunFolderError, is_finished, is_running
from transfer_dock.trackers import Mlflow, Outcome, RunInfo, Tracker, TrackerError, Wandb, load


def _arguments(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m transfer_dock.follow",
        description="Sends the metrics of a training run to Weights & Biases or MLflow until the run ends. Killed and "
        "started again, it goes on behind the last step that arrived.",
    )
    parser.add_argument("run", metavar="RUN", type=pathlib.Path, help="the folder of the run, such as runs/grpo-001")
    tracker = parser.add_mutually_exclusive_group(required=True)
    tracker.add_argument("--wandb", action="store_true", help="send to Weights & Biases; files with WANDB_MODE=offline")
    tracker.add_argument("--mlflow", action="store_true", help="send to MLflow")
    parser.add_argument(
        "--project", "--experiment", default="transfer-dock", metavar="NAME",
        help="the project of Weights & Biases, or the experiment of MLflow (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument("--name", help="what the run is called there (default: the name of its folder)")
    parser.add_argument(
        "--tracking-uri", metavar="URI",
        help="MLflow's server or store, such as http://host:5000 or sqlite:///mlflow.db (default: MLFLOW_TRACKING_URI, "
        "or what MLflow uses otherwise)",
    )  # fmt: skip
    parser.add_argument("--poll", type=_seconds, default=5.0, metavar="SECONDS", help="how often to look (default: 5)")
    parser.add_argument(
        "--wait", type=_seconds, default=60.0, metavar="SECONDS",
        help="how long to wait for the run to begin, or to go on (default: 60)",
    )  # fmt: skip
    parser.add_argument("--once", action="store_true", help="send what is there, and stop")
    arguments = parser.parse_args(given)
    if arguments.tracking_uri is not None and not arguments.mlflow:
        parser.error("--tracking-uri is MLflow's; Weights & Biases takes its server from WANDB_BASE_URL")
    return arguments


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"it is '{text}'; give a number of seconds, 0 or more")
    return seconds


class _Claim:
    """The file in the run's folder by which one follower at a time sends to a tracker. It holds the run's id there."""

    def __init__(self, path: pathlib.Path) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._fd)
            raise TrackerError(f"another process follows this run already: it holds {path}") from None
        text = os.pread(self._fd, 64, 0).decode(errors="replace").strip()
        if re.fullmatch("[0-9a-f]{16}", text) is None:
            text = secrets.token_hex(8)
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, text.encode() + b"\n", 0)
            os.fsync(self._fd)
        self.id = text

    def close(self) -> None:
        os.close(self._fd)


def _await_begin(folder: pathlib.Path, seconds: float, poll: float) -> None:
    until = time.monotonic() + seconds
    while not (folder / "config.yaml").exists():
        if time.monotonic() >= until:
            raise RunFolderError(f"{folder} is not the folder of a run: it has no config.yaml")
        time.sleep(min(poll, 1.0))


def _config(path: pathlib.Path) -> dict[str, Any]:
    yaml = load("yaml", "pyyaml")
    try:
        config = yaml.safe_load(path.read_bytes())
    except yaml.YAMLError as error:
        raise RunFolderError(f"{path}: {error}") from error
    if not isinstance(config, dict):
        raise RunFolderError(f"{path} holds no configuration: it must be a map of keys")
    return config


def follow(
    folder: pathlib.Path, tracker: Tracker, *, poll: float, wait: float, once: bool, tell: Callable[[str], None]
) -> Outcome:
    """Sends steps until the run ends, or with ``once`` those that are there. Returns how the run stands."""
    steps = MetricsFile(folder / "metrics.jsonl", after=tracker.last_step)
    sent, last = 0, tracker.last_step
    until = time.monotonic() + wait
    was_running = False
    while True:
        # First, so that everything that a run wrote before it ended is read below.
        running, finished = is_running(folder), is_finished(folder)
        while batch := steps.read():
            tracker.send(batch)
            sent, last = sent + len(batch), batch[-1].number
        was_running = was_running or running
        if once or not running and (finished or was_running or time.monotonic() >= until):
            outcome: Outcome = "running" if running else "finished" if finished else "stopped"
            how = "is running" if running else outcome
            tell(f"sent {sent} steps, up to step {last}; the run {how}" if last >= 0 else f"no steps; the run {how}")
            return outcome
        time.sleep(poll)


def _stop(number: int, _frame: object) -> NoReturn:
    raise SystemExit(128 + number)


def main(given: Sequence[str] | None = None) -> int:
    """The command. Returns its exit code: 2 if it cannot begin, 1 if it cannot go on."""
    arguments = _arguments(given)
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGINT, _stop)

    def tell(text: str) -> None:
        print(f"follow: {tables.printable(text)}", file=sys.stderr, flush=True)

    begun = False
    try:
        folder = arguments.run.absolute()
        _await_begin(folder, 0.0 if arguments.once else arguments.wait, arguments.poll)
        config = _config(folder / "config.yaml")
        claim = _Claim(folder / ("follow-wandb" if arguments.wandb else "follow-mlflow"))
        info = RunInfo(claim.id, folder, arguments.project, arguments.name or folder.name, config)
        tracker: Tracker = Wandb(info) if arguments.wandb else Mlflow(info, arguments.tracking_uri)
        begun = True
        tell(f"{arguments.run} goes to {tracker.where}, from step {tracker.last_step + 1}")
        outcome: Outcome = "running"
        try:
            outcome = follow(
                folder, tracker, poll=arguments.poll, wait=arguments.wait, once=arguments.once, tell=tell
            )  # fmt: skip
        finally:
            tracker.close(outcome)
            claim.close()
    except (RunFolderError, TrackerError, OSError) as error:
        tell(str(error))
        return 1 if begun else 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
