"""Our tokenizers and the Python package `tokenizers`, one after the other in one run, each on one thread.

The tokenizers are trained here, on what every Python has beside it: its standard library (code) and the comments and
documentation in it (text). Both sides encode whole files. A run of each is not counted, then five are, in turn; the
ratio is the median over the pairs, above 1 where ours is faster.
"""

import argparse
import ast
import json
import os
import random
import statistics
import struct
import subprocess
import tempfile
import time
from pathlib import Path

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"

from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers  # noqa: E402

ROOT = Path(__file__).resolve().parents[3]
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")


def split(pattern):
    return pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(pattern), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])  # fmt: skip


def gpt2(tokenizer):
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)


def llama3(tokenizer):
    tokenizer.pre_tokenizer = split(LLAMA3)


def qwen2(tokenizer):
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = split(QWEN2)


def sentencepiece(tokenizer):
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])


def trained(kind, texts, tokens):
    fallback = kind is sentencepiece
    model = models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>") if fallback else models.BPE()
    tokenizer = Tokenizer(model)
    kind(tokenizer)
    if fallback:  # for the training only: whole texts as one word each would take hours
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    special = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256))] if fallback else []
    alphabet = [] if fallback else pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=tokens, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    saved = json.loads(tokenizer.to_str())
    if fallback:
        saved["pre_tokenizer"] = None
    return Tokenizer.from_str(json.dumps(saved))


def documents(files):
    """Code and text, of so many files."""
    code, text = [], []
    for path in sorted(Path(random.__file__).parent.glob("*.py"))[:files]:
        source = path.read_text()
        code.append(source)
        kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
        nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, kinds)]
        text.append("\n\n".join(filter(None, map(ast.get_docstring, nodes))))
    return {"code": code, "text": [document for document in text if document]}


class Ours:
    def __init__(self, tool, folder, texts):
        frames = folder / "frames"
        frames.write_bytes(b"".join(struct.pack("<I", len(text.encode())) + text.encode() for text in texts))
        self.process = subprocess.Popen(
            [tool, folder, frames], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )  # fmt: skip

    def run(self):
        print(file=self.process.stdin, flush=True)
        seconds, tokens = self.process.stdout.readline().split()
        return float(seconds), int(tokens)

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def theirs(tokenizer, texts):
    """The fastest way that the package has: without offsets."""
    begun = time.perf_counter()
    encodings = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
    return time.perf_counter() - begun, sum(len(encoding.ids) for encoding in encodings)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tool", default=ROOT / "build/release/tdock_encode", help="the program tdock_encode")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="little to encode: shows that it works, not how fast")
    parser.add_argument("--json", help="file for the figures of every run")
    arguments = parser.parse_args()
    figures = []
    corpora = documents(20 if arguments.quick else None)
    print(f"{'benchmark':<32}{'ours MB/s':>12}{'theirs MB/s':>13}{'ratio':>8}")
    for kind in (gpt2, llama3, qwen2, sentencepiece):
        tokenizer = trained(kind, [document for corpus in corpora.values() for document in corpus], 1000 if arguments.quick else 20_000)
        for name, texts in corpora.items():
            with tempfile.TemporaryDirectory() as folder:
                tokenizer.save(str(Path(folder) / "tokenizer.json"))
                ours = Ours(arguments.tool, Path(folder), texts)
                pairs = [(ours.run(), theirs(tokenizer, texts)) for _ in range(arguments.runs + 1)][1:]
                ours.close()
            if any(our[1] != their[1] for our, their in pairs):
                raise SystemExit(f"{kind.__name__}, {name}: the numbers of tokens differ: {pairs[0]}")
            size = sum(len(text.encode()) for text in texts) / 1e6
            row = {
                "name": f"tokenizers/{kind.__name__}/{name}",
                "ours": [size / our[0] for our, _ in pairs],
                "theirs": [size / their[0] for _, their in pairs],
                "ratio": statistics.median(their[0] / our[0] for our, their in pairs),
            }
            figures.append(row)
            our, their = statistics.median(row["ours"]), statistics.median(row["theirs"])
            print(f"{row['name']:<32}{our:>12.2f}{their:>13.2f}{row['ratio']:>8.2f}", flush=True)
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
