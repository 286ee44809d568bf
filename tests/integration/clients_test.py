#!/usr/bin/env python3
"""Clients as people use them, with `tdock serve`: tests/integration/clients_test.py TDOCK

The table of docs/serving.md says which of them can do what; each of its cells that says "yes" is a check here. The model is
random: it does what a schema or a forced call makes it do.
"""

import json
import pathlib
import re
import sys
import tempfile
import unittest
from typing import Annotated, Literal

import instructor
import openai
from generate_test import write_model
from langchain.agents import create_agent
from langchain.agents.structured_output import ToolStrategy
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, Field
from served_model import NAME, Server

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent

# As Qwen's and Hermes' do.
TEMPLATE = (
    "{%- if tools %}(tools){% for tool in tools %}{{ tool | tojson }}{% endfor %}{% endif %}"
    "{%- for m in messages %}({{ m.role }}){% if m.content %}{{ m.content }}{% endif %}"
    "{%- for call in m.tool_calls or [] %}<tool_call>\n"
    '{"name": {{ call.function.name | tojson }}, "arguments": {{ call.function.arguments | tojson }}}\n</tool_call>'
    "{%- endfor %}{% endfor %}{% if add_generation_prompt %}(assistant){% endif %}"
)
HI = [{"role": "user", "content": "Hi"}]
ANY = 100  # a temperature at which every token that may come is about as likely
ENDLESS = {"ignore_eos": True}


class Picture(BaseModel):
    """A picture."""

    color: Literal["red", "green"]
    size: Annotated[int, Field(ge=0, le=9)]
    frame: Literal["wood", "none"] | None


@tool
def paint(color: Literal["red", "green"]) -> str:
    """Paints."""
    return f"It is {color}."


@tool
def count(upto: Annotated[int, Field(ge=0, le=9)]) -> int:
    """Counts."""
    return upto


CHECKS = {}  # (client, feature): what asserts it


def check(client, *features):
    def add(function):
        CHECKS.update({(client, feature): function for feature in features})
        return function

    return add


def tools_of(*models):
    return [openai.pydantic_function_tool(model) for model in models]


@check("openai", "chat")
def openai_chats(test):
    answer = test.client.chat.completions.create(
        model=NAME, messages=HI, n=2, max_completion_tokens=9, logprobs=True, top_logprobs=2, user="me", store=False,
        metadata={"a": "b"}, service_tier="auto", parallel_tool_calls=True, extra_body={"best_of": 2, "priority": 3},
    )  # fmt: skip
    test.assertEqual(len(answer.choices), 2)
    test.assertEqual(len(answer.choices[0].logprobs.content[0].top_logprobs), 2)


@check("openai", "streams")
def openai_streams(test):
    with test.client.chat.completions.stream(
        model=NAME, messages=HI, max_completion_tokens=9, seed=1, stream_options={"include_usage": True}
    ) as stream:
        text = "".join(event.delta for event in stream if event.type == "content.delta")
        final = stream.current_completion_snapshot  # the final one may not end for its length
    test.assertEqual(final.choices[0].message.content or "", text)
    whole = test.client.chat.completions.create(model=NAME, messages=HI, max_completion_tokens=9, seed=1)
    test.assertEqual(whole.choices[0].message.content, text)
    test.assertEqual(final.usage, whole.usage)


@check("openai", "schemas")
def openai_parses(test):
    for _ in range(3):
        answer = test.client.chat.completions.parse(model=NAME, messages=HI, response_format=Picture, temperature=ANY)
        test.assertIsInstance(answer.choices[0].message.parsed, Picture)
    with test.client.chat.completions.stream(
        model=NAME, messages=HI, response_format=Picture, temperature=ANY
    ) as stream:
        test.assertIsInstance(stream.get_final_completion().choices[0].message.parsed, Picture)


