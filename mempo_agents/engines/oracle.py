"""How the oracle plays: it knows which chain of facts proves an answer, but must find each fact and keep it.

A fact counts as known only while it stands, word for word, in what the policy can see: a result that is in view, or the
oracle's own notes. So its score proves the retriever (the passage was found), the budgets (the fact was not cut off)
and the context rule (what was dropped had been noted), and its costs are those of a perfect note-taker.

It is stateless. Each step it reads the visible messages, and its notes in them:

    Question 2 fact: Ana Belén was born in Crème.     a fact of a question that is not finished
    Question 2 tried: birthplace of Ana Belén         the search that it sends off with this very step
    Question 1 answer: Crème                          a finished question; its facts are dropped

Then it searches for the first unknown link of the first unfinished question, or answers when all are finished. A link
that was searched for and is still unknown was searched in vain: the question is finished with the answer "unknown".

How it writes, and how well, is a `Style`: a teacher may quote its proofs, be brief, or be made imperfect on purpose.

A question without evidence is searched once, by its text; its answer is the first accepted alias that stands in that
search's result, else "unknown". On such data the oracle measures how often the answer is retrieved at all.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass

from mempo_env.protocols import Protocol as TagProtocol
from mempo_env.protocols import neutralise
from mempo_env.types import ActionKind, Evidence, Message, Question, Task

UNKNOWN = "unknown"
_TAG = re.compile(r"</?[a-z_]+>")
_NOTE = re.compile(r"Question (\d+) (tried|answer): (.*)")


@dataclass(frozen=True, slots=True)
class View:
    """What can be seen of the past: its text, the searches with what followed them, and the answers noted.

    text: all turns in view. searches: (query, reply) in order. answers: by question number, from 1.
    """

    text: str
    searches: tuple[tuple[str, str], ...]
    answers: dict[int, str]


def read_view(messages: Sequence[Message], protocol: TagProtocol) -> View:
    """Reads the turns; the head (everything before the first response) is no evidence and is left out."""
    begin = next((i for i, message in enumerate(messages) if message["role"] == "assistant"), len(messages))
    turns = messages[begin:]
    searches: list[tuple[str, str]] = []
    answers: dict[int, str] = {}
    for index, message in enumerate(turns):
        if message["role"] != "assistant":
            continue
        reply = turns[index + 1]["content"] if index + 1 < len(turns) else ""
        action = protocol.parse(message["content"])
        if action.kind == ActionKind.SEARCH:
            searches.append((_plain(action.argument), reply))
        for line in _TAG.sub("\n", message["content"]).splitlines():
            if note := _NOTE.fullmatch(line.strip()):
                number, what, value = int(note[1]), note[2], note[3]
                if what == "answer":
                    answers[number] = value
                else:
                    searches.append((_plain(value), reply))
    return View("\n".join(message["content"] for message in turns), tuple(searches), answers)


@dataclass(frozen=True, slots=True)
class Style:
    """How the oracle writes, and its faults. The default is the perfect note-taker.

    quote: a finished question keeps its last fact beside the answer, an unfinished one only its last fact; without a
    memory (ReAct) the thought quotes what the last search found. A small model learns to copy facts much sooner than to
    write bare answers, for the text before each copy says which fact it is.
    terse: a few words instead of sentences, all of them in the vocabulary of `mempo_agents.nano`, and no note of the
    search, which the step itself shows.

    Each fault is a probability in [0, 1], drawn from the request's seed:
    drop: that a noted fact is left out of the memory (it must be searched for again, if it can be).
    verbose: that the memory takes over a whole passage of the last result.
    needless: that a step sends off a search whose result the question does not need.
    paraphrase: that a search asks by the question's text instead of by the title it needs.
    """

    quote: bool = False
    terse: bool = False
    drop: float = 0.0
    verbose: float = 0.0
    needless: float = 0.0
    paraphrase: float = 0.0

    def __post_init__(self) -> None:
        for name in ("drop", "verbose", "needless", "paraphrase"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must lie between 0 and 1, got {getattr(self, name)}.")


PERFECT = Style()


def write_step(
    task: Task, messages: Sequence[Message], protocol: TagProtocol, style: Style = PERFECT, seed: int = 0
) -> str:
    """The oracle's next response, well-formed in `protocol`. `seed` decides the faults of `style`."""
    view = read_view(messages, protocol)
    chance = random.Random(seed)
    notes: list[str] = []
    answers: list[str] = []
    search: str | None = None
    thought = "answer" if style.terse else "Every question is settled. I answer."
    for number, question in enumerate(task.questions, start=1):
        answer = view.answers.get(number) or _answer(question, view)
        answers.append(answer or UNKNOWN)
        known = [f"Question {number} fact: {neutralise(link.fact)}" for link in _known(question, view)]
        if style.quote:
            known = known[-1:]
        known = [note for note in known if chance.random() >= style.drop]
        if answer is not None:
            notes += [*(known if style.quote else ()), f"Question {number} answer: {answer}"]
            continue
        notes += known
        if search is None:
            search = _next_query(question, view)
            if chance.random() < style.paraphrase:
                search = question.text
            elif chance.random() < style.needless:
                search = chance.choice(task.questions).text
            if not style.terse:
                notes.append(f"Question {number} tried: {neutralise(search)}")
            thought = (
                f"Question {number}" if style.terse else f"Question {number} is next. I search for what is missing."
            )
    if not protocol.has_memory and style.quote:
        thought = _spoken(notes, messages, thought)
    if messages and chance.random() < style.verbose:
        notes += [line for line in _TAG.sub("\n", messages[-1]["content"]).splitlines() if line.startswith("Doc ")][:1]
    memory = "\n".join(notes) or ("-" if style.terse else "Nothing is known yet.")
    if search is None:
        return protocol.compose(memory=memory, thought=thought, answers=answers)
    return protocol.compose(memory=memory, thought=thought, query=search)


