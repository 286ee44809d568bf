"""Agent loops, as verl has them."""

from __future__ import annotations

import asyncio
import functools
import importlib
import inspect
import json
import os
import sys
import types
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ._episodes import Row, rewards_of
from ._instances import close
from ._program import ProgramError, Record, Told, from_json, names, shown


class _Config(dict[str, Any]):
    """The part of verl's configuration that there is here; where verl is, it is a DictConfig instead."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"agents' configuration has no '{name}' here; it has: {names(self)}") from None


_NO_LIMIT = 1 << 20  # tokens


def _config(model: str, sampling: Mapping[str, Any]) -> Any:
    length = sampling.get("max_tokens") or _NO_LIMIT
    turns = {"max_user_turns": None, "max_assistant_turns": None, "max_parallel_calls": 1,
             "max_tool_response_length": 256, "tool_response_truncate_side": "middle", "tool_config_path": None,
             "function_tool_path": None, "format": "hermes"}  # fmt: skip
    rollout = {"prompt_length": _NO_LIMIT, "response_length": length, "temperature": sampling.get("temperature", 1.0),
               "top_p": sampling.get("top_p", 1.0), "top_k": -1, "calculate_log_probs": True, "multi_turn": turns,
               "full_determinism": False}  # fmt: skip
    data: Record = {"max_prompt_length": _NO_LIMIT, "max_response_length": length, "apply_chat_template_kwargs": {},
                    "mm_processor_kwargs": {}, "tool_config_path": None}  # fmt: skip
    whole = {"actor_rollout_ref": {"model": {"path": model}, "rollout": rollout}, "data": data}
    if omegaconf := sys.modules.get("omegaconf"):  # imported by verl
        return omegaconf.OmegaConf.create(whole)

    def wrap(value: Any) -> Any:
        return _Config({key: wrap(one) for key, one in value.items()}) if isinstance(value, dict) else value

    return wrap(whole)


@dataclass
class TokenOutput:
    """What generate() returns, with the fields of verl's own."""

    token_ids: list[int]
    log_probs: list[float]
    stop_reason: str  # "length", or else "completed"
    num_preempted: int | None = None
    routed_experts: Any = None
    extra_fields: Record = field(default_factory=dict)


# How the host samples unless the run says otherwise; log-probs are of that.
_SAMPLING = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "repetition_penalty": 1.0, "min_p": 0.0, "n": 1,
             "stop": None, "stop_token_ids": None}  # fmt: skip


class ServerManager:
    """Asks the host for completions, under the name that verl's agent loops know."""

    def __init__(self, sampling: Record, ask: Callable[[Record], Awaitable[Record]]) -> None:
        self._sampling, self._ask = sampling, ask

    async def generate(self, request_id: Any = None, *, prompt_ids: Any, sampling_params: Mapping[str, Any] = {},
                       **others: Any) -> TokenOutput:  # fmt: skip
        """One completion of the prompt. request_id, by which verl chooses a server, has no effect.

        Raises ValueError for images and for other sampling than the run's; RuntimeError if the host cannot generate.
        """
        for name in ("image_data", "video_data", "audio_data", "mm_processor_output"):
            if others.get(name):
                raise ValueError(f"{name}: only texts are generated here")
        limit = 0
        for key, value in sampling_params.items():
            if key in ("max_tokens", "max_new_tokens"):
                limit = int(value or 0)
            elif key in _SAMPLING and value not in (None, []):
                of_run = (_SAMPLING | self._sampling)[key]
                if value != of_run:
                    raise ValueError(f"sampling_params has {key}={shown(value)}, and the run {shown(of_run)}, which "
                                     "log-probs are of: change it there")  # fmt: skip
        request = {"prompt_ids": _ids(prompt_ids, "prompt_ids")}
        answer = await self._ask(request | ({"max_tokens": limit} if limit > 0 else {}))
        if answer.get("error") is not None:
            raise RuntimeError(f"no completion was generated: {answer['error']}")
        version = answer.get("weights_version", 0)
        steps = {"global_steps": version, "min_global_steps": version, "max_global_steps": version}
        stopped = "length" if answer.get("stop_reason") == "length" else "completed"
        return TokenOutput(answer["token_ids"], answer.get("log_probs") or [], stopped, extra_fields=steps)


def _ids(value: Any, what: str) -> list[int]:
    if hasattr(value, "tolist"):
        value = value.tolist()
    if not isinstance(value, (list, tuple)) or not all(isinstance(one, (int, float)) for one in value):
        raise Told(f"{what} is not a list of token ids: {shown(value)}")
    for one in value:
        if one != one // 1:  # a fraction, NaN
            raise Told(f"{what} has {shown(one)}, which is no whole number")
    return [int(one) for one in value]


