#!/usr/bin/env python3
"""Mistakes that users make, and what `tdock` says of each: tests/integration/mistakes_test.py TDOCK [--table]

A row is a mistake, the exit code, the command, and the names that the message must have: of the thing that is wrong (a
key, a file, a line) and of what would be right (the right key, the choices, the range). --table prints each mistake
with its message, as Markdown.
"""

import collections
import concurrent.futures
import gzip
import os
import pathlib
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import typing
import unittest

from generate_test import write_model
from waiting import LONG

tdock = None

LONGEST, MOST_LINES = 600, 12  # bytes and lines of a message
# What only those who know the code can read.
INSIDE = (
    "Traceback", "Exception", "terminate called", "what():", "std::", "c10::", "at::", "torch::", "absl::", "nlohmann",
    "json.exception", "CLI::", "YAML::", "yaml-cpp", "arrow", "Status:", "Invalid:", "INVALID_ARGUMENT", "NOT_FOUND",
    "<frozen",
)  # fmt: skip

ARGUMENTS = (
    ("no command", 2, "", "subcommand", "--help"),
    ("an unknown command", 2, "finetune", "finetune", "init", "train", "generate"),
    ("a mistyped command", 2, "trian sft.yaml", "trian", "train?"),
    ("train without a file", 2, "train", "configuration", "tdock init", "train sft.yaml"),
    ("a mistyped option", 2, "train sft.yaml --run-dri x", "--run-dri", "--run-dir?"),
    ("an option of another program", 2, "train sft.yaml --lr 1e-4", "--lr", "--help"),
    ("a key with dashes", 2, "train sft.yaml --optim.lr 1e-4", "--optim.lr", "dashes", "optim.lr=…"),
    ("an override without a value", 2, "train sft.yaml optim.lr", "optim.lr", "key=value"),
    ("an override with a colon", 2, "train sft.yaml optim.lr:1e-4", "optim.lr:1e-4", "key=value"),
    ("an override that removes a key", 2, "train sft.yaml ~optim.lr", "~optim.lr", "key=null"),
    ("an override before the file", 2, "train optim.lr=1e-4 sft.yaml", "optim.lr=1e-4", "sft.yaml", "key=value"),
    ("a missing file", 2, "train nothere.yaml", "nothere.yaml", "no such"),
    ("a file with a mistyped name", 2, "train stf.yaml", "stf.yaml", "sft.yaml"),
    ("a folder for a file", 2, "train m", "m is a folder", "config.yaml"),
    ("a recipe for a file", 2, "train sft", "sft:", "sft.yaml"),
    ("keys of an unknown recipe", 2, "train --keys kto", "kto", "sft", "dpo", "grpo"),
    ("a page on an impossible port", 2, "train sft.yaml --page 99999", "99999", "PORT", "65535"),
)  # fmt: skip

YAML = (
    ("a tab", 2, "train tab.yaml", "tab.yaml:3", "tab", "spaces"),
    ("a key twice", 2, "train twice.yaml", "twice.yaml:4", "model", "line 2"),
    ("an empty file", 2, "train empty.yaml", "empty.yaml", "recipe: sft"),
    ("no recipe", 2, "train norecipe.yaml", "norecipe.yaml", "recipe: sft"),
    ("an open quote", 2, "train quote.yaml", "quote.yaml", "quote"),
    ("an open bracket", 2, "train bracket.yaml", "bracket.yaml", "]"),
    ("a text with a colon", 2, "train colon.yaml", "colon.yaml:3", "quotes"),
    ("a wrong indent", 2, "train indent.yaml", "indent.yaml:4", "indent"),
    ("not UTF-8", 2, "train latin.yaml", "latin.yaml:2", "UTF-8"),
    ("a key without a section", 2, "train flat.yaml", "flat.yaml:4", "train_batch_size", "data.train_batch_size"),
    ("an unset value", 2, "train open.yaml", "open.yaml:3", "model.path", "???"),
    ("the environment", 2, "train environment.yaml", "environment.yaml:3", "model.path", "oc.env"),
    ("a reference to nothing", 2, "train reference.yaml", "reference.yaml:3", "model.path", "${paths.model}"),
    ("a value for a section", 2, "train section.yaml", "section.yaml:2", "model", "section", "model.path"),
)  # fmt: skip

