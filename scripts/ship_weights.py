"""Put a trained small model, or adapters, into the package, with a card that says what made it and what it scores.

    python scripts/ship_weights.py nano-mempo out/nano/checkpoints/step-00001500 --command "mempo nano --out out/nano"
    python scripts/ship_weights.py smollm2-sft out/sft/checkpoints/step-00000085 --command "mempo warm-start ..." \\
        --results out/eval/results.json

Copies the model, in bfloat16, to mempo_agents/weights/NAME and writes card.json beside it: the command, the settings,
the curve up to that checkpoint and the scores. A small model plays the test split of the compact world here, sampled,
and its card has a hash of its lessons; adapters are scored by runs of `mempo eval`, whose cells the card repeats.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from pathlib import Path
from typing import Any

from mempo_agents.engines.adapters import CONFIG, adapter_base
from mempo_agents.engines.hf import HFEngine
from mempo_agents.learners.checkpoint import STATE
from mempo_agents.learners.metrics_log import METRICS, read_metrics
from mempo_agents.nano.course import measure
from mempo_agents.nano.lessons import Lessons
from mempo_agents.nano.shipped import FOLDER
from mempo_agents.provenance import git_revision, machine_class, versions
from mempo_agents.run_folder import read_json, write_json
from mempo_env.tasks.world import World

WEIGHTS = "adapter_model.safetensors"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", help="name of the embedded model")
    parser.add_argument("checkpoint", type=Path, help="a checkpoint folder, step-...")
    parser.add_argument("--command", required=True, help="what trained it")
    parser.add_argument("--parent", default=None, help="the embedded model that it started from")
    parser.add_argument("--note", default=None, help="what the command alone does not say")
    parser.add_argument("--policy", default="mempo", help="the protocol that it speaks")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tasks", type=int, default=256, help="test tasks of a small model's score")
    parser.add_argument("--results", type=Path, nargs="*", default=[], help="results.json files of adapters' scores")
    options = parser.parse_args()

    revision = git_revision()  # before the weights change the tree
    target = FOLDER / options.name
    target.mkdir(parents=True, exist_ok=True)
    state = read_json(options.checkpoint / STATE)
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
        "curve": curve(run, state["step"]),
        "settings": read_json(settings) if settings.is_file() else None,
    }
    source = options.checkpoint / "model"
    card |= adapters(source, target, options) if adapter_base(source) else small_model(source, target, options)
    card |= {"versions": versions(), "machine": machine_class(), "revision": revision}
    write_json(target / "card.json", card)
    print(json.dumps({key: card[key] for key in ("name", "step", "parameters", "test")}))


def small_model(source: Path, target: Path, options: Any) -> dict[str, Any]:
    engine = HFEngine(str(source), dtype="bfloat16", device="cpu")
    engine.model.save_pretrained(target)
    engine.tokenizer.save_pretrained(target)
    score = measure(engine, options.policy, tasks=options.tasks, split="test")
    return {
        "parameters": sum(p.numel() for p in engine.model.parameters()),
        "test": {"split": "test", "objectives": 2, "tasks": options.tasks, "temperature": 1.0, **score},
        "data": {"world": World(register="compact").fingerprint, "first_lesson": lesson_hash(engine, options)},
    }


def adapters(source: Path, target: Path, options: Any) -> dict[str, Any]:
    """The base's tokenizer stays with the base."""
    from safetensors.torch import load_file, save_file

    weights = {name: weight.bfloat16() for name, weight in load_file(source / WEIGHTS).items()}
    save_file(weights, target / WEIGHTS, metadata={"format": "pt"})
    (target / WEIGHTS).chmod(0o644)
    (target / CONFIG).write_bytes((source / CONFIG).read_bytes())
    wanted = ("policy", "objectives", "tasks", "f1", "em", "format_valid", "steps", "peak_tokens")
    cells = [
        {
            "command": results["run"]["command"].replace(str(source), options.name),
            **{name: cell[name] for name in wanted if name in cell},
        }
        for results in map(read_json, options.results)
        for cell in results["cells"]
    ]
    return {"parameters": sum(weight.numel() for weight in weights.values()), "test": cells}


def curve(run: Path, last: int) -> list[dict[str, Any]]:
    """The evaluations up to the checkpoint: step, tokens and scores; where there are none, loss and token accuracy."""
    records = [record for record in read_metrics(run / METRICS) if record["step"] <= last]
    wanted = ["step", "tokens", "seconds", "eval_f1", "eval_em", "eval_format_valid", "eval_steps"]
    evaluated = [record for record in records if "eval_f1" in record]
    if not evaluated:
        wanted += ["loss", "token_accuracy"]
    return [{k: r[k] for k in wanted if k in r} for r in evaluated or records]


def lesson_hash(engine: HFEngine, options: Any) -> str:
    """Of the rows of the first lesson: changes when the world, the teacher, the tokenizer or the curriculum does."""
    digest = hashlib.blake2b(digest_size=16)
    for row in Lessons(engine.codec, options.policy, 10, seed=options.seed)(0):
        digest.update(row.prompt_ids.tobytes() + b"|" + row.response_ids.tobytes())
    return digest.hexdigest()


if __name__ == "__main__":
    main()
