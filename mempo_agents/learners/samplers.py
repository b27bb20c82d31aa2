"""Where the trainer's episodes come from: the model in training itself, or an engine that holds a copy of its weights.

A copy can be out of date, and then it is never used: the optimizer counts how often the weights have changed, a copy
knows which of these versions it holds, and `generate` and `score` refuse any other than the present one. `follow`
brings it up to date; forgetting to call it ends the run, and never trains on episodes of other weights.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mempo_agents.engines.base import Engine, Generation, Request, Sampling, ScoreRow
from mempo_agents.engines.hf import HFEngine, weights_of
from mempo_agents.engines.loaded import base_model
from mempo_agents.learners.processes import Processes
from mempo_env.errors import EngineError
from mempo_env.protocols import Protocol as TagProtocol
from mempo_env.types import Message

SAMPLERS = ("hf", "vllm")
_ONE_DEVICE = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")


def check_sampler(sampler: str, options: Mapping[str, Any], guided: bool) -> None:
    """Raises ValueError for settings that no sampler has."""
    if sampler not in SAMPLERS:
        raise ValueError(f"sampler: expected 'hf' or 'vllm', got {sampler!r}.")
    if sampler == "hf" and options:
        raise ValueError(f"sampler_options are arguments of vLLM; the sampler 'hf' has none, got {sorted(options)}.")
    if sampler == "vllm" and guided:
        raise ValueError("guided: vLLM samples freely and cannot force the protocol's tags. Use the sampler 'hf'.")
    for name in _ONE_DEVICE:
        if options.get(name, 1) != 1:
            raise ValueError(f"sampler_options: {name} must be 1, got {options[name]}: each process has its own vLLM.")


class Sampler:
    """An engine that samples and scores with the present weights of a model in training, or not at all.

    version: () -> how often the weights have changed. push: brings the present weights into `engine`; None for an
    engine around the very model that is trained, which has no copy.
    """

    def __init__(self, engine: Engine, version: Callable[[], int], push: Callable[[int], None] | None = None) -> None:
        self.engine, self._present, self._push = engine, version, push
        self._held: int | None = None

    @property
    def version(self) -> int | None:
        """Of the weights that would sample now; None where the copy was never filled."""
        return self._present() if self._push is None else self._held

    def follow(self) -> None:
        """Bring in the present weights, where the copy has others. Every process must call it at the same point."""
        present = self._present()
        if self._push is not None and self._held != present:
            self._held = None  # half-way it holds neither
            self._push(present)
            self._held = present

    @property
    def name(self) -> str:
        return self.engine.name

    @property
    def tokenizer_name(self) -> str:
        return self.engine.tokenizer_name

    @property
    def fingerprint(self) -> str:
        return self.engine.fingerprint

    @property
    def window_tokens(self) -> int | None:
        return self.engine.window_tokens

    def encode(self, messages: Sequence[Message]) -> np.ndarray:
        return self.engine.encode(messages)

    def encode_text(self, text: str) -> np.ndarray:
        return self.engine.encode_text(text)

    def generate(self, requests: Sequence[Request], protocol: TagProtocol, sampling: Sampling) -> list[Generation]:
        self._refuse_old_weights()
        return self.engine.generate(requests, protocol, sampling)

    def score(self, rows: Sequence[ScoreRow]) -> list[np.ndarray]:
        self._refuse_old_weights()
        return self.engine.score(rows)

    def _refuse_old_weights(self) -> None:
        if self.version != self._present():
            raise EngineError(
                f"The sampler holds version {self.version} of the weights, the model in training is at "
                f"{self._present()}: call follow() before sampling."
            )


def vllm_sampler(
    trained: HFEngine,
    version: Callable[[], int],
    processes: Processes,
    *,
    model: str | None = None,
    dtype: str = "auto",
    options: Mapping[str, Any] | None = None,
    first: Callable[[], None] | None = None,
) -> Sampler:
    """vLLM in this process, with a copy of the weights of `trained`, handed over in memory.

    model: the name that the weights were loaded by; None for a model made in memory, which passes through a folder
    once. options: of `vllm.LLM`; unless they say otherwise, vLLM takes 0.3 of the device's memory. first: called
    before each push, where `trained` itself is a copy that must be filled.
    """
    engine = _vllm(trained, processes, model, dtype, options or {})

    def push(version: int) -> None:
        if first is not None:
            first()
        engine.load_weights(plain_weights(trained.model), digest=f"version-{version}")

    return Sampler(engine, version, push)


def _vllm(trained: HFEngine, processes: Processes, model: str | None, dtype: str, options: Mapping[str, Any]) -> Any:
    from mempo_agents.engines.vllm import VLLMEngine

    # Tensors can be handed over only inside one process, and torchrun has started one for each device already.
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    chosen: dict[str, Any] = {"gpu_memory_utilization": 0.3, **options}
    if processes.count > 1:
        chosen["distributed_executor_backend"] = "external_launcher"
    if model is not None:
        from mempo_agents.engines.adapters import adapter_base

        name = adapter_base(weights_of(model)) or model
        return VLLMEngine(name, tokenizer=trained.codec, dtype=dtype, **chosen)
    with tempfile.TemporaryDirectory() as folder:
        base = base_model(trained.model)
        base.save_pretrained(folder, state_dict=dict(plain_weights(trained.model)))
        trained.tokenizer.save_pretrained(folder)
        return VLLMEngine(Path(folder), tokenizer=trained.codec, dtype=dtype, **chosen)


def plain_weights(model: Any) -> Iterator[tuple[str, Any]]:
    """The weights as `save_pretrained` of the plain model names them, adapters added in; tied weights come once."""
    base = base_model(model)
    if base is not model:
        yield from _with_adapters(base)
        return
    from transformers.core_model_loading import revert_weight_conversion

    weights = {name: weight.detach() for name, weight in model.named_parameters()}
    yield from revert_weight_conversion(model, weights).items()


def _with_adapters(base: Any) -> Iterator[tuple[str, Any]]:
    for name, weight in base.named_parameters():
        place, _, kind = name.rpartition(".")
        if ".lora_" in name:
            continue
        if kind == "weight" and place.endswith(".base_layer"):
            layer = base.get_submodule(place.removesuffix(".base_layer"))
            for adapter in layer.active_adapters:
                weight = weight + layer.get_delta_weight(adapter)
        yield name.replace(".base_layer.", "."), weight.detach()
