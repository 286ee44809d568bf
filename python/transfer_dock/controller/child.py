"""The program of a worker's process, which processes.py starts."""

from __future__ import annotations

import multiprocessing.spawn
import os
import pickle
import sys
from collections.abc import Mapping
from typing import Any

from transfer_dock import _native
from transfer_dock.controller.workers import (
    PLACE,
    ClassWithInitArgs,
    Handler,
    Place,
    handlers_of,
    leave_soon,
    serve,
    told,
)
from transfer_dock.errors import DockError

# How long a method may still run after the end of the session.
_LEAVE_WITHIN = 5.0


def _read_job() -> dict[str, Any]:
    """What is on the standard input: a file that all workers of the group share, so that none may move its position."""
    size, data = os.fstat(0).st_size, b""
    while len(data) < size:
        data += os.pread(0, size - len(data), len(data))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    job: dict[str, Any] = pickle.loads(data)
    return job


def _construct(job: Mapping[str, Any]) -> dict[str, Handler]:
    """The handlers of the workers of all roles, which are constructed."""
    preparation = job["preparation"]
    multiprocessing.spawn.prepare(preparation)  # imports the program of the controller, as multiprocessing does
    roles: dict[str, ClassWithInitArgs] = pickle.loads(job["init"])
    PLACE.set(Place.of_environment(pickle.loads(job["dock"])))
    handlers: dict[str, Handler] = {}
    for role, cls in roles.items():
        handlers.update(handlers_of(cls(), role))
    return handlers


def main() -> None:
    job = _read_job()
    _native.die_with(job["parent"])
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    session = _native.Session(
        job["address"], job["token"], rank, world_size, job["name"], {}, job["begin_timeout"], job["silence"]
    )
    done = leave_soon(session.calls, _LEAVE_WITHIN)
    try:
        session.await_welcome(job["begin_timeout"])
        try:
            handlers = _construct(job)
        except Exception as error:
            session.fail(*told(error), timeout=_LEAVE_WITHIN)
            raise
        session.serve(list(handlers))
        serve(session.calls, handlers)
        session.check_end()
    except DockError as error:
        print(f"rank {rank} leaves: {error}", file=sys.stderr, flush=True)
        sys.exit(1)
    finally:
        done.set()
        session.close()
