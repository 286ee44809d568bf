"""What MindSpeed-RL's workers do with their docks, on the ranks of replicas, which are processes over gloo."""

from __future__ import annotations

import pathlib
import sys
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

import transfer_dock as td
from transfer_dock.compat import mindspeed as ms

from messages import raising
from mindspeed_ranks import Megatron, install_vllm, on_ranks

COLUMNS = ["prompts", "prompt_length"]


class Handle:
    """A handle of an actor that is in this process: what ray.get is to get is the answer itself."""

    def __init__(self, dock: Any) -> None:
        self._dock = dock

    def __getattr__(self, name: str) -> Any:
        def remote(*args: Any, **named: Any) -> Any:
            try:
                return getattr(self._dock, name)(*args, **named)
            except td.DockError as error:
                return error

        return types.SimpleNamespace(remote=remote)


def get(answer: Any) -> Any:
    for one in answer if isinstance(answer, list) else [answer]:
        if isinstance(one, Exception):
            raise one
    return answer


@pytest.fixture(autouse=True)
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = types.ModuleType("ray")
    ray.__dict__.update(get=get, wait=lambda references, num_returns, timeout: (references, []))
    monkeypatch.setitem(sys.modules, "ray", ray)


class Puts:
    """Keeps what is put."""

    def __init__(self) -> None:
        self.puts: list[Any] = []

    def put_experience(self, indexes: list[int], data_dict: Any = None, batch: Any = None) -> None:
        self.puts.append((data_dict, batch, indexes))


def worker(parallel_state: Any, dock: Any, images: Any = None, **settings: Any) -> ms.TransferDockWorker:
    made = ms.TransferDockWorker()
    made.parallel_state = parallel_state
    made.rl_config = types.SimpleNamespace(guarantee_order=False, use_dp_batch_balance=False, **settings)
    made.megatron_config = types.SimpleNamespace(global_batch_size=8)
    made.tokenizer = types.SimpleNamespace(pad=0, eod=9)
    made.td, made.mm_td = Handle(dock), None if images is None else Handle(images)
    return made


def prompts(dock: ms.GRPOTransferDock, first: int = 1) -> ms.GRPOTransferDock:
    dock.put_prompts_experience({"prompts": [torch.full((length,), first) for length in (3, 5)]}, 2)
    return dock


def plain(batch: Any) -> Any:
    return {name: value.tolist() for name, value in batch.items()}


def stage(rank: int) -> Any:
    """One stage of training: until all is consumed, as a worker does."""
    state = Megatron(2, 2, 2)
    mine = worker(state, prompts(ms.GRPOTransferDock(2, 2)) if rank == 0 else None)
    seen = []
    while mine.all_consumed("ref_log_prob", None) > 0:
        seen.append(mine.dispatch_transfer_dock_data("ref_log_prob", COLUMNS, 2, 2, 2, get_n_samples=False))
    mine.td = Handle(Puts())
    mine.collect_transfer_dock_data({"ref_log_prob": [torch.ones(2), torch.ones(1)]}, [0, 3])
    mine.collect_transfer_dock_data({"ref_log_prob": torch.ones(2, 1)}, [1, 2], sync=True)
    mine.mm_td = Handle(Puts())
    mine.collect_transfer_dock_mm_data({"vit_embeds": torch.ones(1, 1)}, [1])
    puts = [[plain(padded), indexes] for padded, _, indexes in mine.td._dock.puts]
    return [(plain(batch), index) for batch, index in seen if index], puts, len(mine.mm_td._dock.puts)


def test_all_ranks_get_the_rows_of_the_first_and_one_puts(tmp_path: pathlib.Path) -> None:
    answers = on_ranks(tmp_path, 8, stage)
    rows = {0: ([1, 1, 1, 0], [3]), 1: ([1, 1, 1, 0], [3]), 2: ([1] * 5 + [0] * 3, [5]), 3: ([1] * 5 + [0] * 3, [5])}
    seen = answers[0][0]
    assert sorted(index for _, indexes in seen for index in indexes) == [0, 1, 2, 3]
    for batch, indexes in seen:
        width = max(len(rows[index][0]) for index in indexes)
        assert batch["prompts"] == [rows[index][0] + [0] * (width - len(rows[index][0])) for index in indexes]
        assert batch["prompt_length"] == [rows[index][1] for index in indexes]
    assert all(answer[0] == seen for answer in answers)
    ones = {"ref_log_prob": [[1, 1], [1, 0]], "original_length": [2, 1]}
    more = {"ref_log_prob": [[1], [1]], "original_length": [1, 1]}
    # Tensor rank 0 and context rank 0 of the last of two pipeline stages.
    assert [len(answer[1]) for answer in answers] == [0, 0, 0, 0, 2, 0, 0, 0]
    assert answers[4][1] == [[ones, [0, 3]], [more, [1, 2]]]
    assert [answer[2] for answer in answers] == [0, 0, 0, 0, 1, 0, 0, 0]


