"""Six passages and four questions with their evidence, for the oracle to find; ready-made steps and trajectories."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mempo_agents.trajectory import Step, Trajectory
from mempo_env.types import Evidence, Passage, Question, StopReason, Task

PASSAGES = (
    Passage(
        "p1", "Ada Berg", "Ada Berg was a writer. She wrote the novel Winter Light in 1911. Ada Berg was born in Oslo."
    ),
    Passage("p2", "Oslo", "Oslo is the capital of Norway. The river Akerselva flows through Oslo."),
    Passage("p3", "Akerselva", "The Akerselva is 8 km long. It was once lined with mills."),
    Passage("p4", "Rome", "Rome is the capital of Italy. The river Tiber flows through Rome."),
    Passage("p5", "Tiber", "The Tiber is 405 km long. It rises on Mount Fumaiolo."),
    Passage("p6", "Lund", "Lund is a town in Sweden. Its cathedral was begun about 1080."),
)


def _link(query: str, passage_id: str, fact: str, answer: str = "") -> Evidence:
    title = next(passage.title for passage in PASSAGES if passage.id == passage_id)
    return Evidence(query, passage_id, title, fact, answer)


QUESTIONS = (
    Question(
        "w:1",
        "Which river flows through the town where the author of Winter Light was born?",
        ("Akerselva", "the Akerselva"),
        (
            _link("Winter Light novel", "p1", "She wrote the novel Winter Light in 1911.", "Ada Berg"),
            _link("Ada Berg born", "p1", "Ada Berg was born in Oslo.", "Oslo"),
            _link("river through Oslo", "p2", "The river Akerselva flows through Oslo.", "Akerselva"),
        ),
    ),
    Question(
        "w:2",
        "How long is the river that flows through Rome?",
        ("405 km",),
        (
            _link("river through Rome", "p4", "The river Tiber flows through Rome.", "Tiber"),
            _link("length of the Tiber", "p5", "The Tiber is 405 km long.", "405 km"),
        ),
    ),
    Question(
        "w:3",
        "What is the capital of Italy?",
        ("Rome",),
        (_link("capital of Italy", "p4", "Rome is the capital of Italy."),),
    ),
    Question("w:4", "In which country does the town of Lund lie?", ("Sweden", "the Kingdom of Sweden")),
)  # fmt: skip

TASK = Task("w/test/0", QUESTIONS[:3], "test")
UNPROVEN = Task("w/test/1", QUESTIONS[2:], "test")


class World:
    """A `Dataset` of the above, the same in its only split."""

    name = "w"
    splits = ("test",)
    fingerprint = "w-1"

    def questions(self, split: str) -> Sequence[Question]:
        return QUESTIONS

    def passages(self, split: str) -> Sequence[Passage]:
        return PASSAGES


def env_kwargs(**kwargs: object) -> dict[str, object]:
    return {"dataset": World(), "retriever": "bm25", "top_k": 2, **kwargs}


def make_step(prompt: int | Sequence[int], output: int, reply: int = 0, **kwargs: object) -> Step:
    """A step with that many tokens (or these prompt ids), valid unless said otherwise."""
    prompt_ids = np.arange(prompt) if isinstance(prompt, int) else np.array(prompt, dtype=np.int64)
    fields: dict[str, object] = {
        "messages": ({"role": "user", "content": "Q"},),
        "prompt_ids": prompt_ids.astype(np.int64),
        "response_ids": np.arange(100, 100 + output, dtype=np.int64),
        "logprobs": np.full(output, -0.5, dtype=np.float32),
        "policy_mask": np.ones(output, dtype=bool),
        "token_ends": np.arange(1, output + 1, dtype=np.int64),
        "spans": {},
        "sampled_text": "x" * output,
        "response": "x" * output,
        "memory": None,
        "action": "search",
        "argument": "q",
        "invalid_reason": None,
        "format_valid": True,
        "observation": "o" * reply,
        "observation_tokens": reply,
        **kwargs,
    }
    return Step(**fields)  # type: ignore[arg-type]


def make_trajectory(steps: Sequence[Step], **kwargs: object) -> Trajectory:
    fields: dict[str, object] = {
        "task_id": "t",
        "sample": 0,
        "policy": "mempo",
        "protocol": "mempo",
        "context": "last_step",
        "objectives": 2,
        "questions": ("a?", "b?"),
        "answers": (("a",), ("b", "bb")),
        "head": ({"role": "user", "content": "Q"},),
        "steps": tuple(steps),
        "reward": 1.0,
        "reward_parts": {"paper": 1.0, "all_correct": 1.0},
        "em": (1.0, 0.0),
        "f1": (1.0, 0.5),
        "answer": "a; b",
        "stop_reason": StopReason.ANSWERED,
        **kwargs,
    }
    return Trajectory(**fields)  # type: ignore[arg-type]
