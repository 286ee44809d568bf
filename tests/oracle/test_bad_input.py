"""What `tdock` says of folders and files that cannot be trained with, or hardly."""

import json
import shutil
import subprocess

import pytest
from conftest import BUILD, ROOT
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
    """Runs `tdock train`; what it says."""
    run_dirs = (tmp_path / f"run{i}" for i in range(100))

    def run(recipe, *overrides, code=2):
        run_dir = next(run_dirs)
        result = subprocess.run(
            [BUILD / "tdock", "train", folder / f"{recipe}.yaml", "--run-dir", run_dir, *overrides],
            cwd=folder, capture_output=True, text=True, timeout=120,
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
        assert f"there is no folder {name} with a model. If it is a model on the Hugging Face hub: nothing is downloaded" in said
        assert f"`hf download {name} --local-dir FOLDER`" in said
    said = train("sft", MODEL, "data.train_files=owner/set")
    assert "If it is a data set on the Hugging Face hub: nothing is downloaded" in said


def test_files_that_are_no_safetensors_are_told_apart(folder, train):
    def weights(contents):
        return lambda model: (model / "model.safetensors").write_bytes(contents)

    whole = (folder / "model/model.safetensors").read_bytes()
    said = train("sft", spoilt(folder, "text", weights(b"<!DOCTYPE html>\n<html></html>")), TRAIN)
    assert "text/model.safetensors: not a safetensors file, or cut short" in said
    said = train("sft", spoilt(folder, "cut", weights(whole[: len(whole) // 2])), TRAIN)
    assert "cut/model.safetensors: tensor '" in said and "as in a file that was cut short" in said
    said = train("sft", spoilt(folder, "lfs", weights(b"version https://git-lfs.github.com/spec/v1\nsize 9\n")), TRAIN)
    assert "lfs/model.safetensors: this is a pointer of Git LFS" in said and "git lfs pull" in said


def test_a_wrong_size_names_the_first_tensor_and_how_many_do_not_fit(folder, train):
    said = train("sft", spoilt(folder, "wide", with_json("config.json", hidden_size=128)), TRAIN)
    assert (
        "wide/model.safetensors: wrong shapes of 21 of 21 weights, the first of model.embed_tokens.weight: it is [259, 64],"
        " config.json makes it [259, 128]"
    ) in said


def test_a_template_and_a_tokenizer_that_disagree_are_told(folder, train):
    llama3 = packaged("trl/chat_templates/llama3.jinja")
    said = train("sft", spoilt(folder, "llama3", lambda model: (model / "chat_template.jinja").write_text(llama3)), TRAIN)
    assert "train.jsonl:1: the model's chat_template writes the tokenizer's bos_token, and the tokenizer has none" in said
    assert "choose the template that the model was made with" in said
    said = train("sft", MODEL, TRAIN, "data.template=llama3")
    assert 'the template "llama3" needs the token that begins a text, which the tokenizer does not have' in said
    said = train("sft", spoilt(folder, "none", lambda model: (model / "chat_template.jinja").unlink()), TRAIN)
    assert "the model has no chat_template; choose a template by name: chatml" in said
    said = train("sft", spoilt(folder, "other", lambda model: (model / "chat_template.jinja").write_text("{{ x }}")), TRAIN)
    assert "train.jsonl:1: turn 1 of the conversation: it is of the user, which the model's chat_template does not render here" in said
    said = train("sft", spoilt(folder, "broken", lambda model: (model / "chat_template.jinja").write_text("{% if %}")), TRAIN)
    assert "broken/chat_template.jinja: the model's chat_template: line 1: expected an expression" in said

    def ends_otherwise(model):
        with_json("config.json", eos_token_id=5)(model)
        with_json("generation_config.json", eos_token_id=5)(model)
        with_json("tokenizer_config.json", eos_token="<|pad|>")(model)

    said = train("sft", spoilt(folder, "ends", ends_otherwise), TRAIN, code=0)
    assert "warning: the template ends a reply with the token <|im_end|> (" in said
    assert 'to "eos_token_id" in generation_config.json' in said


def test_data_that_cannot_be_used_is_told(folder, train):
    def file(name, text):
        (folder / name).write_text(text)
        return f"data.train_files={name}"

    said = train("sft", MODEL, file("columns.jsonl", '{"foo": 1}\n'))
    assert "columns.jsonl: its columns tell of no form of data that is known: foo" in said
    said = train("sft", MODEL, file("prompts.jsonl", '{"prompt": "a"}\n'))
    assert 'prompts.jsonl: the data set "prompt" names no column for "chosen"' in said and "set data.columns.chosen" in said
    said = train("sft", MODEL, file("empty.jsonl", ""))
    assert "there are no records in empty.jsonl" in said
    assert "there are no records in empty.jsonl" in train("sft", MODEL, TRAIN, "data.val_files=empty.jsonl")
    said = train("grpo", MODEL, TRAIN, "data.max_prompt_length=3")
    assert "train.jsonl: none of the 60 records can be used: 60 have prompts too long for data.max_prompt_length" in said
    said = train("sft", MODEL, TRAIN, "data.val_files=train.jsonl", code=0)
    assert "warning: 60 of the 60 validation samples are also in the training data" in said


def test_numbers_that_are_none_are_told(folder, train):
    (folder / "nan.jsonl").write_text('{"prompt": "a", "answer": NaN}\n')
    said = train("grpo", MODEL, "data.train_files=nan.jsonl")
    assert "nan.jsonl:1: not JSON" in said and "NaN and Infinity are no numbers in JSON, where null may stand" in said
    program = (
        "import sys, pyarrow, pyarrow.parquet\n"
        "table = pyarrow.table({'prompt': list('abcdefgh'), 'answer': [1.0] * 7 + [float('nan')]})\n"
        "pyarrow.parquet.write_table(table, sys.argv[1])"
    )
    subprocess.run([ROOT / ".venv-parquet/bin/python", "-c", program, folder / "nan.parquet"], check=True)
    said = train("grpo", MODEL, "data.train_files=nan.parquet", "reward.number.weight=1")
    assert "nan.parquet: record 8: column 'answer': it holds nan; a finite number is expected" in said
    assert 'optim.lr: "nan" given, expected number > 0' in train("sft", MODEL, TRAIN, "optim.lr=nan")
