"""What the trainers in Python have in common: the run that one starts and follows."""

from __future__ import annotations

import copy
import difflib
import importlib.util
import itertools
import os
import pathlib
import re
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, ClassVar

from transfer_dock import executables, hub
from transfer_dock._child import Child
from transfer_dock._functions_here import FunctionsHere
from transfer_dock._model_folder import folder_of_model
from transfer_dock._progress import Progress
from transfer_dock._records import Records, records_of
from transfer_dock._training import Run, TrainOutput, TrainingError, mean_loss
from transfer_dock.config import Config
from transfer_dock.errors import FailedPrecondition, InvalidArgument
from transfer_dock.models import Model
from transfer_dock.run_folder import Step, is_finished

# TRL's names of metrics, and which of ours each is: the first that a step has.
_LOGGED = {
    "loss": ("train/loss", "actor/pg_loss"),
    "grad_norm": ("train/grad_norm", "actor/grad_norm"),
    "learning_rate": ("train/lr", "actor/lr"),
    "epoch": ("training/epoch",),
    "reward": ("critic/score/mean",),
    "kl": ("actor/kl_loss", "actor/reward_kl_penalty"),
    "entropy": ("actor/entropy",),
    "completions/mean_length": ("response_length/mean",),
    "eval_loss": ("val/loss", "val/pair_loss"),
    "eval_reward": ("val/reward/mean",),
    "eval_accuracy": ("val/accuracy",),
}
_CURVES = [
    ("loss", "train/loss"),
    ("reward", "critic/score/mean"),
    ("policy loss", "actor/pg_loss"),
    ("val accuracy", "val/accuracy"),
    ("val loss", "val/loss"),
    ("val reward", "val/reward/mean"),
    ("no difference", "critic/rewards/equal_share"),
]
_TRACKERS = ("wandb", "mlflow")
_FOLLOWER_SECONDS = 60.0  # after the run
_MERGE_SECONDS = 3600.0
_ARGUMENTS = (
    "model", "args", "train_dataset", "eval_dataset", "processing_class", "peft_config", "callbacks", "formatting_func",
    "reward_funcs", "environment",
)  # fmt: skip
# Parameters of TRL's trainers that these do not have, and their replacements.
_UNSUPPORTED = {
    "data_collator": "samples are packed by the run itself",
    "compute_loss_func": "the loss is the recipe's",
    "compute_metrics": "validations measure what trainer.evaluations names",
    "optimizers": "the configuration has the optimizer's keys, optim.lr and others",
    "optimizer_cls_and_kwargs": "the configuration has the optimizer's keys, optim.lr and others",
    "preprocess_logits_for_metrics": "validations measure what trainer.evaluations names",
    "quantization_config": "weights are trained in the dtype of model.param_dtype",
    "reward_processing_classes": "a reward model has its tokenizer in its folder",
    "tools": "give environment=, a class whose methods are the tools, and whose get_reward() says what an episode was worth",
    "rollout_func": "give environment=, which may ask the model itself",
    "model_init": "give the model",
    "reward_model": "give reward_funcs=, the folder of a reward model",
    "ref_model": "the reference is the model that the run begins with",
}
# Keys of a new model, which one that was trained has in its folder.
_SHAPE = (
    "model.alphabet", "model.hidden_size", "model.intermediate_size", "model.num_hidden_layers",
    "model.num_attention_heads", "model.num_key_value_heads", "model.max_position_embeddings", "model.rms_norm_eps",
    "model.rope_theta", "model.tie_word_embeddings",
)  # fmt: skip


class TrainerCallback:
    """Receives events of a run, in the thread that calls train(). Those of transformers fit as well.

    args: the trainer's. state: global_step, max_steps, epoch, log_history. control: should_training_stop and should_save
    may be set; the run then stops, or saves, after the step that it is in.
    """

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None: ...
    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None: ...
    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """kwargs["logs"]: the figures of the step, under TRL's names."""

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """kwargs["metrics"]: the figures of a validation."""

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None: ...


