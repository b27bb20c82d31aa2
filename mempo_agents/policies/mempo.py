"""MemPO: a memory of its own, written at the start of every step, apart from the reasoning."""

from __future__ import annotations

from mempo_agents.policies.base import Policy


class MemPO(Policy):
    """Memory, then thought, then a tool call or the answer; the next prompt holds only the step before and its result.

    MemPO (arXiv 2603.00680).
    """

    name = "mempo"
    protocol = "mempo"
    default_context = "last_step"
