#!/usr/bin/env python3
"""What building and testing cost from nothing: in a clean clone of HEAD, without a compiler cache.

usage: scripts/timings.py [--json FILE] [STEP…]          default: demo pip test
       scripts/timings.py --gate        what `make demo` compiles, held against reference sources, in build/release

Prints how long each step took and what its compiling cost in CPU-seconds, by build folder and target and for the
slowest sources. The machine should have nothing else to do. Steps are made in a clone of their own each:

  demo   make demo; also the seconds until the first step of training
  pip    pip install . into a new environment
  test   make test
  ci     .ci/run, whose output has the seconds of its parts
"""

import argparse
import collections
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
RECORDER = ROOT / "scripts/record_cost.py"
# CPU-seconds of compiling for `make demo`, over that of the sources of tdock_compile_references (cmake/CompileReferences.cmake).
DEMO_LIMIT = 18
STEPS = {
    "demo": ["make", "demo"],
    "pip": ["bash", "-c", "python3 -m venv environment && environment/bin/python -m pip install --no-cache-dir ."],
    "test": ["make", "test"],
    "ci": ["bash", ".ci/run"],
}


def read(log):
    """What the recorder has written, without CMake's own trials."""
    entries = [json.loads(line) for line in log.read_text().splitlines()]
    return [entry for entry in entries if "cmTC_" not in entry["output"]]


def gate():
    """Compiles what `make demo` compiles, and the reference sources beside it, in this folder and past the compiler cache,
    which then has the results. Fails if the demo costs more than DEMO_LIMIT times as much as the references."""
    log = ROOT / "build/demo_cost.jsonl"
    log.unlink(missing_ok=True)
    environment = os.environ | {"CCACHE_RECACHE": "1", "CCACHE_PREFIX": str(RECORDER), "TDOCK_COST_LOG": str(log)}
    ninja, targets = ["ninja", "-C", "build/release"], ["tdock", "tdock_compile_references"]
    for command in ([*ninja, "-t", "clean", *targets], [*ninja, *targets]):
        subprocess.run(command, cwd=ROOT, env=environment, check=True, stdout=subprocess.DEVNULL)
    costs = {True: 0.0, False: 0.0}
    for entry in read(log):
        costs["tdock_compile_references" in entry["output"]] += entry["cpu_s"]
    if not costs[True] or not costs[False]:
        sys.exit("nothing was recorded: is ccache installed, and does build/release use it?")
    ratio = costs[False] / costs[True]
    print(f"make demo compiles for {costs[False]:.0f} CPU-seconds, {ratio:.1f} times the reference sources; the limit is {DEMO_LIMIT}")
    return ratio > DEMO_LIMIT


def run(step, folder):
    """Runs a step in a new clone. Its seconds, exit code, seconds to the first step of training, and compilations."""
    clone, log = folder / step, folder / f"{step}.jsonl"
    subprocess.run(["git", "clone", "--quiet", ROOT, clone], check=True)
    log.touch()
    environment = os.environ | {
        "CCACHE_DISABLE": "1",
        "CMAKE_CXX_COMPILER_LAUNCHER": str(RECORDER),
        "CMAKE_CXX_LINKER_LAUNCHER": str(RECORDER),
        "TDOCK_COST_LOG": str(log),
    }
    start, first = time.monotonic(), None
    with subprocess.Popen(STEPS[step], cwd=clone, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        for line in process.stdout:
            if first is None and step == "demo" and line.startswith(("sft", "SFT")):
                first = time.monotonic() - start
            print(f"{time.monotonic() - start:7.1f} {line}", end="", flush=True)
    seconds = time.monotonic() - start
    compiled = read(log)
    shutil.rmtree(clone)
    return {"step": step, "wall_s": seconds, "exit": process.returncode, "first_training_step_s": first, "compiled": compiled}


def target_of(entry):
    name = entry["output"].split(".dir/")[0].rsplit("/", 1)[-1] if ".dir/" in entry["output"] else "linking"
    return entry["folder"], name


def report(result):
    compiled = result["compiled"]
    print(f"\n{result['step']}: {result['wall_s']:.0f} s, exit code {result['exit']}")
    if result["first_training_step_s"] is not None:
        print(f"  the first step of training after {result['first_training_step_s']:.0f} s")
    print(f"  compiling and linking: {sum(entry['cpu_s'] for entry in compiled):.0f} CPU-seconds, {len(compiled)} commands")
    for what, key, most in (("folder", lambda e: e["folder"], 9), ("target", target_of, 25)):
        costs = collections.Counter()
        for entry in compiled:
            costs[key(entry)] += entry["cpu_s"]
        print(f"  by {what}:")
        for name, cpu in costs.most_common(most):
            print(f"  {cpu:8.1f}  {name if isinstance(name, str) else '/'.join(name)}")
    print("  the slowest:")
    for entry in sorted(compiled, key=lambda entry: -entry["cpu_s"])[:15]:
        print(f"  {entry['cpu_s']:8.1f}  {entry['folder']}/{entry['output']}, {entry['max_mb']} MB")


def main():
    if sys.argv[1:] == ["--gate"]:
        return gate()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", metavar="FILE", help="file for all figures")
    parser.add_argument("steps", nargs="*", metavar="STEP", help=", ".join(STEPS))
    arguments = parser.parse_args()
    unknown = [step for step in arguments.steps if step not in STEPS]
    if unknown:
        parser.error(f"unknown step {unknown[0]}; there are {', '.join(STEPS)}")
    with tempfile.TemporaryDirectory(prefix="tdock-timings-") as folder:
        results = [run(step, pathlib.Path(folder)) for step in arguments.steps or ["demo", "pip", "test"]]
    for result in results:
        report(result)
    if arguments.json:
        pathlib.Path(arguments.json).write_text(json.dumps(results, indent=1))
    return max(result["exit"] != 0 for result in results)


if __name__ == "__main__":
    sys.exit(main())
