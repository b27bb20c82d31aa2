"""What a protocol is, and the one class that all built-in protocols are values of."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol as _Interface

from mempo_env.protocols import prompts
from mempo_env.protocols.inert import TAG_NAMES, neutralise
from mempo_env.protocols.parser import TOOLS, Grammar, parse
from mempo_env.protocols.plan import Branch, Choice, Forced, Free, Segment, merge
from mempo_env.protocols.render import Budget, render_hits, render_message
from mempo_env.types import Action, ActionKind, Hit, InvalidReason, Message, Task

ANSWER_SEPARATOR = "; "
_PLACEHOLDERS = {"search": "your query", "visit": "address of a page"}
_CONTROL_CHARACTERS = tuple(map(chr, range(32)))
_TAGS = tuple(f"<{slash}{name}>" for name in TAG_NAMES for slash in ("", "/"))


class Protocol(_Interface):
    """How a step is written, read and answered. Environments and engines use nothing else of a protocol.

    name: registered name. default_context: the context rule it was made for. has_memory: whether a step has a place for
    a memory. stop: closing tags behind which sampling may stop (see `finished`). tools: the tools it offers.
    """

    @property
    def name(self) -> str: ...
    @property
    def default_context(self) -> str: ...
    @property
    def tools(self) -> tuple[str, ...]: ...
    @property
    def has_memory(self) -> bool: ...
    @property
    def stop(self) -> tuple[str, ...]: ...

    def head(self, task: Task, instructions: str | None = None) -> tuple[Message, ...]: ...
    def parse(self, response: str, finish_reason: str | None = None) -> Action: ...
    def finished(self, text: str) -> bool: ...
    def render_hits(
        self, hits: Sequence[Hit], *, turns_left: int | None = None, budgets: Sequence[Budget] = ()
    ) -> str: ...
    def render_invalid(
        self, action: Action, *, turns_left: int | None = None, budgets: Sequence[Budget] = ()
    ) -> str: ...
    def compose(
        self,
        *,
        memory: str = "",
        thought: str = "",
        query: str | None = None,
        answers: Sequence[str] | None = None,
        tool: str = "search",
    ) -> str: ...
    def plan(self, kind: str | None = None) -> tuple[Segment, ...]: ...


@dataclass(frozen=True)
class TagProtocol:
    """A protocol made of tags: reasoning blocks, then one action.

    blocks: the reasoning tags in order ("mem", "think"). memory_block: which of them is the memory, or None.
    json_calls: tools are called by JSON in `<tool_call>`; else each has a tag of its name. hints: results begin with
    the number of turns left. tools: names in `mempo_env.protocols.TOOLS`.
    """

    name: str
    default_context: str
    blocks: tuple[str, ...]
    memory_block: str | None = None
    json_calls: bool = True
    hints: bool = False
    tools: tuple[str, ...] = ("search",)

    def __post_init__(self) -> None:
        unknown = [tool for tool in self.tools if tool not in TOOLS]
        if unknown or not self.tools:
            raise ValueError(f"tools: expected some of {', '.join(TOOLS)}, got {self.tools!r}.")
        if any(name not in ("mem", "think") for name in self.blocks) or len(set(self.blocks)) != len(self.blocks):
            raise ValueError(f"blocks: expected 'mem' and 'think' at most once each, got {self.blocks!r}.")
        if self.memory_block is not None and self.memory_block not in self.blocks:
            raise ValueError(f"memory_block: expected one of the blocks {self.blocks!r}, got {self.memory_block!r}.")

    @property
    def grammar(self) -> Grammar:
        return Grammar(self.blocks, self.memory_block, self.json_calls, self.tools)

    @property
    def stop(self) -> tuple[str, ...]:
        """Closing tags of actions. Engines keep the one that ended the sampling in the text."""
        return tuple(f"</{name}>" for name in self.grammar.action_tags)

    @property
    def has_memory(self) -> bool:
        return self.memory_block is not None

    def head(self, task: Task, instructions: str | None = None) -> tuple[Message, ...]:
        """The messages before the first step: instructions (None: the protocol's own; "": none), questions."""
        text = self.instructions if instructions is None else instructions
        user = Message(role="user", content=prompts.questions(task))
        return (Message(role="system", content=text), user) if text else (user,)

    @property
    def instructions(self) -> str:
        """The protocol's own system message."""
        call_formats = [self._call(tool, _PLACEHOLDERS[tool]) for tool in self.tools]
        return prompts.instructions(self.blocks, self.memory_block, call_formats, self.tools)

    def parse(self, response: str, finish_reason: str | None = None) -> Action:
        """Read a response; every string gives an `Action`. The rules stand in `mempo_env.protocols.parser`."""
        return parse(response, self.grammar, finish_reason)

    def finished(self, text: str) -> bool:
        """Whether sampling may stop: `text` holds a stop string outside the reasoning.

        A draft call inside `<think>` also ends in a stop string. An engine that asks this before it stops does not cut
        the reasoning short; one that cannot ask (a server with stop strings only) yields an unclosed step.
        """
        action = parse(text, self.grammar)
        open_still = action.reason in (InvalidReason.NO_ACTION, InvalidReason.UNCLOSED)
        return not open_still and action.response.endswith(self.stop)

    def render_hits(self, hits: Sequence[Hit], *, turns_left: int | None = None, budgets: Sequence[Budget] = ()) -> str:
        """The `<information>` block for `hits`; see `mempo_env.protocols.render.render_hits`.

        turns_left: steps that remain after this result; shown by protocols with `hints` only.
        """
        return render_hits(hits, turns_left=turns_left if self.hints else None, budgets=budgets)

    def render_invalid(self, action: Action, *, turns_left: int | None = None, budgets: Sequence[Budget] = ()) -> str:
        """The reply to an invalid step, in the same channel as results: what was wrong and what is expected."""
        long, short = prompts.complaint(action.reason, self.blocks, self.grammar.action_tags, self.tools)
        return render_message(long, short, turns_left=turns_left if self.hints else None, budgets=budgets)

    def compose(
        self,
        *,
        memory: str = "",
        thought: str = "",
        query: str | None = None,
        answers: Sequence[str] | None = None,
        tool: str = "search",
    ) -> str:
        """Write a well-formed step: the inverse of `parse`, up to white space around each text.

        Give either `query` (the argument of `tool`) or `answers` (one per question, "" for unanswered). Texts are made
        inert. Where the memory is the thinking (MEM1), the two texts are written below each other; a protocol without
        memory has no place for `memory` and leaves it out. Raises ValueError when both or neither of query and answers
        are given, the query is blank, the tool is not offered, or an answer holds the separator ";".
        """
        if (query is None) == (answers is None):
            raise ValueError("compose: expected exactly one of query and answers.")
        texts = {"mem": memory, "think": thought}
        if self.memory_block == "think":
            texts["think"] = "\n".join(text.strip() for text in (memory, thought) if text.strip())
        parts = [f"<{name}>{neutralise(texts[name]).strip()}</{name}>" for name in self.blocks]
        if query is not None:
            if tool not in self.tools:
                raise ValueError(f"compose: expected a tool of {self.tools!r}, got {tool!r}.")
            if not query.strip():
                raise ValueError("compose: the query is blank.")
            parts.append(self._call(tool, neutralise(query).strip()))
        else:
            parts.append(f"<answer>{_join_answers(answers or ())}</answer>")
        return "\n".join(parts)

    def _call(self, tool: str, argument: str) -> str:
        if not self.json_calls:
            return f"<{tool}>{argument}</{tool}>"
        call = {"name": tool, "arguments": {TOOLS[tool][1]: argument}}
        return f"<tool_call>{json.dumps(call, ensure_ascii=False)}</tool_call>"

    def plan(self, kind: str | None = None) -> tuple[Segment, ...]:
        """The segments of a step for guided decoding.

        kind: "search", "visit" or "answer" for a step of that kind; None lets the model choose, as the last segment.
        Whatever text fills the slots, after `Free.cut` and not blank where required, the whole parses to a well-formed
        action of the chosen kind. Raises ValueError for a kind that the protocol does not offer.
        """
        kinds = (*self.tools, str(ActionKind.ANSWER))
        if kind is not None and kind not in kinds:
            raise ValueError(f"plan: expected one of {', '.join(kinds)} or None, got {kind!r}.")
        left = 1.0 / (1 + sum(2 if name == self.memory_block else 1 for name in self.blocks))
        opening: list[Forced | Free] = []
        for name in self.blocks:
            is_memory = name == self.memory_block
            stops = (f"</{name}>", *(tag for tag in _TAGS if tag != f"</{name}>"))
            slot = Free("memory" if is_memory else "think", stops, required=False, share=left * (2 if is_memory else 1))
            opening += [Forced(f"<{name}>"), slot, Forced(f"</{name}>\n")]
        branches = [Branch(k, self._action_plan(k, left)) for k in kinds if kind in (None, k)]
        if kind is None:
            return (*merge(opening), Choice(tuple(branches)))
        return merge([*opening, *branches[0].segments])

    def _action_plan(self, kind: str, share: float) -> tuple[Forced | Free, ...]:
        if kind == ActionKind.ANSWER:
            stops = ("</answer>", "\n", *(tag for tag in _TAGS if tag != "</answer>"))
            return (Forced("<answer>"), Free("answer", stops, required=True, share=share), Forced("</answer>"))
        mark = "\x00"
        before, after = self._call(kind, mark).replace("\\u0000", mark).split(mark)
        # The first stop is what a trained model would write next. In JSON a quote would end the string and a backslash
        # or a control character would need care, so they end the slot; elsewhere it ends with its line.
        stops = ('"', "\\", *_CONTROL_CHARACTERS) if self.json_calls else (after, "\n", *_TAGS)
        return (Forced(before), Free(TOOLS[kind][1], stops, required=True, share=share), Forced(after))


def _join_answers(answers: Sequence[str]) -> str:
    if isinstance(answers, str):
        raise TypeError(f"answers: expected a sequence of strings, one per question, got the string {answers!r}.")
    texts = [neutralise(answer).strip() for answer in answers]
    for text in texts:
        if ";" in text:
            raise ValueError(f"answers: expected no ';' inside an answer, since it separates them; got {text!r}.")
    if not texts:
        raise ValueError("answers: expected at least one.")
    # One empty part at the end is dropped when answers are split, so an unanswered last question needs a semicolon
    # more.
    return ANSWER_SEPARATOR.join(texts).strip() + ("" if texts[-1] else ";")
