"""Sampling a batch from a causal language model: one forward pass a step, each row on its own clock.

A `Row` says what it wants read next (one sampled token, or a whole forced chunk) and takes one token a step. Rows of
different lengths are aligned at the right; the padding is masked by length, never by a pad id, and finished rows leave
the batch. Only the last position's logits are ever computed, so memory does not grow with prompt x vocabulary.

The sample of a row depends on its seed and its own tokens alone: each row draws its noise from a generator of its own
(Gumbel-max: argmax of log-probability plus noise is a sample). Rounding can still differ with the shape of the batch;
in float32 this is far below what changes a draw, in bfloat16 it can now and then choose another token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from mempo_agents.engines.loaded import cache_argument, forward_arguments

_PREFILL_TOKENS = 512  # prompt tokens per row and forward pass: bounds the attention mask, costs no speed


@dataclass(frozen=True, slots=True)
class Restriction:
    """What a row may sample now: only `allow`, or all but those where `forbid` (bool [V]) is True."""

    allow: tuple[int, ...] | None = None
    forbid: torch.Tensor | None = None


class Row(Protocol):
    """One response being written.

    `pending` are the ids to read before the next sample, after the last `unread` ids that were read are taken back.
    `ids`, `logprobs` (NaN where forced) and `policy_mask` are what was written so far. `done` ends it, for
    `finish_reason`.
    """

    seed: int
    prompt_ids: np.ndarray
    pending: list[int]
    unread: int
    ids: list[int]
    logprobs: list[float]
    finish_reason: str
    done: bool

    @property
    def policy_mask(self) -> Sequence[bool]: ...

    def restriction(self) -> Restriction | None: ...

    def take(self, token: int, logprob: float) -> None:
        """Accept a sampled token with its full-support log-probability, and set `pending` and `done`."""
        ...


@torch.inference_mode()
def decode(model: Any, rows: Sequence[Row], temperature: float) -> None:
    """Runs every row to its end. Temperature 0 is greedy, and reports log-probabilities at temperature 1."""
    active = [row for row in rows if not row.done]
    if not active:
        return
    reader = _Reader(model, [[*map(int, row.prompt_ids), *row.pending] for row in active])
    noise = [torch.Generator(device=reader.device).manual_seed(row.seed % 2**63) for row in active]
    logits_BV = reader.prefill()
    while True:
        logprobs_BV = torch.log_softmax(logits_BV.float() / (temperature or 1.0), dim=-1)
        scores_BV = _scores(logprobs_BV, noise if temperature else None)
        for index, row in enumerate(active):
            _restrict(scores_BV[index], row.restriction())
        tokens_B = scores_BV.argmax(dim=-1)
        chosen_B = logprobs_BV.gather(1, tokens_B[:, None])[:, 0]
        for row, token, logprob in zip(active, tokens_B.tolist(), chosen_B.tolist(), strict=True):
            row.take(token, logprob)
        keep = [index for index, row in enumerate(active) if not row.done]
        if not keep:
            return
        if len(keep) < len(active):
            active = [active[index] for index in keep]
            noise = [noise[index] for index in keep]
            reader.keep(keep)
        reader.take_back([row.unread for row in active])
        logits_BV = reader.read([row.pending for row in active])


class _Reader:
    """The model with its key-value cache: reads token chunks of unequal length, gives the logits after each row's
    last."""

    def __init__(self, model: Any, prompts: Sequence[Sequence[int]]) -> None:
        from transformers import DynamicCache

        self.model = model
        self.device = next(model.parameters()).device
        self.prompts = prompts
        self.cache = DynamicCache()
        self.mask_BL = torch.zeros((len(prompts), 0), dtype=torch.long, device=self.device)
        self.lengths_B = torch.zeros(len(prompts), dtype=torch.long, device=self.device)
        accepted = forward_arguments(model)
        self.takes_positions = "position_ids" in accepted
        self.fixed = {cache_argument(model): self.cache, "use_cache": True}
        if "logits_to_keep" in accepted:
            self.fixed["logits_to_keep"] = 1

    def prefill(self) -> torch.Tensor:
        longest = max(len(prompt) for prompt in self.prompts)
        for start in range(0, longest, _PREFILL_TOKENS):
            # Aligned at the right: row b's prompt stands in the last len(prompt) of `longest` columns.
            stop = min(start + _PREFILL_TOKENS, longest)
            chunks = [
                list(prompt[max(0, start - (longest - len(prompt))) : max(0, stop - (longest - len(prompt)))])
                for prompt in self.prompts
            ]
            logits_BV = self.read(chunks, width=stop - start)
        return logits_BV

    def read(self, chunks: Sequence[Sequence[int]], width: int | None = None) -> torch.Tensor:
        """Reads chunks (each at least one id once the prompt is read) and returns the logits [B, V] after the last."""
        width = max(map(len, chunks)) if width is None else width
        ids_BL = np.zeros((len(chunks), width), dtype=np.int64)
        real_BL = np.zeros((len(chunks), width), dtype=np.int64)
        for index, chunk in enumerate(chunks):
            if len(chunk):
                ids_BL[index, width - len(chunk) :] = chunk
                real_BL[index, width - len(chunk) :] = 1
        new_BL = torch.from_numpy(real_BL).to(self.device)
        positions_BL = (self.lengths_B[:, None] + new_BL.cumsum(dim=1) - 1).clamp(min=0)
        self.mask_BL = torch.cat([self.mask_BL, new_BL], dim=1)
        self.lengths_B = self.lengths_B + new_BL.sum(dim=1)
        extra = {"position_ids": positions_BL} if self.takes_positions else {}
        output = self.model(
            input_ids=torch.from_numpy(ids_BL).to(self.device),
            attention_mask=self.mask_BL,
            **self.fixed,
            **extra,
        )
        return output.logits[:, -1]

    def take_back(self, counts: Sequence[int]) -> None:
        """Masks the last `counts[b]` ids of row b, as if they had never been read."""
        for row, count in enumerate(counts):
            if count:
                self.mask_BL[row, self.mask_BL[row].nonzero()[-count:, 0]] = 0
                self.lengths_B[row] -= count

    def keep(self, rows: Sequence[int]) -> None:
        index = torch.tensor(rows, device=self.device)
        self.cache.batch_select_indices(index)
        self.mask_BL = self.mask_BL[index]
        self.lengths_B = self.lengths_B[index]


def _scores(logprobs_BV: torch.Tensor, noise: Sequence[torch.Generator] | None) -> torch.Tensor:
    if noise is None:
        return logprobs_BV.clone()
    gumbel_BV = torch.empty_like(logprobs_BV)
    for row, generator in zip(gumbel_BV, noise, strict=True):
        row.exponential_(generator=generator)
    return logprobs_BV - gumbel_BV.clamp_(min=torch.finfo(torch.float32).tiny).log_()


def _restrict(scores_V: torch.Tensor, restriction: Restriction | None) -> None:
    if restriction is None:
        return
    if restriction.allow is not None:
        allowed = torch.tensor(restriction.allow, device=scores_V.device)
        kept = scores_V[allowed]
        scores_V.fill_(-torch.inf)
        scores_V[allowed] = kept
    if restriction.forbid is not None:
        forbid = restriction.forbid.to(scores_V.device)
        scores_V.masked_fill_(torch.nn.functional.pad(forbid, (0, len(scores_V) - len(forbid)), value=True), -torch.inf)
