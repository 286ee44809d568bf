#!/usr/bin/env python3
"""Evaluators ask `tdock serve` of a real model, SmolLM2-135M: tests/nightly/clients.py TDOCK

Runs in .venv-evaluators. litellm chats and makes objects; inspect-ai runs an evaluation; lm-eval answers multiple choices,
computes a perplexity and generates, and must give the scores that its own `hf` backend gives of the same model.
"""

import json
import os
import pathlib
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path += [str(ROOT / "tests/integration"), str(ROOT / "examples/real-model")]
os.environ |= {"HF_HUB_OFFLINE": "1", "OPENAI_API_KEY": "none", "HF_DATASETS_TRUST_REMOTE_CODE": "0"}

import inspect_ai  # noqa: E402
import inspect_ai.dataset  # noqa: E402
import inspect_ai.model  # noqa: E402
import inspect_ai.scorer  # noqa: E402
import inspect_ai.solver  # noqa: E402
import litellm  # noqa: E402
import lm_eval  # noqa: E402
import lm_eval.tasks  # noqa: E402
from make_model import make_model  # noqa: E402
from pydantic import BaseModel  # noqa: E402
from served_model import Server  # noqa: E402

NAME = "smol"
WINDOW = 1024  # tokens of a text that count together for its perplexity

CHOICES = [
    ("The capital of France is", [" Paris", " Berlin", " London"], 0),
    ("Two plus two is", [" five", " four", " nine"], 1),
    ("Water is made of hydrogen and", [" gold", " oxygen", " iron"], 1),
    ("The opposite of hot is", [" cold", " green", " tall"], 0),
    ("A week has", [" nine days", " two days", " seven days"], 2),
]
QUESTIONS = [("Q: What is the capital of France?\nA:", " Paris"), ("Q: What is 2+2?\nA:", " 4")]
TASKS = {
    "td_choice": {
        "output_type": "multiple_choice", "doc_to_text": "{{q}}", "doc_to_choice": "{{c}}", "doc_to_target": "a",
        "target_delimiter": "", "metric_list": [{"metric": "acc"}],
    },
    "td_text": {
        "output_type": "loglikelihood_rolling", "doc_to_text": "", "doc_to_target": "{{text}}",
        "metric_list": [{"metric": "word_perplexity"}, {"metric": "bits_per_byte"}],
    },
    "td_answer": {
        "output_type": "generate_until", "doc_to_text": "{{q}}", "doc_to_target": "a",
        "generation_kwargs": {"until": ["\n"], "max_gen_toks": 12, "do_sample": False, "temperature": 0},
        "metric_list": [{"metric": "exact_match", "ignore_case": True}],
    },
}  # fmt: skip


class Town(BaseModel):
    name: str
    capital: bool


def write_tasks(folder):
    words = " ".join(f"The number {i} comes before the number {i + 1}." for i in range(120))
    rows = {
        "td_choice": [{"q": q, "c": choices, "a": answer} for q, choices, answer in CHOICES],
        "td_text": [{"text": words}, {"text": (ROOT / "ARCHITECTURE.md").read_text()[:6000]}],
        "td_answer": [{"q": q, "a": answer} for q, answer in QUESTIONS],
    }
    for name, task in TASKS.items():
        data = folder / f"{name}.jsonl"
        data.write_text("".join(json.dumps(row) + "\n" for row in rows[name]))
        settings = {
            "task": name, "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(data)}}, "test_split": "test",
        }  # fmt: skip
        (folder / f"{name}.yaml").write_text(json.dumps(settings | task))  # YAML contains JSON
    return folder


def scores(model, arguments, tasks):
    manager = lm_eval.tasks.TaskManager(include_path=str(tasks), include_defaults=False)
    results = lm_eval.simple_evaluate(
        model=model, model_args=arguments, tasks=list(TASKS), task_manager=manager, batch_size=1, bootstrap_iters=0
    )["results"]
    return {
        (task, metric): value
        for task, metrics in results.items()
        for metric, value in metrics.items()
        if isinstance(value, float) and "stderr" not in metric
    }


def check_lm_eval(server, model, tasks):
    own = scores("hf", f"pretrained={model},dtype=float32,device=cpu,max_length={WINDOW}", tasks)
    # Of the max_length of a served model, lm-eval keeps back a token before a window and one to generate.
    served = scores(
        "local-completions",
        f"model={NAME},base_url=http://127.0.0.1:{server.port}/v1/completions,tokenizer={model},num_concurrent=1,"
        f"max_retries=1,max_length={WINDOW + 2}",
        tasks,
    )
    print(f"{'lm-eval':12} {'metric':28} {'hf':>10} {'served':>10}")
    different = []
    for (task, metric), value in sorted(own.items()):
        print(f"{task:12} {metric:28} {value:10.5f} {served[task, metric]:10.5f}")
        if abs(served[task, metric] - value) > 1e-4 * max(1, abs(value)):
            different.append(metric)
    assert own.keys() == served.keys() and not different, f"others than those of hf: {different}"
    assert own["td_choice", "acc,none"] > 0.5, "the model knows most of it"


def check_litellm(server):
    fields = {"model": f"openai/{NAME}", "api_base": f"http://127.0.0.1:{server.port}/v1", "api_key": "none"}
    messages = [{"role": "user", "content": "Name a town."}]
    answer = litellm.completion(messages=messages, max_tokens=20, temperature=0, **fields)
    assert answer.choices[0].message.content and answer.usage.completion_tokens <= 20
    pieces = litellm.completion(messages=messages, max_tokens=20, temperature=0, stream=True, **fields)
    text = "".join(piece.choices[0].delta.content or "" for piece in pieces)
    assert text == answer.choices[0].message.content
    made = litellm.completion(messages=messages, response_format=Town, max_tokens=200, **fields)
    town = Town.model_validate_json(made.choices[0].message.content)
    print(f"litellm says {text!r}, and makes {town!r}")


def check_inspect(server, folder):
    model = inspect_ai.model.get_model(
        f"openai-api/tdock/{NAME}", base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none"
    )
    task = inspect_ai.Task(
        dataset=[inspect_ai.dataset.Sample(input="What is the capital of France?", target="Paris")],
        solver=inspect_ai.solver.generate(),
        scorer=inspect_ai.scorer.includes(),
        config=inspect_ai.model.GenerateConfig(max_tokens=30, temperature=0),
    )
    [log] = inspect_ai.eval(task, model=model, log_dir=str(folder), display="none")
    assert log.status == "success", log.error
    accuracy = log.results.scores[0].metrics["accuracy"].value
    print(f"inspect-ai: accuracy {accuracy}")
    assert accuracy == 1, "it names Paris"


def main():
    Server.tdock = sys.argv[1]
    with tempfile.TemporaryDirectory() as parent:
        folder = pathlib.Path(parent)
        model, tasks = make_model(folder / "model"), folder / "tasks"
        tasks.mkdir()
        write_tasks(tasks)
        server = Server(model, name=NAME)
        try:
            check_litellm(server)
            check_inspect(server, folder / "logs")
            check_lm_eval(server, model, tasks)
        finally:
            server.end()


if __name__ == "__main__":
    main()
