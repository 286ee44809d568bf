"""Environment programs that are made from Python classes, as real processes that get the protocol's lines."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import sys

import pytest

from conftest import LONG
from line_programs import LineProgram

ROOT = pathlib.Path(os.environ["TDOCK_SOURCE"])
ENVIRONMENTS = ROOT / "python/transfer_dock/environments.py"
AS_TEXT = [sys.executable, "-c", ENVIRONMENTS.read_text()]  # as tdock starts it


class Program(LineProgram):
    """An environment program that has said hello."""

    def __init__(self, *command: object, columns: list[str] = [], model: str = "", **others) -> None:
        super().__init__(*command, hello={"columns": columns, "model": model}, **others)

    def reset(self, episode: int, seed: int = 0, **row: object) -> None:
        self.send({"type": "reset", "episode": episode, "seed": seed, "row": whole(**row)})

    def step(self, episode: int, content: str = "", *calls: tuple[str, object], **others: object) -> None:
        message: dict = {"role": "assistant", "content": content}
        if calls:
            message["tool_calls"] = tool_calls(*calls)
        self.send({"type": "step", "episode": episode, "message": message} | others)

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
        "type": "hello", "protocol": 1, "name": "Env", "kind": "environment", "tools": [], "episodes": 64
    }  # fmt: skip
    guess.reset(7, seed=5, columns={"tries": "2"})
    assert guess.hear() == {"episode": 7, "messages": user("Guess! 6*7?")}
    guess.step(7, "4")
    assert guess.hear() == {"episode": 7, "messages": user("No."), "rewards": {"won": 0.0}}
    guess.step(7, "5")
    assert guess.read() == {
        "type": "observation", "episode": 7, "messages": [], "rewards": {"won": 1.0}, "done": True, "truncated": False
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
        ("{'role': 'tool', 'name': 't', 'content': 'x'}", {"messages": [{"role": "tool", "name": "t", "content": "x"}]}),
        ("[{'role': 'user', 'content': [{'type': 'text', 'text': 'a'}, {'type': 'text', 'text': 'b'}]}]",
         {"messages": user("ab")}),
        ("{'messages': 'text', 'rewards': 2, 'done': 1}",
         {"messages": user("text"), "rewards": {"reward": 2.0}, "done": True}),
        ("Observation('text', {'a': True}, truncated=True)",
         {"messages": user("text"), "rewards": {"a": 1.0}, "truncated": True}),
        ("Observation(error='no server')", {"error": "no server"}),
        ("{'error': 'no server', 'done': True}", {"error": "no server"}),
        ("{'rewards': {'a': float('nan')}}",
         {"error": "environment 'Env', reset: a reward is a finite number, not nan (float)"}),
        ("{'rewards': '1'}", {"error": "environment 'Env', reset: a reward is a finite number, not '1' (str)"}),
        ("{'reward': 1}",
         {"error": "environment 'Env', reset: it returned a dict with 'reward'; did you mean rewards?"}),
        ("3", {"error": "environment 'Env', reset: it returned 3 (int), and not a text, a list of messages, a dict or "
                        "an Observation"}),
        ("{'role': 'assistant', 'content': 'x'}",
         {"error": "environment 'Env', reset: a message of an observation has a role, one of user, system, developer, "
                   "tool, function: {'role': 'assistant', 'content': 'x'}"}),
        ("{'role': 'user', 'content': 3}",
         {"error": "environment 'Env', reset: a message has the content 3 (int), which is no text"}),
        ("[{'role': 'user', 'content': [{'type': 'image'}]}]",
         {"error": "environment 'Env', reset: a message has the content a part that is no text: {'type': 'image'}"}),
        ("{'observation': 'a', 'messages': 'b'}",
         {"error": "environment 'Env', reset: it returned a dict with both 'observation' and 'messages', which are the "
                   "same"}),
        ("{'role': 'user', 'content': 'x', 'more': {1, 2}}",
         {"error": "environment 'Env', reset: what it said cannot be written as JSON: Object of type set is not JSON "
                   "serializable"}),
        ("'x' * (17 << 20)",
         {"error": "environment 'Env', reset: what it said has 17 MiB as JSON, and may have 16"}),
    ],
)  # fmt: skip
def test_what_an_environment_may_return(program, returned, heard):
    env = program(f"""
