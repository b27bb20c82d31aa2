"""JSON files that a crash cannot tear: they hold the old value or the new one, never a part."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mempo_env.errors import DataError


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Replace `path` by `value` in one move, forced to disk first. ValueError for NaN and infinities."""
    part = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        with part.open("w", encoding="utf-8") as file:
            json.dump(value, file, indent=1, ensure_ascii=False, allow_nan=False)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException as error:
        part.unlink(missing_ok=True)
        if isinstance(error, OSError):
            error.filename = str(path)  # a full disk names none, and `part` is of no use to a reader
        raise


def read_json(path: Path) -> dict[str, Any]:
    """The object in `path`; DataError names the file when it is no JSON object."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise DataError(
            f"{path}: expected JSON, got an error at line {error.lineno}: {error.msg}. The file is damaged: put a good "
            "copy there, or name another folder."
        ) from error
    if not isinstance(value, dict):
        raise DataError(f"{path}: expected a JSON object, got {type(value).__name__}.")
    return value
