"""Passages from the published corpus formats, with stable ids, exact duplicates merged and counted.

    Search-R1        id, contents: the first line is the title, the rest the text
    title and text   JSON lines or a list of {title, text}, id where there is one; PhantomWiki's {title, article};
                     or one object of title to text or to a list of sentences
    question files   the paragraphs that stand in HotpotQA, 2WikiMultihopQA and MuSiQue questions

Titles are kept to the letter: Search-R1's corpus writes them in double quotes, and models trained on it have read them
so. `contents` of a single line is a text without a title.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from mempo_env.errors import DataError
from mempo_env.tasks.formats import BadRowError, Fields, detect, join_sentences
from mempo_env.tasks.records import FileRows, Rows
from mempo_env.types import Passage

EXPECTED = "passages as {id, contents}, {title, text}, {title, article} or an object of title to sentences"


def read_corpus(sources: Iterable[Path | Rows]) -> Iterator[Passage]:
    """The passages of corpus files (or hub rows) as a stream, for building an index; nothing is merged or left out."""
    for source in sources:
        for own_id, title, text in read_passages(FileRows(source) if isinstance(source, Path) else source):
            yield Passage(own_id or content_id(title, text), title, text)


def read_passages(rows: Rows) -> Iterator[tuple[str, str, str]]:
    """(own id or "", title, text) of every passage. DataError with the place of a row that holds none."""
    for row in rows:
        if row.value is None:
            raise DataError(f"{rows.source}: {row.place}: {row.error}.")
        try:
            yield from passages_of(row.value)
        except BadRowError as error:
            raise DataError(f"{rows.source}: {row.place}: {error}.") from None


def passages_of(row: Fields) -> Iterator[tuple[str, str, str]]:
    if "contents" in row:
        title, newline, text = _string(row, "contents").partition("\n")
        yield _id(row), title.strip() if newline else "", (text if newline else title).strip()
    elif (key := next((k for k in ("text", "article", "sentences", "paragraph_text") if k in row), None)) is not None:
        sentences = row[key]
        if isinstance(sentences, list) and all(isinstance(s, str) for s in sentences):
            text = join_sentences(sentences)
        else:
            text = _string(row, key).strip()
        yield _id(row), _string(row, "title").strip() if row.get("title") is not None else "", text
    elif (question_format := detect(row)) is not None:
        for title, text in question_format.read(row).passages:
            yield "", title, text
    else:
        raise BadRowError("wrong shape", f"expected {EXPECTED}; found the keys {', '.join(map(str, row)) or 'none'}")


def _string(row: Fields, key: str) -> str:
    if not isinstance(row[key], str):
        raise BadRowError("wrong shape", f"{key}: expected a string, got {type(row[key]).__name__}")
    return str(row[key])


def _id(row: Fields) -> str:
    value = row.get("id", "")
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise BadRowError("wrong shape", f"id: expected a string or a whole number, got {type(value).__name__}")
    return str(value)


def content_id(title: str, text: str) -> str:
    """An id for a passage without one: the same in every file, order and process."""
    digest = hashlib.blake2b(f"{title}\0{text}".encode("utf-8", "surrogatepass"), digest_size=5).hexdigest()
    return f"{title}#{digest}"


class PassageSet:
    """Collects passages: keeps equal titles with different text, merges exact duplicates, leaves out empty texts."""

    def __init__(self) -> None:
        self._by_content: dict[tuple[str, str], Passage] = {}
        self._ids: set[str] = set()
        self.n_duplicates = 0
        self.n_empty = 0

    def add(self, own_id: str, title: str, text: str, place: str) -> None:
        if not text:
            self.n_empty += 1
        elif (title, text) in self._by_content:
            self.n_duplicates += 1
        else:
            passage = Passage(own_id or content_id(title, text), title, text)
            if passage.id in self._ids:
                raise DataError(f"{place}: the passage id {passage.id!r} stands on two different passages.")
            self._ids.add(passage.id)
            self._by_content[title, text] = passage

    def passages(self) -> tuple[Passage, ...]:
        return tuple(self._by_content.values())
