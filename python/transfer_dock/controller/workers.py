"""The side of workers: their class, and serving calls."""

from __future__ import annotations

import contextlib
import contextvars
import difflib
import os
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Union

from transfer_dock import _native
from transfer_dock._native import Batch, RowsRef
from transfer_dock.controller.dispatch import Method, Parameters, methods_of
from transfer_dock.dock import Dock
from transfer_dock.errors import DockError, FailedPrecondition, InvalidArgument, NotFound, code_of

# The code of errors of methods that are not the dock's.
_INTERNAL = 13
# How many lines of a traceback an error has.
_TRACE_LINES = 12


@dataclass(frozen=True)
class Place:
    """Which of the workers of a group one is."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    dock: Dock | None = None
    # Takes a line to the controller, where it does not read what this process prints.
    report: Callable[[str], None] = field(default=lambda line: None)

    @staticmethod
    def of_environment(dock: Dock | None = None) -> Place:
        """As torchrun's variables say; without them, the only one."""

        def number(name: str, default: int) -> int:
            return int(os.environ.get(name, default))

        return Place(
            number("RANK", 0), number("WORLD_SIZE", 1), number("LOCAL_RANK", 0), number("LOCAL_WORLD_SIZE", 1), dock
        )


PLACE: contextvars.ContextVar[Place | None] = contextvars.ContextVar("place", default=None)


class Worker:
    """A base class for workers: which rank one is. Methods are called by one thread, one after another."""

    @property
    def _place(self) -> Place:
        return PLACE.get() or Place.of_environment()

    @property
    def rank(self) -> int:
        return self._place.rank

    @property
    def world_size(self) -> int:
        return self._place.world_size

    @property
    def local_rank(self) -> int:
        """Among the workers of its node: the number of its device."""
        return self._place.local_rank

    @property
    def local_world_size(self) -> int:
        return self._place.local_world_size

    @property
    def dock(self) -> Dock:
        """The dock that the group was given. FailedPrecondition if it was given none."""
        dock = self._place.dock
        if dock is None:
            raise FailedPrecondition("this worker has no dock: give the group one, WorkerGroup(…, dock=dock)")
        return dock

    def log(self, line: str) -> None:
        """Prints a line. Errors about this worker have its last ones."""
        print(line, flush=True)
        self._place.report(line)


class ClassWithInitArgs:
    """A class with the arguments that it will be constructed with, on each worker."""

    def __init__(self, cls: type, *args: Any, **kwargs: Any) -> None:
        if not isinstance(cls, type):
            raise InvalidArgument(f"ClassWithInitArgs needs a class, not {cls!r}")
        self.cls = cls
        self.args = args
        self.kwargs = kwargs

    def __call__(self) -> Any:
        return self.cls(*self.args, **self.kwargs)


def fetch(rows: RowsRef, dock: Dock, timeout: float | None = None) -> Batch:
    """The rows of a dock as a batch, with their meta, and "row_weights" if their call was padded."""
    columns = list(rows.columns)
    taken = dock.fetch(rows.partition, rows.rows, columns, timeout=timeout)
    return rows._fetched(Batch({name: taken[name] for name in columns}))


# ---- What is served.

Handler = Callable[[list[Any], float], Any]
# An object whose methods are served, or functions by name.
Served = Union[Mapping[str, Callable[..., Any]], object]


def handlers_of(served: Served, role: str = "") -> dict[str, Handler]:
    """By the name under which they are called. Of an object: its public methods; materializing is as they were
    registered."""
    if isinstance(served, Mapping):
        methods = {name: (function, Method(parameters=Parameters(function))) for name, function in served.items()}
    else:
        registered = methods_of(type(served))
        methods = {}
        for name in dir(type(served)):
            if name.startswith("_") or not callable(getattr(type(served), name)):
                continue
            function = getattr(served, name)
            options = registered.get(name, Method())
            methods[name] = (
                function,
                Method(materialize_futures=options.materialize_futures, parameters=Parameters(function)),
            )
    prefix = f"{role}/" if role else ""
    return {prefix + name: _handler(*method) for name, method in methods.items()}


def _handler(function: Callable[..., Any], method: Method) -> Handler:
    def handle(values: list[Any], seconds: float) -> Any:
        if method.materialize_futures:
            values = [_materialized(value, seconds) if isinstance(value, RowsRef) else value for value in values]
        args, kwargs = method.parameters.arguments(values)
        return function(*args, **kwargs)

    return handle


