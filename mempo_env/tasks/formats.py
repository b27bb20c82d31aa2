"""The published question formats: which one a row is in, and what it says.

    HotpotQA            question, answer, _id, supporting_facts [title, sentence number], context [title, sentences]
    2WikiMultihopQA     the same and evidences [subject, relation, object]; answer_id points into id_aliases.json
    MuSiQue             question, answer, answer_aliases, answerable, question_decomposition, paragraphs
    NQ-open             question, answer (list of aliases)
    TriviaQA            Question, Answer {Value, Aliases, NormalizedAliases}; on the hub question, answer {value, ...}
    PopQA               question, possible_answers (a JSON list, written as a string), prop
    FlashRAG            id, question, golden_answers, metadata
    PhantomWiki         question, answer (list), prolog or difficulty

The format is told by the keys of a row. Files and hub rows (where lists of pairs are pairs of lists) are both read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

Fields = Mapping[str, Any]

EXPECTED = (
    "questions as in HotpotQA, 2WikiMultihopQA, MuSiQue, NQ-open, TriviaQA, PopQA, FlashRAG or PhantomWiki "
    "(at least 'question' with 'answer', 'golden_answers' or 'possible_answers')"
)


class BadRowError(Exception):
    """A row that gives no question. `reason` is the short name under which such rows are counted."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Link:
    """One supporting fact as the source has it: a verbatim sentence of the passage with this title."""

    query: str
    title: str
    fact: str
    answer: str = ""


@dataclass(frozen=True, slots=True)
class RawQuestion:
    """A row's content before ids are made and passages merged.

    `links` is None where the source has supporting facts that cannot be traced to its passages.
    """

    own_id: str
    text: str
    answers: tuple[str, ...]
    kind: str = ""
    links: tuple[Link, ...] | None = ()
    passages: tuple[tuple[str, str], ...] = ()
    answer_id: str = ""


@dataclass(frozen=True, slots=True)
class QuestionFormat:
    name: str
    read: Callable[[Fields], RawQuestion]


def detect(row: Fields) -> QuestionFormat | None:
    """The format of a row by its keys; None when it holds no question."""
    keys = set(row)
    if {"Question", "Answer"} <= keys or {"Question", "QuestionId"} <= keys:
        return TRIVIAQA
    if "question" not in keys:
        return None
    if "golden_answers" in keys:
        return FLASHRAG
    if "possible_answers" in keys:
        return POPQA
    if keys & {"question_decomposition", "paragraphs"}:
        return MUSIQUE
    if "evidences" in keys:
        return TWO_WIKI
    if keys & {"supporting_facts", "context"}:
        return HOTPOTQA
    if "answer" not in keys:
        return None
    if isinstance(row["answer"], Mapping):
        return TRIVIAQA
    return PHANTOMWIKI if keys & {"prolog", "difficulty"} else NQ_OPEN


def join_sentences(sentences: Iterable[str]) -> str:
    """Sentences as one text that holds each of them verbatim: a space is added only where none stands between."""
    text = ""
    for sentence in sentences:
        gap = " " if text and sentence and not text[-1].isspace() and not sentence[0].isspace() else ""
        text += gap + sentence
    return text.strip()


def _text(row: Fields, key: str) -> str:
    if key not in row:
        raise BadRowError("wrong shape", f"expected the key {key!r}, found {', '.join(map(str, row)) or 'no keys'}")
    value = row[key]
    if not isinstance(value, str):
        raise BadRowError("wrong shape", f"{key}: expected a string, got {type(value).__name__}")
    if not value.strip():
        raise BadRowError("no question", f"{key}: the text is empty")
    return value.strip()


def _own_id(row: Fields, *keys: str) -> str:
    value = next((row[key] for key in keys if row.get(key) is not None), "")
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise BadRowError("wrong shape", f"{keys[0]}: expected a string or a whole number, got {type(value).__name__}")
    return str(value).strip()


