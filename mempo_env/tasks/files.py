"""A data set from files (or hub rows) in the published formats; see `formats` and `corpora` for what is read."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mempo_env.errors import DataError
from mempo_env.scoring import without_separator
from mempo_env.tasks import formats
from mempo_env.tasks.corpora import PassageSet, passages_of, read_passages
from mempo_env.tasks.dataset import check_split
from mempo_env.tasks.folder import SPLIT_WORDS
from mempo_env.tasks.formats import BadRowError, Link, RawQuestion
from mempo_env.tasks.load_report import LoadReport, add_up
from mempo_env.tasks.records import FileRows, Row, Rows
from mempo_env.types import Evidence, Passage, Question


@dataclass(frozen=True, slots=True)
class _Loaded:
    questions: tuple[Question, ...]
    passages: Sequence[Passage] | None
    report: LoadReport


@dataclass(frozen=True, slots=True)
class _Corpus:
    passages: Sequence[Passage]
    n_duplicates: int = 0
    n_empty: int = 0


class FileDataset:
    """Questions by split with their corpus, read when first asked for; a data set of one split is read at once.

    Args:
        splits: rows by split name, the preferred split first.
        corpus: rows of corpus files, or passages; None takes the passages that stand in the questions' own rows.
        name: opens the question ids, "name:own id". None: the format's name ("hotpotqa"), or for formats that many
            data sets share, the file's. Rows without an own id get "name:file-000012", the row's number from 0.
        on_bad: "error" raises DataError at a row without usable question and answer; "skip" counts it.
    """

    def __init__(
        self,
        splits: Mapping[str, Sequence[Rows]],
        corpus: Sequence[Rows] | Sequence[Passage] | None = None,
        *,
        name: str | None = None,
        on_bad: str = "error",
    ) -> None:
        self._splits = dict(splits)
        self._corpus_source: Any = corpus
        self._corpus: _Corpus | None = None
        self._skip = on_bad == "skip"
        self._loaded: dict[str, _Loaded] = {}
        self._fingerprint: str | None = None
        self._name = name or ""
        if len(self._splits) == 1:
            self._load(next(iter(self._splits)))

    @property
    def name(self) -> str:
        if not self._name:
            self._load(next(iter(self._splits)))
        return self._name

    @property
    def splits(self) -> tuple[str, ...]:
        return tuple(self._splits)

    def questions(self, split: str) -> Sequence[Question]:
        """All questions of a split, in file order. UnknownNameError lists the splits."""
        return self._load(check_split(self, split)).questions

    def passages(self, split: str) -> Sequence[Passage] | None:
        """The corpus of a split; None where no corpus was given and the questions bring no passages."""
        return self._load(check_split(self, split)).passages

    @property
    def report(self) -> LoadReport:
        """What became of the rows of all splits together; splits not read yet are read. A shared corpus counts once."""
        return add_up([self.report_of(split) for split in self._splits], self._corpus_source is not None)

    def report_of(self, split: str) -> LoadReport:
        """What became of the rows of one split."""
        return self._load(check_split(self, split)).report

    @property
    def fingerprint(self) -> str:
        """SHA-256 over the content of all files, the name and on_bad: whatever decides the questions and passages."""
        if self._fingerprint is None:
            digest = hashlib.sha256(f"{self.name}|{self._skip}".encode())
            for split, parts in self._splits.items():
                digest.update(f"|{split}".encode())
                for rows in parts:
                    # The stem stands in ids of rows without their own; 2WikiMultihopQA's aliases lie beside the file.
                    digest.update(f"|{rows.stem}|{rows.fingerprint}|{sorted(_alias_table(rows).items())}".encode())
            source = self._corpus_source
            if source is not None:
                # A built corpus has one fingerprint, corpus files have one each.
                whole = getattr(source, "fingerprint", None)
                contents = [whole] if whole is not None else [rows.fingerprint for rows in source]
                digest.update(f"|corpus|{contents}".encode())
            self._fingerprint = digest.hexdigest()
        return self._fingerprint

    def __repr__(self) -> str:
        return f"FileDataset({self.name!r}, splits={self.splits})"

    def _load(self, split: str) -> _Loaded:
        if split not in self._loaded:
            self._loaded[split] = self._read(split)
        return self._loaded[split]

    def _read(self, split: str) -> _Loaded:
        counts: Counter[str] = Counter()
        reasons: Counter[str] = Counter()
        own = PassageSet()
        raw: dict[str, RawQuestion] = {}
        without_id: set[tuple[str, tuple[str, ...]]] = set()
        for rows in self._splits[split]:
            aliases = _alias_table(rows)
            for row in rows:
                counts["rows"] += 1
                try:
                    question = _read_row(row)
                except BadRowError as error:
                    self._bad(reasons, rows, row, error)
                    continue
                if not self._name:
                    self._name = _default_name(row, rows)
                if question.answer_id in aliases:
                    names = dict.fromkeys((*question.answers, *aliases[question.answer_id]))
                    question = replace(question, answers=tuple(names))
                if self._corpus_source is None:
                    for title, text in question.passages:
                        own.add("", title, text, f"{rows.source}: {row.place}")
                question = replace(question, passages=())  # they are kept once, in the corpus
                if question.own_id:
                    key = f"{self.name}:{question.own_id}"
                    known = raw.get(key)
                else:
                    key = f"{self.name}:{rows.stem}-{row.number:06d}"
                    known = question if (question.text, question.answers) in without_id else None
                    without_id.add((question.text, question.answers))
                if known is None:
                    raw[key] = question
                elif (known.text, known.answers) == (question.text, question.answers):
                    counts["duplicates"] += 1
                else:
                    message = f"the id {question.own_id!r} stands on two different questions"
                    self._bad(reasons, rows, row, BadRowError("repeated id", message))
        if not raw:
            source = ", ".join(rows.source for rows in self._splits[split])
            raise DataError(f"{source}: no usable question in {counts['rows']} rows ({dict(reasons)}).")
        corpus = (
            self._load_corpus()
            if self._corpus_source is not None
            else _Corpus(own.passages(), own.n_duplicates, own.n_empty)
        )
        questions = self._finish(raw, corpus.passages, counts)
        report = LoadReport(
            n_rows=counts["rows"],
            n_questions=len(questions),
            n_duplicates=counts["duplicates"],
            n_skipped=sum(reasons.values()),
            n_rewritten=counts["rewritten"],
            n_without_evidence=counts["without_evidence"],
            n_passages=len(corpus.passages),
            n_passage_duplicates=corpus.n_duplicates,
            n_empty_passages=corpus.n_empty,
            reasons=dict(reasons),
        )
        return _Loaded(questions, corpus.passages if len(corpus.passages) else None, report)

    def _bad(self, reasons: Counter[str], rows: Rows, row: Row, error: BadRowError) -> None:
        if not self._skip:
            advice = 'Mend or remove the row; in Python, load_dataset(..., on_bad="skip") leaves such rows out.'
            raise DataError(f"{rows.source}: {row.place}: {error}. {advice}")
        reasons[error.reason] += 1

    def _load_corpus(self) -> _Corpus:
        if self._corpus is None:
            source = self._corpus_source
            if getattr(source, "fingerprint", None) is not None:
                self._corpus = _Corpus(source)
            else:
                collected = PassageSet()
                for rows in source:
                    for own_id, title, text in read_passages(rows):
                        collected.add(own_id, title, text, rows.source)
                if not collected.passages():
                    raise DataError(f"{', '.join(rows.source for rows in source)}: no passage with a text.")
                self._corpus = _Corpus(collected.passages(), collected.n_duplicates, collected.n_empty)
        return self._corpus

    def _finish(
        self, raw: Mapping[str, RawQuestion], passages: Sequence[Passage], counts: Counter[str]
    ) -> tuple[Question, ...]:
        titles = {link.title.strip() for question in raw.values() for link in question.links or ()}
        by_title: defaultdict[str, list[Passage]] = defaultdict(list)
        for passage in passages if titles else ():
            # Search-R1's corpus has its titles in quotes, the question files have not.
            title = passage.title if passage.title in titles else passage.title.strip('"')
            if title in titles:
                by_title[title].append(passage)
        questions = []
        for key, question in raw.items():
            answers = without_separator(question.answers)
            counts["rewritten"] += answers != question.answers
            evidence = _resolve(question.links, by_title)
            counts["without_evidence"] += evidence is None
            questions.append(Question(key, question.text, answers, evidence or (), question.kind, self.name))
        return tuple(questions)


def _read_row(row: Row) -> RawQuestion:
    if row.value is None:
        raise BadRowError("corrupt", row.error)
    question_format = formats.detect(row.value)
    if question_format is None:
        keys = ", ".join(map(str, row.value)) or "none"
        raise BadRowError("wrong shape", f"expected {formats.EXPECTED}; found the keys {keys}{_hint(row)}")
    return question_format.read(row.value)


def _hint(row: Row) -> str:
    try:
        next(iter(passages_of(row.value or {})), None)
    except BadRowError:
        return ""
    return ". These are passages: give such a file as the corpus"


def _default_name(row: Row, rows: Rows) -> str:
    question_format = formats.detect(row.value or {})
    if question_format is not None and question_format is not formats.FLASHRAG:
        return question_format.name
    if rows.stem.lower() in SPLIT_WORDS and isinstance(rows, FileRows):
        return rows.path.resolve().parent.name or rows.stem
    return rows.stem


def _alias_table(rows: Rows) -> dict[str, tuple[str, ...]]:
    """Aliases by entity from the id_aliases.json that 2WikiMultihopQA publishes beside its question files."""
    if not isinstance(rows, FileRows) or not (path := rows.path.with_name("id_aliases.json")).is_file():
        return {}
    table = {}
    for row in FileRows(path):
        value = row.value or {}
        names = [*(value.get("aliases") or ()), *(value.get("demonyms") or ())]
        if not isinstance(value.get("Q_id"), str) or not all(isinstance(name, str) for name in names):
            raise DataError(f"{path}: {row.place}: expected Q_id, aliases and demonyms. {row.error}")
        table[value["Q_id"]] = tuple(name.strip() for name in names if name.strip())
    return table


def _resolve(links: Sequence[Link] | None, by_title: Mapping[str, Sequence[Passage]]) -> tuple[Evidence, ...] | None:
    """Evidence for every link, or None where a link is in no passage: a broken chain proves nothing."""
    if links is None:
        return None
    chain = []
    for link in links:
        passage = next((p for p in by_title.get(link.title.strip(), ()) if link.fact in p.text), None)
        if passage is None:
            return None
        chain.append(Evidence(link.query.strip(), passage.id, passage.title, link.fact, link.answer))
    return tuple(chain)
