"""What MindSpeed-RL's trainer does to batches, with the values that its own functions give."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import TensorDict

import transfer_dock as td
from transfer_dock.compat import mindspeed as ms

from messages import raising

RAGGED = {
    "prompts": [torch.tensor([1, 1, 1]), torch.tensor([2, 2, 2, 2])],
    "mask": [torch.tensor([1]), torch.tensor([1, 1])],
}


def lists(columns: Any) -> Any:
    return {name: [row.tolist() for row in rows] for name, rows in columns.items()}


def test_padded_batches_become_rows_again() -> None:
    padded = ms.padding_dict_to_tensor_dict(RAGGED)
    assert isinstance(padded, TensorDict) and padded["prompts"].tolist() == [[1, 1, 1, 0], [2, 2, 2, 2]]
    assert padded["mask"].tolist() == [[1, 0], [1, 1]] and padded["original_length"].tolist() == [3, 4, 1, 2]
    assert lists(ms.remove_padding_tensor_dict_to_dict(padded)) == lists(RAGGED)
    assert ms.remove_padding_tensor_dict_to_dict(None) == {}
    plain = {"a": torch.ones(1, 1)}
    assert ms.remove_padding_tensor_dict_to_dict(plain) is plain
    with raising(td.InvalidArgument, "3 lengths", "2 rows"):
        ms.remove_padding_tensor_dict_to_dict(plain | {"b": torch.ones(1, 1), "original_length": torch.ones(3)})


def test_rows_are_truncated() -> None:
    rows = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]])
    cut = [row.tolist() for row in ms.truncate_rows(rows, torch.tensor([[2], [3]]))]
    assert cut == [[1, 2], [5, 6, 7]]
    assert [row.tolist() for row in ms.truncate_rows(rows, torch.tensor([0, 1]), left_pad=True)] == [[], [8]]
    with raising(td.InvalidArgument, "4 items", "to 5"):
        ms.truncate_rows(rows, torch.tensor([5, 1]))
    responses = torch.tensor([[1, 2, 3, 4, 0, 0], [4, 5, 6, 1, 1, 0]])
    cut = [row.tolist() for row in ms.remove_padding_and_split_to_list(responses, 77, 0)]
    assert cut == [[1, 2, 3, 4], [4, 5, 6, 1, 1]]
    assert ms.remove_padding_and_split_to_list(responses, 0, 0, to_list=True) == [[1, 2, 3, 4], [4, 5, 6, 1, 1]]
    middle = ms.truncate_middle_and_pad(torch.ones(3), torch.arange(8.0).reshape(1, 4, 2), torch.tensor([[1, 3]]), -1.0)
    assert middle.tolist() == [[[2, 3], [4, 5], [-1, -1]]]
    prompt = ms.truncate_prompt_and_pad(torch.ones(3), torch.arange(4.0).reshape(1, 4), torch.tensor([[1, 9]]))
    assert prompt.tolist() == [[1, 2, 3]]


def test_columns_are_padded_to_a_multiple() -> None:
    assert ms.pad_multiple([torch.tensor([1, 2, 3]), torch.tensor([4])], 0, 2).tolist() == [[1, 2, 3, 0], [4, 0, 0, 0]]
    columns = RAGGED | {"scores": [torch.tensor([0.5]), torch.tensor([1.0])]}
    columns |= {"age": [torch.tensor([1]), torch.tensor([2])]}
    columns |= {"position_ids": [torch.tensor([0, 1, 2]), torch.tensor([0])]}
    padded = ms.pad_experience(columns, 9, 2)
    assert padded["prompts"].tolist() == [[1, 1, 1, 9], [2, 2, 2, 2]] and padded["mask"].tolist() == [[1, 0], [1, 1]]
    assert padded["scores"].tolist() == [[0.5, 0], [1, 0]] and padded["age"].tolist() == [[1], [2]]
    assert padded["position_ids"].shape == (2, 4)
    as_there = ms.pad_experience(columns, 9, 2, masks_by_pad_id=True, round_position_ids=False)
    assert as_there["mask"].tolist() == [[1, 9], [1, 1]] and as_there["position_ids"].tolist() == [[0, 1, 2], [0, 9, 9]]
    with pytest.raises(ValueError, match="no columns"):
        ms.pad_experience({}, 0)


def test_columns_are_packed_and_unpacked() -> None:
    lines = [torch.arange(4).reshape(2, 2), torch.arange(6).reshape(2, 3)]
    data, lengths = ms.pack_experience_columns("actor_train", RAGGED | {"position_ids": lines}, 2)
    assert data["prompts"].tolist() == [1, 1, 1, 2, 2, 2, 2] and lengths["prompts"].tolist() == [3, 4]
    assert data["position_ids"].shape == (2, 5) and lengths["position_ids"].dtype == torch.int32
    padded = ms.unpack_pad_experience(data, lengths, 9, 2)
    assert padded["prompts"].tolist() == [[1, 1, 1, 9], [2, 2, 2, 2]] and padded["mask"].tolist() == [[1, 0], [1, 1]]
    assert padded["position_ids"].tolist() == [[[0, 1, 9, 9], [2, 3, 9, 9]], [[0, 1, 2, 9], [3, 4, 5, 9]]]
    assert ms.unpack_pad_experience(data, lengths, 9, 2, masks_by_pad_id=True)["mask"].tolist() == [[1, 9], [1, 1]]
    # A rollout may have fewer rows than it asked for.
    assert len(ms.pack_experience_columns("actor_rollout", RAGGED, 8, enable_partial_rollout=True)[1]["mask"]) == 2
    with raising(ValueError, "'prompts'", "2 rows", "not 8"):
        ms.pack_experience_columns("actor_train", RAGGED, 8)
    with pytest.raises(ValueError, match=r"rows of \[1, 2\] lines"):
        ms.pack_experience_columns("actor_train", {"a": [torch.ones(1, 2), torch.ones(2, 2)]}, 2)


def test_inputs_become_rows() -> None:
    names, rows = ms.trans_input_to_experience({"a": torch.tensor([[1, 2], [3, 4]]), "b": None, "c": [torch.ones(1)]})
    assert names == ["a", "c"] and [row.tolist() for row in rows[0]] == [[1, 2], [3, 4]]
    assert rows[0][0].dtype == torch.int32 and rows[1][0].dtype == torch.float32


def test_prompts_and_row_numbers_are_divided() -> None:
    batch = {"prompts": [torch.tensor([1, 2, 3]), torch.tensor([4, 5])], "labels": torch.tensor([[7], [8]])}
    data, indexes = ms.put_prompts_experience(batch, 2, ["labels", "absent"])
    assert data["prompts"].tolist() == [[1, 2, 3], [1, 2, 3], [4, 5, 0], [4, 5, 0]] and indexes == [0, 1, 2, 3]
    assert data["prompt_length"].tolist() == [[3], [3], [2], [2]] and data["labels"].tolist() == [[7], [7], [8], [8]]
    assert ms.put_prompts_experience(batch, 2, add_another_batch=True)[1] == [4, 5, 6, 7]
    assert ms.get_current_dp_range_indexes(2, 4, 1) == [[4, 5], [6, 7]]
    assert ms.get_current_dp_range_indexes(3, 8, 1) == [[8, 9, 10], [11, 12, 13], [14, 15]]
