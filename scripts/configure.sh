#!/usr/bin/env bash
# Configures build/PRESET, and says so; what CMake prints is in build/configure-PRESET.log, and shown if it fails.
#
# usage: scripts/configure.sh PRESET [-DNAME=VALUE…]
set -euo pipefail
cd "$(dirname "$0")/.."

preset=${1:?usage: scripts/configure.sh PRESET [-DNAME=VALUE…]}
shift
log=build/configure-$preset.log
mkdir -p build
echo "Configuring build/$preset"
cmake --preset "$preset" "$@" > "$log" 2>&1 || { cat "$log"; exit 1; }
