"""Environment programs that are made from Python classes."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from environment_programs import AS_TEXT, CALCULATOR, ENVIRONMENTS, Program, program, refused, user
from messages import mentions
from waiting import LONG, NEVER

__all__ = ["program"]

# ---- our own form ----

GUESS = """
class Env:
    def reset(self, seed, row):
        self.number, self.tries = seed, int(row["columns"]["tries"])
        return f"Guess! {row['prompt']}"
    def step(self, message):
        self.tries -= 1
        right = message["content"] == str(self.number)
        return {"observation": None if right else "No.", "rewards": {"won": right}, "done": right,
                "truncated": not right and self.tries == 0}
"""


def test_an_environment_of_our_own_gets_a_seed_a_row_and_messages(program):
    guess = program(GUESS, columns=["tries"])
    assert guess.hello == {
        "type": "hello", "protocol": 1, "name": "Env", "kind": "environment", "tools": [], "episodes": 64,
        "concludes": False,
    }  # fmt: skip
    guess.reset(7, seed=5, columns={"tries": "2"})
    assert guess.hear() == {"episode": 7, "messages": user("Guess! 6*7?")}
    guess.step(7, "4")
    assert guess.hear() == {"episode": 7, "messages": user("No."), "rewards": {"won": 0.0}}
    guess.step(7, "5")
    assert guess.read() == {
        "type": "observation", "episode": 7, "messages": [], "rewards": {"won": 1.0}, "done": True, "truncated": False,
        "continues": False,
    }  # fmt: skip
    guess.reset(8, seed=5, columns={"tries": "1"})
    guess.hear()
    guess.step(8, "x")
    assert guess.hear() == {"episode": 8, "messages": user("No."), "rewards": {"won": 0.0}, "truncated": True}
    guess.end()


@pytest.mark.parametrize(
    ("returned", "heard"),
    [
        ("'text'", {"messages": user("text")}),
        ("None", {}),
        ("{'role': 'tool', 'name': 't', 'content': 'x'}",
         {"messages": [{"role": "tool", "name": "t", "content": "x"}]}),
        ("[{'role': 'user', 'content': [{'type': 'text', 'text': 'a'}, {'type': 'text', 'text': 'b'}]}]",
         {"messages": user("ab")}),
        ("{'messages': 'text', 'rewards': 2, 'done': 1}",
         {"messages": user("text"), "rewards": {"reward": 2.0}, "done": True}),
        ("Observation('text', {'a': True}, truncated=True)",
         {"messages": user("text"), "rewards": {"a": 1.0}, "truncated": True}),
        ("Observation(error='no server')", {"error": "no server"}),
        ("{'error': 'no server', 'done': True}", {"error": "no server"}),
    ],
)  # fmt: skip
def test_what_an_environment_may_return(program, returned, heard):
    assert answer_of(program, returned) == {"episode": 3} | heard


@pytest.mark.parametrize(
    ("returned", "names"),
    [
        ("{'rewards': {'a': float('nan')}}", ["reward", "nan (float)"]),
        ("{'rewards': '1'}", ["reward", "'1' (str)"]),
        ("{'rewards': {'a': [1.0, 2.0]}}", ["reward", "[1.0, 2.0] (list)"]),
        ("{'reward': 1}", ["'reward'", "rewards?"]),
        ("{'done': 'no'}", ["'done'", "true", "false", "'no' (str)"]),
        ("{'truncated': 0.5}", ["'truncated'", "true", "false", "0.5 (float)"]),
        ("('text', 1.0, True)", ["(tuple)", "a text", "Observation"]),
        ("(text for text in 'ab')", ["(generator)", "a text", "Observation"]),
        ("3", ["3 (int)", "a text", "Observation"]),
        ("{'role': 'assistant', 'content': 'x'}",
         ["a role", "user, system, developer, tool, function", "{'role': 'assistant', 'content': 'x'}"]),
        ("{'role': 'user', 'content': 3}", ["content 3 (int)"]),
        ("[{'role': 'user', 'content': [{'type': 'image'}]}]", ["content", "{'type': 'image'}"]),
        ("{'observation': 'a', 'messages': 'b'}", ["'observation'", "'messages'"]),
        ("{'role': 'user', 'content': 'x', 'more': {1, 2}}", ["JSON", "set"]),
        ("'x' * (17 << 20)", ["17 MiB", "JSON", "16"]),
    ],
)  # fmt: skip
def test_what_an_environment_may_not_return_is_named(program, returned, names):
    answer = answer_of(program, returned)
    mentions(answer.pop("error"), "environment 'Env', reset", *names)
    assert answer == {"episode": 3}


def answer_of(program, returned: str) -> dict:
    """Answer to episode 3 of an environment whose reset returns this expression."""
    imported = "from transfer_dock.environments import Observation" if "Observation" in returned else ""
    env = program(f"""
{imported}
class Env:
    async def reset(self, seed, row): return {returned}
    def step(self, message): ...
