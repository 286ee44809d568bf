"""Log-probabilities from a model that `tdock serve` serves: a real server, and one that stands for others."""

from __future__ import annotations

import http.server
import json
import os
import pathlib
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import transfer_dock as td

from messages import raising
from waiting import LONG

TDOCK = pathlib.Path(os.environ["TDOCK_BUILD"]) / "tdock"
sys.path.append(str(pathlib.Path(os.environ["TDOCK_SOURCE"]) / "tests/integration"))

from generate_test import write_model  # noqa: E402


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return write_model(tmp_path_factory.mktemp("served") / "model")


@pytest.fixture(scope="module")
def url(model: pathlib.Path) -> Iterator[str]:
    command = [TDOCK, "serve", "--model", model, "--port", "0", "--threads", "1"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            found = next(filter(None, (re.search(r"http://127\.0\.0\.1:\d+", line) for line in process.stderr)))
            yield found[0]
        finally:
            process.kill()


def test_scores_are_those_of_the_command_line(model: pathlib.Path, url: str, tmp_path: pathlib.Path) -> None:
    texts = ["37+85=122", "abc" * 20]
    (tmp_path / "in").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    subprocess.run(
        [TDOCK, "generate", "--model", model, "--score", "--input", tmp_path / "in", "--output", tmp_path / "out",
         "--in-order", "--top-log-probs", "2"], check=True, stdout=subprocess.DEVNULL, timeout=LONG,
    )  # fmt: skip
    lines = [json.loads(line) for line in (tmp_path / "out").read_text().splitlines()]
    for base in (url, url + "/v1/"):
        for one, line in zip(td.score(texts, url=base, top=2, timeout=LONG), lines, strict=True):
            assert one.ids == line["ids"]
            assert one.log_probs == line["log_probs"]
            assert one.ranks == line["ranks"]
            likely = [top and [[likely["id"], likely["log_prob"]] for likely in top] for top in line["top_log_probs"]]
            assert [top and list(map(list, top.items())) for top in one.top] == likely


def test_prompts_may_be_tokens_and_many(url: str) -> None:
    (text,) = td.score(["abc"], url=url, timeout=LONG)
    assert td.score([[97, 98, 99]], url=url, timeout=LONG) == [text]
    assert text.top == [None, {}, {}]
    (one,) = td.score(["a"], url=url, timeout=LONG)
    assert (one.ids, one.log_probs, one.ranks, one.top) == ([97], [None], [None], [None])
    many = td.score([[97, 98, 99][: n % 3 + 1] + [n] for n in range(130)], url=url, timeout=LONG)
    assert [one.ids[-1] for one in many] == list(range(130))
    assert td.score([], url=url) == []


def test_mistakes_are_told(url: str) -> None:
    with raising(td.InvalidArgument, "'prompts'", "abc", "a list"):
        td.score("abc", url=url)  # type: ignore[arg-type]
    with raising(td.InvalidArgument, "'url'", "localhost"):
        td.score(["abc"], url="localhost")
    with raising(td.InvalidArgument, "'url'", "no address"):
        td.score(["abc"], url="http://[localhost")
    with raising(td.InvalidArgument, "'api_key'"):
        td.score(["abc"], url=url, api_key="secret\n")
    wrong: list[Any] = [b"abc", ["97"], [97.0], 97]
    for prompt in wrong:
        with raising(td.InvalidArgument, "'prompts'", "token ids"):
            td.score([prompt], url=url)
    with raising(td.InvalidArgument, "5000"):
        td.score([[97, 5000]], url=url, timeout=LONG)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        with raising(td.Unavailable, str(closed.getsockname()[1])):
            td.score(["abc"], url=f"http://127.0.0.1:{closed.getsockname()[1]}")


@pytest.mark.parametrize(
    ("status", "body", "error", "named"),
    [
        (200, {"choices": [{"index": 0, "text": "x"}]}, td.Unimplemented, "prompt_token_ids"),
        (200, {"choices": [{"index": 0, "prompt_token_ids": [1, 2], "prompt_logprobs": [None]}]}, td.Unimplemented, "2 tokens"),
        (200, {"choices": []}, td.InternalError, "0 answers to 1"),
        (200, "not there", td.InternalError, "no JSON"),
        (401, {"error": {"message": "no key"}}, td.Unauthenticated, "no key"),
        (404, "nothing here", td.NotFound, "nothing here"),
        (418, {}, td.InternalError, "418"),
    ],
)  # fmt: skip
def test_other_servers(status: int, body: object, error: type[td.DockError], named: str) -> None:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            with raising(error, named):
                td.score(["abc"], url=f"http://127.0.0.1:{server.server_port}", timeout=LONG)
        finally:
            server.shutdown()
            thread.join()
