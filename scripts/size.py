#!/usr/bin/env python3
"""Prints the lines of the product by module, and how a change alters them.

usage: scripts/size.py [REVISION]      REVISION: what to compare the working tree with, for example HEAD~3

The product is src, include, python and proto without tests, fuzzers and READMEs.
"""

import collections
import os
import re
import subprocess
import sys

ROOTS = ["src", "include", "python", "proto"]
NOT_PRODUCT = re.compile(r"_test\.|_fuzz\.|/testing/|\.md$|\.bin$")


def is_product(path):
    return path.split("/")[0] in ROOTS and not NOT_PRODUCT.search(path)


def lines(revision=None):
    """{file of the product: lines}, of a revision or of the working tree, where new files count."""
    which, revisions = ([], [revision]) if revision else (["--untracked"], [])
    counts = subprocess.run(["git", "grep", "-I", "-c", *which, "-e", "", *revisions, "--", *ROOTS], capture_output=True, text=True, check=True).stdout
    found = {}
    for line in counts.splitlines():
        path, count = line.removeprefix(f"{revision}:").rsplit(":", 1)
        if is_product(path):
            found[path] = int(count)
    return found


def by_module(files):
    modules = collections.Counter()
    for path, count in files.items():
        modules[os.path.dirname(path)] += count
    return modules


def main():
    if len(sys.argv) > 2 or sys.argv[1:2] in (["-h"], ["--help"]):
        sys.exit(__doc__)
    os.chdir(os.path.join(os.path.dirname(__file__), ".."))
    now = by_module(lines())
    before = by_module(lines(sys.argv[1])) if len(sys.argv) == 2 else now
    for module in sorted(now | before, key=lambda name: -max(now[name], before[name])):
        change = now[module] - before[module]
        print(f"{now[module]:8} {f'{change:+}' if change else '':>7}  {module}")
    total = now.total() - before.total()
    print(f"{now.total():8} {f'{total:+}' if total else '':>7}  together")


if __name__ == "__main__":
    main()
