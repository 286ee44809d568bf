"""The docks of MindSpeed-RL, as its programs use them."""

from __future__ import annotations

import logging
import os
import pickle
import signal
import threading
import time
from typing import Any

import pytest
import torch
from tensordict import TensorDict

import transfer_dock as td
from transfer_dock.compat.mindspeed import (
    DAPOTransferDock,
    GRPOTransferDock,
    Indexes,
    Metric,
    MMGRPOTransferDock,
    PPOTransferDock,
    TransferDock,
)

from conftest import connect
from messages import raising
from waiting import LONG, until


def row(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers)


def lists(rows: Any) -> list[list[Any]]:
    return [one.tolist() for one in rows]


@pytest.fixture(params=["local", "unix", "tcp"])
def core(request: pytest.FixtureRequest, server: td.Server) -> td.Dock:
    return connect(request.param, server)


@pytest.fixture
def grpo(core: td.Dock) -> GRPOTransferDock:
    return GRPOTransferDock(2, 2, dock=core)


def test_one_iteration_of_grpo(grpo: GRPOTransferDock) -> None:
    indexes = grpo.put_prompts_experience({"prompts": [row(1, 2, 3), row(4, 5)]}, 2)
    assert indexes == [0, 1, 2, 3]

    def stage(consumer: str, reads: list[str], count: int, compute: Any) -> None:
        while not grpo.all_consumed(consumer):
            batch, taken = grpo.get_experience(consumer, reads, count, timeout=LONG)
            assert batch is not None and taken is not None and len(taken) == count
            result = compute(batch)
            if result is not None:
                grpo.put_experience(result, taken)

    def generate(batch: dict[str, Any]) -> dict[str, Any]:
        assert sorted(batch["prompt_length"].flatten().tolist()) == [2, 2, 3, 3]
        assert batch["prompts"].shape == (4, 3), "padded to the longest"
        return {"responses": [row(7, 8)] * 4, "input_ids": [row(1, 7, 8)] * 4, "response_length": [row(2)] * 4}

    stage("actor_rollout", ["prompts", "prompt_length"], 4, generate)
    stage(
        "rule_reward",
        ["prompts", "responses"],
        2,
        lambda batch: {"rm_scores": batch["responses"].float().mean(1, keepdim=True)},
    )
    stage(
        "compute_advantage",
        ["responses", "rm_scores"],
        4,
        lambda b: {"advantages": b["rm_scores"], "returns": b["rm_scores"]},
    )
    stage("ref_log_prob", ["input_ids", "responses"], 2, lambda batch: {"ref_log_prob": batch["responses"] * -0.5})
    stage("actor_log_prob", ["input_ids", "responses"], 2, lambda batch: {"old_log_prob": batch["responses"] * -0.5})
    seen: list[torch.Tensor] = []
    stage(
        "actor_train", ["advantages", "old_log_prob", "ref_log_prob"], 2, lambda batch: seen.append(batch["advantages"])
    )
    assert torch.cat(seen).flatten().tolist() == [7.5] * 4
    grpo.update_metrics("loss", 1.0)
    grpo.update_metrics("rows", 2, cumulate=True)
    grpo.update_metrics("rows", 2, cumulate=True)
    assert grpo.get_metrics().metric == {"loss": 1.0, "rows": [2, 2]}
    grpo.clear()
    assert grpo.get_metrics().metric == {} and not grpo.all_consumed("actor_train")


def test_padded_columns_travel_with_their_lengths(grpo: GRPOTransferDock) -> None:
    grpo.put_experience({"responses": [row(1), row(2, 2), row(3, 3, 3), row(4)]}, [0, 1, 2, 3])
    batch, indexes = grpo.get_experience("trainer", ["responses"], indexes=[2, 0])
    assert batch is not None and indexes == [2, 0]
    assert batch["responses"].tolist() == [[3, 3, 3], [1, 0, 0]] and batch["original_length"].tolist() == [3, 1]
    # What was padded is put without the padding.
    grpo.put_experience({"labels": batch["responses"], "original_length": batch["original_length"]}, [0, 1])
    assert lists(grpo._get(["labels"], [0, 1])[0]) == [[3, 3, 3], [1]]
    ragged, _ = grpo.get_experience("grpo_metrics", ["responses"], indexes=[1, 2], padded=False)
    assert ragged is not None and lists(ragged["responses"]) == [[2, 2], [3, 3, 3]] and list(ragged) == ["responses"]


