"""From nothing to a policy: the course of the small model in one protocol, with its curve."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mempo_agents.engines.base import Sampling
from mempo_agents.engines.hf import HFEngine
from mempo_agents.learners.lora import trainable
from mempo_agents.learners.optim import OptimizerSettings, check_least, check_shares
from mempo_agents.learners.warm_start import WarmStartSettings, warm_start
from mempo_agents.metrics import summarise
from mempo_agents.nano.lessons import CURRICULUM, Lessons, Stage
from mempo_agents.nano.model import nano_model
from mempo_agents.nano.tokenizer import nano_tokenizer
from mempo_agents.policies import get_policy
from mempo_agents.rollout import rollout
from mempo_agents.tokenizers import HFTokenizer
from mempo_env.errors import DataError, UnknownNameError
from mempo_env.tasks import compose
from mempo_env.tasks.world import World

MAX_NEW_TOKENS = 96
# What the teacher plays and the tokenizer spells.
TAUGHT = ("mempo", "mem1", "react")


@dataclass(frozen=True, slots=True)
class CourseSettings:
    """tokens: about how many are trained on. eval_tasks: held-out tasks per point of the curve.

    save_every: updates between checkpoints.
    stop_at: end as soon as the curve's F1 reaches it, to leave something for reinforcement; None runs to the end.
    start: a nano model that can read already (in any protocol); then only the last stage is taught.
    """

    protocol: str = "mempo"
    tokens: int = 6_000_000
    seed: int = 0
    eval_tasks: int = 64
    evaluate_every: int = 250
    stop_at: float | None = None
    start: str | None = None
    lr: float = 2e-3
    matrix_lr: float = 0.01
    batch_tokens: int = 2048
    save_every: int = 125

    def __post_init__(self) -> None:
        if self.protocol not in TAUGHT:
            raise UnknownNameError("protocol for a nano model", self.protocol, TAUGHT)
        check_least(self, 0, "seed")
        check_least(self, 1, "tokens", "eval_tasks", "evaluate_every", "batch_tokens", "save_every")
        if self.stop_at is not None:
            check_shares(self, "stop_at")


def run_course(
    settings: CourseSettings,
    folder: Path,
    watch: Callable[[dict[str, Any]], None] | None = None,
    *,
    track: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Trains in `folder`, continuing what is there, and returns the last record of its metrics.jsonl.

    The curve's tasks are of the dev split, which shares no name with train; the test split stays unseen.
    """
    tokenizer = nano_tokenizer()
    if settings.start is None:
        model = nano_model(tokenizer, seed=settings.seed)
        curriculum: tuple[Stage, ...] = CURRICULUM
    else:
        start = HFEngine(settings.start, dtype="bfloat16")
        if start.tokenizer.get_vocab() != tokenizer.get_vocab():
            raise DataError(f"{settings.start} has another vocabulary; start from a model that this version trained.")
        model, curriculum = trainable(start.model, 0), CURRICULUM[-1:]  # adapters are merged
    # On CPUs the backward pass of the fused attention takes twice as long in bfloat16 as plain matrix products.
    model.set_attn_implementation("eager")
    codec = HFTokenizer(tokenizer, name="nano")
    chunk_tokens = 32 * settings.batch_tokens
    chunks = max(1, settings.tokens // chunk_tokens)
    lessons = Lessons(
        codec, settings.protocol, chunks, seed=settings.seed, chunk_tokens=chunk_tokens, curriculum=curriculum
    )
    engine = HFEngine(model, codec)
    return warm_start(
        model,
        tokenizer,
        lessons,
        chunks,
        WarmStartSettings(
            optimizer=OptimizerSettings("muon", lr=settings.lr, matrix_lr=settings.matrix_lr),
            batch_tokens=settings.batch_tokens,
            decay=0.5,
            seed=settings.seed,
            save_every=settings.save_every,
            evaluate_every=settings.evaluate_every,
            keep=3,
        ),
        folder,
        evaluate=lambda: measure(engine, settings.protocol, tasks=settings.eval_tasks),
        watch=watch,
        stop=None if settings.stop_at is None else lambda record: record["eval_f1"] >= settings.stop_at,
        about={
            "protocol": settings.protocol,
            "start": settings.start,
            "stop_at": settings.stop_at,
            "eval_tasks": settings.eval_tasks,
        },
        track=track,
    )


def measure(
    engine: Any, protocol: str, *, objectives: int = 2, tasks: int = 64, split: str = "dev", seed: int = 0
) -> dict[str, float]:
    """Sampled at temperature 1 in the compact world: the means of f1, em, well-formed episodes and steps."""
    world = World(register="compact")
    chosen = compose(world.questions(split), objectives, seed=seed, split=split, name=world.name, length=tasks)
    policy = get_policy(protocol, engine, Sampling(max_new_tokens=MAX_NEW_TOKENS))
    environment = {"dataset": world, "split": split, "instructions": ""}
    played = list(rollout(policy, list(chosen), env_kwargs=environment, seed=seed, batch_size=64))
    cell = summarise(played)
    return {name: cell[name] for name in ("f1", "em", "format_valid", "steps")}
