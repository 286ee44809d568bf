"""bench/peers/transformers, tokenizers and grpo_step: that they run, and what they report."""

import json
import subprocess
import sys

import pytest
from conftest import BUILD, ROOT


def run(*command):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "name", ["train_step/dtype=float32", "sft_step/dtype=bfloat16/lengths=mixed", "dpo_loss/dtype=float32"]
)
def test_training_steps_alternate_with_those_of_transformers(name, tmp_path):
    report = tmp_path / "figures.json"
    peer = f"{sys.executable} {ROOT}/bench/peers/transformers/peer.py"
    run(BUILD / "tdock", "bench", name, "--quick", "--runs", "1", "--peer", peer, "--json", report)
    (result,) = json.loads(report.read_text())["results"]
    assert result["name"] == name and result["unit"] == "tokens/s"
    assert result["of"] == "peer" and result["ratio"] > 0 and len(result["reference_runs"]) == 1


def test_tokenizers_are_measured_on_the_same_texts(tmp_path):
    report = tmp_path / "figures.json"
    tool = ["--tool", BUILD / "tdock_encode"]
    told = run(sys.executable, ROOT / "bench/peers/tokenizers/run.py", *tool, "--quick", "--runs", "1", "--json", report)
    results = json.loads(report.read_text())
    kinds = ("gpt2", "llama3", "qwen2", "sentencepiece")
    assert [row["name"] for row in results] == [f"tokenizers/{kind}/{texts}" for kind in kinds for texts in ("code", "text")]
    for row in results:
        assert row["name"] in told
        assert row["ratio"] > 0 and len(row["ours"]) == len(row["theirs"]) == 1


def test_grpo_steps_alternate_with_those_of_trl(tmp_path):
    report, name = tmp_path / "figures.json", "grpo_step/dtype=float32"
    told = run(
        sys.executable, ROOT / "bench/peers/grpo_step/run.py", "--quick", "--runs", "2", "--only", name, "--json", report,
        "--tdock", BUILD / "tdock", "--python", sys.executable, "--models", tmp_path,
    )  # fmt: skip
    assert name in told
    (result,) = json.loads(report.read_text())["results"]
    assert result["name"] == name and result["unit"] == "s" and result["trl_dtype"] == "float32"
    ours, trl = result["runs"]["ours"], result["runs"]["trl"]
    assert len(ours) == len(trl) == 2
    assert result["ours"] == pytest.approx(sum(ours) / 2) and result["trl"] == pytest.approx(sum(trl) / 2)
    assert result["ratio"] == pytest.approx((trl[0] / ours[0] + trl[1] / ours[1]) / 2)
    assert result["reached"] == (result["ratio"] >= 3.5)
    assert 0 < result["model_share"] < 1
    assert result["stages"].keys() == {"rollout", "reward", "ref", "advantage", "actor"}
    for stage in ("rollout", "ref", "actor"):
        assert 0 < result["stages_in_model"][stage] < result["stages"][stage]
