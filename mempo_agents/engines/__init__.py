"""Engines by name. Only what is asked for is imported: a scripted engine needs no torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mempo_agents.engines.base import Engine, Generation, Request, Sampling, ScoreRow
from mempo_env.errors import UnknownNameError

__all__ = ["Engine", "Generation", "Request", "Sampling", "ScoreRow", "get_engine"]

_KNOWN = ("scripted", "oracle", "random", "replay:FILE", "hf", "hf:MODEL", "smollm2")


def get_engine(
    spec: str | Engine,
    model: str | Path | None = None,
    *,
    dtype: str = "auto",
    device: str | None = None,
    window_tokens: int | None = None,
) -> Engine:
    """The engine that `spec` names; an engine is returned as it is.

    - "scripted" or "oracle", "random", "replay:FILE": no model plays. `model` names one whose tokenizer counts the
      tokens (a folder, a hub name or "smollm2"); without it words are counted.
    - "hf": the language model `model`, by default the embedded "smollm2". "hf:MODEL" and "smollm2" are short for it.

    `dtype` ("auto", "float32", "bfloat16", "float16"), `device` and `window_tokens` are those of `HFEngine`.
    Raises UnknownNameError, and MissingExtraError where a package is missing.
    """
    if not isinstance(spec, str):
        return spec
    kind, _, argument = spec.partition(":")
    if kind in ("scripted", "oracle", "random", "replay"):
        return _scripted(kind, argument, model)
    if kind == "smollm2" and not argument:
        kind, argument = "hf", "smollm2"
    if kind != "hf":
        raise UnknownNameError("engine", spec, _KNOWN)
    from mempo_agents.engines.hf import HFEngine

    return HFEngine(argument or model or "smollm2", dtype=dtype, device=device, window_tokens=window_tokens)


def _scripted(kind: str, argument: str, model: str | Path | None) -> Any:
    from mempo_agents.engines.scripted import OracleEngine, RandomEngine, ReplayEngine

    tokenizer = None
    if model is not None:
        from mempo_agents.engines.hf import load_tokenizer

        tokenizer = load_tokenizer(model)
    if kind == "replay":
        return ReplayEngine(argument, tokenizer)
    return RandomEngine(tokenizer) if kind == "random" else OracleEngine(tokenizer)
