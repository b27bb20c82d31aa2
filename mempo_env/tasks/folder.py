"""A folder of files: which is which split, and which is the corpus."""

from __future__ import annotations

import re
from pathlib import Path

from mempo_env.errors import DataError
from mempo_env.tasks.records import SUFFIXES, FileRows, Rows

SPLIT_WORDS = {
    "train": "train", "training": "train", "dev": "dev", "valid": "dev", "validation": "dev", "val": "dev",
    "test": "test",
}  # fmt: skip


def find_splits(folder: Path) -> tuple[dict[str, list[Rows]], list[Rows] | None]:
    """The question files of a folder by split, and its corpus files (None without any); names decide here.

    "train", "dev", "valid" or "test" as a word of its own in the name makes a split; names that begin with corpus,
    articles or passages are corpus files; others are left alone.
    """
    splits: dict[str, list[Rows]] = {}
    corpus: list[Rows] = []
    names = sorted(path.name for path in folder.iterdir() if path.name.lower().endswith(SUFFIXES))
    for name in names:
        words = re.findall(r"[a-z]+", name.lower())
        if words[:1] and words[0] in ("corpus", "articles", "passages"):
            corpus.append(FileRows(folder / name))
            continue
        found = [SPLIT_WORDS[word] for word in words if word in SPLIT_WORDS]
        if found:
            if found[0] in splits:
                other = splits[found[0]][0].source
                raise DataError(
                    f"{folder}: two files for the split {found[0]!r}: {other} and {name}. Name one of them."
                )
            splits[found[0]] = [FileRows(folder / name)]
    if not splits:
        found_names = ", ".join(names) or "none"
        raise DataError(
            f"{folder}: expected files with train, dev, valid or test in their names, found {found_names}. "
            "A single file can be named by its path."
        )
    return {split: splits[split] for split in ("train", "dev", "test") if split in splits}, corpus or None
