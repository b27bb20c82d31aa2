"""A run's folder on disk: one writer at a time, nothing lost to a kill, no other run's results overwritten."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mempo_env.errors import DataError
from mempo_env.json_files import read_json, write_json

__all__ = ["RESULTS", "SETTINGS", "TRAJECTORIES", "claim", "only_writer", "read_json", "write_json"]

RESULTS = "results.json"
SETTINGS = "settings.json"
TRAJECTORIES = "trajectories.jsonl"


def claim(
    path: Path, mine: Mapping[str, Any], default: Mapping[str, Any] | None = None, free: Sequence[str] = ()
) -> None:
    """Write down in the file `path` what this run is, or check that its folder holds the same one.

    default: values that a file from before they were known stands for. free: names that may differ, as "update.epochs"
    where they are inside another. Raises DataError for another run, and for checkpoints of which no file says what they
    are of.
    """
    mine = json.loads(json.dumps(dict(mine)))
    if not path.exists():
        if any((path.parent / "checkpoints").glob("step-*")):
            raise DataError(
                f"{path.parent} has checkpoints, but no {path.name} that says of which run. Put that file back, or "
                "name another folder."
            )
        write_json(path, mine)
        return
    theirs = {**_flat(json.loads(json.dumps(dict(default or {})))), **_flat(read_json(path))}
    mine = _flat(mine)
    changed = sorted(n for n in {*mine, *theirs} if n not in free and mine.get(n) != theirs.get(n))
    if changed:
        named = ", ".join(changed) if len(changed) <= 8 else f"{', '.join(changed[:6])} and {len(changed) - 6} more"
        raise DataError(
            f"{path.parent} holds another run, with other {named}. Name another folder, or give that run's settings to "
            "continue it."
        )


def _flat(values: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Nested names joined by dots: {"a": {"b": 1}} is {"a.b": 1}."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{before}{name}.")
        else:
            flat[before + name] = value
    return flat


@contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Hold the folder for this process; it is free again as soon as the process ends, however it ends."""
    if folder.exists() and not folder.is_dir():
        raise DataError(f"{folder}: expected a folder to write to, found a file. Name another folder.")
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DataError(
                f"{folder}: another process is writing here. Wait for it, or name another folder."
            ) from None
        yield
    finally:
        os.close(handle)
