"""The optimizer: float32 master weights under a model of any dtype, Muon or AdamW, and a state that is plain tensors.

A 16-bit weight cannot hold a small step, so the sum is kept in float32 and the model gets it rounded. Muon (Jordan et
al., 2024, https://kellerjordan.github.io/posts/muon/) orthogonalises the momentum of each hidden matrix; embeddings,
norms and the head are trained by AdamW beside it, as its author advises.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from mempo_agents.learners.shards import gather, part_of, whole
from mempo_env.errors import DataError


@dataclass(frozen=True, slots=True)
class OptimizerSettings:
    """kind: "adamw" for all weights, or "muon" for the hidden matrices with AdamW for the rest.

    lr: of AdamW. matrix_lr: of Muon, which moves each matrix by about matrix_lr in spectral norm. clip_norm: the most
    that the gradient's L2 norm may be, None for no limit. weight_decay: decoupled, for matrices only.
    """

    kind: Literal["adamw", "muon"] = "adamw"
    lr: float = 1e-6
    matrix_lr: float = 0.01
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.0
    clip_norm: float | None = 1.0

    def __post_init__(self) -> None:
        if self.kind not in ("adamw", "muon"):
            raise ValueError(f"optimizer: expected 'adamw' or 'muon', got {self.kind!r}.")
        for name in ("lr", "matrix_lr", "weight_decay"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name}: expected a number of at least 0, got {getattr(self, name)}.")
        if self.clip_norm is not None and not self.clip_norm > 0:
            raise ValueError(f"clip_norm: expected a positive number or None, got {self.clip_norm}.")


def check_least(settings: Any, least: int, *names: str) -> None:
    """ValueError for a setting below `least`; None is none."""
    for name in names:
        value = getattr(settings, name)
        if value is not None and value < least:
            raise ValueError(f"{name}: expected at least {least}, got {value}.")


def check_shares(settings: Any, *names: str) -> None:
    """ValueError for a setting outside [0, 1]."""
    for name in names:
        if not 0 <= getattr(settings, name) <= 1:
            raise ValueError(f"{name}: expected a share in [0, 1], got {getattr(settings, name)}.")


class MasterOptimizer:
    """Optimises the trainable weights of `model`. The order of calls in a step: backward passes, `gather_gradients`
    (after which `gradients` may be summed over processes), `step`.

    version: how often the weights have changed, by `step` or `load`; what holds a copy of them can tell by it.
    """

    def __init__(self, model: Any, settings: OptimizerSettings) -> None:
        self.settings = settings
        self.version = 0
        self._weights = {name: p for name, p in model.named_parameters() if p.requires_grad}
        if not self._weights:
            raise ValueError("The model has no trainable weights.")
        # A float32 model is its own master copy.
        self._masters = {
            name: p if p.dtype in (torch.float32, torch.float64) else p.detach().float().requires_grad_()
            for name, p in self._weights.items()
        }
        matrices = {n for n, p in self._weights.items() if p.ndim == 2 and not _is_embedding(model, p)}
        muon = matrices if settings.kind == "muon" else set()
        groups = [
            {"params": [self._masters[n] for n in self._masters if n in matrices - muon],
             "weight_decay": settings.weight_decay},
            {"params": [self._masters[n] for n in self._masters if n not in matrices], "weight_decay": 0.0},
        ]  # fmt: skip
        groups = [group for group in groups if group["params"]]  # adapters are matrices, all of them
        self._optimizers: list[Any] = []
        if groups:
            self._optimizers.append(torch.optim.AdamW(groups, lr=settings.lr, betas=settings.betas))
        if muon:
            hidden = [self._masters[name] for name in self._masters if name in muon]
            self._optimizers.append(
                torch.optim.Muon(hidden, lr=settings.matrix_lr, momentum=0.95, weight_decay=settings.weight_decay)
            )
        self._rates = [[group["lr"] for group in optimizer.param_groups] for optimizer in self._optimizers]

    def gather_gradients(self) -> list[Tensor]:
        """Moves the model's gradients to the master weights in float32, and returns them: one tensor a weight."""
        gradients = []
        for name, weight in self._weights.items():
            master = self._masters[name]
            if master is not weight:
                master.grad = torch.zeros_like(master) if weight.grad is None else weight.grad.float()
                weight.grad = None
            elif master.grad is None:
                master.grad = torch.zeros_like(master)
            gradients.append(master.grad)
        return gradients

    def gradient_norm(self) -> float:
        """The L2 norm of all gradients, in all shards, before clipping."""
        norms = [torch.linalg.vector_norm(m.grad) for m in self._masters.values() if m.grad is not None]
        return float(whole(torch.linalg.vector_norm(torch.stack(norms)))) if norms else 0.0

    def step(self, rate: float = 1.0) -> float:
        """One step at `rate` times the learning rates; returns the gradient's norm before clipping.

        A norm that is not finite changes nothing: the caller sees it and decides.
        """
        norm = self.gradient_norm()
        if math.isfinite(norm):
            self.version += 1
            clip = self.settings.clip_norm
            if clip is not None and norm > clip:
                torch._foreach_mul_([m.grad for m in self._masters.values()], clip / norm)
            for optimizer, rates in zip(self._optimizers, self._rates, strict=True):
                for group, lr in zip(optimizer.param_groups, rates, strict=True):
                    group["lr"] = lr * rate
                optimizer.step()
            with torch.no_grad():
                for name, weight in self._weights.items():
                    if self._masters[name] is not weight:
                        weight.copy_(self._masters[name])
        self.zero_grad()
        return norm

    def zero_grad(self) -> None:
        for name, weight in self._weights.items():
            weight.grad = None
            self._masters[name].grad = None

    def state(self, keep: bool = True) -> dict[str, Tensor]:
        """Everything that the next step depends on, master weights included, as plain tensors by name: on the CPU, and
        whole where the weights are in shards; every process must then call it, and `keep` says who needs the result."""
        tensors = {f"master/{name}": master.detach() for name, master in self._masters.items()}
        for optimizer in self._optimizers:
            for name, master in self._masters.items():
                for key, value in optimizer.state.get(master, {}).items():
                    tensors[f"{key}/{name}"] = value if isinstance(value, Tensor) else torch.tensor(value)
        return gather(tensors.items(), keep)

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """The inverse of `state`, into the same model. DataError when a weight is missing or has another shape."""
        self.version += 1
        owners = {id(p): opt for opt in self._optimizers for group in opt.param_groups for p in group["params"]}
        for name, master in self._masters.items():
            saved = tensors.get(f"master/{name}")
            if saved is None or saved.shape != master.shape:
                found = "nothing" if saved is None else f"shape {tuple(saved.shape)}"
                raise DataError(f"The checkpoint has {found} for weight {name!r}, the model {tuple(master.shape)}.")
            with torch.no_grad():
                master.copy_(part_of(saved, master))
                self._weights[name].copy_(master)
            owners[id(master)].state[master] = {
                key.removesuffix(f"/{name}"): part_of(value, master if value.shape == master.shape else value).clone()
                for key, value in tensors.items()
                if key.endswith(f"/{name}") and key.partition("/")[2] == name and not key.startswith("master/")
            }


def _is_embedding(model: Any, weight: Tensor) -> bool:
    tables = (model.get_input_embeddings(), model.get_output_embeddings())
    return any(table is not None and getattr(table, "weight", None) is weight for table in tables)


def rate_at(done: float, *, warmup: float = 0.0, decay: float = 0.0, floor: float = 0.0) -> float:
    """The learning rate's factor after the share `done` of the run: up from 0 over `warmup`, down to `floor` over the
    last `decay`, 1 in between. All in [0, 1]."""
    if done < warmup:
        return done / warmup
    if decay and done > 1 - decay:
        return floor + (1 - floor) * max(0.0, 1 - done) / decay
    return 1.0
