"""Reward programs that are made from Python functions, as real processes that get the protocol's lines."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import sys

import pytest

from line_programs import LineProgram, as_text, package
from messages import mentions
from waiting import LONG, NEVER

ROOT = pathlib.Path(os.environ["TDOCK_SOURCE"])
REWARDS = ROOT / "python/transfer_dock/rewards.py"
AS_TEXT = [sys.executable, "-c", as_text("rewards")]  # as tdock starts it


class Program(LineProgram):
    """A reward program that has said hello."""

    def __init__(self, *command: object, columns: list[str] = [], cwd: pathlib.Path | None = None) -> None:
        super().__init__(*command, hello={"columns": columns}, cwd=cwd)
        self.batch = 6

    def ask(self, *samples: dict) -> None:
        self.batch += 1
        self.send({"type": "score", "batch": self.batch, "samples": list(samples)})

    def scores(self, *samples: dict) -> list[dict]:
        """In the order of the samples; each is answered once."""
        self.ask(*samples)
        answers: dict[int, dict] = {}
        while len(answers) < len(samples):
            message = self.read()
            assert (message["type"], message["batch"]) == ("scores", self.batch)
            for answer in message["scores"]:
                assert answer["sample"] not in answers
                answers[answer.pop("sample")] = answer
        return [answers[sample["sample"]] for sample in samples]


def sample(number: int, completion: str, truth: str = "", **others: object) -> dict:
    return {
        "sample": number, "prompt": "2+2=", "completion": completion, "finished": True, "truth": truth,
        "source": "sums", "columns": {}, **others,
    }  # fmt: skip


def talking(text: str) -> list[dict]:
    return [{"role": "user", "content": text}]


@pytest.fixture
def program(tmp_path: pathlib.Path):
    """Starts the function `f` of a file of this text."""
    started: list[Program] = []

    def start(text: str, columns: list[str] = [], name: str = "f") -> Program:
        (tmp_path / "mine.py").write_text(text)
        started.append(Program(*AS_TEXT, f"mine.py:{name}", columns=columns, cwd=tmp_path))
        return started[-1]

    yield start
    for one in started:
        one.__exit__()


def only_note(said: str) -> str:
    """The one line that a program writes about how it calls its function."""
    (line,) = said.splitlines()
    assert line.startswith("note: "), line
    return line


def refused(tmp_path: pathlib.Path, text: str, name: str) -> str:
    (tmp_path / "mine.py").write_text(text)
    hello = '{"type":"hello","protocol":1,"columns":["extra"]}\n'
    done = subprocess.run(
        [*AS_TEXT, f"mine.py:{name}"], cwd=tmp_path, input=hello, capture_output=True, text=True, timeout=LONG
    )
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    return done.stderr


# ---- TRL ----


def test_a_function_of_trl_gets_lists_and_the_kept_columns_as_its_data_set_had_them(program):
    trl = program(
        """
import json
def f(completions, prompts, answer, difficulty: list[int], raw: list[str], steps, **kwargs):
    assert prompts == ["2+2="] * 2, prompts
    assert difficulty == [3, None] and raw == ["[1]", ""] and steps == [["a", {"b": 1}], "{no json"], (raw, steps)
    assert kwargs["data_source"] == ["kept", "kept"] and kwargs["solution"] == ["4", "4"], kwargs
    assert not {"prompt", "completion", "sample"} & kwargs.keys()
    return [float(c == a) if c else None for c, a in zip(completions, answer)]
