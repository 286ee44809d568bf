"""What `tdock merge` makes opens in `transformers`: of ranks of ours, of FSDP's shards, of a Megatron checkpoint."""

import dataclasses
import json
import pickle
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch
from conftest import BUILD, ROOT, run_program
from decoders import MODELS, random_model
from messages import mentions
from safetensors.torch import load_file
from tokenizers import Tokenizer, models
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast
from waiting import LONG

KINDS = {  # kind of shards and model -> dtype; the vocabulary of 61 is never divided evenly
    "fsdp1-llama": torch.float32, "fsdp2-qwen2": torch.bfloat16, "fsdp2-llama-grouped-tied": torch.float32,
    "hsdp-qwen3": torch.float32, "megatron-qwen2-grouped-tied": torch.bfloat16, "megatron-qwen3": torch.float32,
    "megatron_stacked-llama": torch.float32, "megatron_stacked-qwen2": torch.float32,
}  # fmt: skip


def merge(*arguments, expect=0):
    command = [BUILD / "tdock", "merge", *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LONG)
    assert done.returncode == expect, done.stdout + done.stderr
    return done.stdout + done.stderr


def weights_of(folder):
    return {name: tensor for path in sorted(folder.glob("*.safetensors")) for name, tensor in load_file(path).items()}


def assert_same(folder, expected):
    found = weights_of(folder)
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype and torch.equal(found[name], tensor), name


def opened(folder):
    model, loading = AutoModelForCausalLM.from_pretrained(folder, dtype="auto", output_loading_info=True)
    assert not any(loading.values()), loading
    return model


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    """A folder for each kind, with the model that it was made of in huggingface/."""
    parent = tmp_path_factory.mktemp("shards")
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a")), eos_token="b",
        chat_template="{{ messages[0]['content'] }}",
    )  # fmt: skip
    for kind, dtype in KINDS.items():
        folder = parent / kind / "huggingface"
        random_model(MODELS[kind.split("-", 1)[1]]).to(dtype).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    shutil.copytree(parent / "fsdp1-llama/huggingface", parent / "fsdp2_lora/huggingface")
    folders = [parent / kind for kind in [*KINDS, "fsdp2_lora"]]
    subprocess.run([sys.executable, Path(__file__).parent / "shards.py", *folders], check=True)
    return parent


@pytest.mark.parametrize("kind", KINDS)
def test_shards_are_the_model_that_they_were_made_of(kind, shards, tmp_path):
    source, theirs = shards / kind, shards / kind / "huggingface"
    backend = kind.partition("-")[0].rstrip("12").replace("hsdp", "fsdp").replace("megatron_stacked", "megatron")
    # transformers is asked with all weights where a difference could hide; the numbers are compared to the bit.
    said = merge("--backend", backend, "--local_dir", source, "--target_dir", tmp_path / "ours", "--max_shard_size", "50KB")
    assert "merged" in said
    assert (tmp_path / "ours/model.safetensors.index.json").exists()
    assert_same(tmp_path / "ours", weights_of(theirs))
    assert opened(tmp_path / "ours").config.architectures == opened(theirs).config.architectures
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        assert (tmp_path / "ours" / name).read_bytes() == (theirs / name).read_bytes()
    assert "the same: " in merge("test", "--backend", backend, "--local_dir", source, "--test_hf_dir", theirs)
    if kind != "fsdp1-llama":
        return
    merge("--local_dir", source, "--target_dir", tmp_path / "half", "--dtype", "float16")  # the backend is found out
    assert_same(tmp_path / "half", {name: tensor.half() for name, tensor in weights_of(theirs).items()})
    assert opened(tmp_path / "half").dtype == torch.float16


def copied(source, target):
    shutil.copytree(source, target)
    shutil.rmtree(target / "merged", ignore_errors=True)
    return target


