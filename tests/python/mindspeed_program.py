"""A GRPO trainer as MindSpeed-RL's is built, with arithmetic in the place of models: workers of two ranks, a reference,
a rule for rewards, advantages in a task of Ray, and a loop that lets the stages overlap.

    response of row i    its prompt's numbers in turn, beginning with the i-th, 2 + (i + first number) % 4 of them
    reward               its sum
    log-probability      of the actor: minus the token times its weight; of the reference: minus the token
    weight               grows by the sum of what the update was given, a step for each update
"""

from __future__ import annotations

import pathlib
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import ray
import torch

from transfer_dock.compat import mindspeed as ms

from waiting import LONG
from mindspeed_ranks import Megatron, install_vllm, join

EOD = 63
ROUND = 2  # Tokens that a rollout which is resumed makes in each round.


def response_of(prompt: Sequence[int], index: int) -> list[int]:
    length = 2 + (index + prompt[0]) % 4
    return [prompt[(index + i) % len(prompt)] for i in range(length)]


def settings(prompts: int, max_age: int) -> Any:
    """The configuration, with the dispatch sizes that it implies for one replica of each model."""
    model = types.SimpleNamespace(
        global_batch_size=prompts, tensor_model_parallel_size=2, pipeline_model_parallel_size=1,
        context_parallel_size=1, context_parallel_algo="megatron_cp_algo",
    )  # fmt: skip
    alone = types.SimpleNamespace(**vars(model) | {"tensor_model_parallel_size": 1})
    rl = types.SimpleNamespace(
        n_samples_per_prompt=2, mini_batch_size=2 * prompts, guarantee_order=False, use_dp_batch_balance=False,
        partial_rollout_max_split=max_age, filter_groups_enable=False, reuse_image_embeds=False, critic_resource=None,
        reward_resource=None, actor_resource=types.SimpleNamespace(num_npus=2), actor_update_dispatch_size=prompts,
        reference_resource=types.SimpleNamespace(num_npus=1), actor_rollout_dispatch_size=None,
        actor_logprob_dispatch_size=2, ref_dispatch_size=2, reward_dispatch_size=2, adv_dispatch_size=2,
    )  # fmt: skip
    rl.mini_batch_size = prompts
    generate = types.SimpleNamespace(infer_tensor_parallel_size=2, infer_pipeline_parallel_size=1)
    ms.set_dispatch_sizes(model, alone, alone, rl, generate)
    return types.SimpleNamespace(actor=model, reference=alone, rl=rl)


