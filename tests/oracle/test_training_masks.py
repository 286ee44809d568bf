"""What the loss counts, beside TRL's training templates: copies of models' templates in which {% generation %} marks replies.

With such a template, the same tokens are marked as by transformers. With the model's own template, each reply is trained
once, as it was generated, which is what TRL's copy marks, but for white space and the prompt around it and for DIFFERENT.
"""

import json
import re

import pytest
from chat_templates import FOLDERS, NOW_SECONDS, FrozenTime, resolved
from conftest import run_program
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast
from transformers.utils import chat_template_utils

TRL = resolved(dict(FOLDERS)["trl"])
NAMES = sorted(path.name.removesuffix("_training.jinja") for path in TRL.glob("*_training.jinja"))
# Families of which other tokens are trained, and in which conversations; docs/data.md says why.
FORGETS = "TRL trains earlier replies without their thinking, ours as they were generated"
DIFFERENT = {
    "diffusion_gemma": (FORGETS + "; an answer to a tool has the header that no prompt has", {"think", "tool", "toolthink"}),
    "glm4moe": (FORGETS, {"think", "toolthink"}),
    "gptoss": (FORGETS + "; replies have <|return|> for <|end|>", {"plain", "think", "tool", "toolthink"}),
    **{
        f"nemotron_3{kind}": (FORGETS, {"think", "toolthink"})
        for kind in ("_5_lightning", "_nano", "_super", "_ultra")
    },
}  # fmt: skip
# Spelt by templates, and single tokens of their models.
SPECIAL = re.compile(
    r"<\|[^|<>\s]{1,40}\|>|<｜[^｜]{1,40}｜>|</?s>|<(?:start|end)_of_turn>|<\|turn>|<turn\|>|<\|tool_call>|<tool_call\|>"
    r"|<\|channel>|<channel\|>|<\|tool_response>|<tool_response\|>|<end_of_utterance>"
)
USED_FOR_THINKING = re.compile(r"\b(?:reasoning_content|thinking)\b")
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "d",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "n": {"type": "integer"}}},
    },
}


def assistant(content, thinking, **more):
    return {"role": "assistant", "content": content, **({"reasoning_content": thinking} if thinking else {}), **more}


def conversations():
    """By name: turns, and what each reply says at least."""
    for name, think in (("", False), ("think", True)):
        first, second, third = ("R1", "R2", "R3") if think else (None, None, None)
        yield (
            name or "plain",
            [
                {"role": "user", "content": "Q1?"}, assistant("A1.", first),
                {"role": "user", "content": "Q2?"}, assistant("A2.", second),
            ],
            ["A1.", "A2."],
        )  # fmt: skip
        call = {"function": {"name": "get_weather", "arguments": {"city": "Paris", "n": 2}}, "type": "function"}
        yield (
            "tool" + name,
            [
                {"role": "user", "content": "W?"}, assistant("", first, tool_calls=[{"id": "abcdefgh1", **call}]),
                {"role": "tool", "content": "Sunny", "name": "get_weather", "tool_call_id": "abcdefgh1"},
                assistant("It is sunny.", second), {"role": "user", "content": "Thanks"}, assistant("Bye.", third),
            ],
            ["get_weather", "It is sunny.", "Bye."],
        )  # fmt: skip


def tokenizer_for(text, folder):
    """A token for each character, and for each special token that the text spells."""
    letters = dict.fromkeys([chr(code) for code in range(32, 127)] + list("\n\t\r") + sorted(set(text)))
    backend = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(letters)}, merges=[]))
    backend.decoder = decoders.Fuse()
    backend.add_special_tokens(list(dict.fromkeys(["<s>", "</s>", "<pad>", *SPECIAL.findall(text)])))
    made = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>", pad_token="<pad>")
    made.save_pretrained(folder)
    return made


def runs(ids, mask, tokenizer):
    """The text of each run of tokens that the mask has."""
    found, run = [], []
    for token, counts in [*zip(ids, mask), (None, 0)]:
        if counts:
            run.append(token)
        elif run:
            found.append("".join(tokenizer.convert_ids_to_tokens(run)))
            run = []
    return found


