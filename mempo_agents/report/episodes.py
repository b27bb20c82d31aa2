"""An episode as the viewer shows it: plain JSON values, complete, every long text written once.

Lengths and offsets count UTF-16 units, as JavaScript does. Steps count from 0 here; the page shows them from 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from mempo_agents.metrics import Metrics, measure
from mempo_agents.report.presence import losses, presence_by_step
from mempo_agents.report.text import utf16_length
from mempo_agents.trajectory import Step, Trajectory
from mempo_env.rendering import word_diff

PARTS = ("memory", "think", "call", "answer")


def index_row(trajectory: Trajectory, run: str, lost: list[list[int]]) -> dict[str, Any]:
    """What the list of episodes shows, and what the sections count. `lost`: the viewer record's. Unknown is None."""
    metrics: Metrics = measure(trajectory)
    return {
        "run": run,
        "task": trajectory.task_id,
        "trajectory": f"{trajectory.policy}/{trajectory.sample}",
        "policy": trajectory.policy,
        "protocol": trajectory.protocol,
        "context": trajectory.context,
        "sample": trajectory.sample,
        "objectives": trajectory.objectives,
        "engine": trajectory.metadata.get("engine", ""),
        "guided": trajectory.guided,
        "f1": metrics.f1,
        "em": metrics.em,
        "reward": metrics.reward,
        "stop_reason": str(trajectory.stop_reason),
        "error": trajectory.error,
        "steps": metrics.steps,
        "total_tokens": metrics.total_tokens,
        "peak_tokens": metrics.peak_tokens,
        "prompt_tokens_by_step": list(metrics.prompt_tokens_by_step),
        "compression_by_step": [_known(x) for x in metrics.compression_by_step],
        "invalid": [step.invalid_reason for step in trajectory.steps],
        "tokens_by_part": tokens_by_part(trajectory.steps),
        "lost": lost,
    }


def tokens_by_part(steps: Sequence[Step]) -> dict[str, int]:
    """Tokens of all steps: the response's parts, what is in none of them ("other"), and the replies ("result")."""
    totals = dict.fromkeys((*PARTS, "other", "result"), 0)
    for step in steps:
        for name, tokens in step_parts(step).items():
            totals[name] += tokens
    return totals


def step_parts(step: Step) -> dict[str, int]:
    """Tokens of one step by part. "other": white space between the parts, and what stood outside the format."""
    parts = {name: end - start for name in PARTS for start, end in [step.spans.get(name, (0, 0))]}
    other = len(step.response_ids) - sum(parts.values())
    return {**parts, "other": other, "result": step.observation_tokens}


def viewer_record(trajectory: Trajectory) -> dict[str, Any]:
    """Everything that the viewer shows of one episode."""
    table = _Messages(trajectory)
    head = [table.number(message) for message in trajectory.head]
    presence = presence_by_step(trajectory)
    steps, memory = [], ""
    for s, step in enumerate(trajectory.steps):
        table.add_step(s, step)
        diff = None
        if step.memory is not None:
            diff = [[change[0], text] for change, text in word_diff(memory, step.memory)]
            memory = step.memory
        seen = presence[s]
        steps.append(
            {
                "messages": [table.number(message) for message in step.messages],
                "prompt_tokens": len(step.prompt_ids),
                "history_tokens": step.history_tokens,
                "observation_tokens": step.observation_tokens,
                "text": step.sampled_text,
                "kept": utf16_length(step.response) if step.sampled_text.startswith(step.response) else None,
                "pieces": piece_lengths(step),
                "forced": _runs_of(~np.asarray(step.policy_mask, dtype=bool)),
                "logprobs": _logprobs(step.logprobs),
                "spans": {name: list(span) for name, span in step.spans.items()},
                "parts": step_parts(step),
                "memory": step.memory,
                "diff": diff,
                "action": step.action,
                "argument": step.argument,
                "invalid": step.invalid_reason,
                "format_valid": step.format_valid,
                "observation": step.observation,
                "hits": list(step.hit_ids),
                "finish_reason": step.finish_reason,
                "seconds": round(step.seconds, 3),
                "in_memory": seen.memory,
                "in_reply": seen.reply,
                "in_view": seen.view,
            }
        )
    return {
        "questions": list(trajectory.questions),
        "answers": [list(aliases) for aliases in trajectory.answers],
        "answer": trajectory.answer,
        "em": [_known(x) for x in trajectory.em],
        "f1": [_known(x) for x in trajectory.f1],
        "reward_parts": {name: _known(x) for name, x in trajectory.reward_parts.items()},
        "error": trajectory.error,
        "seed": trajectory.seed,
        "seconds": round(trajectory.seconds, 3),
        "metadata": dict(trajectory.metadata),
        "head": head,
        "messages": table.rows,
        "steps": steps,
        "lost": [[loss.objective, loss.step] for loss in losses(presence)],
    }


def without_tokens(trajectory: Trajectory) -> Trajectory:
    """The same episode for `measure` and `summarise`, its ids and texts gone: thousands fit into memory."""

    def count(ids: np.ndarray) -> np.ndarray:
        return np.broadcast_to(np.int64(0), len(ids))

    steps = tuple(
        replace(
            step,
            messages=(),
            prompt_ids=count(step.prompt_ids),
            response_ids=count(step.response_ids),
            logprobs=count(step.logprobs),
            token_ends=count(step.token_ends),
            sampled_text="",
            response="",
            memory=None if step.memory is None else "",
            argument="",
            observation=step.observation[:1],
            hit_ids=(),
        )
        for step in trajectory.steps
    )
    return replace(trajectory, steps=steps, head=(), questions=())


def piece_lengths(step: Step) -> list[int]:
    """The length of each response token's text in `sampled_text`; together they are not longer than it."""
    ends = np.asarray(step.token_ends, dtype=np.int64)
    text = step.sampled_text
    if not text.isascii():
        units = np.concatenate([[0], np.cumsum([1 + (ord(c) > 0xFFFF) for c in text], dtype=np.int64)])
        ends = units[np.clip(ends, 0, len(text))]
    return np.diff(ends, prepend=0).tolist()


class _Messages:
    """The distinct messages of an episode; one that repeats a response or a reply names the step instead."""

    def __init__(self, trajectory: Trajectory) -> None:
        self.rows: list[list[Any]] = []
        self._numbers: dict[tuple[str, str], int] = {}
        self._of_steps: dict[str, list[Any]] = {}

    def add_step(self, s: int, step: Step) -> None:
        if step.sampled_text.startswith(step.response):
            self._of_steps.setdefault(step.response, [s, "response"])
        self._of_steps.setdefault(step.observation, [s, "observation"])

    def number(self, message: Any) -> int:
        key = (message["role"], message["content"])
        if key not in self._numbers:
            self._numbers[key] = len(self.rows)
            source = self._of_steps.get(key[1]) if key[1] else None
            self.rows.append([key[0], *source] if source else [key[0], key[1]])
        return self._numbers[key]


def _runs_of(flags: np.ndarray) -> list[list[int]]:
    """[start, end) of each run of True."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], flags, [False]]).astype(np.int8)))
    return edges.reshape(-1, 2).tolist()


def _logprobs(values: np.ndarray) -> list[float | None] | None:
    known = np.asarray(values, dtype=np.float64)
    if np.isnan(known).all():
        return None
    return [_known(round(x, 4)) for x in known.tolist()]


def _known(value: float | None) -> float | None:
    return None if value is None or math.isnan(value) else float(value)
