"""Weights in shards: each process keeps its part of the float32 weights, gradients and moments (FSDP2, `fully_shard`).

For models whose training state, 16 bytes a weight, does not fit one device. What one process reads whole, to sample, to
score and to save, is a copy of the model in its own dtype, filled from the shards whenever the weights have changed.

Every pass through the model in shards is a collective: all processes must make the same number of them, those without
rows included (see `update`). Gradients arrive summed over the processes, as plain ones are by `Processes.add_up`.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from types import MethodType
from typing import Any

import torch
from torch import Tensor

from mempo_agents.engines.loaded import base_model
from mempo_agents.learners.batches import has_plain_head, plain_response_logits
from mempo_agents.learners.processes import Processes


def check_shards(optimizer: str) -> None:
    """Raises ValueError for what cannot be done in shards."""
    from torch.distributed.fsdp import FSDPModule

    if not hasattr(FSDPModule, "set_force_sum_reduction_for_comms"):
        raise ValueError(f"shard: needs torch 2.8 or newer, got {torch.__version__}.")
    if optimizer != "adamw":
        raise ValueError(f"shard: the optimizer must be 'adamw', got {optimizer!r}: Muon needs whole matrices.")


def shard(model: Any, processes: Processes) -> Any:
    """A float32 copy of `model`, a part in each process, to be read by `batches.response_logits` in the model's dtype.

    The model is left on the CPU, frozen: it may become the copy that `copy_weights` fills.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method

    dtype = next(model.parameters()).dtype
    whole = copy.deepcopy(model.to("cpu")).float()
    model.requires_grad_(False)
    has_plain_head(whole)  # found by trying, which needs whole weights
    options: dict[str, Any] = {
        "mesh": init_device_mesh(processes.device.type, (processes.count,)),
        "mp_policy": MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32),
        "reshard_after_forward": True,
    }
    layers = set(getattr(base_model(whole), "_no_split_modules", None) or ())
    for module in list(whole.modules()):
        if type(module).__name__ in layers:
            fully_shard(module, **options)
    fully_shard(whole, **options)
    for module in whole.modules():
        if isinstance(module, FSDPModule):
            module.set_force_sum_reduction_for_comms(True)
            module.set_gradient_divide_factor(1.0)
    # The hooks that gather the weights run around this method, too, and not only around `forward`.
    whole.response_logits = MethodType(plain_response_logits, whole)
    register_fsdp_forward_method(whole, "response_logits")
    return whole


@torch.no_grad()
def copy_weights(sharded: Any, whole: Any) -> None:
    """The trained weights of a model in shards, into a whole one. Every process must call it."""
    own = dict(whole.named_parameters())
    for name, weight in sharded.named_parameters():
        if weight.requires_grad:
            own[name].copy_(weight.detach().to(own[name].dtype).full_tensor())


def whole(tensor: Tensor) -> Tensor:
    """A tensor of all its shards; a plain one as it is. Every process must call it."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def gather(tensors: Iterable[tuple[str, Tensor]], keep: bool) -> dict[str, Tensor]:
    """Whole tensors on the CPU, one at a time; nothing where `keep` is false. Every process must call it."""
    found = {}
    for name, tensor in tensors:
        full = whole(tensor)
        if keep:
            found[name] = full.cpu()
    return found


def part_of(tensor: Tensor, like: Tensor) -> Tensor:
    """This process's part of a whole tensor, cut as `like` is; the tensor itself where `like` is plain."""
    if not hasattr(like, "placements"):
        return tensor
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(tensor.to(like.device), like.device_mesh, like.placements, src_data_rank=None)
