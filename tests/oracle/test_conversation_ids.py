"""Conversations have the ids that apply_chat_template gives them, by tokenizers of the kinds that models have.

Only where what is said spells a special token, ours has none: it's text.
"""

import functools
import json
import re

import pytest
from chat_cases import SPECIAL, Case, chat_cases
from chat_templates import NOW_SECONDS, FrozenTime, chat_templates
from conftest import run_program
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast
from transformers.utils import chat_template_utils

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
TEXTS = {name: template for template in chat_templates() for name in (template.name, *template.also)}
# Templates of models with such a tokenizer.
TEMPLATES_OF = {
    "chatml": [
        "axolotl/chatml", "llama.cpp/Qwen-Qwen2.5-7B-Instruct", "llama.cpp/Qwen-Qwen3-0.6B", "trl/qwen3_training",
        "llama.cpp/NousResearch-Hermes-3-Llama-3.1-8B-tool_use", "llama.cpp/HuggingFaceTB-SmolLM3-3B",
    ],
    "llama3": [
        "trl/llama3", "trl/llama3_training", "llama.cpp/meta-llama-Llama-3.1-8B-Instruct",
        "llama.cpp/meta-llama-Llama-3.2-3B-Instruct", "llama.cpp/deepseek-ai-DeepSeek-R1-Distill-Llama-8B",
    ],
    "metaspace": ["axolotl/mistral_v1", "axolotl/mistral_v2v3", "unsloth/llama_template", "unsloth/zephyr_template"],
    "prepended": ["axolotl/mistral_v1", "unsloth/vicuna_template", "unsloth/llama_template"],
    "stripping": ["llama.cpp/microsoft-Phi-3.5-mini-instruct", "trl/phi3_training", "unsloth/zephyr_template"],
}  # fmt: skip
UNUSED = "leave out"  # in our error about a field that the template does not use
SET_BY_CONVERSATIONS = {"bos_token", "eos_token", "pad_token"}  # ours does not let variables stand for them
ROLES = {"system", "user", "assistant", "developer", "tool", "function"}
CHATML = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
# Added tokens that aren't special: what is said may have them.
TAGS = [
    AddedToken(tag, normalized=False, special=False) for tag in ("<think>", "</think>", "<tool_call>", "</tool_call>")
]
HEADERS = [
    "<|begin_of_text|>",
    "<|end_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    "<|eom_id|>",
]


def every_string(value):
    if isinstance(value, str):
        yield value
    elif isinstance(value, (dict, list)):
        for item in value.items() if isinstance(value, dict) else value:
            for one in item if isinstance(item, tuple) else (item,):
                yield from every_string(one)


def is_common(case):
    """What a data set of conversations can have: its roles, and contents that are texts, which only calls may lack."""
    messages = case.inputs["messages"]
    return messages and all(
        one.get("role") in ROLES
        and (isinstance(one.get("content"), str) or (one.get("content", 0) is None and one.get("tool_calls")))
        for one in messages
    )


def object_of(arguments):
    """What ours reads arguments as: JSON text of an object as the object."""
    if not isinstance(arguments, str):
        return arguments
    try:
        parsed = json.loads(arguments)
    except ValueError:
        return arguments
    return parsed if isinstance(parsed, dict) else arguments


def call_as_read(call, as_text):
    function = call.get("function", call)
    arguments = object_of(function["arguments"])
    made = {"name": function["name"], "arguments": json.dumps(arguments, ensure_ascii=False) if as_text else arguments}
    return {**({"id": call["id"]} if "id" in call else {}), "type": "function", "function": made}


