"""Rows for training: one step of an episode each, cut into micro-batches by tokens, and read by the model.

    rows = [TrainRow(prompt_ids, response_ids, mask), ...]
    for part in micro_batches([row.length for row in rows], max_tokens):
        logits = response_logits(model, collate([rows[i] for i in part], device))        [N, V]

Only positions that predict a trained token go through the model's head, so memory does not grow with
prompt x vocabulary.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mempo_agents.engines.loaded import base_model


@dataclass(frozen=True, slots=True)
class TrainRow:
    """prompt_ids [P], response_ids [T]: int64, exactly as sampled. mask [T]: bool, the tokens that are trained.

    advantages, logprobs [T]: float32, the credit and what the tokens were sampled with; None for supervised rows.
    trajectory: which trajectory of the batch the row belongs to.
    """

    prompt_ids: np.ndarray
    response_ids: np.ndarray
    mask: np.ndarray
    advantages: np.ndarray | None = None
    logprobs: np.ndarray | None = None
    trajectory: int = 0

    @property
    def length(self) -> int:
        return len(self.prompt_ids) + len(self.response_ids)


@dataclass(frozen=True, slots=True)
class RowBatch:
    """R rows, right-padded. ids: [R, L]. row, column: [N], where each trained token is predicted. targets: [N], the
    trained tokens. shape: (R, T), the longest response; place: [N] flat positions in [R, T]."""

    ids: Tensor
    row: Tensor
    column: Tensor
    targets: Tensor
    place: Tensor
    shape: tuple[int, int]

    @property
    def tokens(self) -> int:
        """Padding included: what the model reads."""
        return self.ids.numel()

    def spread(self, values_N: Tensor) -> Tensor:
        """Values of the trained tokens in their places: [R, T], 0 elsewhere."""
        flat = torch.zeros(self.shape[0] * self.shape[1], dtype=values_N.dtype, device=values_N.device)
        return flat.index_put((self.place,), values_N).reshape(self.shape)

    def mask(self) -> Tensor:
        return self.spread(torch.ones(len(self.place), dtype=torch.bool, device=self.place.device))


def micro_batches(lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Indices of rows, grouped so that rows of like length share a batch and each, padding included, keeps within
    `max_tokens`; a longer row is a batch of its own. Every row is in exactly one batch; longest first, so that memory
    runs out at once or never."""
    if max_tokens < 1:
        raise ValueError(f"max_tokens must be at least 1, got {max_tokens}.")
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    batches: list[list[int]] = []
    for index in order:
        if batches and (len(batches[-1]) + 1) * lengths[batches[-1][0]] <= max_tokens:
            batches[-1].append(index)
        else:
            batches.append([index])
    return batches


def collate(rows: Sequence[TrainRow], device: Any = None) -> RowBatch:
    """Masks come from lengths, never from a pad id. The first token of a row is never trained: nothing predicts it."""
    width = max(row.length for row in rows)
    longest = max(len(row.response_ids) for row in rows)
    ids_RL = np.zeros((len(rows), width), dtype=np.int64)
    at: list[np.ndarray] = []
    for r, row in enumerate(rows):
        start = len(row.prompt_ids)
        ids_RL[r, :start] = row.prompt_ids
        ids_RL[r, start : row.length] = row.response_ids
        trained = np.flatnonzero(row.mask if start else row.mask & (np.arange(len(row.mask)) > 0))
        at.append(np.stack([np.full(len(trained), r), start + trained - 1, r * longest + trained], axis=1))
    at_N3 = np.concatenate(at)
    row_N, column_N, place_N = (torch.from_numpy(np.ascontiguousarray(x)).to(device) for x in at_N3.T)
    ids = torch.from_numpy(ids_RL).to(device)
    return RowBatch(ids, row_N, column_N, ids[row_N, column_N + 1], place_N, (len(rows), longest))


def response_logits(model: Any, batch: RowBatch) -> Tensor:
    """Logits of the positions that predict the trained tokens: [N, V], in the model's dtype.

    Where the model is a decoder with a plain linear head, only those positions pass the head; `has_plain_head` tests
    it once per model. Right padding needs no attention mask: no real token can see it. A model in shards reads by its
    own method, around which the shards are gathered.
    """
    own = getattr(model, "response_logits", None)
    return plain_response_logits(model, batch) if own is None else own(batch)


def plain_response_logits(model: Any, batch: RowBatch) -> Tensor:
    """`response_logits` of a model that this process holds whole."""
    if has_plain_head(model):
        base = base_model(model)
        hidden_RLD = base.get_decoder()(batch.ids, use_cache=False).last_hidden_state
        return base.get_output_embeddings()(hidden_RLD[batch.row, batch.column])
    return model(batch.ids, use_cache=False).logits[batch.row, batch.column]


def has_plain_head(model: Any) -> bool:
    """Whether logits are the head applied to the decoder's last hidden state and nothing more, found by trying."""
    known = getattr(model, "_mempo_plain_head", None)
    if known is None:
        known = _try_plain_head(model)
        model._mempo_plain_head = known
    return known


@torch.no_grad()
def _try_plain_head(model: Any) -> bool:
    base = base_model(model)
    if not hasattr(base, "get_decoder") or base.get_output_embeddings() is None:
        return False
    decoder = base.get_decoder()
    if decoder is None or decoder is base or "input_ids" not in inspect.signature(decoder.forward).parameters:
        return False
    training = model.training
    model.eval()
    try:
        ids = torch.arange(8, device=next(model.parameters()).device)[None] % base.config.get_text_config().vocab_size
        whole = model(ids, use_cache=False).logits.float()
        parts = base.get_output_embeddings()(decoder(ids, use_cache=False).last_hidden_state).float()
        return whole.shape == parts.shape and bool(torch.allclose(whole, parts, rtol=1e-3, atol=1e-4))
    except (TypeError, AttributeError, ValueError):
        return False
    finally:
        model.train(training)