from transfer_dock.environments import Observation
class Env:
    async def reset(self, seed, row): return {returned}
    def step(self, message): ...
""")
    env.reset(3)
    assert env.hear() == {"episode": 3} | heard


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


def test_the_methods_of_an_environment_of_trl_are_tools(program):
    env = program(CALCULATOR, "Calculator", columns=["level", "tags"])
    assert [tool["function"]["name"] for tool in env.hello["tools"]] == [
        "divide", "leave", "multiply", "parts", "seen"
    ]  # fmt: skip
    columns = {"level": "3", "tags": '["a"]'}
    env.reset(1, seed=9, truth="42", columns=columns, messages=user("6*7?"))
    assert env.hear() == {"episode": 1, "messages": [{"role": "user", "content": " Use the tools.", "continues": True}]}
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
    assert told.count("note: the model is told that the tool 'divide' raised ZeroDivisionError: division by zero "
                      "(mine.py:31, in divide: return a / b)") == 1  # fmt: skip


def test_the_truth_of_a_row_is_what_the_annotation_says(program):
    env = program(CALCULATOR, "Calculator", columns=["tags"])
    env.reset(1, truth="x", columns={"tags": ""})
    assert env.hear()["error"] == "environment 'Calculator', reset: the truth is no int, as its annotation says, but 'x'"
    env.reset(2, truth="42", columns={"tags": ""})
    assert env.hear() == {"episode": 2}
    env.step(2, "41")
    assert env.hear() == {"episode": 2, "rewards": {"Calculator": 0.0}, "done": True}


def test_an_episode_whose_end_is_not_the_models_has_its_reward_as_well(program):
    env = program(CALCULATOR, "Calculator", columns=["tags"])
    env.reset(2, truth="42", columns={"tags": ""})
    env.hear()
    env.step(2, "", ("multiply", {"a": 6, "b": 7}), final=True)  # there is no room for its result
    assert env.hear() == {"episode": 2, "rewards": {"Calculator": 0.0}, "done": True}


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


def package(environment: str, path: str) -> pathlib.Path:
    found = list(ROOT.glob(f"{environment}/lib/python3*/site-packages/{path}"))
    assert found, f"there is no {path} in {environment}, which `scripts/setup.sh oracle` makes"
    return found[0]


SCHEMAS = '''
import enum, typing
class Color(enum.Enum):
    RED = "red"
    BLUE = 3
def one(a: str, b: int | None, c: float = 1.0, d: bool = False, e: list[str] = [], f: dict[str, int] = {}) -> dict:
    """Does one thing.

    And then more
    of it.

    Args:
        a: First
            over two lines: it goes on
        b: Second (choices: [1, 2])

        c:
            Third.
        d: Fourth.
        e: Fifth: of texts.
        f: Sixth.

    Returns:
        What it has
        done.

    Raises:
        ValueError: never.
    """
def two(a: typing.Literal["x", 3], b: typing.Optional[list[int]] = None, c: int | str | None = None,
        d: Color = Color.RED, e: tuple[int, str] = (), f: typing.Union[list[int], str] = "", g: typing.Any = None,
        h: typing.List[typing.Dict[str, float]] = (), i: list | tuple = (), j: dict = {}) -> "Color":
    """
    Does another.
    Args:
        a: A (Choices: ["x ", "y"])
        b: B.
        c: C.
        d: D.
        e: E.
        f: F.
        g: G.
        h: H.
        i: I.
        j: J.
    """
def three() -> object:
    """Without arguments"""
def four(
    x: int,
    self: int = 1,
) -> None:
    """Names it like a method.

    Args:
      x: With
       another indentation.
      self: This one.
    Returns: nothing
    """
async def five(text: typing.Optional[str]) -> typing.Union[int, None]:
    """Args: in a sentence.

    Args:
        text: The text.

    Returns:
        The number, or
        none.
    """
FUNCTIONS = [one, two, three, four, five]
'''


# The trainer's own code, with a model that says what it is told to.
OTHERS = '''
import asyncio, json, sys, threading, types
sys.path.insert(0, ".")
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast
from transformers.utils import get_json_schema
from trl.trainer import grpo_trainer
from mine import Calculator as Environment
from functions import FUNCTIONS

class Enough(Exception): ...
def generate(prompts): raise Enough(prompts)
row, said = json.loads(sys.argv[1])
environment = Environment()
loop = asyncio.new_event_loop()
threading.Thread(target=loop.run_forever, daemon=True).start()
trainer = types.SimpleNamespace(
    accelerator=types.SimpleNamespace(device="cpu"), environment_factories={None: Environment}, _multi_environment=False,
    model=types.SimpleNamespace(training=True, config=types.SimpleNamespace(max_position_embeddings=1 << 20)),
    _environment_pool={None: [environment]}, _env_tools={None: []}, _standalone_tools=[], tools=["of the environment"],
    _generate=generate, max_tool_calling_iterations=9, max_completion_length=1 << 20, use_vllm=False, _is_vlm=False,
    _get_tool_suffix_ids=lambda messages: [0], _tokenizer=None, async_loop=loop,
    _generate_single_turn=lambda ids, *_, **__: ([[1]] * len(ids), None),
)
try:
    grpo_trainer.GRPOTrainer._generate_and_score_completions(trainer, [row])
except Enough as enough:
    (prompt,) = enough.args[0]
grpo_trainer.parse_response = lambda *_, **__: said.pop(0)
first = said.pop(0)
_, (messages,), *_ = grpo_trainer.GRPOTrainer._tool_call_loop(
    trainer, [list(prompt)], [[1]], [[1]], [[first]], None, None, None)
tools = trainer._sync_tool_dicts[0] | trainer._async_tool_dicts[0]
conversation = [prompt, messages, environment.get_reward(), [get_json_schema(tool) for _, tool in sorted(tools.items())]]

# A tokenizer of characters.
letters = {letter: i for i, letter in enumerate(["<pad>", "<end>"] + [chr(code) for code in range(32, 127)])}
made = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE(vocab=letters, merges=[], unk_token="<pad>")),
                               eos_token="<end>", pad_token="<pad>")
made.chat_template = "{% for m in messages %}{{ m.role }}: {{ m.content }}<end>{% endfor %}assistant: "
made.save_pretrained("model")
tokens = [made.apply_chat_template(row["prompt"]).input_ids, made.encode("ok")]

print("\\n" + json.dumps({"conversation": conversation, "schemas": [get_json_schema(one) for one in FUNCTIONS],
                        "tokens": tokens}))
'''

ROW = {"prompt": user("6*7?"), "answer": 42, "level": "3", "tags": ["a"]}
SAID = [
    {"role": "assistant", "content": "", "tool_calls": tool_calls(*calls)}
    for calls in (
        [("divide", {"a": 3}), ("multiply", {"a": 6, "b": 7}), ("divide", {"a": 1, "b": 0}), ("gone", {})],
        [("multiply", {"a": 1}), ("multiply", "text"), ("leave", {}), ("parts", {})],
    )
] + [{"role": "assistant", "content": "42"}]
OF_TRL = CALCULATOR.replace("SystemExit", "ValueError")  # at which its trainer would end


@pytest.fixture(scope="module")
def others(tmp_path_factory) -> dict:
    """What TRL and transformers make of all this, in one process, since they take long to import; `folder` has a model."""
    folder = tmp_path_factory.mktemp("others")
    (folder / "mine.py").write_text(OF_TRL)
    (folder / "functions.py").write_text(SCHEMAS)
    told = subprocess.run(
        [ROOT / ".venv-oracle/bin/python", "-c", OTHERS, json.dumps([ROW, SAID])], cwd=folder, capture_output=True,
        text=True, timeout=LONG, env=os.environ | {"PYTHONPATH": ""},
    )  # fmt: skip
    assert told.returncode == 0, told.stderr
    return json.loads(told.stdout.splitlines()[-1]) | {"folder": folder}


def test_the_trainer_of_trl_has_the_same_conversation(program, others):
    prompt, messages, reward, schemas = others["conversation"]
    columns = {"level": "3", "tags": '["a"]'}
    ours = program(OF_TRL, "Calculator", columns=list(columns))
    assert ours.hello["tools"] == schemas
    ours.reset(0, truth="42", columns=columns, messages=ROW["prompt"])
    (addition,) = ours.hear()["messages"]
    assert addition.pop("continues") and prompt == user("6*7?" + addition["content"])
    for message in SAID:
        assert messages.pop(0) == message
        ours.send({"type": "step", "episode": 0, "message": message})
        heard = ours.hear()
        for turn in heard.get("messages", []):
            of_trl = messages.pop(0)
            if isinstance(of_trl["content"], list):  # which the template puts together
                of_trl["content"] = "".join(part["text"] for part in of_trl["content"])
            assert turn == of_trl
    assert heard == {"episode": 0, "rewards": {"Calculator": 1.0}, "done": True} and (reward, messages) == (1.0, [])


def test_the_schemas_of_tools_are_those_of_transformers(program, others):
    env = program(SCHEMAS + "class Env:\n    tools = FUNCTIONS\n    def reset(self, seed, row): ...\n    step = reset\n")
    for ours, theirs in zip(env.hello["tools"], others["schemas"], strict=True):
        assert ours == theirs


# ---- verl ----

AGENT = """
import asyncio, dataclasses
class Agent:
    async def run(self, sampling_params, **kwargs):
        print("gets", sampling_params, kwargs)
        prompt = [1, 2, 3]
        first, second = await asyncio.gather(
            self.server_manager.generate(request_id="a", prompt_ids=prompt, sampling_params=sampling_params),
            self.server_manager.generate("b", prompt_ids=[4], sampling_params=sampling_params | {"max_tokens": 5}))
        print("has", first, second)
        return {"prompt_ids": prompt, "response_ids": first.token_ids + [9] + second.token_ids,
                "response_mask": [1] * len(first.token_ids) + [0] + [1] * len(second.token_ids),
                "reward_score": 0.5, "num_turns": 2, "metrics": {}}
