"""Rewards: a score and the format's validity become one number and its named parts.

    paper    1 if every objective is right and every step well-formed, else 0 (MemPO)
    em       mean exact match over the objectives, 0..1
    f1       mean F1, 0..1
    sum_em   number of objectives that match, 0..K (MEM1)

A reward of your own is any object with a `name` that is called as `reward(score, format_valid)` and returns a
`RewardResult`; pass the object, or register it and pass its name. To be sent to other processes it must pickle.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol, runtime_checkable

from mempo_env.registry import Registry
from mempo_env.scoring import Score

PARTS = ("paper", "em", "f1", "sum_em", "all_correct", "format_valid")
"""The parts that `reward_parts` gives, whatever the reward."""


@dataclass(frozen=True)
class RewardResult:
    """total: what the environment pays. parts: every named part, read-only, whether or not it counts in the total."""

    total: float
    parts: Mapping[str, float]

    def __post_init__(self) -> None:
        object.__setattr__(self, "parts", MappingProxyType(dict(self.parts)))

    def __reduce__(self) -> tuple[type[RewardResult], tuple[float, dict[str, float]]]:
        return RewardResult, (self.total, dict(self.parts))


@runtime_checkable
class Reward(Protocol):
    """What an environment asks of a reward. `format_valid`: every step of the episode was well-formed."""

    @property
    def name(self) -> str: ...

    def __call__(self, score: Score, format_valid: bool) -> RewardResult: ...


def reward_parts(score: Score, format_valid: bool) -> dict[str, float]:
    """Every part, by the names in `PARTS`. "em" and "f1" are means, "sum_em" a sum; flags are 0.0 or 1.0."""
    return {
        "paper": float(score.all_correct and format_valid),
        "em": score.em_mean,
        "f1": score.f1_mean,
        "sum_em": score.em_sum,
        "all_correct": float(score.all_correct),
        "format_valid": float(format_valid),
    }


@dataclass(frozen=True)
class PartReward:
    """Pays one of the parts. Raises ValueError when `name` is none of `PARTS`."""

    name: str

    def __post_init__(self) -> None:
        if self.name not in PARTS:
            raise ValueError(f"PartReward: expected one of {', '.join(PARTS)}, got {self.name!r}.")

    def __call__(self, score: Score, format_valid: bool) -> RewardResult:
        parts = reward_parts(score, format_valid)
        return RewardResult(parts[self.name], parts)


_REWARDS: Registry[Reward] = Registry("reward")


def register_reward(reward: Reward) -> Reward:
    """Make a reward known under its `name`. Raises ValueError if another one has that name."""
    return _REWARDS.add(reward.name, reward)


def reward_names() -> tuple[str, ...]:
    """The registered names, sorted."""
    return tuple(_REWARDS)


def get_reward(reward: str | Reward) -> Reward:
    """The reward of that name, or the given object. Raises `UnknownNameError` or TypeError."""
    if isinstance(reward, str):
        return _REWARDS.get(reward)
    if not isinstance(reward, Reward):
        raise TypeError(f"reward: expected a registered name or an object with name and __call__, got {reward!r}.")
    return reward


for _name in ("paper", "em", "f1", "sum_em"):
    register_reward(PartReward(_name))
