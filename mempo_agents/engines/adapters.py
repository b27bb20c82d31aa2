"""Folders of adapters, as PEFT writes them: the name of their base, and the base with them around it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mempo_env.errors import DataError, MissingExtraError
from mempo_env.json_files import read_json

CONFIG = "adapter_config.json"
_TOKENIZERS = ("tokenizer.json", "tokenizer_config.json")


def adapter_base(where: str | Path) -> str | None:
    """The model that the adapters in the folder `where` belong to; None where it holds none.

    A name of this project ("smollm2", "nano-mempo") finds the model on any machine. Raises DataError for adapters that
    do not name their base.
    """
    config = Path(where) / CONFIG
    if not config.is_file():
        return None
    base = read_json(config).get("base_model_name_or_path")
    if not isinstance(base, str) or not base:
        raise DataError(f"{config}: expected the name of the base model in base_model_name_or_path, got {base!r}.")
    return base


def has_tokenizer(folder: str | Path) -> bool:
    """Adapters may come without a tokenizer; it is then their base's."""
    return any((Path(folder) / name).is_file() for name in _TOKENIZERS)


def add_saved_adapters(base: Any, folder: str | Path) -> Any:
    """The model `base` with the adapters of `folder` around it, frozen and not merged: as exact as they were trained.

    Raises MissingExtraError without PEFT, DataError for adapters that do not fit the model.
    """
    try:
        from peft import PeftModel
    except ImportError as error:
        raise MissingExtraError("peft", "hf", "A folder of adapters") from error
    from safetensors import SafetensorError

    try:
        return PeftModel.from_pretrained(base, str(folder))
    except (OSError, ValueError, TypeError, RuntimeError, SafetensorError) as error:
        raise DataError(f"{folder}: the adapters do not load onto {adapter_base(folder)!r}: {error}") from error
