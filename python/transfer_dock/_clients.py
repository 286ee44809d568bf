"""Agents that know nothing of a run but a URL, at which they ask the model for replies."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ._episodes import Row, RowArguments, rewards_of
from ._instances import in_thread
from ._program import ProgramError, Record, shown


class Clients:
    """A function of base_url, plain or a coroutine function, that is called for each episode and returns its rewards."""

    kind = "client"
    tools: list[Record] = []

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self.name, self._function = name, function
        self._arguments = RowArguments(f"agent '{name}'", function, ("base_url", "api_key", "model", "messages"))
        self._noted_no_reward = False

    def bind(self, columns: Sequence[str]) -> None:
        self._arguments.bind(columns)

    @staticmethod
    def endpoint_of(message: Mapping[str, Any]) -> Record:
        endpoint = {name: message.get(name) for name in ("base_url", "api_key", "model")}
        for name, value in endpoint.items():
            if not isinstance(value, str):
                raise ProgramError(f"the run of an episode has no '{name}': {shown(value)}")
        return endpoint

    async def run(self, row: Row, seed: int, endpoint: Record) -> Record:
        arguments = self._arguments.of(seed, row, endpoint | {"messages": row.turns()})
        call = functools.partial(self._function, **arguments)
        called = inspect.unwrap(getattr(self._function, "func", self._function))
        value = await call() if inspect.iscoroutinefunction(called) else await in_thread(call)
        if inspect.isawaitable(value):
            value = await value
        if value is None and not self._noted_no_reward:
            self._noted_no_reward = True
            print(f"note: agent '{self.name}' returned no reward: it is 0 where it returns none", file=sys.stderr)
        return {"rewards": rewards_of(value), "done": True}
