"""Credit on disk: the figures of a `CreditReport` and the probabilities that they come from, as one JSON file."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from mempo_agents.learners.diagnostics import CreditReport
from mempo_agents.learners.memory_reward import MemoryScores
from mempo_agents.spans import decode_text, token_ends
from mempo_agents.trajectory import Group, Trajectory
from mempo_env.errors import DataError

SCHEMA_VERSION = 1


def write_report(
    path: Path,
    report: CreditReport,
    groups: Sequence[Group],
    scored: Sequence[Sequence[MemoryScores]],
    source: Mapping[str, Any],
    tokenizer: Any = None,
) -> None:
    """Write the figures, what they were computed with, and P(answer | ...) of every step; unknown is null.

    With the `tokenizer` that the scores were made with, the answer's own tokens and their probabilities as well.
    """
    rows = [
        {
            "task_id": trajectory.task_id,
            "policy": trajectory.policy,
            "sample": trajectory.sample,
            "p_memory": [_number(p) for p in scores.memory_S],
            "p_history": [_number(p) for p in scores.history_S],
            "rewarded": scores.rewarded_S.tolist(),
            **_tokens(scores, tokenizer),
        }
        for group, group_scores in zip(groups, scored, strict=True)
        for trajectory, scores in zip(group.trajectories, group_scores, strict=True)
    ]
    record = {"schema_version": SCHEMA_VERSION, "source": dict(source), "report": asdict(report), "scores": rows}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def _tokens(scores: MemoryScores, tokenizer: Any) -> dict[str, Any]:
    """`tokens`: texts [A], and per step the probabilities [A] given the memory and the history, null where unknown."""
    if tokenizer is None or scores.answer_ids is None or scores.memory_SA is None or scores.history_SA is None:
        return {}
    ends = token_ends(tokenizer, scores.answer_ids)
    text = decode_text(tokenizer, scores.answer_ids)
    return {
        "tokens": {
            "text": [text[start:end] for start, end in pairwise([0, *ends.tolist()])],
            "p_memory": [_rounded(row) for row in scores.memory_SA],
            "p_history": [_rounded(row) for row in scores.history_SA],
        }
    }


def _rounded(values: np.ndarray) -> list[float] | None:
    return None if np.isnan(values).any() else [float(f"{value:.6g}") for value in values]


def read_scores(path: Path, groups: Sequence[Group]) -> tuple[list[list[MemoryScores]], dict[str, Any]]:
    """The scores that `write_report` wrote, for these groups, and what they were computed with.

    Raises DataError for another file, or one without the scores of a trajectory.
    """
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        rows = {(row["task_id"], row["policy"], row["sample"]): row for row in record["scores"]}
        source, version = dict(record["source"]), record["schema_version"]
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} is not a file that `mempo credit --json` wrote: {error!r}.") from None
    if version != SCHEMA_VERSION:
        raise DataError(f"{path}: expected schema_version {SCHEMA_VERSION}, got {version!r}.")
    return [[_scores(path, rows, trajectory) for trajectory in group.trajectories] for group in groups], source


def _scores(path: Path, rows: Mapping[tuple[str, str, int], Mapping[str, Any]], trajectory: Trajectory) -> MemoryScores:
    key = (trajectory.task_id, trajectory.policy, trajectory.sample)
    row = rows.get(key)
    if row is None or len(row["p_memory"]) != len(trajectory.steps):
        raise DataError(
            f"{path} has no scores for sample {key[2]} of task {key[0]!r} with {len(trajectory.steps)} steps."
        )
    memory_S, history_S = (
        np.array([math.nan if p is None else p for p in row[name]], dtype=np.float64)
        for name in ("p_memory", "p_history")
    )
    return MemoryScores(memory_S, history_S, np.array(row["rewarded"], dtype=bool))


def _number(value: float) -> float | None:
    return None if math.isnan(value) else float(value)
