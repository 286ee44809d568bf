#!/usr/bin/env bash
# The ranks of a run under torchrun, which restarts all of them up to twice when one fails.
# usage: examples/cluster/torchrun.sh [KEY=VALUE…]
set -euo pipefail
cd "$(dirname "$0")/../.."
exec torchrun --standalone --nproc-per-node 3 --max-restarts 2 --no-python \
  "${TDOCK:-build/release/tdock}" train examples/cluster/grpo.yaml "$@"
