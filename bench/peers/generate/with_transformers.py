"""Hugging Face's `transformers`: its model and its caches, without generate(), whose own work per token takes longer."""

import torch
import transformers
from model import random_model
from transformers import DynamicCache, StaticCache


def versions():
    return f"transformers {transformers.__version__}, torch {torch.__version__}"


class Decoder:
    def __init__(self, model, attention, make_cache):
        self.model, self.make_cache = model, make_cache
        model.set_attn_implementation(attention)

    @torch.inference_mode()
    def start(self, prompts):
        self.cache, self.length = self.make_cache(), 0
        return self.step(torch.tensor(prompts))

    @torch.inference_mode()
    def step(self, tokens):
        positions = torch.arange(self.length, self.length + tokens.shape[1]).unsqueeze(0)
        self.length += tokens.shape[1]
        logits = self.model(
            input_ids=tokens, position_ids=positions, past_key_values=self.cache, use_cache=True, logits_to_keep=1
        ).logits
        return logits.argmax(-1)


def settings(shape, threads, models):
    torch.set_num_threads(threads)
    model = random_model(shape.model, shape.dtype)
    caches = {
        "growing cache": lambda: DynamicCache(config=model.config),
        "static cache": lambda: StaticCache(config=model.config, max_cache_len=shape.length),
    }
    return {
        f"{attention}, {cache}": lambda attention=attention, make=make: Decoder(model, attention, make)
        for attention in ("eager", "sdpa")
        for cache, make in caches.items()
    }
