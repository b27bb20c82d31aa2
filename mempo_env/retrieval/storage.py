"""Folders on disk: manifests, folders that appear whole or not at all, and the check that there is room.

Nothing is ever unpickled.
"""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

from mempo_env.errors import DataError

MANIFEST = "manifest.json"
SCHEMA_VERSION = 1


def read_manifest(folder: str | Path, kind: str) -> dict[str, Any]:
    """The manifest of `folder`, checked to be of this `kind` ("corpus", "bm25", "dense") and of a known version.

    Raises DataError: not there, not JSON, another kind, a newer schema.
    """
    path = Path(folder) / MANIFEST
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(f"{path}: not found. Expected a {kind} folder; build one with `mempo index`.") from None
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: unreadable ({error}). Rebuild the {kind} with `mempo index --overwrite`.") from error
    if not isinstance(manifest, dict) or manifest.get("kind") != kind:
        got = manifest.get("kind") if isinstance(manifest, dict) else type(manifest).__name__
        raise DataError(f"{path}: expected a manifest of kind {kind!r}, got {got!r}.")
    if manifest.get("schema_version") != SCHEMA_VERSION:
        raise DataError(
            f"{path}: schema version {manifest.get('schema_version')!r} cannot be read; this release reads version "
            f"{SCHEMA_VERSION}. Rebuild the {kind} or install a matching release."
        )
    return manifest


def fingerprint_of(manifest: Mapping[str, Any]) -> str:
    """16 hex digits that identify a manifest's content, whatever the order of its keys."""
    return sha256(json.dumps(manifest, sort_keys=True, ensure_ascii=False).encode()).hexdigest()[:16]


@contextmanager
def atomic_folder(path: Path, overwrite: bool) -> Iterator[Path]:
    """A fresh folder beside `path` that takes its place when the block ends well, and vanishes when it does not.

    Raises FileExistsError where `path` exists and `overwrite` is False. Processes that have the old files mapped keep
    reading the old files.
    """
    if path.exists() and not overwrite:
        raise FileExistsError(f"{path} exists. Choose another folder, or pass overwrite=True (`--overwrite`).")
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    temporary.mkdir()
    try:
        yield temporary
        replace_folder(temporary, path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def replace_folder(new: Path, path: Path) -> None:
    """Put the folder `new` where `path` is. What was there is removed once the new one stands."""
    old = path.with_name(f".{path.name}.{uuid.uuid4().hex}.old")
    had_old = path.exists()
    if had_old:
        os.rename(path, old)
    try:
        os.rename(new, path)
    except OSError:
        if had_old:
            os.rename(old, path)
        raise
    if had_old:
        shutil.rmtree(old, ignore_errors=True)


def require_space(folder: Path, need_bytes: int, what: str) -> None:
    """Raise DataError when the disk that holds `folder` has less than `need_bytes` free, with both figures."""
    existing = folder
    while not existing.exists():
        existing = existing.parent
    free = shutil.disk_usage(existing).free
    if free < need_bytes:
        raise DataError(
            f"{what} needs about {need_bytes / 2**30:.2f} GiB of disk under {folder}, and {free / 2**30:.2f} GiB are "
            "free. Free some space, choose another folder, or choose a smaller index."
        )
