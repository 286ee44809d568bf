#!/usr/bin/env python3
"""Runs the tests of a build folder, and says how many of which groups ran.

usage: scripts/run_tests.py PRESET GROUP… [-- ARGUMENT OF ctest…]

Fails if a test fails, or if no test of a GROUP ran: a group is a label of ctest. A test that takes LIMIT_S seconds on
an idle machine, or longer in proportion to the load when the tests begin, counts as hanging.
"""

import collections
import json
import os
import pathlib
import re
import subprocess
import sys
import xml.etree.ElementTree

ROOT = pathlib.Path(__file__).resolve().parent.parent
LIMIT_S = 1200
# For each processor: tests wait for processes and clocks, too.
TESTS_AT_ONCE = 1.5
SLOWEST = 20


def load():
    """How many processes want to run for each processor; at least 1."""
    running = int(pathlib.Path("/proc/loadavg").read_text().split()[3].split("/")[0])
    return max(1, running / os.cpu_count())


def groups_of(preset):
    """{name of a test: its group}"""
    shown = subprocess.run(["ctest", "--preset", preset, "--show-only=json-v1"], cwd=ROOT, capture_output=True, text=True, check=True)
    tests = json.loads(shown.stdout[shown.stdout.index("{") :])["tests"]
    labels = {test["name"]: [p["value"] for p in test.get("properties", []) if p["name"] == "LABELS"] for test in tests}
    return {name: label[0][0] if label else "other" for name, label in labels.items()}


def read(results, group_of):
    """[(name, group, "passed" | "failed" | "skipped", seconds, why it was skipped)]"""
    found = []
    for case in xml.etree.ElementTree.parse(results).iter("testcase"):
        if case.get("status") == "disabled":  # the long ones, of `make nightly`
            continue
        skipped = case.find("skipped")
        by_itself = skipped is not None and skipped.get("message", "").startswith("SKIP_")  # else it could not be started
        outcome = "passed" if case.get("status") == "run" else "skipped" if by_itself else "failed"
        why = re.search(r": Skipped\s+(.+)", "".join(case.itertext())) if by_itself else None
        name = case.get("name")
        found.append((name, group_of.get(name, "other"), outcome, float(case.get("time") or 0), why and why[1].strip()))
    return found


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    preset, *groups = sys.argv[1:]
    more = []
    if "--" in groups:
        more = groups[groups.index("--") + 1 :]
        groups = groups[: groups.index("--")]
    results = ROOT / "build" / preset / "tests.xml"
    results.unlink(missing_ok=True)
    limit = round(LIMIT_S * load())
    command = ["ctest", "--preset", preset, "-j", str(round(TESTS_AT_ONCE * os.cpu_count())), "--timeout", str(limit), "--output-junit", results, *more]
    status = subprocess.run(command, cwd=ROOT).returncode
    if not results.exists():
        sys.exit(f"ctest --preset {preset} has run no test")
    tests = read(results, groups_of(preset))
    print(f"{sum(seconds for *_, seconds, _ in tests):.0f} s together; the slowest:")
    for name, _, _, seconds, _ in sorted(tests, key=lambda test: -test[3])[:SLOWEST]:
        print(f"{seconds:8.1f} s  {name}")
    for why, count in collections.Counter(why or "no reason given" for _, _, outcome, _, why in tests if outcome == "skipped").items():
        print(f"skipped: {count}, {why}")
    passed = collections.Counter(group for _, group, outcome, *_ in tests if outcome == "passed")
    outcomes = collections.Counter(outcome for _, _, outcome, *_ in tests)
    missing = [group for group in groups if not passed[group]]
    print(
        f"{len(tests)} tests: {outcomes['passed']} passed ({', '.join(f'{group} {passed[group]}' for group in sorted(passed))}), "
        f"{outcomes['skipped']} skipped, {outcomes['failed']} failed"
    )
    if missing:
        sys.exit(f"no test of {', '.join(missing)} has passed: the build has none, see build/configure-{preset}.log")
    sys.exit(status or outcomes["failed"] > 0)


if __name__ == "__main__":
    main()
