"""Environments in Python for `tdock train`: makes an environment program from a class.

    tdock train grpo.yaml environment.function=my_tools.py:Calculator

starts such a program itself. One of your own, for environment.program, ends with

    if __name__ == "__main__":
        serve(Calculator)

A class is written as TRL's or verl's are, or in our own form, and recognised by its methods (docs/environments.md):

    class Calculator:                                   # TRL: methods are tools; it is over at an answer without calls
        def reset(self, answer: str, **kwargs): ...
        def multiply(self, a: int, b: int) -> int: ...  # with a docstring that describes a and b
        def get_reward(self) -> float: ...

    class Game:                                         # ours
        def reset(self, seed, row): ...
        def step(self, message): return {"observation": "…", "rewards": {"won": 1.0}, "done": True}

    class Agent:                                        # verl: an agent loop
        async def run(self, sampling_params, **kwargs): ...

    async def solve(base_url, api_key, model, prompt): return 1.0  # any agent: it asks the model at base_url

This file and the modules beside it that it imports need nothing but Python 3.10, so that any interpreter can run them:
`python environments.py my_tools.py:Calculator`.
"""

from __future__ import annotations

import argparse
import asyncio
import concurrent.futures
import difflib
import functools
import inspect
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

if not __package__:  # run as a script: what it needs is beside it
    _programs = sys.modules["tdock_programs"] = ModuleType("tdock_programs")
    _programs.__path__ = [os.path.dirname(os.path.abspath(__file__))]
    __package__ = "tdock_programs"

from ._agent_loops import Agents, ServerManager
from ._clients import Clients
from ._episodes import Observation, Row, RowArguments, content_of, observation_of
from ._instances import Instance
from ._program import (
    LONGEST_ERROR,
    PROTOCOL,
    Channel,
    ProgramError,
    Record,
    Told,
    cut,
    find,
    leave_own_folder,
    line_of,
    meant,
    names,
    shown,
    where,
    why,
)
from ._tool_schemas import schema_of_tool

__all__ = ["BadEnvironment", "Observation", "serve"]

_WHAT = "an environment program"
_EPISODES = 64  # at the same time


class BadEnvironment(ProgramError):
    """A class cannot serve as an environment, or what started this program does not follow the protocol."""


def serve(environment: Any, *, name: str | None = None, episodes: int = _EPISODES) -> None:
    """Plays the episodes that arrive at the standard input until it is closed. Call it in the main thread, last.

    environment: a class, or what makes instances: a factory without arguments, or a functools.partial of an agent loop.
    name: what errors call it; default: its own name.
    episodes: how many are played at the same time, unless the class has concurrent_episodes; with 1, no two methods run
    at the same time.

    What is printed meanwhile, by child processes as well, goes to the standard error. Raises BadEnvironment if it has
    none of the forms, or what arrives is not the protocol.
    """
    channel = Channel.standard(_WHAT)
    try:
        serve_on(channel, environment, name, episodes)
    except ProgramError as error:
        raise BadEnvironment(str(error)) from None
    except BrokenPipeError:
        pass  # nobody is left to play with
    except KeyboardInterrupt:
        raise SystemExit(130) from None


# ---- environments ----


class _Form:
    """How an environment of one system is played."""

    kind = "environment"
    name: str
    tools: list[Record]
    concludes: bool  # it is asked what an episode was worth that a limit ended
    closes: bool  # its instances have close(), and serve one episode
    instances: list[Instance]  # that play no episode

    def __init__(self, name: str, instance: Instance) -> None:
        self.name, self.instances = name, [instance]
        self.closes = callable(getattr(instance.object(), "close", None))

    async def close(self) -> None:
        """Ends the instances that play no episode."""
        while self.instances:
            await self.instances.pop().close(f"{self.kind} '{self.name}'")

    def bind(self, columns: Sequence[str]) -> None:
        """Finds what methods are to be given; the columns are the run's data.keep."""

    async def reset(self, instance: Instance, seed: int, row: Row) -> Record:
        raise NotImplementedError

    async def step(self, instance: Instance, message: Record) -> Record:
        raise NotImplementedError

    async def conclude(self, instance: Instance) -> Record:
        raise NotImplementedError


