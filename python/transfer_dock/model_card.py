"""The model card of a run: what README.md of its model says on the Hugging Face Hub."""

from __future__ import annotations

import json
import math
import os
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from transfer_dock.config import Config
from transfer_dock.errors import NotFound
from transfer_dock.run_folder import MetricsFile, Step

_TITLES = {
    "sft": "supervised fine-tuning",
    "rm": "training as a reward model",
    "dpo": "direct preference optimization",
    "ppo": "proximal policy optimization",
    "grpo": "group relative policy optimization",
    "dapo": "DAPO",
}
# Figures of steps that a card shows, as far as there are any.
_SHOWN = (
    *("train/loss", "critic/score/mean", "critic/rewards/mean", "actor/pg_loss", "actor/kl_loss", "actor/entropy"),
    *("response_length/mean", "train/accuracy", "train/margin"),
)
_ROWS = 10
# Settings of the machine, which say nothing about the model.
_OF_MACHINE = ("threads", "intra_op_threads", "device", "trainer.run_dir", "trainer.serve", "trainer.dock", "model.path")
_CACHED = re.compile(r"(?:models|datasets)--([^/]+?)(?:--([^/]+))?/snapshots/")


def model_card(run: str | os.PathLike[str], datasets: Sequence[str] = ()) -> str:
    """The text of a card, from a run's folder: what it trained from, what it measured, and with which settings.

    datasets: names on the Hub of what was trained on, beside those that the run's configuration tells of.
    Raises NotFound if it is no run's folder.
    """
    folder = pathlib.Path(run)
    if not (folder / "config.yaml").exists():
        raise NotFound(f"{folder} is not the folder of a run: it has no config.yaml")
    config = Config.from_yaml(folder / "config.yaml")
    steps = MetricsFile(folder / "metrics.jsonl", -1)
    read = [step for block in iter(steps.read, []) for step in block]
    base = _name_in_cache(config.model.path)
    named = sorted({*datasets, *(name for file in config.data.train_files if (name := _name_in_cache(str(file))))})
    lines = [
        *_front_matter(config, base, named),
        f"# {folder.resolve().name}",
        "",
        _told(config, base, named, len([step for step in read if step.number > 0])),
        "",
        *_validation(folder, read),
        *_steps(read),
        *_settings(config),
        "## Use",
        "",
        "The folder opens with `transformers`, and `tdock chat`, `tdock generate` and `tdock serve` take it as it is.",
        "",
    ]
    return "\n".join(lines)


def _name_in_cache(path: str) -> str | None:
    """The name on the Hub of a file or folder that is in its cache, or is a name."""
    found = _CACHED.search(path + "/")
    if found:
        return "/".join(part for part in found.groups() if part)
    is_name = re.fullmatch(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", path) and not os.path.exists(path)
    return path if is_name and "." not in path.partition("/")[2][-6:] else None


def _front_matter(config: Config, base: str | None, datasets: list[str]) -> list[str]:
    tags = ["transfer-dock", config.recipe] + (["lora"] if config.model.lora_rank else [])
    lines = ["---", "library_name: transformers"]
    if config.recipe != "rm":
        lines.append("pipeline_tag: text-generation")
    if base:
        lines.append(f"base_model: {base}")
    for name, values in (("datasets", datasets), ("tags", tags)):
        lines += [f"{name}:", *(f"- {value}" for value in values)] if values else []
    return [*lines, "---", ""]


def _told(config: Config, base: str | None, datasets: list[str], steps: int) -> str:
    start = f"[{base}](https://huggingface.co/{base})" if base else None
    start = start or (f"`{pathlib.Path(config.model.path).name}`" if config.model.path else "random weights")
    data = ", ".join(f"[{each}](https://huggingface.co/datasets/{each})" for each in datasets)
    data = data or ", ".join(f"`{pathlib.Path(str(file)).name}`" for file in config.data.train_files)
    on = f" on {data}" if data else ""
    return (
        f"Trained from {start}{on} by {_TITLES[config.recipe]} (recipe `{config.recipe}`) in {steps:,} steps, "
        "with Transfer Dock."
    )


def _validation(folder: pathlib.Path, steps: list[Step]) -> list[str]:
    """A table of the first and the last figures of validation."""
    before, after = _evaluation(folder)
    validated = [step for step in steps if any(name.startswith("val/") for name in step.metrics)]
    if not after and validated:
        before, after = validated[0].metrics, validated[-1].metrics
    names = [name for name in sorted({**before, **after}) if name.startswith("val/")]
    if not names:
        return []
    rows = [f"| {name.removeprefix('val/')} | {_figure(before.get(name))} | {_figure(after.get(name))} |" for name in names]
    return ["## Validation", "", "| | before training | after |", "|---|---|---|", *rows, ""]


def _evaluation(folder: pathlib.Path) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    try:
        measured = json.loads((folder / "evaluation.json").read_text())
        return measured.get("before") or {}, measured.get("after") or {}
    except (FileNotFoundError, ValueError, AttributeError):
        return {}, {}


def _steps(steps: list[Step]) -> list[str]:
    """A table of some of the steps, evenly spread, with the last."""
    trained = [step for step in steps if step.number > 0]
    names = [name for name in _SHOWN if any(name in step.metrics for step in trained)]
    if not trained or not names:
        return []
    count = min(_ROWS, len(trained))
    shown = [trained[round((i + 1) * len(trained) / count) - 1] for i in range(count)]
    figures = [[str(step.number), *(_figure(step.metrics.get(name)) for name in names)] for step in shown]
    rows = [f"| {' | '.join(row)} |" for row in figures]
    return ["## Training", "", f"| step | {' | '.join(names)} |", f"|{'---|' * (len(names) + 1)}", *rows, ""]


def _figure(value: Any) -> str:
    if not isinstance(value, (int, float)) or not math.isfinite(value):
        return ""
    return f"{value:.4g}"


def _settings(config: Config) -> list[str]:
    """The keys that differ from their defaults."""
    rows = [
        f"| `{key}` | `{json.dumps(value, ensure_ascii=False)}` |"
        for key, value in config.items()
        if value != config.default(key) and key not in _OF_MACHINE and not _is_path(value)
    ]
    return ["## Settings", "", "| key | value |", "|---|---|", *rows, ""] if rows else []


def _is_path(value: Any) -> bool:
    """Whether it names files of the machine that trained, which are nobody's business."""
    values = value if isinstance(value, list) else [value]
    return any(isinstance(each, str) and "/" in each for each in values)
