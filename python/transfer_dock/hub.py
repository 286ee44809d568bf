"""Models and data sets by their names on the Hugging Face Hub, and trained models back to it.

from transfer_dock import hub

folder = hub.model_folder("org/model")                  # from the Hub, or its cache
files = hub.data_files("org/data", split="train")
hub.push("runs/grpo-001", "me/my-model", private=True)  # with a model card of what the run measured

The package huggingface_hub does the transfers: its environment variables (HF_HOME, HF_ENDPOINT, HF_TOKEN, HF_HUB_OFFLINE)
and its cache are the ones that count. What is a folder or a file on this machine needs neither it nor a network.
"""

from __future__ import annotations

import contextlib
import errno
import fnmatch
import importlib
import os
import pathlib
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from transfer_dock import errors
from transfer_dock.model_card import model_card as model_card

# Files of a model that a run reads or that describe it; weights only as safetensors.
_MODEL_FILES = ["*.safetensors", "*.json", "*.jinja", "*.model", "*.txt", "*.md", "LICENSE*"]
_NOT_OF_MODEL = ["*/*", "consolidated*.safetensors", "*.fp16.safetensors", "*.fp32.safetensors", "training_args*"]
_DATA_SUFFIXES = (".jsonl", ".json", ".csv", ".parquet")
# Other names of a split, as the Hub's own library knows them.
_SPLIT_NAMES = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test", "testing", "eval", "evaluation"),
}
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")


def is_name(name: str) -> bool:
    """Whether a text could be a name on the Hub, "org/name", and is no file or folder here."""
    return _NAME.fullmatch(name) is not None and not os.path.exists(name)


def model_folder(name: str | os.PathLike[str], *, revision: str | None = None, token: str | None = None) -> str:
    """The folder of a model: one on this machine as it is, or that of a name on the Hub, which is fetched if need be.

    Args:
        name: a folder, or "org/name".
        revision: a branch, tag or commit of a name: main.
        token: for models that are private or gated; None: HF_TOKEN, or that of `hf auth login`.

    Raises:
        NotFound: there is no such folder, model or revision, or it has no weights as safetensors.
        Unauthenticated: it is gated, or the token is not good for it.
        Unavailable: the Hub cannot be reached, or must not be (HF_HUB_OFFLINE), and the cache lacks it.
        FailedPrecondition: it is no folder, and huggingface_hub is not installed.
    """
    folder = os.path.expanduser(os.fspath(name))
    if os.path.isdir(folder):
        if revision is not None:
            raise errors.InvalidArgument(f"{folder} is a folder, which has no revision {revision!r}")
        return folder
    hub = _hub(folder, "a folder with a model")
    with _errors_of(hub, f"the model {name}", folder, "model", revision):
        found = hub.snapshot_download(
            folder, revision=revision, token=token, allow_patterns=_MODEL_FILES, ignore_patterns=_NOT_OF_MODEL
        )
    there = os.listdir(found) if os.path.isdir(found) else []
    for kind, wanted in (("config.json", "config.json"), ("weights as safetensors", "*.safetensors")):
        if not fnmatch.filter(there, wanted):
            raise errors.NotFound(f"the model {name} on the Hub has no {kind}; there are {_listed(there)}")
    return str(found)


def data_files(
    name: str | os.PathLike[str],
    *,
    split: str = "train",
    config: str | None = None,
    revision: str | None = None,
    token: str | None = None,
) -> list[str]:
    """The files of a split of a data set: one file or folder on this machine as it is, or those of a name on the Hub.

    Which files a split has, the data set's card says, or else their names: ``train.jsonl``, ``data/train-*.parquet``,
    ``train/*.csv``. A data set whose names tell of no split is all train.

    Args:
        name: a file, a folder, or "org/name".
        split: such as train, validation or test.
        config: the part of a data set that has several; None: its default, or its only one.
        revision: a branch, tag or commit of a name: main.
        token: for data sets that are private or gated; None: HF_TOKEN, or that of `hf auth login`.

    Raises as model_folder() does.
    """
    path = os.path.expanduser(os.fspath(name))
    if os.path.exists(path):
        return [path]
    hub = _hub(path, "a file or folder with data")
    what = f"the data set {name}"
    with _errors_of(hub, what, path, "dataset", revision):
        found = pathlib.Path(
            hub.snapshot_download(
                path, repo_type="dataset", revision=revision, token=token, allow_patterns=["README.md", ".gitattributes"]
            )
        )
        names = _names_in(hub, path, found, token)
    chosen = _files_of_split(what, names, _configs(hub, found), split, config)
    with _errors_of(hub, what, path, "dataset", revision):
        hub.snapshot_download(path, repo_type="dataset", revision=found.name, token=token, allow_patterns=chosen)
    missing = [each for each in chosen if not (found / each).exists()]
    if missing:
        raise errors.Unavailable(f"{what} lacks {_listed(missing)} in the cache; fetch it without HF_HUB_OFFLINE")
    return [str(found / each) for each in chosen]


