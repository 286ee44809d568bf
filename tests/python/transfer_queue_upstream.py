"""A plugin of pytest for TransferQueue's own test files, which its package carries: they run on transfer_dock's module.

The folder that `python -m transfer_dock.compat` prints is on PYTHONPATH, so `import transfer_queue` is ours. Cases that are
not applicable are deselected; each must be there, so that the list cannot grow stale. What was run is written as JSON to
the file that TDOCK_UPSTREAM_REPORT names: by test file, how many cases passed, and the names of the others.
"""

from __future__ import annotations

import json
import os
import pathlib
from typing import Any

import pytest

import transfer_dock.compat.transfer_queue as ours
from transfer_dock.compat.transfer_queue.utils import zmq_utils

# By test file: the cases that are not applicable, and why.
NOT_APPLICABLE: dict[str, dict[str, str]] = {
    "test_metadata.py": {
        "TestBatchMetaColumnar::test_custom_backend_meta": "a private attribute, of TransferQueue's storage",
        "TestBatchMetaColumnar::test_setstate_readonly_production_status": "the private form in which a batch is pickled",
        "TestStorageUnitDataStrict::test_put_data_length_mismatch_raises": "the inside of a storage unit",
    },
    "test_samplers.py": {
        "TestGRPOGroupNSampler::test_grpo_sampler_non_sequential_indexes": "groups begin at multiples of n",
        "TestGRPOGroupNSampler::test_grpo_sampler_sorting_functionality": "groups begin at multiples of n",
        "TestSeqlenBalancedSampler::test_fallback_equal_split_no_partition": "a batch is consumed for all ranks at once",
        "TestSeqlenBalancedSampler::test_clear_cache": "a private attribute",
        "TestSeqlenBalancedSampler::test_clear_cache_only_affects_target_partition": "a private attribute",
    },
    "test_metrics.py": {
        "TestStorageQuerySocketPool::test_pool_borrows_the_owner_context": "sockets of ZeroMQ",
        "TestStorageQuerySocketPool::test_missing_context_is_reported": "sockets of ZeroMQ",
        "TestStorageQuerySocketPool::test_collector_parks_no_socket_between_queries": "sockets of ZeroMQ",
        "TestZMQRequestTypes::test_metrics_request_types_exist": "messages of ZeroMQ",
    },
    "test_checkpoint_e2e.py": {
        "TestCheckpointErrors::test_save_raises_if_not_initialized": "sets a private variable",
        "TestCheckpointErrors::test_load_raises_if_not_initialized": "sets a private variable",
    },
}

# test_metrics.py imports them at its top, and runs nothing without; cases that use them are not applicable.
for name in ("ZMQMessage", "ZMQRequestType"):
    setattr(zmq_utils, name, object())

_outcomes: dict[str, dict[str, Any]] = {}


def _place(item_id: str) -> tuple[str, str]:
    path, _, case = item_id.partition("::")
    return pathlib.PurePath(path).name, case


def pytest_sessionstart(session: pytest.Session) -> None:
    import transfer_queue

    assert transfer_queue is ours, f"the tests would run on {transfer_queue}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    found = {_place(item.nodeid) for item in items}
    files = {file for file, _ in found}
    listed = {(file, case) for file, cases in NOT_APPLICABLE.items() if file in files for case in cases}
    assert listed <= found, f"listed as not applicable, but not there: {sorted(listed - found)}"
    config.hook.pytest_deselected(items=[item for item in items if _place(item.nodeid) in listed])
    items[:] = [item for item in items if _place(item.nodeid) not in listed]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" or report.outcome != "passed":
        file, case = _place(report.nodeid)
        told = _outcomes.setdefault(file, {"passed": 0, "others": {}})
        if report.passed:
            told["passed"] += 1
        else:
            told["others"][case] = report.outcome


def pytest_sessionfinish(session: pytest.Session) -> None:
    pathlib.Path(os.environ["TDOCK_UPSTREAM_REPORT"]).write_text(json.dumps(_outcomes))
