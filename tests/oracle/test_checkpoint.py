"""A checkpoint that the trainer has written opens in transformers, and says the same there."""

import json

import numpy as np
import pytest
import torch
from conftest import run_program
from transformers import AutoModelForCausalLM, AutoTokenizer

PROMPTS = ["37+85=", "00+00=", "99+99=", "05+60=", "12+34=", "81+09=", "50+50="]


@pytest.fixture(scope="module")
def checkpoint(run_dir):
    return run_dir / "checkpoint"


@pytest.fixture(scope="module")
def tokenizer(checkpoint):
    return AutoTokenizer.from_pretrained(checkpoint)


@pytest.fixture(scope="module")
def model(checkpoint):
    model, loading = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32, output_loading_info=True)
    assert not any(loading.values()), loading
    return model.eval()


def our_answers(folder, *options):
    prompts = [word for prompt in PROMPTS for word in ("--prompt", prompt)]
    output = run_program("tdock", "generate", "--model", folder, *prompts, *options)
    return output.decode().splitlines()


def test_logits_are_equal(checkpoint, tokenizer, model):
    rows = tokenizer(PROMPTS)["input_ids"]
    rows[0] = rows[0] + [tokenizer.eos_token_id]
    output = run_program("tdock_logits", checkpoint, "full", input=json.dumps({"rows": rows}).encode())
    ours = np.frombuffer(output, dtype=np.float32).reshape(-1, model.config.vocab_size)
    with torch.no_grad():
        theirs = torch.cat([model(input_ids=torch.tensor([row])).logits[0] for row in rows]).numpy()
    assert theirs.std() > 0.5
    assert np.abs(ours - theirs).max() < 1e-4


def test_greedy_answers_are_equal(checkpoint, tokenizer, model):
    ours = our_answers(checkpoint, "--temperature", 0, "--max-new-tokens", 8)
    theirs = []
    for prompt in PROMPTS:
        tokens = tokenizer(prompt, return_tensors="pt")
        output = model.generate(**tokens, do_sample=False, max_new_tokens=8)
        theirs.append(tokenizer.decode(output[0, tokens["input_ids"].shape[1] :], skip_special_tokens=True))
    assert ours == theirs
    assert len(set(ours)) > 1, "answers that are all the same show little"


def test_the_tokenizer_marks_the_end_as_the_model_does(checkpoint, tokenizer, model):
    generation = json.loads((checkpoint / "generation_config.json").read_text())
    assert tokenizer.eos_token_id == model.config.eos_token_id == generation["eos_token_id"]
    assert tokenizer.pad_token_id == model.config.pad_token_id == generation["pad_token_id"]
    assert len(tokenizer) == model.config.vocab_size
    assert tokenizer.decode(tokenizer("37+85=")["input_ids"]) == "37+85="


def test_what_transformers_saves_again_gives_the_same_answers(checkpoint, tokenizer, model, tmp_path):
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    options = ["--temperature", 1, "--seed", 3, "--samples", 2, "--max-new-tokens", 8]
    answers = our_answers(tmp_path, *options)
    assert answers == our_answers(checkpoint, *options)
    assert len(answers) == 2 * len(PROMPTS)
