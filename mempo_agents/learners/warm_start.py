"""Supervised training on a teacher's steps: response tokens only, wrong answers dropped.

MemPO's recipe starts reinforcement from such a model (one epoch on about ten thousand trajectories that another model
wrote). A run reads its rows in chunks; what chunk c holds must depend on c alone, and the run then does too: killed at
any moment and started again, it ends with the same weights, bit for bit on a CPU.
"""

from __future__ import annotations

import hashlib
import math
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from mempo_agents.engines.oracle import PERFECT, Style
from mempo_agents.engines.scripted import OracleEngine
from mempo_agents.files import read_trajectories
from mempo_agents.learners.batches import TrainRow, collate, micro_batches, response_logits
from mempo_agents.learners.checkpoint import checkpoints, load_checkpoint, save_checkpoint
from mempo_agents.learners.losses import token_logprobs
from mempo_agents.learners.metrics_log import MetricsLog
from mempo_agents.learners.optim import MasterOptimizer, OptimizerSettings, check_least, check_shares, rate_at
from mempo_agents.learners.processes import Processes
from mempo_agents.policies import get_policy
from mempo_agents.rollout import rollout
from mempo_agents.run_folder import SETTINGS, claim, only_writer
from mempo_agents.tokenizers import TokenCodec
from mempo_agents.trajectory import Trajectory
from mempo_env.errors import DataError
from mempo_env.tasks import compose, load_dataset

Chunk = Callable[[int], Sequence[TrainRow]]


@dataclass(frozen=True, slots=True)
class WarmStartSettings:
    """batch_tokens: of one update, padding included. warmup, decay: shares of the run, see `optim.rate_at`.

    save_every, evaluate_every: in updates. micro_tokens: the most that one forward pass reads (None: batch_tokens).
    """

    optimizer: OptimizerSettings = field(default_factory=lambda: OptimizerSettings(lr=1e-5))
    batch_tokens: int = 4096
    micro_tokens: int | None = None
    warmup: float = 0.02
    decay: float = 0.4
    seed: int = 0
    save_every: int = 100
    evaluate_every: int = 200
    keep: int = 2

    def __post_init__(self) -> None:
        check_least(self, 0, "seed")
        check_least(self, 1, "batch_tokens", "micro_tokens", "save_every", "evaluate_every", "keep")
        check_shares(self, "warmup", "decay")


# What a run may go on with another value of: its weights are the same, up to the rounding of other micro-batches.
_FREE = ("micro_tokens", "save_every", "keep")


def teacher_rows(trajectories: Iterable[Trajectory], *, least_f1: float = 1.0) -> list[TrainRow]:
    """Every step of the trajectories whose answers are right: each objective's F1 at least `least_f1`, and all steps
    well-formed. Failed trajectories are left out."""
    rows = []
    for number, trajectory in enumerate(trajectories):
        for step in trajectory.steps if _is_right(trajectory, least_f1) else ():
            rows.append(TrainRow(step.prompt_ids, step.response_ids, step.policy_mask, trajectory=number))
    return rows


def oracle_rows(
    policy: str,
    codec: TokenCodec,
    *,
    dataset: str,
    objectives: int,
    tasks: int,
    corpus: str | None = None,
    split: str | None = None,
    style: Style = PERFECT,
    instructions: str | None = None,
    seed: int = 0,
) -> list[TrainRow]:
    """The steps of the scripted oracle on `tasks` tasks of a data set, counted and encoded by `codec`.

    split: None is the data set's first.
    """
    loaded = load_dataset(dataset, corpus)
    split = loaded.splits[0] if split is None else split
    composed = compose(loaded.questions(split), objectives, seed=seed, split=split, name=loaded.name, length=tasks)
    played = rollout(
        get_policy(policy, OracleEngine(codec, style=style)),
        list(composed),
        env_kwargs={"dataset": loaded, "split": split, "instructions": instructions},
        batch_size=64,
        seed=seed,
    )
    return teacher_rows(sorted(played, key=lambda trajectory: trajectory.task_id))


def reencoded_rows(path: Path, codec: TokenCodec, *, least_f1: float = 1.0) -> list[TrainRow]:
    """The steps of another model's trajectories in the student's tokens: its messages and responses, encoded anew."""
    rows = []
    for number, trajectory in enumerate(read_trajectories(path)):
        if not _is_right(trajectory, least_f1):
            continue
        for step in trajectory.steps:
            response = codec.encode(step.response)
            mask = np.ones(len(response), dtype=bool)
            rows.append(TrainRow(codec.encode_messages(step.messages), response, mask, trajectory=number))
    return rows