# Overrides of a configuration: the mistake, the recipe, the override, and the names in the line of the report about its
# key. Those of a recipe are given together, so that each must be reported beside the others.
KEYS = (
    ("a mistyped key", "sft", "optim.lrr=1e-4", "optim.lr?"),
    ("another word for a key", "sft", "optim.learning_rate=1e-4", "optim.lr?"),
    ("a mistyped section", "sft", "triner.save_freq=1", "trainer.save_freq?"),
    ("a key in the wrong section", "sft", "trainer.lr=1e-4", "optim.lr?"),
    ("a key in capitals", "sft", "Optim.Beta1=0.9", "optim.beta1?"),
    ("a singular for a plural", "sft", "trainer.total_epoch=1", "trainer.total_epochs?"),
    ("a key of other recipes", "sft", "rollout.n=4", "unknown key", "ppo", "grpo", "dapo"),
    ("a key of another recipe", "sft", "dpo.beta=0.1", "unknown key", "dpo"),
    ("an option for a key", "sft", "run_dir=x", "trainer.run_dir?"),
    ("a key of sft alone", "grpo", "zero_stage=2", "did you mean actor.zero_stage?"),
    ("an unknown key", "sft", "zebra=4", "unknown key", "model, data", "trainer"),
)  # fmt: skip

FOREIGN_KEYS = (
    ("TRL, batch size", "sft", "per_device_train_batch_size=8", "data.train_batch_size",
     "data.micro_batch_size_per_gpu"),
    ("TRL's rate", "sft", "learning_rate=fast", "(optim.lr here)", '"fast"', "number > 0"),
    ("TRL's accumulation", "sft", "trainer.gradient_accumulation_steps=4", "data.train_batch_size"),
    ("TRL's steps", "sft", "max_steps=many", "(trainer.total_training_steps here)", '"many"', "integer ≥ 0"),
    ("TRL's steps of grpo", "grpo", "total_episodes=1000", "trainer.total_training_steps"),
    ("TRL's warmup", "sft", "warmup_ratio=0.1", "optim.lr_warmup_steps"),
    ("TRL, data set", "sft", "dataset_name=trl-lib/Capybara", "data.train_files", "data.name"),
    ("TRL's loss mask", "sft", "assistant_only_loss=false", "data.train_on"),
    ("TRL's precision", "sft", "torch_dtype=bfloat16", "model.compute_dtype", "model.param_dtype"),
    ("TRL's reward", "grpo", "reward_funcs=accuracy_reward", "reward.function", "FILE.py:NAME"),
    ("TRL's group", "grpo", "num_generations=0", "(rollout.n here)", '"0"', "≥ 1"),
    ("TRL's sampling", "grpo", "top_p=0.9", "rollout.temperature"),
    ("TRL's vLLM", "grpo", "use_vllm=true", "rollout.servers"),
    ("TRL's logs", "sft", "report_to=wandb", "trainer.run_dir", "--lenient"),
    ("PEFT's quantization", "sft", "load_in_4bit=true", "model.param_dtype"),
    ("PEFT's rank", "sft", "r=-1", "(model.lora_rank here)", '"-1"', "≥ 0"),
    ("PEFT's bias", "sft", "bias=all", '"all"', "none", "model.target_modules"),
    ("PEFT's DoRA", "sft", "use_dora=true", "false", "model.lora_rank"),
    ("verl's temperature", "grpo", "actor_rollout_ref.rollout.temperature=0", "(rollout.temperature here)", '"0"', "> 0"),
    ("verl's machines", "grpo", "trainer.nnodes=2", "resources.pools", "--lenient"),
    ("verl's critic", "grpo", "algorithm.adv_estimator=gae", '"gae"', "grpo"),
    ("verl's engine", "grpo", "actor_rollout_ref.rollout.name=vllm", "rollout.servers", "--lenient"),
    ("verl's warmup", "grpo", "actor_rollout_ref.actor.optim.lr_warmup_steps_ratio=0.1", "actor.optim.lr_warmup_steps"),
    ("verl's tensor parallelism", "grpo", "actor_rollout_ref.rollout.tensor_model_parallel_size=2", "resources.pools"),
)  # fmt: skip

