"""Training of models that `transformers` made, on files in the forms of other projects.

The held-out loss is compared with the cross-entropy that transformers computes from the same conversations, before training
and after; training lowers it, or raises the reward, and transformers opens the result and continues texts as ours does.
"""

import csv
import itertools
import json
import os
import random
import subprocess

import pytest
import torch
from conftest import ROOT, run_program
from test_conversations import CHATML
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, PreTrainedTokenizerFast, Qwen2Config

SIZES = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 256,
}  # fmt: skip
MODELS = {"llama-tied": (LlamaConfig, True), "llama": (LlamaConfig, False), "qwen2-tied": (Qwen2Config, True), "qwen2": (Qwen2Config, False)}
THINGS = ["sky", "grass", "snow", "coal", "blood", "sand", "sea", "leaf"]
COLOURS = ["blue", "green", "white", "black", "red", "yellow", "teal", "lime"]


def conversations(count, seed):
    """Who asks for the colour of a thing is told it: a question in one of several wordings, and one answer."""
    generator = random.Random(seed)
    wordings = ["what colour is {}?", "{}: which colour?", "tell me the colour of {}", "colour of {} please"]
    for _ in range(count):
        which = generator.randrange(len(THINGS))
        yield generator.choice(wordings).format(THINGS[which]), f"it is {COLOURS[which]}."


