"""An episode that a person can read: questions, each step's memory with what changed in it, action and reply.

Two forms of the same text: with terminal colours (new words green, dropped words red and struck through), and plain
(`{+new+}`, `[-dropped-]`). Control characters of passages and of the policy are shown, never sent to the terminal.
"""

from __future__ import annotations

import difflib
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Literal, TextIO

from mempo_env.types import ActionKind, Hit, Task, Turn

if TYPE_CHECKING:
    from mempo_env.episode import Episode

Change = Literal["same", "added", "dropped"]

_STYLES: Mapping[str, str] = {
    "title": "1;36",
    "label": "1",
    "dim": "2",
    "added": "32",
    "dropped": "9;31",
    "good": "1;32",
    "bad": "1;31",
    "query": "33",
}
# What would drive a terminal, turn the direction of the rest of the line, hide, or not encode. Blanks and breaks stay.
_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028\u2029\u202a-\u202e\u2060\u2066-\u2069\ufeff\ud800-\udfff]"
)
_NAMED = {
    0x200B: "ZWSP", 0x200E: "LRM", 0x200F: "RLM", 0x061C: "ALM", 0x202A: "LRE", 0x202B: "RLE", 0x202C: "PDF",
    0x202D: "LRO", 0x202E: "RLO", 0x2060: "WJ", 0x2066: "LRI", 0x2067: "RLI", 0x2068: "FSI", 0x2069: "PDI",
    0xFEFF: "BOM", 0x2028: "LS", 0x2029: "PS",
}  # fmt: skip
_WORD = re.compile(r"\S+\s*|\s+")
_SNIPPET_CHARS = 160
_INDENT = "    "


def word_diff(before: str, after: str) -> list[tuple[Change, str]]:
    """What changed from `before` to `after`, word by word.

    Returns runs of text in reading order, each "same", "added" or "dropped". The "same" and "added" runs joined give
    `after` exactly. Words are compared without the blanks that follow them.

    >>> word_diff("born in Oslo", "born in Rome in 1900")
    [('same', 'born in '), ('dropped', 'Oslo'), ('added', 'Rome in 1900')]
    """
    old, new = _WORD.findall(before), _WORD.findall(after)
    matcher = difflib.SequenceMatcher(None, [w.strip() for w in old], [w.strip() for w in new])
    runs: list[tuple[Change, str]] = []
    for kind, i1, i2, j1, j2 in matcher.get_opcodes():
        if kind == "equal":
            runs.append(("same", "".join(new[j1:j2])))
            continue
        if i1 < i2:
            runs.append(("dropped", "".join(old[i1:i2])))
        if j1 < j2:
            runs.append(("added", "".join(new[j1:j2])))
    return runs


def visible(text: str) -> str:
    """`text` with control characters, marks of direction and lone surrogates shown as signs.

    >>> visible("a\\x00b\\u202ec")
    'a␀b⟦RLO⟧c'
    """
    return _HIDDEN.sub(_sign, text)


