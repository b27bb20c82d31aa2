"""Estimators: from a group of trajectories to the advantage of every response token, by name.

    get_estimator("mempo", weight=0.5)(batch)  ->  [G][S] float32 [T]

In every estimator, tokens that guided decoding forced get 0, as do all tokens of a failed trajectory; trajectories that
did not fail are treated as if the failed ones were not there. Formulas: `advantages.py`. A new one takes a function and
the decorator; `docs/estimators.md` writes one.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from mempo_agents.learners import advantages as adv
from mempo_agents.learners.groups import GroupBatch, TokenAdvantages
from mempo_agents.learners.memory_reward import Baseline, MemoryScores, memory_rewards
from mempo_env.errors import UnknownNameError

EstimatorFunction = Callable[..., TokenAdvantages]


@dataclass(frozen=True, slots=True)
class Estimator:
    """A registered function with its options. `needs` names the parts of a `GroupBatch` that must not be None."""

    name: str
    function: EstimatorFunction
    needs: frozenset[str]
    options: Mapping[str, Any]
    description: str

    def __call__(self, batch: GroupBatch) -> TokenAdvantages:
        for part in sorted(self.needs):
            if getattr(batch, part) is None:
                raise ValueError(f"Estimator {self.name!r} needs {part}, but group {batch.task_id!r} comes without.")
        return self.function(batch, **self.options)


_REGISTRY: dict[str, Estimator] = {}


def register_estimator(
    name: str, *, needs: tuple[str, ...] = (), description: str = "", **options: Any
) -> Callable[[EstimatorFunction], EstimatorFunction]:
    """Decorator: make `function(batch, **options)` known as `name`. needs: "scores", "values", or both.

    Raises ValueError for a taken name or for parts that a `GroupBatch` does not have.
    """
    if name in _REGISTRY:
        raise ValueError(f"An estimator named {name!r} is already registered.")
    if unknown := set(needs) - {"scores", "values"}:
        raise ValueError(f"needs: expected 'scores' or 'values', got {sorted(unknown)}.")

    def register(function: EstimatorFunction) -> EstimatorFunction:
        text = description or (inspect.getdoc(function) or "").partition("\n")[0]
        _REGISTRY[name] = Estimator(name, function, frozenset(needs), options, text)
        return function

    return register


def get_estimator(name: str, **options: Any) -> Estimator:
    """The estimator `name` with `options` over its own. Raises UnknownNameError, or TypeError for unknown options."""
    if name not in _REGISTRY:
        raise UnknownNameError("estimator", name, _REGISTRY)
    found = _REGISTRY[name]
    merged = {**found.options, **options}
    try:
        inspect.signature(found.function).bind(None, **merged)
    except TypeError as error:
        known = ", ".join(list(inspect.signature(found.function).parameters)[1:]) or "none"
        raise TypeError(f"Estimator {name!r}: {error}. Its options: {known}.") from None
    return Estimator(name, found.function, found.needs, merged, found.description)


def estimator_names() -> list[str]:
    return sorted(_REGISTRY)


@register_estimator("dr_grpo", description="GRPO without the division by the deviation (arXiv 2503.20783).", std=False)
@register_estimator(
    "mem1", description="GRPO on MEM1's reward, the sum of EM (its paper: PPO, see gae).", reward="sum_em"
)
@register_estimator("grpo")
def grpo(
    batch: GroupBatch, *, reward: str | None = None, std: bool = True, ddof: int = 1, eps: float = adv.EPS
) -> TokenAdvantages:
    """(r - mean) / (std + eps) on every token of the trajectory (arXiv 2402.03300)."""
    return spread(batch, adv.trajectory_advantages(batch.reward(reward), std=std, ddof=ddof, eps=eps))


@register_estimator("reinforce")
def reinforce(batch: GroupBatch, *, reward: str | None = None, baseline: float = 0.0) -> TokenAdvantages:
    """r - baseline on every token, the baseline a constant."""
    return spread(batch, np.nan_to_num(batch.reward(reward) - baseline, nan=0.0))


@register_estimator("rloo")
def rloo(batch: GroupBatch, *, reward: str | None = None) -> TokenAdvantages:
    """r - mean of the other trajectories' rewards (arXiv 2402.14740)."""
    return spread(batch, adv.leave_one_out_advantages(batch.reward(reward)))