""")
    env.reset(3)
    return env.hear()


def test_tools_of_our_own_are_schemas_or_functions(program):
    env = program('''
def add(a: int, b: int = 1) -> int:
    """Adds.

    Args:
        a: One number.
        b: Another.
    """
class Env:
    tools = [add, {"type": "function", "function": {"name": "raw"}}]
    def reset(self, seed, row): ...
    def step(self, message): return {"observation": message["tool_calls"][0]["function"]["name"]}
''')
    add, raw = env.hello["tools"]
    assert add["function"]["parameters"] == {
        "type": "object", "required": ["a"],
        "properties": {"a": {"type": "integer", "description": "One number."},
                       "b": {"type": "integer", "description": "Another."}},
    }  # fmt: skip
    assert raw == {"type": "function", "function": {"name": "raw"}}
    env.reset(0)
    env.hear()
    env.step(0, "", ("raw", {}))
    assert env.hear() == {"episode": 0, "messages": user("raw")}


# ---- TRL ----

def test_the_methods_of_an_environment_of_trl_are_tools(program):
    env = program(CALCULATOR, "Calculator", columns=["level", "tags"])
    assert [tool["function"]["name"] for tool in env.hello["tools"]] == [
        "divide", "leave", "multiply", "parts", "seen"
    ]  # fmt: skip
    columns = {"level": "3", "tags": '["a"]'}
    env.reset(1, seed=9, truth="42", columns=columns, messages=user("6*7?"))
    assert env.hear() == {"episode": 1, "messages": user(" Use the tools."), "continues": True}
    env.step(1, "", ("divide", {"a": 3}), ("multiply", {"a": 6, "b": 7}), ("divide", {"a": 1, "b": 0}), ("parts", None),
             ("divide", "no"), ("remove", {}), ("multiply", {"a": 6}), ("_private", {}), ("leave", {}))  # fmt: skip
    assert [(turn["role"], turn["name"], turn["content"]) for turn in env.hear()["messages"]] == [
        ("tool", "multiply", "42"),
        ("tool", "parts", "one two"),
        ("tool", "remove", "{'error': 'Tool remove not found.'}"),
        ("tool", "multiply",
         "{'error': \"Calculator.multiply() missing 1 required positional argument: 'b'\"}"),
        ("tool", "_private", "{'error': 'Tool _private not found.'}"),
        ("tool", "leave", "{'error': '3'}"),
        ("tool", "divide", "1.5"),
        ("tool", "divide", "{'error': 'division by zero'}"),
        ("tool", "divide",
         "{'error': 'mine.Calculator.divide() argument after ** must be a mapping, not str'}"),
    ]  # fmt: skip
    env.step(1, "", ("seen", {}))
    truths = ["ground_truth", "label", "reference_answer", "solution", "target", "truth"]
    seen = ("3", 9, sorted([*truths, "prompt", "tags"]), user("6*7?"), ["a"])
    assert eval(env.hear()["messages"][0]["content"]) == seen
    env.step(1, "It is 42.")
    assert env.hear() == {"episode": 1, "rewards": {"Calculator": 1.0}, "done": True}
    told = env.end()
    assert told.count("made\n") == 1
    (note,) = [line for line in told.splitlines() if "ZeroDivisionError" in line]
    mentions(note, "'divide'", "(mine.py:32, in divide: return a / b)")


def test_the_truth_of_a_row_is_what_the_annotation_says(program):
    env = program(CALCULATOR, "Calculator", columns=["tags"])
    env.reset(1, truth="x", columns={"tags": ""})
    mentions(env.hear()["error"], "environment 'Calculator', reset", "truth", "int", "'x'")
    env.reset(2, truth="42", columns={"tags": ""})
    assert env.hear() == {"episode": 2}
    env.step(2, "41")
    assert env.hear() == {"episode": 2, "rewards": {"Calculator": 0.0}, "done": True}


def test_an_episode_whose_end_is_not_the_models_has_its_reward_as_well(program):
    env = program(CALCULATOR, "Calculator", columns=["tags"])
    env.reset(2, truth="42", columns={"tags": ""})
    env.hear()
    env.step(2, "", ("multiply", {"a": 6, "b": 7}))
    env.hear()
    env.send({"type": "conclude", "episode": 2})
    assert env.hear() == {"episode": 2, "rewards": {"Calculator": 1.0}, "done": True}
    own = program("""
