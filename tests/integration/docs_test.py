"""Holds README.md, CONTRIBUTING.md, ARCHITECTURE.md and docs/*.md against the project: generated parts are up to date, the
commands, options, keys, files, links and targets of make that a page names exist, and numbers that it quotes are those of the source.

usage: docs_test.py TDOCK"""

import json
import math
import pathlib
import re
import struct
import subprocess
import sys
import tempfile
import unittest

from quoted_numbers import COUNTS, number

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "ARCHITECTURE.md", "SECURITY.md")] + sorted((ROOT / "docs").glob("*.md"))
FOLDERS = "src|docs|tests|scripts|examples|bench|cmake|include|python/transfer_dock|packaging"
# Of other systems, and names with dots that are no keys: weights, files of weights, columns of data.
FOREIGN_FILES = ("tests/ut/", "tests/test-chat-template.cpp")
NO_KEYS = ("model.layers.", "model.safetensors", "reward_model.")
TDOCK = None


def code(text):
    """[(line, code)] of the code on a page: between backticks, in fences, and in indented blocks. Lines that end with \\ are joined."""
    found, fenced = [], False
    for number, line in enumerate(re.sub(r"\\\n\s*", " ", text).splitlines(), 1):
        if line.startswith("```"):
            fenced = not fenced
        elif fenced or line.startswith("    "):
            found.append((number, line.strip()))
        else:
            found += [(number, each) for each in re.findall(r"`([^`]+)`", line)]
    return found


