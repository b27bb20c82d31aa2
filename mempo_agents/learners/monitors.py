"""What to watch while a policy learns, and when to stop. Each figure is defined here and nowhere else."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from mempo_agents.learners.memory_reward import MemoryScores, memory_rewards
from mempo_agents.learners.processes import Processes
from mempo_agents.trajectory import Trajectory


def rollout_figures(
    groups: Sequence[Sequence[Trajectory]],
    scores: Sequence[Sequence[MemoryScores] | None] | None = None,
    processes: Processes | None = None,
) -> dict[str, float]:
    """Means over the episodes of all processes; NaN where nothing is known. Failed episodes count in `failed` only.

    reward_mean, f1, em, all_correct: per episode. format_valid: the share of steps that obeyed the protocol.
    steps: per episode. response_tokens: per step. answered: the share of episodes that ended with an answer.
    truncated_share: of steps that the token limit cut off. degenerate_groups: the share of groups in which all rewards
    are equal, which teach GRPO nothing. right_logprob: the mean log-probability of the sampled tokens in episodes with
    all answers right; where it falls for long, training is about to collapse. memory_reward, memory_probability: the
    means of R_M and of P(answer | memory) over the steps that have one.
    """
    sums: dict[str, float] = {}
    counts: dict[str, float] = {}

    def add(name: str, value: float) -> None:
        if not math.isnan(value):
            sums[name] = sums.get(name, 0.0) + value
            counts[name] = counts.get(name, 0.0) + 1

    for number, group in enumerate(groups):
        known = [t.reward for t in group if not t.failed]
        if len(group) > 1:
            add("degenerate_groups", float(len(known) < 2 or max(known) - min(known) < 1e-9))
        for place, trajectory in enumerate(group):
            add("failed", float(trajectory.failed))
            if not trajectory.failed:
                _add_episode(trajectory, add)
                group_scores = None if scores is None else scores[number]
                if group_scores is not None:
                    _add_memory(group_scores[place], add)
    told = processes.gather((sums, counts)) if processes is not None else [(sums, counts)]
    figures = {}
    for name in _NAMES:
        count = sum(part.get(name, 0.0) for _, part in told)
        figures[name] = sum(part.get(name, 0.0) for part, _ in told) / count if count else math.nan
    return figures


_NAMES = (
    "reward_mean", "f1", "em", "all_correct", "format_valid", "answered", "steps", "response_tokens",
    "truncated_share", "degenerate_groups", "right_logprob", "memory_reward", "memory_probability", "failed",
)  # fmt: skip


def _add_episode(trajectory: Trajectory, add: Any) -> None:
    right = bool(trajectory.reward_parts.get("all_correct", 0.0))
    add("reward_mean", trajectory.reward)
    add("f1", float(np.mean(trajectory.f1)))
    add("em", float(np.mean(trajectory.em)))
    add("all_correct", float(right))
    add("answered", float(trajectory.answer is not None))
    add("steps", float(len(trajectory.steps)))
    for step in trajectory.steps:
        add("format_valid", float(step.format_valid))
        add("response_tokens", float(len(step.response_ids)))
        add("truncated_share", float(step.finish_reason == "length"))
        if right and step.policy_mask.any():
            add("right_logprob", float(np.mean(step.logprobs[step.policy_mask])))


def _add_memory(scores: MemoryScores, add: Any) -> None:
    for gain, level in zip(memory_rewards(scores), scores.memory_S, strict=True):
        if not math.isnan(gain):
            add("memory_reward", float(gain))
            add("memory_probability", float(level))


class CollapseRule:
    """Stops a run whose policy has lost the protocol: when the mean share of well-formed steps over the last five
    updates has fallen below `share` times the best such mean. 0 never stops. Updates whose share is unknown are
    passed over."""

    WINDOW = 5

    def __init__(self, share: float) -> None:
        if not 0 <= share < 1:
            raise ValueError(f"collapse: expected a share in [0, 1), got {share}.")
        self.share = share
        self._recent: list[float] = []
        self._best = 0.0

    def __call__(self, format_valid: float) -> str | None:
        """Takes the share of one update; gives the reason to stop, or None."""
        if math.isnan(format_valid):
            return None
        self._recent = [*self._recent, format_valid][-self.WINDOW :]
        if len(self._recent) < self.WINDOW:
            return None
        mean = sum(self._recent) / self.WINDOW
        self._best = max(self._best, mean)
        if mean < self.share * self._best:
            return f"collapse: {mean:.0%} of the steps are well-formed, at best it was {self._best:.0%}"
        return None

    def state(self) -> dict[str, Any]:
        return {"recent": self._recent, "best": self._best}

    def load(self, state: dict[str, Any]) -> None:
        self._recent, self._best = list(state["recent"]), state["best"]
