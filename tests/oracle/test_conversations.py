"""The named templates render, and encode, conversations as apply_chat_template does with the models' own texts."""

import json
import random
from pathlib import Path

import pytest
from conftest import ROOT, run_program
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast


def packaged(path):
    """The text of a file of a package in .venv-templates."""
    found = list(ROOT.glob(f".venv-templates/lib/python3*/site-packages/{path}"))
    assert found, f".venv-templates without {path}: run `scripts/setup.sh oracle`"
    return found[0].read_text(encoding="utf-8")


AXOLOTL = "axolotl/utils/chat_templates/templates"
CHATML = packaged(f"{AXOLOTL}/chatml.jinja")
# NAME or NAME-more renders as our template NAME. Mistral's texts are axolotl's copies; the others are kept by TRL as the
# models have them.
TEMPLATES = {
    "chatml": CHATML,
    # As many models have it: without the first statement, which gives add_generation_prompt a default.
    "chatml-short": CHATML[CHATML.index("{% for") :].replace("\n", "\\n").removesuffix("\\n"),
    "human_assistant": (Path(__file__).parent / "human_assistant.jinja").read_text(encoding="utf-8"),
    "llama3": packaged("trl/chat_templates/llama3.jinja"),
    "llama3-training": packaged("trl/chat_templates/llama3_training.jinja"),
    "llama3.1": packaged("trl/chat_templates/llama3_1.jinja"),
    "mistral": packaged(f"{AXOLOTL}/mistral_v1.jinja"),
    "mistral_v3": packaged(f"{AXOLOTL}/mistral_v2v3.jinja"),
    "qwen": packaged("trl/chat_templates/qwen2_5.jinja"),
    "qwen-training": packaged("trl/chat_templates/qwen2_5_training.jinja"),
}
SPECIAL = ["<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "[INST]", "[/INST]"]
ALTERNATE = ("mistral", "human_assistant")
# Besides system, user and assistant, the roles that a text renders; Qwen's passes over the others.
MORE_ROLES = {
    "chatml": ["developer", "tool", "function"],
    "llama3": ["developer", "tool", "function"],
    "llama3.1": ["developer", "tool"],
    "qwen": ["tool"],
}
BLANKS = " \t\n\r\x0b\x1c\x85\xa0\u2003\u3000"
LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789{}%#'\"\\/|.,:;?!-_=<>[]éßЖ中🙂\u0301\u200d"


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory):
    """A token for each character, and one for "th": (folder for ours, the same of transformers), the template left open.

    The forms of Mistral's first models have no tokens of their own for [INST].
    """
    made = {}
    for kind, special in (("plain", []), ("special", SPECIAL)):
        vocab = {char: i for i, char in enumerate(dict.fromkeys(BLANKS + LETTERS + " \nINST[]"))}
        vocab["th"] = len(vocab)
        backend = Tokenizer(models.BPE(vocab=vocab, merges=[("t", "h")]))
        backend.decoder = decoders.Fuse()
        backend.add_special_tokens(["<s>", "</s>", "<pad>", *special])
        folder = tmp_path_factory.mktemp(kind)
        theirs = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>", pad_token="<pad>")
        theirs.save_pretrained(folder)
        made[kind] = (folder, theirs)
    return made


def some_text(rng):
    text = "".join(rng.choice(LETTERS + BLANKS) for _ in range(rng.randrange(20)))
    return rng.choice(["", " ", "\n", "\u2003"]) + text + rng.choice(["", " ", "\n\n", "\x85"])


def some_dialogue(rng, name):
    """Turns that both sides can express."""
    turns = []
    if name != "human_assistant" and rng.random() < 0.4:
        turns.append(("system", some_text(rng)))
    count = rng.randrange(1, 6)
    if name.startswith(ALTERNATE):
        if name == "mistral_v3" and turns:
            count |= 1  # a system prompt is said only where the user's turn ends the conversation
        turns += [(("user", "assistant")[i % 2], some_text(rng)) for i in range(count)]
        return turns, turns[-1][0] == "user" and rng.random() < 0.5
    roles = ["user", "assistant", "system", *MORE_ROLES[name]]
    turns += [(rng.choice(roles), some_text(rng)) for _ in range(count)]
    return turns, rng.random() < 0.5


def messages_of(turns):
    return [{"role": role, "content": content} for role, content in turns]


def asked_for(name, turns, prompt=False):
    messages = messages_of(turns)
    return {"template": name, "messages": messages, "add_generation_prompt": prompt, "bos": "<s>", "eos": "</s>"}


