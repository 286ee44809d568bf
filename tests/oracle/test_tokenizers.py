"""Ids, places and decoded text are those of the Python packages, for tokenizers that these train here.

Random strings hold code points that are assigned in Unicode 14, the version of Python 3.11 and of our PCRE2; later
ones may have other properties in other versions. sentencepiece is of the version that Debian has: unigram models break
ties between pieces in another way in later ones.
"""

import json
import random
import struct
import sys
import unicodedata
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import sentencepiece
from conftest import run_program
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

STRINGS = 100_000
BESIDE = ThreadPoolExecutor(max_workers=1)
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
SPECIAL = ["<s>", "</s>", "<|im_start|>", "<|im_end|>"]
ADDED = [
    AddedToken("<tool>", normalized=False),
    AddedToken("naïve", normalized=True),
    AddedToken("word", single_word=True, normalized=False),
    AddedToken("<mask>", lstrip=True, rstrip=True, normalized=False, special=True),
    AddedToken("<|im_start|>extra", normalized=False),
]

ASSIGNED = [
    code for code in range(sys.maxunicode + 1) if unicodedata.category(chr(code)) not in ("Cn", "Cs")
]  # fmt: skip
MARKS = [code for code in ASSIGNED if unicodedata.combining(chr(code))]
SCRIPTS = [
    (0x41, 0x7A), (0xC0, 0x24F), (0x370, 0x3FF), (0x400, 0x4FF), (0x5D0, 0x5EA), (0x620, 0x64A), (0x904, 0x939),
    (0xE01, 0xE3A), (0x1100, 0x11FF), (0x3041, 0x30FE), (0x4E00, 0x9FFF), (0xAC00, 0xD7A3), (0x1F600, 0x1F64F),
]  # fmt: skip
FRAGMENTS = [
    "'s", "'T", "'LL", "don't", "I've", "'ſ", "▁", "▁▁", "Ġ", "<unk>", "<0x41>", "\u180e", "\x85", "\xa0", "\u3000",
    "\u2028", "é", "e\u0301", "ộ", "o\u0302\u0323", "한", "한", "각", "ﬃ", "İ", "ǅ", "ß", "²", "½", "Ⅷ", "๓", "😀", "👩‍👩‍👧",
    "\0", "\x7f", "\ufffd", "\ufeff", " ", "\n", "x", "naïve", "naive", "word", "words", "sword", "<tool>",
    "<mask>", "  <mask>\n ", *SPECIAL, "<|im_", "start|>",
]  # fmt: skip


def texts_of_this_machine():
    """Text and code: what every Python has beside it."""
    folder = Path(random.__file__).parent
    return [(folder / name).read_text() for name in ("argparse.py", "datetime.py", "pydoc.py", "turtle.py", "typing.py")]


TEXTS = texts_of_this_machine()


def words(rng):
    first, last = rng.choice(SCRIPTS)
    return " ".join(
        "".join(chr(rng.randint(first, last)) for _ in range(rng.randint(1, 7))) for _ in range(rng.randint(1, 3))
    )  # fmt: skip


def marked(rng):
    return "".join(
        rng.choice("eo aNΑ가") + "".join(chr(rng.choice(MARKS)) for _ in range(rng.randrange(4)))
        for _ in range(rng.randrange(5))
    )


def runs(rng):
    return "".join(
        rng.choice((" " * rng.randrange(40), str(rng.getrandbits(rng.randint(1, 100))), "\n" * rng.randrange(6),
                    "\t" * rng.randrange(6), "\r\n", "x", " ", "\u3000" * rng.randrange(4)))
        for _ in range(rng.randrange(6))
    )  # fmt: skip


def code(rng):
    text = rng.choice(TEXTS)
    begin = rng.randrange(len(text))
    return text[begin : begin + rng.randrange(80)]


def random_bytes(rng):
    """One string, which may not be UTF-8."""
    kind = rng.random()
    if kind < 0.25:
        text = "".join(chr(rng.choice(ASSIGNED)) for _ in range(rng.randrange(12)))
    elif kind < 0.35:
        text = marked(rng)
    elif kind < 0.45:
        text = runs(rng)
    elif kind < 0.65:
        text = code(rng)
    elif kind < 0.8:
        text = words(rng)
    elif kind < 0.92:
        text = "".join(rng.choice(FRAGMENTS) for _ in range(rng.randrange(7)))
    else:
        valid = bytearray((words(rng) + "😀é").encode())
        for _ in range(rng.randint(1, 4)):
            valid[rng.randrange(len(valid))] = rng.randrange(256)
        return bytes(valid) if kind < 0.96 else rng.randbytes(rng.randrange(30))
    return text.encode()


