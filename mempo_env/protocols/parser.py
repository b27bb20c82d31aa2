"""The one parser: any string gives an `Action`, in linear time.

The grammar of a step is: reasoning blocks in a fixed order, each closed, then one action; only white space between.
How the unclear cases are read, the same in every protocol:

- Tags are exact: `<answer>`, not `<Answer>`, `< answer>` or `<answer id="1">`.
- Reasoning is consumed first: a block runs to its first closing tag, and an action drafted inside never acts. A block
  that is never closed leaves no action (UNCLOSED).
- A chat template may have opened the first block already. So when a block's closing tag stands at the start of the text
  with no block opened before it, everything up to it is that block; this is well-formed for the protocol's first block.
- The first action tag outside the reasoning decides. If it opens a complete action, that acts and the text behind it is
  cut; otherwise the step is invalid, even if something later would have been complete. A closing tag with no opening
  one is MISMATCHED, as is `<search>a</answer>`; a tag of the protocol inside an action is NESTED. The text of a failed
  action is cut behind the first closing tag of an action, where sampling stops. So a step reads the same whether or not
  the engine stopped at the closing tag, and `parse(parse(x).response)` equals `parse(x)`.
- The closing tag must be there. Engines keep the stop string that ended the sampling; a text without it is UNCLOSED.
- With finish reason "length", a step that has no action or an unclosed one is LENGTH.
- Well-formed means: exactly the protocol's blocks, once each and in order, with no block or information tag inside them
  (they may be empty), nothing else around them, and a valid action.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from mempo_env.text import replace_surrogates
from mempo_env.types import Action, ActionKind, InvalidReason

TOOLS = MappingProxyType({"search": (ActionKind.SEARCH, "query"), "visit": (ActionKind.VISIT, "url")})
"""The tools a protocol can offer: name -> (action kind, name of its one argument)."""


@dataclass(frozen=True)
class Grammar:
    """What the parser must know of a protocol.

    blocks: reasoning tags in the order in which they are written. memory_block: the one that is the memory, or None.
    json_calls: tools are called by JSON in `<tool_call>`; otherwise each has a tag of its name. tools: names in
    `TOOLS`.
    """

    blocks: tuple[str, ...]
    memory_block: str | None
    json_calls: bool
    tools: tuple[str, ...] = ("search",)

    @property
    def action_tags(self) -> tuple[str, ...]:
        return (("tool_call",) if self.json_calls else self.tools) + ("answer",)


@lru_cache(maxsize=64)
def _tag_pattern(names: tuple[str, ...]) -> re.Pattern[str]:
    # Literals only: each position is tried once, in bounded time.
    return re.compile(f"<(?P<slash>/?)(?P<name>{'|'.join(names)})>")


@lru_cache(maxsize=64)
def _closing_pattern(names: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile(f"</(?:{'|'.join(names)})>")


class _InvalidActionError(Exception):
    def __init__(self, reason: InvalidReason) -> None:
        self.reason = reason


def parse(text: str, grammar: Grammar, finish_reason: str | None = None) -> Action:
    """Read one response. See the module's text for the rules. Never raises for any string."""
    text = replace_surrogates(text)
    tags = _tag_pattern((*grammar.blocks, *grammar.action_tags, "information"))
    reading = _Reading(text, grammar)
    position = reading.read_implied_block()
    kind, argument, reason, end = ActionKind.INVALID, "", InvalidReason.NO_ACTION, len(text)
    while (tag := tags.search(text, position)) is not None:
        if text[position : tag.start()].strip():
            reading.clean = False
        name, closing = tag["name"], bool(tag["slash"])
        if name in grammar.action_tags:
            try:
                if closing:
                    raise _InvalidActionError(InvalidReason.MISMATCHED)
                kind, argument, end = _read_action(text, tag, tags, grammar)
            except _InvalidActionError as error:
                reason = error.reason
                closer = _closing_pattern(grammar.action_tags).search(text, tag.start())
                end = closer.end() if closer else len(text)
            else:
                reading.spans["answer" if kind == ActionKind.ANSWER else "call"] = (tag.start(), end)
            break
        if name == "information" or closing:
            reading.clean = False
            position = tag.end()
            continue
        close = text.find(f"</{name}>", tag.end())
        if close < 0:
            reason = InvalidReason.UNCLOSED
            break
        position = reading.add_block(name, tag.start(), tag.end(), close)
    if kind != ActionKind.INVALID:
        return reading.action(kind, argument, end, None)
    if finish_reason == "length" and reason in (InvalidReason.NO_ACTION, InvalidReason.UNCLOSED):
        reason = InvalidReason.LENGTH
    return reading.action(kind, "", end, reason)


