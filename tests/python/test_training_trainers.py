"""Trainers in Python: real runs of `tdock train` with tiny models, whose rewards and callbacks are functions here."""

from __future__ import annotations

import _thread
import asyncio
import contextlib
import json
import os
import pathlib
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from messages import mentions, raising
from test_guide import programs, run
from transfer_dock.run_folder import is_running
from waiting import LONG, ends, until

import transfer_dock as td
from transfer_dock.rewards import RewardError

TINY = {
    "model.alphabet": "0123456789>", "model.hidden_size": 32, "model.num_hidden_layers": 2, "threads": 1,
    "data.train_batch_size": 8,
}  # fmt: skip
SHORT = {"data.max_length": 16}
OF_ANSWERS = {"data.max_prompt_length": 8, "data.max_response_length": 8, "actor.ppo_mini_batch_size": 4, "rollout.n": 4}
PROMPTS = [{"prompt": f"{i:02}>", "answer": i, "colour": ["red", "blue"][i % 2]} for i in range(24)]
PAIRS = [{"prompt": f"{i:02}>", "chosen": f"{i:02}"[::-1], "rejected": "0"} for i in range(24)]


def config(folder: pathlib.Path, steps: int = 3, **keys: object) -> td.GRPOConfig:
    keys = {**TINY, **OF_ANSWERS, "trainer.total_training_steps": steps, **keys}
    return td.GRPOConfig(output_dir=str(folder / "out"), disable_tqdm=True, keys=keys)


def grpo(folder: pathlib.Path, rewards: Any, steps: int = 3, *, callbacks: Any = None, **keys: object) -> td.GRPOTrainer:
    return td.GRPOTrainer(reward_funcs=rewards, args=config(folder, steps, **keys), train_dataset=PROMPTS, callbacks=callbacks)


def digits(completions: list[str], **kwargs: object) -> list[float]:
    return [sum(c.isdigit() for c in text) / 8 for text in completions]


# ---- rewards ----


def test_rewards_are_called_here_with_the_values_of_the_data_set(tmp_path: pathlib.Path) -> None:
    seen: list[tuple[Any, ...]] = []
    processes: set[int] = set()

    def typed(completions: list[str], prompts: list[str], answer: list[Any], colour: list[str], **kwargs: object) -> list[float]:
        seen.extend(zip(prompts, answer, colour, strict=True))
        assert all(type(number) is int for number in answer)
        processes.add(os.getpid())
        return [float(len(text)) for text in completions]

    async def later(solution_str: str, ground_truth: str) -> float:
        await asyncio.sleep(0)
        return float(solution_str == ground_truth)

    trainer = grpo(tmp_path, [typed, later], **{"reward.program_weights": ["0.5", "2"]})
    ended = trainer.train()
    assert ended.global_step == 3 and not ended.interrupted
    assert processes == {os.getpid()}
    known = {(row["prompt"], row["answer"], row["colour"]) for row in PROMPTS}
    assert seen and set(seen) <= known
    for metrics in trainer.metrics[1:]:
        both = 0.5 * metrics["reward/typed/mean"] + 2 * metrics["reward/later/mean"]
        assert metrics["critic/score/mean"] == pytest.approx(both, abs=1e-6)
    assert [row["step"] for row in trainer.metrics] == [0, 1, 2, 3]
    assert trainer.state.log_history[-1]["reward"] == trainer.metrics[-1]["critic/score/mean"]


def test_what_a_reward_raises_comes_back_with_its_traceback(tmp_path: pathlib.Path) -> None:
    calls: list[int] = []

    def fragile(completions: list[str], **kwargs: object) -> list[float]:
        calls.append(len(completions))
        if len(calls) > 2:
            raise KeyError("mine")
        return [0.5] * len(completions)

    with pytest.raises(KeyError, match="mine") as caught:
        grpo(tmp_path, fragile).train()
    assert any(entry.name == "fragile" for entry in caught.traceback)
    mentions("".join(caught.value.__notes__), str(tmp_path / "out/run"))
    assert len(calls) == 3


WRONG: list[tuple[Callable[..., Any], type[BaseException], list[str]]] = [
    (lambda completions, **kwargs: [0.0] * (len(completions) - 1), td.TrainingError, ["scores for"]),
    (lambda completions, **kwargs: [float("nan")] * len(completions), td.TrainingError, ["finite"]),
    (lambda completions, size: [0.0] * len(completions), RewardError, ["'size'", "answer"]),
]