VALUES = (
    ("a word for a number", "sft", "optim.lr=fast", '"fast"', "number > 0"),
    ("below zero", "sft", "optim.clip_grad=-1", '"-1"', "number ≥ 0"),
    ("NaN", "sft", "optim.beta1=nan", '"nan"', "number ≥ 0 and < 1"),
    ("a fraction for an integer", "sft", "data.train_batch_size=8.5", '"8.5"', "integer ≥ 1"),
    ("an exponent for an integer", "sft", "data.max_length=1e3", '"1e3"', "integer ≥ 1"),
    ("a separator of thousands", "sft", "data.max_record_bytes=1,024", '"1,024"', "integer ≥ 1"),
    ("a negative seed", "sft", "seed=-1", '"-1"', "integer ≥ 0"),
    ("an empty value", "sft", "optim.weight_decay=", '""', "number ≥ 0"),
    ("a list for a number", "sft", "optim.min_lr_ratio=[0.1]", "[0.1]", "number ≥ 0"),
    ("a list without its end", "sft", "data.train_files=[a", "[a", "such as [a, b]"),
    ("a section for a value", "sft", "model=m", '"m"', "section", "model.path"),
    ("a maybe", "sft", "data.shuffle=maybe", '"maybe"', "true", "false"),
    ("an unknown choice", "sft", "optim.lr_scheduler_type=exponential", '"exponential"', "constant, linear", "cosine"),
    ("an unknown type of numbers", "sft", "model.compute_dtype=float8", '"float8"', "float32", "bfloat16"),
    ("a share above one", "sft", "data.val_share=1.5", '"1.5"', "< 1"),
    ("a date in another order", "sft", "data.template_date=31.01.2026", "31.01.2026", "2026-01-31"),
    ("an unknown evaluation", "sft", "trainer.evaluations=[accuracy]", "accuracy", "perplexity"),
    ("temperature zero", "grpo", "rollout.temperature=0", '"0"', "number > 0"),
    ("a clip above one", "grpo", "actor.clip_ratio_low=7", '"7"', "≤ 1"),
    ("an unknown loss", "grpo", "actor.policy_loss.loss_mode=dro", '"dro"', "vanilla", "gspo"),
    ("a reward without a function", "grpo", "reward.function=rewards.py", "rewards.py", "FILE.py:NAME"),
    ("a reward server without a URL", "grpo", "reward.url=localhost", "localh", "http://"),
    ("a server without a URL", "grpo", "rollout.servers=[gpu1:8000]", "gpu1:8000", "http://"),
)  # fmt: skip

# Commands again.
TOGETHER = (
    ("a mistyped recipe", 2, "train sft.yaml recipe=gpro", '"gpro"', "sft, rm, dpo, ppo, grpo, dapo"),
    ("verl's key and ours", 2, "train grpo.yaml rollout.n=2 actor_rollout_ref.rollout.n=4",
     "actor_rollout_ref.rollout.n", "rollout.n", "keep one"),
    ("an unknown pool", 2, "train grpo.yaml resources.pools=[train=1] resources.roles=[rollout=gen]",
     "resources.roles", "rollout=gen", "pools train"),
    ("adapters of an unknown layer", 2, "train sft.yaml model.lora_rank=8 model.target_modules=[q_projj]",
     "model.target_modules", "q_projj", "q_proj"),
    ("a batch above the data", 2, "train sft.yaml data.train_batch_size=500",
     "data.train_batch_size", "500", "12"),
    ("a mini-batch that does not divide", 2, "train grpo.yaml actor.ppo_mini_batch_size=3",
     "actor.ppo_mini_batch_size = 3", "data.train_batch_size = 4"),
    ("no room for a prompt", 2, "train grpo.yaml data.max_prompt_length=2", "data.max_prompt_length", "2 tokens"),
    ("an answer beyond the context", 2, "train grpo.yaml data.max_response_length=5000",
     "data.max_response_length", "5000", "4096"),
    ("no room for a sample", 2, "train sft.yaml data.max_length=3", "data.max_length", "3"),
    ("validation given twice", 2, "train sft.yaml data.val_share=0.5 data.val_files=chat.jsonl",
     "data.val_share", "data.val_files"),
    ("weights for one of two files", 2, "train sft.yaml data.train_files=[chat.jsonl,chat.jsonl] data.train_weights=[1]",
     "data.train_weights", "data.train_files", "2"),
)  # fmt: skip