def _is_right(trajectory: Trajectory, least_f1: float) -> bool:
    scored = not trajectory.failed and min(trajectory.f1, default=0.0) >= least_f1
    return scored and all(step.format_valid for step in trajectory.steps)


def shards(rows: Sequence[TrainRow], *, epochs: int = 1, shard_rows: int = 512, seed: int = 0) -> tuple[Chunk, int]:
    """A fixed set of rows as chunks: (chunk, number of chunks). Each epoch has its own order."""
    if not rows:
        raise DataError("There is nothing to train on: no trajectory had all answers right and every step well-formed.")
    per_epoch = math.ceil(len(rows) / shard_rows)

    return _Shards(rows, per_epoch, shard_rows, seed), per_epoch * epochs


@dataclass(frozen=True, slots=True)
class _Shards:
    rows: Sequence[TrainRow]
    per_epoch: int
    shard_rows: int
    seed: int

    def __call__(self, c: int) -> list[TrainRow]:
        epoch, part = divmod(c, self.per_epoch)
        order = np.random.default_rng([self.seed, epoch]).permutation(len(self.rows))
        return [self.rows[i] for i in order[part * self.shard_rows : (part + 1) * self.shard_rows]]

    def fingerprint(self) -> str:
        """Of the tokens and of which are trained: other trajectories, data, corpora or tokenizers have another."""
        digest = hashlib.blake2b(digest_size=16)
        for row in self.rows:
            for part in (row.prompt_ids, row.response_ids, row.mask):
                values = np.asarray(part, dtype=np.int64)
                digest.update(len(values).to_bytes(8, "little") + values.tobytes())
        return digest.hexdigest()


