"""Conversations that chat templates are judged on: some for each thing that templates tell apart, and random ones."""

import json
import random
from dataclasses import dataclass


@dataclass
class Case:
    name: str
    inputs: dict  # what apply_chat_template gets: messages, tools, documents, and the template's own variables


WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": 'The weather of a place, as "it\'s" now.\nSecond line: <b>&amp;</b> {{ no }} ü 🙂',
        "parameters": {
            "type": "object",
            "properties": {
                "place": {"type": "string", "description": "A city, e.g. 'São Paulo'"},
                "unit": {"type": "string", "enum": ["°C", "°F"], "default": "°C"},
                "days": {"type": ["integer", "null"], "minimum": 0, "maximum": 1.5e3, "description": ""},
            },
            "required": ["place"],
            "additionalProperties": False,
        },
        "return": {"type": "string", "description": "A sentence."},
    },
}
PLAN = {
    "type": "function",
    "function": {
        "name": "plan",
        "description": "Plans a journey.",
        "parameters": {
            "type": "object",
            "properties": {
                "stops": {
                    "type": "array",
                    "description": "Where to",
                    "items": {
                        "type": "object",
                        "properties": {"at": {"type": "string"}, "hours": {"type": "number", "default": None}},
                        "required": ["at"],
                    },
                },
                "budget": {"anyOf": [{"type": "number"}, {"type": "null"}], "title": "Budget"},
                "options": {"type": "object", "properties": {"fast": {"type": "boolean", "default": True}}},
                "tags": {"type": "array", "items": {"type": "string", "enum": ["a", "b"]}, "nullable": True},
                "anything": {},
            },
            "required": ["stops", "budget"],
        },
    },
}
BARE = {
    "type": "function",
    "function": {"name": "now", "description": "The time", "parameters": {"type": "object", "properties": {}}},
}
NO_PARAMETERS = {"type": "function", "function": {"name": "ping", "description": "Nothing to say"}}
NO_DESCRIPTION = {
    "type": "function",
    "function": {
        "name": "add",
        "parameters": {"type": "object", "properties": {"x": {"type": "number"}, "y": {"type": "number"}}},
    },
}
UNWRAPPED = {
    "name": "look_up",
    "description": "A word",
    "parameters": {"type": "object", "properties": {"word": {"type": "string"}}},
}
DOCUMENTS = [
    {"title": "Weather of the world", "text": "It rains.\n\nOften."},
    {"title": "Ü 'quoted' \"twice\"", "text": "<doc> {% x %}", "doc_id": 7, "contents": "other"},
]

SPECIAL = "<|im_end|>\n<|im_start|>system\n</s><s>[INST] <<SYS>> <|eot_id|><|start_header_id|> <end_of_turn> <|END_OF_TURN_TOKEN|> <｜User｜>"
CONTENTS = {
    "empty": "",
    "blank": " \n\t ",
    "around": "  \n Leading and trailing \t\n\n",
    "no-break": "\u00a0\u2003 x \u3000\u0085",
    "lines": "one\n\n\ntwo\r\nthree\rfour\u2028five\n    indented\n",
    "unicode": "Grüße, 中文 ¿qué? e\u0301 👩\u200d👩\u200d👧 עברית İIıi ǅ ﬁ ß \U0001f1ea\U0001f1fa",
    "quotes": "He said \"it's\" \\ back\\nslash `tick` '''three'''",
    "braces": '{{ messages }} {% if x %} {# no #} {%- raw -%} {"a": [1, 2.50, null]} %s %(x)s {0} ${y}',
    "html": "<b>&lt; &amp; 'x' \"y\"</b> <tool_call>{}</tool_call> <think>",
    "special": SPECIAL,
    "controls": "\x00\x01\x1b[0m\x7f tab\tbell\x07",
    "numbers": "007 1e5 True None -0.0",
    "think-tags": "/think please /no_think <think>\nlet me\n</think>\n\nanswer",
    "long": "word " * 300,
}


def user(content="What's the weather in Paris?", **more):
    return {"role": "user", "content": content, **more}


def assistant(content="It rains.", **more):
    return {"role": "assistant", "content": content, **more}


def system(content="You are terse."):
    return {"role": "system", "content": content}


def call(name="get_weather", arguments=None, id_=None, wrapped=True):
    function = {"name": name, "arguments": {"place": "Paris", "days": 3} if arguments is None else arguments}
    made = {"type": "function", "function": function} if wrapped else function
    return made if id_ is None else {"id": id_, **made}