class _Own(_Form):
    """reset(seed, row) and step(message), and conclude() if it likes."""

    def __init__(self, name: str, instance: Instance) -> None:
        super().__init__(name, instance)
        environment = instance.object()
        if not callable(getattr(environment, "step", None)):
            raise BadEnvironment(f"environment '{name}' has reset(seed, row), but no step(message)")
        self.concludes = callable(getattr(environment, "conclude", None))
        tools = getattr(environment, "tools", None) or []
        self.tools = [one if isinstance(one, dict) else schema_of_tool(one) for one in tools]

    async def reset(self, instance: Instance, seed: int, row: Row) -> Record:
        return observation_of(await instance.call((await instance.made()).reset, seed, row.whole))

    async def step(self, instance: Instance, message: Record) -> Record:
        return observation_of(await instance.call((await instance.made()).step, message))

    async def conclude(self, instance: Instance) -> Record:
        return observation_of(await instance.call((await instance.made()).conclude))


class _Trl(_Form):
    """TRL's: methods are tools, and the episode is over when the model calls none."""

    def __init__(self, name: str, instance: Instance) -> None:
        super().__init__(name, instance)
        environment = instance.object()
        self._type = type(environment)
        methods = [one for one, _ in inspect.getmembers(self._type, inspect.isfunction)]
        self._tools = [one for one in methods if one not in ("reset", "get_reward", "close") and not one.startswith("_")]
        self.concludes = "get_reward" in methods
        self.tools = [schema_of_tool(getattr(environment, one)) for one in self._tools]
        self._reset = RowArguments(f"environment '{name}': reset", environment.reset)
        self._noted: set[str] = set()

    def bind(self, columns: Sequence[str]) -> None:
        self._reset.bind(columns)

    async def reset(self, instance: Instance, seed: int, row: Row) -> Record:
        environment = await instance.made()
        said = await instance.call(environment.reset, **self._reset.of(seed, row))
        if said is None:
            return observation_of({})
        text = content_of(said, "reset returned")
        return observation_of({"observation": text, "continues": True})

    async def conclude(self, instance: Instance) -> Record:
        rewards = {}
        if self.concludes:
            reward = await instance.call((await instance.made()).get_reward)
            if reward is not None:
                rewards = {self._type.__name__: reward}
            elif "get_reward" not in self._noted:
                self._noted.add("get_reward")
                print(f"note: get_reward of environment '{self.name}' returned None: the reward is 0 where it does",
                      file=sys.stderr)  # fmt: skip
        return observation_of({"rewards": rewards, "done": True})

    async def step(self, instance: Instance, message: Record) -> Record:
        environment = await instance.made()
        calls = message.get("tool_calls")
        if not calls:
            return await self.conclude(instance)
        if not isinstance(calls, list):
            raise BadEnvironment(f"the tool calls of a message are no list: {shown(calls)}")
        results = await self._answer(instance, environment, calls)
        contents = [content_of(result, f"the tool '{name}' returned", of_tool=True) for name, result in results]
        turns = [{"role": "tool", "name": name, "content": text} for (name, _), text in zip(results, contents)]
        return observation_of(turns)

    async def _answer(self, instance: Instance, environment: Any, calls: list[Any]) -> list[tuple[str, Any]]:
        """Names and results of calls, in TRL's order: first those of functions, then those of coroutines."""
        now: list[tuple[str, Callable[[], Any]]] = []
        later: list[tuple[str, Callable[[], Any]]] = []
        for call in calls:
            function = call.get("function") if isinstance(call, dict) else None
            if not isinstance(function, dict):
                raise BadEnvironment(f"a tool call is no function with a name: {shown(call)}")
            name, arguments = str(function.get("name")), function.get("arguments")
            if name not in self._tools:
                now.append((name, functools.partial(_raise, ValueError(f"Tool {name} not found."))))
                continue
            tool = getattr(environment, name)
            call_it = functools.partial(_call_tool, tool, {} if arguments is None else arguments)
            (later if inspect.iscoroutinefunction(tool) else now).append((name, call_it))

        def run() -> list[tuple[str, Any]]:
            return [(name, self._result(name, tool)) for name, tool in now]

        async def wait(name: str, tool: Callable[[], Any]) -> tuple[str, Any]:
            try:
                return name, await tool()
            except (Exception, SystemExit) as error:
                return name, self._failed(name, error)

        results = await instance.in_thread(run) if now else []
        return [*results, *await asyncio.gather(*(wait(name, tool) for name, tool in later))]

    def _result(self, name: str, tool: Callable[[], Any]) -> Any:
        try:
            return tool()
        except (Exception, SystemExit) as error:
            return self._failed(name, error)

    def _failed(self, name: str, error: BaseException) -> Record:
        """The model is told of it; people are told once for each place, since it may be a mistake of the tool."""
        place = where(error, _file_of(self._type))
        if place and place not in self._noted:
            self._noted.add(place)
            print(f"note: the model is told that the tool '{name}' raised {type(error).__name__}: {error}{place}",
                  file=sys.stderr)  # fmt: skip
        return {"error": str(error)}