class Trainer:
    """What the trainers have in common."""

    config_type: ClassVar[type[Config]]

    def __init__(
        self,
        model: Any = None,
        args: Any = None,
        *,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        processing_class: Any = None,
        peft_config: Any = None,
        callbacks: Iterable[Any] | None = None,
        **others: Any,
    ) -> None:
        """model: a folder, a name on the Hub, a model of transformers, or a Model.

        args: a …Config of this package, a TRL configuration, or None. train_dataset, eval_dataset: a list of dicts, a
        datasets.Dataset, a pandas.DataFrame, a pyarrow.Table, a dict of columns, a path, or a name on the Hub.
        processing_class: a tokenizer of transformers that is saved beside the model. peft_config: a LoraConfig of PEFT,
        or a dict of its fields. others: parameters of TRL's trainer, which must be None. Raises InvalidArgument for what
        does not fit together.
        """
        for name, value in others.items():
            if name not in _UNSUPPORTED:
                near = difflib.get_close_matches(name, [*_ARGUMENTS, *_UNSUPPORTED], 1)
                raise TypeError(f"{type(self).__name__} has no argument '{name}'" + (f"; did you mean '{near[0]}'?" if near else ""))
            if value is not None and value != (None, None):
                raise InvalidArgument(f"'{name}' is given, which {type(self).__name__} does not have: {_UNSUPPORTED[name]}")
        self.args = _config_of(args, self.config_type)
        if peft_config is not None:
            self.args.update_from(peft_config)
        self._model, self._tokenizer = model, processing_class
        _loading(self.args)
        self._trackers = _trackers_of(self.args.get("report_to") or [])
        if model is None and "model.path" not in self.args and "model.alphabet" not in self.args:
            raise InvalidArgument("'model' is missing: give a folder, or a name on the Hub")
        if train_dataset is None:
            raise InvalidArgument("'train_dataset' is missing: " + "give a list of dicts, a datasets.Dataset, or a path")
        self._datasets = {"train": train_dataset, "validation": eval_dataset}
        self.callbacks = [one() if isinstance(one, type) else one for one in callbacks or ()]
        self.state = SimpleNamespace(
            global_step=0, max_steps=0, epoch=0.0, log_history=[], is_world_process_zero=True, is_local_process_zero=True
        )
        self.control = SimpleNamespace(should_training_stop=False, should_save=False)
        self._rows: list[dict[str, Any]] = []
        self._given: str | None = None  # the folder of the model that was given, once it was made
        self._trained: Model | None = None
        self._last_reported = -1  # step that callbacks were told of before
        self._folder = _folder_of(self.args.get("trainer.run_dir"), self.args.recipe)
        # For scripts that were written for TRL's: there is one process.
        self.accelerator = SimpleNamespace(print=print, is_main_process=True, wait_for_everyone=lambda: None)

    # ---- the folder ----

    @property
    def output_dir(self) -> str:
        """Where the run, what it reads, and the models of save_model() are."""
        return str(self._folder)

    @property
    def run_folder(self) -> str:
        """The run's own folder, for `tdock runs`, `tdock explain` and `transfer_dock.follow`."""
        return str(self._folder / "run")

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """A dict for each step of the run, with its number as "step": the lines of metrics.jsonl."""
        return self._rows

    @property
    def model_folder(self) -> str:
        """The folder of the trained model: what the run left, or made of its newest checkpoint if it was stopped."""
        run = pathlib.Path(self.run_folder)
        if is_finished(run):
            return str(run / "checkpoint")
        checkpoints = sorted((run / "checkpoints").glob("step-*"))
        if not checkpoints:
            raise FailedPrecondition(f"{run} has no model yet: call train() first")
        model = self._folder / f"model-of-{checkpoints[-1].name}"
        stamp = (checkpoints[-1] / "manifest.json").read_text()
        made_of = model / ".made-of"
        if not made_of.exists() or made_of.read_text() != stamp:
            shutil.rmtree(model, ignore_errors=True)
            # Adapters, or the parts that several ranks have saved, are no model by themselves.
            command = ["merge", "--local-dir", str(checkpoints[-1]), "--target-dir", str(model), "--python", sys.executable]
            merged = subprocess.run(
                [executables.find("tdock"), *command], capture_output=True, text=True, stdin=subprocess.DEVNULL,
                env=executables.environment(), timeout=_MERGE_SECONDS,
            )  # fmt: skip
            if merged.returncode != 0:
                raise FailedPrecondition(merged.stderr.strip())
            made_of.write_text(stamp)
        return str(model)

    @property
    def model(self) -> Model:
        """The trained model, to generate with."""
        folder = self.model_folder
        if self._trained is None or self._trained.folder != folder:
            self._trained = Model(folder)
        return self._trained

    # ---- what a user calls ----

    def train(self, resume_from_checkpoint: bool | str | None = None) -> TrainOutput:
        """Trains until the run ends.

        resume_from_checkpoint: True: goes on from the newest checkpoint in output_dir; or the folder of one. Ctrl-C saves
        and returns; a second one ends the run and is raised. What a reward function, an environment or a callback raises
        is raised here; the run is stopped. Raises TrainingError for an error of the run.
        """
        run = pathlib.Path(self.run_folder)
        if resume_from_checkpoint is None or resume_from_checkpoint is False:
            if run.exists() and any(run.iterdir()):
                raise FailedPrecondition(
                    f"{run} has a run already: train(resume_from_checkpoint=True) goes on with it; for a new one, give "
                    "another output_dir or remove that"
                )
        elif not (run / "config.yaml").exists() and resume_from_checkpoint is True:
            raise FailedPrecondition(f"{run} has no run to go on with: call train() without resume_from_checkpoint")
        self._rows.clear()
        self.state.log_history.clear()
        self.control.should_training_stop = self.control.should_save = False
        self._last_reported = _step_of(resume_from_checkpoint, run) if resume_from_checkpoint else -1
        with FunctionsHere(self._folder / "programs") as functions:
            keys = self._all_keys(functions)
            if isinstance(resume_from_checkpoint, str):
                keys["trainer.resume_mode"] = os.path.abspath(resume_from_checkpoint)
            elif resume_from_checkpoint:
                keys["trainer.resume_mode"] = "auto"
            return self._follow(keys, run, functions, goes_on=bool(resume_from_checkpoint))

    def evaluate(self, eval_dataset: Any = None) -> dict[str, float]:
        """Validates the trained model, or before train() the given one. Returns the figures, "val/loss" for example.

        eval_dataset: default: that of the trainer.
        """
        held_out = "data.val_files" in self.args or "data.val_share" in self.args
        if eval_dataset is None and self._datasets["validation"] is None and not held_out:
            raise InvalidArgument("'eval_dataset' is missing: give one here or to the trainer")
        with FunctionsHere(self._folder / "programs") as functions:
            folder = _next_folder(self._folder, "evaluation")
            keys = self._all_keys(functions, trained=pathlib.Path(self.run_folder).exists())
            if eval_dataset is not None:
                file = folder / "validation.jsonl"
                keys["data.val_files"] = records_of(self._formatted(eval_dataset), file, what="eval_dataset", split="test").files
            keys.update({"trainer.val_only": True, "trainer.resume_mode": "disable"})
            rows: list[Step] = []
            self._run_and_follow(keys, folder / "run", functions, rows.append, goes_on=False)
        return {name: value for name, value in rows[-1].metrics.items() if name.startswith("val/")} if rows else {}

    def save_model(self, output_dir: str | None = None) -> str:
        """Copies the trained model to a folder, default output_dir, as transformers and `tdock` open it. Returns that."""
        folder = pathlib.Path(output_dir or self._folder)
        folder.mkdir(parents=True, exist_ok=True)
        for file in pathlib.Path(self.model_folder).iterdir():
            if file.is_file() and not file.name.startswith("."):
                shutil.copy2(file, folder / file.name)
        return str(folder)

    def push_to_hub(
        self, repo_id: str | None = None, *, private: bool | None = None, token: str | None = None, dataset_name: str | None = None
    ) -> str:
        """Uploads the trained model, with a card that holds the run's figures. Returns its address.

        repo_id: default: the configuration's hub_model_id, or the name of output_dir. private: of a new repository;
        default: as the account says. dataset_name: for the card.
        """
        name = repo_id or self.args.get("hub_model_id") or self._folder.name
        card = hub.model_card(self.run_folder, datasets=[dataset_name] if dataset_name else [])
        given = self.args.get
        return hub.push(
            self.model_folder, name, private=given("hub_private_repo") if private is None else private, token=token or given("hub_token"),
            revision=given("hub_revision"), card=card,
        )  # fmt: skip

    def end(self) -> None:
        """Nothing: for scripts that were written for TRL's."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} in {self._folder}, step {self.state.global_step}>"

    # ---- the run ----

    def _all_keys(self, functions: FunctionsHere, *, trained: bool = False) -> Config:
        """The configuration of a run. Writes the data, and makes programs of functions."""
        inputs = self._folder / "data"
        train = records_of(self._formatted(self._datasets["train"]), inputs / "train.jsonl", what="train_dataset", split="train")
        keys = Config(self.args.recipe, keys=self.args.to_keys(samples=train.rows))
        given = self.model_folder if trained else self._given_model()
        if given is not None:
            keys["model.path"] = given
            for shape in _SHAPE if trained else ():
                keys[shape] = None
        keys["data.train_files"] = train.files
        if self._datasets["validation"] is not None:
            held_out = self._formatted(self._datasets["validation"])
            keys["data.val_files"] = records_of(held_out, inputs / "validation.jsonl", what="eval_dataset", split="test").files
        self._add_functions(keys, train, functions)
        _fit_batch(keys, train.rows)
        return keys

    def _add_functions(self, keys: Config, records: Records, functions: FunctionsHere) -> None:
        """Adds reward functions and the environment to the keys."""

    def _formatted(self, dataset: Any) -> Any:
        """A data set as the run is to read it."""
        return dataset

    def _given_model(self) -> str | None:
        if self._given is None:
            named = [self.args.get("model_revision"), self.args.get("revision"), _loading(self.args).get("revision")]
            revision = next((each for each in named if each not in (None, "main")), None)
            self._given = folder_of_model(self._model, self._tokenizer, self._folder / "begin", revision)
        return self._given

    def _follow(self, keys: Config, folder: pathlib.Path, functions: FunctionsHere, *, goes_on: bool) -> TrainOutput:
        self._call("on_train_begin")
        interrupted = self._run_and_follow(keys, folder, functions, self._note_step, goes_on=goes_on)
        self._call("on_train_end")
        if not interrupted and self.args.get("push_to_hub"):
            self.push_to_hub()
        last = {name: value for name, value in self._rows[-1].items() if name != "step"} if self._rows else {}
        return TrainOutput(self.state.global_step, mean_loss(self._rows), last, interrupted)

    def _run_and_follow(
        self, keys: Config, folder: pathlib.Path, functions: FunctionsHere, on_step: Callable[[Step], None], *, goes_on: bool
    ) -> bool:
        """Whether it was interrupted."""
        keys["trainer.run_dir"] = str(folder)
        folder.parent.mkdir(parents=True, exist_ok=True)
        file = folder.with_suffix(".yaml")
        keys.save(file)
        progress = Progress(self.args.recipe, _CURVES, shown=not self.args.get("disable_tqdm"))
        followers: list[Child] = []
        try:
            if on_step == self._note_step:
                followers.extend(self._follower(folder, name) for name in self._trackers)
            self._run = Run(file, folder, progress, functions.environment(), goes_on)
            interrupted = self._run.follow(on_step, lambda: functions.error is not None)
            ending = f"It ended the run in {folder}"
        except TrainingError as error:
            if functions.error is None:
                raise
            ending = f"It ended the run in {folder}, whose error is: {error}"
        finally:
            for follower in followers:
                sent = (folder / "config.yaml").exists() and follower.wait(_FOLLOWER_SECONDS) == 0
                if follower.end(5.0) != 0 and not sent:
                    warnings.warn(f"a tracker did not get all of {folder}: {' '.join(follower.lines)}", stacklevel=3)
            progress.close()
        if functions.error is not None:
            functions.error.add_note(ending)
            raise functions.error from None
        return interrupted

    def _follower(self, run: pathlib.Path, tracker: str) -> Child:
        """A program that sends the run's metrics to a tracker."""
        run_name = ["--name", str(self.args.get("run_name"))] if self.args.get("run_name") else []
        command = [sys.executable, "-m", "transfer_dock.follow", str(run), f"--{tracker}", *run_name]
        return Child(command, lambda line: None)

    def _note_step(self, step: Step) -> None:
        self._rows.append({"step": step.number, **step.metrics})
        self.state.global_step = step.number
        self.state.max_steps = self._run.total
        self.state.epoch = step.metrics.get("training/epoch", self.state.epoch)
        logs: dict[str, float] = {"step": step.number}
        for name, ours in _LOGGED.items():
            value = next((step.metrics[one] for one in ours if one in step.metrics), None)
            if value is not None:
                logs[name] = value
        self.state.log_history.append(logs)
        if step.number <= self._last_reported:
            return
        if step.number > 0:
            self._call("on_step_end")
            self._call("on_log", logs=logs)
        validated = {name: value for name, value in step.metrics.items() if name.startswith("val/")}
        if validated:
            self._call("on_evaluate", metrics=validated)
        if self.control.should_save:
            self.control.should_save = False
            self._run.save()
        if self.control.should_training_stop:
            self._run.stop()

    def _call(self, event: str, **kwargs: Any) -> None:
        for callback in self.callbacks:
            method = getattr(callback, event, None)
            if method is not None:
                method(self.args, self.state, self.control, model=None, **kwargs)


