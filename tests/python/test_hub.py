"""Models and data sets of the Hub, against a stand-in of it on this machine."""

from __future__ import annotations

import importlib
import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from transfer_dock import Config, hub

import hub_stand_in
from waiting import LONG

MODEL = {
    "config.json": b"{}",
    "model.safetensors": b"weights",
    "tokenizer.json": b"{\"model\": {}}",
    "chat_template.jinja": b"{{ messages }}",
    "README.md": b"# A model",
    "pytorch_model.bin": b"weights again",
    "model.gguf": b"weights again",
    "consolidated.safetensors": b"weights again",
    "onnx/model.onnx": b"weights again",
}
FETCHED = ["README.md", "chat_template.jinja", "config.json", "model.safetensors", "tokenizer.json"]

# huggingface_hub reads its environment when it is imported, so each call is a process.
PROGRAM = """
import json, sys
from transfer_dock import hub
name, given = json.load(sys.stdin)
try:
    print(json.dumps(["ok", getattr(hub, name)(*given.pop("arguments"), **given)]))
except Exception as error:
    print(json.dumps([type(error).__name__, str(error)]))
"""


class Caller:
    """Calls functions of `hub` with a cache of their own."""

    def __init__(self, stand_in: hub_stand_in.Hub, folder: pathlib.Path) -> None:
        self.stand_in = stand_in
        self.folder = folder
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("HF_")} | {
            "HF_ENDPOINT": stand_in.url, "HF_HOME": str(folder / "cache"), "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
        }  # fmt: skip

    def __call__(self, function: str, *arguments: Any, env: dict[str, str] | None = None, **keywords: Any) -> list[Any]:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM], env=self.environment | (env or {}), capture_output=True, text=True,
            input=json.dumps([function, {"arguments": arguments, **keywords}]), timeout=LONG, cwd=self.folder,
        )  # fmt: skip
        assert done.stdout, done.stderr
        answer: list[Any] = json.loads(done.stdout.splitlines()[-1])
        return answer

    def ok(self, function: str, *arguments: Any, **keywords: Any) -> Any:
        kind, value = self(function, *arguments, **keywords)
        assert kind == "ok", value
        return value

    def fails(self, kind: str, mentioned: list[str], function: str, *arguments: Any, **keywords: Any) -> None:
        """Checks that the call raises such an error, whose text has these names."""
        found, text = self(function, *arguments, **keywords)
        assert found == kind, (found, text)
        for each in mentioned:
            assert each in text, text


@pytest.fixture
def call(tmp_path: pathlib.Path) -> Iterator[Caller]:
    with hub_stand_in.serve() as stand_in:
        stand_in.repos["models/org/model"] = hub_stand_in.Repo(dict(MODEL))
        yield Caller(stand_in, tmp_path)


def test_a_folder_is_taken_as_it_is(tmp_path: pathlib.Path) -> None:
    assert hub.model_folder(tmp_path) == str(tmp_path)
    (tmp_path / "a.jsonl").touch()
    assert hub.data_files(tmp_path / "a.jsonl") == [str(tmp_path / "a.jsonl")]
    assert hub.data_files(str(tmp_path)) == [str(tmp_path)]
    with pytest.raises(ValueError, match="revision"):
        hub.model_folder(tmp_path, revision="v1")


@pytest.mark.parametrize("name", ["/no/such/folder", "./model", "a/b/c", "~/no-such-model", "-"])
def test_what_is_neither_a_folder_nor_a_name_is_told(name: str) -> None:
    with pytest.raises(KeyError, match="org/name"):
        hub.model_folder(name)


def test_a_file_is_no_folder(tmp_path: pathlib.Path) -> None:
    (tmp_path / "model.gguf").touch()
    with pytest.raises(KeyError, match="file"):
        hub.model_folder(tmp_path / "model.gguf")


def test_without_the_package_it_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(hub.errors.FailedPrecondition) as told:
        hub.model_folder("org/model")
    for each in ("org/model", "huggingface_hub"):
        assert each in str(told.value)


