"""Folders of adapters, as PEFT writes them: the name of their base, and the base with them around it."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mempo_env.errors import DataError, MissingExtraError
from mempo_env.json_files import read_json

CONFIG = "adapter_config.json"
_WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
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
        from peft import PeftModel, get_peft_model_state_dict, load_peft_weights
    except ImportError as error:
        raise MissingExtraError("peft", "hf", "A folder of adapters") from error
    from safetensors import SafetensorError

    if not any((Path(folder) / name).is_file() for name in _WEIGHTS):
        raise DataError(
            f"{folder}: expected the adapters' weights in {_WEIGHTS[0]}, found no such file. Copy the folder anew, or "
            "save it again."
        )
    try:
        with quiet_peft():
            model = PeftModel.from_pretrained(base, str(folder))
            saved = load_peft_weights(str(folder), device="cpu")
            needed = get_peft_model_state_dict(model, save_embedding_layers=False)
    except (OSError, ValueError, TypeError, RuntimeError, SafetensorError) as error:
        raise DataError(f"{folder}: the adapters do not load onto {adapter_base(folder)!r}: {error}") from error
    missing = sorted(needed.keys() - saved.keys())
    if missing:
        raise DataError(
            f"{folder}: expected {len(needed)} tensors in the adapters' weights; {len(missing)} are missing, "
            f"{missing[0]} among them. Copy the folder anew, or save it again."
        )
    return model


@contextmanager
def quiet_peft() -> Iterator[None]:
    """Without PEFT's warnings on what it calls itself, on tensors that are counted here, and on the base's name."""
    with warnings.catch_warnings():
        for message in ("`is_gradient_checkpointing` is deprecated", "Found missing adapter keys",
                        "Could not find a config file in"):  # fmt: skip
            warnings.filterwarnings("ignore", message=message)
        yield
