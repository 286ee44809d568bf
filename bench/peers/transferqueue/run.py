"""The Python package beside TransferQueue: see README.md."""

from __future__ import annotations

import sys

import harness
import workloads

if __name__ == "__main__":
    sys.exit(harness.main(workloads.all_benchmarks()))
