#!/usr/bin/env python3
"""`tdock generate` from file to file, and `tdock chat`: tests/integration/generate_test.py TDOCK"""

import array
import json
import os
import pathlib
import random
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest

# Without special tokens, so that a prompt can be written by hand.
TEMPLATE = (
    "{%- for m in messages %}({{ m.role[0] }}){{ m.content }}"
    "{%- if m.role == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}{% if add_generation_prompt %}(a){% endif %}"
)
POSITIONS = 4096
END = 256
LETTERS = ",".join(str(code) for code in range(ord("a"), ord("z") + 1))
tdock = None


def byte_spellings():
    """The characters that stand for the bytes 0 … 255 in GPT-2's kind of vocabulary."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in shown]
    return [chr(byte) if byte in shown else chr(256 + others.index(byte)) for byte in range(256)]


def write_model(folder, seed=0, **config):
    """A Llama with random weights, whose tokens are the bytes, and 256, which ends a text."""
    hidden, layers, vocabulary = 16, 1, 257
    folder.mkdir()
    added = {"id": END, "content": "<eos>", "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    vocab = {spelling: byte for byte, spelling in enumerate(byte_spellings())}
    tokenizer = {
        "added_tokens": [added | {"special": True}], "pre_tokenizer": level, "decoder": level,
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
    }  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    named = {"eos_token": "<eos>", "chat_template": config.pop("chat_template", TEMPLATE)}
    (folder / "tokenizer_config.json").write_text(json.dumps({k: v for k, v in named.items() if v is not None}))
    settings = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": vocabulary, "hidden_size": hidden,
        "intermediate_size": 2 * hidden, "num_hidden_layers": layers, "num_attention_heads": 2,
        "num_key_value_heads": 2, "max_position_embeddings": POSITIONS, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
        "hidden_act": "silu", "tie_word_embeddings": True, "torch_dtype": "float32", "eos_token_id": END,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(settings | config))
    shapes = {"model.embed_tokens.weight": (vocabulary, hidden), "model.norm.weight": (hidden,)}
    for layer in range(layers):
        at = f"model.layers.{layer}."
        shapes |= {at + f"self_attn.{name}_proj.weight": (hidden, hidden) for name in "qkvo"}
        shapes |= {at + f"mlp.{name}_proj.weight": (2 * hidden, hidden) for name in ("gate", "up")}
        shapes |= {at + "mlp.down_proj.weight": (hidden, 2 * hidden)}
        shapes |= {at + f"{name}_layernorm.weight": (hidden,) for name in ("input", "post_attention")}
    write_tensors(folder / "model.safetensors", shapes, seed)
    return folder


def write_tensors(path, shapes, seed=0):
    numbers = random.Random(seed)
    header, data = {}, bytearray()
    for name, shape in shapes.items():
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        values = array.array("f", [1.0 if len(shape) == 1 else numbers.gauss(0, 0.6) for _ in range(count)])
        begin = len(data)
        data += values.tobytes()
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [begin, len(data)]}
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def run(*arguments, **options):
    options = {"capture_output": True, "text": True, "timeout": 60} | options
    return subprocess.run([tdock, *map(str, arguments)], **options)


def with_default(options, option, value):
    return [*options] if option in options else [option, value, *options]


class WithModel(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        shared = tempfile.TemporaryDirectory()
        cls.addClassCleanup(shared.cleanup)
        cls.shared = pathlib.Path(shared.name)
        cls.model = write_model(cls.shared / "model")

    def setUp(self):
        own = tempfile.TemporaryDirectory()
        self.addCleanup(own.cleanup)
        self.own = pathlib.Path(own.name)

    def refused(self, *arguments):
        """The message of a call that must be refused with exit code 2."""
        result = run(*arguments)
        self.assertEqual(result.returncode, 2, result.stderr)
        return result.stderr

    def answers(self, *arguments):
        result = run("generate", "--model", self.model, "--json", *arguments)
        self.assertEqual(result.returncode, 0, result.stderr)
        return [json.loads(line) for line in result.stdout.split("\n")[:-1]]

    def written(self, lines, name="prompts.jsonl"):
        path = self.own / name
        path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
        return path


class Generate(WithModel):
    def call(self, *options, model=None):
        """Of generation from a file to a file."""
        files = ["--input", self.own / "prompts.jsonl", "--output", self.own / "answers.jsonl"]
        return ["generate", "--model", model or self.model, *files, *with_default(options, "--max-new-tokens", "6")]

    def read(self):
        return [json.loads(line) for line in (self.own / "answers.jsonl").read_text().split("\n")[:-1]]

    def generated(self, *options):
        result = run(*self.call(*options))
        self.assertEqual(result.returncode, 0, result.stderr)
        return self.read(), result.stderr

    def test_a_chat_prompt_is_what_the_template_makes_of_it(self):
        same = ["--max-new-tokens", "12", "--seed", "3"]
        ids = lambda *options: [answer["ids"] for answer in self.answers(*same, *options)]
        by_hand = ids("--prompt", "(u)hi(a)", "--prompt", "(s)Be brief.(u)hi(a)")
        self.assertEqual(ids("--chat", "--prompt", "hi"), by_hand[:1])
        self.assertEqual(ids("--chat", "--prompt", "hi", "--prompt", "hi", "--system", "Be brief.")[1], by_hand[1])
        self.assertEqual(
            ids("--chat", "--prompt", "hi", "--template", "human_assistant"), ids("--prompt", " Human: hi Assistant:")
        )
        self.assertNotEqual(by_hand[0], ids("--prompt", "hi")[0])

    def test_a_chat_prompt_needs_a_template(self):
        plain = write_model(self.own / "plain", chat_template=None)
        ask = ["generate", "--model", plain, "--prompt", "hi", "--max-new-tokens", "1"]
        self.assertIn("the model has no chat_template; choose a template by name", self.refused(*ask, "--chat"))
        self.assertEqual(run(*ask).returncode, 0)

    def test_options_that_do_not_go_together_are_refused(self):
        ask = ["generate", "--model", self.model]
        self.assertIn("either --prompt, once or more, or --input and --output", self.refused(*ask))
        self.assertIn("--output", self.refused(*ask, "--input", "x"))
        self.assertIn("--adapter", self.refused(*ask, "--prompt", "x", "--unmerged"))
        self.assertIn("--system and --template… need --chat", self.refused(*ask, "--prompt", "x", "--system", "S"))

    def test_a_file_is_answered_with_all_that_its_lines_have(self):
        turns = [{"role": "user", "content": "hi"}]
        lines = [{"prompt": "(u)hi(a)", "truth": "y", "id": [7]}, "", {"prompt": turns}, {"messages": turns, "n": None}]
        self.written(lines)
        answers, log = self.generated("--samples", "2", "--seed", "5")
        self.assertEqual(len(answers), 6)
        self.assertRegex(log, r"generating: 6 answers in 0:0\d, tokens/s ")
        by_place = {(answer["line"], answer["sample"]): answer for answer in answers}
        self.assertEqual(set(by_place), {(line, sample) for line in (1, 3, 4) for sample in (0, 1)})
        for (line, _), answer in by_place.items():
            fields = {"line", "sample", "text", "finish_reason", "ids", "log_probs"}
            self.assertEqual({k: v for k, v in answer.items() if k not in fields}, lines[line - 1])
            self.assertEqual(len(answer["ids"]), len(answer["log_probs"]))
        # The same prompt in three forms, with random numbers of its own on each line.
        self.assertEqual(len({tuple(answer["ids"]) for answer in answers}), 6)
        greedy, _ = self.generated("--temperature", "0", "--overwrite")
        self.assertEqual(len({tuple(answer["ids"]) for answer in greedy}), 1)

    def test_a_killed_process_is_gone_on_with(self):
        lines = 900
        self.written([{"prompt": f"({number})"} for number in range(lines)])
        same = ["--samples", "2", "--max-new-tokens", "40", "--ignore-eos", "--max-rows", "8", "--batch-invariant"]
        process = subprocess.Popen([tdock, *map(str, self.call(*same))], stderr=subprocess.DEVNULL)
        self.addCleanup(process.kill)
        path = self.own / "answers.jsonl"
        deadline = time.monotonic() + 30
        while not path.exists() or path.read_bytes().count(b"\n") < 20:
            self.assertLess(time.monotonic(), deadline, "there are no answers")
            time.sleep(0.002)
        self.assertIn("answers.jsonl is being written by another process", self.refused(*self.call(*same)))
        process.kill()
        process.wait(timeout=30)
        before = path.read_bytes()
        whole = before[: before.rfind(b"\n") + 1]
        found = whole.count(b"\n")
        self.assertLess(found, 2 * lines, "it ended before it was killed")
        path.write_bytes(whole + b'{"line": 1, "sample": 1, "te')
        answers, log = self.generated(*same)
        self.assertIn(f"{found} of {2 * lines} answers are in", log)
        self.assertTrue(path.read_bytes().startswith(whole))
        places = [(answer["line"], answer["sample"]) for answer in answers]
        self.assertEqual(sorted(places), [(line + 1, sample) for line in range(lines) for sample in (0, 1)])
        # Nothing is left to do.
        (self.own / "prompts.jsonl").touch()
        self.assertEqual(self.generated(*same)[0], answers)
        # As if it had not been killed.
        path.unlink()
        at_once, _ = self.generated(*same)
        self.assertEqual({(a["line"], a["sample"]): a["ids"] for a in at_once}, dict(zip(places, (a["ids"] for a in answers))))

    def test_ctrl_c_says_how_far_it_came(self):
        self.written([{"prompt": "x"} for _ in range(5000)])
        process = subprocess.Popen([tdock, *map(str, self.call("--max-rows", "8"))], stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.kill)
        path = self.own / "answers.jsonl"
        deadline = time.monotonic() + 30
        while not path.exists() or path.stat().st_size == 0:
            self.assertLess(time.monotonic(), deadline, "there are no answers")
            time.sleep(0.002)
        process.send_signal(signal.SIGINT)
        _, message = process.communicate(timeout=30)
        self.assertEqual(process.returncode, 130, message)
        self.assertIn(f"interrupted; {len(self.read())} of 5000 answers are in {path}", message)

    def test_answers_that_were_made_otherwise_are_not_gone_on_with(self):
        prompts = self.written([{"prompt": "a"}, {"prompt": "b"}])
        before, _ = self.generated("--temperature", "0.5")
        message = self.refused(*self.call("--top-k", "3"))
        self.assertIn("temperature was 0.5 and is 1.0 now; top_k was 0 and is 3 now; give --overwrite", message)
        other = write_model(self.own / "other", seed=1)
        self.assertIn("model was", self.refused(*self.call("--temperature", "0.5", model=other)))
        prompts.write_text('{"prompt": "a"}\n{"prompt": "c"}\n')
        self.assertIn("input was", self.refused(*self.call("--temperature", "0.5")))
        self.assertEqual(self.read(), before)
        (self.own / "answers.jsonl.state.json").unlink()
        self.assertIn("is there already", self.refused(*self.call()))
        self.assertEqual([answer["prompt"] for answer in self.generated("--overwrite", "--in-order")[0]], ["a", "c"])

    def test_answers_come_in_order_if_asked(self):
        self.written([{"prompt": f"({number})"} for number in range(40)])
        answers, _ = self.generated("--in-order", "--samples", "2", "--max-rows", "4", "--max-new-tokens", "9")
        self.assertEqual([(a["line"], a["sample"]) for a in answers], [(n + 1, s) for n in range(40) for s in (0, 1)])

    def test_lines_that_cannot_be_answered_are_refused_before_any_answer(self):
        for line, message in (
            ("{", "it is not JSON"),
            ({"messages": [{"role": "robot", "content": "a"}]}, 'the role "robot"'),
            ({"prompt": "a", "ids": []}, 'it has "ids", as the line of its answer has'),
            ({"prompt": "a" * POSITIONS}, f"its prompt has {POSITIONS} tokens, which leaves no room"),
        ):
            path = self.written([{"prompt": "a"}, line])
            message_of = self.refused(*self.call())
            self.assertIn(f"{path}:2: ", message_of)
            self.assertIn(message, message_of)
            self.assertFalse((self.own / "answers.jsonl").exists())
        answers, log = self.generated("--skip-bad")
        self.assertEqual([answer["line"] for answer in answers], [1])
        self.assertIn("skipped 1 line that cannot be answered", log)

    def test_adapters_are_the_same_merged_and_apart(self):
        adapter = self.own / "adapter"
        adapter.mkdir()
        config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 2, "lora_alpha": 8, "target_modules": ["q_proj"]}
        (adapter / "adapter_config.json").write_text(json.dumps(config))
        at = "base_model.model.model.layers.0.self_attn.q_proj.lora_"
        write_tensors(adapter / "adapter_model.safetensors", {at + "A.weight": (2, 16), at + "B.weight": (16, 2)})
        greedy = ["--prompt", "abc", "--temperature", "0", "--max-new-tokens", "12"]
        base = self.answers(*greedy)[0]
        merged = self.answers(*greedy, "--adapter", adapter)[0]
        apart = self.answers(*greedy, "--adapter", adapter, "--unmerged")[0]
        self.assertEqual(apart["ids"], merged["ids"])
        for a, b in zip(apart["log_probs"], merged["log_probs"]):
            self.assertAlmostEqual(a, b, delta=1e-3)
        self.assertGreater(abs(base["log_probs"][0] - merged["log_probs"][0]), 1e-2)

    def test_few_rows_and_little_memory_only_make_it_slower(self):
        asked = ["--prompt", "abc", "--samples", "6", "--temperature", "0", "--max-new-tokens", "5"]
        ids = [answer["ids"] for answer in self.answers(*asked)]
        self.assertEqual([answer["ids"] for answer in self.answers(*asked, "--max-rows", "2", "--cache-mib", "1")], ids)


class Chat(WithModel):
    def chat(self, said, *options, model=None, **settings):
        options = with_default(with_default(options, "--max-new-tokens", "8"), "--temperature", "0")
        if "--path" not in options:
            options = ["--model", model or self.model, *options]
        result = run("chat", *options, input=said, **settings)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result.stdout, result.stderr

    def test_answers_are_those_to_the_conversation_as_the_template_renders_it(self):
        letters = ["--allowed-tokens", LETTERS, "--temperature", "0", "--max-new-tokens", "8"]
        text, log = self.chat("hi\n\nso?\n", *letters, "--system", "S")
        first, second = text.splitlines()
        self.assertEqual(log, "")
        turns = [("system", "S"), ("user", "hi"), ("assistant", first), ("user", "so?")]
        messages = [{"role": role, "content": content} for role, content in turns]
        self.written([{"messages": messages[:2]}, {"messages": messages}])
        files = ["--input", self.own / "prompts.jsonl", "--output", self.own / "answers.jsonl", "--in-order"]
        self.assertEqual(run("generate", "--model", self.model, *files, *letters).returncode, 0)
        answers = [json.loads(line)["text"] for line in (self.own / "answers.jsonl").read_text().split("\n")[:-1]]
        self.assertEqual([first, second], answers)

    def test_clear_forgets_and_quit_ends(self):
        text, log = self.chat("hi\nclear\nhi\nquit\nhi\n", "--path", self.model, "--allowed-tokens", LETTERS)
        first, second = text.splitlines()
        self.assertEqual(first, second)
        self.assertIn("forgotten", log)
        self.assertEqual(self.chat("")[0], "")
        again = self.chat("hi\nhi\n", "--allowed-tokens", LETTERS)[0].splitlines()
        self.assertEqual(again[0], first)

    def test_neither_end_tokens_nor_stop_texts_are_shown(self):
        only = ["--allowed-tokens", f"{ord('a')},{END}", "--logit-bias", f"{END}:-100"]
        self.assertEqual(self.chat("hi\n", *only, "--stop", "aaa", "--min-new-tokens", "5")[0], "aa\n")
        self.assertEqual(self.chat("hi\nho\n", *only, "--stop", "ab")[0], "aaaaaaaa\naaaaaaaa\n")
        self.assertEqual(self.chat("hi\nho\n", "--allowed-tokens", END, "--ignore-eos")[0], "\n\n")

    def test_a_full_context_forgets_the_oldest_turns(self):
        small = write_model(self.own / "small", max_position_embeddings=64)
        text, log = self.chat("a" * 20 + "\n" + "b" * 20 + "\n" + "c" * 60 + "\nd\n", "--system", "S", model=small)
        self.assertIn("its oldest 2 turns are forgotten", log)
        self.assertIn(
            "The message is left out: the message makes a prompt of 70 tokens, and there is room for 56 of the model's 64 "
            "positions, with 8 for the answer (--max-new-tokens)", log,
        )  # fmt: skip
        message = self.refused("chat", "--model", small, "--max-new-tokens", "64")
        self.assertIn("--max-new-tokens 64 leaves no room for a message in the 64 positions of the model", message)

    def test_a_template_that_rewrites_answers_is_told_of_once(self):
        forgets = TEMPLATE.replace("{{ m.content }}", "{{ m.content if loop.last or m.role == 'user' else '-' }}")
        model = write_model(self.own / "forgets", chat_template=forgets)
        _, log = self.chat("a\nb\nc\n", "--allowed-tokens", LETTERS, model=model)
        self.assertEqual(log.count("Earlier answers are encoded again from their text"), 1)
        self.assertIn("the model's chat_template renders reply 1 otherwise than it was generated", log)

    def test_a_model_without_a_template_is_refused_unless_told_what_to_do(self):
        plain = write_model(self.own / "plain", chat_template=None)
        message = self.refused("chat", "--model", plain)
        self.assertIn(str(plain), message)
        self.assertIn("with --template, or give --raw", message)
        letters = ["--allowed-tokens", LETTERS, "--temperature", "0", "--max-new-tokens", "8"]
        raw = self.chat("hi\n", "--raw", *letters, model=plain)[0].strip()
        ask = ["generate", "--model", plain, *letters, "--prompt"]
        self.assertEqual(raw, run(*ask, "hi").stdout.strip())
        text = self.chat("hi\n", "--template", "human_assistant", *letters, model=plain)[0].strip()
        self.assertEqual(text, run(*ask, " Human: hi Assistant:").stdout.strip())
        message = self.refused("chat", "--model", plain, "--template", "human_assistant", "--system", "S")
        self.assertIn("--system: turn 1 of the conversation: it is of the system", message)

    def test_ctrl_c_ends_an_answer_and_not_the_chat(self):
        options = ["--max-new-tokens", "4000", "--ignore-eos", "--allowed-tokens", LETTERS]
        process = subprocess.Popen(
            [tdock, "chat", "--model", self.model, *options],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        self.addCleanup(process.kill)
        process.stdin.write(b"hi\n")
        process.stdin.flush()
        begin = os.read(process.stdout.fileno(), 1)
        process.send_signal(signal.SIGINT)
        rest = process.stdout.readline()
        self.assertLess(len(begin + rest), 4000)
        process.stdin.write(b"quit\n")
        process.stdin.flush()
        _, log = process.communicate(timeout=30)
        self.assertEqual((process.returncode, log), (0, b""))

    def test_a_terminal_is_asked_once_and_not_controlled(self):
        terminal, inside = os.openpty()
        self.addCleanup(os.close, terminal)
        options = ["--max-new-tokens", "2", "--allowed-tokens", 0x1B, "--temperature", "0"]
        process = subprocess.Popen(
            [tdock, "chat", "--model", self.model, *map(str, options)], stdin=inside, stdout=inside, stderr=inside
        )
        self.addCleanup(process.kill)
        os.close(inside)
        os.write(terminal, b"hi\nquit\n")
        process.wait(timeout=30)
        shown = b""
        try:
            while more := os.read(terminal, 1000):
                shown += more
        except OSError:  # the end, on Linux
            pass
        self.assertEqual(shown.count(b"Enter input (type 'quit' to exit, 'clear' to clean memory): "), 2, shown)
        self.assertIn(rb"\x1b\x1b", shown)
        self.assertNotIn(b"\x1b", shown)


if __name__ == "__main__":
    tdock = str(pathlib.Path(sys.argv.pop(1)).resolve())
    unittest.main()
