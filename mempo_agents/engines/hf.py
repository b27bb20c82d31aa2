"""Causal language models of transformers as engines: batched sampling, exact tokens, scoring."""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mempo_agents.engines.adapters import adapter_base, add_saved_adapters, has_tokenizer
from mempo_agents.engines.base import Generation, Request, Sampling, ScoreRow
from mempo_agents.engines.hub import hub_options
from mempo_agents.engines.loaded import text_config
from mempo_agents.tokenizers import HFTokenizer
from mempo_env.errors import DataError, MempoError, MissingExtraError, UnknownNameError
from mempo_env.protocols import Protocol as TagProtocol
from mempo_env.types import Message

DTYPES = ("auto", "float32", "bfloat16", "float16")


class HFEngine:
    """Any decoder-only attention model with its tokenizer.

    model: a folder (of a whole model, or of adapters), a hub name, an embedded model ("smollm2", or one of
    `mempo_agents.nano.shipped`) or a loaded one, which then needs `tokenizer`. dtype: "auto" is bfloat16 where the
    device computes in it, else float32; a loaded model keeps its own. device: by default the GPU where there is one.
    window_tokens: the longest prompt plus response, by default what the model's configuration allows.

    Prompts go through the tokenizer's chat template where it has one. A sampled end token belongs to the response ids,
    with empty text. Where the prompt leaves no room in the window, nothing is sampled and an empty response comes back
    with the finish reason "length". The seed of a request decides its sample: in float32 whatever else is in the
    batch, in 16-bit types up to rounding, which differs with the batch's shape.
    """

    name = "hf"

    def __init__(
        self,
        model: str | Path | Any,
        tokenizer: Any = None,
        *,
        dtype: str = "auto",
        device: str | None = None,
        window_tokens: int | None = None,
    ) -> None:
        if isinstance(model, str | Path):
            if tokenizer is not None:
                raise ValueError("A model given by name comes with its own tokenizer; pass tokenizer=None.")
            self.model_name = str(model)
            self.model, tokenizer = _load(model, dtype, device)
        else:
            if tokenizer is None:
                raise ValueError("A loaded model needs its tokenizer.")
            if dtype != "auto":
                raise ValueError(
                    f"A loaded model keeps its own dtype; convert it before, or leave out dtype={dtype!r}."
                )
            self.model_name = str(getattr(model.config, "name_or_path", "")) or type(model).__name__
            self.model = model if device is None else model.to(device)
        self.model.eval()
        self.codec = tokenizer if isinstance(tokenizer, HFTokenizer) else HFTokenizer(tokenizer)
        self.tokenizer = self.codec.tokenizer
        self.tokenizer_name = self.codec.name
        limit = getattr(text_config(self.model), "max_position_embeddings", None)
        if window_tokens is not None and limit is not None and window_tokens > limit:
            raise ValueError(f"window_tokens={window_tokens} is more than the {limit} positions that the model has.")
        self.window_tokens: int | None = limit if window_tokens is None else window_tokens
        self.end_ids = end_ids_of(getattr(self.model, "generation_config", None), self.tokenizer)
        self._vocabulary: Any = None

    @property
    def fingerprint(self) -> str:
        """The model's name, its dtype, and a hash of the weights as they are now. Reads all weights at each call."""
        digest = hashlib.blake2b(digest_size=16)
        for name, weights in sorted(self.model.state_dict().items()):
            digest.update(f"{name}/{weights.dtype}/{tuple(weights.shape)}".encode())
            digest.update(_bytes(weights))
        dtype = str(next(self.model.parameters()).dtype).removeprefix("torch.")
        return f"{self.model_name}/{dtype}/{digest.hexdigest()}"

    def encode(self, messages: Sequence[Message]) -> np.ndarray:
        return self.codec.encode_messages(messages)

    def encode_text(self, text: str) -> np.ndarray:
        return self.codec.encode(text)

    def generate(self, requests: Sequence[Request], protocol: TagProtocol, sampling: Sampling) -> list[Generation]:
        """One response per request, in order, sampled in one batch; see the class and `engines.decoding`.

        Raises ValueError for a negative temperature, fewer than one new token, and, guided, a `max_new_tokens` that
        cannot hold the tags.
        """
        from mempo_agents.engines.decoding import decode

        if sampling.temperature < 0 or sampling.max_new_tokens < 1:
            raise ValueError(
                f"Expected temperature >= 0 and max_new_tokens >= 1, got {sampling.temperature} and "
                f"{sampling.max_new_tokens}."
            )
        training = self.model.training
        self.model.eval()
        try:
            rows = [self._row(request, protocol, sampling) for request in requests]
            decode(self.model, rows, sampling.temperature)
        finally:
            self.model.train(training)
        return [self._generation(row) for row in rows]

    def score(self, rows: Sequence[ScoreRow]) -> list[np.ndarray]:
        from mempo_agents.engines.prefix import score_rows

        return score_rows(self.model, rows)

    def _row(self, request: Request, protocol: TagProtocol, sampling: Sampling) -> Any:
        from mempo_agents.engines.free import FreeRow
        from mempo_agents.engines.guided import GuidedRow, GuidedVocabulary, cost

        prompt_ids = self.encode(request.messages)
        room = sampling.max_new_tokens
        if self.window_tokens is not None:
            room = min(room, self.window_tokens - len(prompt_ids))
        if sampling.guided:
            if self._vocabulary is None:
                self._vocabulary = GuidedVocabulary(self.tokenizer, self.end_ids)
            plan = protocol.plan("answer" if request.last_step else None)
            if room == sampling.max_new_tokens or room >= sum(cost(self._vocabulary, plan)):
                return GuidedRow(self._vocabulary, plan, prompt_ids, request.seed, room)
            room = 0
        return FreeRow(self.tokenizer, protocol, prompt_ids, request.seed, room, self.end_ids)

    def _generation(self, row: Any) -> Generation:
        from mempo_agents.engines.free import generation_of

        return generation_of(self.tokenizer, row)


