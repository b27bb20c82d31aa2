"""Dense retrieval: an encoder, a FAISS index that finds candidates, and the passages' own vectors that rank them.

    folder/index.faiss       any FAISS index of the passages' vectors
    folder/embeddings.npy    the vectors themselves, float16 [N, D], unless left out
    folder/manifest.json     encoder, factory, corpus count and checksum, recall against exact search

Candidates are scored again from their float16 vectors in double precision, rounded to SCORE_DECIMALS, and ordered by
score and then by passage id. So a ranking depends on the query and the index alone: not on the batch, on the blocks in
which FAISS computed, or on the last bits of an encoder's float arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from mempo_env.errors import DataError, RetrievalError
from mempo_env.retrieval import storage
from mempo_env.retrieval.base import check_search
from mempo_env.retrieval.corpus import Corpus
from mempo_env.retrieval.encoders import Encoder, get_encoder
from mempo_env.retrieval.indexes import check_corpus, index_fingerprint
from mempo_env.retrieval.memory import read_at_random
from mempo_env.retrieval.vectors import INDEX, Vectors
from mempo_env.types import Hit

EMBEDDINGS = "embeddings.npy"
SCORE_DECIMALS = 5
_MAX_TIED_CANDIDATES = 16_384


class DenseRetriever:
    """A folder that `build_dense` wrote; see `mempo_env.retrieval.base.Retriever` for what `search` promises.

    Args:
        corpus: the corpus it was built on.
        folder: the index.
        encoder: an instance, or None to load the one that the manifest names.
        device: "cpu", or "cuda": encoder and index both go to the GPUs.
        placement: "shard" or "replicate", for several GPUs.
        effort: lists probed (IVF) or candidates kept (HNSW); None takes what the build chose.

    Raises DataError when index, corpus and encoder do not belong together, with the reason.
    """

    def __init__(
        self,
        corpus: Corpus,
        folder: str | Path,
        *,
        encoder: Encoder | None = None,
        device: str = "cpu",
        placement: str = "shard",
        effort: int | None = None,
    ) -> None:
        self.folder = Path(folder)
        self.manifest = storage.read_manifest(self.folder, "dense")
        check_corpus(self.manifest, corpus, self.folder)
        self._again = partial(
            DenseRetriever, corpus, str(folder), encoder=encoder, device=device, placement=placement, effort=effort
        )
        if encoder is None and not self.manifest["encoder"]["model"]:
            raise DataError(
                f"{self.folder}: built with the encoder object {self.manifest['encoder']['name']!r}; "
                "pass it as encoder=."
            )
        if encoder is None:
            encoder = get_encoder(
                self.manifest["encoder"]["model"], **self.manifest["encoder"]["options"], device=device
            )
        if (encoder.name, encoder.dimensions) != (self.manifest["encoder"]["name"], self.manifest["dimensions"]):
            raise DataError(
                f"{self.folder}: built with the encoder {self.manifest['encoder']['name']!r} "
                f"({self.manifest['dimensions']} dimensions), got {encoder.name!r} ({encoder.dimensions}). Queries and "
                "passages must come from the same encoder, prefixes included."
            )
        self.name = "dense"
        self.corpus, self.encoder = corpus, encoder
        effort = effort if effort is not None else self.manifest["effort"]
        self.fingerprint = f"dense-{index_fingerprint(self.manifest)}-{effort}"
        self._first_row: int = self.manifest["rows"][0]
        self._vectors = Vectors(self.folder / INDEX, device=device, placement=placement, effort=effort)
        if len(self._vectors) != self.manifest["count"]:
            raise DataError(
                f"{self.folder / INDEX}: the manifest says {self.manifest['count']} vectors, the file holds "
                f"{len(self._vectors)}. Build the index again."
            )
        self._embeddings = (
            load_embeddings(self.folder, self.manifest) if self.manifest["keep_embeddings"] else self._vectors.matrix
        )

    def __len__(self) -> int:
        """Passages in the index."""
        return len(self._vectors)

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        k = check_search(queries, k)
        # A query without a word has no meaning to match; the nearest passage of an empty string would be noise.
        unique = list(dict.fromkeys(query for query in queries if query.strip()))
        found: dict[str, list[Hit]] = {}
        if unique:
            try:
                vectors = self.encoder.encode_queries(unique)
            except DataError as error:
                raise RetrievalError(str(error)) from error
            for query, ranked in zip(unique, self.rank(vectors, k), strict=True):
                found[query] = [Hit(self.corpus[row], score) for row, score in ranked]
        return [list(found.get(query, ())) for query in queries]

    def rank(self, vectors: np.ndarray, k: int) -> list[list[tuple[int, float]]]:
        """For each query vector [N, D] the corpus rows and scores of its top k, best first."""
        k = min(k, len(self))
        fetch = min(len(self), max(2 * k, k + self.manifest["candidates"]))
        results: list[list[tuple[int, float]]] = [[] for _ in vectors]
        pending = np.arange(len(vectors))
        while len(pending):
            index_scores, rows = self._vectors.search(vectors[pending], fetch)
            again = []
            for query, scores_k, rows_k in zip(pending, index_scores, rows, strict=True):
                results[query], cut = self._order(vectors[query], scores_k, rows_k, k)
                # Passages that tie with the k-th may lie beyond what was fetched: look further, so that ids decide.
                if cut and fetch < min(len(self), _MAX_TIED_CANDIDATES):
                    again.append(query)
            pending = np.array(again, np.int64)
            fetch = min(len(self), fetch * 4)
        return results

    def _order(
        self, vector: np.ndarray, index_scores: np.ndarray, rows: np.ndarray, k: int
    ) -> tuple[list[tuple[int, float]], bool]:
        """The top k of one query, and whether more ties than were fetched compete for the last place."""
        valid = rows >= 0  # FAISS pads with -1
        rows, scores = rows[valid], index_scores[valid].astype(np.float64)
        if self._embeddings is not None and len(rows):
            scores = self._embeddings[rows].astype(np.float64) @ vector.astype(np.float64)
        scores = np.round(scores, SCORE_DECIMALS) + 0.0  # no -0.0
        if len(rows) == 0:
            return [], False
        kth = np.partition(scores, len(scores) - min(k, len(scores)))[len(scores) - min(k, len(scores))]
        cut = bool(valid.all()) and len(rows) > k and bool(scores.min() == kth)
        near = np.flatnonzero(scores >= kth)
        ranked = sorted(
            (-scores[i], self.corpus[self._first_row + int(rows[i])].id, int(rows[i])) for i in near.tolist()
        )
        return [(self._first_row + row, float(-negative)) for negative, _, row in ranked[:k]], cut

    def __reduce__(self) -> tuple[Callable[..., DenseRetriever], tuple[Any, ...]]:
        return self._again, ()


def load_embeddings(folder: Path, manifest: dict[str, Any]) -> np.ndarray:
    """The passages' vectors, mapped, to be read at random: float16 [N, D]. Raises DataError on another shape."""
    path = folder / EMBEDDINGS
    try:
        embeddings = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: unreadable ({error}). Build the index again.") from error
    expected = (manifest["count"], manifest["dimensions"])
    if embeddings.shape != expected or embeddings.dtype != np.float16:
        raise DataError(f"{path}: expected float16 {expected}, got {embeddings.dtype} {embeddings.shape}. Rebuild it.")
    read_at_random(embeddings.base)
    return np.asarray(embeddings)