def start_ours(folder, frames, *options):
    """Runs our program beside the peer; the answer to each frame is there when it is asked for."""
    joined = b"".join(struct.pack("<I", len(frame)) + frame for frame in frames)
    running = BESIDE.submit(run_program, "tdock_tokens", folder, *options, input=joined)

    def answers():
        # All at once, which takes half as long as line by line.
        made = json.loads(b"[" + running.result().rstrip(b"\n").replace(b"\n", b",") + b"]")
        assert len(made) == len(frames)
        return made

    return answers


def in_bytes(text, offsets):
    """Places in characters as places in bytes, in one list."""
    if text.isascii():
        return [place for pair in offsets for place in pair]
    starts = [0]
    for character in text:
        starts.append(starts[-1] + len(character.encode()))
    return [starts[place] for pair in offsets for place in pair]


def byte_level(pre_tokenizer, **model):
    tokenizer = Tokenizer(models.BPE(**model))
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer, pre_tokenizers.ByteLevel.alphabet()


def split(pattern):
    return pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(pattern), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])  # fmt: skip


def gpt2():
    tokenizer, alphabet = byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False))
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    return tokenizer, alphabet


def roberta():
    tokenizer, alphabet = byte_level(pre_tokenizers.ByteLevel(add_prefix_space=True))
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 1), ("<s>", 0), trim_offsets=True)
    return tokenizer, alphabet


def llama3():
    tokenizer, alphabet = byte_level(split(LLAMA3), ignore_merges=True)
    tokenizer.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)]),
    ])  # fmt: skip
    return tokenizer, alphabet


def qwen2():
    tokenizer, alphabet = byte_level(split(QWEN2))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return tokenizer, alphabet


def fallback_decoder():
    return decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )


def llama2():
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = fallback_decoder()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    return tokenizer, None


def metaspace():
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Metaspace(prepend_scheme="first"), pre_tokenizers.Digits(individual_digits=True)]
    )
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="first")])
    return tokenizer, None


def trained(make):
    tokenizer, alphabet = make()
    special = ["<s>", "</s>"] if alphabet else ["<s>", "</s>", "<unk>", *BYTES]
    pre_tokenizer = tokenizer.pre_tokenizer
    if make is llama2:  # training on whole texts as one word each would take hours
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    trainer = trainers.BpeTrainer(
        vocab_size=3000, special_tokens=special, initial_alphabet=alphabet or [], show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS + [words(random.Random(seed)) for seed in range(2000)], trainer)
    saved = json.loads(tokenizer.to_str())
    if pre_tokenizer is None:
        saved["pre_tokenizer"] = None
    tokenizer = Tokenizer.from_str(json.dumps(saved))
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.add_tokens(ADDED)
    return tokenizer


@pytest.fixture(scope="module")
def random_strings():
    rng = random.Random(20)
    return [random_bytes(rng) for _ in range(STRINGS)]


KINDS = [gpt2, llama3, qwen2, llama2, roberta, metaspace]
VARIATIONS = [roberta, metaspace]  # of the others, with fewer strings


@pytest.fixture(scope="module", params=KINDS, ids=lambda make: make.__name__)
def tokenizer(request, tmp_path_factory):
    made = trained(request.param)
    folder = tmp_path_factory.mktemp(request.param.__name__)
    made.save(str(folder / "tokenizer.json"))
    return made, folder


def check(tokenizer, folder, strings, add_special_tokens=False):
    answers = start_ours(folder, strings, *(["add-special"] if add_special_tokens else []))
    texts = [string.decode(errors="replace") for string in strings]
    encodings = tokenizer.encode_batch(texts, add_special_tokens=add_special_tokens)
    ids = [encoding.ids for encoding in encodings]
    decoded = tokenizer.decode_batch(ids)
    kept = tokenizer.decode_batch(ids, skip_special_tokens=False)
    for text, line, encoding, skipped, all_ in zip(texts, answers(), encodings, decoded, kept):
        theirs = {"ids": encoding.ids, "ranges": in_bytes(text, encoding.offsets), "text": skipped, "all": all_}
        assert line == theirs, ascii(text)


