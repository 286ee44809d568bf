"""The folder of a model that a trainer was given."""

from __future__ import annotations

import contextlib
import importlib
import os
import pathlib
import shutil
import tempfile
from collections.abc import Iterator
from typing import Any

from transfer_dock import hub
from transfer_dock.errors import InvalidArgument
from transfer_dock.models import Model


def folder_of_model(model: Any, tokenizer: Any, copy: pathlib.Path, revision: str | None) -> str | None:
    """The folder of a model: a folder, a name on the Hub, a model of transformers, or a Model; None of None.

    tokenizer: one of transformers to use instead of the model's; None: the model's. copy: where a folder is made if none
    holds both; what it held is replaced. Raises InvalidArgument for what is no model or no tokenizer.
    """
    if model is None:
        return None
    if isinstance(model, Model):
        model = model.folder
    if isinstance(model, (str, os.PathLike)):
        folder = hub.model_folder(os.fspath(model), revision=revision)
        return folder if tokenizer is None else _with_tokenizer(folder, tokenizer, copy)
    save = getattr(model, "save_pretrained", None)
    if not callable(save):
        raise InvalidArgument(f"'model' is a {type(model).__name__}; give a folder, a name on the Hub, or a model of transformers")
    tokenizer = tokenizer or _tokenizer_of(model)
    with _replacing(copy) as new:
        save(str(new))
        tokenizer.save_pretrained(str(new))
    return str(copy)


def _with_tokenizer(folder: str, tokenizer: Any, copy: pathlib.Path) -> str:
    """A folder with links to the weights of another."""
    save = getattr(tokenizer, "save_pretrained", None)
    if not callable(save):
        raise InvalidArgument(f"'processing_class' is a {type(tokenizer).__name__}; give a tokenizer of transformers")
    if pathlib.Path(folder).resolve() == copy.resolve():
        raise InvalidArgument(f"'model' is {folder}, which is where the model with the tokenizer is put; give another output_dir")
    with _replacing(copy) as new:
        for file in pathlib.Path(folder).iterdir():
            if file.name.endswith((".safetensors", ".json")):
                (new / file.name).symlink_to(file.resolve())
        with tempfile.TemporaryDirectory() as written:
            save(written)
            for file in pathlib.Path(written).iterdir():
                (new / file.name).unlink(missing_ok=True)
                shutil.copy2(file, new / file.name)
    return str(copy)


@contextlib.contextmanager
def _replacing(folder: pathlib.Path) -> Iterator[pathlib.Path]:
    """A new folder that takes the place of another once it is whole. Links in that are not followed."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".new-") as made:
        new = pathlib.Path(made) / folder.name
        new.mkdir()
        yield new
        shutil.rmtree(folder, ignore_errors=True)
        new.replace(folder)


def _tokenizer_of(model: Any) -> Any:
    """The tokenizer of the folder, or of the name, that a model of transformers was read from."""
    try:
        return importlib.import_module("transformers").AutoTokenizer.from_pretrained(model.name_or_path)
    except Exception as error:
        raise InvalidArgument(
            f"'processing_class' is missing, and the tokenizer of {model.name_or_path!r} cannot be read: {error}"
        ) from error
