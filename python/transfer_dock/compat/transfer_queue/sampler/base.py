"""The base class of samplers: rules by which a task's next samples are chosen."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any


class BaseSampler(ABC):
    """Chooses among the samples that are ready for a task.

    Derive from it, define ``sample``, and give the class or an object to ``init`` as ``controller.sampler``. One object
    serves all tasks, in the process that called ``init``; its calls do not overlap. What it remembers between calls
    goes into ``_states``, by partition, task, data-parallel rank and number of the batch, or is added to what
    ``save_checkpoint`` returns.
    """

    def __init__(self) -> None:
        self._states: dict[Any, Any] = {}

    @abstractmethod
    def sample(
        self, ready_indexes: list[int], batch_size: int, *args: Any, **kwargs: Any
    ) -> tuple[list[int], list[int]]:
        """Chooses samples, and tells which of them the task has then consumed.

        ``ready_indexes`` ascend: samples that have all fields that were asked for, and that the task has not consumed.
        ``kwargs`` are the ``sampling_config`` of the call, and ``partition``, which has ``partition_id``,
        ``global_indexes``, ``get_custom_meta(indexes)`` and ``kv_retrieve_keys(indexes)``. Two empty lists mean that
        there is nothing to hand out yet.
        """

    def __call__(self, *args: Any, **kwargs: Any) -> tuple[list[int], list[int]]:
        return self.sample(*args, **kwargs)

    def has_cached_result(
        self, partition_id: str, task_name: str, sampling_config: dict[str, Any] | None = None
    ) -> bool:
        """Whether this batch of this rank was chosen before, so that it can be returned without any ready samples."""
        config = sampling_config or {}
        rank = config.get("dp_rank")
        if rank is None:
            return False
        batches = self._states.get(partition_id, {}).get(task_name, {}).get(rank, {})
        return config.get("batch_index") in batches

    def clear_cache(self, partition_id: str) -> None:
        """Discards its state for a partition: called when the partition is cleared."""
        self._states.pop(partition_id, None)

    def save_checkpoint(self) -> dict[str, Any]:
        """Its state, which is pickled into checkpoints."""
        return {"_states": self._states}

    def load_checkpoint(self, state: dict[str, Any]) -> None:
        """Takes over what ``save_checkpoint`` returned."""
        self._states = state["_states"]

    def _batches_of(self, partition_id: str, task_name: str, rank: Any) -> dict[Any, Any]:
        of_task = self._states.setdefault(partition_id, {}).setdefault(task_name, {})
        batches: dict[Any, Any] = of_task.setdefault(rank, {})
        return batches
