"""What is saved opens in `transformers`, and gives the same there: split files, dtypes, value heads, tokenizers."""

import json
import re
import subprocess

import numpy as np
import pytest
import torch
from conftest import BUILD, ROOT, run_program
from decoders import MODELS, TOLERANCE, difference, full_logits, our_logits, our_logits_by_mode, random_model, random_rows, values_of
from tokenizers import Tokenizer, models
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer, PreTrainedTokenizerFast
from waiting import LONG


def test_the_table_of_models_is_what_is_tested(tmp_path):
    text = (ROOT / "docs/models.md").read_text()
    rows = [line.removesuffix(" |").split(" | ") for line in text.splitlines() if line.startswith("| `")][1:]
    named = [name for row in rows for name in re.findall(r"`([^`]+)`", row[-1])]
    assert sorted(named) == sorted(MODELS)
    for model_type, classes, _, names in rows:
        for name in re.findall(r"`([^`]+)`", names):
            assert f"`{MODELS[name].model_type}`" == model_type.removeprefix("| ")
        config = MODELS[re.findall(r"`([^`]+)`", names)[0]]
        kinds = (AutoModelForCausalLM, AutoModelForSequenceClassification)
        assert classes == ", ".join(type(kind.from_config(config)).__name__ for kind in kinds)
    (tmp_path / "config.json").write_text('{"model_type": "other"}')
    refused = subprocess.run([BUILD / "tdock_logits", tmp_path, "full"], capture_output=True, text=True, timeout=LONG)
    supported = refused.stderr.rsplit("supported are ", 1)[1].strip().split(", ")
    assert [f"| `{name}`" for name in supported] == [row[0] for row in rows]


def opened(folder, kind=AutoModelForCausalLM):
    model, loading = kind.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    assert not any(loading.values()), loading
    return model.eval()


@pytest.mark.parametrize("name", MODELS)
def test_a_checkpoint_gives_the_same_logits(name, tmp_path):
    model = random_model(MODELS[name])
    model.save_pretrained(tmp_path / "theirs")
    given = random_rows()
    ours = our_logits(tmp_path / "theirs", "full", given, "--save", tmp_path / "ours", "--max-file-bytes", 50_000)
    index = json.loads((tmp_path / "ours/model.safetensors.index.json").read_text())
    assert len(set(index["weight_map"].values())) > 1
    again = opened(tmp_path / "ours")
    assert difference(full_logits(again, given["rows"]), full_logits(model, given["rows"])) < TOLERANCE
    assert difference(ours, full_logits(again, given["rows"])) < TOLERANCE


def test_half_precision_stays_bit_for_bit(tmp_path):
    model = random_model(MODELS["llama-grouped-tied"]).to(torch.bfloat16)
    model.save_pretrained(tmp_path / "theirs")
    our_logits(tmp_path / "theirs", "full", random_rows(), "--bfloat16", "--save", tmp_path / "ours")
    assert json.loads((tmp_path / "ours/config.json").read_text())["torch_dtype"] == "bfloat16"
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "ours", dtype="auto")
    assert again.dtype == torch.bfloat16
    for (name, before), (_, after) in zip(model.named_parameters(), again.named_parameters()):
        assert torch.equal(before, after), name


@pytest.mark.parametrize("name", ["llama", "mistral", "qwen2-grouped-tied", "qwen3", "opt-norm-behind", "gpt2"])
def test_a_value_head_is_that_of_a_classifier_with_one_label(name, tmp_path):
    config = MODELS[name].__class__(**(MODELS[name].to_dict() | {"num_labels": 1, "pad_token_id": 0}))
    torch.manual_seed(2)
    model = AutoModelForSequenceClassification.from_config(
        config, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    model.save_pretrained(tmp_path / "theirs")
    given = random_rows()
    expected = values_of(model, given["rows"])
    assert np.concatenate(expected).std() > 0.1
    for ours in our_logits_by_mode(tmp_path / "theirs", ["full", "packed"], given, "--save", tmp_path / "ours", width=1):
        assert difference(ours, expected) < TOLERANCE
    again = opened(tmp_path / "ours", AutoModelForSequenceClassification)
    assert difference(values_of(again, given["rows"]), expected) < TOLERANCE


def test_a_fresh_value_head_opens_as_a_classifier(tmp_path):
    random_model(MODELS["qwen2"]).save_pretrained(tmp_path / "tokens")
    given = random_rows()
    ours = our_logits(tmp_path / "tokens", "full", given, "--value-head", "--save", tmp_path / "values", width=1)
    again = opened(tmp_path / "values", AutoModelForSequenceClassification)
    assert difference(ours, values_of(again, given["rows"])) < TOLERANCE


def test_the_tokenizer_and_its_chat_template_go_along(tmp_path):
    random_model(MODELS["llama"]).save_pretrained(tmp_path / "theirs")
    core = Tokenizer(models.WordLevel({"[UNK]": 0, "hello": 1, "there": 2}, unk_token="[UNK]"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, unk_token="[UNK]")
    tokenizer.chat_template = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    tokenizer.save_pretrained(tmp_path / "theirs")
    given = json.dumps(random_rows()).encode()
    run_program("tdock_logits", tmp_path / "theirs", "full", "--save", tmp_path / "ours", input=given)
    again = AutoTokenizer.from_pretrained(tmp_path / "ours")
    assert again.chat_template == tokenizer.chat_template
    assert again("hello")["input_ids"] == tokenizer("hello")["input_ids"]
