"""A run's folder on disk: one writer at a time, nothing lost to a kill, no other run's results overwritten."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mempo_env.errors import DataError

RESULTS = "results.json"
TRAJECTORIES = "trajectories.jsonl"


@contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Hold the folder for this process; it is free again as soon as the process ends, however it ends."""
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


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Replace `path` by `value` in one move: a reader sees the old file or the new one, never a part."""
    part = path.with_name(path.name + ".part")
    with part.open("w", encoding="utf-8") as file:
        json.dump(value, file, ensure_ascii=False, indent=1, allow_nan=False)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def read_json(path: Path) -> dict[str, Any]:
    """The object in `path`; DataError names the file when it is no JSON object."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise DataError(f"{path}: expected JSON, got an error at line {error.lineno}: {error.msg}.") from error
    if not isinstance(value, dict):
        raise DataError(f"{path}: expected a JSON object, got {type(value).__name__}.")
    return value