def test_columns_by_number(core: td.Dock) -> None:
    dock = TransferDock(5, 1, ["a", "b"], dock=core)
    dock.put_experience({"a": [row(i) for i in (10, 11, 12, 14)]}, [0, 1, 2, 4])
    assert lists(dock._get(["a"], [4, 0])[0]) == [[14], [10]]
    assert dock.get_experience_len() == 5
    status = dock.get_experience_status()
    assert status["a"].tolist() == [1, 1, 1, 0, 1] and status["b"].sum() == 0
    data = dock.get_experience_data()
    assert data["a"][3] is None and data["a"][4] is not None and data["a"][4].tolist() == [14]
    dock.clear_indexes([0])
    assert dock.get_experience_status()["a"].tolist() == [0, 1, 1, 0, 1]
    dock.clear_indexes()
    assert dock.get_experience_status()["a"].sum() == 0


def test_nothing_yet_is_none(grpo: GRPOTransferDock) -> None:
    assert grpo.get_experience("actor_rollout", ["prompts"], 2) == (None, None)
    begin = time.monotonic()
    with pytest.raises(td.DeadlineExceeded, match="lacks? 'prompts'"):
        grpo.get_experience("actor_rollout", ["prompts"], 2, timeout=0.2)
    assert time.monotonic() - begin >= 0.2
    timer = threading.Timer(0.2, lambda: grpo.put_prompts_experience({"prompts": [row(1), row(2)]}))
    timer.start()
    batch, _ = grpo.get_experience("actor_rollout", ["prompts"], 2, timeout=LONG)
    timer.join()
    assert batch is not None


def test_rows_of_a_get_that_is_interrupted_come_back(grpo: GRPOTransferDock) -> None:
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        timer.start()
        grpo.get_experience("ref_log_prob", ["responses"], indexes=[0, 1])
    timer.join()
    grpo.put_experience({"responses": [row(1)] * 4}, [0, 1, 2, 3])
    until(lambda: not grpo.get_consumer_status()["ref_log_prob"].any(), "rows that were handed out to nobody")
    _, indexes = grpo.get_experience("ref_log_prob", ["responses"], indexes=[0, 1])
    assert indexes is not None
    grpo.put_experience({"ref_log_prob": [row(1)] * 2}, indexes)


def test_groups_are_sampled_whole_and_rows_alone(grpo: GRPOTransferDock) -> None:
    grpo.put_prompts_experience({"prompts": [row(1), row(2)]})
    _, indexes = grpo.get_experience("actor_rollout", ["prompts"], 2)
    assert indexes in ([0, 1], [2, 3])
    _, alone = grpo.get_experience("ref_log_prob", ["prompts"], 1, get_n_samples=False)
    assert alone is not None and len(alone) == 1
    assert grpo.get_consumer_status()["actor_rollout"].sum() == 2
    assert grpo.get_consumer_status()["ref_log_prob"].tolist()[alone[0]] == 1


def test_lengths_are_balanced(core: td.Dock) -> None:
    dock = GRPOTransferDock(8, 1, dock=core)
    lengths = [8, 7, 6, 5, 4, 3, 2, 1]
    dock.put_experience(
        {"responses": [row(0)] * 8, "prompt_length": [row(0)] * 8, "response_length": [row(n) for n in lengths]},
        range(8),
    )
    sets = []
    for _ in range(4):
        _, indexes = dock.get_experience(
            "ref_log_prob", ["responses"], 2, get_n_samples=False, use_batch_seqlen_balance=True
        )
        sets.append(sum(lengths[i] for i in indexes or []))
    assert sets == [9, 9, 9, 9]


