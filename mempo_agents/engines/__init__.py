"""Engines by name. Only what is asked for is imported: a scripted engine needs no torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mempo_agents.engines.base import Engine, Generation, Request, Sampling, ScoreRow
from mempo_env.errors import UnknownNameError

__all__ = ["Engine", "Generation", "Request", "Sampling", "ScoreRow", "get_engine"]

_KNOWN = ("scripted", "oracle", "random", "replay:FILE", "hf", "hf:MODEL", "smollm2", "vllm", "openai", "openai-chat")


def get_engine(
    spec: str | Engine,
    model: str | Path | None = None,
    *,
    dtype: str = "auto",
    device: str | None = None,
    window_tokens: int | None = None,
    base_url: str | None = None,
    tokenizer: str | Path | None = None,
) -> Engine:
    """The engine that `spec` names; an engine is returned as it is.

    - "scripted" or "oracle", "random", "replay:FILE": no model plays. `model` names one whose tokenizer counts the
      tokens (a folder, a hub name or "smollm2"); without it words are counted.
    - "hf": the language model `model`, by default the embedded "smollm2". "hf:MODEL" and "smollm2" are short for it.
    - "vllm": the language model `model` in vLLM, in this process.
    - "openai": the server at `base_url`, by its name `model` for the model; "openai-chat": by its chat API, for any
      server. `tokenizer` (a folder or a name) where the server's own name does not lead to one; the key is in the
      environment variable OPENAI_API_KEY. See `OpenAIEngine`.

    `dtype` ("auto", "float32", "bfloat16", "float16"), `device` and `window_tokens` are those of `HFEngine`.
    Raises UnknownNameError, MissingExtraError where a package is missing, and ValueError for an option that the engine
    has no use for.
    """
    if not isinstance(spec, str):
        return spec
    if spec in ("openai", "openai-chat"):
        return _server(spec, model, base_url, tokenizer, window_tokens, dtype=dtype, device=device)
    if base_url is not None or tokenizer is not None:
        raise ValueError(f"base_url and tokenizer are of the engines 'openai' and 'openai-chat', not of {spec!r}.")
    if spec == "vllm":
        if device is not None:
            raise ValueError("device: vLLM takes the device it was built for; leave it out.")
        from mempo_agents.engines.vllm import VLLMEngine

        return VLLMEngine(model or "smollm2", dtype=dtype, window_tokens=window_tokens)
    kind, _, argument = spec.partition(":")
    if kind in ("scripted", "oracle", "random", "replay"):
        return _scripted(kind, argument, model)
    if kind == "smollm2" and not argument:
        kind, argument = "hf", "smollm2"
    if kind != "hf":
        raise UnknownNameError("engine", spec, _KNOWN)
    from mempo_agents.engines.hf import HFEngine

    return HFEngine(argument or model or "smollm2", dtype=dtype, device=device, window_tokens=window_tokens)


def _server(
    spec: str,
    model: str | Path | None,
    base_url: str | None,
    tokenizer: str | Path | None,
    window_tokens: int | None,
    **others: str | None,
) -> Engine:
    if base_url is None or model is None:
        raise ValueError(
            f"The engine {spec!r} needs a server and a model: base_url (--base-url http://127.0.0.1:8000/v1) and model "
            f"(--model NAME); got {base_url!r} and {model!r}."
        )
    if others != {"dtype": "auto", "device": None}:
        raise ValueError(f"dtype and device are the server's: leave them out for the engine {spec!r}.")
    from mempo_agents.engines.openai import OpenAIEngine

    api: Any = "chat" if spec == "openai-chat" else "auto"
    return OpenAIEngine(base_url, str(model), tokenizer=tokenizer, api=api, window_tokens=window_tokens)


def _scripted(kind: str, argument: str, model: str | Path | None) -> Any:
    from mempo_agents.engines.scripted import OracleEngine, RandomEngine, ReplayEngine

    tokenizer = None
    if model is not None:
        from mempo_agents.engines.hf import load_tokenizer

        tokenizer = load_tokenizer(model)
    if kind == "replay":
        if not argument:
            raise ValueError("engine: expected replay:FILE, such as replay:out/mine/trajectories.jsonl, got no file.")
        return ReplayEngine(argument, tokenizer)
    return RandomEngine(tokenizer) if kind == "random" else OracleEngine(tokenizer)
