"""The web as a test can have it: BM25 over the embedded world, whose articles can be visited by their ids."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from mempo_env.retrieval import get_retriever
from mempo_env.tasks import load_dataset
from mempo_env.types import Hit


class StandInWeb:
    """A retriever with `visit`, picklable and equal wherever it is made."""

    name = "stand-in-web"
    fingerprint = "stand-in-web-1"

    @cached_property
    def _inner(self) -> Any:
        return get_retriever("bm25", load_dataset("world"))

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        return self._inner.search(queries, k)  # type: ignore[no-any-return]

    def visit(self, urls: Sequence[str]) -> list[list[Hit]]:
        return [hits[:1] for hits in self._inner.search(urls, 1)]

    def __getstate__(self) -> dict[str, Any]:
        return {}