def as_read(messages):
    """The forms in which ours may give the messages to a template: whichever it renders without quoting arguments."""
    calls = [one for one in messages if one.get("tool_calls")]
    for as_text in (False, True) if calls else (False,):
        for content in ("missing", "empty", "none") if calls else ("none",):
            read = []
            for one in messages:
                one = {key: value for key, value in one.items() if key == "content" or value not in (None, "", [], {})}
                if one.get("tool_calls"):
                    one["tool_calls"] = [call_as_read(call, as_text) for call in one["tool_calls"]]
                    if not one["content"]:
                        one |= {"content": None if content == "none" else ""}
                        if content == "missing":
                            del one["content"]
                read.append(one)
            yield read


CASES = [case for case in chat_cases(random_count=90) if is_common(case)]


def trained(tokenizer, special, alphabet):
    learned = [text for case in CASES for text in every_string(case.inputs)]
    learned += [template.text for template in list(TEXTS.values())[::16]]
    # As in those of models, no merge makes a special token.
    learned = [re.sub(r"<\|.*?\|>|</?s>|<unk>|\[/?INST\]", " ", text) for text in learned]
    trainer = trainers.BpeTrainer(
        vocab_size=1500, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(learned, trainer)
    return tokenizer


def byte_level(special, pattern=None):
    tokenizer = Tokenizer(models.BPE())
    split = [pre_tokenizers.Split(Regex(pattern), "isolated")] if pattern else []
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pattern is None)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*split, level])
    tokenizer.decoder = decoders.ByteLevel()
    return trained(tokenizer, special, pre_tokenizers.ByteLevel.alphabet())


def chatml():
    tokenizer = byte_level(CHATML)
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.add_tokens(TAGS)
    return tokenizer, {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}