class Env:
    def reset(self, seed, row): ...
    def step(self, message): ...
    def conclude(self): return {"rewards": {"half": 0.5}}
""")
    assert own.hello["concludes"]
    own.reset(1)
    own.hear()
    own.send({"type": "conclude", "episode": 1})
    assert own.hear() == {"episode": 1, "rewards": {"half": 0.5}, "done": True}


def test_a_default_is_an_option_of_the_environment_unless_there_is_such_a_column(program):
    env = program("""
class Env:
    def reset(self, level=1, target=10, label=None, seed=3, tags: list = (), **kwargs):
        return str([level, target, label, seed, tags, sorted(kwargs)])
""", columns=["level", "tags"])  # fmt: skip
    env.reset(1, seed=7, truth="42", columns={"level": "5", "tags": '["a"]'})
    rest = ["answer", "ground_truth", "prompt", "reference_answer", "solution", "truth"]
    assert eval(env.hear()["messages"][0]["content"]) == ["5", 10, "42", 3, ["a"], rest]


def test_instances_are_made_once_and_reset_often_unless_they_failed(program):
    env = program("""
class Env:
    made = 0
    def __init__(self): Env.made += 1; self.number, self.played = Env.made, 0
    def reset(self, truth):
        self.played += 1
        if truth == "bad": raise KeyError(truth)
        return f"{self.number} {self.played}"
    async def get_reward(self): return None
""")
    for episode, truth, said in ((1, "", "1 1"), (2, "", "2 1")):  # at the same time
        env.reset(episode, truth=truth)
        assert env.hear()["messages"][0]["content"] == said
    env.step(1)
    assert env.hear() == {"episode": 1, "done": True}
    env.reset(3)
    assert env.hear()["messages"][0]["content"] == "1 2"
    env.send({"type": "end", "episode": 3})
    env.reset(4, truth="bad")
    assert env.hear()["error"] == (
        "environment 'Env', reset: KeyError: 'bad' (mine.py:7, in reset: "
        'if truth == "bad": raise KeyError(truth))'
    )  # fmt: skip
    env.reset(5)
    assert env.hear()["messages"][0]["content"] == "3 1"
    mentions(env.end(), "note: ", "get_reward", "'Env'", "None", "reward is 0")


# ---- several episodes, their ends, and the program's ----


def test_slow_episodes_hold_up_no_other(program, tmp_path):
    env = program("""
import asyncio, os, threading, time
class Env:
    def reset(self, seed, row): self.thread = threading.get_ident()
    async def step(self, message):
        assert threading.get_ident() != self.thread
        while message["content"] == "async" and not os.path.exists("go"): await asyncio.sleep(0.005)
        return await asyncio.to_thread(self.wait, message)
    def wait(self, message):
        while message["content"] == "thread" and not os.path.exists("go"): time.sleep(0.005)
        return message["content"]
""")
    for episode, content in ((1, "async"), (2, "thread"), (3, "fast")):
        env.reset(episode)
        env.hear()
        env.step(episode, content)
    assert env.hear() == {"episode": 3, "messages": user("fast")}
    (tmp_path / "go").touch()
    assert sorted(env.hear()["messages"][0]["content"] for _ in range(2)) == ["async", "thread"]


def test_nothing_more_is_said_of_an_episode_that_was_given_up(program, tmp_path):
    env = program("""
import asyncio, os, time
class Env:
    def reset(self, truth):
        while truth == "thread" and not os.path.exists("go"): time.sleep(0.005)
        return truth
class Agent:
    async def run(self, sampling_params):
        try: await self.server_manager.generate(prompt_ids=[1])
        finally: print("left")