""",
        ["answer", "difficulty", "raw", "steps", "data_source", "prompt"],
    )
    assert trl.hello == {"type": "hello", "protocol": 1, "name": "f"}
    columns = [
        {"answer": "4", "difficulty": "3", "raw": "[1]", "steps": '["a", {"b": 1}]', "data_source": "kept"},
        {"answer": "4", "difficulty": "", "raw": "", "steps": "{no json", "data_source": "kept"},
    ]
    kept = [sample(i, text, "4", columns=one) for i, (text, one) in enumerate(zip(["4", ""], columns))]
    assert trl.scores(*kept) == [{"score": 1.0}, {"score": None}]
    mentions(only_note(trl.end()), "reward function 'f' (mine.py:3)", "lists", "batch", "the parameter completions")


def test_conversations_are_lists_of_messages_unless_the_annotation_says_texts(program):
    messages = talking("2+2=")
    body = """
    assert all(isinstance(c, kind) for c in completions) and all(isinstance(p, kind) for p in prompts)
    return [len(c) if kind is str else len(c[0]["content"]) for c in completions]
"""
    for head, kind, told in (
        ("prompts, completions", "list", messages),
        ("prompts, completions", "str", None),
        ("prompts: list[str], completions: list[str]", "str", messages),
        ("prompts: list[list[dict]], completions: 'list[list[dict[str, str]]]'", "list", None),
    ):
        trl = program(f"kind = {kind}\ndef f({head}):" + body)
        assert trl.scores(sample(0, "four", messages=told)) == [{"score": 4.0}], head


def test_what_a_function_of_trl_logs_becomes_messages_and_parts(program):
    trl = program("""
async def f(completions, log_extra=None, log_metric=None):
    log_extra("length", [len(c) for c in completions])
    log_metric("batches", True)
    return (1 for _ in completions)
""")
    logged = {"score": 1.0, "parts": {"batches": 1.0}}
    assert trl.scores(sample(4, "ab"), sample(2, "c")) == [
        logged | {"message": "length: 2"},
        logged | {"message": "length: 1"},
    ]


def test_the_truth_has_the_name_that_a_function_gives_it_and_options_keep_their_defaults(program):
    trl = program("""
def f(completions, solution, answer: list[float], label=None, target="mine", **kwargs):
    assert (solution, answer, label, target) == (["4"], [4.0], ["4"], "mine"), (solution, answer, label, target)
    return [1]
""")
    assert trl.scores(sample(0, "4", "4")) == [{"score": 1.0}]


def test_a_batch_that_raises_is_scored_sample_by_sample(program):
    trl = program("""
def check(text):
    if text == "bad":
        raise KeyError("no such thing")

def f(completions):
    for completion in completions:
        check(completion)
    return [2.0] * len(completions)
