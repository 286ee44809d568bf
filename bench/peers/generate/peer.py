"""What `tdock bench --peer` alternates with: another system generates, and gives tokens per second.

    peer.py BENCHMARK --threads N --system NAME [--quick]      writes `ready`, then a figure for each SIGUSR1
    peer.py --check --system NAME                              writes the versions, or says why it does not run here

A system is the module with_NAME.py: versions(), DTYPES, unless they are FLOATS, and settings(shape, threads, models), which are functions by a name for
people, each of which makes a decoder with two methods: start(prompts) forgets what was before, reads the prompts and
returns the most likely next token of each; step(tokens) appends a token to each row and returns the next ones. The
fastest settings are taken, as a short run of each tells, which is written to standard error.
"""

import argparse
import importlib
import signal
import sys
import time
from pathlib import Path

from shapes import FLOATS, shape_of

TRIAL_STEPS = 12


def timed(body):
    began = time.perf_counter()
    result = body()
    return result, time.perf_counter() - began


def steps(decoder, tokens, count):
    for _ in range(count):
        tokens = decoder.step(tokens)
    return tokens


def rate(decoder, shape, prompts):
    """Tokens of prompts per second, or new tokens per second after the first of each row."""
    tokens, seconds = timed(lambda: decoder.start(prompts))
    if shape.is_prefill:
        return shape.batch * shape.prompt / seconds
    _, seconds = timed(lambda: steps(decoder, tokens, shape.new_tokens - 1))
    return shape.batch * (shape.new_tokens - 1) / seconds


def trial(decoder, shape, prompts):
    """The same, of a part of the work: the first steps are not counted."""
    tokens = decoder.start(prompts)
    if shape.is_prefill:
        return rate(decoder, shape, prompts)
    count = min(TRIAL_STEPS, shape.new_tokens - 2)
    tokens = steps(decoder, tokens, 1)
    _, seconds = timed(lambda: steps(decoder, tokens, count))
    return shape.batch * count / seconds


def fastest(settings, shape, prompts):
    """A decoder with the fastest settings."""
    figures = {}
    for name, make in settings.items():
        figures[name] = trial(make(), shape, prompts)
        print(f"{name}: {figures[name]:.0f} tokens/s", file=sys.stderr, flush=True)
    return settings[max(figures, key=figures.get)]()


def main():
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("benchmark", nargs="?")
    parser.add_argument("--system", required=True)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--models", type=Path, default=Path(__file__).resolve().parents[3] / "build/generate_peers")
    arguments = parser.parse_args()
    try:
        system = importlib.import_module(f"with_{arguments.system}")
        if arguments.check:
            print(system.versions())
            return
        shape = shape_of(arguments.benchmark, arguments.quick)
        if shape.dtype not in getattr(system, "DTYPES", FLOATS):
            sys.exit(f"has no {shape.dtype} here")
    except (ImportError, ValueError) as error:
        sys.exit(str(error))
    prompts = shape.prompts()
    decoder = fastest(system.settings(shape, arguments.threads, arguments.models), shape, prompts)
    print("ready", flush=True)
    while True:
        signal.sigwait({signal.SIGUSR1})
        print(rate(decoder, shape, prompts), flush=True)


if __name__ == "__main__":
    main()