def pieces(rank: int) -> Any:
    """What a get may also give: nothing, an error, other types, a rollout of fewer rows, pictures."""
    state = Megatron(2, 1, 1)
    lead = rank % 2 == 0
    dock = ms.GRPOTransferDock(2, 2) if lead else None
    mine = worker(state, dock)
    nothing = mine.dispatch_transfer_dock_data("ref_log_prob", COLUMNS, 2)
    with pytest.raises(td.DockError) as raised:
        mine.dispatch_transfer_dock_data("nobody", COLUMNS, 2)
    if dock is not None:
        cells = [torch.ones(2, 3, dtype=torch.bfloat16), torch.ones(2, 1, dtype=torch.bfloat16)]
        dock.put_experience({"labels": cells, "responses": torch.ones(2, 3, dtype=torch.float64)}, [0, 1])
    types_, _ = mine.dispatch_transfer_dock_data(
        "grpo_metrics", ["labels", "responses"], 2, cp_algo="megatron_cp_algo", cp_size=2, indexes=[1, 0]
    )  # fmt: skip
    shapes = [(value.dtype, tuple(value.shape)) for value in types_.values()]
    resumed = None
    if lead:
        resumed = ms.GRPOTransferDock(4, 2, max_age=2, GBS_train=2)
        resumed.put_experience({"prompts": [torch.tensor([1])], "prompt_length": [torch.tensor([1])]}, [5])
    mine.td = Handle(resumed)
    mine.rl_config.partial_rollout_max_split = 2
    rollout = mine.dispatch_transfer_dock_data(
        "actor_rollout", [*COLUMNS, "responses", "response_length", "age"], 4, get_n_samples=False,
        enable_partial_rollout=True, is_generate=True,
    )  # fmt: skip
    images = None
    if lead:
        images = ms.MMGRPOTransferDock(2, 2)
        grid = [torch.tensor([[1, 1, 2]]), torch.tensor([[1, 2, 2]])]
        pixels = [torch.ones(2, 3), torch.full((4, 3), 2.0)]
        counts = {"image_num": [torch.tensor([1])] * 2, "video_num": [torch.tensor([0])] * 2}
        images.put_experience({"pixel_values": pixels, "image_grid_thw": grid} | counts, [0, 1])
    mine.td, mine.mm_td = Handle(dock), Handle(images)
    pictured, index = mine.dispatch_transfer_dock_data("actor_train", ["responses"], 2, 2, 2, indexes=[0, 1])
    pictures = [[part.tolist() for part in pictured[name]] for name in ("pixel_values", "image_grid_thw")]
    return nothing, type(raised.value).__name__, shapes, (plain(rollout[0]), rollout[1]), pictures, index


def test_what_a_get_gives_reaches_the_other_ranks(tmp_path: pathlib.Path) -> None:
    answers = on_ranks(tmp_path, 4, pieces)
    for rank, (nothing, error, shapes, rollout, pictures, index) in enumerate(answers):
        assert nothing == (None, None)
        assert error == ("UnknownName" if rank % 2 == 0 else "FailedPrecondition")
        assert shapes == [(torch.bfloat16, (2, 2, 4)), (torch.float64, (2, 4))]
        # Two replicas: the rows are a multiple of two, and the second is the first again.
        assert rollout[1] == [5, -1] and rollout[0]["prompts"] == [[1], [1]] and rollout[0]["age"] == [[0], [0]]
        assert rollout[0]["responses"] == [[-1], [-1]] and rollout[0]["response_length"] == [[0], [0]]
        assert pictures == [[[[1.0] * 3] * 2], [[[1, 1, 2]]]] and index == [0, 1]


def generation(rank: int) -> Any:
    install_vllm(2)
    lead = rank % 2 == 0
    mine = worker(Megatron(4, 1, 1), None)
    mine.sampling_transfer_dock = Handle(prompts(ms.GRPOTransferDock(2, 2), rank + 1) if lead else None)
    batch, index = mine.dispatch_transfer_dock_data(
        "actor_rollout", COLUMNS, 4, use_vllm=True, is_generate=True, indexes=[2, 0, 1, 3]
    )  # fmt: skip
    all_consumed = mine.all_consumed("actor_rollout", None, use_vllm=True, is_generate=True)
    mine.sampling_transfer_dock = Handle(Puts())
    mine.collect_transfer_dock_data({"responses": torch.ones(1, 1)}, [0], use_vllm=True, is_generate=True)
    numbers = mine.get_dp_range_indexes(2, use_vllm=True), mine.get_dp_range_indexes(3, assign_batch_size=4)
    return plain(batch)["prompts"][0][0], index, all_consumed, len(mine.sampling_transfer_dock._dock.puts), numbers


