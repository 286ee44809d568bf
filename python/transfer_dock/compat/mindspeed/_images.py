"""Images and videos, once for each prompt."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from transfer_dock import _native
from transfer_dock.compat.mindspeed._actors import TIMEOUT, Actor
from transfer_dock.compat.mindspeed._batches import rows_of
from transfer_dock.compat.mindspeed._cells import Cells, column_of
from transfer_dock.compat.mindspeed._indexes import named, row_numbers
from transfer_dock.dock import Dock
from transfer_dock.errors import InvalidArgument

_MULTIMODAL = (
    "image", "pixel_values", "image_grid_thw", "image_shape", "labels", "vit_embeds", "position_ids", "image_num",
    "video", "video_shape", "video_fps", "video_num",
)  # fmt: skip
# Rows are joined along their second dimension.
_FLAT = ("image", "video")
# Numbers of images, whatever type a program keeps them in.
_COUNTS = ("image_num", "video_num")


class MMGRPOTransferDock(Actor):
    """Images and videos, once for each prompt."""

    def __init__(
        self,
        prompts_num: int,
        n_samples_per_prompt: int,
        reuse_image_embeds: bool = False,
        timeout: float | None = None,
        timeout_interval: float | None = None,
        *,
        dock: Dock | None = None,
        partition: str | None = None,
    ) -> None:
        """reuse_image_embeds: consumers read vit_embeds instead of pixels. The others as for TransferDock."""
        del timeout_interval
        self.n_samples_per_prompt = n_samples_per_prompt
        self.dock = Dock.local() if dock is None else dock
        self.partition = partition or f"mindspeed-mm-{uuid.uuid4().hex[:12]}"
        self._cells = Cells()
        self._native = _native.MultimodalDock(
            self.dock._native, self.partition, prompts_num, n_samples_per_prompt, reuse_image_embeds,
            TIMEOUT if timeout is None else timeout,
        )  # fmt: skip

    def put_experience(self, batch: Mapping[str, Any], indexes: Sequence[int] | None = None) -> None:
        """Rows of columns for the first of these prompts; columns that the dock does not have are left out, so that a
        worker may put all that it has. Images and videos are (channels, length), of any length.
        """
        if indexes is None:
            raise TypeError("there are no indexes; give the numbers of the prompts, such as [0, 1]")
        for name, value in batch.items():
            if name not in _MULTIMODAL or value is None:
                continue
            rows = rows_of(name, value)
            if name in _FLAT:
                # The dock's rows vary in their first dimension.
                rows = [row.transpose(0, 1).contiguous() if row.dim() == 2 else row for row in rows]
            elif name in _COUNTS:
                rows = [row.to(torch.int64) for row in rows]
            prompts = row_numbers(indexes[: len(rows)])
            if len(prompts) < len(rows):
                raise InvalidArgument(f"column '{name}' has {len(rows)} rows for {len(prompts)} prompts")
            if prompts:
                self._native.put_experience({name: self._cells.fit(name, rows)}, prompts)

    def _rows(self, columns: Sequence[str], indexes: Sequence[int], get_n_samples: bool) -> _native.Rows:
        with named():
            return self._native.get_experience(list(columns), row_numbers(indexes), bool(get_n_samples))

    def get_experience(
        self, consumer: Any, experience_columns: Any = None, indexes: Any = None, get_n_samples: bool = True
    ) -> dict[str, Any]:
        """The prompts of these sample indexes, of every n-th with get_n_samples: tensors, with the rows of images and
        videos concatenated; image_num, video_num and video_fps are (prompts, 1), labels a list. Without indexes: {}.

        consumer: ignored, and may be left out: (experience_columns, indexes).
        """
        if not isinstance(consumer, str):
            get_n_samples = indexes if isinstance(indexes, bool) else get_n_samples
            experience_columns, indexes = consumer, experience_columns
        if indexes is None or not experience_columns:
            return {}
        rows = self._rows(experience_columns, indexes, get_n_samples)
        return {name: self._joined(name, rows[name]) for name in rows.columns}

    def _joined(self, name: str, column: _native.Column) -> Any:
        if column.kind != "ragged":
            return column_of(column)
        if name == "labels":
            return self._cells.read(name, column_of(column))
        if self._cells.any_packed([name]):
            values = torch.cat(self._cells.read(name, column_of(column)))
        else:
            values = column.values_torch(copy=True)
        return values.transpose(0, 1).contiguous() if name in _FLAT and values.dim() == 2 else values

    def get_experience_dict(
        self, experience_columns: Sequence[str], indexes: Sequence[int] | None = None, get_n_samples: bool = True
    ) -> dict[str, list[Any]]:
        """The same prompts, a row for each, as they were put."""
        if indexes is None or not experience_columns:
            return {}
        rows = self._rows(experience_columns, indexes, get_n_samples)
        return {name: self._apart(name, rows[name]) for name in rows.columns}

    def _apart(self, name: str, column: _native.Column) -> list[Any]:
        if column.kind not in ("dense", "ragged"):
            return column.tolist()
        rows = self._cells.read(name, column.torch_list(copy=True))
        return [row.transpose(0, 1).contiguous() if name in _FLAT and row.dim() == 2 else row for row in rows]

    def get_columns(self, consumer: str) -> list[str]:
        """The columns that the consumer reads; none while one of them has no data."""
        return self._native.get_columns(consumer) if isinstance(consumer, str) else []

    def clear(self) -> None:
        """Clears the dock."""
        self._native.clear()
