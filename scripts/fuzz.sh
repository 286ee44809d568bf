#!/usr/bin/env bash
# Runs every fuzzer from its corpus in tests/fuzz/NAME, for SECONDS together; what makes one fail is left in build/fuzz.
#
# usage: scripts/fuzz.sh [SECONDS]      default: 60
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=${1:-60}
fuzzers=(build/asan/*_fuzz)
mkdir -p build/fuzz
for fuzzer in "${fuzzers[@]}"; do
  name=$(basename "$fuzzer" _fuzz)
  found=build/fuzz/found/$name
  mkdir -p "$found"
  echo "$name: $((seconds / ${#fuzzers[@]})) s"
  if ! "$fuzzer" -max_total_time=$((seconds / ${#fuzzers[@]})) -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
    -artifact_prefix="build/fuzz/$name-" "$found" "tests/fuzz/$name" > "build/fuzz/$name.log" 2>&1; then
    tail -n 40 "build/fuzz/$name.log" >&2
    exit 1
  fi
  grep -E 'number_of_executed_units|new_units_added' "build/fuzz/$name.log"
done
