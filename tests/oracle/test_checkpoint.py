"""A checkpoint that the trainer has written opens in transformers, and says the same there."""

import json

import numpy as np
import pytest
import torch
from conftest import run_program
from transformers import AutoModelForCausalLM, AutoTokenizer, LogitsProcessorList
from transformers.generation import (
    MinNewTokensLengthLogitsProcessor,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

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


SAMPLING = {
    "bias": (
        ["--logit-bias", "3:2.5", "--logit-bias", "5:-4"],
        lambda **_: [SequenceBiasLogitsProcessor([[[3], 2.5], [[5], -4.0]])],
    ),
    "repetition": (["--repetition-penalty", 1.7], lambda **_: [RepetitionPenaltyLogitsProcessor(1.7)]),
    "minimum": (
        ["--min-new-tokens", 4],
        lambda prompt, eos: [MinNewTokensLengthLogitsProcessor(prompt, 4, eos)],
    ),
    "temperature": (["--temperature", 0.6], lambda **_: [TemperatureLogitsWarper(0.6)]),
    "top_k": (["--top-k", 4], lambda **_: [TopKLogitsWarper(4)]),
    "top_p": (["--top-p", 0.7], lambda **_: [TopPLogitsWarper(0.7)]),
    "min_p": (["--min-p", 0.2], lambda **_: [MinPLogitsWarper(0.2)]),
    "all": (
        ["--logit-bias", "3:0.5", "--repetition-penalty", 1.2, "--min-new-tokens", 3, "--temperature", 1.4,
         "--top-k", 9, "--top-p", 0.9, "--min-p", 0.08],
        lambda prompt, eos: [
            SequenceBiasLogitsProcessor([[[3], 0.5]]), RepetitionPenaltyLogitsProcessor(1.2),
            MinNewTokensLengthLogitsProcessor(prompt, 3, eos), TemperatureLogitsWarper(1.4), TopKLogitsWarper(9),
            TopPLogitsWarper(0.9), MinPLogitsWarper(0.08),
        ],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SAMPLING)
def test_what_is_sampled_from_is_what_logits_processors_leave(checkpoint, tokenizer, model, name):
    options, processors = SAMPLING[name]
    prompts = [word for prompt in PROMPTS for word in ("--prompt", prompt)]
    output = run_program(
        "tdock", "generate", "--model", checkpoint, *prompts, "--samples", 4, "--max-new-tokens", 8, "--json",
        "--filtered-log-probs", "--top-log-probs", model.config.vocab_size, *options,
    )  # fmt: skip
    positions = 0
    for answer in map(json.loads, output.decode().splitlines()):
        seen = tokenizer(answer["prompt"])["input_ids"]
        processor = LogitsProcessorList(processors(prompt=len(seen), eos=tokenizer.eos_token_id))
        for token, log_prob, top in zip(answer["ids"], answer["log_probs"], answer["top_log_probs"], strict=True):
            ids = torch.tensor([seen])
            with torch.no_grad():
                scores = processor(ids, model(input_ids=ids).logits[:, -1])
            theirs = torch.log_softmax(scores[0], -1)
            assert {one["id"] for one in top} == set(torch.nonzero(theirs.isfinite()).flatten().tolist())
            assert max(abs(one["log_prob"] - theirs[one["id"]].item()) for one in top) < 1e-4
            assert abs(log_prob - theirs[token].item()) < 1e-4
            seen = [*seen, token]
            positions += 1
    assert positions >= 50, "a few answers show little"


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
