"""What MindSpeed-RL's trainer does to batches: padding, packing, and dividing prompts and rows.

Rows of a column are tensors, one for each sample, whose first dimension is their length. Unlike there, masks are padded
with 0 and position_ids are as wide as ``multiple`` says; docs/mindspeed.md names the switches for the original's way.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

from transfer_dock.compat.mindspeed._indexes import row_numbers
from transfer_dock.errors import InvalidArgument

LENGTHS = "original_length"
# Columns of one number in each row.
_NUMBERS = ("prompt_length", "response_length", "age")

Batch = Mapping[str, Any]


def padding_dict_to_tensor_dict(experience_data: Batch) -> TensorDict:
    """Each column padded with zeros to its longest row, and ``original_length``: the lengths of all rows, column by
    column. Rows of more dimensions are padded in each, and have the length of the first.
    """
    lengths = [len(row) for rows in experience_data.values() for row in rows]
    batch = {name: _stacked(name, list(rows)) for name, rows in experience_data.items()}
    batch[LENGTHS] = torch.tensor(lengths, dtype=torch.int64)
    return TensorDict.from_dict(batch)


def _stacked(name: str, rows: list[Tensor]) -> Tensor:
    if not rows:
        raise InvalidArgument(f"column '{name}' has no rows; give at least one")
    if len({(row.dtype, row.shape[1:]) for row in rows}) == 1:
        return pad_sequence(rows, batch_first=True)
    ranks = {row.dim() for row in rows}
    if len(ranks) > 1:
        raise InvalidArgument(f"column '{name}' has rows of {sorted(ranks)} dimensions, which cannot be one tensor")
    largest = [max(sizes) for sizes in zip(*(row.shape for row in rows), strict=True)]
    stacked = torch.zeros(len(rows), *largest, dtype=functools.reduce(torch.promote_types, (row.dtype for row in rows)))
    for into, row in zip(stacked, rows, strict=True):
        into[tuple(slice(size) for size in row.shape)] = row
    return stacked


def remove_padding_tensor_dict_to_dict(data_dict: Batch | None) -> Batch:
    """The inverse: lists of rows. A batch without ``original_length`` is returned as it is, None as an empty dict."""
    if data_dict is None:
        return {}
    if LENGTHS not in data_dict.keys():
        return data_dict
    lengths = _tensor(LENGTHS, data_dict[LENGTHS]).flatten()
    columns = {name: value for name, value in data_dict.items() if name != LENGTHS}
    total = sum(len(value) for value in columns.values())
    if len(lengths) != total:
        raise InvalidArgument(f"original_length has {len(lengths)} lengths; the columns have {total} rows together")
    rows: dict[str, Any] = {}
    begin = 0
    for name, value in columns.items():
        rows[name] = truncate_rows(value, lengths[begin : begin + len(value)])
        begin += len(value)
    return rows


def truncate_rows(tensor: Tensor, index_tensor: Tensor, left_pad: bool = False) -> list[Tensor]:
    """The first (with left_pad: the last) index_tensor[i] items of each row i."""
    lengths = [int(length) for length in index_tensor.flatten().tolist()]
    wrong = [length for length in lengths if not 0 <= length <= tensor.shape[1]]
    if wrong:
        raise InvalidArgument(f"a row of {tensor.shape[1]} items cannot be truncated to {wrong[0]}")
    if len(lengths) != len(tensor):
        raise InvalidArgument(f"there are {len(lengths)} lengths for {len(tensor)} rows; give one for each")
    rows = zip(tensor, lengths, strict=True)
    if left_pad:
        return [row[row.shape[0] - length :].cpu() for row, length in rows]
    return [row[:length].cpu() for row, length in rows]


def remove_padding_and_split_to_list(
    responses: Tensor, eos_token_id: int, pad_token_id: int, to_list: bool = False
) -> list[Any]:
    """Each response up to its first padding, which is kept if it is the end token as well. to_list: as a list of
    numbers, without the last one.
    """
    cut: list[Any] = []
    for response in responses:
        padding = (response == pad_token_id).nonzero()
        end = int(padding[0]) if len(padding) else len(response)
        kept = response[: end + 1 if pad_token_id == eos_token_id else end]
        cut.append(kept[:-1].tolist() if to_list else kept)
    return cut


def pad_multiple(data_list: Sequence[Tensor], pad_id: float, multiple: int = 1) -> Tensor:
    """The rows in one tensor, whose width is a multiple of ``multiple``."""
    padded = pad_sequence(list(data_list), batch_first=True, padding_value=pad_id)
    more = -padded.shape[1] % multiple
    return functional.pad(padded, (0, 0) * (padded.dim() - 2) + (0, more), value=pad_id)


def truncate_middle_and_pad(
    responses: Tensor, input_tensor: Tensor, truncate_lengths: Tensor, pad_value: float = 0.0
) -> Tensor:
    """Items truncate_lengths[i, 0] to truncate_lengths[i, 1] of each row i, as wide as responses."""
    rows, length = input_tensor.shape[:2]
    output = input_tensor.new_full((rows, responses.shape[-1], *input_tensor.shape[2:]), pad_value)
    for i, (begin, end) in enumerate(truncate_lengths.clamp(0, length).tolist()):
        output[i, : end - begin] = input_tensor[i, begin:end]
    return output


truncate_prompt_and_pad = truncate_middle_and_pad


def _padding(name: str, dtype: torch.dtype, pad_id: float, masks_by_pad_id: bool) -> float:
    zero = dtype.is_floating_point or dtype == torch.bool or (name.endswith("mask") and not masks_by_pad_id)
    return 0 if zero else pad_id


def pad_experience(
    experience_batch: Mapping[str, Sequence[Tensor]],
    pad_id: int,
    multiple: int = 1,
    *,
    masks_by_pad_id: bool = False,
    round_position_ids: bool = True,
) -> dict[str, Tensor]:
    """Each column in one tensor, padded with pad_id; floats and masks with 0. Lengths and ages are (rows, 1).

    masks_by_pad_id: pads masks like tokens, as the original. round_position_ids: False: position_ids are as wide as
    their longest row, as in the original.
    """
    if not experience_batch:
        raise InvalidArgument("there are no columns to pad")
    batch = {}
    for name, rows in experience_batch.items():
        if name in _NUMBERS:
            batch[name] = torch.cat(list(rows)).reshape(-1, 1)
            continue
        exact = name == "position_ids" and not round_position_ids
        padding = _padding(name, rows[0].dtype, pad_id, masks_by_pad_id)
        batch[name] = pad_multiple(rows, padding, 1 if exact else multiple)
    return batch


def trans_input_to_experience(experience_dict: Batch) -> tuple[list[str], list[list[Tensor]]]:
    """The names and the rows of the columns that are not None; int64 becomes int32, which the values must fit."""
    columns = {
        name: _narrowed(name, rows_of(name, value)) for name, value in experience_dict.items() if value is not None
    }
    return list(columns), list(columns.values())


def _tensor(name: str, value: Any) -> Tensor:
    try:
        return torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError):
        kind = type(value).__name__
        raise InvalidArgument(
            f"column '{name}' holds a {kind}, which is no tensor; give a tensor with a row for each index, or a list of rows"
        ) from None


def rows_of(name: str, value: Any) -> list[Any]:
    """The rows of a column. A row that is a number becomes a row of one number; str and bytes stay as they are."""
    if isinstance(value, list | tuple):
        if value and all(isinstance(row, str | bytes) for row in value):
            return list(value)
        rows = [_tensor(name, row) for row in value]
    else:
        column = _tensor(name, value)
        if column.dim() == 0:
            raise InvalidArgument(f"column '{name}' is one number, {column.item()}; give a row for each index")
        rows = list(column.unbind(0))
    rows = [row.reshape(1) if row.dim() == 0 else row for row in rows]
    # Empty rows have no type that matters.
    kinds = {row.dtype for row in rows if row.numel()}
    if len(kinds) == 1:
        kind = kinds.pop()
        rows = [row if row.dtype == kind else row.to(kind) for row in rows]
    return rows


def _narrowed(name: str, rows: list[Any]) -> list[Any]:
    wide = [row.reshape(-1) for row in rows if isinstance(row, Tensor) and row.dtype == torch.int64]
    if not wide:
        return rows
    numbers, limits = torch.cat(wide), torch.iinfo(torch.int32)
    outside = numbers[(numbers < limits.min) | (numbers > limits.max)]
    if len(outside):
        raise InvalidArgument(f"column '{name}' holds {int(outside[0])}, which does not fit int32, the dock's integers")
    return [row.to(torch.int32) if row.dtype == torch.int64 else row for row in rows]


def pack_experience_columns(
    experience_consumer_stage: str,
    experience_dict: Mapping[str, Sequence[Tensor]],
    experience_count: int,
    enable_partial_rollout: bool = False,
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The rows of each column one after another in one tensor, and their lengths, int32; rows of two dimensions along
    the second.
    """
    if not experience_dict:
        raise InvalidArgument("there are no columns to pack")
    if enable_partial_rollout and experience_consumer_stage == "actor_rollout":
        experience_count = len(experience_dict["prompts"])
    packed, lengths = {}, {}
    for name, rows in experience_dict.items():
        if len(rows) != experience_count:
            raise InvalidArgument(f"column '{name}' has {len(rows)} rows to pack, not {experience_count}")
        heights = {row.shape[0] for row in rows} if rows[0].dim() > 1 else {0}
        if len(heights) > 1:
            raise InvalidArgument(f"column '{name}' has rows of {sorted(heights)} lines to pack; all must have as many")
        packed[name] = torch.cat(list(rows), dim=rows[0].dim() - 1)
        lengths[name] = torch.tensor([row.shape[-1] for row in rows], dtype=torch.int32)
    return packed, lengths


