"""The decoder gives the logits that Hugging Face's models give, with and without a cache."""

import json
import random

import numpy as np
import pytest
import torch
from conftest import run_program
from transformers import AutoModelForCausalLM, DynamicCache, LlamaConfig, Qwen2Config

TOLERANCE = 1e-4
VOCABULARY = 61
SIZES = {
    "vocab_size": VOCABULARY, "hidden_size": 48, "intermediate_size": 72, "num_hidden_layers": 3,
    "num_attention_heads": 6, "max_position_embeddings": 64, "initializer_range": 0.25,
}  # fmt: skip


def rope(theta):
    return {"rope_type": "default", "rope_theta": theta}


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
}


def random_model(config):
    """With norm weights away from 1 and biases away from 0, so that a mistake in either shows."""
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                parameter.add_(0.4 * torch.randn_like(parameter))
            assert parameter.std() > 0.1, name
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
    return [logits[i, : len(row)].numpy() for i, row in enumerate(rows)]


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


def our_logits(folder, mode, given):
    output = run_program("tdock_logits", folder, mode, input=json.dumps(given).encode())
    flat = np.frombuffer(output, dtype=np.float32).reshape(-1, VOCABULARY)
    return np.split(flat, np.cumsum([len(row) for row in given["rows"]])[:-1])


def difference(a, b):
    assert [x.shape for x in a] == [x.shape for x in b]
    return max(np.abs(x - y).max() for x, y in zip(a, b))


def edit_config(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize("name", MODELS)
def test_logits_are_those_of_hugging_face(name, tmp_path):
    model = random_model(MODELS[name])
    model.save_pretrained(tmp_path)
    given = random_rows()
    full = full_logits(model, given["rows"])
    assert np.concatenate(full).std() > 1, "logits so small would agree whatever the model did"
    assert difference(our_logits(tmp_path, "full", given), full) < TOLERANCE
    cached = cached_logits(model, given["rows"], given["prefill"])
    assert difference(our_logits(tmp_path, "cached", given), cached) < TOLERANCE


def test_half_precision_weights_are_read_exactly(tmp_path):
    random_model(MODELS["qwen2-grouped-tied"]).to(torch.bfloat16).save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["dtype"] == "bfloat16"
    model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    given = random_rows()
    assert difference(our_logits(tmp_path, "full", given), full_logits(model, given["rows"])) < TOLERANCE


def test_a_configuration_of_transformers_4_is_read(tmp_path):
    model = random_model(MODELS["llama-grouped-tied"])
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["rope_theta"] = config.pop("rope_parameters")["rope_theta"]
    config["torch_dtype"] = config.pop("dtype")
    (tmp_path / "config.json").write_text(json.dumps(config))
    given = random_rows()
    assert difference(our_logits(tmp_path, "full", given), full_logits(model, given["rows"])) < TOLERANCE


@pytest.mark.parametrize(
    "mistake",
    [
        {"rope_parameters": rope(20000.0)},
        {"rms_norm_eps": 1e-3},
        {"num_attention_heads": 12, "num_key_value_heads": 12, "head_dim": 4},
    ],
    ids=["rope base", "norm epsilon", "head size"],
)
def test_a_wrong_configuration_would_show(mistake, tmp_path):
    model = random_model(MODELS["qwen2"])
    model.save_pretrained(tmp_path)
    edit_config(tmp_path, **mistake)
    given = random_rows()
    full = full_logits(model, given["rows"])
    for mode in ("full", "cached"):
        assert difference(our_logits(tmp_path, mode, given), full) > 10 * TOLERANCE


def test_a_wrong_weight_would_show(tmp_path):
    model = random_model(MODELS["qwen2"])
    given = random_rows()
    full = full_logits(model, given["rows"])
    for part in ("self_attn.k_proj.bias", "post_attention_layernorm.weight"):
        with torch.no_grad():
            parameter = model.get_parameter(f"model.layers.1.{part}")
            before = parameter.clone()
            parameter.mul_(0.99)
            model.save_pretrained(tmp_path)
            parameter.copy_(before)
        # A bias of the keys moves all scores of a query alike, up to the rotation.
        assert difference(our_logits(tmp_path, "full", given), full) > 2 * TOLERANCE, part
