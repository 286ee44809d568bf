"""Samplers other than first come, first served: the process that called ``init`` asks them for everybody.

A sampler is an object with a memory, so there is one, in one process. Others ask through the dock: a request is a row of
the partition SERVICE, and its answer another cell of it.

    client   puts a row with the cell "request", waits for its cell "answer", clears the row
    host     is the consumer "host": takes rows with requests, puts the answers under its lease

Requests and answers are pickled.
"""

from __future__ import annotations

import itertools
import logging
import os
import pickle
import threading
from collections.abc import Sequence
from typing import Any

import transfer_dock as td
from transfer_dock.compat.transfer_queue import _labels
from transfer_dock.compat.transfer_queue._store import ATTEMPTS, SERVICE, Store, service_cell
from transfer_dock.compat.transfer_queue._tasks import Tasks
from transfer_dock.compat.transfer_queue.sampler import (
    BaseSampler,
    GRPOGroupNSampler,
    RankAwareSampler,
    SeqlenBalancedSampler,
)

logger = logging.getLogger(__name__)

_CONSUMER = "host"
# For how long a client waits until the process with the sampler answers.
_ANSWER_WITHIN = 30.0
_WAIT_SLICE = 0.5
# How long to wait until the next try where the dock cannot be reached.
_AGAIN_AFTER = 1.0
# These choose the same when they are shown the first samples that suffice, and none when those do not.
_FROM_THE_FRONT = (GRPOGroupNSampler, RankAwareSampler, SeqlenBalancedSampler)


class PartitionView:
    """What a sampler may ask of a partition, beside the indexes that are ready."""

    def __init__(self, store: Store, partition_id: str, listed: Sequence[Any]) -> None:
        self.partition_id = partition_id
        self._store = store
        self._tags = {one.row: one.tags for one in listed}

    @property
    def global_indexes(self) -> set[int]:
        """All samples of the partition."""
        return {one.row for one in self._store.listing(self.partition_id)}

    def get_custom_meta(self, global_indices: Sequence[int]) -> dict[int, dict[str, Any]]:
        """What users noted on samples: those on which something is noted."""
        missing = [index for index in global_indices if index not in self._tags]
        if missing:
            rows = self._store.describe(self.partition_id, missing)
            self._tags.update(zip((int(row) for row in rows.ids), rows.tags, strict=True))
        notes = {index: _labels.notes_of(self._tags[index]) for index in global_indices}
        return {index: note for index, note in notes.items() if note}

    def kv_retrieve_keys(self, global_indexes: Sequence[int]) -> list[str | None]:
        """The key of each sample."""
        return list(self._store.describe(self.partition_id, global_indexes).keys)


