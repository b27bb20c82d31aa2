"""Advantages: from rewards to the credit of every token. Arrays in, arrays out; numpy only.

Axes, as suffixes: `_G` the trajectories of one task (a group), `_S` the steps of a trajectory, `_R` rows (one row is
one step's response), `_T` tokens. A reward that is not known is NaN and never 0.

The rules that hold for every function here:

* `std` divides by the standard deviation plus `eps`. Its `ddof` is 1 (the sample's, as in verl and TRL) unless asked
  otherwise; 0 gives the population's.
* A NaN takes no part in means and deviations. A failed trajectory (NaN reward) gets the advantage 0, which is "no push
  either way"; mask its tokens out of the loss as well, so that it does not count in a denominator.
* One known value, or values that are all equal, give exactly 0.

Sources: GRPO, arXiv 2402.03300 (eq. 3); MemPO, arXiv 2603.00680 (the two advantages and their sum); Dr. GRPO,
arXiv 2503.20783 (`std=False`); RLOO, arXiv 2402.14740; GAE, arXiv 1506.02438; IGPO, arXiv 2510.14967.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

EPS = 1e-6


def trajectory_advantages(rewards_G: ArrayLike, *, std: bool = True, ddof: int = 1, eps: float = EPS) -> np.ndarray:
    """A_T = (r - mean) / (std + eps) over one group: float64 [G].

    One value per trajectory, whatever its number of steps. [1, 0] gives [+0.7071, -0.7071]; [1, NaN, 0] gives
    [+0.7071, 0, -0.7071]. `std=False` leaves the division out (Dr. GRPO).
    """
    rewards_G = _vector("rewards_G", rewards_G)
    return np.nan_to_num(_standardise(rewards_G, std=std, ddof=ddof, eps=eps), nan=0.0)


def leave_one_out_advantages(rewards_G: ArrayLike) -> np.ndarray:
    """A_i = r_i - mean of the other rewards (RLOO): float64 [G]. The others are those that are known."""
    rewards_G = _vector("rewards_G", rewards_G)
    known = int(np.sum(~np.isnan(rewards_G)))
    if known < 2:
        return np.zeros_like(rewards_G)
    centred = np.nan_to_num(_standardise(rewards_G, std=False), nan=0.0)
    return centred * (known / (known - 1))


def memory_advantages(
    memory_rewards_GS: ArrayLike,
    *,
    std: bool = True,
    ddof: int = 1,
    eps: float = EPS,
    per_step: bool = False,
    clip: float | None = None,
    gate_G: ArrayLike | None = None,
) -> np.ndarray:
    """A_M = (R_M - mean) / (std + eps), pooled over all steps of all trajectories of a group: float64 [G, S].

    memory_rewards_GS: [G, S], NaN where a step has no memory reward or does not exist. Those stay NaN: no credit is not
    zero credit. With `per_step`, each column (step index) is its own pool, which removes what the step index alone
    explains. `clip` bounds |A_M|. `gate_G` [G] are the trajectory advantages: where they are negative, known values
    become 0 (the memory is not rewarded in a trajectory that did worse than its group).
    """
    memory_rewards_GS = np.asarray(memory_rewards_GS, dtype=np.float64)
    if memory_rewards_GS.ndim != 2:
        raise ValueError(f"memory_rewards_GS must have two axes [G, S], got shape {memory_rewards_GS.shape}.")
    if clip is not None and not clip > 0:
        raise ValueError(f"clip must be positive or None, got {clip}.")
    if per_step:
        columns = [_standardise(column, std=std, ddof=ddof, eps=eps) for column in memory_rewards_GS.T]
        advantages_GS = np.stack(columns, axis=1) if columns else memory_rewards_GS.copy()
    else:
        pool = _standardise(memory_rewards_GS.ravel(), std=std, ddof=ddof, eps=eps)
        advantages_GS = pool.reshape(memory_rewards_GS.shape)
    if clip is not None:
        advantages_GS = np.clip(advantages_GS, -clip, clip)
    if gate_G is not None:
        gate_G = _vector("gate_G", gate_G)
        if len(gate_G) != len(advantages_GS):
            raise ValueError(f"gate_G has {len(gate_G)} values for {len(advantages_GS)} trajectories.")
        shut = (gate_G < 0)[:, None] & ~np.isnan(advantages_GS)
        advantages_GS = np.where(shut, 0.0, advantages_GS)
    return advantages_GS


def length_costs(tokens: ArrayLike, *, budget_tokens: int, weight: float) -> np.ndarray:
    """What to subtract from R_M for long memories: weight * max(0, tokens - budget) / budget, any shape.

    The paper has no such term and so rewards sufficiency, not compression. `tokens` are counts of memory tokens.
    """
    if budget_tokens < 1:
        raise ValueError(f"budget_tokens must be at least 1, got {budget_tokens}.")
    over = np.maximum(0.0, np.asarray(tokens, dtype=np.float64) - budget_tokens)
    return weight * over / budget_tokens


def token_advantages(
    advantages_R: ArrayLike,
    memory_advantages_R: ArrayLike,
    lengths_R: Sequence[int] | np.ndarray,
    memory_spans_R: Sequence[tuple[int, int] | None] | np.ndarray,
    *,
    weight: float = 1.0,
) -> list[np.ndarray]:
    """The credit of every response token: one float32 [T] array per row.

    Tokens of the memory span (tags included) get A + weight * A_M, all others A. advantages_R: [R], one per row (repeat
    a trajectory's value for its steps). memory_advantages_R: [R], NaN for no credit. lengths_R: [R] response tokens.
    memory_spans_R: half-open token ranges inside the response, None (or start == end) where there is none.
    """
    advantages_R = _vector("advantages_R", advantages_R)
    memory_advantages_R = _vector("memory_advantages_R", memory_advantages_R)
    lengths_R = np.asarray(lengths_R, dtype=np.int64)
    if isinstance(memory_spans_R, np.ndarray):
        spans_R = memory_spans_R.astype(np.int64).reshape(-1, 2)
    else:
        spans_R = np.array([span or (0, 0) for span in memory_spans_R], dtype=np.int64).reshape(-1, 2)
    if not len(advantages_R) == len(memory_advantages_R) == len(lengths_R) == len(spans_R):
        raise ValueError(
            "Expected one value per row in each argument, got "
            f"{len(advantages_R)}, {len(memory_advantages_R)}, {len(lengths_R)} and {len(spans_R)}."
        )
    bad = (spans_R[:, 0] < 0) | (spans_R[:, 1] < spans_R[:, 0]) | (spans_R[:, 1] > lengths_R)
    if bad.any():
        row = int(np.argmax(bad))
        raise ValueError(f"Row {row}: memory span {spans_R[row].tolist()} is outside its {lengths_R[row]} tokens.")
    # Three runs a row: before the memory, the memory, after it.
    runs = np.stack([spans_R[:, 0], spans_R[:, 1] - spans_R[:, 0], lengths_R - spans_R[:, 1]], axis=1)
    extra_R = weight * np.nan_to_num(memory_advantages_R, nan=0.0)
    values = np.stack([advantages_R, advantages_R + extra_R, advantages_R], axis=1)
    flat = np.repeat(values.ravel().astype(np.float32), runs.ravel())
    return np.split(flat, np.cumsum(lengths_R)[:-1]) if len(lengths_R) else []


def information_gains(probabilities_S: ArrayLike, outcome: float) -> np.ndarray:
    """IGPO's rewards of the steps of one trajectory: float64 [S].

    probabilities_S: [S], P(answer | everything before step s), so [0] is the bare question. Step s < S - 1 earns
    P[s + 1] - P[s], what its result added; the last step earns `outcome`. Differences that are not
    finite are 0, as in IGPO.
    """
    probabilities_S = _vector("probabilities_S", probabilities_S)
    if not len(probabilities_S):
        return probabilities_S
    with np.errstate(invalid="ignore"):
        gains = np.diff(probabilities_S)
    return np.append(np.where(np.isfinite(gains), gains, 0.0), outcome)


def discounted_returns(rewards_S: ArrayLike, gamma: float = 1.0) -> np.ndarray:
    """R_s = sum over k >= s of gamma^(k - s) r_k: float64 [S]."""
    rewards_S = _vector("rewards_S", rewards_S)
    returns_S = np.zeros_like(rewards_S)
    later = 0.0
    for s in range(len(rewards_S) - 1, -1, -1):
        later = rewards_S[s] + gamma * later
        returns_S[s] = later
    return returns_S


def gae(
    rewards_T: ArrayLike, values_T: ArrayLike, mask_T: ArrayLike, *, gamma: float = 1.0, lam: float = 1.0
) -> tuple[np.ndarray, np.ndarray]:
    """Generalised advantage estimation over policy tokens only: (advantages, returns), float64 [..., T].

    Tokens with a False mask are stepped over: they carry no value, no reward and no time, whatever garbage stands
    there, and get the advantage and the return 0. Leading axes are independent sequences; after the last token the
    value is 0.
    """
    rewards_T = np.asarray(rewards_T, dtype=np.float64)
    values_T = np.asarray(values_T, dtype=np.float64)
    mask_T = np.asarray(mask_T, dtype=bool)
    if not rewards_T.shape == values_T.shape == mask_T.shape or rewards_T.ndim < 1:
        raise ValueError(f"Expected equal shapes [..., T], got {rewards_T.shape}, {values_T.shape}, {mask_T.shape}.")
    rewards_T, values_T = np.where(mask_T, rewards_T, 0.0), np.where(mask_T, values_T, 0.0)
    advantages_T = np.zeros_like(rewards_T)
    next_value = next_advantage = np.zeros(rewards_T.shape[:-1])
    for t in range(rewards_T.shape[-1] - 1, -1, -1):
        keep = mask_T[..., t]
        delta = rewards_T[..., t] + gamma * next_value - values_T[..., t]
        advantage = delta + gamma * lam * next_advantage
        next_value = np.where(keep, values_T[..., t], next_value)
        next_advantage = np.where(keep, advantage, next_advantage)
        advantages_T[..., t] = np.where(keep, advantage, 0.0)
    return advantages_T, advantages_T + values_T


def whiten(values_T: ArrayLike, mask_T: ArrayLike, *, ddof: int = 1, eps: float = 1e-8) -> np.ndarray:
    """(x - mean) / sqrt(variance + eps) over the True positions, 0 elsewhere; one known position gives 0.

    The usual last step of PPO. The form with eps under the root is verl's and TRL's.
    """
    values_T = np.asarray(values_T, dtype=np.float64)
    mask_T = np.asarray(mask_T, dtype=bool)
    if values_T.shape != mask_T.shape:
        raise ValueError(f"Expected equal shapes, got {values_T.shape} and {mask_T.shape}.")
    known = values_T[mask_T]
    out = np.zeros_like(values_T)
    if known.size > ddof and known.size and known.min() != known.max():
        out[mask_T] = (known - known.mean()) / np.sqrt(known.var(ddof=ddof) + eps)
    return out


def _standardise(values: np.ndarray, *, std: bool, ddof: int = 1, eps: float = EPS) -> np.ndarray:
    """(x - mean) / (std + eps) over the values that are known; NaN stays NaN."""
    known = values[~np.isnan(values)]
    if np.isinf(known).any():
        raise ValueError("Rewards must be finite or NaN, got an infinite one.")
    if known.size <= max(ddof if std else 0, 1) or known.min() == known.max():
        return np.where(np.isnan(values), np.nan, 0.0)
    centred = values - known.mean()
    return centred / (known.std(ddof=ddof) + eps) if std else centred


def _vector(name: str, values: ArrayLike) -> np.ndarray:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1:
        raise ValueError(f"{name} must have one axis, got shape {array.shape}.")
    return array