def test_the_ranks_of_generation_are_those_of_vllm(tmp_path: pathlib.Path) -> None:
    for rank, (first, index, left, puts, numbers) in enumerate(on_ranks(tmp_path, 4, generation)):
        assert first == rank // 2 * 2 + 1 and index == [2, 0, 1, 3] and left == 0 and puts == int(rank % 2 == 0)
        begin = rank // 2 * 4
        assert numbers[0] == [[begin, begin + 1], [begin + 2, begin + 3]] and numbers[1] == [[0, 1, 2], [3]]


def alone(check: Callable[[Any], Any]) -> Callable[[int], Any]:
    return lambda rank: check(Megatron(1, 1, 1))


def test_rows_in_order_and_puts_that_fail(tmp_path: pathlib.Path) -> None:
    def check(state: Any) -> None:
        dock = prompts(ms.GRPOTransferDock(2, 2))
        mine = worker(state, dock)
        mine.rl_config.guarantee_order = True
        numbers = mine.get_dp_range_indexes(2)
        assert numbers == [[0, 1], [2, 3], [4, 5], [6, 7]] and mine.all_consumed("ref_log_prob", numbers) == 1
        assert mine.all_consumed("ref_log_prob", []) == 0
        mine.collect_transfer_dock_data({"nothing": torch.ones(1, 1)}, [0])
        with pytest.raises(ValueError, match="nothing"):
            mine.dispatch_transfer_dock_data("ref_log_prob", COLUMNS, 2)
        assert mine.dispatch_transfer_dock_data("ref_log_prob", COLUMNS, 2)[1] is not None
        with pytest.raises(ValueError, match="nothing"):
            mine.collect_transfer_dock_data({"nothing": torch.ones(1, 1)}, [0], sync=True)
        # A padding id of 0 is an id; without one it is the end token.
        mine.tokenizer.pad = None
        batch, _ = mine.dispatch_transfer_dock_data("trainer", COLUMNS, 4, 4)
        assert batch is not None and sorted(row[-1] for row in batch["prompts"].tolist()) == [9, 9, 9, 9]
        dist.barrier()

    on_ranks(tmp_path, 1, alone(check))


def failing(rank: int) -> list[str]:
    """How calls end on each of two pipeline stages: the first reads, the last writes."""
    mine = worker(Megatron(1, 1, 2), prompts(ms.GRPOTransferDock(2, 2)))
    ends: list[str] = []

    def end(call: Callable[[], Any]) -> None:
        try:
            call()
            ends.append("ok")
        except td.DockError as error:
            ends.append(type(error).__name__)

    for ordered in (False, True):
        for call in (
            lambda: mine.all_consumed("ref_log_prob", None),
            lambda: mine.dispatch_transfer_dock_data("ref_log_prob", COLUMNS, 2),
        ):
            mine.rl_config.guarantee_order = ordered
            for _ in range(2):  # a put that follows one that failed says nothing of it
                end(lambda: mine.collect_transfer_dock_data({"nothing": torch.ones(1, 1)}, [0]))
            end(call)
            mine._puts = ()
            end(call)
    mine.rl_config.guarantee_order = False
    end(lambda: mine.all_consumed("nobody", None))
    return ends


def test_what_fails_on_one_rank_is_raised_on_all(tmp_path: pathlib.Path) -> None:
    reader, writer = on_ranks(tmp_path, 2, failing)
    assert reader == ["ok", "ok", "FailedPrecondition", "ok"] * 4 + ["UnknownName"]
    assert writer == ["ok", "ok", "UnknownName", "ok"] * 4 + ["FailedPrecondition"]