def _aliases(*values: Any) -> tuple[str, ...]:
    """Accepted answers in order, blank ones and repeats left out. A bare string is one alias, never its letters."""
    found: dict[str, None] = {}
    for value in values:
        if value is None:
            continue
        if isinstance(value, str) and _is_list_as_text(value):
            raise BadRowError(
                "wrong shape", f"the answer {value[:40]!r} is a list written as a string; expected a list of strings"
            )
        for alias in value if isinstance(value, (list, tuple)) else [value]:
            if isinstance(alias, int) and not isinstance(alias, bool):
                alias = str(alias)
            if alias is not None and not isinstance(alias, str):
                raise BadRowError("wrong shape", f"expected answers as strings, got {type(alias).__name__}: {alias!r}")
            if alias and alias.strip():
                found.setdefault(alias.strip())
    if not found:
        raise BadRowError("no answer", f"expected at least one answer, got {values[0] if values else None!r}")
    return tuple(found)


_QUOTED_LIST = re.compile(r"""\[\s*(['"]).*\1\s*\]""", re.DOTALL)


def _is_list_as_text(value: str) -> bool:
    """A list that was written as JSON, or printed by Python or numpy: "['Paris' 'Lutetia']"."""
    if not value.strip().startswith("["):
        return False
    try:
        return isinstance(json.loads(value), list)
    except (ValueError, RecursionError):
        return _QUOTED_LIST.fullmatch(value.strip()) is not None


def _pairs(value: Any, first: str, second: str, what: str) -> list[tuple[Any, Any]]:
    """[[a, b], ...] of the files, or {first: [a, ...], second: [b, ...]} of the hub, as pairs."""
    if isinstance(value, Mapping) and isinstance(value.get(first), list) and isinstance(value.get(second), list):
        value = list(zip(value[first], value[second], strict=False))
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(p, (list, tuple)) and len(p) >= 2 for p in value):
        raise BadRowError("wrong shape", f"{what}: expected a list of [{first}, {second}]")
    return [(pair[0], pair[1]) for pair in value]


def _objects(row: Fields, key: str) -> list[Fields]:
    """The list of JSON objects under `key`; empty where there is none."""
    value = row.get(key)
    if value is None:
        return []
    if not isinstance(value, list) or not _all(Mapping, value):
        raise BadRowError("wrong shape", f"{key}: expected a list of objects")
    return value


def _all(kind: type, values: Iterable[Any]) -> bool:
    return all(isinstance(value, kind) for value in values)


def _hotpotqa(row: Fields) -> RawQuestion:
    context = []
    for title, sentences in _pairs(row.get("context"), "title", "sentences", "context"):
        sentences = [sentences] if isinstance(sentences, str) else sentences
        if not isinstance(title, str) or not isinstance(sentences, list) or not _all(str, sentences):
            raise BadRowError("wrong shape", "context: expected a list of [title, list of sentences]")
        context.append((title, sentences))
    triples = row.get("evidences")
    links: list[Link] | None = []
    for title, number in _pairs(row.get("supporting_facts"), "title", "sent_id", "supporting_facts"):
        passages = [sentences for known, sentences in context if known == title]
        sentence = next((s[number].strip() for s in passages if isinstance(number, int) and 0 <= number < len(s)), "")
        if not sentence or links is None:
            links = None  # the published sets have facts that point past the passage's end
            continue
        links.append(Link(title, title, sentence, _object_of(triples, title, sentence)))
    return RawQuestion(
        _own_id(row, "_id", "id"),
        _text(row, "question"),
        _aliases(row.get("answer")),
        kind=str(row.get("type") or ""),
        links=None if links is None else tuple(links),
        passages=tuple((title.strip(), join_sentences(sentences)) for title, sentences in context),
        answer_id=str(row.get("answer_id") or ""),
    )


def _object_of(triples: Any, title: str, sentence: str) -> str:
    """What a 2WikiMultihopQA triple says that the sentence yields; empty where none fits."""
    for triple in triples if isinstance(triples, list) else []:
        if isinstance(triple, list) and len(triple) == 3 and all(isinstance(part, str) for part in triple):
            subject, _, value = triple
            if subject == title and value in sentence:
                return value
    return ""


_SENTENCE_END = re.compile(r"(?<=[.!?])\s+")


