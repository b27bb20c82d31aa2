"""A run's folder on disk: one writer at a time, nothing lost to a kill, no other run's results overwritten."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mempo_env.errors import DataError
from mempo_env.json_files import read_json, write_json

__all__ = ["RESULTS", "TRAJECTORIES", "only_writer", "read_json", "write_json"]

RESULTS = "results.json"
TRAJECTORIES = "trajectories.jsonl"


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
