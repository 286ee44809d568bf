"""The notebook of examples/real-model, with a real model, cut short."""

import json
import os
import subprocess
import sys

from conftest import BUILD, ROOT

FOLDER = ROOT / "examples/real-model"


def test_the_notebook_trains_a_real_model_and_talks_with_it(tmp_path):
    notebook = json.loads((FOLDER / "notebook.ipynb").read_text())
    assert notebook["nbformat"] == 4
    cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    environment = os.environ | {"PYTHONPATH": str(BUILD / "python"), "RUNS": str(tmp_path), "SHARE": "0.01"}
    done = subprocess.run([sys.executable, "-c", "\n".join(cells)], cwd=FOLDER, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    first, *_, held_out, folder, answer, log_probs = done.stdout.splitlines()
    assert first and answer and held_out.startswith("held-out questions: ")
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= set(os.listdir(folder))
    assert log_probs.startswith("[-")
