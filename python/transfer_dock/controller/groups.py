"""Groups of workers as their controller sees them."""

from __future__ import annotations

import contextlib
import os
import pickle
import re
import secrets
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, NoReturn

from transfer_dock import _native
from transfer_dock.controller.dispatch import (
    Dispatch,
    DispatchMode,
    Execute,
    Method,
    Parameters,
    methods_of,
    mode_of,
)
from transfer_dock.controller.pools import ResourcePool
from transfer_dock.controller.processes import Processes, environments, payload
from transfer_dock.controller.workers import PLACE, ClassWithInitArgs, Place, handlers_of, serve, told
from transfer_dock.dock import Dock
from transfer_dock.errors import DeadlineExceeded, DockError, InvalidArgument, Unavailable

# By name, the sizes of the dimensions of an arrangement of the ranks; the first dimension varies fastest.
Meshes = Mapping[str, Mapping[str, int]]

_UNAVAILABLE = 14
# How errors name ranks: the first is that of WorkerLink::Describe.
_RANK = re.compile(r"\brank (\d+)(?: \(|$)")


class Colocated:
    """Classes that share processes: see :func:`create_colocated_worker_cls`."""

    def __init__(self, roles: Mapping[str, ClassWithInitArgs]) -> None:
        if not roles:
            raise InvalidArgument("a colocated class needs at least one role")
        for role, cls in roles.items():
            if not isinstance(cls, ClassWithInitArgs) or not role:
                raise InvalidArgument(f"role '{role}' is {cls!r}; give a name and a ClassWithInitArgs")
        self.roles = dict(roles)


def create_colocated_worker_cls(class_dict: Mapping[str, ClassWithInitArgs]) -> Colocated:
    """One class of several roles: each process of the group has a worker of each. ``spawn`` gives a group for each."""
    return Colocated(class_dict)


class Future:
    """The result of a call that may still run. It can be an argument of another call, which begins when it is ready."""

    def __init__(self, native: _native.Future, members: _Members) -> None:
        self._native = native
        self._members = members

    def done(self) -> bool:
        """Whether the result is there, or the error."""
        return self._native.ready()

    def get(self, timeout: float | None = None) -> Any:
        """Waits for the result, at most ``timeout`` seconds (DeadlineExceeded), and until the call's own time is over.

        Raises the error of the call, which names the method and the rank.
        """
        try:
            return self._native.get(timeout)
        except DockError as error:
            self._members.raise_explained(error)


class _Members:
    """What the groups over the same workers share."""

    def __init__(self) -> None:
        self.processes: Processes | None = None
        self._close: Callable[[float], None] = lambda grace: None

    def ended_by(self, close: Callable[[float], None]) -> None:
        """close: ends the workers. Called once: by close(), when no group over them is left, or at the end of the
        program; not in a process that was forked from this one."""
        owner = os.getpid()
        grace = [1.0]
        once = weakref.finalize(self, lambda: close(grace[0]) if os.getpid() == owner else None)

        def run(seconds: float) -> None:
            grace[0] = seconds
            once()

        self._close = run

    def close(self, grace: float) -> None:
        self._close(grace)

    def raise_explained(self, error: BaseException) -> NoReturn:
        """Raises the error, with what is known about the processes that it names."""
        if self.processes is None or not isinstance(error, (Unavailable, DeadlineExceeded)):
            raise error
        known = len(self.processes.pids())
        ranks = sorted({int(rank) for rank in _RANK.findall(str(error)) if int(rank) < known})
        if isinstance(error, Unavailable):
            self.processes.await_exit(0.5, ranks)  # a connection may be gone before the process
        about = [f"\n  {self.processes.describe(rank)}" for rank in ranks]
        raise type(error)(str(error) + "".join(about)) from None