def _sign(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x20:
        return chr(0x2400 + code)
    return "\u2421" if code == 0x7F else f"\u27e6{_NAMED.get(code, f'U+{code:04X}')}\u27e7"


def show_lines(lines: Iterable[str], stream: TextIO | None = None) -> None:
    """Print lines; characters that the stream's encoding lacks become question marks instead of an error."""
    stream = sys.stdout if stream is None else stream
    encoding = getattr(stream, "encoding", None) or "utf-8"
    text = "\n".join(lines)
    print(text.encode(encoding, "replace").decode(encoding), file=stream, flush=True)


def render_episode(episode: Episode, *, colour: bool = True) -> str:
    """The whole episode so far."""
    return "\n".join(render_lines(episode, colour=colour))


def render_lines(episode: Episode, *, colour: bool = True, from_turn: int | None = None) -> Iterator[str]:
    """The episode's lines from step `from_turn` + 1 on; None gives the task and all steps. An outcome closes them."""
    paint = Painter(colour)
    if from_turn is None:
        yield from _task_lines(episode.task, f"{episode.protocol.name}, context {episode.context.name}", paint)
        from_turn = 0
    memory = next((t.action.memory for t in reversed(episode.turns[:from_turn]) if t.action.memory is not None), "")
    for number, turn in enumerate(episode.turns[from_turn:], start=from_turn + 1):
        yield from _turn_lines(number, turn, memory, episode.max_steps, paint)
        memory = turn.action.memory if turn.action.memory is not None else memory
    if episode.done:
        yield from _outcome_lines(episode, paint)


def wants_colour(stream: TextIO | None = None) -> bool:
    """Whether to colour what is printed: on a terminal, and not where the variable NO_COLOR is set."""
    stream = sys.stdout if stream is None else stream
    return not os.environ.get("NO_COLOR") and bool(getattr(stream, "isatty", lambda: False)())


class Painter:
    """Wraps text in a style, or in plain marks where the change would be lost without colour."""

    def __init__(self, colour: bool) -> None:
        self.colour = colour

    def __call__(self, style: str, text: str) -> str:
        text = visible(text)
        if self.colour:
            # A style ends at each line's end, so that a pager or a scrolled window keeps the rest clean.
            return "\n".join(f"\x1b[{_STYLES[style]}m{line}\x1b[0m" if line else "" for line in text.split("\n"))
        body, blank = text.rstrip(), text[len(text.rstrip()) :]
        if style == "added" and body:
            return f"{{+{body}+}}{blank}"
        if style == "dropped" and body:
            return f"[-{body}-]{blank}"
        return text


def _task_lines(task: Task, setting: str, paint: Painter) -> Iterator[str]:
    plural = "" if task.objectives == 1 else "s"
    yield f"{paint('title', f'Task {task.id}')}  {paint('dim', f'{task.objectives} question{plural}, {setting}')}"
    yield from question_lines([question.text for question in task.questions], paint)


def _turn_lines(number: int, turn: Turn, memory: str, max_steps: int, paint: Painter) -> Iterator[str]:
    action = turn.action
    yield ""
    yield paint("title", f"Step {number} of at most {max_steps}")
    if action.memory is not None:
        yield f"  {paint('label', 'Memory')}"
        yield from block(paint_diff(memory, action.memory, paint))
    if action.thought:
        yield f"  {paint('label', 'Thought')}"
        yield from block(paint("dim", action.thought))
    if action.kind is ActionKind.INVALID:
        yield f"  {paint('bad', f'No valid action: {action.reason}')}"
        yield from block(paint("dim", _shorten(action.response)))
        if turn.observation:
            yield f"  {paint('label', 'Reply')}"
            yield from block(paint("dim", turn.observation))
        return
    yield f"  {paint('label', action.kind.value.capitalize())} {paint('query', action.argument)}"
    if action.kind is not ActionKind.ANSWER and turn.observation:
        yield from _hit_lines(turn.hits, paint)


def _hit_lines(hits: tuple[Hit, ...], paint: Painter) -> Iterator[str]:
    if not hits:
        yield f"{_INDENT}{paint('dim', 'nothing found')}"
    for number, hit in enumerate(hits, start=1):
        title = visible(hit.passage.title or hit.passage.id)
        yield f"{_INDENT}{number}. {paint('label', title)} {paint('dim', _shorten(hit.passage.text))}"


def _outcome_lines(episode: Episode, paint: Painter) -> Iterator[str]:
    yield ""
    if episode.error is not None:
        yield f"{paint('bad', 'Failed, not scored:')} {visible(episode.error)}"
        return
    style = "good" if episode.reward > 0 else "bad"
    yield f"{paint(style, f'Ended: {episode.stop_reason}, reward {episode.reward:g}')}"
    score = episode.score
    if score is None:
        return
    if score.note:
        yield f"  {paint('bad', f'Answer: {score.note}')}"
    for number, (question, em, f1) in enumerate(zip(episode.task.questions, score.em, score.f1, strict=True), start=1):
        said = score.parts[number - 1] if number <= len(score.parts) else None
        yield answer_line(number, em, f1, question.answers[0], paint, said=said)


def question_lines(questions: Iterable[str], paint: Painter) -> Iterator[str]:
    """The questions of a task, numbered, each on its line."""
    for number, question in enumerate(questions, start=1):
        yield f"  {paint('label', f'Question {number}:')} {visible(question)}"


def answer_line(number: int, em: float, f1: float, expected: str, paint: Painter, *, said: str | None = None) -> str:
    """How one objective went; `said` is the policy's answer, where it is known which one that is."""
    mark = paint("good", "right") if em else paint("bad", "wrong")
    words = "" if said is None else f" said {visible(said)!r},"
    return f"  {number}. {mark}:{words} expected {visible(expected)!r}  {paint('dim', f'F1 {f1:.2f}')}"


def paint_diff(before: str, after: str, paint: Painter) -> str:
    """`after`, with the words that are new since `before` and those that were dropped marked."""
    if not after.strip():
        return paint("dim", "(empty)")
    shown = []
    for change, text in word_diff(before, after):
        if change == "dropped" and not text[-1].isspace():
            text += " "  # a last word has no blank behind it, and would run into what replaced it
        shown.append(visible(text) if change == "same" else paint(change, text))
    return "".join(shown)


def block(text: str) -> Iterator[str]:
    """The lines of `text`, indented."""
    for line in text.strip("\n").split("\n"):
        yield f"{_INDENT}{line}"


def _shorten(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _SNIPPET_CHARS else text[: _SNIPPET_CHARS - 1] + "…"
