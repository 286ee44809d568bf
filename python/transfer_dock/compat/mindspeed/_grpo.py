"""The docks of GRPO, PPO and DAPO, which hand rows to consumers."""

from __future__ import annotations

import copy
import functools
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from tensordict import TensorDict

from transfer_dock import _native
from transfer_dock.compat.mindspeed._actors import Actor
from transfer_dock.compat.mindspeed._batches import (
    LENGTHS,
    padding_dict_to_tensor_dict,
    put_prompts_experience,
    remove_padding_tensor_dict_to_dict,
    trans_input_to_experience,
)
from transfer_dock.compat.mindspeed._cells import column_of
from transfer_dock.compat.mindspeed._docks import TransferDock, as_flags
from transfer_dock.compat.mindspeed._indexes import Indexes, UnknownName, handle_of, named, whole
from transfer_dock.compat.mindspeed._views import Flags
from transfer_dock.dock import Dock
from transfer_dock.errors import FailedPrecondition, InvalidArgument


def _tensors(rows: _native.Rows, lengths: Any) -> dict[str, Any]:
    """Copies of the columns as tensors, str and bytes as lists, and the lengths if there are any."""
    batch = {name: column_of(rows[name]) for name in rows.columns}
    return batch if lengths is None else batch | {LENGTHS: torch.from_numpy(lengths)}


class Metric:
    """Values by name, which a dock without ``metrics`` of its program keeps."""

    def __init__(self) -> None:
        self.metric: dict[str, Any] = {}

    def update(self, key: str = "", value: Any = None, cumulate: bool = False) -> None:
        """Sets a value, or the values of a dict; cumulate: adds a list of values, or one value, to the values before."""
        for name, one in (value if isinstance(value, Mapping) else {key: value}).items():
            there = self.metric.get(name, [])
            if not cumulate or not isinstance(there, list):
                self.metric[name] = one
            else:
                self.metric[name] = [*there, *(one if isinstance(one, Sequence | torch.Tensor) else [one])]

    def reset(self) -> None:
        """Forgets all values."""
        self.metric = {}


