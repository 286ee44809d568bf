"""Agents that are functions of base_url, and close() of all forms of environments, as real processes."""

from __future__ import annotations

import pytest

from environment_programs import Program, program, refused, user, whole  # noqa: F401
from messages import mentions

ENDPOINT = {"base_url": "http://127.0.0.1:1/episode/k/v1", "api_key": "k", "model": "small"}


def run(client: Program, episode: int, seed: int = 0, **row: object) -> None:
    client.send({"type": "run", "episode": episode, "seed": seed, "row": whole(**row)} | ENDPOINT)


# ---- functions of base_url ----


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_a_function_of_base_url_is_an_agent_and_gets_what_it_names(program, kind):  # noqa: F811
    client = program(f"""
{kind} solve(base_url, api_key, model, prompt, messages, seed, answer: int, level: float = 0, other=3, **kwargs):
    assert (base_url, api_key, model) == ("{ENDPOINT["base_url"]}", "k", "small")
    assert prompt == "6*7?" and messages == [{{"role": "user", "content": "6*7?"}}] and other == 3, messages
    assert "base_url" not in kwargs and kwargs["tags"] == ["a"], kwargs
    return {{"right": answer == 42, "level": level, "seed": seed, "no": None}}
""", "solve", columns=["level", "tags"])  # fmt: skip
    assert client.hello["kind"] == "client" and client.hello["name"] == "solve" and not client.hello["tools"]
    run(client, 1, seed=7, truth="42", columns={"level": "2", "tags": '["a"]'})
    rewards = {"right": 1.0, "level": 2.0, "seed": 7.0}
    assert client.hear() == {"episode": 1, "rewards": rewards, "done": True}
    assert client.end() == ""


def test_what_an_agent_returns_are_its_rewards(program):  # noqa: F811
    client = program("""
def solve(base_url, truth: str): return eval(truth)
""", "solve")
    heard = []
    for episode, truth in enumerate(["0.5", "{'a': 1, 'b': None}", "True", "None", "'x'", "1/0", "[1]"]):
        run(client, episode, truth=truth)
        heard.append(client.hear())
    assert [one.get("rewards") for one in heard[:4]] == [{"reward": 0.5}, {"a": 1.0}, {"reward": 1.0}, None]
    assert all(one["done"] for one in heard[:4])
    mentions(heard[4]["error"], "agent 'solve'", "finite number", "'x'")
    mentions(heard[5]["error"], "agent 'solve'", "ZeroDivisionError", "mine.py")
    mentions(heard[6]["error"], "finite number", "[1]")
    mentions(client.end(), "note: ", "agent 'solve'", "reward", "0")


def test_agents_are_played_at_the_same_time_and_given_up(program, tmp_path):  # noqa: F811
    client = program("""
import asyncio, os, time
async def solve(base_url, truth):
    try:
        while not os.path.exists(truth): await asyncio.sleep(0.005)
        return 1
    except asyncio.CancelledError:
        open("cancelled", "w").close()
        raise
""", "solve")
    run(client, 1, truth="first")
    run(client, 2, truth="second")
    (tmp_path / "second").touch()
    assert client.hear() == {"episode": 2, "rewards": {"reward": 1.0}, "done": True}
    client.send({"type": "end", "episode": 1})
    run(client, 3, truth="second")
    assert client.hear()["episode"] == 3
    client.end()
    assert (tmp_path / "cancelled").exists()


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("def Env(base_url, level): ...", ["agent 'Env'", "'level'", "data.keep", "(kept: extra)"]),
        ("def Env(base_url, /): ...", ["agent 'Env'", "'base_url'"]),
        ("def Env(url): ...", ["'Env'", "url"]),
    ],
)
def test_a_function_that_cannot_be_called_is_refused(tmp_path, text, names):
    mentions(refused(tmp_path, text), *names)


def test_a_run_without_an_endpoint_is_refused(tmp_path):
    sent = '{"type":"run","episode":1,"seed":1,"row":{}}\n'
    mentions(refused(tmp_path, "def Env(base_url): ...", more=sent), "episode", "'base_url'", "None")


# ---- close() ----