DEVICES = (
    ("gpu for a device", 2, "train sft.yaml device=gpu", "device = gpu", "cpu", "cuda:N"),
    ("a GPU that is not there", 2, "train sft.yaml device=cuda:99", "cuda:99"),
    ("too many threads", 2, "generate --model m --prompt hi --threads 5000", "--threads", "5000", "1024"),
)  # fmt: skip

MODELS = (
    ("a missing model", 2, "train sft.yaml model.path=nope", "no folder nope"),
    ("a model of the hub", 2, "train sft.yaml model.path=HuggingFaceTB/SmolLM2-135M",
     "HuggingFaceTB/SmolLM2-135M", "hf download"),
    ("a model's file", 2, "train sft.yaml model.path=m/model.safetensors",
     "m/model.safetensors is a file", "folder"),
    ("no model", 2, "train nomodel.yaml", "model.path"),
    ("a folder without a model", 2, "generate --model folder --prompt hi", "folder/tokenizer.json"),
    ("a model without a tokenizer", 2, "train sft.yaml model.path=notokenizer", "notokenizer", "tokenizer.json"),
    ("a model without weights", 2, "train sft.yaml model.path=noweights", "noweights", "model.safetensors"),
    ("an unknown architecture", 2, "generate --model mamba --prompt hi", "mamba/config.json", "'mamba'", "llama"),
    ("a broken tokenizer", 2, "generate --model brokentokenizer --prompt hi",
     "brokentokenizer", "tokenizer.json", "JSON"),
    ("weights that were cut off", 2, "generate --model cut --prompt hi", "cut/model.safetensors", "cut short"),
    ("no template", 2, "train sft.yaml model.path=plain", "plain", "chat_template", "data.template"),
    ("missing adapters", 2, "generate --model m --adapter nope --prompt hi", "nope/adapter_config.json"),
)  # fmt: skip

DATA = (
    ("a missing data file", 2, "train sft.yaml data.train_files=nope.jsonl", "nope.jsonl", "no such"),
    ("a mistyped data file", 2, "train sft.yaml data.train_files=chat.json", "chat.json:", "chat.jsonl"),
    ("a data file in a missing folder", 2, "train sft.yaml data.train_files=data/chat.jsonl",
     "data/chat.jsonl", "folder data"),
    ("a data set of the hub", 2, "train sft.yaml data.train_files=HuggingFaceH4/ultrachat_200k",
     "HuggingFaceH4/ultrachat_200k", "hf download", "data.train_files"),
    ("a name of a data set", 2, "train nodata.yaml data.name=openai/gsm8k data.hub_cache=hub",
     "openai/gsm8k", "the cache hub"),
    ("no data", 2, "train nodata.yaml", "data.train_files"),
    ("a folder without a split", 2, "train sft.yaml data.train_files=folder", 'begins with "train."', "precious.txt"),
    ("an empty data file", 2, "train sft.yaml data.train_files=empty.jsonl", "no records in empty.jsonl"),
    ("a broken line", 2, "train sft.yaml data.train_files=badline.jsonl", "badline.jsonl:2", "JSON"),
    ("JSON that is no list", 2, "train sft.yaml data.train_files=object.json", "object.json", "list"),
    ("unknown columns", 2, "train sft.yaml data.train_files=unknown.jsonl",
     "unknown.jsonl", "columns foo, bar", "messages", "data.columns.prompt"),
    ("ShareGPT's roles", 2, "train sft.yaml data.train_files=roles.jsonl", "roles.jsonl:1", '"narrator"', "assistant"),
    ("no reply", 2, "train sft.yaml data.train_files=noreply.jsonl", "noreply.jsonl", "reply"),
    ("a gzip file", 2, "train sft.yaml data.train_files=chat.jsonl.gz", "chat.jsonl.gz", "compressed", "gunzip"),
    ("a spreadsheet", 2, "train sft.yaml data.train_files=chat.xlsx", "chat.xlsx", "jsonl", "parquet"),
    ("a Parquet file that is none", 2, "train sft.yaml data.train_files=chat.parquet",
     "chat.parquet", "Parquet"),
    ("a column that is not there", 2, "train sft.yaml data.train_files=pairs.jsonl data.columns.chosen=anser",
     "anser", "prompt, chosen, rejected"),
    ("sft on prompts", 2, "train sft.yaml data.train_files=questions.jsonl",
     "questions.jsonl", "sft", "data.columns.chosen"),
    ("dpo on conversations", 2, "train dpo.yaml data.train_files=chat.jsonl", "chat.jsonl", "chosen", "rejected"),
    ("grpo on conversations", 2, "train grpo.yaml data.train_files=chat.jsonl", "chat.jsonl", "data.columns.truth"),
    ("grpo without right answers", 2, "train grpo.yaml data.train_files=questions.jsonl",
     "questions.jsonl", "data.columns.truth", "reward.function"),
    ("a missing validation file", 2, "train sft.yaml data.val_files=nope.jsonl", "nope.jsonl", "no such"),
    ("template variables that are no JSON", 2, "train sft.yaml data.template_variables=x",
     "data.template_variables", "JSON"),
    ("an unknown template", 2, "train sft.yaml data.template=lama", "lama", "llama3", "chatml"),
    ("a kept column that is not there", 2, "train grpo.yaml data.keep=[entry]", "entry", "prompt, answer"),
)  # fmt: skip