def _materialized(rows: RowsRef, seconds: float) -> Batch:
    place = PLACE.get()
    if place is None or place.dock is None:
        raise FailedPrecondition(
            f"the worker is given {rows!r}, and has no dock to fetch them from: give the group one, WorkerGroup(…, "
            "dock=dock), or register the method with materialize_futures=False"
        )
    return fetch(rows, place.dock, timeout=max(seconds, 0.0))


def told(error: BaseException) -> tuple[int, str]:
    """An error as it travels: its code, and its text with where it was raised."""
    if isinstance(error, DockError):
        return code_of(error), str(error)
    lines = "".join(traceback.format_tb(error.__traceback__)).rstrip().splitlines()
    where = "\n".join(lines[-_TRACE_LINES:])
    return _INTERNAL, f"{type(error).__name__}: {error}" + (f"\n{where}" if where else "")


def serve(calls: _native.Calls, handlers: Mapping[str, Handler]) -> None:
    """Carries out calls in this thread, one after another, until they end."""
    while (call := calls.next()) is not None:
        number, name, values, seconds = call
        del call
        try:
            handler = handlers.get(name)
            if handler is None:
                near = difflib.get_close_matches(name, handlers, n=1)
                hint = f"; did you mean '{near[0]}'?" if near else ""
                raise NotFound(f"this worker does not serve method '{name}'{hint}")
            calls.answer(number, handler(values, seconds))
        except Exception as error:
            calls.refuse(number, *told(error))
        except BaseException as error:  # such as SystemExit: the caller learns why the worker leaves
            calls.refuse(number, *told(error))
            raise
        del values


def leave_soon(calls: _native.Calls, within: float) -> threading.Event:
    """Ends this process if its thread of calls is still busy ``within`` seconds after the session has ended; not once
    the event is set."""
    done = threading.Event()

    def watch() -> None:
        calls.await_close()
        if not done.wait(within):
            print(
                f"the run has ended, and a method is still running {within:g} s later: leaving",
                file=sys.stderr,
                flush=True,
            )
            os._exit(1)

    threading.Thread(target=watch, name="transfer-dock-leave", daemon=True).start()
    return done


def join(
    address: str,
    token: str,
    rank: int,
    world_size: int,
    methods: Served | ClassWithInitArgs,
    *,
    name: str = "",
    setup: Mapping[str, str] | None = None,
    dock: Dock | None = None,
    on_welcome: Callable[[Any], None] | None = None,
    connect_timeout: float = 60.0,
    begin_timeout: float = 600.0,
    silence: float = 30.0,
    leave_within: float | None = None,
) -> None:
    """Joins the group of a controller in another process, such as one in C++, and serves until it ends the session.

    methods: an object whose public methods are served, a class to be constructed (ClassWithInitArgs), or functions by
    name. rank, world_size: as the controller counts, which itself may be rank 0. setup: what all ranks must agree on.
    on_welcome: gets what the controller tells all before it begins, within begin_timeout seconds. silence: how long the
    controller may give no sign of life. leave_within: ends this process if a method still runs so many seconds after
    the session has ended.

    Returns when the controller has ended the run; raises the error that it ended with, or Unavailable if it is gone.
    """
    session = _native.Session(address, token, rank, world_size, name, dict(setup or {}), connect_timeout, silence)
    done = leave_soon(session.calls, leave_within) if leave_within is not None else threading.Event()
    local = Place.of_environment(dock)
    PLACE.set(
        Place(
            rank, world_size, local.local_rank, local.local_world_size, dock, lambda line: session.notify("log", line)
        )
    )
    try:
        welcome = session.await_welcome(begin_timeout)
        try:
            if on_welcome is not None:
                on_welcome(welcome)
            handlers = handlers_of(methods() if isinstance(methods, ClassWithInitArgs) else methods)
        except Exception as error:
            # Returns when the controller has ended the run, often with this error.
            with contextlib.suppress(DockError):
                session.fail(*told(error), timeout=begin_timeout)
            raise
        session.serve(list(handlers))
        serve(session.calls, handlers)
        session.check_end()
    finally:
        done.set()
        session.close()