@check("openai", "tools")
def openai_calls(test):
    named = {"type": "function", "function": {"name": "Picture"}}
    for choice in ("required", named):
        fields = {"model": NAME, "messages": HI, "tools": tools_of(Picture), "tool_choice": choice, "temperature": ANY}
        answer = test.client.chat.completions.parse(**fields).choices[0]
        test.assertTrue(answer.message.tool_calls)
        test.assertFalse(answer.message.content)
        for call in answer.message.tool_calls:
            test.assertIsInstance(call.function.parsed_arguments, Picture)
            test.assertTrue(call.id)
        with test.client.chat.completions.stream(**fields) as stream:
            final = stream.get_final_completion().choices[0].message
        test.assertIsInstance(final.tool_calls[0].function.parsed_arguments, Picture)
    one = test.client.chat.completions.create(**fields | {"tool_choice": "required"}, parallel_tool_calls=False)
    test.assertEqual(len(one.choices[0].message.tool_calls), 1)


@check("openai", "results of tools")
def openai_goes_on(test):
    fields = {"model": NAME, "tools": tools_of(Picture), "temperature": ANY}
    called = test.client.chat.completions.create(messages=HI, tool_choice="required", **fields).choices[0].message
    results = [{"role": "tool", "tool_call_id": call.id, "content": "done"} for call in called.tool_calls]
    for reply in (called, called.model_dump(), called.model_dump(exclude_none=True)):
        answer = test.client.chat.completions.create(
            messages=[*HI, reply, *results], tool_choice="none", max_completion_tokens=3, **fields
        )
        test.assertGreater(answer.usage.prompt_tokens, len("(user)Hi"))


@check("openai", "responses")
def openai_responds(test):
    plain = test.client.responses.create(model=NAME, input="Hi", max_output_tokens=9, store=True, extra_body=ENDLESS)
    test.assertEqual(plain.status, "incomplete")
    test.assertEqual(plain.incomplete_details.reason, "max_output_tokens")
    test.assertEqual(plain.usage.output_tokens, 9)
    parsed = test.client.responses.parse(model=NAME, input="Hi", text_format=Picture, temperature=ANY)
    test.assertIsInstance(parsed.output_parsed, Picture)
    tools = [{"type": "function", "name": "paint", "strict": True, "parameters": Picture.model_json_schema()}]
    fields = {"model": NAME, "tools": tools, "tool_choice": "required", "temperature": ANY}
    called = test.client.responses.create(input="Hi", **fields)
    calls = [item for item in called.output if item.type == "function_call"]
    test.assertTrue(calls)
    Picture.model_validate_json(calls[0].arguments)
    results = [{"type": "function_call_output", "call_id": call.call_id, "output": "done"} for call in calls]
    answer = test.client.responses.create(
        input=[{"role": "user", "content": "Hi"}, *called.output, *results], **fields | {"tool_choice": "none"},
        max_output_tokens=3, extra_body=ENDLESS,
    )  # fmt: skip
    test.assertEqual(answer.output[0].type, "message")
    with test.assertRaises(openai.BadRequestError) as refused:
        test.client.responses.create(model=NAME, input="Hi", previous_response_id="resp_1")
    test.assertEqual(refused.exception.param, "previous_response_id")


@check("openai", "streams of responses")
def openai_streams_responses(test):
    with test.client.responses.stream(model=NAME, input="Hi", text_format=Picture, temperature=ANY) as stream:
        events = list(stream)
        final = stream.get_final_response()
    test.assertIsInstance(final.output_parsed, Picture)
    test.assertEqual(events[0].type, "response.created")
    test.assertEqual(events[-1].type, "response.completed")
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    test.assertEqual(final.output_text, text)
    tools = [{"type": "function", "name": "paint", "strict": True, "parameters": Picture.model_json_schema()}]
    events = list(
        test.client.responses.create(
            model=NAME, input="Hi", tools=tools, tool_choice="required", temperature=ANY, stream=True
        )
    )
    test.assertEqual([event.sequence_number for event in events], list(range(len(events))))
    items = [item for item in events[-1].response.output if item.type == "function_call"]
    deltas = "".join(event.delta for event in events if event.type == "response.function_call_arguments.delta")
    test.assertEqual(deltas, "".join(item.arguments for item in items))


