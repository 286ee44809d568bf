#!/usr/bin/env bash
# Two-digit addition from nothing: data, supervised fine-tuning, then reinforcement by the recipe of RECIPE.yaml.
# usage: examples/arithmetic/run.sh RECIPE [FOLDER [SEED [permuted] [KEY=VALUE…]]]
# RECIPE is grpo, rloo, dapo or async. With `permuted` each problem has the answer of another one, and nothing is learned.
# What FOLDER has already of the first two parts is kept. TDOCK in the environment is the program to train with.
set -euo pipefail
cd "$(dirname "$0")/../.."
recipe=${1:?"usage: examples/arithmetic/run.sh RECIPE [FOLDER [SEED [permuted] [KEY=VALUE…]]]"}
folder=${2:-runs/arithmetic-$recipe}
seed=${3:-1}
shift $(($# < 3 ? $# : 3))
data=train
if [ "${1:-}" = permuted ]; then
  data=train_permuted
  shift
fi
name=$recipe${data#train}
tdock=${TDOCK:-build/release/tdock}

if [ ! -e "$folder/sft/checkpoint/config.json" ]; then
  python3 examples/arithmetic/make_data.py "$folder" "$seed"
  "$tdock" train examples/arithmetic/sft.yaml --seed "$seed" --run-dir "$folder/sft" \
    data.train_files="$folder/train.jsonl" data.val_files="$folder/validation.jsonl"
fi
"$tdock" train "examples/arithmetic/$recipe.yaml" --seed "$seed" --run-dir "$folder/$name" \
  model.path="$folder/sft/checkpoint" data.train_files="$folder/$data.jsonl" data.val_files="$folder/test.jsonl" "$@"
