"""`mempo nano`: a policy from nothing, on two cores."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from mempo_agents.commands.training import (
    Track,
    bar_of,
    figures_of,
    print_record,
    record_to_go_on_from,
    say,
    trackers_from,
)


def run(
    out: Annotated[Path, typer.Option(help="Folder of the run; one that was killed continues.")],
    protocol: Annotated[str, typer.Option(help="The protocol to learn: mempo, mem1 or react.")] = "mempo",
    tokens: Annotated[int, typer.Option(min=1, help="About how many tokens to train on.")] = 6_000_000,
    stop_at: Annotated[
        float | None, typer.Option(min=0.0, max=1.0, help="End when the curve's F1 reaches this; default: never.")
    ] = None,
    start: Annotated[
        str | None, typer.Option(help="A nano model to go on from, in whatever protocol it was taught.")
    ] = None,
    eval_tasks: Annotated[int, typer.Option(min=1, help="Held-out tasks per point of the curve.")] = 64,
    evaluate_every: Annotated[int, typer.Option(min=1, help="Updates between points of the curve.")] = 250,
    track: Track = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the weights, worlds and order.")] = 0,
) -> None:
    """Train a model of about a million parameters to search, remember and answer in the compact world.

    A teacher plays, the model learns its steps, and the curve shows the F1 of the model's own episodes on held-out
    tasks with two objectives, sampled. Writes OUT/metrics.jsonl and OUT/checkpoints/step-*/model.
    """
    from mempo_agents.nano.course import CourseSettings, run_course

    settings = CourseSettings(
        protocol=protocol,
        tokens=tokens,
        stop_at=stop_at,
        start=start,
        eval_tasks=eval_tasks,
        evaluate_every=evaluate_every,
        seed=seed,
    )

    with bar_of(record_to_go_on_from(out).get("done", 0.0)) as bar:

        def watch(record: dict[str, Any]) -> None:
            if record["step"] % 50 == 0 or "eval_f1" in record:
                print_record(record)
            bar(record["done"], f"update {record['step']}", figures_of(record))

        record = run_course(settings, out, watch, track=trackers_from(track))
    reached = f": F1 {record['eval_f1']:.3f} after {record['tokens']:,} tokens" if "eval_f1" in record else ""
    say(f"Done{reached}. Models: {out / 'checkpoints'}")
