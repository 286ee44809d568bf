"""Transfer Dock: an experience data system for post-training.

import transfer_dock as td

dock = td.Dock.local()
dock.create_partition("train", {"prompt": "str", "reward": "float32"})
dock.register_consumer("train", "trainer", reads=["prompt", "reward"])
dock.put("train", {"prompt": ["37+85=", "12+30="], "reward": [1.0, 0.0]})
with dock.take("train", "trainer", max=2) as rows:
    print(rows["prompt"].tolist(), rows["reward"].numpy())
"""

import importlib as _importlib
import os as _os
from typing import TYPE_CHECKING as _TYPE_CHECKING

from transfer_dock import _native as _native
from transfer_dock import ray as ray
from transfer_dock._native import Cancel, Column, Rows
from transfer_dock.calls import Partition
from transfer_dock.dock import Dock, Taken
from transfer_dock.errors import (
    AlreadyExists,
    Cancelled,
    DataLoss,
    DeadlineExceeded,
    DockError,
    EndOfData,
    FailedPrecondition,
    InternalError,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    ResourceExhausted,
    Unauthenticated,
    Unavailable,
    Unimplemented,
)
from transfer_dock.schema import ColumnType, column
from transfer_dock.scoring import Score, score
from transfer_dock.server import DockServer, Server, serve
from transfer_dock.stages import Runner, Stage, StageCounts, StageError, run, stage
from transfer_dock.status import ConsumerStatus, ListedRow, PartitionStatus, RowStatus
from transfer_dock.watching import watch

if _TYPE_CHECKING:
    from transfer_dock import hub as hub
    from transfer_dock._training import TrainOutput, TrainingError
    from transfer_dock.config import Config, ConfigWarning, DPOConfig, GRPOConfig, PPOConfig, RewardConfig, SFTConfig
    from transfer_dock.models import Model, ModelServer, serve_model
    from transfer_dock.trainers import DPOTrainer, GRPOTrainer, PPOTrainer, RewardTrainer, SFTTrainer, TrainerCallback

# Names that a dock does not need are imported when they are first used: they would take half of the time of the import.
_LATER = {
    "_training": ("TrainOutput", "TrainingError"),
    "config": ("Config", "ConfigWarning", "DPOConfig", "GRPOConfig", "PPOConfig", "RewardConfig", "SFTConfig"),
    "models": ("Model", "ModelServer", "serve_model"),
    "trainers": ("DPOTrainer", "GRPOTrainer", "PPOTrainer", "RewardTrainer", "SFTTrainer", "TrainerCallback"),
}


def __getattr__(name: str) -> object:
    if name == "hub":
        return _importlib.import_module("transfer_dock.hub")
    for module, names in _LATER.items():
        if name in names:
            found = globals()[name] = getattr(_importlib.import_module(f"transfer_dock.{module}"), name)
            return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


# A child connects anew; see docs/python.md.
_os.register_at_fork(
    before=_native._before_fork,
    after_in_parent=_native._after_fork_in_parent,
    after_in_child=_native._after_fork_in_child,
)

# The group id of a row that was put without a group.
NO_GROUP = 2**64 - 1

__version__ = "0.1.0"

__all__ = [
    "AlreadyExists",
    "Cancel",
    "Cancelled",
    "column",
    "Column",
    "ColumnType",
    "Config",
    "ConfigWarning",
    "ConsumerStatus",
    "DataLoss",
    "DeadlineExceeded",
    "Dock",
    "DockError",
    "DockServer",
    "DPOConfig",
    "DPOTrainer",
    "EndOfData",
    "FailedPrecondition",
    "GRPOConfig",
    "GRPOTrainer",
    "hub",
    "InternalError",
    "InvalidArgument",
    "ListedRow",
    "Model",
    "ModelServer",
    "NO_GROUP",
    "NotFound",
    "Partition",
    "PartitionStatus",
    "PermissionDenied",
    "PPOConfig",
    "PPOTrainer",
    "ray",
    "ResourceExhausted",
    "RewardConfig",
    "RewardTrainer",
    "Rows",
    "RowStatus",
    "run",
    "Runner",
    "Score",
    "score",
    "serve",
    "serve_model",
    "Server",
    "SFTConfig",
    "SFTTrainer",
    "stage",
    "Stage",
    "StageCounts",
    "StageError",
    "Taken",
    "TrainerCallback",
    "TrainingError",
    "TrainOutput",
    "Unauthenticated",
    "Unavailable",
    "Unimplemented",
    "watch",
]
