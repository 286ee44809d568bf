"""Generation of ours and of other systems, in turn in one run, each on the same cores.

For each benchmark and each system, `tdock bench --peer` alternates runs of ours with runs of the system's; a ratio is the
median over those pairs, above 1 where ours is faster, and `ours` is the median of all our runs. A system that does not
run here has no figure, and the report says why. Needs Python 3.11 and nothing else; the systems have environments of
their own, which `scripts/setup.sh generate-peers` makes.
"""

import argparse
import json
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from shapes import NAMES, shape_of

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent))
from machine import machine  # noqa: E402

ROOT = HERE.parents[2]
ENVIRONMENTS = {
    "transformers": ".venv-generate",
    "llama_cpp": ".venv-generate",
    "vllm_cpu": ".venv-generate-vllm",
    "openvino": ".venv-generate-openvino",
}
# With the OpenMP that its torch comes with instead, vLLM takes several times as long; its manual asks for this one.
PRELOADED = {"vllm_cpu": "lib/libiomp5.so"}


class DoesNotRunError(Exception):
    """Of a system, here; says why."""


def bars(name):
    """What a ratio should reach, to transformers and to the fastest system."""
    if name.startswith("prefill/"):
        return {"fastest": 1.0}
    is_alone, is_exact = "/batch=1/" in name, not name.endswith("/dtype=int8")
    if name.count("/") == 3 or not is_exact:
        return {"fastest": 1.0 if is_alone else 1.2}
    return {"transformers": 2.5, "fastest": 1.05 if is_alone else 1.3}


def last_line(text, otherwise):
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), otherwise)


def command_of(system):
    environment = ROOT / ENVIRONMENTS[system]
    if not (environment / "bin/python").exists():
        raise DoesNotRunError(f"there is no {environment.name}: scripts/setup.sh generate-peers makes it")
    command = [environment / "bin/python", HERE / "peer.py", "--system", system]
    if system in PRELOADED:
        command = ["env", f"LD_PRELOAD={environment / PRELOADED[system]}", *command]
    return shlex.join(map(str, command))


def versions_of(command):
    """What the system says of itself; DoesNotRunError."""
    done = subprocess.run(["sh", "-c", f"exec {command} --check"], capture_output=True, text=True)
    if done.returncode != 0:
        raise DoesNotRunError(last_line(done.stderr, f"it ended with code {done.returncode}"))
    return last_line(done.stdout, "")


def beside_ours(name, command, options):
    """Our runs and the system's, in pairs, as `tdock bench` measures them."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "figures.json"
        arguments = [options.tdock, "bench", name, "--runs", str(options.runs), "--threads", str(options.threads)]
        arguments += ["--peer", command, "--json", report, *(["--quick"] if options.quick else [])]
        done = subprocess.run(arguments, capture_output=True, text=True)
        print(done.stderr, end="", file=sys.stderr, flush=True)
        if done.returncode != 0:
            raise DoesNotRunError(last_line(done.stderr, f"tdock bench ended with code {done.returncode}"))
        (result,) = json.loads(report.read_text())["results"]
    return {"ours": result["runs"], "theirs": result["reference_runs"], "ratio": result["ratio"]}


def alone(name, command, options):
    """The system's runs, without ours: what `tdock bench --peer` would ask of it."""
    arguments = ["sh", "-c", f'exec {command} "$@"', command, name, "--threads", str(options.threads)]
    arguments += ["--quick"] if options.quick else []
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as process:
        try:
            lines = [process.stdout.readline()]
            for _ in range(options.runs + 1):
                process.send_signal(signal.SIGUSR1)
                lines.append(process.stdout.readline())
            return {"ours": [], "theirs": [float(line) for line in lines[2:]], "ratio": None}
        except ValueError:
            raise DoesNotRunError(f"it wrote {lines[1:]} instead of figures") from None
        finally:
            process.kill()


def measured(name, systems, options):
    """One benchmark beside each system: its entry of the report."""
    pairs, reasons = {}, {}
    for system, command in systems.items():
        try:
            if isinstance(command, DoesNotRunError):
                raise command
            measure = alone if options.without_ours else beside_ours
            pairs[system] = measure(name, command, options)
        except DoesNotRunError as reason:
            reasons[system] = str(reason)
    return entry(name, pairs, {"ours": "--without-ours"} | reasons if options.without_ours else reasons)