"""


def test_an_agent_asks_for_completions_and_returns_what_is_trained_on(program):
    agent = program(AGENT, "Agent", columns=["extra_info", "level"])
    assert (agent.hello["kind"], agent.hello["tools"]) == ("agent", [])
    agent.run(4, truth="42", columns={"extra_info": '{"index": 3}', "level": "2"})
    asked = [agent.read(), agent.read()]
    assert asked == [
        {"type": "generate", "episode": 4, "request": 0, "prompt_ids": [1, 2, 3]},
        {"type": "generate", "episode": 4, "request": 1, "prompt_ids": [4], "max_tokens": 5},
    ]
    agent.generated(asked[1], 8, stop_reason="length")
    agent.generated(asked[0], 6, 7)
    assert agent.read() == {
        "type": "output", "episode": 4, "prompt_ids": [1, 2, 3], "response_ids": [6, 7, 9, 8],
        "response_mask": [1, 1, 0, 1], "rewards": {"reward": 0.5},
    }  # fmt: skip
    gets, has, *rest = agent.end().splitlines()
    assert rest == []
    sampling, _, fields = gets.removeprefix("gets ").partition("} ")
    assert eval(sampling + "}") == {
        "temperature": 1.0, "top_p": 1.0, "top_k": -1, "repetition_penalty": 1.0, "logprobs": True
    }  # fmt: skip
    assert eval(fields) == {
        "raw_prompt": user("6*7?"), "raw_prompt_ids": [1, 2], "data_source": "sums", "extra_info": {"index": 3},
        "reward_model": {"style": "rule", "ground_truth": "42"}, "index": 3, "level": "2", "tools_kwargs": {},
        "interaction_kwargs": {},
    }  # fmt: skip
    assert "token_ids=[6, 7], log_probs=[-1.5, -1.5], stop_reason='completed'" in has
    assert "stop_reason='length'" in has and "'global_steps': 3" in has


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("return {'prompt_ids': [1], 'response_ids': [2]}", "without 'response_mask'"),
        ("return {'prompt_ids': [1], 'response_ids': [2, 3], 'response_mask': [1]}",
         "a response_mask of 1 values for 2 response_ids; it has a 0 or 1 for each"),
        ("return {'prompt_ids': 'a', 'response_ids': [], 'response_mask': []}", "prompt_ids is not a list of token ids: 'a'"),
        ("return []", "run returned a list of 0 outputs; here an episode has one"),
        ("return 1 / 0", "agent 'Agent': ZeroDivisionError: division by zero (mine.py:4, in run: return 1 / 0)"),
        ("raise asyncio.CancelledError", "agent 'Agent': it was cancelled by its own code"),
        ("await self.server_manager.generate(prompt_ids=[1], sampling_params={'temperature': 0})",
         "sampling_params has temperature=0, and the run 1.0, which log-probs are of: change it there"),
        ("await self.server_manager.generate(prompt_ids=[1], sampling_params={'stop': ['x']})", "sampling_params has stop="),
        ("await self.server_manager.generate(prompt_ids=[1], image_data=['x'])", "image_data: only texts are generated"),
        ("self.server", "'Agent' has no 'server', nor is it given to agents: trainer_config, server_manager,"),
        ("self.config.critic", "agents' configuration has no 'critic' here; it has: actor_rollout_ref, data"),
        ("self.tokenizer", "the tokenizer of an agent is loaded with transformers, which"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_an_agent_is_told_of_its_episode(program, body, told):
    agent = program(f"import asyncio\nclass Agent:\n    async def run(self, sampling_params):\n        {body}\n", "Agent")
    for episode in (1, 2):
        agent.run(episode)
        heard = agent.hear()
        assert heard["episode"] == episode and told in heard["error"], heard


def test_agents_are_made_with_what_their_constructor_takes(program):
    agent = program("""
