"""Put a trained small model into the package, with a card that says what made it and what it scores.

    python scripts/ship_weights.py nano-mempo out/nano/checkpoints/step-00001500 --command "mempo nano --out out/nano"

Copies the model, in bfloat16, to mempo_agents/weights/NAME and writes card.json beside it: the command, the settings,
the curve of evaluations up to that checkpoint, a hash of the data, and the model's score on the test split, sampled.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from pathlib import Path
from typing import Any

from mempo_agents.engines.hf import HFEngine
from mempo_agents.learners.checkpoint import STATE
from mempo_agents.learners.metrics_log import METRICS, read_metrics
from mempo_agents.nano.course import measure
from mempo_agents.nano.lessons import Lessons
from mempo_agents.nano.shipped import FOLDER
from mempo_agents.provenance import git_revision, machine_class, versions
from mempo_agents.run_folder import read_json, write_json
from mempo_env.tasks.world import World


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", help="name of the embedded model")
    parser.add_argument("checkpoint", type=Path, help="a checkpoint folder, step-...")
    parser.add_argument("--command", required=True, help="what trained it")
    parser.add_argument("--parent", default=None, help="the embedded model that it started from")
    parser.add_argument("--note", default=None, help="what the command alone does not say")
    parser.add_argument("--policy", default="mempo", help="the protocol that it speaks")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tasks", type=int, default=256, help="test tasks of the score")
    options = parser.parse_args()

    target = FOLDER / options.name
    target.mkdir(parents=True, exist_ok=True)
    state = read_json(options.checkpoint / STATE)
    engine = HFEngine(str(options.checkpoint / "model"), dtype="bfloat16", device="cpu")
    engine.model.save_pretrained(target)
    engine.tokenizer.save_pretrained(target)
    score = measure(engine, options.policy, tasks=options.tasks, split="test")
    run = options.checkpoint.parents[1]
    settings = run / "settings.json"
    card: dict[str, Any] = {
        "name": options.name,
        "command": options.command,
        "note": options.note,
        "parent": options.parent,
        "seed": options.seed,
        "step": state["step"],
        "tokens": state.get("tokens"),
        "parameters": sum(p.numel() for p in engine.model.parameters()),
        "test": {"split": "test", "objectives": 2, "tasks": options.tasks, "temperature": 1.0, **score},
        "curve": curve(run, state["step"]),
        "settings": read_json(settings) if settings.is_file() else None,
        "data": {"world": World(register="compact").fingerprint, "first_lesson": lesson_hash(engine, options)},
        "versions": versions(),
        "machine": machine_class(),
        "revision": git_revision(),
    }
    write_json(target / "card.json", card)
    print(json.dumps({key: card[key] for key in ("name", "step", "parameters", "test")}))


def curve(run: Path, last: int) -> list[dict[str, Any]]:
    """The evaluations up to the checkpoint: step, tokens and scores."""
    records = read_metrics(run / METRICS)
    wanted = ("step", "tokens", "seconds", "eval_f1", "eval_em", "eval_format_valid", "eval_steps")
    return [{k: r[k] for k in wanted if k in r} for r in records if "eval_f1" in r and r["step"] <= last]


def lesson_hash(engine: HFEngine, options: Any) -> str:
    """Of the rows of the first lesson: changes when the world, the teacher, the tokenizer or the curriculum does."""
    digest = hashlib.blake2b(digest_size=16)
    for row in Lessons(engine.codec, options.policy, 10, seed=options.seed)(0):
        digest.update(row.prompt_ids.tobytes() + b"|" + row.response_ids.tobytes())
    return digest.hexdigest()


if __name__ == "__main__":
    main()
