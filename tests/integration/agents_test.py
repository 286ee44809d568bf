#!/usr/bin/env python3
"""Runs that train by way of OpenAI's client, given a URL: tests/integration/agents_test.py TDOCK"""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

from clients_test import TEMPLATE
from generate_test import write_model
from rollout_servers_test import Server

tdock = None
ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
SMALL = {"model.path": "", "model.alphabet": "0123456789>ab", "model.hidden_size": 32, "model.num_hidden_layers": 1}
TINY = {
    "actor.optim.lr": 1e-4, "trainer.total_training_steps": 1, "data.train_batch_size": 4,
    "actor.ppo_mini_batch_size": 4, "rollout.n": 2,
}  # fmt: skip

# Is worth the share of "a" in both of its replies.
LEARNS = """
import openai

SHARED = openai.AsyncOpenAI(api_key="none")  # a client of its own for each episode would cost more than the episode

async def solve(base_url, api_key, prompt):
    client = SHARED.with_options(base_url=base_url, api_key=api_key, max_retries=0)
    messages = [{"role": "user", "content": prompt}]
    for _ in range(2):
        said = (await client.chat.completions.create(model="any", messages=messages)).choices[0].message
        messages += [said.model_dump(exclude_none=True), {"role": "user", "content": ">"}]
    text = messages[1]["content"] + messages[3]["content"]
    return {"a": text.count("a") / max(len(text), 4)}
"""

# Streams, has a second conversation at the same time, and tries keys that are none of its own.
STREAMS = """
import concurrent.futures, openai

earlier = []

def said(client, prompt):
    pieces = client.chat.completions.create(
        model="any", messages=[{"role": "user", "content": prompt}], temperature=0.25, stream=True,
        stream_options={"include_usage": True})
    return "".join(piece.choices[0].delta.content or "" for piece in pieces if piece.choices)

def refused(base_url, api_key):
    try:
        said(openai.OpenAI(base_url=base_url, api_key=api_key, max_retries=0), "1")
    except openai.APIStatusError as error:
        return error.status_code

def solve(base_url, api_key, prompt):
    client = openai.OpenAI(base_url=base_url, api_key=api_key, max_retries=0)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        list(pool.map(lambda one: said(client, one), (prompt, "7")))
    assert client.models.list().data[0].id == "policy"
    assert refused(base_url.replace(api_key, "0" * 32), api_key) == 404
    for url, key in earlier:
        assert refused(url, key) == 410
    by_key = base_url.replace("/episode/" + api_key, "")
    assert said(openai.OpenAI(base_url=by_key, api_key=api_key, max_retries=0), "3") is not None
    earlier[:] = [(base_url, api_key)]
    return 1.0

solve.concurrent_episodes = 1
"""

# Is made to call a tool, and goes on with what that says.
CALLS = """
import json, openai

SHARED = openai.OpenAI(api_key="none")
TOOLS = [{"type": "function", "function": {"name": "paint", "parameters": {
    "type": "object", "properties": {"color": {"enum": ["red", "green"]}}, "required": ["color"],
    "additionalProperties": False}}}]

def solve(base_url, api_key, model, messages):
    client = SHARED.with_options(base_url=base_url, api_key=api_key, max_retries=0)
    first = client.chat.completions.create(model=model, messages=messages, tools=TOOLS, tool_choice="required",
                                           parallel_tool_calls=False)
    call = first.choices[0].message.tool_calls[0]
    color = json.loads(call.function.arguments)["color"]
    messages = [*messages, first.choices[0].message, {"role": "tool", "tool_call_id": call.id, "content": "It is " + color}]
    client.chat.completions.create(model=model, messages=messages, tools=TOOLS, max_tokens=4)
    try:
        client.chat.completions.create(model=model, messages=messages, n=2)
    except openai.BadRequestError as error:
        assert error.param == "n", error
    return color == "red"
"""

# Is worth the letters of its one reply.
SHORT = """
import openai

SHARED = openai.OpenAI(api_key="none")

def solve(base_url, api_key, prompt):
    client = SHARED.with_options(base_url=base_url, api_key=api_key, max_retries=0)
    messages = [{"role": "user", "content": prompt}]
    text = client.chat.completions.create(model="any", messages=messages, max_tokens=8).choices[0].message.content
    return {"letters": sum(map(str.isalpha, text))}
"""