def result(content='{"sky": "grey", "°C": 12.5}', **more):
    return {"role": "tool", "content": content, **more}


def plain_cases():
    yield "user", [user("Hi")], {}
    yield "reply", [user("Hi"), assistant("Hello!")], {}
    yield "turns", [user("Hi"), assistant("Hello!"), user("How are you?"), assistant("Fine."), user("Good")], {}
    yield "system", [system(), user("Hi")], {}
    yield "system-turns", [system(), user("Hi"), assistant("Hello!"), user("Bye"), assistant("Bye!")], {}
    yield "developer", [{"role": "developer", "content": "Be brief."}, user("Hi"), assistant("Hello")], {}
    yield "system-developer", [system(), {"role": "developer", "content": "Be brief."}, user("Hi")], {}
    yield "system-only", [system()], {}
    yield "system-middle", [user("Hi"), system("Now in French."), assistant("Salut"), user("Bien")], {}
    yield "system-twice", [system(), system("And kind."), user("Hi"), assistant("Yo")], {}
    yield "system-empty", [system(""), user("Hi")], {}
    yield "no-messages", [], {}
    yield "assistant-first", [assistant("Welcome."), user("Hi"), assistant("Hello")], {}
    yield "assistant-only", [assistant("Welcome.")], {}
    yield "user-twice", [user("Hi"), user("there"), assistant("Hello")], {}
    yield "assistant-twice", [user("Hi"), assistant("Hel"), assistant("lo"), user("?")], {}
    yield "many", [turn for i in range(12) for turn in (user(f"Question {i}"), assistant(f"Answer {i}"))], {}
    for role in (
        "function",
        "ipython",
        "tool_call",
        "tool_response",
        "observation",
        "context",
        "model",
        "HUMAN",
        "latest_reminder",
        "",
    ):
        yield (
            f"role-{role}",
            [user("Hi"), {"role": role, "content": "something", "name": "who"}, assistant("Hello")],
            {},
        )
    for role in ("assistant_tool_call", "documents", "document", "citations", "control", "tools"):
        yield f"role-first-{role}", [{"role": role, "content": "thinking"}, user("Hi")], {}


def content_cases():
    for name, text in CONTENTS.items():
        yield f"content-{name}", [system(text), user(text), assistant(text), user(text)], {}
        yield f"content-last-{name}", [user(text), assistant(text)], {}
    text, image = {"type": "text", "text": " Look: "}, {"type": "image"}
    yield "parts", [user([text]), assistant([text, text]), user([text])], {}
    yield "parts-system", [{"role": "system", "content": [text]}, user([text]), assistant("Yes")], {}
    yield "parts-image", [user([image, text]), assistant([text])], {}
    yield (
        "parts-url",
        [user([text, {"type": "image_url", "image_url": {"url": "data:,x"}}, image]), assistant("A cat.")],
        {},
    )
    yield (
        "parts-media",
        [user([{"type": "video"}, {"type": "audio", "audio_url": "a.wav"}, text]), assistant("A dog.")],
        {},
    )
    yield "parts-images", [user([image, image, text]), assistant([text]), user([image])], {"add_vision_id": True}
    yield "parts-odd", [user([{"type": "poem", "text": "x"}, "bare"]), assistant([])], {}
    yield "content-none", [user("Hi"), assistant(None), user("?")], {}
    yield "content-user-none", [user(None), assistant("What?")], {}
    yield "content-missing", [user("Hi"), {"role": "assistant"}, user("?")], {}
    yield "content-number", [user(12), assistant(1.5), user(True)], {}
    yield "content-mapping", [user({"a": 1, "b": [None, "ü"]}), assistant("ok")], {}
    yield "role-missing", [{"content": "Hi"}, assistant("Hello")], {}
    yield "names", [user("Hi", name="Ann"), assistant("Hello", name="Bot"), user("Bye", name="Ann")], {}


