"""The decoder gives the logits that Hugging Face's models give, with and without a cache, padding, and gradients."""

import copy
import json
import random

import numpy as np
import pytest
import torch
from conftest import run_program
from decoders import (
    MODELS,
    TOLERANCE,
    cached_logits,
    difference,
    full_logits,
    our_logits,
    our_logits_by_mode,
    random_model,
    random_rows,
    rope,
    scaled,
)
from safetensors.numpy import load_file
from transformers import AutoModelForCausalLM


def edit_config(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize("name", MODELS)
def test_logits_are_those_of_hugging_face(name, tmp_path):
    model = random_model(MODELS[name])
    model.save_pretrained(tmp_path)
    given = random_rows()
    full = full_logits(model, given["rows"])
    spread = np.concatenate(full).std()
    assert spread > 1, "logits so small would agree whatever the model did"
    padded, left, packed, cached = our_logits_by_mode(tmp_path, ["full", "left", "packed", "cached"], given)
    assert difference(padded, full) < TOLERANCE
    for mode, ours in (("left", left), ("packed", packed)):
        assert difference(ours, full) < TOLERANCE, mode
        assert difference(ours, padded) < 1e-5 * spread, mode
    assert difference(cached, cached_logits(model, given["rows"], given["prefill"])) < TOLERANCE


@pytest.mark.parametrize("name", MODELS)
def test_greedy_text_is_that_of_hugging_face(name, tmp_path):
    config = copy.deepcopy(MODELS[name])
    positions = "n_positions" if config.model_type == "gpt2" else "max_position_embeddings"
    setattr(config, positions, 256)
    model = random_model(config)
    model.save_pretrained(tmp_path)
    rows = [row[:9] for row in random_rows()["rows"][2:4]]
    output = run_program("tdock_logits", tmp_path, "greedy", input=json.dumps({"rows": rows, "new_tokens": 200}).encode())
    ids = torch.tensor(rows)
    theirs = model.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=200, min_new_tokens=200,
        eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    assert json.loads(output) == theirs[:, 9:].tolist()


@pytest.mark.parametrize("name", MODELS)
def test_log_probabilities_of_prompts_are_those_of_hugging_face(name, tmp_path):
    model = random_model(MODELS[name])
    model.save_pretrained(tmp_path)
    rows = random_rows()["rows"]
    rows.append(rows[-1][:50])  # begins as another one
    output = run_program("tdock_logits", tmp_path, "scores", input=json.dumps({"rows": rows}).encode())
    for row, logits, ours in zip(rows, full_logits(model, rows), json.loads(output), strict=True):
        assert len(ours["log_probs"]) == len(ours["ranks"]) == len(ours["top"]) == len(row) - 1
        if len(row) == 1:
            continue
        theirs = torch.log_softmax(torch.from_numpy(logits[:-1]).double(), -1).numpy()
        own = theirs[np.arange(len(row) - 1), row[1:]]
        assert np.abs(np.array(ours["log_probs"]) - own).max() < TOLERANCE
        # Log-probabilities that are about equal may stand in either order.
        ranks = [(theirs > (own + shift)[:, None]).sum(1) + 1 for shift in (TOLERANCE, -TOLERANCE)]
        assert (ranks[0] <= ours["ranks"]).all() and (ours["ranks"] <= ranks[1]).all()
        top = np.array(ours["top"])  # token, rank, (id, log-probability)
        assert np.abs(top[:, :, 1] - -np.sort(-theirs)[:, :3]).max() < TOLERANCE
        assert np.abs(top[:, :, 1] - np.take_along_axis(theirs, top[:, :, 0].astype(int), 1)).max() < TOLERANCE


def gradients_of(model, rows):
    """By name, those of the mean of -log p(next token) over all rows."""
    losses = []
    for row in rows:
        if len(row) < 2:
            continue
        logits = model(input_ids=torch.tensor([row])).logits[0, :-1]
        losses.append(torch.nn.functional.cross_entropy(logits, torch.tensor(row[1:]), reduction="none"))
    torch.cat(losses).mean().backward()
    return {name: parameter.grad.numpy() for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_those_of_hugging_face(name, tmp_path):
    model = random_model(MODELS[name])
    model.save_pretrained(tmp_path / "model")
    given = random_rows()
    # `transformers` gives the embedding of padding (OPT's 1) no gradient, also where it is read as a token.
    given["rows"] = [[2 if token == 1 else token for token in row] for row in given["rows"]]
    theirs = gradients_of(model, given["rows"])
    for again in ("nothing", "layers"):
        options = ("--save-gradients", tmp_path / again, "--recomputed", again)
        run_program("tdock_logits", tmp_path / "model", "packed", *options, input=json.dumps(given).encode())
        ours = load_file(tmp_path / again / "model.safetensors")
        assert ours.keys() == theirs.keys()
        for weight, expected in theirs.items():
            # A bias of keys moves all scores of a query alike: its gradient is rounding alone, but for the rotation.
            scale = max(np.abs(expected).max(), 1e-2)
            assert np.abs(ours[weight] - expected).max() < TOLERANCE * scale, (weight, again)


def test_rope_scaling_of_a_run_is_that_of_the_configuration(tmp_path):
    parameters = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
    model = random_model(scaled("yarn", original_max_position_embeddings=16))
    model.save_pretrained(tmp_path)
    given = random_rows()
    full = full_logits(model, given["rows"])
    edit_config(tmp_path, rope_parameters=rope(500.0))
    assert difference(our_logits(tmp_path, "full", given), full) > 10 * TOLERANCE
    ours = our_logits(tmp_path, "full", given, "--rope-scaling", json.dumps(parameters))
    assert difference(ours, full) < TOLERANCE


@pytest.mark.parametrize("kind", ["linear", "yarn"])
def test_a_stretched_rope_reads_on_behind_the_original_length(kind, tmp_path):
    model = random_model(scaled(kind))
    model.save_pretrained(tmp_path)
    numbers = random.Random(5)
    given = {"rows": [[numbers.randrange(61) for _ in range(150)]], "prefill": [120]}
    full = full_logits(model, given["rows"])
    for ours in our_logits_by_mode(tmp_path, ["full", "cached"], given):
        assert difference(ours, full) < TOLERANCE


def test_a_dynamic_rope_follows_the_length_of_the_sequence(tmp_path):
    model = random_model(MODELS["llama-dynamic"])
    model.save_pretrained(tmp_path / "dynamic")
    model.save_pretrained(tmp_path / "default")
    edit_config(tmp_path / "default", rope_parameters=rope(500.0), max_position_embeddings=256)
    numbers = random.Random(5)
    for length in (64, 65, 150):
        given = {"rows": [[numbers.randrange(61) for _ in range(length)]], "prefill": [length]}
        full = full_logits(model, given["rows"])
        modes = ["full", "packed", "cached"]
        for mode, ours in zip(modes, our_logits_by_mode(tmp_path / "dynamic", modes, given), strict=True):
            assert difference(ours, full) < TOLERANCE, (length, mode)
        stretched = difference(our_logits(tmp_path / "default", "full", given), full) > 100 * TOLERANCE
        assert stretched == (length > 64)


@pytest.mark.parametrize("name", ["llama", "llama-yarn", "qwen3", "opt", "gpt2"])
def test_half_precision_is_as_close_as_theirs(name, tmp_path):
    model = random_model(MODELS[name])
    model.save_pretrained(tmp_path)
    given = random_rows()
    exact = full_logits(model, given["rows"])
    theirs = difference([x.astype(np.float32) for x in full_logits(model.to(torch.bfloat16), given["rows"])], exact)
    ours = difference(our_logits(tmp_path, "full", given, "--bfloat16"), exact)
    assert 0 < ours < 2 * theirs


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
    for ours in our_logits_by_mode(tmp_path, ["full", "cached"], given):
        assert difference(ours, full) > 10 * TOLERANCE


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
