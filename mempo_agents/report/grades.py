"""Credit of every trajectory: A_T from the rewards of its group, and R_M and A_M where `mempo credit` has scored it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mempo_agents.learners.advantages import EPS, memory_advantages, trajectory_advantages
from mempo_agents.learners.credit_files import read_scores
from mempo_agents.learners.estimators import memory_rewards_of
from mempo_agents.learners.groups import group_batch, groups_of
from mempo_agents.trajectory import Group, Trajectory

Key = tuple[str, str, int]
"""Task, policy, sample."""


def key_of(trajectory: Trajectory) -> Key:
    return trajectory.task_id, trajectory.policy, trajectory.sample


def outcome_groups(trajectories: Sequence[Trajectory]) -> dict[tuple[str, str], dict[str, Any]]:
    """Per task and policy: members, rewards, their mean and deviation (over n - 1), and A_T; unknown is None."""
    groups = {}
    for group in groups_of(trajectories):
        rewards_G = np.array([math.nan if t.failed else t.reward for t in group.trajectories])
        known = rewards_G[~np.isnan(rewards_G)]
        groups[group.task_id, group.trajectories[0].policy] = {
            "samples": [t.sample for t in group.trajectories],
            "rewards": [_known(x) for x in rewards_G],
            "mean": float(known.mean()) if len(known) else None,
            "deviation": float(known.std(ddof=1)) if len(known) > 1 else None,
            "eps": EPS,
            "advantages": trajectory_advantages(rewards_G).tolist(),
        }
    return groups


def memory_grades(path: Path, trajectories: Sequence[Trajectory]) -> tuple[dict[Key, dict[str, Any]], dict[str, Any]]:
    """Per trajectory the lists [S] p_memory, p_history, reward (R_M), advantage (A_M), None where unknown; the figures.

    `path` is what `mempo credit --json` wrote. Groups of which it lacks a member are left out: their pool is unknown.
    Where the file has the answer's own tokens, they come along as `tokens`.
    """
    record = json.loads(path.read_text(encoding="utf-8"))
    rows = {(row["task_id"], row["policy"], row["sample"]): row for row in record.get("scores", ())}
    whole = [group for group in groups_of(trajectories) if _all_scored(group, rows)]
    scored, source = read_scores(path, whole)
    baseline = record["report"]["baseline"]
    grades: dict[Key, dict[str, Any]] = {}
    for group, scores in zip(whole, scored, strict=True):
        rewards_GS = memory_rewards_of(group_batch(group, scores), baseline)
        advantages_GS = memory_advantages(rewards_GS, per_step=bool(source.get("per_step", False)))
        pool = rewards_GS[~np.isnan(rewards_GS)]
        for g, trajectory in enumerate(group.trajectories):
            steps = len(trajectory.steps)
            grades[key_of(trajectory)] = {
                "p_memory": _list(scores[g].memory_S),
                "p_history": _list(scores[g].history_S),
                "reward": _list(rewards_GS[g, :steps]),
                "advantage": _list(advantages_GS[g, :steps]),
                "pool_mean": float(pool.mean()) if len(pool) else None,
                "pool_deviation": float(pool.std(ddof=1)) if len(pool) > 1 else None,
                "pool_size": len(pool),
                "tokens": rows[key_of(trajectory)].get("tokens"),
            }
    return grades, {"source": source, "figures": record["report"], "file": path.name}


def _all_scored(group: Group, rows: Mapping[Key, Mapping[str, Any]]) -> bool:
    return all(key_of(t) in rows and len(rows[key_of(t)]["p_memory"]) == len(t.steps) for t in group.trajectories)


def _list(values: np.ndarray) -> list[float | None]:
    return [_known(x) for x in values.tolist()]


def _known(value: float) -> float | None:
    return None if math.isnan(value) else float(value)
