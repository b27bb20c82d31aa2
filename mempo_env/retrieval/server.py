"""The search server: Search-R1's `/retrieve`, plus /health, /info and /metrics, as a FastAPI application.

    uvicorn or Ray Serve  ->  create_app(retriever)  ->  Gatherer  ->  retriever.search in a worker thread

The event loop never waits for a search, so /health answers while one runs.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from typing import Annotated, Any

from mempo_env.errors import MissingExtraError
from mempo_env.retrieval.base import Retriever
from mempo_env.retrieval.gather import Gatherer, QueueFullError
from mempo_env.retrieval.wire import FINGERPRINT_HEADER, result_of

try:
    from fastapi import FastAPI, Request, Response
    from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
    from pydantic import BaseModel, ConfigDict, Field, ValidationError
except ImportError as error:
    raise MissingExtraError(error.name or "fastapi", "server", "The search server") from None


@dataclass(frozen=True, slots=True)
class Limits:
    """What one request may ask for, and how much may wait. Sizes in bytes, characters and queries; times in seconds.

    Over a size limit: 413 (body) or 422 (the rest). Over the queue: 503 with Retry-After. Over the time: 504.
    """

    max_body_bytes: int = 4 << 20
    max_queries: int = 1024
    max_query_chars: int = 16_384
    max_top_k: int = 100
    default_top_k: int = 3
    timeout_seconds: float = 60.0
    body_timeout_seconds: float = 10.0
    max_batch_queries: int = 256
    max_queue_queries: int = 8192
    workers: int = 1
    retry_after_seconds: int = 1


class RetrieveRequest(BaseModel):
    """The body of `POST /retrieve`. Types are strict: "5", true and 2.0 are no integers."""

    model_config = ConfigDict(extra="forbid", strict=True)

    queries: list[str]
    topk: Annotated[int | None, Field(ge=1)] = None
    return_scores: bool = False


class _RefusedError(Exception):
    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status


class _Metrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter("mempo_requests", "Answers of /retrieve by status.", ["status"], registry=self.registry)
        self.queries = Counter("mempo_queries", "Queries searched.", registry=self.registry)
        self.seconds = Histogram(
            "mempo_request_seconds",
            "From the request's headers to its answer.",
            registry=self.registry,
            buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60),
        )
        self.search_seconds = Histogram("mempo_search_seconds", "One batched search.", registry=self.registry)
        self.batch = Histogram(
            "mempo_batch_queries", "Queries in one search.", registry=self.registry, buckets=[2**i for i in range(11)]
        )
        self.waiting = Gauge("mempo_waiting_queries", "Queries waiting for a search.", registry=self.registry)
        self.swaps = Counter("mempo_index_swaps", "Times the index was replaced.", registry=self.registry)

    def searched(self, requests: int, queries: int, seconds: float) -> None:
        self.queries.inc(queries)
        self.batch.observe(queries)
        self.search_seconds.observe(seconds)


class SearchService:
    """What the application serves: the retriever in force, its gatherer and its metrics. At `app.state.service`."""

    def __init__(self, retriever: Retriever, limits: Limits) -> None:
        self.limits = limits
        self.metrics = _Metrics()
        self.started = time.time()
        self._first: Retriever | None = retriever
        self._gatherer: Gatherer | None = None

    @property
    def gatherer(self) -> Gatherer:
        if self._gatherer is None:
            assert self._first is not None
            self._gatherer = Gatherer(
                self._first,
                max_batch_queries=self.limits.max_batch_queries,
                max_queue_queries=self.limits.max_queue_queries,
                workers=self.limits.workers,
                watch=self.metrics.searched,
            )
            self._first = None  # a replaced index must not be held
            self.metrics.waiting.set_function(lambda: self.gatherer.waiting_queries)
        return self._gatherer

    def swap(self, retriever: Retriever) -> None:
        """Serve another index from the next batch on; searches that run finish on the old one."""
        self.gatherer.retriever = retriever
        self.metrics.swaps.inc()

    def info(self) -> dict[str, Any]:
        """The index in force: its name, fingerprint and manifest, and the limits."""
        retriever = self.gatherer.retriever
        return {
            "name": retriever.name,
            "fingerprint": retriever.fingerprint,
            "index": manifest_of(retriever),
            "limits": asdict(self.limits),
        }

    async def close(self) -> None:
        if self._gatherer is not None:
            await self._gatherer.close()


def manifest_of(retriever: Retriever) -> Any:
    """The manifest of a retriever that has one, of each part for those made of parts, else None."""
    for attribute in ("retrievers", "shards"):
        if hasattr(retriever, attribute):
            return [manifest_of(part) for part in getattr(retriever, attribute)]
    inner = getattr(retriever, "retriever", None)
    return manifest_of(inner) if inner is not None else getattr(retriever, "manifest", None)


def example_query(retriever: Retriever) -> str:
    """Words that occur in the retriever's first passage, so that a first search runs all of its code."""
    for attribute in ("passages", "corpus"):
        passages = getattr(retriever, attribute, None)
        if passages:
            return " ".join(f"{passages[0].title} {passages[0].text}".split()[:8])
    inner = getattr(retriever, "retriever", None) or next(iter(getattr(retriever, "retrievers", ())), None)
    return example_query(inner) if inner is not None else "who wrote the first book about it"


