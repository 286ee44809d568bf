#!/usr/bin/env python3
"""Prints the twenty slowest tests of a JUnit file: scripts/slowest.py FILE"""

import sys
import xml.etree.ElementTree

cases = [(float(case.get("time") or 0), case.get("name")) for case in xml.etree.ElementTree.parse(sys.argv[1]).iter("testcase")]
print(f"{len(cases)} tests, {sum(time for time, _ in cases):.0f} s together; the slowest:")
for time, name in sorted(cases, reverse=True)[:20]:
    print(f"{time:8.1f} s  {name}")