def test_a_late_put_does_not_land_in_another_batch(grpo: GRPOTransferDock) -> None:
    grpo.put_prompts_experience({"prompts": [row(1), row(2)]})
    _, indexes = grpo.get_experience("actor_rollout", ["prompts"], 2)
    assert isinstance(indexes, Indexes)
    grpo.clear()
    with pytest.raises(td.NotFound):
        grpo.put_experience({"responses": [row(1)] * 2}, indexes)
    grpo.put_experience({"responses": [row(1)] * 2}, list(indexes))  # plain numbers: what is there now


def test_handles_are_put_in_parts_and_given_back(grpo: GRPOTransferDock) -> None:
    grpo.put_prompts_experience({"prompts": [row(1), row(2)]})
    _, indexes = grpo.get_experience("actor_rollout", ["prompts"], 4)
    assert indexes is not None
    grpo.put_experience({"responses": [row(9)]}, indexes.part(1, 1))
    assert lists(grpo._get(["responses"], indexes[1:2])[0]) == [[9]]
    grpo.release("actor_rollout", indexes.part(2, 2))
    _, again = grpo.get_experience("actor_rollout", ["prompts"], 1, get_n_samples=False)
    assert again is not None and again[0] in indexes[2:]
    grpo.complete("actor_rollout", again)


def test_unfinished_responses_are_resumed(core: td.Dock) -> None:
    dock = GRPOTransferDock(4, 1, max_age=2, GBS_train=2, dock=core)
    dock.put_prompts_experience({"prompts": [row(1), row(2)]}, indexes=[0, 1])
    reads = ["prompts", "responses", "response_length"]
    batch, indexes = dock.get_experience("actor_rollout", reads, 4, dp_size=2, get_n_samples=False)
    assert batch is not None and indexes == [0, 1] and batch["age"].flatten().tolist() == [0, 0]
    result = {
        "responses": [row(5), row(6, 6)],
        "response_length": [row(1), row(2)],
        "input_ids": [row(1, 5), row(2, 6, 6)],
    }
    dock.put_experience(result | {"rollout_completed": [row(0), row(1)]}, indexes)
    assert dock.get_incomplete_response_num() == 1
    batch, again = dock.get_experience("actor_rollout", reads, 4, dp_size=2, get_n_samples=False)
    assert batch is not None and again == [0] and again.padding_rows == 1
    assert batch["responses"].tolist() == [[5], [5]], "the last row is repeated"
    dock.put_experience(
        {"responses": [row(5, 5)] * 2, "response_length": [row(2)] * 2, "rollout_completed": [row(1)] * 2}, again
    )
    assert dock.get_incomplete_response_num() == 0 and dock.all_consumed("actor_rollout")


def test_row_numbers_in_order(grpo: GRPOTransferDock) -> None:
    assert [grpo.prefetch_request_index(3), grpo.prefetch_request_index(3), grpo.prefetch_request_index(3)] == [
        [0, 1, 2],
        [3],
        None,
    ]


def test_what_the_other_docks_have(core: td.Dock) -> None:
    ppo = PPOTransferDock(1, 1, addition_columns=["mine"], addition_consumers=["my_stage"], dock=core)
    ppo.put_experience({"values": [row(1)], "mine": [row(2)]}, [0])
    assert ppo.get_experience("my_stage", ["mine", "values"], 1)[0] is not None
    dapo = DAPOTransferDock(1, 1, dock=core)
    dapo.put_experience({"metric_for_dapo": torch.ones(1, 1)}, [0])
    assert dapo.get_experience("dynamic_sampling", ["metric_for_dapo"], 1)[0] is not None
    with pytest.raises(td.NotFound, match="values"):
        dapo.put_experience({"values": [row(1)]}, [0])


def test_wrong_calls_say_what_is_wrong(grpo: GRPOTransferDock) -> None:
    with pytest.raises(td.InvalidArgument):
        grpo.put_experience({"prompts": [row(1)]}, [0, 1])
    for name_is_unknown in (td.NotFound, ValueError):
        with pytest.raises(name_is_unknown, match="nobody"):
            grpo.get_experience("nobody", ["prompts"], 2)
        with pytest.raises(name_is_unknown, match="nobody"):
            grpo.all_consumed("nobody")
        with pytest.raises(name_is_unknown, match="mine"):
            grpo.put_experience({"mine": [row(1)]}, [0])
    with raising(td.InvalidArgument, "2 samples", "not 3"):
        grpo.put_prompts_experience({"prompts": [row(1)]}, 3)


