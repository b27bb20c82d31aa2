"""What every index on disk shares, lexical or dense: the rows it covers, the corpus it belongs to, its identity."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from mempo_env.errors import DataError
from mempo_env.retrieval import storage
from mempo_env.retrieval.corpus import Corpus

Progress = Callable[[str, int, int], None]  # what is done, steps (or passages) done, and in all

# What a second, equal build would measure differently.
_MEASURED = ("build_seconds", "recall", "report")


def check_rows(rows: tuple[int, int] | None, count: int) -> tuple[int, int]:
    """(start, stop) in a corpus of `count` passages, None being all. ValueError unless 0 <= start < stop <= count."""
    start, stop = rows if rows is not None else (0, count)
    if not 0 <= start < stop <= count:
        raise ValueError(f"rows: expected 0 <= start < stop <= {count}, got ({start}, {stop}).")
    return start, stop


def check_corpus(manifest: dict[str, Any], corpus: Corpus, folder: Path) -> None:
    """Raise DataError unless the index in `folder` was built on exactly this corpus."""
    for what, expected, got in (
        ("passages", manifest["corpus_count"], len(corpus)),
        ("checksum", manifest["corpus_checksum"], corpus.checksum),
    ):
        if expected != got:
            raise DataError(
                f"{folder}: this index was built on a corpus with {what} {expected}, and {corpus.folder} has {got}. "
                "Open the corpus it was built on, or build the index again."
            )


def index_fingerprint(manifest: dict[str, Any]) -> str:
    """Identity of an index: all of its manifest but what was measured while it was built."""
    return storage.fingerprint_of({key: value for key, value in manifest.items() if key not in _MEASURED})
