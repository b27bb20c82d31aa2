"""ReAct: think, act, and read the whole history again at every step."""

from __future__ import annotations

from mempo_agents.policies.base import Policy


class ReAct(Policy):
    """Thought, then a tool call or the answer; nothing is forgotten, so the prompt grows with every step.

    Yao et al., ReAct: Synergizing Reasoning and Acting in Language Models (arXiv 2210.03629).
    """

    name = "react"
    protocol = "react"
    default_context = "full"
