"""Every published chat template renders conversations as transformers does, or both refuse.

Each template renders a seventh of the conversations of each kind; TDOCK_TEMPLATE_MATRIX=full: all of them.
"""

import functools
import json
import os
import re
import subprocess
from dataclasses import dataclass

import jinja2
import pytest
from chat_cases import chat_cases
from chat_templates import NOW_SECONDS, FrozenTime, chat_templates
from conftest import BUILD
from transformers.utils import chat_template_utils

SPECIAL_TOKENS = {
    "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>",
    "additional_special_tokens": ["<a>", "<b>", "<c>", "<d>"],
}  # fmt: skip
# Templates that ours refuses as a whole, with what its error says.
REFUSED: dict[str, str] = {}
TEMPLATES = chat_templates()
CASES = chat_cases(random_count=60)
STRIDE = 1 if os.environ.get("TDOCK_TEMPLATE_MATRIX") == "full" else 7
CASES_OF = {template.name: CASES[number % STRIDE :: STRIDE] for number, template in enumerate(TEMPLATES)}


@dataclass
class Rendered:
    text: str | None  # None: refused
    generations: list  # [begin, end) in bytes of the text of each {% generation %} block
    said: str  # what the template says in its raise_exception


def as_seen(message):
    """A template gets the reasoning of a message under each of its names."""
    reasoning = next(
        (message[key] for key in ("reasoning_content", "thinking", "reasoning") if message.get(key) is not None), None
    )
    return message if reasoning is None else {"thinking": reasoning, **message, "reasoning_content": reasoning}


def rendered_by_transformers(template, case):
    inputs = SPECIAL_TOKENS | case.inputs
    try:
        (text,), generations = chat_template_utils.render_jinja_template(
            conversations=[inputs.pop("messages")], chat_template=template.text,
            return_assistant_tokens_mask=template.marks_replies, **inputs,
        )  # fmt: skip
    except jinja2.exceptions.TemplateError as error:
        return Rendered(None, [], error.message if type(error) is jinja2.exceptions.TemplateError else "")
    except Exception:  # whatever Python raises at what the template does
        return Rendered(None, [], "")
    # One that puts nothing out marks nothing.
    blocks = [block for block in (generations or [[]])[0] if block[0] < block[1]]
    in_bytes = [[len(text[:index].encode()) for index in block] for block in blocks]
    return Rendered(text, in_bytes, "")


def requests():
    """For our side, a line for each case; one without a template is for that of the line before."""
    lines = {}
    for case in CASES:
        messages = [as_seen(message) for message in case.inputs["messages"]]
        inputs = {"tools": None, "documents": None, **SPECIAL_TOKENS, **case.inputs, "messages": messages}
        lines[case.name] = f'"inputs": {json.dumps(inputs)}, "now": {NOW_SECONDS}}}\n'
    for template in TEMPLATES:
        for number, case in enumerate(CASES_OF[template.name]):
            yield (f'{{"template": {json.dumps(template.text)}, ' if number == 0 else "{") + lines[case.name]


def judge(folder):
    """By name of a template: (case, what transformers renders, our answer) of each case. Both sides work at once."""
    (folder / "asked").write_text("".join(requests()))
    with (
        pytest.MonkeyPatch.context() as patch,
        open(folder / "asked", "rb") as asked,
        open(folder / "answered", "wb") as answered,
        subprocess.Popen([BUILD / "tdock_jinja"], stdin=asked, stdout=answered, stderr=subprocess.PIPE) as ours,
    ):
        try:
            compiled = functools.lru_cache(maxsize=1)(chat_template_utils._compile_jinja_template)
            patch.setattr(chat_template_utils, "_compile_jinja_template", compiled)
            patch.setattr(chat_template_utils, "datetime", FrozenTime)
            theirs = {
                template.name: [rendered_by_transformers(template, case) for case in CASES_OF[template.name]]
                for template in TEMPLATES
            }
            _, complaint = ours.communicate()
        finally:
            ours.kill()
    assert ours.returncode == 0, complaint.decode()
    lines = (folder / "answered").read_bytes().split(b"\n")[:-1]
    assert len(lines) == sum(map(len, CASES_OF.values()))
    answers = iter(lines)
    return {
        name: [(case, expected, json.loads(next(answers))) for case, expected in zip(CASES_OF[name], rendered)]
        for name, rendered in theirs.items()
    }


@pytest.fixture(scope="module")
def judged(tmp_path_factory):
    return judge(tmp_path_factory.mktemp("templates"))


def differences(results):
    """(case, what transformers renders, our answer) of those cases that differ."""
    for case, expected, answer in results:
        if expected.text is None:
            same = "error" in answer and expected.said in answer["error"]
        else:
            same = answer.get("text") == expected.text and answer["generations"] == expected.generations
        if not same:
            yield case, expected, answer


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda template: template.name)
def test_same_as_transformers(template, judged):
    results = judged[template.name]
    if template.name in REFUSED:
        for _, _, answer in results:
            assert re.search(REFUSED[template.name], answer.get("error", ""))
        return
    wrong = list(differences(results))
    if wrong:
        case, expected, answer = wrong[0]
        more = f"{len(wrong)} of {len(results)} cases differ: {[case.name for case, _, _ in wrong]}"
        assert answer == expected, f"{template.name}, {case.name}: {more}"


def test_the_cases_reach_what_templates_do(judged):
    """Conversations that a template refuses say little of it: each renders several, and marks several replies."""
    for name, results in judged.items():
        texts = {expected.text for _, expected, _ in results if expected.text is not None}
        assert len(texts) >= 5, name
    marking = [template.name for template in TEMPLATES if template.marks_replies]
    assert len(marking) >= 15
    for name in marking:
        assert sum(len(expected.generations) for _, expected, _ in judged[name]) >= 5, name


def test_at_most_two_are_refused():
    assert len(REFUSED) <= 2 and set(REFUSED) <= {template.name for template in TEMPLATES}
    assert len(TEMPLATES) >= 200
