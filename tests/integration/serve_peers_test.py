#!/usr/bin/env python3
"""What bench/peers/inference/peer.py measures, of a program that stands for llama-server:
tests/integration/serve_peers_test.py TDOCK"""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

from processes import is_running
from waiting import until

tdock = None
PEER = pathlib.Path(__file__).resolve().parents[2] / "bench/peers/inference/peer.py"

# Gives each stream its tokens as fast as it can. Writes its command line and its process down, and what it is asked.
SERVER = """#!{python}
import http.server, json, os, pathlib, sys

class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_): pass

    def do_GET(self):
        self.send_response(200); self.send_header("Content-Length", "0"); self.end_headers()

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with open("{folder}/asked", "a") as file: file.write(json.dumps(asked) + "\\n")
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream"); self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        events = [{{"choices": [{{"text": "a", "finish_reason": None}}]}} for _ in range(asked["max_tokens"])]
        for event in [*events, {{"usage": {{"completion_tokens": asked["max_tokens"] - {missing}}}}}]:
            data = ("data: " + json.dumps(event, separators=(",", ":")) + "\\n\\n").encode()
            self.wfile.write(b"%x\\r\\n%s\\r\\n" % (len(data), data))
        self.wfile.write(b"0\\r\\n\\r\\n")

server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
pathlib.Path("{folder}/started").write_text(json.dumps([os.getpid(), sys.argv]))
print(f"listening on http://127.0.0.1:{{server.server_port}}", flush=True)
server.serve_forever()
"""


class ServePeers(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        (self.folder / "llama-bfloat16.gguf").touch()  # so that none is made

    def bench(self, name="serve/throughput/dtype=bfloat16", missing=0):
        server = self.folder / "server"
        server.write_text(SERVER.format(python=sys.executable, folder=self.folder, missing=missing))
        server.chmod(0o755)
        bench = pathlib.Path(tdock).with_name("tdock-bench")
        peer = f"{sys.executable} {PEER} --server {server} --models {self.folder} --tdock-bench {bench}"
        file = self.folder / "figures.json"
        done = subprocess.run(
            [tdock, "bench", name, "--quick", "--runs", "2", "--threads", "1", "--peer", peer, "--json", str(file)],
            capture_output=True, text=True,
        )  # fmt: skip
        return done, json.loads(file.read_text())["results"] if file.exists() else None

    def test_ours_alternates_with_it(self):
        done, results = self.bench()
        self.assertEqual(done.returncode, 0, done.stderr)
        (result,) = results
        self.assertEqual((result["unit"], result["of"], len(result["reference_runs"])), ("tokens/s", "peer", 2))
        self.assertGreater(result["ratio"], 0)
        for key in ("tokens_per_s", "first_token_p50_ms", "first_token_p99_ms"):
            self.assertGreater(result[key], 0, key)
        process, command = json.loads((self.folder / "started").read_text())
        until(lambda: not is_running(process), "the end of the server", every=0.01)
        self.assertIn("--parallel 64", " ".join(command))
        asked = [json.loads(line) for line in (self.folder / "asked").read_text().splitlines()]
        self.assertEqual(len(asked), 3 * 4)
        self.assertEqual(len({tuple(one["prompt"]) for one in asked}), 3 * 4, "no prompt comes twice")
        for one in asked:
            self.assertTrue(one["stream"] and one["ignore_eos"])
            self.assertEqual((len(one["prompt"]), one["max_tokens"], one["temperature"]), (8, 8, 0))

    def test_streams_of_another_length_have_no_figure(self):
        done, results = self.bench(missing=1)
        self.assertNotEqual(done.returncode, 0)
        self.assertIsNone(results)
        self.assertIn("7 tokens", done.stderr)

    def test_other_benchmarks_are_not_for_it(self):
        done, _ = self.bench("serve/update_weights/dtype=bfloat16")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("is not for llama-server", done.stderr)


if __name__ == "__main__":
    tdock = sys.argv.pop(1)
    unittest.main()
