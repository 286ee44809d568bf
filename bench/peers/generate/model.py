"""The models that all peers compute with, in the form that each reads. Ours have the same shapes (MakeLlama95m, MakeSmolLm2, MakeQwen3);
their weights are drawn from another generator."""

import os
from pathlib import Path

import torch
from shapes import VOCABULARIES
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen3Config

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


SIZES = {
    "llama": {
        "hidden_size": 768, "intermediate_size": 2304, "num_hidden_layers": 12, "num_attention_heads": 12,
        "num_key_value_heads": 4, "tie_word_embeddings": False,
    },
    "smollm2": {
        "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9,
        "num_key_value_heads": 3, "tie_word_embeddings": True,
    },
    "qwen3": {
        "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16,
        "num_key_value_heads": 8, "head_dim": 128, "tie_word_embeddings": True,
    },
}  # fmt: skip


def random_model(model, dtype):
    """In every dtype the same weights, rounded."""
    kind = Qwen3Config if model == "qwen3" else LlamaConfig
    config = kind(
        vocab_size=VOCABULARIES[model], max_position_embeddings=1024, bos_token_id=None, eos_token_id=None, **SIZES[model]
    )
    torch.manual_seed(1)
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval().to(DTYPES[dtype])


def made(path, make):
    """`path`, made by make(path) if it is not there yet, whole or not at all."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name(f"{path.stem}-{os.getpid()}{path.suffix}")
        make(unfinished)
        os.rename(unfinished, path)
    return path


def huggingface_folder(models, model, dtype):
    return made(Path(models) / f"{model}-{dtype}", lambda path: random_model(model, dtype).save_pretrained(path))


def gguf_file(models, model, dtype, tokens=()):
    """With the texts of tokens, in UTF-8, of which the last one ends a text; or with none. int8: Q8_0."""
    return made(Path(models) / f"{model}-{dtype}.gguf", lambda path: write_gguf(path, model, dtype, tokens))


# llama.cpp's name of each tensor of a layer (gguf-py/gguf/tensor_mapping.py).
GGUF_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_name(name):
    outer = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    module = name.removesuffix(".weight")
    if module in outer:
        return f"{outer[module]}.weight"
    _, _, layer, part = module.split(".", 3)
    return f"blk.{layer}.{GGUF_NAMES[part]}.weight"


def interleaved(weight, heads):
    """The rows of each head in the order of llama.cpp, which rotates neighbours (convert_hf_to_gguf.py, permute)."""
    rows, columns = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


def byte_spellings():
    """The character that stands for each byte in a vocabulary of GPT-2's kind."""
    printed = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in printed else chr(next(others)) for byte in range(256)]


def add_vocabulary(writer, tokens):
    import gguf

    if not tokens:
        writer.add_tokenizer_model("no_vocab")
        return
    spellings = byte_spellings()
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(["".join(spellings[byte] for byte in token.encode()) for token in tokens])
    writer.add_token_types([gguf.TokenType.NORMAL] * (len(tokens) - 1) + [gguf.TokenType.CONTROL])
    writer.add_token_merges(["! !"])  # at least one has to be there
    writer.add_eos_token_id(len(tokens) - 1)
    writer.add_add_bos_token(False)


def write_gguf(path, model, dtype, tokens=()):
    import gguf

    kinds = gguf.GGMLQuantizationType
    is_qwen3, model = model == "qwen3", random_model(model, "float32")
    config = model.config
    writer = gguf.GGUFWriter(path, "qwen3" if is_qwen3 else "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(config.vocab_size)
    add_vocabulary(writer, tokens)
    products = {"float32": kinds.F32, "bfloat16": kinds.BF16, "int8": kinds.Q8_0}[dtype]
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        weight = tensor.numpy()
        if ("q_proj" in name or "k_proj" in name) and not is_qwen3:  # which rotates halves, as transformers does
            weight = interleaved(weight, config.num_attention_heads if "q_proj" in name else config.num_key_value_heads)
        kind = products if weight.ndim == 2 else kinds.F32
        writer.add_tensor(gguf_name(name), gguf.quantize(weight, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