""")
    good, bad, other = trl.scores(sample(3, "a"), sample(5, "bad"), sample(6, "b"))
    assert good == other == {"score": 2.0}
    assert bad["error"] == (
        "reward function 'f', sample 5: KeyError: 'no such thing' (mine.py:4, in check: raise KeyError(\"no such thing\"))"
    )


@pytest.mark.parametrize(
    ("returned", "names"),
    [
        ("float('nan')", ["a score", "finite", "nan"]),
        ("-float('inf')", ["a score", "finite", "-inf"]),
        ("10 ** 400", ["a score", "finite", "10000000"]),
        ("'1'", ["a score", "'1' (str)"]),
        ("[1]", ["a score", "[1] (list)"]),
        ("{'acc': 1}", ["a dict", "'score'", "acc"]),
    ],
)
def test_what_is_no_score_is_an_error_of_that_sample(program, returned, names):
    trl = program(f"def f(completions): return [{returned} if c == 'bad' else 1 for c in completions]")
    bad, good = trl.scores(sample(0, "bad"), sample(1, "fine"))
    assert good == {"score": 1.0}
    mentions(bad["error"], "reward function 'f', sample 0", *names)


RIGHT = ["mine.py:", "one score", "solution_str"]


@pytest.mark.parametrize(
    ("returned", "names"),
    [
        ("[1.0]", ["1 score for 16 samples", *RIGHT]),
        ("[]", ["0 scores for 16 samples", *RIGHT]),
        ("[1.0] * 17", ["17 scores for 16 samples", *RIGHT]),
        ("(1.0, 2.0)", ["2 scores for 16 samples", *RIGHT]),
        ("(1.0 for _ in range(3))", ["3 scores for 16 samples", *RIGHT]),
        ("itertools.count()", ["at least 17 scores for 16 samples", *RIGHT]),
        ("1.0", ["1.0 (float)", "16 samples", *RIGHT]),
        ("True", ["True (bool)", "16 samples", *RIGHT]),
        ("None", ["None (NoneType)", "16 samples", *RIGHT]),
        ("'1' * 16", ["(str)", "16 samples", *RIGHT]),
        ("{'score': [1.0] * 16, 'format': [1.0] * 3}", ["(dict)", "16 samples", *RIGHT]),
        ("set(range(16))", ["(set)", "16 samples", *RIGHT]),
        ("endless()", ["(async_generator)", "16 samples", *RIGHT]),
        ("numpy.float64(1)", ["1.0 (float)", "16 samples", *RIGHT]),
        ("numpy.ones((1, 16))", ["1 score for 16 samples", *RIGHT]),
        ("numpy.ones((16, 1))", ["sample 0", "a score", "[1.0] (list)", "mine.py:"]),
        ("numpy.ones((16, 2))", ["sample 0", "a score", "[1.0, 1.0] (list)", "mine.py:"]),
        ("['1'] * 16", ["sample 0", "a score", "'1' (str)", "mine.py:"]),
        ("[float('nan')] * 16", ["sample 0", "finite", "nan", "mine.py:"]),
        ("[[1.0]] * 16", ["sample 0", "a score", "[1.0] (list)", "mine.py:"]),
        ("[{'score': [1.0, 2.0]}] * 16", ["sample 0", "a score", "[1.0, 2.0] (list)", "mine.py:"]),
        ("[1j] * 16", ["sample 0", "a score", "(complex)", "mine.py:"]),
        ("log_extra('seen', [1])", ["'seen'", "1 values for 16 samples", "mine.py:"]),
    ],
)
def test_a_batch_without_a_score_for_each_sample_is_an_error_and_no_second_call(program, returned, names):
    samples = [sample(number, "a") for number in range(16)]
    # Alone, each sample would get its score.
    trl = program(f"""
import itertools, numpy
calls = 0
async def endless():
    while True: yield 1.0
def f(completions, log_extra):
    global calls
    calls += 1
    return {returned} if calls == 1 else [1.0] * len(completions)
""")
    for number, answer in enumerate(trl.scores(*samples)):
        assert (sorted(answer), answer["retry"]) == (["error", "retry"], False)
        mentions(answer["error"], f"reward function 'f', sample {number}")
        mentions(answer["error"].replace(f"sample {number}:", "sample 0:"), *names)
    assert trl.scores(*samples) == [{"score": 1.0}] * 16  # the second call
    only_note(trl.end())


def test_a_sample_whose_values_cannot_be_read_fails_alone(program):
    trl = program("def f(completions, level: list[int]): return [len(completions)] * len(completions)", ["level"])
    samples = [sample(number, "", columns={"level": level}) for number, level in enumerate(["1", "one", "3"])]
    first, bad, last = trl.scores(*samples)
    assert first == last == {"score": 2.0}  # the others are scored together
    mentions(bad["error"], "reward function 'f', sample 1", "column 'level'", "int", "'one'")
    assert bad["retry"] is False
    deep = program("def f(completions, deep): return [len(text) for text in deep]", ["deep"])
    assert deep.scores(sample(0, "", columns={"deep": "[" * 100_000})) == [{"score": 100_000.0}]


def test_the_calls_after_an_exception_are_noted_once(program):
    trl = program("""
def f(completions):
    if "bad" in completions: raise ValueError("so")
    return [len(completions)] * len(completions)
