"""What `tdock bench --peer` alternates with: `transformers` takes the training steps of the benchmark that it names.

Writes `ready`, then a figure for each SIGUSR1. Both sides train the same Llama of 95 million parameters from random
weights on the same number of random tokens, AdamW and clipping included. The bfloat16 benchmark is measured against
float32 here as well: in pure bfloat16 `transformers` is several times slower on a CPU.
"""

import argparse
import signal
import sys
import time

import torch
from transformers import AutoModelForCausalLM, LlamaConfig

ROWS = 8


class TrainStep:
    def __init__(self, quick):
        self.length = 16 if quick else 256
        config = LlamaConfig(
            vocab_size=8192, hidden_size=768, intermediate_size=2304, num_hidden_layers=12, num_attention_heads=12,
            num_key_value_heads=4, max_position_embeddings=1024, tie_word_embeddings=False,
        )  # fmt: skip
        torch.manual_seed(1)
        self.model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).train()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-6, fused=True)
        self.tokens = torch.randint(0, config.vocab_size, (ROWS, self.length))

    def run(self):
        """Tokens per second."""
        began = time.perf_counter()
        self.model(input_ids=self.tokens, labels=self.tokens).loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return ROWS * self.length / (time.perf_counter() - began)


BENCHMARKS = {"train_step/dtype=float32": TrainStep, "train_step/dtype=bfloat16": TrainStep}


def main():
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    parser = argparse.ArgumentParser()
    parser.add_argument("benchmark")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    if arguments.benchmark not in BENCHMARKS:
        sys.exit(f"there is no '{arguments.benchmark}' here; there are {', '.join(BENCHMARKS)}")
    torch.set_num_threads(arguments.threads)
    benchmark = BENCHMARKS[arguments.benchmark](arguments.quick)
    print("ready", flush=True)
    while True:
        signal.sigwait({signal.SIGUSR1})
        print(benchmark.run(), flush=True)


if __name__ == "__main__":
    main()
