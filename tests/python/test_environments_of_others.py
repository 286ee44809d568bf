"""Environments that were written for TRL, and agent loops that were written for verl, beside TRL and verl."""

from __future__ import annotations

import json
import os
import subprocess

import pytest

from environment_programs import AS_TEXT, CALCULATOR, ROOT, Program, program, tool_calls, user
from line_programs import package
from messages import mentions
from waiting import LONG

__all__ = ["program"]


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
    accelerator=types.SimpleNamespace(device="cpu"), environment_factories={None: Environment},
    _multi_environment=False,
    model=types.SimpleNamespace(training=True, config=types.SimpleNamespace(max_position_embeddings=1 << 20)),
    _environment_pool={None: [environment]}, _env_tools={None: []}, _standalone_tools=[], tools=["placeholder"],
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
schemas = [get_json_schema(tool) for _, tool in sorted(tools.items())]
conversation = [prompt, messages, environment.get_reward(), schemas]

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
    """What TRL and transformers make of all this, in one process, since they take long to import; `folder` has a
    tokenizer."""
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
    heard = ours.hear()
    assert heard["continues"] and prompt == user("6*7?" + heard["messages"][0]["content"])
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
    own = "class Env:\n    tools = FUNCTIONS\n    def reset(self, seed, row): ...\n    step = reset\n"
    env = program(SCHEMAS + own)
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
    ("body", "names"),
    [
        ("return {'prompt_ids': [1], 'response_ids': [2]}", ["without 'response_mask'"]),
        ("return {'prompt_ids': [1], 'response_ids': [2, 3], 'response_mask': [1]}",
         ["response_mask", "1 values", "2 response_ids"]),
        ("return {'prompt_ids': 'a', 'response_ids': [], 'response_mask': []}", ["prompt_ids", "token ids", "'a'"]),
        ("return {'prompt_ids': [1.5], 'response_ids': [], 'response_mask': []}", ["prompt_ids", "1.5", "whole number"]),
        ("return {'prompt_ids': [1], 'response_ids': [2], 'response_mask': [0.5]}", ["response_mask", "0.5"]),
        ("return {'prompt_ids': [1], 'response_ids': [2], 'response_mask': [1], 'reward_score': float('nan')}",
         ["a reward", "finite", "nan"]),
        ("return []", ["run", "0 outputs"]),
        ("return 1 / 0", ["agent 'Agent'", "ZeroDivisionError", "(mine.py:4, in run: return 1 / 0)"]),
        ("raise asyncio.CancelledError", ["agent 'Agent'", "cancelled"]),
        ("await self.server_manager.generate(prompt_ids=[1], sampling_params={'temperature': 0})",
         ["sampling_params", "temperature=0", "run 1.0"]),
        ("await self.server_manager.generate(prompt_ids=[1], sampling_params={'stop': ['x']})",
         ["sampling_params", "stop="]),
        ("await self.server_manager.generate(prompt_ids=[1], image_data=['x'])", ["image_data", "texts"]),
        ("self.server", ["'Agent'", "'server'", "server_manager, tokenizer, processor,"]),
        ("self.config.critic", ["configuration", "'critic'", "actor_rollout_ref, data"]),
        ("self.tokenizer", ["tokenizer", "transformers"]),
    ],
)  # fmt: skip
def test_what_is_wrong_with_an_agent_is_told_of_its_episode(program, body, names):
    text = f"import asyncio\nclass Agent:\n    async def run(self, sampling_params):\n        {body}\n"
    agent = program(text, "Agent")
    for episode in (1, 2):
        agent.run(episode)
        heard = agent.hear()
        assert heard["episode"] == episode
        mentions(heard["error"], *names)


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
        except RuntimeError as error: assert "too long" in str(error)
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
    mentions(agent.end(), "note: ", "'partial'", "reward_score", "reward is 0")


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
    # verl's own code, with what it needs from the environments of other tests; two packages that this part of it has no
    # use for are not installed.
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
