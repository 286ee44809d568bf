#!/usr/bin/env bash
# The static checks. usage: scripts/lint.sh [format|thread-safety|tidy]…   (all of them by default)
set -euo pipefail
cd "$(dirname "$0")/.."

sources() { git ls-files --cached --others --exclude-standard 'src/*.h' 'src/*.cc' 'include/*.h' 'tests/*.cc' 'tests/*.h'; }

# An instrumented or analysed build in a folder of its own.
configure_clang() {
  mkdir -p build
  cmake --preset clang > build/configure-clang.log 2>&1 || { cat build/configure-clang.log; exit 1; }
}

format() {
  sources | xargs clang-format-16 --dry-run -Werror
  echo "format: as .clang-format says"
}

thread_safety() {
  configure_clang
  cmake --build --preset clang -j "$(nproc)"
  echo "thread-safety: no lock is missed"
}

tidy() {
  # The compile database is clang's, so that the precompiled header is one that clang-tidy reads.
  configure_clang
  cmake --build --preset clang -j "$(nproc)" --target tdock_torch_pch
  local files
  mapfile -t files < <(sources | grep '\.cc$')
  printf '%s\n' "${files[@]}" | xargs -P "$(nproc)" -n 4 clang-tidy-16 -p build/clang --quiet 2>/dev/null
  echo "tidy: ${#files[@]} files without findings"
}

[ $# -gt 0 ] || set -- format thread-safety tidy
for check in "$@"; do
  case $check in
    format) format ;;
    thread-safety) thread_safety ;;
    tidy) tidy ;;
    *)
      echo "scripts/lint.sh: unknown check '$check'; there are format, thread-safety and tidy" >&2
      exit 2
      ;;
  esac
done
