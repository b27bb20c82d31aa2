"""The text environment that one would write with Gymnasium alone: `spaces.Text`, the whole history, a search per step.

It stands for the usual way: no protocol beyond two tags, no context rule, no scores per question.
"""

from __future__ import annotations

import re
import string
from collections.abc import Sequence
from typing import Any

import gymnasium as gym

_ACTION = re.compile(r"<(search|answer)>(.*?)</\1>", re.DOTALL)


class PlainTextEnv(gym.Env[str, str]):
    """A question, searches with bm25s one query at a time, and an answer that ends the episode.

    Args:
        questions: (text, answer) pairs. passages: (title, text) pairs; none means that searches find nothing.
        index: a `bm25s.BM25` over the passages, shared by all instances. top_k: passages per search.
    """

    def __init__(
        self,
        questions: Sequence[tuple[str, str]],
        passages: Sequence[tuple[str, str]] = (),
        index: Any = None,
        top_k: int = 3,
        max_steps: int = 12,
    ) -> None:
        characters = set(string.printable).union(*(text for pair in (*questions, *passages) for text in pair))
        self.observation_space = gym.spaces.Text(1_000_000, charset=frozenset(characters))
        self.action_space = gym.spaces.Text(1_000_000, charset=frozenset(characters))
        self.questions, self.passages, self.index = questions, passages, index
        self.top_k, self.max_steps = top_k, max_steps

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        question, self.answer = self.questions[int(self.np_random.integers(len(self.questions)))]
        self.history = [question]
        return question, {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.history.append(action)
        match = _ACTION.search(action)
        answered = match is not None and match[1] == "answer"
        reward = float(match is not None and answered and match[2].strip().lower() == self.answer.lower())
        if not answered:
            self.history.append(f"<information>{self._search(match[2]) if match else ''}</information>")
        truncated = not answered and len(self.history) >= 2 * self.max_steps
        return "\n\n".join(self.history), reward, answered, truncated, {}

    def _search(self, query: str) -> str:
        if self.index is None:
            return ""
        import bm25s

        tokens = bm25s.tokenize([query], show_progress=False)
        rows, _ = self.index.retrieve(tokens, k=self.top_k, show_progress=False)
        return "\n".join(
            f"Doc {i}(Title: {self.passages[r][0]}) {self.passages[r][1]}" for i, r in enumerate(rows[0], 1)
        )