def langchain_of(test, **fields):
    return ChatOpenAI(
        base_url=str(test.client.base_url), api_key="none", model=NAME, temperature=ANY, max_retries=0, **fields
    )


@check("langchain-openai", "chat")
def langchain_chats(test):
    answer = langchain_of(test, max_tokens=9, extra_body=ENDLESS).invoke("Hi")
    test.assertEqual(answer.usage_metadata["output_tokens"], 9)


@check("langchain-openai", "streams")
def langchain_streams(test):
    pieces = list(langchain_of(test, max_tokens=9, stream_usage=True, extra_body=ENDLESS).stream("Hi"))
    test.assertEqual(sum(piece.usage_metadata["output_tokens"] for piece in pieces if piece.usage_metadata), 9)


@check("langchain-openai", "schemas")
def langchain_parses(test):
    for method in ("json_schema", "function_calling"):
        test.assertIsInstance(
            langchain_of(test).with_structured_output(Picture, method=method).invoke("Hi"), Picture, method
        )


@check("langchain-openai", "tools")
def langchain_calls(test):
    bound = langchain_of(test).bind_tools([paint, count], tool_choice="any")
    for call in bound.invoke("Hi").tool_calls:
        test.assertIn(call["name"], ("paint", "count"))
    named = langchain_of(test).bind_tools([paint, count], tool_choice="count")
    test.assertEqual([call["name"] for call in named.invoke("Hi").tool_calls], ["count"])
    whole = None
    for piece in named.stream("Hi"):
        whole = piece if whole is None else whole + piece
    test.assertIn(whole.tool_calls[0]["args"]["upto"], range(10))


@check("langchain-openai", "agents", "results of tools")
def langchain_agent(test):
    """Calls tools, each at random, until the one that it answers with."""
    # An answer together with other calls is an error of the agent.
    model = langchain_of(test, model_kwargs={"parallel_tool_calls": False})
    agent = create_agent(model, tools=[paint, count], response_format=ToolStrategy(Picture))
    called = set()
    for _ in range(10):
        done = agent.invoke({"messages": HI}, {"recursion_limit": 200})
        test.assertIsInstance(done["structured_response"], Picture)
        called |= {message.name for message in done["messages"] if message.type == "tool"}
        if called >= {"paint", "count"}:
            return
    test.fail(f"of two tools it has only called {called}")


@check("langchain-openai", "responses")
def langchain_responds(test):
    model = langchain_of(test, use_responses_api=True)
    test.assertIsInstance(model.with_structured_output(Picture).invoke("Hi"), Picture)
    calls = model.bind_tools([paint, count], tool_choice="any").invoke("Hi").tool_calls
    test.assertTrue(calls)


@check("langchain-openai", "streams of responses")
def langchain_streams_responses(test):
    bound = langchain_of(test, use_responses_api=True).bind_tools([count], tool_choice="any")
    whole = None
    for piece in bound.stream("Hi"):
        whole = piece if whole is None else whole + piece
    test.assertIn(whole.tool_calls[0]["args"]["upto"], range(10))


@check("instructor", "schemas")
def instructor_parses(test):
    client = instructor.from_openai(test.client, mode=instructor.Mode.JSON_SCHEMA)
    picture = client.chat.completions.create(model=NAME, messages=HI, response_model=Picture, temperature=ANY)
    test.assertIsInstance(picture, Picture)


@check("instructor", "tools")
def instructor_calls(test):
    client = instructor.from_openai(test.client, mode=instructor.Mode.TOOLS)
    picture = client.chat.completions.create(model=NAME, messages=HI, response_model=Picture, temperature=ANY)
    test.assertIsInstance(picture, Picture)


@check("instructor", "streams")
def instructor_streams(test):
    client = instructor.from_openai(test.client, mode=instructor.Mode.JSON_SCHEMA)
    pieces = list(
        client.chat.completions.create_partial(model=NAME, messages=HI, response_model=Picture, temperature=ANY)
    )
    Picture.model_validate(pieces[-1].model_dump())


