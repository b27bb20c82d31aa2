"""Several retrievers over parts of one corpus, searched at the same time, their hits merged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from typing import Any

from mempo_env.errors import RetrievalError
from mempo_env.retrieval.base import Retriever, check_search
from mempo_env.types import Hit


def merge_hits(lists: Sequence[Sequence[Hit]], k: int) -> list[Hit]:
    """The k best of several lists: by score, then by id; a passage that stands in two lists is kept once.

    Raises RetrievalError for a hit without a score: such lists cannot be merged.
    """
    best: dict[str, Hit] = {}
    for hit in (hit for hits in lists for hit in hits):
        if hit.score is None:
            raise RetrievalError(f"Shards must score their hits; passage {hit.passage.id!r} came without a score.")
        known = best.get(hit.passage.id)
        if known is None or (known.score or 0.0) < hit.score:
            best[hit.passage.id] = hit
    return sorted(best.values(), key=lambda hit: (-(hit.score or 0.0), hit.passage.id))[:k]


class ShardedRetriever:
    """Shards of one corpus as one retriever. Scores must be comparable: dense shards' are; BM25's need not be.

    BM25 weighs a word by how rare it is in its own shard. With shards of random rows the merged order is close to the
    whole corpus' order; with shards by topic it is not. Each shard may be local or a `RemoteRetriever`. If one shard
    fails, the search fails: hits of the others alone would look like an answer.
    """

    def __init__(self, shards: Sequence[Retriever]) -> None:
        if not shards:
            raise ValueError("ShardedRetriever: expected at least one shard, got none.")
        self.shards = tuple(shards)
        self.name = f"sharded({len(self.shards)} x {self.shards[0].name})"
        self._pool: ThreadPoolExecutor | None = None

    @property
    def fingerprint(self) -> str:
        return "sharded-" + sha256("|".join(shard.fingerprint for shard in self.shards).encode()).hexdigest()[:16]

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        k = check_search(queries, k)
        if self._pool is None:
            self._pool = ThreadPoolExecutor(len(self.shards), thread_name_prefix="shard")
        parts = list(self._pool.map(lambda shard: shard.search(queries, k), self.shards))
        for shard, part in zip(self.shards, parts, strict=True):
            if len(part) != len(queries):
                raise RetrievalError(f"The shard {shard.name!r} gave {len(part)} results for {len(queries)} queries.")
        return [merge_hits([part[i] for part in parts], k) for i in range(len(queries))]

    def close(self) -> None:
        """Stop the threads; the next search starts them again."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None

    def __reduce__(self) -> tuple[Callable[..., ShardedRetriever], tuple[Any, ...]]:
        return ShardedRetriever, (self.shards,)
