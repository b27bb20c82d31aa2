"""What a rollout leaves behind: the exact tokens of every step, the trajectories, and the group they form.

A `Step` is one training row: `prompt_ids` followed by `response_ids`, nothing else. No custom attention mask is needed,
because no row holds what the policy did not see. Ids are kept as sampled; nothing is decoded and encoded again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from mempo_env.types import Message, StopReason

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class Step:
    """One call of the policy and the environment's answer.

    prompt_ids: int64 [P]. response_ids: int64 [T], as sampled. logprobs: float32 [T], of the sampled ids at the
    sampling temperature with full support; NaN where unknown or forced. policy_mask: bool [T], True where the policy
    chose the token and the environment kept it (False for what guided decoding forced, and for tokens that lie wholly
    after the end of the action). spans: half-open token ranges in `response_ids`, tags included, named "memory",
    "think", "call", "answer". token_ends: int64 [T], the end of each token's text in `sampled_text`.
    response: the text kept in context (cut after the action); sampled_text: all of it. observation: what came back.
    history_tokens: how long the prompt would have been had the policy seen the whole history; None where not counted.
    seconds: this step's share of the wall time of the batched calls it took part in.
    """

    messages: tuple[Message, ...]
    prompt_ids: np.ndarray
    response_ids: np.ndarray
    logprobs: np.ndarray
    policy_mask: np.ndarray
    token_ends: np.ndarray
    spans: Mapping[str, tuple[int, int]]
    sampled_text: str
    response: str
    memory: str | None
    action: str
    argument: str
    invalid_reason: str | None
    format_valid: bool
    observation: str
    observation_tokens: int
    hit_ids: tuple[str, ...] = ()
    finish_reason: str = "stop"
    seconds: float = 0.0
    history_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One episode. `reward` is NaN and the scores are empty when it failed for infrastructure reasons.

    `em` and `f1` are per objective, [K]. `reward_parts` names every reward the environment knows.
    `head` are the messages before the first response (system and question): with the steps' `response` and
    `observation` they rebuild the full history, whatever the context rule showed. `seed` is the run's: the seed of a
    step is `mempo_agents.rollout.step_seed(seed, task_id, sample, step)`. `guided`: the tags were forced.
    """

    task_id: str
    sample: int
    policy: str
    protocol: str
    context: str
    objectives: int
    questions: tuple[str, ...]
    answers: tuple[tuple[str, ...], ...]
    head: tuple[Message, ...]
    steps: tuple[Step, ...]
    reward: float
    reward_parts: Mapping[str, float]
    em: tuple[float, ...]
    f1: tuple[float, ...]
    answer: str | None
    stop_reason: StopReason
    error: str | None = None
    seed: int = 0
    guided: bool = False
    seconds: float = 0.0
    metadata: Mapping[str, str] = field(default_factory=dict)

    @property
    def failed(self) -> bool:
        return self.stop_reason == StopReason.FAILED


@dataclass(frozen=True, slots=True)
class Group:
    """The trajectories (G) that share one task, sampled by the same policy."""

    task_id: str
    trajectories: tuple[Trajectory, ...]