CLOSES = """
import asyncio
class Env:
    made = 0
    def __init__(self): Env.made += 1; self.number = Env.made
    def reset(self, seed, row):
        if row["truth"] == "bad": raise KeyError("bad")
        return str(self.number)
    def step(self, message): return {"done": message["content"] == "done"}
    def conclude(self): return {"rewards": 1}
    CLOSE close(self): print("closed", self.number)
"""


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_an_environment_is_closed_however_its_episode_ends(program, kind):  # noqa: F811
    env = program(CLOSES.replace("CLOSE", kind))
    for episode, truth in ((1, ""), (2, "bad"), (3, ""), (4, "")):
        env.reset(episode, truth=truth)
        heard = env.hear()
        if truth == "bad":
            assert "KeyError" in heard["error"]
        else:
            assert heard["messages"] == user(str(episode)), "each episode has an instance of its own"
    env.step(1, "done")
    assert env.hear()["done"]
    env.send({"type": "conclude", "episode": 3})
    assert env.hear()["rewards"] == {"reward": 1.0}
    env.send({"type": "end", "episode": 4})
    env.reset(5)
    assert env.hear()["messages"] == user("5")
    log = env.end()  # which ends episode 5
    assert sorted(line for line in log.splitlines() if line.startswith("closed")) == [f"closed {i}" for i in range(1, 6)]


def test_a_close_is_not_cut_short_by_the_end_of_the_input(program):  # noqa: F811
    env = program("""
import asyncio
class Env:
    def reset(self, seed, row): return "Hi"
    def step(self, message): return {"done": True}
    async def close(self):
        await asyncio.sleep(0.05)
        print("closed")
""")
    for episode in (1, 2):
        env.reset(episode)
        env.hear()
    env.send({"type": "end", "episode": 1})
    assert env.end().count("closed") == 2


def test_with_one_episode_at_a_time_the_next_waits_for_close(program):  # noqa: F811
    env = program("""
import time
class Env:
    concurrent_episodes = 1
    used = False
    def __init__(self):
        assert not Env.used
        Env.used = True
    def reset(self, seed, row): return "Hi"
    def step(self, message): return {"done": True}
    def close(self):
        time.sleep(0.05)
        Env.used = False
""")
    for episode in (1, 2, 3):
        env.reset(episode)
        assert env.hear()["messages"] == user("Hi")
        env.step(episode)
        assert env.hear()["done"]
    env.end()


def test_a_failing_close_is_told_of_and_disturbs_nothing(program):  # noqa: F811
    env = program("""
class Env:
    def reset(self, seed, row): return "Hi"
    def step(self, message): return {"done": True}
    def close(self): raise OSError("no more")
""")
    for episode in (1, 2):
        env.reset(episode)
        env.hear()
        env.step(episode)
        assert env.hear()["done"]
    mentions(env.end(), "environment 'Env'", "close", "OSError: no more", "mine.py:5")


def test_a_close_that_hangs_is_given_up(program):  # noqa: F811
    env = program("""
import sys, threading
sys.modules["tdock_programs._instances"].CLOSING = 0.01
class Env:
    def reset(self, seed, row): return "Hi"
    def step(self, message): return {"done": True}
    def close(self): threading.Event().wait()
""")
    env.reset(1)
    env.hear()
    env.step(1)
    assert env.hear()["done"]
    mentions(env.process.stderr.readline().decode(), "environment 'Env'", "close", "0.01 s")
    env.reset(2)
    assert env.hear()["messages"] == user("Hi")


def test_close_is_no_tool_and_agent_loops_have_it_too(program):  # noqa: F811
    env = program("""
class Env:
    def reset(self, **row): ...
    def look(self) -> str:
        \"\"\"Looks.\"\"\"
        return "nothing"
    def close(self): print("closed")
""")
    assert [tool["function"]["name"] for tool in env.hello["tools"]] == ["look"]
    env.reset(1)
    env.hear()
    env.step(1)
    assert env.hear()["done"]
    mentions(env.end(), "closed")
    agent = program("""
class Loop:
    async def run(self, sampling_params): raise KeyError("bad")
    def close(self): print("closed the loop")
""", "Loop")
    agent.run(1)
    assert "KeyError" in agent.hear()["error"]
    mentions(agent.end(), "closed the loop")
