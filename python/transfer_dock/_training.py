"""A run of `tdock train`, started and followed by this process."""

from __future__ import annotations

import collections
import contextlib
import json
import pathlib
import signal
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from transfer_dock import executables
from transfer_dock._child import Child
from transfer_dock._progress import Progress
from transfer_dock.run_folder import MetricsFile, Step

_LOOK_EVERY = 0.1  # seconds
_LONGEST_ERROR = 60  # lines
_SAVE_SECONDS = 60.0  # for a run that is to end because of an error here
# Also by the signal itself, before the run listens to it.
_INTERRUPTED = (130, 143, -signal.SIGINT, -signal.SIGTERM)
_CUT_BACK = "going on from "  # in what it says once its logs are those of the checkpoint
_ERROR = "tdock train: "  # begins the lines that say why it has ended


class TrainingError(RuntimeError):
    """A run has ended with an error. Its text is that of the run.

    code: the exit code of `tdock train`: 2 before the run has begun, 1 afterwards. folder: the run's.
    """

    def __init__(self, text: str, code: int, folder: str) -> None:
        super().__init__(text)
        self.code, self.folder = code, folder


@dataclass(repr=False)
class TrainOutput:
    """How a run has ended.

    global_step: the last step. training_loss: the mean loss of its steps, NaN where no step has one. metrics: those of
    the last step. interrupted: it was stopped, has saved its state, and can go on.
    """

    global_step: int
    training_loss: float
    metrics: dict[str, float] = field(default_factory=dict)
    interrupted: bool = False

    def __repr__(self) -> str:
        more = ", interrupted" if self.interrupted else ""
        return f"<TrainOutput: step {self.global_step}, mean loss {self.training_loss:.4g}, {len(self.metrics)} metrics{more}>"


class Run:
    """One process of `tdock train`."""

    def __init__(
        self, config: pathlib.Path, folder: pathlib.Path, progress: Progress, environment: Mapping[str, str], goes_on: bool
    ) -> None:
        """config: the file. folder: the run's. goes_on: from a checkpoint, to which it first cuts the logs back."""
        self.folder = folder
        self._progress = progress
        self._steps = MetricsFile(folder / "metrics.jsonl", after=-1)
        self._child = Child([executables.find("tdock"), "train", config], progress.say, environment)
        self._read: collections.deque[Step] = collections.deque()  # and not handed on
        self._goes_on = goes_on
        self._asked: subprocess.Popen[str] | None = None
        self._total = 0
        self._stopping = False

    @property
    def total(self) -> int:
        """How many steps there are to be, once the run has told; 0 before."""
        return self._total

    def stop(self) -> None:
        """Tells the run to end after this step, and to save where it is."""
        if not self._stopping and self._child.poll() is None:
            self._child.signal(signal.SIGINT)
        self._stopping = True

    def save(self) -> None:
        """Tells the run to save its state after this step."""
        self._child.signal(signal.SIGUSR1)

    def follow(self, on_step: Callable[[Step], None], failed: Callable[[], bool]) -> bool:
        """Returns when the run has ended: whether it was interrupted. on_step is called after each step.

        failed: whether something here has failed for which the run is of no use any more. Ctrl-C stops the run, which
        saves, and a second one ends it. Raises TrainingError.
        """
        try:
            while True:
                try:
                    if self._look(on_step, failed):
                        break
                except KeyboardInterrupt:
                    if self._stopping:
                        self._child.end(5.0)
                        raise
                    self._progress.say("stopping: the run saves where it is; Ctrl-C again ends it at once")
                    self.stop()
        except BaseException:
            try:
                self.stop()
                self._child.wait(_SAVE_SECONDS)
            finally:
                self._child.end(5.0)
            raise
        return self._ended()

    def _look(self, on_step: Callable[[Step], None], failed: Callable[[], bool]) -> bool:
        """Whether the run has ended. What it wrote before that is handed on."""
        over = self._child.wait(_LOOK_EVERY) is not None
        if not self._goes_on or over or any(_CUT_BACK in line for line in self._child.lines):
            self._goes_on = False
            while steps := self._steps.read():
                self._read.extend(steps)
        if self._read and not over:
            self._ask_total()
        while self._read:
            step = self._read.popleft()  # first, and handed on once, whatever that raises
            self._progress.step(step.number, step.metrics)
            on_step(step)
        self._progress.refresh()
        if failed():
            self.stop()
        return over

    def _ask_total(self) -> None:
        """Asks the run how many steps there are to be, without waiting for its answer."""
        if self._asked is None:
            self._asked = subprocess.Popen(
                [executables.find("tdock"), "explain", self.folder, "--json"], stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=executables.environment(),
            )  # fmt: skip
        elif not self._total and not self._asked.stdout.closed and self._asked.poll() is not None:  # type: ignore[union-attr]
            told = self._asked.communicate()[0]
            with contextlib.suppress(ValueError, KeyError):  # of a run that has ended meanwhile
                self._total = int(json.loads(told)["steps"])
                self._progress.begin(self._total)

    def _ended(self) -> bool:
        code = self._child.end(0.0)
        if self._asked is not None and self._asked.poll() is None:
            self._asked.communicate()  # it waits five seconds, at most
        for line in self._child.output():
            self._progress.say(line)
        if code == 0:
            return False
        if self._stopping and code in _INTERRUPTED:
            return True
        if code < 0:
            name = signal.Signals(-code).name
            raise TrainingError(f"the run was ended by {name}; what it has saved is in {self.folder}", code, str(self.folder))
        lines = list(self._child.lines)
        begin = next((i for i in reversed(range(len(lines))) if lines[i].startswith(_ERROR)), 0)
        text = "\n".join(lines[begin:][:_LONGEST_ERROR]).removeprefix(_ERROR)
        raise TrainingError(text or f"the run ended with exit code {code}", code, str(self.folder))


def mean_loss(rows: list[dict[str, Any]]) -> float:
    losses = [row[name] for row in rows for name in ("train/loss", "actor/pg_loss") if name in row]
    return sum(losses) / len(losses) if losses else float("nan")