REWARDS = (
    ("a missing reward file", 2, "train grpo.yaml reward.function=nope.py:score", "reward.function", "nope.py"),
    ("a missing reward function", 2, "train grpo.yaml reward.function=rewards.py:nope",
     "rewards.py has no 'nope'", "score, graded"),
    ("verl's reward without its function", 2, "train grpo.yaml custom_reward_function.path=rewards.py",
     "reward.function = rewards.py:compute_score", "score, graded"),
    ("a reward with a fault of syntax", 2, "train grpo.yaml reward.function=syntax.py:score", "syntax.py", "line 1"),
    ("a reward with a missing package", 2, "train grpo.yaml reward.function=imports.py:score",
     "imports.py", "nopackage", "reward.python = python3"),
    ("a reward without its column", 2, "train grpo.yaml reward.function=rewards.py:graded",
     "rewards.py:graded", "needs 'entry'", "data.keep"),
    ("a missing Python", 2, "train grpo.yaml reward.function=rewards.py:score reward.python=nopython",
     "reward.python = nopython", "PATH"),
    ("a missing reward program", 2, "train grpo.yaml reward.program=[./nope]", "reward.program = ./nope", "cannot run"),
    ("a missing reward model", 2, "train grpo.yaml reward_model.model.path=nope",
     "reward_model.model.path = nope", "nope/config.json"),
    ("a missing environment", 2, "train game.yaml environment.function=rewards.py:Game",
     "rewards.py has no 'Game'", "score, graded"),
    ("an unknown environment", 2, "train game.yaml environment.name=chess",
     "environment.name = chess", "calculator", "environment.function", "FILE.py:NAME"),
)  # fmt: skip

INIT = (
    ("init without a recipe", 2, "init --model m --data chat.jsonl", "recipe"),
    ("init of an unknown recipe", 2, "init kto --model m --data chat.jsonl", "kto", "sft", "dpo", "grpo"),
    ("init on the wrong data", 2, "init dpo --model m --data chat.jsonl", "chat.jsonl", "chosen", "rejected"),
    ("init over a file", 2, "init sft --model m --data chat.jsonl --out sft.yaml", "sft.yaml", "exists", "--out"),
    ("init without right answers", 2, "init grpo --model m --data questions.jsonl",
     "questions.jsonl", "--reward-function"),
    ("init with a reward for sft", 2, "init sft --model m --data chat.jsonl --reward-function rewards.py:score",
     "--reward-function", "sft"),
)  # fmt: skip

