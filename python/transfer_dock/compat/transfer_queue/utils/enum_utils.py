"""Names of roles and states."""

from __future__ import annotations

from enum import Enum
from typing import Any


class ExplicitEnum(str, Enum):
    """Raises ValueError with the values that there are, for one that there is not."""

    @classmethod
    def _missing_(cls, value: object) -> Any:
        raise ValueError(f"{value} is not a valid {cls.__name__}, please select one of {[one.value for one in cls]}")


class Role(ExplicitEnum):
    CONTROLLER = "TransferQueueController"
    STORAGE = "TransferQueueStorage"
    CLIENT = "TransferQueueClient"


class ProductionStatus(ExplicitEnum):
    """Of a field of a sample."""

    NOT_PRODUCED = 0
    READY_FOR_CONSUME = 1
