"""The open web as a retriever: `search` through an API, `visit` for a page's text, both recordable for replay.

What is wrong with a page (not found, refused, no text, an address of its own network) is told to the policy, as a
browser would. What is wrong with the search service is a RetrievalError, as for every retriever.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlencode, urlsplit

from mempo_env.errors import MissingExtraError, RetrievalError, UnknownNameError
from mempo_env.retrieval import background
from mempo_env.retrieval.base import check_search
from mempo_env.retrieval.fetch import FetchLimits, PageError, PageFetcher
from mempo_env.retrieval.json_client import JsonClient, Patience
from mempo_env.retrieval.replay import ReplayCache
from mempo_env.text import replace_surrogates
from mempo_env.types import Hit, Passage

_MAX_RECORDED_CHARS = 400_000
_AT_ONCE = 8


class SearchBackend(Protocol):
    """A search API. `request` describes one search, `read` finds (title, link, snippet) in its answer."""

    @property
    def name(self) -> str: ...

    def request(self, query: str, k: int) -> tuple[str, str, Any, dict[str, str]]:
        """Method, address, JSON body (or None) and headers."""
        ...

    def read(self, answer: Any) -> list[tuple[str, str, str]]: ...


class SerperBackend:
    """APIs that are compatible with Serper's: POST {"q", "num"}, key in X-API-KEY, results under "organic".

    The key is read from the environment variable `key_variable` at each search and stands nowhere else: not in this
    object, its repr, a fingerprint, a recording or a message.
    """

    def __init__(self, url: str = "https://google.serper.dev/search", key_variable: str = "SERPER_API_KEY") -> None:
        self.url, self.key_variable = url, key_variable
        self.name = f"serper@{urlsplit(url).netloc}"

    def request(self, query: str, k: int) -> tuple[str, str, Any, dict[str, str]]:
        key = os.environ.get(self.key_variable, "").strip()
        if not key:
            raise RetrievalError(f"The search API needs a key: set the environment variable {self.key_variable}.")
        return "POST", self.url, {"q": query, "num": k}, {"X-API-KEY": key}

    def read(self, answer: Any) -> list[tuple[str, str, str]]:
        return _rows(answer, "organic", "link", "snippet")


class SearxngBackend:
    """A SearXNG instance with its JSON format switched on: GET /search?q=...&format=json."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self.name = f"searxng@{urlsplit(url).netloc}"

    def request(self, query: str, k: int) -> tuple[str, str, Any, dict[str, str]]:
        route = self.url if urlsplit(self.url).path.endswith("/search") else f"{self.url}/search"
        return "GET", f"{route}?{urlencode({'q': query, 'format': 'json'})}", None, {}

    def read(self, answer: Any) -> list[tuple[str, str, str]]:
        return _rows(answer, "results", "url", "content")


def get_backend(spec: str | SearchBackend) -> SearchBackend:
    """ "serper", "serper:URL", "searxng:URL", or an instance."""
    if not isinstance(spec, str):
        return spec
    kind, _, url = spec.partition(":")
    if kind == "serper":
        return SerperBackend(url) if url else SerperBackend()
    if kind == "searxng" and url:
        return SearxngBackend(url)
    raise UnknownNameError("search backend", spec, ("serper", "serper:URL", "searxng:URL"))


def _rows(answer: Any, key: str, link: str, snippet: str) -> list[tuple[str, str, str]]:
    rows = answer.get(key, []) if isinstance(answer, dict) else None
    if not isinstance(rows, list):
        raise RetrievalError(f"The search API answered without a list {key!r}.")
    found = []
    for row in rows:
        if isinstance(row, dict) and isinstance(row.get(link), str) and row[link].startswith(("http://", "https://")):
            found.append((str(row.get("title") or ""), row[link], str(row.get(snippet) or "")))
    return found


