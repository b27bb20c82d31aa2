"""A world small enough to read: five passages, four questions, and retrievers that count, or break down."""

from __future__ import annotations

from collections.abc import Sequence

from mempo_env.errors import RetrievalError
from mempo_env.types import Hit, Passage, Question

PASSAGES = (
    Passage("p1", "Oslo", "Oslo is the capital of Norway. Ada Berg was born in Oslo."),
    Passage("p2", "Ada Berg", "Ada Berg wrote the novel Winter Light in 1911."),
    Passage("p3", "Winter Light", "Winter Light is a novel. Its hero is a baker named Crème – 東京 🧠."),
    Passage("p4", "Rome", "Rome is the capital of Italy. The river Tiber flows through Rome."),
    Passage("p5", "Tiber", "The Tiber is 405 km long."),
)

QUESTIONS = (
    Question("tiny:1", "Where was the author of Winter Light born?", ("Oslo",), dataset="tiny"),
    Question("tiny:2", "How long is the river that flows through Rome?", ("405 km", "405 kilometres"), dataset="tiny"),
    Question("tiny:3", "What is the capital of Italy?", ("Rome",), dataset="tiny"),
    Question("tiny:4", "When did Ada Berg write Winter Light?", ("1911",), dataset="tiny"),
)


class TinyDataset:
    """`splits` train and test hold the same five passages; test has the questions in reverse order."""

    name = "tiny"
    splits = ("train", "test")
    fingerprint = "tiny-1"

    def questions(self, split: str) -> Sequence[Question]:
        return QUESTIONS if split == "train" else QUESTIONS[::-1]

    def passages(self, split: str) -> Sequence[Passage]:
        return PASSAGES


class CountingRetriever:
    """Passages that share a word with the query, in order; `batches` keeps the queries of every call."""

    name = "counting"
    fingerprint = "counting-1"

    def __init__(self, passages: Sequence[Passage] = PASSAGES) -> None:
        self.passages = passages
        self.batches: list[list[str]] = []

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        self.batches.append(list(queries))
        return [self._hits(query)[:k] for query in queries]

    def _hits(self, query: str) -> list[Hit]:
        words = set(query.lower().split())
        found = [p for p in self.passages if words & set(f"{p.title} {p.text}".lower().replace(".", "").split())]
        return [Hit(passage, 1.0) for passage in found]


class BrokenRetriever(CountingRetriever):
    """Works for `after` calls, then breaks down for good with `error`."""

    def __init__(self, after: int = 0, error: Exception | None = None) -> None:
        super().__init__()
        self.after = after
        self.error = error if error is not None else RetrievalError("the server at http://x:1 did not answer in 5 s")

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        if len(self.batches) >= self.after:
            raise self.error
        return super().search(queries, k)


class NullRetriever:
    """Finds nothing, at no cost: what is left is the environment's own work."""

    name = "null"
    fingerprint = "null"

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        return [[] for _ in queries]


def tiny(**kwargs: object) -> dict[str, object]:
    """Arguments of a small environment over `TinyDataset`, overridden by `kwargs`."""
    return {"objectives": 2, "dataset": TinyDataset(), "retriever": CountingRetriever(), **kwargs}
