# Two commands: `make demo` shows a model learning, `make test` runs every test. Both install what is missing.

jobs := $(shell nproc)
tdock := build/release/tdock
run_dir := runs/demo-$(shell date +%Y%m%d-%H%M%S)

.PHONY: help demo test build wheel lint sanitizers fuzz nightly clean

help:
	@echo "make demo        install what is missing, build, train a model on addition, ask it a question"
	@echo "make test        install what is missing, build, run every test"
	@echo "make build       the part that both share"
	@echo "make wheel       the Python package as a wheel, in dist/"
	@echo "make lint        the static checks: format, thread-safety analysis, clang-tidy"
	@echo "make sanitizers  the tests of the modules without libtorch under asan+ubsan and tsan"
	@echo "make fuzz        the fuzzers of the decoders, for a minute together"
	@echo "make nightly     the long proofs"
	@echo "make clean       remove build/ (.venv stays)"

build:
	@scripts/setup.sh build
	@mkdir -p build && { cmake --preset release > build/configure.log 2>&1 || { cat build/configure.log; exit 1; }; }
	@cmake --build --preset release -j $(jobs)

demo: build
	@$(tdock) train examples/arithmetic/grpo.yaml --run-dir $(run_dir)
	@echo "37+85 is, from its last digit to its first:"
	@$(tdock) generate --model $(run_dir)/checkpoint --prompt "37+85=" --temperature 0 --max-new-tokens 8

# The environments come first: the build reads Parquet with the pyarrow of one.
test:
	@scripts/setup.sh oracle
	@$(MAKE) --no-print-directory build
	@status=0; ctest --preset release -j $(jobs) --output-junit tests.xml || status=$$?; \
	  python3 scripts/slowest.py build/release/tests.xml; exit $$status

wheel:
	@scripts/setup.sh oracle
	@scripts/wheel.sh

lint:
	@scripts/setup.sh lint
	@scripts/lint.sh

sanitizers:
	@scripts/setup.sh build
	@for preset in asan tsan; do \
	  { cmake --preset $$preset > build/configure-$$preset.log 2>&1 || { cat build/configure-$$preset.log; exit 1; }; } && \
	  cmake --build --preset $$preset -j $(jobs) && ctest --preset $$preset -j $(jobs) || exit 1; done

fuzz:
	@scripts/setup.sh build && scripts/setup.sh lint
	@mkdir -p build && { cmake --preset fuzz > build/configure-fuzz.log 2>&1 || { cat build/configure-fuzz.log; exit 1; }; }
	@cmake --build --preset fuzz -j $(jobs)
	@scripts/fuzz.sh

nightly: build
	@python3 tests/nightly/learning.py $(tdock)
	@build/release/dock_test --gtest_also_run_disabled_tests --gtest_filter='*DISABLED_*'
	@build/release/fault_test --gtest_also_run_disabled_tests --gtest_filter='*DISABLED_*'

clean:
	rm -rf build
