"""The classes of MindSpeed-RL's Transfer Dock, with the same names and calls, on top of this package's dock.

    from transfer_dock.compat.mindspeed import GRPOTransferDock

    td = GRPOTransferDock(prompts_num=8, n_samples_per_prompt=4)
    td.put_prompts_experience({"prompts": prompts}, 4)
    batch, indexes = td.get_experience("actor_rollout", ["prompts", "prompt_length"], 8)
    td.put_experience({"responses": responses}, indexes)

Tensors have the same form as there: columns padded to one length, with ``original_length``. docs/mindspeed.md lists the
differences from the original and their reasons: waits end, rows of a consumer that dies come back, and the indexes that
a get returns refer to their rows, so that a late put cannot reach another batch.

Such a dock belongs to the process that makes it. ``GRPOTransferDock.remote(…)`` makes it in an actor of Ray, as the
original's class does. Its rows may be in a served dock (``dock=``), where other processes see them as a partition.
"""

from transfer_dock.compat.mindspeed._batches import (
    get_current_dp_range_indexes,
    pack_experience_columns,
    pad_experience,
    pad_multiple,
    padding_dict_to_tensor_dict,
    put_prompts_experience,
    remove_padding_and_split_to_list,
    remove_padding_tensor_dict_to_dict,
    trans_input_to_experience,
    truncate_middle_and_pad,
    truncate_prompt_and_pad,
    truncate_rows,
    unpack_pad_experience,
)
from transfer_dock.compat.mindspeed._dispatch_sizes import set_dispatch_sizes
from transfer_dock.compat.mindspeed._docks import TransferDock
from transfer_dock.compat.mindspeed._grpo import DAPOTransferDock, GRPOTransferDock, Metric, PPOTransferDock
from transfer_dock.compat.mindspeed._images import MMGRPOTransferDock
from transfer_dock.compat.mindspeed._images_apart import (
    calculate_split_indices,
    restore_image_grid_thw,
    restore_images_from_tensors,
    restore_pixel_valaues_from_flattend,
    restore_split_data,
    restore_videos_from_tensors,
    unpack_mm_experience,
)
from transfer_dock.compat.mindspeed._indexes import Indexes, UnknownName
from transfer_dock.compat.mindspeed._workers import TransferDockWorker, TransferDockWorkers

__all__ = [
    "DAPOTransferDock",
    "GRPOTransferDock",
    "Indexes",
    "MMGRPOTransferDock",
    "Metric",
    "PPOTransferDock",
    "TransferDock",
    "TransferDockWorker",
    "TransferDockWorkers",
    "UnknownName",
    "calculate_split_indices",
    "get_current_dp_range_indexes",
    "pack_experience_columns",
    "pad_experience",
    "pad_multiple",
    "padding_dict_to_tensor_dict",
    "put_prompts_experience",
    "remove_padding_and_split_to_list",
    "remove_padding_tensor_dict_to_dict",
    "restore_image_grid_thw",
    "restore_images_from_tensors",
    "restore_pixel_valaues_from_flattend",
    "restore_split_data",
    "restore_videos_from_tensors",
    "set_dispatch_sizes",
    "trans_input_to_experience",
    "truncate_middle_and_pad",
    "truncate_prompt_and_pad",
    "truncate_rows",
    "unpack_mm_experience",
    "unpack_pad_experience",
]