import functools
class Base:
    def __init__(self, trainer_config, server_manager, **kwargs):
        self.config, self.server = trainer_config.config, server_manager
        assert {"dataset_cls", "data_config", "processor", "hf_model_type"} <= kwargs.keys() - {"tokenizer"}
class Agent:
    def __init__(self, server_manager, length, *, tools=None): self.server, self.length = server_manager, length
    async def run(self, sampling_params, raw_prompt, level=0, seed=None):
        try: await self.server.generate(prompt_ids=[seed, level], sampling_params=sampling_params)
        except RuntimeError as error: assert str(error) == "no completion was generated: too long"
        return Output(raw_prompt)
class Output:
    def __init__(self, raw): self.prompt_ids, self.response_ids, self.response_mask = [len(raw)], (5,), [True]
partial = functools.partial(Agent, length=3)
""", "partial", columns=["level"])  # fmt: skip
    assert agent.hello["name"] == "partial"
    agent.run(1, seed=11, messages=user("a") + user("b"), columns={"level": "0"})
    heard = agent.read()
    assert "prompt_ids is not a list of token ids: [11, '0']" in heard["error"]
    agent.run(2, seed=11, messages=user("a") + user("b"))
    asked = agent.read()
    assert asked["prompt_ids"] == [11, 0]
    agent.send({"type": "generated", "episode": 2, "request": 0, "error": "too long"})
    assert agent.read() == {
        "type": "output", "episode": 2, "prompt_ids": [2], "response_ids": [5], "response_mask": [1], "rewards": {}
    }  # fmt: skip
    agent.end()


VERLS = """
from verl.experimental.agent_loop.agent_loop import AgentLoopOutput, register
from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop
@register("two_turns")
class TwoTurns(SingleTurnAgentLoop):
    async def run(self, sampling_params, **kwargs):
        if kwargs["data_source"] == "single": return await super().run(sampling_params, **kwargs)
        ids = await self.ct_build_initial_tokens(list(kwargs["raw_prompt"]))
        prompt, mask = list(ids), []
        for turn in range(2):
            if turn:
                ids, mask = ids + self.tokenizer.encode("ok"), mask + [0, 0]
            out = await self.server_manager.generate(request_id="x", prompt_ids=ids, sampling_params=sampling_params)
            ids, mask = ids + out.token_ids, mask + [1] * len(out.token_ids)
        length = self.rollout_config.response_length
        return AgentLoopOutput(prompt_ids=prompt, response_ids=ids[len(prompt):][:length], response_mask=mask[:length],
                               metrics={}, num_turns=3, reward_score=0.25)
