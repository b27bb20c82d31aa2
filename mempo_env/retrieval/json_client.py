"""JSON over HTTP with a deadline, bounded retries, and no surprises: what every client of a search service needs."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from time import monotonic, time
from typing import Any
from urllib.parse import urljoin, urlsplit

from mempo_env.errors import MissingExtraError, RetrievalError

RETRY_STATUSES = frozenset({408, 425, 429, 500, 502, 503, 504})
_EXCERPT_CHARS = 200
_MAX_REDIRECTS = 3


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a client waits (seconds) and how often it asks again.

    connect_seconds, read_seconds: to connect, and between two pieces of an answer.
    total_seconds: for everything, retries and waits included.
    retries: further attempts after 408, 425, 429, 5xx or a broken connection, each `backoff_seconds` * 2**n later, or
        when `Retry-After` says.
    """

    connect_seconds: float = 5.0
    read_seconds: float = 60.0
    total_seconds: float = 120.0
    retries: int = 4
    backoff_seconds: float = 0.25

    def __post_init__(self) -> None:
        times = (self.connect_seconds, self.read_seconds, self.total_seconds, self.backoff_seconds)
        if min(times) <= 0 or self.retries < 0:
            raise ValueError(f"Expected positive times and retries >= 0, got {self}.")


class _Retry(Exception):  # noqa: N818  a signal between two functions here, never seen outside
    """This attempt failed in a way that another may not."""

    def __init__(self, reason: str, after_seconds: float | None = None) -> None:
        super().__init__(reason)
        self.after_seconds = after_seconds


@dataclass(frozen=True, slots=True)
class Reply:
    """A JSON value and the headers that came with it."""

    value: Any
    headers: Mapping[str, str]


class JsonClient:
    """Requests from one event loop. Proxies of the environment are not used; redirects leave neither server nor method.

    headers: sent with each request; their values are never shown.
    """

    def __init__(
        self, patience: Patience, *, max_response_bytes: int, headers: Mapping[str, str] | None = None
    ) -> None:
        self.patience = patience
        self._max_bytes = max_response_bytes
        self._headers = {"Content-Type": "application/json", "Accept": "application/json", **(headers or {})}
        self._client: Any = None
        self._jitter = random.Random(0)  # own generator: the global one belongs to the caller

    async def request(
        self,
        method: str,
        url: str,
        body: Any = None,
        *,
        deadline: float | None = None,
        retries: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        """The JSON answer, asked for again as long as attempts and time are left.

        body: a JSON value. deadline: by `time.monotonic()`; None is `total_seconds` from now. Raises RetrievalError.
        """
        deadline = monotonic() + self.patience.total_seconds if deadline is None else deadline
        retries = self.patience.retries if retries is None else retries
        content = None if body is None else json.dumps(body).encode()
        for attempt in range(retries + 1):
            try:
                async with asyncio.timeout(max(deadline - monotonic(), 0.001)):
                    return await self._attempt(method, url, content, headers)
            except TimeoutError:
                raise RetrievalError(f"{url}: no complete answer before the total deadline (total_seconds).") from None
            except _Retry as error:
                wait = self.patience.backoff_seconds * 2**attempt * self._jitter.uniform(0.75, 1.25)
                wait = error.after_seconds if error.after_seconds is not None else wait
                tried = f"{url}: {error} (attempt {attempt + 1} of {retries + 1})"
                if attempt == retries:
                    raise RetrievalError(tried) from None
                if monotonic() + wait >= deadline:
                    raise RetrievalError(f"{tried}; the next attempt would be after total_seconds.") from None
                await asyncio.sleep(wait)
        raise AssertionError("unreachable")

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    async def _attempt(self, method: str, url: str, content: bytes | None, headers: Mapping[str, str] | None) -> Reply:
        httpx = import_httpx()
        if self._client is None:
            self._client = httpx.AsyncClient(
                headers=self._headers,
                timeout=httpx.Timeout(self.patience.read_seconds, connect=self.patience.connect_seconds),
                follow_redirects=False,
                trust_env=False,
            )
        first = url
        try:
            for _ in range(_MAX_REDIRECTS + 1):
                async with self._client.stream(method, url, content=content, headers=headers) as response:
                    if response.is_redirect:
                        url = _followed(url, response)
                        continue
                    received = bytearray()
                    async for piece in response.aiter_bytes():
                        received += piece
                        if len(received) > self._max_bytes:
                            raise RetrievalError(f"{url}: the answer is larger than {self._max_bytes} bytes.")
                    return _checked(url, response, bytes(received))
        except httpx.TransportError as error:
            raise _Retry(f"{type(error).__name__}: {error}".rstrip(": ")) from None
        except httpx.DecodingError as error:
            raise RetrievalError(f"{url}: the answer's encoding is broken ({error}).") from None
        raise RetrievalError(f"{first}: more than {_MAX_REDIRECTS} redirects.")


def _followed(url: str, response: Any) -> str:
    """Where a redirect leads, if it stays on the server and keeps the method (307, 308)."""
    target = urljoin(url, response.headers.get("location", ""))
    if response.status_code not in (307, 308) or origin_of(target) != origin_of(url):
        raise RetrievalError(f"{url}: refused the redirect ({response.status_code}) to {target!r}.")
    return target


def _checked(url: str, response: Any, content: bytes) -> Reply:
    status = response.status_code
    shown = excerpt(content.decode("utf-8", "replace"))
    if status in RETRY_STATUSES:
        raise _Retry(f"status {status}: {shown}", _retry_after(response.headers.get("retry-after")))
    if status != 200:
        raise RetrievalError(f"{url}: status {status}: {shown}")
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        raise RetrievalError(f"{url}: status 200, but the body is no JSON: {shown}") from None
    return Reply(value, dict(response.headers))


def excerpt(text: str) -> str:
    """The beginning of a text on one line, for messages."""
    text = " ".join(text.split())
    return text if len(text) <= _EXCERPT_CHARS else f"{text[:_EXCERPT_CHARS]}..."


def _retry_after(value: str | None) -> float | None:
    """Seconds to wait by a Retry-After header, in either of its forms; None where it is missing or unreadable."""
    if value is None:
        return None
    try:
        return max(0.0, float(int(value)))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time())
    except (ValueError, TypeError):
        return None


def origin_of(url: str) -> tuple[str, str | None, int | None]:
    """Scheme, host and port of an address."""
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)


def import_httpx() -> Any:
    try:
        import httpx
    except ImportError:
        raise MissingExtraError("httpx", "retrieval", "Searching over HTTP") from None
    return httpx
