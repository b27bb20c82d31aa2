"""From a name or a path to a data set."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

from mempo_env.errors import DataError, UnknownNameError
from mempo_env.tasks.dataset import Dataset

WORLDS = {"world": "plain", "world-compact": "compact"}

Source = str | os.PathLike[str]


def load_dataset(
    spec: Source | Sequence[Source] | Dataset,
    corpus: Source | Sequence[Source] | None = None,
    *,
    name: str | None = None,
    split: str | None = None,
    on_bad: str = "error",
) -> Dataset:
    """A data set from what a command line or a config holds.

    Args:
        spec: one of
            - "world" or "world-compact": the embedded encyclopedia, whatever files lie here; options follow a colon:
              "world:size=2000,seed=3,min_hops=2,max_hops=3,register=compact", as in `World`;
            - a file of questions in one of the published formats (see `mempo_env.tasks.formats`): one split, "all";
            - several such files (a list): one split, "all", in the given order;
            - a folder whose file names hold "train", "dev", "valid" or "test": those splits, and as the corpus its
              files named corpus*, articles* or passages*;
            - a hub name, "owner/name" or "owner/name:config", read by the `datasets` library: the splits it has there;
            - a Dataset, returned as it is.
        corpus: passages instead of those that stand in the question files: a file, several files, a hub name, or a
            corpus folder that `mempo_env.retrieval.corpus.build_corpus` wrote.
        name: opens the ids of the questions; the default is the format's name, or the file's.
        split: for a single file or a list of files, the name of its one split.
        on_bad: "error" refuses a row that has no usable question and answer, "skip" leaves it out and counts it in
            the data set's `report`.

    Raises:
        UnknownNameError: no such data set. DataError: a bad option, file or row, naming place and expectation.
        MissingExtraError: a hub name without the `datasets` library.
    """
    if not isinstance(spec, (str, os.PathLike, list, tuple)):
        if isinstance(spec, Dataset):
            _refuse_file_options(f"data set {spec.name!r}", corpus, name, split)
            return spec
        raise DataError(f"Expected a data set, a name, a path or a list of paths, got {type(spec).__name__}.")
    if on_bad not in ("error", "skip"):
        raise UnknownNameError("value of on_bad", on_bad, ("error", "skip"))
    for source in spec if isinstance(spec, (list, tuple)) else [spec]:
        _check_source("data set", source)
    if isinstance(spec, str) and spec.partition(":")[0] in WORLDS:
        _refuse_file_options(spec, corpus, name, split)
        kind, _, options = spec.partition(":")
        return _world(tuple(sorted(_world_options(spec, options, WORLDS[kind]).items())))
    from mempo_env.tasks import files, folder, hub

    corpus_rows = None if corpus is None else _corpus(corpus)
    if isinstance(spec, (list, tuple)):
        if not spec:
            raise DataError("Expected at least one file of questions, got an empty list.")
        return files.FileDataset({split or "all": [_rows(s) for s in spec]}, corpus_rows, name=name, on_bad=on_bad)
    path = Path(spec).expanduser()
    if path.is_dir():
        if split is not None:
            raise DataError(f"{path}: split= names the split of a single file; a folder's files name their own.")
        splits, own_corpus = folder.find_splits(path)
        return files.FileDataset(splits, own_corpus if corpus_rows is None else corpus_rows, name=name, on_bad=on_bad)
    if path.exists() or not hub.is_hub_name(str(spec)):
        return files.FileDataset({split or "all": [_rows(spec)]}, corpus_rows, name=name, on_bad=on_bad)
    if split is not None:
        raise DataError(f"{spec}: split= names the split of a single file; a hub data set names its own.")
    return files.FileDataset(
        hub.open_splits(str(spec)), corpus_rows, name=name or hub.short_name(str(spec)), on_bad=on_bad
    )


def _corpus(corpus: Source | Sequence[Source]) -> Any:
    sources = corpus if isinstance(corpus, (list, tuple)) else [corpus]
    if not sources:
        raise DataError("corpus: expected at least one file of passages, got an empty list.")
    for source in sources:
        _check_source("corpus", source)
    if isinstance(corpus, (list, tuple)):
        return [_rows(source) for source in corpus]
    source = cast(Source, corpus)
    if Path(source).expanduser().is_dir():
        from mempo_env.retrieval.corpus import Corpus

        return Corpus(Path(source).expanduser())
    return [_rows(source)]


def _check_source(what: str, source: object) -> None:
    if not isinstance(source, (str, os.PathLike)) or not os.fspath(source):
        raise DataError(f"{what}: expected a name or a path, got {source!r}.")


def _rows(source: Source) -> Any:
    from mempo_env.tasks import hub, records

    path = Path(source).expanduser()
    if path.exists() or not hub.is_hub_name(str(source)):
        if not path.exists() and isinstance(source, str) and re.fullmatch(r"[\w-]+", source):
            raise UnknownNameError("data set (and no such file)", source, WORLDS)
        return records.FileRows(path)
    splits = hub.open_splits(str(source))
    if len(splits) > 1:
        raise DataError(f"{source}: expected a hub data set with one split here, got {', '.join(splits)}.")
    return next(iter(splits.values()))[0]


def _refuse_file_options(what: str, corpus: object, name: object, split: object) -> None:
    given = [key for key, value in (("corpus", corpus), ("name", name), ("split", split)) if value is not None]
    if given:
        verb = "applies" if len(given) == 1 else "apply"
        raise DataError(f"{' and '.join(given)} {verb} to files and hub names; {what} brings its own.")


def _world_options(spec: str, options: str, register: str) -> dict[str, Any]:
    """World's arguments from "world:size=2000,seed=3"."""
    values: dict[str, Any] = {"register": register}
    for option in filter(None, options.split(",")):
        key, equals, value = (part.strip() for part in option.partition("="))
        if not equals or key not in ("size", "seed", "register", "min_hops", "max_hops"):
            raise DataError(
                f"{spec!r}: expected options like size=2000,seed=3,max_hops=2,register=compact, got {option!r}."
            )
        if key == "register":
            if value not in WORLDS.values():
                raise UnknownNameError(f"register in {spec!r}", value, WORLDS.values())
            values[key] = value
        elif re.fullmatch(r"-?[0-9]{1,18}", value):
            values[key] = int(value)
        else:
            raise DataError(f"{spec!r}: expected {key}=<whole number>, got {option!r}.")
    return values


@lru_cache(maxsize=4)
def _world(options: tuple[tuple[str, Any], ...]) -> Dataset:
    # A world is a function of its options and never changes: all environments of a process share it.
    from mempo_env.tasks.world import World

    return World(**dict(options))
