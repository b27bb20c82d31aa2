"""Tag protocols: how a step is written, read and answered. (Interface; see the class.)"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol as _Interface

from mempo_env.types import Action, Hit, Message, Task


class Protocol(_Interface):
    name: str
    default_context: str
    stop: tuple[str, ...]

    def head(self, task: Task, instructions: str | None = None) -> tuple[Message, ...]: ...
    def parse(self, response: str, finish_reason: str | None = None) -> Action: ...
    def render_hits(self, hits: Sequence[Hit]) -> str: ...
    def render_invalid(self, action: Action) -> str: ...
    def compose(self, *, memory: str = "", thought: str = "", query: str | None = None,
                answers: Sequence[str] | None = None) -> str: ...  # fmt: skip
