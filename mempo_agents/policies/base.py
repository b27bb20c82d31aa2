"""A policy is an engine that speaks a protocol and sees its past through a context rule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from mempo_agents.engines.base import Engine, Generation, Request, Sampling
from mempo_env.protocols import get_protocol


class Policy:
    """Base of all policies. A subclass names itself, its protocol and its context rule, and usually nothing else.

    engine: what samples. sampling: how. context: another rule than the policy's own, for ablations ("last_k:3").
    The rule is applied by the environment: `rollout` builds the environment with the policy's `protocol` and `context`.
    """

    name: ClassVar[str]
    protocol: ClassVar[str]
    default_context: ClassVar[str]

    def __init__(self, engine: Engine, sampling: Sampling | None = None, *, context: str | None = None) -> None:
        self.engine = engine
        self.sampling = Sampling() if sampling is None else sampling
        self.context = self.default_context if context is None else context

    def act(self, requests: Sequence[Request]) -> list[Generation]:
        """One response per request, in order, all in one batch."""
        return self.engine.generate(requests, get_protocol(self.protocol), self.sampling)