def llama3():
    tokenizer = byte_level(HEADERS, LLAMA3)
    begin = tokenizer.token_to_id("<|begin_of_text|>")
    # Puts a second one in where a text is encoded with special tokens, as a conversation isn't.
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|begin_of_text|> $A", special_tokens=[("<|begin_of_text|>", begin)]
    )
    return tokenizer, {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"}


def with_byte_fallback(prepended, added):
    """As the conversion of a sentencepiece model: the older form puts ▁ before a text, the newer splits at it."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=True)
    trained(tokenizer, ["<unk>", "<s>", "</s>", *BYTES], [])
    state = json.loads(tokenizer.to_str())
    state["model"] |= {"byte_fallback": True, "fuse_unk": True}
    state["added_tokens"] = [one for one in state["added_tokens"] if one["content"] not in BYTES]
    tokenizer = Tokenizer.from_str(json.dumps(state))
    if prepended:
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        tokenizer.pre_tokenizer = None
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens(added)
    return tokenizer, {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}


def stripping():
    tokens = [
        AddedToken(f"<|{name}|>", rstrip=True, normalized=False) for name in ("system", "user", "assistant", "end")
    ]
    return with_byte_fallback(True, [*tokens, AddedToken("<|tool|>", lstrip=True, rstrip=True, normalized=False)])


MAKERS = {
    "chatml": chatml,
    "llama3": llama3,
    "metaspace": lambda: with_byte_fallback(False, ["[INST]", "[/INST]"]),
    "prepended": lambda: with_byte_fallback(True, []),
    "stripping": stripping,
}


@pytest.fixture(scope="module", params=MAKERS)
def kind(request, tmp_path_factory):
    """(its name, the same tokenizer of transformers, the folder that ours reads)"""
    backend, tokens = MAKERS[request.param]()
    theirs = PreTrainedTokenizerFast(tokenizer_object=backend, clean_up_tokenization_spaces=False, **tokens)
    folder = tmp_path_factory.mktemp(request.param)
    theirs.save_pretrained(folder)
    return request.param, theirs, folder


def answers(folder, template, cases):
    lines = []
    for case in cases:
        given = {key: case.inputs.get(key) for key in ("messages", "tools", "documents", "add_generation_prompt")}
        variables = {key: value for key, value in case.inputs.items() if key not in given}
        asked = {"jinja": template.text, "tokenizer": str(folder), "variables": variables, "now": NOW_SECONDS, **given}
        lines.append(json.dumps(asked))
    output = run_program("tdock_conversation", input="\n".join(lines).encode())
    answered = [json.loads(line) for line in output.split(b"\n")[:-1]]
    assert len(answered) == len(cases)
    return answered


@pytest.fixture(scope="module", autouse=True)
def transformers_of_the_time():
    """Transformers with our time, and without compiling a template again for each conversation."""
    with pytest.MonkeyPatch.context() as patch:
        compiled = functools.lru_cache(maxsize=1)(chat_template_utils._compile_jinja_template)
        patch.setattr(chat_template_utils, "_compile_jinja_template", compiled)
        patch.setattr(chat_template_utils, "datetime", FrozenTime)
        yield


def by_transformers(theirs, template, case, messages):
    """What apply_chat_template returns, or None where it raises; of a content that is null, which it leaves out, the ids."""
    variables = {key: value for key, value in case.inputs.items() if key != "messages"}
    try:
        if any(message.get("content", "") is None for message in messages):
            texts, _ = chat_template_utils.render_jinja_template(
                [messages], chat_template=template.text, **theirs.special_tokens_map, **variables
            )
            return {"input_ids": theirs(texts[0], add_special_tokens=False)["input_ids"]}
        return theirs.apply_chat_template(
            messages, chat_template=template.text, return_dict=True,
            return_assistant_tokens_mask=template.marks_replies, **variables,
        )  # fmt: skip
    except Exception:  # whatever Python raises at what the template does
        return None


def test_same_ids(kind):
    name, theirs, folder = kind
    special = [token.content for token in theirs.added_tokens_decoder.values() if token.special]
    for number, template in enumerate(TEXTS[one] for one in TEMPLATES_OF[name]):
        cases = [
            case
            for case in CASES[number % 3 :: 3]
            if not any(token in text for text in every_string(case.inputs) for token in special)
            and not SET_BY_CONVERSATIONS & case.inputs.keys()
        ]
        same = parted = 0
        for case, ours in zip(cases, answers(folder, template, cases)):
            forms = [by_transformers(theirs, template, case, form) for form in as_read(case.inputs["messages"])]
            forms = [form for form in forms if form is not None]
            where = f"{name}, {template.name}, {case.name}: {ours.get('error')}"
            if "error" in ours:  # ours also refuses what a template has no use for
                assert not forms or UNUSED in ours["error"], where
                continue
            assert forms, where
            if ours["parted"]:  # a token would reach across the border before a reply
                parted += 1
                continue
            expected = next((form for form in forms if form["input_ids"] == ours["ids"]), None)
            assert expected is not None, where
            # Of a reply that begins with white space, transformers marks the special token before it, where that strips it.
            if template.marks_replies and name != "stripping" and "assistant_masks" in expected:
                assert ours["loss_mask"] == expected["assistant_masks"], where
            same += 1
        assert same >= 25 and parted <= same / 4, f"{name}, {template.name}: {parted} of {same + parted}"


def test_what_is_said_has_no_special_token(kind):
    """The same special tokens as in a conversation that spells none."""
    name, theirs, folder = kind
    ids = {token_id for token_id, token in theirs.added_tokens_decoder.items() if token.special}
    spelt = "".join(theirs.convert_ids_to_tokens(sorted(ids))) + SPECIAL
    for template in (TEXTS[one] for one in TEMPLATES_OF[name]):
        made = [
            Case(said, {"messages": [{"role": role, "content": said} for role in ("user", "assistant", "user")], "tools": []})
            for said in ("x", spelt, f" {spelt} x")
        ]
        plain, *others = answers(folder, template, made)
        assert not any("error" in answer for answer in (plain, *others)), f"{name}, {template.name}: {plain} {others}"
        expected = [one for one in plain["ids"] if one in ids]
        for ours in others:
            assert [one for one in ours["ids"] if one in ids] == expected, f"{name}, {template.name}"
            assert spelt.strip() in ours["text"]
