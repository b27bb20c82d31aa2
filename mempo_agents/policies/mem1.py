"""MEM1: one internal state, rewritten at every step, is all that survives."""

from __future__ import annotations

from mempo_agents.policies.base import Policy


class MEM1(Policy):
    """Reasoning and memory are the same text; the next prompt holds only the step before and its result.

    Zhou et al., MEM1: Learning to Synergize Memory and Reasoning for Efficient Long-Horizon Agents (arXiv 2506.15841).
    """

    name = "mem1"
    protocol = "mem1"
    default_context = "last_step"
