"""vLLM in this process: fast sampling, exact tokens, and weights that follow those of a model in training."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mempo_agents.engines.base import Generation, Request, Sampling, ScoreRow
from mempo_agents.engines.served import (
    ScoreJobs,
    as_codec,
    check_sampling,
    open_row,
    prompt_of,
    read_prompt_logprobs,
    seed_of,
    take,
)
from mempo_env.errors import DataError, EngineError, MissingExtraError
from mempo_env.protocols import Protocol as TagProtocol
from mempo_env.types import Message

_CHUNK = 1 << 24


class VLLMEngine:
    """A language model in vLLM.

    model: a folder, a hub name, or a model that comes with a package ("smollm2"). tokenizer: by default the model's.
    dtype: "float32", "bfloat16", "float16", or vLLM's own "auto". window_tokens: the longest prompt plus response;
        default: one token less than the model has positions, because scoring a prompt samples one.
    options: further arguments of `vllm.LLM` (tensor_parallel_size, gpu_memory_utilization, enforce_eager, ...).

    Log-probabilities are those at the sampling temperature with full support, as everywhere here: vLLM runs with
    `logprobs_mode="processed_logprobs"`. A request's seed decides its sample up to rounding, which differs with the
    batch; the samples are not those that `HFEngine` draws with the same seed.

    Raises MissingExtraError without vLLM, DataError for a model that does not load.
    """

    name = "vllm"

    def __init__(
        self,
        model: str | Path,
        *,
        tokenizer: Any = None,
        dtype: str = "auto",
        window_tokens: int | None = None,
        **options: Any,
    ) -> None:
        try:
            import vllm
        except ImportError as error:
            raise MissingExtraError("vllm", "vllm", "The engine 'vllm'") from error
        from mempo_agents.engines.adapters import adapter_base
        from mempo_agents.engines.hf import end_ids_of, weights_of

        self.model_name = str(model)
        self.codec = as_codec(model if tokenizer is None else tokenizer)
        self.tokenizer_name = self.codec.name
        self.weights: str | Path = weights_of(model)
        if (base := adapter_base(self.weights)) is not None:
            raise DataError(
                f"{self.model_name} holds adapters of {base!r}, and vLLM is given whole models here: merge them first "
                "(docs/training.md says how), or take the engine 'hf'."
            )
        if window_tokens is not None:
            options["max_model_len"] = window_tokens + 1
        try:
            self.llm = vllm.LLM(
                model=str(self.weights),
                tokenizer=str(self.weights),
                dtype=dtype,
                **{"seed": 0, "logprobs_mode": "processed_logprobs", **options},
            )
        except (OSError, ValueError) as error:
            raise DataError(f"vLLM could not load the language model {self.model_name!r}. {error}") from error
        self._sampling_params = vllm.SamplingParams
        config = self.llm.llm_engine.model_config
        self.dtype = str(config.dtype).removeprefix("torch.")
        self.window_tokens: int | None = config.max_model_len - 1
        self.end_ids = end_ids_of(_generation_config(self.weights), self.codec.tokenizer)
        self._digest: str | None = None

    @property
    def fingerprint(self) -> str:
        """The model's name, its dtype, and a hash of the weight files that were loaded last, or what `load_weights` was
        told of them."""
        if self._digest is None:
            self._digest = _digest(self.weights)
        return f"{self.model_name}/{self.dtype}/{self._digest}"

    def encode(self, messages: Sequence[Message]) -> np.ndarray:
        return self.codec.encode_messages(messages)

    def encode_text(self, text: str) -> np.ndarray:
        return self.codec.encode(text)

    def generate(self, requests: Sequence[Request], protocol: TagProtocol, sampling: Sampling) -> list[Generation]:
        """One response per request, in order, all in one batch; see the class.

        Raises ValueError for guided decoding and for what vLLM does not accept (a temperature above 2), EngineError
        where vLLM breaks down.
        """
        from mempo_agents.engines.free import generation_of

        check_sampling(self.name, sampling)
        rows = [
            open_row(self.codec, request, protocol, sampling, self.window_tokens, self.end_ids) for request in requests
        ]
        while running := [row for row in rows if not row.done]:
            params = [
                self._sampling_params(
                    max_tokens=row.max_new_tokens - len(row.ids),
                    temperature=sampling.temperature,
                    seed=seed_of(row),
                    stop=list(protocol.stop),
                    stop_token_ids=sorted(self.end_ids),
                    include_stop_str_in_output=True,
                    skip_special_tokens=False,
                    spaces_between_special_tokens=False,
                    logprobs=0,
                )
                for row in running
            ]
            for row, output in zip(running, self._run([prompt_of(row) for row in running], params), strict=True):
                (made,) = output.outputs
                logprobs = [entry[token].logprob for token, entry in zip(made.token_ids, made.logprobs, strict=True)]
                take(row, made.token_ids, logprobs, made.finish_reason, made.stop_reason)
        return [generation_of(self.codec.tokenizer, row) for row in rows]

    def score(self, rows: Sequence[ScoreRow]) -> list[np.ndarray]:
        """See `Engine`. Each different row is read once, whole: vLLM does not use its prefix cache for prompts whose
        log-probabilities are asked for, so nothing stale can come back, and nothing is shared between rows.

        Raises ValueError for an empty context or a row longer than the window, EngineError where vLLM breaks down.
        """
        jobs = ScoreJobs(rows, self.window_tokens)
        prompts = [ids.tolist() for ids in jobs.sequences]
        params = self._sampling_params(prompt_logprobs=0, max_tokens=1, temperature=0.0, detokenize=False)
        outputs = self._run(prompts, [params] * len(prompts))
        for ids, output in zip(prompts, outputs, strict=True):
            if list(output.prompt_token_ids) != ids:
                raise EngineError("vLLM scored other tokens than it was given.")
        return jobs.split(
            [
                read_prompt_logprobs(ids, output.prompt_logprobs, lambda entry: entry.logprob)
                for ids, output in zip(prompts, outputs, strict=True)
            ]
        )

    def update_weights(self, folder: str | Path) -> None:
        """Take over the weights in `folder`: safetensors of the same architecture, as `save_pretrained` writes them.

        What was cached under the old weights is dropped. Raises DataError for a folder without weights, EngineError
        where vLLM cannot drop its cache.
        """
        folder = Path(folder)
        if not any(folder.glob("*.safetensors")):
            raise DataError(f"{folder}: expected a model's folder with .safetensors files, found none.")
        # From here on the old name would be wrong, also where vLLM fails half-way.
        self.weights, self._digest = folder, None
        self._reload(weights_path=str(folder))

    def load_weights(self, weights: Iterable[tuple[str, Any]], digest: str) -> None:
        """Take over these tensors, by the names that `save_pretrained` gives them, without a disk in between.

        Needs vLLM in this very process (VLLM_ENABLE_V1_MULTIPROCESSING=0). digest: what tells the weights from all
        others, for the fingerprint. What was cached is dropped, as in `update_weights`.
        """
        self._digest = digest
        self._reload(weights_iterator=iter(weights))

    def _reload(self, **source: Any) -> None:
        self.llm.collective_rpc("reload_weights", kwargs=source)
        if self.llm.llm_engine.vllm_config.device_config.device_type == "cpu":
            self.llm.collective_rpc(_pack_heads)
        if not self.llm.reset_prefix_cache():
            raise EngineError("vLLM did not drop its prefix cache, which holds states of the old weights.")

    def close(self) -> None:
        """End vLLM's own processes and free its memory. The engine is of no use afterwards."""
        shutdown = getattr(self.llm.llm_engine.engine_core, "shutdown", None)
        if shutdown is not None:
            shutdown()

    def _run(self, prompts: Sequence[list[int]], params: Sequence[Any]) -> list[Any]:
        if not prompts:
            return []
        try:
            return self.llm.generate(
                [{"prompt_token_ids": ids} for ids in prompts], sampling_params=list(params), use_tqdm=False
            )
        except (ValueError, TypeError):
            raise
        except Exception as error:
            raise EngineError(f"vLLM broke down. {type(error).__name__}: {error}") from error


def _pack_heads(worker: Any) -> None:
    """In vLLM's worker, on a CPU: pack the heads anew. vLLM 0.32 multiplies by a packed copy of the head there, and
    where the head is tied to the embeddings, reloading leaves that copy as it was."""
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

    for module in worker.get_model().modules():
        if isinstance(module, ParallelLMHead):
            module.quant_method.process_weights_after_loading(module)


def _generation_config(weights: str | Path) -> Any:
    """What the model says about its end tokens: its generation config, or its configuration where it has none."""
    import transformers

    for kind in (transformers.GenerationConfig, transformers.AutoConfig):
        try:
            return kind.from_pretrained(weights)
        except (OSError, ValueError):
            continue
    return None


def _digest(weights: str | Path) -> str:
    folder = Path(weights)
    if not folder.is_dir():
        from huggingface_hub import snapshot_download

        folder = Path(snapshot_download(str(weights), local_files_only=True, allow_patterns=["*.safetensors"]))
    digest = hashlib.blake2b(digest_size=16)
    for path in sorted(folder.glob("*.safetensors")):
        digest.update(path.name.encode())
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
    return digest.hexdigest()
