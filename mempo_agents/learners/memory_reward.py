"""The memory reward: how much of what the policy knows its memory has kept.

    R_M(s) = P(answer | memory of step s) - P(answer | everything before step s)

P is the geometric mean of the answer's token probabilities, exp(mean log p), teacher forced, at temperature 1 with full
support. Source: MemPO, arXiv 2603.00680.

What is scored, exactly. The context is `head` (system, questions) and then

    history   every earlier step's response and observation, untruncated, whatever the policy saw; then `<answer>`
    memory    the block that the policy wrote, tags included, as the start of its reply; then a newline and `<answer>`

rendered by the engine's chat template. The answer follows as the policy would write it, "Lima; Quito". Only the
answers' own tokens count, and they need not be searched for: the wrapper and each separator are encoded apart, each
answer by itself (from the second on with the blank before it, "; Quito" = ";" + " Quito").

What is left out. A step has a memory reward when it has a memory and an earlier search result; otherwise it is NaN, as
it is when the context exceeds the engine's window or when the threshold leaves no token.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from mempo_agents.engines.base import Engine, ScoreRow
from mempo_agents.trajectory import Step, Trajectory
from mempo_env.protocols import get_protocol, neutralise
from mempo_env.types import ActionKind, Message

Baseline = Literal["history", "previous", "none"]
ANSWER_OPENING = "<answer>"
SEPARATOR = ";"
_RESULTS = (ActionKind.SEARCH, ActionKind.VISIT)


@dataclass(frozen=True, slots=True)
class MemoryScores:
    """P(answer | ...) by step of one trajectory; float64 [S], NaN where unknown.

    memory_S: given the step's memory. history_S: given everything before the step; [0] is the bare question.
    rewarded_S: bool [S], whether the step has a memory and an earlier search result.

    What the means are made of, where the canonical answers were scored: answer_ids, int64 [A], the answers' own tokens,
    and memory_SA, history_SA, float64 [S, A], the probability of each; all None where aliases were tried.
    """

    memory_S: np.ndarray
    history_S: np.ndarray
    rewarded_S: np.ndarray
    answer_ids: np.ndarray | None = None
    memory_SA: np.ndarray | None = None
    history_SA: np.ndarray | None = None


def memory_scores(
    trajectories: Sequence[Trajectory],
    engine: Engine,
    *,
    threshold: float | None = None,
    aliases: Literal["first", "best"] = "first",
) -> list[MemoryScores]:
    """Score every step of every trajectory, in one call to `engine.score`, so that all that is shared is shared.

    threshold: count only the answer tokens whose own probability exceeds it (the released code's note says 0.5); this
    raises every P. aliases: "first" scores the canonical answer of each objective; "best" the alias with the highest
    geometric mean, chosen objective by objective behind the canonical answers of the objectives before it (choosing all
    of them jointly would be exponential). Failed trajectories get NaN throughout. Raises ValueError for a trajectory
    without gold answers.
    """
    if threshold is not None and not 0 <= threshold < 1:
        raise ValueError(f"threshold must lie in [0, 1), got {threshold}.")
    rows: list[ScoreRow] = []
    plans = []
    for trajectory in trajectories:
        answer = _Answer(trajectory, engine, aliases)
        plan: list[tuple[range | None, range | None]] = []
        for s in range(0 if trajectory.failed else len(trajectory.steps)):
            history = _enter(rows, answer.rows(history_context(trajectory, s, engine)), engine)
            context = memory_context(trajectory, s, engine)
            plan.append((history, None if context is None else _enter(rows, answer.rows(context), engine)))
        plans.append((answer, plan))
    logprobs = engine.score(rows)
    scores = []
    for trajectory, (answer, plan) in zip(trajectories, plans, strict=True):
        both_S = np.full((len(trajectory.steps), 2), np.nan)
        tokens_SA = np.full((len(trajectory.steps), 2, len(answer.ids)), np.nan)
        for s, places in enumerate(plan):
            for column, place in enumerate(places):
                if place is not None:
                    counted = answer.counted([logprobs[i] for i in place])
                    both_S[s, column] = probability(counted, threshold)
                    if aliases == "first":
                        tokens_SA[s, column] = np.exp(counted.astype(np.float64))
        single = (answer.ids, tokens_SA[:, 1], tokens_SA[:, 0]) if aliases == "first" else ()
        scores.append(MemoryScores(both_S[:, 1], both_S[:, 0], rewarded_steps(trajectory), *single))
    return scores


def memory_rewards(scores: MemoryScores, baseline: Baseline = "history") -> np.ndarray:
    """R_M of one trajectory: float64 [S], NaN where there is none.

    baseline: "history" subtracts P given everything before the step; "previous" subtracts P given the memory before
    this one (the bare question where there is none yet), so that the rewards add up to what was gained in all; "none"
    subtracts nothing.
    """
    if baseline == "history":
        base_S = scores.history_S
    elif baseline == "previous":
        base_S = np.full_like(scores.memory_S, np.nan)
        last = scores.history_S[0] if len(scores.history_S) else math.nan
        for s, value in enumerate(scores.memory_S):
            base_S[s] = last
            last = last if math.isnan(value) else value
    elif baseline == "none":
        base_S = np.zeros_like(scores.memory_S)
    else:
        raise ValueError(f"baseline must be 'history', 'previous' or 'none', got {baseline!r}.")
    return np.where(scores.rewarded_S, scores.memory_S - base_S, np.nan)


def probability(logprobs: np.ndarray, threshold: float | None = None) -> float:
    """exp(mean log p) of the tokens that count; NaN when none does. logprobs: [T]."""
    logprobs = np.asarray(logprobs, dtype=np.float64)
    if threshold is not None:
        # An empty selection is unknown; its sum over a small constant would make it exp(0) = 1, the best there is.
        logprobs = logprobs[np.exp(logprobs) > threshold]
    return float(np.exp(logprobs.mean())) if len(logprobs) else math.nan


def rewarded_steps(trajectory: Trajectory) -> np.ndarray:
    """Which steps have a memory and an earlier search result: bool [S]."""
    rewarded, found = [], False
    for step in trajectory.steps:
        rewarded.append(found and step.memory is not None and not trajectory.failed)
        found = found or (step.action in _RESULTS and bool(step.observation))
    return np.array(rewarded, dtype=bool)


def history_context(trajectory: Trajectory, s: int, engine: Engine) -> np.ndarray:
    """Ids up to and with `<answer>`, behind everything before step s: int64 [C]."""
    messages: list[Message] = list(trajectory.head)
    for step in trajectory.steps[:s]:
        messages.append(Message(role="assistant", content=step.response))
        messages.append(Message(role="user", content=step.observation))
    return np.concatenate([engine.encode(messages), engine.encode_text(ANSWER_OPENING)])


def memory_context(trajectory: Trajectory, s: int, engine: Engine) -> np.ndarray | None:
    """Ids up to and with `<answer>`, behind the memory of step s alone: int64 [C]; None when it has no memory."""
    block = memory_block(trajectory.protocol, trajectory.steps[s])
    if block is None:
        return None
    return np.concatenate([engine.encode(trajectory.head), engine.encode_text(f"{block}\n{ANSWER_OPENING}")])


def memory_block(protocol: str, step: Step) -> str | None:
    """The memory as it stands in the response, tags included; found by the parser, never in the prompt."""
    if step.memory is None:
        return None
    span = get_protocol(protocol).parse(step.response).spans.get("memory")
    return None if span is None else step.response[slice(*span)]


class _Answer:
    """The rows that score one task's answer behind a context, and what their log-probabilities make.

    The first row holds the canonical answers in a chain; one more row stands for each further alias.
    """

    def __init__(self, trajectory: Trajectory, engine: Engine, aliases: Literal["first", "best"]):
        if aliases not in ("first", "best"):
            raise ValueError(f"aliases must be 'first' or 'best', got {aliases!r}.")
        if not trajectory.answers or not all(trajectory.answers):
            raise ValueError(f"Task {trajectory.task_id!r} has no gold answers, so P(answer | ...) is not defined.")
        self.separator = np.asarray(engine.encode_text(SEPARATOR), dtype=np.int64)
        self.pieces: list[list[np.ndarray]] = []
        for k, golds in enumerate(trajectory.answers):
            texts = dict.fromkeys(neutralise(gold).strip() for gold in golds)
            chosen = list(texts)[: None if aliases == "best" else 1]
            self.pieces.append([np.asarray(engine.encode_text(" " * (k > 0) + text)) for text in chosen])

    def rows(self, context: np.ndarray) -> list[ScoreRow]:
        chain: list[np.ndarray] = []
        others: list[ScoreRow] = []
        for k, pieces in enumerate(self.pieces):
            if k:
                chain.append(self.separator)
            before = np.concatenate([context, *chain])
            others += [ScoreRow(before, piece) for piece in pieces[1:]]
            chain.append(pieces[0])
        return [ScoreRow(context, np.concatenate(chain)), *others]

    @property
    def ids(self) -> np.ndarray:
        """The tokens of the canonical answers, without wrapper and separators: int64 [A]."""
        return np.concatenate([pieces[0] for pieces in self.pieces]).astype(np.int64)

    def counted(self, logprobs: Sequence[np.ndarray]) -> np.ndarray:
        """The log-probabilities of the answers' own tokens, from those of `rows`, in their order."""
        chain, others = logprobs[0], iter(logprobs[1:])
        counted, at = [], 0
        for k, pieces in enumerate(self.pieces):
            at += len(self.separator) if k else 0
            candidates = [chain[at : at + len(pieces[0])], *(next(others) for _ in pieces[1:])]
            at += len(pieces[0])
            counted.append(max(candidates, key=lambda logp: float(np.mean(logp)) if len(logp) else -math.inf))
        return np.concatenate(counted)


def _enter(rows: list[ScoreRow], new: list[ScoreRow], engine: Engine) -> range | None:
    """Append `new`; where they stand, or None when one of them is longer than the engine's window."""
    longest = max(len(row.context_ids) + len(row.target_ids) for row in new)
    if engine.window_tokens is not None and longest > engine.window_tokens:
        return None
    rows.extend(new)
    return range(len(rows) - len(new), len(rows))