def configs(**settings: Any) -> list[Any]:
    parts = {"tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 1, "context_parallel_size": 1}
    model = types.SimpleNamespace(global_batch_size=8, **parts)
    devices = types.SimpleNamespace(num_npus=8)
    names = ("actor_rollout", "actor_logprob", "ref", "reward", "dynamic_sampling", "adv", "actor_update")
    names += ("critic_update", "critic_value", "kl", "actor_image_embeds")
    rl = types.SimpleNamespace(**{f"{name}_dispatch_size": None for name in names})
    rl.__dict__.update(
        n_samples_per_prompt=2, mini_batch_size=8, filter_groups_enable=False, filter_groups_train_batch_size=4,
        reuse_image_embeds=False, colocate_actor_and_vit=False, actor_resource=devices, reference_resource=devices,
        reward_resource=None, critic_resource=None, vit_resource=devices,
    )  # fmt: skip
    rl.__dict__.update(settings)
    generate = types.SimpleNamespace(infer_tensor_parallel_size=4, infer_pipeline_parallel_size=1)
    return [model, model, model, rl, generate, model, model]


def sizes(**settings: Any) -> dict[str, Any]:
    given = configs(**settings)
    ms.set_dispatch_sizes(*given, nodes=settings.get("nodes", 1))
    found = {name.removesuffix("_dispatch_size"): value for name, value in vars(given[3]).items() if "dispatch" in name}
    return {name: value for name, value in found.items() if value is not None}


def test_dispatch_sizes_are_a_workers_rows_unless_set() -> None:
    usual = {"actor_rollout": 8, "actor_logprob": 4, "ref": 4, "reward": 16, "adv": 16, "actor_update": 4}
    assert sizes() == usual
    devices = types.SimpleNamespace(num_npus=4)
    values = {"critic_update": 8, "critic_value": 8, "kl": 16}
    assert sizes(critic_resource=devices, reward_resource=devices) == usual | values | {"reward": 8}
    filtered = {"actor_logprob": 2, "adv": 8, "actor_update": 2, "dynamic_sampling": 8, "reward": 8}
    assert sizes(filter_groups_enable=True, nodes=2) == usual | filtered
    assert sizes(reuse_image_embeds=True, vit_resource=devices)["actor_image_embeds"] == 4
    assert sizes(reuse_image_embeds=True, vit_resource=devices, colocate_actor_and_vit=True)["actor_image_embeds"] == 8
    assert sizes(ref_dispatch_size=2, adv_dispatch_size=8) == usual | {"ref": 2, "adv": 8}


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({"ref_dispatch_size": 3}, ["ref_dispatch_size is 3", "16 rows"]),
        ({"ref_dispatch_size": 8}, ["ref_dispatch_size is 8", "4 workers", "4 rows"]),
        ({"actor_update_dispatch_size": 1}, ["actor_update_dispatch_size is 1", "2 rows"]),
        (
            {"filter_groups_enable": True, "dynamic_sampling_dispatch_size": 1},
            ["dynamic_sampling_dispatch_size is 1", "2 samples"],
        ),
        ({"actor_resource": types.SimpleNamespace(num_npus=1)}, ["2 ranks", "1 devices"]),
    ],
)
def test_dispatch_sizes_that_cannot_be_are_refused(settings: dict[str, Any], names: list[str]) -> None:
    with raising(ValueError, *names):
        sizes(**settings)


def test_pictures_are_apart_again(monkeypatch: pytest.MonkeyPatch) -> None:
    pillow = types.ModuleType("PIL.Image")
    pillow.__dict__["fromarray"] = lambda pixels: pixels.tolist()
    monkeypatch.setitem(sys.modules, "PIL.Image", pillow)
    shapes = torch.tensor([[3, 1, 2], [1, 2, 1], [3, 1, 1]])
    flat = torch.tensor([[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]], dtype=torch.uint8)
    assert ms.calculate_split_indices([shapes]) == ([6, 2, 3], [0, 6, 8, 11])
    batch = {"image": flat, "image_shape": shapes, "image_num": torch.tensor([[2], [1]])}
    batch |= {"video": flat, "video_shape": shapes, "video_num": torch.tensor([[1], [2]])}
    pictures = ms.unpack_mm_experience(batch)["image"]
    assert pictures == [[[[[1, 3, 5], [2, 4, 6]]], [[7], [8]]], [[[[9, 10, 11]]]]]
    half = ms.restore_images_from_tensors(torch.tensor([0.5]), torch.tensor([[1, 1, 1]]), torch.tensor([1]))
    assert half == [[[[127]]]]
    videos = batch | {"image_num": torch.tensor([[0], [0]]), "video_fps": torch.tensor([[1.0], [2.0], [3.0]])}
    apart = ms.unpack_mm_experience(videos)
    assert [[video.shape for video in part] for part in apart["video"]] == [[(3, 1, 2)], [(1, 2, 1), (3, 1, 1)]]
    assert [rate.tolist() for rate in apart["video_fps"]] == [[[1.0]], [[2.0], [3.0]]]
    with pytest.raises(ValueError, match="11 elements together; there are 4"):
        ms.restore_videos_from_tensors(flat[:, :4], shapes, torch.tensor([3]))
    patches = ms.restore_pixel_valaues_from_flattend(torch.ones(4, 2), torch.tensor([[1, 1, 1], [1, 1, 3]]))
    assert [part.shape for part in patches] == [(1, 2), (3, 2)]