""")
    for _ in range(2):
        good, bad = trl.scores(sample(0, "a"), sample(1, "bad"))
        assert good == {"score": 1.0}
        assert "ValueError: so (mine.py:3" in bad["error"] and "retry" not in bad
    _, note = trl.end().splitlines()
    mentions(note, "note: ", "'f'", "ValueError", "2 samples", "alone")


def test_numbers_of_other_packages_are_scores(program):
    trl = program("""
import decimal, fractions, numpy
def f(completions):
    scores = [numpy.float32(0.5), numpy.int64(2), numpy.bool_(True), numpy.array([3.0]), numpy.array(4),
              decimal.Decimal("0.25"), fractions.Fraction(1, 4), True, 7]
    return scores[:len(completions)]
""")
    scores = trl.scores(*(sample(number, "") for number in range(9)))
    assert [score["score"] for score in scores] == [0.5, 2, 1, 3, 4, 0.25, 0.25, 1, 7]
    array = program("import numpy\ndef f(completions): return numpy.arange(len(completions))")
    assert [score["score"] for score in array.scores(sample(0, ""), sample(1, ""))] == [0, 1]


# ---- verl ----


def test_a_function_of_verl_gets_one_sample_at_once(program):
    verl = program(
        """
def f(data_source, solution_str, ground_truth, extra_info, tests: list, index: int, **kwargs):
    assert (data_source, index, tests) == ("sums", 7, [[1, 2]]), (data_source, index, tests)
    assert extra_info["split"] == "train" and extra_info["num_turns"] is None and kwargs == {}, (extra_info, kwargs)
    if solution_str == "raise":
        return 1 / 0
    right = solution_str == ground_truth
    return {"score": right, "acc": right, "pred": solution_str, "bad": float("nan")}
""",
        ["extra_info", "tests", "index"],
    )
    columns = {"extra_info": '{"split": "train"}', "tests": "[[1,2]]", "index": "7"}
    right, raised, wrong = verl.scores(*(sample(i, c, "4", columns=columns) for i, c in enumerate(["4", "raise", "5"])))
    assert right == {"score": 1.0, "parts": {"acc": 1.0}, "message": "pred: 4; bad: nan"}
    assert wrong == {"score": 0.0, "parts": {"acc": 0.0}, "message": "pred: 5; bad: nan"}
    mentions(raised["error"], "reward function 'f', sample 1", "ZeroDivisionError", "(mine.py:6, in f: return 1 / 0)")
    mentions(only_note(verl.end()), "reward function 'f' (mine.py:2)", "one sample", "parameter solution_str")


def test_a_score_is_sent_as_soon_as_it_is_there(program, tmp_path):
    verl = program("""
import os, time
def f(solution_str, ground_truth):
    while solution_str == "wait" and not os.path.exists("go"):
        time.sleep(0.005)
    return 1
""")
    verl.ask(sample(0, "first"), sample(1, "wait"))
    assert verl.read()["scores"] == [{"sample": 0, "score": 1.0}]
    (tmp_path / "go").touch()
    assert verl.read()["scores"] == [{"sample": 1, "score": 1.0}]


def test_coroutines_of_verl_run_together_in_one_loop(program):
    verl = program("""
import asyncio
arrived = None
async def f(solution_str, ground_truth):
    global arrived
    arrived = arrived or asyncio.Barrier(3)
    await arrived.wait()
    if solution_str == "bad":
        raise ValueError("late")
    return {"score": len(solution_str)}
""")
    for _ in range(2):
        one, bad, two = verl.scores(sample(0, "a"), sample(1, "bad"), sample(2, "bb"))
        assert (one, two) == ({"score": 1.0}, {"score": 2.0})
        assert "ValueError: late (mine.py:9, in f" in bad["error"]


def test_a_function_of_verl_in_batches(program):
    verl = program(
        """
def f(data_sources, solution_strs, ground_truths, extra_infos, **kwargs):
    assert data_sources == ["sums"] * len(solution_strs) and not kwargs
    return [{"score": s == t, "hard": e["hard"]} for s, t, e in zip(solution_strs, ground_truths, extra_infos)]