def test_a_model_is_fetched_once_without_duplicates_of_its_weights(call: Caller) -> None:
    folder = pathlib.Path(call.ok("model_folder", "org/model"))
    assert sorted(each.name for each in folder.iterdir()) == FETCHED
    assert (folder / "model.safetensors").read_bytes() == b"weights"
    assert call.stand_in.fetched() == FETCHED
    assert folder.is_relative_to(call.folder / "cache")
    assert call.ok("model_folder", "org/model") == str(folder)
    assert call.stand_in.fetched() == FETCHED, "it was fetched again"


def test_a_new_revision_is_fetched_and_an_old_one_stays(call: Caller) -> None:
    repo = call.stand_in.repos["models/org/model"]
    old, commit = call.ok("model_folder", "org/model"), repo.sha
    repo.files["model.safetensors"] = b"others"
    new = call.ok("model_folder", "org/model")
    assert pathlib.Path(new, "model.safetensors").read_bytes() == b"others"
    assert call.ok("model_folder", "org/model", revision=commit) == old


def test_the_cache_is_enough_offline(call: Caller) -> None:
    offline = {"HF_HUB_OFFLINE": "1"}
    mentioned = ["org/model", "HF_HUB_OFFLINE", str(call.folder / "cache")]
    call.fails("Unavailable", mentioned, "model_folder", "org/model", env=offline)
    assert call.stand_in.asked == []
    folder = call.ok("model_folder", "org/model")
    asked = len(call.stand_in.asked)
    assert call.ok("model_folder", "org/model", env=offline) == folder
    assert len(call.stand_in.asked) == asked


def test_the_cache_is_enough_where_the_hub_is_away(call: Caller) -> None:
    gone = {"HF_ENDPOINT": "http://127.0.0.1:9"}  # the port of `discard`
    call.fails("Unavailable", ["org/model", "127.0.0.1:9"], "model_folder", "org/model", env=gone)
    folder = call.ok("model_folder", "org/model")
    assert call.ok("model_folder", "org/model", env=gone) == folder


def test_a_hub_that_fails_is_told(call: Caller) -> None:
    call.stand_in.away = True
    call.fails("Unavailable", ["org/model", "503"], "model_folder", "org/model")


def test_what_does_not_exist_is_told(call: Caller) -> None:
    call.fails("NotFound", ["org/modle", "token"], "model_folder", "org/modle")
    call.fails("NotFound", ["org/model", "'v9'"], "model_folder", "org/model", revision="v9")
    call.fails("InvalidArgument", ["org/mo--del"], "model_folder", "org/mo--del")


def test_a_gated_model_takes_a_token(call: Caller) -> None:
    call.stand_in.repos["models/org/model"].gated = True
    call.stand_in.repos["models/org/model"].token = "secret"
    call.fails("Unauthenticated", ["org/model", "gated", "HF_TOKEN"], "model_folder", "org/model")
    call.fails("Unauthenticated", ["org/model", "gated"], "model_folder", "org/model", token="wrong")
    assert call.ok("model_folder", "org/model", token="secret")
    assert call.ok("model_folder", "org/model", env={"HF_TOKEN": "secret"})


def test_a_private_model_takes_a_token(call: Caller) -> None:
    call.stand_in.repos["models/org/model"].private = True
    call.stand_in.repos["models/org/model"].token = "secret"
    call.fails("NotFound", ["org/model", "private", "HF_TOKEN"], "model_folder", "org/model")
    assert call.ok("model_folder", "org/model", token="secret")


def test_a_model_without_safetensors_is_told(call: Caller) -> None:
    del call.stand_in.repos["models/org/model"].files["model.safetensors"]
    call.fails("NotFound", ["org/model", "safetensors", "config.json"], "model_folder", "org/model")


def test_a_cache_that_cannot_be_written_is_told(call: Caller) -> None:
    (call.folder / "cache").write_text("a file")
    found, text = call("model_folder", "org/model")
    assert found in ("Unavailable", "PermissionDenied") and "org/model" in text


