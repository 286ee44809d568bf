# Two commands: `make demo` shows a model learning, `make test` runs every test. Both install what is missing.

jobs := $(shell nproc)

.PHONY: demo test build setup lint nightly clean help

help:
	@echo "make demo     install what is missing, build, train the arithmetic model, answer a question with it"
	@echo "make test     install what is missing, build, run every test"
	@echo "make build    the part that both share"
	@echo "make lint     the static checks of CI"
	@echo "make nightly  the long proofs: three seeds of the demo against their bars"
	@echo "make clean    remove build/ (not .venv)"

setup:
	@scripts/setup.sh build

build: setup
	@mkdir -p build && { cmake --preset release > build/configure.log 2>&1 || { cat build/configure.log; exit 1; }; }
	@cmake --build --preset release -j $(jobs)

clean:
	rm -rf build