class SamplerHost:
    """Asks the sampler, in this process. Thread-safe; calls of the sampler do not overlap."""

    def __init__(self, store: Store, sampler: BaseSampler) -> None:
        self._store = store
        self._tasks = Tasks(store)
        self._sampler = sampler
        self._mu = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    # ---- What can be asked: also by name, in requests.

    def sample(
        self, partition: str, task: str, fields: list[str], batch_size: int, config: dict[str, Any]
    ) -> list[int] | None:
        """The samples that the sampler chose, which the task has consumed now; none if it found nothing to choose.

        None if fewer than ``batch_size`` are ready. Raises RuntimeError for what the sampler raises.
        """
        with self._mu:
            for attempt in itertools.count():
                try:
                    self._tasks.ensure_general(partition, task)
                    return self._sample(partition, task, fields, batch_size, config)
                except td.NotFound:
                    self._tasks.forget(partition)
                    if not self._store.exists(partition):
                        return None
                    if attempt == ATTEMPTS:
                        raise
            return None

    def clear_cache(self, partition: str) -> None:
        """The partition was cleared."""
        with self._mu:
            self._sampler.clear_cache(partition)

    def save(self) -> bytes:
        """The sampler's memory, pickled."""
        with self._mu:
            return pickle.dumps(self._sampler.save_checkpoint())

    def load(self, state: bytes) -> None:
        with self._mu:
            self._sampler.load_checkpoint(pickle.loads(state))

    def _sample(
        self, partition: str, task: str, fields: list[str], batch_size: int, config: dict[str, Any]
    ) -> list[int] | None:
        sampler = self._sampler
        cached = sampler.has_cached_result(partition, task, config)
        if not set(fields) <= self._store.types(partition).keys():
            listing = iter(())
        else:
            name = self._tasks.general_name(task)
            listing = self._store.listing(partition, having=list(dict.fromkeys(fields)), ready_for=name)
        all_at_once = type(sampler) not in _FROM_THE_FRONT
        shown: list[Any] = []
        step = max(64, 2 * batch_size)
        while True:
            more = list(listing if all_at_once else itertools.islice(listing, step))
            shown += more
            if len(shown) < batch_size and not cached:
                return None
            ready = [one.row for one in shown]
            view = PartitionView(self._store, partition, shown)
            try:
                chosen, consumed = sampler(ready, batch_size, partition=view, **config)
            except Exception as error:  # whatever a user's sampler raises belongs to whoever asked
                raise RuntimeError(f"{type(error).__name__}: {error}") from error
            if chosen or all_at_once or len(more) < step:
                break
            step *= 2
        # What it handed out before is taken already.
        before = set(ready)
        taken = [row for row in dict.fromkeys(consumed) if row in before]
        if taken:
            self._tasks.take_these(partition, task, taken)
        return [int(row) for row in chosen]

    # ---- Serving others.

    def start(self) -> None:
        self._store.dock.register_consumer(SERVICE, _CONSUMER, reads=["request"], writes=["answer"], lease_seconds=60)
        self._thread = threading.Thread(target=self._serve, name="transfer-queue-sampler", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        if self._thread is not None and self._thread.is_alive():
            self._thread.join(timeout=2 * _WAIT_SLICE + 1)

    def _serve(self) -> None:
        pid = os.getpid()
        failing = False
        while not self._stop.is_set() and os.getpid() == pid:
            try:
                taken = self._store.dock.take(SERVICE, _CONSUMER, 16, timeout=_WAIT_SLICE)
                failing = False
            except td.DeadlineExceeded:
                failing = False
                continue
            except td.DockError as error:
                if not failing and not self._stop.is_set():
                    logger.error("the process with the sampler does not reach the dock, and goes on trying: %s", error)
                failing = True
                self._stop.wait(_AGAIN_AFTER)
                continue
            for i, row in enumerate(taken.ids):
                answer = self._answer(taken["request"].raw(i) or b"")
                try:
                    taken.put({"answer": [answer]}, rows=[int(row)])
                except td.DockError as error:
                    logger.warning("a request for samples was not answered: %s", error)

    def _answer(self, request: bytes) -> bytes:
        try:
            verb, arguments = pickle.loads(request)
            if verb not in ("sample", "clear_cache", "save", "load"):
                raise ValueError(f"'{verb}' cannot be asked of a sampler")
            return pickle.dumps((True, getattr(self, verb)(*arguments)))
        except RuntimeError as error:
            return pickle.dumps((False, str(error)))
        except Exception as error:  # also what a malformed request leads to
            return pickle.dumps((False, f"{type(error).__name__}: {error}"))


class SamplerClient:
    """Asks the sampler of another process."""

    def __init__(self, store: Store) -> None:
        self._dock = store.dock

    def ask(self, verb: str, *arguments: Any) -> Any:
        """Raises RuntimeError for what went wrong there, and if nobody answers."""
        rows = self._dock.put(SERVICE, {"request": [pickle.dumps((verb, arguments))]})
        try:
            answer = service_cell(self._dock, int(rows[0]), "answer", _ANSWER_WITHIN)
        except td.DeadlineExceeded:
            raise RuntimeError(
                f"the process that called init(), which has the sampler, did not answer within {_ANSWER_WITHIN:.0f} s"
            ) from None
        finally:
            self._dock.clear(SERVICE, rows=rows)
        good, result = pickle.loads(answer)
        if not good:
            raise RuntimeError(result)
        return result

    def sample(
        self, partition: str, task: str, fields: list[str], batch_size: int, config: dict[str, Any]
    ) -> list[int] | None:
        result: list[int] | None = self.ask("sample", partition, task, fields, batch_size, config)
        return result

    def clear_cache(self, partition: str) -> None:
        self.ask("clear_cache", partition)

    def save(self) -> bytes:
        return bytes(self.ask("save"))

    def load(self, state: bytes) -> None:
        self.ask("load", state)
