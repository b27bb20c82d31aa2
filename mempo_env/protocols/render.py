"""What the environment writes: the `<information>` block. One renderer for all protocols, and its budgets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mempo_env.checks import whole_number
from mempo_env.protocols.inert import neutralise
from mempo_env.types import Hit

NO_RESULTS = "No results."
NO_ROOM = "The results are too long."
INVALID = "Your last step was invalid."
CUT_MARK = " ..."
_WORD_SEARCH_CHARS = 40


def block(body: str) -> str:
    """`body` inside the tags of the result channel."""
    return f"<information>\n{body}\n</information>"


@dataclass(frozen=True)
class Budget:
    """Limits on what a step may show, in the unit of `count` (characters by default; a tokenizer's count for tokens).

    max_passage: the most one passage may take, its `Doc i(Title: ..)` included. max_observation: the most the whole
    block may take, tags included; at least what the shortest block takes. None: no limit. Raises ValueError when a
    limit is too small to be kept, TypeError when it is no integer.
    """

    max_passage: int | None = None
    max_observation: int | None = None
    count: Callable[[str], int] = len

    def __post_init__(self) -> None:
        shortest = max(self.count(block(body)) for body in (NO_RESULTS, NO_ROOM, INVALID))
        for name, least in (("max_passage", 1), ("max_observation", shortest)):
            limit = getattr(self, name)
            if limit is not None and whole_number(name, limit, least=None) < least:
                why = " (the shortest block takes that much)" if name == "max_observation" else ""
                raise ValueError(f"{name}: expected at least {least}{why}, got {limit}.")


def render_hits(hits: Sequence[Hit], *, turns_left: int | None = None, budgets: Sequence[Budget] = ()) -> str:
    """Render the results of a search as one `<information>` block, one `Doc {i}(Title: {title}) {text}` per hit.

    Titles and texts are made inert (see `neutralise`). A passage over a budget's `max_passage` is cut between words
    and ends in " ...". When the block is over `max_observation`, the last passages go: the first that does not fit is
    cut if it is the very first, else dropped whole with all that follow. No hits give "No results.". The tags are
    always whole, and the block keeps every budget. `turns_left`, when given, is told first:
    `[HINT]You have 3 turns left.[/HINT]`; it is left out when it alone would break a budget.
    """
    hint = _hint(turns_left)
    if not hits:
        return _first_fitting([hint + NO_RESULTS, NO_RESULTS], budgets)
    lines: list[str] = []
    for number, hit in enumerate(hits, start=1):
        line = _cut_to_passage_budgets(_line(number, hit), budgets)
        if not line:
            continue
        if _fits(block(hint + "\n".join([*lines, line])), budgets):
            lines.append(line)
            continue
        if not lines:
            cut = _longest_cut(line, lambda text: _fits(block(hint + text), budgets))
            lines = [cut] if cut else []
        break
    if not lines:
        return _first_fitting([hint + NO_ROOM, NO_ROOM], budgets)
    return block(hint + "\n".join(lines))


def render_message(long: str, short: str, *, turns_left: int | None = None, budgets: Sequence[Budget] = ()) -> str:
    """A message of the environment in the same channel: `long` if the budgets allow it, else `short`."""
    return _first_fitting([_hint(turns_left) + long, long, short], budgets)


def _hint(turns_left: int | None) -> str:
    if turns_left is None or turns_left < 1:
        return ""
    if turns_left == 1:
        return "[HINT]You have 1 turn left. You must answer now.[/HINT]\n"
    return f"[HINT]You have {turns_left} turns left.[/HINT]\n"


def _line(number: int, hit: Hit) -> str:
    title = " ".join(neutralise(hit.passage.title).split())
    return f"Doc {number}(Title: {title}) {neutralise(hit.passage.text).strip()}"


def _fits(text: str, budgets: Sequence[Budget]) -> bool:
    return all(b.max_observation is None or b.count(text) <= b.max_observation for b in budgets)


def _cut_to_passage_budgets(line: str, budgets: Sequence[Budget]) -> str:
    for budget in budgets:
        if budget.max_passage is not None and budget.count(line) > budget.max_passage:
            line = _longest_cut(line, lambda text, b=budget: b.count(text) <= b.max_passage)  # type: ignore[misc]
    return line


def _longest_cut(text: str, fits: Callable[[str], bool]) -> str:
    """The longest piece of `text`, with the mark, that fits; "" if none does. Takes about log2(len) calls of `fits`.

    A count that is not quite monotone (tokens merge across a cut) can only make the piece a little shorter than
    possible.
    """
    low, high, best = 1, len(text) - 1, ""
    while low <= high:
        middle = (low + high) // 2
        piece = _cut_at_word(text, middle)
        if fits(piece):
            low, best = middle + 1, piece
        else:
            high = middle - 1
    return best


def _cut_at_word(text: str, length: int) -> str:
    """At most `length` characters of `text`, ended between words where a gap is near, then the mark."""
    piece = text[:length]
    if not text[length].isspace():
        for end in range(length - 1, max(length - 1 - _WORD_SEARCH_CHARS, 0), -1):
            if text[end].isspace():
                piece = text[:end]
                break
    return piece.rstrip() + CUT_MARK


def _first_fitting(bodies: Sequence[str], budgets: Sequence[Budget]) -> str:
    return next((block(body) for body in bodies if _fits(block(body), budgets)), block(bodies[-1]))