def _loading(args: Config) -> Mapping[str, Any]:
    """TRL's model_init_kwargs. Raises InvalidArgument for one that would change the weights."""
    given: Mapping[str, Any] = args.get("model_init_kwargs") or {}
    for name, value in given.items():
        harmless = name in ("revision", "attn_implementation", "device_map", "use_cache") or not value
        if not harmless and not (name in ("dtype", "torch_dtype") and str(value) in ("auto", "float32", "torch.float32")):
            raise InvalidArgument(
                f"'model_init_kwargs' has {name}={value!r}, which has no equal here; model.param_dtype and model.compute_dtype "
                "are the dtypes of a run"
            )
    return given


def _trackers_of(report_to: str | Sequence[str]) -> list[str]:
    names = [report_to] if isinstance(report_to, str) else list(report_to)
    for name in names:
        if name not in (*_TRACKERS, "tensorboard", "none"):
            raise InvalidArgument(f"'report_to' names {name!r}; there are {', '.join(_TRACKERS)}, and files for TensorBoard always")
        if name in _TRACKERS and importlib.util.find_spec(name) is None:
            raise InvalidArgument(f"'report_to' names {name}, which is not installed: pip install {name}")
    return [name for name in names if name in _TRACKERS]


def _step_of(checkpoint: bool | str, run: pathlib.Path) -> int:
    """The step of a checkpoint, or of the newest; -1 if there is none."""
    folders = [pathlib.Path(checkpoint)] if isinstance(checkpoint, str) else (run / "checkpoints").glob("step-*")
    steps = [found for folder in folders if (found := re.match(r"step-(\d+)", folder.name))]
    return max((int(found[1]) for found in steps), default=-1)