RUNS = (
    ("a folder of something else", 2, "train sft.yaml --run-dir folder", "folder", "precious.txt", "another folder"),
    ("a file for the run's folder", 2, "train sft.yaml --run-dir chat.jsonl", "chat.jsonl"),
    ("a run's folder that cannot be made", 2, "train sft.yaml --run-dir /proc/x/run", "/proc/x"),
    ("a run that has ended", 2, "train sft.yaml --run-dir done",
     "done", "ended", "trainer.run_dir", "trainer.resume_mode"),
    ("a run of another configuration", 2, "train sft.yaml --run-dir paused trainer.save_freq=1 optim.lr=1e-3",
     "optim.lr", "0.00001", "0.001", "--allow-changed optim.lr"),
    ("a checkpoint that is not there", 2, "train sft.yaml trainer.resume_mode=resume_path trainer.resume_from_path=nope",
     "trainer.resume_from_path = nope", "checkpoint"),
    ("explain a missing run", 2, "explain runs/nope", "runs/nope"),
    ("explain another folder", 2, "explain folder", "folder", "a run"),
    ("explain a run that has ended", 1, "explain done", "done", "tdock runs show done"),
    ("show a missing run", 2, "runs show runs/nope", "runs/nope"),
    ("merge a missing checkpoint", 2, "merge --local_dir nope --target_dir out", "nope"),
    ("launch a missing program", 2, "launch --nproc 1 -- ./nope", "./nope"),
    ("a dock without a port", 2, "dock status --address nowhere", "--address", "nowhere", "HOST:PORT"),
)  # fmt: skip

ANSWERS = (
    ("generate without a prompt", 2, "generate --model m", "--prompt", "--input", "--output"),
    ("generate without quotes", 2, "generate --model m --prompt hi there", "there"),
    ("an input without an output", 2, "generate --model m --input prompts.jsonl", "--output"),
    ("a missing input", 2, "generate --model m --input nope.jsonl --output out.jsonl", "nope.jsonl"),
    ("an input without prompts", 2, "generate --model m --input unknown.jsonl --output out.jsonl",
     "unknown.jsonl", "prompt"),
    ("an input with a broken line", 2, "generate --model m --input badprompt.jsonl --output out.jsonl",
     "badprompt.jsonl", "2"),
    ("an output that is there", 2, "generate --model m --input prompts.jsonl --output chat.jsonl",
     "chat.jsonl", "--overwrite"),
    ("an output in a missing folder", 2, "generate --model m --input prompts.jsonl --output nofolder/out.jsonl",
     "nofolder"),
    ("top-p above one", 2, "generate --model m --prompt hi --top-p 1.5", "top_p", "1.5", "above 0", "at most 1"),
    ("a negative temperature", 2, "generate --model m --prompt hi --temperature -1", "temperature", "-1", "least 0"),
    ("vLLM's option", 2, "generate --model m --prompt hi --max-tokens 5", "--max-tokens", "--max-new-tokens?"),
    ("a token that is not there", 2, "generate --model m --prompt hi --stop-tokens 999", "999", "257"),
    ("a template without --chat", 2, "generate --model m --prompt hi --template chatml", "--template", "--chat"),
    ("a template that is not there", 2, "generate --model m --prompt hi --chat --template nope", "nope", "chatml"),
    ("a chat without a template", 2, "generate --model plain --prompt hi --chat",
     "plain", "chat_template", "--template"),
    ("serve a missing model", 2, "serve --model nope", "nope", "folder"),
    ("serve on a taken port", 2, "serve --model m --port {port}", "{port}", "in use"),
    ("serve on an impossible port", 2, "serve --model m --port 99999", "--port", "99999", "65535"),
    ("serve with vLLM's option", 2, "serve --model m --tensor-parallel-size 2", "--tensor-parallel-size", "--replicas"),
)  # fmt: skip

OVERRIDES = {"keys": KEYS, "other systems' keys": FOREIGN_KEYS, "values": VALUES}
COMMANDS = {
    "arguments": ARGUMENTS, "YAML": YAML, "values together": TOGETHER, "devices": DEVICES, "models": MODELS, "data": DATA,
    "rewards": REWARDS, "init": INIT, "runs": RUNS, "answers": ANSWERS,
}  # fmt: skip