def test_a_full_disk_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    package = importlib.import_module("huggingface_hub")

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(package, "snapshot_download", full)
    with pytest.raises(hub.errors.ResourceExhausted, match="org/model.*HF_HOME"):
        hub.model_folder("org/model")


def data(call: Caller, *files: str, card: str = "") -> None:
    repo = hub_stand_in.Repo({each: each.encode() for each in files})
    if card:
        repo.files["README.md"] = f"---\n{card}\n---\n".encode()
    call.stand_in.repos["datasets/org/data"] = repo


def split(call: Caller, name: str, **keywords: Any) -> list[str]:
    """A split's files, by their paths in the repository."""
    files = call.ok("data_files", "org/data", split=name, **keywords)
    names = [pathlib.Path(each).read_text() for each in files]
    assert all(file.endswith(f"/{name}") for file, name in zip(files, names, strict=True))
    return names


def test_splits_are_found_by_the_names_of_files(call: Caller) -> None:
    shards = ["data/train-00000-of-00002.parquet", "data/train-00001-of-00002.parquet"]
    data(call, *shards, "data/test-00000-of-00001.parquet", "data/valid.parquet", "logo.png")
    assert split(call, "train") == shards
    assert call.stand_in.fetched() == shards, "files of other splits were fetched"
    assert split(call, "test") == ["data/test-00000-of-00001.parquet"]
    assert split(call, "validation") == ["data/valid.parquet"]
    assert split(call, "validation", env={"HF_HUB_OFFLINE": "1"}) == ["data/valid.parquet"]
    call.fails("NotFound", ["org/data", "'extra'", "train, "], "data_files", "org/data", split="extra")


def test_splits_are_found_by_the_names_of_folders(call: Caller) -> None:
    data(call, "train/a.jsonl", "train/b.jsonl", "test/a.jsonl")
    assert split(call, "train") == ["train/a.jsonl", "train/b.jsonl"]
    assert split(call, "test") == ["test/a.jsonl"]


def test_data_without_splits_are_all_train(call: Caller) -> None:
    data(call, "questions.jsonl", "LICENSE")
    assert split(call, "train") == ["questions.jsonl"]
    call.fails("NotFound", ["org/data", "'test'"], "data_files", "org/data", split="test")


CONFIGS = """configs:
- config_name: main
  data_files:
  - split: train
    path: main/train-*
  - split: test
    path: main/test-*
- config_name: socratic
  data_files:
  - split: train
    path: socratic/*.csv"""


def test_splits_are_found_by_the_card(call: Caller) -> None:
    data(call, "main/train-0.parquet", "main/test-0.parquet", "socratic/a.csv", card=CONFIGS)
    call.fails("InvalidArgument", ["org/data", "main, socratic"], "data_files", "org/data")
    assert split(call, "train", config="main") == ["main/train-0.parquet"]
    assert split(call, "train", config="socratic") == ["socratic/a.csv"]
    call.fails("NotFound", ["org/data", "'other'", "main"], "data_files", "org/data", config="other")


def test_data_that_cannot_be_used_are_told(call: Caller) -> None:
    data(call, "photos.zip")
    call.fails("NotFound", ["org/data", "photos.zip"], "data_files", "org/data")
    data(call, "a.arrow", card="configs:\n- config_name: default\n  data_files: '*.arrow'")
    call.fails("Unimplemented", ["org/data", "a.arrow", ".parquet"], "data_files", "org/data")
    call.fails("NotFound", ["org/nothing"], "data_files", "org/nothing")


