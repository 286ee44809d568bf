#!/usr/bin/env python3
"""`tdock generate` from file to file, and `tdock chat`: tests/integration/generate_test.py TDOCK"""

import array
import fcntl
import json
import math
import os
import pathlib
import random
import signal
import struct
import subprocess
import sys
import tempfile
import unittest

from messages import mentions
from waiting import LONG, until

# Without special tokens, so that a prompt can be written by hand.
TEMPLATE = (
    "{%- for m in messages %}({{ m.role[0] }}){{ m.content }}"
    "{%- if m.role == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}{% if add_generation_prompt %}(a){% endif %}"
)
POSITIONS = 4096
END = 256
VOCABULARY, HIDDEN = 257, 16
LETTERS = ",".join(str(code) for code in range(ord("a"), ord("z") + 1))
tdock = None


def byte_spellings():
    """The characters that stand for the bytes 0 … 255 in GPT-2's kind of vocabulary."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in shown]
    return [chr(byte) if byte in shown else chr(256 + others.index(byte)) for byte in range(256)]


def write_model(folder, seed=0, **config):
    """A Llama with random weights, whose tokens are the bytes, and 256, which ends a text."""
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
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": VOCABULARY, "hidden_size": HIDDEN,
        "intermediate_size": 2 * HIDDEN, "num_hidden_layers": 1, "num_attention_heads": 2,
        "num_key_value_heads": 2, "max_position_embeddings": POSITIONS, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
        "hidden_act": "silu", "tie_word_embeddings": True, "torch_dtype": "float32", "eos_token_id": END,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(settings | config))
    write_tensors(folder / "model.safetensors", model_shapes(config.get("num_hidden_layers", 1)), seed)
    return folder


def model_shapes(layers=1):
    shapes = {"model.embed_tokens.weight": (VOCABULARY, HIDDEN), "model.norm.weight": (HIDDEN,)}
    for layer in range(layers):
        at = f"model.layers.{layer}."
        shapes |= {at + f"self_attn.{name}_proj.weight": (HIDDEN, HIDDEN) for name in "qkvo"}
        shapes |= {at + f"mlp.{name}_proj.weight": (2 * HIDDEN, HIDDEN) for name in ("gate", "up")}
        shapes |= {at + "mlp.down_proj.weight": (HIDDEN, 2 * HIDDEN)}
        shapes |= {at + f"{name}_layernorm.weight": (HIDDEN,) for name in ("input", "post_attention")}
    return shapes


def write_tensors(path, shapes, seed=0, own=None, dtype="F32"):
    """Random numbers, but for those of `own`: the name of a tensor to its numbers by their place."""
    numbers = random.Random(seed)
    header, data = {}, bytearray()
    for name, shape in shapes.items():
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        values = array.array("f", [1.0 if len(shape) == 1 else numbers.gauss(0, 0.6) for _ in range(count)])
        for place, value in (own or {}).get(name, {}).items():
            values[place] = value
        begin = len(data)
        # The upper halves of float32 are bfloat16.
        data += values.tobytes() if dtype == "F32" else array.array("H", array.array("H", values.tobytes())[1::2]).tobytes()
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, len(data)]}
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def run(*arguments, **options):
    options = {"capture_output": True, "text": True, "timeout": LONG} | options
    return subprocess.run([tdock, *map(str, arguments)], **options)


def open_files(process):
    paths = []
    for file in pathlib.Path(f"/proc/{process}/fd").iterdir():
        try:
            paths.append(os.readlink(file))
        except FileNotFoundError:  # closed meanwhile
            pass
    return paths


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
        model = [] if "--model" in arguments else ["--model", self.model]
        result = run("generate", *model, "--json", *arguments)
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
        mentions(self.refused(*ask, "--chat"), plain, "chat_template", "chatml")
        self.assertEqual(run(*ask).returncode, 0)

    def test_options_that_do_not_go_together_are_refused(self):
        ask = ["generate", "--model", self.model]
        mentions(self.refused(*ask), "--prompt", "--input", "--output")
        self.assertIn("--output", self.refused(*ask, "--input", "x"))
        self.assertIn("--adapter", self.refused(*ask, "--prompt", "x", "--unmerged"))
        self.assertIn("--template needs --chat", self.refused(*ask, "--prompt", "x", "--template", "qwen"))
        self.assertIn("UTF-8", self.refused(*ask, "--prompt", "x", "--chat", "--system", "\udcff"))

    def test_options_of_the_template_need_a_conversation_in_a_file(self):
        path = self.written([{"prompt": "a"}])
        mentions(self.refused(*self.call("--system", "S")), "--system", path, "--chat")
        self.generated("--system", "S", "--chat")
        self.written([{"prompt": "a"}, {"messages": [{"role": "user", "content": "a"}]}])
        self.generated("--system", "S", "--overwrite")

    def test_a_prompt_that_spells_a_special_token_is_told_of_once(self):
        ask = ["generate", "--model", self.model, "--max-new-tokens", "1", "--prompt", "a<eos>", "--prompt", "<eos>"]
        log = run(*ask).stderr
        self.assertRegex(log, '"a<eos>" .*special token "<eos>"')
        self.assertEqual(log.count('"<eos>"'), 1)
        self.assertEqual(run(*ask, "--chat").stderr, "")

    def test_a_template_that_cannot_be_read_only_matters_where_it_is_asked_for(self):
        broken = write_model(self.own / "broken", chat_template="{% if %}")
        ask = ["generate", "--model", broken, "--prompt", "hi", "--max-new-tokens", "1"]
        self.assertEqual(run(*ask).returncode, 0)
        self.assertIn("chat_template", self.refused(*ask, "--chat"))

    def test_a_file_is_answered_with_all_that_its_lines_have(self):
        turns = [{"role": "user", "content": "hi"}]
        lines = [{"prompt": "(u)hi(a)", "truth": "y", "id": [7]}, "", {"prompt": turns}, {"messages": turns, "n": None}]
        self.written(lines)
        answers, log = self.generated("--samples", "2", "--seed", "5")
        self.assertEqual(len(answers), 6)
        self.assertRegex(log, r"generating: 6 answers in \d+:\d\d, tokens/s ")
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

    def interrupted(self, by, *options):
        """A process that was signalled while it worked, its messages, and the number of its lines."""
        path = self.own / "answers.jsonl"
        for lines in 100, 1000, 10000, 100000:
            self.written([{"prompt": f"({number})"} for number in range(lines)])
            call = self.call("--overwrite", *options)
            process = subprocess.Popen([tdock, *map(str, call)], stderr=subprocess.PIPE, text=True)
            self.addCleanup(process.kill)
            until(lambda: path.exists() and path.stat().st_size > 0, "an answer", every=0.002)
            process.send_signal(by)
            _, message = process.communicate(timeout=LONG)
            if process.returncode != 0:
                return process, message, lines
            path.unlink()  # it had ended before the signal
        self.fail("it always ended before the signal")

    def test_a_killed_process_is_gone_on_with(self):
        same = ["--samples", "2", "--max-new-tokens", "40", "--ignore-eos", "--max-rows", "8"]
        process, _, lines = self.interrupted(signal.SIGKILL, *same)
        self.assertEqual(process.returncode, -signal.SIGKILL)
        path = self.own / "answers.jsonl"
        before = path.read_bytes()
        whole = before[: before.rfind(b"\n") + 1]
        found = whole.count(b"\n")
        path.write_bytes(whole + b'{"line": 1, "sample": 1, "te')
        answers, log = self.generated(*same)
        mentions(log, f"{found} of {2 * lines} answers")
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
        process, message, lines = self.interrupted(signal.SIGINT, "--max-rows", "8", "--max-new-tokens", "40")
        self.assertEqual(process.returncode, 130, message)
        path = self.own / "answers.jsonl"
        mentions(message, "interrupted", f"{len(self.read())} of {lines} answers", path)

    def test_ctrl_c_ends_the_check_of_the_input(self):
        inside = self.written(['{"prompt": "' + "x" * 40 + '"}'] * 300_000)
        process = subprocess.Popen([tdock, *map(str, self.call())], stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.kill)
        until(lambda: str(inside) in open_files(process.pid), "the reading of the input", every=0.002)
        process.send_signal(signal.SIGINT)
        _, message = process.communicate(timeout=LONG)
        self.assertEqual(process.returncode, 130, message)
        mentions(message, "interrupted", inside)
        self.assertFalse((self.own / "answers.jsonl").exists())

    def test_two_processes_do_not_write_the_same_output(self):
        self.written([{"prompt": "a"}])
        with open(self.own / "answers.jsonl.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            path = self.own / "answers.jsonl"
            mentions(self.refused(*self.call("--overwrite")), path, "another process")
            self.assertFalse(path.exists())
        self.generated()

    def test_a_template_keeps_the_day_of_the_first_answers(self):
        shows = TEMPLATE + "{{ strftime_now('%Y-%m-%d') }}"
        model = write_model(self.own / "dated", chat_template=shows)
        state_path = self.own / "answers.jsonl.state.json"
        self.written([{"prompt": "a"}])
        call = self.call("--chat", model=model)
        self.assertEqual(run(*call, "--template-date", "2020-02-03").returncode, 0)
        self.assertEqual(json.loads(state_path.read_text())["template_date"], "2020-02-03")
        self.assertEqual(run(*call).returncode, 0)
        self.assertIn("template_date was", self.refused(*call, "--template-date", "2020-02-04"))
        self.assertEqual(run(*call, "--overwrite").returncode, 0)
        self.assertGreater(json.loads(state_path.read_text())["template_date"], "2026")

    def test_an_answer_that_fails_takes_no_other_along(self):
        model = write_model(self.own / "broken", tie_word_embeddings=False)
        shapes = model_shapes() | {"lm_head.weight": (VOCABULARY, HIDDEN)}
        # Only "z" has something in the first dimension: the last norm takes it beyond float32, and the head times 0.
        first = {row * HIDDEN: 0.0 for row in range(VOCABULARY)}
        layer = "model.layers.0."
        own = {
            "model.embed_tokens.weight": first | {ord("z") * HIDDEN: 100.0}, "lm_head.weight": first,
            layer + "self_attn.o_proj.weight": {column: 0.0 for column in range(HIDDEN)},
            layer + "mlp.down_proj.weight": {column: 0.0 for column in range(2 * HIDDEN)},
            "model.norm.weight": {0: 3e38},
        }  # fmt: skip
        write_tensors(model / "model.safetensors", shapes, own=own)
        path = self.written([{"prompt": "z"}, {"prompt": "a"}, {"prompt": "b"}])
        result = run(*self.call("--max-new-tokens", "1", "--in-order", model=model))
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertIn(f"{path}:1: ", result.stderr)
        self.assertEqual([answer["line"] for answer in self.read()], [2, 3])

    def test_answers_that_were_made_otherwise_are_not_gone_on_with(self):
        prompts = self.written([{"prompt": "a"}, {"prompt": "b"}])
        before, _ = self.generated("--temperature", "0.5")
        message = self.refused(*self.call("--top-k", "3"))
        mentions(message, "temperature was 0.5 and is 1.0", "top_k was 0 and is 3", "--overwrite")
        other = write_model(self.own / "other", seed=1)
        self.assertIn("model was", self.refused(*self.call("--temperature", "0.5", model=other)))
        ends = write_model(self.own / "ends", eos_token_id=[END, 7])
        message = self.refused(*self.call("--temperature", "0.5", model=ends))
        self.assertIn("files of the model was", message)
        self.assertIn("end_tokens was [256] and is [256,7]", message)
        prompts.write_text('{"prompt": "a"}\n{"prompt": "c"}\n')
        self.assertIn("input was", self.refused(*self.call("--temperature", "0.5")))
        self.assertEqual(self.read(), before)
        (self.own / "answers.jsonl.state.json").unlink()
        mentions(self.refused(*self.call()), self.own / "answers.jsonl", self.own / "answers.jsonl.state.json", "--overwrite")
        self.assertEqual([answer["prompt"] for answer in self.generated("--overwrite", "--in-order")[0]], ["a", "c"])

    def test_answers_come_in_order_if_asked(self):
        self.written([{"prompt": f"({number})"} for number in range(40)])
        answers, _ = self.generated("--in-order", "--samples", "2", "--max-rows", "4", "--max-new-tokens", "9")
        self.assertEqual([(a["line"], a["sample"]) for a in answers], [(n + 1, s) for n in range(40) for s in (0, 1)])

    def test_lines_that_cannot_be_answered_are_refused_before_any_answer(self):
        for line, message in (
            ("{", "JSON"),
            ({"messages": [{"role": "robot", "content": "a"}]}, '"robot"'),
            ({"prompt": "a", "ids": []}, '"ids"'),
            ({"prompt": "a" * POSITIONS}, f"{POSITIONS} tokens"),
        ):
            path = self.written([{"prompt": "a"}, line])
            message_of = self.refused(*self.call())
            self.assertIn(f"{path}:2: ", message_of)
            self.assertIn(message, message_of)
            self.assertFalse((self.own / "answers.jsonl").exists())
        answers, log = self.generated("--skip-bad")
        self.assertEqual([answer["line"] for answer in answers], [1])
        mentions(log, "skipped 1 line")

    def test_lines_for_which_the_cache_is_too_small_are_refused_before_any_answer(self):
        # A position takes 2 · 16 numbers of 4 bytes.
        long = write_model(self.own / "long", max_position_embeddings=4 * 8192)
        path = self.written([{"prompt": "a"}, {"prompt": "a" * 8190}])
        call = self.call("--cache-mib", "1", model=long)
        message = self.refused(*call)
        mentions(message, f"{path}:2: ", "8190 tokens", "8196", "--cache-mib of 1")
        self.assertEqual(run(*call, "--skip-bad").returncode, 0)
        self.assertEqual([answer["line"] for answer in self.read()], [1])

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

    def test_weights_in_int8_answer_nearly_the_same(self):
        asked = ["--prompt", "abc", "--temperature", "0", "--max-new-tokens", "1"]
        exact, rounded = self.answers(*asked)[0], self.answers(*asked, "--int8")[0]
        self.assertNotEqual(rounded["log_probs"], exact["log_probs"])
        self.assertAlmostEqual(rounded["log_probs"][0], exact["log_probs"][0], delta=0.1)

    def test_a_model_is_computed_in_its_own_dtype_unless_another_is_asked_for(self):
        model = write_model(self.own / "bfloat16", torch_dtype="bfloat16")
        write_tensors(model / "model.safetensors", model_shapes(), 0, dtype="BF16")
        asked = ["--model", model, "--prompt", "abc", "--max-new-tokens", "8", "--ignore-eos"]
        own, wide = self.answers(*asked, "--dtype", "bfloat16"), self.answers(*asked, "--dtype", "float32")
        self.assertNotEqual(own[0]["log_probs"], wide[0]["log_probs"])
        self.assertAlmostEqual(own[0]["log_probs"][0], wide[0]["log_probs"][0], delta=0.1)
        self.assertIn(self.answers(*asked), (own, wide))  # by the processor
        self.assertEqual(self.answers("--prompt", "abc"), self.answers("--prompt", "abc", "--dtype", "float32"))
        self.assertIn("--dtype auto", self.refused("generate", *asked, "--dtype", "float16"))

    def test_a_draft_changes_no_answer_and_needs_the_same_tokens(self):
        draft = write_model(self.own / "draft", seed=1)
        asked = ["--prompt", "abc", "--prompt", "x", "--max-new-tokens", "40", "--ignore-eos"]
        for temperature in ("0", "1"):
            alone = self.answers(*asked, "--temperature", temperature)
            self.assertEqual(self.answers(*asked, "--temperature", temperature, "--draft", draft), alone)
        ask = ["generate", "--model", self.model, *asked, "--draft", draft]
        mentions(self.refused(*ask, "--speculative-tokens", "0"), "--draft", "--speculative-tokens")
        tokenizer = draft / "tokenizer.json"
        tokenizer.write_text(tokenizer.read_text().replace("<eos>", "<end>"))
        names = draft / "tokenizer_config.json"
        names.write_text(names.read_text().replace("<eos>", "<end>"))
        mentions(self.refused(*ask), "--draft", draft, "token 256")

    def test_few_rows_and_little_memory_only_make_it_slower(self):
        # A position takes 16 · 2 · 16 numbers of 4 bytes, so that there is room for 512 of them, of 6 · 153.
        model = write_model(self.own / "deep", num_hidden_layers=16)
        asked = ["--model", model, "--prompt", "abc", "--samples", "6", "--max-new-tokens", "150", "--ignore-eos"]
        answers = self.answers(*asked)
        self.assertEqual(self.answers(*asked, "--cache-mib", "1"), answers)
        self.assertEqual(self.answers(*asked, "--max-rows", "2"), answers)


class Score(WithModel):
    def call(self, *options):
        files = ["--input", self.own / "prompts.jsonl", "--output", self.own / "scores.jsonl"]
        return ["generate", "--model", self.model, *files, "--score", *options]

    def scored(self, lines, *options):
        """What is written for each of the lines, and what is shown at the end."""
        self.written(lines)
        result = run(*self.call("--in-order", *options))
        self.assertEqual(result.returncode, 0, result.stderr)
        records = [json.loads(line) for line in (self.own / "scores.jsonl").read_text().split("\n")[:-1]]
        self.assertEqual([record["line"] for record in records], [n + 1 for n, line in enumerate(lines) if line])
        return records, json.loads(result.stdout)

    def test_answers_are_scored_as_when_they_were_generated(self):
        asked = ["--prompt", "ab", "--samples", "5", "--allowed-tokens", LETTERS, "--max-new-tokens", "12"]
        answers = self.answers(*asked)
        lines = [{"prompt": "ab", "completion": answer["text"], "id": n} for n, answer in enumerate(answers)]
        records, shown = self.scored(lines, "--top-log-probs", "1")
        total = 0
        for answer, line, record in zip(answers, lines, records):
            self.assertEqual({name: record[name] for name in line}, line)
            self.assertEqual(record["ids"], [*b"ab", *answer["ids"]])
            self.assertEqual(record["loss_mask"], [0, 0] + 12 * [1])
            self.assertEqual(record["log_probs"][2:], answer["log_probs"])
            self.assertIsNone(record["log_probs"][0])
            self.assertEqual(record["scored_tokens"], 12)
            self.assertAlmostEqual(record["sum_log_prob"], sum(answer["log_probs"]))
            self.assertAlmostEqual(record["mean_log_prob"], sum(answer["log_probs"]) / 12)
            total += record["sum_log_prob"]
            for place in range(1, 14):
                (best,) = record["top_log_probs"][place]
                self.assertEqual(record["ranks"][place] == 1, best["id"] == record["ids"][place])
                self.assertGreaterEqual(best["log_prob"], record["log_probs"][place])
        self.assertEqual((shown["records"], shown["scored_tokens"]), (5, 60))
        self.assertAlmostEqual(shown["sum_log_prob"], total)
        self.assertAlmostEqual(shown["perplexity"], math.exp(-total / 60))

    def test_the_example_of_the_documentation(self):
        page = (pathlib.Path(__file__).resolve().parents[2] / "docs/generation.md").read_text()
        example = page.partition("## Scoring")[2].partition("```jsonl\n")[2].partition("```")[0]
        lines = [json.loads(line) for line in example.splitlines()]
        answered, conversation, text = self.scored(lines)[0]
        counted = lambda record: bytes(i for i, m in zip(record["ids"], record["loss_mask"]) if m and i != END).decode()
        self.assertEqual(counted(answered), answered["completion"])
        self.assertEqual(counted(conversation), conversation["messages"][-1]["content"])
        self.assertEqual(counted(text), text["text"][1:])
        self.assertEqual(bytes(answered["ids"]).decode(), answered["prompt"] + answered["completion"])
        # The token that ends a reply is a part of it, and nothing ends a text.
        self.assertEqual(conversation["ids"][-1], END)
        self.assertEqual(conversation["loss_mask"][-1], 1)
        self.assertEqual(bytes(text["ids"]).decode(), text["text"])

    def test_a_text_may_take_all_positions_of_the_model(self):
        records, _ = self.scored([{"text": "a" * POSITIONS}, {"text": "a" * 20}])
        self.assertEqual([record["scored_tokens"] for record in records], [POSITIONS - 1, 19])
        # The same beginning is scored alike, whatever follows, and whoever has read it.
        self.assertEqual(records[0]["log_probs"][:20], records[1]["log_probs"])

    def test_an_interrupted_call_is_gone_on_with(self):
        lines = [{"text": "abc" * (n + 1), "sample": "the input's own"} for n in range(20)]
        records, shown = self.scored(lines)
        path = self.own / "scores.jsonl"
        whole = path.read_text()
        path.write_text(whole[: whole.index("\n", len(whole) // 2) + 9])
        again, shown_again = self.scored(lines)
        self.assertEqual(again, records)
        self.assertEqual(shown_again["scored_tokens"], shown["scored_tokens"])
        self.assertAlmostEqual(shown_again["perplexity"], shown["perplexity"])
        generates = ["--input", self.own / "prompts.jsonl", "--output", path]
        self.written([{"prompt": "a"}])
        message = self.refused("generate", "--model", self.model, *generates)
        mentions(message, "score was true", "--overwrite")

    def test_lines_that_cannot_be_scored_are_refused_with_their_number(self):
        for line, named in (
            ({"prompt": "a"}, "completion"),
            ({"text": "a"}, "1 tokens"),
            ({"messages": [{"role": "user", "content": "a"}]}, "a reply"),
            ({"text": "ab", "ids": []}, '"ids"'),
            ({"text": "a" * (POSITIONS + 1)}, f"{POSITIONS + 1} tokens"),
        ):
            path = self.written([{"text": "ab"}, line])
            mentions(self.refused(*self.call()), f"{path}:2: ", named)
            self.assertFalse((self.own / "scores.jsonl").exists())
        result = run(*self.call("--skip-bad"))
        self.assertEqual(json.loads(result.stdout)["records"], 1)
        mentions(result.stderr, "skipped 1 line")

    def test_options_about_answers_are_refused(self):
        self.written([{"text": "ab"}])
        for option in (["--samples", "2"], ["--temperature", "0.5"], ["--max-new-tokens", "3"], ["--stop", "x"],
                       ["--filtered-log-probs"]):  # fmt: skip
            mentions(self.refused(*self.call(*option)), option[0], "--score")
        mentions(self.refused("generate", "--model", self.model, "--prompt", "a", "--score"), "--output")


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
        self.assertRegex(log, r"\b2 turns\b.*forgotten")
        self.assertRegex(log, r"left out: .*\b70 tokens.*\b56\b.*\b64 positions.*\b8\b.*--max-new-tokens")
        message = self.refused("chat", "--model", small, "--max-new-tokens", "64")
        mentions(message, "--max-new-tokens 64", "64 positions")

    def test_a_template_that_rewrites_answers_is_told_of_once(self):
        forgets = TEMPLATE.replace("{{ m.content }}", "{{ m.content if loop.last or m.role == 'user' else '-' }}")
        model = write_model(self.own / "forgets", chat_template=forgets)
        _, log = self.chat("a\nb\nc\n", "--allowed-tokens", LETTERS, model=model)
        self.assertRegex(log, "chat_template .*reply 1 ")
        self.assertEqual(log.count("chat_template"), 1)

    def test_a_model_without_a_template_is_refused_unless_told_what_to_do(self):
        plain = write_model(self.own / "plain", chat_template=None)
        message = self.refused("chat", "--model", plain)
        self.assertIn(str(plain), message)
        mentions(message, "--template", "--raw")
        letters = ["--allowed-tokens", LETTERS, "--temperature", "0", "--max-new-tokens", "8"]
        raw = self.chat("hi\n", "--raw", *letters, model=plain)[0].strip()
        ask = ["generate", "--model", plain, *letters, "--prompt"]
        self.assertEqual(raw, run(*ask, "hi").stdout.strip())
        text = self.chat("hi\n", "--template", "human_assistant", *letters, model=plain)[0].strip()
        self.assertEqual(text, run(*ask, " Human: hi Assistant:").stdout.strip())
        message = self.refused("chat", "--model", plain, "--template", "human_assistant", "--system", "S")
        mentions(message, "--system: turn 1 ")

    def test_ctrl_c_ends_an_answer_and_not_the_chat(self):
        model = write_model(self.own / "long", max_position_embeddings=50000)
        options = ["--max-new-tokens", "40000", "--ignore-eos", "--allowed-tokens", LETTERS]
        process = subprocess.Popen(
            [tdock, "chat", "--model", model, *options],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        self.addCleanup(process.kill)
        process.stdin.write(b"hi\n")
        process.stdin.flush()
        begin = os.read(process.stdout.fileno(), 1)
        process.send_signal(signal.SIGINT)
        rest = process.stdout.readline()
        self.assertLess(len(begin + rest), 40000)
        process.stdin.write(b"quit\n")
        process.stdin.flush()
        _, log = process.communicate(timeout=LONG)
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
        process.wait(timeout=LONG)
        shown = b""
        try:
            while more := os.read(terminal, 1000):
                shown += more
        except OSError:  # the end, on Linux
            pass
        self.assertEqual(shown.count(b"Enter input ("), 2, shown)
        self.assertIn(rb"\x1b\x1b", shown)
        self.assertNotIn(b"\x1b", shown)


if __name__ == "__main__":
    tdock = str(pathlib.Path(sys.argv.pop(1)).resolve())
    unittest.main()