CHAT = '{"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]}\n'
PROMPT = '{"prompt": "1+1=", "answer": "2"}\n'
SFT = "recipe: sft\nmodel:\n  path: m\ndata:\n  train_files: chat.jsonl\n  train_batch_size: 4\n"
STEPS = "trainer:\n  total_training_steps: 2\n"

FILES = {
    "chat.jsonl": 12 * CHAT,
    "prompts.jsonl": 12 * PROMPT,
    "pairs.jsonl": 12 * '{"prompt": "a", "chosen": "b", "rejected": "c"}\n',
    "sft.yaml": SFT + STEPS,
    "dpo.yaml": (SFT + STEPS).replace("sft", "dpo").replace("chat", "pairs"),
    "grpo.yaml": SFT.replace("sft", "grpo").replace("chat", "prompts")
    + "  max_prompt_length: 16\n  max_response_length: 6\nactor:\n  ppo_mini_batch_size: 4\n"
    + STEPS,
    "game.yaml": SFT.replace("sft", "grpo").replace("chat", "prompts")
    + "  max_response_length: 60\nenvironment:\n  max_turns: 2\n"
    + STEPS,
    # Configurations with a mistake.
    "tab.yaml": "recipe: sft\nmodel:\n\tpath: m\n",
    "twice.yaml": "recipe: sft\nmodel:\n  path: m\nmodel:\n  lora_rank: 8\n",
    "empty.yaml": "",
    "norecipe.yaml": SFT.partition("\n")[2],
    "quote.yaml": 'recipe: "sft\nmodel:\n  path: m\n',
    "bracket.yaml": "recipe: sft\ndata:\n  train_files: [chat.jsonl\n",
    "colon.yaml": "recipe: sft\ndata:\n  template_variables: a: b\n",
    "indent.yaml": "recipe: sft\nmodel:\n   path: m\n  lora_rank: 8\n",
    "latin.yaml": b"recipe: sft\nmodel: {path: caf\xe9}\n",
    "flat.yaml": "recipe: sft\nmodel:\n  path: m\ntrain_batch_size: 8\n",
    "open.yaml": "recipe: sft\nmodel:\n  path: ???\n",
    "environment.yaml": "recipe: sft\nmodel:\n  path: ${oc.env:MODEL}\n",
    "reference.yaml": "recipe: sft\nmodel:\n  path: ${paths.model}\n",
    "section.yaml": "recipe: sft\nmodel: m\n",
    "nomodel.yaml": SFT.replace("path: m", "lora_rank: 8"),
    "nodata.yaml": SFT.replace("train_files", "#"),
    # Data with a mistake.
    "empty.jsonl": "",
    "badline.jsonl": CHAT + CHAT[:-2] + "\n" + 8 * CHAT,
    "badprompt.jsonl": PROMPT + PROMPT[:-2] + "\n",
    "object.json": CHAT,
    "unknown.jsonl": '{"foo": "a", "bar": "b"}\n',
    "roles.jsonl": CHAT.replace("user", "narrator"),
    "noreply.jsonl": '{"messages": [{"role": "user", "content": "hi"}]}\n',
    "questions.jsonl": 12 * '{"prompt": "1+1="}\n',
    "chat.jsonl.gz": gzip.compress(CHAT.encode()),
    "chat.xlsx": b"PK\x03\x04",
    "chat.parquet": CHAT,
    # Rewards.
    "rewards.py": "def score(completions, **columns):\n    return [0.0 for _ in completions]\n\n"
    "def graded(completions, entry):\n    return [0.0 for _ in entry]\n",
    "syntax.py": "def score(completions:\n",
    "imports.py": "import nopackage\n",
    # Folders.
    "folder/precious.txt": "data\n",
    "done/lock": "",
    "done/config.yaml": SFT + STEPS,
    "done/checkpoint/config.json": "{}",
}  # fmt: skip


def write_files(folder):
    write_model(folder / "m")
    write_model(folder / "plain", chat_template=None)
    write_model(folder / "mamba", model_type="mamba")
    for name in ("notokenizer", "noweights", "brokentokenizer", "cut"):
        shutil.copytree(folder / "m", folder / name)
    (folder / "notokenizer/tokenizer.json").unlink()
    (folder / "noweights/model.safetensors").unlink()
    (folder / "brokentokenizer/tokenizer.json").write_text("{")
    os.truncate(folder / "cut/model.safetensors", 1000)
    for name, content in FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    code, message = call(folder, "train", "sft.yaml", "--run-dir", "paused", "trainer.save_freq=1")
    assert code == 0, message
    shutil.rmtree(folder / "paused/checkpoint")  # as of a run that has not ended


