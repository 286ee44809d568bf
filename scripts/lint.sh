#!/usr/bin/env bash
# The static checks. usage: scripts/lint.sh [format|container|thread-safety|thread-safety-rest|tidy]…   (all of them by default)
set -euo pipefail
cd "$(dirname "$0")/.."

sources() { git ls-files --cached --others --exclude-standard 'src/*.h' 'src/*.cc' 'include/*.h' 'tests/*.cc' 'tests/*.h'; }

format() {
  sources | xargs clang-format-16 --dry-run -Werror
  echo "format: as .clang-format says"
}

# Clang's analysis of every source, as the compile commands of the release build have them, without making objects; with
# "rest", of those that `make sanitizers` does not compile, in whose asan build the analysis is on.
thread_safety() {
  scripts/configure.sh release
  python3 - "$@" <<'END' | xargs -P "$(nproc)" -d '\n' -n 1 bash -c
import json, shlex, sys
rest = sys.argv[1:] == ["rest"]
for entry in json.load(open("build/release/compile_commands.json")):
    words = shlex.split(entry["command"])
    if "nanobind" in entry["file"] or entry["file"].endswith("_pch.cc"):
        continue  # not ours
    if rest and not any(name in entry["command"] for name in ("/torch_headers", "nanobind", "pyarrow")):
        continue
    keep = [word for i, word in enumerate(words) if word.startswith(("-I", "-D", "-std=")) or "-isystem" in words[max(i - 1, 0) : i + 1]]
    flags = "-fsyntax-only -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual -Wthread-safety -Werror -pthread"
    print(shlex.join(["clang++-16", *flags.split(), *keep, entry["file"]]))
END
  echo "thread-safety: no lock is missed"
}

container() {
  .venv-lint/bin/hadolint packaging/Containerfile
  shellcheck scripts/*.sh .ci/run
  echo "container, scripts: as hadolint and shellcheck say"
}

tidy() {
  # The compile database is clang's, so that the precompiled header is one that clang-tidy reads.
  scripts/configure.sh clang
  cmake --build --preset clang -j "$(nproc)" --target tdock_torch_pch
  local files
  mapfile -t files < <(sources | grep '\.cc$')
  printf '%s\n' "${files[@]}" | xargs -P "$(nproc)" -n 4 clang-tidy-16 -p build/clang --quiet 2>/dev/null
  echo "tidy: ${#files[@]} files without findings"
}

[ $# -gt 0 ] || set -- format container thread-safety tidy
for check in "$@"; do
  case $check in
    format) format ;;
    container) container ;;
    thread-safety) thread_safety ;;
    thread-safety-rest) thread_safety rest ;;
    tidy) tidy ;;
    *)
      echo "scripts/lint.sh: unknown check '$check'; there are format, container, thread-safety, thread-safety-rest and tidy" >&2
      exit 2
      ;;
  esac
done
