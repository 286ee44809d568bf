# Two commands: `make demo` shows a model learning, `make test` runs every test. Both install what is missing.

jobs := $(shell nproc)
tdock := build/release/tdock
run_dir := runs/demo-$(shell date +%Y%m%d-%H%M%S)

.PHONY: help demo test build configure wheel lint sanitizers fuzz nightly nightly-dock nightly-train nightly-runtime nightly-serve nightly-verl timings clean

help:
	@echo "make demo           install what is missing, build, train a model on addition, ask it a question"
	@echo "make test           install what is missing, build, run every test"
	@echo "make build          everything that the tests run"
	@echo "make wheel          the Python package with all executables as wheels, in dist/"
	@echo "make lint           the static checks: format, container file, thread-safety analysis, clang-tidy"
	@echo "make sanitizers     the tests of the modules without libtorch under asan+ubsan and tsan"
	@echo "make fuzz           the fuzzers of the decoders, for a minute together"
	@echo "make nightly        the long proofs; make nightly-dock, -train, -runtime, -serve, -verl: of one area"
	@echo "make timings        what compiling costs, by target and by source, without a compiler cache"
	@echo "make clean          remove build/ (the Python environments stay)"

configure:
	@scripts/configure.sh release

# Without any part that needs something optional, it fails.
build:
	@scripts/setup.sh build
	@scripts/configure.sh release -DTDOCK_COMPLETE=ON
	@cmake --build --preset release -j $(jobs)

# Only what it runs: the tests and the other executables take several times as long to compile.
demo:
	@scripts/setup.sh demo
	@scripts/configure.sh release -DTDOCK_COMPLETE=OFF
	@cmake --build --preset release -j $(jobs) --target tdock
	@python3 examples/arithmetic/make_data.py runs/arithmetic
	@$(tdock) train examples/arithmetic/sft.yaml --run-dir $(run_dir)/sft
	@$(tdock) train examples/arithmetic/grpo.yaml --run-dir $(run_dir)/grpo model.path=$(run_dir)/sft/checkpoint
	@echo "37+85 is, from its last digit to its first:"
	@$(tdock) generate --model $(run_dir)/grpo/checkpoint --prompt "37+85=" --temperature 0 --max-new-tokens 8
	@echo "To put it behind HTTP, and to ask it more (it knows no language: type sums such as 37+85=), compile its server first:"
	@echo "    cmake --build --preset release --target tdock-serve"
	@echo "    $(tdock) serve --model $(run_dir)/grpo/checkpoint"
	@echo "    $(tdock) chat --raw --max-new-tokens 8 --model $(run_dir)/grpo/checkpoint"

# The environments come first: the build reads Parquet with the pyarrow of one.
test:
	@scripts/setup.sh oracle
	@$(MAKE) --no-print-directory build
	@scripts/run_tests.py release unit fault integration oracle python

wheel:
	@scripts/setup.sh wheel
	@scripts/wheel.sh

lint:
	@scripts/setup.sh lint
	@scripts/lint.sh

sanitizers:
	@scripts/setup.sh lint
	@for preset in asan tsan; do \
	  scripts/configure.sh $$preset && cmake --build --preset $$preset -j $(jobs) && scripts/run_tests.py $$preset unit integration || exit 1; done

fuzz:
	@scripts/setup.sh lint
	@scripts/configure.sh asan
	@cmake --build --preset asan -j $(jobs) --target fuzzers
	@scripts/fuzz.sh

nightly: nightly-dock nightly-train nightly-runtime nightly-serve nightly-verl

nightly-dock: build
	@build/release/dock_local_test --gtest_also_run_disabled_tests --gtest_filter='*DISABLED_*'
	@build/release/fault_test --gtest_also_run_disabled_tests --gtest_filter='*DISABLED_*'

nightly-train: build
	@scripts/setup.sh oracle
	@scripts/setup.sh verifiers
	@scripts/setup.sh real-model
	@python3 tests/nightly/learning.py $(tdock)
	@.venv-real-model/bin/python tests/nightly/real_model.py $(tdock)
	@scripts/setup.sh emulator
	@python3 tests/nightly/portable.py $(tdock)
	@python3 tests/nightly/agents.py $(tdock)
	@python3 tests/nightly/memory.py $(tdock)
	@python3 tests/nightly/run_page.py $(tdock)
	@python3 tests/integration/resume_test.py $(tdock) 50
	@TDOCK_EVERY_CALL_FAILS=1 build/release/trainer_recipes_test --gtest_brief=1 --gtest_filter='Saving.*'
	@TDOCK_FAULT_ROUNDS=10 build/release/trainer_recipes_test --gtest_brief=1 --gtest_filter='*Observed*'
	@TDOCK_TRAINING_MATRIX=full .venv-oracle/bin/python -m pytest --quiet -p no:cacheprovider tests/oracle/test_training.py
	@TDOCK_TEMPLATE_MATRIX=full .venv-oracle/bin/python -m pytest --quiet -p no:cacheprovider tests/oracle/test_chat_templates.py

# Twenty of each kind of process are killed, and stopped, at random moments of a run; ranks that train, in each phase.
nightly-runtime: build
	@python3 tests/integration/ranks_test.py $(tdock) 20
	@python3 tests/integration/parallel_test.py $(tdock) --nightly
	@python3 tests/integration/kill_phases_test.py $(tdock) --nightly
	@python3 tests/integration/rollout_servers_test.py $(tdock) --nightly
	@scripts/setup.sh vllm
	@python3 tests/nightly/vllm.py $(tdock)

# Evaluators ask a served model: litellm, lm-eval, inspect-ai.
nightly-serve: build
	@scripts/setup.sh evaluators
	@.venv-evaluators/bin/python tests/nightly/clients.py $(tdock)

# verl's trainer on a dock, and all that TransferQueue's package carries: tutorials and recipes that take a minute each.
nightly-verl: build
	@scripts/setup.sh oracle
	@scripts/setup.sh verl
	@scripts/configure.sh release
	@ctest --preset release -R verl_flow --no-tests=error
	@TDOCK_UPSTREAM=all ctest --preset release -R python_transfer_queue_upstream --no-tests=error

timings:
	@scripts/setup.sh oracle
	@scripts/timings.py

clean:
	rm -rf build
