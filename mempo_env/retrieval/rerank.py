"""A cross-encoder over the hits of another retriever."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from hashlib import sha256
from typing import Any

import numpy as np

from mempo_env.errors import MissingExtraError, RetrievalError
from mempo_env.retrieval.base import Retriever, check_search
from mempo_env.retrieval.encoders import passage_text
from mempo_env.types import Hit

_DECIMALS = 4

# Scores pairs of (query, text): float [N]. Each pair is judged alone.
PairScorer = Callable[[Sequence[tuple[str, str]]], np.ndarray]


class CrossEncoderScorer:
    """A sentence-transformers cross-encoder as a `PairScorer`."""

    def __init__(self, model: str, *, device: str | None = None, batch_size: int = 32) -> None:
        try:
            from sentence_transformers import CrossEncoder
        except ImportError:
            raise MissingExtraError("sentence-transformers", "retrieval", "Reranking") from None
        self.name = model
        self._again = partial(CrossEncoderScorer, model, device=device, batch_size=batch_size)
        self._model: Any = CrossEncoder(model, device=device)
        self._batch_size = batch_size
        self._lock = threading.Lock()

    def __call__(self, pairs: Sequence[tuple[str, str]]) -> np.ndarray:
        with self._lock:
            scores = self._model.predict(list(pairs), batch_size=self._batch_size, show_progress_bar=False)
        return np.asarray(scores, np.float64)

    def __reduce__(self) -> tuple[Callable[..., CrossEncoderScorer], tuple[Any, ...]]:
        return self._again, ()


class RerankRetriever:
    """Take `depth` hits of `retriever`, score each with its own query only, and keep the best k.

    Args:
        retriever: where candidates come from.
        scorer: a `PairScorer`, or the name of a cross-encoder.
        depth: candidates per query; raised to k where k is larger.

    Scores are rounded to 4 decimals; ties go by passage id.
    """

    def __init__(self, retriever: Retriever, scorer: PairScorer | str, *, depth: int = 30) -> None:
        if depth < 1:
            raise ValueError(f"RerankRetriever: expected depth >= 1, got {depth}.")
        self.retriever, self.depth = retriever, depth
        self.scorer = CrossEncoderScorer(scorer) if isinstance(scorer, str) else scorer
        scorer_name = getattr(self.scorer, "name", type(self.scorer).__qualname__)
        self.name = f"rerank({retriever.name})"
        self.fingerprint = (
            "rerank-" + sha256(f"{retriever.fingerprint}|{scorer_name}|{depth}".encode()).hexdigest()[:16]
        )

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        k = check_search(queries, k)
        candidates = self.retriever.search(queries, max(self.depth, k))
        pairs = [
            (query, passage_text(hit.passage)) for query, hits in zip(queries, candidates, strict=True) for hit in hits
        ]
        scores = np.asarray(self.scorer(pairs), np.float64) if pairs else np.empty(0)
        if scores.shape != (len(pairs),) or not np.isfinite(scores).all():
            raise RetrievalError(f"The reranker must give {len(pairs)} finite scores, got shape {scores.shape}.")
        results, at = [], 0
        for hits in candidates:
            own = np.round(scores[at : at + len(hits)], _DECIMALS)
            at += len(hits)
            scored = [Hit(hit.passage, float(score)) for hit, score in zip(hits, own, strict=True)]
            results.append(sorted(scored, key=lambda hit: (-(hit.score or 0.0), hit.passage.id))[:k])
        return results
