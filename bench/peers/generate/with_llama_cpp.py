"""llama.cpp through the C interface that llama-cpp-python wraps: a call of llama_decode() for each step of all rows."""

import ctypes
import sys

import llama_cpp
import numpy as np
from model import gguf_file
from shapes import FLOATS

FLASH_ATTENTION = {"flash attention": 1, "plain attention": 0}  # enum llama_flash_attn_type
DTYPES = (*FLOATS, "int8")
CACHES = {"float32": 0, "float16": 1, "bfloat16": 30}  # enum ggml_type


def versions():
    instructions = llama_cpp.llama_print_system_info().decode().strip(" |")
    return f"llama-cpp-python {llama_cpp.__version__}: {instructions}"


@ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
def errors_only(level, text, _):
    if level == 4:  # GGML_LOG_LEVEL_ERROR
        print(text.decode(), end="", file=sys.stderr)


class Decoder:
    def __init__(self, model, shape, threads, flash_attention, cache):
        self.shape = shape
        parameters = llama_cpp.llama_context_default_params()
        parameters.n_seq_max = shape.batch
        parameters.n_ctx = shape.batch * -(-shape.length // 256) * 256
        parameters.n_batch = max(shape.batch * shape.prompt, 64)
        parameters.n_threads = parameters.n_threads_batch = threads
        parameters.flash_attn_type = flash_attention
        parameters.type_k = parameters.type_v = cache
        self.context = llama_cpp.llama_init_from_model(model, parameters)
        if not self.context:
            raise RuntimeError("llama.cpp cannot make a context with these settings")
        self.batch = llama_cpp.llama_batch_init(parameters.n_batch, 0, 1)
        count = (parameters.n_batch,)
        self.tokens = np.ctypeslib.as_array(self.batch.token, count)
        self.positions = np.ctypeslib.as_array(self.batch.pos, count)
        self.wanted = np.ctypeslib.as_array(self.batch.logits, count)
        np.ctypeslib.as_array(self.batch.n_seq_id, count)[:] = 1

    def __del__(self):
        llama_cpp.llama_batch_free(self.batch)
        llama_cpp.llama_free(self.context)

    def start(self, prompts):
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), False)
        self.position = 0
        return self.step(np.array(prompts))

    def step(self, tokens):
        """`tokens` are [rows, tokens of a row]; of each row, the last one's logits are computed."""
        rows, length = tokens.shape
        count = self.batch.n_tokens = rows * length
        self.tokens[:count] = tokens.reshape(-1)
        self.positions[:count].reshape(rows, length)[:] = np.arange(self.position, self.position + length)
        self.wanted[:count].reshape(rows, length)[:] = np.arange(length) == length - 1
        for i in range(count):
            self.batch.seq_id[i][0] = i // length
        self.position += length
        if code := llama_cpp.llama_decode(self.context, self.batch):
            raise RuntimeError(f"llama_decode() returned {code}")
        logits = np.ctypeslib.as_array(llama_cpp.llama_get_logits(self.context), (rows, self.shape.vocabulary))
        return logits.argmax(-1)[:, None]


def settings(shape, threads, models):
    llama_cpp.llama_log_set(errors_only, None)
    llama_cpp.llama_backend_init()
    path = str(gguf_file(models, shape.model, shape.dtype)).encode()
    model = llama_cpp.llama_model_load_from_file(path, llama_cpp.llama_model_default_params())
    if not model:
        raise RuntimeError(f"llama.cpp cannot read {path.decode()}")
    return {
        f"{attention}, {cache} cache": lambda flash=flash, kind=kind: Decoder(model, shape, threads, flash, kind)
        for attention, flash in FLASH_ATTENTION.items()
        for cache, kind in CACHES.items()
        if cache in ("float16", shape.dtype)
    }
