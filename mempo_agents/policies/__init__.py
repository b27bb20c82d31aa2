"""Policies by name. Each is one small class in a file of its own; they differ in protocol and context rule only."""

from __future__ import annotations

from mempo_agents.engines.base import Engine, Sampling
from mempo_agents.policies.base import Policy
from mempo_agents.policies.mem1 import MEM1
from mempo_agents.policies.mempo import MemPO
from mempo_agents.policies.react import ReAct
from mempo_env.errors import UnknownNameError

__all__ = ["MEM1", "MemPO", "Policy", "ReAct", "get_policy", "policy_names", "register_policy"]

_POLICIES: dict[str, type[Policy]] = {}


def register_policy(policy: type[Policy]) -> type[Policy]:
    """Makes a subclass of `Policy` known by its `name`; usable as a decorator. Raises ValueError for a taken name."""
    if _POLICIES.get(policy.name, policy) is not policy:
        raise ValueError(f"A policy named {policy.name!r} is already registered; give yours another name.")
    _POLICIES[policy.name] = policy
    return policy


def policy_names() -> tuple[str, ...]:
    return tuple(_POLICIES)


def get_policy(name: str, engine: Engine, sampling: Sampling | None = None, *, context: str | None = None) -> Policy:
    """The policy of that name, playing with `engine`. Raises UnknownNameError."""
    if name not in _POLICIES:
        raise UnknownNameError("policy", name, _POLICIES)
    return _POLICIES[name](engine, sampling, context=context)


for _policy in (ReAct, MEM1, MemPO):
    register_policy(_policy)