""",
        ["extra_info"],
    )
    columns = {"extra_info": '{"hard": 2}'}
    scored = verl.scores(sample(0, "4", "4", columns=columns), sample(1, "4", "4"))
    assert scored[0] == {"score": 1.0, "parts": {"hard": 2.0}}
    assert "sample 1: KeyError: 'hard'" in scored[1]["error"]


def test_an_object_or_list_of_texts_is_a_truth_but_an_interval_stays_text(program):
    verl = program("def f(solution_str, ground_truth): return {'score': 1, 'kind': type(ground_truth).__name__}")
    truths = ["4", '{"target": ["a"]}', '["yes", "oui"]', "[0, 1]", "[]", "{1, 2}"]
    kinds = [score["message"] for score in verl.scores(*(sample(i, "", truth) for i, truth in enumerate(truths)))]
    assert kinds == [f"kind: {kind}" for kind in ("str", "dict", "list", "str", "str", "str")]


def test_no_score_at_all_is_an_error_in_this_style(program):
    (answer,) = program("def f(solution_str, ground_truth): pass").scores(sample(0, ""))
    mentions(answer["error"], "reward function 'f', sample 0", "a score", "None (NoneType)")


# ---- what else may be named ----


def test_objects_classes_and_several_functions(program):
    text = """
import functools
class Length:
    def __init__(self, most=3): self.most = most
    def __call__(self, completions, **kwargs): return [float(len(c) <= self.most) for c in completions]
def right(solution_str, ground_truth, score=1.0):
    if solution_str == "bad": raise ValueError("so")
    return score if solution_str == ground_truth else 0
instance = Length(2)
partial = functools.partial(right, score=5)
several = {"short": instance, "right": partial, "none": lambda completions: [None] * len(completions)}
"""
    answers = {"Length": 1.0, "instance": 0.0, "partial": 5.0}
    for name, score in answers.items():
        assert program(text, name=name).scores(sample(0, "444", "444")) == [{"score": score}], name
    good, bad = program(text, name="several").scores(sample(0, "44", "44"), sample(1, "bad"))
    assert good == {"score": 6.0, "parts": {"short": 1.0, "right": 5.0}}
    assert bad["error"].startswith("reward function 'right', sample 1: ValueError: so (mine.py:7, in right")


def test_a_script_of_ones_own_serves_its_function(tmp_path):
    (tmp_path / "own.py").write_text("""
from transfer_dock import rewards
print("printed before")
rewards.serve(lambda completions: [len(c) for c in completions], name="length")
""")
    with Program("env", "-u", "PYTHONUNBUFFERED", sys.executable, tmp_path / "own.py") as own:
        assert own.hello["name"] == "length"
        assert own.scores(sample(0, "abc")) == [{"score": 3.0}]
        printed, note = own.end().splitlines()
        assert printed == "printed before"
        mentions(note, "'length' (own.py:4)", "the parameter completions")


@pytest.mark.parametrize("how", [["-m", "transfer_dock.rewards"], [str(REWARDS)]])
def test_the_ways_to_start_it(tmp_path, how):
    # Neighbours of the file can be imported; those of rewards.py cannot, one of which is called like a package.
    (tmp_path / "neighbour.py").write_text("LENGTH = 3")
    (tmp_path / "calendar.py").write_text("""
