"""Objects of users' classes, each with a thread of its own."""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import inspect
import queue
import sys
import threading
from collections.abc import Callable
from typing import Any

from ._program import why

CLOSING = 10.0  # seconds that close() may take


async def in_thread(function: Callable[[], Any]) -> Any:
    """Runs it in a thread that nothing waits for when the program ends."""
    thread = _Thread()
    called = thread.submit(function)
    thread.stop()
    return await asyncio.wrap_future(called)


async def _call(method: Callable[[], Any]) -> Any:
    if inspect.iscoroutinefunction(method):
        return await method()
    result = await in_thread(method)
    return await result if inspect.isawaitable(result) else result


async def close(subject: Any, what: str, call: Callable[..., Any] = _call, file: str | None = None) -> None:
    """Calls close() of an environment or agent whose episode is over, if it has one. What goes wrong is only told.

    call: awaits a function, which may be a coroutine function.
    """
    method = getattr(subject, "close", None)
    if not callable(method):
        return
    try:
        await asyncio.wait_for(call(method), CLOSING)
    except asyncio.TimeoutError:
        print(f"warning: {what}, close: it did not return within {CLOSING:g} s", file=sys.stderr)
    except (Exception, SystemExit) as error:
        print(f"warning: {what}, close: {why(error, file)}", file=sys.stderr)


class _Thread:
    """Runs the methods of one environment, one after the other and in one thread, to which connections may be bound."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[tuple[concurrent.futures.Future[Any], Callable[[], Any]] | None]
        self._calls = queue.SimpleQueue()
        threading.Thread(target=self._run, daemon=True, name="environment").start()

    def submit(self, function: Callable[[], Any]) -> concurrent.futures.Future[Any]:
        future: concurrent.futures.Future[Any] = concurrent.futures.Future()
        self._calls.put((future, function))
        return future

    def stop(self) -> None:
        """After what has been submitted."""
        self._calls.put(None)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            future, function = call
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(function())
            except StopIteration as error:  # which a future cannot have
                future.set_exception(RuntimeError(f"StopIteration {error}").with_traceback(error.__traceback__))
            except BaseException as error:
                future.set_exception(error)


class Instance:
    """One object of the user's class. It plays one episode at a time, and may be used again once that is over."""

    def __init__(self, factory: Callable[[], Any]) -> None:
        self._thread = _Thread()
        self._made = self._thread.submit(factory)

    def object(self) -> Any:
        """Waits until it is made, and raises what that raised."""
        return self._made.result()

    async def made(self) -> Any:
        return await asyncio.wrap_future(self._made)

    async def in_thread(self, function: Callable[[], Any]) -> Any:
        return await asyncio.wrap_future(self._thread.submit(function))

    async def call(self, method: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        if inspect.iscoroutinefunction(method):
            return await method(*arguments, **named)
        result = await self.in_thread(functools.partial(method, *arguments, **named))
        return await result if inspect.isawaitable(result) else result

    async def close(self, what: str, file: str | None = None) -> None:
        """Its episode is over, and it is used no more."""
        try:
            await close(await self.made(), what, self.call, file)
        except (Exception, SystemExit):  # of what could not be made
            pass
        finally:
            self._thread.stop()
