"""What a report says of the machine: figures mean little without the instructions that its processor has."""

import datetime
import os
import platform
from pathlib import Path

# Those of src/bench/harness/machine.cc.
INSTRUCTIONS = (
    "avx2", "fma", "f16c", "avx_vnni", "avx512f", "avx512bw", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_tile",
    "amx_bf16", "amx_int8", "asimd", "bf16", "sve",
)  # fmt: skip


def machine():
    fields = {}
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        key, _, value = line.partition(":")
        fields.setdefault(key.strip(), value.strip())
    flags = fields.get("flags", fields.get("Features", "")).split()
    return {
        "cpu": fields.get("model name", platform.machine()),
        "instructions": [flag for flag in INSTRUCTIONS if flag in flags],
        "cores": os.cpu_count(),
        "kernel": f"{platform.system()} {platform.release()}",
        "load_average": list(os.getloadavg()),
        "time": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