class Agents(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        lines = [json.dumps({"prompt": f"{i:02}>", "answer": str(i)}) for i in range(40)]
        (cls.folder / "train.jsonl").write_text("\n".join(lines))

    def train(self, name, agent, overrides):
        """The metrics of each step, and the log."""
        (self.folder / f"{name}.py").write_text(agent)
        settings = {
            "data.train_files": f"{self.folder}/train.jsonl", "data.val_files": "[]", "data.train_batch_size": 8,
            "data.max_response_length": 16, "rollout.n": 8, "rollout.probe_prompts": 0, "actor.ppo_mini_batch_size": 8,
            "actor.kl_loss_coef": 0, "threads": 1, "environment.function": f"{self.folder}/{name}.py:solve",
            "environment.python": sys.executable, "environment.max_turns": 4,
        } | (overrides if "model.path" in overrides else SMALL | overrides)  # fmt: skip
        done = subprocess.run(
            [tdock, "train", "examples/python-environment/grpo.yaml", "--run-dir", str(self.folder / name),
             *(f"{key}={value}" for key, value in settings.items())],
            cwd=ROOT, capture_output=True, text=True,
        )  # fmt: skip
        self.assertEqual(done.returncode, 0, done.stderr)
        lines = (self.folder / name / "metrics.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines][1:], done.stderr

    def test_an_agent_of_openais_client_learns(self):
        steps, _ = self.train("learns", LEARNS, {"actor.optim.lr": 2e-2, "trainer.total_training_steps": 12})
        control, _ = self.train("control", LEARNS, {"actor.optim.lr": 1e-12, "trainer.total_training_steps": 3})
        rewards, unmoved = ([step["reward/a/mean"] for step in run] for run in (steps, control))
        self.assertAlmostEqual(rewards[0], unmoved[0], places=6)
        self.assertGreater(rewards[-1], 0.5, rewards)
        self.assertLess(max(unmoved), 0.2, unmoved)
        for step in steps:
            self.assertEqual(step["episode/forks"], 0, "white space at most may differ")
            self.assertLess(abs(step.get("rollout_corr/kl", 0)), 1e-4)

    def test_streams_other_conversations_and_keys(self):
        steps, log = self.train("streams", STREAMS, TINY)
        self.assertEqual(steps[0]["reward/reward/mean"], 1)
        self.assertEqual(steps[0]["episode/turns"], 3)
        self.assertEqual(steps[0]["episode/forks"], 2, "three conversations")
        self.assertIn(log.count("temperature=0.25"), (1, 2), "told of once by the trial of the environment, and by the run")

    def test_forced_calls_go_on_from_their_own_tokens(self):
        model = write_model(self.folder / "model", chat_template=TEMPLATE)
        steps, _ = self.train("calls", CALLS, TINY | {
            "model.path": model, "environment.format": "chat", "environment.tool_format": "auto",
            "data.max_prompt_length": 400, "data.max_response_length": 200,
        })  # fmt: skip
        self.assertEqual(steps[0]["episode/turns"], 2)
        self.assertEqual(steps[0]["episode/forks"], 0)
        self.assertGreater(steps[0]["episode/observation_tokens"], 5)

    def test_servers_of_rollouts_answer_an_agent_as_the_run_does(self):
        model = write_model(self.folder / "answers", chat_template=TEMPLATE)
        server = Server(
            self, [tdock, "serve", "--model", model, "--port", "0", "--threads", "1"], r"http://127\.0\.0\.1:(\d+)"
        )
        runs = []
        for name, servers in (("alone", "[]"), ("served", f"[{server.url}]")):
            steps, _ = self.train(name, SHORT, TINY | {
                "model.path": model, "environment.format": "chat", "data.max_prompt_length": 400, "rollout.n": 4,
                "rollout.servers": servers, "trainer.total_training_steps": 2, "actor.optim.lr": 1e-3,
            })  # fmt: skip
            for step in steps:
                self.assertEqual(step.get("rollout_corr/max_abs_diff", 0), 0)
            runs.append([(step["reward/letters/mean"], step["actor/grad_norm"]) for step in steps])
        self.assertEqual(runs[0], runs[1])
        self.assertGreater(server.answered(), 0)


if __name__ == "__main__":
    tdock = str(pathlib.Path(sys.argv.pop(1)).resolve())
    unittest.main()