def test_images_once_for_each_prompt(core: td.Dock) -> None:
    dock = MMGRPOTransferDock(2, 2, dock=core)
    pixels = [torch.ones(3, 2), torch.full((1, 2), 2.0)]
    grid = [torch.tensor([[1, 1, 3]]), torch.tensor([[1, 1, 1]])]
    dock.put_experience(
        {"pixel_values": pixels, "image_grid_thw": grid, "image_num": [row(1), row(1)], "video_num": [row(0)] * 2},
        [0, 1],
    )
    batch = dock.get_experience(["pixel_values", "image_num"], [2, 3, 0, 1])
    assert batch["pixel_values"].tolist() == [[2.0, 2.0]] + [[1.0, 1.0]] * 3 and batch["image_num"].shape == (2, 1)
    assert dock.get_columns("actor_train") == ["pixel_values", "image_grid_thw", "image_num", "video_num"]
    dock.clear()
    assert dock.get_columns("actor_train") == []


def test_images_of_any_size_are_joined(core: td.Dock) -> None:
    dock = MMGRPOTransferDock(2, 2, dock=core, timeout=None, timeout_interval=None)
    batch = {"image": [torch.ones(1, 12), torch.ones(1, 27)], "labels": ["a", "b"], "image_num": [row(1), row(1)]}
    # A worker puts all that it has, for the indexes that it has.
    dock.put_experience(batch | {"responses": torch.ones(4, 2), "video": None}, [0, 1, 2, 3])
    got = dock.get_experience("actor_rollout", ["image", "image_num", "labels"], [0, 1, 2, 3])
    assert got["image"].shape == (1, 39) and got["image_num"].dtype == torch.int64 and got["labels"] == ["a", "b"]
    assert dock.get_experience(["image"], [0, 1], get_n_samples=False)["image"].shape == (1, 24)
    apart = dock.get_experience_dict(["image", "labels"], [2, 3, 0, 1])
    assert [image.shape for image in apart["image"]] == [(1, 27), (1, 12)] and apart["labels"] == ["b", "a"]
    assert dock.get_experience("actor_rollout", ["image"]) == {} == dock.get_experience_dict(["image"])
    dock.clear()
    dock.put_experience({"image": torch.ones(2, 1, 12)}, [0, 1])
    assert dock.get_experience("actor_rollout", ["image"], [0, 1, 2, 3])["image"].shape == (1, 24)
    # Other types.
    dock = MMGRPOTransferDock(2, 2, dock=core)
    floats = {"image": torch.ones(2, 1, 12), "labels": torch.ones(2, 1)}
    dock.put_experience(floats | {"image_num": [row(1)] * 2}, [0, 1])
    dock.clear()
    pixels = torch.arange(24, dtype=torch.uint8).reshape(2, 1, 12)
    dock.put_experience({"image": pixels, "image_num": [row(1), torch.ones(1)], "labels": [row(4), row(5, 6)]}, [0, 1])
    got = dock.get_experience("rule_reward", ["image", "image_num", "labels"], [0, 1, 2, 3])
    assert torch.equal(got["image"], pixels.reshape(1, 24)) and got["image_num"].tolist() == [[1], [1]]
    dock.put_experience({"labels": [torch.tensor([0.5])]}, [0])
    assert [label.tolist() for label in dock.get_experience(["labels"], [0, 2], False)["labels"]] == [[0.5], [5, 6]]
    assert torch.equal(dock.get_experience_dict(["image"], [2, 3])["image"][0], pixels[1])
    with pytest.raises(td.InvalidArgument, match="'image' has 2 rows for 1 prompts"):
        dock.put_experience({"image": torch.ones(2, 1, 12)}, [0])


def test_dynamic_sampling_reads_pixels() -> None:
    dock = MMGRPOTransferDock(1, 1, True)
    names = ["pixel_values", "image_grid_thw", "image_num", "video_num"]
    dock.put_experience({name: torch.ones(1, 1, 1) for name in names[:2]} | {name: [row(1)] for name in names[2:]}, [0])
    assert dock.get_columns("dynamic_sampling") == names and dock.get_columns("actor_train") == []