"""


def test_the_agent_loops_of_verl_run_as_they_are(tmp_path, others):
    # verl's own code, with what it needs from the environments of other tests; two packages that this part of it has no use
    # for are not installed.
    libraries = tmp_path / "libraries"
    libraries.mkdir()
    (libraries / "verl").symlink_to(package(".venv-templates", "verl"))
    (libraries / "orjson.py").touch()
    (libraries / "codetiming.py").write_text("""
import contextlib
class Timer(contextlib.nullcontext):
    last = 0.0
    def __init__(self, **kwargs): super().__init__(self)
""")
    oracle = package(".venv-oracle", "transformers").parent
    prompt, ok = others["tokens"]
    model = others["folder"] / "model"
    (model / "config.json").write_text('{"model_type": "gpt2"}')
    (tmp_path / "mine.py").write_text(VERLS)
    start = {"cwd": tmp_path, "model": str(model), "env": {"PYTHONPATH": f"{libraries}:{oracle}"}}
    with Program(*AS_TEXT, "mine.py:TwoTurns", **start) as agent:
        agent.run(1, messages=user("6*7?"))
        asked = agent.read()
        assert asked == {"type": "generate", "episode": 1, "request": 0, "prompt_ids": prompt}
        agent.generated(asked, 20, 21)
        asked = agent.read()
        assert asked["prompt_ids"] == [*prompt, 20, 21, *ok]
        agent.generated(asked, *range(30, 50))
        assert agent.read() == {
            "type": "output", "episode": 1, "prompt_ids": prompt, "response_ids": [20, 21, *ok, *range(30, 42)],
            "response_mask": [1, 1, 0, 0, *[1] * 12], "rewards": {"reward": 0.25},
        }  # fmt: skip
        agent.run(2, messages=user("6*7?"), source="single")
        asked = agent.read()
        assert asked["prompt_ids"] == prompt
        agent.generated(asked, 20, 1)
        assert agent.read() == {
            "type": "output", "episode": 2, "prompt_ids": prompt, "response_ids": [20, 1], "response_mask": [1, 1],
            "rewards": {},
        }  # fmt: skip


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
environments.serve(lambda: Env(), name="mine", episodes=5)
""")
    with Program("env", "-u", "PYTHONUNBUFFERED", sys.executable, tmp_path / "own.py") as own:
        assert (own.hello["name"], own.hello["episodes"]) == ("mine", 5)
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
    assert ENVIRONMENTS.stat().st_size < 100_000
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
    def reset(self, truth): time.sleep(60 * (truth == "long"))