""")
    env.reset(1, truth="thread")
    env.reset(2, truth="waits")
    assert env.hear()["episode"] == 2
    env.send({"type": "end", "episode": 1})
    env.send({"type": "end", "episode": 2})
    env.send({"type": "end", "episode": 9})  # which never was
    env.reset(3)
    assert env.hear()["episode"] == 3
    (tmp_path / "go").touch()
    env.reset(4)
    assert env.hear()["episode"] == 4
    env.end()
    agent = program((tmp_path / "mine.py").read_text(), "Agent")
    agent.run(1)
    asked = agent.read()
    agent.send({"type": "end", "episode": 1})
    agent.generated(asked, 5)
    assert agent.end() == "left\n"


def test_a_class_says_how_many_episodes_it_plays_at_the_same_time(program, tmp_path):
    text = "class Env:\n    concurrent_episodes = 3\n    def reset(self): ...\nclass Other:\n    def reset(self): ...\n"
    assert program(text).hello["episodes"] == 3
    with Program(*AS_TEXT, "--episodes=2", "mine.py:Other", cwd=tmp_path) as other:
        assert other.hello["episodes"] == 2


def test_a_script_of_ones_own_serves_its_class(tmp_path):
    (tmp_path / "own.py").write_text("""
from transfer_dock import environments
print("printed before")
class Env:
    def reset(self): print("printed"); return "x"
environments.serve(lambda: Env(), episodes=5)
""")
    with Program("env", "-u", "PYTHONUNBUFFERED", sys.executable, tmp_path / "own.py") as own:
        assert (own.hello["name"], own.hello["episodes"]) == ("Env", 5)
        own.reset(0)
        assert own.hear()["messages"][0]["content"] == "x"
        assert own.end() == "printed before\nprinted\n"


@pytest.mark.parametrize("how", [["-m", "transfer_dock.environments"], [str(ENVIRONMENTS)]])
def test_the_ways_to_start_it(tmp_path, how):
    # Neighbours of the file can be imported; those of environments.py cannot.
    (tmp_path / "neighbour.py").write_text("SAID = 'x'")
    (tmp_path / "calendar.py").write_text("""
import importlib.util
from neighbour import SAID
assert importlib.util.find_spec("stages") is None
class Env:
    def reset(self): return SAID
""")
    with Program(sys.executable, *how, tmp_path / "calendar.py:Env") as program:
        program.reset(0)
        assert program.hear()["messages"][0]["content"] == "x"
        program.end()


def test_help_says_what_a_class_looks_like():
    done = subprocess.run([*AS_TEXT, "--help"], capture_output=True, text=True, timeout=LONG)
    assert done.returncode == 0 and "def get_reward(self)" in done.stdout and "FILE.py:NAME" in done.stdout


def test_a_module_that_is_installed_may_be_named(tmp_path):
    (tmp_path / "installed.py").write_text("class Env:\n    def reset(self): return 'x'\n")
    with Program(*AS_TEXT, "installed:Env", env={"PYTHONPATH": str(tmp_path)}) as program:
        program.reset(0)
        assert program.hear()["messages"][0]["content"] == "x"


def test_it_needs_no_package_and_fits_into_an_argument(tmp_path):
    assert len(AS_TEXT[-1].encode()) < 100_000
    (tmp_path / "mine.py").write_text("class Env:\n    def reset(self): return 'x'\n")
    with Program(sys.executable, "-I", "-S", *AS_TEXT[1:], tmp_path / "mine.py:Env") as program:
        program.reset(0)
        assert program.hear()["messages"][0]["content"] == "x"


def test_nothing_that_is_printed_disturbs_the_protocol(program):
    chatty = program("""
import os, subprocess, sys
print("while imported")
class Env:
    def reset(self):
        sys.__stdout__.write("stdout"); sys.__stdout__.flush()
        os.write(1, b"descriptor")
        subprocess.run(["echo", "child"])
        return sys.stdin.read() + "Gr\\u00f6\\0\\U0001f600 \\ud83d\\u2028"
""")
    chatty.reset(0)
    assert chatty.hear()["messages"][0]["content"] == "Grö\0\U0001f600 ?\u2028"
    told = chatty.end()
    for text in ("while imported", "stdout", "descriptor", "child"):
        assert text in told


def test_ctrl_c_and_the_end_of_its_input_end_it_quietly(program, tmp_path):
    text = """
import time
class Env:
    def reset(self, truth): time.sleep(NEVER * (truth == "long"))
