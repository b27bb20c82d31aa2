"""An engine turns messages into tokens: it samples responses and scores given ones. Policies do not care which."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from mempo_env.protocols import Protocol as TagProtocol
from mempo_env.types import Message, Task


@dataclass(frozen=True, slots=True)
class Request:
    """One response to sample. `seed` alone decides the sample, whatever else is in the batch.

    `task` is for scripted engines, which play from the task's evidence; language models ignore it. `last_step` says
    that the episode ends with this response, so that only an answer counts: guided decoding then offers nothing else.
    """

    messages: tuple[Message, ...]
    seed: int
    task: Task | None = None
    last_step: bool = False


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to sample. `temperature` 0 is greedy. `guided` forces the protocol's tags and samples between them."""

    max_new_tokens: int = 256
    temperature: float = 1.0
    guided: bool = False


@dataclass(frozen=True, slots=True)
class Generation:
    """One sampled response; the arrays are those of `mempo_agents.trajectory.Step`.

    finish_reason: "stop" (a stop string), "eos", or "length". `logprobs` are NaN where unknown. error: why this request
    alone could not be answered (a server's failure); the other fields are then empty and the episode has failed.
    """

    prompt_ids: np.ndarray
    response_ids: np.ndarray
    logprobs: np.ndarray
    policy_mask: np.ndarray
    token_ends: np.ndarray
    text: str
    finish_reason: str
    error: str | None = None


@dataclass(frozen=True, slots=True)
class ScoreRow:
    """Score `target_ids` [T] after `context_ids` [C], teacher forced."""

    context_ids: np.ndarray
    target_ids: np.ndarray


class Engine(Protocol):
    """What every engine offers.

    `encode(messages)` gives the prompt ids the policy would see, the chat template and generation prompt included.
    `encode_text(text)` gives the ids of a bare piece of text, no special tokens added.
    `generate` returns one `Generation` per request, in order; the protocol names the stop strings and the guided plan.
    One that fails on its own comes back with its `error`; EngineError says that the engine as a whole is of no use.
    `score` returns one float32 [T] array of log-probabilities (temperature 1, full support) per row, in order. Rows
    that share prefixes are computed once. Engines that cannot score raise NotImplementedError.
    `window_tokens` is the longest prompt plus response, None when unlimited. `fingerprint` names the weights exactly.
    """

    @property
    def name(self) -> str: ...
    @property
    def tokenizer_name(self) -> str: ...
    @property
    def fingerprint(self) -> str: ...
    @property
    def window_tokens(self) -> int | None: ...

    def encode(self, messages: Sequence[Message]) -> np.ndarray: ...

    def encode_text(self, text: str) -> np.ndarray: ...

    def generate(self, requests: Sequence[Request], protocol: TagProtocol, sampling: Sampling) -> list[Generation]: ...

    def score(self, rows: Sequence[ScoreRow]) -> list[np.ndarray]: ...