def tool_cases():
    tools = {"tools": [WEATHER]}
    several = {"tools": [WEATHER, PLAN, BARE, NO_PARAMETERS, NO_DESCRIPTION]}
    asked = [user(), assistant(None, tool_calls=[call()])]
    yield "tools", [user()], tools
    yield "tools-system", [system(), user(), assistant()], tools
    yield "tools-developer", [{"role": "developer", "content": "Be brief."}, user(), assistant()], tools
    for tool in (PLAN, BARE, NO_PARAMETERS, NO_DESCRIPTION, UNWRAPPED):
        yield f"tools-{tool.get('function', tool)['name']}", [system(), user()], {"tools": [tool]}
    yield "tools-several", [system(), user()], several
    yield "tools-empty", [user(), assistant()], {"tools": []}
    yield "tools-turns", [user("Hi"), assistant("Hello"), user(), assistant(), user("Thanks")], tools
    yield "call", asked, tools
    yield "call-result", [*asked, result()], tools
    yield "call-answer", [*asked, result(), assistant("12.5 degrees.")], tools
    yield "call-system-answer", [system(), *asked, result(), assistant("12.5 degrees."), user("Thanks")], tools
    yield "call-again", [*asked, result(), *asked[1:], result("again"), assistant("Done.")], tools
    yield "call-no-tools", [*asked, result(), assistant("12.5 degrees.")], {}
    text = '{"place": "Par\\u00eds", "days": 3}'
    yield "call-text", [user(), assistant(None, tool_calls=[call(arguments=text)]), result(), assistant()], tools
    yield "call-empty-content", [user(), assistant("", tool_calls=[call()]), result(), assistant()], tools
    yield "call-content", [user(), assistant("Let me look. ", tool_calls=[call()]), result(), assistant()], tools
    missing = {"role": "assistant", "tool_calls": [call()]}
    yield "call-missing-content", [user(), missing, result(), assistant()], tools
    for name, id_ in (("id9", "abcDEF123"), ("id", "call_00_xyz")):
        messages = [
            user(),
            assistant(None, tool_calls=[call(id_=id_)]),
            result(tool_call_id=id_, name="get_weather"),
            assistant(),
        ]
        yield f"call-{name}", messages, tools
        yield f"call-{name}-system", [system(), *messages, user("And now?")], several
    both = [
        call(id_="aaaaaaaa1"),
        call("plan", {"stops": [{"at": "Rome ü", "hours": 2.0}], "budget": None}, "aaaaaaaa2"),
    ]
    results = [
        result(tool_call_id="aaaaaaaa1", name="get_weather"),
        result("ok", tool_call_id="aaaaaaaa2", name="plan"),
    ]
    yield "calls", [user(), assistant(None, tool_calls=both)], several
    yield "calls-results", [user(), assistant(None, tool_calls=both), *results], several
    yield (
        "calls-answer",
        [system(), user(), assistant("", tool_calls=both), *results, assistant("Go."), user("Ok")],
        several,
    )
    yield "calls-swapped", [user(), assistant("", tool_calls=both), *results[::-1], assistant("Go.")], several
    odd = {
        "text": 'it\'s "q" <b>\n\\ ü',
        "yes": True,
        "no": None,
        "n": [1, -2.5, 1e21, 1e-7],
        "deep": {"a": {}, "b": []},
    }
    yield "call-odd", [user(), assistant(None, tool_calls=[call("plan", odd)]), result(), assistant()], several
    yield "call-none", [user(), assistant(None, tool_calls=[call("now", {})]), result(""), assistant()], several
    yield "call-null-list", [user(), assistant("No call.", tool_calls=None), user("?")], tools
    yield "call-empty-list", [user(), assistant("No call.", tool_calls=[]), user("?")], tools
    yield "call-unwrapped", [user(), assistant(None, tool_calls=[call(wrapped=False)]), result(), assistant()], tools
    yield (
        "call-function",
        [
            user(),
            assistant(None, function_call=call(wrapped=False)),
            {"role": "function", "name": "get_weather", "content": "grey"},
        ],
        tools,
    )
    yield (
        "call-thought",
        [
            user(),
            assistant("", reasoning_content="I should look.", tool_calls=[call()]),
            result(),
            assistant(reasoning_content="Rain."),
        ],
        tools,
    )
    yield (
        "call-plan",
        [
            user(),
            assistant(None, tool_plan="I will look.", tool_calls=[call(id_="0")]),
            result(tool_call_id="0"),
            assistant(),
        ],
        tools,
    )
    yield "call-user", [*asked, result(), user("Well?"), assistant()], tools
    yield (
        "result-parts",
        [*asked, result([{"type": "text", "text": "grey"}, {"type": "text", "text": "12"}]), assistant()],
        tools,
    )
    yield "result-mapping", [*asked, result({"sky": "grey", "t": 12.5, "ok": True}), assistant()], tools
    yield "result-list", [*asked, result([{"output": "grey"}]), assistant()], tools
    yield "result-special", [*asked, result(SPECIAL, name="get_weather"), assistant(SPECIAL)], tools
    yield "result-alone", [user(), result(), assistant()], tools
    yield (
        "result-many",
        [
            user(),
            assistant("", tool_calls=both),
            *results,
            *results,
            assistant(),
            user(),
            assistant(None, tool_calls=both),
        ],
        tools,
    )
    yield "documents", [user()], {"documents": DOCUMENTS}
    yield "documents-system", [system(), user(), assistant()], {"documents": DOCUMENTS}
    yield "documents-tools", [system(), user()], {"documents": DOCUMENTS, "tools": [WEATHER]}
    yield "documents-empty", [user()], {"documents": []}


