"""Environment programs that are made from Python classes, as real processes that get the protocol's lines."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

from line_programs import LineProgram, as_text
from waiting import LONG

ROOT = pathlib.Path(os.environ["TDOCK_SOURCE"])
ENVIRONMENTS = ROOT / "python/transfer_dock/environments.py"
AS_TEXT = [sys.executable, "-c", as_text("environments")]  # as tdock starts it


class Program(LineProgram):
    """An environment program that has said hello."""

    def __init__(self, *command: object, columns: list[str] = [], model: str = "", **others) -> None:
        super().__init__(*command, hello={"columns": columns, "model": model}, **others)

    def reset(self, episode: int, seed: int = 0, **row: object) -> None:
        self.send({"type": "reset", "episode": episode, "seed": seed, "row": whole(**row)})

    def step(self, episode: int, content: str = "", *calls: tuple[str, object]) -> None:
        message: dict = {"role": "assistant", "content": content}
        if calls:
            message["tool_calls"] = tool_calls(*calls)
        self.send({"type": "step", "episode": episode, "message": message})

    def run(self, episode: int, seed: int = 0, sampling: dict = {}, **row: object) -> None:
        sampling = {"temperature": 1.0, "top_p": 1.0, "max_tokens": 16} | sampling
        self.send({"type": "run", "episode": episode, "seed": seed, "sampling": sampling, "row": whole(**row)})

    def generated(self, asked: dict, *ids: int, **others: object) -> None:
        answer = {"token_ids": ids, "log_probs": [-1.5] * len(ids), "stop_reason": "end_token", "weights_version": 3}
        self.send({"type": "generated", "episode": asked["episode"], "request": asked["request"]} | answer | others)

    def hear(self) -> dict:
        """An observation without what is not said in it."""
        heard = self.read()
        assert heard.pop("type") == "observation"
        return {key: value for key, value in heard.items() if value is not False and value not in ([], {})}


def whole(**row: object) -> dict:
    text = {"prompt": "6*7?", "messages": [], "prompt_ids": [1, 2], "truth": "", "source": "sums", "columns": {}}
    return text | row


def tool_calls(*calls: tuple[str, object]) -> list[dict]:
    return [
        {"id": f"call_{i}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for i, (name, arguments) in enumerate(calls)
    ]


def user(text: str) -> list[dict]:
    return [{"role": "user", "content": text}]


@pytest.fixture
def program(tmp_path: pathlib.Path):
    """Starts the class of a file of this text."""
    started: list[Program] = []

    def start(text: str, name: str = "Env", **others) -> Program:
        (tmp_path / "mine.py").write_text(text)
        started.append(Program(*AS_TEXT, f"mine.py:{name}", cwd=tmp_path, **others))
        return started[-1]

    yield start
    for one in started:
        one.__exit__()


def refused(tmp_path: pathlib.Path, text: str, name: str = "Env", more: str = "") -> str:
    (tmp_path / "mine.py").write_text(text)
    hello = '{"type":"hello","protocol":1,"columns":["extra"]}\n'
    done = subprocess.run(
        [*AS_TEXT, f"mine.py:{name}"], cwd=tmp_path, input=hello + more, capture_output=True, text=True, timeout=LONG
    )
    assert done.returncode == 2 and done.stderr.startswith("error: "), done.stderr
    return done.stderr


# An environment of TRL's.
CALCULATOR = '''
import asyncio
class Calculator:
    def __init__(self):
        print("made")
        self.made_in, self.played = __import__("threading").get_ident(), 0
    def reset(self, answer: int, level=0, seed=None, **kwargs) -> str | None:
        assert self.made_in == __import__("threading").get_ident()
        self.answer, self.results, self.played = answer, [], self.played + 1
        self.told = (level, seed, sorted(kwargs), kwargs["prompt"], kwargs["tags"])
        return " Use the tools." if kwargs["tags"] else None
    def multiply(self, a: int, b: int) -> int:
        """Multiplies two numbers.

        Args:
            a: The first.
            b: The second.

        Returns:
            Their product.
        """
        self.results.append(a * b)
        return a * b
    async def divide(self, a: float, b: float = 2.0):
        """Divides.

        Args:
            a: What is divided.
            b: By what.
        """
        await asyncio.sleep(0.01)
        return a / b
    def parts(self) -> list:
        """Tells."""
        return [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]
    def seen(self) -> str:
        """Tells."""
        return str(self.told)
    def leave(self): 
        """Leaves."""
        raise SystemExit(3)
    def _private(self): ...
    @property
    def broken(self): raise ValueError
    def get_reward(self) -> float:
        return float(self.answer in self.results)
'''
