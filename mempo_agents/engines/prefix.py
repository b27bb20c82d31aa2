"""Scoring without waste: log-probabilities of given tokens, with every shared prefix computed once.

    score_rows(model, rows)   ->  one float32 [T] array per row, log p(target_t | context, target_<t), temperature 1

The rows become a tree of chains (`prefix_tree.py`). A long chain runs as one causal sequence into a key-value cache.
What hangs off it (answers, memories) runs packed: many branches in one forward, each under an attention mask that shows
it its own path only, at the positions that it has on that path. Then the cache is cut back and reused. Logits are
computed for the positions that predict a scored token, never for others.

Whether a model obeys such a mask is not taken on trust: on first use a small random case is compared with the plain
way, and a model that fails it is scored branch by branch with the cache alone, or plainly.

    "packed"    cache and masks; needs 4-D masks and explicit positions (Llama, Qwen, GPT-2, GPT-NeoX, ...)
    "branched"  cache only, one branch at a time (kernels without custom masks, ALiBi, sliding windows)
    "plain"     a left-padded batch of whole rows, as the released MemPO code does it (recurrent layers)
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

from mempo_agents.engines.base import ScoreRow
from mempo_agents.engines.loaded import cache_argument, forward_arguments, text_config
from mempo_agents.engines.prefix_tree import Chain, build_tree

Method = Literal["packed", "branched", "plain"]
_MAX_LOGIT_BYTES = 256 * 2**20  # of one forward's float32 logits
_MAX_MASK = 2**24  # elements of one forward's mask
_MAX_BRANCH = 512  # tokens of a branch that is packed with others; a longer one fills a forward by itself
_MAX_WASTE = 2**17  # query-key pairs that a pack may mask away for lying beyond where its branches hang
_chosen: weakref.WeakKeyDictionary[Any, dict[str, Method]] = weakref.WeakKeyDictionary()


@dataclass(slots=True)
class ScoreStats:
    """What a call cost. `tokens` went through the model, padding included; `forwards` is the number of calls."""

    tokens: int = 0
    forwards: int = 0
    method: str = ""


def score_rows(
    model: Any,
    rows: Sequence[ScoreRow],
    *,
    method: Method | Literal["auto"] = "auto",
    max_tokens: int = 8192,
    stats: ScoreStats | None = None,
) -> list[np.ndarray]:
    """log p of each row's target ids, float32 [T], in the order of `rows`; an empty target gives an empty array.

    model: a transformers causal language model; its dropout is off during the call. max_tokens: tokens in one forward
    (a plain row may exceed it); masks and logits have bounds of their own. Equal rows, and equal prefixes, are computed
    once and so agree exactly. Raises ValueError for an empty context.
    """
    if max_tokens < 1:
        raise ValueError(f"max_tokens must be at least 1, got {max_tokens}.")
    contexts = [np.asarray(row.context_ids, dtype=np.int64) for row in rows]
    targets = [np.asarray(row.target_ids, dtype=np.int64) for row in rows]
    roots = build_tree(contexts, targets)
    out = [np.zeros(len(target), dtype=np.float32) for target in targets]
    stats = stats if stats is not None else ScoreStats()
    with _evaluating(model):
        if method == "auto":
            longest = max((len(c) + len(t) for c, t in zip(contexts, targets, strict=True)), default=0)
            method = choose_method(model, longest)
        stats.method = method
        if method == "plain":
            _score_plainly(model, contexts, targets, out, max_tokens, stats)
        else:
            runner = _Runner(model, out, max_tokens, stats, pack=method == "packed")
            for root in roots:
                runner.run(root)
    return out


def choose_method(model: Any, longest_row: int) -> Method:
    """The cheapest method that is right for this model: by its configuration, then by a test, remembered per model."""
    config = text_config(model)
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    if kinds - {"full_attention", "sliding_attention"}:
        return "plain"  # recurrent and chunked layers keep a state that cannot be cut back
    window = getattr(config, "sliding_window", None) if getattr(config, "use_sliding_window", True) else None
    windowed = bool(window and longest_row >= window)  # our masks know no windows, the model's own ones do
    key = f"{getattr(config, '_attn_implementation', '')}/{windowed}"
    known = _chosen.setdefault(model, {})
    if key not in known:
        shared: tuple[Literal["packed", "branched"], ...] = ("branched",) if windowed else ("packed", "branched")
        with _evaluating(model):
            known[key] = next((method for method in shared if _agrees(model, config, method)), "plain")
    return known[key]


def _agrees(model: Any, config: Any, method: Literal["packed", "branched"]) -> bool:
    """Does `method` give the plain values, and do branches ignore one another, on a small random case?"""
    rng = np.random.default_rng(0)
    size = min(int(config.vocab_size), 1000)

    def ids(n: int) -> np.ndarray:
        return rng.integers(0, size, n)

    head, long, answer = ids(9), ids(30), ids(3)
    contexts = [
        np.concatenate([head, long, ids(5)]),
        head,
        np.concatenate([head, ids(7)]),
        np.concatenate([head, long]),
    ]
    other = [*contexts[:2], np.concatenate([head, ids(7)]), contexts[3]]  # row 2 sees other tokens
    try:
        plain, shared, again = (np.zeros((4, 3), np.float32) for _ in range(3))
        for out, rows, runner in ((plain, contexts, None), (shared, contexts, method), (again, other, method)):
            targets = [answer] * len(rows)
            if runner is None:
                for i, context in enumerate(rows):
                    _score_plainly(model, [context], [answer], [out[i]], 4096, ScoreStats())
            else:
                for root in build_tree(rows, targets):
                    _Runner(model, list(out), 64, ScoreStats(), pack=runner == "packed").run(root)
    except (TypeError, ValueError, RuntimeError, AttributeError, IndexError, NotImplementedError):
        return False
    exact = next(model.parameters()).dtype in (torch.float32, torch.float64)
    kept = [0, 1, 3]
    return bool(
        np.allclose(plain, shared, atol=2e-4 if exact else 0.15)
        and np.allclose(shared[kept], again[kept], atol=2e-4 if exact else 0.02)
    )


class _Runner:
    """Runs one tree, depth first, on one cache that grows along a chain and is cut back to where a branch hangs."""

    def __init__(self, model: Any, out: list[np.ndarray], max_tokens: int, stats: ScoreStats, *, pack: bool):
        from transformers import DynamicCache

        self.model, self.out, self.max_tokens, self.stats, self.pack = model, out, max_tokens, stats, pack
        self.cache = DynamicCache()
        self.cache_name = cache_argument(model)
        config = text_config(model)
        self.max_scored = max(1, _MAX_LOGIT_BYTES // (4 * int(config.vocab_size)))
        # Without a fused kernel the attention itself has a matrix per head.
        eager = getattr(config, "_attn_implementation", None) == "eager"
        self.max_mask = _MAX_MASK // int(config.num_attention_heads) if eager else _MAX_MASK
        self.max_first = max(1, math.isqrt(self.max_mask)) if eager else max_tokens

    def run(self, chain: Chain) -> None:
        """Needs the cache to begin with the chain's first `start` tokens; leaves it holding at most its path."""
        self._cut(chain.start)
        self._run_chain(chain)
        pack: list[Chain] = []
        tokens = scored = waste = 0
        # From the far end back, so that the cache only ever shrinks between branches.
        for child in sorted(chain.children, key=lambda c: -c.start):
            asked = _scored(child)
            small = child.total <= min(_MAX_BRANCH, self.max_tokens) and asked <= self.max_scored
            if pack:
                tokens += child.total
                scored += asked
                waste += child.total * (pack[0].start - child.start)
                room = min(self.max_tokens, self._queries_for(pack[0].start))
                if not small or tokens > room or scored > self.max_scored or waste > _MAX_WASTE:
                    self._run_pack(pack)
                    pack = []
            if not (small and self.pack):
                self.run(child)
                continue
            if not pack:
                tokens, scored, waste = child.total, asked, 0
            pack.append(child)
        if pack:
            self._run_pack(pack)

    def _queries_for(self, before: int) -> int:
        """How many tokens may follow `before` cached ones in one masked forward: n (before + n) <= max_mask."""
        return max(1, (math.isqrt(before * before + 4 * self.max_mask) - before) // 2)

    def _cut(self, length: int) -> None:
        surplus = self.cache.get_seq_length() - length
        if surplus > 0:
            self.cache.crop(-surplus)  # the negative form is the one that all versions know

    def _run_chain(self, chain: Chain) -> None:
        depth, queries, asked = chain.start, chain.queries, 0
        while depth < chain.end:
            room = self._queries_for(depth) if depth else self.max_first
            stop = min(chain.end, depth + min(self.max_tokens, room))
            here: list[tuple[int, ...]] = []
            seen: set[int] = set()
            while asked < len(queries) and queries[asked][0] < stop:
                if queries[asked][0] not in seen and len(seen) == self.max_scored:
                    stop = queries[asked][0]
                    break
                seen.add(queries[asked][0])
                here.append((queries[asked][0] - depth, *queries[asked][1:]))
                asked += 1
            ids = chain.ids[depth - chain.start : stop - chain.start]
            # A causal mask of our own spares the kernels turning the model's boolean one into numbers in every layer.
            mask = torch.ones(len(ids), stop, dtype=torch.bool).tril(depth) if depth and self.pack else None
            self._forward(ids, np.arange(depth, stop), mask, here)
            depth = stop

    def _run_pack(self, pack: list[Chain]) -> None:
        """All of `pack`, with what hangs off them, in one forward; they hang off one chain at descending depths."""
        base = pack[0].start
        self._cut(base)
        flat: list[tuple[Chain, int]] = []  # chains and where their tokens begin in the pack, parents first
        begin: dict[int, int] = {}
        length = 0
        stack = list(reversed(pack))
        while stack:
            chain = stack.pop()
            flat.append((chain, length))
            begin[id(chain)] = length
            length += len(chain.ids)
            stack += chain.children
        mask = torch.zeros(length, base + length, dtype=torch.bool)
        for chain, at in flat:
            rows = slice(at, at + len(chain.ids))
            parent = chain.parent
            if parent is not None and id(parent) in begin:  # sees what its parent's token just before it sees
                mask[rows] = mask[begin[id(parent)] + chain.start - 1 - parent.start]
            else:
                mask[rows, : chain.start] = True
            own = slice(base + at, base + at + len(chain.ids))
            mask[rows, own] = torch.ones(len(chain.ids), len(chain.ids), dtype=torch.bool).tril()
        queries = [(at + depth - chain.start, *rest) for chain, at in flat for depth, *rest in chain.queries]
        self._forward(
            np.concatenate([chain.ids for chain, _ in flat]),
            np.concatenate([np.arange(chain.start, chain.end) for chain, _ in flat]),
            mask,
            queries,
        )
        self._cut(base)

    def _forward(
        self, ids: np.ndarray, positions: np.ndarray, mask: torch.Tensor | None, queries: Sequence[tuple[int, ...]]
    ) -> None:
        device, dtype = self.model.device, self.model.dtype
        attention = None
        if mask is not None:
            attention = torch.zeros(mask.shape, dtype=dtype, device=device)
            attention = attention.masked_fill_(~mask.to(device), torch.finfo(dtype).min)[None, None]
        keep, index = np.unique([q[0] for q in queries] or [len(ids) - 1], return_inverse=True)
        logits = self.model(
            input_ids=torch.as_tensor(ids, device=device)[None],
            position_ids=torch.as_tensor(positions, device=device)[None],
            attention_mask=attention,
            logits_to_keep=torch.as_tensor(keep, device=device),
            use_cache=True,
            **{self.cache_name: self.cache},
        ).logits[0]
        self.stats.tokens += len(ids)
        self.stats.forwards += 1
        if not queries:
            return
        if len(logits) != len(keep):
            raise TypeError(f"{type(self.model).__name__} ignores logits_to_keep.")
        targets = torch.as_tensor([q[1] for q in queries], device=device)
        for (_, _, row, place), logp in zip(queries, _logprobs(logits, index, targets), strict=True):
            self.out[row][place] = logp


def _logprobs(logits: torch.Tensor, index: np.ndarray, targets: torch.Tensor) -> np.ndarray:
    """log softmax of logits[index] at `targets`, in float32."""
    logits = logits.float()
    where = torch.as_tensor(index, device=logits.device)
    return (logits[where, targets] - logits.logsumexp(-1)[where]).cpu().numpy()


def _scored(chain: Chain) -> int:
    own = len({depth for depth, *_ in chain.queries})
    return own + sum(_scored(child) for child in chain.children)


def _score_plainly(
    model: Any,
    contexts: Sequence[np.ndarray],
    targets: Sequence[np.ndarray],
    out: Sequence[np.ndarray],
    max_tokens: int,
    stats: ScoreStats,
) -> None:
    """Whole rows, left-padded, batched by length; equal rows once."""
    device = model.device
    first: dict[tuple[bytes, bytes], list[int]] = {}
    for i, (context, target) in enumerate(zip(contexts, targets, strict=True)):
        if len(target):
            first.setdefault((context.tobytes(), target.tobytes()), []).append(i)
    lengths = {i[0]: len(contexts[i[0]]) + len(targets[i[0]]) - 1 for i in first.values()}
    copies = {i[0]: i for i in first.values()}
    for batch in batches_by_length(lengths, max_tokens):
        width = max(lengths[i] for i in batch)
        keep = max(len(targets[i]) for i in batch)
        ids = torch.zeros(len(batch), width, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row, i in enumerate(batch):
            ids[row, width - lengths[i] :] = torch.as_tensor(np.concatenate([contexts[i], targets[i][:-1]]))
            mask[row, width - lengths[i] :] = 1
        ids, mask = ids.to(device), mask.to(device)
        inputs = {"input_ids": ids, "attention_mask": mask, "use_cache": False}
        if "position_ids" in forward_arguments(model):
            inputs["position_ids"] = (mask.cumsum(-1) - 1).clamp(min=0)
        if "logits_to_keep" in forward_arguments(model):
            inputs["logits_to_keep"] = keep
        logits = model(**inputs).logits[:, -keep:]
        stats.tokens += ids.numel()
        stats.forwards += 1
        for row, i in enumerate(batch):
            asked = np.arange(keep - len(targets[i]), keep)
            values = _logprobs(logits[row], asked, torch.as_tensor(targets[i], device=device))
            for copy in copies[i]:
                out[copy][:] = values


def batches_by_length(lengths: dict[int, int], max_tokens: int) -> Iterator[list[int]]:
    """Keys of similar length together, at most `max_tokens` with padding (one key at least); longest first."""
    batch: list[int] = []
    for key in sorted(lengths, key=lambda k: -lengths[k]):
        if batch and (len(batch) + 1) * lengths[batch[0]] > max_tokens:
            yield batch
            batch = []
        batch.append(key)
    if batch:
        yield batch


@contextmanager
def _evaluating(model: Any) -> Iterator[None]:
    """No dropout, no gradients; the model's mode is restored."""
    training = model.training
    model.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        model.train(training)
