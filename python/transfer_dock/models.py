"""Models to generate with: a server in a process of its own, which `tdock serve` is, and what asks it."""

from __future__ import annotations

import json
import os
import pathlib
import re
import secrets
import shutil
import tempfile
import threading
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

import numpy

from transfer_dock import executables, hub
from transfer_dock._child import Child
from transfer_dock.errors import Unavailable
from transfer_dock.scoring import headers_with, post, reply_of, score

_START_SECONDS = 600.0  # to read a model
_ANSWER_SECONDS = 3600.0  # without a byte of an answer
_LOOK_EVERY = 0.05
_DRAIN = 5.0  # seconds for requests in progress


class ModelServer:
    """A `tdock serve` of this process, which ends with it. Thread-safe.

    url: what clients of OpenAI's interface take as base_url. key: the key that they must send; None: none.
    """

    def __init__(self, url: str, key: str | None, child: Child) -> None:
        self.url, self.key, self._child = url, key, child
        self.pid = child.pid

    def close(self, drain: float = _DRAIN) -> None:
        """Ends it; requests in progress have ``drain`` seconds."""
        self._child.end(drain + 5.0)

    def __enter__(self) -> ModelServer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<ModelServer at {self.url}, process {self.pid}>"


def serve_model(
    model: str | os.PathLike[str] | Model,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    key: str | None = None,
    name: str | None = None,
    adapter: str | os.PathLike[str] | None = None,
    device: str = "cpu",
    dtype: str = "auto",
    threads: int = 0,
    revision: str | None = None,
    options: Sequence[str] = (),
    timeout: float = _START_SECONDS,
) -> ModelServer:
    """Serves a model over HTTP with OpenAI's interface, and returns when it answers.

    model: a folder, or a name on the Hub. port: 0: a free one. key: what clients must name. name: what clients call the
    model; default: as it was given. dtype: as of Model(). options: further ones of `tdock serve`. timeout: seconds for the model to be read.
    Raises Unavailable with the server's reason if it does not start.
    """
    folder = model.folder if isinstance(model, Model) else hub.model_folder(os.fspath(model), revision=revision)
    command: list[str | os.PathLike[str]] = [executables.find("tdock-serve"), "serve", "--model", folder]
    command += ["--host", host, "--port", str(port), "--device", device, "--dtype", dtype]
    command += ["--threads", str(threads), "--drain", str(_DRAIN)]
    command += ["--served-model-name", name or str(model if not isinstance(model, Model) else folder)]
    if adapter is not None:
        command += ["--adapter", os.fspath(adapter)]
    private = tempfile.mkdtemp(prefix="transfer-dock-") if key is not None else None
    try:
        if private is not None and key is not None:
            file = os.path.join(private, "key")
            with open(os.open(file, os.O_WRONLY | os.O_CREAT, 0o600), "w", encoding="utf-8") as text:
                text.write(key)
            command += ["--api-key-file", file]
        child = Child([*command, *options], lambda line: None)
        try:
            return ModelServer(_await_url(child, timeout, folder), key, child)
        except BaseException:
            child.end(0.0)
            raise
    finally:
        if private is not None:
            shutil.rmtree(private, ignore_errors=True)


def _await_url(child: Child, timeout: float, folder: str) -> str:
    until = time.monotonic() + timeout
    while True:
        ended = child.wait(_LOOK_EVERY) is not None
        if ended:
            child.output()
        for line in list(child.lines):
            if line.startswith("Serving ") and (found := re.search(r"https?://\S+:\d+", line)):
                return found[0] + "/v1"
        if ended:
            why = "\n".join(child.lines).removeprefix("tdock serve: ")
            raise Unavailable(f"the server of {folder} did not start: {why}")
        if time.monotonic() >= until:
            raise Unavailable(f"the server of {folder} was not ready after {timeout:g} s; give a longer timeout")