class Worker(ms.TransferDockWorker):
    """A rank of a model: of two tensor parallel ranks, also for generation, or alone."""

    def __init__(self, folder: str, rank: int, world: int) -> None:
        torch.set_num_threads(1)
        join(pathlib.Path(folder) / f"store-{world}", rank, world)
        self.parallel_state = Megatron(world, 1, 1)
        install_vllm(world)
        self.tokenizer = types.SimpleNamespace(pad=None, eod=EOD)

    def configure(self, configuration: Any) -> None:
        self.rl_config = configuration.rl
        self.megatron_config = configuration.actor
        self.resumes = configuration.rl.partial_rollout_max_split > 1
        self.weight = 1.0

    def generate_sequences(self) -> None:
        columns = ["prompts", "prompt_length"]
        if self.resumes:
            columns += ["responses", "response_length", "age"]
        while self.all_consumed("actor_rollout", None, use_vllm=True, is_generate=True) > 0:
            batch, index = self.dispatch_transfer_dock_data(
                "actor_rollout", columns, self.rl_config.actor_rollout_dispatch_size, tp_size=2, use_vllm=True,
                get_n_samples=not self.resumes, enable_partial_rollout=self.resumes, is_generate=True,
            )  # fmt: skip
            if not batch or not index:
                continue
            prompts = ms.truncate_rows(batch["prompts"], batch["prompt_length"])
            begun = [torch.tensor([], dtype=torch.int32)] * len(prompts)
            if self.resumes:
                begun = ms.truncate_rows(batch["responses"], batch["response_length"])
            self.collect_transfer_dock_data(
                self._continued(prompts, begun), index, use_vllm=True, is_generate=True, sync=False
            )  # fmt: skip

    def _continued(self, prompts: list[torch.Tensor], begun: list[torch.Tensor]) -> dict[str, Any]:
        # Rows are told apart by their numbers: the last token of a prompt is the number of its sample.
        whole = [response_of(prompt.tolist(), int(prompt[-1])) for prompt in prompts]
        cut = [len(row) + ROUND if self.resumes else EOD for row in begun]
        responses = [torch.tensor(row[:length], dtype=torch.int32) for row, length in zip(whole, cut, strict=True)]
        for row, response in zip(begun, responses, strict=True):
            assert row.tolist() == response[: len(row)].tolist(), "the response is not what was begun"
        output = {
            "responses": responses,
            "input_ids": [torch.cat(pair) for pair in zip(prompts, responses, strict=True)],
            "response_length": [torch.tensor([len(row)]) for row in responses],
        }
        if self.resumes:
            done = [len(row) == len(all_of) for row, all_of in zip(responses, whole, strict=True)]
            output["rollout_completed"] = [torch.tensor([int(one)]) for one in done]
        return output

    def compute_log_prob(self, consumer: str, column: str) -> None:
        count = self.rl_config.ref_dispatch_size
        columns = ["input_ids", "responses", "response_length", "prompt_length"]
        while self.all_consumed(consumer, None) > 0:
            batch, index = self.dispatch_transfer_dock_data(
                consumer, columns, count, 2, 1, self.megatron_config.context_parallel_algo, get_n_samples=self.resumes
            )  # fmt: skip
            if batch and index:
                assert batch["input_ids"].shape[1] % 4 == 0, "the width is no multiple of twice the parallel ranks"
                scores = ms.truncate_rows(batch["responses"] * -self.weight, batch["response_length"])
                self.collect_transfer_dock_data({column: [row.to(torch.float32) for row in scores]}, index)

    def update(self) -> list[tuple[list[int], list[float], list[float], list[float]]]:
        """What was trained on: tokens, advantages, and log-probabilities of the actor and the reference."""
        columns = ["responses", "advantages", "old_log_prob", "ref_log_prob", "input_ids", "response_length"]
        seen: list[Any] = []
        while self.all_consumed("actor_train", None) > 0:
            batch, index = self.dispatch_transfer_dock_data(
                "actor_train", [*columns, "prompt_length"], self.rl_config.actor_update_dispatch_size, 2,
                get_n_samples=self.resumes,
            )  # fmt: skip
            if not batch or not index:
                continue
            rows = [ms.truncate_rows(batch[name], batch["response_length"]) for name in columns[:4]]
            ids = ms.truncate_rows(batch["input_ids"], batch["prompt_length"] + batch["response_length"])
            for tokens, row in zip(ids, zip(*rows, strict=True), strict=True):
                seen.append((tokens.tolist(), *(values.tolist() for values in row)))
            if self.parallel_state.get_tensor_model_parallel_rank() == 0:
                ray.get(self.td.update_metrics.remote(value={"actor/rows": [len(index)]}, cumulate=True))
        self.weight += 1.0
        return seen


class RuleReward:
    """Rewards by a rule, for whole groups."""

    def init_transfer_dock(self, td: Any, mm_td: Any = None) -> None:
        self.td = td

    def compute_rm_score(self, count: int) -> None:
        while not ray.get(self.td.all_consumed.remote("rule_reward")):
            reads = ["prompts", "responses", "response_length"]
            batch, index = ray.get(self.td.get_experience.remote("rule_reward", reads, count, get_n_samples=True))
            rows = ms.remove_padding_tensor_dict_to_dict(batch)
            if rows and index:
                padded = ms.pad_experience(rows, 0)
                scores = padded["responses"].sum(1, keepdim=True).to(torch.float32)
                output = ms.padding_dict_to_tensor_dict({"rm_scores": scores})
                self.td.put_experience.remote(data_dict=output, indexes=index)


def compute_advantage(td: Any, count: int, n: int) -> None:
    """Advantages of a group, one for each token: rewards less their mean, over their deviation."""
    while not ray.get(td.all_consumed.remote("compute_advantage")):
        reads = ["responses", "rm_scores", "response_length"]
        batch, index = ray.get(td.get_experience.remote("compute_advantage", reads, count))
        rows = ms.remove_padding_tensor_dict_to_dict(batch)
        if rows and index:
            padded = ms.pad_experience(rows, EOD)
            scores = padded["rm_scores"].reshape(-1, n)
            scores = (scores - scores.mean(1, keepdim=True)) / (scores.std(1, keepdim=True) + 1e-6)
            wide = scores.reshape(-1, 1).repeat(1, padded["responses"].shape[1])
            cut = ms.truncate_rows(wide, padded["response_length"])
            output = ms.padding_dict_to_tensor_dict({"advantages": cut, "returns": cut})
            td.put_experience.remote(data_dict=output, indexes=index)


