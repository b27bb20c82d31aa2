"""What every retriever is: a batch of queries in, a list of hits per query out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from mempo_env.checks import whole_number
from mempo_env.types import Hit


@runtime_checkable
class Retriever(Protocol):
    """Search over a corpus. Lexical, dense, hybrid, remote and web search all have this shape.

    Contract, the same for single and batched calls:
    - `search(queries, k)` returns one list per query, in order, at most `k` hits each, best first, distinct passages;
    - fewer hits than `k` give a shorter list, never padding; a query that matches nothing gives `[]`; `[]` gives `[]`;
    - ties are ordered by passage id, and a query's hits do not depend on the other queries of the batch;
    - `k < 1` raises ValueError; an infrastructure failure raises `mempo_env.errors.RetrievalError`.

    `fingerprint` identifies the corpus and the index, for caches and for results files.
    """

    @property
    def name(self) -> str: ...

    @property
    def fingerprint(self) -> str: ...

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]: ...


def check_search(queries: Sequence[str], k: int) -> int:
    """`k` as an int, after a look at both arguments: how every `search` begins.

    Raises:
        TypeError: `queries` is one string, or `k` is no integer. ValueError: `k` is below 1.
    """
    if isinstance(queries, str):
        raise TypeError("search expects a sequence of queries, got one string. Write search([query], k).")
    return whole_number("k", k)