def create_app(
    retriever: Retriever,
    *,
    limits: Limits | None = None,
    token: str | None = None,
    on_start: Callable[[SearchService], None] | None = None,
) -> FastAPI:
    """The application.

    Args:
        retriever: what is searched; from `limits.workers` threads.
        token: if given, all routes but /health want `Authorization: Bearer <token>`; it is compared in constant time.
        on_start: called with the service on the server's event loop when it starts.
    """
    if token is not None and not token.strip():
        raise ValueError("token: expected a non-empty text, or None for no token.")
    service = SearchService(retriever, limits or Limits())

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        if on_start:
            on_start(service)
        yield
        await service.close()

    app = FastAPI(title="MemPO Gym search", lifespan=lifespan)
    app.state.service = service

    @app.get("/health")
    async def health() -> dict[str, Any]:
        return {"status": "ok", "uptime_seconds": round(time.time() - service.started, 3)}

    @app.get("/info")
    async def info(request: Request) -> Response:
        if (refusal := _authorise(request, token)) is not None:
            return refusal
        return _json(200, await asyncio.to_thread(service.info))

    @app.get("/metrics")
    async def metrics(request: Request) -> Response:
        if (refusal := _authorise(request, token)) is not None:
            return refusal
        return Response(generate_latest(service.metrics.registry), media_type=CONTENT_TYPE_LATEST)

    @app.post("/retrieve", openapi_extra=_body_schema())
    async def retrieve(request: Request) -> Response:
        started = time.perf_counter()
        response = _authorise(request, token) or await _answer(request, service)
        service.metrics.requests.labels(str(response.status_code)).inc()
        service.metrics.seconds.observe(time.perf_counter() - started)
        return response

    return app


async def _answer(request: Request, service: SearchService) -> Response:
    limits = service.limits
    try:
        wanted = _parse(await _read(request, limits), limits)
        async with asyncio.timeout(limits.timeout_seconds):
            found = await service.gatherer.search(wanted.queries, wanted.topk or limits.default_top_k)
    except _RefusedError as refused:
        headers = {"Connection": "close"} if refused.status in (408, 413) else {}
        return _json(refused.status, {"detail": str(refused)}, headers)
    except QueueFullError as full:
        return _json(503, {"detail": str(full)}, {"Retry-After": str(limits.retry_after_seconds)})
    except TimeoutError:
        return _json(504, {"detail": f"The search took longer than {limits.timeout_seconds} seconds."})
    except Exception as error:
        # The client gets a typed failure, never an empty result that would look like "nothing found".
        return _json(500, {"detail": f"The search failed: {type(error).__name__}: {error}"})
    result = [result_of(hits, wanted.return_scores) for hits in found.hits]
    return _json(200, {"result": result}, {FINGERPRINT_HEADER: found.fingerprint})


async def _read(request: Request, limits: Limits) -> bytes:
    """The body, never more of it than allowed: a declared size is refused unread, a chunked one when it passes."""
    declared = request.headers.get("content-length", "")
    too_large = f"The body may have {limits.max_body_bytes} bytes; send fewer queries at a time."
    if declared.isdigit() and int(declared) > limits.max_body_bytes:
        raise _RefusedError(413, too_large)
    body = bytearray()
    try:
        async with asyncio.timeout(limits.body_timeout_seconds):
            async for chunk in request.stream():
                body += chunk
                if len(body) > limits.max_body_bytes:
                    raise _RefusedError(413, too_large)
    except TimeoutError:
        raise _RefusedError(408, f"The body did not arrive in {limits.body_timeout_seconds} seconds.") from None
    return bytes(body)


def _parse(body: bytes, limits: Limits) -> RetrieveRequest:
    try:
        wanted = RetrieveRequest.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"])) or "body"
        others = error.error_count() - 1
        more = f" (and {others} more problems)" if others else ""
        raise _RefusedError(422, f"{place}: {first['msg']}{more}.") from None
    if len(wanted.queries) > limits.max_queries:
        raise _RefusedError(422, f"queries: expected at most {limits.max_queries}, got {len(wanted.queries)}.")
    longest = max(map(len, wanted.queries), default=0)
    if longest > limits.max_query_chars:
        raise _RefusedError(422, f"queries: expected at most {limits.max_query_chars} characters each, got {longest}.")
    if wanted.topk is not None and wanted.topk > limits.max_top_k:
        raise _RefusedError(422, f"topk: expected 1 to {limits.max_top_k}, got {wanted.topk}.")
    return wanted


def _authorise(request: Request, token: str | None) -> Response | None:
    """None if the request may pass, else the answer that refuses it."""
    if token is None:
        return None
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    # Compared in constant time, whatever was sent.
    if hmac.compare_digest(given.strip().encode(), token.encode()) and scheme.lower() == "bearer":
        return None
    detail = "Expected the header `Authorization: Bearer <token>` with this server's token."
    return _json(401, {"detail": detail}, {"WWW-Authenticate": "Bearer"})


def _json(status: int, value: Any, headers: dict[str, str] | None = None) -> Response:
    content = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return Response(content.encode("utf-8", "replace"), status, headers, "application/json")


def _body_schema() -> dict[str, Any]:
    return {
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": RetrieveRequest.model_json_schema()}},
        }
    }
