#!/usr/bin/env python3
"""Loading a checkpoint of 2 GB takes no more than 1.1 times its size in memory.

usage: load_memory_test.py TDOCK_LOGITS
"""

import json
import pathlib
import struct
import subprocess
import sys
import tempfile

MOST = 1.1


def config(hidden, layers):
    """A model whose head is a tenth of it, and comes last."""
    return {
        "model_type": "llama", "vocab_size": 32_000, "hidden_size": hidden, "intermediate_size": 2 * hidden,
        "num_hidden_layers": layers, "num_attention_heads": 16, "num_key_value_heads": 16,
        "max_position_embeddings": 64, "tie_word_embeddings": False, "dtype": "float32",
    }  # fmt: skip


def shapes(c):
    hidden, wide = c["hidden_size"], c["intermediate_size"]
    yield "model.embed_tokens.weight", [c["vocab_size"], hidden]
    for i in range(c["num_hidden_layers"]):
        layer = f"model.layers.{i}."
        for name in ("q", "k", "v", "o"):
            yield layer + f"self_attn.{name}_proj.weight", [hidden, hidden]
        yield layer + "mlp.gate_proj.weight", [wide, hidden]
        yield layer + "mlp.up_proj.weight", [wide, hidden]
        yield layer + "mlp.down_proj.weight", [hidden, wide]
        yield layer + "input_layernorm.weight", [hidden]
        yield layer + "post_attention_layernorm.weight", [hidden]
    yield "model.norm.weight", [hidden]
    yield "lm_head.weight", [c["vocab_size"], hidden]


def write_checkpoint(folder, hidden, layers):
    """The bytes of its weights, all of them zero, which take no room on the disk."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config(hidden, layers)))
    header, end = {}, 0
    for name, shape in shapes(config(hidden, layers)):
        begin, end = end, end + 4 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    with open(folder / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)
    return end


def peak_bytes(program, folder):
    """The most memory that the program had at a time, while it loaded the folder and read one token."""
    script = (
        "import resource, subprocess, sys;"
        "subprocess.run(sys.argv[1:], input=b'{\"rows\": [[1]]}', stdout=subprocess.DEVNULL, check=True);"
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    )
    command = [sys.executable, "-c", script, program, folder, "full"]
    return 1024 * int(subprocess.run(command, capture_output=True, check=True).stdout)


def main():
    program = sys.argv[1]
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        small = write_checkpoint(folder / "small", 32, 1)
        large = write_checkpoint(folder / "large", 2048, 9)
        assert large > 2e9, large
        ratio = (peak_bytes(program, folder / "large") - peak_bytes(program, folder / "small")) / (large - small)
        print(f"{ratio:.3f} times the size")
        assert 0.9 < ratio < MOST, f"{ratio:.3f} of the size, at most {MOST}"


if __name__ == "__main__":
    main()
