#!/usr/bin/env python3
"""The `tdock` command as a user meets it: tests/integration/cli_test.py TDOCK"""

import json
import os
import pathlib
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

from messages import mentions
from waiting import LONG, until

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
EXAMPLE = "examples/arithmetic/grpo.yaml"
SHORT = [
    "data.train_batch_size=8", "actor.ppo_mini_batch_size=4", "rollout.n=4", "trainer.total_training_steps=2",
]  # fmt: skip
tdock = None


def run(*arguments, **options):
    return subprocess.run([tdock, *arguments], cwd=ROOT, capture_output=True, text=True, **options)


class CommandLine(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.shared = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.shared.cleanup)
        shared = pathlib.Path(cls.shared.name)
        subprocess.run(["python3", "examples/arithmetic/make_data.py", shared], cwd=ROOT, check=True)
        cls.data = [f"data.train_files={shared}/train.jsonl", f"data.val_files={shared}/validation.jsonl"]
        cls.base = shared / "sft/checkpoint"
        cls.supervised = run(
            "train", "examples/arithmetic/sft.yaml", "--run-dir", str(shared / "sft"), *cls.data,
            "model.hidden_size=32", "model.num_hidden_layers=2", "trainer.total_training_steps=2",
        )  # fmt: skip
        cls.trained = shared / "run"
        cls.training = cls.train_example(cls.trained, "--seed", "3")

    def setUp(self):
        self.parent = tempfile.TemporaryDirectory()
        self.addCleanup(self.parent.cleanup)
        self.folder = pathlib.Path(self.parent.name) / "run"

    @classmethod
    def train_example(cls, folder, *arguments, **options):
        own = ["--run-dir", str(folder), *cls.data, f"model.path={cls.base}", *SHORT]
        return run("train", EXAMPLE, *own, *arguments, **options)

    def refused(self, *arguments):
        """The message of a call that must be refused with exit code 2 and leave nothing behind."""
        result = run(*arguments)
        self.assertEqual(result.returncode, 2, result.stderr)
        self.assertEqual(result.stdout, "")
        self.assertFalse(self.folder.exists())
        self.assertNotIn("Exception", result.stderr)
        return result.stderr

    def train_refused(self, *overrides):
        own = ["--run-dir", str(self.folder), *self.data, f"model.path={self.base}"]
        return self.refused("train", EXAMPLE, *own, *overrides)

    def test_help_lists_every_command_and_option(self):
        text = run("--help").stdout
        for command in ("init", "preflight", "train", "launch", "generate", "chat", "serve", "tokenize", "merge", "runs",
                        "bench"):  # fmt: skip
            self.assertIn(command, text)
            self.assertEqual(run(command, "--help").returncode, 0)
        self.assertIn("--run-dir", run("train", "--help").stdout)
        self.assertIn("--max-new-tokens", run("generate", "--help").stdout)
        mentions(run("init", "--help").stdout, "sft, rm, dpo, ppo, grpo, dapo", "--environment", "--reward-function")
        self.assertRegex(run("--version").stdout, r"\d+\.\d+\.\d+")

    def test_dock_is_the_executable_beside_it(self):
        self.assertIn("dock", run("--help").stdout)
        self.assertIn("serve", run("dock", "--help").stdout)
        self.assertIn("--drain", run("dock", "serve", "--help").stdout)

    def test_a_command_without_its_executable_says_where_it_belongs(self):
        alone = pathlib.Path(self.parent.name).resolve() / "tdock"
        shutil.copy(tdock, alone)
        page = ["train", "--page", ":0", str(ROOT / EXAMPLE)]
        for call, executable in (
            (["dock", "status"], "dock"), (["bench", "--list"], "bench"), (["serve"], "serve"), (["runs", "list"], "runs"),
            (["launch"], "launch"), (page, "launch"),
        ):  # fmt: skip
            result = subprocess.run([alone, *call], capture_output=True, text=True, timeout=LONG)
            self.assertEqual(result.returncode, 2, call)
            mentions(result.stderr, f"tdock {call[0]}: ", f"{alone}-{executable}", f"libexec/tdock-{executable}")

    def test_a_command_of_another_executable_keeps_the_process(self):
        socket = pathlib.Path(self.parent.name) / "dock.sock"
        served = subprocess.Popen(
            [tdock, "dock", "serve", "--listen", "none", "--socket", socket], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        self.addCleanup(served.wait, LONG)
        self.addCleanup(served.kill)
        until(socket.exists, "the socket")
        self.assertEqual(os.readlink(f"/proc/{served.pid}/exe"), str(pathlib.Path(f"{tdock}-dock").resolve()))
        served.terminate()
        self.assertEqual(served.wait(LONG), 0)

    def test_unknown_keys_are_refused_with_the_nearest_known_one(self):
        message = self.train_refused("rollout.temprature=1", "trainer.total_steps=3")
        self.assertIn("rollout.temprature", message)
        self.assertIn("rollout.temperature?", message)
        self.assertIn("trainer.total_steps", message)

    def test_a_mistyped_command_or_option_is_named_with_the_nearest_one(self):
        mentions(self.refused("trian", EXAMPLE), "trian", "train?")
        mentions(self.refused("train", EXAMPLE, "--run-dri", "x"), "--run-dri", "--run-dir?")

    def test_a_key_with_dashes_is_shown_without_them(self):
        message = self.refused("train", EXAMPLE, "--rollout.n=16")
        mentions(message, "without dashes: rollout.n=16")

    def test_training_without_a_configuration_shows_an_example(self):
        mentions(self.refused("train"), "train sft.yaml")

    def test_keys_of_verl_are_known_and_those_without_meaning_skipped_if_asked(self):
        foreign = ["actor_rollout_ref.rollout.n=0", "trainer.nnodes=2", "trainer.what=1"]
        message = self.train_refused(*foreign)
        self.assertIn('actor_rollout_ref.rollout.n (rollout.n here): "0" given', message)
        self.assertRegex(message, "trainer.nnodes: .*--lenient")
        self.assertIn("trainer.what: unknown key", message)
        message = self.train_refused("--lenient", *foreign)
        self.assertIn("actor_rollout_ref.rollout.n (rollout.n here)", message)
        mentions(message, "command line: trainer.nnodes: skipped", "command line: trainer.what: skipped")

    def test_wrong_types_and_values_are_named_together(self):
        message = self.train_refused("rollout.n=many", "actor.optim.lr=-1", "actor.kl_loss_type=k9", "seed=1.5")
        for key in ("rollout.n", "actor.optim.lr", "actor.kl_loss_type", "seed"):
            self.assertIn(key, message)

    def test_twenty_mistakes_are_one_report(self):
        values = {
            "seed": "x", "threads": "-1", "data.train_batch_size": "0", "data.max_prompt_length": "-1",
            "data.max_response_length": "0", "data.shuffle": "maybe", "data.val_share": "2", "data.seeed": "1",
            "data.num_workers": "x", "actor.ppo_mini_batch_size": "-1", "actor.clip_ratio_low": "7",
            "actor.kl_loss_type": "k9", "actor.kl_loss_coef": "-1", "actor.optim.lr": "-1", "rollout.n": "0",
            "actor.optim.lr_warmup_steps": "q", "rollout.temprature": "1", "rollout.temperature": "-2",
            "trainer.test_freq": "-5", "model.lora_rank": "-1",
        }  # fmt: skip
        self.assertEqual(len(values), 20)
        lines = self.train_refused(*(f"{key}={value}" for key, value in values.items())).splitlines()
        for key in values:
            self.assertTrue(any(f" {key}: " in line for line in lines), f"{key}: {lines}")

    def preflight(self, *arguments):
        return run("preflight", EXAMPLE, *self.data, f"model.path={self.base}", *SHORT, *arguments)

    def test_a_preflight_tells_what_a_run_will_do_and_writes_nothing(self):
        result = self.preflight("--run-dir", str(self.folder), "--probe=2")
        self.assertEqual(result.returncode, 0, result.stderr)
        for expected in (
            "8,744 samples, all read", "256 samples", "8,744 samples (100.0 %)", "of prompts; ",
            "of 8 tokens (data.max_prompt_length)", "⟦at most 8 tokens, generated⟧", "right answer: ",
            "reference", "optimizer state", " available", "probe: 8 answers to 2 prompts", "equal rewards",
        ):  # fmt: skip
            self.assertIn(expected, result.stdout)
        self.assertFalse(self.folder.exists())

    def test_a_preflight_marks_what_is_trained_on(self):
        sizes = ["model.hidden_size=32", "model.num_hidden_layers=2"]
        result = run("preflight", "examples/arithmetic/sft.yaml", *self.data, *sizes)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertRegex(result.stdout, r"\| \d+\+\d+=⟦\d+<eos>⟧\n")
        self.assertRegex(result.stdout, r"82,944 tokens, 30,480 \(36\.7 %\) trained on")

    def test_a_preflight_is_refused_as_training_is(self):
        self.assertIn("unknown key", self.refused("preflight", EXAMPLE, "trainer.what=1", "rollout.n=0"))
        result = self.preflight("data.max_prompt_length=3")
        self.assertEqual(result.returncode, 2)
        mentions(result.stderr, "data.max_prompt_length (3 tokens)")
        mentions(self.refused("preflight", "examples/arithmetic/sft.yaml", "--probe", *self.data), "--probe", "recipe sft")
        self.assertIn("--probe", self.refused("preflight", EXAMPLE, "--probe=0"))

    def test_training_tells_what_its_preflight_found(self):
        self.assertRegex(self.training.stderr, r"8,744 samples [a-z ]*, 256 ")
        self.assertRegex(self.training.stderr, r"[\d.]+ [KMG]iB\b.*memory")
        self.assertRegex(self.training.stderr, r"32 answers to 8 prompts .*: mean reward [\d.]+, [\d.]+ % .* [\d.]+ % empty\n")

    def test_a_reward_that_nothing_can_get_is_refused(self):
        prompts = pathlib.Path(self.parent.name) / "prompts.jsonl"
        prompts.write_text("".join(f'{{"prompt": "{n}+1="}}\n' for n in range(200)))
        message = self.train_refused(f"data.train_files={prompts}")
        mentions(message, prompts, "200 samples", "(exact", "data.columns.truth", "reward.function")

    def test_an_empty_option_is_a_value_not_an_absent_one(self):
        for option, key in (("--seed", "seed"), ("--device", "device"), ("--threads", "threads")):
            self.assertIn(f'command line: {key}: "" given', self.train_refused(option, ""))

    def test_output_that_cannot_be_written_is_an_error(self):
        model = str(self.trained / "checkpoint")
        for call in (["generate", "--model", model, "--prompt", "1"], ["train", "--keys"], ["--help"]):
            with open("/dev/full", "w") as full:
                result = subprocess.run([tdock, *call], stdout=full, stderr=subprocess.PIPE, text=True, timeout=LONG)
            self.assertEqual(result.returncode, 1, call)
            mentions(result.stderr, "standard output")

    def test_a_mini_batch_that_does_not_divide_is_refused(self):
        mentions(self.train_refused("actor.ppo_mini_batch_size=33"), "actor.ppo_mini_batch_size", "data.train_batch_size", "32")

    def test_missing_files_are_named(self):
        self.assertIn("/nonexistent.yaml", self.refused("train", "/nonexistent.yaml"))
        self.assertIn("config", self.refused("train"))
        self.assertIn("no folder /nonexistent with a model", self.refused("generate", "--model", "/nonexistent", "--prompt", "1"))

    def model_refused(self, spoil):
        """What train and generate say about a copy of a good model that `spoil` was called on."""
        model = pathlib.Path(self.parent.name) / "model"
        shutil.copytree(self.trained / "checkpoint", model)
        spoil(model)
        own = pathlib.Path(self.parent.name) / "own.yaml"
        own.write_text(f"recipe: grpo\nmodel: {{path: {model}}}\ndata: {{max_prompt_length: 8, max_response_length: 8}}\n")
        message = self.refused("train", str(own), "--run-dir", str(self.folder), *self.data)
        self.assertIn(str(model), message)
        self.assertIn(message.split(": ", 1)[1], self.refused("generate", "--model", str(model), "--prompt", "1"))
        shutil.rmtree(model)
        return message

    def test_an_unreadable_model_is_refused(self):
        def replace_by_a_folder(path):
            path.unlink()
            path.mkdir()

        def truncate(path):
            path.write_bytes(path.read_bytes()[:-1000])

        other = '{"model_type": "mamba"}'
        self.assertIn("'mamba' is not", self.model_refused(lambda m: (m / "config.json").write_text(other)))
        self.assertIn("config.json", self.model_refused(lambda m: replace_by_a_folder(m / "config.json")))
        self.assertIn("model.safetensors", self.model_refused(lambda m: truncate(m / "model.safetensors")))
        self.assertIn("tokenizer.json", self.model_refused(lambda m: (m / "tokenizer.json").unlink()))
        self.assertIn("not JSON", self.model_refused(lambda m: truncate(m / "tokenizer.json")))

    def pair_tokenizer(self):
        """A folder with a tokenizer of "a" 0, "b" 1, "ab" 2, " " 3 and the special token "<|end|>" 4."""
        end = {"id": 4, "content": "<|end|>", "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
        vocab = {"a": 0, "b": 1, "ab": 2, " ": 3}
        folder = pathlib.Path(self.parent.name) / "tokenizer"
        folder.mkdir()
        tokenizer = {
            "added_tokens": [end | {"special": True}],
            "decoder": {"type": "Fuse"},
            "model": {"type": "BPE", "vocab": vocab, "merges": ["a b"]},
        }
        (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
        return str(folder)

    def test_lines_become_ids_and_lines_again(self):
        model = self.pair_tokenizer()
        encoded = run("tokenize", "--model", model, input="ab ba\n\nb")
        self.assertEqual((encoded.returncode, encoded.stdout), (0, "[2, 3, 1, 0]\n[]\n[1]\n"), encoded.stderr)
        decoded = run("tokenize", "--model", model, "--decode", input=encoded.stdout)
        self.assertEqual((decoded.returncode, decoded.stdout), (0, "ab ba\n\nb\n"), decoded.stderr)

        parsed = run("tokenize", "--model", model, "--spelled-special", "parse", input="a<|end|>")
        self.assertEqual(parsed.stdout, "[0, 4]\n")
        for options, text in (((), "a<|end|>\n"), (("--skip-special-tokens",), "a\n")):
            decoded = run("tokenize", "--model", model, "--decode", *options, input=parsed.stdout)
            self.assertEqual(decoded.stdout, text)

    def test_tokenize_says_which_line_is_wrong(self):
        model = self.pair_tokenizer()
        for options, line, said in (
            ([], "a<|end|>", 'the special token "<|end|>" at position 1'),
            ([], "abc", "position 2"),
            (["--decode"], "[0, 5]", "5"),
            (["--decode"], "[0, -1]", "JSON"),
            (["--decode"], "0", "JSON"),
        ):
            result = run("tokenize", "--model", model, *options, input=f"{'[0]' if options else 'a'}\n{line}\n")
            self.assertEqual(result.returncode, 1, line)
            self.assertEqual(len(result.stdout.splitlines()), 1, "what came before is answered")
            self.assertIn("line 2: ", result.stderr)
            self.assertIn(said, result.stderr)

    def test_tokenize_names_a_bad_folder(self):
        self.assertIn("no folder /nonexistent with a model", self.refused("tokenize", "--model", "/nonexistent"))
        model = self.pair_tokenizer()
        (pathlib.Path(model) / "tokenizer.json").write_text('{"model": {"type": "WordPiece"}}')
        message = self.refused("tokenize", "--model", model)
        self.assertIn(f"{model}: tokenizer.json", message)
        self.assertIn("WordPiece", message)

    def test_sizes_beside_a_model_are_refused(self):
        self.assertRegex(self.train_refused("model.hidden_size=32"), r"model\.hidden_size: .*model\.path")

    def test_a_run_directory_that_cannot_be_made_is_refused(self):
        blocked = pathlib.Path(self.parent.name) / "file"
        blocked.write_text("data")
        for folder in (str(blocked / "run"), "/proc/run"):
            message = self.refused("train", EXAMPLE, *self.data, f"model.path={self.base}", "--run-dir", folder)
            self.assertIn(folder.removesuffix("/run"), message)

    def test_a_configuration_that_is_a_folder_is_refused(self):
        self.assertIn(self.parent.name, self.refused("train", self.parent.name))

    def test_a_gpu_that_is_not_there_is_refused(self):
        self.assertIn("cuda:99", self.train_refused("device=cuda:99"))

    def test_a_folder_that_is_taken_is_refused(self):
        self.folder.mkdir()
        (self.folder / "precious").write_text("data")
        result = self.train_example(self.folder)
        self.assertEqual(result.returncode, 2)
        self.assertIn(str(self.folder), result.stderr)
        self.assertEqual([path.name for path in self.folder.iterdir()], ["precious"])

    def test_a_short_run_can_be_asked_questions(self):
        self.assertEqual(self.supervised.returncode, 0, self.supervised.stderr)
        self.assertEqual(self.training.returncode, 0, self.training.stderr)
        self.assertIn(str(self.trained / "report.html"), self.training.stdout)
        self.assertIn("seed: 3", (self.trained / "config.yaml").read_text())
        model = str(self.trained / "checkpoint")
        ask = ["generate", "--model", model, "--prompt", "37+85=", "--max-new-tokens", "8"]
        first, second = run(*ask, "--temperature", "0"), run(*ask, "--temperature", "0")
        self.assertEqual(first.returncode, 0, first.stderr)
        self.assertEqual(first.stdout, second.stdout)
        sampled = run(*ask, "--samples", "3", "--prompt", "00+00=", "--threads", "2").stdout
        self.assertEqual(len(sampled.splitlines()), 6)
        self.assertIn('"x" (U+0078)', self.refused_question(model, "x+1="))

    def answers(self, *options, model=None, prompts=("37+85=",)):
        """The answers of `tdock generate --json`."""
        ask = [word for prompt in prompts for word in ("--prompt", prompt)]
        result = run("generate", "--model", str(model or self.trained / "checkpoint"), *ask, "--json", *options)
        self.assertEqual(result.returncode, 0, result.stderr)
        return [json.loads(line) for line in result.stdout.splitlines()]

    def id_of(self, character):
        ids = run("tokenize", "--model", str(self.trained / "checkpoint"), input=character).stdout
        return json.loads(ids)[0]

    def test_help_lists_every_option_of_sampling(self):
        text = run("generate", "--help").stdout
        for option in (
            "logit-bias", "allowed-tokens", "repetition-penalty", "frequency-penalty", "presence-penalty",
            "temperature", "top-k", "top-p", "min-p", "seed", "max-new-tokens", "min-new-tokens", "ignore-eos",
            "stop-tokens", "stop", "json", "top-log-probs", "filtered-log-probs",
        ):  # fmt: skip
            self.assertRegex(text, rf"--{option}[ \n]")

    def test_answers_as_json_are_those_of_the_text(self):
        model = str(self.trained / "checkpoint")
        options = ["--samples", "2", "--max-new-tokens", "5", "--top-k", "6", "--seed", "4"]
        answers = self.answers(*options, "--top-log-probs", "3", prompts=("37+85=", "00+00="))
        plain = run("generate", "--model", model, "--prompt", "37+85=", "--prompt", "00+00=", *options).stdout
        self.assertEqual([answer["text"] for answer in answers], plain.splitlines())
        places = [(answer["prompt"], answer["sample"]) for answer in answers]
        self.assertEqual(places, [("37+85=", 0), ("37+85=", 1), ("00+00=", 0), ("00+00=", 1)])
        for answer in answers:
            self.assertIn(answer["finish_reason"], ("end_token", "length"))
            self.assertEqual(len(answer["ids"]), len(answer["log_probs"]))
            self.assertEqual(len(answer["ids"]), len(answer["top_log_probs"]))
            for top in answer["top_log_probs"]:
                self.assertEqual(len(top), 3)
                self.assertEqual(sorted(top, key=lambda one: -one["log_prob"]), top)
                self.assertEqual(set(top[0]), {"id", "token", "log_prob"})
        self.assertNotIn("top_log_probs", self.answers("--max-new-tokens", "1")[0])

    def test_answers_end_where_the_options_say(self):
        two = str(self.id_of("2"))
        only = ["--allowed-tokens", two, "--max-new-tokens", "3"]
        (answer,) = self.answers(*only)
        self.assertEqual((answer["text"], answer["finish_reason"]), ("222", "length"))
        self.assertLess(sum(answer["log_probs"]), 0)
        self.assertEqual(self.answers(*only, "--filtered-log-probs")[0]["log_probs"], [0, 0, 0])
        (answer,) = self.answers(*only, "--stop", "x", "--stop", "22")
        self.assertEqual((answer["text"], answer["finish_reason"], len(answer["ids"])), ("", "stop", 2))
        (answer,) = self.answers(*only, "--stop", "22", "--min-new-tokens", "3")
        self.assertEqual((answer["text"], answer["finish_reason"]), ("2", "stop"))
        (answer,) = self.answers(*only, "--stop-tokens", two)
        self.assertEqual((answer["text"], answer["finish_reason"]), ("2", "stop"))
        biased = ["--logit-bias", f"{two}:100,{self.id_of('3')}:-1.5", "--max-new-tokens", "4"]
        self.assertEqual(self.answers(*biased, "--temperature", "0")[0]["text"], "2222")
        penalised = self.answers(*biased, "--temperature", "0", "--presence-penalty", "200")[0]["text"]
        self.assertEqual(penalised[0], "2")
        self.assertNotIn("2", penalised[1:])

    def test_options_of_sampling_that_cannot_be_are_refused(self):
        ask = ["generate", "--model", str(self.trained / "checkpoint"), "--prompt", "1"]
        for options, names in (
            (["--top-p", "1.5"], ["top_p", "above 0", "at most 1", "1.5"]),
            (["--min-p", "-0.5"], ["min_p", "least 0", "below 1", "-0.5"]),
            (["--temperature", "nan"], ["temperature", "least 0", "nan"]),
            (["--allowed-tokens", "1,999"], ["allowed_tokens", "token 999", "vocabulary"]),
            (["--logit-bias", "five"], ['--logit-bias "five"', "5:-2.5"]),
            (["--logit-bias", "1:2", "--logit-bias", "1:3"], ["--logit-bias", "twice", "token 1"]),
            (["--stop", ""], ["stop", "empty"]),
            (["--top-log-probs", "2"], ["--json"]),
            (["--min-new-tokens", "200"], ["min_new_tokens", "max_new_tokens (128)", "200"]),
        ):
            mentions(self.refused(*ask, *options), *names)

    def test_answers_do_not_control_a_terminal(self):
        model = pathlib.Path(self.parent.name) / "model"
        shutil.copytree(self.trained / "checkpoint", model)
        two = self.id_of("2")
        tokenizer = json.loads((model / "tokenizer.json").read_text())
        vocab = tokenizer["model"]["vocab"]
        tokenizer["model"]["vocab"] = {("\x1b" if token == "2" else token): id for token, id in vocab.items()}
        (model / "tokenizer.json").write_text(json.dumps(tokenizer))
        ask = [tdock, "generate", "--model", model, "--prompt", "1+1=", "--allowed-tokens", str(two)]
        ask += ["--max-new-tokens", "2"]
        self.assertEqual(subprocess.run(ask, capture_output=True, timeout=LONG).stdout, b"\x1b\x1b\n")
        terminal, inside = os.openpty()
        self.assertEqual(subprocess.run(ask, stdout=inside, timeout=LONG).returncode, 0)
        self.assertEqual(os.read(terminal, 100), rb"\x1b\x1b" + b"\r\n")
        os.close(inside)
        os.close(terminal)

    def test_a_first_configuration_trains_as_it_is(self):
        data = self.data[0].removeprefix("data.train_files=")
        out = pathlib.Path(self.parent.name) / "first.yaml"
        call = ["init", "sft", "--model", str(self.base), "--data", data]
        written = run(*call, "--out", str(out))
        self.assertEqual(written.returncode, 0, written.stderr)
        self.assertEqual(written.stdout.splitlines()[-2:], [f"  tdock preflight {out}", f"  tdock train {out}"])
        self.assertEqual(run(*call).stdout, out.read_text())
        mentions(self.refused(*call, "--out", str(out)), out, "--out", "overwritten")
        result = run("train", str(out), "--run-dir", str(self.folder), "trainer.total_training_steps=1")
        self.assertEqual(result.returncode, 0, result.stderr)

    def refused_question(self, model, prompt):
        result = run("generate", "--model", model, "--prompt", prompt)
        self.assertEqual(result.returncode, 2, result.stderr)
        return result.stderr

    def test_a_full_disk_stops_the_run_and_keeps_what_was_written(self):
        limit = 8192  # bytes in one file: the metrics reach it
        result = self.train_example(
            self.folder, "trainer.total_training_steps=50",
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
        )  # fmt: skip
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertIn(str(self.folder / "metrics.jsonl"), result.stderr)
        text = (self.folder / "metrics.jsonl").read_text()
        for line in text[: text.rfind("\n")].splitlines():
            json.loads(line)

    def test_ctrl_c_ends_the_run_with_a_report(self):
        process = subprocess.Popen(
            [tdock, "train", EXAMPLE, "--run-dir", str(self.folder), *self.data, f"model.path={self.base}", *SHORT,
             "trainer.total_training_steps=100000"],
            cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.addCleanup(process.kill)
        metrics = self.folder / "metrics.jsonl"
        until(lambda: metrics.exists() and '"grpo"' in metrics.read_text(), "the first step of the run")
        process.send_signal(signal.SIGINT)
        _, message = process.communicate(timeout=LONG)
        self.assertEqual(process.returncode, 130, message)
        self.assertIn("interrupted", message)
        self.assertIn("interrupted", (self.folder / "report.html").read_text())


if __name__ == "__main__":
    tdock = str(pathlib.Path(sys.argv.pop(1)).resolve())
    unittest.main()
