"""An unguided response: sampled until an action is complete, an end token, or the budget.

The one place that says where a response ends, whoever samples it: this process or a server (`served.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from mempo_agents.engines.base import Generation
from mempo_agents.spans import decode_text, token_ends
from mempo_env.protocols import Protocol as TagProtocol

if TYPE_CHECKING:  # it needs torch; engines behind a server do not
    from mempo_agents.engines.decoding import Restriction


class FreeRow:
    """Stops behind the token that completes a closing tag of the protocol, whole, whatever else that token holds.

    A closing tag that was drafted inside open reasoning does not stop: the protocol decides (`finished`).
    """

    def __init__(
        self,
        tokenizer: Any,
        protocol: TagProtocol,
        prompt_ids: np.ndarray,
        seed: int,
        max_new_tokens: int,
        end_ids: Collection[int],
    ) -> None:
        self.tokenizer = tokenizer
        self.protocol = protocol
        self.prompt_ids = prompt_ids
        self.seed = seed
        self.max_new_tokens = max_new_tokens
        self.end_ids = end_ids
        self.pending: list[int] = []
        self.unread = 0
        self.ids: list[int] = []
        self.logprobs: list[float] = []
        self.finish_reason = "length"
        self.done = max_new_tokens < 1
        self._tail = max(map(len, protocol.stop), default=0) + 4  # tokens: a closing tag takes at most one a character

    @property
    def policy_mask(self) -> Sequence[bool]:
        return [True] * len(self.ids)

    def restriction(self) -> Restriction | None:
        return None

    def take(self, token: int, logprob: float) -> None:
        self.ids.append(token)
        self.logprobs.append(logprob)
        self.pending = [token]
        if token in self.end_ids:
            self.finish_reason, self.done = "eos", True
        elif _may_close(self.tokenizer, token, self.protocol.stop) and self._closes():
            self.finish_reason, self.done = "stop", True
        else:
            self.done = len(self.ids) >= self.max_new_tokens

    def _closes(self) -> bool:
        tail = decode_text(self.tokenizer, self.ids[-self._tail :])
        before = len(decode_text(self.tokenizer, self.ids[-self._tail : -1]))
        for tag in self.protocol.stop:
            found = tail.rfind(tag)
            if found >= 0 and found + len(tag) > before:
                return self.protocol.finished(decode_text(self.tokenizer, self.ids).rpartition(tag)[0] + tag)
        return False


def generation_of(tokenizer: Any, row: Any) -> Generation:
    """What a finished row has written. An end token has empty text."""
    ids = np.array(row.ids, dtype=np.int64)
    spoken = ids[:-1] if row.finish_reason == "eos" else ids
    text = decode_text(tokenizer, spoken)
    ends = np.full(len(ids), len(text), dtype=np.int64)
    ends[: len(spoken)] = token_ends(tokenizer, spoken)
    return Generation(
        prompt_ids=row.prompt_ids,
        response_ids=ids,
        logprobs=np.array(row.logprobs, dtype=np.float32),
        policy_mask=np.array(row.policy_mask, dtype=bool),
        token_ends=ends,
        text=text,
        finish_reason=row.finish_reason,
    )


@lru_cache(maxsize=1 << 18)
def _may_close(tokenizer: Any, token: int, stop: tuple[str, ...]) -> bool:
    """Whether the token's own text holds the last character of a closing tag; all others need no closer look."""
    text = decode_text(tokenizer, [token])
    return any(tag[-1] in text for tag in stop)