def test_random_strings(tokenizer, random_strings):
    few = any(tokenizer[1].name.startswith(make.__name__) for make in VARIATIONS)
    check(*tokenizer, random_strings[: STRINGS // 5 if few else STRINGS])


def test_with_special_tokens_added(tokenizer):
    rng = random.Random(7)
    check(*tokenizer, [random_bytes(rng) for _ in range(2000)], add_special_tokens=True)


def test_whole_texts(tokenizer):
    check(*tokenizer, [text.encode() for text in TEXTS])


def test_specials_as_text(tokenizer):
    theirs, folder = tokenizer
    theirs = Tokenizer.from_str(theirs.to_str())
    theirs.encode_special_tokens = True
    texts = ["<s> and <|im_start|>extra, <mask> <tool>", "<|im_end|>", "<<s>s>"]
    lines = start_ours(folder, [text.encode() for text in texts], "as-text")()
    assert [line["ids"] for line in lines] == [theirs.encode(text, add_special_tokens=False).ids for text in texts]


def test_every_assigned_character(tokenizer):
    codes = [code for code in ASSIGNED if code < 0x30000 and not 0x3400 <= code < 0xD7A4]
    rows = ["".join(f"a{chr(code)} " for code in codes[first : first + 8]) for first in range(0, len(codes), 8)]
    check(*tokenizer, [row.encode() for row in rows])


PATTERNS = [
    *(rf"\p{{{name}}}" for name in (
        "Letter", "Uppercase_Letter", "lowercase letter", "Cased_Letter", "Mark", "Nonspacing_Mark", "Number",
        "Decimal_Number", "Letter_Number", "Punctuation", "Dash_Punctuation", "Symbol", "Currency_Symbol", "Separator",
        "Control", "Format", "Space", "Digit", "Cntrl", "^Digit", "Han", "Old_Italic",
    )),
    "a{,2}", "a{1,}?b", "a{ 1}", "(?=a)", "(?<=b)", "b*", "^", "$",
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)", "(?i:k)", "(?i:s|t)t", "(?i:é[a-z])",
]  # fmt: skip


@pytest.mark.parametrize("pattern", PATTERNS)
def test_patterns(pattern, tmp_path):
    tokenizer = Tokenizer(models.BPE(vocab={byte: i for i, byte in enumerate(BYTES)}, merges=[], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.normalizer = normalizers.Replace(Regex(pattern), "<>")
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    codes = [code for code in ASSIGNED if code < 0x3100]
    rows = ["".join(map(chr, codes[first : first + 64])) for first in range(0, len(codes), 64)]
    check(tokenizer, tmp_path, [row.encode() for row in [*rows, *FRAGMENTS, "aaaab\nab", "stST ſt", "éÉsÉſ a{ 1}"]])


@pytest.fixture(scope="module", params=["bpe", "unigram"])
def sentencepiece_model(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    lines = [line for text in TEXTS for line in text.splitlines() if line.strip()]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_prefix=str(folder / "tokenizer"), model_type=request.param,
        vocab_size=2000, byte_fallback=request.param == "bpe", user_defined_symbols=["<tool>"],
        normalization_rule_name="nmt_nfkc" if request.param == "unigram" else "identity",
        remove_extra_whitespaces=request.param == "unigram", minloglevel=2,
    )  # fmt: skip
    return sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model")), folder


def test_sentencepiece_model(sentencepiece_model, random_strings):
    theirs, folder = sentencepiece_model
    answers = start_ours(folder, random_strings, "as-text")
    texts = [string.decode(errors="replace") for string in random_strings]
    encoded = theirs.encode(texts)
    for text, line, ids, decoded in zip(texts, answers(), encoded, theirs.decode(encoded)):
        assert (line["ids"], line["text"]) == (ids, decoded), ascii(text)
        assert set(line) == {"ids", "ranges", "text", "all"}, line


def places(theirs, text):
    """Where each piece comes from, in bytes; all bytes of a character have its place, which the package gives the last."""
    pieces = theirs.encode_as_immutable_proto(text).pieces
    found = [(piece.begin, piece.end) for piece in pieces]
    for i in range(len(pieces) - 1, 0, -1):
        if theirs.is_byte(pieces[i].id) and theirs.is_byte(pieces[i - 1].id) and found[i - 1] == (found[i][0],) * 2:
            found[i - 1] = found[i]
    return in_bytes(text, found)


def test_places_of_sentencepiece(sentencepiece_model, random_strings):
    theirs, folder = sentencepiece_model
    strings = random_strings[:5000]
    for string, line in zip(strings, start_ours(folder, strings, "as-text")()):
        text = string.decode(errors="replace")
        assert line["ranges"] == places(theirs, text), ascii(text)


def test_decoding_of_any_ids_of_sentencepiece(sentencepiece_model):
    theirs, folder = sentencepiece_model
    rng = random.Random(3)
    rows = [[rng.randrange(theirs.get_piece_size()) for _ in range(rng.randrange(12))] for _ in range(2000)]
    rows += [[rng.randrange(0, 300) for _ in range(rng.randrange(12))] for _ in range(2000)]
    assert decoded(folder, rows) == [theirs.decode(row) for row in rows]


def test_decoding_of_any_ids(tokenizer):
    theirs, folder = tokenizer
    rng = random.Random(3)
    rows = [[rng.randrange(theirs.get_vocab_size()) for _ in range(rng.randrange(12))] for _ in range(2000)]
    rows += [[rng.randrange(0, 300) for _ in range(rng.randrange(12))] for _ in range(2000)]
    assert decoded(folder, rows) == theirs.decode_batch(rows)


def decoded(folder, rows):
    frames = [struct.pack(f"<{len(row)}i", *row) for row in rows]
    return [answer["text"] for answer in start_ours(folder, frames, "decode")()]
