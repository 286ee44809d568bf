"""The side of workers: their class, and serving calls."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import difflib
import inspect
import os
import sys
import threading
import traceback
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
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
    """A base class for workers: which rank one is. Methods are called by one thread, one after another, those that are
    ``async def`` in its event loop.
    """

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


@dataclass(frozen=True)
class Handler:
    """A function that is served, and how."""

    function: Callable[..., Any]
    method: Method

    @property
    def awaits(self) -> bool:
        """True if the function is ``async def``."""
        call = getattr(self.function, "__call__", None)
        return inspect.iscoroutinefunction(self.function) or inspect.iscoroutinefunction(call)

    def __call__(self, values: list[Any], seconds: float) -> Any:
        if self.method.materialize_futures:
            values = [_materialized(value, seconds) if isinstance(value, RowsRef) else value for value in values]
        args, kwargs = self.method.parameters.arguments(values)
        return self.function(*args, **kwargs)


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
    return {prefix + name: Handler(*method) for name, method in methods.items()}


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


@contextlib.contextmanager
def _refusing(calls: _native.Calls, number: int) -> Iterator[None]:
    """Answers a call with the error that its method raises."""
    try:
        yield
    except Exception as error:
        calls.refuse(number, *told(error))
    except BaseException as error:  # such as SystemExit: the caller learns why the worker leaves
        calls.refuse(number, *told(error))
        raise


_Call = tuple[int, str, list[Any], float]


def _carry_out(
    calls: _native.Calls, handlers: Mapping[str, Handler], call: _Call
) -> Coroutine[Any, Any, None] | None:
    """Answers a call, or returns a coroutine that answers it, if the result of its method is awaited."""
    number, name, values, seconds = call
    with _refusing(calls, number):
        handler = handlers.get(name)
        if handler is None:
            near = difflib.get_close_matches(name, handlers, n=1)
            hint = f"; did you mean '{near[0]}'?" if near else ""
            raise NotFound(f"this worker does not serve method '{name}'{hint}")
        result = handler(values, seconds)
        if inspect.isawaitable(result):
            return _answer(calls, number, result)
        calls.answer(number, result)
    return None


async def _answer(calls: _native.Calls, number: int, result: Awaitable[Any]) -> None:
    with _refusing(calls, number):
        try:
            answer = await result
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():  # this worker leaves
                raise
            raise RuntimeError("the method was cancelled, or something that it awaited") from error
        calls.answer(number, answer)


async def _next(calls: _native.Calls) -> _Call | None:
    """The next call. A thread waits for it, so that the tasks of the loop go on."""
    loop = asyncio.get_running_loop()
    arrived: asyncio.Future[_Call | None] = loop.create_future()

    def tell(settle: Callable[[Any], None], outcome: Any) -> None:
        if not arrived.done():
            settle(outcome)

    def wait() -> None:
        settle: Callable[[Any], None] = arrived.set_result
        outcome: Any
        try:
            outcome = calls.next()
        except Exception as error:  # such as MemoryError
            settle, outcome = arrived.set_exception, error
        with contextlib.suppress(RuntimeError):  # the loop is closed: this worker leaves
            loop.call_soon_threadsafe(tell, settle, outcome)

    threading.Thread(target=wait, name="transfer-dock-next", daemon=True).start()
    return await arrived


async def _serve_in_loop(
    calls: _native.Calls, handlers: Mapping[str, Handler], awaited: Coroutine[Any, Any, None] | None
) -> None:
    while True:
        if awaited is not None:
            await awaited
        call = await _next(calls)
        if call is None:
            return
        awaited = _carry_out(calls, handlers, call)
        del call


def serve(calls: _native.Calls, handlers: Mapping[str, Handler]) -> None:
    """Carries out calls in this thread, one after another, until they end.

    If a method is ``async def``, all are carried out in one event loop, which goes on between calls: so do the tasks that
    a method has started.
    """
    awaited: Coroutine[Any, Any, None] | None = None
    in_loop = any(handler.awaits for handler in handlers.values())
    while awaited is None and not in_loop:
        call = calls.next()
        if call is None:
            return
        awaited = _carry_out(calls, handlers, call)
        del call
    asyncio.run(_serve_in_loop(calls, handlers, awaited))


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
