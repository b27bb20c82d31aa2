"""Search tasks for agents that write their own memory. Importing this package registers its environments.

>>> import gymnasium as gym, mempo_env
>>> env = gym.make("MemPO-WikiQA-v0", objectives=4)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import gymnasium as gym

if TYPE_CHECKING:
    from mempo_env.context import get_context, register_context
    from mempo_env.env import SearchQAEnv
    from mempo_env.episode import Episode
    from mempo_env.protocols import get_protocol, register_protocol
    from mempo_env.rewards import get_reward, register_reward
    from mempo_env.spaces import Unicode
    from mempo_env.tasks.compose import compose, mix
    from mempo_env.tasks.load import load_dataset
    from mempo_env.vector import SearchQAVectorEnv

# Public name -> module. Each is loaded at first use, so that `import mempo_env` costs little more than Gymnasium does.
_EXPORTS = {
    "Episode": "mempo_env.episode",
    "SearchQAEnv": "mempo_env.env",
    "SearchQAVectorEnv": "mempo_env.vector",
    "Unicode": "mempo_env.spaces",
    "compose": "mempo_env.tasks.compose",
    "get_context": "mempo_env.context",
    "get_protocol": "mempo_env.protocols",
    "get_reward": "mempo_env.rewards",
    "load_dataset": "mempo_env.tasks.load",
    "mix": "mempo_env.tasks.compose",
    "register_context": "mempo_env.context",
    "register_protocol": "mempo_env.protocols",
    "register_reward": "mempo_env.rewards",
}

__all__ = [
    "ENV_IDS",
    "Episode",
    "SearchQAEnv",
    "SearchQAVectorEnv",
    "Unicode",
    "compose",
    "get_context",
    "get_protocol",
    "get_reward",
    "load_dataset",
    "mix",
    "register_context",
    "register_protocol",
    "register_reward",
]

# id -> the arguments in which it differs from SearchQAEnv's defaults.
_ENVIRONMENTS: dict[str, dict[str, Any]] = {
    # An encyclopedia in plain English, made up from a seed: nothing to download, nothing a model can have read.
    "MemPO-WikiQA-v0": {"dataset": "world"},
    # The same in a small closed vocabulary without instructions: for models of about a million parameters.
    "MemPO-CompactQA-v0": {"dataset": "world-compact", "instructions": ""},
}

#: The ids that run offline as they are. "MemPO-WebQA-v0" is registered too; it needs questions and a search service.
ENV_IDS = tuple(_ENVIRONMENTS)

for _id, _arguments in _ENVIRONMENTS.items():
    gym.register(
        id=_id,
        entry_point="mempo_env.env:SearchQAEnv",
        vector_entry_point="mempo_env.vector:SearchQAVectorEnv",
        kwargs=_arguments,
    )

gym.register(
    id="MemPO-WebQA-v0",
    entry_point="mempo_env.web_env:WebQAEnv",
    vector_entry_point="mempo_env.web_env:WebQAVectorEnv",
)


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_EXPORTS[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