def run_folder(folder: pathlib.Path, weights: bytes = b"weights") -> pathlib.Path:
    """A folder as a run leaves it."""
    run = folder / "runs/grpo-001"
    (run / "checkpoint").mkdir(parents=True)
    (run / "checkpoint/config.json").write_text("{}")
    (run / "checkpoint/model.safetensors").write_bytes(weights)
    config = Config("grpo", model={"path": "/x/models--org--model/snapshots/abc"}, actor={"optim": {"lr": 3e-6}})
    config.data.train_files = ["/x/datasets--org--data/snapshots/abc/train.jsonl"]
    config.save(run / "config.yaml")
    lines = [{"phase": "grpo", "step": 0, "val/accuracy": 0.25}]
    lines += [{"phase": "grpo", "step": step, "critic/score/mean": step / 64} for step in range(1, 33)]
    lines += [{"phase": "grpo", "step": 33, "critic/score/mean": None, "val/accuracy": 0.75}]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return run


def test_a_card_tells_what_the_run_measured(tmp_path: pathlib.Path) -> None:
    card = hub.model_card(run_folder(tmp_path))
    head, _, text = card.removeprefix("---\n").partition("\n---\n")
    for each in ("base_model: org/model", "datasets:\n- org/data", "- transfer-dock", "- grpo", "library_name: transformers"):
        assert each in head
    assert "# grpo-001" in text and "33 steps" in text
    assert "| accuracy | 0.25 | 0.75 |" in text
    assert "| 3 | 0.04688 |" in text and "| 33 |  |" in text
    assert "| `actor.optim.lr` | `3e-06` |" in text
    assert "/x/" not in card, "a path of this machine"


def test_a_card_needs_the_folder_of_a_run(tmp_path: pathlib.Path) -> None:
    with pytest.raises(KeyError, match="config.yaml"):
        hub.model_card(tmp_path)


@pytest.mark.parametrize("large", [False, True])
def test_a_run_is_uploaded_with_its_card(call: Caller, large: bool) -> None:
    run = run_folder(call.folder, b"w" * (2 * hub_stand_in.LFS_BYTES if large else 10))
    plain = {"HF_HUB_DISABLE_XET": "1"} if large else {}
    url = call.ok("push", str(run), "me/mine", token="writer", private=True, env=plain)
    assert url == f"{call.stand_in.url}/me/mine"
    repo = call.stand_in.repos["models/me/mine"]
    assert sorted(repo.files) == ["README.md", "config.json", "model.safetensors"] and repo.private
    assert repo.files["model.safetensors"] == (run / "checkpoint/model.safetensors").read_bytes()
    assert repo.files["README.md"].decode() == hub.model_card(run)
    assert len(call.stand_in.lfs) == large


def test_an_uploaded_model_is_fetched_again(call: Caller) -> None:
    call.ok("push", str(run_folder(call.folder)), "mine", token="writer", card="mine")
    folder = pathlib.Path(call.ok("model_folder", "me/mine"))
    assert (folder / "README.md").read_text() == "mine"
    assert (folder / "model.safetensors").read_bytes() == b"weights"


def test_a_branch_is_made_for_an_upload(call: Caller) -> None:
    call.ok("push", str(run_folder(call.folder)), "me/mine", token="writer", revision="v2")
    assert "v2" in call.stand_in.repos["models/me/mine"].branches
    assert "POST /api/models/me/mine/commit/v2" in call.stand_in.asked


def test_a_folder_with_a_card_keeps_it(call: Caller) -> None:
    run = run_folder(call.folder)
    (run / "checkpoint/README.md").write_text("my own")
    call.ok("push", str(run / "checkpoint"), "me/mine", token="writer")
    assert call.stand_in.repos["models/me/mine"].files["README.md"] == b"my own"


def test_an_upload_without_leave_is_told(call: Caller) -> None:
    run = run_folder(call.folder)
    call.fails("Unauthenticated", ["me/mine", "HF_TOKEN"], "push", str(run), "me/mine", token="reader")
    call.fails("Unavailable", ["me/mine", "HF_HUB_OFFLINE"], "push", str(run), "me/mine", env={"HF_HUB_OFFLINE": "1"})
    call.fails("NotFound", ["config.json"], "push", str(call.folder), "me/mine", token="writer")