def load_tokenizer(model: str | Path) -> HFTokenizer:
    """The tokenizer of a folder, a hub name, or "smollm2", for counting and encoding without the model."""
    return HFTokenizer(_from_pretrained("AutoTokenizer", model), name=str(model))


def weights_of(model: str | Path) -> str | Path:
    """The folder of a model that comes with a package ("smollm2", or one of `mempo_agents.nano`), else `model`."""
    from mempo_agents.engines.smollm2 import NAME, smollm2_dir
    from mempo_agents.nano.shipped import weights_folder

    return smollm2_dir() if str(model) == NAME else (weights_folder(str(model)) or model)


def embedded_names() -> list[str]:
    """The models that `weights_of` knows."""
    from mempo_agents.engines.smollm2 import NAME
    from mempo_agents.nano.shipped import weight_names

    return sorted([NAME, *weight_names()])


def end_ids_of(*sources: Any) -> frozenset[int]:
    """Every id that ends a response: those of generation configs (there may be several) and the tokenizer's own."""
    found: set[int] = set()
    for source in sources:
        value = getattr(source, "eos_token_id", None)
        found |= {value} if isinstance(value, int) else set(value or ())
    return frozenset(found)


def check_device(device: str | None) -> None:
    """Raises ValueError for a device that torch does not know or that this machine has not. None is what there is."""
    if device is None or importlib.util.find_spec("torch") is None:
        return
    import torch

    try:
        where = torch.device(device)
        count = torch.cuda.device_count()
        if where.type == "cuda" and (where.index or 0) >= count:
            raise ValueError(f"torch finds {count} CUDA devices here")
        if where.type not in ("cpu", "cuda"):  # on a GPU this would claim memory
            torch.empty(0, device=where)
    except (RuntimeError, AssertionError, NotImplementedError, ValueError) as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        raise ValueError(f"device: expected cpu, or cuda where there is a GPU, got {device!r}: {reason}.") from error


def _load(model: str | Path, dtype: str, device: str | None) -> tuple[Any, HFTokenizer]:
    if dtype not in DTYPES:
        raise UnknownNameError("dtype", dtype, DTYPES)
    check_device(device)
    codec = load_tokenizer(model)
    import torch

    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if dtype == "auto":
        dtype = "bfloat16" if _computes_in_bfloat16(device) else "float32"
    where = weights_of(model)
    base = adapter_base(where)
    loaded = _from_pretrained("AutoModelForCausalLM", model, dtype=getattr(torch, dtype))
    if base is not None:
        loaded = add_saved_adapters(loaded, where)
    return loaded.to(device), codec


def _from_pretrained(auto_class: str, model: str | Path, **kwargs: Any) -> Any:
    if importlib.util.find_spec("huggingface_hub") is None:
        raise MissingExtraError("transformers and torch", "hf", "A language model")
    where = weights_of(model)
    options = hub_options(where, embedded_names())  # before torch is imported: a wrong name fails at once
    try:
        import transformers
    except ImportError as error:
        raise MissingExtraError("transformers and torch", "hf", "A language model") from error
    from mempo_agents.engines.smollm2 import quiet_transformers

    base = adapter_base(where)
    if base is not None and not (auto_class == "AutoTokenizer" and has_tokenizer(where)):
        if adapter_base(weights_of(base)) is not None:
            raise DataError(
                f"{where}: expected adapters of a whole model, but their base {base!r} holds adapters, too. "
                "Merge those into a whole model first (docs/training.md)."
            )
        try:
            return _from_pretrained(auto_class, base, **kwargs)
        except MempoError as error:
            raise DataError(f"{where} holds adapters of the model {base!r}, which is needed, too. {error}") from error
    try:
        with quiet_transformers():
            return getattr(transformers, auto_class).from_pretrained(where, **kwargs, **options)
    except (OSError, ValueError) as error:
        raise DataError(
            f"Could not load the language model {str(model)!r}: expected a folder with a transformers model, a hub "
            f"name within reach, or 'smollm2'. {error}"
        ) from error


def _computes_in_bfloat16(device: str) -> bool:
    import torch

    if device.startswith("cuda"):
        return torch.cuda.is_bf16_supported()
    check = getattr(torch.cpu, "_is_avx512_bf16_supported", None)
    return bool(check and check())


def _bytes(weights: Any) -> memoryview:
    import torch

    return memoryview(weights.detach().contiguous().cpu().flatten().view(torch.uint8).numpy())
