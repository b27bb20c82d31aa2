"""vLLM in its own names around a small model: its sampler, its outputs, and a prefix cache that can be stale."""

from __future__ import annotations

import copy
import sys
from types import ModuleType, SimpleNamespace
from typing import ClassVar

import torch
from model_stand_in import ModelStandIn

# What vLLM 0.32 accepts; a name that it does not know is an error there and here.
LLM_NAMES = {"model", "tokenizer", "dtype", "seed", "logprobs_mode", "max_model_len", "enforce_eager",
             "gpu_memory_utilization", "distributed_executor_backend"}  # fmt: skip
PARAMS = {
    "max_tokens", "temperature", "seed", "stop", "stop_token_ids", "include_stop_str_in_output", "skip_special_tokens",
    "spaces_between_special_tokens", "logprobs", "prompt_logprobs", "detokenize",
}  # fmt: skip


class SamplingParams(SimpleNamespace):
    def __init__(self, **values):
        assert set(values) <= PARAMS, set(values) - PARAMS
        if values["temperature"] > 2:
            raise ValueError("temperature must be in [0, 2]")
        super().__init__(**{"logprobs": None, "prompt_logprobs": None, "seed": None, **values})


class LLM:
    """vLLM's offline class around a tiny model: its sampler, its outputs, and a prefix cache that can be stale."""

    made: ClassVar[list] = []

    def __init__(self, **options):
        assert set(options) <= LLM_NAMES, set(options) - LLM_NAMES
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self.options = options
        self.model = AutoModelForCausalLM.from_pretrained(options["model"], dtype=torch.float32)
        self.tokenizer = AutoTokenizer.from_pretrained(options["tokenizer"])
        config = SimpleNamespace(
            dtype=torch.float32, max_model_len=options.get("max_model_len", self.model.config.max_position_embeddings)
        )
        self.llm_engine = SimpleNamespace(
            model_config=config,
            engine_core=SimpleNamespace(shutdown=lambda: None),
            vllm_config=SimpleNamespace(device_config=SimpleNamespace(device_type="cuda")),
        )
        self.calls = []
        self.fresh = self.model  # what is computed anew; what is cached stays that of `model`
        self.resets = True
        self.reloads = 0
        LLM.made.append(self)

    def generate(self, prompts, sampling_params=None, *, use_tqdm=True):
        assert not use_tqdm
        assert len(prompts) == len(sampling_params)
        self.calls.append((prompts, sampling_params))
        return [self._one(p["prompt_token_ids"], s) for p, s in zip(prompts, sampling_params, strict=True)]

    def _one(self, ids, params):
        assert len(ids) + params.max_tokens <= self.llm_engine.model_config.max_model_len
        scored = params.prompt_logprobs is not None
        processed = self.options["logprobs_mode"] == "processed_logprobs"
        sampler = ModelStandIn(self.fresh if scored else self.model, self.tokenizer, processed=processed)
        # The stand-in speaks HTTP's names; vLLM's own default is full support.
        tokens, text, logprobs, finish, stop = sampler.sample(ids, {"top_k": -1, **vars(params)})
        entries = None
        if scored:
            values = zip(ids[1:], sampler.scored(ids), strict=True)
            entries = [None, *({token: SimpleNamespace(logprob=value)} for token, value in values)]
        output = SimpleNamespace(
            text=text, token_ids=tuple(tokens), finish_reason=finish, stop_reason=stop,
            logprobs=[{t: SimpleNamespace(logprob=v)} for t, v in zip(tokens, logprobs, strict=True)],
        )  # fmt: skip
        return SimpleNamespace(prompt_token_ids=ids, prompt_logprobs=entries, outputs=[output])

    def collective_rpc(self, method, timeout=None, args=(), kwargs=None):
        from transformers import AutoModelForCausalLM

        assert method == "reload_weights"
        self.reloads += 1
        if "weights_path" in kwargs:
            self.fresh = AutoModelForCausalLM.from_pretrained(kwargs["weights_path"], dtype=torch.float32)
            return
        self.fresh = copy.deepcopy(self.fresh)
        own = dict(self.fresh.named_parameters())
        for name, tensor in kwargs["weights_iterator"]:
            own.pop(name).data.copy_(tensor)
        assert not own, f"weights that did not come: {sorted(own)}"

    def reset_prefix_cache(self):
        if self.resets:
            self.model = self.fresh
        return self.resets


def install(monkeypatch):
    """`import vllm` finds the stand-in from here on; what it makes is in `LLM.made`."""
    module = ModuleType("vllm")
    module.LLM, module.SamplingParams = LLM, SamplingParams
    monkeypatch.setitem(sys.modules, "vllm", module)
    LLM.made.clear()
