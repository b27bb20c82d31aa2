"""The plan of a step for guided decoding: text that is forced, and slots in which the model writes.

A model that was never trained on a protocol seldom follows it. Guided decoding writes the tags for it and samples only
between them. An engine walks through the segments in order; all it needs to know of a protocol is here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Forced:
    """Text that is appended as it stands. Its tokens are not the policy's."""

    text: str


@dataclass(frozen=True, slots=True)
class Free:
    """A slot that the model fills.

    name: "memory", "think", "query", "url" or "answer". stops: the slot ends just before the first of these strings;
    what the model wrote from there on is dropped, and the next segment closes the slot. The first one is the string
    with which a trained model would close the slot itself. required: the slot must not stay blank; an engine forbids a
    stop before it has written something. share: the part of the step's token budget that the slot may use; along any
    path of a plan the shares sum to 1.
    """

    name: str
    stops: tuple[str, ...]
    required: bool
    share: float

    def cut(self, text: str) -> str:
        """The part of `text` before the first stop string: what stays when the model wrote `text` into the slot."""
        ends = [end for end in map(text.find, self.stops) if end >= 0]
        return text[: min(ends)] if ends else text


@dataclass(frozen=True, slots=True)
class Branch:
    """One way to go on from a `Choice`. kind: the action's kind. segments: they begin with a `Forced`."""

    kind: str
    segments: tuple[Forced | Free, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """The model chooses a branch: an engine compares the likelihood of the branches' opening texts, then goes on there.

    A choice is the last segment of a plan.
    """

    branches: tuple[Branch, ...]


Segment = Forced | Free | Choice


def merge(segments: Iterable[Forced | Free]) -> tuple[Forced | Free, ...]:
    """Join neighbouring forced texts, so that an engine encodes them in one piece."""
    merged: list[Forced | Free] = []
    for segment in segments:
        if merged and isinstance(segment, Forced) and isinstance(last := merged[-1], Forced):
            merged[-1] = Forced(last.text + segment.text)
        else:
            merged.append(segment)
    return tuple(merged)
