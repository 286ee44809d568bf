"""What `tdock bench --peer` alternates with: `transformers` does the work of the benchmark that it names.

Writes `ready`, then a figure for each SIGUSR1. Both sides train the same Llama of 95 million parameters from random
weights on random tokens of the same lengths; tokens of padding do not count in a figure. Where the benchmark computes
in bfloat16, this takes what is fastest here: weights in float32, float32 weights under autocast to bfloat16, or weights
in bfloat16, as a run of each before the first figure tells. On a processor whose products in bfloat16 take several times
those in float32, only float32 is run.
"""

import argparse
import signal
import sys
import time

import torch
from transformers import AutoModelForCausalLM, LlamaConfig

IGNORED = -100  # a label without a loss


def llama(dtype):
    config = LlamaConfig(
        vocab_size=8192, hidden_size=768, intermediate_size=2304, num_hidden_layers=12, num_attention_heads=12,
        num_key_value_heads=4, max_position_embeddings=1024, tie_word_embeddings=False,
    )  # fmt: skip
    torch.manual_seed(1)
    return AutoModelForCausalLM.from_config(config, dtype=dtype).train()


def mixed_lengths(count, shortest, longest):
    """Those of the benchmarks' MixedLengths()."""
    parts = [(i * 7 % count + 0.5) / count for i in range(count)]
    return [round(shortest * (longest / shortest) ** part) for part in parts]


def padded(lengths):
    """Random tokens in rows of these lengths, and a mask of them; shorter rows are padded on the right."""
    mask = torch.arange(max(lengths)) < torch.tensor(lengths).unsqueeze(1)
    return torch.randint(1, 8192, mask.shape) * mask, mask.long()


class Sft:
    """Whole supervised steps on rows of these lengths, of which a share is the prompt, in one padded batch."""

    def __init__(self, dtype, lengths, prompt_share):
        self.model, self.tokens_in_a_step = llama(dtype), sum(lengths)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-6, fused=True)
        self.tokens, self.mask = padded(lengths)
        prompts = torch.tensor([int(length * prompt_share) for length in lengths]).unsqueeze(1)
        in_answer = (torch.arange(max(lengths)) >= prompts) & (self.mask == 1)
        self.labels = torch.where(in_answer, self.tokens, IGNORED)
        # A full mask costs time and changes nothing.
        self.mask = None if self.mask.all() else self.mask

    def loss(self):
        return self.model(input_ids=self.tokens, attention_mask=self.mask, labels=self.labels).loss

    def update(self):
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()


class Dpo:
    """TRL's DPO loss (`DPOTrainer`, loss type "sigmoid") and its gradients, of chosen and rejected answers in one padded
    batch, with log-probabilities of the reference computed before."""

    def __init__(self, dtype, prompt, answers, beta=0.1):
        self.model, self.beta = llama(dtype), beta
        lengths = [prompt + answer for answer in answers[0::2] + answers[1::2]]  # the chosen ones, then the rejected
        self.tokens_in_a_step = sum(lengths)
        self.tokens, self.mask = padded(lengths)
        self.in_answer = self.mask[:, 1:] * (torch.arange(1, max(lengths)) >= prompt)
        self.reference = torch.full((len(lengths),), -100.0)

    def loss(self):
        logits = self.model(input_ids=self.tokens, attention_mask=self.mask).logits[:, :-1]
        targets = self.tokens[:, 1:].unsqueeze(-1)
        log_probs = torch.log_softmax(logits.float(), -1).gather(-1, targets).squeeze(-1)
        rewards = (log_probs * self.in_answer).sum(-1) - self.reference
        chosen, rejected = rewards.chunk(2)
        return -torch.nn.functional.logsigmoid(self.beta * (chosen - rejected)).mean()

    def update(self):
        self.model.zero_grad()


class Timed:
    """Tokens per second of the work that `make` makes for a dtype of the weights."""

    def __init__(self, make, dtype, autocast=False):
        self.work = make(dtype)
        self.autocast = torch.autocast("cpu", torch.bfloat16, enabled=autocast)
        self.name = f"{str(dtype).removeprefix('torch.')}{' with autocast' if autocast else ''}"

    def run(self):
        began = time.perf_counter()
        with self.autocast:
            loss = self.work.loss()
        loss.backward()
        self.work.update()
        return self.work.tokens_in_a_step / (time.perf_counter() - began)


def seconds_of_a_product(dtype):
    """Of one layer's size, the faster of two."""
    rows, weights = torch.ones(128, 768, dtype=dtype), torch.ones(768, 2304, dtype=dtype)
    seconds = []
    for _ in range(2):
        began = time.perf_counter()
        rows @ weights
        seconds.append(time.perf_counter() - began)
    return min(seconds)


def fastest(make):
    candidates = [(torch.float32, False)]
    if seconds_of_a_product(torch.bfloat16) < 4 * seconds_of_a_product(torch.float32):
        candidates += [(torch.float32, True), (torch.bfloat16, False)]
    best, best_figure = None, 0.0
    for dtype, autocast in candidates:
        timed = Timed(make, dtype, autocast)
        timed.run()
        figure = timed.run()
        print(f"{timed.name}: {figure:.0f} tokens/s", file=sys.stderr)
        if figure > best_figure:
            best, best_figure = timed, figure
    return best


def works(quick):
    """By benchmark: what makes the work for a dtype."""
    divisor, rows = (8, 4) if quick else (1, 16)
    full, mixed = [256 // divisor] * (rows // 2), mixed_lengths(rows, 32 // divisor, 512 // divisor)
    answers = mixed_lengths(16, 32 // divisor, 256 // divisor)
    return {
        "train_step": lambda dtype: Sft(dtype, [16 if quick else 256] * 8, 0),
        "sft_step/lengths=full": lambda dtype: Sft(dtype, full, 0.25),
        "sft_step/lengths=mixed": lambda dtype: Sft(dtype, mixed, 0.25),
        "dpo_loss": lambda dtype: Dpo(dtype, 128 // divisor, answers),
    }


def main():
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    parser = argparse.ArgumentParser()
    parser.add_argument("benchmark")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    made = works(arguments.quick)
    full, half = "/dtype=float32", "/dtype=bfloat16"
    work = arguments.benchmark.replace(full, "").replace(half, "")
    if work not in made or work == arguments.benchmark:
        names = [name.replace("/", dtype + "/", 1) if "/" in name else name + dtype for name in made for dtype in (full, half)]
        sys.exit(f"there is no '{arguments.benchmark}' here; there are {', '.join(names)}")
    torch.set_num_threads(arguments.threads)
    timed = fastest(made[work]) if half in arguments.benchmark else Timed(made[work], torch.float32)
    print("ready", flush=True)
    while True:
        signal.sigwait({signal.SIGUSR1})
        print(timed.run(), flush=True)


if __name__ == "__main__":
    main()