def _spoken(notes: Sequence[str], messages: Sequence[Message], otherwise: str) -> str:
    """The notes that were not written in an earlier response that can be seen: what the last result added."""
    said = {
        line.strip()
        for message in messages
        if message["role"] == "assistant"
        for line in _TAG.sub("\n", message["content"]).splitlines()
    }
    return "\n".join(note for note in notes if note not in said) or otherwise


def _known(question: Question, view: View) -> list[Evidence]:
    return [link for link in question.evidence if _is_known(link, view)]


def _answer(question: Question, view: View) -> str | None:
    """The answer if it is proven, "unknown" if a search was in vain, None while there is something left to search."""
    if question.evidence:
        if all(_is_known(link, view) for link in question.evidence):
            return _in_one_line(question.answers[0])
    else:
        for query, reply in view.searches:
            if query == _plain(question.text):
                return next((alias for alias in question.answers if _stands_in(alias, reply)), UNKNOWN)
    return UNKNOWN if _plain(_next_query(question, view)) in {query for query, _ in view.searches} else None


def _next_query(question: Question, view: View) -> str:
    """The search for the first unknown link."""
    link = next((link for link in question.evidence if not _is_known(link, view)), None)
    if link is None:
        return question.text
    return link.query if link.query.strip() else link.title or question.text


def _is_known(link: Evidence, view: View) -> bool:
    return neutralise(link.fact) in view.text


def _stands_in(alias: str, text: str) -> bool:
    """As whole words, in any case."""
    pattern = rf"(?<!\w){re.escape(neutralise(alias))}(?!\w)"
    return re.search(pattern, text, re.IGNORECASE) is not None


def _plain(query: str) -> str:
    """A query as it can be compared: as it reads back from a step."""
    return " ".join(neutralise(query).split())


def _in_one_line(answer: str) -> str:
    return " ".join(answer.split())
