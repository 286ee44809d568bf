#!/usr/bin/env bash
# A real model learns tasks of reasoning-gym: supervised fine-tuning, DPO, GRPO, a table of what each part gained, and a few
# questions to the server of the last model. README.md says more.
# usage: examples/real-model/run.sh [FOLDER [SEED]]
# What FOLDER (runs/real-model) has already is kept. TDOCK in the environment is the program to train with, MODEL a folder with
# the model, if it has been made elsewhere.
set -euo pipefail
cd "$(dirname "$0")/../.."
folder=${1:-runs/real-model}
seed=${2:-1}
tdock=${TDOCK:-build/release/tdock}
model=${MODEL:-$folder/model}
python=.venv-real-model/bin/python
example=examples/real-model

if [ ! -x "$tdock" ]; then
  echo "run.sh: there is no program $tdock: run \`make build\` first, or name one: TDOCK=…" >&2
  exit 1
fi
scripts/setup.sh real-model
mkdir -p "$folder/answers"

# timed NAME COMMAND…: its seconds, real, in programs and in the system, go to FOLDER/seconds.txt.
timed() {
  local TIMEFORMAT="$1 %R %U %S"
  { time "${@:2}" 2>&3; } 3>&2 2>>"$folder/seconds.txt"
}

# train RECIPE MODEL [KEY=VALUE…]
train() {
  [ -e "$folder/$1/checkpoint/config.json" ] ||
    timed "$1" "$tdock" train "$example/$1.yaml" --seed "$seed" --run-dir "$folder/$1" model.path="$2" "${@:3}"
}

# validate NAME MODEL: the likeliest answers to the held-out questions.
validate() {
  timed validation "$tdock" generate --model "$2" --chat --input "$folder/validation.jsonl" --output "$folder/answers/$1.jsonl" \
    --temperature 0 --max-new-tokens 16
}

timed model "$python" "$example/make_model.py" "$model"
[ -e "$folder/validation.jsonl" ] || "$python" "$example/tasks.py" data "$folder" "$seed"
validate model "$model"
train sft "$model" data.train_files="$folder/sft.jsonl" data.val_files="$folder/validation.jsonl"
validate sft "$folder/sft/checkpoint"
if [ ! -e "$folder/pairs.jsonl" ]; then
  timed dpo "$tdock" generate --model "$folder/sft/checkpoint" --chat --input "$folder/prompts.jsonl" \
    --output "$folder/answers/pairs.jsonl" --samples 4 --seed "$seed" --max-new-tokens 16
  timed dpo "$python" "$example/tasks.py" pairs "$folder/answers/pairs.jsonl" "$folder/pairs.jsonl"
fi
train dpo "$folder/sft/checkpoint" data.train_files="$folder/pairs.jsonl"
validate dpo "$folder/dpo/checkpoint"
train grpo "$folder/dpo/checkpoint" data.train_files="$folder/grpo.jsonl" data.val_files="$folder/validation.jsonl"
validate grpo "$folder/grpo/checkpoint"
"$python" "$example/table.py" "$folder"
"$python" "$example/ask.py" "$tdock" "$folder/grpo/checkpoint" "$folder/validation.jsonl"
