"""Exact nearest neighbours on a CPU as matrix products: for a batch, many times faster than one scan a query."""

from __future__ import annotations

import numpy as np

_ROWS = 2048  # of the matrix at a time: a few megabytes, which stay near the processor
_QUERIES = 256


def top_inner_products(queries: np.ndarray, matrix: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """The k rows of `matrix` [N, D] with the largest inner product with each query [Q, D].

    Returns scores float32 [Q, k] and rows int64 [Q, k], best first; row -1 and score -inf where N < k. The matrix may
    be a mapped file of float32 or float16. Which of several equal rows at the last place are returned is not defined.
    """
    scores = np.full((len(queries), k), -np.inf, np.float32)
    rows = np.full((len(queries), k), -1, np.int64)
    for start in range(0, len(queries), _QUERIES):
        part = slice(start, start + _QUERIES)
        _search(np.ascontiguousarray(queries[part], np.float32), matrix, scores[part], rows[part])
    order = np.argsort(-scores, axis=1, kind="stable")
    return np.take_along_axis(scores, order, axis=1), np.take_along_axis(rows, order, axis=1)


def aligned(block: np.ndarray, copy: np.ndarray) -> np.ndarray:
    """`block` as float32 at an address that fits, in `copy` if need be: in a mapped index file it seldom lies at one.

    NumPy multiplies what is not aligned without BLAS, hundreds of times slower.
    """
    if block.dtype == np.float32 and block.flags.aligned:
        return block
    copy = copy[: len(block)]
    if block.dtype == np.float32:
        copy.view(np.uint8)[...] = block.view(np.uint8)  # bytes are copied faster than numbers at odd addresses
    else:
        copy[...] = block
    return copy


def _search(queries: np.ndarray, matrix: np.ndarray, best_scores: np.ndarray, best_rows: np.ndarray) -> None:
    """Fill `best_scores` and `best_rows` [Q, k], in no order."""
    k = best_scores.shape[1]
    copy = np.empty((min(_ROWS, len(matrix)), matrix.shape[1]), np.float32)
    for first in range(0, len(matrix), _ROWS):
        block = aligned(matrix[first : first + _ROWS], copy)
        found = queries @ block.T
        if first == 0 and len(block) > k:
            chosen = np.argpartition(found, len(block) - k, axis=1)[:, len(block) - k :]
            best_scores[:] = np.take_along_axis(found, chosen, axis=1)
            best_rows[:] = chosen
            continue
        # After the first block few rows beat the k-th best so far: one comparison finds them.
        at, columns = np.nonzero(found > best_scores.min(axis=1)[:, None])
        bounds = np.searchsorted(at, np.arange(len(queries) + 1))
        for query in np.unique(at).tolist():
            mine = columns[bounds[query] : bounds[query + 1]]
            scores = np.concatenate([best_scores[query], found[query, mine]])
            rows = np.concatenate([best_rows[query], mine + first])
            keep = np.argpartition(scores, len(scores) - k)[len(scores) - k :]
            best_scores[query], best_rows[query] = scores[keep], rows[keep]