@pytest.mark.parametrize("number", range(len(WRONG)))
def test_a_wrong_reward_ends_the_run(tmp_path: pathlib.Path, number: int) -> None:
    function, kind, names = WRONG[number]
    with raising(kind, *names):
        grpo(tmp_path, function).train()


def test_a_function_that_is_no_reward_is_refused_at_once(tmp_path: pathlib.Path) -> None:
    with raising(RewardError, "x, y", "completions"):
        grpo(tmp_path, lambda x, y: 0.0)
    with raising(td.InvalidArgument, "reward_weights", "3", "1"):
        grpo(tmp_path, digits, **{"reward.function_weights": ["1", "2", "3"]}).train()
    with raising(td.InvalidArgument, "reward_funcs", "reward.function"):
        grpo(tmp_path, digits, **{"reward.function": ["mine.py:score"]}).train()
    assert not (tmp_path / "out/run").exists()


class Guess:
    """Says the number again until it is repeated."""

    def reset(self, answer: int, **kwargs: object) -> str:
        self.answer = answer
        return "0>"

    def get_reward(self) -> float:
        return float(self.answer % 2)


def test_an_environment_plays_here(tmp_path: pathlib.Path) -> None:
    keys = {"environment.format": "text", "environment.max_turns": 2, "data.max_response_length": 16}
    trainer = td.GRPOTrainer(environment=Guess, args=config(tmp_path, **keys), train_dataset=PROMPTS)
    trainer.train()
    for metrics in trainer.metrics[1:]:
        assert 0 <= metrics["reward/Guess/mean"] <= 1
    assert any(metrics["reward/Guess/std"] > 0 for metrics in trainer.metrics[1:])
    until(lambda: not any(thread.name == "environment" for thread in threading.enumerate()), "the end of its threads")


def test_a_function_in_a_file_and_one_here_have_their_weights(tmp_path: pathlib.Path) -> None:
    (tmp_path / "mine.py").write_text("def two(completions, **kwargs):\n    return [2.0] * len(completions)\n")
    trainer = grpo(tmp_path, [digits, f"{tmp_path}/mine.py:two", digits], **{"reward.function_weights": ["1", "3", "5"]})
    trainer.train()
    for metrics in trainer.metrics[1:]:
        expected = 6 * metrics["reward/digits/mean"] + 3 * metrics["reward/two/mean"]
        assert metrics["critic/score/mean"] == pytest.approx(expected, abs=1e-5)


# ---- callbacks, Ctrl-C, going on ----


class Notes(td.TrainerCallback):
    """What it was told, and when it stops the run."""

    def __init__(self, stop: int = 0) -> None:
        self.stop = stop
        self.events: list[str] = []

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.events.append("begin")

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        assert np.isfinite(kwargs["logs"]["reward"]) and threading.current_thread() is threading.main_thread()
        self.events.append("log")

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.events.append(f"evaluate {sorted(kwargs['metrics'])[0]}")

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        control.should_training_stop = state.global_step >= self.stop > 0

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.events.append("end")


def test_a_callback_is_told_of_steps_and_stops_a_run_that_goes_on_later(tmp_path: pathlib.Path) -> None:
    notes = Notes(stop=2)
    trainer = grpo(tmp_path, digits, 300, callbacks=[notes])
    stopped = trainer.train()
    assert stopped.interrupted and 2 <= stopped.global_step < 300
    assert notes.events[0] == "begin" and notes.events[-1] == "end"
    assert notes.events.count("log") == stopped.global_step
    assert (pathlib.Path(trainer.model_folder) / "model.safetensors").exists()

    with raising(td.FailedPrecondition, "resume_from_checkpoint", str(tmp_path / "out/run")):
        grpo(tmp_path, digits, 300).train()
    (checkpoint,) = (tmp_path / "out/run/checkpoints").glob("step-*")
    saved_at = int(checkpoint.name.split("-")[1])
    end = Notes(stop=stopped.global_step + 2)
    again = grpo(tmp_path, digits, 300, callbacks=[end])
    went_on = again.train(resume_from_checkpoint=True)
    assert went_on.interrupted and went_on.global_step > stopped.global_step
    assert end.events.count("log") == went_on.global_step - saved_at, "not of what it was told before"
    assert [row["step"] for row in again.metrics] == list(range(went_on.global_step + 1))

    again.callbacks = []
    trained = again.train(resume_from_checkpoint=str(sorted((tmp_path / "out/run/checkpoints").glob("step-*"))[0]))
    assert trained.global_step == 300 and not trained.interrupted
    assert [row["step"] for row in again.metrics] == list(range(301))


