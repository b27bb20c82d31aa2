"""The nouns of the whole project. Everything here is frozen; stages turn one noun into the next.

    Question --compose--> Task --environment--> Turn, Turn, ... --rollout--> Step, Trajectory, Group

`Step`, `Trajectory` and `Group` hold tokens and so live with the agents, in `mempo_agents/trajectory.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any, TypedDict


class Message(TypedDict):
    """One chat message: `role` is "system", "user" or "assistant"."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Passage:
    """A retrievable text. `id` is unique in its corpus; `title` may be empty and need not be unique."""

    id: str
    title: str
    text: str


@dataclass(frozen=True, slots=True)
class Hit:
    """A passage that a search returned, with the retriever's own score (higher is better, any scale)."""

    passage: Passage
    score: float | None = None


@dataclass(frozen=True, slots=True)
class Evidence:
    """One link of the chain that proves an answer: searching `query` finds `passage_id`, which states `fact`.

    `fact` is a verbatim piece of the passage's text. `answer` is what the link yields: the bridge entity or the
    final answer; empty where the source does not say.
    """

    query: str
    passage_id: str
    title: str
    fact: str
    answer: str = ""


@dataclass(frozen=True, slots=True)
class Question:
    """One objective. `answers` are the accepted aliases (at least one, none empty), the canonical one first.

    `id` is unique across data sets ("hotpotqa:5a7a0693"). `evidence` is empty where the source has none.
    """

    id: str
    text: str
    answers: tuple[str, ...]
    evidence: tuple[Evidence, ...] = ()
    kind: str = ""
    dataset: str = ""

    def __post_init__(self) -> None:
        if isinstance(self.answers, str) or not isinstance(self.answers, tuple):
            raise TypeError(
                f"Question {self.id!r}: answers must be a tuple of strings, got {type(self.answers).__name__}. "
                "A single answer is written ('Paris',)."
            )
        if not isinstance(self.text, str):
            raise TypeError(f"Question {self.id!r}: the text must be a string, got {type(self.text).__name__}.")
        if not self.text.strip():
            raise ValueError(f"Question {self.id!r}: the text is empty.")
        if not self.answers or not all(isinstance(a, str) and a.strip() for a in self.answers):
            raise ValueError(f"Question {self.id!r}: expected at least one non-empty answer, got {self.answers!r}.")


@dataclass(frozen=True, slots=True)
class Task:
    """k questions that one episode must answer, in this order; at least one."""

    id: str
    questions: tuple[Question, ...]
    split: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.questions, tuple) or not all(isinstance(q, Question) for q in self.questions):
            raise TypeError(f"Task {self.id!r}: questions must be a tuple of Question objects.")
        if not self.questions:
            raise ValueError(f"Task {self.id!r}: expected at least one question, got none.")

    @property
    def objectives(self) -> int:
        return len(self.questions)


class ActionKind(StrEnum):
    SEARCH = "search"
    VISIT = "visit"
    ANSWER = "answer"
    INVALID = "invalid"


class InvalidReason(StrEnum):
    """Why a step's text is no action. The names appear in `info` and in metrics."""

    NO_ACTION = "no_action"
    UNCLOSED = "unclosed"
    MISMATCHED = "mismatched"
    NESTED = "nested"
    EMPTY = "empty"
    MALFORMED_JSON = "malformed_json"
    UNKNOWN_TOOL = "unknown_tool"
    BAD_ARGUMENTS = "bad_arguments"
    LENGTH = "length"


class StopReason(StrEnum):
    """How an episode ended. ANSWERED terminates, the next two truncate, FAILED is never scored."""

    ANSWERED = "answered"
    MAX_STEPS = "max_steps"
    CONTEXT_LENGTH = "context_length"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Action:
    """What a protocol read in one response. Parsing is total: every string gives an `Action`.

    `response` is the policy's text up to the end of its first complete action; what came after is cut. `spans` are
    half-open character ranges in `response`, tags included, under the names "memory", "think", "call" and "answer".
    `format_valid` says whether the whole response obeys the protocol; an action can be executed though it is False.
    """

    kind: ActionKind
    argument: str
    response: str
    memory: str | None = None
    thought: str | None = None
    spans: Mapping[str, tuple[int, int]] = field(default_factory=lambda: MappingProxyType({}))
    format_valid: bool = False
    reason: InvalidReason | None = None

    # Not __getstate__: the dataclasses of Python 3.11.0 to 3.11.2 put their own in its place.
    def __reduce__(self) -> tuple[Any, ...]:
        fields = (self.kind, self.argument, self.response, self.memory, self.thought, dict(self.spans),
                  self.format_valid, self.reason)  # fmt: skip
        return _action, fields


def _action(*fields: Any) -> Action:
    kind, argument, response, memory, thought, spans, format_valid, reason = fields
    return Action(kind, argument, response, memory, thought, MappingProxyType(spans), format_valid, reason)


@dataclass(frozen=True, slots=True)
class Turn:
    """One step of an episode as the environment keeps it: the action, what was found, and the words sent back.

    `observation` is the rendered reply: the `<information>` block, or the message that answers an invalid action.
    It is empty after the action that ended the episode.
    """

    action: Action
    hits: tuple[Hit, ...] = ()
    observation: str = ""
