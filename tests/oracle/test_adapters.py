"""Low-rank adapters are those of `peft`, in both directions."""

import json

import numpy as np
import subprocess

import pytest
import torch
from conftest import ROOT, run_program
from decoders import MODELS, TOLERANCE, difference, full_logits, our_logits, random_model, random_rows, values_of
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.numpy import load_file
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

LORA = {
    "qwen2-grouped-tied": {"r": 4, "lora_alpha": 6, "target_modules": ["q_proj", "v_proj", "down_proj"]},
    "llama": {"r": 3, "lora_alpha": 8, "target_modules": "all-linear", "use_rslora": True},
    "mistral-window": {"r": 2, "target_modules": ["self_attn.o_proj", "gate_proj"], "layers_to_transform": [0, 2]},
    "qwen3": {"r": 4, "target_modules": ["k_proj", "up_proj"]},
    "opt": {"r": 4, "target_modules": ["fc1", "out_proj"]},
    "gpt2": {"r": 4, "target_modules": ["c_attn", "c_proj"], "fan_in_fan_out": True},
    "llama-biases": {"r": 2, "target_modules": ["q_proj"], "modules_to_save": ["norm", "lm_head", "embed_tokens"]},
    "gpt2-untied": {"r": 2, "target_modules": ["c_fc"], "fan_in_fan_out": True, "modules_to_save": ["ln_f", "wpe"]},
}


def adapted(model, name):
    """The model with adapters that change something."""
    torch.manual_seed(3)
    model = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **LORA[name])).eval()
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if "lora_" in parameter_name:
                parameter.normal_(0, 0.1)
            elif ".modules_to_save." in parameter_name:
                parameter.add_(0.3 * torch.randn_like(parameter))
    return model


@pytest.mark.parametrize("name", LORA)
def test_adapters_of_peft_are_read_merged_and_written(name, tmp_path):
    model = random_model(MODELS[name])
    model.save_pretrained(tmp_path / "base")
    given = random_rows()
    plain = full_logits(model, given["rows"])
    theirs = adapted(model, name)
    theirs.save_pretrained(tmp_path / "theirs")
    expected = full_logits(theirs, given["rows"])
    assert difference(expected, plain) > 0.5
    ours = our_logits(
        tmp_path / "base", "full", given,
        "--adapters", tmp_path / "theirs", "--save-adapters", tmp_path / "ours", "--save", tmp_path / "merged",
    )  # fmt: skip
    assert difference(ours, expected) < TOLERANCE

    before = load_file(tmp_path / "theirs/adapter_model.safetensors")
    after = load_file(tmp_path / "ours/adapter_model.safetensors")
    assert before.keys() == after.keys()
    assert all(np.array_equal(before[key], after[key]) for key in before)
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "base", dtype=torch.float32, attn_implementation="eager")
    again = PeftModel.from_pretrained(base, tmp_path / "ours").eval()
    assert difference(full_logits(again, given["rows"]), expected) < TOLERANCE
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype=torch.float32, attn_implementation="eager")
    # Not beside `expected`: merging rounds, and what that does to the logits differs between processors.
    their_merged = full_logits(theirs.merge_and_unload().eval(), given["rows"])
    assert difference(full_logits(merged.eval(), given["rows"]), their_merged) < TOLERANCE
    assert json.loads((tmp_path / "ours/adapter_config.json").read_text())["peft_type"] == "LORA"


def test_adapters_with_a_value_head_are_those_of_peft(tmp_path):
    config = MODELS["qwen3"].__class__(**(MODELS["qwen3"].to_dict() | {"num_labels": 1, "pad_token_id": 0}))
    model = random_model(config, AutoModelForSequenceClassification)
    model.save_pretrained(tmp_path / "base")
    torch.manual_seed(3)
    theirs = get_peft_model(model, LoraConfig(task_type="SEQ_CLS", r=4, target_modules=["q_proj", "up_proj"])).eval()
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            if parameter.requires_grad:
                parameter.normal_(0, 0.1)
    theirs.save_pretrained(tmp_path / "theirs")
    given = random_rows()
    expected = values_of(theirs.base_model.model, given["rows"])
    folders = ["--adapters", tmp_path / "theirs", "--save-adapters", tmp_path / "ours"]
    assert difference(our_logits(tmp_path / "base", "full", given, *folders, width=1), expected) < TOLERANCE
    assert difference(our_logits(tmp_path / "base", "full", given, width=1), expected) > 100 * TOLERANCE
    base = AutoModelForSequenceClassification.from_pretrained(tmp_path / "base", attn_implementation="eager")
    again = PeftModel.from_pretrained(base, tmp_path / "ours").eval()
    assert difference(values_of(again.base_model.model, given["rows"]), expected) < TOLERANCE


def test_a_run_trains_adapters_and_saves_them_beside_the_merged_model(run_dir, tmp_path):
    base, run = run_dir / "checkpoint", tmp_path / "run"
    (tmp_path / "run.yaml").write_text("recipe: sft\n")
    subprocess.run(["python3", "examples/arithmetic/make_data.py", tmp_path], cwd=ROOT, check=True)
    run_program(
        "tdock", "train", tmp_path / "run.yaml", "--run-dir", run, f"model.path={base}", "model.lora_rank=4",
        "model.target_modules=q_proj,down_proj", "model.modules_to_save=[norm]", "model.recompute=layers",
        f"data.path={tmp_path}/train.jsonl",
        "data.max_length=16", "trainer.total_training_steps=20", "optim.lr=1e-3",
    )  # fmt: skip
    checkpoint = run / "checkpoint"
    given = {"rows": [[3, 5, 1, 7, 2, 9, 4]]}
    width = AutoModelForCausalLM.from_pretrained(checkpoint).config.vocab_size
    merged = our_logits(checkpoint, "full", given, width=width)
    assert difference(merged, our_logits(base, "full", given, width=width)) > 1e-3
    adapter = checkpoint / "adapter"
    assert difference(merged, our_logits(base, "full", given, "--adapters", adapter, width=width)) < TOLERANCE
    saved = load_file(adapter / "adapter_model.safetensors")
    norms = [name for name in load_file(base / "model.safetensors") if "norm" in name]
    assert {f"base_model.model.{name}" for name in norms} == {name for name in saved if "lora_" not in name}
    theirs = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), adapter).eval()
    assert difference(full_logits(theirs, given["rows"]), merged) < TOLERANCE

    ask = ["--prompt", "37+85=", "--prompt", "12+34=", "--temperature", 0, "--max-new-tokens", 8]
    answers = run_program("tdock", "generate", "--model", base, "--adapter", adapter, *ask)
    assert answers == run_program("tdock", "generate", "--model", checkpoint, *ask)