def test_the_partition_ends_with_the_dock(core: td.Dock) -> None:
    dock = GRPOTransferDock(1, 1, dock=core, partition="experience")
    assert "experience" in core.partitions()
    del dock
    assert "experience" not in core.partitions()


def test_calls_of_the_original_are_accepted() -> None:
    dock = GRPOTransferDock(4, 2, None, 2, 2, ["mine"], ["judge"], None, None)
    assert (dock.max_age, dock.GBS_train) == (2, 2)
    dock.put_experience({"mine": [row(1)], "labels": None}, [0])
    assert dock.all_consumed("judge", False) is False
    assert TransferDock(1, 1, None, None, None).get_experience_data() == {}
    plain = GRPOTransferDock(2, 2, None, 1, 0, timeout=None)
    assert plain.get_experience("trainer", ["prompts"], 2, 1, None, True, False, True) == (None, None)
    assert [plain.prefetch_request_index(3), plain.get_cur_index()] == [[0, 1, 2], 3]
    assert plain._get(["prompts"], []) == [[]]


def test_results_are_tensor_dicts(grpo: GRPOTransferDock) -> None:
    grpo.put_experience({"responses": [row(1), row(2, 2)]}, [0, 1])
    batch, _ = grpo.get_experience("trainer", ["responses"], indexes=[0, 1])
    assert isinstance(batch, TensorDict) and batch["original_length"].tolist() == [1, 2]


def test_integers_are_int32(grpo: GRPOTransferDock) -> None:
    prompts = {"prompts": [row(1), row(2)], "labels": torch.ones(2, 3, dtype=torch.int64)}
    grpo.put_prompts_experience(prompts, 2, ["labels"])
    grpo.put_experience({"input_ids": torch.ones(4, 2, dtype=torch.int64), "rm_scores": torch.ones(4, 1)}, range(4))
    reads = ["prompts", "prompt_length", "labels", "input_ids"]
    batch, _ = grpo.get_experience("trainer", [*reads, "rm_scores"], 4)
    assert batch is not None and {batch[name].dtype for name in reads} == {torch.int32}
    assert batch["rm_scores"].dtype == torch.float32
    with pytest.raises(td.InvalidArgument, match="'labels' holds 2147483648"):
        grpo.put_experience({"labels": [row(1), row(2**31)]}, [0, 1])


def test_metrics_are_those_of_the_original(grpo: GRPOTransferDock) -> None:
    grpo.update_metrics("timing/x", value=[2.0, 1.0], cumulate=True)
    grpo.update_metrics("timing/x", value=[3.0], cumulate=True)
    grpo.update_metrics(value={"a": 1, "b": torch.ones(2)})
    grpo.update_metrics(value={"c": [1], "timing/x": [4.0]}, cumulate=True)
    metric = grpo.get_metrics().metric
    assert metric.pop("b").tolist() == [1, 1]
    assert metric == {"timing/x": [2.0, 1.0, 3.0, 4.0], "a": 1, "c": [1]}
    mine = Metric()
    dock = GRPOTransferDock(1, 1, mine)
    dock.update_metrics("x", 2)
    assert mine.metric == {"x": 2} and dock.get_metrics().metric == {"x": 2}
    dock.clear()
    assert mine.metric == {}


def test_the_first_round_of_a_rollout_has_responses_that_unpadding_takes_for_empty(core: td.Dock) -> None:
    dock = GRPOTransferDock(4, 1, max_age=2, GBS_train=2, dock=core)
    dock.put_prompts_experience({"prompts": [row(1), row(2, 2)]}, indexes=[0, 1])
    reads = ["prompts", "responses", "response_length", "age"]
    batch, _ = dock.get_experience("actor_rollout", reads, 4, get_n_samples=False)
    assert batch is not None and batch["responses"].tolist() == [[-1], [-1]] and batch["responses"].dtype == torch.int32
    assert batch["response_length"].tolist() == [[0], [0]] and batch["age"].tolist() == [[0], [0]]
    assert batch["original_length"].tolist() == [1, 2, 1, 1, 1, 1, 1, 1]


