"""A resumed run has every step once, for TensorBoard's own reader and for Python's csv, too."""

import csv
import json
import math

import numpy as np
import pytest
from conftest import run_program
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

STEPS = {"sft": list(range(21)), "grpo": list(range(21, 41))}


def opened(run, phase):
    events = EventAccumulator(str(run / "tensorboard" / phase), size_guidance={"scalars": 0, "tensors": 0})
    events.Reload()
    return events


@pytest.fixture(scope="module")
def resumed(tmp_path_factory):
    """The run, its metrics by step, and what has read the events before and after the resume."""
    folder = tmp_path_factory.mktemp("run_log")
    run, position = folder / "run", folder / "position.json"
    run_program("tdock_run_log", "begin", run, position)
    watching = {phase: opened(run, phase) for phase in STEPS}
    assert [event.step for event in watching["sft"].Scalars("train/loss")] == STEPS["sft"]
    run_program("tdock_run_log", "resume", run, position)
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return run, records, watching


def test_every_step_has_one_line(resumed):
    _, records, _ = resumed
    assert [(r["phase"], r["step"]) for r in records] == [(p, step) for p in STEPS for step in STEPS[p]]
    assert all((r["train/loss"] >= 100) == (r["step"] > 15) for r in records)


@pytest.mark.parametrize("phase", STEPS)
@pytest.mark.parametrize("watched", [False, True], ids=["fresh", "watching"])
def test_tensorboard_has_every_step_once(resumed, phase, watched):
    run, records, watching = resumed
    events = watching[phase].Reload() if watched else opened(run, phase)
    scalars = events.Scalars("train/loss")
    assert [event.step for event in scalars] == STEPS[phase]
    expected = {r["step"]: np.float32(r["train/loss"]) for r in records}
    assert [event.value for event in scalars] == [expected[event.step] for event in scalars]


def test_the_table_has_what_the_lines_have(resumed):
    run, records, _ = resumed
    with open(run / "metrics.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file, strict=True))
    assert list(rows[0]) == ["step", "phase", "a,b", "train/loss", "val/loss"]
    assert len(rows) == len(records)
    for row, record in zip(rows, records):
        assert (int(row["step"]), row["phase"]) == (record["step"], record["phase"])
        for name in ("a,b", "train/loss", "val/loss"):
            value = record.get(name)
            assert float(row[name] or math.nan) == value or (row[name] == "" and value is None), (name, row)
