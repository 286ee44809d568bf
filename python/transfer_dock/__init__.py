"""Transfer Dock: an experience data system for post-training.

import transfer_dock as td

dock = td.Dock.local()
dock.create_partition("train", {"prompt": "str", "reward": "float32"})
dock.register_consumer("train", "trainer", reads=["prompt", "reward"])
dock.put("train", {"prompt": ["37+85=", "12+30="], "reward": [1.0, 0.0]})
with dock.take("train", "trainer", max=2) as rows:
    print(rows["prompt"].tolist(), rows["reward"].numpy())
"""

import os as _os

from transfer_dock import _native as _native
from transfer_dock import hub as hub
from transfer_dock import ray as ray
from transfer_dock._native import Cancel, Column, Rows
from transfer_dock.calls import Partition
from transfer_dock.config import (
    Config,
    ConfigWarning,
    DPOConfig,
    GRPOConfig,
    PPOConfig,
    RewardConfig,
    SFTConfig,
)
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
    "Column",
    "ColumnType",
    "Config",
    "ConfigWarning",
    "ConsumerStatus",
    "DPOConfig",
    "DataLoss",
    "DeadlineExceeded",
    "Dock",
    "DockError",
    "DockServer",
    "EndOfData",
    "FailedPrecondition",
    "GRPOConfig",
    "InternalError",
    "InvalidArgument",
    "ListedRow",
    "NO_GROUP",
    "NotFound",
    "PPOConfig",
    "Partition",
    "PartitionStatus",
    "PermissionDenied",
    "ResourceExhausted",
    "RewardConfig",
    "RowStatus",
    "Rows",
    "SFTConfig",
    "Runner",
    "Score",
    "Server",
    "Stage",
    "StageCounts",
    "StageError",
    "Taken",
    "Unauthenticated",
    "Unavailable",
    "Unimplemented",
    "column",
    "hub",
    "ray",
    "run",
    "score",
    "serve",
    "stage",
    "watch",
]
