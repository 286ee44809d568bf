"""What MindSpeed-RL's workers, which are actors of Ray, do with their docks."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed

from transfer_dock.compat.mindspeed._batches import (
    get_current_dp_range_indexes,
    pack_experience_columns,
    padding_dict_to_tensor_dict,
    remove_padding_tensor_dict_to_dict,
    unpack_pad_experience,
)
from transfer_dock.compat.mindspeed._images_apart import unpack_mm_experience
from transfer_dock.compat.mindspeed._replicas import Replica
from transfer_dock.errors import FailedPrecondition


# What a rank says that has failed; others say 0 or 1.
_FAILED = 2


class _NotInitialized(FailedPrecondition, ValueError):
    """A ValueError as in the original."""


class TransferDockWorker:
    """A base class of workers: ``init_transfer_dock`` sets td, mm_td, sampling_transfer_dock and
    mm_sampling_transfer_dock, each a handle or None. Reading td or mm_td that is None is an error.

    The worker has these attributes of the original's BaseWorker: parallel_state, rl_config, megatron_config, tokenizer.
    All ranks of a replica make the same calls.
    """

    parallel_state: Any
    rl_config: Any
    megatron_config: Any
    tokenizer: Any

    _td: Any = None
    _mm_td: Any = None
    sampling_transfer_dock: Any = None
    mm_sampling_transfer_dock: Any = None
    # Puts that nobody has waited for.
    _puts: Sequence[Any] = ()

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

    @td.setter
    def td(self, dock: Any) -> None:
        self._td = dock

    @property
    def mm_td(self) -> Any:
        """The dock of images and videos."""
        if self._mm_td is None:
            raise _NotInitialized("this worker has no dock of images; call init_transfer_dock(td, mm_td) first")
        return self._mm_td

    @mm_td.setter
    def mm_td(self, dock: Any) -> None:
        self._mm_td = dock

    def _docks(self, is_generate: bool) -> tuple[Any, Any]:
        """The dock that a stage works on, and that of its images or None."""
        if is_generate and self.sampling_transfer_dock is not None:
            return self.sampling_transfer_dock, self.mm_sampling_transfer_dock
        return self.td, self._mm_td

    def all_consumed(
        self,
        experience_consumer_stage: str,
        sorted_indexes: Sequence[Any] | None,
        use_vllm: bool = False,
        is_generate: bool = False,
    ) -> int:
        """0 if all rows are handed out to the consumer, else 1. With ``rl_config.guarantee_order``: 0 if sorted_indexes
        are used up.

        Raises what a put of this rank or the question to the dock raised; FailedPrecondition on the other ranks.
        """
        import ray

        replica = Replica(self.parallel_state, use_vllm)

        def left() -> bool:
            if self.rl_config.guarantee_order:
                return bool(sorted_indexes)
            if not replica.reads:
                return False
            resumes = is_generate and getattr(self.rl_config, "partial_rollout_max_split", 1) > 1
            dock, _ = self._docks(is_generate)
            return not ray.get(dock.all_consumed.remote(experience_consumer_stage, not resumes))

        return int(self._any(replica, left))

    def dispatch_transfer_dock_data(
        self,
        experience_consumer_stage: str,
        experience_columns: Sequence[str],
        experience_count: int,
        tp_size: int = 1,
        cp_size: int = 1,
        cp_algo: str | None = None,
        use_vllm: bool = False,
        indexes: Sequence[int] | None = None,
        get_n_samples: bool = True,
        enable_partial_rollout: bool = False,
        is_generate: bool = False,
    ) -> tuple[dict[str, Any], list[int]] | tuple[None, None]:
        """Rows for the consumer, on all ranks of the replica: padded columns and their indexes; (None, None) if there
        are not enough yet. The first rank reads them. The width is a multiple of tp_size * cp_size, with the cp_algo
        "megatron_cp_algo" of twice that; with images, of 1, and their columns are among the batch.

        enable_partial_rollout: the rows may be fewer, or repeat the last one, with the index -1. The others as for
        get_experience; is_generate: from the sampling docks, if there are any.

        Raises what a put of this rank or the get raised; FailedPrecondition on the other ranks.
        """
        replica = Replica(self.parallel_state, use_vllm)
        self._any(replica, lambda: False)
        failure: BaseException | None = None
        found: Any = None
        if replica.reads:
            try:
                found = self._read(
                    experience_consumer_stage, experience_columns, experience_count, indexes, get_n_samples,
                    enable_partial_rollout, is_generate,
                )  # fmt: skip
            except BaseException as error:
                failure, found = error, str(error)
        found = replica.share(found)
        if failure is not None:
            raise failure
        if isinstance(found, str):
            raise FailedPrecondition(f"the rank that reads for this one failed: {found}")
        if found is None:
            return None, None
        taken, packed, lengths, images = found
        multiple = tp_size * cp_size * (2 if cp_algo == "megatron_cp_algo" else 1)
        pad_id = self.tokenizer.eod if self.tokenizer.pad is None else self.tokenizer.pad
        batch: dict[str, Any] = unpack_pad_experience(packed, lengths, pad_id, 1 if images is not None else multiple)
        if images:
            batch.update(unpack_mm_experience(images))
        return batch, taken

    def _read(
        self,
        stage: str,
        columns: Sequence[str],
        count: int,
        indexes: Sequence[int] | None,
        get_n_samples: bool,
        partial: bool,
        is_generate: bool,
    ) -> Any:
        """The indexes, the packed columns, their lengths, and the images or None."""
        import ray

        dock, images_dock = self._docks(is_generate)
        how: dict[str, Any] = {"use_batch_seqlen_balance": bool(self.rl_config.use_dp_batch_balance)}
        if partial:
            how = {"dp_size": self.parallel_state.get_data_parallel_world_size()}
        batch, taken = ray.get(
            dock.get_experience.remote(
                stage, list(columns), count, indexes=indexes, get_n_samples=get_n_samples, **how,
                allow_partial_ready_data=partial,
            )  # fmt: skip
        )
        if not taken:
            return None
        rows = remove_padding_tensor_dict_to_dict(batch)
        packed, lengths = pack_experience_columns(stage, rows, count, enable_partial_rollout=partial)
        images = None
        if images_dock is not None:
            names = ray.get(images_dock.get_columns.remote(stage))
            images = ray.get(images_dock.get_experience.remote(stage, names, list(taken), get_n_samples))
        size = len(next(iter(lengths.values())))
        return [*taken, *[-1] * (size - len(taken))], packed, lengths, images

    def collect_transfer_dock_data(
        self,
        output: Mapping[str, Any],
        index: Sequence[int],
        use_vllm: bool = False,
        is_generate: bool = False,
        sync: bool = False,
    ) -> None:
        """Puts the rows of columns at these indexes; one rank of the last pipeline stage does. sync: waits, and
        raises on that rank what a put raised; otherwise a later all_consumed or dispatch_transfer_dock_data does, on all
        ranks.
        """
        if not Replica(self.parallel_state, use_vllm).writes:
            return
        dock, images_dock = self._docks(is_generate)
        rows = _on_cpu(output)
        puts = [dock.put_experience.remote(data_dict=padding_dict_to_tensor_dict(rows), indexes=index)]
        if images_dock is not None:
            puts.append(images_dock.put_experience.remote(batch=rows, indexes=index))
        self._note_puts(puts, sync)

    def collect_transfer_dock_mm_data(
        self, output: Mapping[str, Any], index: Sequence[int], use_vllm: bool = False
    ) -> None:
        """The same for columns of the dock of images only; waits."""
        if Replica(self.parallel_state, use_vllm).writes:
            self._note_puts([self.mm_td.put_experience.remote(batch=_on_cpu(output), indexes=index)], sync=True)

    def _note_puts(self, puts: Sequence[Any], sync: bool) -> None:
        import ray

        if sync:
            ray.get(list(puts))
        else:
            self._puts = [*self._puts, *puts]

    def _any(self, replica: Replica, says: Callable[[], bool]) -> bool:
        """Whether a rank of the replica says so. Raises on all of them where a put of one, or its saying, has failed:
        the ranks that go on would wait for it.
        """
        failure: BaseException | None = None
        try:
            self._check_puts()
            said = int(says())
        except BaseException as error:
            failure, said = error, _FAILED
        said = replica.most(said)
        if failure is not None:
            raise failure
        if said == _FAILED:
            raise FailedPrecondition("another rank of this replica failed, in a put or a call of the dock; see its error")
        return bool(said)

    def _check_puts(self) -> None:
        if not self._puts:
            return
        import ray

        done, self._puts = ray.wait(list(self._puts), num_returns=len(self._puts), timeout=0)
        ray.get(done)

    def get_dp_range_indexes(
        self, experience_count: int, use_vllm: bool = False, assign_batch_size: int | None = None
    ) -> list[list[int]]:
        """The row numbers of this data-parallel rank, in portions of experience_count. assign_batch_size: how many rows
        a rank has; None: its part of ``megatron_config.global_batch_size``.
        """
        if use_vllm:
            rank, ranks = self.get_vllm_dp_rank()
        else:
            rank = self.parallel_state.get_data_parallel_rank()
            ranks = self.parallel_state.get_data_parallel_world_size()
        if assign_batch_size is None:
            assign_batch_size = self.megatron_config.global_batch_size // ranks
        return get_current_dp_range_indexes(experience_count, assign_batch_size, rank)

    @staticmethod
    def get_vllm_dp_rank() -> tuple[int, int]:
        """The rank of this process's replica of vLLM, and the number of replicas, as MindSpeed-RL set them up."""
        adapter = importlib.import_module("mindspeed_rl.models.rollout.vllm_adapter.vllm_parallel_state")
        groups = adapter.get_vllm_tp_group_ranks()
        if groups is None:
            raise _NotInitialized("vLLM's groups of ranks are not set up yet")
        this = torch.distributed.get_rank()
        for number, ranks in enumerate(groups):
            if this in ranks:
                return number, len(groups)
        raise FailedPrecondition(f"rank {this} is in none of vLLM's groups: {groups}")


def _on_cpu(output: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value if isinstance(value, list) else value.cpu() for name, value in output.items()}


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
