"""Where passages come from: files in the published formats, the world, a hub data set. Always a stream."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mempo_env.errors import DataError
from mempo_env.tasks.corpora import read_corpus
from mempo_env.tasks.dataset import check_split
from mempo_env.tasks.hub import is_hub_name, open_stream
from mempo_env.tasks.load import WORLDS, load_dataset
from mempo_env.tasks.records import SUFFIXES
from mempo_env.types import Passage


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
        files = sorted(p for p in path.iterdir() if p.is_file() and p.name.endswith(SUFFIXES))
        if not files:
            raise DataError(f"{path}: expected files that end in {', '.join(SUFFIXES)}, found none.")
        return read_corpus(files)
    name = str(spec)
    if name.partition(":")[0] in WORLDS:
        world: Any = load_dataset(name)
        return iter(world.iter_passages(check_split(world, split)))
    if is_hub_name(name):
        return read_corpus([open_stream(name, split)])
    raise DataError(
        f"{spec}: no such file or folder. Expected one, 'world[:size=N,seed=N]', or a hub name 'owner/name'."
    )
