#!/usr/bin/env python3
"""Holds what `tdock preflight` estimates against the memory that training then takes: tests/nightly/memory.py TDOCK

Full and low-rank fine-tuning and GRPO of a model with 25 million parameters, on one thread and two, and options that change
what is held: moments in eight bits, an average of the weights, half precision of activations or of weights, recomputation,
dropout, and much validation data. At most 15 % apart.
"""

import pathlib
import random
import sys
import tempfile

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent / "integration"))
import memory_test  # noqa: E402

SIZES = {"hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 8, "num_attention_heads": 8}


def add_options(runs, folder):
    """Adds full fine-tuning with one option each."""
    draw = random.Random(2)
    numbers = ["".join(draw.choices("0123456789", k=40)) for _ in range(1000)]
    validation = folder / "validation.jsonl"
    validation.write_text("".join(f'{{"prompt": "{n}=", "answer": "{n[::-1]}"}}\n' for n in numbers))
    options = {
        "int8": ["optim.moment_dtype=int8"],
        "average": ["trainer.ema_decay=0.99"],
        "bfloat16": ["model.compute_dtype=bfloat16"],
        "weights": ["model.param_dtype=bfloat16", "model.compute_dtype=bfloat16"],
        "layers": ["model.recompute=layers"],
        "mlp": ["model.recompute=mlp"],
        "dropout": ["model.dropout=0.1"],
        "validation": [f"data.val_files={validation}"],
    }
    for name, arguments in options.items():
        runs.arguments[name] = [*runs.arguments["full"], *arguments]
    return list(options)


def main():
    failed = False
    print("run              threads  estimate  measured  ratio")
    with tempfile.TemporaryDirectory() as folder:
        runs = memory_test.Runs(sys.argv[1], pathlib.Path(folder), SIZES, digits=126, answer_tokens=64, batch=12)
        options = add_options(runs, pathlib.Path(folder))
        for threads in (2, 1):
            for name in ("full", "adapters", "grpo", *options):
                estimate, measured = runs.compare(name, threads)
                ratio = estimate / measured
                print(f"{name:16} {threads:7} {estimate:7.0f} M {measured:7.0f} M {ratio:6.3f}", flush=True)
                failed |= abs(ratio - 1) > 0.15
    sys.exit(failed)


if __name__ == "__main__":
    main()