def simple_cases():
    """For templates that take turns in order only, contents as parts only, or the simplest tools only."""
    tool = {
        "name": "sum_of",
        "description": "The sum",
        "parameters": {
            "type": "object",
            "properties": {
                "x": {"type": "number", "description": "One"},
                "y": {"type": "string", "description": "Other"},
            },
            "required": ["x"],
        },
    }
    old = {
        "name": "sum_of",
        "description": "The sum",
        "parameter_definitions": {
            "x": {"type": "float", "description": "One", "required": True},
            "y": {"type": "str", "description": "Other", "required": False},
        },
    }
    text = '{"x": 1.5, "y": "it\'s"}'
    for kind, tools in (
        ("plain", None),
        ("wrapped", [{"type": "function", "function": tool}]),
        ("bare", [tool]),
        ("old", [old]),
    ):
        more = {"tools": tools, "functions": json.dumps([tool]), "datetime": "Monday", "custom_tools": tools}
        for name, content in CONTENTS.items():
            parts = [{"type": "text", "text": content}]
            yield f"simple-{kind}-{name}", [user(content), assistant(content), user("And " + content)], more
            if kind == "plain":
                yield f"simple-parts-{name}", [user([{"type": "image"}, *parts]), assistant(parts), user(parts)], more
        for called in ({"x": 1.5, "y": "it's"}, text):
            turns = [user("1.5?"), assistant("", tool_calls=[call("sum_of", called, "abcdefgh1")])]
            form = "text" if called == text else "mapping"
            yield f"simple-{kind}-call-{form}", turns, more
            yield (
                f"simple-{kind}-result-{form}",
                [*turns, result("2", tool_call_id="abcdefgh1", name="sum_of"), assistant("2")],
                more,
            )


def thinking_cases():
    thought = "Hm.\nThe sky…\n"
    in_content = f"<think>\n{thought}</think>\n\nGrey."
    for name, turn in {
        "reasoning_content": assistant("Grey.", reasoning_content=thought),
        "reasoning": assistant("Grey.", reasoning=thought),
        "thinking": assistant("Grey.", thinking=thought),
        "empty": assistant("Grey.", reasoning_content=""),
        "content": assistant(in_content),
        "half": assistant(f"{thought}</think>Grey."),
        "open": assistant(f"<think>{thought}"),
        "twice": assistant(in_content + in_content),
        "parts": assistant([{"type": "thinking", "thinking": thought}, {"type": "text", "text": "Grey."}]),
    }.items():
        yield f"thought-{name}", [user(), turn], {}
        yield f"thought-{name}-turns", [system(), user(), turn, user("And Rome?"), turn], {}
        yield f"thought-{name}-asked", [user(), turn, user("And Rome?")], {"enable_thinking": True}
    for value in (True, False):
        for key in (
            "enable_thinking",
            "thinking",
            "reasoning",
            "preserve_thinking",
            "clear_thinking",
            "keep_all_reasoning",
        ):
            yield (
                f"{key}-{value}",
                [system(), user(), assistant("Grey.", reasoning_content=thought), user("?")],
                {key: value},
            )
        tools = {"tools": [WEATHER], "enable_thinking": value, "thinking": value}
        turn = assistant("", reasoning_content=thought, tool_calls=[call()])
        yield f"thinking-tools-{value}", [user(), turn, result(), turn, result()], tools
        yield (
            f"thinking-chat-{value}",
            [user(), assistant(in_content), user("?")],
            {"enable_thinking": value, "thinking": value},
        )


