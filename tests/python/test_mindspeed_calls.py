"""Wrong calls of MindSpeed-RL's docks: where the original raises on purpose, the same exception, and always what is right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import transfer_dock as td
from transfer_dock.compat import mindspeed as ms

from messages import raising


def row(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers)


ROWS = [row(1)] * 4
Call = Callable[[ms.GRPOTransferDock], Any]


@pytest.fixture
def grpo() -> ms.GRPOTransferDock:
    dock = ms.GRPOTransferDock(2, 2)
    dock.put_experience({"prompts": ROWS}, range(4))
    return dock


def put(*arguments: Any, **named: Any) -> Call:
    return lambda dock: dock.put_experience(*arguments, **named)


def get(*arguments: Any, **named: Any) -> Call:
    return lambda dock: dock.get_experience(*arguments, **named)


WRONG: list[tuple[Call, type[BaseException], list[str]]] = [
    # Without indexes, the original raises ValueError.
    (put({"prompts": ROWS}, None), ValueError, ["indexes"]),
    (put({"prompts": ROWS}), ValueError, ["indexes"]),
    (put({"prompts": ROWS}, []), ValueError, ["indexes"]),
    (put({}, None), ValueError, ["indexes"]),
    (lambda dock: dock._put(["prompts"], [ROWS]), ValueError, ["indexes"]),
    (lambda dock: dock._put(["prompts"], [ROWS], None), ValueError, ["indexes"]),
    (put({"prompts": ROWS}, [0, 1, 2, 9]), ValueError, ["9", "0 to 3"]),
    # Indexes that are no numbers of rows.
    (put({"prompts": ROWS}, ["0", "1", "2", "3"]), TypeError, ["'0'", "numbers"]),
    (put({"prompts": [row(1)]}, [1.5]), TypeError, ["1.5", "numbers"]),
    (put({"prompts": [row(1)]}, [None]), TypeError, ["None", "numbers"]),
    (get("trainer", ["prompts"], indexes=["0"]), TypeError, ["'0'"]),
    (lambda dock: dock.clear_indexes(["0"]), TypeError, ["'0'"]),
    # Values that are no columns.
    (put({"prompts": 5}, [0]), ValueError, ["'prompts'", "5"]),
    (put({"prompts": "abc"}, [0]), ValueError, ["'prompts'", "str", "tensor"]),
    (put({"prompts": {}}, [0]), ValueError, ["'prompts'", "dict", "tensor"]),
    (put({"prompts": object()}, [0]), ValueError, ["'prompts'", "object", "tensor"]),
    (put({"prompts": [row(1), None]}, [0, 1]), ValueError, ["'prompts'", "NoneType", "tensor"]),
    (put({"prompts": ["a", row(1)]}, [0, 1]), ValueError, ["'prompts'", "str", "tensor"]),
    (put({"prompts": torch.tensor(3)}, [0]), ValueError, ["'prompts'", "3"]),
    (put({"prompts": torch.ones(2, 2), "original_length": None}, [0, 1]), ValueError, ["original_length"]),
    (lambda dock: dock._put(["prompts", "labels"], [ROWS], range(4)), ValueError, ["'labels'"]),
    # Names.
    (put({"mine": ROWS}, range(4)), ValueError, ["'mine'", "prompts"]),
    (put({5: ROWS}, range(4)), ValueError, ["5"]),
    (get(None, ["prompts"], 2), ValueError, ["None", "actor_rollout"]),
    (get("nobody", ["prompts"], 2), ValueError, ["'nobody'", "actor_rollout"]),
    (get("trainer", [None], 2), ValueError, ["None"]),
    (get("trainer", None, 2), TypeError, []),
    (lambda dock: dock.all_consumed(None), KeyError, ["None", "actor_rollout"]),  # type: ignore[arg-type]
    (lambda dock: dock.complete("nobody", [0]), ValueError, ["'nobody'"]),
    # Counts.
    (get("trainer", ["prompts"], "4"), TypeError, ["experience_count", "'4'"]),
    (get("trainer", ["prompts"], 4.0), TypeError, ["experience_count", "4.0"]),
    (get("trainer", ["prompts"]), ValueError, ["experience_count"]),
    (get("trainer", ["prompts"], 3), ValueError, ["experience_count", "3"]),
    (get("trainer", ["prompts"], 8), ValueError, ["experience_count", "8", "4"]),
    (lambda dock: dock.prefetch_request_index(None), TypeError, ["None"]),  # type: ignore[arg-type]
    # Constructors.
    (lambda dock: ms.GRPOTransferDock("2", 2), TypeError, ["prompts_num", "'2'"]),  # type: ignore[arg-type]
    (lambda dock: ms.GRPOTransferDock(2, None), TypeError, []),  # type: ignore[arg-type]
    (lambda dock: ms.GRPOTransferDock(2, 2, None, 2, None), TypeError, ["GBS_train", "None"]),  # type: ignore[arg-type]
    (lambda dock: ms.GRPOTransferDock(2, 2, addition_columns=[5]), ValueError, ["5"]),  # type: ignore[list-item]
    # Batches.
    (lambda dock: ms.trans_input_to_experience({"a": 5}), ValueError, ["'a'", "5"]),
    (lambda dock: ms.padding_dict_to_tensor_dict({"a": []}), ValueError, ["'a'"]),
    (lambda dock: ms.put_prompts_experience({"prompts": []}, 2), ValueError, ["'prompt_length'"]),
    (lambda dock: ms.truncate_rows(torch.ones(2, 2), row(1)), ValueError, ["1", "2"]),
    (lambda dock: ms.pad_experience({}, 0), ValueError, []),
    (lambda dock: ms.pack_experience_columns("x", None, 1), ValueError, []),  # type: ignore[arg-type]
    (lambda dock: ms.unpack_pad_experience(None, None, 0, 1), ValueError, []),  # type: ignore[arg-type]
    (lambda dock: ms.unpack_pad_experience({"a": row(1, 2, 3)}, {"a": row(1, 1)}, 0, 1), ValueError, ["'a'", "3", "2"]),
    (lambda dock: ms.get_current_dp_range_indexes(0, 4), ValueError, ["experience_count", "0"]),
    # Images.
    (lambda dock: ms.MMGRPOTransferDock(2, 2).put_experience({"image": torch.ones(1, 1, 2)}), TypeError, ["indexes"]),
    (lambda dock: ms.MMGRPOTransferDock(2, 2).put_experience({"image": 5}, [0]), ValueError, ["'image'", "5"]),
]


@pytest.mark.parametrize("number", range(len(WRONG)))
def test_a_wrong_call_raises_what_the_original_raises_and_says_what_is_wrong(
    grpo: ms.GRPOTransferDock, number: int
) -> None:
    call, error, names = WRONG[number]
    with raising(error, *names):
        call(grpo)


def test_calls_that_the_original_lets_pass_pass(grpo: ms.GRPOTransferDock) -> None:
    for nothing in (None, {}, {"prompts": None}):
        grpo.put_experience(nothing, [0])
    assert grpo.prefetch_request_index(0) == [] and grpo.get_cur_index() == 0
    got = grpo.get_experience("trainer", ["prompts"], 4, None, None, 1, None)  # type: ignore[arg-type]
    assert sorted(got[1] or ()) == [0, 1, 2, 3]
    grpo.clear("nobody")
    assert grpo.get_experience_status()["prompts"].sum() == 0
    assert ms.MMGRPOTransferDock(2, 2).get_columns(None) == []  # type: ignore[arg-type]
    with pytest.raises(td.NotFound, match="nobody"):
        ms.GRPOTransferDock(2, 2, None, 2, 1).clear("nobody")
