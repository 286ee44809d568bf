"""Runs benchmarks in turn with their references, and reports them as `tdock bench` does."""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any


@dataclasses.dataclass
class Figure:
    value: float
    details: dict[str, float] = dataclasses.field(default_factory=dict)


Run = Callable[[], "Figure | float"]


@dataclasses.dataclass
class Benchmark:
    """``prepare`` is a context: inside of it the two functions time one run each, and return it in the unit."""

    name: str
    unit: str
    prepare: Callable[[bool], AbstractContextManager[tuple[Run, Run]]]
    higher_is_better: bool = True
    of: str = "TransferQueue"


@dataclasses.dataclass
class Result:
    name: str
    unit: str
    median: float
    runs: list[float]
    ratio: float
    of: str
    reference_runs: list[float]
    details: dict[str, float]

    def to_json(self) -> dict[str, Any]:
        told = dataclasses.asdict(self)
        return {**{key: value for key, value in told.items() if key != "details"}, **self.details}


def seconds(body: Callable[[], object]) -> float:
    began = time.perf_counter()
    body()
    return time.perf_counter() - began


def _figure(run: Run) -> Figure:
    got = run()
    return got if isinstance(got, Figure) else Figure(got)


def measure(benchmark: Benchmark, runs: int, quick: bool) -> Result:
    with benchmark.prepare(quick) as (ours, theirs):
        _figure(ours)
        _figure(theirs)
        pairs = [(_figure(ours), _figure(theirs)) for _ in range(runs)]
    ratios = [mine.value / other.value for mine, other in pairs]
    if not benchmark.higher_is_better:
        ratios = [1 / ratio for ratio in ratios]
    values = [mine.value for mine, _ in pairs]
    details = {key: statistics.median(mine.details[key] for mine, _ in pairs) for key in pairs[0][0].details}
    return Result(
        name=benchmark.name,
        unit=benchmark.unit,
        median=statistics.median(values),
        runs=values,
        ratio=statistics.median(ratios),
        of=benchmark.of,
        reference_runs=[other.value for _, other in pairs],
        details=details,
    )


def _field(path: str, key: str) -> str:
    with open(path, encoding="utf-8") as file:
        return next((line.partition(":")[2].strip() for line in file if line.startswith(key)), "")


def machine() -> dict[str, Any]:
    """The keys of `tdock bench`: what it says of the compiler is said of Python."""
    import torch

    return {
        "cpu": _field("/proc/cpuinfo", "model name") or platform.machine(),
        "cores": os.cpu_count(),
        "memory_bytes": int(_field("/proc/meminfo", "MemTotal").split()[0]) * 1024,
        "kernel": f"{platform.system()} {platform.release()}",
        "compiler": f"Python {platform.python_version()}",
        "build_type": "",
        "libtorch": torch.__version__,
        "load_average": list(os.getloadavg()),
        "time": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }


def _digits(value: float) -> str:
    """Three digits or more: 0.0123, 1.23, 12.3, 1,234,567."""
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4f}" if value < 0.1 else f"{value:.{max(3 - len(str(int(value))) * (value >= 1), 0)}f}"


def _line(width: int, name: str, *cells: str) -> str:
    median, unit, spread, ratio, of = cells
    return f"{name:<{width}}  {median:>12}  {unit:<9}  {spread:>6}  {ratio:>6}  {of}".rstrip()


def _selected(benchmarks: Sequence[Benchmark], names: Sequence[str]) -> Iterator[Benchmark]:
    for benchmark in benchmarks:
        if not names or any(f"{benchmark.name}/".startswith(f"{name.rstrip('/')}/") for name in names):
            yield benchmark


def main(benchmarks: Sequence[Benchmark], arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Benchmarks beside TransferQueue.")
    parser.add_argument("names", nargs="*", help="benchmarks, or the beginnings of their names up to a '/'")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that everything works")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args(arguments)
    chosen = list(_selected(benchmarks, options.names))
    if not chosen:
        parser.error(f"there is no benchmark {' '.join(options.names)}; --list shows every name")
    if options.list:
        print("\n".join(f"{benchmark.name}  {benchmark.unit}" for benchmark in chosen))
        return 0
    told = machine()
    width = max(len(benchmark.name) for benchmark in chosen)
    print(_line(width, "name", "median", "unit", "spread", "ratio", "of"), flush=True)
    results = []
    for benchmark in chosen:
        result = measure(benchmark, options.runs, options.quick)
        results.append(result)
        spread = f"{(max(result.runs) - min(result.runs)) / result.median * 100:.0f}%"
        last = ", ".join([result.of, *(f"{key} {_digits(value)}" for key, value in result.details.items())])
        print(_line(width, result.name, _digits(result.median), result.unit, spread, f"{result.ratio:.3f}", last))
        sys.stdout.flush()
    if options.json:
        settings = {"runs": options.runs, "threads": os.cpu_count(), "quick": options.quick, "device": "cpu"}
        report = {"machine": told, "settings": settings, "results": [result.to_json() for result in results]}
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(report, file, indent=2)
            file.write("\n")
    return 0
