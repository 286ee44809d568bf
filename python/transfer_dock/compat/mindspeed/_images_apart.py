"""Images and videos that a get joined, one by one again."""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import Tensor

from transfer_dock.errors import InvalidArgument


def calculate_split_indices(tensor_shapes: Any, merge_shape: bool = False) -> tuple[list[int], list[int]]:
    """The number of elements of each shape, and where each begins and the last ends. merge_shape: of shapes in patches,
    after the encoder merged them as Megatron's arguments say.
    """
    if isinstance(tensor_shapes, list):
        tensor_shapes = torch.cat(tensor_shapes)
    merged = 1
    if merge_shape:
        megatron = importlib.import_module("megatron.training")
        merged = megatron.get_args().mm.model.image_encoder.vision_encoder.spatial_merge_size ** 2
    sizes = [int(shape.prod()) // merged for shape in tensor_shapes]
    begins = [0]
    for size in sizes:
        begins.append(begins[-1] + size)
    return sizes, begins


def _parts(values: Any, counts: Tensor) -> list[Any]:
    """As many values as each count says."""
    parts, begin = [], 0
    for count in counts.flatten().tolist():
        parts.append(values[begin : begin + count])
        begin += count
    return parts


def _restored(flattened: Tensor, shapes: Tensor) -> list[Tensor]:
    sizes, _ = calculate_split_indices(shapes)
    flat = flattened.reshape(-1)
    if sum(sizes) > flat.numel():
        raise InvalidArgument(f"shapes {shapes.tolist()} have {sum(sizes)} elements together; there are {flat.numel()}")
    parts = torch.split(flat[: sum(sizes)], sizes)
    return [part.reshape(shape) for part, shape in zip(parts, shapes.tolist(), strict=True)]


def _picture(pixels: Tensor) -> Any:
    """A picture of Pillow, from (channels, height, width): bytes, or floats from 0 to 1."""
    pillow = importlib.import_module("PIL.Image")
    if pixels.is_floating_point():
        pixels = pixels.mul(255)
    pixels = pixels.to(torch.uint8).cpu()
    if pixels.shape[0] == 1:
        return pillow.fromarray(pixels[0].numpy())
    return pillow.fromarray(pixels.permute(1, 2, 0).contiguous().numpy())


def restore_images_from_tensors(
    flattened_tensors: Tensor, tensor_shapes: Tensor, image_num: Tensor
) -> list[list[Any]]:
    """The pictures of each prompt. tensor_shapes: (pictures, 3): channels, height and width; image_num: how many each
    prompt has. Needs Pillow.
    """
    return _parts([_picture(pixels) for pixels in _restored(flattened_tensors, tensor_shapes)], image_num)


def restore_videos_from_tensors(
    flattened_tensors: Tensor, tensor_shapes: Tensor, video_num: Tensor
) -> list[list[Any]]:
    """The videos of each prompt, as tensors of these shapes."""
    return _parts(_restored(flattened_tensors, tensor_shapes), video_num)


def restore_pixel_valaues_from_flattend(
    flattened_tensors: Tensor, tensor_shapes: Tensor, image_num: Tensor | None = None, merge_shape: bool = False
) -> list[Tensor]:
    """The patches of each picture, (patches, size); with image_num: of all pictures of each prompt together."""
    _, begins = calculate_split_indices(tensor_shapes, merge_shape)
    pixels = [flattened_tensors[begin:end] for begin, end in zip(begins[:-1], begins[1:], strict=True)]
    return pixels if image_num is None else [torch.cat(part) for part in _parts(pixels, image_num)]


def restore_split_data(data_tensor: Tensor, split_num: Tensor) -> list[Tensor]:
    """The rows of each prompt."""
    return _parts(data_tensor, split_num)


restore_image_grid_thw = restore_split_data


def unpack_mm_experience(batch_data: dict[str, Any]) -> dict[str, Any]:
    """What MMGRPOTransferDock's get returns, by prompt: pictures or videos, and what the model makes of them."""
    batch = dict(batch_data)

    def numbers() -> Tensor:
        counts: Tensor = batch["image_num"]
        return counts if int(counts.sum()) else batch["video_num"]

    if {"image", "image_shape", "video", "video_shape"} <= batch.keys():
        if int(batch["image_num"].sum()) > 0:
            batch["image"] = restore_images_from_tensors(batch["image"], batch["image_shape"], batch["image_num"])
        else:
            batch["video"] = restore_videos_from_tensors(batch["video"], batch["video_shape"], batch["video_num"])
            batch["video_fps"] = restore_split_data(batch["video_fps"], batch["video_num"])
    grids = batch.get("image_grid_thw")
    if grids is None:
        return batch
    for name in ("pixel_values", "vit_embeds"):
        if name in batch:
            merged = name == "vit_embeds"
            batch[name] = restore_pixel_valaues_from_flattend(batch[name], grids, numbers(), merge_shape=merged)
            batch["image_grid_thw"] = restore_split_data(grids, numbers())
    return batch
