"""What tests ask about processes."""

from __future__ import annotations

import pathlib


def is_running(pid: int) -> bool:
    """False also for one of which only the exit code is left."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