def variable_cases():
    messages = [system(), user(), assistant(), user("And now?")]
    for name, variables in {
        "date": {"date_string": "01 Jan 2030", "strftime_now": None},
        "custom-tools": {"custom_tools": [WEATHER, NO_DESCRIPTION]},
        "builtin-tools": {"builtin_tools": ["brave_search", "wolfram_alpha", "code_interpreter"], "tools": [WEATHER]},
        "browser": {"builtin_tools": ["browser", "python"], "model_identity": "You are X."},
        "tools-in-system": {"tools": [WEATHER], "tools_in_user_message": False},
        "effort-low": {"reasoning_effort": "low", "reasoning_mode": "on"},
        "effort-high": {"reasoning_effort": "high"},
        "budget": {"thinking_budget": 512, "reasoning_budget": 0, "max_tokens": 5},
        "controls": {"controls": {"length": "short", "originality": "abstractive"}, "available_tools": [WEATHER]},
        "citations": {"citation_mode": "fast", "enable_citations": True, "safety_mode": "NONE", "grounding": "enabled"},
        "modes": {
            "xml_tools": [WEATHER],
            "python_tools": [BARE],
            "skip_special_tokens": True,
            "json_schema": {"type": "object"},
        },
        "persona": {
            "chat_language": "fr",
            "current_date": "2030-01-01",
            "bot_name": "Z",
            "developer_instructions": "Hm",
        },
        "functions": {"functions": [UNWRAPPED], "datetime": "Monday", "tool_choice": "auto"},
        "prompts": {"system_message": "Sys", "default_system_message": "Sys", "add_bos": True, "eos_token": "<eos>"},
        "prefixes": {"user_token": "U", "is_last": True, "prefix": "P", "chat_mode": "think", "interleaved": True},
        "no-eos": {"eos_token": None, "bos_token": ""},
    }.items():
        yield f"variables-{name}", messages, {key: value for key, value in variables.items() if key != "strftime_now"}


def some_message(rng):
    role = rng.choice(["user", "user", "assistant", "assistant", "assistant", "tool", "system", "developer"])
    content = rng.choice([*CONTENTS.values(), None, [{"type": "text", "text": "part"}], "plain", "plain"])
    message = {"role": role, "content": content}
    if role == "assistant" and rng.random() < 0.4:
        message["tool_calls"] = [
            call(
                rng.choice(["get_weather", "plan"]),
                rng.choice([None, {}, '{"a": 1}', {"z": [1, {"y": "ü"}]}]),
                rng.choice([None, "abcdefgh1"]),
            )
            for _ in range(rng.randrange(1, 3))
        ]
    if role == "assistant" and rng.random() < 0.3:
        message[rng.choice(["reasoning_content", "thinking"])] = rng.choice(["Hm", "", "\n so \n"])
    if role == "tool":
        message |= rng.choice([{}, {"tool_call_id": "abcdefgh1"}, {"name": "get_weather"}])
    return message


def random_cases(count):
    rng = random.Random(7)
    for number in range(count):
        messages = [some_message(rng) for _ in range(rng.randrange(1, 8))]
        if rng.random() < 0.7:  # most templates want this
            messages.insert(0, user(rng.choice(list(CONTENTS.values()))))
        more = {}
        if rng.random() < 0.5:
            more["tools"] = rng.sample([WEATHER, PLAN, BARE, NO_DESCRIPTION], rng.randrange(1, 4))
        if rng.random() < 0.3:
            more["enable_thinking"] = rng.random() < 0.5
        if rng.random() < 0.1:
            more["documents"] = DOCUMENTS
        yield f"random-{number}", messages, more


def chat_cases(random_count):
    """Each conversation without the generation prompt, and with it where it's the user's or a tool's turn that ends it."""
    cases = []
    made = [plain_cases(), content_cases(), tool_cases(), simple_cases(), thinking_cases(), variable_cases()]
    for some in [*made, random_cases(random_count)]:
        for name, messages, more in some:
            asks = not messages or messages[-1].get("role") != "assistant"
            for prompt in (False, True) if asks else (False,):
                inputs = {"messages": messages, "add_generation_prompt": prompt, **more}
                cases.append(Case(name + ("+prompt" if prompt else ""), inputs))
    cases += [Case("reply+prompt", {"messages": [user("Hi"), assistant("Hello!")], "add_generation_prompt": True})]
    return cases
