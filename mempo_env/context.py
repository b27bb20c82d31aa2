"""Context rules: which of the turns so far the policy may still see. The only place where its view is decided.

    full          every turn
    last_step     the last turn only: MemPO's rule and MEM1's
    last_k:K      the last K turns
    memory_only   the last memory and the last result

The head (instructions and questions) always comes first and whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from mempo_env.errors import UnknownNameError
from mempo_env.registry import Registry
from mempo_env.types import Message, Turn


@runtime_checkable
class ContextRule(Protocol):
    """What the policy sees next, as chat messages. Pure: the same head and turns always give the same messages.

    `head` are the messages before the first turn, `turns` all turns of the episode, oldest first.
    """

    @property
    def name(self) -> str: ...

    def messages(self, head: Sequence[Message], turns: Sequence[Turn]) -> tuple[Message, ...]: ...


def turn_messages(turn: Turn) -> tuple[Message, ...]:
    """A turn as chat: the policy's response, then what came back (nothing after the turn that ended the episode)."""
    response = Message(role="assistant", content=turn.action.response)
    if not turn.observation:
        return (response,)
    return (response, Message(role="user", content=turn.observation))


def _join(head: Sequence[Message], turns: Sequence[Turn]) -> tuple[Message, ...]:
    return (*head, *(message for turn in turns for message in turn_messages(turn)))


@dataclass(frozen=True)
class Full:
    """Everything: the growing history of ReAct and Search-R1."""

    name: str = "full"

    def messages(self, head: Sequence[Message], turns: Sequence[Turn]) -> tuple[Message, ...]:
        return _join(head, turns)


@dataclass(frozen=True)
class LastStep:
    """The whole previous step and its result; what is older survives only in the memory that the policy wrote."""

    name: str = "last_step"

    def messages(self, head: Sequence[Message], turns: Sequence[Turn]) -> tuple[Message, ...]:
        return _join(head, turns[-1:])


@dataclass(frozen=True)
class LastK:
    """The last `k` steps with their results, k >= 1."""

    k: int

    def __post_init__(self) -> None:
        if isinstance(self.k, bool) or not isinstance(self.k, int) or self.k < 1:
            raise ValueError(f"last_k: expected an integer of at least 1, got {self.k!r}. Example: 'last_k:3'.")

    @property
    def name(self) -> str:
        return f"last_k:{self.k}"

    def messages(self, head: Sequence[Message], turns: Sequence[Turn]) -> tuple[Message, ...]:
        return _join(head, turns[-self.k :])


@dataclass(frozen=True)
class MemoryOnly:
    """The last memory, as the policy wrote it with its tags, and the last result.

    The assistant's message holds the memory block alone: the thought and the call of the last step are gone. When the
    last step has no memory (an invalid one), the one before it stands. When there is none at all, that message is
    empty, so that the roles still alternate.
    """

    name: str = "memory_only"

    def messages(self, head: Sequence[Message], turns: Sequence[Turn]) -> tuple[Message, ...]:
        if not turns:
            return tuple(head)
        memory = next((block for turn in reversed(turns) if (block := _memory_block(turn)) is not None), "")
        result = turns[-1].observation
        return (
            *head,
            Message(role="assistant", content=memory),
            *((Message(role="user", content=result),) if result else ()),
        )


def _memory_block(turn: Turn) -> str | None:
    span = turn.action.spans.get("memory")
    return None if span is None else turn.action.response[span[0] : span[1]]


@dataclass(frozen=True)
class _Entry:
    make: Callable[..., ContextRule]
    number: bool


_RULES: Registry[_Entry] = Registry("context rule")


def register_context(name: str, make: Callable[..., ContextRule], *, number: bool = False) -> None:
    """Make a rule known: `get_context(name)` calls `make()`; with `number`, `get_context("name:3")` calls `make(3)`.

    Raises ValueError if the name is taken or holds a colon.
    """
    if ":" in name:
        raise ValueError(f"context rule: expected a name without ':', got {name!r}.")
    _RULES.add(name, _Entry(make, number))


def context_names() -> tuple[str, ...]:
    """The registered names, sorted. "last_k" is asked for with a number, "last_k:3"."""
    return tuple(_RULES)


def get_context(context: str | ContextRule) -> ContextRule:
    """The rule of that name ("full", "last_step", "last_k:3", "memory_only"), or the given rule itself.

    Raises `UnknownNameError` for an unknown name, ValueError for a missing, bad or needless number, TypeError for
    anything else.
    """
    if not isinstance(context, str):
        if isinstance(context, ContextRule):
            return context
        raise TypeError(f"context: expected a registered name or a ContextRule, got {type(context).__name__}.")
    name, colon, number = context.partition(":")
    if name not in _RULES:
        raise UnknownNameError("context rule", context, _RULES)
    entry = _RULES.get(name)
    if not entry.number:
        if colon:
            raise ValueError(f"context rule: expected {name!r} without a number, got {context!r}.")
        return entry.make()
    if not (number.isascii() and number.isdigit() and len(number) < 10):
        raise ValueError(f"context rule: expected a whole number after {name!r}, as in '{name}:3', got {context!r}.")
    return entry.make(int(number))


register_context("full", Full)
register_context("last_step", LastStep)
register_context("last_k", LastK, number=True)
register_context("memory_only", MemoryOnly)
