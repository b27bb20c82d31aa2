"""Policies by name. Each is one small class in a file of its own; they differ in protocol and context rule only."""

from __future__ import annotations

from mempo_agents.engines.base import Engine, Sampling
from mempo_agents.policies.base import Policy
from mempo_agents.policies.mem1 import MEM1
from mempo_agents.policies.mempo import MemPO
from mempo_agents.policies.react import ReAct
from mempo_env.registry import Registry

__all__ = ["MEM1", "MemPO", "Policy", "ReAct", "get_policy", "policy_names", "register_policy"]

_POLICIES: Registry[type[Policy]] = Registry("policy")


def register_policy(policy: type[Policy]) -> type[Policy]:
    """Makes a subclass of `Policy` known by its `name`; usable as a decorator. Raises ValueError for a taken name."""
    return _POLICIES.add(policy.name, policy)


def policy_names() -> tuple[str, ...]:
    """The registered names, sorted."""
    return tuple(_POLICIES)


def get_policy(name: str, engine: Engine, sampling: Sampling | None = None, *, context: str | None = None) -> Policy:
    """The policy of that name, playing with `engine`. Raises UnknownNameError."""
    return _POLICIES.get(name)(engine, sampling, context=context)


for _policy in (ReAct, MEM1, MemPO):
    register_policy(_policy)
