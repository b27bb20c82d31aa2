"""Adapters instead of all weights, through PEFT."""

from __future__ import annotations

from typing import Any

from mempo_env.errors import MissingExtraError


def add_adapters(model: Any, rank: int, seed: int = 0) -> Any:
    """The model with frozen weights and LoRA adapters of `rank` on all linear layers but the head; alpha is twice the
    rank. `save_pretrained` writes the adapters only. Raises MissingExtraError without PEFT."""
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError as error:
        raise MissingExtraError("peft", "train", "LoRA") from error
    import torch

    config = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear", task_type="CAUSAL_LM")
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return get_peft_model(model, config)
