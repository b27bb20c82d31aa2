"""What an estimator reads: one task's trajectories as arrays, ragged over steps and tokens."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from mempo_agents.learners.memory_reward import MemoryScores
from mempo_agents.trajectory import Group, Trajectory

TokenAdvantages = list[list[np.ndarray]]
"""One float32 [T] array per step of each trajectory: [G][S]."""


@dataclass(frozen=True, slots=True)
class GroupBatch:
    """The numbers of one group; G trajectories, each with its own S steps, each with its own T response tokens.

    rewards_G: float64 [G], NaN for a failed trajectory. parts_G: every reward by name, float64 [G], NaN where unknown.
    policy_masks: [G][S] bool [T], False where guided decoding forced the token. memory_spans: [G] int64 [S, 2], token
    ranges, (0, 0) for none. scores: [G] P(answer | ...) by step, None when they were not computed. values: [G][S]
    float [T], a critic's, None without one.
    """

    task_id: str
    rewards_G: np.ndarray
    policy_masks: list[list[np.ndarray]]
    memory_spans: list[np.ndarray]
    parts_G: Mapping[str, np.ndarray] = field(default_factory=dict)
    scores: Sequence[MemoryScores] | None = None
    values: list[list[np.ndarray]] | None = None

    @property
    def size(self) -> int:
        return len(self.rewards_G)

    @property
    def steps_G(self) -> np.ndarray:
        return np.array([len(masks) for masks in self.policy_masks], dtype=np.int64)

    @property
    def scored_G(self) -> np.ndarray:
        """Trajectories that ended for reasons of their own: bool [G]."""
        return ~np.isnan(self.rewards_G)

    def reward(self, name: str | None = None) -> np.ndarray:
        """`rewards_G`, or the part `name`; NaN where the trajectory failed. Raises ValueError for an unknown part."""
        if name is None:
            return self.rewards_G
        if name not in self.parts_G:
            known = ", ".join(sorted(self.parts_G)) or "none"
            raise ValueError(f"Group {self.task_id!r} has no reward {name!r}. It has: {known}.")
        return np.where(self.scored_G, self.parts_G[name], np.nan)


def groups_of(trajectories: Iterable[Trajectory]) -> list[Group]:
    """Trajectories of one task and policy belong together, in the order of their samples; groups as first seen."""
    found: dict[tuple[str, str], list[Trajectory]] = {}
    for trajectory in trajectories:
        found.setdefault((trajectory.task_id, trajectory.policy), []).append(trajectory)
    return [Group(task, tuple(sorted(members, key=lambda t: t.sample))) for (task, _), members in found.items()]


def group_batch(
    group: Group | Sequence[Trajectory],
    scores: Sequence[MemoryScores] | None = None,
    values: list[list[np.ndarray]] | None = None,
) -> GroupBatch:
    """The arrays of a group. `scores` and `values` belong to its trajectories, in order.

    Raises ValueError for trajectories of different tasks, or of one number and scores of another.
    """
    trajectories = group.trajectories if isinstance(group, Group) else tuple(group)
    if not trajectories:
        raise ValueError("A group needs at least one trajectory.")
    tasks = {t.task_id for t in trajectories}
    if len(tasks) > 1:
        raise ValueError(f"A group shares one task, got {len(tasks)}: {', '.join(sorted(tasks)[:3])}, ...")
    for name, given in (("scores", scores), ("values", values)):
        if given is not None and len(given) != len(trajectories):
            raise ValueError(f"Expected {name} for {len(trajectories)} trajectories, got {len(given)}.")
    names = sorted({name for t in trajectories for name in t.reward_parts})
    return GroupBatch(
        task_id=trajectories[0].task_id,
        rewards_G=np.array([math.nan if t.failed else t.reward for t in trajectories], dtype=np.float64),
        policy_masks=[[np.asarray(step.policy_mask, dtype=bool) for step in t.steps] for t in trajectories],
        memory_spans=[
            np.array([step.spans.get("memory", (0, 0)) for step in t.steps], dtype=np.int64).reshape(-1, 2)
            for t in trajectories
        ],
        parts_G={name: np.array([t.reward_parts.get(name, math.nan) for t in trajectories]) for name in names},
        scores=scores,
        values=values,
    )


def loss_masks(batch: GroupBatch) -> list[list[np.ndarray]]:
    """Which tokens may enter a loss, [G][S] bool [T]: those the policy chose, in trajectories that did not fail."""
    return [
        [mask & bool(scored) for mask in masks]
        for masks, scored in zip(batch.policy_masks, batch.scored_G, strict=True)
    ]
