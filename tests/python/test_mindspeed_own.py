"""Classes of one's own that derive from MindSpeed-RL's docks, and use or override what the original's subclasses do."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import pytest
import torch

import transfer_dock as td
from transfer_dock.compat import mindspeed as ms

from messages import raising


def row(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers)


def lists(rows: Any) -> list[list[Any]]:
    return [one.tolist() for one in rows]


class Last(ms.GRPOTransferDock):
    """Hands out the last groups, marked as the original marks them."""

    def _sample_ready_index_n_samples(
        self,
        consumer: str,
        experience_count: int,
        experience_columns: Sequence[str],
        target_seq_len: float | None = None,
        use_batch_seqlen_balance: bool = False,
    ) -> list[int] | None:
        n, groups = self.n_samples_per_prompt, experience_count // self.n_samples_per_prompt
        with self.consumer_sampling_lock[consumer]:
            flags = [self.experience_consumer_status[consumer] == 0]
            flags += [self.experience_data_status[name] == 1 for name in experience_columns]
            usable = torch.stack(flags).all(0).reshape(self.prompts_num, n).all(1).nonzero(as_tuple=True)[0]
            if len(usable) < groups:
                return None
            chosen = [int(group) * n + i for group in usable[-groups:] for i in range(n)]
            self.experience_consumer_status[consumer][chosen] = 1
        return chosen


def test_a_class_chooses_which_rows_a_get_hands_out() -> None:
    dock = Last(3, 2)
    dock.put_prompts_experience({"prompts": [row(1), row(2), row(3)]})
    batch, indexes = dock.get_experience("actor_rollout", ["prompts"], 2)
    assert batch is not None and indexes == [4, 5] and batch["prompts"].tolist() == [[3], [3]]
    dock.put_experience({"responses": [row(7), row(8)]}, indexes)
    assert lists(dock._get(["responses"], [4, 5])[0]) == [[7], [8]]
    assert [dock.get_experience("actor_rollout", ["prompts"], 2)[1] for _ in range(2)] == [[2, 3], [0, 1]]
    assert dock.get_experience("actor_rollout", ["prompts"], 2) == (None, None) and dock.all_consumed("actor_rollout")
    with raising(ms.UnknownName, "'nobody'", "actor_rollout"):
        dock.get_experience("nobody", ["prompts"], 2)
    with raising(td.InvalidArgument, "experience_count", "7", "6"):
        dock.get_experience("actor_rollout", ["prompts"], 7)


def test_no_row_that_a_class_chose_is_handed_out_twice() -> None:
    dock = Last(24, 1)
    dock.put_experience({"prompts": [row(i) for i in range(24)]}, range(24))
    taken: list[int] = []

    def take() -> None:
        while (indexes := dock.get_experience("ref_log_prob", ["prompts"], 2)[1]) is not None:
            taken.extend(indexes)

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(taken) == list(range(24))


class Waiting(ms.GRPOTransferDock):
    """Notes the cells that are waited for."""

    waits: list[tuple[str, list[int]]]
    fails = False

    def _wait_for_data(self, single_column: str, indexes: Sequence[int]) -> None:
        self.waits.append((single_column, sorted(indexes)))
        super()._wait_for_data(single_column, indexes)
        if self.fails:
            raise TimeoutError("on purpose")


def test_every_read_waits_as_a_class_says() -> None:
    dock = Waiting(2, 1)
    dock.waits = []
    dock.put_experience({"prompts": [row(1), row(2)], "prompt_length": [row(1)] * 2}, [0, 1])
    assert lists(dock._get(["prompts"], [1])[0]) == [[2]] and dock.waits == [("prompts", [1])]
    dock.get_experience("trainer", ["prompts"], indexes=[0])
    _, indexes = dock.get_experience("ref_log_prob", ["prompts", "prompt_length"], 2)
    assert dock.waits[1:] == [("prompts", [0]), ("prompts", [0, 1]), ("prompt_length", [0, 1])]
    # The rows are held as after any get.
    dock.put_experience({"ref_log_prob": [row(1)] * 2}, indexes)
    dock.fails = True
    with raising(TimeoutError, "on purpose"):
        dock.get_experience("actor_log_prob", ["prompts"], 2)
    assert not dock.get_consumer_status()["actor_log_prob"].any(), "rows that nobody received are handed out"


def test_waiting_for_a_cell_ends_with_its_name() -> None:
    dock = ms.GRPOTransferDock(2, 1, timeout=0.05)
    with raising(td.DeadlineExceeded, "'responses'", "index 1"):
        dock._wait_for_data("responses", [1])


class Doubled(ms.GRPOTransferDock):
    """Stores each cell doubled, and returns it negated."""

    def _put(self, experience_columns: Any, experience: Any, indexes: Any = None, **more: Any) -> None:
        super()._put(experience_columns, [[2 * cell for cell in rows] for rows in experience], indexes, **more)

    def _get(self, experience_columns: Any, indexes: Any) -> list[list[torch.Tensor]]:
        return [[-cell for cell in rows] for rows in super()._get(experience_columns, indexes)]


def test_puts_and_gets_go_through_those_of_a_class() -> None:
    dock = Doubled(2, 1)
    dock.put_experience({"prompts": [row(1), row(2, 3)]}, [0, 1])
    batch, _ = dock.get_experience("trainer", ["prompts"], indexes=[0, 1])
    assert batch is not None and batch["prompts"].tolist() == [[-2, 0], [-4, -6]]
    apart, _ = dock.get_experience("grpo_metrics", ["prompts"], indexes=[1], padded=False)
    assert apart is not None and lists(apart["prompts"]) == [[-4, -6]]


class Own(ms.TransferDock):
    """A dock with consumers of its own, as the original's GRPOTransferDock is one."""

    def __init__(self, prompts_num: int, n_samples_per_prompt: int) -> None:
        self.experience_columns = ["prompts", "responses"]
        self.experience_consumers = ["rollout", "train"]
        super().__init__(prompts_num, n_samples_per_prompt, self.experience_columns, None, None)
        self.consumer_sampling_lock = {name: threading.Lock() for name in self.experience_consumers}
        self._forget()

    def _forget(self) -> None:
        self.experience_consumer_status = {
            name: torch.zeros(self.max_len, dtype=torch.int32) for name in self.experience_consumers
        }

    def put_experience(self, data_dict: Any, indexes: Any = None, **more: Any) -> None:
        self._put(*ms.trans_input_to_experience(ms.remove_padding_tensor_dict_to_dict(data_dict)), indexes)

    def get_experience(self, consumer: str, columns: list[str], count: int) -> tuple[Any, list[int]]:
        with self.consumer_sampling_lock[consumer]:
            flags = [self.experience_data_status[name] == 1 for name in columns]
            flags.append(self.experience_consumer_status[consumer] == 0)
            indexes = torch.stack(flags).all(0).nonzero(as_tuple=True)[0][:count].tolist()
            self.experience_consumer_status[consumer][indexes] = 1
        return ms.padding_dict_to_tensor_dict(dict(zip(columns, self._get(columns, indexes), strict=True))), indexes

    def clear(self) -> None:
        self._forget()
        self._clear_experience_data_and_status()