def promised():
    """What the table of docs/serving.md says: (client, feature) that each "yes" stands for."""
    text = (ROOT / "docs/serving.md").read_text()
    lines = [line for line in text.splitlines() if line.startswith("|")]
    head = next(i for i, line in enumerate(lines) if line.startswith("| client |"))
    cells = lambda line: [cell.strip() for cell in line.strip("|").split("|")]  # noqa: E731
    features = cells(lines[head])[1:]
    found = set()
    for line in lines[head + 2 :]:
        client, *says = cells(line)
        if len(says) != len(features):
            break
        found |= {(re.sub(r"`", "", client), f) for f, said in zip(features, says, strict=True) if said == "yes"}
    return found


class Clients(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        model = write_model(
            pathlib.Path(folder.name) / "model", chat_template=TEMPLATE, max_position_embeddings=20_000
        )
        cls.server = Server(model)
        cls.addClassCleanup(cls.server.end)
        cls.client = cls.server.client

    def test_all_that_the_table_promises(self):
        self.assertEqual(promised(), set(CHECKS))
        for function in dict.fromkeys(CHECKS.values()):
            with self.subTest(function.__name__):
                function(self)

    def test_bad_schemas_and_tools_name_the_field_and_disturb_nothing(self):
        recursive = {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}
        never = {"type": "integer", "minimum": 3, "maximum": 2}
        huge = {"anyOf": [{"const": f"x{i}"} for i in range(100_000)]}
        unknown = {"type": "object", "properties": {"a": {"type": "string", "if": {"minLength": 1}}}}
        for schema in (recursive, never, huge, unknown, {"type": "nothing"}):
            schema_format = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
            self.refused("response_format.json_schema.schema", response_format=schema_format)
        self.refused("guided_regex", guided_regex="a(")
        self.refused("structured_outputs.choice[1]", structured_outputs={"choice": ["a", 1]})
        function = {"type": "function", "function": {"name": "f", "parameters": never}}
        self.refused("tools", tools=[*self.tools("g"), function], tool_choice="required")
        self.refused("tools[0].function.name", tools=[{"type": "function", "function": {}}])
        self.refused("tool_choice", tools=self.tools("g"), tool_choice={"type": "function", "function": {"name": "h"}})
        self.refused("tool_choice", tool_choice="required")
        self.refused("messages[0].content[1].type", messages=[
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {}}]}])  # fmt: skip
        answer = self.client.chat.completions.create(model=NAME, messages=HI, max_completion_tokens=2)
        self.assertEqual(answer.usage.completion_tokens, 2)

    @staticmethod
    def tools(name):
        return [{"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}]

    def refused(self, param, **fields):
        status, answer, _ = self.server.ask("POST", "/v1/chat/completions", {"messages": HI, **fields})
        self.assertEqual((status, answer["error"]["param"]), (400, param), json.dumps(answer)[:500])

    def test_grammars_of_vllm(self):
        def text(**fields):
            body = {"messages": HI, "temperature": ANY, "max_tokens": 100, **fields}
            status, answer, _ = self.server.ask("POST", "/v1/chat/completions", body)
            self.assertEqual(status, 200, answer)
            self.assertEqual(answer["choices"][0]["finish_reason"], "stop")
            return answer["choices"][0]["message"]["content"]

        self.assertIn(text(guided_choice=["yes", "no"]), ("yes", "no"))
        self.assertIn(text(structured_outputs={"choice": ["yes", "no"]}), ("yes", "no"))
        self.assertRegex(text(guided_regex="[a-c]{2,4}\\d"), r"\A[a-c]{2,4}\d\Z")
        self.assertRegex(text(structured_outputs={"regex": "[a-c]{2,4}\\d"}), r"\A[a-c]{2,4}\d\Z")
        schema = Picture.model_json_schema()
        for fields in ({"guided_json": schema}, {"guided_json": json.dumps(schema)}, {"structured_outputs": {"json": schema}}):
            Picture.model_validate_json(text(**fields))


if __name__ == "__main__":
    Server.tdock = sys.argv.pop(1)
    unittest.main()
