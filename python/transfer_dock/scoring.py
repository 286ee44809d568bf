"""Log-probabilities of texts and tokens under a model that ``tdock serve`` serves."""

from __future__ import annotations

import contextlib
import json
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any

from transfer_dock.arguments import ListOf, seconds
from transfer_dock.errors import (
    DockError,
    InternalError,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
    Unauthenticated,
    Unavailable,
    Unimplemented,
)

# Prompts in one request.
_BATCH = 64
_ERRORS: dict[int, type[DockError]] = {
    400: InvalidArgument, 401: Unauthenticated, 403: Unauthenticated, 404: NotFound, 405: NotFound, 413: InvalidArgument,
    422: InvalidArgument, 429: ResourceExhausted, 503: Unavailable,
}  # fmt: skip


@dataclass(frozen=True)
class Score:
    """A prompt under the model: lists with one element for each of its tokens, which is None for the first.

    ids: the tokens. log_probs: each one's log-probability after those before it, under softmax(logits). ranks: its place
    among all tokens by likelihood, from 1. top: the most likely tokens in its place with their log-probabilities, in
    falling order, as many as were asked for.
    """

    ids: list[int]
    log_probs: list[float | None]
    ranks: list[int | None]
    top: list[dict[int, float] | None]


def score(
    prompts: ListOf[str] | ListOf[Sequence[int]],
    *,
    url: str,
    top: int = 0,
    model: str | None = None,
    api_key: str | None = None,
    add_special_tokens: bool = True,
    timeout: float = 600.0,
    direct: bool = False,
) -> list[Score]:
    """The log-probabilities of all tokens of prompts, which are texts, or lists of token ids.

    url: the server's, such as "http://127.0.0.1:8000". top: how many of the most likely tokens to give beside each.
    model: its name, where the server has several. add_special_tokens: whether a text begins with what the tokenizer puts
    before one. timeout: seconds to wait for an answer to 64 prompts. direct: not through a proxy.

    Raises InvalidArgument for what the server refuses, Unavailable if none answers, Unimplemented if it gives no
    log-probabilities of prompts, and other errors of a dock as they fit.
    """
    if isinstance(prompts, (str, bytes)):
        raise InvalidArgument(f"'prompts' is {prompts[:20]!r}; give a list of prompts")
    if api_key is not None and not (api_key.isascii() and api_key.isprintable()):
        raise InvalidArgument("'api_key' has more than printable ASCII characters")
    wait = seconds("timeout", timeout)
    headers = headers_with(api_key)
    fields: dict[str, Any] = {
        "max_tokens": 0, "prompt_logprobs": top, "return_token_ids": True, "add_special_tokens": add_special_tokens,
    }  # fmt: skip
    if model is not None:
        fields["model"] = model
    asked = [_prompt(one) for one in prompts]
    address = url.rstrip("/").removesuffix("/v1") + "/v1/completions"
    scores: list[Score] = []
    for begin in range(0, len(asked), _BATCH):
        batch = asked[begin : begin + _BATCH]
        reply = post(address, fields | {"prompt": batch}, headers, wait, direct=direct)
        try:
            choices = sorted(reply["choices"], key=lambda choice: int(choice["index"]))
            found = [_score(choice, top) for choice in choices]
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise Unimplemented(f"{address} gives no log-probabilities of prompts as tdock serve does: {error!r}") from None
        if len(found) != len(batch):
            raise InternalError(f"{address} gave {len(found)} answers to {len(batch)} prompts")
        scores += found
    return scores


def _prompt(given: Any) -> str | list[int]:
    if isinstance(given, str):
        return given
    try:
        if not isinstance(given, (bytes, bytearray)):
            return [operator.index(token) for token in given]
    except TypeError:
        pass
    raise InvalidArgument(f"one of 'prompts' is {given!r:.40}; each is a text, or a list of token ids")


def _score(choice: dict[str, Any], top: int) -> Score:
    ids, places = choice["prompt_token_ids"], choice["prompt_logprobs"]
    if not ids or len(places) != len(ids):
        raise ValueError(f"{len(places)} log-probabilities of {len(ids)} tokens")
    score = Score([int(token) for token in ids], [None], [None], [None])
    for token, place in zip(score.ids[1:], places[1:], strict=True):
        own = place[str(token)]
        score.log_probs.append(float(own["logprob"]))
        score.ranks.append(int(own["rank"]))
        likely = sorted((int(one["rank"]), int(name), float(one["logprob"])) for name, one in place.items())
        score.top.append({name: log_prob for rank, name, log_prob in likely if rank <= top})
    return score


def headers_with(api_key: str | None) -> dict[str, str]:
    """The headers of a request to a model's server."""
    return {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {api_key}"} if api_key else {})


def post(address: str, body: dict[str, Any], headers: dict[str, str], wait: float, *, direct: bool = False) -> Any:
    """The JSON that a server answers. direct: not through a proxy. Raises errors of a dock."""
    with reply_of(address, body, headers, wait, direct=direct) as answer:
        told = answer.read()
    try:
        return json.loads(told)
    except (ValueError, RecursionError) as error:
        raise InternalError(f"{address} answers with what is no JSON: {error}") from None


@contextlib.contextmanager
def reply_of(
    address: str, body: dict[str, Any], headers: dict[str, str], wait: float, *, direct: bool = False
) -> Iterator[IO[bytes]]:
    """The reply of a server, to be read. direct: not through a proxy. Raises errors of a dock, also if reading it fails."""
    if not address.startswith(("http://", "https://")):
        raise InvalidArgument(f"'url' is {address!r}; give one such as 'http://127.0.0.1:8000'")
    # They take longer to import than the rest of the package.
    import http.client
    import urllib.error
    import urllib.request

    try:
        opener = urllib.request.build_opener(*([urllib.request.ProxyHandler({})] if direct else []))
        answer = opener.open(urllib.request.Request(address, json.dumps(body).encode(), headers), timeout=wait)
    except urllib.error.HTTPError as error:
        with error:
            why = _message(error.read(1 << 16).decode(errors="replace"))
        raise _ERRORS.get(error.code, InternalError)(f"{address} answers {error.code}: {why}") from None
    except (http.client.InvalidURL, ValueError) as error:
        raise InvalidArgument(f"'url' makes {address!r}, which is no address: {error}") from None
    except (OSError, http.client.HTTPException) as error:  # URLError and timeouts, too
        raise Unavailable(f"{address} does not answer: {error}") from None
    try:
        with answer:
            yield answer
    except (OSError, http.client.HTTPException) as error:
        raise Unavailable(f"{address} does not answer: {error}") from None


def _message(told: str) -> str:
    try:
        return str(json.loads(told)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return told
