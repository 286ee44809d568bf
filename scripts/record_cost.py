#!/usr/bin/env python3
"""A launcher of compilers and linkers: record_cost.py COMMAND… runs the command, and adds a line with its output, CPU-seconds,
wall time and memory, as JSON, to the file that TDOCK_COST_LOG names."""

import json
import os
import sys
import time

start = time.monotonic()
command = sys.argv[1:]
_, status, usage = os.wait4(os.posix_spawnp(command[0], command, os.environ), 0)
entry = {
    "folder": os.path.basename(os.getcwd()),
    "output": command[command.index("-o") + 1] if "-o" in command else command[-1],
    "cpu_s": usage.ru_utime + usage.ru_stime,
    "wall_s": time.monotonic() - start,
    "max_mb": usage.ru_maxrss // 1024,
}
with open(os.environ["TDOCK_COST_LOG"], "a") as file:
    file.write(json.dumps(entry) + "\n")
sys.exit(os.waitstatus_to_exitcode(status))
