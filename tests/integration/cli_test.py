#!/usr/bin/env python3
"""The `tdock` command as a user meets it: tests/integration/cli_test.py TDOCK"""

import json
import pathlib
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
EXAMPLE = "examples/arithmetic/grpo.yaml"
SHORT = [
    "model.hidden_size=32", "model.num_hidden_layers=2", "data.train_batch_size=8", "actor.ppo_mini_batch_size=4",
    "rollout.n=4", "warmup.max_steps=2", "warmup.target_accuracy=1", "trainer.total_training_steps=2",
]  # fmt: skip
tdock = None


def run(*arguments, **options):
    return subprocess.run([tdock, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=120, **options)


class CommandLine(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.shared = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.shared.cleanup)
        cls.trained = pathlib.Path(cls.shared.name) / "run"
        cls.training = run("train", EXAMPLE, "--run-dir", str(cls.trained), "--seed", "3", *SHORT)

    def setUp(self):
        self.parent = tempfile.TemporaryDirectory()
        self.addCleanup(self.parent.cleanup)
        self.folder = pathlib.Path(self.parent.name) / "run"

    def refused(self, *arguments):
        """The message of a call that must be refused with exit code 2 and leave nothing behind."""
        result = run(*arguments)
        self.assertEqual(result.returncode, 2, result.stderr)
        self.assertEqual(result.stdout, "")
        self.assertFalse(self.folder.exists())
        self.assertNotIn("Exception", result.stderr)
        return result.stderr

    def train_refused(self, *overrides):
        return self.refused("train", EXAMPLE, "--run-dir", str(self.folder), *overrides)

    def test_help_lists_every_command_and_option(self):
        text = run("--help").stdout
        for command in ("train", "generate", "tokenize", "bench"):
            self.assertIn(command, text)
            self.assertEqual(run(command, "--help").returncode, 0)
        self.assertIn("--run-dir", run("train", "--help").stdout)
        self.assertIn("--max-new-tokens", run("generate", "--help").stdout)
        self.assertRegex(run("--version").stdout, r"\d+\.\d+\.\d+")

    def test_dock_is_the_executable_beside_it(self):
        self.assertIn("dock", run("--help").stdout)
        self.assertIn("serve", run("dock", "--help").stdout)
        self.assertIn("--drain", run("dock", "serve", "--help").stdout)

    def test_dock_without_its_executable_says_where_it_belongs(self):
        alone = pathlib.Path(self.parent.name) / "tdock"
        shutil.copy(tdock, alone)
        result = subprocess.run([alone, "dock", "status"], capture_output=True, text=True, timeout=120)
        self.assertEqual(result.returncode, 2)
        self.assertIn(f"{alone}-dock", result.stderr)
        self.assertIn("libexec", result.stderr)

    def test_unknown_keys_are_refused_with_the_nearest_known_one(self):
        message = self.train_refused("rollout.temprature=1", "trainer.total_steps=3")
        self.assertIn("rollout.temprature", message)
        self.assertIn("did you mean rollout.temperature?", message)
        self.assertIn("trainer.total_steps", message)

    def test_wrong_types_and_values_are_named_together(self):
        message = self.train_refused("rollout.n=many", "actor.optim.lr=-1", "actor.kl_loss_type=k9", "seed=1.5")
        for key in ("rollout.n", "actor.optim.lr", "actor.kl_loss_type", "seed"):
            self.assertIn(key, message)

    def test_an_empty_option_is_a_value_not_an_absent_one(self):
        for option, key in (("--seed", "seed"), ("--device", "device"), ("--threads", "threads")):
            self.assertIn(f'command line: {key}: "" given', self.train_refused(option, ""))

    def test_output_that_cannot_be_written_is_an_error(self):
        model = str(self.trained / "checkpoint")
        for call in (["generate", "--model", model, "--prompt", "1"], ["train", "--keys"], ["--help"]):
            with open("/dev/full", "w") as full:
                result = subprocess.run([tdock, *call], stdout=full, stderr=subprocess.PIPE, text=True, timeout=120)
            self.assertEqual(result.returncode, 1, call)
            self.assertIn("cannot write to standard output", result.stderr)

    def test_a_mini_batch_that_does_not_divide_is_refused(self):
        self.assertIn("the mini-batch must divide the batch", self.train_refused("actor.ppo_mini_batch_size=33"))

    def test_missing_files_are_named(self):
        self.assertIn("/nonexistent.yaml", self.refused("train", "/nonexistent.yaml"))
        self.assertIn("config", self.refused("train"))
        self.assertIn("/nonexistent/tokenizer", self.refused("generate", "--model", "/nonexistent", "--prompt", "1"))

    def model_refused(self, spoil):
        """What train and generate say about a copy of a good model that `spoil` was called on."""
        model = pathlib.Path(self.parent.name) / "model"
        shutil.copytree(self.trained / "checkpoint", model)
        spoil(model)
        own = pathlib.Path(self.parent.name) / "own.yaml"
        own.write_text(f"model: {{path: {model}}}\n")
        message = self.refused("train", str(own), "--run-dir", str(self.folder))
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
            (["--decode"], "[0, -1]", "not a JSON list of token ids"),
            (["--decode"], "0", "not a JSON list of token ids"),
        ):
            result = run("tokenize", "--model", model, *options, input=f"{'[0]' if options else 'a'}\n{line}\n")
            self.assertEqual(result.returncode, 1, line)
            self.assertEqual(len(result.stdout.splitlines()), 1, "what came before is answered")
            self.assertIn("line 2: ", result.stderr)
            self.assertIn(said, result.stderr)

    def test_tokenize_names_a_bad_folder(self):
        self.assertIn("/nonexistent/tokenizer.json", self.refused("tokenize", "--model", "/nonexistent"))
        model = self.pair_tokenizer()
        (pathlib.Path(model) / "tokenizer.json").write_text('{"model": {"type": "WordPiece"}}')
        message = self.refused("tokenize", "--model", model)
        self.assertIn(f"{model}: tokenizer.json", message)
        self.assertIn("WordPiece", message)

    def test_sizes_beside_a_model_are_refused(self):
        message = self.train_refused("model.path=somewhere")
        self.assertIn("grpo.yaml:8: model.hidden_size: given together with model.path", message)

    def test_a_run_directory_that_cannot_be_made_is_refused(self):
        blocked = pathlib.Path(self.parent.name) / "file"
        blocked.write_text("data")
        self.assertIn(str(blocked), self.refused("train", EXAMPLE, "--run-dir", str(blocked / "run")))
        self.assertIn("/proc/run", self.refused("train", EXAMPLE, "--run-dir", "/proc/run"))

    def test_a_configuration_that_is_a_folder_is_refused(self):
        self.assertIn(self.parent.name, self.refused("train", self.parent.name))

    def test_a_gpu_that_is_not_there_is_refused(self):
        self.assertIn("cuda:99", self.train_refused("device=cuda:99"))

    def test_a_folder_that_is_taken_is_refused(self):
        self.folder.mkdir()
        (self.folder / "precious").write_text("data")
        result = run("train", EXAMPLE, "--run-dir", str(self.folder), *SHORT)
        self.assertEqual(result.returncode, 2)
        self.assertIn(str(self.folder), result.stderr)
        self.assertEqual([path.name for path in self.folder.iterdir()], ["precious"])

    def test_a_short_run_can_be_asked_questions(self):
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

    def refused_question(self, model, prompt):
        result = run("generate", "--model", model, "--prompt", prompt)
        self.assertEqual(result.returncode, 2, result.stderr)
        return result.stderr

    def test_a_full_disk_stops_the_run_and_keeps_what_was_written(self):
        limit = 4096  # bytes in one file: the metrics reach it
        result = run(
            "train", EXAMPLE, "--run-dir", str(self.folder), *SHORT, "trainer.total_training_steps=50",
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
        )  # fmt: skip
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertIn(str(self.folder / "metrics.jsonl"), result.stderr)
        text = (self.folder / "metrics.jsonl").read_text()
        for line in text[: text.rfind("\n")].splitlines():
            json.loads(line)

    def test_ctrl_c_ends_the_run_with_a_report(self):
        process = subprocess.Popen(
            [tdock, "train", EXAMPLE, "--run-dir", str(self.folder), *SHORT, "trainer.total_training_steps=100000"],
            cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.addCleanup(process.kill)
        metrics = self.folder / "metrics.jsonl"
        deadline = time.monotonic() + 60
        while not (metrics.exists() and '"grpo"' in metrics.read_text()):
            self.assertLess(time.monotonic(), deadline, "the run did not reach its first step")
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        _, message = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 130, message)
        self.assertIn("interrupted", message)
        self.assertIn("interrupted", (self.folder / "report.html").read_text())


if __name__ == "__main__":
    tdock = str(pathlib.Path(sys.argv.pop(1)).resolve())
    unittest.main()