class GRPOTransferDock(TransferDock, Actor):
    """The dock of GRPO: its columns and consumers, and any additional ones.

    A get without indexes calls the ``_sample_ready_index`` or ``_sample_ready_index_n_samples`` of a class of one's own,
    which chooses the rows, or returns None if there are not enough; timeout then does not count. The rows of an
    actor_rollout with max_age above 1 are the dock's choice.

    Attributes: experience_consumers: the names of the consumers; consumer_sampling_lock: by consumer, the lock
    that a class of one's own holds while it chooses rows and marks them in experience_consumer_status.
    """

    _kind = "grpo"

    def __init__(
        self,
        prompts_num: int,
        n_samples_per_prompt: int,
        metrics: Any = None,
        max_age: int = 1,
        GBS_train: int = 0,
        addition_columns: Sequence[str] | None = None,
        addition_consumers: Sequence[str] | None = None,
        timeout: float | None = None,
        timeout_interval: float | None = None,
        *,
        dock: Dock | None = None,
        partition: str | None = None,
        lease_seconds: float = 3600.0,
        seed: int = 0,
    ) -> None:
        """metrics: an object with ``update`` and ``reset``, as Metric has; None: a Metric. max_age, GBS_train: if
        max_age is above 1, unfinished responses are resumed, and GBS_train prompts make a training batch.
        lease_seconds: how long a consumer may hold rows. seed: of random choices. The others as for TransferDock.
        """
        self.timeout_interval = 5 if timeout_interval is None else timeout_interval
        self.metrics = Metric() if metrics is None else metrics
        self.cur_index = 0
        self._make(
            prompts_num, n_samples_per_prompt, [], addition_columns or [], addition_consumers or [], max_age, GBS_train,
            timeout, dock, partition, lease_seconds, seed,
        )  # fmt: skip
        self.enable_partial_rollout = self.max_age > 1
        self.experience_consumers: list[str] = list(self._native.consumer_status())
        self.consumer_sampling_lock = {name: threading.RLock() for name in self.experience_consumers}

    def _consumer(self, name: Any) -> str:
        """A consumer that there is."""
        if not isinstance(name, str) or name not in self.consumer_sampling_lock:
            known = ", ".join(self.consumer_sampling_lock)
            raise UnknownName(f"dock '{self.partition}' has no consumer {name!r}; it has {known}")
        return name

    def put_prompts_experience(
        self,
        batch: Mapping[str, Any],
        n_samples_per_prompt: int | None = None,
        dataset_additional_keys: Sequence[str] | None = None,
        indexes: Sequence[int] | None = None,
        add_another_batch: bool = False,
    ) -> Indexes:
        """Puts the rows that the function of this name makes of the batch, with the dock's n."""
        n = self.n_samples_per_prompt
        if n_samples_per_prompt not in (None, n):
            raise InvalidArgument(f"this dock has {n} samples of a prompt, not {n_samples_per_prompt}")
        data, where = put_prompts_experience(batch, n, dataset_additional_keys, indexes, add_another_batch)
        self.put_experience(data, where, is_prompt=True)
        return Indexes(handle_of(where))

    def get_experience(
        self,
        consumer: str,
        experience_columns: Sequence[str],
        experience_count: int | None = None,
        dp_size: int = 1,
        indexes: Sequence[int] | None = None,
        get_n_samples: bool = True,
        use_batch_seqlen_balance: bool = False,
        allow_partial_ready_data: bool = False,
        *,
        target_seq_len: float | None = None,
        timeout: float | None = 0.0,
        padded: bool = True,
    ) -> tuple[Mapping[str, Any], Indexes] | tuple[None, None]:
        """Hands rows to a consumer, which holds them from now on; (None, None) if there are not enough yet, or all are
        done.

        experience_count: how many to sample, whole prompt groups with get_n_samples; indexes: exactly these instead.
        use_batch_seqlen_balance: sets of nearly equal length. allow_partial_ready_data: ignored, as in the original.
        target_seq_len: prefer rows of about this length. timeout: how many seconds to wait for enough rows before
        raising DeadlineExceeded; None: forever. padded: a TensorDict of columns padded to one length with zeros, and
        ``original_length``; otherwise a dict of lists of rows.
        """
        del allow_partial_ready_data
        resumes = self._consumer(consumer) == "actor_rollout" and self.max_age > 1
        # The rollout gets the ages in any case.
        columns = self._names("column", (name for name in experience_columns if not (resumes and name == "age")))
        held: Indexes | None = None
        if indexes is None and not resumes and self._chooses(get_n_samples):
            indexes = self._choose(
                consumer, experience_count, columns, get_n_samples, use_batch_seqlen_balance, target_seq_len
            )
            if indexes is None or len(indexes) == 0:
                return None, None
            # The lease of the dock's own sampling.
            held = indexes if isinstance(indexes, Indexes) else None
        try:
            if indexes is not None and not resumes:
                self._wait_for_own(columns, indexes)
            with named():
                got = self._native.get_experience(
                    consumer, columns, None if experience_count is None else whole("experience_count", experience_count),
                    whole("dp_size", dp_size) if resumes else 1, None if indexes is None else handle_of(indexes),
                    bool(get_n_samples), bool(use_batch_seqlen_balance), target_seq_len, timeout, padded and not resumes,
                )  # fmt: skip
            if got is None:
                return None, None
            held = held or Indexes(got[1])
            if self._is_own("_get") and not resumes:
                apart: Mapping[str, Any] = dict(zip(columns, self._get(columns, held), strict=True))
                return (padding_dict_to_tensor_dict(apart), held) if padded else (apart, held)
            return self._batch(_tensors(got[0], got[2]), padded, resumes), held
        except BaseException:
            if held is not None and held.handle.lease:
                self.release(consumer, held)
            raise

    def _chooses(self, get_n_samples: bool) -> bool:
        """True if a class of one's own decides which rows are sampled, or when they are read."""
        sample = "_sample_ready_index_n_samples" if get_n_samples else "_sample_ready_index"
        return self._is_own(sample) or self._is_own("_wait_for_data")

    def _choose(
        self,
        consumer: str,
        experience_count: int | None,
        columns: list[str],
        get_n_samples: bool,
        balance: bool,
        target_seq_len: float | None,
    ) -> Sequence[int] | None:
        """The rows that it samples."""
        sample = self._sample_ready_index_n_samples if get_n_samples else self._sample_ready_index
        near: dict[str, Any] = {} if target_seq_len is None else {"target_seq_len": target_seq_len}
        return sample(consumer, self._count(experience_count), columns, use_batch_seqlen_balance=balance, **near)

    def _count(self, experience_count: int | None) -> int:
        count = 0 if experience_count is None else whole("experience_count", experience_count)
        if not 1 <= count <= self.max_len:
            raise InvalidArgument(f"experience_count is {experience_count}; it must be 1 to {self.max_len}")
        return count

    def _sample_ready_index(
        self,
        consumer: str,
        experience_count: int,
        experience_columns: Sequence[str],
        target_seq_len: float | None = None,
        use_batch_seqlen_balance: bool = False,
    ) -> Sequence[int] | None:
        """Hands rows to a consumer whose cells of these columns are ready: their numbers; None if there are not enough.
        The parameters are as in get_experience.
        """
        return self._sample(
            consumer, experience_count, experience_columns, target_seq_len, use_batch_seqlen_balance, whole_groups=False
        )

    def _sample_ready_index_n_samples(
        self,
        consumer: str,
        experience_count: int,
        experience_columns: Sequence[str],
        target_seq_len: float | None = None,
        use_batch_seqlen_balance: bool = False,
    ) -> Sequence[int] | None:
        """The same with all rows of each prompt."""
        return self._sample(
            consumer, experience_count, experience_columns, target_seq_len, use_batch_seqlen_balance, whole_groups=True
        )

    def _sample(
        self,
        consumer: str,
        count: int,
        columns: Sequence[str],
        target_seq_len: float | None,
        balance: bool,
        *,
        whole_groups: bool,
    ) -> Indexes | None:
        name, names = self._consumer(consumer), self._names("column", columns)
        with self.consumer_sampling_lock[name], named():
            got = self._native.get_experience(
                name, names, self._count(count), 1, None, whole_groups, bool(balance), target_seq_len, 0.0, False
            )
        return None if got is None else Indexes(got[1])

    def _batch(self, batch: Mapping[str, Any], padded: bool, resumes: bool) -> Mapping[str, Any]:
        """The columns that the dock gave, padded by it or not, as a get returns them."""
        apart = resumes or self._cells.any_packed(batch)
        if apart:
            rows = remove_padding_tensor_dict_to_dict(batch)
            batch = {name: self._cells.read(name, list(rows[name])) for name in rows}
        if resumes:
            # A column that nobody has put yet would be int64.
            batch = dict(zip(*trans_input_to_experience(batch), strict=True))
            if "responses" in batch:
                # Unpadding in the original takes this for an empty response.
                none = torch.tensor([-1], dtype=torch.int32)
                batch["responses"] = [row if len(row) else none for row in batch["responses"]]
        if not padded:
            return batch
        return padding_dict_to_tensor_dict(batch) if apart else TensorDict.from_dict(dict(batch))

    def complete(self, consumer: str, indexes: Sequence[int]) -> None:
        """Makes rows that a consumer holds done: for consumers that put nothing."""
        with named():
            self._native.complete(self._consumer(consumer), handle_of(indexes))

    def release(self, consumer: str, indexes: Sequence[int]) -> None:
        """Gives rows that a consumer holds back: they can be sampled again."""
        with named():
            self._native.release(self._consumer(consumer), handle_of(indexes))

    def all_consumed(self, consumer: str, get_n_samples: bool = True) -> bool:
        """True if every row is handed out; with max_age above 1, if a training batch is. get_n_samples: ignored,
        as in the original.
        """
        del get_n_samples
        with named():
            return self._native.all_consumed(self._consumer(consumer))

    def clear(self, consumer: str = "actor_train") -> None:
        """Clears the dock and its metrics; with max_age above 1, only the rows that the consumer has consumed."""
        if self.max_age > 1:
            with named():
                self._native.clear(self._consumer(consumer))
        else:
            self._clear_experience_data_and_status()
        with self._lock:
            self.cur_index = 0
            self.metrics.reset()

    def prefetch_request_index(self, experience_num: int) -> list[int] | None:
        """The next row numbers; fewer at the end, then None."""
        count = whole("experience_num", experience_num)
        if count < 0:
            raise InvalidArgument(f"asked for {count} row numbers; ask for 0 or more")
        with self._lock:
            begin = self.cur_index
            if begin >= self.max_len:
                return None
            self.cur_index += count
        return list(range(begin, min(begin + count, self.max_len)))

    def get_cur_index(self) -> int:
        """The number of row numbers asked for since the last clear."""
        return self.cur_index

    def get_incomplete_response_num(self) -> int:
        """The number of prompts whose response is missing or incomplete; with max_age 1, where responses have no such
        state, the number of prompts, as in the original.
        """
        if self.max_age > 1:
            return self._native.incomplete_response_num()
        return sum(self._native.experience_status()["prompts"])

    def get_update_ready(self, require_max_age_all_finished: bool = True) -> bool:
        """True if GBS_train groups have all their responses and, unless told otherwise, no response that has its last
        round is unfinished. The other consumers see the complete groups from now on.
        """
        ready = self._native.all_consumed("actor_rollout") if self.max_age > 1 else self.GBS_train == 0
        if not ready or not require_max_age_all_finished:
            return ready
        # With max_age 1, no response counts as finished.
        finished = self._native.experience_status()["responses"] if self.max_age > 1 else [False] * self.max_len
        return all(done for age, done in zip(self._native.ages(), finished, strict=True) if age == self.max_age - 1)

    @property
    def experience_consumer_status(self) -> dict[str, torch.Tensor]:
        """get_consumer_status(): a copy. Setting flags to 1 hands these rows out, which need a column that is ready; to 0
        gives back those that the consumer holds.
        """
        status = self._native.consumer_status()
        return {name: Flags.of(flags, functools.partial(self._hand_out, name)) for name, flags in status.items()}

    def _hand_out(self, consumer: str, taken: list[int], given_back: list[int]) -> None:
        if given_back:
            self.release(consumer, given_back)
        if not taken:
            return
        status = self._native.experience_status()
        ready = [name for name, flags in status.items() if all(flags[index] for index in taken)]
        if not ready:
            raise FailedPrecondition(f"rows {taken} have no column that is ready in all of them, to be handed out with")
        with named():
            self._native.get_experience(
                consumer, ready[:1], None, 1, handle_of(taken), False, False, None, 0.0, False
            )

    def get_consumer_status(self) -> dict[str, torch.Tensor]:
        """By consumer, 1 for each index that is handed out to it, else 0: int32 (max_len,)."""
        return as_flags(self._native.consumer_status())

    def get_metrics(self) -> Any:
        """A copy of the metrics: ``get_metrics().metric`` are the values by name."""
        with self._lock:
            return copy.deepcopy(self.metrics)

    def update_metrics(self, key: str = "", value: Any = None, cumulate: bool = False) -> None:
        """Sets a metric, or the metrics of a dict, or adds to their lists of values."""
        with self._lock:
            self.metrics.update(key, value, cumulate=cumulate)


class PPOTransferDock(GRPOTransferDock):
    """The dock of PPO: GRPO's, with values and critics."""

    _kind = "ppo"


class DAPOTransferDock(GRPOTransferDock):
    """The dock of DAPO: GRPO's, with dynamic sampling."""

    _kind = "dapo"
