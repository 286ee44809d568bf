"""Makes the folder that both sides read: a Llama with random weights, its tokenizer, and prompts.jsonl.

    model.py FOLDER NAME [--quick]

For a NAME with smollm2 it is SmolLM2-135M-Instruct; with --quick it is never that.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

from setting import is_real, setting_of

PROMPTS = 64
END, PADDING = "<|end|>", "<|pad|>"


def words(generator, count):
    syllables = [consonant + vowel for consonant in "bcdfghjklmnprstvwxz" for vowel in "aeiouy"]
    return ["".join(generator.choices(syllables, k=generator.randint(1, 4))) for _ in range(count)]


def tokenizer_of(setting):
    """Byte-level pairs that are learned from made-up words, as many tokens as the setting has."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=setting.vocabulary, special_tokens=[END, PADDING], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    generator = random.Random(1)
    text = words(generator, 20 * setting.vocabulary)
    tokenizer.train_from_iterator((" ".join(text[i : i + 100]) for i in range(0, len(text), 100)), trainer)
    if tokenizer.get_vocab_size() != setting.vocabulary:
        raise ValueError(f"the tokenizer has {tokenizer.get_vocab_size()} tokens, not {setting.vocabulary}")
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END, pad_token=PADDING)


def prompt_of(tokenizer, tokens, generator):
    """Words that are `tokens` tokens together."""
    while True:
        text = " ".join(words(generator, tokens))
        ids = tokenizer(text)["input_ids"][:tokens]
        text = tokenizer.decode(ids)
        if tokenizer(text)["input_ids"] == ids:
            return text


def write_random(folder, setting):
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig

    tokenizer = tokenizer_of(setting)
    config = LlamaConfig(
        vocab_size=setting.vocabulary, hidden_size=setting.hidden, intermediate_size=setting.ffn,
        num_hidden_layers=setting.layers, num_attention_heads=setting.heads, num_key_value_heads=setting.kv_heads,
        max_position_embeddings=2 * setting.length, tie_word_embeddings=False, bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    torch.manual_seed(1)
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def write_folder(folder, name, quick):
    setting = setting_of(name, quick)
    if is_real(name) and not quick:
        maker = Path(__file__).resolve().parents[3] / "examples/real-model/make_model.py"
        subprocess.run([sys.executable, maker, folder], check=True)
    else:
        write_random(folder, setting)
    from transformers import AutoTokenizer

    tokenizer, generator = AutoTokenizer.from_pretrained(folder), random.Random(2)
    prompts = [prompt_of(tokenizer, setting.prompt_tokens, generator) for _ in range(PROMPTS)]
    lines = [json.dumps({"prompt": prompt}) + "\n" for prompt in prompts]
    (folder / "prompts.jsonl").write_text("".join(lines))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("name")
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    arguments.folder.parent.mkdir(parents=True, exist_ok=True)
    # Whole or not at all.
    with tempfile.TemporaryDirectory(dir=arguments.folder.parent) as unfinished:
        made = Path(unfinished) / "made"
        made.mkdir()
        write_folder(made, arguments.name, arguments.quick)
        os.rename(made, arguments.folder)


if __name__ == "__main__":
    main()