def unpack_pad_experience(
    batch_data: Mapping[str, Tensor],
    batch_data_length: Mapping[str, Tensor],
    pad_id: int,
    multiple: int,
    *,
    masks_by_pad_id: bool = False,
) -> dict[str, Tensor]:
    """The inverse, padded as pad_experience does: (rows, width), or (rows, lines, width)."""
    if not batch_data or batch_data.keys() != batch_data_length.keys():
        raise InvalidArgument(
            f"there must be lengths for each column; columns: {list(batch_data or ())}, lengths: "
            f"{list(batch_data_length or ())}"
        )
    batch = {}
    for name, lengths in batch_data_length.items():
        data = batch_data[name]
        if name in _NUMBERS:
            batch[name] = data.view(-1, 1)
            continue
        if int(lengths.sum()) != data.shape[-1]:
            raise InvalidArgument(
                f"column '{name}' has {data.shape[-1]} values, and its lengths are {int(lengths.sum())} together"
            )
        rows = torch.split(data, lengths.tolist(), dim=-1)
        width = int(lengths.max()) + -int(lengths.max()) % max(multiple, 1)
        padding = _padding(name, data.dtype, pad_id, masks_by_pad_id)
        batch[name] = torch.stack([functional.pad(row, (0, width - row.shape[-1]), value=padding) for row in rows])
    return batch


