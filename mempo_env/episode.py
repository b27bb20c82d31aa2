"""One episode as a pure state machine: no search, no randomness, no clock.

    act(text) ---> ended, or the next observation is ready
        |
        +---> `pending` holds a search: run it anywhere, then observe(hits), or fail(why)

`SearchQAEnv` runs the search at once; `SearchQAVectorEnv` first gathers those of all its episodes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from mempo_env.context import ContextRule
from mempo_env.errors import EpisodeOverError
from mempo_env.protocols import Budget, Protocol
from mempo_env.rewards import Reward, RewardResult
from mempo_env.scoring import Score, score
from mempo_env.types import Action, ActionKind, Hit, Message, StopReason, Task, Turn


class Episode:
    """A task being worked on, step by step.

    Args:
        task: The questions.
        protocol: Reads the policy's texts and renders the replies.
        context: Decides what of the past the policy sees.
        reward: Turns the score into a number, at the end.
        normaliser: How answers are compared, see `mempo_env.scoring`.
        max_steps: Steps after which the episode is truncated, at least 1.
        instructions: System message; None is the protocol's own, "" is none.
        budgets: Limits on passages and replies.
        count_tokens: From a text to its number of tokens; None leaves `context_tokens` unknown.
        max_context_tokens: Most tokens of the observation; the episode is truncated instead of going over it.
        split: The split the task is from, for `info`.

    Attributes:
        turns: The steps done.
        pending: The search (or visit) that `observe` or `fail` must answer next; None when there is none.
        stop_reason: None while running.
        format_valid: Whether every step so far obeyed the protocol.
        score, result: The per-question score and the reward with its parts; None until the end, and after a failure.
        error: Why the episode failed; None otherwise.

    Raises:
        ValueError: `max_steps` is below 1, or the task alone is over `max_context_tokens`: it is never cut.
    """

    def __init__(
        self,
        task: Task,
        *,
        protocol: Protocol,
        context: ContextRule,
        reward: Reward,
        max_steps: int,
        normaliser: str = "squad",
        instructions: str | None = None,
        budgets: Sequence[Budget] = (),
        count_tokens: Callable[[str], int] | None = None,
        max_context_tokens: int | None = None,
        split: str = "",
    ) -> None:
        if max_steps < 1:
            raise ValueError(f"Expected max_steps to be at least 1, got {max_steps}.")
        self.task = task
        self.protocol = protocol
        self.context = context
        self.max_steps = max_steps
        self.budgets = tuple(budgets)
        self.count_tokens = count_tokens
        self.max_context_tokens = max_context_tokens
        self.split = split
        self.head: tuple[Message, ...] = protocol.head(task, instructions)
        self.turns: tuple[Turn, ...] = ()
        self.pending: Action | None = None
        self.stop_reason: StopReason | None = None
        self.format_valid = True
        self.score: Score | None = None
        self.result: RewardResult | None = None
        self.error: str | None = None
        self._reward = reward
        self._normaliser = normaliser
        self._look()
        if self._over_context():
            raise ValueError(
                f"Task {task.id!r} and its instructions take {self.context_tokens} tokens, more than "
                f"max_context_tokens={max_context_tokens}. The task is never cut: raise the limit, ask for "
                "fewer objectives or shorten the instructions."
            )

    def act(self, text: str, finish_reason: str | None = None) -> Action:
        """Read one response of the policy. `finish_reason` "length" says that the sampler cut it off.

        Returns:
            The action as parsed. If it needs a search, `pending` holds it and `observe` or `fail` comes next.

        Raises:
            TypeError: `text` is not a string.
            EpisodeOverError: The episode has ended, or a search is pending.
        """
        if not isinstance(text, str):
            raise TypeError(f"Expected the action to be a str, the policy's text, got {type(text).__name__}.")
        if self.done:
            raise EpisodeOverError(f"Episode {self.task.id!r} has ended ({self.stop_reason}). Call reset() first.")
        if self.pending is not None:
            raise EpisodeOverError("A search is pending: call observe(hits) or fail(error) before the next act().")
        action = self.protocol.parse(text, finish_reason)
        self.format_valid = self.format_valid and action.format_valid
        if action.kind is ActionKind.ANSWER:
            self._close(Turn(action), StopReason.ANSWERED)
        elif self._turns_left == 0:
            # The policy could not read a reply any more, so none is fetched.
            self._close(Turn(action), StopReason.MAX_STEPS)
        elif action.kind is ActionKind.INVALID:
            reply = self.protocol.render_invalid(action, turns_left=self._turns_left, budgets=self.budgets)
            self._close(Turn(action, (), reply))
        else:
            self.pending = action
        return action

    def observe(self, hits: Sequence[Hit]) -> None:
        """Answer the pending search with what it found, best first; nothing found is an empty sequence."""
        action = self._take_pending()
        reply = self.protocol.render_hits(hits, turns_left=self._turns_left, budgets=self.budgets)
        self._close(Turn(action, tuple(hits), reply))

    def fail(self, error: str) -> None:
        """End the episode by an infrastructure failure: unscored, its reward NaN.

        Answers the pending search; with none pending it is the policy that could not be asked, and no step is added.

        Raises:
            EpisodeOverError: The episode has ended.
        """
        if self.done:
            raise EpisodeOverError("Only a running episode can fail.")
        self.error = error
        if self.pending is None:
            self._end(StopReason.FAILED)
        else:
            self._close(Turn(self._take_pending()), StopReason.FAILED)

    def truncate(self) -> None:
        """End the episode because the policy cannot read what it would see next: its own window is full.

        Like a reply over `max_context_tokens`, the last reply is dropped: nobody has seen it.

        Raises:
            EpisodeOverError: The episode has ended, or a search is pending.
        """
        if self.done or self.pending is not None:
            raise EpisodeOverError("Only a running episode with no search pending can be truncated.")
        if self.turns:
            last = self.turns[-1]
            self.turns = (*self.turns[:-1], Turn(last.action, last.hits, ""))
            self._look()
        self._end(StopReason.CONTEXT_LENGTH)

    @property
    def done(self) -> bool:
        return self.stop_reason is not None

    @property
    def terminated(self) -> bool:
        """The policy answered."""
        return self.stop_reason is StopReason.ANSWERED

    @property
    def truncated(self) -> bool:
        """Steps or context ran out, or a search failed."""
        return self.done and not self.terminated

    @property
    def reward(self) -> float:
        """0.0 while running, then the reward's total; NaN for a failed episode."""
        if self.stop_reason is StopReason.FAILED:
            return math.nan
        return float(self.result.total) if self.result is not None else 0.0

    @property
    def answer(self) -> str | None:
        """The text of the answer; None while there is none."""
        return self.turns[-1].action.argument if self.terminated else None

    def info(self) -> dict[str, Any]:
        """The facts of the last step as a fresh dictionary; the keys are described in `SearchQAEnv`."""
        turn = self.turns[-1] if self.turns else None
        action = turn.action if turn else None
        info: dict[str, Any] = {
            "task_id": self.task.id,
            "task": self.task,
            "objectives": self.task.objectives,
            "split": self.split,
            "step": len(self.turns),
            "messages": tuple(message.copy() for message in self.messages),
            "protocol": self.protocol.name,
            "context": self.context.name,
            "action": action.kind if action else None,
            "argument": action.argument if action else None,
            "invalid_reason": action.reason if action else None,
            "format_valid": self.format_valid,
            "memory": action.memory if action else None,
            "observation": turn.observation if turn else "",
            "hit_ids": tuple(hit.passage.id for hit in turn.hits) if turn else (),
            "context_chars": len(self.observation),
            "context_tokens": self.context_tokens,
            "stop_reason": self.stop_reason,
            "answer": self.answer,
            "em": self.score.em if self.score else None,
            "f1": self.score.f1 if self.score else None,
            "answer_note": self.score.note if self.score else None,
            "numeric_conflict": self.score.numeric_conflict if self.score else None,
            "error": self.error,
        }
        if self.result is not None:
            info["reward_parts"] = dict(self.result.parts)
        return info

    def _take_pending(self) -> Action:
        if self.pending is None:
            raise EpisodeOverError("No search is pending: call act(text) first, and observe or fail once per search.")
        action, self.pending = self.pending, None
        return action

    @property
    def _turns_left(self) -> int:
        """Steps that remain after the one in progress."""
        return self.max_steps - len(self.turns) - 1

    def _close(self, turn: Turn, stop_reason: StopReason | None = None) -> None:
        self.turns = (*self.turns, turn)
        self._look()
        if stop_reason is None and self._over_context():
            # The reply that does not fit is dropped: the row of the policy's last step ends with the policy's words.
            self.turns = (*self.turns[:-1], Turn(turn.action, turn.hits, ""))
            self._look()
            stop_reason = StopReason.CONTEXT_LENGTH
        if stop_reason is not None:
            self._end(stop_reason)

    def _end(self, stop_reason: StopReason) -> None:
        self.stop_reason = stop_reason
        if stop_reason is not StopReason.FAILED:
            self.score = score(self.task, self.answer, self._normaliser)
            result = self._reward(self.score, self.format_valid)
            self.result = RewardResult(result.total, dict(result.parts))  # read-only mappings would not pickle

    def _look(self) -> None:
        """Set what the policy sees now: the messages, their text, and its size."""
        self.messages = self.context.messages(self.head, self.turns)
        self.observation = "\n\n".join(message["content"] for message in self.messages)
        self.context_tokens = None if self.count_tokens is None else self.count_tokens(self.observation)

    def _over_context(self) -> bool:
        limit = self.max_context_tokens
        return limit is not None and self.context_tokens is not None and self.context_tokens > limit
