"""Small random models of `transformers`, and what they and ours give to the same rows of tokens."""

import json
import random

import numpy as np
import torch
from conftest import run_program
from transformers import (
    AutoModelForCausalLM,
    DynamicCache,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    OPTConfig,
    Qwen2Config,
    Qwen3Config,
)

TOLERANCE = 1e-4
VOCABULARY = 61
SIZES = {
    "vocab_size": VOCABULARY, "hidden_size": 48, "intermediate_size": 72, "num_hidden_layers": 3,
    "num_attention_heads": 6, "max_position_embeddings": 64, "initializer_range": 0.25,
}  # fmt: skip


def rope(theta, kind="default", **parameters):
    return {"rope_type": kind, "rope_theta": theta, **parameters}


def scaled(kind, **parameters):
    return LlamaConfig(
        **SIZES, num_key_value_heads=2, rms_norm_eps=1e-5, rope_parameters=rope(500.0, kind, factor=4.0, **parameters)
    )


LEARNED = {"vocab_size": VOCABULARY, "bos_token_id": 0, "eos_token_id": 0}
OPT = LEARNED | {
    "hidden_size": 48, "ffn_dim": 72, "num_hidden_layers": 3, "num_attention_heads": 6, "max_position_embeddings": 64,
    "init_std": 0.25, "pad_token_id": 1, "dropout": 0.0,
}  # fmt: skip
GPT2 = LEARNED | {
    "n_embd": 48, "n_layer": 3, "n_head": 6, "n_positions": 64, "initializer_range": 0.25, "resid_pdrop": 0.0,
    "embd_pdrop": 0.0, "attn_pdrop": 0.0,
}  # fmt: skip


MODELS = {
    "llama": LlamaConfig(**SIZES, num_key_value_heads=6, rms_norm_eps=1e-6, rope_parameters=rope(10000.0)),
    "llama-grouped-tied": LlamaConfig(
        **SIZES, num_key_value_heads=2, tie_word_embeddings=True, rms_norm_eps=1e-2, rope_parameters=rope(500000.0)
    ),
    "llama-one-key-head": LlamaConfig(
        **SIZES, num_key_value_heads=1, head_dim=14, rms_norm_eps=1e-5, rope_parameters=rope(100.0)
    ),
    "qwen2": Qwen2Config(**SIZES, num_key_value_heads=6, rms_norm_eps=1e-5, rope_parameters=rope(10000.0)),
    "qwen2-grouped-tied": Qwen2Config(
        **SIZES, num_key_value_heads=3, tie_word_embeddings=True, rms_norm_eps=1e-6, rope_parameters=rope(1000000.0)
    ),
    "llama-biases": LlamaConfig(
        **SIZES, num_key_value_heads=2, attention_bias=True, mlp_bias=True, rms_norm_eps=1e-5, rope_parameters=rope(1e4)
    ),
    "llama-linear": scaled("linear"),
    "llama-3.1": scaled(
        "llama3", low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32
    ),
    "llama-yarn": scaled("yarn", original_max_position_embeddings=16),
    "llama-yarn-mscale": scaled("yarn", original_max_position_embeddings=16, mscale=0.7, mscale_all_dim=0.3, truncate=False),
    "llama-dynamic": scaled("dynamic"),
    "mistral": MistralConfig(**SIZES, num_key_value_heads=2, sliding_window=None, rope_parameters=rope(1e4)),
    "mistral-window": MistralConfig(**SIZES, num_key_value_heads=2, sliding_window=7, rope_parameters=rope(1e4)),
    "qwen2-window": Qwen2Config(
        **SIZES, num_key_value_heads=2, use_sliding_window=True, sliding_window=5, max_window_layers=1,
        rope_parameters=rope(1e4),
    ),
    "qwen3": Qwen3Config(
        **SIZES, num_key_value_heads=2, head_dim=10, rms_norm_eps=1e-6, rope_parameters=rope(1e6)
    ),
    "qwen3-biases-tied": Qwen3Config(
        **SIZES, num_key_value_heads=6, head_dim=8, attention_bias=True, tie_word_embeddings=True,
        rope_parameters=rope(1e4),
    ),
    "opt": OPTConfig(**OPT),
    "opt-norm-behind": OPTConfig(**OPT, do_layer_norm_before=False, word_embed_proj_dim=24),
    "opt-no-biases": OPTConfig(**OPT, enable_bias=False, tie_word_embeddings=False),
    "opt-plain-norms": OPTConfig(**OPT, layer_norm_elementwise_affine=False),
    "gpt2": GPT2Config(**GPT2),
    "gpt2-untied": GPT2Config(**GPT2, n_inner=70, activation_function="gelu", tie_word_embeddings=False),
}  # fmt: skip


def random_model(config, kind=AutoModelForCausalLM):
    """With norm weights away from 1 and biases away from 0, so that a mistake in either shows."""
    torch.manual_seed(1)
    model = kind.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                parameter.add_(0.4 * torch.randn_like(parameter))
            assert parameter.std() > 0.09, name
    return model


def random_rows():
    """Rows of tokens of different lengths, and how much of each is read before it is decoded step by step."""
    numbers = random.Random(2)
    lengths = [1, 2, 9, 33, 60]
    rows = [[numbers.randrange(VOCABULARY) for _ in range(length)] for length in lengths]
    return {"rows": rows, "prefill": [1, 1, 7, 20, 3]}


def full_logits(model, rows):
    """Hugging Face's logits of the tokens of each row, from one right-padded pass."""
    width = max(map(len, rows))
    tokens = torch.tensor([row + [0] * (width - len(row)) for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows])
    with torch.no_grad():
        logits = model(input_ids=tokens, attention_mask=mask).logits
    return [logits[i, : len(row)].float().numpy() for i, row in enumerate(rows)]


def cached_logits(model, rows, prefill):
    """The same, token by token behind the first ones, with Hugging Face's cache."""
    result = []
    for row, length in zip(rows, prefill):
        cache = DynamicCache(config=model.config)
        pieces = [row[:length]] + [[token] for token in row[length:]]
        with torch.no_grad():
            logits = [model(input_ids=torch.tensor([piece]), past_key_values=cache).logits[0] for piece in pieces]
        result.append(torch.cat(logits).numpy())
    return result


def values_of(model, rows):
    """Values of tokens by a classifier with one label: for each row an array [length, 1]."""
    with torch.no_grad():
        hidden = [model.base_model(input_ids=torch.tensor([row])).last_hidden_state[0] for row in rows]
        return [model.score(states).numpy() for states in hidden]


def our_logits(folder, mode, given, *options, width=VOCABULARY):
    """Values of tokens by `tdock_logits`: for each row an array [length, width]."""
    (values,) = our_logits_by_mode(folder, [mode], given, *options, width=width)
    return values


def our_logits_by_mode(folder, modes, given, *options, width=VOCABULARY):
    """The same for each mode, by one process."""
    output = run_program("tdock_logits", folder, ",".join(modes), *options, input=json.dumps(given).encode())
    flat = np.frombuffer(output, dtype=np.float32).reshape(len(modes), -1, width)
    ends = np.cumsum([len(row) for row in given["rows"]])[:-1]
    return [np.split(values, ends) for values in flat]


def difference(a, b):
    assert [x.shape for x in a] == [x.shape for x in b]
    return max(np.abs(x - y).max() for x, y in zip(a, b))