@register_estimator("mempo_length", needs=("scores",), description="mempo, and long memories cost.", length_weight=0.1)
@register_estimator("mempo_none", needs=("scores",), description="mempo, R_M = P(answer | memory).", baseline="none")
@register_estimator(
    "mempo_previous", needs=("scores",), description="mempo, R_M against the memory before.", baseline="previous"
)
@register_estimator("mempo_clipped", needs=("scores",), description="mempo, |A_M| at most 1.", clip=1.0)
@register_estimator("mempo_nostd", needs=("scores",), description="mempo without deviations.", std=False)
@register_estimator("mempo_per_step", needs=("scores",), description="mempo, one pool per step index.", per_step=True)
@register_estimator("mempo_gated", needs=("scores",), description="mempo, A_M only where A_T >= 0.", gate=True)
@register_estimator("mempo", needs=("scores",))
def mempo(
    batch: GroupBatch,
    *,
    reward: str | None = None,
    baseline: Baseline = "history",
    weight: float = 1.0,
    std: bool = True,
    ddof: int = 1,
    eps: float = adv.EPS,
    per_step: bool = False,
    gate: bool = False,
    clip: float | None = None,
    length_weight: float = 0.0,
    budget_tokens: int = 128,
) -> TokenAdvantages:
    """GRPO's advantage, and on the tokens of each memory the memory advantage on top (arXiv 2603.00680).

    The length term takes length_weight * max(0, memory tokens - budget_tokens) / budget_tokens from R_M.
    """
    outcome_G = adv.trajectory_advantages(batch.reward(reward), std=std, ddof=ddof, eps=eps)
    rewards_GS = memory_rewards_of(batch, baseline)
    if length_weight:
        lengths = [spans[:, 1] - spans[:, 0] for spans in batch.memory_spans]
        rewards_GS -= adv.length_costs(_pad(lengths), budget_tokens=budget_tokens, weight=length_weight)
    memory_GS = adv.memory_advantages(
        rewards_GS, std=std, ddof=ddof, eps=eps, per_step=per_step, clip=clip, gate_G=outcome_G if gate else None
    )
    return spread(batch, outcome_G, memory_GS, weight=weight)


@register_estimator("igpo_joint", needs=("scores",), description="igpo, gains and outcomes in one pool.", joint=True)
@register_estimator("igpo", needs=("scores",))
def igpo(
    batch: GroupBatch,
    *,
    reward: str | None = None,
    gamma: float = 1.0,
    joint: bool = False,
    log: bool = False,
    ddof: int = 1,
    eps: float = adv.EPS,
) -> TokenAdvantages:
    """Information gain: each step earns the rise of P(answer | history); returns are summed over later steps.

    Gains and outcomes are standardised over the group apart from each other, or `joint`ly; `log` takes the gain of
    log P. Source: arXiv 2510.14967.
    """
    assert batch.scores is not None
    outcomes_G = batch.reward(reward)
    gains = []
    for scores, outcome in zip(batch.scores, outcomes_G, strict=True):
        with np.errstate(divide="ignore"):
            level_S = np.log(scores.history_S) if log else scores.history_S
        gains.append(adv.information_gains(level_S, outcome))
    steps_G, known_G = batch.steps_G, batch.scored_G & (batch.steps_G > 0)
    rewards_GS = _pad(gains)
    rewards_GS[~known_G] = np.nan
    last = (np.flatnonzero(known_G), steps_G[known_G] - 1)
    if joint:
        standard_GS = adv.memory_advantages(rewards_GS, ddof=ddof, eps=eps)
    else:
        gains_GS = rewards_GS.copy()
        gains_GS[last] = np.nan
        standard_GS = adv.memory_advantages(gains_GS, ddof=ddof, eps=eps)
        standard_GS[last] = adv.trajectory_advantages(outcomes_G, ddof=ddof, eps=eps)[known_G]
    returns = [
        adv.discounted_returns(np.nan_to_num(row[:steps], nan=0.0), gamma)
        for row, steps in zip(standard_GS, steps_G, strict=True)
    ]
    return [
        [np.where(mask, np.float32(value), np.float32(0)) for mask, value in zip(masks, values, strict=True)]
        for masks, values in zip(batch.policy_masks, returns, strict=True)
    ]


