"""Adapters instead of all weights, through PEFT."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mempo_env.errors import MissingExtraError


def trainable(model: Any, rank: int, seed: int = 0, *, base: str | None = None) -> Any:
    """The model with those weights open to training that `rank` asks for.

    rank: 0 is all weights; adapters that the model has are merged into them first. Otherwise adapters of that rank: the
    model's own, which are trained on, or new ones, see `add_adapters`. Raises ValueError where the model has adapters
    of another rank, or of a kind without one.
    """
    own = getattr(model, "peft_config", None)
    if not own:
        return add_adapters(model, rank, seed, base=base) if rank else model
    if not rank:
        return model.merge_and_unload().requires_grad_(True)
    (name,) = own
    if not hasattr(own[name], "r"):
        kind = getattr(own[name].peft_type, "value", own[name].peft_type)
        raise ValueError(
            f"lora_rank: the model has adapters of the kind {kind}, which have no rank; got {rank}. Give 0 to merge "
            "them and train all weights."
        )
    if own[name].r != rank:
        raise ValueError(
            f"lora_rank: the model has adapters of rank {own[name].r}, got {rank}. Give {own[name].r} to train them "
            "on, or 0 to merge them and train all weights."
        )
    model.set_requires_grad(name)
    return model


def add_adapters(model: Any, rank: int, seed: int = 0, *, base: str | None = None) -> Any:
    """The model with frozen weights and LoRA adapters of `rank` on all linear layers but the head; alpha is twice the
    rank. `save_pretrained` writes the adapters only. Raises MissingExtraError without PEFT.

    base: the name of the model, which is saved with the adapters; default: the model's own. A name that this project
    knows is kept as it is, so that the adapters load on any machine; a folder is written down in full.
    """
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError as error:
        raise MissingExtraError("peft", "hf", "LoRA") from error
    import torch

    from mempo_agents.engines.adapters import quiet_peft

    config = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear", task_type="CAUSAL_LM")
    with torch.random.fork_rng(), quiet_peft():
        torch.manual_seed(seed)
        adapted = get_peft_model(model, config)
    # get_peft_model puts the folder that the weights were read from here: of a packaged model, one in a cache.
    config.base_model_name_or_path = _portable(base or str(getattr(model.config, "name_or_path", "")))
    return adapted


def _portable(name: str) -> str:
    from mempo_agents.engines.hf import weights_of

    return str(Path(name).resolve()) if name and weights_of(name) == name and Path(name).is_dir() else name