def jsonl(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def table(path, rows):
    """Writes Parquet with the environment that the build reads it with."""
    program = (
        "import json, sys, pyarrow, pyarrow.parquet\n"
        "pyarrow.parquet.write_table(pyarrow.Table.from_pylist(json.load(sys.stdin)), sys.argv[1])"
    )
    python = ROOT / ".venv-parquet/bin/python"
    subprocess.run([python, "-c", program, path], input=json.dumps(rows), text=True, check=True)


def comma_separated(path, rows):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([rows[0].keys(), *(row.values() for row in rows)])


def json_list(path, rows):
    path.write_text(json.dumps(rows))


def turn(role, content):
    return {"role": role, "content": content}


def messages(question, answer):
    return {"messages": [turn("user", question), turn("assistant", answer)]}


def write_messages(path, pairs):
    jsonl(path, [messages(*pair) for pair in pairs])


# The words of stanford_alpaca, in which models were trained.
ALPACA = "Below is an instruction that describes a task. Write a response that appropriately completes the request."


class Form:
    """A form of a file: its name, what writes the records, and what a record is of a question and an answer."""

    def __init__(self, file, write, record, prompt="chat", overrides=()):
        self.file, self.write_rows, self.record, self.prompt, self.overrides = file, write, record, prompt, overrides

    def write(self, folder, stem, pairs):
        path = folder / f"{stem}.{self.file}"
        self.write_rows(path, [self.record(*pair) for pair in pairs])
        return path

    def prompt_of(self, tokenizer, question):
        """The text that the reply follows."""
        if self.prompt == "text":
            return question
        if self.prompt == "alpaca":
            return f"{ALPACA}\n\n### Instruction:\n{question}\n\n### Response:"
        return tokenizer.apply_chat_template([turn("user", question)], add_generation_prompt=True, tokenize=False)


CHAT = ["data.style=chat"]
SFT_FORMS = {
    "messages": Form("jsonl", jsonl, messages),
    "messages-list": Form("json", json_list, messages),
    "messages-parquet": Form("parquet", table, messages),
    "sharegpt": Form(
        "json", json_list, lambda q, a: {"conversations": [{"from": "human", "value": q}, {"from": "gpt", "value": a}]}
    ),
    "alpaca": Form("json", json_list, lambda q, a: {"instruction": q, "input": "", "output": a}, "alpaca"),
    "prompt-completion": Form(
        "jsonl", jsonl, lambda q, a: {"prompt": [turn("user", q)], "completion": [turn("assistant", a)]}
    ),
    "csv": Form("csv", comma_separated, lambda q, a: {"prompt": q, "completion": a}, "text"),
    "csv-chat": Form("csv", comma_separated, lambda q, a: {"prompt": q, "completion": a}, overrides=CHAT),
}
GRPO_FORMS = {
    "verl": Form("parquet", table, lambda q, a: {
        "data_source": "colours", "prompt": [turn("user", q)], "ability": "sight",
        "reward_model": {"style": "rule", "ground_truth": a}, "extra_info": {"index": 1},
    }),
    "csv": Form("csv", comma_separated, lambda q, a: {"prompt": q, "answer": a}, "text"),
    "turns": Form("jsonl", jsonl, lambda q, a: {"prompt": [turn("user", q)], "answer": a}),
    "question-answer": Form("json", json_list, lambda q, a: {"question": q, "answer": a}),
}  # fmt: skip
# Each model with each way of training, and each form at least once; TDOCK_TRAINING_MATRIX=full: all with all.
SFT_CASES = [
    ("llama", "messages", "sharegpt"), ("llama-tied", "csv", "prompt-completion"),
    ("qwen2", "alpaca", "messages-list"), ("qwen2-tied", "messages-parquet", "csv-chat"),
]  # fmt: skip
GRPO_CASES = [
    ("llama", True, "csv"), ("llama-tied", False, "verl"), ("qwen2", False, "turns"), ("qwen2-tied", True, "question-answer"),
]  # fmt: skip
if os.environ.get("TDOCK_TRAINING_MATRIX") == "full":
    forms = list(SFT_FORMS)
    SFT_CASES = [(kind, form, forms[i - 1]) for kind in MODELS for i, form in enumerate(forms)]
    GRPO_CASES = list(itertools.product(MODELS, (False, True), GRPO_FORMS))


def make_model(folder, kind, **more):
    """A folder as transformers saves it: random weights, a tokenizer of single bytes, and the template chatml."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<|im_end|>", pad_token="<|pad|>",
        additional_special_tokens=["<|im_start|>"], chat_template=CHATML,
    )  # fmt: skip
    tokenizer.save_pretrained(folder)
    config, tied = MODELS[kind]
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(
        config(**SIZES, **more, vocab_size=len(tokenizer), tie_word_embeddings=tied, eos_token_id=tokenizer.eos_token_id,
               pad_token_id=tokenizer.pad_token_id, bos_token_id=None),
        dtype=torch.float32,
    )  # fmt: skip
    model.save_pretrained(folder)
    return model.eval(), tokenizer


def cross_entropy(model, tokenizer, form, pairs):
    """The mean of -log p over the tokens of the replies, each with the token that ends it, of all conversations."""
    total, count = 0.0, 0
    for question, answer in pairs:
        before = tokenizer(form.prompt_of(tokenizer, question), add_special_tokens=False)["input_ids"]
        reply = tokenizer(answer + tokenizer.eos_token, add_special_tokens=False)["input_ids"]
        ids = torch.tensor([before + reply])
        with torch.no_grad():
            log_probs = model(ids).logits[0].double().log_softmax(-1)
        total -= sum(log_probs[len(before) - 1 + i, token].item() for i, token in enumerate(reply))
        count += len(reply)
    return total / count


def train(recipe, folder, *overrides):
    """Trains in `folder`; the records of metrics.jsonl."""
    folder.mkdir(exist_ok=True)
    (folder / "run.yaml").write_text(f"recipe: {recipe}\n")
    run_program("tdock", "train", folder / "run.yaml", "--run-dir", folder / "run", *overrides)
    lines = (folder / "run/metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def opened(checkpoint):
    """A checkpoint as transformers opens it. Its greedy text must be that of `tdock generate`."""
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    prompt = "what colour is snow?"
    ids = tokenizer(prompt, add_special_tokens=False, return_tensors="pt")["input_ids"]
    with torch.no_grad():
        answer = model.generate(ids, max_new_tokens=12, do_sample=False)[0, ids.shape[1] :]
    ours = run_program(
        "tdock", "generate", "--model", checkpoint, "--prompt", prompt, "--temperature", 0, "--max-new-tokens", 12
    )
    assert ours.decode().removesuffix("\n") == tokenizer.decode(answer, skip_special_tokens=True)
    return model, tokenizer


def train_on_replies(folder, model, form, pairs, *overrides):
    """Sixty steps on all pairs but the last forty; the held-out loss before and after must be that of transformers."""
    held_out = pairs[-40:]
    form.write(folder, "train", pairs[:-40]), form.write(folder, "held_out", held_out)
    metrics = train(
        "sft", folder, f"model.path={model}", f"data.train_files={folder}/train.{form.file}",
        f"data.val_files={folder}/held_out.{form.file}", *form.overrides, "data.max_length=256",
        "data.train_batch_size=32", "trainer.total_training_steps=60", "trainer.test_freq=60", *overrides,
    )  # fmt: skip
    first, last = metrics[0]["val/loss"], metrics[-1]["val/loss"]
    before = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    assert abs(first - cross_entropy(before, AutoTokenizer.from_pretrained(model), form, held_out)) < 2e-5
    assert last < first / 2
    assert abs(last - cross_entropy(*opened(folder / "run/checkpoint"), form, held_out)) < 1e-4


@pytest.mark.parametrize("kind,form,form_of_adapters", SFT_CASES)
def test_sft_halves_the_held_out_loss(kind, form, form_of_adapters, tmp_path):
    """All weights learn from nothing, then adapters what the model did not know: that each thing has another colour."""
    make_model(tmp_path / "model", kind)
    known, other = list(conversations(2040, 1)), list(conversations(2040, 2))
    (tmp_path / "all").mkdir(), (tmp_path / "adapters").mkdir()
    train_on_replies(tmp_path / "all", tmp_path / "model", SFT_FORMS[form], known, "optim.lr=5e-3")
    swapped = [(question, answer[:6] + COLOURS[-1 - COLOURS.index(answer[6:-1])] + ".") for question, answer in other]
    base = tmp_path / "all/run/checkpoint"
    train_on_replies(
        tmp_path / "adapters", base, SFT_FORMS[form_of_adapters], swapped, "model.lora_rank=16", "optim.lr=1e-2"
    )


@pytest.mark.parametrize("kind,lora,form", GRPO_CASES)
def test_grpo_raises_the_reward(kind, lora, form, tmp_path):
    # Adapters change what stands before the head; with a head of small weights that would say little.
    make_model(tmp_path / "model", kind, initializer_range=0.1 if lora else 0.02)
    path = GRPO_FORMS[form].write(tmp_path, "prompts", list(conversations(200, 3)))
    metrics = train(
        "grpo", tmp_path / "grpo", f"model.path={tmp_path / 'model'}", f"data.train_files={path}",
        "data.max_prompt_length=96", "data.max_response_length=8", "data.train_batch_size=16",
        "actor.ppo_mini_batch_size=16", "rollout.n=8", "reward.regex.weight=1", "reward.regex.pattern=[a-m]",
        "trainer.total_training_steps=15", *(["model.lora_rank=16", "actor.optim.lr=2e-2"] if lora else ["actor.optim.lr=3e-3"]),
    )  # fmt: skip
    rewards = [record["critic/score/mean"] for record in metrics if "critic/score/mean" in record]
    assert rewards[0] < 0.5 and sum(rewards[-3:]) / 3 > 0.8, rewards
    opened(tmp_path / "grpo/run/checkpoint")
