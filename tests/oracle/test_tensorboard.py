"""TensorBoard's own reader finds in a run directory's event files what its metrics.jsonl says."""

import json
import math
from collections import defaultdict

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader


@pytest.fixture(scope="module")
def logged(run_dir):
    """Phase -> metric -> [(step, value)], from metrics.jsonl."""
    phases = defaultdict(lambda: defaultdict(list))
    for line in (run_dir / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        phase, step = record.pop("phase"), record.pop("step")
        for name, value in record.items():
            phases[phase][name].append((step, value))
    assert phases, "the run has logged nothing"
    return phases


def test_each_phase_has_its_folder(run_dir, logged):
    assert sorted(path.name for path in (run_dir / "tensorboard").iterdir()) == sorted(logged)


def test_every_record_is_intact(run_dir, logged):
    for phase, metrics in logged.items():
        (path,) = (run_dir / "tensorboard" / phase).glob("events.out.tfevents.*")
        # The loader checks both checksums of each record.
        records = list(RawEventFileLoader(str(path)).Load())
        steps = {step for points in metrics.values() for step, _ in points}
        assert len(records) >= 1 + len(steps)


def test_scalars_are_those_of_the_metrics(run_dir, logged):
    for phase, metrics in logged.items():
        events = EventAccumulator(str(run_dir / "tensorboard" / phase), size_guidance={"scalars": 0, "tensors": 0})
        events.Reload()
        assert events.file_version == 2.0
        assert sorted(events.Tags()["scalars"]) == sorted(metrics), phase
        for name, points in metrics.items():
            scalars = events.Scalars(name)
            assert [event.step for event in scalars] == [step for step, _ in points], (phase, name)
            times = [event.wall_time for event in scalars]
            assert times == sorted(times)
            for event, (step, value) in zip(scalars, points):
                if value is None:
                    assert not math.isfinite(event.value), (phase, name, step)
                else:
                    assert np.float32(event.value) == np.float32(value), (phase, name, step)