"""
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
    ("text", "name", "told"),
    [
        ("class Calculator: ...", "Calculater", "mine.py has no 'Calculater'; did you mean Calculator?"),
        ("import missing_package", "Env",
         "mine.py cannot be imported: ModuleNotFoundError: No module named 'missing_package' "
         "(mine.py:1: import missing_package)"),
        ("Env = 3", "Env", "'Env' is 3, and no class of environments"),
        ("class A:\n    def reset(self): ...\nEnv = A()", "Env", "and no class of environments: name its class"),
        ("class Env:\n    def resett(self): ...\n    def go(self): ...", "Env",
         "it has: go, resett; did you mean resett?"),
        ("class Env:\n    def __init__(self, x): ...", "Env", "'Env' cannot be made without arguments: TypeError"),
        ("class Env:\n    def __init__(self):\n        raise OSError('no server')", "Env",
         "OSError: no server (mine.py:3, in __init__: raise OSError('no server'))"),
        ("class Env:\n    def reset(self, seed, row): ...", "Env", "'Env' has reset(seed, row), but no step(message)"),
        ("Env = {}", "Env", "'Env' is a dict of environments; a run has one: name that"),
        ("class Env:\n    def reset(self, level, **kwargs): ...", "Env",
         "environment 'Env': reset needs 'level': no column of that name is kept; name it in data.keep (kept: extra)"),
        ("class Env:\n    def run(self, sampling_params): ...", "Env",
         "agent 'Env': run is not a coroutine function: begin it with async def"),
        ("class Env:\n    def __init__(self, x): ...\n    async def run(self, sampling_params): ...", "Env",
         "agent 'Env' is made with x, which agent loops are not given: bind it with functools.partial"),
        (TOOL.format("(self)", ""), "Env", "the tool 'tool' has no docstring"),
        (TOOL.format("(self, a)", "X."), "Env", "the tool 'tool' does not say the type of 'a': annotate it"),
        (TOOL.format("(self, a: int)", "X."), "Env",
         "the docstring of the tool 'tool' does not describe 'a' under Args:"),
        (TOOL.format("(self, a: set)", "X."), "Env",
         "the tool 'tool', parameter 'a': there is no JSON schema for <class 'set'>, but for int"),
        (TOOL.format("(self, a: tuple[int, ...])", "X."), "Env", "a tuple of a length that is not known"),
        (TOOL.format("(self, a: int)", "X.\n    Args:\n        a: A (choices: 1, 2)"), "Env",
         "the tool 'tool', parameter 'a': its choices are no JSON list: 1, 2"),
    ],
)  # fmt: skip
def test_what_cannot_be_an_environment_is_refused_with_the_reason(tmp_path, text, name, told):
    assert told in refused(tmp_path, text, name)


@pytest.mark.parametrize(
    ("sent", "told"),
    [
        ("what", "what arrived is not JSON"),
        ("[]", "what arrived is not an object: []"),
        ('{"type":"score","episode":1}', "a message of an episode was to come, not"),
        ('{"type":"reset","episode":1,"seed":1,"row":[]}', "the row of an episode is no object: []"),
        ('{"type":"reset","episode":1,"row":{}}', "episode 1 has no seed: None"),
        ('{"type":"reset","episode":1,"seed":1,"row":{"truth":3}}', "'truth' of a row is not a text: 3"),
        ('{"type":"step","episode":1,"message":{}}', "episode 1 is not under way, or waits for another message"),
        ('{"type":"run","episode":1,"seed":1,"row":{}}', "a message of an episode was to come, not"),
        (" " * (16 << 20) + "{}", "a line of more than 16 MiB arrived"),
    ],
)  # fmt: skip
def test_what_does_not_follow_the_protocol_is_refused(tmp_path, sent, told):
    assert told in refused(tmp_path, "class Env:\n    def reset(self): ...", more=sent + "\n")


def test_a_hello_of_another_protocol_is_refused(tmp_path):
    (tmp_path / "mine.py").write_text("class Env:\n    def reset(self): ...")
    done = subprocess.run([*AS_TEXT, "mine.py:Env"], cwd=tmp_path, input='{"type":"hello","protocol":2}\n',
                          capture_output=True, text=True, timeout=LONG)  # fmt: skip
    assert done.returncode == 2 and "a hello of protocol 1 was to come first" in done.stderr