def warm_start(
    model: Any,
    tokenizer: Any,
    chunk: Chunk,
    chunks: int,
    settings: WarmStartSettings,
    folder: Path,
    *,
    evaluate: Callable[[], dict[str, float]] | None = None,
    watch: Callable[[dict[str, Any]], None] | None = None,
    stop: Callable[[dict[str, Any]], bool] | None = None,
    processes: Processes | None = None,
    about: Mapping[str, Any] | None = None,
    track: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Trains `model` on chunk(0) ... chunk(chunks - 1), writing checkpoints and metrics.jsonl into `folder`.

    Continues from the newest checkpoint in `folder` if there is one. evaluate: called every `evaluate_every` updates
    and at the end; what it returns is logged. stop: asked after each evaluation with the record; True ends the run
    there. processes: several share the rows of each update; the weights agree with one process's up to rounding, and
    bit for bit with another run of as many. about: what decides the model and the chunks; a folder whose run has other
    values, other rows where `chunk` comes of `shards`, or other settings that decide the weights, is refused with
    DataError. track: trackers that get the records as well, see `learners.trackers`. Returns the last record. Raises
    FloatingPointError when the loss is no number, after which the newest checkpoint still holds good weights.
    """
    what = {"kind": "warm_start", "chunks": chunks, **(about or {}), **asdict(settings)}
    if isinstance(chunk, _Shards):
        what["rows"] = chunk.fingerprint()
    log = MetricsLog(folder, track=track, about=what)
    run = _Run(model, tokenizer, settings, folder, evaluate, watch, stop, processes or Processes(), what, log)
    if not run.processes.is_main:
        return run.go(chunk, chunks)
    with only_writer(folder), log:
        return run.go(chunk, chunks)


@dataclass
class _Run:
    model: Any
    tokenizer: Any
    settings: WarmStartSettings
    folder: Path
    evaluate: Callable[[], dict[str, float]] | None
    watch: Callable[[dict[str, Any]], None] | None
    stop: Callable[[dict[str, Any]], bool] | None
    processes: Processes
    what: Mapping[str, Any]
    log: MetricsLog
    step: int = 0
    chunk: int = 0
    batch: int = 0
    tokens: int = 0
    seconds: float = 0.0

    def go(self, chunk: Chunk, chunks: int) -> dict[str, Any]:
        self.optimizer = MasterOptimizer(self.model, self.settings.optimizer)
        if self.processes.is_main:
            claim(self.folder / SETTINGS, self.what, default=self.what, free=_FREE)  # the file may be older than a name
        finished = self._resume()
        if finished:
            return self.log.last()
        self._begun = time.perf_counter() - self.seconds
        self.model.eval()  # dropout would be a random state, which no checkpoint holds
        record: dict[str, Any] = {}
        while self.chunk < chunks:
            batches = self._batches(chunk(self.chunk))
            while self.batch < len(batches):
                done = (self.chunk + self.batch / len(batches)) / chunks
                record = self._update(batches[self.batch], done)
                self.batch += 1
                record["done"] = (self.chunk + self.batch / len(batches)) / chunks
                last = self.chunk == chunks - 1 and self.batch == len(batches)
                due = self.evaluate is not None and self.step % self.settings.evaluate_every == 0
                if self.evaluate is not None and (due or last):
                    figures = self.processes.gather(self.evaluate() if self.processes.is_main else {})[0]
                    record |= {f"eval_{name}": value for name, value in figures.items()}
                if self.processes.is_main:
                    self.log.write(record)
                    if self.watch is not None:
                        self.watch(record)
                if due and self.stop is not None and self.stop(record):
                    self._save(finished=True)
                    return record
                if self.step % self.settings.save_every == 0 and not last:
                    self._save()
            self.chunk, self.batch = self.chunk + 1, 0
        self._save(finished=True)
        return record

    def _batches(self, rows: Sequence[TrainRow]) -> list[list[TrainRow]]:
        """One list of rows per update, of like lengths, in an order of its own."""
        parts = micro_batches([row.length for row in rows], self.settings.batch_tokens)
        random.Random(f"{self.settings.seed}/{self.chunk}").shuffle(parts)
        return [[rows[i] for i in part] for part in parts]

    def _update(self, rows: list[TrainRow], done: float) -> dict[str, Any]:
        settings = self.settings
        device = next(self.model.parameters()).device
        trained = sum(int(row.mask.sum()) for row in rows)
        loss = right = tokens = 0.0
        mine = self.processes.share(rows)
        for part in micro_batches([row.length for row in mine], settings.micro_tokens or settings.batch_tokens):
            batch = collate([mine[i] for i in part], device)
            logits = response_logits(self.model, batch)
            part_loss = -token_logprobs(logits, batch.targets, chunk_tokens=4096).sum() / trained
            part_loss.backward()
            loss += float(part_loss.detach())
            right += float((logits.detach().argmax(-1) == batch.targets).sum()) / trained
            tokens += batch.tokens
        self.processes.add_up(self.optimizer.gather_gradients())
        loss, right, tokens = map(sum, zip(*self.processes.gather((loss, right, tokens)), strict=True))
        self.tokens += int(tokens)
        rate = rate_at(done, warmup=settings.warmup, decay=settings.decay, floor=0.02)
        norm = self.optimizer.step(max(rate, 0.01))
        if not math.isfinite(loss) or not math.isfinite(norm):
            raise FloatingPointError(
                f"Update {self.step + 1}: loss {loss}, gradient norm {norm}. The weights are those of the last "
                f"checkpoint in {self.folder}; lower the learning rate or clip_norm."
            )
        self.step += 1
        self.seconds = time.perf_counter() - self._begun
        return {
            "step": self.step, "loss": loss, "token_accuracy": right, "gradient_norm": norm, "rate": rate,
            "tokens": self.tokens, "seconds": round(self.seconds, 2),
        }  # fmt: skip

    def _save(self, finished: bool = False) -> None:
        if self.processes.is_main:
            self._write(finished)
        self.processes.wait()

    def _write(self, finished: bool) -> None:
        state = {"chunk": self.chunk, "batch": self.batch, "tokens": self.tokens, "seconds": self.seconds,
                 "finished": finished, "kind": "warm_start"}  # fmt: skip
        folder = self.folder / "checkpoints"
        save_checkpoint(
            folder, self.step, self.model, self.tokenizer, self.optimizer.state(), state, self.settings.keep
        )

    def _resume(self) -> bool:
        found = checkpoints(self.folder / "checkpoints")
        if not found:
            if self.processes.is_main:
                self.log.cut(-1)
            return False
        state, tensors = load_checkpoint(found[-1], "warm_start")
        self.optimizer.load(tensors)
        self.step, self.chunk, self.batch = state["step"], state["chunk"], state["batch"]
        self.tokens, self.seconds = state["tokens"], state["seconds"]
        if self.processes.is_main:
            self.log.cut(self.step)
        return bool(state["finished"])
