"""A credit rule of your own in thirty lines: reward the memory in proportion to how short it is kept.

python examples/custom_learner.py [--updates 5]
mempo train --plugin examples/custom_learner.py --estimator brief --out out/brief
"""

from __future__ import annotations

import argparse
from pathlib import Path
from tempfile import mkdtemp

import numpy as np

from mempo_agents.learners.advantages import memory_advantages, trajectory_advantages
from mempo_agents.learners.estimators import get_estimator, register_estimator, spread
from mempo_agents.learners.groups import GroupBatch, TokenAdvantages
from mempo_agents.learners.optim import OptimizerSettings
from mempo_agents.learners.trainer import Trainer, TrainSettings


@register_estimator("brief", description="GRPO, and memories earn by being short.")
def brief(batch: GroupBatch, *, weight: float = 0.1) -> TokenAdvantages:
    """A_T on every token; on a memory's tokens also weight * A of minus its length, standardised over the group."""
    lengths = [(span[:, 1] - span[:, 0]).astype(float) for span in batch.memory_spans]
    rewards_GS = np.full((batch.size, max(map(len, lengths))), np.nan)  # NaN: no memory, no credit
    for row, length in zip(rewards_GS, lengths, strict=True):
        row[: len(length)] = np.where(length > 0, -length, np.nan)
    outcome_G = trajectory_advantages(batch.reward())
    return spread(batch, outcome_G, memory_advantages(rewards_GS), weight=weight)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=5)
    parser.add_argument("--out", type=Path, default=None, help="folder of the run; default: a new one")
    options = parser.parse_args()
    settings = TrainSettings(
        model="nano-mempo", dataset="world-compact", instructions="", reward="f1", max_new_tokens=96,
        estimator="brief", estimator_options={"weight": 0.2}, updates=options.updates, tasks=4, group_size=8,
        evaluate_every=0, optimizer=OptimizerSettings("muon", lr=1e-4, matrix_lr=5e-4),
    )  # fmt: skip
    print("Estimator:", get_estimator("brief").description)
    folder = options.out or Path(mkdtemp())
    Trainer(
        settings, folder, watch=lambda r: print(r["step"], f"F1 {r['f1']:.3f}, {r['response_tokens']:.1f} tokens")
    ).run()
    print("Written:", folder)


if __name__ == "__main__":
    main()
