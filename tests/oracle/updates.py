"""Rows of tokens, and models of both sides, of tests of training. Our side is `tdock_update`."""

import json
import random

import torch
from conftest import run_program
from decoders import SIZES, VOCABULARY, random_model, rope
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, PreTrainedTokenizerFast, Qwen2Config

KINDS = {
    f"{name}{'-tied' if tied else ''}": config(
        **SIZES | {"initializer_range": 0.15}, num_key_value_heads=2, tie_word_embeddings=tied, rope_parameters=rope(1e4),
        pad_token_id=0,
    )
    for name, config in (("llama", LlamaConfig), ("qwen2", Qwen2Config))
    for tied in (False, True)
}  # fmt: skip
PACKED = {"max_tokens": 100, "max_row_tokens": 64}


def saved_model(config, folder, **options):
    model = random_model(config, **options)
    model.save_pretrained(folder)
    return model


def moved_model(config, folder):
    """A reference: the same model with other weights."""
    model = random_model(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    return model


def samples(groups, per_group, longest=24):
    """Rows of prompts and responses of many lengths; each prompt has several responses, and some tokens do not count."""
    rng = random.Random(4)
    tokens = lambda most: [rng.randrange(1, VOCABULARY) for _ in range(rng.randrange(1, most))]
    rows = []
    for group in range(groups):
        prompt = tokens(20)
        for _ in range(per_group):
            response = tokens(longest)
            mask = [int(rng.random() < 0.8) for _ in response]
            rows.append({"group": group, "prompt": prompt, "responses": response, "response_mask": mask})
    return rows


def word_tokenizer():
    """A word "t05" for each token; 0 is padding, 1 the end."""
    backend = Tokenizer(models.WordLevel({f"t{i:02}": i for i in range(VOCABULARY)}, unk_token="t00"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="t00", eos_token="t01")


def our_update(model, out, batch, *options):
    return json.loads(run_program("tdock_update", model, out, *options, input=json.dumps(batch).encode()))
