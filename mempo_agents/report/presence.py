"""Where the right answers stand in an episode: in the memory, in the results, in the prompt; and when one was lost.

A gold answer is "present" in a text when the words of one of its aliases, normalised as for scoring, follow one another
there. It is a match of words: a short answer can match by chance. "yes" and "no", which always would, are left out
(None).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from mempo_agents.trajectory import Trajectory
from mempo_env.scoring import normalise_squad

Flags = tuple[bool | None, ...]
_UNTRACEABLE = {"yes", "no", ""}
# The normalisation deletes punctuation, which would glue a tag to the word beside it.
_TAG = re.compile(r"</?\w{1,20}>")


@dataclass(frozen=True, slots=True)
class Presence:
    """Of one step; one flag per objective, None where the answer cannot be traced.

    memory: in the memory written at this step; None as a whole when it wrote none. reply: in what came back.
    view: in the prompt behind the task, so what the policy still had before it when it wrote the step.
    """

    memory: Flags | None
    reply: Flags
    view: Flags


@dataclass(frozen=True, slots=True)
class Loss:
    """The answer of `objective` (from 0) stood in the prompt of step `step` - 1 and is not in that of `step`."""

    objective: int
    step: int


def presence_by_step(trajectory: Trajectory) -> list[Presence]:
    """One `Presence` per step."""
    golds = [_needles(aliases) for aliases in trajectory.answers]
    head = len(trajectory.head)
    known: dict[str, Flags] = {}

    def flags(text: str) -> Flags:
        if text not in known:
            haystack = f" {normalise_squad(_TAG.sub(' ', text))} "
            known[text] = tuple(None if needles is None else any(n in haystack for n in needles) for needles in golds)
        return known[text]

    found = []
    for step in trajectory.steps:
        seen = [flags(message["content"]) for message in step.messages[head:]]
        view = tuple(None if needles is None else any(row[k] for row in seen) for k, needles in enumerate(golds))
        memory = None if step.memory is None else flags(step.memory)
        found.append(Presence(memory, flags(step.observation), view))
    return found


def losses(presence: Sequence[Presence]) -> list[Loss]:
    """Every time an answer left the policy's view, in the order of steps. Steps count from 0."""
    return [
        Loss(k, s)
        for s in range(1, len(presence))
        for k, (before, now) in enumerate(zip(presence[s - 1].view, presence[s].view, strict=True))
        if before and now is False
    ]


def _needles(aliases: Sequence[str]) -> list[str] | None:
    words = [normalise_squad(alias) for alias in aliases]
    usable = [word for word in words if word not in _UNTRACEABLE]
    return [f" {word} " for word in usable] or None
