"""Two or more retrievers as one: reciprocal rank fusion."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

from mempo_env.retrieval.base import Retriever, check_search
from mempo_env.types import Hit, Passage

RRF_CONSTANT = 60


class HybridRetriever:
    """Score of a passage = sum over retrievers of weight / (60 + its rank there), ranks from 1.

    Cormack et al., "Reciprocal rank fusion", SIGIR 2009.

    Args:
        retrievers: at least two, over the same corpus (passages are matched by id).
        weights: one positive number each; equal by default.
        depth: how many hits of each are fused, at least; raised to k where k is larger. The fused order depends on it,
            and not on k as long as k stays under it.
    """

    def __init__(
        self, retrievers: Sequence[Retriever], *, weights: Sequence[float] | None = None, depth: int = 100
    ) -> None:
        if len(retrievers) < 2:
            raise ValueError(f"HybridRetriever: expected at least two retrievers, got {len(retrievers)}.")
        weights = tuple(weights) if weights is not None else (1.0,) * len(retrievers)
        if len(weights) != len(retrievers) or min(weights) <= 0 or depth < 1:
            raise ValueError(
                f"HybridRetriever: expected {len(retrievers)} positive weights and depth >= 1, got "
                f"{weights} and {depth}."
            )
        self.retrievers, self.weights, self.depth = tuple(retrievers), weights, depth
        self.name = "hybrid(" + "+".join(r.name for r in retrievers) + ")"
        parts = "|".join(f"{r.fingerprint}*{w}" for r, w in zip(retrievers, weights, strict=True))
        self.fingerprint = "hybrid-" + sha256(f"{parts}|{depth}".encode()).hexdigest()[:16]

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        k = check_search(queries, k)
        depth = max(self.depth, k)
        results = [retriever.search(queries, depth) for retriever in self.retrievers]
        return [self._fuse([result[i] for result in results], k) for i in range(len(queries))]

    def _fuse(self, lists: Sequence[Sequence[Hit]], k: int) -> list[Hit]:
        scores: dict[str, float] = {}
        passages: dict[str, Passage] = {}
        for hits, weight in zip(lists, self.weights, strict=True):
            for rank, hit in enumerate(hits, start=1):
                scores[hit.passage.id] = scores.get(hit.passage.id, 0.0) + weight / (RRF_CONSTANT + rank)
                passages.setdefault(hit.passage.id, hit.passage)
        # Sums in another order differ in their last bit; rounding keeps ties as ties, and ids decide them.
        best = sorted(scores, key=lambda passage_id: (-round(scores[passage_id], 12), passage_id))
        return [Hit(passages[passage_id], scores[passage_id]) for passage_id in best[:k]]
