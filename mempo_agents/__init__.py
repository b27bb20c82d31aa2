"""Policies that search, remember and answer: engines, rollouts, measures, learners, reports.

>>> from mempo_agents import get_engine, get_policy
>>> policy = get_policy("mempo", get_engine("scripted"))

What a module's own name says stands in that module: `mempo_agents.rollout.rollout`, `mempo_agents.evaluate.evaluate`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mempo_agents.engines import Sampling, get_engine
    from mempo_agents.files import read_trajectories, write_trajectories
    from mempo_agents.learners.estimators import get_estimator, register_estimator
    from mempo_agents.metrics import measure, summarise
    from mempo_agents.policies import Policy, get_policy, register_policy
    from mempo_agents.trajectory import Group, Step, Trajectory

# Public name -> module. Each is loaded at first use: the command line answers `--help` without numpy.
_EXPORTS = {
    "Group": "mempo_agents.trajectory",
    "Policy": "mempo_agents.policies",
    "Sampling": "mempo_agents.engines",
    "Step": "mempo_agents.trajectory",
    "Trajectory": "mempo_agents.trajectory",
    "get_engine": "mempo_agents.engines",
    "get_estimator": "mempo_agents.learners.estimators",
    "get_policy": "mempo_agents.policies",
    "measure": "mempo_agents.metrics",
    "read_trajectories": "mempo_agents.files",
    "register_estimator": "mempo_agents.learners.estimators",
    "register_policy": "mempo_agents.policies",
    "summarise": "mempo_agents.metrics",
    "write_trajectories": "mempo_agents.files",
}

__all__ = [
    "Group",
    "Policy",
    "Sampling",
    "Step",
    "Trajectory",
    "get_engine",
    "get_estimator",
    "get_policy",
    "measure",
    "read_trajectories",
    "register_estimator",
    "register_policy",
    "summarise",
    "write_trajectories",
]


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_EXPORTS[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
