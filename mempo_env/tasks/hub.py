"""Data sets of the Hugging Face hub by name, through the `datasets` library."""

from __future__ import annotations

from typing import Any

from mempo_env.errors import DataError, MissingExtraError
from mempo_env.tasks.records import ListRows, Rows

_ORDER = ("train", "validation", "dev", "test")


def short_name(spec: str) -> str:
    """What opens the question ids: the configuration of "owner/name:config", else the name."""
    name, _, config = spec.partition(":")
    return (config or name.rpartition("/")[2]).lower()


def open_splits(spec: str) -> dict[str, list[Rows]]:
    """The splits of "owner/name" or "owner/name:config" under the names they have there, train first.

    Fetches what is not in the library's cache yet. Data sets that need their own code to be run are not loaded.
    """
    try:
        import datasets
    except ImportError:
        raise MissingExtraError(
            "datasets", "data", f"{spec!r} is no file or folder here; reading it from the hub"
        ) from None
    name, _, config = spec.partition(":")
    try:
        loaded: Any = datasets.load_dataset(name, config or None)
    except Exception as error:  # the library raises many kinds: no network, no such name, configuration or file
        raise DataError(
            f"{spec!r} is no file or folder here, and the hub could not give it: {type(error).__name__}: {error}"
        ) from error
    order = sorted(loaded, key=lambda split: (_ORDER.index(split) if split in _ORDER else len(_ORDER), split))
    return {split: [ListRows(loaded[split], f"{spec}/{split}", split)] for split in order}
