"""Samples for training loops."""

from transfer_dock.compat.transfer_queue.dataloader.streaming_dataloader import StreamingDataLoader
from transfer_dock.compat.transfer_queue.dataloader.streaming_dataset import StreamingDataset

__all__ = ["StreamingDataLoader", "StreamingDataset"]