import datetime, importlib.util
from neighbour import LENGTH
assert importlib.util.find_spec("stages") is None
def f(completions): return [LENGTH] * len(completions)
""")
    with Program(sys.executable, *how, tmp_path / "calendar.py:f") as program:
        assert program.scores(sample(0, "")) == [{"score": 3.0}]
        program.end()


def test_a_module_that_is_installed_may_be_named(tmp_path):
    (tmp_path / "installed.py").write_text("def f(completions): return [9]")
    with Program("env", f"PYTHONPATH={tmp_path}", *AS_TEXT, "installed:f") as program:
        assert program.scores(sample(0, "")) == [{"score": 9.0}]


def test_it_needs_no_package_and_fits_into_an_argument(tmp_path):
    assert len(AS_TEXT[-1].encode()) < 100_000
    (tmp_path / "mine.py").write_text("def f(completions): return [1]")
    bare = [sys.executable, "-I", "-S", *AS_TEXT[1:]]
    with Program(*bare, tmp_path / "mine.py:f") as program:
        assert program.scores(sample(0, "")) == [{"score": 1.0}]


# ---- output, the end, and errors before the first score ----


def test_nothing_that_is_printed_disturbs_the_protocol(program):
    chatty = program("""
import ctypes, multiprocessing, os, subprocess, sys
print("while imported")
def f(completions):
    print("print")
    sys.__stdout__.write("stdout"); sys.__stdout__.flush()
    os.write(1, b"descriptor")
    ctypes.CDLL(None).puts(b"from C")
    ctypes.CDLL(None).fflush(None)
    subprocess.run(["echo", "child"])
    child = multiprocessing.get_context("fork").Process(target=print, args=("forked", sys.stdin.read()))
    child.start(); child.join()
    return [1.0]