def _fit_batch(keys: Config, rows: int | None) -> None:
    """Makes the batch of few rows small, if nobody has said how large it is."""
    key = "data.train_batch_size"
    if key not in keys and rows is not None and rows < keys.get(key):
        keys[key] = rows


def _folder_of(output_dir: str | None, recipe: str) -> pathlib.Path:
    """The folder that is named, or the next free runs/RECIPE-NNN."""
    if output_dir is not None:
        return pathlib.Path(output_dir).expanduser().absolute()
    return _next_folder(pathlib.Path("runs").absolute(), recipe)


def _next_folder(parent: pathlib.Path, name: str) -> pathlib.Path:
    """Makes the next free NAME-NNN."""
    parent.mkdir(parents=True, exist_ok=True)
    for number in itertools.count(1):
        folder = parent / f"{name}-{number:03d}"
        try:
            folder.mkdir()
            return folder
        except FileExistsError:
            continue
    raise AssertionError


def _config_of(args: Any, kind: type[Config]) -> Config:
    """A configuration of this project, which is a copy, of what was given as `args`."""
    if args is None:
        return kind()
    if isinstance(args, Mapping):
        return kind(**args)
    if not isinstance(args, Config):
        return kind.from_trl(args)
    if args.recipe not in kind._RECIPES:
        raise InvalidArgument(f"'args' is for the recipe {args.recipe}; give a {kind.__name__}")
    return copy.deepcopy(args)
