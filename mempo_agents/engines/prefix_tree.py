"""Which tokens a batch of rows shares: rows become a tree of chains, so that every common prefix is computed once.

The full histories of one trajectory are prefixes of one another, and all memories of a group start with the same system
prompt and question. A tree of chains is a prefix tree whose unbranched stretches are kept whole, and in which the
longest row through a point always continues the chain: long histories stay long, answers and memories hang off them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np


@dataclass(eq=False, slots=True)
class Chain:
    """Tokens at depths [start, start + len(ids)) of the paths through it; the first `start` tokens are its parent's.

    `queries` are (depth, target id, row, place): the token at `depth` predicts `target id`, which is element `place` of
    what `row` asks for. `total` counts the tokens of the chain and of everything that hangs off it.
    """

    parent: Chain | None
    start: int
    ids: np.ndarray
    children: list[Chain] = field(default_factory=list)
    queries: list[tuple[int, int, int, int]] = field(default_factory=list)
    total: int = 0

    @property
    def end(self) -> int:
        return self.start + len(self.ids)


def build_tree(contexts: Sequence[np.ndarray], targets: Sequence[np.ndarray]) -> list[Chain]:
    """The chains that start at depth 0, for rows of a context (at least one id) and a target (any number of ids).

    A row needs its context and all of its target but the last id, which predicts nothing. Raises ValueError for an
    empty context, for ids that are no vector, and for negative ids.
    """
    paths = [_path(i, context, target) for i, (context, target) in enumerate(zip(contexts, targets, strict=True))]
    order = sorted((i for i in range(len(paths)) if len(targets[i])), key=lambda i: paths[i].astype(">u8").tobytes())
    common = [common_prefix(paths[a], paths[b]) for a, b in pairwise(order)]
    roots: list[Chain] = []
    chains: list[Chain] = []
    # Ranges of sorted rows that share their first `depth` tokens, which are the parent's path up to there.
    work: list[tuple[int, int, int, Chain | None]] = [(0, len(order), 0, None)]
    while work:
        low, high, depth, parent = work.pop()
        for first, last in _split(common, low, high, depth):
            best = max(range(first, last), key=lambda i: len(paths[order[i]]))
            longest = paths[order[best]]
            chain = parent
            if len(longest) > depth:
                chain = Chain(parent, depth, longest[depth:])
                chains.append(chain)
                (parent.children if parent else roots).append(chain)
                work += [(*hanging, chain) for hanging in _hanging(common, first, last, best)]
            _ask(chain, order[best], paths[order[best]], targets[order[best]])
    for chain in reversed(chains):  # children come after their parents
        chain.total += len(chain.ids)
        chain.queries.sort()
        if chain.parent:
            chain.parent.total += chain.total
    return roots


def _path(row: int, context: np.ndarray, target: np.ndarray) -> np.ndarray:
    context, target = np.asarray(context), np.asarray(target)
    if context.ndim != 1 or target.ndim != 1:
        raise ValueError(f"Row {row}: ids must be vectors, got shapes {context.shape} and {target.shape}.")
    if not len(context):
        raise ValueError(f"Row {row}: the context is empty; the first target id needs one to be predicted from.")
    path = np.concatenate([context, target[:-1]]).astype(np.int64)
    if path.min() < 0 or (len(target) and target[-1] < 0):
        raise ValueError(f"Row {row}: ids must not be negative.")
    return path


def common_prefix(a: np.ndarray, b: np.ndarray) -> int:
    """How many ids two rows share at their front."""
    n = min(len(a), len(b))
    differ = a[:n] != b[:n]
    return int(differ.argmax()) if differ.any() else n


def _split(common: list[int], low: int, high: int, depth: int) -> Iterator[tuple[int, int]]:
    """Cut [low, high) where neighbours share no more than `depth` tokens."""
    first = low
    for i in range(low, high - 1):
        if common[i] == depth:
            yield first, i + 1
            first = i + 1
    if first < high:
        yield first, high


def _hanging(common: list[int], first: int, last: int, best: int) -> Iterator[tuple[int, int, int]]:
    """The rows of [first, last) but `best`, as ranges (low, high, depth at which they leave the path of `best`)."""
    for side, step in ((range(best - 1, first - 1, -1), -1), (range(best + 1, last), 1)):
        depth, edge = 0, None
        for i in side:
            shared = common[i] if step < 0 else common[i - 1]
            if edge is None:
                depth, edge = shared, i
            elif shared < depth:
                yield (edge, i, depth) if step > 0 else (i + 1, edge + 1, depth)
                depth, edge = shared, i
        if edge is not None:
            yield (edge, last, depth) if step > 0 else (first, edge + 1, depth)


def _ask(chain: Chain | None, row: int, path: np.ndarray, target: np.ndarray) -> None:
    """Enter the row's queries at the chains that own their depths, from the deepest up."""
    for place in range(len(target) - 1, -1, -1):
        depth = len(path) - len(target) + place
        while chain is not None and depth < chain.start:
            chain = chain.parent
        assert chain is not None
        chain.queries.append((depth, int(target[place]), row, place))
