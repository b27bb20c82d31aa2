"""What decides a run of the trainer, and the checks that need no model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mempo_agents.learners.optim import OptimizerSettings, check_least, check_shares
from mempo_agents.learners.samplers import check_sampler
from mempo_agents.learners.shards import check_shards
from mempo_agents.learners.update import UpdateSettings
from mempo_env.rewards import get_reward


@dataclass(frozen=True, slots=True)
class TrainSettings:
    """What decides a run. Each update plays `tasks` tasks `group_size` times.

    model: a folder, a hub name, or a name that `HFEngine` knows. dtype: of the weights; updates are summed in float32
    whatever it is. policy: "react", "mem1" or "mempo". estimator, estimator_options: see `learners.estimators`.
    reward: the environment's, see `mempo_env.rewards`. instructions: the system message, None is the protocol's own and
    "" is none. memory_threshold: see `memory_scores`. lora_rank: 0 trains all weights, else adapters of that rank; see
    `learners.lora`.
    sampler: "hf" plays with the model in training, "vllm" with a copy in vLLM. sampler_options: of `vllm.LLM`.
    shard: several processes hold a part of the training state each, see `shards`; one process trains as without it.
    warmup, decay: shares of the run, see `optim.rate_at`. evaluate_every, save_every: in updates, 0 is never.
    eval_tasks: tasks of `eval_split`, each played once at the training temperature. collapse: see `CollapseRule`.
    """

    model: str = "smollm2"
    dtype: str = "float32"
    policy: str = "mempo"
    context: str | None = None
    dataset: str = "world"
    corpus: str | None = None
    split: str = "train"
    eval_split: str = "dev"
    objectives: int = 2
    retriever: str = "bm25"
    top_k: int = 3
    max_steps: int | None = None
    instructions: str | None = None
    reward: str = "paper"
    estimator: str = "mempo"
    estimator_options: Mapping[str, Any] = field(default_factory=dict)
    memory_threshold: float | None = None
    updates: int = 100
    tasks: int = 8
    group_size: int = 16
    batch_size: int = 64
    max_new_tokens: int = 256
    guided: bool = False
    sampler: str = "hf"
    sampler_options: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    update: UpdateSettings = field(default_factory=UpdateSettings)
    warmup: float = 0.0
    decay: float = 0.0
    lora_rank: int = 0
    shard: bool = False
    evaluate_every: int = 10
    eval_tasks: int = 64
    save_every: int = 10
    keep: int = 2
    collapse: float = 0.3

    def __post_init__(self) -> None:
        check_least(self, 1, "updates", "tasks", "group_size", "batch_size", "max_new_tokens", "objectives", "top_k")
        check_least(self, 1, "max_steps", "eval_tasks", "keep")
        check_least(self, 0, "seed", "lora_rank", "evaluate_every", "save_every")
        check_shares(self, "warmup", "decay")
        check_sampler(self.sampler, self.sampler_options, self.guided)
        if self.shard:
            check_shards(self.optimizer.kind)
        get_reward(self.reward)  # an unknown name is refused here, before a folder is claimed for this run
        if self.update.temperature <= 0:
            raise ValueError("temperature: expected a positive number; a greedy group is one trajectory, copied.")
