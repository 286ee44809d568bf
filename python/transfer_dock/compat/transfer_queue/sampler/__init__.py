"""How a task's next samples are chosen."""

from transfer_dock.compat.transfer_queue.sampler.base import BaseSampler
from transfer_dock.compat.transfer_queue.sampler.grpo_group_n_sampler import GRPOGroupNSampler
from transfer_dock.compat.transfer_queue.sampler.rank_aware_sampler import RankAwareSampler
from transfer_dock.compat.transfer_queue.sampler.seqlen_balanced_sampler import SeqlenBalancedSampler
from transfer_dock.compat.transfer_queue.sampler.sequential_sampler import SequentialSampler

__all__ = ["BaseSampler", "GRPOGroupNSampler", "RankAwareSampler", "SeqlenBalancedSampler", "SequentialSampler"]
