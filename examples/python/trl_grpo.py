"""TRL's GRPOTrainer on samples from the dock: whoever fills the dock's columns generates and scores them.

Here that is done by two stages in threads of this process, with a tiny model that learns to repeat a digit. With
`td.serve()` and `td.Dock.connect(…)`, engines and reward workers are other processes, on any machine.

    pip install trl; python trl_grpo.py
"""

from __future__ import annotations

import tempfile

import torch
import transformers
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer

import transfer_dock as td

WORDS = ["<pad>", "<eos>", "say", *"0123456789"]
ANSWERS = 8  # to each prompt


def tiny_model() -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast]:
    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<pad>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>")
    transformers.set_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1, "num_attention_heads": 4}
    tokens = {"vocab_size": len(WORDS), "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": None}
    return LlamaForCausalLM(LlamaConfig(**sizes, **tokens)), tokenizer


def stages(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast) -> list[td.Stage]:
    """The engine and the reward."""

    @td.stage(reads=["prompt"], writes=["prompt_ids", "completion_ids", "log_probs"], batch_size=64)
    @torch.no_grad()
    def rollout(rows: td.Taken) -> dict[str, object]:
        prompts = torch.tensor(tokenizer(rows["prompt"].tolist())["input_ids"])
        log_probs = model(prompts).logits[:, -1].log_softmax(-1)
        words = torch.multinomial(log_probs.exp(), 1)
        chosen = log_probs.gather(1, words)
        # Rows of any length, and so lists of arrays.
        columns = {"prompt_ids": prompts, "completion_ids": words, "log_probs": chosen.float()}
        return {name: list(column.numpy()) for name, column in columns.items()}

    @td.stage(reads=["prompt", "completion_ids"], writes=["reward"], batch_size=64)
    def reward(rows: td.Taken) -> dict[str, object]:
        answers = [WORDS[ids[0]] for ids in rows["completion_ids"]]
        return {"reward": [float(prompt.split()[-1] == answer) for prompt, answer in zip(rows["prompt"], answers)]}

    return [rollout, reward]


def main(steps: int = 60) -> list[float]:
    """Returns the mean reward of each step."""
    ids = td.column("int64", ragged=True)
    dock = td.Dock.local()
    dock.create_partition(
        "train",
        {
            "prompt": "str",
            "prompt_ids": ids,
            "completion_ids": ids,
            "log_probs": td.column("float32", ragged=True),
            "reward": "float32",
        },
    )
    model, tokenizer = tiny_model()

    def from_the_dock(prompts: list[str], trainer: GRPOTrainer) -> dict[str, object]:
        wanted = dock.put("train", {"prompt": prompts})
        # Waits until the stages have filled the columns of these rows.
        rows = dock.fetch("train", wanted, ["prompt_ids", "completion_ids", "log_probs", "reward"], timeout=600)
        dock.clear("train", wanted)  # the views of these rows stay
        return {
            "prompt_ids": [one.tolist() for one in rows["prompt_ids"]],
            "completion_ids": [one.tolist() for one in rows["completion_ids"]],
            "logprobs": [one.tolist() for one in rows["log_probs"]],
            "score": rows["reward"].numpy().tolist(),
        }

    def score_of_the_dock(score: list[float], **_: object) -> list[float]:
        return score

    with tempfile.TemporaryDirectory() as folder:
        options = {"max_steps": steps, "learning_rate": 1e-2, "logging_steps": 1, "save_strategy": "no", "report_to": []}
        batch = {"per_device_train_batch_size": 8 * ANSWERS, "num_generations": ANSWERS, "max_completion_length": 4}
        device = {"use_cpu": True, "bf16": False, "disable_tqdm": True}
        trainer = GRPOTrainer(
            model,
            reward_funcs=score_of_the_dock,
            args=GRPOConfig(folder, **options, **batch, **device),
            train_dataset=Dataset.from_dict({"prompt": [f"say {digit}" for digit in range(10)]}),
            processing_class=tokenizer,
            rollout_func=from_the_dock,
        )
        with td.Runner(dock, "train", stages(trainer.model, tokenizer)) as runner:
            trainer.train()
            dock.seal("train")
        assert runner.counts["reward"].rows == steps * 8 * ANSWERS
    return [line["reward"] for line in trainer.state.log_history if "reward" in line]


if __name__ == "__main__":
    rewards = main()
    print(f"mean reward of the first steps {sum(rewards[:5]) / 5:.2f}, of the last {sum(rewards[-5:]) / 5:.2f}")
