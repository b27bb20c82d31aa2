"""Facts of a loaded transformers model, with or without adapters around it."""

from __future__ import annotations

import inspect
from typing import Any


def base_model(model: Any) -> Any:
    """The model itself, under adapters (PEFT)."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def forward_arguments(model: Any) -> frozenset[str]:
    """Names of the arguments that its forward pass takes."""
    return frozenset(inspect.signature(base_model(model).forward).parameters)


def cache_argument(model: Any) -> str:
    """The name under which the forward pass takes a key-value cache: transformers 5 renamed it."""
    return "cache" if "cache" in forward_arguments(model) else "past_key_values"


def text_config(model: Any) -> Any:
    """The configuration of the language model, also where it is part of a larger one."""
    return model.config.get_text_config() if hasattr(model.config, "get_text_config") else model.config