def test_ctrl_c_saves_and_returns(tmp_path: pathlib.Path) -> None:
    class Interrupts(td.TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == 2:
                _thread.interrupt_main()

    trainer = grpo(tmp_path, digits, 2000, callbacks=[Interrupts()])
    ended = trainer.train()
    assert ended.interrupted and 2 <= ended.global_step < 2000
    assert [row["step"] for row in trainer.metrics] == list(range(ended.global_step + 1))
    assert list((tmp_path / "out/run/checkpoints").glob("step-*"))


def test_what_a_callback_raises_ends_the_run_which_saves(tmp_path: pathlib.Path) -> None:
    class Fails(td.TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            raise ZeroDivisionError("of the callback")

    trainer = grpo(tmp_path, digits, 2000, callbacks=[Fails])
    with pytest.raises(ZeroDivisionError, match="of the callback"):
        trainer.train()
    assert list((tmp_path / "out/run/checkpoints").glob("step-*"))


ENDLESS = """
import sys
import transfer_dock as td
sys.path.insert(0, {tests!r})
from test_training_trainers import digits, grpo
import pathlib
class Tells(td.TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == 1: print("began", flush=True)
grpo(pathlib.Path(sys.argv[1]), digits, 100000, callbacks=[Tells]).train()
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_run_saves_and_ends_with_the_process_that_started_it(tmp_path: pathlib.Path, number: int) -> None:
    program = ENDLESS.format(tests=str(pathlib.Path(__file__).parent))
    with subprocess.Popen([sys.executable, "-c", program, tmp_path], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert ends(process.stdout.readline, "its line") == "began\n"
        process.send_signal(number)
        process.wait(LONG)
    until(lambda: not is_running(tmp_path / "out/run"), "the end of the run")
    assert list((tmp_path / "out/run/checkpoints").glob("step-*"))


def test_a_tracker_gets_the_steps(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = f"sqlite:///{tmp_path}/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    args = config(tmp_path)
    args.update({"report_to": ["mlflow"], "run_name": "mine"})
    td.GRPOTrainer(reward_funcs=digits, args=args, train_dataset=PROMPTS).train()
    with contextlib.closing(sqlite3.connect(tmp_path / "mlflow.db")) as database:
        assert database.execute("select name from runs").fetchall() == [("mine",)]
        steps = database.execute("select step from metrics where key = 'critic/score/mean' order by step").fetchall()
    assert steps == [(1,), (2,), (3,)]
    args.report_to = ["carrier_pigeon"]
    with raising(td.InvalidArgument, "carrier_pigeon", "mlflow"):
        td.GRPOTrainer(reward_funcs=digits, args=args, train_dataset=PROMPTS)


# ---- the other trainers ----


def test_each_trainer_trains_saves_and_validates(tmp_path: pathlib.Path) -> None:
    def made(kind: type, name: str, data: Any, given: Any, **more: Any) -> Any:
        args = given(output_dir=str(tmp_path / name), max_steps=3, disable_tqdm=True, keys={**TINY, **SHORT, **more.pop("keys", {})})
        return kind(args=args, train_dataset=data, eval_dataset=data[:8], **more)

    answers = [{"prompt": row["prompt"], "completion": row["chosen"]} for row in PAIRS]
    sft = made(td.SFTTrainer, "sft", answers, td.SFTConfig)
    before = sft.evaluate()
    ended = sft.train()
    assert ended.training_loss == pytest.approx(np.mean([row["train/loss"] for row in sft.metrics[1:]]))
    after = sft.evaluate()
    assert after["val/loss"] < before["val/loss"]
    assert sft.evaluate(answers[:8]) == pytest.approx(after) and sft.evaluate(answers[:4]) != pytest.approx(after)
    model = sft.save_model(str(tmp_path / "model"))
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= set(os.listdir(model))
    assert "state.json" not in os.listdir(model)

    begins = {"model.alphabet": None, "model.hidden_size": None, "model.num_hidden_layers": None}
    dpo = made(td.DPOTrainer, "dpo", PAIRS, td.DPOConfig, model=model, keys=begins)
    dpo.train()
    assert dpo.metrics[-1]["val/accuracy"] >= 0
    reward = made(td.RewardTrainer, "rm", PAIRS, td.RewardConfig, model=model, keys=begins)
    reward.train()
    ppo = made(
        td.PPOTrainer, "ppo", PROMPTS, td.PPOConfig, model=model, reward_funcs=reward.model_folder,
        keys=begins | {"data.max_length": None} | {key: OF_ANSWERS[key] for key in ("data.max_prompt_length", "data.max_response_length")},
    )  # fmt: skip
    assert ppo.train().global_step == 3
    with raising(td.InvalidArgument, "ref_model"):
        td.DPOTrainer(model, "another", train_dataset=PAIRS)


def test_wrong_arguments_are_named(tmp_path: pathlib.Path) -> None:
    with raising(TypeError, "train_datasets", "train_dataset"):
        td.SFTTrainer("model", train_datasets=PROMPTS)
    with raising(td.InvalidArgument, "data_collator"):
        td.SFTTrainer("model", train_dataset=PROMPTS, data_collator=object())
    with raising(td.InvalidArgument, "train_dataset"):
        td.SFTTrainer("model")
    with raising(td.InvalidArgument, "model"):
        td.SFTTrainer(train_dataset=PROMPTS)
    with raising(td.InvalidArgument, "args", "grpo", "SFTConfig"):
        td.SFTTrainer("model", td.GRPOConfig(), train_dataset=PROMPTS)
    with raising(td.InvalidArgument, "quantization_config", "model_init_kwargs"):
        td.SFTTrainer("model", {"model_init_kwargs": {"quantization_config": 4}}, train_dataset=PROMPTS)
    with raising(td.InvalidArgument, "tools", "get_reward"):
        td.GRPOTrainer("model", digits, train_dataset=PROMPTS, tools=[digits])
    with raising(td.InvalidArgument, "reward_funcs", "environment"):
        td.GRPOTrainer("model", digits, train_dataset=PROMPTS, environment=Guess)
    with raising(td.InvalidArgument, "ref_model"):
        td.PPOTrainer("model", digits, train_dataset=PROMPTS, ref_model="another")
    with raising(td.FailedPrecondition, "call train()"):
        grpo(tmp_path, digits).save_model()


def test_the_guide_trains_and_chats(tmp_path: pathlib.Path) -> None:
    sys.path.append(os.path.join(os.environ["TDOCK_SOURCE"], "tests/integration"))
    from generate_test import write_model

    write_model(tmp_path / "my-model", max_position_embeddings=2048)
    told = run(programs("docs/python.md")[0], tmp_path).splitlines()
    assert told[0].split()[0] == "2", "the step before training, and one for all 16 prompts"
    assert 0 <= float(told[0].split()[1]) <= 1 and len(told) > 1


def test_the_readme_trains_and_chats(tmp_path: pathlib.Path) -> None:
    sys.path.append(os.path.join(os.environ["TDOCK_SOURCE"], "tests/integration"))
    from generate_test import write_model

    (tmp_path / "HuggingFaceTB").mkdir()
    write_model(tmp_path / "HuggingFaceTB/SmolLM2-135M-Instruct", max_position_embeddings=2048)
    assert run(programs("README.md")[0], tmp_path)
    assert (tmp_path / "runs/sums/run/checkpoint/model.safetensors").exists()


# ---- data sets ----


def lines(file: pathlib.Path) -> list[Any]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_data_sets_become_files(tmp_path: pathlib.Path) -> None:
    from transfer_dock._records import records_of

    def written(dataset: Any) -> tuple[list[Any], dict[str, str]]:
        records = records_of(dataset, tmp_path / "data.jsonl", what="train_dataset", split="train")
        assert records.files == [str(tmp_path / "data.jsonl")]
        return lines(tmp_path / "data.jsonl"), records.types

    import pyarrow

    rows, types = written([{"prompt": "é", "n": np.int64(2), "turns": [{"role": "user"}]}, {"prompt": None, "n": 3, "x": 1.5}])
    assert rows == [{"prompt": "é", "n": 2, "turns": [{"role": "user"}]}, {"prompt": None, "n": 3, "x": 1.5}]
    assert types == {"prompt": "str", "n": "int", "x": "float"}
    assert written({"a": ["x", "y"], "b": np.array([1.0, np.nan])})[0] == [{"a": "x", "b": 1.0}, {"a": "y", "b": None}]
    assert written(pyarrow.table({"a": [True, False]})) == ([{"a": True}, {"a": False}], {"a": "bool"})
    for wrong, names in (
        ([], ["no rows"]),
        (7, ["int", "dicts"]),
        (iter([{"a": 1}]), ["iterator", "once"]),
        (["text"], ["row 0", "str"]),
        ([{"a": "x"}, {"b": object()}], ["row 1", "'b'", "object"]),
        ([{"a": [float("inf")]}], ["row 0", "'a'"]),
        ({"a": [1], "b": [1, 2]}, ["different lengths", "'b'"]),
    ):
        with raising(td.InvalidArgument, "train_dataset", *names):
            written(wrong)


# ---- models ----


def test_a_tokenizer_goes_beside_the_weights(tmp_path: pathlib.Path) -> None:
    from transfer_dock._model_folder import folder_of_model

    class Saves:
        def __init__(self, **files: str) -> None:
            self.files = files

        def save_pretrained(self, folder: str) -> None:
            for name, text in self.files.items():
                (pathlib.Path(folder) / f"{name}.json").write_text(text)

    given, copy = tmp_path / "given", tmp_path / "out/begin"
    given.mkdir()
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (given / name).write_text("given")
    assert folder_of_model(str(given), None, copy, None) == str(given) and not copy.exists()
    folder_of_model(str(given), Saves(tokenizer="mine"), copy, None)
    assert [(copy / name).read_text() for name in ("config.json", "tokenizer.json")] == ["given", "mine"]
    folder_of_model(Saves(config="another"), Saves(tokenizer="mine"), copy, None)
    assert sorted(os.listdir(copy)) == ["config.json", "tokenizer.json"] and not list(copy.parent.glob(".new*"))
    assert (given / "config.json").read_text() == "given", "links are not followed"
    with raising(td.InvalidArgument, str(copy)):
        folder_of_model(str(copy), Saves(tokenizer="mine"), copy, None)
    assert (copy / "config.json").exists()


def test_a_server_outlives_the_thread_that_asked_first_and_is_replaced(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # it is on this machine
    trainer = grpo(tmp_path, digits)
    trainer.train()
    with trainer.model as model:
        thread = threading.Thread(target=model.tokenize, args=["1"])
        thread.start()
        thread.join(LONG)
        first = model.server.pid
        assert model.tokenize("12") and model.server.pid == first
        os.kill(first, signal.SIGKILL)
        until(lambda: model.server.pid != first, "another server")
        assert model.tokenize("12")


def test_a_child_goes_on_where_nobody_listens(tmp_path: pathlib.Path) -> None:
    from transfer_dock._child import Child

    def fails(line: str) -> None:
        raise BrokenPipeError

    program = "import sys\nfor i in range(20000): print(i, file=sys.stderr)\nprint('done')"
    child = Child([sys.executable, "-c", program], fails)
    assert child.wait(LONG) == 0 and child.output() == ["done"] and child.lines[-1] == "19999"
    ended = Child([sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"], fails)
    assert ended.wait(LONG) == -signal.SIGKILL
    assert Child(["/none"], fails).wait(LONG) == 1
    for _ in range(2):
        child.end(0.0)
        child.signal(signal.SIGINT)  # does nothing any more


def test_a_model_generates_chats_and_scores(tmp_path: pathlib.Path) -> None:
    trainer = grpo(tmp_path, digits)
    trainer.train()
    with trainer.model as model:
        assert len(model.generate(["01>", "02>"], max_new_tokens=5, temperature=0)) == 2
        again = model.generate("01>", max_new_tokens=5, seed=3, n=2)
        assert again == model.generate("01>", max_new_tokens=5, seed=3, n=2) and len(again) == 2
        scores = model.log_probs("01>", "123")
        assert scores.shape == (3,) and (scores < 0).all()
        every = [model.log_probs("01>", digit)[0] for digit in "0123456789>"]
        assert np.exp(every).sum() < 1, "end tokens have some"
        assert model.detokenize(model.tokenize("12>")) == "12>"
        with raising(td.InvalidArgument, "top_kk"):
            model.generate("0", top_kk=3)
        pid = model.server.pid
    until(lambda: not pathlib.Path(f"/proc/{pid}").exists(), "the end of the server")
    with raising(td.Unavailable, "tokenizer.json", str(tmp_path)):
        td.serve_model(tmp_path)
    with td.serve_model(trainer.model_folder, name="mine") as server:
        assert server.url.endswith("/v1") and server.pid


@pytest.mark.parametrize("points", [[(1, 2.0)], [(1, 2.0), (2, float("nan")), (3, 1.0)], [(i, i * i) for i in range(5000)]])
def test_a_chart_is_valid_and_small(points: list[tuple[float, float]]) -> None:
    import xml.dom.minidom

    from transfer_dock._charts import chart

    drawn = chart("loss <&>", points)
    xml.dom.minidom.parseString(drawn)
    assert len(drawn) < 16_000
