"""One policy update: rows with credit in, new weights out.

    rows = train_rows(groups, advantages)
    figures = update_policy(model, optimizer, rows, UpdateSettings())

The denominator of the loss is fixed over the whole batch, all processes included, before it is cut into micro-batches
(see `losses`), so the gradient does not depend on how it is cut.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from mempo_agents.learners.batches import RowBatch, TrainRow, collate, micro_batches, response_logits
from mempo_agents.learners.groups import TokenAdvantages
from mempo_agents.learners.losses import (
    KL,
    Aggregation,
    aggregate,
    clip_fraction,
    clipped_surrogate,
    kl_divergence,
    row_scales,
    token_entropy,
    token_logprobs,
)
from mempo_agents.learners.optim import MasterOptimizer, check_least
from mempo_agents.learners.processes import Processes
from mempo_agents.trajectory import Trajectory


@dataclass(frozen=True, slots=True)
class UpdateSettings:
    """clip_low, clip_high, dual_clip: of the ratio, see `losses.clipped_surrogate`. aggregation, constant: see
    `losses.row_scales`. kl_coefficient, kl: of the penalty for leaving the reference. entropy_coefficient: bonus.

    old_logprobs: what the ratio divides by: "sampler", what the tokens were sampled with, or "recomputed", the same
    weights read once more in the way the update reads them; the mismatch of the two is logged as long as it is
    measured. epochs: passes over the batch. mini_batches: optimizer steps a pass. micro_tokens: the most tokens,
    padding included, of one forward pass. temperature: what the tokens were sampled at.
    """

    clip_low: float = 0.2
    clip_high: float | None = None
    dual_clip: float | None = None
    aggregation: Aggregation = "trajectory"
    constant: float | None = None
    kl_coefficient: float = 0.0
    kl: KL = "k3"
    entropy_coefficient: float = 0.0
    old_logprobs: Literal["sampler", "recomputed"] = "sampler"
    epochs: int = 1
    mini_batches: int = 1
    micro_tokens: int = 8192
    temperature: float = 1.0

    def __post_init__(self) -> None:
        for name, known in (
            ("aggregation", get_args(Aggregation)), ("kl", get_args(KL)), ("old_logprobs", ("sampler", "recomputed")),
        ):  # fmt: skip
            if getattr(self, name) not in known:
                raise ValueError(f"{name}: expected one of {', '.join(known)}, got {getattr(self, name)!r}.")
        if self.aggregation == "constant" and not (self.constant or 0.0) > 0:
            raise ValueError(f"aggregation: 'constant' needs a positive constant, got {self.constant}.")
        if not 0 < self.clip_low <= 1:
            raise ValueError(f"clip_low: expected a number in (0, 1], got {self.clip_low}.")
        if self.dual_clip is not None and not self.dual_clip > 1:
            raise ValueError(f"dual_clip: expected a number above 1 or None, got {self.dual_clip}.")
        for name in ("clip_high", "kl_coefficient", "entropy_coefficient", "temperature"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < math.inf:
                raise ValueError(f"{name}: expected a number of at least 0, got {value}.")
        check_least(self, 1, "epochs", "mini_batches", "micro_tokens")


def train_rows(
    groups: Sequence[Sequence[Trajectory]],
    advantages: Sequence[TokenAdvantages],
    numbers: Sequence[int] | None = None,
) -> list[TrainRow]:
    """One row per step. Failed trajectories and forced tokens are in no loss and in no denominator.

    groups: the trajectories of each task. advantages: of each group, [G][S] float32 [T], as an estimator gives them.
    numbers: where each group stands among those of all processes, for groups of one size; None counts from 0.
    """
    rows = []
    width = max(map(len, groups), default=0)
    for number, group, credit_GS in zip(numbers or range(len(groups)), groups, advantages, strict=True):
        for g, (trajectory, credit_S) in enumerate(zip(group, credit_GS, strict=True)):
            for step, credit_T in zip(trajectory.steps, credit_S, strict=True):
                mask = step.policy_mask & (not trajectory.failed)
                name = number * width + g
                rows.append(TrainRow(step.prompt_ids, step.response_ids, mask, credit_T, step.logprobs, name))
    return rows


def update_policy(
    model: Any,
    optimizer: MasterOptimizer,
    rows: Sequence[TrainRow],
    settings: UpdateSettings,
    *,
    rate: float = 1.0,
    seed: int = 0,
    reference: Any = None,
    processes: Processes | None = None,
) -> dict[str, float]:
    """Trains on `rows`, and returns what happened; means are over trained tokens of all processes.

    Keys: loss, gradient_norm (the largest of the update), policy_kl (k3, between what sampled and what is trained),
    clip_fraction, entropy, kl (to the reference; NaN without one), mismatch, mismatch_max (|log p| of the sampler
    against the update's own reading of the same weights; NaN once the weights have moved), train_tokens (padding
    included, of this process).

    reference: a frozen model, needed where kl_coefficient is not 0. A mini-batch without a trained token makes no step.
    A loss or gradient that is no number raises FloatingPointError; that step changes no weight.
    """
    if settings.kl_coefficient and reference is None:
        raise ValueError("kl_coefficient is not 0, so the update needs a reference model.")
    processes = processes or Processes("cpu")
    run = _Update(model, optimizer, settings, reference, processes)
    # As it sampled: dropout would be a random state, and would make the ratio one of two different networks.
    model.eval()
    old, reference_logprobs = run.read_beforehand(rows)
    order = np.random.default_rng([seed, 0x6D656D])
    # The same for all processes, so that a mini-batch does not depend on their number.
    trajectories = sorted({name for told in processes.gather({row.trajectory for row in rows}) for name in told})
    for _ in range(settings.epochs):
        shuffled = order.permutation(len(trajectories)) if settings.mini_batches > 1 else np.arange(len(trajectories))
        parts = np.array_split(shuffled, settings.mini_batches)
        for part in parts:
            chosen = {trajectories[i] for i in part}
            mine = [i for i, row in enumerate(rows) if row.trajectory in chosen]
            run.step(rows, mine, old, reference_logprobs, rate)
    return run.figures()


_NO_ROW = TrainRow(np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.bool_))


class _Update:
    """The sums of one update, while it runs."""

    def __init__(
        self, model: Any, optimizer: MasterOptimizer, settings: UpdateSettings, reference: Any, processes: Processes
    ) -> None:
        self.model, self.optimizer, self.settings = model, optimizer, settings
        self.reference, self.processes = reference, processes
        self.device = next(model.parameters()).device
        self.sums: dict[str, float] = {}
        self.counts: dict[str, float] = {}
        self.norms: list[float] = []
        self.losses: list[float] = []
        self.mismatch_max = math.nan
        self.tokens = 0

    def read_beforehand(self, rows: Sequence[TrainRow]) -> tuple[list[np.ndarray] | None, list[np.ndarray] | None]:
        """Old and reference log-probabilities of every row, [T] each, None where they are not needed."""
        passes = self._passes([row.length for row in rows]) if self.settings.old_logprobs == "recomputed" else None
        old = None if passes is None else self._read(self.model, rows, passes)
        if old is not None:
            self._compare(rows, old)
        if self.reference is None:
            return old, None
        passes = micro_batches([row.length for row in rows], self.settings.micro_tokens)
        return old, self._read(self.reference, rows, passes)

    def _passes(self, lengths: Sequence[int]) -> list[list[int]]:
        """Which rows each pass through the model reads. With weights in shards a pass takes all processes: those with
        fewer make up for it with passes that read no row."""
        passes = micro_batches(lengths, self.settings.micro_tokens)
        if self.processes.sharded:
            passes += [[]] * (max(self.processes.gather(len(passes))) - len(passes))
        return passes

    @torch.no_grad()
    def _read(self, model: Any, rows: Sequence[TrainRow], passes: Sequence[Sequence[int]]) -> list[np.ndarray]:
        out: list[np.ndarray] = [np.zeros(0, dtype=np.float32)] * len(rows)
        for part in passes:
            batch = collate([rows[i] for i in part] or [_NO_ROW], self.device)
            logits = response_logits(model, batch)
            values_RT = batch.spread(self._logprobs(logits, batch))
            for i, values_T in zip(part, values_RT[: len(part)].cpu().numpy(), strict=True):
                out[i] = values_T[: len(rows[i].response_ids)]
        return out

    def step(
        self,
        rows: Sequence[TrainRow],
        mine: Sequence[int],
        old: list[np.ndarray] | None,
        reference: list[np.ndarray] | None,
        rate: float,
    ) -> None:
        """One optimizer step on the rows `mine`, together with those of all other processes; none without a token."""
        scales, trained = self._scales([rows[i] for i in mine])
        if not trained:
            return  # momentum and weight decay would move the weights all the same
        first = not self.norms
        loss = 0.0
        for part in self._passes([rows[i].length for i in mine]):
            chosen = [rows[mine[i]] for i in part]
            batch = collate(chosen or [_NO_ROW], self.device)
            if not len(batch.targets):
                if self.processes.sharded:  # the other processes wait for this one's part
                    response_logits(self.model, batch).sum().backward()
                continue
            before = [row.logprobs if old is None else old[mine[i]] for i, row in zip(part, chosen, strict=True)]
            behind = None if reference is None else [reference[mine[i]] for i in part]
            part_loss = self._loss(batch, chosen, before, behind, scales[part].to(self.device), first and old is None)
            part_loss.backward()
            loss += float(part_loss.detach())
            self.tokens += batch.tokens
        gradients = self.optimizer.gather_gradients()
        if not self.processes.sharded:  # which are added up as they are cut
            self.processes.add_up(gradients)
        loss = sum(self.processes.gather(loss))
        norm = self.optimizer.gradient_norm()
        if not (math.isfinite(loss) and math.isfinite(norm)):
            self.optimizer.zero_grad()
            done = len(self.norms)
            now = f"the weights are those after {done} steps of this update" if done else "the weights were not changed"
            raise FloatingPointError(
                f"The loss is {loss} and the gradient's norm {norm}; {now}. Lower the learning rate or clip_norm."
            )
        self.optimizer.step(rate)
        self.norms.append(norm)
        self.losses.append(loss)

    def _scales(self, rows: Sequence[TrainRow]) -> tuple[Tensor, int]:
        """The weight of each of this process's rows in the mean over all rows of all processes, [R]; the number of
        tokens that all those rows train."""
        told = [(int(row.mask.sum()), row.trajectory) for row in rows]
        everyone = self.processes.gather(told)
        flat = [(count, (rank, number)) for rank, part in enumerate(everyone) for count, number in part]
        names = {name: index for index, name in enumerate(dict.fromkeys(name for _, name in flat))}
        scales = row_scales(
            torch.tensor([count for count, _ in flat], dtype=torch.long),
            torch.tensor([names[name] for _, name in flat], dtype=torch.long),
            self.settings.aggregation,
            constant=self.settings.constant,
        )
        begin = sum(len(part) for part in everyone[: self.processes.rank])
        return scales[begin : begin + len(rows)], sum(count for count, _ in flat)

    def _loss(
        self,
        batch: RowBatch,
        rows: Sequence[TrainRow],
        old: Sequence[np.ndarray | None],
        reference: Sequence[np.ndarray] | None,
        scales_R: Tensor,
        compare: bool,
    ) -> Tensor:
        settings = self.settings
        logits = response_logits(self.model, batch)
        mask_RT = batch.mask()
        logprobs_RT = batch.spread(self._logprobs(logits, batch))
        old_RT, advantages_RT = self._padded(batch, old), self._padded(batch, [row.advantages for row in rows])
        terms_RT = clipped_surrogate(
            logprobs_RT, old_RT, advantages_RT, mask_RT,
            clip_low=settings.clip_low, clip_high=settings.clip_high, dual_clip=settings.dual_clip,
        )  # fmt: skip
        if reference is not None:
            kl_RT = kl_divergence(logprobs_RT, self._padded(batch, reference), mask_RT, settings.kl)
            terms_RT = terms_RT + settings.kl_coefficient * kl_RT
            self._add("kl", kl_RT, mask_RT)
        seen = logits if settings.entropy_coefficient else logits.detach()
        entropy_N = token_entropy(seen, chunk_tokens=_chunk(logits))
        entropy_RT = batch.spread(entropy_N)
        if settings.entropy_coefficient:
            terms_RT = terms_RT - settings.entropy_coefficient * entropy_RT
        self._add("entropy", entropy_RT, mask_RT)
        self._add("policy_kl", kl_divergence(logprobs_RT.detach(), old_RT, mask_RT), mask_RT)
        high = settings.clip_low if settings.clip_high is None else settings.clip_high
        cut = clip_fraction(
            logprobs_RT.detach(), old_RT, advantages_RT, mask_RT, clip_low=settings.clip_low, clip_high=high
        )
        self._add("clip_fraction", cut * mask_RT, mask_RT)
        if compare:
            self._compare(rows, list(logprobs_RT.detach().cpu().numpy()))
        return aggregate(terms_RT, mask_RT, scales_R)

    def _logprobs(self, logits: Tensor, batch: RowBatch) -> Tensor:
        return token_logprobs(logits, batch.targets, temperature=self.settings.temperature, chunk_tokens=_chunk(logits))

    def _padded(self, batch: RowBatch, values: Sequence[np.ndarray | None]) -> Tensor:
        out = np.zeros(batch.shape, dtype=np.float32)
        for row, value in zip(out, values, strict=True):
            if value is None:
                raise ValueError("Every row needs advantages and log-probabilities.")
            row[: len(value)] = value
        return torch.from_numpy(out).to(self.device)

    def _compare(self, rows: Sequence[TrainRow], read: Sequence[np.ndarray]) -> None:
        """The sampler's log-probabilities against those read now, at the same weights."""
        for row, now in zip(rows, read, strict=True):
            if row.logprobs is None:
                continue
            gap = np.abs(row.logprobs - now[: len(row.logprobs)])[row.mask]
            gap = gap[np.isfinite(gap)]
            self.sums["mismatch"] = self.sums.get("mismatch", 0.0) + float(gap.sum())
            self.counts["mismatch"] = self.counts.get("mismatch", 0.0) + len(gap)
            if len(gap):
                self.mismatch_max = float(np.fmax(self.mismatch_max, gap.max()))

    def _add(self, name: str, terms_RT: Tensor, mask_RT: Tensor) -> None:
        self.sums[name] = self.sums.get(name, 0.0) + float((terms_RT.detach() * mask_RT).sum())
        self.counts[name] = self.counts.get(name, 0.0) + float(mask_RT.sum())

    def figures(self) -> dict[str, float]:
        told = self.processes.gather((self.sums, self.counts, self.mismatch_max))
        means = {}
        for name in ("policy_kl", "clip_fraction", "entropy", "kl", "mismatch"):
            count = sum(counts.get(name, 0.0) for _, counts, _ in told)
            means[name] = sum(sums.get(name, 0.0) for sums, _, _ in told) / count if count else math.nan
        return {
            "loss": float(np.mean(self.losses)) if self.losses else math.nan,
            "gradient_norm": max(self.norms, default=math.nan),
            **means,
            "mismatch_max": float(np.fmax.reduce([most for *_, most in told])),
            "train_tokens": float(self.tokens),
        }


def _chunk(logits: Tensor) -> int:
    """Positions whose float32 probabilities take about 32 MB."""
    return max(64, (1 << 23) // logits.shape[-1])