class Trainer:
    """Trains, and keeps the rows and the metrics of each iteration."""

    def __init__(self, actors: Sequence[Any], references: Sequence[Any], rule: Any, configuration: Any) -> None:
        self.configuration, self.rule = configuration, rule
        self.actors, self.references = actors, references
        self.running: list[Any] = []
        rl, prompts = configuration.rl, configuration.actor.global_batch_size
        self.resumes = rl.partial_rollout_max_split > 1
        self.dock = ms.GRPOTransferDock.options(num_cpus=0).remote(
            prompts * (2 if self.resumes else 1), rl.n_samples_per_prompt, metrics=ms.Metric(),
            max_age=rl.partial_rollout_max_split, GBS_train=prompts, addition_columns=["labels"],
        )  # fmt: skip
        for worker in (*actors, *references):
            ray.get(worker.configure.remote(configuration), timeout=LONG)
        for group in (actors, references):
            ms.TransferDockWorkers(group).sync_init_transfer_dock(self.dock, None)
        ray.get(rule.init_transfer_dock.remote(self.dock, None), timeout=LONG)

    def put(self, batch: Mapping[str, Any], another: bool = False) -> None:
        n = self.configuration.rl.n_samples_per_prompt
        data, indexes = ms.put_prompts_experience(batch, n, ["labels"], add_another_batch=another)
        numbered = ms.remove_padding_tensor_dict_to_dict(data)
        # The number of the sample, by which the stand-in for a model makes different responses.
        rows = [torch.cat([row, torch.tensor([i % n])]) for i, row in enumerate(numbered["prompts"])]
        numbered = {**numbered, "prompts": rows, "prompt_length": [row + 1 for row in numbered["prompt_length"]]}
        data = ms.padding_dict_to_tensor_dict(numbered)
        ray.get(self.dock.put_experience.remote(data_dict=data, indexes=indexes, is_prompt=True), timeout=LONG)

    def start(self, workers: Sequence[Any], method: str, *arguments: Any) -> None:
        self.running += [getattr(worker, method).remote(*arguments) for worker in workers]

    def wait(self) -> None:
        ray.get(self.running, timeout=LONG)
        self.running.clear()

    def fit(self, batches: Iterator[Mapping[str, Any]], iterations: int) -> list[tuple[list[Any], dict[str, Any]]]:
        rl = self.configuration.rl
        advantage = ray.remote(num_cpus=0)(compute_advantage)
        history = []
        if self.resumes:
            self.put(next(batches))
        for iteration in range(iterations):
            if not self.resumes:
                self.put(next(batches))
            elif iteration < iterations - 1:
                self.put(next(batches), another=True)
            self.start(self.actors, "generate_sequences")
            self.start([self.rule], "compute_rm_score", rl.reward_dispatch_size)
            self.running.append(advantage.remote(self.dock, rl.adv_dispatch_size, rl.n_samples_per_prompt))
            self.start(self.references, "compute_log_prob", "ref_log_prob", "ref_log_prob")
            self.start(self.actors, "compute_log_prob", "actor_log_prob", "old_log_prob")
            self.wait()
            trained = ray.get([actor.update.remote() for actor in self.actors], timeout=LONG)
            assert all(rows == trained[0] for rows in trained), "ranks of a replica trained on different rows"
            rows = self.configuration.actor.global_batch_size * rl.n_samples_per_prompt
            columns = ["rm_scores", "responses", "advantages", "returns", "prompt_length", "response_length"]
            scores, _ = ray.get(
                self.dock.get_experience.remote("grpo_metrics", columns, rows, get_n_samples=True), timeout=LONG
            )  # fmt: skip
            ray.get(self.dock.update_metrics.remote("score", float(scores["rm_scores"].mean())), timeout=LONG)
            metrics = ray.get(self.dock.get_metrics.remote(), timeout=LONG).metric
            ray.get(self.dock.clear.remote(), timeout=LONG)
            history.append((trained[0], metrics))
        return history