def push(
    folder: str | os.PathLike[str],
    repo_id: str,
    *,
    private: bool | None = None,
    token: str | None = None,
    card: str | None = None,
    revision: str | None = None,
    message: str | None = None,
) -> str:
    """Uploads a model to the Hub, and returns where it is.

    Args:
        folder: a run's folder, of which the model is uploaded, or a folder with a model.
        repo_id: "me/name", or "name" of the token's own user; it is made if there is none.
        private: whether a new one is private; None: as the account says.
        token: one that may write; None: HF_TOKEN, or that of `hf auth login`.
        card: the text of README.md; None: the folder's own, or else model_card() of the run.
        revision: a branch: main.
        message: of the commit.

    Raises as model_folder() does.
    """
    given = pathlib.Path(folder)
    run = next((each for each in (given, given.parent) if (each / "metrics.jsonl").exists()), None)
    model = given / "checkpoint" if run == given else given
    if not (model / "config.json").exists():
        left = "; the run has not left one yet" if run == given else ""
        raise errors.NotFound(f"{model} has no model: it lacks config.json{left}")
    if card is None and run is not None and not (model / "README.md").exists():
        card = model_card(run)
    hub = _hub(None, "")
    what = f"the repository {repo_id}"
    with _errors_of(hub, what, repo_id, "model", revision):
        api = hub.HfApi(token=token)
        made = api.create_repo(repo_id, private=private, exist_ok=True)
        said = message or f"Upload {model.name if run is None else run.resolve().name} of Transfer Dock"
        if revision is not None:
            api.create_branch(made.repo_id, branch=revision, exist_ok=True)
        ignored = [] if card is None else ["README.md"]
        where = {"repo_id": made.repo_id, "revision": revision, "commit_message": said}
        api.upload_folder(folder_path=model, ignore_patterns=ignored, **where)
        if card is not None:
            api.upload_file(path_or_fileobj=card.encode(), path_in_repo="README.md", **where)
    return str(made)


def _hub(name: str | None, what: str) -> Any:
    """The package huggingface_hub, for a name that is nothing on this machine."""
    if name is not None and not _NAME.fullmatch(name):
        kind = "it is a file" if os.path.isfile(name) else "there is nothing there"
        raise errors.NotFound(f"{name} is not {what} ({kind}), and no name on the Hub, which is org/name")
    try:
        for part in ("constants", "errors"):  # the package loads its parts when they are needed
            importlib.import_module(f"huggingface_hub.{part}")
        return importlib.import_module("huggingface_hub")
    except ModuleNotFoundError as error:
        why = "uploading to the Hub" if name is None else f"{name} is not {what}; fetching it from the Hub"
        raise errors.FailedPrecondition(
            f"{why} takes a package that is not installed ({error}): pip install huggingface_hub"
        ) from None


@contextlib.contextmanager
def _errors_of(hub: Any, what: str, name: str, kind: str, revision: str | None) -> Iterator[None]:
    """Raises the package's errors as those of this one, which say what happened to which thing, and what helps."""
    known = hub.errors
    endpoint = hub.constants.ENDPOINT
    page = f"{endpoint}/{'datasets/' if kind == 'dataset' else ''}{name}"
    token = "give a token that has access (token=…, HF_TOKEN, or `hf auth login`)"
    try:
        yield
    except known.GatedRepoError as error:
        raise errors.Unauthenticated(f"{what} is gated: ask for access at {page}, and {token}") from error
    except known.RevisionNotFoundError as error:
        raise errors.NotFound(f"{what} has no revision {revision!r}; {page} lists its branches and tags") from error
    except known.RepositoryNotFoundError as error:
        raise errors.NotFound(
            f"there is no {what.removeprefix('the ')} at {endpoint}, or it is private: check the name, or {token}"
        ) from error
    except known.HFValidationError as error:
        raise errors.InvalidArgument(f"{name} is no name on the Hub: {error}") from error
    except (known.OfflineModeIsEnabled, known.LocalEntryNotFoundError) as error:
        raise errors.Unavailable(_not_in_cache(hub, what, endpoint, error)) from error
    except known.HfHubHTTPError as error:
        status = error.response.status_code
        if status in (401, 403):
            raise errors.Unauthenticated(f"{endpoint} refuses {what} (status {status}): {token}") from error
        raise errors.Unavailable(f"{endpoint} answered with status {status} for {what}: {_line(error)}") from error
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise errors.ResourceExhausted(
                f"no space is left for {what} in {hub.constants.HF_HUB_CACHE}: free some, or set HF_HOME to another folder"
            ) from error
        if isinstance(error, PermissionError):
            raise errors.PermissionDenied(f"{what}: {error}; HF_HOME sets another folder for the cache") from error
        raise errors.Unavailable(f"{what}: {_line(error)}") from error
    except Exception as error:  # of the HTTP library below, whichever that is
        if type(error).__module__.partition(".")[0] in ("httpx", "httpx2", "requests"):
            raise errors.Unavailable(f"{endpoint} cannot be reached for {what}: {_line(error)}") from error
        raise


