"""A search server as a retriever: deadlines, bounded retries, checked answers, typed failures.

Whatever the server does (hang, drip a byte a second, lie about its results, redirect elsewhere), `search` returns the
right hits or raises RetrievalError within the total deadline. A failure is never an empty result.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from hashlib import sha256
from pathlib import Path
from time import monotonic, time
from typing import Any
from urllib.parse import urljoin, urlsplit

from mempo_env.errors import MissingExtraError, RetrievalError
from mempo_env.retrieval.background import BackgroundLoop
from mempo_env.retrieval.hit_cache import HitCache
from mempo_env.retrieval.wire import FINGERPRINT_HEADER, hits_of
from mempo_env.types import Hit

RETRY_STATUSES = frozenset({408, 425, 429, 500, 502, 503, 504})
_EXCERPT_CHARS = 200
_MAX_REDIRECTS = 3


@dataclass(frozen=True, slots=True)
class _Settings:
    url: str
    connect_seconds: float
    read_seconds: float
    total_seconds: float
    retries: int
    backoff_seconds: float
    max_queries: int
    max_query_chars: int
    max_response_bytes: int
    cache_dir: str | None
    expect: str | None


class _Retry(Exception):  # noqa: N818  a signal between two functions here, never seen outside
    """This attempt failed in a way that another may not."""

    def __init__(self, reason: str, after_seconds: float | None = None) -> None:
        super().__init__(reason)
        self.after_seconds = after_seconds


class RemoteRetriever:
    """Any server that speaks Search-R1's `/retrieve`; see `mempo_env.retrieval.base.Retriever` for what `search`
    promises.

    Args:
        url: the server's address ("http://127.0.0.1:8000"), or the whole address of its search route.
        token: sent as `Authorization: Bearer`; never shown, and left out of the fingerprint.
        connect_seconds, read_seconds: to connect, and between two pieces of an answer.
        total_seconds: for one `search` call, with all its requests, retries and waits.
        retries: further attempts after 408, 425, 429, 5xx or a broken connection, each `backoff_seconds` * 2**n later,
            or when `Retry-After` says.
        max_queries: queries in one request; more go out as several requests, up to four at a time.
        max_query_chars: longer queries are cut: a policy's long query must not become a refused request.
        cache_dir: a folder in which answers are kept by the server's fingerprint, k and query; None keeps nothing.
            Needs a server with `/info` (`mempo serve`).
        expect: the fingerprint that the server must have; another one is an error. For evaluations that must not change
            under way.

    Proxies of the environment are not used, and redirects to another host are refused. Pickles without its connections.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        connect_seconds: float = 5.0,
        read_seconds: float = 60.0,
        total_seconds: float = 120.0,
        retries: int = 4,
        backoff_seconds: float = 0.25,
        max_queries: int = 256,
        max_query_chars: int = 4096,
        max_response_bytes: int = 256 << 20,
        cache_dir: str | Path | None = None,
        expect: str | None = None,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"RemoteRetriever: expected an http or https address, got {url!r}.")
        if parts.username or parts.password:
            raise ValueError("RemoteRetriever: expected an address without user and password; pass token= instead.")
        if min(connect_seconds, read_seconds, total_seconds, backoff_seconds) <= 0 or retries < 0:
            raise ValueError("RemoteRetriever: expected positive times and retries >= 0.")
        if min(max_queries, max_query_chars, max_response_bytes) < 1:
            raise ValueError("RemoteRetriever: expected limits of at least 1.")
        address = url.rstrip("/") if parts.path.strip("/") else f"{parts.scheme}://{parts.netloc}/retrieve"
        self._settings = _Settings(
            url=address,
            connect_seconds=connect_seconds,
            read_seconds=read_seconds,
            total_seconds=total_seconds,
            retries=retries,
            backoff_seconds=backoff_seconds,
            max_queries=max_queries,
            max_query_chars=max_query_chars,
            max_response_bytes=max_response_bytes,
            cache_dir=str(cache_dir) if cache_dir is not None else None,
            expect=expect,
        )
        self._token = token
        self.name = "remote"
        self._prepare()

    def _prepare(self) -> None:
        self._background = BackgroundLoop()
        self._client: Any = None
        self._seen_fingerprint: str | None = None
        self._asked = False
        self._cache: HitCache | None = None
        self._jitter = random.Random(self._settings.url)  # own generator: the global one belongs to the caller

    @property
    def url(self) -> str:
        return self._settings.url

    @property
    def fingerprint(self) -> str:
        """The server's own, from its last answer or from /info; made of the address where the server says none.

        /info is asked once, without a second attempt and for two seconds at most: who only wants to know the name of
        an index must not wait for a dead server.
        """
        if self._seen_fingerprint is None and not self._asked:
            self._asked = True
            try:
                self._seen_fingerprint = str(self.info(retries=0, total_seconds=2.0)["fingerprint"])
            except (RetrievalError, KeyError):
                self._seen_fingerprint = None
        return self._seen_fingerprint or f"remote-{sha256(self.url.encode()).hexdigest()[:16]}"

    def info(self, *, retries: int | None = None, total_seconds: float | None = None) -> dict[str, Any]:
        """What the server's /info says about its index. Raises RetrievalError where there is no such route."""
        retries = self._settings.retries if retries is None else retries
        deadline = monotonic() + (self._settings.total_seconds if total_seconds is None else total_seconds)
        value = self._run(self._exchange("GET", urljoin(self.url, "info"), None, deadline, retries))[0]
        if not isinstance(value, dict):
            raise RetrievalError(f"{self.url}: /info must answer with an object, got {type(value).__name__}.")
        return value

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        if isinstance(queries, str):
            raise TypeError("search expects a sequence of queries, got one string. Write search([query], k).")
        if k < 1:
            raise ValueError(f"search expects k >= 1, got {k}.")
        sent = [self._sendable(query) for query in queries]
        wanted = list(dict.fromkeys(sent))
        known: dict[str, list[Hit]] = {}
        if self._settings.cache_dir is not None:
            known = self._open_cache().get(self._cache_key(), k, wanted)
        missing = [query for query in wanted if query not in known]
        if missing:
            found, fingerprint = self._run(self._search(missing, k))
            known.update(zip(missing, found, strict=True))
            if self._settings.cache_dir is not None and fingerprint is not None:
                self._open_cache().put(fingerprint, k, dict(zip(missing, found, strict=True)))
        return [list(known[query]) for query in sent]

    def close(self) -> None:
        """Close connections; a later search opens new ones."""
        if self._client is not None and self._background.running:
            self._background.run(self._client.aclose(), 5)
        self._background.close()
        if self._cache is not None:
            self._cache.close()
        self._prepare()

    def _sendable(self, query: str) -> str:
        return query[: self._settings.max_query_chars].encode("utf-8", "replace").decode("utf-8")

    def _cache_key(self) -> str:
        """The server's fingerprint; one that was seen a while ago may have been replaced, so /info is asked."""
        return str(self.info()["fingerprint"])

    def _open_cache(self) -> HitCache:
        if self._cache is None:
            self._cache = HitCache(Path(self._settings.cache_dir or "."))
        return self._cache

    def _run(self, work: Any) -> Any:
        # The margin is for the loop to notice its own deadline; the outer one holds even if the loop is stuck.
        if self._background.forked:
            self._client = None
        return self._background.run(work, self._settings.total_seconds + 5)

    async def _search(self, queries: list[str], k: int) -> tuple[list[list[Hit]], str | None]:
        size = self._settings.max_queries
        parts = [queries[i : i + size] for i in range(0, len(queries), size)]
        deadline, gate = monotonic() + self._settings.total_seconds, asyncio.Semaphore(4)

        async def one(part: list[str]) -> tuple[list[list[Hit]], str | None]:
            async with gate:
                body = json.dumps({"queries": part, "topk": k, "return_scores": True}).encode()
                value, fingerprint = await self._exchange("POST", self.url, body, deadline, self._settings.retries)
                return self._read(value, len(part), k), fingerprint

        tasks = [asyncio.create_task(one(part)) for part in parts]
        try:
            answers = await asyncio.gather(*tasks)
        except BaseException:
            for task in tasks:
                task.cancel()
            raise
        fingerprints = {fingerprint for _, fingerprint in answers}
        if len(fingerprints) > 1:
            raise RetrievalError(f"{self.url}: the server's index was replaced during a search. Search again.")
        fingerprint = fingerprints.pop()
        if self._settings.expect is not None and fingerprint != self._settings.expect:
            raise RetrievalError(
                f"{self.url}: expected the index {self._settings.expect!r}, the server answers from {fingerprint!r}."
            )
        self._seen_fingerprint = fingerprint or self._seen_fingerprint
        return [hits for part, _ in answers for hits in part], fingerprint

    def _read(self, value: Any, count: int, k: int) -> list[list[Hit]]:
        result = value.get("result") if isinstance(value, dict) else None
        if not isinstance(result, list):
            raise RetrievalError(f'{self.url}: expected {{"result": [...]}}, got {_excerpt(repr(value)[:1000])}')
        if len(result) != count:
            raise RetrievalError(f"{self.url}: sent {count} queries, got {len(result)} results.")
        try:
            return [hits_of(item, k) for item in result]
        except ValueError as error:
            raise RetrievalError(f"{self.url}: not an answer of /retrieve: {error}.") from None

    async def _exchange(
        self, method: str, url: str, body: bytes | None, deadline: float, retries: int
    ) -> tuple[Any, str | None]:
        """The JSON value and fingerprint header of a request, tried again as long as attempts and time are left."""
        for attempt in range(retries + 1):
            left = deadline - monotonic()
            try:
                async with asyncio.timeout(max(left, 0.001)):
                    return await self._attempt(method, url, body)
            except TimeoutError:
                raise RetrievalError(f"{url}: no complete answer before the total deadline (total_seconds).") from None
            except _Retry as error:
                wait = self._settings.backoff_seconds * 2**attempt * self._jitter.uniform(0.75, 1.25)
                wait = error.after_seconds if error.after_seconds is not None else wait
                tried = f"{url}: {error} (attempt {attempt + 1} of {retries + 1})"
                if attempt == retries:
                    raise RetrievalError(tried) from None
                if monotonic() + wait >= deadline:
                    raise RetrievalError(f"{tried}; the next attempt would be after total_seconds.") from None
                await asyncio.sleep(wait)
        raise AssertionError("unreachable")

    async def _attempt(self, method: str, url: str, body: bytes | None) -> tuple[Any, str | None]:
        httpx = _httpx()
        if self._client is None:
            self._client = self._new_client()
        try:
            for _ in range(_MAX_REDIRECTS + 1):
                async with self._client.stream(method, url, content=body) as response:
                    if response.is_redirect:
                        url = self._followed(url, response)
                        continue
                    content = bytearray()
                    async for piece in response.aiter_bytes():
                        content += piece
                        if len(content) > self._settings.max_response_bytes:
                            raise RetrievalError(f"{url}: the answer is larger than max_response_bytes.")
                    return _checked(url, response, bytes(content))
        except httpx.TransportError as error:
            raise _Retry(f"{type(error).__name__}: {error}".rstrip(": ")) from None
        except httpx.DecodingError as error:
            raise RetrievalError(f"{url}: the answer's encoding is broken ({error}).") from None
        raise RetrievalError(f"{self.url}: more than {_MAX_REDIRECTS} redirects.")

    def _new_client(self) -> Any:
        httpx = _httpx()
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        settings = self._settings
        return httpx.AsyncClient(
            headers=headers,
            timeout=httpx.Timeout(settings.read_seconds, connect=settings.connect_seconds),
            follow_redirects=False,
            trust_env=False,
        )

    def _followed(self, url: str, response: Any) -> str:
        """Where a redirect leads, if it stays on the server and keeps the method (307, 308)."""
        target = urljoin(url, response.headers.get("location", ""))
        if response.status_code not in (307, 308) or _origin(target) != _origin(url):
            raise RetrievalError(f"{url}: refused the redirect ({response.status_code}) to {target!r}.")
        return target

    def __repr__(self) -> str:
        return f"RemoteRetriever({self.url!r})"

    def __getstate__(self) -> dict[str, Any]:
        return {"_settings": self._settings, "_token": self._token, "name": self.name}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._prepare()


def _checked(url: str, response: Any, content: bytes) -> tuple[Any, str | None]:
    status = response.status_code
    excerpt = _excerpt(content.decode("utf-8", "replace"))
    if status in RETRY_STATUSES:
        raise _Retry(f"status {status}: {excerpt}", _retry_after(response.headers.get("retry-after")))
    if status != 200:
        raise RetrievalError(f"{url}: status {status}: {excerpt}")
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        raise RetrievalError(f"{url}: status 200, but the body is no JSON: {excerpt}") from None
    return value, response.headers.get(FINGERPRINT_HEADER)


def _excerpt(text: str) -> str:
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


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)


def _httpx() -> Any:
    try:
        import httpx
    except ImportError:
        raise MissingExtraError("httpx", "retrieval", "A remote retriever") from None
    return httpx