@register_estimator("gae", needs=("values",))
def gae(
    batch: GroupBatch, *, reward: str | None = None, gamma: float = 1.0, lam: float = 1.0, whiten: bool = True
) -> TokenAdvantages:
    """PPO's: generalised advantage estimation over the policy's tokens, across all steps of a trajectory.

    The reward stands on the last token that the policy chose. `whiten` standardises over the group's policy tokens.
    """
    assert batch.values is not None
    flat, masks_flat = [], []
    for masks, values, outcome in zip(batch.policy_masks, batch.values, batch.reward(reward), strict=True):
        mask_T = np.concatenate(masks) if masks else np.zeros(0, dtype=bool)
        mask_T = mask_T & (not math.isnan(outcome))
        values_T = np.concatenate(values).astype(np.float64) if values else np.zeros(0)
        rewards_T = np.zeros(len(mask_T))
        if mask_T.any():
            rewards_T[np.flatnonzero(mask_T)[-1]] = outcome
        flat.append(adv.gae(rewards_T, values_T, mask_T, gamma=gamma, lam=lam)[0])
        masks_flat.append(mask_T)
    if whiten and flat:
        joined = adv.whiten(np.concatenate(flat), np.concatenate(masks_flat))
        flat = np.split(joined, np.cumsum([len(part) for part in flat])[:-1])
    return [
        np.split(part.astype(np.float32), np.cumsum([len(mask) for mask in masks])[:-1]) if masks else []
        for part, masks in zip(flat, batch.policy_masks, strict=True)
    ]


def memory_rewards_of(batch: GroupBatch, baseline: Baseline = "history") -> np.ndarray:
    """R_M of a group: float64 [G, S], NaN where there is none, a step does not exist, or the trajectory failed."""
    scores: list[MemoryScores] = list(batch.scores or ())
    rewards_GS = _pad([memory_rewards(one, baseline) for one in scores])
    rewards_GS[~batch.scored_G] = np.nan
    return rewards_GS


def spread(
    batch: GroupBatch, advantages_G: np.ndarray, memory_GS: np.ndarray | None = None, *, weight: float = 1.0
) -> TokenAdvantages:
    """Trajectory advantages on all tokens, memory advantages [G, S] (NaN: none) on those of the memories."""
    rows = [(g, s) for g, steps in enumerate(batch.steps_G) for s in range(steps)]
    masks = [batch.policy_masks[g][s] for g, s in rows]
    memory_R = [math.nan if memory_GS is None else memory_GS[g, s] for g, s in rows]
    credit = adv.token_advantages(
        [advantages_G[g] for g, _ in rows],
        memory_R,
        [len(mask) for mask in masks],
        np.concatenate(batch.memory_spans) if rows else np.zeros((0, 2), dtype=np.int64),
        weight=weight,
    )
    scored_G = batch.scored_G
    flat = [np.where(m & scored_G[g], a, np.float32(0)) for (g, _), a, m in zip(rows, credit, masks, strict=True)]
    at = np.cumsum([0, *batch.steps_G])
    return [flat[at[g] : at[g + 1]] for g in range(batch.size)]


def _pad(ragged: list[np.ndarray]) -> np.ndarray:
    """Rows of different lengths as float64 [G, S], NaN beyond their ends."""
    out = np.full((len(ragged), max((len(row) for row in ragged), default=0)), np.nan)
    for row, values in zip(out, ragged, strict=True):
        row[: len(values)] = values
    return out
