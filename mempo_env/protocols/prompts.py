"""The words of the protocols: what the policy is told, and what it hears when a step was invalid."""

from __future__ import annotations

from collections.abc import Sequence

from mempo_env.protocols.inert import neutralise
from mempo_env.protocols.render import INVALID
from mempo_env.types import InvalidReason, Task

_TASK = (
    "You answer numbered questions with the help of a search engine. You work in steps. In each step you either "
    "{verbs} or, when you know enough, give all answers at once and finish."
)
_MEM_VIEW = (
    "You cannot look back. Besides the questions you are only sure to see your own last <mem> and the result that came "
    "after it. Whatever you do not write into <mem> is lost."
)
_MEM_BLOCK = (
    "<mem>your memory, written anew in every step: take over what still matters from your last <mem>, and add what the "
    "latest result tells you. For each question note its number, the facts found (names, dates and numbers copied "
    "exactly), the answer once you know it, and what is still missing. Leave out everything else. In the first step, "
    "say that nothing is known yet.</mem>"
)
_STATE_VIEW = (
    "You cannot look back. Besides the questions you are only sure to see your own last <think> and the result that "
    "came after it. The <think> block is your only memory: whatever you do not write into it is lost."
)
_STATE_BLOCK = (
    "<think>your reasoning and your memory in one, written anew in every step: take over what still matters from "
    "your last <think>, add what the latest result tells you, and decide what to do next. For each question keep its "
    "number, the facts found (names, dates and numbers copied exactly), the answer once you know it, and what "
    "is still missing.</think>"
)
_THINK_BLOCK = "<think>what you know so far, what is missing, and what to do next, in a few sentences</think>"
_RULES = (
    "Search for one thing of one question at a time; a question may take several searches, each built on the last "
    "result. If a search finds nothing useful, ask in other words. Results come back between <information> and "
    "</information>; never write these tags yourself. Do not invent results."
)
_ANSWER_RULES = (
    "Give the answers in the order of the questions, separated by semicolons, exactly one for each question and no "
    "semicolon inside an answer. Keep each answer as short as it can be: a name, a date, a number, or yes or no; no "
    "sentence and no explanation."
)
_TOOL_VERBS = {"search": "search once", "visit": "read one page"}


def instructions(
    blocks: Sequence[str], memory_block: str | None, call_formats: Sequence[str], tools: Sequence[str]
) -> str:
    """The protocol's own system message. call_formats: how each tool is called, in the order of `tools`."""
    view = {"mem": _MEM_VIEW, "think": _STATE_VIEW}.get(memory_block or "", "")
    forms = {"mem": _MEM_BLOCK, "think": _STATE_BLOCK if memory_block == "think" else _THINK_BLOCK}
    verbs = " or ".join(_TOOL_VERBS.get(tool, f"use {tool}") for tool in tools)
    lines = [
        _TASK.format(verbs=verbs),
        *([view] if view else []),
        "",
        "Write every step in exactly this form, and nothing around it:",
    ]
    lines += [*(forms[block] for block in blocks), "then one of"]
    lines += [*call_formats, "<answer>first answer; second answer; ...</answer>", "", _RULES, _ANSWER_RULES]
    return "\n".join(lines)


def questions(task: Task) -> str:
    """The user message: the questions, numbered. Each stays on its own line and cannot hold a tag."""
    lead = "Answer this question." if task.objectives == 1 else f"Answer these {task.objectives} questions."
    lines = [f"Question {n}: {' '.join(neutralise(q.text).split())}" for n, q in enumerate(task.questions, start=1)]
    return "\n".join([lead, *lines])


_COMPLAINTS = {
    InvalidReason.NO_ACTION: "it held no action",
    InvalidReason.UNCLOSED: "a block was opened but never closed",
    InvalidReason.MISMATCHED: "a block was closed that was not open",
    InvalidReason.NESTED: "a block was opened inside an action",
    InvalidReason.EMPTY: "the action was empty",
    InvalidReason.MALFORMED_JSON: "the tool call was not one valid JSON object",
    InvalidReason.UNKNOWN_TOOL: "the tool is not known",
    InvalidReason.BAD_ARGUMENTS: "the arguments were not those of the tool",
    InvalidReason.LENGTH: "it grew too long before it held a complete action",
}


def complaint(
    reason: InvalidReason | None, blocks: Sequence[str], action_tags: Sequence[str], tools: Sequence[str]
) -> tuple[str, str]:
    """A long and a short message for an invalid step. Tags are named without brackets: no parser can act on them."""
    why = _COMPLAINTS.get(reason, "it could not be read") if reason else "it could not be read"
    known = f" (known: {', '.join(tools)})" if reason == InvalidReason.UNKNOWN_TOOL else ""
    form = ", then ".join([*(f"a {name} block" for name in blocks), f"one {' or '.join(action_tags)} block"])
    return (
        f"{INVALID[:-1]}: {why}{known}. Nothing was done. Expected: {form}, each opened and closed.",
        INVALID,
    )