def call(folder, *arguments):
    """Exit code and message."""
    options = {"cwd": folder, "stdin": subprocess.DEVNULL, "capture_output": True, "timeout": LONG}
    done = subprocess.run([tdock, *arguments], **options)
    return done.returncode, done.stderr.decode(errors="replace")


class Refusal(typing.NamedTuple):
    """What `tdock` said of a mistake."""

    mistake: str
    command: str
    names: list
    expected: int
    code: int
    message: str

    def faults(self):
        """What is wrong with the exit code and the message."""
        lines, size = self.message.count("\n"), len(self.message.encode())
        missing = [name for name in self.names if name not in self.message]
        inside = [word for word in INSIDE if word in self.message]
        if self.code != self.expected:
            yield f"exit code {self.code}, not {self.expected}"
        if missing:
            yield f"without {', '.join(missing)}"
        if inside:
            yield f"with {', '.join(inside)}"
        if size > LONGEST or lines > MOST_LINES:
            yield f"{size} bytes in {lines} lines, more than {LONGEST} in {MOST_LINES}"


def refused_command(folder, port, mistake, expected, command, *names):
    command = command.replace("{port}", port)
    code, message = call(folder, *shlex.split(command))
    return [Refusal(mistake, command, [name.replace("{port}", port) for name in names], expected, code, message)]


def refused_overrides(folder, recipe, rows):
    """Of one command with all of the overrides."""
    file = f"{recipe}.yaml"
    code, report = call(folder, "train", file, *(override for _, _, override, *_ in rows))
    lines = report.removeprefix("tdock train: ").splitlines(keepends=True)
    refusals = []
    for mistake, _, override, *names in rows:
        start = "command line: " + override.partition("=")[0]
        own = [line for line in lines if line.startswith((start + ":", start + " "))]
        refusals.append(Refusal(mistake, f"train {file} {override}", [start, *names], 2, code, "".join(own)))
    return refusals


def refusals():
    """{section: refusals of its rows}; two commands at a time."""
    with tempfile.TemporaryDirectory() as name, socket.create_server(("127.0.0.1", 0)) as taken:
        folder, port = pathlib.Path(name), str(taken.getsockname()[1])
        write_files(folder)
        asked = collections.defaultdict(list)
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            for section, rows in OVERRIDES.items():
                for recipe in ("sft", "grpo"):
                    of_recipe = [row for row in rows if row[1] == recipe]
                    asked[section].append(pool.submit(refused_overrides, folder, recipe, of_recipe))
            for section, rows in COMMANDS.items():
                asked[section] += [pool.submit(refused_command, folder, port, *row) for row in rows]
            return {section: [each for some in given for each in some.result()] for section, given in asked.items()}


class Mistakes(unittest.TestCase):
    def test_each_message_names_what_is_wrong_and_what_would_be_right(self):
        rows = [row for section in refusals().values() for row in section]
        faulty = []
        for row in rows:
            if faults := "; ".join(row.faults()):
                message = row.message.rstrip("\n").replace("\n", "\n  | ")
                faulty.append(f"{row.mistake}: {faults}\n  tdock {row.command}\n  | {message}\n")
        if faulty:
            self.fail(f"{len(faulty)} of {len(rows)} rows:\n\n" + "".join(faulty))


def print_table():
    for section, rows in refusals().items():
        print(f"### {section}\n\n| mistake | message |\n|---|---|")
        for each in rows:
            lines = each.message.splitlines() or [""]
            said = next((line for line in lines if line.startswith("tdock ")), lines[0]).replace("|", "\\|")
            print(f"| {each.mistake}: `tdock {each.command}` | {said} |")
        print()


if __name__ == "__main__":
    tdock = str(pathlib.Path(sys.argv.pop(1)).resolve())
    if sys.argv[1:] == ["--table"]:
        print_table()
    else:
        unittest.main()