def _sentence_with(answer: str, text: str) -> str:
    """The sentence of `text` around the first mention of `answer`, whatever its case; the whole text without one."""
    mention = re.search(re.escape(answer), text, re.IGNORECASE) if answer else None
    if mention is None:
        return text
    # Boundaries inside the mention ("Dec. 10, 1817") are none.
    gaps = [gap.span() for gap in _SENTENCE_END.finditer(text)]
    start = max((end for _, end in gaps if end <= mention.start()), default=0)
    end = min((begin for begin, _ in gaps if begin >= mention.end()), default=len(text))
    return text[start:end]


def _musique(row: Fields) -> RawQuestion:
    if row.get("answerable") is False:
        raise BadRowError("unanswerable", "the question is marked as not answerable")
    texts: dict[int, tuple[str, str]] = {}
    for place, paragraph in enumerate(_objects(row, "paragraphs")):
        number = paragraph.get("idx", place)
        if not _all(str, [paragraph.get("title"), paragraph.get("paragraph_text")]) or not isinstance(number, int):
            raise BadRowError("wrong shape", "paragraphs: expected objects with 'title', 'paragraph_text' and 'idx'")
        texts[number] = (paragraph["title"].strip(), paragraph["paragraph_text"].strip())
    links: list[Link] | None = []
    for hop in _objects(row, "question_decomposition"):
        number = hop.get("paragraph_support_idx")
        support = texts.get(number) if isinstance(number, int) else None
        if support is None or links is None:
            links = None
            continue
        title, text = support
        answer = str(hop.get("answer") or "").strip()
        links.append(Link(title, title, _sentence_with(answer, text), answer))
    own_id = _own_id(row, "id")
    return RawQuestion(
        own_id,
        _text(row, "question"),
        _aliases(row.get("answer"), row.get("answer_aliases")),
        kind=own_id.partition("__")[0],
        links=None if links is None else tuple(links),
        passages=tuple(texts.values()),
    )


def _nq_open(row: Fields) -> RawQuestion:
    return RawQuestion(_own_id(row, "id"), _text(row, "question"), _aliases(row.get("answer")))


def _triviaqa(row: Fields) -> RawQuestion:
    hub = "question" in row
    answer = row.get("answer" if hub else "Answer")
    if not isinstance(answer, Mapping):
        raise BadRowError("no answer", f"expected an answer object with its aliases, got {answer!r}")
    keys = ("value", "aliases", "normalized_aliases") if hub else ("Value", "Aliases", "NormalizedAliases")
    return RawQuestion(
        _own_id(row, "question_id" if hub else "QuestionId"),
        _text(row, "question" if hub else "Question"),
        _aliases(*(answer.get(key) for key in keys)),
    )


def _popqa(row: Fields) -> RawQuestion:
    value = row.get("possible_answers")
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            value = ()
        if not isinstance(value, list):
            raise BadRowError("wrong shape", "possible_answers: expected a JSON list of strings")
    return RawQuestion(_own_id(row, "id"), _text(row, "question"), _aliases(value), kind=str(row.get("prop") or ""))


def _flashrag(row: Fields) -> RawQuestion:
    metadata = row.get("metadata")
    kind = metadata.get("type") if isinstance(metadata, Mapping) else None
    kind = kind if isinstance(kind, str) else ""
    return RawQuestion(_own_id(row, "id"), _text(row, "question"), _aliases(row.get("golden_answers")), kind=kind)


def _phantomwiki(row: Fields) -> RawQuestion:
    # The list is the set of all right names, not aliases of one: the answer names them all.
    names = _aliases(row.get("answer"))
    answers = (", ".join(names), ", ".join(sorted(names)))
    kind = row.get("type")
    return RawQuestion(
        _own_id(row, "id"), _text(row, "question"), _aliases(answers), kind="" if kind is None else f"type {kind}"
    )


HOTPOTQA = QuestionFormat("hotpotqa", _hotpotqa)
TWO_WIKI = QuestionFormat("2wikimultihopqa", _hotpotqa)
MUSIQUE = QuestionFormat("musique", _musique)
NQ_OPEN = QuestionFormat("nq_open", _nq_open)
TRIVIAQA = QuestionFormat("triviaqa", _triviaqa)
POPQA = QuestionFormat("popqa", _popqa)
FLASHRAG = QuestionFormat("flashrag", _flashrag)
PHANTOMWIKI = QuestionFormat("phantomwiki", _phantomwiki)
