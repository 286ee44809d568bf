"""MindSpeed-RL's own tests of its docks and batches, case by case; docs/mindspeed.md lists them with those left out."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from transfer_dock.compat import mindspeed as ms

COLUMN = "default"


@pytest.fixture
def plain() -> ms.TransferDock:
    return ms.TransferDock(
        prompts_num=16, n_samples_per_prompt=1, experience_columns=[COLUMN], timeout=10, timeout_interval=2
    )


@pytest.fixture
def grpo() -> ms.GRPOTransferDock:
    return ms.GRPOTransferDock(prompts_num=16, n_samples_per_prompt=1, metrics=ms.Metric())


def cells(count: int) -> list[torch.Tensor]:
    return [torch.randn(1, 8) for _ in range(count)]


def test_transfer_dock_init(plain: ms.TransferDock) -> None:
    assert (plain.prompts_num, plain.n_samples_per_prompt, plain.max_len) == (16, 1, 16)
    assert (plain.timeout, plain.timeout_interval) == (10, 2)
    assert COLUMN in plain.experience_data and COLUMN in plain.experience_data_status
    usual = ms.TransferDock(16, 1, None, None, None)
    assert (usual.timeout, usual.timeout_interval, usual.experience_columns) == (300, 5, [])


def test_transfer_dock_put(plain: ms.TransferDock) -> None:
    indexes, rows = random.sample(range(16), 4), cells(4)
    plain._put(experience_columns=[COLUMN], experience=[rows], indexes=indexes)
    stored = plain.experience_data[COLUMN]
    for index, row in zip(indexes, rows, strict=True):
        cell = stored[index]
        assert cell is not None and torch.equal(cell, row)
    assert sum(cell is None for cell in stored) == 12


def test_transfer_dock_get(plain: ms.TransferDock) -> None:
    indexes, rows = random.sample(range(16), 4), cells(4)
    plain._put([COLUMN], [rows], indexes)
    some = random.sample(indexes, 2)
    for index, cell in zip(some, plain._get([COLUMN], some)[0], strict=True):
        assert torch.equal(cell, rows[indexes.index(index)])


def test_grpo_transfer_dock_init(grpo: ms.GRPOTransferDock) -> None:
    assert "grpo_metrics" in grpo.get_consumer_status()


def test_grpo_transfer_dock_get_experience(grpo: ms.GRPOTransferDock) -> None:
    indexes = random.sample(range(16), 4)
    grpo.put_experience(data_dict=TensorDict.from_dict({"prompts": torch.stack(cells(4))}), indexes=indexes)
    some = random.sample(indexes, 2)
    batch, taken = grpo.get_experience(consumer="actor_rollout", experience_columns=["prompts"], indexes=some)
    assert batch is not None and taken == some and len(batch["prompts"]) == 2


def test_grpo_transfer_dock_put_experience(grpo: ms.GRPOTransferDock) -> None:
    indexes, rows = random.sample(range(16), 4), cells(4)
    grpo.put_experience(data_dict=TensorDict.from_dict({"prompts": torch.stack(rows)}), indexes=indexes)
    for index, row in zip(indexes, rows, strict=True):
        batch, taken = grpo.get_experience(consumer="actor_rollout", experience_columns=["prompts"], indexes=[index])
        assert batch is not None and taken == [index] and torch.equal(batch["prompts"][0], row)


def test_data_strategy_put_get() -> None:
    dock = ms.GRPOTransferDock(2, 1, ms.Metric(), addition_columns=[], addition_consumers=[])
    dock.put_experience(data_dict={"prompts": torch.stack(cells(2))}, indexes=[0, 1], is_prompt=False)
    batch, indexes = dock.get_experience(consumer="actor_rollout", experience_columns=["prompts"], indexes=[1])
    assert batch is not None and indexes == [1] and batch["prompts"].shape[0] == 1


def test_data_strategy_metrics() -> None:
    dock = ms.GRPOTransferDock(1, 1, ms.Metric(), addition_columns=[], addition_consumers=[])
    for value in (1.0, 2.0):
        dock.update_metrics("metric/test", value=[value], cumulate=True)
    assert dock.get_metrics().metric["metric/test"] == [1.0, 2.0]


@pytest.mark.parametrize(
    ("function", "arguments", "expected"),
    [
        (
            ms.remove_padding_and_split_to_list,
            (torch.tensor([[1, 2, 3, 4, 0, 0], [4, 5, 6, 1, 1, 0]]), 77, 0),
            [[1, 2, 3, 4], [4, 5, 6, 1, 1]],
        ),
        (
            ms.pad_multiple,
            ([torch.tensor([1, 2, 3]), torch.tensor([4, 5]), torch.tensor([6])], 0, 2),
            [[1, 2, 3, 0], [4, 5, 0, 0], [6, 0, 0, 0]],
        ),
        (
            ms.truncate_middle_and_pad,
            (torch.tensor([2, 3, 4]), torch.arange(12.0).reshape(1, 4, 3), torch.tensor([[1, 4]]), 0.0),
            [[[3, 4, 5], [6, 7, 8], [9, 10, 11]]],
        ),
        (
            ms.truncate_rows,
            (torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12]]), torch.tensor([[2], [3], [1]])),
            [[1, 2], [5, 6, 7], [9]],
        ),
    ],
    ids=["remove_padding_and_split_to_list", "pad_multiple", "truncate_middle_and_pad", "truncate_rows"],
)
def test_pad_process(function: Any, arguments: tuple[Any, ...], expected: list[Any]) -> None:
    assert [row.tolist() for row in function(*arguments)] == expected
