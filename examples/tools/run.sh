#!/usr/bin/env bash
# Products of two-digit numbers with a calculator, from nothing: data, supervised fine-tuning on a few demonstrations, then
# reinforcement in episodes by the recipe of RECIPE.yaml.
# usage: examples/tools/run.sh RECIPE [FOLDER [SEED [permuted] [KEY=VALUE…]]]
# RECIPE is grpo. `permuted` is what controls are called in the other examples; here the data stay as they are, and a
# KEY=VALUE behind it takes the calculator away. What FOLDER has already of the first two parts is kept. TDOCK in the
# environment is the program to train with.
set -euo pipefail
cd "$(dirname "$0")/../.."
recipe=${1:?"usage: examples/tools/run.sh RECIPE [FOLDER [SEED [permuted] [KEY=VALUE…]]]"}
folder=${2:-runs/tools-$recipe}
seed=${3:-1}
shift $(($# < 3 ? $# : 3))
name=$recipe
if [ "${1:-}" = permuted ]; then
  name=${recipe}_permuted
  shift
fi
tdock=${TDOCK:-build/release/tdock}

if [ ! -e "$folder/sft/checkpoint/config.json" ]; then
  python3 examples/tools/make_data.py "$folder" "$seed"
  "$tdock" train examples/tools/sft.yaml --seed "$seed" --run-dir "$folder/sft" \
    data.train_files="$folder/demonstrations.jsonl" data.val_files="$folder/demonstrations_validation.jsonl"
fi
"$tdock" train "examples/tools/$recipe.yaml" --seed "$seed" --run-dir "$folder/$name" \
  model.path="$folder/sft/checkpoint" data.train_files="$folder/train.jsonl" data.val_files="$folder/test.jsonl" "$@"
