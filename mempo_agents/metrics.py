"""What an episode scored and what it cost. Each figure is defined here and nowhere else.

Tokens are the policy's own: a step's prompt holds P tokens (chat template included) and its response T sampled tokens.

    steps               calls of the policy
    prompt_tokens       sum of P over the steps
    generated_tokens    sum of T over the steps
    observation_tokens  sum of the tokens of the replies; they are prompt tokens of later steps, so in no total
    total_tokens        sum of P + T: every token that was processed, history counted each time it was read again
    peak_tokens         largest P + T of a single step
    dependency          sum of T * P + T * (T - 1) / 2: for every generated token, how many tokens stood before it
    compression         per step: P / (the P that the whole history would have made); 1 under the rule `full`
    seconds             wall time; in a batch, an episode's share of the calls it took part in

F1, EM and all-correct are means over episodes of means over objectives, in [0, 1]. An episode that failed for reasons
that are not the policy's is kept and counted, and left out of the scores: where nothing is scored, a score is None,
not 0.

Sources: totals and peak as in MemPO (arXiv 2603.00680: TT, PT); dependency as in MEM1 (arXiv 2506.15841) with exact
causal counting, each token once, the prompt included.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mempo_agents.trajectory import Trajectory
from mempo_env.types import StopReason

_MEANS = ("f1", "em", "all_correct", "reward", "format_valid", "steps", "invalid_steps", "prompt_tokens",
          "generated_tokens", "observation_tokens", "total_tokens", "peak_tokens", "dependency", "seconds")  # fmt: skip
_INTERVALS = ("f1", "em", "all_correct", "total_tokens", "peak_tokens", "steps")


@dataclass(frozen=True, slots=True)
class Metrics:
    """One episode's figures, as defined at the top of this module. Scores are None when the episode failed."""

    f1: float | None
    em: float | None
    all_correct: float | None
    format_valid: float
    reward: float | None
    failed: bool
    stop_reason: StopReason
    steps: int
    invalid_steps: int
    prompt_tokens: int
    generated_tokens: int
    observation_tokens: int
    total_tokens: int
    peak_tokens: int
    dependency: int
    prompt_tokens_by_step: tuple[int, ...]
    compression_by_step: tuple[float, ...]
    seconds: float


def measure(trajectory: Trajectory) -> Metrics:
    """The figures of one episode. `format_valid` is 1 when every step obeyed the protocol, 0 when there is no step."""
    prompts = [len(step.prompt_ids) for step in trajectory.steps]
    outputs = [len(step.response_ids) for step in trajectory.steps]
    scored = not trajectory.failed
    return Metrics(
        f1=_mean(trajectory.f1) if scored else None,
        em=_mean(trajectory.em) if scored else None,
        all_correct=_known(trajectory.reward_parts.get("all_correct")) if scored else None,
        format_valid=float(bool(prompts) and all(step.format_valid for step in trajectory.steps)),
        reward=_known(trajectory.reward) if scored else None,
        failed=trajectory.failed,
        stop_reason=trajectory.stop_reason,
        steps=len(prompts),
        invalid_steps=sum(step.invalid_reason is not None for step in trajectory.steps),
        prompt_tokens=sum(prompts),
        generated_tokens=sum(outputs),
        observation_tokens=sum(step.observation_tokens for step in trajectory.steps),
        total_tokens=sum(prompts) + sum(outputs),
        peak_tokens=max((p + o for p, o in zip(prompts, outputs, strict=True)), default=0),
        dependency=dependency(prompts, outputs),
        prompt_tokens_by_step=tuple(prompts),
        compression_by_step=tuple(
            p / step.history_tokens if step.history_tokens else math.nan
            for p, step in zip(prompts, trajectory.steps, strict=True)
        ),
        seconds=trajectory.seconds,
    )


def dependency(prompt_tokens: Sequence[int], generated_tokens: Sequence[int]) -> int:
    """Sum over steps of o * p + o * (o - 1) / 2: how many earlier tokens each generated token could attend to."""
    return sum(o * p + o * (o - 1) // 2 for p, o in zip(prompt_tokens, generated_tokens, strict=True))


def summarise(trajectories: Sequence[Trajectory], *, confidence: float = 0.95, seed: int = 0) -> dict[str, Any]:
    """One cell of a results table: means over the episodes, JSON-ready, unknown as None.

    Keys: tasks, episodes, failed, stop_reasons (counts), the means of the fields of `Metrics`,
    `prompt_tokens_by_step` and `compression_by_step` (the mean at step s over the episodes that reached it), and
    `intervals`: [low, high] for f1, em, all_correct, total_tokens, peak_tokens and steps, by bootstrap over tasks.
    Costs include the failed episodes.
    """
    rows = [measure(trajectory) for trajectory in trajectories]
    tasks = [trajectory.task_id for trajectory in trajectories]
    cell: dict[str, Any] = {
        "tasks": len(set(tasks)),
        "episodes": len(rows),
        "failed": sum(row.failed for row in rows),
        "stop_reasons": {str(reason): sum(row.stop_reason == reason for row in rows) for reason in StopReason},
    }
    for name in _MEANS:
        cell[name] = _mean([getattr(row, name) for row in rows])
    for name in ("prompt_tokens_by_step", "compression_by_step"):
        cell[name] = _by_step([getattr(row, name) for row in rows])
    cell["intervals"] = {
        name: bootstrap_interval([getattr(row, name) for row in rows], tasks, confidence=confidence, seed=seed)
        for name in _INTERVALS
    }
    return cell


def bootstrap_interval(
    values: Sequence[float | None],
    groups: Sequence[str] | None = None,
    *,
    confidence: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> list[float] | None:
    """[low, high] of the mean of `values`, by percentile bootstrap. Unknown values (None, NaN) are left out.

    `groups` names what each value belongs to (its task); whole groups are drawn, because samples of one task are not
    independent. Without it every value is its own group. None with fewer than two known groups; the order of `values`
    within a group is irrelevant. Efron and Tibshirani, An Introduction to the Bootstrap (1993), chapter 13.
    """
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must lie between 0 and 1, got {confidence}.")
    names = [str(index) for index in range(len(values))] if groups is None else list(groups)
    sums: dict[str, float] = {}
    counts: dict[str, int] = {}
    for name, value in zip(names, values, strict=True):
        if (known := _known(value)) is not None:
            sums[name] = sums.get(name, 0.0) + known
            counts[name] = counts.get(name, 0) + 1
    if len(sums) < 2:
        return None  # the spread of one task is unknown
    total_N, count_N = np.array(list(sums.values())), np.array(list(counts.values()))
    draws = np.random.default_rng(seed).integers(0, len(total_N), size=(resamples, len(total_N)))
    means = total_N[draws].sum(axis=1) / count_N[draws].sum(axis=1)
    tail = (1 - confidence) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    return [float(low), float(high)]


def _by_step(rows: Sequence[Sequence[float]]) -> list[float | None]:
    longest = max((len(row) for row in rows), default=0)
    return [_mean([row[step] for row in rows if step < len(row)]) for step in range(longest)]


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in map(_known, values) if value is not None]
    return sum(known) / len(known) if known else None


def _known(value: Any) -> float | None:
    return None if value is None or math.isnan(value) else float(value)