""".replace("NEVER", str(NEVER))
    waiting = program(text)
    waiting.reset(1, truth="long")
    waiting.reset(2)
    waiting.hear()
    waiting.process.send_signal(signal.SIGINT)
    output, errors = waiting.process.communicate(timeout=LONG)
    assert (waiting.process.returncode, output, errors) == (130, b"", b"")
    assert program(text).end() == ""
    busy = program(text)
    busy.reset(1, truth="long")
    assert busy.end() == ""
    none = subprocess.run([*AS_TEXT, "mine.py:Env"], cwd=tmp_path, stdin=subprocess.DEVNULL, timeout=LONG)
    assert none.returncode == 0


# ---- what is refused ----

TOOL = 'class Env:\n    def reset(self): ...\n    def tool{}:\n        """{}"""\n'


@pytest.mark.parametrize(
    ("text", "name", "names"),
    [
        ("class Calculator: ...", "Calculater", ["mine.py", "'Calculater'", "Calculator?"]),
        ("import missing_package", "Env",
         ["mine.py", "ModuleNotFoundError", "'missing_package'", "(mine.py:1: import missing_package)"]),
        ("Env = 3", "Env", ["'Env'", "is 3"]),
        ("class A:\n    def reset(self): ...\nEnv = A()", "Env", ["'Env'", "its class"]),
        ("class Env:\n    def resett(self): ...\n    def go(self): ...", "Env", ["go, resett", "resett?"]),
        ("class Env:\n    def __init__(self, x): ...", "Env", ["'Env'", "arguments", "TypeError"]),
        ("class Env:\n    def __init__(self):\n        raise OSError('no server')", "Env",
         ["OSError: no server (mine.py:3, in __init__: raise OSError('no server'))"]),
        ("class Env:\n    def reset(self, seed, row): ...", "Env", ["'Env'", "reset(seed, row)", "step(message)"]),
        ("Env = {}", "Env", ["'Env'", "a dict"]),
        ("class Env:\n    def reset(self, level, **kwargs): ...", "Env",
         ["environment 'Env'", "reset", "'level'", "data.keep", "(kept: extra)"]),
        ("class Env:\n    def run(self, sampling_params): ...", "Env", ["agent 'Env'", "run", "async def"]),
        ("class Env:\n    def __init__(self, x): ...\n    async def run(self, sampling_params): ...", "Env",
         ["agent 'Env'", "with x", "functools.partial"]),
        (TOOL.format("(self)", ""), "Env", ["tool 'tool'", "docstring"]),
        (TOOL.format("(self, a)", "X."), "Env", ["tool 'tool'", "'a'", "annotate"]),
        (TOOL.format("(self, a: int)", "X."), "Env", ["tool 'tool'", "docstring", "'a'", "Args:"]),
        (TOOL.format("(self, a: set)", "X."), "Env", ["tool 'tool'", "parameter 'a'", "<class 'set'>", "for int"]),
        (TOOL.format("(self, a: tuple[int, ...])", "X."), "Env", ["a tuple", "tuple[int, ...]", "list"]),
        (TOOL.format("(self, a: int)", "X.\n    Args:\n        a: A (choices: 1, 2)"), "Env",
         ["tool 'tool'", "parameter 'a'", "choices", "JSON list", "1, 2"]),
    ],
)  # fmt: skip
def test_what_cannot_be_an_environment_is_refused_with_the_reason(tmp_path, text, name, names):
    mentions(refused(tmp_path, text, name), *names)


@pytest.mark.parametrize(
    ("sent", "names"),
    [
        ("what", ["not JSON"]),
        ("[]", ["object", "[]"]),
        ('{"type":"score","episode":1}', ["message", "episode", "score"]),
        ('{"type":"reset","episode":1,"seed":1,"row":[]}', ["row", "episode", "object", "[]"]),
        ('{"type":"reset","episode":1,"row":{}}', ["episode 1", "seed", "None"]),
        ('{"type":"reset","episode":1,"seed":1,"row":{"truth":3}}', ["'truth'", "row", "text", "3"]),
        ('{"type":"step","episode":1,"message":{}}', ["episode 1", "another message"]),
        ('{"type":"run","episode":1,"seed":1,"row":{}}', ["message", "episode", "'run'"]),
        (" " * (16 << 20) + "{}", ["line", "16 MiB"]),
    ],
)  # fmt: skip
def test_what_does_not_follow_the_protocol_is_refused(tmp_path, sent, names):
    mentions(refused(tmp_path, "class Env:\n    def reset(self): ...", more=sent + "\n"), *names)


def test_a_hello_of_another_protocol_is_refused(tmp_path):
    (tmp_path / "mine.py").write_text("class Env:\n    def reset(self): ...")
    done = subprocess.run([*AS_TEXT, "mine.py:Env"], cwd=tmp_path, input='{"type":"hello","protocol":2}\n',
                          capture_output=True, text=True, timeout=LONG)  # fmt: skip
    assert done.returncode == 2
    mentions(done.stderr, "hello", "protocol 1")
