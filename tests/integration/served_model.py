"""A `tdock serve` of a small model, for tests."""

import contextlib
import http.client
import json
import pathlib
import re
import signal
import subprocess
import tempfile
import threading
import unittest

import openai
from generate_test import POSITIONS, write_model
from waiting import LONG, until

NAME = "small"

# With a place for tools.
TEMPLATE = (
    "{%- if tools %}{{ tools | length }} tools;{% endif %}{%- for m in messages %}({{ m.role }}){{ m.content }}"
    "{%- endfor %}{% if add_generation_prompt %}(a){% endif %}"
)


class Server:
    """A `tdock serve` that ends with its test."""

    tdock = None  # the program

    def __init__(self, model, *options, name=NAME):
        command = [self.tdock, "serve", "--model", str(model), "--port", "0", "--threads", "1", *map(str, options)]
        if name:
            command += ["--served-model-name", name]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self.lines = []
        self.ready = threading.Event()
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()
        if not self.ready.wait(LONG) or self.process.poll() is not None:
            self.end()
            raise AssertionError("".join(self.lines))
        self.port = int(re.search(r"http://127.0.0.1:(\d+)", "".join(self.lines))[1])
        self.client = openai.OpenAI(
            base_url=f"http://127.0.0.1:{self.port}/v1", api_key="none", max_retries=0, timeout=LONG
        )

    def _read(self):
        for line in self.process.stderr:
            self.lines.append(line)
            if line.startswith("Serving "):
                self.ready.set()
        self.ready.set()

    def end(self, number=signal.SIGTERM):
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            return self.process.wait(LONG)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        finally:
            self.process.wait(LONG)
            self.reader.join(LONG)
            self.process.stderr.close()

    def ask(self, method, path, body=None, headers=None):
        """Status, body (of JSON where it is), headers."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=LONG)
        with contextlib.closing(connection):
            data = body if isinstance(body, (bytes, type(None))) else json.dumps(body).encode()
            connection.request(method, path, data, headers or {})
            response = connection.getresponse()
            text = response.read().decode()
            is_json = response.headers.get("Content-Type") == "application/json"
            return response.status, json.loads(text) if is_json else text, response.headers

    def metric(self, name):
        text = self.ask("GET", "/metrics")[1]
        return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(name))

    def await_metric(self, name, value):
        until(lambda: self.metric(name) == value, lambda: f"{name} {value}, not {self.metric(name)}", every=0.02)


class WithServer(unittest.TestCase):
    options = ()
    positions = POSITIONS

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        cls.model = write_model(
            cls.folder / "model", chat_template=TEMPLATE, max_position_embeddings=cls.positions
        )
        cls.server = Server(cls.model, *cls.options)
        cls.addClassCleanup(cls.server.end)
        cls.client = cls.server.client

    def complete(self, prompt="hello", **fields):
        return self.client.completions.create(model=NAME, prompt=prompt, **fields)

    def chat(self, *contents, **fields):
        messages = [{"role": "user", "content": content} for content in contents]
        return self.client.chat.completions.create(model=NAME, messages=messages, **fields)