class Agents:
    """A class of agent loops, of which an instance is made for each episode, as verl does."""

    kind = "agent"
    tools: list[Record] = []

    def __init__(self, name: str, factory: Any) -> None:
        self.name, self.factory = name, factory
        self._model = ""
        self._noted_no_reward = False
        try:
            parameters = inspect.signature(factory).parameters.values()
        except (TypeError, ValueError) as error:
            raise ProgramError(f"the parameters of agent '{name}' are unknown: {error}") from None
        self._takes = {one.name for one in parameters}
        self._takes_all = any(one.kind is one.VAR_KEYWORD for one in parameters)
        missing = [one.name for one in parameters if one.default is one.empty and one.name not in self._parts({})
                   and one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]  # fmt: skip
        if missing:
            raise ProgramError(f"agent '{name}' is made with {names(missing)}, which agent loops are not given: "
                                 "bind it with functools.partial")  # fmt: skip

    def bind(self, model: str) -> None:
        self._model = model

    def _parts(self, sampling: Mapping[str, Any], server: Any = None) -> dict[str, Callable[[], Any]]:
        """What verl makes agent loops with."""
        config = functools.partial(_config, self._model, sampling)
        return {
            "trainer_config": lambda: types.SimpleNamespace(config=config()),
            "server_manager": lambda: server,
            "tokenizer": self._tokenizer,
            "processor": lambda: None,
            "hf_model_type": self._model_type,
            "dataset_cls": lambda: None,
            "data_config": lambda: types.SimpleNamespace(config=config().data),
            "dataset_config": lambda: config().data,
            "tools": lambda: types.SimpleNamespace(tools=[]),
        }

    @functools.cache
    def _tokenizer(self) -> Any:
        try:
            transformers = importlib.import_module("transformers")
        except ImportError as error:
            raise RuntimeError(f"the tokenizer of an agent is loaded with transformers, which {sys.executable} cannot "
                               f"import: {error}") from None  # fmt: skip
        return transformers.AutoTokenizer.from_pretrained(self._model)

    def _model_type(self) -> str | None:
        try:
            with open(os.path.join(self._model, "config.json"), encoding="utf-8") as file:
                kind = json.load(file).get("model_type")
            return kind if isinstance(kind, str) else None
        except OSError:
            return None  # a model that is made by the run

    def _make(self, sampling: Mapping[str, Any], server: ServerManager) -> Any:
        parts = self._parts(sampling, server)
        given = {name: make() for name, make in parts.items() if self._takes_all or name in self._takes}
        if given or not inspect.isclass(self.factory):
            return self.factory(**given)
        # A class that is made without arguments has these as attributes.
        attributes: dict[str, Callable[[], Any]] = {
            **{name: parts[name] for name in ("server_manager", "tokenizer", "processor")},
            "config": functools.partial(_config, self._model, sampling),
            "rollout_config": lambda: _config(self._model, sampling).actor_rollout_ref.rollout,
            "data_config": lambda: _config(self._model, sampling).data,
            "loop": asyncio.get_running_loop,
        }
        return _with_attributes(self.factory, attributes)

    async def run(self, row: Row, seed: int, sampling: Record, server: ServerManager) -> Record:
        agent = self._make(sampling, server)
        try:
            arguments = _verl_row(row) | {"seed": seed}
            parameters = inspect.signature(agent.run).parameters.values()
            if any(one.kind is one.VAR_KEYWORD for one in parameters):
                named = {one.name for one in parameters}
                arguments = {name: value for name, value in arguments.items() if name != "seed" or name in named}
            else:
                arguments = {one.name: arguments[one.name] for one in parameters if one.name in arguments}
            asked = ("temperature", "top_p", "top_k", "repetition_penalty")  # as verl does
            sampling_params = {name: (_SAMPLING | sampling)[name] for name in asked} | {"logprobs": True}
            output = _agent_output(await agent.run(sampling_params, **arguments))
        finally:
            await close(agent, f"agent '{self.name}'")
        if not output["rewards"] and not self._noted_no_reward:
            self._noted_no_reward = True
            print(f"note: agent '{self.name}' returned no reward_score: the reward is 0 where it returns none, since "
                  "nothing else gives one to its episodes", file=sys.stderr)  # fmt: skip
        return output


def _with_attributes(kind: Any, attributes: Mapping[str, Callable[[], Any]]) -> Any:
    """An instance with these attributes, where its class sets none, made when they are first looked at."""

    class Agent(kind):  # type: ignore[misc]
        def __getattr__(self, name: str) -> Any:
            if name not in attributes:
                known = names(attributes)
                raise AttributeError(f"'{kind.__name__}' has no '{name}', nor is it given to agents: {known} are")
            value = attributes[name]()
            setattr(self, name, value)
            return value

    Agent.__name__, Agent.__qualname__, Agent.__module__ = kind.__name__, kind.__qualname__, kind.__module__
    return Agent()


def _verl_row(row: Row) -> Record:
    """The fields that verl's data set gives agents."""
    extra = row.column("extra_info") or {}
    kept = {name: row.column(name) for name in row.columns}
    fields: Record = {
        "raw_prompt": row.turns(), "raw_prompt_ids": row.prompt_ids, "data_source": row.source, "extra_info": extra,
        "reward_model": {"style": "rule", "ground_truth": from_json(row.truth)}, "index": 0,
    }  # fmt: skip
    if isinstance(extra, dict):
        fields |= {name: extra.get(name, {}) for name in ("tools_kwargs", "interaction_kwargs")}
        fields["index"] = extra.get("index", 0)
    return fields | kept


def _agent_output(output: Any) -> Record:
    if isinstance(output, list):
        raise Told(f"run returned a list of {len(output)} outputs; here an episode has one")

    def get(name: str, needed: bool = True) -> Any:
        if isinstance(output, Mapping) and name in output:
            return output[name]
        if not isinstance(output, Mapping) and hasattr(output, name):
            return getattr(output, name)
        if needed:
            raise Told(f"run returned {shown(output)} without '{name}'")
        return None

    ids = {name: _ids(get(name), name) for name in ("prompt_ids", "response_ids", "response_mask")}
    response, mask = ids["response_ids"], ids["response_mask"]
    if len(mask) != len(response) or not set(mask) <= {0, 1}:
        raise Told(f"run returned a response_mask of {len(mask)} values for {len(response)} response_ids; it has a 0 "
                    "or 1 for each")  # fmt: skip
    return {"type": "output", **ids, "rewards": rewards_of(get("reward_score", needed=False))}
