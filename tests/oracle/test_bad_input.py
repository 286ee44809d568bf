"""What `tdock` says of folders and files that cannot be trained with, or hardly."""

import json
import shutil
import subprocess

import pytest
from conftest import BUILD, ROOT
from messages import mentions
from test_conversations import packaged
from test_training import conversations, make_model, write_messages


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bad")
    make_model(folder / "model", "llama")
    write_messages(folder / "train.jsonl", list(conversations(60, 1)))
    (folder / "sft.yaml").write_text(
        "recipe: sft\ndata: {train_batch_size: 8, max_length: 128}\ntrainer: {total_training_steps: 1}\n"
    )
    (folder / "grpo.yaml").write_text(
        "recipe: grpo\ndata: {train_batch_size: 4, max_prompt_length: 96, max_response_length: 2}\nrollout: {n: 2}\n"
        "actor: {ppo_mini_batch_size: 4}\ntrainer: {total_training_steps: 2}\n"
    )
    return folder


@pytest.fixture
def train(folder, tmp_path):
    """A function that runs `tdock train`, and returns its messages."""
    run_dirs = (tmp_path / f"run{i}" for i in range(100))

    def run(recipe, *overrides, code=2):
        run_dir = next(run_dirs)
        result = subprocess.run(
            [BUILD / "tdock", "train", folder / f"{recipe}.yaml", "--run-dir", run_dir, *overrides],
            cwd=folder, capture_output=True, text=True,
        )  # fmt: skip
        assert result.returncode == code, result.stdout + result.stderr
        if code == 2:
            assert not run_dir.exists()
        return result.stdout + result.stderr

    return run


def spoilt(folder, name, spoil):
    """A copy of the model that `spoil` was called on."""
    copy = folder / name
    shutil.copytree(folder / "model", copy)
    spoil(copy)
    return f"model.path={name}"


def with_json(file, **changes):
    def change(model):
        path = model / file
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return change


TRAIN = "data.train_files=train.jsonl"
MODEL = "model.path=model"


def test_a_name_on_the_hub_is_no_folder(train):
    for name in ("Qwen/Qwen2.5-0.5B", "gpt2"):
        said = train("sft", f"model.path={name}", TRAIN)
        mentions(said, f"folder {name} ", "Hugging Face", f"`hf download {name} --local-dir FOLDER`")
    mentions(train("sft", MODEL, "data.train_files=owner/set"), "owner/set", "Hugging Face")


def test_files_that_are_no_safetensors_are_told_apart(folder, train):
    def weights(contents):
        return lambda model: (model / "model.safetensors").write_bytes(contents)

    whole = (folder / "model/model.safetensors").read_bytes()
    said = train("sft", spoilt(folder, "text", weights(b"<!DOCTYPE html>\n<html></html>")), TRAIN)
    mentions(said, "text/model.safetensors: ", "cut short")
    said = train("sft", spoilt(folder, "cut", weights(whole[: len(whole) // 2])), TRAIN)
    mentions(said, "cut/model.safetensors: tensor '", "cut short")
    said = train("sft", spoilt(folder, "lfs", weights(b"version https://git-lfs.github.com/spec/v1\nsize 9\n")), TRAIN)
    mentions(said, "lfs/model.safetensors: ", "Git LFS", "`git lfs")


def test_a_wrong_size_names_the_first_tensor_and_how_many_do_not_fit(folder, train):
    said = train("sft", spoilt(folder, "wide", with_json("config.json", hidden_size=128)), TRAIN)
    mentions(said, "wide/model.safetensors: ", "21 of 21", "model.embed_tokens.weight", "[259, 64]", "[259, 128]", "config.json")


def test_a_template_and_a_tokenizer_that_disagree_are_told(folder, train):
    llama3 = packaged("trl/chat_templates/llama3.jinja")
    said = train("sft", spoilt(folder, "llama3", lambda model: (model / "chat_template.jinja").write_text(llama3)), TRAIN)
    mentions(said, "train.jsonl:1: ", "chat_template", "bos_token")
    said = train("sft", MODEL, TRAIN, "data.template=llama3")
    mentions(said, '"llama3"', "tokenizer")
    said = train("sft", spoilt(folder, "none", lambda model: (model / "chat_template.jinja").unlink()), TRAIN)
    mentions(said, "chat_template", ": chatml")
    said = train("sft", spoilt(folder, "other", lambda model: (model / "chat_template.jinja").write_text("{{ x }}")), TRAIN)
    mentions(said, "train.jsonl:1: turn 1 ", "the user", "chat_template")
    said = train("sft", spoilt(folder, "broken", lambda model: (model / "chat_template.jinja").write_text("{% if %}")), TRAIN)
    mentions(said, "broken/chat_template.jinja: ", "line 1: ")

    def ends_otherwise(model):
        with_json("config.json", eos_token_id=5)(model)
        with_json("generation_config.json", eos_token_id=5)(model)
        with_json("tokenizer_config.json", eos_token="<|pad|>")(model)

    said = train("sft", spoilt(folder, "ends", ends_otherwise), TRAIN, code=0)
    mentions(said, "warning: ", "<|im_end|> (", '"eos_token_id" in generation_config.json')


def test_data_that_cannot_be_used_is_told(folder, train):
    def file(name, text):
        (folder / name).write_text(text)
        return f"data.train_files={name}"

    said = train("sft", MODEL, file("columns.jsonl", '{"foo": 1}\n'))
    mentions(said, "columns.jsonl: ", " foo.")
    said = train("sft", MODEL, file("prompts.jsonl", '{"prompt": "a"}\n'))
    mentions(said, "prompts.jsonl: ", '"prompt"', '"chosen"', "set data.columns.chosen")
    said = train("sft", MODEL, file("empty.jsonl", ""))
    mentions(said, "no records", "empty.jsonl")
    mentions(train("sft", MODEL, TRAIN, "data.val_files=empty.jsonl"), "no records", "empty.jsonl")
    said = train("grpo", MODEL, TRAIN, "data.max_prompt_length=3")
    mentions(said, "train.jsonl: ", "the 60 records", "60 have prompts", "data.max_prompt_length")
    said = train("sft", MODEL, TRAIN, "data.val_files=train.jsonl", code=0)
    mentions(said, "warning: 60 of the 60 ")


def test_numbers_that_are_none_are_told(folder, train):
    (folder / "nan.jsonl").write_text('{"prompt": "a", "answer": NaN}\n')
    said = train("grpo", MODEL, "data.train_files=nan.jsonl")
    mentions(said, "nan.jsonl:1: not JSON", "NaN", "null")
    program = (
        "import sys, pyarrow, pyarrow.parquet\n"
        "table = pyarrow.table({'prompt': list('abcdefgh'), 'answer': [1.0] * 7 + [float('nan')]})\n"
        "pyarrow.parquet.write_table(table, sys.argv[1])"
    )
    subprocess.run([ROOT / ".venv-parquet/bin/python", "-c", program, folder / "nan.parquet"], check=True)
    said = train("grpo", MODEL, "data.train_files=nan.parquet", "reward.number.weight=1")
    mentions(said, "nan.parquet: record 8: column 'answer': ", "nan;")
    assert 'optim.lr: "nan" given, expected number > 0' in train("sft", MODEL, TRAIN, "optim.lr=nan")