def test_rows_of_negative_indexes_are_ignored(grpo: GRPOTransferDock, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        grpo.put_experience({"responses": torch.arange(8).reshape(4, 2)}, [0, 1, 2, -1])
        grpo.put_experience({"responses": [row(9)] * 3, "labels": [row(8)] * 3}, torch.tensor([-2, 3, -1]))
        grpo.put_experience({"responses": [row(9)]}, [-1])
    assert [record.name for record in caplog.records] == ["transfer_dock.compat.mindspeed"]
    assert grpo.ignored_rows == 4
    assert lists(grpo._get(["responses"], [0, 1, 2, 3])[0]) == [[0, 1], [2, 3], [4, 5], [9]]
    with pytest.raises(td.InvalidArgument, match="too few"):
        grpo.put_experience({"responses": [row(1)]}, [-1, 0])


def test_all_rows_of_a_group_get_its_largest_age() -> None:
    dock = GRPOTransferDock(2, 2, max_age=3, GBS_train=1)
    dock.put_prompts_experience({"prompts": [row(1), row(2)]})
    columns = {"responses": [row(1)] * 3, "input_ids": [row(1)] * 3, "response_length": [row(1)] * 3}
    dock.put_experience(columns | {"rollout_completed": [row(1), row(1), row(0)]}, [0, 1, 2])
    assert dock.all_consumed("actor_rollout") and dock.get_update_ready()
    assert dock.get_experience("actor_train", ["responses"], 2)[1] == [0, 1]
    dock.clear()
    batch, indexes = dock.get_experience("actor_rollout", ["prompts"], 2, get_n_samples=False)
    assert batch is not None and indexes == [0, 1] and batch["age"].tolist() == [[1], [1]]
    assert not dock.get_update_ready()


def test_the_last_round_of_a_response_is_waited_for() -> None:
    dock = GRPOTransferDock(2, 1, max_age=2, GBS_train=1)
    dock.put_prompts_experience({"prompts": [row(1), row(2)]})
    columns = {"responses": [row(1)] * 2, "input_ids": [row(1)] * 2, "response_length": [row(1)] * 2}
    dock.put_experience(columns | {"rollout_completed": [row(1), row(0)]}, [0, 1])
    assert dock.get_update_ready() and dock.get_incomplete_response_num() == 1
    dock.get_experience("actor_train", ["responses"], 1)
    dock.clear()
    dock.put_prompts_experience({"prompts": [row(3)]}, indexes=[1])
    finished = {name: rows[:1] for name, rows in columns.items()} | {"rollout_completed": [row(1)]}
    dock.put_experience(finished, [1])
    assert dock.get_update_ready(require_max_age_all_finished=False) and not dock.get_update_ready()
    dock.put_experience(finished, [0])
    assert dock.get_update_ready()
    answered = GRPOTransferDock(2, 2)
    answered.put_prompts_experience({"prompts": [row(1), row(2)]})
    answered.put_experience({"responses": [row(1)] * 4}, range(4))
    assert answered.get_incomplete_response_num() == 4, "with max_age 1 no response counts as finished"


def test_a_column_takes_rows_in_any_form(grpo: GRPOTransferDock) -> None:
    grpo.put_experience({"advantages": torch.ones(2, 3)}, [0, 1])
    grpo.put_experience({"advantages": [torch.ones(5)]}, [2])
    grpo.put_experience({"advantages": torch.ones(1, 4)}, [3])
    batch, _ = grpo.get_experience("trainer", ["advantages"], indexes=range(4))
    assert batch is not None and batch["original_length"].tolist() == [3, 3, 5, 4]
    grpo.clear()
    grpo.put_experience({"advantages": torch.ones(4, 6)}, range(4))
    grpo.put_experience({"rm_scores": torch.ones(4), "labels": [1, 2, 3, 4]}, range(4))
    assert lists(grpo._get(["rm_scores"], [0])[0]) == [[1]] and lists(grpo._get(["labels"], [3])[0]) == [[4]]


def test_first_rows_of_nothing_do_not_bind_a_column(grpo: GRPOTransferDock) -> None:
    cells = [torch.ones(2, 0), torch.ones(1, 0, 3), torch.ones(1, 12), torch.ones(3, dtype=torch.float64)]
    for _ in range(2):
        grpo.put_experience({"labels": cells[:2]}, [0, 1])
        grpo.put_experience({"labels": cells[2:]}, [2, 3])
        back = grpo._get(["labels"], range(4))[0]
        assert [cell.shape for cell in back] == [cell.shape for cell in cells]
        assert all(torch.equal(*pair) for pair in zip(back, cells, strict=True)) and back[3].dtype == torch.float64
        grpo.clear()


def test_a_column_takes_cells_of_any_shape_and_type(grpo: GRPOTransferDock) -> None:
    wide = [torch.arange(12).reshape(3, 4), torch.arange(15).reshape(3, 5), torch.ones(3, 2), torch.ones(3, 0)]
    grpo.put_experience({"labels": wide, "responses": [row(1)] * 4}, range(4))
    back = grpo._get(["labels"], [3, 2, 1, 0])[0]
    assert [cell.dtype for cell in back] == [torch.float32, torch.float32, torch.int32, torch.int32]
    assert all(torch.equal(cell, was) for cell, was in zip(back, reversed(wide), strict=True))
    batch, indexes = grpo.get_experience("trainer", ["labels", "responses"], indexes=[0, 1])
    assert batch is not None and batch["labels"].shape == (2, 3, 5) and batch["labels"].dtype == torch.int32
    assert batch["labels"][0].tolist() == [[0, 1, 2, 3, 0], [4, 5, 6, 7, 0], [8, 9, 10, 11, 0]]
    assert batch["original_length"].tolist() == [3, 3, 1, 1]
    apart, _ = grpo.get_experience("grpo_metrics", ["labels"], indexes=[1, 0], padded=False)
    assert apart is not None and [cell.shape for cell in apart["labels"]] == [(3, 5), (3, 4)]
    data = grpo.get_experience_data()["labels"]
    assert data[3] is not None and data[3].shape == (3, 0)
    # Another type in each step, also beside columns whose type stays.
    types = (torch.bool, torch.uint8, torch.float16, torch.bfloat16, torch.float64, torch.int16)
    for number, dtype in enumerate(types):
        grpo.clear()
        cells = [torch.tensor([1, 0, 1]).to(dtype), torch.ones(2, number, dtype=dtype)]
        grpo.put_experience({"advantages": cells}, [0, 1])
        assert all(torch.equal(*pair) for pair in zip(grpo._get(["advantages"], [0, 1])[0], cells, strict=True))
    # An empty row has no type.
    grpo.put_experience({"prompts": [row(1), row(2)]}, [0, 1])
    grpo.put_experience({"prompts": [torch.tensor([])]}, [2])
    assert grpo._get(["prompts"], [2])[0][0].dtype == torch.int32
    with raising(td.InvalidArgument, "'labels'", "[1, 2]", "dimensions"):
        grpo.put_experience({"labels": [row(1), torch.ones(1, 1)]}, [0, 1])
        grpo.get_experience("ref_log_prob", ["labels"], 2)
    assert grpo.get_consumer_status()["ref_log_prob"].sum() == 0, "rows that nobody received are handed out"


def test_all_columns_are_in_the_data(grpo: GRPOTransferDock) -> None:
    assert grpo.get_experience_data()["responses"] == [None] * 4
    assert len(grpo.get_experience_data()) == 15


def test_indexes_keep_their_rows_when_they_are_pickled(grpo: GRPOTransferDock) -> None:
    put = grpo.put_prompts_experience({"prompts": [row(1), row(2)]})
    assert pickle.loads(pickle.dumps(put)) == [0, 1, 2, 3]
    _, indexes = grpo.get_experience("actor_rollout", ["prompts"], 4)
    travelled = pickle.loads(pickle.dumps(indexes))
    assert isinstance(travelled, Indexes) and travelled == indexes and travelled.padding_rows == 0
    grpo.put_experience({"responses": [row(1)] * 4}, travelled)
    with pytest.raises(td.FailedPrecondition):
        grpo.put_experience({"responses": [row(1)] * 4}, indexes)