def _not_in_cache(hub: Any, what: str, endpoint: str, error: BaseException) -> str:
    cache = hub.constants.HF_HUB_CACHE
    lacks = f"{what} is not in the cache {cache}, or not all of it"
    if hub.constants.HF_HUB_OFFLINE:
        return f"{lacks}, and HF_HUB_OFFLINE forbids to fetch it: unset that, or fetch it on a machine with a network"
    return f"{endpoint} cannot be reached, and {lacks}: {_line(error.__cause__ or error)}"


def _line(error: BaseException) -> str:
    """An error in one line."""
    return " ".join(str(error).split())[:300] or type(error).__name__


def _listed(names: Iterable[str]) -> str:
    names = sorted(names)
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return (", ".join(names[:8]) or "no files") + more


def _names_in(hub: Any, name: str, folder: pathlib.Path, token: str | None) -> list[str]:
    """The files of a data set at the commit of a snapshot: from the Hub, or those in the cache without it."""
    try:
        return sorted(hub.HfApi(token=token).list_repo_files(name, repo_type="dataset", revision=folder.name))
    except hub.errors.OfflineModeIsEnabled:
        pass
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in ("httpx", "httpx2", "requests"):
            raise
    return sorted(str(each.relative_to(folder)) for each in folder.rglob("*") if each.is_file())


def _configs(hub: Any, folder: pathlib.Path) -> list[Mapping[str, Any]]:
    """The parts of a data set, as its card has them."""
    if not (folder / "README.md").exists():
        return []
    try:
        card = hub.DatasetCard.load(folder / "README.md", ignore_metadata_errors=True)
    except ValueError:  # not YAML
        return []
    configs = card.data.to_dict().get("configs") or []
    return [each for each in configs if isinstance(each, Mapping) and each.get("data_files")]


def _files_of_split(
    what: str, names: list[str], configs: list[Mapping[str, Any]], split: str, config: str | None
) -> list[str]:
    """The files of a split, or NotFound, which says what there is."""
    data = [each for each in names if each.endswith(_DATA_SUFFIXES) and not pathlib.Path(each).name.startswith(".")]
    if configs:
        by_split = _splits_of_config(what, _chosen_config(what, configs, config), names)
    else:
        if config is not None:
            raise errors.NotFound(f"{what} has no config {config!r}: it has only one")
        by_split = {each: [file for file in data if _split_of(file) == each] for each in map(_split_of, data) if each}
        by_split = by_split or {"train": [file for file in data if "/" not in file or file.startswith("data/")]}
    wanted = next((each for each in by_split if each == split or _canonical(each) == _canonical(split)), None)
    if wanted is None or not by_split[wanted]:
        there = f"the splits {', '.join(by_split)}" if any(by_split.values()) else f"no data in {_listed(names)}"
        raise errors.NotFound(f"{what} has no split {split!r}; it has {there}")
    unreadable = [each for each in by_split[wanted] if each not in data]
    if unreadable:
        raise errors.Unimplemented(f"{what}: {_listed(unreadable)} is none of {', '.join(_DATA_SUFFIXES)}")
    return sorted(by_split[wanted])


def _chosen_config(what: str, configs: list[Mapping[str, Any]], config: str | None) -> Mapping[str, Any]:
    by_name = {str(each.get("config_name", "default")): each for each in configs}
    usual = [name for name, each in by_name.items() if each.get("default") or name == "default"]
    if config is None and len(by_name) > 1 and not usual:
        raise errors.InvalidArgument(f"{what} has several configs; choose one of {', '.join(by_name)}: config=…")
    name = config or (usual or list(by_name))[0]
    if name not in by_name:
        raise errors.NotFound(f"{what} has no config {name!r}; it has {', '.join(by_name)}")
    return by_name[name]


def _splits_of_config(what: str, config: Mapping[str, Any], names: list[str]) -> dict[str, list[str]]:
    """{split: files} of what a card says: a pattern, patterns, or patterns by split."""
    entries = config["data_files"]
    if isinstance(entries, (str, Mapping)):
        entries = [entries]
    folder = str(config.get("data_dir", "")).strip("/")
    found: dict[str, list[str]] = {}
    for entry in entries:
        split, patterns = ("train", entry) if isinstance(entry, str) else (str(entry.get("split", "train")), entry["path"])
        for pattern in [patterns] if isinstance(patterns, str) else patterns:
            pattern = f"{folder}/{pattern}" if folder else pattern
            matching = [each for each in names if fnmatch.fnmatchcase(each, pattern.removeprefix("./").replace("**/", "*"))]
            if not matching:
                raise errors.NotFound(f"{what}: the card names {pattern}, and no file is like it")
            found.setdefault(split, []).extend(each for each in matching if each not in found.get(split, []))
    return found


def _canonical(split: str) -> str:
    return next((each for each, others in _SPLIT_NAMES.items() if split in others), split)


def _split_of(file: str) -> str | None:
    """The split that a file's name tells of: its own beginning, or the name of a folder."""
    path = pathlib.PurePath(file)
    words = [re.split(r"[-_.]", path.name)[0], *reversed(path.parts[:-1])]
    words += re.split(r"[-_.]", path.stem)
    known = [each for word in words for each, others in _SPLIT_NAMES.items() if word.lower() in others]
    return known[0] if known else None
