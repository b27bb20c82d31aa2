"""Checkpoints that a kill cannot spoil: safetensors and JSON in a folder that appears whole or not at all.

    checkpoints/step-00000040/
        model/                  in transformers format, tokenizer included: loadable by any engine
        optimizer.safetensors   master weights and the optimizer's moments
        state.json              the step, whatever the caller adds, and a checksum of the tensors

It is written under another name, forced to disk, and moved in place. Nothing in it is pickled.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mempo_agents.run_folder import read_json, write_json
from mempo_env.errors import DataError

SCHEMA_VERSION = 1
MODEL, OPTIMIZER, STATE = "model", "optimizer.safetensors", "state.json"
_PART, _OLD = ".part-", ".old-"
_NAME = re.compile(r"step-(\d{8})")


def save_checkpoint(
    folder: Path, step: int, model: Any, tokenizer: Any, tensors: Mapping[str, Any], state: Mapping[str, Any], keep: int
) -> Path:
    """Writes `step-<step>` in `folder` and removes all but the newest `keep` checkpoints.

    Where the disk is full the part that was written is removed, OSError is raised, and older checkpoints stay.
    """
    from safetensors.torch import save_file

    target = folder / f"step-{step:08d}"
    with _appears_whole(target) as part:
        _write_model(part / MODEL, model, tokenizer)
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, part / OPTIMIZER)
        checksum = _checksum(part / OPTIMIZER)
        write_json(part / STATE, {"schema_version": SCHEMA_VERSION, "step": step, "checksum": checksum, **state})
    for old in checkpoints(folder)[:-keep]:
        _remove(old)
    return target


def save_model(target: Path, model: Any, tokenizer: Any) -> None:
    """Writes the model in transformers format, replacing what was there; `put_back` mends a kill on the way."""
    with _appears_whole(target) as part:
        _write_model(part, model, tokenizer)


def put_back(target: Path) -> None:
    """Undoes a replacement of `target` that a kill cut short between its two moves."""
    old = target.with_name(_OLD + target.name)
    if old.exists() and not target.exists():
        old.rename(target)


def _remove(folder: Path) -> None:
    """In one move: half a checkpoint would be taken for one, or stay for ever."""
    part = folder.with_name(_PART + folder.name)
    folder.rename(part)
    shutil.rmtree(part, ignore_errors=True)  # the next writer clears away what is left


@contextmanager
def _appears_whole(target: Path) -> Iterator[Path]:
    """A folder to write into. It is forced to disk and takes the place of `target`, or is removed where that fails.

    What a killed writer left goes first: one process writes here at a time.
    """
    from safetensors import SafetensorError

    target.parent.mkdir(parents=True, exist_ok=True)
    put_back(target)
    for left in target.parent.glob(f"{_PART}*"):
        shutil.rmtree(left, ignore_errors=True)
    part = Path(tempfile.mkdtemp(prefix=_PART, dir=target.parent))
    try:
        yield part
        for path in (*part.rglob("*"), part):
            _sync(path)
        part.chmod(0o755)
        _put_in_place(part, target)
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        text = f"{reason}. What was saved before is whole: make room, and give the same command again"
        raise OSError(getattr(error, "errno", None) or errno.EIO, text, str(target)) from error
    finally:
        for left in target.parent.glob(f"{_PART}*"):
            shutil.rmtree(left, ignore_errors=True)


def _put_in_place(part: Path, target: Path) -> None:
    old = target.with_name(_OLD + target.name)
    if old.exists():
        _remove(old)
    if target.exists():
        target.rename(old)
    try:
        part.replace(target)
    except OSError:
        put_back(target)
        raise
    _sync(target.parent)
    if old.exists():
        _remove(old)


def _write_model(folder: Path, model: Any, tokenizer: Any) -> None:
    from mempo_agents.engines.smollm2 import quiet_transformers

    adapters = bool(getattr(model, "peft_config", None))
    # Without this, PEFT asks the hub whether the embeddings were resized, at every checkpoint.
    options = {"save_embedding_layers": False} if adapters else {}
    with quiet_transformers():
        model.save_pretrained(folder, **options)
        if adapters:  # PEFT's model card, an empty form but for the base's folder on this machine
            (folder / "README.md").unlink(missing_ok=True)
        tokenizer.save_pretrained(folder)


def checkpoints(folder: Path) -> list[Path]:
    """The whole checkpoints in `folder`, oldest first. Remains of a killed writer are not among them."""
    found = sorted(path for path in folder.glob("step-*") if _NAME.fullmatch(path.name)) if folder.is_dir() else []
    return [path for path in found if (path / STATE).is_file()]


def load_checkpoint(path: Path, kind: str | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
    """(state, tensors) of one checkpoint. kind: what its state must say of itself, where it says anything.

    Raises DataError where it cannot be read or its tensors are not those that were written; the message says which
    folder to remove to fall back on the one before. DataError, too, for a checkpoint of another kind.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    there_is_one_before = checkpoints(path.parent)[:1] not in ([], [path])
    advice = f"Remove {path} to {'go on from the checkpoint before it' if there_is_one_before else 'begin anew'}."
    try:
        state = read_json(path / STATE)
        if state.get("schema_version") != SCHEMA_VERSION:
            raise DataError(f"expected schema version {SCHEMA_VERSION}, got {state.get('schema_version')!r}.")
        if _checksum(path / OPTIMIZER) != state.get("checksum"):
            raise DataError(f"{OPTIMIZER} is not the file that was written.")
        tensors = load_file(path / OPTIMIZER)
    except (OSError, SafetensorError, ValueError) as error:  # ValueError: DataError, and bytes that are no text
        raise DataError(f"{path}: unreadable checkpoint: {error} {advice}") from error
    if kind is not None and state.get("kind", kind) != kind:
        raise DataError(f"{path}: expected a checkpoint of {kind}, got one of {state['kind']}. Name another folder.")
    return state, tensors


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
