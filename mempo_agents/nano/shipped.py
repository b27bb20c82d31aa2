"""The trained models that come with the package, by name: `HFEngine("nano-mempo")`.

    nano-react, nano-mem1, nano-mempo       taught by the scripted teacher, deliberately short of perfect
    nano-mempo-grpo, nano-mempo-mempo       trained on from nano-mempo by reinforcement, with that estimator
    smollm2-sft                             adapters of smollm2, taught all three protocols by the scripted teacher

Each folder under `mempo_agents/weights` is an ordinary transformers model, or adapters as PEFT writes them, with a
`card.json`: the command, seed, data and curve that made it.
"""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parents[1] / "weights"


def weight_names() -> list[str]:
    """Of whole models and of adapters."""
    return sorted(folder.name for folder in FOLDER.iterdir() if weights_folder(folder.name))


def weights_folder(name: str) -> Path | None:
    """The folder of the embedded model `name`, whole or adapters; None when there is none of that name."""
    folder = FOLDER / name
    files = (folder / "config.json", folder / "adapter_config.json")
    return folder if "/" not in name and any(file.is_file() for file in files) else None
