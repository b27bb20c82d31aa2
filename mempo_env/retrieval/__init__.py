"""Search over a corpus: `get_retriever` turns a name, a URL or an instance into a `Retriever`."""

from __future__ import annotations

import threading
from collections import OrderedDict

from mempo_env.errors import DataError, UnknownNameError
from mempo_env.retrieval.base import Retriever
from mempo_env.tasks.dataset import Dataset, check_split

__all__ = ["Retriever", "get_retriever"]

_CACHE_SIZE = 4

_cache: OrderedDict[tuple[str, str, str], Retriever] = OrderedDict()
_cache_lock = threading.Lock()


def get_retriever(spec: str | Retriever, dataset: Dataset, split: str | None = None) -> Retriever:
    """The retriever that `spec` names, over the passages of `dataset`'s `split` (None: its first).

    Args:
        spec: "bm25"; the http:// or https:// address of a search server, which brings its own corpus; or a Retriever,
            returned as it is.

    An index is built once in a process for each (data set content, split) and shared by all who ask; the last four
    are kept. Safe to call from several threads.

    Raises:
        UnknownNameError: `spec` or `split`. DataError: the data set has no passages to search in.
    """
    if isinstance(spec, str):
        if spec.startswith(("http://", "https://")):
            from mempo_env.retrieval.remote import RemoteRetriever

            return RemoteRetriever(spec)
        if spec != "bm25":
            raise UnknownNameError("retriever", spec, ("bm25", "http://HOST:PORT", "https://HOST:PORT"))
        return _bm25(dataset, check_split(dataset, split))
    if isinstance(spec, Retriever):
        return spec
    raise TypeError(f"Expected a retriever, 'bm25' or a server's address, got {type(spec).__name__}.")


def _bm25(dataset: Dataset, split: str) -> Retriever:
    from mempo_env.retrieval.bm25 import BM25Retriever

    key = ("bm25", dataset.fingerprint, split)
    # The lock is held while the index is built: others who want it wait for the one instead of building their own.
    with _cache_lock:
        if key in _cache:
            _cache.move_to_end(key)
            return _cache[key]
        passages = dataset.passages(split)
        if passages is None:
            raise DataError(
                f"Data set {dataset.name!r} has no passages to search in. Give a corpus file (corpus=), or a search "
                "server's address or a retriever (retriever=)."
            )
        retriever = BM25Retriever(passages, fingerprint=f"{dataset.fingerprint}/{split}")
        _cache[key] = retriever
        while len(_cache) > _CACHE_SIZE:
            _cache.popitem(last=False)
        return retriever
