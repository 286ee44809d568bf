"""How MindSpeed-RL's workers, which are actors of Ray, come to their docks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from transfer_dock.errors import FailedPrecondition


class _NotInitialized(FailedPrecondition, ValueError):
    """A ValueError as in the original."""


class TransferDockWorker:
    """A base class of workers: ``init_transfer_dock`` sets td, mm_td, sampling_transfer_dock and
    mm_sampling_transfer_dock, each a handle or None. Reading td or mm_td that is None is an error.
    """

    _td: Any = None
    _mm_td: Any = None
    sampling_transfer_dock: Any = None
    mm_sampling_transfer_dock: Any = None

    def init_transfer_dock(
        self, td: Any, mm_td: Any = None, sampling_transfer_dock: Any = None, mm_sampling_transfer_dock: Any = None
    ) -> None:
        """Sets the docks."""
        self._td = td
        self._mm_td = mm_td
        self.sampling_transfer_dock = sampling_transfer_dock
        self.mm_sampling_transfer_dock = mm_sampling_transfer_dock

    @property
    def td(self) -> Any:
        """The dock."""
        if self._td is None:
            raise _NotInitialized("this worker has no dock; call init_transfer_dock(td) first")
        return self._td

    @property
    def mm_td(self) -> Any:
        """The dock of images and videos."""
        if self._mm_td is None:
            raise _NotInitialized("this worker has no dock of images; call init_transfer_dock(td, mm_td) first")
        return self._mm_td


class TransferDockWorkers:
    """Workers that get their docks together."""

    def __init__(self, actor_handlers: Sequence[Any]) -> None:
        """actor_handlers: the handles of the workers."""
        self.actor_handlers = list(actor_handlers)

    def async_init_transfer_dock(self, *docks: Any, **named_docks: Any) -> list[Any]:
        """Calls init_transfer_dock of each worker: the references of the calls."""
        return [actor.init_transfer_dock.remote(*docks, **named_docks) for actor in self.actor_handlers]

    def sync_init_transfer_dock(self, *docks: Any, **named_docks: Any) -> None:
        """The same, and waits until all have them."""
        import ray

        ray.get(self.async_init_transfer_dock(*docks, **named_docks))
