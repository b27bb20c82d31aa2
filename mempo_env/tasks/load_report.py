"""What became of the rows of a data set."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any


@dataclass(frozen=True, slots=True)
class LoadReport:
    """What became of the rows; nothing is left out or changed that is not counted here.

    n_rows = n_questions + n_duplicates + n_skipped. Counts of passages are those of the corpus in use.

    n_duplicates: rows equal to an earlier one (same own id if any, same question, same answers); the first is kept.
    n_skipped: bad rows left out with on_bad="skip", by reason in `reasons`.
    n_rewritten: questions with an answer that held ";", which joins the answers of a task: it became ",". Both are
        the same answer to the published normalisation, which drops punctuation.
    n_without_evidence: questions whose supporting facts could not all be traced to a passage: their evidence is empty.
    n_passage_duplicates: passages with the title and text of an earlier one, merged. n_empty_passages: left out.
    """

    n_rows: int = 0
    n_questions: int = 0
    n_duplicates: int = 0
    n_skipped: int = 0
    n_rewritten: int = 0
    n_without_evidence: int = 0
    n_passages: int = 0
    n_passage_duplicates: int = 0
    n_empty_passages: int = 0
    reasons: Mapping[str, int] = field(default_factory=dict)


def add_up(reports: Sequence[LoadReport], one_corpus: bool) -> LoadReport:
    """The report of several splits together; `one_corpus` says that they share their passages."""
    reasons: Counter[str] = Counter()
    sums: dict[str, Any] = {}
    for report in reports:
        reasons.update(report.reasons)
    for entry in fields(LoadReport):
        if entry.name != "reasons":
            values = [getattr(report, entry.name) for report in reports]
            sums[entry.name] = values[0] if one_corpus and "passage" in entry.name else sum(values)
    return LoadReport(**sums, reasons=dict(reasons))