""")
    assert chatty.scores(sample(0, "")) == [{"score": 1.0}]
    told = chatty.end()
    for text in ("while imported", "print", "stdout", "descriptor", "from C", "child", "forked"):
        assert text in told


def test_any_text_goes_through(program):
    text = 'Grö\0ße \U0001f600 "\\\n\u2028' + "x" * 3_000_000
    trl = program("def f(completions, log_extra): log_extra('of', completions); return [len(c) for c in completions]")
    (answer,) = trl.scores(sample(0, text))
    assert answer["score"] == len(text)
    assert answer["message"].startswith("of: Grö\0ße \U0001f600") and len(answer["message"]) == 2000
    broken = program("def f(completions): raise ValueError('half \\ud83d')")
    assert "ValueError: half ?" in broken.scores(sample(0, ""))[0]["error"]


def test_parts_have_a_bound(program):
    verl = program("def f(solution_str, ground_truth): return {'score': 1} | {f'p{i}': i for i in range(80)}")
    (answer,) = verl.scores(sample(0, ""))
    assert len(answer["parts"]) == 64
    mentions(answer["message"], "16 parts", "64")


def test_ctrl_c_and_the_end_of_its_input_end_it_quietly(program, tmp_path):
    text = f"import time\ndef f(solution_str, ground_truth):\n    time.sleep({NEVER} * (solution_str == 'long'))\n    return 1"
    waiting = program(text)
    waiting.ask(sample(0, ""), sample(1, "long"))
    waiting.read()
    waiting.process.send_signal(signal.SIGINT)
    output, errors = waiting.process.communicate(timeout=LONG)
    assert (waiting.process.returncode, output) == (130, b"")
    only_note(errors.decode())
    only_note(program(text).end())
    assert subprocess.run([*AS_TEXT, "mine.py:f"], cwd=tmp_path, stdin=subprocess.DEVNULL, timeout=LONG).returncode == 0


@pytest.mark.parametrize(
    ("text", "name", "names"),
    [
        ("def accuracy(completions): ...", "acuracy", ["mine.py", "'acuracy'", "accuracy?"]),
        ("def one(): ...\ndef two(): ...", "f", ["mine.py", "'f'", "one, two"]),
        ("import missing_package", "f",
         ["mine.py", "ModuleNotFoundError", "'missing_package'", "(mine.py:1: import missing_package)"]),
        ("\ndef f(:", "f", ["mine.py", "SyntaxError", "(mine.py, line 2)"]),
        ("raise SystemExit(3)", "f", ["mine.py", "SystemExit: 3 (mine.py:1: raise SystemExit(3))"]),
        ("f = 3", "f", ["'f'", "is 3", "called"]),
        ("def f(text): ...", "f", ["'f(text)'", "parameters", "(completions, …)"]),
        ("def f(completions, /): ...", "f", ["reward function 'f(completions, /)'", "keyword"]),
        ("class f:\n    def __init__(self, x): ...", "f", ["'f'", "a class", "arguments"]),
        ("f = {}", "f", ["a dict", "1 to 64", "not 0"]),
        ("def f(completions, level, **kwargs): ...", "f",
         ["reward function 'f'", "'level'", "data.keep", "(kept: extra)"]),
        ("def f(completions, completion_ids, trainer_state=None): ...", "f",
         ["reward function 'f'", "'completion_ids'", "not sent"]),
        ("def f(completions, trainer_state): ...", "f", ["reward function 'f'", "'trainer_state'", "not sent"]),
    ],
)  # fmt: skip
def test_what_cannot_be_a_reward_is_refused_with_the_reason(tmp_path, text, name, names):
    mentions(refused(tmp_path, text, name), *names)


def test_what_is_no_file_is_refused(tmp_path):
    for which, names in (
        ("none.py:f", ["no file", "none.py"]),
        ("mine.py", ["'mine.py'", "FILE.py:NAME", "MODULE:NAME"]),
        ("no_such_module:f", ["no_such_module", "ModuleNotFoundError"]),
    ):
        done = subprocess.run([*AS_TEXT, which], cwd=tmp_path, capture_output=True, text=True, timeout=LONG)
        assert done.returncode == 2, done.stderr
        mentions(done.stderr, *names)


def test_what_does_not_follow_the_protocol_is_refused(tmp_path):
    (tmp_path / "mine.py").write_text("def f(completions): return [1]")
    hello = '{"type":"hello","protocol":1,"columns":[]}\n'
    for sent, names in (
        ('{"type":"hello","protocol":2}\n', ["hello", "protocol 1"]),
        ("what\n", ["not JSON"]),
        (hello + "[]\n", ["object", "[]"]),
        (hello + '{"type":"score","batch":"a"}\n', ["message", "samples"]),
        (hello + '{"type":"score","batch":1,"samples":[{"prompt":""}]}\n', ["sample", "number"]),
        (hello + '{"type":"score","batch":1,"samples":[{"sample":3,"prompt":4}]}\n', ["sample 3", "'prompt'", "text", "4"]),
        (hello + " " * (16 << 20) + "\n", ["line", "16 MiB"]),
    ):
        done = subprocess.run(
            [*AS_TEXT, "mine.py:f"], cwd=tmp_path, input=sent, capture_output=True, text=True, timeout=LONG
        )
        assert done.returncode == 2, done.stderr
        mentions(done.stderr, *names)


# ---- functions of TRL and verl themselves ----


COMPLETIONS = ["<think>a\nb</think>c", "c", "<think>a</think>", "one two one two one two"]


def test_the_functions_of_trl_score_as_they_do_when_called(tmp_path):
    python = ROOT / ".venv-oracle/bin/python"
    (tmp_path / "trls.py").write_text("""
from trl.rewards import get_repetition_penalty_reward, get_soft_overlong_punishment, think_format_reward
repetition = get_repetition_penalty_reward(2)
overlong = get_soft_overlong_punishment(20, 15)
""")
    direct = """
