"""What `tdock bench serve/… --peer` alternates with: llama.cpp's server, and what its clients wait for.

    peer.py BENCHMARK --threads N [--quick]     writes `ready`, then a figure for each SIGUSR1
    peer.py --check                             writes the version, or says why it does not run here

The clients are those that ask ours: `tdock-bench --worker streams`. The server has the fastest of the settings that give
the same result, as a short trial of each tells, which is written to standard error.
"""

import argparse
import ctypes
import json
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path.append(str(HERE.parent / "generate"))

STREAMS = 64
# The figure of each benchmark by its name for the clients.
FIGURES = {
    "serve/throughput": "tokens_per_s",
    "serve/first_token/p50": "first_p50",
    "serve/first_token/p99": "first_p99",
    "serve/next_token/p99": "next_p99",
}
DTYPES = {"float32": "f32", "bfloat16": "bf16"}
# The most likely token, by the shortest way that llama.cpp has.
FIELDS = {"temperature": 0, "samplers": ["top_k"], "top_k": 1, "ignore_eos": True}
SETTINGS = {
    f"flash attention {flash}, {cache} cache": ["--flash-attn", flash, "--cache-type-k", cache, "--cache-type-v", cache]
    for flash in ("on", "off")
    for cache in ("f16", "own")
}
SECONDS_TO_START = 120


def load(quick):
    """As inference_benchmarks.cc has it."""
    sizes = {"streams": 4, "prompt": 8, "new_tokens": 8} if quick else {"streams": STREAMS, "prompt": 128, "new_tokens": 128}
    return sizes | {"fields": FIELDS}


def texts():
    """Of the 8,192 tokens: characters of three bytes, as those of our model (served_llama.cc)."""
    return [*(chr(0x4E00 + number) for number in range(8190)), "<pad>", "<eos>"]


def model_file(models, dtype):
    path = models / f"llama-{dtype}.gguf"
    if not path.exists():
        from model import gguf_file  # and torch

        gguf_file(models, "llama", dtype, texts())
    return path


def end_with_parent():
    """`tdock bench` kills this program, and what this one has started has to end, too."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


class Server:
    """llama-server, until it is stopped."""

    def __init__(self, arguments, dtype, settings):
        own = [DTYPES[dtype] if value == "own" else value for value in settings]
        command = [
            arguments.server, "--model", model_file(arguments.models, dtype), "--host", "127.0.0.1",
            "--port", "0", "--parallel", STREAMS, "--ctx-size", STREAMS * 512, "--cont-batching",
            "--threads", arguments.threads, "--threads-batch", arguments.threads, "--no-webui",
            # Prompts differ, so that what it would keep of them only takes time.
            "--no-cache-prompt", "--cache-ram", "0", *own,
        ]  # fmt: skip
        self.log = arguments.models / "llama-server.log"
        self.client = arguments.tdock_bench
        self.seed = 0
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                list(map(str, command)), stdout=output, stderr=subprocess.STDOUT, preexec_fn=end_with_parent
            )
        self.port = self.await_port()

    def await_port(self):
        deadline = time.monotonic() + SECONDS_TO_START
        while time.monotonic() < deadline and self.process.poll() is None:
            found = re.search(r"listening on http://127\.0\.0\.1:(\d+)", self.log.read_text(errors="replace"))
            if found and self.is_healthy(int(found[1])):
                return int(found[1])
            time.sleep(0.05)
        self.stop()
        lines = self.log.read_text(errors="replace").splitlines()
        raise RuntimeError("\n".join(["llama-server did not start:", *lines[-10:]]))

    @staticmethod
    def is_healthy(port):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=10) as answer:
                return answer.status == 200
        except urllib.error.HTTPError:  # it reads the model
            return False

    def figures(self, of):
        """What clients measure that ask for so much; in each run they have other prompts."""
        self.seed += 1
        asked = json.dumps(of | {"port": self.port, "seed": self.seed})
        done = subprocess.run(
            [self.client, "--worker", "streams", asked], capture_output=True, text=True, timeout=600, check=False
        )
        if done.returncode != 0:
            raise RuntimeError(f"the clients of llama-server failed: {done.stderr}")
        return json.loads(done.stdout)

    def stop(self):
        self.process.kill()
        self.process.wait()


def fastest(arguments, dtype):
    """A server with the fastest settings."""
    if arguments.quick:
        return Server(arguments, dtype, next(iter(SETTINGS.values())))
    rates = {}
    for name, settings in SETTINGS.items():
        server = Server(arguments, dtype, settings)
        try:
            server.figures(load(quick=True))
            rates[name] = server.figures(load(quick=False) | {"new_tokens": 32})["tokens_per_s"]
        finally:
            server.stop()
        print(f"{name}: {rates[name]:.0f} tokens/s", file=sys.stderr, flush=True)
    return Server(arguments, dtype, SETTINGS[max(rates, key=rates.get)])


def parsed():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("benchmark", nargs="?")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--models", type=Path, default=ROOT / "build/serve_peers")
    parser.add_argument("--server", type=Path, default=ROOT / ".venv-serve-peers/bin/llama-server")
    parser.add_argument("--tdock-bench", type=Path, default=ROOT / "build/release/tdock-bench")
    arguments = parser.parse_args()
    if not arguments.server.exists():
        sys.exit(f"there is no {arguments.server}: scripts/setup.sh serve-peers makes it")
    return arguments


def main():
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    arguments = parsed()
    if arguments.check:
        done = subprocess.run([arguments.server, "--version"], capture_output=True, text=True, check=True)
        print((done.stdout + done.stderr).strip().splitlines()[0])
        return
    name, _, dtype = (arguments.benchmark or "").partition("/dtype=")
    if name not in FIGURES or dtype not in DTYPES:
        sys.exit(f"'{arguments.benchmark}' is not for llama-server; {', '.join(FIGURES)} are, with /dtype=…")
    try:
        server = fastest(arguments, dtype)
        print("ready", flush=True)
        while True:
            signal.sigwait({signal.SIGUSR1})
            print(server.figures(load(arguments.quick))[FIGURES[name]], flush=True)
    except RuntimeError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