def repickled(path, change):
    """Replaces data.pkl in a file of torch.save."""
    with zipfile.ZipFile(path) as old:
        entries = {entry.filename: old.read(entry) for entry in old.infolist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as new:
        for name, data in entries.items():
            new.writestr(name, change(data) if name.endswith("data.pkl") else data)


class Harmful:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (self.path, "w"))


def test_shards_that_are_damaged_or_harmful_are_refused_by_name(shards, tmp_path):
    fsdp, hsdp = shards / "fsdp2-qwen2", shards / "hsdp-qwen3"
    name = "model_world_size_4_rank_2.pt"

    def refused(source, *words):
        said = merge("--backend", "fsdp", "--local_dir", source, "--target_dir", tmp_path / "none", expect=2)
        mentions(said, *words)
        assert not (tmp_path / "none").exists()

    missing = copied(fsdp, tmp_path / "missing")
    (missing / name).unlink()
    refused(missing, name, "of 4 ranks, 3 are there")
    cut = copied(fsdp, tmp_path / "cut")
    (cut / name).write_bytes((fsdp / name).read_bytes()[:-1000])
    refused(cut, name, "cut short")
    mixed = copied(fsdp, tmp_path / "mixed")
    shutil.copy(hsdp / name, mixed / name)
    refused(mixed, "tensor 'model.", "rank")
    harmful = copied(fsdp, tmp_path / "harmful")
    touched = tmp_path / "touched"
    repickled(harmful / name, lambda _: pickle.dumps({"model.norm.weight": Harmful(str(touched))}, protocol=2))
    refused(harmful, name, "open", "not run")
    assert not touched.exists()
    plain = copied(fsdp, tmp_path / "plain")  # tensors that no rank says to be parts, and are not the same
    for rank in range(4):
        torch.save({"w": torch.arange(3) + rank // 3}, plain / f"model_world_size_4_rank_{rank}.pt")
    (plain / "huggingface/config.json").write_text("{}")
    said = merge("--local_dir", plain, "--target_dir", tmp_path / "none", expect=2)
    mentions(said, "model_world_size_4_rank_3.pt", "other numbers")
    for rank in range(4):  # the last number of many
        torch.save({"w": torch.arange(1100 * 1024).view(1100, 1024).clamp(max=1100 * 1024 - 1 - rank // 2)},
                   plain / f"model_world_size_4_rank_{rank}.pt")  # fmt: skip
    said = merge("--local_dir", plain, "--target_dir", tmp_path / "none", expect=2)
    mentions(said, "model_world_size_4_rank_2.pt", "other numbers")


def test_tensors_that_all_ranks_have_are_read_once(shards, tmp_path):
    same = copied(shards / "fsdp2-qwen2", tmp_path / "same")
    weights = weights_of(same / "huggingface")
    for rank in range(4):
        torch.save({name: torch.nn.Parameter(tensor.t().contiguous().t()) if tensor.dim() == 2 else tensor
                    for name, tensor in weights.items()}, same / f"model_world_size_4_rank_{rank}.pt")  # fmt: skip
    merge("--backend", "fsdp", "--local_dir", same, "--target_dir", tmp_path / "ours")
    assert_same(tmp_path / "ours", weights)


def test_shards_with_adapters_are_merged_as_peft_merges_them(shards, tmp_path):
    source = copied(shards / "fsdp2_lora", tmp_path / "adapted")
    expected = weights_of(shards / "fsdp2_lora/merged")
    merge("--backend", "fsdp", "--local_dir", source, "--target_dir", tmp_path / "ours")
    found, changed = weights_of(tmp_path / "ours"), weights_of(source / "huggingface")
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, atol=1e-6, rtol=1e-5)
    assert not torch.equal(found["model.layers.1.mlp.down_proj.weight"], changed["model.layers.1.mlp.down_proj.weight"])
    (source / "lora_train_meta.json").unlink()
    assert "lora_train_meta.json" in merge("--local_dir", source, "--target_dir", tmp_path / "none", expect=2)


def test_the_optimizer_of_a_megatron_checkpoint_costs_next_to_nothing(shards, tmp_path):
    """40,000 chunks of it, in a file that is not there."""
    source = copied(shards / "megatron-qwen3", tmp_path / "large")
    (path,) = source.rglob(".metadata")
    metadata = pickle.loads(path.read_bytes())
    index, info = next(item for item in metadata.storage_data.items() if item[0].offset is not None)
    described = metadata.state_dict_metadata[index.fqn]
    for i in range(40_000):
        name = f"optimizer.state.exp_avg.{i}"
        metadata.state_dict_metadata[name] = described
        metadata.storage_data[dataclasses.replace(index, fqn=name)] = dataclasses.replace(info, relative_path="gone.distcp")
    path.write_bytes(pickle.dumps(metadata))
    merge("--backend", "megatron", "--local_dir", source, "--target_dir", tmp_path / "ours")
    assert_same(tmp_path / "ours", weights_of(shards / "megatron-qwen3/huggingface"))


def test_a_megatron_checkpoint_that_does_not_fit_is_refused_by_name(shards, tmp_path):
    source = copied(shards / "megatron-qwen3", tmp_path / "other")
    config = json.loads((source / "huggingface/config.json").read_text())

    def refused(change, *words):
        (source / "huggingface/config.json").write_text(json.dumps(config | change))
        said = merge("--backend", "megatron", "--local_dir", source, "--target_dir", tmp_path / "none", expect=2)
        mentions(said, *words)

    layers = config["num_hidden_layers"]
    types = ["full_attention"]
    refused({"num_hidden_layers": layers + 1, "layer_types": types * (layers + 1)}, "tensor 'decoder.layers.3.")
    refused({"num_hidden_layers": layers - 1, "layer_types": types * (layers - 1)}, "decoder.layers.2.")
    refused({"intermediate_size": 70}, "linear_fc1.weight'", "[144, 48]", "[140, 48]")
    said = merge("--is-value-model", "--local_dir", source, "--target_dir", tmp_path / "none", expect=2)
    mentions(said, "--is-value-model: ", "Megatron")
    (source / "dist_ckpt/__2_0.distcp").unlink()
    refused({}, "__2_0.distcp")


def test_what_ranks_have_trained_opens(tmp_path):
    subprocess.run(["python3", "examples/arithmetic/make_data.py", tmp_path], cwd=ROOT, check=True)
    run_program(
        "tdock", "launch", "--nproc", "2", "examples/arithmetic/sft.yaml", "--run-dir", tmp_path / "run", "zero_stage=3",
        f"data.train_files={tmp_path}/train.jsonl", f"data.val_files={tmp_path}/validation.jsonl", "trainer.test_freq=0",
        "trainer.total_training_steps=3", "trainer.save_freq=1", "trainer.stop_when=", "data.micro_batch_size_per_gpu=8",
        "model.hidden_size=48", "model.num_hidden_layers=2", "model.tie_word_embeddings=false",
    )  # fmt: skip
    run, target = tmp_path / "run", tmp_path / "merged"
    assert list((run / "checkpoints/step-000003").glob("state-rank-1-of-2.safetensors"))
    merge("--local_dir", run, "--target_dir", target, "--max_shard_size", "100KB", "--dtype", "bfloat16")
    ours, theirs = opened(target), AutoModelForCausalLM.from_pretrained(run / "checkpoint", dtype=torch.float32)
    assert ours.dtype == torch.bfloat16
    for name, weight in theirs.state_dict().items():
        assert torch.equal(ours.state_dict()[name], weight.bfloat16()), name
    tokens = [AutoTokenizer.from_pretrained(folder)("1+1=").input_ids for folder in (target, run / "checkpoint")]
    assert tokens[0] == tokens[1] and len(tokens[0]) > 0