class _Reading:
    """The reasoning blocks found so far, and whether everything so far was well-formed."""

    def __init__(self, text: str, grammar: Grammar) -> None:
        self.text, self.grammar = text, grammar
        self.clean = True
        self.order: list[str] = []
        self.bodies: dict[str, str] = {}
        self.spans: dict[str, tuple[int, int]] = {}
        self._reasoning = _tag_pattern((*grammar.blocks, "information"))

    def read_implied_block(self) -> int:
        """Take the text up to a closing tag that has no opening one before it; return where to go on."""
        if not self.grammar.blocks:
            return 0
        first = _tag_pattern(self.grammar.blocks).search(self.text)
        if first is None or not first["slash"]:
            return 0
        return self.add_block(first["name"], 0, 0, first.start())

    def add_block(self, name: str, start: int, body_start: int, close: int) -> int:
        end = close + len(f"</{name}>")
        self.order.append(name)
        if self._reasoning.search(self.text, body_start, close):
            self.clean = False
        if name not in self.bodies:  # of a repeated block the first one counts
            self.bodies[name] = self.text[body_start:close].strip()
            self.spans["memory" if name == self.grammar.memory_block else "think"] = (start, end)
        return end

    def action(self, kind: ActionKind, argument: str, end: int, reason: InvalidReason | None) -> Action:
        grammar = self.grammar
        return Action(
            kind=kind,
            argument=argument,
            response=self.text[:end],
            memory=self.bodies.get(grammar.memory_block) if grammar.memory_block else None,
            thought=self.bodies.get("think") if grammar.memory_block != "think" else None,
            spans=MappingProxyType(self.spans),
            format_valid=reason is None and self.clean and tuple(self.order) == grammar.blocks,
            reason=reason,
        )


def _read_action(
    text: str, opening: re.Match[str], tags: re.Pattern[str], grammar: Grammar
) -> tuple[ActionKind, str, int]:
    """Read the action that `opening` opens; return its kind, its argument and where it ends."""
    name = opening["name"]
    if name == "tool_call":
        value, end = _read_json(text, opening.end())
        if end is not None:
            # Behind a complete JSON value only its own closing tag may stand, so tags inside its strings are harmless.
            following = tags.search(text, end)
            _check_closing(following, name)
            if following is None or text[end : following.start()].strip():
                raise _InvalidActionError(InvalidReason.MALFORMED_JSON)
            kind, argument = _read_call(value, grammar.tools)
            return kind, argument, following.end()
        _check_closing(tags.search(text, opening.end()), name)
        raise _InvalidActionError(InvalidReason.MALFORMED_JSON)
    following = tags.search(text, opening.end())
    _check_closing(following, name)
    assert following is not None
    argument = text[opening.end() : following.start()].strip()
    if not argument:
        raise _InvalidActionError(InvalidReason.EMPTY)
    kind = ActionKind.ANSWER if name == "answer" else TOOLS[name][0]
    return kind, argument, following.end()


def _check_closing(following: re.Match[str] | None, name: str) -> None:
    if following is None:
        raise _InvalidActionError(InvalidReason.UNCLOSED)
    if not following["slash"]:
        raise _InvalidActionError(InvalidReason.NESTED)
    if following["name"] != name:
        raise _InvalidActionError(InvalidReason.MISMATCHED)


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _unique_keys(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise ValueError(f"duplicate key {key!r}")
        result[key] = value
    return result


_DECODER = json.JSONDecoder(object_pairs_hook=_unique_keys, parse_constant=_refuse_constant)
_SPACE = re.compile(r"[ \t\r\n]*")


def _read_json(text: str, start: int) -> tuple[Any, int | None]:
    """Decode one strict JSON value (no NaN, no repeated keys) from `start`; the end is None when there is none."""
    space = _SPACE.match(text, start)
    assert space is not None
    try:
        return _DECODER.raw_decode(text, space.end())
    except (ValueError, RecursionError):  # RecursionError: brackets nested thousands deep
        return None, None


def _read_call(value: Any, tools: tuple[str, ...]) -> tuple[ActionKind, str]:
    """Check a decoded call: {"name": tool, "arguments": {...}}. Further keys are ignored.

    `arguments` may be a JSON text of the object (encoded once more, as some models do).
    """
    if not isinstance(value, dict):
        raise _InvalidActionError(InvalidReason.MALFORMED_JSON)
    name = value.get("name")
    if not isinstance(name, str) or name not in tools:
        raise _InvalidActionError(InvalidReason.UNKNOWN_TOOL)
    arguments = value.get("arguments")
    if isinstance(arguments, str):
        encoded = arguments.strip()
        arguments, end = _read_json(encoded, 0)
        if end != len(encoded):
            raise _InvalidActionError(InvalidReason.BAD_ARGUMENTS)
    kind, key = TOOLS[name]
    argument = arguments.get(key) if isinstance(arguments, dict) else None
    if not isinstance(argument, str):
        raise _InvalidActionError(InvalidReason.BAD_ARGUMENTS)
    argument = replace_surrogates(argument).strip()
    if not argument:
        raise _InvalidActionError(InvalidReason.EMPTY)
    return kind, argument
