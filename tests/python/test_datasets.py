"""Micro-batches for torch's loaders."""

from __future__ import annotations

import time

import pytest
import torch
from torch.utils.data import DataLoader, get_worker_info

import transfer_dock as td
from transfer_dock.datasets import DockDataset, MicroBatch

from waiting import LONG


def fill(dock: td.Dock, rows: int, **consumer: object) -> None:
    dock.create_partition(
        "train", {"ids": td.column("int64", ragged=True), "advantage": td.column("bfloat16"), "text": "str"}
    )
    dock.register_consumer("train", "trainer", reads=["ids", "advantage", "text"], **consumer)
    dock.put(
        "train",
        {
            "ids": [torch.arange(row % 3 + 1) + row for row in range(rows)],
            "advantage": torch.arange(rows, dtype=torch.bfloat16),
            "text": [str(row) for row in range(rows)],
        },
    )
    dock.seal("train")


def test_batches_are_tensors_of_the_dtypes_of_the_columns():
    dock = td.Dock.local()
    fill(dock, 5)
    batches = list(DockDataset(dock, "train", "trainer", batch_size=2))
    assert [batch["text"] for batch in batches] == [["0", "1"], ["2", "3"], ["4"]]
    assert batches[1]["advantage"].dtype == torch.bfloat16 and batches[1]["advantage"].tolist() == [2.0, 3.0]
    assert [one.tolist() for one in batches[1]["ids"].unbind()] == [[2, 3, 4], [3]]
    assert dict(batches[0]).keys() == {"ids", "advantage", "text"}
    assert dock.consumer_status("train", "trainer").done == 5


def test_each_rank_has_rows_of_its_own():
    dock = td.Dock.local()
    fill(dock, 12, ranks=2)
    seen = [
        [text for batch in DockDataset(dock, "train", "trainer", batch_size=2, rank=rank) for text in batch["text"]]
        for rank in (0, 1)
    ]
    assert len(seen[0]) == len(seen[1]) == 6
    assert sorted(seen[0] + seen[1], key=int) == [str(row) for row in range(12)]


def test_a_batch_is_done_when_the_next_is_asked_for():
    dock = td.Dock.local()
    fill(dock, 4)
    batches = iter(DockDataset(dock, "train", "trainer", batch_size=2))
    next(batches)
    assert dock.consumer_status("train", "trainer").leased == 2
    next(batches)
    assert dock.consumer_status("train", "trainer").done == 2
    batches.close()
    assert dock.consumer_status("train", "trainer").ready == 2


@pytest.mark.parametrize("over", ["tcp_address", "address"])
def test_two_workers_read_every_row_once(over, tmp_path):
    with td.serve(listen="127.0.0.1:0", socket=str(tmp_path / "dock.sock")) as server:
        dock = td.Dock.connect(getattr(server, over))
        fill(dock, 100)
        dataset = DockDataset(dock, "train", "trainer", batch_size=4, min_batch=1, hold=True, timeout=LONG)
        seen: list[str] = []
        for batch in dataset.loader(num_workers=2):
            assert isinstance(batch, MicroBatch)
            seen += batch["text"]
            batch.complete(dock)
        assert sorted(seen, key=int) == [str(row) for row in range(100)]
        assert dock.consumer_status("train", "trainer").done == 100


def test_nothing_comes_is_an_error_that_says_what_is_missing():
    dock = td.Dock.local()
    dock.create_partition("train", {"ids": "int64"})
    dock.register_consumer("train", "trainer", reads=["ids"])
    with pytest.raises(td.DeadlineExceeded):
        next(iter(DockDataset(dock, "train", "trainer", batch_size=2, timeout=0.05)))
    with pytest.raises(td.InvalidArgument, match="min_batch"):
        DockDataset(dock, "train", "trainer", batch_size=2, min_batch=3)


def test_batches_that_nobody_trains_come_back():
    dock = td.Dock.local()
    fill(dock, 4)

    def fails(taken):
        raise RuntimeError("no memory")

    for hold in (False, True):
        with pytest.raises(RuntimeError, match="no memory"):
            next(iter(DockDataset(dock, "train", "trainer", batch_size=2, hold=hold, collate=fails)))
        assert dock.consumer_status("train", "trainer").ready == 4
    batch = next(iter(DockDataset(dock, "train", "trainer", batch_size=2, hold=True)))
    assert dock.consumer_status("train", "trainer").leased == 2
    batch.release(dock)
    assert dock.consumer_status("train", "trainer").ready == 4


def test_columns_that_rows_lack_are_left_out():
    dock = td.Dock.local()
    dock.create_partition("train", {"x": "int64", "y": "int64"})
    dock.register_consumer("train", "trainer", reads=["x"], reads_optional=["y"])
    dock.put("train", {"x": [1, 2]})
    assert next(iter(DockDataset(dock, "train", "trainer", batch_size=2))).columns.keys() == {"x"}


class Late(DockDataset):
    """The second worker comes when the first has taken everything."""

    def __iter__(self):
        if get_worker_info().id == 1:
            while self.dock.consumer_status("train", "trainer").ready > 0:
                time.sleep(0.01)
        yield from super().__iter__()


@pytest.mark.parametrize("hold", [False, True])
@pytest.mark.parametrize("in_order", [False, True])
def test_a_worker_without_rows_holds_up_nobody(hold, in_order):
    dock = td.serve().connect()
    # As many as a loader asks one worker for ahead.
    fill(dock, 8)
    dataset = Late(dock, "train", "trainer", batch_size=4, hold=hold)
    seen = []
    for batch in DataLoader(dataset, batch_size=None, num_workers=2, in_order=in_order, timeout=LONG):
        seen += batch["text"]
        if hold:
            batch.complete(dock)
    assert sorted(seen) == [str(row) for row in range(8)]
