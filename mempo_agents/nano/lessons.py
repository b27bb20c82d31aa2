"""What the small model is taught, from easy to hard: reading, then whole episodes of growing length.

    recall    passages, then all their facts quoted in another order: every value must be found by its subject
    episodes  a teacher's steps in the environment, from one objective and one passage to three of each

A chunk is a function of (seed, protocol, its number) alone. Every chunk has a world of its own, so that nothing can be
learnt by heart: only reading helps.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from mempo_agents.engines.oracle import Style
from mempo_agents.engines.scripted import OracleEngine
from mempo_agents.learners.batches import TrainRow
from mempo_agents.learners.warm_start import teacher_rows
from mempo_agents.policies import get_policy
from mempo_agents.rollout import rollout
from mempo_env.protocols.render import block
from mempo_env.tasks import compose
from mempo_env.tasks.world import World

TEACHER = Style(quote=True, terse=True)
WORLD_SIZE = 500


@dataclass(frozen=True, slots=True)
class Stage:
    """`share` of the chunks; in each of them, `recall` of the tokens are recall rows and the others are episodes that
    draw from `top_k` passages and `objectives` per task."""

    share: float
    recall: float
    top_k: tuple[int, ...]
    objectives: tuple[int, ...]


CURRICULUM = (
    Stage(0.20, 0.8, (1,), (1,)),
    Stage(0.15, 0.4, (1, 2), (1, 2)),
    Stage(0.65, 0.1, (1, 2, 3, 3, 3), (1, 2, 2, 2, 3)),
)


@dataclass(frozen=True, slots=True)
class Lessons:
    """The chunks of one course. chunk_tokens: about how many tokens a chunk holds."""

    codec: Any
    protocol: str
    chunks: int
    seed: int = 0
    chunk_tokens: int = 65_536
    curriculum: tuple[Stage, ...] = CURRICULUM
    style: Style = TEACHER

    def __call__(self, chunk: int) -> list[TrainRow]:
        stage = self.stage(chunk)
        draw = random.Random(f"nano/{self.seed}/{self.protocol}/{chunk}")
        world = World(WORLD_SIZE, seed=1000 * self.seed + chunk + 1, register="compact")
        rows = list(self._until(stage.recall * self.chunk_tokens, partial(self._recall, world, draw)))
        while (spent := sum(row.length for row in rows)) < self.chunk_tokens:
            part = min(self.chunk_tokens - spent, self.chunk_tokens / 3)
            rows += self._until(part, partial(self._episodes, world, stage, draw))
        return rows

    def stage(self, chunk: int) -> Stage:
        ends = np.cumsum([stage.share for stage in self.curriculum])
        place = int(np.searchsorted(ends / ends[-1], (chunk + 0.5) / self.chunks))
        return self.curriculum[min(place, len(self.curriculum) - 1)]

    def _until(self, tokens: float, source: Any) -> Iterator[TrainRow]:
        spent = 0
        while spent < tokens:
            for row in source():
                yield row
                spent += row.length
                if spent >= tokens:
                    break

    def _recall(self, world: World, draw: random.Random) -> Iterator[TrainRow]:
        """One row: two to four passages, then their facts in another order, as a memory or as thoughts.

        The passages carry loss as well: that they name their subject again and again teaches copying, the first half
        of reading, and soonest.
        """
        passages = world.passages("train")
        chosen = [passages[draw.randrange(len(passages))] for _ in range(draw.randint(2, 4))]
        lines = [f"Doc {n}(Title: {p.title}) {p.text}" for n, p in enumerate(chosen, start=1)]
        facts = [fact for passage in chosen for fact in passage.text.split(" ; ")]
        draw.shuffle(facts)
        tag = "mem" if self.protocol == "mempo" else "think"
        notes = "\n".join(f"Question {n % 9 + 1} fact: {fact}" for n, fact in enumerate(facts))
        ids = self.codec.encode(block("\n".join(lines)) + f"\n<{tag}>{notes}</{tag}>")
        yield TrainRow(ids[:0], ids, np.ones(len(ids), dtype=bool))

    def _episodes(self, world: World, stage: Stage, draw: random.Random) -> Iterator[TrainRow]:
        objectives, top_k = draw.choice(stage.objectives), draw.choice(stage.top_k)
        tasks = compose(world.questions("train"), objectives, seed=draw.randrange(2**31), split="train")
        policy = get_policy(self.protocol, OracleEngine(self.codec, style=self.style))
        environment = {"dataset": world, "split": "train", "instructions": "", "top_k": top_k}
        count = max(4, 48 // objectives)
        some = [tasks[i % len(tasks)] for i in range(count)]
        seed = draw.randrange(2**31)
        played = sorted(
            rollout(policy, some, env_kwargs=environment, batch_size=count, seed=seed), key=lambda t: t.task_id
        )
        yield from teacher_rows(played)
