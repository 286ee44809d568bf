"""Four ranks that write shards of models: python shards.py FOLDER…

The name of a FOLDER begins with the kind of shards: fsdp1, fsdp2, hsdp: model_world_size_W_rank_R.pt as FSDP of PyTorch
leaves them; fsdp2_lora: the same with adapters; megatron, megatron_stacked: a distributed checkpoint with Megatron's
names, fused projections and shards of tensor parallelism. The model is in FOLDER/huggingface.
"""

import copy
import json
import multiprocessing
import pickle
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from peft import LoraConfig, get_peft_model
from torch.distributed import checkpoint
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, TensorProperties
from torch.distributed.checkpoint.planner import SavePlan, TensorWriteData, WriteItem, WriteItemType
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, ShardedStateDictConfig, StateDictType, fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from transformers import AutoModelForCausalLM


def with_adapters(model, rank, folder):
    """As verl trains them; the model with them merged, as peft does it, is in FOLDER/merged."""
    torch.manual_seed(3)
    adapted = get_peft_model(model, LoraConfig(r=4, lora_alpha=6, target_modules=["q_proj", "v_proj", "down_proj"]))
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            parameter.normal_()
    if rank == 0:
        copy.deepcopy(adapted).merge_and_unload().save_pretrained(folder / "merged")
        meta = {"r": 4, "lora_alpha": 6, "task_type": "CAUSAL_LM"}
        (folder / "lora_train_meta.json").write_text(json.dumps(meta))
    return adapted


def fsdp(kind, model, rank, ranks, folder):
    shape, names = ((2, ranks // 2), ("ddp", "fsdp")) if kind == "hsdp" else ((ranks,), ("fsdp",))
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
    if kind == "fsdp1":
        wrapped = FullyShardedDataParallel(model, device_mesh=mesh, use_orig_params=True, device_id=torch.device("cpu"))
        with FullyShardedDataParallel.state_dict_type(
            wrapped, StateDictType.SHARDED_STATE_DICT, ShardedStateDictConfig(offload_to_cpu=True)
        ):
            state = wrapped.state_dict()
    else:
        for layer in [module for module in model.modules() if type(module).__name__.endswith("DecoderLayer")]:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        state = model.state_dict()
    torch.save(state, folder / f"model_world_size_{ranks}_rank_{rank}.pt")


def fused(model):
    """The weights under Megatron's names: name -> (tensor, the dimension that tensor parallelism divides)."""
    config, weights = model.config, model.state_dict()
    groups = config.num_key_value_heads
    found = {
        "embedding.word_embeddings.weight": (weights["model.embed_tokens.weight"], 0),
        "decoder.final_layernorm.weight": (weights["model.norm.weight"], None),
    }
    if not config.tie_word_embeddings:
        found["output_layer.weight"] = (weights["lm_head.weight"], 0)
    for i in range(config.num_hidden_layers):
        theirs, ours = f"model.layers.{i}.", f"decoder.layers.{i}."

        def qkv(end, theirs=theirs):
            parts = [weights[f"{theirs}self_attn.{part}_proj.{end}"] for part in "qkv"]
            parts = [part.unflatten(0, (groups, -1)) for part in parts]
            return torch.cat(parts, dim=1).flatten(0, 1)

        found[ours + "self_attention.linear_qkv.weight"] = (qkv("weight"), 0)
        if theirs + "self_attn.q_proj.bias" in weights:
            found[ours + "self_attention.linear_qkv.bias"] = (qkv("bias"), 0)
        found[ours + "self_attention.linear_qkv.layer_norm_weight"] = (weights[theirs + "input_layernorm.weight"], None)
        found[ours + "self_attention.linear_proj.weight"] = (weights[theirs + "self_attn.o_proj.weight"], 1)
        for part in ("q", "k"):
            if theirs + f"self_attn.{part}_norm.weight" in weights:
                norm = weights[theirs + f"self_attn.{part}_norm.weight"]
                found[ours + f"self_attention.{part}_layernorm.weight"] = (norm, None)
        found[ours + "mlp.linear_fc1.layer_norm_weight"] = (weights[theirs + "post_attention_layernorm.weight"], None)
        gate, up = weights[theirs + "mlp.gate_proj.weight"], weights[theirs + "mlp.up_proj.weight"]
        found[ours + "mlp.linear_fc1.weight"] = (torch.cat([gate, up]), 0)
        found[ours + "mlp.linear_fc2.weight"] = (weights[theirs + "mlp.down_proj.weight"], 1)
    return found


def megatron(kind, model, rank, ranks, folder):
    mesh = init_device_mesh("cpu", (ranks,), mesh_dim_names=("tp",))
    found = fused(model)
    padded = {"embedding.word_embeddings.weight", "output_layer.weight"}  # to a multiple of 64, as Megatron does
    state = {}
    for name, (tensor, dim) in found.items():
        if name in padded:
            tensor = torch.nn.functional.pad(tensor, (0, 0, 0, -tensor.shape[0] % 64))
        if kind == "megatron_stacked" and name.startswith("decoder.layers."):
            rest = name.split(".", 3)[3]
            layers = [found[f"decoder.layers.{i}.{rest}"][0] for i in range(model.config.num_hidden_layers)]
            name, tensor = "decoder.layers." + rest, torch.stack(layers)
            dim = None if dim is None else dim + 1
        if name not in state:
            state[name] = distribute_tensor(tensor, mesh, [Replicate() if dim is None else Shard(dim)])
    state["decoder.layers.0.self_attention.linear_qkv._extra_state/shard_0_2"] = b"anything"
    checkpoint.save(state, checkpoint_id=folder / "dist_ckpt")
    if rank == 0:  # Megatron adds the plans by which its ranks have saved
        path = folder / "dist_ckpt/.metadata"
        metadata = pickle.loads(path.read_bytes())
        index = next(index for index, saved in metadata.storage_data.items() if index.offset is not None)
        chunk = ChunkStorageMetadata(index.offset, torch.Size([1]))
        data = TensorWriteData(chunk, TensorProperties(torch.float32), torch.Size([1]))
        metadata.all_local_plans = [SavePlan([WriteItem(index, WriteItemType.SHARD, tensor_data=data)], metadata.storage_data)]
        path.write_bytes(pickle.dumps(metadata))


def rank_main(rank, ranks, rendezvous, folders):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=ranks)
    for folder in folders:
        model = AutoModelForCausalLM.from_pretrained(folder / "huggingface", dtype="auto")
        kind = folder.name.split("-")[0]
        with torch.no_grad():
            if kind.startswith("megatron"):
                megatron(kind, model, rank, ranks, folder)
            else:
                fsdp(kind, with_adapters(model, rank, folder) if "lora" in kind else model, rank, ranks, folder)
    dist.barrier()
    dist.destroy_process_group()


def main():
    ranks, folders = 4, [Path(folder) for folder in sys.argv[1:]]
    with tempfile.TemporaryDirectory() as rendezvous:
        fork = multiprocessing.get_context("fork")  # everything is imported once
        arguments = (ranks, f"{rendezvous}/file", folders)
        started = [fork.Process(target=rank_main, args=(rank, *arguments)) for rank in range(ranks)]
        for process in started:
            process.start()
        for process in started:
            process.join()
        sys.exit(any(process.exitcode != 0 for process in started))


if __name__ == "__main__":
    main()
