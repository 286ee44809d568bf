#!/usr/bin/env bash
# From preferences to a model that is preferred, beginning with nothing: examples/rlhf/README.md.
# usage: examples/rlhf/run.sh METHOD [FOLDER [SEED [permuted] [KEY=VALUE…]]]
# METHOD is rm (sft and a reward model), ppo (these and PPO) or dpo (sft and DPO). With `permuted` each pair has the preference
# of another one, and nothing is learned. KEY=VALUE are for the last part; parts that FOLDER has already are kept. TDOCK in
# the environment is the program to train with.
set -euo pipefail
cd "$(dirname "$0")/../.."
method=${1:?"usage: examples/rlhf/run.sh METHOD [FOLDER [SEED [permuted] [KEY=VALUE…]]]"}
folder=${2:-runs/rlhf}
seed=${3:-1}
shift $(($# < 3 ? $# : 3))
suffix=
if [ "${1:-}" = permuted ]; then
  suffix=_permuted
  shift
fi
tdock=${TDOCK:-build/release/tdock}

# train RECIPE NAME TRAIN VALIDATION [KEY=VALUE…]
train() {
  "$tdock" train "examples/rlhf/$1.yaml" --seed "$seed" --run-dir "$folder/$2" \
    data.train_files="$folder/$3.jsonl" data.val_files="$folder/$4.jsonl" "${@:5}"
}
has() { [ -e "$folder/$1/checkpoint/config.json" ]; }

model="model.path=$folder/sft/checkpoint"
if ! has sft; then
  python3 examples/rlhf/make_data.py "$folder" "$seed"
  train sft sft sft sft_validation
fi
case $method in
  rm | dpo) train "$method" "$method$suffix" "pairs$suffix" pairs_validation "$model" "$@" ;;
  ppo)
    has "rm$suffix" || train rm "rm$suffix" "pairs$suffix" pairs_validation "$model"
    scorer=$folder/rm$suffix/checkpoint
    train ppo "ppo$suffix" prompts prompts_validation "$model" \
      critic.model.path="$scorer" reward_model.model.path="$scorer" "$@"
    python3 examples/rlhf/evaluate.py "$tdock" "$folder/prompts_validation.jsonl" "$folder/sft/checkpoint" \
      "$folder/ppo$suffix/checkpoint" "$seed" | tee "$folder/ppo$suffix/points.json"
    ;;
  *)
    echo "examples/rlhf/run.sh: METHOD is rm, ppo or dpo, not $method" >&2
    exit 2
    ;;
esac
