"""Guided decoding: the protocol's plan writes the tags, the model writes what stands between them.

A model that was never trained on a protocol cannot follow it. Here it need not: forced text is read in chunks, free
slots are sampled until the model would close them itself (or their share of the budget is used up), and the choice
between searching and answering is the model's. Every response that fits the budget is well-formed.

What is whose: forced tokens are not the policy's (mask False, log-probability NaN). Tokens in slots and the token that
decides a choice are, with their log-probability under full support, although the draw was restricted where the plan
left less than everything. The tokens with which the model closed a slot are dropped, and what was read of them is
masked out.

On an episode's last step the plan is that of an answer: a search would never be read.

A choice is made where the openings of the branches first differ: among the tokens that are possible there, by the
model's own probabilities. So a long opening is not less likely than a short one, as it would be by total probability.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch

from mempo_agents.engines.decoding import Restriction
from mempo_agents.spans import decode_text, token_ends
from mempo_env.protocols.plan import Branch, Choice, Forced, Free, Segment


class GuidedVocabulary:
    """What guided decoding must know of a tokenizer: which tokens end a slot, and which may not begin a required
    one."""

    def __init__(self, tokenizer: Any, end_ids: Collection[int]) -> None:
        self.tokenizer = tokenizer
        self.end_ids = frozenset(end_ids) | frozenset(tokenizer.all_special_ids)
        self._forbidden: dict[frozenset[str], torch.Tensor] = {}
        self._encoded: dict[str, list[int]] = {}

    @cached_property
    def texts(self) -> list[str]:
        return self.tokenizer.batch_decode([[token] for token in range(len(self.tokenizer))], skip_special_tokens=False)

    def encode(self, text: str) -> list[int]:
        if text not in self._encoded:
            self._encoded[text] = list(self.tokenizer.encode(text, add_special_tokens=False))
        return self._encoded[text]

    def cannot_begin(self, stops: Sequence[str]) -> torch.Tensor:
        """bool [V]: blank tokens, end tokens, and tokens that hold the first character of a stop string."""
        first = frozenset(stop[0] for stop in stops)
        if first not in self._forbidden:
            forbidden = [not text.strip() or not first.isdisjoint(text) for text in self.texts]
            for token in self.end_ids:
                if token < len(forbidden):
                    forbidden[token] = True
            self._forbidden[first] = torch.tensor(forbidden)
        return self._forbidden[first]


class GuidedRow:
    """One response along a plan. Raises ValueError where `max_new_tokens` cannot hold the tags and one token per
    slot."""

    def __init__(
        self,
        vocabulary: GuidedVocabulary,
        plan: Sequence[Segment],
        prompt_ids: np.ndarray,
        seed: int,
        max_new_tokens: int,
    ) -> None:
        self.vocabulary = vocabulary
        self.prompt_ids = prompt_ids
        self.seed = seed
        self.pending: list[int] = []
        self.unread = 0
        self.done = False
        self.ids: list[int] = []
        self.logprobs: list[float] = []
        self.policy_mask: list[bool] = []
        self.finish_reason = "stop"
        forced, slots = cost(vocabulary, plan)
        self._slot_budget = max_new_tokens - forced
        if self._slot_budget < slots:
            raise ValueError(
                f"Guided decoding needs at least {forced + slots} tokens per response, for the protocol's tags and one "
                f"token in each slot, got {max_new_tokens}."
            )
        self._segments = list(plan)
        self._slot: Free | None = None
        self._slot_ids: list[int] = []
        self._slot_cap = 0
        self._branches: list[tuple[list[int], Branch]] = []  # what is left of each opening that is still possible
        self._advance()

    def restriction(self) -> Restriction | None:
        if self._branches:
            return Restriction(allow=tuple(sorted({opening[0] for opening, _ in self._branches})))
        assert self._slot is not None
        if self._slot.required and not self._slot_ids:
            return Restriction(forbid=self.vocabulary.cannot_begin(self._slot.stops))
        return None

    def take(self, token: int, logprob: float) -> None:
        self.pending, self.unread = [], 0
        if self._branches:
            self._branches = [(opening[1:], branch) for opening, branch in self._branches if opening[0] == token]
            self._append(token, logprob)
            self._follow_branches()
        else:
            self._take_in_slot(token, logprob)

    def _take_in_slot(self, token: int, logprob: float) -> None:
        assert self._slot is not None
        if token in self.vocabulary.end_ids:
            self._close_slot(dropped=0)
            return
        ids = [*self._slot_ids, token]
        text = decode_text(self.vocabulary.tokenizer, ids)
        kept = len(self._slot.cut(text))
        if kept < len(text):
            ends = token_ends(self.vocabulary.tokenizer, ids)
            self._close_slot(dropped=len(self._slot_ids) - int(np.searchsorted(ends, kept, side="right")))
            return
        self._slot_ids.append(token)
        self._append(token, logprob)
        if len(self._slot_ids) >= self._slot_cap:
            self._close_slot(dropped=0)

    def _close_slot(self, dropped: int) -> None:
        """Leave the slot without its last `dropped` tokens, all of which were read already."""
        if dropped > 0:
            del self.ids[-dropped:], self.logprobs[-dropped:], self.policy_mask[-dropped:]
            self.unread = dropped
        self._slot, self._slot_ids = None, []
        self._advance()

    def _append(self, token: int, logprob: float) -> None:
        self.ids.append(token)
        self.logprobs.append(logprob)
        self.policy_mask.append(True)
        self.pending.append(token)

    def _force(self, tokens: Sequence[int]) -> None:
        self.ids += tokens
        self.logprobs += [math.nan] * len(tokens)
        self.policy_mask += [False] * len(tokens)
        self.pending += tokens

    def _advance(self) -> None:
        """Go on to the next point where something is sampled, or to the end."""
        while self._segments:
            segment = self._segments.pop(0)
            if isinstance(segment, Forced):
                self._force(self.vocabulary.encode(segment.text))
            elif isinstance(segment, Free):
                self._slot, self._slot_cap = segment, max(1, int(segment.share * self._slot_budget))
                return
            else:
                self._branches = [(self.vocabulary.encode(_opening(branch)), branch) for branch in segment.branches]
                self._follow_branches()
                return
        self.done = True

    def _follow_branches(self) -> None:
        """Write what the possible openings share; when only one is left, take that branch."""
        while len(self._branches) > 1 and len({tuple(opening[:1]) for opening, _ in self._branches}) == 1:
            self._force(self._branches[0][0][:1])
            self._branches = [(opening[1:], branch) for opening, branch in self._branches]
        if len(self._branches) == 1:
            (rest, branch), self._branches = self._branches[0], []
            self._force(rest)
            self._segments = list(branch.segments[1:])
            self._advance()


def cost(vocabulary: GuidedVocabulary, plan: Sequence[Segment]) -> tuple[int, int]:
    """The forced tokens and the number of slots of the plan's longest path."""
    forced = slots = 0
    for segment in plan:
        if isinstance(segment, Forced):
            forced += len(vocabulary.encode(segment.text))
        elif isinstance(segment, Free):
            slots += 1
        elif isinstance(segment, Choice):
            branches = [cost(vocabulary, branch.segments) for branch in segment.branches]
            forced += max(branch[0] for branch in branches)
            slots += max(branch[1] for branch in branches)
    return forced, slots


def _opening(branch: Branch) -> str:
    opening = branch.segments[0]
    assert isinstance(opening, Forced), "a branch begins with forced text"
    return opening.text
