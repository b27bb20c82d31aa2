"""MemPO's training loop, all of it, on the public API: tasks, groups of episodes, memory reward, credit, update.

    python examples/train_mempo.py [--updates 20] [--estimator mempo]

It trains the small embedded model in the compact world, on two cores, and prints one line an update. `mempo train` does
the same with checkpoints, several processes and more options.
"""

from __future__ import annotations

import argparse

import numpy as np

from mempo_agents.engines.base import Sampling
from mempo_agents.engines.hf import HFEngine
from mempo_agents.learners.estimators import get_estimator
from mempo_agents.learners.groups import group_batch
from mempo_agents.learners.memory_reward import memory_scores
from mempo_agents.learners.optim import MasterOptimizer, OptimizerSettings
from mempo_agents.learners.update import UpdateSettings, train_rows, update_policy
from mempo_agents.policies import get_policy
from mempo_agents.rollout import rollout
from mempo_env.tasks import compose, load_dataset

TASKS, GROUP, OBJECTIVES = 4, 8, 2
ENVIRONMENT = {"dataset": "world-compact", "instructions": "", "objectives": OBJECTIVES, "reward": "f1"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="nano-mempo")
    parser.add_argument("--estimator", default="mempo")
    parser.add_argument("--updates", type=int, default=20)
    options = parser.parse_args()

    engine = HFEngine(options.model, dtype="float32")
    policy = get_policy("mempo", engine, Sampling(max_new_tokens=96, temperature=1.0))
    estimator = get_estimator(options.estimator)
    optimizer = MasterOptimizer(engine.model, OptimizerSettings("muon", lr=1e-4, matrix_lr=5e-4))
    world = load_dataset("world-compact")
    tasks = compose(world.questions("train"), OBJECTIVES, seed=0, split="train", name=world.name)

    for update in range(options.updates):
        # 1. Play each task GROUP times; episodes come back as they finish.
        drawn = [tasks[update * TASKS + i] for i in range(TASKS)]
        environment = {**ENVIRONMENT, "split": "train"}
        played = list(rollout(policy, drawn, env_kwargs=environment, samples=GROUP, seed=update, batch_size=32))
        groups = [[t for t in played if t.task_id == task.id] for task in drawn]

        # 2. How probable is the right answer given each memory, and given the whole history?
        scores = [memory_scores(group, engine) if estimator.needs else None for group in groups]

        # 3. An advantage for every sampled token.
        advantages = [estimator(group_batch(g, scores=s)) for g, s in zip(groups, scores, strict=True)]

        # 4. One step on all rows: prompt and response of each step, exactly as sampled.
        figures = update_policy(engine.model, optimizer, train_rows(groups, advantages), UpdateSettings())
        f1 = np.mean([np.mean(t.f1) for t in played])
        print(
            f"update {update:3}  F1 {f1:.3f}  loss {figures['loss']:+.4f}  entropy {figures['entropy']:.3f}", flush=True
        )


if __name__ == "__main__":
    main()