def _raise(error: Exception) -> Any:
    raise error


def _call_tool(tool: Callable[..., Any], arguments: Any) -> Any:
    return tool(**arguments)


def _file_of(kind: Any) -> str | None:
    return getattr(sys.modules.get(getattr(kind, "__module__", "")), "__file__", None)


# ---- episodes ----


@dataclass(eq=False)
class _Episode:
    number: int
    inbox: asyncio.Queue[Record] = field(default_factory=asyncio.Queue)  # steps
    answers: dict[int, asyncio.Future[Record]] = field(default_factory=dict)  # that an agent waits for, by request
    requests: int = 0
    task: asyncio.Task[None] | None = None


class _Program:
    """Plays the episodes that the host names, until its input ends. All but read_all() runs in the event loop."""

    def __init__(self, served: _Form | Agents | Clients, factory: Any, channel: Channel, episodes: int) -> None:
        self._served, self._factory, self._channel = served, factory, channel
        self._room = asyncio.Semaphore(episodes)  # an episode is over for the host before its instance is closed
        self._tasks: set[asyncio.Task[None]] = set()
        self._file = _file_of(getattr(factory, "func", factory))
        self._what = ("environment" if isinstance(served, _Form) else "agent") + f" '{served.name}'"
        self._episodes: dict[int, _Episode] = {}

    async def play(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        threading.Thread(target=self._read_all, daemon=True, name="input").start()
        try:
            await self._ended
        finally:  # instances are closed, too
            for episode in self._episodes.values():
                if episode.task is not None:
                    episode.task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            if isinstance(self._served, _Form):
                await self._served.close()

    def _read_all(self) -> None:
        try:
            while True:
                try:
                    message = self._channel.read()
                except ProgramError as error:
                    self._loop.call_soon_threadsafe(self._end, error)
                    return
                if message is None:
                    self._loop.call_soon_threadsafe(self._end, None)
                    return
                self._loop.call_soon_threadsafe(self._receive, message)
        except RuntimeError:
            pass  # the loop is closed: the program ends

    def _end(self, error: Exception | None) -> None:
        if self._ended.done():
            return
        if error is None:
            self._ended.set_result(None)
        else:
            self._ended.set_exception(error)

    def _receive(self, message: Record) -> None:
        try:
            kind, number = message.get("type"), message.get("episode")
            begins = "reset" if isinstance(self._served, _Form) else "run"
            known = ("run", "generated", "end") if begins == "run" else ("reset", "step", "conclude", "end")
            if not isinstance(number, int) or kind not in known:
                raise BadEnvironment(f"a message of an episode was to come, not {shown(message)}")
            episode = self._episodes.get(number)
            if kind == begins:
                self._begin(number, message)
            elif kind == "end":
                if episode is not None and episode.task is not None:
                    del self._episodes[number]
                    episode.task.cancel()
            elif kind == "generated":
                answer = episode.answers.pop(message.get("request", -1), None) if episode is not None else None
                if answer is not None and not answer.done():
                    answer.set_result(message)
            elif episode is None or (kind == "step" and not isinstance(message.get("message"), dict)):
                raise BadEnvironment(f"episode {number} is not under way, or waits for another message: {message}")
            else:
                episode.inbox.put_nowait(message)
        except ProgramError as error:
            self._end(error)

    def _begin(self, number: int, message: Record) -> None:
        if number in self._episodes:
            raise BadEnvironment(f"episode {number} began twice")
        seed, row = message.get("seed"), Row.read(message.get("row"))
        if not isinstance(seed, int):
            raise BadEnvironment(f"episode {number} has no seed: {shown(seed)}")
        episode = self._episodes[number] = _Episode(number)
        if isinstance(self._served, _Form):
            coroutine = self._play_episode(self._served, episode, seed, row)
        elif isinstance(self._served, Agents):
            sampling = message.get("sampling") or {}
            coroutine = self._run_agent(self._served, episode, seed, row, sampling)
        else:
            coroutine = self._run_client(self._served, episode, seed, row, Clients.endpoint_of(message))
        episode.task = self._loop.create_task(coroutine)
        self._tasks.add(episode.task)
        episode.task.add_done_callback(self._tasks.discard)
        episode.task.add_done_callback(lambda task: self._say_cancelled(episode, task))

    def _say_cancelled(self, episode: _Episode, task: asyncio.Task[None]) -> None:
        """What a user's own code cancelled has not said anything."""
        if task.cancelled() and not self._ended.done():
            self._fail(episode, "", Told("it was cancelled by its own code"))

    def _say(self, episode: _Episode, record: Record, *, last: bool) -> None:
        line = line_of({"type": "observation", "episode": episode.number} | record)
        if self._episodes.get(episode.number) is not episode:
            return  # it was given up
        if last:
            del self._episodes[episode.number]
        try:
            self._channel.write(line)
        except OSError as error:
            self._end(error)

    def _fail(self, episode: _Episode, doing: str, error: BaseException) -> None:
        if not isinstance(error, Told):
            self._channel.failed(error)
        text = f"{self._what}{doing}: {why(error, self._file)}"
        self._say(episode, {"error": cut(text, LONGEST_ERROR)}, last=True)

    async def _play_episode(self, form: _Form, episode: _Episode, seed: int, row: Row) -> None:
        async with self._room:
            await self._play(form, episode, seed, row)

    async def _play(self, form: _Form, episode: _Episode, seed: int, row: Row) -> None:
        instance = form.instances.pop() if form.instances else Instance(self._factory)
        doing, reusable = ", reset", False
        try:
            record = await form.reset(instance, seed, row)
            while True:
                over = "error" in record or record["done"] or record["truncated"]
                self._say(episode, record, last=over)
                reusable = "error" not in record
                if over:
                    return
                message = await episode.inbox.get()
                doing, reusable = f", {message['type']}", False
                if message["type"] == "step":
                    record = await form.step(instance, message["message"])
                else:
                    record = await form.conclude(instance) | {"done": True}
        except ProgramError as error:
            self._end(error)
        except (Exception, SystemExit) as error:
            self._fail(episode, doing, error)
        finally:
            if reusable and not form.closes:
                form.instances.append(instance)
            else:
                await instance.close(self._what, self._file)

    async def _run_agent(self, agents: Agents, episode: _Episode, seed: int, row: Row, sampling: Record) -> None:
        async def ask(request: Record) -> Record:
            number, episode.requests = episode.requests, episode.requests + 1
            answer: asyncio.Future[Record] = self._loop.create_future()
            episode.answers[number] = answer
            self._say(episode, {"type": "generate", "request": number} | request, last=False)
            return await answer

        try:
            self._say(episode, await agents.run(row, seed, sampling, ServerManager(sampling, ask)), last=True)
        except (Exception, SystemExit) as error:
            self._fail(episode, "", error)

    async def _run_client(self, clients: Clients, episode: _Episode, seed: int, row: Row, endpoint: Record) -> None:
        try:
            self._say(episode, await clients.run(row, seed, endpoint), last=True)
        except (Exception, SystemExit) as error:
            self._fail(episode, "", error)


# ---- preparing ----


def _is_agent(kind: Any) -> bool:
    run = getattr(kind, "run", None)
    return callable(run) and "sampling_params" in inspect.signature(run).parameters


def _is_client(function: Any) -> bool:
    try:
        return not isinstance(function, type) and "base_url" in inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False


def _prepare(target: Any, name: str | None) -> _Form | Agents | Clients:
    kind = target.func if isinstance(target, functools.partial) else target
    given, name = name, name or str(getattr(kind, "__name__", type(kind).__name__))
    if isinstance(target, Mapping):
        raise BadEnvironment(f"'{name}' is a dict of environments; a run has one: name that")
    if not callable(target):
        hint = ": name its class" if hasattr(target, "reset") or hasattr(target, "run") else ""
        raise BadEnvironment(f"'{name}' is {shown(target)}, and no class of environments{hint}")
    if isinstance(kind, type) and _is_agent(kind):
        if not inspect.iscoroutinefunction(inspect.unwrap(getattr(kind, "run"))):
            raise BadEnvironment(f"agent '{name}': run is not a coroutine function: begin it with async def")
        return Agents(name, target)
    if _is_client(target):
        return Clients(name, target)
    instance = Instance(target)
    try:
        environment = instance.object()
    except (Exception, SystemExit) as error:
        raise BadEnvironment(f"'{name}' cannot be made without arguments: {why(error, _file_of(kind))}") from None
    reset = getattr(type(environment), "reset", None)
    if not callable(reset):
        there = [one for one, _ in inspect.getmembers(type(environment), callable) if not one.startswith("_")]
        near = difflib.get_close_matches("reset", there, 1, 0.5) + difflib.get_close_matches("run", there, 1, 0.7)
        raise BadEnvironment(
            f"'{name}' is no environment, which has reset(**row) and tools as in TRL, reset(seed, row) and "
            f"step(message), or async run(sampling_params, **kwargs) as agent loops of verl, nor a function of base_url; "
            f"it has: {names(there)}"
            + (f"; {meant(near, there)}" if near else "")
        )
    if not isinstance(kind, type):
        name = given or type(environment).__name__  # of what a factory makes
    own = {"seed", "row"} <= inspect.signature(environment.reset).parameters.keys()
    return _Own(name, instance) if own else _Trl(name, instance)


def check(environment: Any) -> None:
    """Raises BadEnvironment if it has none of the forms."""
    served = _prepare(environment, None)
    if isinstance(served, _Form):
        concurrent.futures.ThreadPoolExecutor(1).submit(asyncio.run, served.close()).result()  # there may be a loop here


def serve_on(channel: Channel, environment: Any, name: str | None = None, episodes: int = _EPISODES) -> None:
    """Plays the episodes that arrive until the channel is closed."""
    served = _prepare(environment, name)
    episodes = int(getattr(environment, "concurrent_episodes", episodes))
    hello = channel.read_hello()
    if hello is None:
        return
    if isinstance(served, Agents):
        served.bind(str(hello.get("model") or ""))
    else:
        served.bind(hello["columns"])
    channel.write(line_of({
        "type": "hello", "protocol": PROTOCOL, "name": served.name, "tools": served.tools,
        "kind": served.kind, "concludes": isinstance(served, _Form) and served.concludes,
        "episodes": episodes,
    }))  # fmt: skip
    asyncio.run(_Program(served, environment, channel, episodes).play())


# ---- the command line ----


def _main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m transfer_dock.environments", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("environment", metavar="FILE.py:NAME", help="a class in a file, or MODULE:NAME")
    parser.add_argument("--episodes", type=int, default=_EPISODES, help="at the same time (default: %(default)s)")
    options = parser.parse_args(arguments)
    leave_own_folder()
    channel = Channel.standard(_WHAT)  # first of all, since the file may print while it is imported
    for variable in ("NO_PROXY", "no_proxy"):  # clients ask the endpoints of episodes, which are on this machine
        os.environ[variable] = ",".join(filter(None, (os.environ.get(variable), "127.0.0.1")))
    try:
        environment, name = find(options.environment, "a class")
        serve_on(channel, environment, name, options.episodes)
    except ProgramError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        pass  # nobody is left to play with
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
