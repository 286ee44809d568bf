"""GRPO steps by TRL's trainer, one for each line that it reads.

    peer.py MODEL NAME --dtype DTYPE --threads N [--device D] [--quick]     writes {"seconds": …} after each step
    peer.py --check [--dtype DTYPE]                       writes the versions

A step is that of the trainer's own loop, from before the generation to after the optimizer. The first, which makes the
optimizer's state, is counted by nobody. DTYPE: float32; autocast (weights in float32, products in bfloat16); or bfloat16
(weights, too).
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

import setting as settings


def adapters(name):
    if not settings.is_lora(name):
        return None
    from peft import LoraConfig

    return LoraConfig(r=settings.LORA_RANK, lora_alpha=settings.LORA_ALPHA, target_modules="all-linear", task_type="CAUSAL_LM")


def trainer_of(model, name, dtype, device, setting, folder, figures):
    """Its steps wait for lines of standard input, and write what they took to `figures`."""
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    class OneForEachLine(TrainerCallback):
        def on_step_begin(self, args, state, control, **_):
            if not sys.stdin.readline():
                sys.exit(0)
            self.began = time.perf_counter()

        def on_step_end(self, args, state, control, **_):
            if device == "cuda":
                torch.cuda.synchronize()
            print(json.dumps({"seconds": time.perf_counter() - self.began}), file=figures, flush=True)

    def reward(completions, completion_ids, **_):
        lengths = {len(ids) for ids in completion_ids}
        if lengths != {setting.new_tokens}:
            raise ValueError(f"answers have {sorted(lengths)} tokens, not {setting.new_tokens}")
        return [-min(len(text) / setting.most_characters, 1.0) for text in completions]

    samples = setting.prompts * setting.samples
    arguments = GRPOConfig(
        output_dir=folder, use_cpu=device == "cpu", bf16=dtype == "autocast", report_to=[], save_strategy="no", logging_steps=1,
        disable_tqdm=True, gradient_checkpointing=False, max_steps=1_000_000, learning_rate=settings.LEARNING_RATE,
        lr_scheduler_type="constant", weight_decay=settings.WEIGHT_DECAY, max_grad_norm=settings.CLIP_GRAD,
        per_device_train_batch_size=samples, num_generations=setting.samples, num_iterations=1,
        max_completion_length=setting.new_tokens, generation_kwargs={"min_new_tokens": setting.new_tokens},
        temperature=1.0, beta=settings.KL, epsilon=settings.CLIP, scale_rewards="group", loss_type="dapo",
        use_bias_correction_kl=False,
    )  # fmt: skip
    prompts = [json.loads(line)["prompt"] for line in (model / "prompts.jsonl").read_text().splitlines()]
    weights = torch.bfloat16 if dtype == "bfloat16" else torch.float32
    return GRPOTrainer(
        AutoModelForCausalLM.from_pretrained(model, dtype=weights), reward, arguments,
        processing_class=AutoTokenizer.from_pretrained(model), train_dataset=Dataset.from_dict({"prompt": prompts}),
        callbacks=[OneForEachLine()], peft_config=adapters(name),
    )  # fmt: skip


def versions():
    import datasets  # noqa: F401
    import peft  # noqa: F401
    import torch
    import transformers
    import trl
    from trl import GRPOTrainer  # noqa: F401

    return f"trl {trl.__version__}, transformers {transformers.__version__}, torch {torch.__version__}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", type=Path)
    parser.add_argument("name", nargs="?")
    parser.add_argument("--dtype", choices=("float32", "autocast", "bfloat16"), default="float32")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    if arguments.check:
        print(versions())
        return
    if arguments.model is None or arguments.name is None:
        parser.error("the folder of the model, or the name of the benchmark, is missing")
    import torch

    torch.set_num_threads(arguments.threads)
    figures, sys.stdout = sys.stdout, sys.stderr  # the trainer prints to it
    with tempfile.TemporaryDirectory() as folder:
        setting = settings.setting_of(arguments.name, arguments.quick)
        trainer = trainer_of(
            arguments.model, arguments.name, arguments.dtype, arguments.device, setting, folder, figures
        )
        trainer.train()


if __name__ == "__main__":
    main()