class Model:
    """A model to generate, chat and score with. Its server starts at the first call and ends with this object.

    folder: where the model is. Thread-safe.
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        adapter: str | os.PathLike[str] | None = None,
        device: str = "cpu",
        dtype: str = "auto",
        threads: int = 0,
        revision: str | None = None,
    ) -> None:
        """model: a folder, or a name on the Hub. adapter: a folder of low-rank adapters. threads: 0: one for each core.

        dtype: "float32", "bfloat16", on a GPU "float16"; "auto": the dtype of the model's files if the device is fast in it.
        """
        self.folder = hub.model_folder(os.fspath(model), revision=revision)
        self._options: dict[str, Any] = {"adapter": adapter, "device": device, "dtype": dtype, "threads": threads}
        self._server: ModelServer | None = None
        self._starting = threading.Lock()

    def generate(
        self, prompts: str | Sequence[str], *, max_new_tokens: int = 128, temperature: float = 1.0, n: int = 1, **sampling: Any
    ) -> Any:
        """Continues texts, as they stand. Returns a str for one prompt, or a list with one for each.

        With n > 1, each is a list of n. sampling: further parameters of `tdock serve`, such as top_p, seed and stop.
        """
        given = [prompts] if isinstance(prompts, str) else list(prompts)
        body = {"prompt": given, "max_tokens": max_new_tokens, "temperature": temperature, "n": n, **sampling}
        choices = sorted(self._ask("/v1/completions", body)["choices"], key=lambda choice: choice["index"])
        texts = [choice["text"] for choice in choices]
        answers: list[Any] = texts if n == 1 else [texts[i : i + n] for i in range(0, len(texts), n)]
        return answers[0] if isinstance(prompts, str) else answers

    def chat(
        self,
        messages: str | Sequence[Mapping[str, Any]],
        *,
        max_new_tokens: int | None = None,
        temperature: float = 1.0,
        **sampling: Any,
    ) -> str:
        """Replies to a conversation, by the model's chat template. messages: turns, or what the user says."""
        return "".join(self.stream_chat(messages, max_new_tokens=max_new_tokens, temperature=temperature, **sampling))

    def stream_chat(
        self,
        messages: str | Sequence[Mapping[str, Any]],
        *,
        max_new_tokens: int | None = None,
        temperature: float = 1.0,
        **sampling: Any,
    ) -> Iterator[str]:
        """The same, piece by piece as it is generated."""
        turns = [{"role": "user", "content": messages}] if isinstance(messages, str) else list(messages)
        body = {"messages": turns, "temperature": temperature, "stream": True, **sampling}
        if max_new_tokens is not None:
            body["max_tokens"] = max_new_tokens
        server = self.server
        with reply_of(f"{server.url}/chat/completions", body, headers_with(server.key), _ANSWER_SECONDS, direct=True) as reply:
            for line in reply:
                event = line.decode().removeprefix("data: ").strip()
                if not line.startswith(b"data: ") or event == "[DONE]":
                    continue
                told = json.loads(event)
                if "error" in told:
                    raise Unavailable(f"the server of {self.folder}: {told['error'].get('message', told['error'])}")
                for choice in told["choices"]:
                    yield choice["delta"].get("content") or ""

    def log_probs(self, prompt: str, completion: str) -> numpy.typing.NDArray[numpy.float32]:
        """The natural logarithms of the probabilities of the completion's tokens after the prompt, at temperature 1.

        The tokens are those of prompt + completion, from the first that differs from the prompt's own.
        """
        head, whole = self.tokenize(prompt), self.tokenize(prompt + completion)
        common = next((i for i, (a, b) in enumerate(zip(head, whole)) if a != b), min(len(head), len(whole)))
        scored = score([whole], url=self.server.url, api_key=self.server.key, direct=True)[0].log_probs[common:]
        return numpy.array([numpy.nan if value is None else value for value in scored], numpy.float32)

    def tokenize(self, text: str) -> list[int]:
        return list(self._ask("/tokenize", {"prompt": text})["tokens"])

    def detokenize(self, tokens: Sequence[int]) -> str:
        return str(self._ask("/detokenize", {"tokens": [int(token) for token in tokens]})["prompt"])

    @property
    def server(self) -> ModelServer:
        """The server, which is started if it is not there, or has ended."""
        with self._starting:
            if self._server is None or self._server._child.poll() is not None:
                self._server = serve_model(self, key=secrets.token_urlsafe(24), **self._options)
                weakref.finalize(self, self._server.close, 0.0)
            return self._server

    def close(self) -> None:
        """Ends the server. The next call starts another."""
        with self._starting:
            server, self._server = self._server, None
        if server is not None:
            server.close()

    def _ask(self, path: str, body: dict[str, Any]) -> Any:
        server = self.server
        return post(server.url.removesuffix("/v1") + path, body, headers_with(server.key), _ANSWER_SECONDS, direct=True)

    def __enter__(self) -> Model:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Model({self.folder!r})"
