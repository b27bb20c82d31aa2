"""A search server as a retriever: deadlines, bounded retries, checked answers, typed failures.

Whatever the server does (hang, drip a byte a second, lie about its results, redirect elsewhere), `search` returns the
right hits or raises RetrievalError within the total deadline. A failure is never an empty result.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Sequence
from hashlib import sha256
from pathlib import Path
from time import monotonic
from typing import Any, TypeVar
from urllib.parse import urljoin, urlsplit

from mempo_env.errors import RetrievalError
from mempo_env.retrieval import background
from mempo_env.retrieval.base import check_search
from mempo_env.retrieval.hit_cache import HitCache
from mempo_env.retrieval.json_client import JsonClient, Patience, excerpt
from mempo_env.retrieval.wire import FINGERPRINT_HEADER, hits_of
from mempo_env.text import replace_surrogates
from mempo_env.types import Hit

T = TypeVar("T")

_REQUESTS_AT_ONCE = 4


class RemoteRetriever:
    """Any server that speaks Search-R1's `/retrieve`; see `mempo_env.retrieval.base.Retriever` for what it promises.

    Args:
        url: the server's address ("http://127.0.0.1:8000"), or the whole address of its search route.
        token: sent as `Authorization: Bearer`; never shown, and left out of the fingerprint.
        connect_seconds, read_seconds, total_seconds, retries, backoff_seconds: see `Patience`; `total_seconds` is for
            one `search` call, however many requests it takes.
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
        self.url = _search_route(url)
        if min(max_queries, max_query_chars, max_response_bytes) < 1:
            raise ValueError("RemoteRetriever: expected limits of at least 1.")
        self.name = "remote"
        self.patience = Patience(connect_seconds, read_seconds, total_seconds, retries, backoff_seconds)
        self._token = token
        self._max_queries, self._max_query_chars = max_queries, max_query_chars
        self._max_response_bytes = max_response_bytes
        self._cache_dir = str(cache_dir) if cache_dir is not None else None
        self._expect = expect
        self._prepare()

    def _prepare(self) -> None:
        self._pid = os.getpid()
        self._client: JsonClient | None = None
        self._close_client: Callable[[], None] | None = None
        self._cache: HitCache | None = None
        self._seen_fingerprint: str | None = None
        self._asked = False

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
        deadline = monotonic() + (self.patience.total_seconds if total_seconds is None else total_seconds)
        client = self._ready()
        reply = self._run(client.request("GET", urljoin(self.url, "info"), deadline=deadline, retries=retries))
        if not isinstance(reply.value, dict):
            raise RetrievalError(f"{self.url}: /info must answer with an object, got {type(reply.value).__name__}.")
        return reply.value

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        k = check_search(queries, k)
        sent = [self._sendable(query) for query in queries]
        wanted = list(dict.fromkeys(sent))
        known: dict[str, list[Hit]] = {}
        if self._cache_dir is not None and wanted:
            # The server is asked each time which index it serves: the one seen before may have been replaced.
            known = self._open_cache().get(str(self.info().get("fingerprint")), k, wanted)
        missing = [query for query in wanted if query not in known]
        if missing:
            found, fingerprint = self._run(self._search(self._ready(), missing, k))
            fresh = dict(zip(missing, found, strict=True))
            known.update(fresh)
            if self._cache_dir is not None and fingerprint is not None:
                self._open_cache().put(fingerprint, k, fresh)
        return [list(known[query]) for query in sent]

    def close(self) -> None:
        """Close connections; a later search opens new ones."""
        if self._close_client is not None:
            self._close_client()
        if self._cache is not None:
            self._cache.close()
        self._prepare()

    def _sendable(self, query: str) -> str:
        return replace_surrogates(query[: self._max_query_chars])

    def _open_cache(self) -> HitCache:
        if self._cache is None:
            self._cache = HitCache(Path(self._cache_dir or "."))
        return self._cache

    def _ready(self) -> JsonClient:
        if self._pid != os.getpid():
            self._prepare()  # the parent's connections, and its cache file's handle, are not ours
        if self._client is None:
            headers = {} if self._token is None else {"Authorization": f"Bearer {self._token}"}
            self._client = JsonClient(self.patience, max_response_bytes=self._max_response_bytes, headers=headers)
            self._close_client = background.close_with(self, self._client.close)
        return self._client

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        # The margin is for the loop to notice its own deadline; the outer one holds even if the loop is stuck.
        return background.run(work, self.patience.total_seconds + 5)

    async def _search(self, client: JsonClient, queries: list[str], k: int) -> tuple[list[list[Hit]], str | None]:
        parts = [queries[i : i + self._max_queries] for i in range(0, len(queries), self._max_queries)]
        deadline, gate = monotonic() + self.patience.total_seconds, asyncio.Semaphore(_REQUESTS_AT_ONCE)

        async def one(part: list[str]) -> tuple[list[list[Hit]], str | None]:
            async with gate:
                body = {"queries": part, "topk": k, "return_scores": True}
                reply = await client.request("POST", self.url, body, deadline=deadline)
                return self._read(reply.value, len(part), k), reply.headers.get(FINGERPRINT_HEADER.lower())

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
        if self._expect is not None and fingerprint != self._expect:
            raise RetrievalError(
                f"{self.url}: expected the index {self._expect!r}, the server answers from {fingerprint!r}."
            )
        self._seen_fingerprint = fingerprint or self._seen_fingerprint
        return [hits for part, _ in answers for hits in part], fingerprint

    def _read(self, value: Any, count: int, k: int) -> list[list[Hit]]:
        result = value.get("result") if isinstance(value, dict) else None
        if not isinstance(result, list):
            raise RetrievalError(f'{self.url}: expected {{"result": [...]}}, got {excerpt(repr(value)[:1000])}')
        if len(result) != count:
            raise RetrievalError(f"{self.url}: sent {count} queries, got {len(result)} results.")
        try:
            return [hits_of(item, k) for item in result]
        except ValueError as error:
            raise RetrievalError(f"{self.url}: not an answer of /retrieve: {error}.") from None

    def __repr__(self) -> str:
        return f"RemoteRetriever({self.url!r})"

    def __getstate__(self) -> dict[str, Any]:
        unpicklable = ("_pid", "_client", "_close_client", "_cache")
        return {name: value for name, value in self.__dict__.items() if name not in unpicklable}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._prepare()
        self.__dict__.update(state)


def _search_route(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"RemoteRetriever: expected an http or https address, got {url!r}.")
    if parts.username or parts.password:
        raise ValueError("RemoteRetriever: expected an address without user and password; pass token= instead.")
    return url.rstrip("/") if parts.path.strip("/") else f"{parts.scheme}://{parts.netloc}/retrieve"
