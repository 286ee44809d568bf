"""TransferQueue's interface on a dock: a program written for it runs with

    import transfer_dock.compat.transfer_queue as tq

in the place of ``import transfer_queue as tq``. docs/transferqueue.md says what is different.
"""

from transfer_dock.compat.transfer_queue._store import StorageKeyNotFoundError
from transfer_dock.compat.transfer_queue.client import AsyncTransferQueueClient, TransferQueueClient
from transfer_dock.compat.transfer_queue.dataloader import StreamingDataLoader, StreamingDataset
from transfer_dock.compat.transfer_queue.interface import (
    async_kv_batch_get,
    async_kv_batch_get_by_meta,
    async_kv_batch_put,
    async_kv_clear,
    async_kv_list,
    async_kv_put,
    close,
    get_client,
    get_metrics_endpoint,
    init,
    kv_batch_get,
    kv_batch_get_by_meta,
    kv_batch_put,
    kv_clear,
    kv_list,
    kv_put,
    load_checkpoint,
    save_checkpoint,
)
from transfer_dock.compat.transfer_queue.metadata import BatchMeta, KVBatchMeta
from transfer_dock.compat.transfer_queue.sampler import (
    BaseSampler,
    GRPOGroupNSampler,
    RankAwareSampler,
    SeqlenBalancedSampler,
    SequentialSampler,
)

# The version of TransferQueue whose interface this is.
__version__ = "0.1.11"

__all__ = [
    "AsyncTransferQueueClient",
    "BaseSampler",
    "BatchMeta",
    "GRPOGroupNSampler",
    "KVBatchMeta",
    "RankAwareSampler",
    "SeqlenBalancedSampler",
    "SequentialSampler",
    "StorageKeyNotFoundError",
    "StreamingDataLoader",
    "StreamingDataset",
    "TransferQueueClient",
    "async_kv_batch_get",
    "async_kv_batch_get_by_meta",
    "async_kv_batch_put",
    "async_kv_clear",
    "async_kv_list",
    "async_kv_put",
    "close",
    "get_client",
    "get_metrics_endpoint",
    "init",
    "kv_batch_get",
    "kv_batch_get_by_meta",
    "kv_batch_put",
    "kv_clear",
    "kv_list",
    "kv_put",
    "load_checkpoint",
    "save_checkpoint",
]