def anchors(text):
    """The names by which links reach the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def expanded(name):
    """["a.c", "b.c"] of "{a,b}.c"."""
    part = re.search(r"\{([^}]*)\}", name)
    if not part:
        return [name]
    return [each for word in part[1].split(",") for each in expanded(name.replace(part[0], word, 1))]


def foreign_keys():
    """The keys of other systems that string literals of trainer/recipes name."""
    files = ("field_names.cc", "foreign_keys.cc", "foreign_values.cc", "trl_names.cc")
    source = "".join((ROOT / "src/trainer/recipes" / name).read_text() for name in files)
    literals = re.findall(r'"([^"\n]+)"', re.sub(r'"\s+"', "", source))
    names = [name.partition("=")[0] for literal in literals for name in literal.split()]
    return {key for name in names for key in expanded(name) if re.fullmatch(r"[a-z_]+\.[\w.]+", key)}


class Help:
    """The commands of `tdock`, with their options, as --help prints them."""

    def __init__(self):
        self.texts = {}

    def text(self, *words):
        if words not in self.texts:
            shown = subprocess.run([TDOCK, *words, "--help"], capture_output=True, text=True)
            self.texts[words] = shown.stdout if shown.returncode == 0 else ""
        return self.texts[words]

    def subcommands(self, *words):
        listed = self.text(*words).partition("Subcommands:")[2]
        return set(re.findall(r"^  (\S+)", listed, re.MULTILINE))

    def problem(self, call):
        """The problem of the call of a command, `tdock WORDS…`, or None."""
        words, own = call.split()[1:], ()
        while words and words[0] in self.subcommands(*own):
            own, words = (*own, words[0]), words[1:]
        if not own:
            return f"no command {words[0]}"
        for option in re.findall(r"(?<!\S)(--[a-z][a-z_-]*)", " ".join(words).partition(" -- ")[0]):
            if not re.search(rf"(?<![\w-]){option}(?![\w-])", self.text(*own)):
                return f"tdock {' '.join(own)} has no option {option}"
        return None


class DocsTest(unittest.TestCase):
    maxDiff = None

    @classmethod
    def setUpClass(cls):
        cls.texts = {page: page.read_text() for page in PAGES}

    def each(self, problem_of):
        """Fails with all that `problem_of` says of code on a page."""
        problems = []
        for page, text in self.texts.items():
            for number, each in code(text):
                problems += [f"{page.relative_to(ROOT)}:{number}: {problem}" for problem in problem_of(each)]
        self.assertEqual([], problems)

    def test_generated_parts_are_up_to_date(self):
        script = [sys.executable, ROOT / "scripts/generate_docs.py", "--check", pathlib.Path(TDOCK).parent]
        checked = subprocess.run(script, capture_output=True, text=True)
        self.assertEqual(0, checked.returncode, checked.stderr)

    def test_links_lead_somewhere(self):
        problems = []
        for page, text in self.texts.items():
            for target in re.findall(r"\]\(([^)\s]+)\)", text):
                path, _, anchor = target.partition("#")
                if re.match(r"[a-z]+:", target):
                    continue
                file = (page.parent / path).resolve() if path else page
                if not file.exists():
                    problems.append(f"{page.name}: {target}: no file")
                elif anchor and file.suffix == ".md" and anchor not in anchors(file.read_text()):
                    problems.append(f"{page.name}: {target}: no heading")
        self.assertEqual([], problems)

    def test_commands_and_their_options_exist(self):
        commands = Help()
        self.assertIn("train", commands.subcommands())
        self.assertIn("no option", commands.problem("tdock train --nonsense"))
        self.assertIn("no command", commands.problem("tdock nonsense"))

        def problems(each):
            calls = re.findall(r"(?:^|[\s;&|`])(?:build/release/)?(tdock [a-z]+(?=[\s`]|$)[^|;&>`]*)", each)
            return [problem for problem in map(commands.problem, calls) if problem]

        self.each(problems)

    def test_keys_exist(self):
        keys = set(re.findall(r"^\| `([\w.]+)` \|", subprocess.run([TDOCK, "train", "--keys"], capture_output=True, text=True).stdout, re.MULTILINE))
        self.assertGreater(len(keys), 200)
        foreign = foreign_keys()
        sections = {key.partition(".")[0] for key in keys if "." in key}

        def problems(each):
            given = re.findall(r"(?<![\w./:@-])([a-z_]+(?:\.[a-z_0-9]+)+)(?==|$|[\s:,])", each)
            for key in given:
                known = key in keys | foreign or any(other.startswith(key + ".") for other in keys | foreign)
                if key.partition(".")[0] in sections and not known and not key.startswith(NO_KEYS):
                    yield f"no key {key}"

        self.each(problems)

    def test_files_exist(self):
        def problems(each):
            for path in re.findall(rf"(?<![\w./…-])((?:{FOLDERS})/[\w./-]*\w)(?![\w…*<{{/])", each):
                if not (ROOT / path).exists() and not list(ROOT.glob(path + ".*")) and not path.startswith(FOREIGN_FILES):
                    yield f"no file {path}"

        self.each(problems)

    def test_targets_of_make_and_presets_exist(self):
        targets = set(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
        presets = {each["name"] for each in json.loads((ROOT / "CMakePresets.json").read_text())["configurePresets"]}

        def problems(each):
            for target in re.findall(r"(?:^|&& )make ([a-z][\w-]*)", each):
                if target not in targets:
                    yield f"no target {target} of make"
            for preset in re.findall(r"--preset ([a-z]+)", each):
                if preset not in presets:
                    yield f"no preset {preset}"

        self.each(problems)

    def test_numbers_are_those_of_the_source(self):
        problems = []
        for page, pattern, file, constant in COUNTS:
            quoted = re.findall(pattern.replace(" ", r"\s+"), self.texts[ROOT / page])
            defined = re.findall(constant, (ROOT / file).read_text())
            if not quoted or len(defined) != 1:
                problems.append(f"{page}: {pattern}: {quoted}; {file}: {constant}: {defined}")
                continue
            problems += [f"{page}: {each}; {file}: {defined[0]}" for each in quoted if {*map(number, defined)} != {number(each)}]
        self.assertEqual([], problems)

    def test_recipes_are_counted(self):
        made = re.findall(r"^    \{.*Make\w+Recipe\},$", (ROOT / "src/trainer/recipes/recipes.cc").read_text(), re.MULTILINE)
        told = re.search(r"(\w+) recipes exist", self.texts[ROOT / "docs/training.md"])[1]
        self.assertEqual(number(told), len(made))

    def test_weights_of_the_demo_are_counted(self):
        """From a checkpoint of one step, because `tdock preflight` prints their bytes only."""
        with tempfile.TemporaryDirectory() as folder:
            data = pathlib.Path(folder) / "runs/arithmetic"
            subprocess.run([sys.executable, ROOT / "examples/arithmetic/make_data.py", data], check=True)
            steps = ["trainer.total_training_steps=1", "trainer.test_freq=0", "trainer.val_max_samples=16"]
            trained = subprocess.run([TDOCK, "train", ROOT / "examples/arithmetic/sft.yaml", *steps], cwd=folder, capture_output=True, text=True)
            self.assertEqual(0, trained.returncode, trained.stderr)
            weights = (data / "sft/checkpoint/model.safetensors").read_bytes()
        (size,) = struct.unpack("<Q", weights[:8])
        tensors = json.loads(weights[8 : 8 + size])
        count = sum(math.prod(tensor["shape"]) for name, tensor in tensors.items() if name != "__metadata__")
        told = re.search(r"with ([\d,]+) weights", self.texts[ROOT / "README.md"])[1]
        self.assertEqual(number(told), count)


if __name__ == "__main__":
    TDOCK = str(pathlib.Path(sys.argv.pop(1)).resolve())
    unittest.main()