def put_prompts_experience(
    batch: Batch,
    n_samples_per_prompt: int,
    dataset_additional_keys: Sequence[str] | None = None,
    indexes: Sequence[int] | None = None,
    add_another_batch: bool = False,
) -> tuple[TensorDict, list[int]]:
    """Each row of ``prompts`` n times, with its prompt_length and the additional columns that the batch has, and the
    indexes to put them at: from 0 on, or those given, or with add_another_batch after a first batch of the same size.
    """
    if indexes is not None and add_another_batch:
        raise InvalidArgument("give indexes or add_another_batch, not both: each says where the prompts go")

    def repeated(name: str) -> list[Tensor]:
        return [row for row in rows_of(name, list(batch[name])) for _ in range(n_samples_per_prompt)]

    prompts = repeated("prompts")
    data = {"prompt_length": [torch.tensor([len(prompt)]) for prompt in prompts], "prompts": prompts}
    data.update({name: repeated(name) for name in dataset_additional_keys or () if name in batch})
    first = len(prompts) if add_another_batch else 0
    where = list(range(first, first + len(prompts))) if indexes is None else row_numbers(indexes)
    return padding_dict_to_tensor_dict(data), where


def get_current_dp_range_indexes(
    experience_count: int, assign_batch_size: int, current_dp_rank: int = 0
) -> list[list[int]]:
    """The row numbers of a data-parallel rank, in portions of experience_count."""
    if experience_count < 1:
        raise InvalidArgument(f"experience_count is {experience_count}; it must be at least 1")
    begin = assign_batch_size * current_dp_rank
    end = begin + assign_batch_size
    return [list(range(i, min(i + experience_count, end))) for i in range(begin, end, experience_count)]
