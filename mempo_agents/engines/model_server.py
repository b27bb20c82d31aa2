"""The wire to an OpenAI-compatible server: key, deadlines, retries, many requests at a time, answers checked."""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Callable, Coroutine, Mapping, Sequence
from time import monotonic
from typing import Any, TypeVar
from urllib.parse import urlsplit

from mempo_env.errors import EngineError, RetrievalError, UnknownNameError
from mempo_env.retrieval import background
from mempo_env.retrieval.json_client import JsonClient, Patience

T = TypeVar("T")
Choice = Mapping[str, Any]

_MAX_RESPONSE_BYTES = 256 << 20
_LOOK_SECONDS = 10.0  # for the list of models: who names a dead server should hear of it soon
_TOO_LONG = ("maximum context length", "context_length_exceeded")


class PromptTooLongError(EngineError):
    """The server says that the prompt does not fit into the model's window."""


class ModelServer:
    """One model on one server. Pickles without its connections, and without its key, which is read again.

    patience: of one piece of work, retries included. api_key_env: the environment variable that holds the key.
    Raises ValueError for an address with a password or a query in it: addresses are written to results.
    """

    def __init__(self, base_url: str, model: str, *, api_key_env: str, patience: Patience, max_concurrent: int) -> None:
        if max_concurrent < 1:
            raise ValueError(f"max_concurrent: expected at least 1, got {max_concurrent}.")
        self.base_url, self.model = _checked_url(base_url), model
        self.patience, self.max_concurrent = patience, max_concurrent
        self._key_env = api_key_env
        self._connect()

    def __repr__(self) -> str:
        return f"ModelServer({self.base_url!r}, {self.model!r})"

    def __getstate__(self) -> dict[str, Any]:
        own = ("_key", "_client", "_close_client", "_pid")
        return {name: value for name, value in vars(self).items() if name not in own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._connect()

    def _connect(self) -> None:
        self._key = os.environ.get(self._key_env, "").strip()
        self._pid = os.getpid()
        self._client: JsonClient | None = None
        self._close_client: Callable[[], None] | None = None

    def find(self) -> dict[str, Any]:
        """What the server says of the model; nothing where it has no list of models.

        Raises EngineError where it does not answer or wants another key, UnknownNameError where it has no such model.
        """
        try:
            listed = self._models()
        except EngineError as error:
            if _has_status(error, 401, 403):
                has = "holds one that it refuses" if self._key else "is not set"
                raise EngineError(f"{error} The server wants a key: ${self._key_env} {has}.") from None
            if _has_status(error, 404, 405, 501):
                return {}
            raise EngineError(f"{error} Is a server running there, and does the address end in /v1?") from None
        cards = listed.get("data") if isinstance(listed, dict) else None
        known = {card["id"]: card for card in cards or () if isinstance(card, dict) and isinstance(card.get("id"), str)}
        if known and self.model not in known:
            raise UnknownNameError(f"model of {self.base_url}", self.model, known)
        return known.get(self.model, {})

    def usable(self) -> bool:
        """Whether the server still answers, and still takes the key."""
        try:
            self._models()
        except EngineError as error:
            return "status 4" in str(error) and not _has_status(error, 401, 403)
        return True

    async def post(self, route: str, body: Mapping[str, Any], deadline: float) -> Choice:
        """The only choice of the answer. Raises EngineError, PromptTooLongError among them."""
        url = f"{self.base_url}/{route}"
        try:
            reply = await self._ready().request("POST", url, {"model": self.model, **body}, deadline=deadline)
        except RetrievalError as error:
            text = self._without_key(str(error))
            too_long = "status 400" in text and any(mark in text for mark in _TOO_LONG)
            raise (PromptTooLongError(text) if too_long else EngineError(text)) from None
        choices = reply.value.get("choices") if isinstance(reply.value, dict) else None
        if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
            raise EngineError(f"{url}: expected one choice in the answer, got {str(reply.value)[:80]!r}.")
        return choices[0]

    async def post_or_none(self, route: str, body: Mapping[str, Any], deadline: float) -> Choice | None:
        """None where the server does not know what it is asked for."""
        try:
            return await self.post(route, body, deadline)
        except PromptTooLongError:
            raise
        except EngineError as error:
            if _has_status(error, 400, 422):
                return None
            raise

    def run_all(self, works: Sequence[Callable[[float], Coroutine[Any, Any, T]]]) -> list[T | EngineError]:
        """The results of work(deadline), or their EngineErrors, in order; at most `max_concurrent` at a time."""

        async def everything() -> list[T | EngineError]:
            gate = asyncio.Semaphore(self.max_concurrent)

            async def one(work: Callable[[float], Coroutine[Any, Any, T]]) -> T | EngineError:
                async with gate:
                    try:
                        return await work(monotonic() + self.patience.total_seconds)
                    except EngineError as error:
                        return error

            tasks = [asyncio.create_task(one(work)) for work in works]
            try:
                return list(await asyncio.gather(*tasks))
            except BaseException:
                for task in tasks:
                    task.cancel()
                raise

        if not works:
            return []
        turns = math.ceil(len(works) / self.max_concurrent)
        return self._run(everything(), turns * self.patience.total_seconds + 5)

    def close(self) -> None:
        """Close the connections; a later call opens new ones."""
        if self._close_client is not None:
            self._close_client()
        self._connect()

    def _models(self) -> Any:
        deadline = monotonic() + min(_LOOK_SECONDS, self.patience.total_seconds)
        work = self._ready().request("GET", f"{self.base_url}/models", deadline=deadline)
        return self._run(work, _LOOK_SECONDS + 5).value

    def _run(self, work: Coroutine[Any, Any, T], timeout_seconds: float) -> T:
        try:
            return background.run(work, timeout_seconds)
        except RetrievalError as error:
            raise EngineError(self._without_key(str(error))) from None

    def _ready(self) -> JsonClient:
        if self._pid != os.getpid():
            self._connect()  # this is a fork: the parent's connections are not ours
        if self._client is None:
            headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
            self._client = JsonClient(self.patience, max_response_bytes=_MAX_RESPONSE_BYTES, headers=headers)
            self._close_client = background.close_with(self, self._client.close)
        return self._client

    def _without_key(self, text: str) -> str:
        return text.replace(self._key, "[key]") if self._key else text


def _has_status(error: EngineError, *statuses: int) -> bool:
    return any(f": status {status}: " in str(error) for status in statuses)


def _checked_url(url: str) -> str:
    parts = urlsplit(url)
    if parts.username or parts.password or parts.query or parts.fragment:
        raise ValueError(
            "base_url: expected an address without password, query or fragment, because it is written to results. "
            "Put the key into an environment variable (OPENAI_API_KEY)."
        )
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"base_url: expected an address such as 'http://127.0.0.1:8000/v1', got {url!r}.")
    return url.rstrip("/")