def by_turn(parts, tokenizer):
    """The text that each turn is trained with; a turn that several parts train has several."""
    trained = {}
    for part in parts:
        for turn in sorted(set(part["turns"])):
            mask = [counts and of == turn for counts, of in zip(part["loss_mask"], part["turns"])]
            if any(mask):
                trained.setdefault(turn, []).append("".join(runs(part["ids"], mask, tokenizer)))
    return trained


@pytest.fixture(scope="module", autouse=True)
def our_time():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chat_template_utils, "datetime", FrozenTime)
        yield


@pytest.fixture(scope="module", params=NAMES)
def judged(request, tmp_path_factory):
    """The template's name, and for each conversation that transformers renders with TRL's copy: its name, its turns, what
    the replies say, transformers' ids and marks, and our answers with TRL's copy and with the model's own template."""
    name = request.param
    own, copy = ((TRL / f"{name}{end}.jinja").read_text(encoding="utf-8") for end in ("", "_training"))
    folder = tmp_path_factory.mktemp(name)
    tokenizer = tokenizer_for(own + copy, folder)
    asked, expected = [], []
    for kind, turns, said in conversations():
        if "think" in kind and not all(USED_FOR_THINKING.search(text) for text in (own, copy)):
            continue
        tools = [WEATHER] if "tool" in kind and "tools" in own and "tools" in copy else None
        if name == "deepseek_r1_distill":  # drops the calls of a turn that has a content
            turns = [{**turn, "content": turn["content"] or None} for turn in turns]
        try:
            theirs = tokenizer.apply_chat_template(
                turns, tools=tools, chat_template=copy, return_dict=True, return_assistant_tokens_mask=True
            )
        except Exception:  # whatever Python raises at what the template does
            continue
        expected.append((kind, turns, said, theirs))
        for text in (copy, own):
            asked.append({"jinja": text, "messages": turns, "tools": tools, "now": NOW_SECONDS, "parts": True})
    output = run_program("tdock_conversation", folder, input="\n".join(map(json.dumps, asked)).encode())
    answers = [json.loads(line) for line in output.split(b"\n")[:-1]]
    assert len(answers) == len(asked)
    return name, tokenizer, [(*case, *answers[2 * i : 2 * i + 2]) for i, case in enumerate(expected)]


def test_marks_are_those_of_transformers(judged):
    name, _, cases = judged
    for kind, _, _, theirs, marked, _ in cases:
        if "error" in marked:  # ours also refuses what a template has no use for
            assert "leave out" in marked["error"], f"{name}, {kind}: {marked}"
            continue
        assert marked["ids"] == theirs["input_ids"], f"{name}, {kind}"
        marks = list(theirs["assistant_masks"])
        if name.startswith("phi3"):  # marks the end of the text as well, which is of no turn
            marks[-1] = 0
        assert marked["loss_mask"] == marks, f"{name}, {kind}"


def test_the_models_own_template_trains_the_same(judged):
    name, tokenizer, cases = judged
    for kind, turns, said, theirs, _, own in cases:
        where = f"{name}, {kind}"
        if "error" in own:
            assert "leave out" in own["error"], f"{where}: {own}"
            continue
        replies = [i for i, turn in enumerate(turns) if turn["role"] == "assistant"]
        trained = by_turn(own["parts"], tokenizer)
        assert {turn: len(texts) for turn, texts in trained.items()} == dict.fromkeys(replies, 1), where
        ours = [trained[turn][0] for turn in replies]
        marked = runs(theirs["input_ids"], theirs["assistant_masks"], tokenizer)
        assert len(marked) == len(ours), where
        assert all(text in ours[i] and text in marked[i] for i, text in enumerate(said)), where
        same = [theirs.strip().endswith(text.strip()) for text, theirs in zip(ours, marked)]
        assert all(same) == (kind not in DIFFERENT.get(name, ("", ()))[1]), f"{where}: {ours} {marked}"


def test_most_templates_are_compared():
    assert len(NAMES) >= 30 and set(DIFFERENT) <= set(NAMES)