class WebRetriever:
    """Web search and page visits. A `Retriever` with one more function, `visit`.

    Args:
        backend: "serper", "searxng:URL" or a `SearchBackend`.
        replay: a folder (then answers are recorded there and nothing is fetched twice), a `ReplayCache`, or None.
        max_page_chars: a page's text is cut there, at a word's end.
        limits: of page fetches; see `FetchLimits`. patience: with the search API; see `Patience`.
    """

    def __init__(
        self,
        backend: str | SearchBackend = "serper",
        *,
        replay: str | Path | ReplayCache | None = None,
        max_page_chars: int = 6000,
        limits: FetchLimits | None = None,
        patience: Patience | None = None,
    ) -> None:
        if max_page_chars < 1:
            raise ValueError(f"max_page_chars: expected at least 1, got {max_page_chars}.")
        self.name = "web"
        self.backend = get_backend(backend)
        self.replay = ReplayCache(replay) if isinstance(replay, (str, Path)) else replay
        self.max_page_chars = max_page_chars
        self.limits = limits or FetchLimits()
        self.patience = patience or Patience(total_seconds=60.0)
        self.fingerprint = "web-" + sha256(f"{self.backend.name}|{max_page_chars}".encode()).hexdigest()[:16]
        self._prepare()

    def _prepare(self) -> None:
        self._pid = os.getpid()
        self._client = JsonClient(self.patience, max_response_bytes=16 << 20)
        self._fetcher = PageFetcher(self.limits)
        self._close_clients = [background.close_with(self, part.close) for part in (self._client, self._fetcher)]

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """Up to `k` results a query: passage id = link, title = title, text = link and snippet."""
        k = check_search(queries, k)
        plain = [replace_surrogates(query).strip() for query in queries]
        wanted = list(dict.fromkeys(query for query in plain if query))
        found = dict(zip(wanted, self._each(self._search_one, wanted, k), strict=True))
        return [list(found.get(query, ())) for query in plain]

    def visit(self, urls: Sequence[str]) -> list[list[Hit]]:
        """One hit an address: the page's title and text, cut to the budget; or why it cannot be read."""
        plain = [replace_surrogates(url).strip() for url in urls]
        wanted = list(dict.fromkeys(plain))
        found = dict(zip(wanted, self._each(self._visit_one, wanted, 0), strict=True))
        return [list(found[url]) for url in plain]

    def close(self) -> None:
        """Close connections; a later search opens new ones."""
        for close in self._close_clients:
            close()
        self._prepare()

    def _each(self, work: Any, items: Sequence[str], k: int) -> list[list[Hit]]:
        if not items:
            return []
        if self._pid != os.getpid():
            self._prepare()  # the parent's connections are not ours

        async def all_of_them() -> list[list[Hit]]:
            gate = asyncio.Semaphore(_AT_ONCE)

            async def one(item: str) -> list[Hit]:
                async with gate:
                    return await work(item, k)  # type: ignore[no-any-return]

            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(one(item)) for item in items]
            return [task.result() for task in tasks]

        rounds = -(-len(items) // _AT_ONCE)
        seconds = rounds * max(self.patience.total_seconds, self.limits.total_seconds) + 5
        try:
            return background.run(all_of_them(), seconds)
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None  # the first failure; the others were cancelled

    async def _search_one(self, query: str, k: int) -> list[Hit]:
        asked = {"tool": "search", "backend": self.backend.name, "query": query, "k": k}
        rows = self.replay.get(asked) if self.replay else None
        if rows is None:
            method, url, body, headers = self.backend.request(query, k)
            try:
                reply = await self._client.request(method, url, body, headers=headers)
            except RetrievalError as error:
                raise RetrievalError(_without(str(error), headers.values())) from None
            rows = [list(row) for row in self.backend.read(reply.value)]
            if self.replay:
                self.replay.put(asked, rows)
        links: dict[str, Hit] = {}
        for title, link, snippet in rows:
            links.setdefault(link, Hit(Passage(link, title, f"{link}\n{snippet}".strip())))
        return list(links.values())[:k]

    async def _visit_one(self, url: str, _: int) -> list[Hit]:
        asked = {"tool": "visit", "url": url}
        page = self.replay.get(asked) if self.replay else None
        if page is None:
            page = await self._read_page(url)
            if self.replay:
                self.replay.put(asked, page)
        return [Hit(Passage(page["url"], page["title"], cut(page["text"], self.max_page_chars)))]

    async def _read_page(self, url: str) -> dict[str, str]:
        try:
            page = await self._fetcher.fetch(url)
            title, text = await asyncio.to_thread(extract, page.body, page.content_type, page.url)
            if not text:
                raise PageError("there is no text on it")
        except PageError as error:
            return {"url": url, "title": "", "text": f"This page cannot be read: {error}."}
        return {"url": page.url, "title": title, "text": text[:_MAX_RECORDED_CHARS]}

    def __repr__(self) -> str:
        return f"WebRetriever({self.backend.name!r})"

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k not in ("_pid", "_client", "_fetcher", "_close_clients")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._prepare()


def extract(body: bytes, content_type: str, url: str) -> tuple[str, str]:
    """Title and main text of a page; plain text has no title."""
    if content_type.startswith("text/plain"):
        return "", body.decode("utf-8", "replace").strip()
    try:
        import trafilatura
    except ImportError:
        raise MissingExtraError("trafilatura", "web", "Reading web pages") from None
    try:
        found: Any = trafilatura.bare_extraction(body, url=url, include_comments=False, with_metadata=True)
    except Exception:  # a parser that meets broken markup may raise anything; the page then has no readable text
        found = None
    title = str(getattr(found, "title", None) or "")
    text = str(getattr(found, "text", None) or "").strip()
    return normalise_space(title), text


def normalise_space(text: str) -> str:
    return " ".join(text.split())


def cut(text: str, max_chars: int) -> str:
    """At most `max_chars` characters of `text`, ending at a word's end, with " [...]" where something is missing."""
    if len(text) <= max_chars:
        return text
    mark = " [...]" if max_chars > 12 else ""
    kept = text[: max_chars - len(mark)]
    at = max(kept.rfind(" "), kept.rfind("\n"))
    return (kept[:at] if at > len(kept) // 2 else kept).rstrip() + mark


def _without(text: str, secrets: Any) -> str:
    for secret in secrets:
        text = text.replace(secret, "***")
    return text
