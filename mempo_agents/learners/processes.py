"""Several processes as one: each plays and trains its share of the tasks, and gradients are added up once an update.

Started by `torchrun --nproc_per_node N -m mempo_agents.cli train ...`; alone, nothing is imported and nothing is sent.
Devices and the process group are Accelerate's (gloo on CPUs, NCCL on GPUs). Because gradients are summed after the
backward passes, ranks may hold different numbers of rows and micro-batches, none at all included: no collective is
called in between.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mempo_env.errors import MissingExtraError


class Processes:
    """rank: of this process, from 0. count: of all. device: where this one's model belongs. sharded: whether each
    holds a part of the weights, so that a pass through the model takes all of them; see `shards`."""

    sharded = False

    def __init__(self, device: str | None = None) -> None:
        self.count = int(os.environ.get("WORLD_SIZE", "1"))
        self.rank = int(os.environ.get("RANK", "0"))
        if self.count == 1:
            self.device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
            return
        try:
            from accelerate import PartialState
        except ImportError as error:
            raise MissingExtraError("accelerate", "train", "Training in several processes") from error
        state = PartialState(cpu=device == "cpu" or not torch.cuda.is_available())
        self.device, self.rank, self.count = state.device, state.process_index, state.num_processes

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def share(self, items: Sequence[Any]) -> list[Any]:
        """This process's part: every count-th item."""
        return list(items[self.rank :: self.count])

    def gather(self, value: Any) -> list[Any]:
        """The values of all processes, by rank, in every one of them."""
        if self.count == 1:
            return [value]
        import torch.distributed as distributed

        values: list[Any] = [None] * self.count
        distributed.all_gather_object(values, value)
        return values

    def add_up(self, tensors: Sequence[Tensor]) -> None:
        """Replaces each tensor by its sum over the processes, in one message."""
        if self.count == 1 or not tensors:
            return
        from accelerate.utils import reduce

        flat = reduce(torch.cat([tensor.flatten() for tensor in tensors]), reduction="sum")
        at = 0
        for tensor in tensors:
            tensor.copy_(flat[at : at + tensor.numel()].view_as(tensor))
            at += tensor.numel()

    def wait(self) -> None:
        if self.count > 1:
            import torch.distributed as distributed

            distributed.barrier()
