"""Requests from many clients gathered into one batched search, off the event loop.

While searches run in the worker threads, arriving requests wait in a bounded queue; a worker that is free takes its
share of all queries in the house at once (all that wait where it is the only one; up to `max_batch_queries`). So a lone
request waits for nobody, and under load the batches grow by themselves, alike for every worker.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

from mempo_env.errors import MempoError, RetrievalError
from mempo_env.retrieval.base import Retriever
from mempo_env.types import Hit


class QueueFullError(MempoError, RuntimeError):
    """More queries are waiting than the queue may hold, or the gatherer is closing. Try again later."""


@dataclass(frozen=True, slots=True)
class Found:
    """The hits of one request, in the order of its queries, and the fingerprint of the index that gave them."""

    hits: list[list[Hit]]
    fingerprint: str


@dataclass(slots=True, eq=False)
class _Request:
    queries: tuple[str, ...]
    k: int
    future: asyncio.Future[Found] = field(repr=False)


class Gatherer:
    """Serves one retriever to any number of coroutines of one event loop.

    Args:
        retriever: searched from `workers` threads; it can be replaced between batches by assigning `retriever`.
        max_batch_queries: at most so many queries in one search, but always at least one request.
        max_queue_queries: at most so many queries waiting; more are refused with `QueueFullError`, but not a request
            that finds nobody waiting.
        workers: searches at the same time, each with its share of the queries. More than one only for a retriever whose
            fingerprint stays what it is: a remote one's is that of its last answer, to whichever thread.
        watch: called after each search with (requests, queries, seconds), for metrics.
    """

    def __init__(
        self,
        retriever: Retriever,
        *,
        max_batch_queries: int = 256,
        max_queue_queries: int = 8192,
        workers: int = 1,
        watch: Callable[[int, int, float], None] | None = None,
    ) -> None:
        if min(max_batch_queries, max_queue_queries, workers) < 1:
            raise ValueError("Gatherer: expected max_batch_queries, max_queue_queries and workers of at least 1.")
        self.retriever = retriever
        self.waiting_queries = 0
        self._searching_queries = 0
        self._max_batch, self._max_queue, self._workers = max_batch_queries, max_queue_queries, workers
        self._watch = watch
        self._queue: deque[_Request] = deque()
        self._running: set[asyncio.Task[None]] = set()
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="search")
        self._closing = False

    async def search(self, queries: Sequence[str], k: int) -> Found:
        """The hits for `queries`. Cancelling takes them out of the queue; a search that runs already goes on."""
        if self._closing:
            raise QueueFullError("The server is stopping.")
        if self.waiting_queries and self.waiting_queries + len(queries) > self._max_queue:
            raise QueueFullError(f"{self.waiting_queries} queries are waiting, of at most {self._max_queue}.")
        request = _Request(tuple(queries), k, asyncio.get_running_loop().create_future())
        self._queue.append(request)
        self.waiting_queries += len(queries)
        self._start()
        try:
            return await request.future
        except asyncio.CancelledError:
            if request in self._queue:  # by identity: it still waits
                self._queue.remove(request)
                self.waiting_queries -= len(request.queries)
            raise

    async def close(self) -> None:
        """Refuse new requests, finish those that were accepted, and stop the threads."""
        self._closing = True
        while self._running:
            await asyncio.wait(self._running)
        self._pool.shutdown()

    def _start(self) -> None:
        while len(self._running) < self._workers and (batch := self._take()):
            size = sum(len(request.queries) for request in batch)
            self._searching_queries += size
            task = asyncio.create_task(self._serve(batch))
            self._running.add(task)
            task.add_done_callback(partial(self._done, size))

    def _done(self, size: int, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._searching_queries -= size
        self._start()

    def _take(self) -> list[_Request]:
        """The oldest request and, in order, those behind it that ask for the same k and still fit.

        Only equal k go together: an approximate index may find other passages when it is asked for more. No worker
        takes more than its share: one with a long batch and others with short ones would stay so, since each answer
        brings the next question.
        """
        share = -(-(self.waiting_queries + self._searching_queries) // self._workers)
        most = max(1, min(self._max_batch, share))
        batch: list[_Request] = []
        passed_over: list[_Request] = []
        size = 0
        while self._queue and size < most:
            request = self._queue.popleft()
            if batch and (request.k != batch[0].k or size + len(request.queries) > most):
                passed_over.append(request)
            else:
                batch.append(request)
                size += len(request.queries)
        self._queue.extendleft(reversed(passed_over))
        self.waiting_queries -= size
        return batch

    async def _serve(self, batch: list[_Request]) -> None:
        retriever = self.retriever
        try:
            found, fingerprint = await self._search(retriever, batch)
        except Exception as error:
            if len(batch) > 1:
                # One request's query may be what breaks the search: let the others have their answers.
                for half in (batch[: len(batch) // 2], batch[len(batch) // 2 :]):
                    await self._serve(half)
            elif not batch[0].future.done():
                batch[0].future.set_exception(error)
            return
        for request, hits in zip(batch, found, strict=True):
            if not request.future.done():
                request.future.set_result(Found(hits, fingerprint))

    async def _search(self, retriever: Retriever, batch: list[_Request]) -> tuple[list[list[list[Hit]]], str]:
        loop = asyncio.get_running_loop()
        # Rollouts of one group often ask the same thing at the same time: search it once.
        unique = list(dict.fromkeys(query for request in batch for query in request.queries))
        started = loop.time()
        k = batch[0].k

        def search() -> tuple[list[list[Hit]], str]:
            try:
                # The fingerprint too is asked for in the thread: that of remote shards is a request of its own.
                return retriever.search(unique, k), retriever.fingerprint
            except StopIteration as error:  # which no future can carry: its waiter would wait for ever
                raise RuntimeError(
                    "The retriever's search raised StopIteration; expected a list of hits for each query."
                ) from error

        results, fingerprint = await loop.run_in_executor(self._pool, search)
        if self._watch:
            self._watch(len(batch), sum(len(r.queries) for r in batch), loop.time() - started)
        if len(results) != len(unique):
            raise RetrievalError(f"The retriever gave {len(results)} results for {len(unique)} queries.")
        by_query = dict(zip(unique, results, strict=True))
        return [[by_query[query] for query in request.queries] for request in batch], fingerprint
