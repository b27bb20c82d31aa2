"""An encoder without a model, for timing indexes at sizes that a small machine cannot encode in a day.

A text's vector is the sum of fixed random vectors of its words, repeated words counting by their square root: 384
dimensions, unit length, thousands of passages a second. Texts that share words are near each other, so that an index
has something to find; what it says about meaning is not claimed.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np

from mempo_env.retrieval.encoders import register_encoder
from mempo_env.retrieval.words import words

DIMENSIONS = 384
_ROWS = 1 << 15


class ProjectionEncoder:
    """See the module. `device` is accepted and ignored, as manifests name encoders by what builds them."""

    def __init__(self, device: str = "cpu") -> None:
        self.name = "projection-384"
        self.dimensions = DIMENSIONS
        table = np.random.default_rng(0).standard_normal((_ROWS, DIMENSIONS)).astype(np.float32)
        # Word numbers come from a checksum; a few of them are shared by two words, as in any hashed vocabulary.
        self._table = table / np.linalg.norm(table, axis=1, keepdims=True)
        self._known: dict[str, int] = {}

    def _vector(self, text: str) -> np.ndarray:
        known = self._known
        numbers = [known.setdefault(w, zlib.crc32(w.encode()) % _ROWS) for w in words(text)]
        if not numbers:
            return np.eye(1, DIMENSIONS, dtype=np.float32)[0]
        unique, counts = np.unique(np.array(numbers), return_counts=True)
        vector = np.sqrt(counts).astype(np.float32) @ self._table[unique]
        return vector / np.linalg.norm(vector)  # type: ignore[no-any-return]

    def encode_queries(self, queries: Sequence[str]) -> np.ndarray:
        return np.array([self._vector(q) for q in queries], np.float32).reshape(-1, DIMENSIONS)

    def encode_passages(self, texts: Sequence[str]) -> np.ndarray:
        return self.encode_queries(texts)

    def count_truncated(self, texts: Sequence[str]) -> int:
        return 0


register_encoder("projection", ProjectionEncoder)