import json, sys, trls
completions = json.loads(sys.argv[1])
ids = [[ord(c) for c in text] for text in completions]
turns = [[{"role": "assistant", "content": text}] for text in completions]
print(json.dumps([trls.think_format_reward(turns), trls.repetition(ids), trls.overlong(ids)]))
"""
    told = subprocess.run(
        [python, "-c", direct, json.dumps(COMPLETIONS)], cwd=tmp_path, capture_output=True, text=True, timeout=LONG
    )
    expected = json.loads(told.stdout)
    assert all(len(set(scores)) > 1 for scores in expected)
    # Their token ids are a kept column here.
    samples = [
        sample(i, text, messages=talking("?"), columns={"completion_ids": json.dumps([ord(c) for c in text])})
        for i, text in enumerate(COMPLETIONS)
    ]
    for name, scores in zip(("think_format_reward", "repetition", "overlong"), expected):
        columns = ["completion_ids"]
        with Program(python, *AS_TEXT[1:], f"{tmp_path}/trls.py:{name}", columns=columns) as program:
            assert [answer["score"] for answer in program.scores(*samples)] == scores, name
    with Program(python, *AS_TEXT[1:], "trl.rewards:think_format_reward") as program:
        assert [answer["score"] for answer in program.scores(*samples)] == expected[0]


VERL = {
    "gsm8k": [("so #### 1,072", "1072"), ("#### 5", "4"), ("none", "4")],
    "math_reward": [(r"thus \boxed{\frac12}", r"\frac{1}{2}"), (r"\boxed{3}", "4"), ("none", "4")],
    "math_dapo": [("Answer: 42", "42"), ("Answer: 41", "42"), ("none", "4")],
    "search_r1_like_qa_em": [("<answer>Bonn</answer>", '{"target": ["Bonn", "Berlin"]}'), ("x", '{"target": ["Bonn"]}')],
}


@pytest.mark.parametrize("name", VERL)
def test_the_functions_of_verl_score_as_they_do_when_called(name):
    file = package(".venv-templates", f"verl/utils/reward_score/{name}.py")
    direct = f"""
import importlib.util, json, sys
spec = importlib.util.spec_from_file_location("scored", {str(file)!r})
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
pairs = [(c, json.loads(t) if t[0] == "{{" else t) for c, t in json.loads(sys.argv[1])]
print("\\n" + json.dumps([module.compute_score(c, t) for c, t in pairs]))
"""
    told = subprocess.run(
        [sys.executable, "-c", direct, json.dumps(VERL[name])], capture_output=True, text=True, timeout=LONG
    )
    expected = json.loads(told.stdout.splitlines()[-1])
    with Program(*AS_TEXT, f"{file}:compute_score") as program:
        answers = program.scores(*(sample(i, c, truth) for i, (c, truth) in enumerate(VERL[name])))
        for answer, score in zip(answers, expected):
            if isinstance(score, dict):
                assert answer["parts"]["acc"] == score["acc"]
                score = score["score"]
            assert answer["score"] == score
        program.end()
    assert len({answer["score"] for answer in answers}) == 2


# ---- the examples ----


def test_the_functions_of_the_example():
    samples = [sample(0, "33", "33"), sample(1, "343", "33")]
    file = ROOT / "examples/python-reward/my_rewards.py"
    with Program(*AS_TEXT, f"{file}:digits") as digits, Program(*AS_TEXT, f"{file}:compute_score") as whole:
        assert digits.scores(*samples) == [{"score": 1.0}, {"score": 0.5}]
        assert whole.scores(*samples) == [
            {"score": 1.0, "parts": {"too_long": 0.0}},
            {"score": 0.0, "parts": {"too_long": 1.0}},
        ]


@pytest.mark.parametrize(
    ("command", "name", "scores"),
    [(["perl", "digits.pl"], "digits", [1, 0.5, 0]), (["sh", "short.sh", "3"], "short", [1, 1, 0])],
)
def test_the_programs_in_other_languages(command, name, scores):
    tricky = {"completion": '"sample":9,"completion":"x', "type": '}],"type":"hello"'}
    samples = [
        sample(0, "33", "33", columns=tricky), sample(4, '3"\n', "3333\n\n"[:2], messages=talking("\\")),
        sample(5, '"sample":7', "a", columns=tricky),
    ]  # fmt: skip
    with Program(*command, columns=list(tricky), cwd=ROOT / "examples/reward-programs") as program:
        assert program.hello == {"type": "hello", "protocol": 1, "name": name}
        for _ in range(2):
            assert [answer["score"] for answer in program.scores(*samples)] == scores
        assert program.end() == ""
