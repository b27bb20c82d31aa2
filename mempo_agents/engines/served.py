"""What engines share whose tokens are sampled elsewhere: by a server, or by vLLM in this process.

A sampler that knows nothing but stop strings stops too early (a call that was only drafted in the reasoning) or too
late (past the token that completes a tag). Both are put right here: its tokens go through the same `FreeRow` that the
engine for transformers samples into, and a row that is not done is asked for again, from where it stands.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mempo_agents.engines.base import Request, Sampling, ScoreRow
from mempo_agents.engines.free import FreeRow
from mempo_agents.tokenizers import HFTokenizer
from mempo_env.errors import EngineError
from mempo_env.protocols import Protocol as TagProtocol

MAX_SEED = 2**63


def check_sampling(name: str, sampling: Sampling) -> None:
    """Raises ValueError for what the sampler elsewhere cannot do."""
    if sampling.guided:
        raise ValueError(
            f"The engine {name!r} samples freely and cannot force the protocol's tags. For guided decoding use the "
            "engine 'hf'."
        )
    if sampling.temperature < 0 or sampling.max_new_tokens < 1:
        raise ValueError(
            f"Expected temperature >= 0 and max_new_tokens >= 1, got {sampling.temperature} and "
            f"{sampling.max_new_tokens}."
        )


def open_row(
    codec: HFTokenizer,
    request: Request,
    protocol: TagProtocol,
    sampling: Sampling,
    window_tokens: int | None,
    end_ids: Collection[int],
) -> FreeRow:
    """An empty response behind its prompt; done already where the window has no room for one."""
    prompt_ids = codec.encode_messages(request.messages)
    room = sampling.max_new_tokens
    if window_tokens is not None:
        room = min(room, window_tokens - len(prompt_ids))
    return FreeRow(codec.tokenizer, protocol, prompt_ids, request.seed, room, end_ids)


def prompt_of(row: FreeRow) -> list[int]:
    """What the sampler reads next: the prompt, and what was written so far."""
    return [*map(int, row.prompt_ids), *row.ids]


def seed_of(row: FreeRow) -> int:
    """The request's own seed; another one for each continuation, or it would draw the same numbers again."""
    return (row.seed + len(row.ids)) % MAX_SEED


def take(row: FreeRow, ids: Sequence[int], logprobs: Sequence[float], finish_reason: Any, stop_reason: Any) -> None:
    """Take a sampler's tokens, as far as they belong to the response. Afterwards `row.done`, or it is to be asked on.

    stop_reason: as vLLM has it, the stop string or the end token; None for the model's own end token.
    Raises EngineError where nothing was sampled, where tokens and log-probabilities are not equally many, and where the
    sampler ended for a reason that is none of the response's.
    """
    if finish_reason not in ("stop", "length"):
        raise EngineError(f"Expected the finish reason 'stop' or 'length', got {finish_reason!r}.")
    if len(ids) != len(logprobs):
        raise EngineError(f"Expected one log-probability per token, got {len(logprobs)} for {len(ids)} tokens.")
    if not len(ids):
        raise EngineError(f"Expected at least one token, got none (finish reason {finish_reason!r}).")
    for token, logprob in zip(ids, logprobs, strict=True):
        row.take(int(token), float(logprob))
        if row.done:
            return
    if finish_reason == "length":
        row.done = True  # a limit of its own: `row` would have gone on
    elif not isinstance(stop_reason, str):
        row.finish_reason, row.done = "eos", True  # an end token that the tokenizer does not name


class ScoreJobs:
    """Rows to score as whole sequences: each different one once. `sequences[j]` is int64 [C + T]."""

    def __init__(self, rows: Sequence[ScoreRow], window_tokens: int | None) -> None:
        self._rows: list[tuple[int, int, int]] = []  # of each row: its sequence, and where its target stands in it
        self.sequences: list[np.ndarray] = []
        known: dict[bytes, int] = {}
        for number, row in enumerate(rows):
            context = np.asarray(row.context_ids, dtype=np.int64)
            ids = np.concatenate([context, np.asarray(row.target_ids, dtype=np.int64)])
            if not len(context):
                raise ValueError(f"Row {number}: expected a context of at least one token, got none.")
            if window_tokens is not None and len(ids) > window_tokens:
                raise ValueError(f"Row {number} has {len(ids)} tokens, more than the window of {window_tokens}.")
            at = -1
            if len(ids) > len(context):
                at = known.setdefault(ids.tobytes(), len(self.sequences))
                if at == len(self.sequences):
                    self.sequences.append(ids)
            self._rows.append((at, len(context), len(ids)))

    def split(self, logprobs: Sequence[Sequence[float | None]]) -> list[np.ndarray]:
        """From the log-probabilities of the sequences' tokens, the first of each None, to those of each row."""
        return [
            np.array(logprobs[at][start:stop] if at >= 0 else [], dtype=np.float32) for at, start, stop in self._rows
        ]


def read_prompt_logprobs(ids: Sequence[int], entries: Any, value: Any) -> list[float | None]:
    """log p of each of the ids but the first. entries: vLLM's, None or {id: logprob}; value(entry) is the number.

    Raises EngineError where the entries are not those of these ids.
    """
    if not isinstance(entries, Sequence) or len(entries) != len(ids):
        got = len(entries) if isinstance(entries, Sequence) else type(entries).__name__
        raise EngineError(f"Expected the log-probabilities of {len(ids)} prompt tokens, got {got}.")
    found: list[float | None] = [None]
    for place, (token, entry) in enumerate(zip(ids[1:], entries[1:], strict=True), 1):
        mine = None if entry is None else entry.get(token, entry.get(str(token)))
        if mine is None:
            raise EngineError(f"Expected the log-probability of prompt token {place} (id {token}), got {entry!r}.")
        found.append(float(value(mine)))
    return found


def as_codec(tokenizer: str | Path | HFTokenizer | Any) -> HFTokenizer:
    """A tokenizer by folder or name, a loaded one of transformers, or one that is wrapped already."""
    if isinstance(tokenizer, str | Path):
        from mempo_agents.engines.hf import load_tokenizer

        return load_tokenizer(tokenizer)
    return tokenizer if isinstance(tokenizer, HFTokenizer) else HFTokenizer(tokenizer)
