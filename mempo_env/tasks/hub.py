"""Data sets of the Hugging Face hub by name, through the `datasets` library."""

from __future__ import annotations

import re
from typing import Any

from mempo_env.errors import DataError, MissingExtraError
from mempo_env.tasks.records import SUFFIXES, ListRows, Rows

_NAME = re.compile(r"[\w.-]+/[\w.-]+(:[\w.-]+)?")
_ORDER = ("train", "validation", "dev", "test")


def is_hub_name(spec: str) -> bool:
    """Whether `spec` reads "owner/name" or "owner/name:config", and not like the path of a file."""
    looks_like_file = spec.startswith((".", "/", "~")) or spec.endswith((*SUFFIXES, ".gz", ".zst", ".txt"))
    return _NAME.fullmatch(spec) is not None and not looks_like_file


def short_name(spec: str) -> str:
    """What opens the question ids: the configuration of "owner/name:config", else the name."""
    name, _, config = spec.partition(":")
    return (config or name.rpartition("/")[2]).lower()


def open_splits(spec: str) -> dict[str, list[Rows]]:
    """The splits of "owner/name" or "owner/name:config" under the names they have there, train first.

    Fetches what is not in the library's cache yet. Data sets that need their own code to be run are not loaded.
    """
    loaded = _load(spec)
    order = sorted(loaded, key=lambda split: (_ORDER.index(split) if split in _ORDER else len(_ORDER), split))
    return {split: [ListRows(loaded[split], f"{spec}/{split}", split)] for split in order}


def open_stream(spec: str, split: str | None = None) -> Rows:
    """The rows of one split (None: "train") as a stream: nothing is kept, so they can be gone through once."""
    split = split or "train"
    return ListRows(_load(spec, split=split, streaming=True), f"{spec}/{split}", split)


def _load(spec: str, **options: Any) -> Any:
    try:
        import datasets
    except ImportError:
        raise MissingExtraError(
            "datasets", "data", f"{spec!r} is no file or folder here; reading it from the hub"
        ) from None
    name, _, config = spec.partition(":")
    try:
        return datasets.load_dataset(name, config or None, **options)
    except Exception as error:  # the library raises many kinds: no network, no such name, configuration or file
        raise DataError(
            f"{spec!r} is no file or folder here, and the hub could not give it: {type(error).__name__}: {error}"
        ) from error