def ours_and_theirs(stem, theirs, tokenize, *arguments, template=None, **more):
    """(turns, our answer, that of apply_chat_template) of random dialogues. Both get `template` if it is given."""
    name = stem.split("-")[0]
    rng = random.Random(stem)
    dialogues = [some_dialogue(rng, name) for _ in range(400)]
    asked = [asked_for(name, turns, prompt) | ({"jinja": template} if template else {}) for turns, prompt in dialogues]
    output = run_program("tdock_conversation", *arguments, input="\n".join(map(json.dumps, asked)).encode())
    answers = [json.loads(line) for line in output.decode().split("\n")[:-1]]  # splitlines() knows more line ends
    assert len(answers) == len(dialogues)
    for (turns, prompt), answer in zip(dialogues, answers):
        messages = messages_of(turns)
        options = {"chat_template": template or TEMPLATES[stem], "add_generation_prompt": prompt, "return_dict": False}
        yield turns, answer, theirs.apply_chat_template(messages, tokenize=tokenize, **options | more)


@pytest.mark.parametrize("stem", TEMPLATES)
def test_same_text(stem, tokenizers):
    for _, ours, theirs in ours_and_theirs(stem, tokenizers["special"][1], False):
        assert ours.get("text") == theirs, ours


# What stands before a reply that the loss counts, and behind it.
AROUND = {
    "chatml": ("", "<|im_end|>"), "qwen": ("", "<|im_end|>"), "llama3": ("", "<|eot_id|>"), "llama3.1": ("", "<|eot_id|>"),
    "mistral": (" ", "</s>"), "mistral_v3": (" ", "</s>"), "human_assistant": (" ", "</s>"),
}  # fmt: skip
STRIPPED = ("llama3", "llama3.1", "mistral_v3")


def counted_text(name, turns):
    before, behind = AROUND[name]
    replies = [content for role, content in turns if role == "assistant"]
    return "".join(before + (reply.strip() if name in STRIPPED else reply) + behind for reply in replies)


@pytest.mark.parametrize("stem", TEMPLATES)
def test_same_ids(stem, tokenizers):
    folder, theirs = tokenizers["plain" if stem in ("mistral", "human_assistant") else "special"]
    for turns, ours, ids in ours_and_theirs(stem, theirs, True, folder):
        assert ours.get("ids") == ids, ours
        assert len(ours["loss_mask"]) == len(ids)
        counted = [id_ for id_, counts in zip(ids, ours["loss_mask"]) if counts]
        assert theirs.backend_tokenizer.decode(counted, skip_special_tokens=False) == counted_text(
            stem.split("-")[0], turns
        )


# The texts with the marks of {% generation %}: TRL's own, and others with marks around a reply and the token that ends it.
MARKED = {
    "llama3": TEMPLATES["llama3-training"],
    "qwen": TEMPLATES["qwen-training"],
    "chatml": """{%- for message in messages -%}
{{- '<|im_start|>' + message.role + '\\n' -}}
{%- if message.role == 'assistant' -%}
{%- generation -%}{{- message.content + '<|im_end|>' -}}{%- endgeneration -%}
{%- else -%}{{- message.content + '<|im_end|>' -}}{%- endif -%}
{{- '\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}""",
    "mistral": """{{- bos_token -}}
{%- for message in messages -%}
{%- if message.role == 'assistant' -%}
{%- generation -%}{{- ' ' + message.content + eos_token -}}{%- endgeneration -%}
{%- else -%}{{- ' [INST] ' + message.content + ' [/INST]' -}}{%- endif -%}
{%- endfor -%}""",
}


def runs_of(mask):
    """The [begin, end) of each run of ones."""
    edges = [i for i, (a, b) in enumerate(zip([0, *mask], [*mask, 0])) if a != b]
    return list(zip(edges[::2], edges[1::2]))


@pytest.mark.parametrize("stem", MARKED)
def test_the_loss_counts_what_assistant_only_loss_does(stem, tokenizers):
    """TRL trains on the tokens that return_assistant_tokens_mask marks."""
    folder, theirs = tokenizers["plain" if stem == "mistral" else "special"]
    options = {"return_dict": True, "return_assistant_tokens_mask": True}
    replies = 0
    for turns, ours, marked in ours_and_theirs(stem, theirs, True, folder, template=MARKED[stem], **options):
        assert ours.get("ids") == marked["input_ids"], ours
        expected = runs_of(marked["assistant_masks"])
        assert runs_of(ours["loss_mask"]) == expected, turns
        replies += len(expected)
    assert replies > 200


def test_both_refuse_turns_out_of_order(tokenizers):
    _, theirs = tokenizers["plain"]
    for name in ("mistral", "mistral_v3", "human_assistant"):
        turns = [("user", "a"), ("user", "b")]
        answer = json.loads(run_program("tdock_conversation", input=json.dumps(asked_for(name, turns)).encode()))
        assert "turn 2 " in answer["error"]
        with pytest.raises(Exception, match="alternat"):
            messages = messages_of(turns)
            theirs.apply_chat_template(messages, tokenize=False, chat_template=TEMPLATES[name])