class WorkerGroup:
    """Workers that are called together. The registered methods of their class are methods of the group.

    Thread-safe. A context manager, which shuts the workers down.
    """

    _core: _native.WorkerGroup

    def __init__(
        self,
        resource_pool: ResourcePool,
        cls_with_init: ClassWithInitArgs | Colocated,
        *,
        name: str = "",
        meshes: Meshes | None = None,
        dock: Dock | None = None,
        timeout: float = 3600.0,
        start_timeout: float = 120.0,
        silence: float = 30.0,
        environment: Mapping[str, str] | None = None,
        on_line: Callable[[int, str], None] | None = None,
    ) -> None:
        """Starts a process on this machine for each slot of the pool, and constructs the class on each.

        name: for errors; by default that of the class. meshes: such as {"actor": {"tp": 2, "dp": 4}}. dock: a connected
        dock, which workers have as self.dock. timeout: seconds that a call may take. start_timeout: that the
        constructors may take. silence: how long a worker may give no sign of life. environment: further
        variables of the processes. on_line: gets a rank and a line that it has printed; by default lines go to
        this process's standard error.
        """
        roles = _roles_of(cls_with_init)
        self._set_up(roles, name, _Members())
        processes = _ProcessesOfGroup(self._name, resource_pool, silence)
        self._members.processes = processes.processes(on_line)
        self._members.ended_by(processes.close)
        job = {"begin_timeout": start_timeout, "dock": pickle.dumps(dock)}
        try:
            processes.start(roles, job, environment or {}, start_timeout)
            ranks = list(range(resource_pool.world_size))
            self._core = processes.controller.group(ranks, self._name, _meshes(meshes), timeout)
        except BaseException as error:
            try:
                self._members.raise_explained(error)
            finally:
                self.shutdown(grace=1.0)

    def _set_up(self, roles: Mapping[str, ClassWithInitArgs], name: str, members: _Members) -> None:
        self._name = name or "_".join(role or cls.cls.__name__ for role, cls in roles.items())
        self._roles = {role: _methods(cls.cls) for role, cls in roles.items()}
        self._methods = self._roles.get("", {})
        self._members = members

    @classmethod
    def in_process(
        cls,
        cls_with_init: ClassWithInitArgs | Colocated,
        world_size: int,
        *,
        name: str = "",
        meshes: Meshes | None = None,
        dock: Dock | None = None,
        timeout: float = 3600.0,
        start_timeout: float = 120.0,
    ) -> WorkerGroup:
        """The same with a thread of this process for each worker: for debuggers, and for roles that need no process."""
        roles = _roles_of(cls_with_init)
        group = cls.__new__(cls)
        group._set_up(roles, name, _Members())
        threads = _ThreadsOfGroup(group._name, roles, world_size, dock)
        group._core = _native.Calls.group(threads.calls, group._name, _meshes(meshes), timeout)
        group._members.ended_by(threads.close)
        try:
            threads.start(start_timeout)
        except BaseException:
            group.shutdown(grace=1.0)
            raise
        return group

    @classmethod
    def _over(
        cls, native: _native.WorkerGroup, name: str, methods: Mapping[str, Method], members: _Members
    ) -> WorkerGroup:
        group = cls.__new__(cls)
        group._core, group._name, group._members = native, name, members
        group._methods, group._roles = dict(methods), {"": dict(methods)}
        return group

    # ---- Which workers.

    @property
    def world_size(self) -> int:
        return self._core.ranks

    @property
    def name(self) -> str:
        return self._name

    @property
    def pids(self) -> list[int]:
        """Of the processes, by rank of the group that started them; none of workers that it did not start."""
        return [] if self._members.processes is None else self._members.processes.pids()

    def spawn(self, roles: Iterable[str] | None = None) -> dict[str, WorkerGroup]:
        """A group for each role of a colocated class (all of them by default), over the same processes."""
        known = [role for role in self._roles if role]
        chosen = known if roles is None else list(roles)
        for role in chosen:
            if role not in known:
                raise InvalidArgument(f"group '{self._name}' has no role '{role}'; it has {', '.join(known) or 'none'}")
        natives = self._core.spawn(chosen)
        return {role: self._over(natives[role], role, self._roles[role], self._members) for role in chosen}

    def subgroup(self, ranks: Sequence[int], *, meshes: Meshes | None = None) -> WorkerGroup:
        """Some of the workers, which have ranks 0, 1, … of the result in this order; with meshes of its own."""
        return self._over(self._core.subgroup(list(ranks), _meshes(meshes)), self._name, self._methods, self._members)

    def with_timeout(self, seconds: float) -> WorkerGroup:
        """The same workers, with another time for each call."""
        return self._over(self._core.with_timeout(seconds), self._name, self._methods, self._members)

    # ---- Calls.

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = self.__dict__.get("_methods", {}).get(name)
        if method is None:
            known = ", ".join(sorted(self.__dict__.get("_methods", {}))) or "none"
            raise AttributeError(
                f"group '{self.__dict__.get('_name', '')}' has no method '{name}'; registered: {known}"
            )

        def call(*args: Any, **kwargs: Any) -> Any:
            return self._call(name, method, args, kwargs)

        call.__name__ = name
        return call

    def execute_all(self, method_name: str, *args: Any, **kwargs: Any) -> list[Any]:
        """Calls a public method on every worker, registered or not, as ALL_TO_ALL; returns the results by rank."""
        results: list[Any] = self.execute_all_async(method_name, *args, **kwargs).get()
        return results

    def execute_all_async(self, method_name: str, *args: Any, **kwargs: Any) -> Future:
        """The same without waiting."""
        return self._start(method_name, self._as(method_name, Dispatch.ALL_TO_ALL, Execute.ALL), args, kwargs)

    def execute_rank_zero(self, method_name: str, *args: Any, **kwargs: Any) -> Any:
        """Calls a public method on rank 0 alone; returns its result."""
        return self.execute_rank_zero_async(method_name, *args, **kwargs).get()

    def execute_rank_zero_async(self, method_name: str, *args: Any, **kwargs: Any) -> Future:
        """The same without waiting."""
        return self._start(method_name, self._as(method_name, Dispatch.ONE_TO_ALL, Execute.RANK_ZERO), args, kwargs)

    execute_all_sync = execute_all
    execute_rank_zero_sync = execute_rank_zero

    def _as(self, name: str, mode: DispatchMode, execute: Execute) -> Method:
        known = self._methods.get(name)
        return Method(mode, execute, parameters=known.parameters if known else Parameters(None))

    def _call(self, name: str, method: Method, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if method.dispatch_mode.dispatch_fn is None:
            future = self._start(name, method, args, kwargs)
            return future.get() if method.blocking else future
        if method.blocking:
            return self._run_own(name, method, args, kwargs)
        return self._start_own(name, method, args, kwargs)

    def _start(self, name: str, method: Method, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Future:
        values = [
            value._native if isinstance(value, Future) else value
            for value in method.parameters.values(name, args, kwargs)
        ]
        mode = method.dispatch_mode
        zero = method.execute_mode is Execute.RANK_ZERO
        return Future(self._core.start(name, mode.name, mode.mesh, mode.pad, zero, values), self._members)

    def _run_own(self, name: str, method: Method, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """A mode of one's own, whose functions need the arguments and the results themselves."""
        mode = method.dispatch_mode
        assert mode.dispatch_fn is not None and mode.collect_fn is not None
        args = [value.get() if isinstance(value, Future) else value for value in args]
        kwargs = {key: value.get() if isinstance(value, Future) else value for key, value in kwargs.items()}
        split, named = mode.dispatch_fn(self, *args, **kwargs)
        for given in (*split, *named.values()):
            if len(given) != self.world_size:
                raise InvalidArgument(
                    f"method '{name}' ({mode.name}): an argument was split for {len(given)} ranks; there are "
                    f"{self.world_size}"
                )
        by_rank = [
            method.parameters.values(name, [one[rank] for one in split], {key: one[rank] for key, one in named.items()})
            for rank in range(self.world_size)
        ]
        results = Future(self._core.start_split(name, mode.name, by_rank), self._members).get()
        return mode.collect_fn(self, results)

    def _start_own(self, name: str, method: Method, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Future:
        promise = _native.Future()

        def run() -> None:
            try:
                promise.set(self._run_own(name, method, args, kwargs))
            except BaseException as error:
                promise.fail(*told(error))

        threading.Thread(target=run, name=f"transfer-dock-{name}", daemon=True).start()
        return Future(promise, self._members)

    # ---- The end.

    def shutdown(self, grace: float = 5.0) -> None:
        """Ends the workers of this group, and so of all groups over them.

        They leave by themselves; who still runs after ``grace`` seconds is killed. Calls that wait raise Cancelled.
        """
        self._members.close(grace)

    def __enter__(self) -> WorkerGroup:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # After an error nobody waits for calls that hang.
        self.shutdown(5.0 if kind is None else 1.0)


class _ProcessesOfGroup:
    """The processes of a group and the controller that they join."""

    def __init__(self, name: str, pool: ResourcePool, silence: float) -> None:
        self._name, self._pool, self._silence = name, pool, silence
        self._token = secrets.token_hex(16)
        self.controller = _native.Controller("127.0.0.1:0", self._token, pool.world_size, False, {}, silence)

    def processes(self, on_line: Callable[[int, str], None] | None) -> Processes:
        self._processes = Processes(self._name, on_line, self._on_exit)
        return self._processes

    def _on_exit(self, rank: int) -> None:
        # Ends the wait for it, if it has not joined; otherwise its connection says so.
        if not self._begun:
            with contextlib.suppress(DockError):
                self.controller.end(_UNAVAILABLE, f"a worker of '{self._name}' ended before it served: rank {rank}")

    _begun = False

    def start(
        self,
        roles: Mapping[str, ClassWithInitArgs],
        job: Mapping[str, Any],
        environment: Mapping[str, str],
        timeout: float,
    ) -> None:
        deadline = time.monotonic() + timeout
        data = payload(
            roles,
            {
                **job,
                "address": self.controller.address,
                "token": self._token,
                "name": self._name,
                "silence": self._silence,
                "parent": os.getpid(),
            },
        )
        self._processes.start(environments(self._pool, self._name, environment), data)
        self.controller.await_workers(timeout)
        self.controller.welcome(None)
        self.controller.await_serving(max(deadline - time.monotonic(), 0.0))
        self._begun = True

    def close(self, grace: float) -> None:
        self._begun = True
        self.controller.close()
        self._processes.end(grace)


class _ThreadsOfGroup:
    """The workers of a group that are threads of this process."""

    def __init__(self, name: str, roles: Mapping[str, ClassWithInitArgs], world_size: int, dock: Dock | None) -> None:
        self._name, self._roles = name, roles
        self._places = [Place(rank, world_size, rank, world_size, dock) for rank in range(world_size)]
        self.calls = [_native.Calls() for _ in self._places]
        self._threads = [threading.Thread(target=self._run, args=(place,), daemon=True) for place in self._places]
        self._changed = threading.Condition()
        # Of those whose class has been constructed, or not.
        self._begun: list[Exception | None] = []

    def _run(self, place: Place) -> None:
        PLACE.set(place)
        error, handlers = None, {}
        try:
            for role, cls in self._roles.items():
                handlers.update(handlers_of(cls(), role))
        except Exception as raised:
            error = raised
        with self._changed:
            self._begun.append(error)
            self._changed.notify_all()
        if error is None:
            serve(self.calls[place.rank], handlers)

    def start(self, timeout: float) -> None:
        """Returns when all serve; raises the error of a constructor."""
        for thread in self._threads:
            thread.start()
        with self._changed:
            self._changed.wait_for(lambda: len(self._begun) == len(self._threads) or any(self._begun), timeout)
            begun = list(self._begun)
        for error in begun:
            if error is not None:
                raise error
        if missing := len(self._threads) - len(begun):
            raise DeadlineExceeded(f"{missing} workers of '{self._name}' did not become ready within {timeout:g} s")

    def close(self, grace: float) -> None:
        for calls in self.calls:
            calls.close("the group was shut down")
        deadline = time.monotonic() + grace
        for thread in self._threads:
            if thread.is_alive() and thread is not threading.current_thread():
                thread.join(max(deadline - time.monotonic(), 0.0))


class Controller:
    """A controller of workers that others start, in C++ or Python, on any machine: they join at its address.

    It is rank 0 of ``world_size`` ranks; the others are workers. A context manager, which ends their sessions.
    """

    def __init__(
        self,
        world_size: int,
        *,
        listen: str = "127.0.0.1:0",
        token: str = "",
        setup: Mapping[str, str] | None = None,
        silence: float = 30.0,
    ) -> None:
        """listen: "host:port"; beyond the loopback interface a token is required. setup: what all ranks must agree on.
        silence: how long a worker may give no sign of life."""
        self._native = _native.Controller(listen, token, world_size, True, dict(setup or {}), silence)
        self._world_size = world_size

    @property
    def address(self) -> str:
        return self._native.address

    def begin(self, welcome: Any = None, *, timeout: float = 120.0) -> None:
        """Waits until all workers have joined, tells them ``welcome``, and waits until they serve.

        Errors name the ranks that did not come, or disagree, and why one cannot serve.
        """
        deadline = time.monotonic() + timeout
        self._native.await_workers(timeout)
        self._native.welcome(welcome)
        self._native.await_serving(max(deadline - time.monotonic(), 0.0))

    def group(
        self,
        methods: Mapping[str, Method | DispatchMode | str] | type,
        *,
        ranks: Sequence[int] | None = None,
        name: str = "",
        meshes: Meshes | None = None,
        timeout: float = 3600.0,
    ) -> WorkerGroup:
        """Some of the workers (all by default) as a group. methods: how each is called, by name, or a class with
        registered methods. After begin()."""
        chosen = list(range(1, self._world_size)) if ranks is None else list(ranks)
        native = self._native.group(chosen, name, _meshes(meshes), timeout)
        if isinstance(methods, type):
            known = _methods(methods)
        else:
            known = {key: one if isinstance(one, Method) else Method(mode_of(one)) for key, one in methods.items()}
        return WorkerGroup._over(native, name, known, _Members())

    def close(self) -> None:
        """Ends the sessions of all workers."""
        self._native.close()

    def __enter__(self) -> Controller:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _roles_of(cls: ClassWithInitArgs | Colocated) -> dict[str, ClassWithInitArgs]:
    if isinstance(cls, Colocated):
        return cls.roles
    if isinstance(cls, ClassWithInitArgs):
        return {"": cls}
    raise InvalidArgument(
        f"cls_with_init is {cls!r}; give ClassWithInitArgs(cls, …), or create_colocated_worker_cls(…)"
    )


def _methods(cls: type) -> dict[str, Method]:
    found = methods_of(cls)
    taken = [name for name in found if hasattr(WorkerGroup, name)]
    if taken:
        raise InvalidArgument(f"{cls.__qualname__} registers {', '.join(taken)}, which groups have already; rename it")
    return found


def _meshes(meshes: Meshes | None) -> dict[str, list[tuple[str, int]]]:
    return {name: list(sizes.items()) for name, sizes in (meshes or {}).items()}