def entry(name, pairs, reasons):
    medians = {system: statistics.median(pair["theirs"]) for system, pair in pairs.items()}
    ours = [figure for pair in pairs.values() for figure in pair["ours"]]
    fastest = max(medians, key=medians.get, default=None)
    ratios = {system: pair["ratio"] for system, pair in pairs.items() if pair["ratio"]}
    wanted = bars(name)
    got = {"transformers": ratios.get("transformers"), "fastest": ratios.get(fastest)}
    return {
        "name": name,
        "unit": "tokens/s",
        "ours": statistics.median(ours) if ours else None,
        **{system: medians.get(system) for system in ENVIRONMENTS},
        "reasons": {system: "not asked for" for system in ENVIRONMENTS if system not in pairs} | reasons,
        "fastest": fastest,
        "ours/transformers": got["transformers"],
        "ours/fastest": got["fastest"],
        "ratios": ratios,
        "bars": wanted,
        "reached": {key: got[key] >= bar if got[key] else None for key, bar in wanted.items()},
        "runs": {system: {"ours": pair["ours"], "theirs": pair["theirs"]} for system, pair in pairs.items()},
    }


def digits(value, form):
    return "–" if value is None else format(value, form)


def row(result, systems):
    """A line of the table: a ratio below its bar is marked."""
    cells = [f"{result['name']:<34}", f"{digits(result['ours'], ',.0f'):>9}"]
    cells += [f"{digits(result[system], ',.0f'):>13}" for system in systems]
    for key in ("transformers", "fastest"):
        mark = "!" if result["reached"].get(key) is False else ""
        cells.append(f"{digits(result[f'ours/{key}'], '.2f') + mark:>15}")
    return "".join(cells)


def head(systems):
    cells = [f"{'tokens/s':<34}", f"{'ours':>9}", *(f"{system:>13}" for system in systems)]
    return "".join([*cells, f"{'/transformers':>15}", f"{'/fastest':>15}"])


def parsed(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", metavar="FILE", help="file for the figures of every run")
    parser.add_argument("--only", nargs="+", metavar="NAME", default=list(NAMES), help="benchmarks; default: all")
    parser.add_argument("--systems", nargs="+", default=list(ENVIRONMENTS), choices=list(ENVIRONMENTS), metavar="SYSTEM")
    parser.add_argument("--runs", type=int, default=3, help="of each benchmark, beside each system")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="little work: shows that it works, not how fast")
    parser.add_argument("--without-ours", action="store_true", help="only the other systems")
    parser.add_argument("--tdock", default=ROOT / "build/release/tdock", help="the program tdock")
    parser.add_argument(
        "--command", nargs=2, action="append", default=[], metavar=("SYSTEM", "COMMAND"),
        help="starts that program for a system, instead of peer.py",
    )  # fmt: skip
    options = parser.parse_args(arguments)
    try:
        for name in options.only:
            shape_of(name, options.quick)
    except ValueError as error:
        parser.error(str(error))
    return options


def started_by(system, options):
    """The command that starts it and its versions, or the reason why it does not run, twice."""
    try:
        command = dict(options.command).get(system) or command_of(system)
        return command, versions_of(command)
    except DoesNotRunError as reason:
        print(f"{system}: {reason}", file=sys.stderr, flush=True)
        return reason, None


def main():
    options = parsed(None)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # and with it the programs that were started
    found = {system: started_by(system, options) for system in options.systems}
    told = machine()
    print(f"{told['cpu']}: {' '.join(told['instructions'])}")
    print(head(options.systems), flush=True)
    results = []
    for name in options.only:
        results.append(measured(name, {system: command for system, (command, _) in found.items()}, options))
        print(row(results[-1], options.systems), flush=True)
        for system in options.systems:
            if reason := results[-1]["reasons"].get(system):
                print(f"    {system}: {reason}", flush=True)
    if options.json:
        report = {
            "machine": told,
            "settings": {"runs": options.runs, "threads": options.threads, "quick": options.quick},
            "versions": {system: versions for system, (_, versions) in found.items() if versions},
            "results": results,
        }
        Path(options.json).write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
