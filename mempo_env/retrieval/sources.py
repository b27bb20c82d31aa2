"""Where passages come from: files in the published formats, the world, a hub data set. Always a stream."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mempo_env.errors import DataError, MissingExtraError
from mempo_env.tasks.corpora import content_id, passages_of, read_corpus
from mempo_env.tasks.dataset import check_split
from mempo_env.tasks.formats import BadRowError
from mempo_env.tasks.load import WORLDS, load_dataset
from mempo_env.types import Passage

_SUFFIXES = (".jsonl", ".json", ".tsv", ".jsonl.gz", ".json.gz", ".tsv.gz", ".jsonl.zst", ".json.zst", ".tsv.zst")


def read_source(spec: str | Path, split: str | None = None) -> Iterator[Passage]:
    """The passages of `spec` as a stream, with duplicates and empty ones still in it.

    spec: a file (Search-R1's JSON lines, title/text JSON, HotpotQA or MuSiQue questions or corpora; plain, .gz or
    .zst), a folder of such files (in the order of their names), "world" with options, or a hub name
    "owner/name[:config]".
    split: of the world or the hub data set; None is the first ("train" on the hub).

    Raises DataError where nothing like it exists, or at a row that holds no passage, with its place.
    """
    path = Path(spec).expanduser()
    if path.is_file():
        return read_corpus([path])
    if path.is_dir():
        files = sorted(p for p in path.iterdir() if p.is_file() and p.name.endswith(_SUFFIXES))
        if not files:
            raise DataError(f"{path}: expected files that end in {', '.join(_SUFFIXES)}, found none.")
        return read_corpus(files)
    name = str(spec)
    if name.partition(":")[0] in WORLDS:
        return _world(name, split)
    if name.count("/") == 1 and not name.startswith((".", "~", "/")) and not name.endswith(_SUFFIXES):
        return _hub(name, split)
    raise DataError(
        f"{spec}: no such file or folder. Expected one, 'world[:size=N,seed=N]', or a hub name 'owner/name'."
    )


def _world(spec: str, split: str | None) -> Iterator[Passage]:
    world: Any = load_dataset(spec)
    return iter(world.iter_passages(check_split(world, split)))


def _hub(spec: str, split: str | None) -> Iterator[Passage]:
    try:
        import datasets
    except ImportError:
        raise MissingExtraError("datasets", "data", f"{spec!r} is no file here; reading it from the hub") from None
    name, _, config = spec.partition(":")
    try:
        rows: Any = datasets.load_dataset(name, config or None, split=split or "train", streaming=True)
    except Exception as error:  # the library raises many kinds: no network, no such name, configuration or split
        raise DataError(f"{spec!r} is no file here, and the hub could not give it: {error}") from error
    for number, row in enumerate(rows):
        try:
            for own_id, title, text in passages_of(row):
                yield Passage(own_id or content_id(title, text), title, text)
        except BadRowError as error:
            raise DataError(f"{spec}: row {number}: {error}.") from None