def test_a_dock_of_ones_own_on_the_plain_one() -> None:
    dock = Own(3, 1)
    assert dock.experience_columns == ["prompts", "responses"]
    dock.put_experience({"prompts": [row(1, 2), row(3)]}, [0, 2])
    batch, indexes = dock.get_experience("rollout", ["prompts"], 2)
    assert indexes == [0, 2] and batch["prompts"].tolist() == [[1, 2], [3, 0]]
    dock.experience_data["responses"][2] = row(9)
    assert dock.get_experience("train", ["prompts", "responses"], 2)[1] == [2]
    dock._clear_experience_data_and_status([2])
    assert dock.get_experience_status()["prompts"].tolist() == [1, 0, 0]
    dock.clear()
    assert dock.experience_data == {"prompts": [None] * 3, "responses": [None] * 3}


def test_flags_are_tensors_that_change_the_dock() -> None:
    dock = ms.GRPOTransferDock(2, 2, addition_consumers=["mine"])
    assert {"mine", "actor_rollout"} <= set(dock.experience_consumers) == set(dock.consumer_sampling_lock)
    dock.put_experience({"prompts": [row(1)] * 3}, [0, 1, 2])
    status = dock.experience_consumer_status["ref_log_prob"]
    assert type(status == 0) is torch.Tensor and status.dtype == torch.int32
    status[[0, 1, 2]] = 1
    status[1] = 0
    assert status.tolist() == [1, 0, 1, 0] == dock.get_consumer_status()["ref_log_prob"].tolist()
    with raising(td.FailedPrecondition, "[3]"):
        status[3] = 1  # there is nothing to hand out
    assert status.tolist() == [1, 0, 1, 0]
    for change in (
        lambda: dock.experience_data_status["prompts"].__setitem__([0, 1], 0),
        lambda: dock.experience_data["prompts"].__setitem__(0, None),
    ):
        with raising(td.FailedPrecondition, "'prompts'", "_put", "_clear_experience_data_and_status"):
            change()


def test_a_cell_may_be_counted_from_the_end() -> None:
    dock = ms.GRPOTransferDock(2, 1)
    dock.experience_data["prompts"][-1] = row(7)
    assert dock.get_experience_status()["prompts"].tolist() == [0, 1]
    assert lists(dock._get(["prompts"], [1])[0]) == [[7]]
    with pytest.raises(IndexError):
        dock.experience_data["prompts"][-3] = row(7)


def test_the_sampling_of_the_dock_itself() -> None:
    dock = ms.GRPOTransferDock(2, 2)
    dock.put_prompts_experience({"prompts": [row(1), row(2)]})
    group = dock._sample_ready_index_n_samples("actor_rollout", 2, ["prompts"])
    assert group in ([0, 1], [2, 3])
    dock.put_experience({"responses": [row(1)] * 2}, group)
    alone = dock._sample_ready_index("ref_log_prob", 1, ["responses"])
    assert alone is not None and len(alone) == 1 and alone[0] in group
    assert dock._sample_ready_index("ref_log_prob", 4, ["responses"]) is None
    with pytest.raises(ValueError, match="nobody"):
        dock._sample_ready_index("nobody", 1, ["prompts"])
