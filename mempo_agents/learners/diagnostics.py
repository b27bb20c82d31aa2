"""What the memory advantage does in a set of groups, before anybody trains on it.

The reward P(answer | memory) - P(answer | full history) has a known bias: the history only ever gains results, so later
steps tend to get less, and the pooled advantage rewards being early. These figures say how much of that a run has.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mempo_agents.learners.advantages import memory_advantages, trajectory_advantages
from mempo_agents.learners.estimators import memory_rewards_of
from mempo_agents.learners.groups import GroupBatch
from mempo_agents.learners.memory_reward import Baseline
from mempo_agents.metrics import bootstrap_interval

QUANTITIES = ("memory_reward", "p_memory", "p_history", "memory_advantage")
_ROUNDING = 1e-9  # a credit below this is a zero that rounding has touched


@dataclass(frozen=True, slots=True)
class CreditReport:
    """Figures of memory credit over groups; None where there was nothing to compute from.

    by_step: per step index (from 0), for each of QUANTITIES its mean, [low, high] 95 % bootstrap interval over tasks,
    and count. step_share: the share of the variance of A_M that the step index alone explains (eta squared, in [0, 1]).
    reversal_rate: among steps with A_T and A_M both non-zero, how often the memory tokens' A_T + weight * A_M has the
    other sign than A_T. opposition_rate: how often A_M has the other sign. degenerate_outcomes, degenerate_memories:
    the shares of groups whose outcome rewards, or memory rewards, are all equal or too few to compare. early_late: mean
    A_M of each trajectory's first rewarded step minus that of its last, over trajectories with at least two.
    """

    groups: int
    trajectories: int
    failed: int
    steps: int
    rewarded_steps: int
    baseline: str
    by_step: list[dict[str, Any]]
    step_share: float | None
    reversal_rate: float | None
    opposition_rate: float | None
    early_late: float | None
    early_late_interval: list[float] | None
    degenerate_outcomes: float
    degenerate_memories: float


def diagnose(
    batches: Sequence[GroupBatch], *, baseline: Baseline = "history", weight: float = 1.0, per_step: bool = False
) -> CreditReport:
    """The report on `batches`, whose scores must be known. Failed trajectories are counted and left out.

    baseline, weight, per_step: as in the estimator `mempo`. Raises ValueError without groups or without scores.
    """
    if not batches:
        raise ValueError("There is no group to diagnose.")
    if missing := [batch.task_id for batch in batches if batch.scores is None]:
        raise ValueError(f"Groups without scores: {', '.join(missing[:3])}. Compute them with memory_scores.")
    records: list[tuple[str, int, int, float, dict[str, float]]] = []  # task, trajectory, step, A_T, quantities
    flat_outcomes = flat_memories = 0
    for batch in batches:
        outcome_G = trajectory_advantages(batch.rewards_G)
        rewards_GS = memory_rewards_of(batch, baseline)
        credit_GS = memory_advantages(rewards_GS, per_step=per_step)
        flat_outcomes += not np.any(outcome_G)
        flat_memories += not np.nan_to_num(credit_GS).any()
        for g in np.flatnonzero(batch.scored_G):
            scores = batch.scores[int(g)]  # type: ignore[index]
            for s in range(len(scores.memory_S)):
                values = (rewards_GS[g, s], scores.memory_S[s], scores.history_S[s], credit_GS[g, s])
                quantities = dict(zip(QUANTITIES, map(float, values), strict=True))
                records.append((batch.task_id, int(g), s, float(outcome_G[g]), quantities))
    credited = [record for record in records if not math.isnan(record[4]["memory_advantage"])]
    both = [(a, record["memory_advantage"]) for *_, a, record in credited]
    both = [(a, m) for a, m in both if min(abs(a), abs(m)) > _ROUNDING]
    gaps, gap_tasks = _gaps(credited)
    return CreditReport(
        groups=len(batches),
        trajectories=sum(batch.size for batch in batches),
        failed=sum(int((~batch.scored_G).sum()) for batch in batches),
        steps=len(records),
        rewarded_steps=len(credited),
        baseline=baseline,
        by_step=_by_step(records),
        step_share=explained_share(
            [record["memory_advantage"] for *_, record in credited], [step for _, _, step, _, _ in credited]
        ),
        reversal_rate=_share(np.sign(a + weight * m) == -np.sign(a) for a, m in both),
        opposition_rate=_share(np.sign(m) == -np.sign(a) for a, m in both),
        early_late=float(np.mean(gaps)) if gaps else None,
        early_late_interval=bootstrap_interval(gaps, gap_tasks),
        degenerate_outcomes=flat_outcomes / len(batches),
        degenerate_memories=flat_memories / len(batches),
    )


def explained_share(values: Sequence[float], classes: Sequence[int]) -> float | None:
    """Eta squared: variance between the classes' means over the variance of all, in [0, 1]; None when that is 0."""
    x, c = np.asarray(values, dtype=np.float64), np.asarray(classes)
    if len(x) < 2 or x.min() == x.max():
        return None
    between = sum(np.sum(c == k) * (x[c == k].mean() - x.mean()) ** 2 for k in np.unique(c))
    return float(between / np.sum((x - x.mean()) ** 2))


def _by_step(records: Sequence[tuple[str, int, int, float, dict[str, float]]]) -> list[dict[str, Any]]:
    rows = []
    for step in sorted({s for _, _, s, _, _ in records}):
        row: dict[str, Any] = {"step": step}
        for name in QUANTITIES:
            known = [(q[name], task) for task, _, s, _, q in records if s == step and not math.isnan(q[name])]
            values, tasks = [v for v, _ in known], [t for _, t in known]
            row[name] = {
                "mean": float(np.mean(values)) if values else None,
                "interval": bootstrap_interval(values, tasks),
                "count": len(values),
            }
        rows.append(row)
    return rows


def _gaps(credited: Sequence[tuple[str, int, int, float, dict[str, float]]]) -> tuple[list[float], list[str]]:
    """First minus last memory advantage of each trajectory with at least two, and the task of each."""
    series: dict[tuple[str, int], list[float]] = {}
    for task, g, _, _, quantities in credited:
        series.setdefault((task, g), []).append(quantities["memory_advantage"])
    long = {key: values for key, values in series.items() if len(values) > 1}
    return [values[0] - values[-1] for values in long.values()], [task for task, _ in long]


def _share(flags: Any) -> float | None:
    listed = [bool(flag) for flag in flags]
    return sum(listed) / len(listed) if listed else None
