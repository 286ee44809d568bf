"""The ranks of a model replica, which work on the same rows, and what one of them tells the others."""

from __future__ import annotations

import importlib
import io
import pickle
from typing import Any

import torch
import torch.distributed
from torch import Tensor

# Tensors begin where each element type may.
_ALIGNMENT = 16


class _Writer(pickle.Pickler):
    """Pickles all but the tensors, whose bytes it keeps apart."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self.parts: list[Tensor] = []
        self.end = 0

    def persistent_id(self, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return None
        data = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        begin, padding = self.end, -data.numel() % _ALIGNMENT
        self.parts += [data, data.new_zeros(padding)]
        self.end += data.numel() + padding
        return begin, value.dtype, tuple(value.shape)


class _Reader(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, data: Tensor) -> None:
        super().__init__(file)
        self.data = data

    def persistent_load(self, told: Any) -> Tensor:
        begin, dtype, shape = told
        end = begin + torch.Size(shape).numel() * dtype.itemsize
        return self.data[begin:end].view(dtype).reshape(shape)


class Replica:
    """This process among the ranks of its replica: those of Megatron, or those of vLLM, which are its tensor and
    pipeline parallel ranks.
    """

    def __init__(self, parallel_state: Any, use_vllm: bool) -> None:
        """parallel_state: Megatron's, with its functions."""
        if use_vllm:
            vllm_state = importlib.import_module("vllm.distributed.parallel_state")
            tensor = vllm_state.get_tensor_model_parallel_group()
            pipeline = vllm_state.get_pipeline_model_parallel_group()
            ranks = [vllm_state.get_tensor_model_parallel_rank(), pipeline.rank_in_group]
            self._groups = [(tensor.first_rank, tensor.device_group), (pipeline.first_rank, pipeline.device_group)]
            self._counting = [tensor.device_group, pipeline.device_group]
            last = pipeline.is_last_rank
        else:
            state = parallel_state
            ranks = [
                state.get_tensor_model_parallel_rank(),
                state.get_context_parallel_rank(),
                state.get_pipeline_model_parallel_rank(),
            ]
            self._groups = [
                (state.get_tensor_model_parallel_src_rank(), state.get_tensor_model_parallel_group()),
                (state.get_context_parallel_global_ranks()[0], state.get_context_parallel_group()),
                (state.get_pipeline_model_parallel_first_rank(), state.get_pipeline_model_parallel_group()),
            ]
            self._counting = [state.get_model_parallel_group(), state.get_context_parallel_group()]
            last = state.is_pipeline_last_stage()
        # Whether this rank reads for all, and whether it writes for all. Context parallel ranks have the same results.
        self.reads = not any(ranks)
        self.writes = bool(last) and not any(ranks[:-1])

    def _device(self) -> torch.device:
        if torch.distributed.get_backend(self._groups[0][1]) in ("gloo", "mpi"):
            return torch.device("cpu")
        accelerator = torch.accelerator.current_accelerator()
        return torch.device("cpu") if accelerator is None else torch.device(accelerator.type)

    def most(self, value: int) -> int:
        """The largest of what the ranks say."""
        said = torch.tensor(value, device=self._device())
        for group in self._counting:
            torch.distributed.all_reduce(said, op=torch.distributed.ReduceOp.MAX, group=group)
        return int(said)

    def share(self, value: Any) -> Any:
        """What the reading rank gives, on each rank: a value that can be pickled, whose tensors come on the device."""
        device = self._device()
        header, data = torch.empty(0, dtype=torch.uint8), torch.empty(0, dtype=torch.uint8)
        if self.reads:
            file = io.BytesIO()
            writer = _Writer(file)
            writer.dump(value)
            header = torch.frombuffer(file.getbuffer(), dtype=torch.uint8)
            data = torch.cat([data, *writer.parts])
        sizes = self._send(torch.tensor([header.numel(), data.numel()], device=device)).tolist()
        if not self.reads:
            header, data = (torch.empty(size, dtype=torch.uint8) for size in sizes)
        header, data = self._send(header.to(device)), self._send(data.to(device))
        return _Reader(io.BytesIO(header.cpu().numpy().tobytes()), data).load()

    def _send(self, tensor: Tensor) -> Tensor:
        # From the reading rank to those of its tensor parallel group, from these to their context and pipeline groups.
        if tensor.numel():
            for source, group in self._groups:
                torch.distributed.broadcast(tensor, source, group=group)
        return tensor
