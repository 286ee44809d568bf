#!/usr/bin/env python3
"""Two steps of GRPO whose prompts vLLM's build for CPUs answers: tests/nightly/vllm.py TDOCK

vLLM reads the weights of each step from a folder. How far its log-probabilities are from ours says whether it has them.
"""

import json
import os
import pathlib
import random
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import unittest
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.append(str(ROOT / "tests/integration"))
from generate_test import write_model  # noqa: E402
from messages import mentions  # noqa: E402
from waiting import LONG, until  # noqa: E402

ENVIRONMENT = ROOT / ".venv-generate-vllm"
MAX_DIFFERENCE = 1e-3
POSITIONS = 64
# vLLM's attention has heads of 64 numbers, and none of 8.
HIDDEN, INTERMEDIATE, LAYERS, VOCABULARY = 128, 256, 2, 257
REWARD = """
def letters(prompts, completions, **kwargs):
    return [sum("a" <= c <= "z" for c in text) / 8 for text in completions]
"""
tdock = None


def write_weights(path):
    """Random weights of a Llama in float32."""
    shapes = {"model.embed_tokens.weight": (VOCABULARY, HIDDEN), "model.norm.weight": (HIDDEN,)}
    shapes["lm_head.weight"] = (VOCABULARY, HIDDEN)
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        shapes |= {f"{at}self_attn.{name}_proj.weight": (HIDDEN, HIDDEN) for name in "qkvo"}
        shapes |= {f"{at}mlp.{name}_proj.weight": (INTERMEDIATE, HIDDEN) for name in ("gate", "up")}
        shapes |= {f"{at}mlp.down_proj.weight": (HIDDEN, INTERMEDIATE)}
        shapes |= {f"{at}{name}_layernorm.weight": (HIDDEN,) for name in ("input", "post_attention")}
    numbers = random.Random(0)
    header, data = {}, bytearray()
    for name, shape in shapes.items():
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        values = [1.0 if len(shape) == 1 else numbers.gauss(0, 0.15) for _ in range(count)]
        begin = len(data)
        data += struct.pack(f"<{count}f", *values)
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [begin, len(data)]}
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def write_llama(folder):
    write_model(
        folder, hidden_size=HIDDEN, intermediate_size=INTERMEDIATE, num_hidden_layers=LAYERS,
        max_position_embeddings=POSITIONS,
        tie_word_embeddings=False,  # tied, vLLM's CPU build keeps its packed copy of the old ones for the output
    )  # fmt: skip
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | {"tokenizer_class": "PreTrainedTokenizerFast"}))
    write_weights(folder / "model.safetensors")
    return folder


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class Vllm:
    """A server that ends with the test."""

    def __init__(self, test, model, folder, **environment):
        self.url = f"http://127.0.0.1:{free_port()}"
        self.log = folder / "vllm.log"
        command = [
            ENVIRONMENT / "bin/vllm", "serve", model, "--host", "127.0.0.1", "--port", self.url.rsplit(":", 1)[1],
            "--dtype", "float32", "--max-model-len", POSITIONS, "--generation-config", "vllm", "--enforce-eager",
            "--enable-scale-out", "--logprobs-mode", "processed_logprobs",
        ]  # fmt: skip
        environment = os.environ | environment | {
            "VLLM_TARGET_DEVICE": "cpu", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1", "VLLM_CACHE_ROOT": str(folder / "cache"),
            # With the OpenMP of its torch it takes several times as long.
            "LD_PRELOAD": str(ENVIRONMENT / "lib/libiomp5.so"),
        }  # fmt: skip
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                list(map(str, command)), stdout=log, stderr=subprocess.STDOUT, env=environment, start_new_session=True
            )
        test.addCleanup(self.end)
        until(self._is_up, lambda: f"vLLM, which says:\n{self.log.read_text()[-4000:]}", every=0.5)

    def _is_up(self):
        if self.process.poll() is not None:
            raise AssertionError(self.log.read_text()[-4000:])
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=LONG) as answer:
                return answer.status == 200
        except urllib.error.URLError:
            return False

    def end(self):
        if self.process.poll() is None:
            self.process.terminate()  # it ends its other processes
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)  # it leads a session of its own
        self.process.wait(LONG)


class Answers(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        cls.model = write_llama(cls.folder / "model")
        (cls.folder / "reward.py").write_text(REWARD)
        lines = [json.dumps({"prompt": f"{i:02}=", "answer": "x"}) for i in range(32)]
        (cls.folder / "data.jsonl").write_text("\n".join(lines))

    def train(self, run, url, *overrides):
        command = [
            tdock, "train", "examples/arithmetic/grpo.yaml", "--run-dir", run, f"model.path={self.model}",
            f"data.train_files={self.folder}/data.jsonl", f"data.val_files={self.folder}/data.jsonl",
            f"reward.function=[{self.folder}/reward.py:letters]", "data.train_batch_size=8", "rollout.n=4",
            "actor.ppo_mini_batch_size=4", "actor.optim.lr=0.001", "actor.optim.lr_warmup_steps=0",
            "trainer.total_training_steps=2", "trainer.test_freq=0", "trainer.val_before_train=false",
            "trainer.val_max_samples=4", f"rollout.servers=[{url}]", *overrides,
        ]  # fmt: skip
        return subprocess.run(list(map(str, command)), cwd=ROOT, capture_output=True, text=True)

    def test_two_steps_have_the_log_probabilities_of_the_policy(self):
        server = Vllm(self, self.model, self.folder, VLLM_SERVER_DEV_MODE="1")
        run = self.folder / "run"
        done = self.train(run, server.url, "rollout.server_weights=folder")
        self.assertEqual(done.returncode, 0, f"{done.stderr}\n{server.log.read_text()[-4000:]}")
        records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        steps = [record for record in records if "actor/pg_loss" in record]
        self.assertEqual(len(steps), 2)
        for number, step in enumerate(steps, 1):
            print(f"step {number}: rollout_corr/kl {step['rollout_corr/kl']:.1e}, "
                  f"rollout_corr/max_abs_diff {step['rollout_corr/max_abs_diff']:.1e}, "
                  f"weights in {step['rollout/server_weights_s']:.2f} s", flush=True)  # fmt: skip
            self.assertLess(abs(step["rollout_corr/kl"]), MAX_DIFFERENCE)
            self.assertGreater(step["rollout/server_weights_s"], 0)
            self.assertEqual(step["rollout/server_wrong_version"], 0)
        self.assertGreater(steps[1]["actor/grad_norm"], 0)

    def test_a_server_that_takes_no_weights_is_refused_before_the_run(self):
        server = Vllm(self, self.model, self.folder)
        run = self.folder / "refused"
        done = self.train(run, server.url, "rollout.server_weights=folder")
        self.assertNotEqual(done.returncode, 0)
        mentions(done.stderr, server.url, "vLLM 0.32", "/collective_rpc", "404", "VLLM_SERVER_DEV_MODE=1")
        self.assertFalse(run.exists())


if __name__ == "__main__":
    tdock = str(pathlib.Path(sys.argv.pop(1)).resolve())
    if not (ENVIRONMENT / "bin/vllm").exists():
        sys.exit(f"{ENVIRONMENT.name} is missing: run scripts/setup.sh vllm")
    unittest.main()
