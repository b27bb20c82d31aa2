"""Losses over rows of tokens. Every one is a sum divided by a denominator that is fixed before the batch is cut up.

    terms = clipped_surrogate(logprobs, old_logprobs, advantages, mask)           [R, T], 0 outside the mask
    loss  = aggregate(terms, mask, scale)                                         a scalar
    scale = row_scales(mask, trajectory_R, "trajectory")                          [R], over the WHOLE batch

Rows are steps of trajectories: R rows of T tokens, right-padded. `mask` [R, T] is True on the tokens that are trained.
`row_scales` weighs each row so that sum(scale * row sum) over all rows is the wanted mean. Computed once for the whole
batch, the loss and its gradient are then the plain sum over micro-batches or ranks, however they are cut, and a mean of
means never arises. A rank adds its part; with data-parallel gradient averaging, multiply by the number of ranks.

    "token"        mean over all tokens; long rows weigh more
    "sequence"     mean over rows of the mean over tokens; trajectories with many steps weigh more
    "trajectory"   mean over trajectories of the mean over their tokens; every trajectory weighs the same
    "constant"     sum over tokens / (rows * constant): no length bias at all (Dr. GRPO)

Masked positions may hold anything, NaN included: they are replaced before any arithmetic, so neither the value nor the
gradient can be touched. Rows with an empty mask contribute nothing and are in no denominator.

Sources: PPO, arXiv 1707.06347; separate bounds, DAPO, arXiv 2503.14476; KL estimators, Schulman,
http://joschu.net/blog/kl-approx.html; Dr. GRPO, arXiv 2503.20783.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

Aggregation = Literal["token", "sequence", "trajectory", "constant"]
KL = Literal["k1", "k2", "k3"]


def clipped_surrogate(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float | None = None,
    dual_clip: float | None = None,
) -> Tensor:
    """-min(ratio * A, clip(ratio, 1 - clip_low, 1 + clip_high) * A) per token: [R, T], 0 where masked.

    ratio = exp(logprobs - old_logprobs); the gradient flows through `logprobs` only. advantages: [R, T], or [R] for one
    a row. clip_high defaults to clip_low. dual_clip (> 1) bounds the loss of tokens with a negative advantage at
    dual_clip * |A|, however large the ratio (arXiv 1912.09729).
    """
    if not 0 < clip_low <= 1:
        raise ValueError(f"clip_low must lie in (0, 1], got {clip_low}.")
    clip_high = clip_low if clip_high is None else clip_high
    if dual_clip is not None and dual_clip <= 1:
        raise ValueError(f"dual_clip must exceed 1, got {dual_clip}.")
    mask = _same_shape(logprobs, mask)
    advantages = _per_token(advantages, mask)
    ratio = (_kept(logprobs, mask) - _kept(old_logprobs, mask).detach()).exp()
    terms = -torch.minimum(ratio * advantages, ratio.clamp(1 - clip_low, 1 + clip_high) * advantages)
    if dual_clip is not None:
        terms = torch.where(advantages < 0, torch.minimum(terms, -dual_clip * advantages), terms)
    return terms * mask


def kl_divergence(
    logprobs: Tensor, ref_logprobs: Tensor, mask: Tensor, kind: KL = "k3", *, old_logprobs: Tensor | None = None
) -> Tensor:
    """An estimate of KL(policy || reference) per sampled token: [R, T], 0 where masked.

    With d = logprobs - ref_logprobs: k1 = d (unbiased, may be negative), k2 = d^2 / 2 (biased, low variance),
    k3 = exp(-d) - 1 + d (unbiased, never negative).

    These are values. As a loss, tokens held fixed and on-policy, their gradients are in expectation: of k1 zero; of k2
    the gradient of KL(policy || reference); of k3 that of KL(reference || policy). So k1 belongs in a reward, and k2
    is the one to minimise; plain k3 is what most GRPO code does. With `old_logprobs`, those of the policy that sampled,
    each term is weighed by the ratio of the two policies: then k1 and k3 are unbiased off-policy, and their gradients
    are that of KL(policy || reference) (TRL's default).
    """
    mask = _same_shape(logprobs, mask)
    difference = _kept(logprobs, mask) - _kept(ref_logprobs, mask).detach()
    if kind == "k1":
        terms = difference
    elif kind == "k2":
        terms = difference.square() / 2
    elif kind == "k3":
        terms = torch.expm1(-difference) + difference
    else:
        raise ValueError(f"kind must be 'k1', 'k2' or 'k3', got {kind!r}.")
    if old_logprobs is not None:
        terms = terms * (_kept(logprobs, mask) - _kept(old_logprobs, mask).detach()).exp()
    return terms * mask


def token_entropy(logits: Tensor, *, chunk_tokens: int = 256) -> Tensor:
    """-sum p log p of each position: logits [..., V] -> [...], float32.

    Computed `chunk_tokens` positions at a time, and again in the backward pass, so that the memory beyond the logits is
    that of one chunk.
    """
    flat = logits.reshape(-1, logits.shape[-1])
    parts = [_checkpointed(_entropy, part) for part in flat.split(chunk_tokens)]
    return torch.cat(parts).reshape(logits.shape[:-1])


def token_logprobs(logits: Tensor, ids: Tensor, *, temperature: float = 1.0, chunk_tokens: int = 256) -> Tensor:
    """log p of the ids at their positions: logits [..., V], ids [...] -> [...], float32.

    temperature: what the ids were sampled with, if the ratio is to compare like with like. Chunked as `token_entropy`.
    """
    if not temperature > 0:
        raise ValueError(f"temperature must be positive, got {temperature}.")
    flat, targets = logits.reshape(-1, logits.shape[-1]), ids.reshape(-1)
    parts = [
        _checkpointed(lambda part, target: _gathered(part / temperature, target), part, target)
        for part, target in zip(flat.split(chunk_tokens), targets.split(chunk_tokens), strict=True)
    ]
    return torch.cat(parts).reshape(ids.shape)


def row_scales(
    mask: Tensor,
    trajectory_R: Tensor | None = None,
    aggregation: Aggregation = "trajectory",
    *,
    constant: float | None = None,
) -> Tensor:
    """What each row's sum is multiplied with, so that all rows together make the mean: [R], float32.

    mask: [R, T], or the number of trained tokens of each row [R], of the whole batch, all micro-batches and ranks.
    trajectory_R: [R] ids of the trajectories, for "trajectory". constant: tokens, for "constant".
    """
    counts = (mask if mask.dim() == 1 else mask.bool().sum(-1)).to(torch.float32)
    alive = counts > 0
    if aggregation == "token":
        return torch.full_like(counts, 1.0) / counts.sum().clamp(min=1)
    if aggregation == "sequence":
        return torch.where(alive, 1 / counts.clamp(min=1), 0) / alive.sum().clamp(min=1)
    if aggregation == "trajectory":
        if trajectory_R is None or trajectory_R.shape != counts.shape:
            raise ValueError(f"Aggregation 'trajectory' needs trajectory_R of shape {tuple(counts.shape)}.")
        _, index = torch.unique(trajectory_R, return_inverse=True)
        tokens = torch.zeros(int(index.max()) + 1 if len(index) else 0, device=counts.device)
        tokens = tokens.index_add(0, index, counts)
        return torch.where(alive, 1 / tokens[index].clamp(min=1), 0) / (tokens > 0).sum().clamp(min=1)
    if aggregation == "constant":
        if constant is None or constant <= 0:
            raise ValueError(f"Aggregation 'constant' needs a positive constant, got {constant}.")
        return torch.full_like(counts, 1.0) / (constant * alive.sum().clamp(min=1))
    raise ValueError(f"aggregation must be 'token', 'sequence', 'trajectory' or 'constant', got {aggregation!r}.")


def aggregate(terms: Tensor, mask: Tensor, scale_R: Tensor) -> Tensor:
    """sum over rows of scale * sum over trained tokens of terms: a scalar.

    terms, mask: [R, T], the rows of one micro-batch. scale_R: [R], those rows of what `row_scales` gave for the whole
    batch. Adding the results of all micro-batches gives the mean.
    """
    mask = _same_shape(terms, mask)
    if scale_R.shape != terms.shape[:1]:
        raise ValueError(f"Expected scale_R of shape {tuple(terms.shape[:1])}, got {tuple(scale_R.shape)}.")
    return (_kept(terms, mask).sum(-1) * scale_R.to(terms)).sum()


def clip_fraction(
    logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, mask: Tensor, *, clip_low: float, clip_high: float
) -> Tensor:
    """The share of trained tokens whose gradient the clip cut off, in [0, 1]; NaN without trained tokens."""
    mask = _same_shape(logprobs, mask)
    advantages = _per_token(advantages, mask)
    ratio = (_kept(logprobs, mask) - _kept(old_logprobs, mask)).exp()
    cut = ((ratio > 1 + clip_high) & (advantages > 0)) | ((ratio < 1 - clip_low) & (advantages < 0))
    return (cut & mask).sum() / mask.sum()


def _kept(values: Tensor, mask: Tensor) -> Tensor:
    """`values` with 0 where masked: replaced before exp, since NaN * 0 is NaN and so is its gradient."""
    return values.masked_fill(~mask, 0.0)


def _per_token(advantages: Tensor, mask: Tensor) -> Tensor:
    if advantages.dim() == 1:
        advantages = advantages[:, None].expand(mask.shape)
    if advantages.shape != mask.shape:
        raise ValueError(f"Expected advantages of shape {tuple(mask.shape)}, got {tuple(advantages.shape)}.")
    return _kept(advantages, mask)


def _same_shape(values: Tensor, mask: Tensor) -> Tensor:
    if values.dim() != 2 or values.shape != mask.shape:
        raise ValueError(f"Expected [R, T] and a mask of that shape, got {tuple(values.shape)}, {tuple(mask.shape)}.")
    return mask.bool()


def _gathered(logits: Tensor, targets: Tensor) -> Tensor:
    logits = logits.float()
    return logits.gather(-1, targets[:, None]).squeeze(-1) - logits.logsumexp(-1)


def _entropy(logits: Tensor) -> Tensor:
    logp = logits.float().log_softmax(-1)
    return -(logp.exp() * logp.masked_fill(logp == -torch.inf, 0.0)).sum(-1)


def _checkpointed(function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    """`function(*inputs)`, computed again in the backward pass instead of kept."""
    if torch.is_grad_enabled() and any(value.requires_grad for value in inputs):
        from torch.utils.checkpoint import checkpoint

        return checkpoint(function, *inputs, use_reentrant=False)
    return function(*inputs)
