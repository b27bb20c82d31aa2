"""BM25 over passages held in memory. Weights by bm25s; the scoring and its edges are kept here.

bm25s raises when k exceeds the corpus, returns passages that share no word with the query, orders equal scores as it
happens, and its numba backend raises on a query without words. Here a query's hits are a function of the passages and
the query alone: the same for both backends, for every batch, and in every process.
"""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import math
import threading
from array import array
from collections.abc import Callable, Collection, Sequence
from functools import cache
from itertools import pairwise

import numpy as np

from mempo_env.checks import whole_number
from mempo_env.errors import DataError, MissingExtraError, UnknownNameError
from mempo_env.retrieval.base import check_search
from mempo_env.retrieval.words import ENGLISH_STOP_WORDS, words
from mempo_env.types import Hit, Passage

BACKENDS = ("auto", "numpy", "numba")

# Under this size numpy answers in some tens of microseconds, and compiling would cost a second at the first search.
_NUMBA_FROM_PASSAGES = 50_000
# Scores are accumulated for a slice of the batch at a time, so that they stay in the processor's cache (2 MB).
_CELLS_PER_SLICE = 250_000
# Up to this k, taking the maximum k times is faster than partitioning and sorting.
_FEW = 16


class BM25Retriever:
    """Lucene-style BM25 over titles and texts; see `mempo_env.retrieval.base.Retriever` for what `search` promises.

    Score of a passage = sum over the query's words of idf * tf / (tf + k1 * (1 - b + b * length / mean length)),
    idf = ln(1 + (N - df + 0.5) / (df + 0.5)) (Kamphuis et al., ECIR 2020, "accurate Lucene"). Only passages that share
    a word with the query are hits. Ties stand in the order of passage ids.

    Args:
        passages: the corpus; ids must be unique. It is referenced, not copied.
        k1: saturation of repeated words, >= 0.
        b: strength of length normalisation, 0 to 1.
        title_weight: how often the title's words count, >= 0; 1 treats the title as a first sentence. Agents search for
            titles much: with 2 rather than 1, the passage named comes first in 92 % rather than 89 % of HotpotQA cases.
        stop_words: words that neither index nor query keeps; `()` keeps all. A query of nothing else finds nothing.
        backend: "numpy", "numba", or "auto" (numba for large corpora where it is installed). The hits are the same.
        fingerprint: identity of the corpus, where the caller has it already; else it is computed from the passages.

    Raises:
        DataError: two passages share an id. ValueError: a parameter is out of range.
    """

    def __init__(
        self,
        passages: Sequence[Passage],
        *,
        k1: float = 1.5,
        b: float = 0.75,
        title_weight: int = 2,
        stop_words: Collection[str] = ENGLISH_STOP_WORDS,
        backend: str = "auto",
        fingerprint: str | None = None,
    ) -> None:
        check_parameters(k1, b, title_weight)
        self.name = "bm25"
        self.passages = passages
        self.backend = choose_backend(backend, len(passages))
        self._stop_words = frozenset(stop_words)
        ids = [passage.id for passage in passages]
        self._order = _order_by_id(ids)
        parameters = f"bm25|{k1}|{b}|{title_weight}|{' '.join(sorted(self._stop_words))}|"
        corpus = fingerprint if fingerprint is not None else fingerprint_passages(passages)
        self.fingerprint = hashlib.sha256((parameters + corpus).encode()).hexdigest()
        self._build(k1, b, title_weight)

    def __len__(self) -> int:
        """Passages in the index."""
        return len(self._order)

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """Up to `k` hits for each query, best first; `[]` for a query that shares no word with any passage."""
        k = check_search(queries, k)
        hits: list[list[Hit]] = [[] for _ in queries]
        rows: list[int] = []
        token_ids: list[list[int]] = []
        for row, query in enumerate(queries):
            known = [self._vocabulary[w] for w in words(query, self._stop_words) if w in self._vocabulary]
            if known:
                rows.append(row)
                token_ids.append(known)
        per_slice = max(1, _CELLS_PER_SLICE // max(1, len(self)))
        for start in range(0, len(rows), per_slice):
            part = token_ids[start : start + per_slice]
            for row, position, score in zip(*self._top(part, min(k, len(self))), strict=True):
                hits[rows[start + row]].append(Hit(self.passages[self._order[position]], score))
        return hits

    def _build(self, k1: float, b: float, title_weight: int) -> None:
        self._vocabulary: dict[str, int] = {}
        documents = []
        for position in self._order:
            passage = self.passages[position]
            tokens = words(passage.title, self._stop_words) * title_weight + words(passage.text, self._stop_words)
            documents.append(array("i", [self._vocabulary.setdefault(w, len(self._vocabulary)) for w in tokens]))
        if not self._vocabulary:
            self._weights, self._rows, self._starts = np.empty(0, np.float32), np.empty(0, np.int32), [0]
            return
        import bm25s

        logging.getLogger("bm25s").setLevel(logging.WARNING)
        index = bm25s.BM25(k1=k1, b=b, method="lucene", backend="numpy")
        # The vocabulary is given: bm25s would number the words in the order of a set, which changes between processes.
        index.index((documents, dict(self._vocabulary)), create_empty_token=False, show_progress=False)
        self._weights = np.asarray(index.scores["data"], np.float32)
        self._rows = np.asarray(index.scores["indices"], np.int32)
        self._starts = index.scores["indptr"].tolist()

    def _top(self, token_ids: list[list[int]], k: int) -> tuple[list[int], list[int], list[float]]:
        """The best `k` of each query as three flat lists: query row, position in id order, score."""
        top = _top_numba if self.backend == "numba" else _top_numpy
        return top(self._weights, self._rows, self._starts, len(self), token_ids, k)


def check_parameters(k1: float, b: float, title_weight: int) -> None:
    """Raise ValueError (TypeError for a `title_weight` that is no integer) unless BM25 is defined for them."""
    if not 0 <= k1 < math.inf or not 0 <= b <= 1 or whole_number("title_weight", title_weight, least=None) < 0:
        raise ValueError(
            f"BM25: expected k1 >= 0, 0 <= b <= 1 and title_weight >= 0, got {k1=}, {b=}, {title_weight=}."
        )


def choose_backend(backend: str, passages: int) -> str:
    """ "numpy" or "numba": the one named, or for "auto" the faster one for that many passages."""
    if backend not in BACKENDS:
        raise UnknownNameError("BM25 backend", backend, BACKENDS)
    has_numba = importlib.util.find_spec("numba") is not None
    if backend == "numba" and not has_numba:
        raise MissingExtraError("numba", "retrieval", "The numba backend of BM25")
    if backend == "auto":
        return "numba" if has_numba and passages >= _NUMBA_FROM_PASSAGES else "numpy"
    return backend


def fingerprint_passages(passages: Sequence[Passage]) -> str:
    """SHA-256 over ids, titles and texts, in order."""
    digest = hashlib.sha256()
    for passage in passages:
        for part in (passage.id, passage.title, passage.text):
            raw = part.encode("utf-8", "surrogatepass")
            digest.update(len(raw).to_bytes(8, "little"))
            digest.update(raw)
    return digest.hexdigest()


def _order_by_id(ids: list[str]) -> Sequence[int]:
    """Positions sorted by id, so that the order inside the index is the order of ties."""
    order = sorted(range(len(ids)), key=ids.__getitem__)
    for before, after in pairwise(order):
        if ids[before] == ids[after]:
            raise DataError(f"Passage ids must be unique in a corpus, got {ids[before]!r} twice.")
    return array("q", order)


def _top_numpy(
    weights: np.ndarray, rows: np.ndarray, starts: list[int], n: int, token_ids: list[list[int]], k: int
) -> tuple[list[int], list[int], list[float]]:
    pieces, piece_weights, offsets, lengths = [], [], [], []
    for row, tokens in enumerate(token_ids):
        for token in tokens:
            start, end = starts[token], starts[token + 1]
            pieces.append(rows[start:end])
            piece_weights.append(weights[start:end])
            offsets.append(row * n)
            lengths.append(end - start)
    cells = np.concatenate(pieces) + np.repeat(offsets, lengths)
    # bincount adds in float64, in the order of the query's words: the numba kernel does the same, to the last bit.
    scores = np.bincount(cells, np.concatenate(piece_weights), minlength=n * len(token_ids)).reshape(-1, n)
    found, columns, found_scores = _few(scores, k) if k <= _FEW else _many(scores, k)
    return found.tolist(), columns.tolist(), found_scores.tolist()


def _few(scores: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The best `k` of each row of `scores` [Q, N], which it overwrites: k times the first maximum."""
    rows = np.arange(len(scores))
    columns = np.empty((len(scores), k), np.int64)
    best = np.empty((len(scores), k))
    for place in range(k):
        columns[:, place] = scores.argmax(axis=1)
        best[:, place] = scores[rows, columns[:, place]]
        scores[rows, columns[:, place]] = 0.0
    hit = best > 0
    return np.nonzero(hit)[0], columns[hit], best[hit]


def _many(scores: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The same by sorting, whose cost hardly grows with `k`."""
    n = scores.shape[1]
    floor = np.partition(scores, n - k, axis=1)[:, n - k]
    found, columns = np.nonzero((scores >= floor[:, None]) & (scores > 0))
    best = scores[found, columns]
    order = np.lexsort((columns, -best, found))
    found, columns, best = found[order], columns[order], best[order]
    # Ties at the k-th place bring more than k candidates; keep the first k of each row.
    first = np.searchsorted(found, np.arange(len(scores)))
    keep = np.arange(len(found)) - first[found] < k
    return found[keep], columns[keep], best[keep]


def _top_numba(
    weights: np.ndarray, rows: np.ndarray, starts: list[int], n: int, token_ids: list[list[int]], k: int
) -> tuple[list[int], list[int], list[float]]:
    kernel = _numba_kernel()
    found: list[int] = []
    columns: list[int] = []
    found_scores: list[float] = []
    for row, tokens in enumerate(token_ids):
        begins = np.array([starts[t] for t in tokens], np.int64)
        ends = np.array([starts[t + 1] for t in tokens], np.int64)
        positions, scores = kernel(weights, rows, begins, ends, n, k)
        found.extend([row] * len(positions))
        columns.extend(positions.tolist())
        found_scores.extend(scores.tolist())
    return found, columns, found_scores


_compile_lock = threading.Lock()


def _numba_kernel() -> Callable[..., tuple[np.ndarray, np.ndarray]]:
    with _compile_lock:
        return _compiled_kernel()


@cache
def _compiled_kernel() -> Callable[..., tuple[np.ndarray, np.ndarray]]:
    import numba

    @numba.njit(nogil=True)
    def top(weights, rows, begins, ends, n, k):  # type: ignore[no-untyped-def]
        scores = np.zeros(n, np.float64)
        for t in range(len(begins)):
            for j in range(begins[t], ends[t]):
                scores[rows[j]] += weights[j]
        best = np.empty(k, np.int64)
        best_scores = np.zeros(k, np.float64)
        count = 0
        for position in range(n):
            score = scores[position]
            if score <= 0 or (count == k and score <= best_scores[k - 1]):
                continue
            place = count if count < k else k - 1
            while place > 0 and best_scores[place - 1] < score:
                best_scores[place] = best_scores[place - 1]
                best[place] = best[place - 1]
                place -= 1
            best_scores[place] = score
            best[place] = position
            count = min(count + 1, k)
        return best[:count], best_scores[:count]

    return top  # type: ignore[no-any-return]
