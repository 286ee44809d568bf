"""Where the metrics of a run are sent to: Weights & Biases and MLflow, which are imported when they are needed.

A tracker knows the last step that it has, so that a program that sends steps can be killed at any time.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import json
import pathlib
import re
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from transfer_dock.run_folder import Step

# How a run stands when it is no longer followed.
Outcome = Literal["running", "finished", "stopped"]


class TrackerError(Exception):
    """The tracker cannot be used. The text says why, and what would help."""


@dataclass(frozen=True)
class RunInfo:
    """What a tracker is told of a run."""

    id: str  # letters and digits; the same for the same run, however often it is followed
    folder: pathlib.Path
    project: str
    name: str
    config: Mapping[str, Any]


class Tracker(Protocol):
    """A run at a tracker. Not thread-safe."""

    last_step: int  # that it had when it was opened; -1: none
    where: str  # for people

    def send(self, steps: Sequence[Step]) -> None:
        """Sends steps, in order, that come after all that it has."""

    def close(self, outcome: Outcome) -> None:
        """Returns once everything has been sent."""


def load(module: str, package: str) -> Any:
    """An optional package of Python."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise TrackerError(f"{module} is not installed here ({error}): pip install {package}") from error


@contextlib.contextmanager
def _told_by(tracker: str) -> Iterator[None]:
    """Whatever a tracker raises, it is its message that helps."""
    try:
        yield
    except TrackerError:
        raise
    except Exception as error:
        raise TrackerError(f"{tracker}: {str(error).strip() or type(error).__name__}") from error


class Wandb:
    """A run of Weights & Biases, in the mode that WANDB_MODE says.

    A server tells which steps it has. What is written offline, below the run's folder, has every step: it replaces what
    an earlier follower has left, of which nobody knows where it ends.
    """

    def __init__(self, info: RunInfo) -> None:
        self._wandb = load("wandb", "wandb")
        with _told_by("wandb"):
            offline = self._wandb.setup().settings.mode == "offline"
            if offline:
                _remove_offline_runs(info.folder / "wandb", info.id)
            self._run = self._wandb.init(
                id=info.id,
                resume=None if offline else "allow",
                project=info.project,
                name=info.name,
                config=dict(info.config),
                allow_val_change=True,
                dir=str(info.folder),
                settings=self._wandb.Settings(console="off"),
            )
            self.last_step = int(self._run.step) - 1
            self.where = f"W&B, {self._run.dir if offline else self._run.url}"

    def send(self, steps: Sequence[Step]) -> None:
        with _told_by("wandb"):
            for step in steps:
                self._run.log(step.metrics, step=step.number, commit=True)

    def close(self, outcome: Outcome) -> None:
        with _told_by("wandb"):
            self._run.finish(exit_code=1 if outcome == "stopped" else 0)
            self._wandb.teardown()  # returns when the process that writes the files has ended


def _remove_offline_runs(folder: pathlib.Path, run: str) -> None:
    removed = set()
    for found in folder.glob(f"offline-run-*-{run}"):
        # A process of wandb that outlives a killed follower for a moment may still be writing there.
        for _ in range(50):
            shutil.rmtree(found, ignore_errors=True)
            if not found.exists():
                break
            time.sleep(0.1)
        else:
            raise TrackerError(f"cannot remove {found}, which an earlier follower has left")
        removed.add(found.name)
    # A name is that of the second in which it is given: the new one is not to be that of such a process.
    while time.strftime(f"offline-run-%Y%m%d_%H%M%S-{run}") in removed:
        time.sleep(0.05)


# What MLflow takes in a call, and of a value.
_BATCH_METRICS = 1000
_BATCH_PARAMS = 100
_PARAM_LENGTH = 6000
_NAME_LENGTH = 250


class Mlflow:
    """A run in MLflow's store, which is found by a tag.

    Each step also has the metric "step". A store in a database takes the metrics of a call together, so that it has
    the whole step or nothing of it.
    """

    def __init__(self, info: RunInfo, tracking_uri: str | None) -> None:
        mlflow = load("mlflow", "mlflow")
        self._entities = load("mlflow.entities", "mlflow")
        uri = tracking_uri or mlflow.get_tracking_uri()
        with _told_by(f"mlflow, {uri}"):
            self._client = mlflow.MlflowClient(tracking_uri=uri)
            run = self._open(info)
            self._id = run.info.run_id
            self._client.update_run(self._id, status="RUNNING", name=info.name)
            self._send_config(run.data.params, info.config)
        self.last_step = int(run.data.metrics.get("step", -1))
        self.where = f"MLflow, {uri}, experiment '{info.project}', run '{info.name}' ({self._id})"

    def send(self, steps: Sequence[Step]) -> None:
        batch: list[Any] = []
        for step in steps:
            metrics = list(self._metrics(step))
            if len(batch) + len(metrics) > _BATCH_METRICS:
                self._log(batch)
                batch = []
            batch += metrics
        self._log(batch)

    def close(self, outcome: Outcome) -> None:
        if outcome != "running":
            with _told_by("mlflow"):
                self._client.set_terminated(self._id, "FINISHED" if outcome == "finished" else "KILLED")

    def _open(self, info: RunInfo) -> Any:
        experiment = self._client.get_experiment_by_name(info.project)
        experiment_id = experiment.experiment_id if experiment else self._client.create_experiment(info.project)
        found = self._client.search_runs([experiment_id], f"tags.`transfer_dock.id` = '{info.id}'", max_results=1)
        if found:
            return found[0]
        tags = {"transfer_dock.id": info.id, "transfer_dock.folder": str(info.folder)}
        return self._client.create_run(experiment_id, tags=tags, run_name=info.name)

    def _send_config(self, there: Mapping[str, str], config: Mapping[str, Any]) -> None:
        """Parameters cannot be changed in MLflow: those of the run's first configuration stay."""
        missing = [
            self._entities.Param(name, value) for name, value in sorted(_flat(config).items()) if name not in there
        ]
        for begin in range(0, len(missing), _BATCH_PARAMS):
            self._client.log_batch(self._id, params=missing[begin : begin + _BATCH_PARAMS])

    def _metrics(self, step: Step) -> Iterator[Any]:
        now = int(time.time() * 1000)
        for name, value in step.metrics.items():
            yield self._entities.Metric(_mlflow_name(name), value, now, step.number)
        # Last, so that a step with more metrics than a call takes is whole if it has this one.
        yield self._entities.Metric("step", float(step.number), now, step.number)

    def _log(self, batch: list[Any]) -> None:
        with _told_by("mlflow"):
            for begin in range(0, len(batch), _BATCH_METRICS):
                self._client.log_batch(self._id, metrics=batch[begin : begin + _BATCH_METRICS])


@functools.lru_cache(maxsize=10_000)
def _mlflow_name(name: str) -> str:
    """MLflow takes some characters only, and no name that would be another one as a path."""
    parts = [part if part not in ("", ".", "..") else "_" for part in re.sub(r"[^/\w.\- :]", "_", name).split("/")]
    allowed = "/".join(parts)[:_NAME_LENGTH]
    if allowed == name:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{allowed[: _NAME_LENGTH - 9]}-{digest}"


def _flat(config: Mapping[str, Any], above: str = "") -> dict[str, str]:
    """A configuration as "section.key": text."""
    flat: dict[str, str] = {}
    for key, value in config.items():
        name = f"{above}{key}"
        if isinstance(value, Mapping):
            flat.update(_flat(value, name + "."))
        else:
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
            flat[_mlflow_name(name)] = text[:_PARAM_LENGTH]
    return flat
