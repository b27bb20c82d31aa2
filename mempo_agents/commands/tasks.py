"""`mempo tasks`: look at tasks, and export them."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from mempo_env.types import Task


def run(
    dataset: Annotated[str, typer.Option(help="world, world-compact, a file of questions, or a hub name.")] = "world",
    split: Annotated[str | None, typer.Option(help="Split of the dataset; default: its first.")] = None,
    objectives: Annotated[str, typer.Option(help="Questions per task: a number, or a range such as 2-6.")] = "2",
    composition: Annotated[str, typer.Option(help="How questions become tasks: sample or blocks.")] = "sample",
    seed: Annotated[int, typer.Option(min=0, help="Seed of the composition.")] = 0,
    index: Annotated[int, typer.Option(min=0, help="First task to show.")] = 0,
    count: Annotated[int, typer.Option(min=1, help="Tasks to show or export.")] = 3,
    evidence: Annotated[bool, typer.Option("--evidence", help="Show the chain of evidence of each answer.")] = False,
    export: Annotated[
        Path | None, typer.Option(help="Write the tasks as JSON lines to this file (- is stdout) instead.")
    ] = None,
) -> None:
    """Show the tasks that the environment would give, or export them."""
    from mempo_env.tasks import compose, load_dataset
    from mempo_env.tasks.dataset import check_split

    source = load_dataset(dataset)
    name = check_split(source, split)
    composed = compose(
        source.questions(name),
        parse_objectives(objectives),
        method=composition,
        seed=seed,
        split=name,
        name=source.name,
    )
    if index >= len(composed):
        raise ValueError(f"--index: expected 0 to {len(composed) - 1}, got {index}.")
    chosen = [composed[i] for i in range(index, min(index + count, len(composed)))]
    if export is not None:
        _export(chosen, export)
        return
    typer.echo(
        f"{source.name}/{name}: {len(composed):,} tasks of {objectives} objectives; splits: {', '.join(source.splits)}"
    )
    for task in chosen:
        typer.echo("\n" + "\n".join(_lines(task, evidence)))


def parse_objectives(text: str) -> int | tuple[int, int]:
    """A number or a range: "4" gives 4, "2-6" gives (2, 6)."""
    low, dash, high = text.partition("-")
    try:
        return (int(low), int(high)) if dash else int(low)
    except ValueError:
        raise ValueError(f"--objectives: expected a number or a range such as 2-6, got {text!r}.") from None


def _lines(task: Task, evidence: bool) -> list[str]:
    lines = [typer.style(task.id, bold=True)]
    for number, question in enumerate(task.questions, start=1):
        lines.append(f"  {number}. {question.text}")
        lines.append(f"     = {' | '.join(question.answers)}" + (f"  ({question.kind})" if question.kind else ""))
        if evidence and not question.evidence:
            lines.append("     no evidence known")
        for link in question.evidence if evidence else ():
            gives = f" -> {link.answer}" if link.answer else ""
            lines.append(f"     search {link.query!r}: {link.title or link.passage_id}: {link.fact}{gives}")
    return lines


def task_record(task: Task) -> dict[str, Any]:
    """A task as plain JSON values: id, split, and per question id, text, answers, kind, dataset and evidence."""
    from dataclasses import asdict

    return {"id": task.id, "split": task.split, "questions": [asdict(question) for question in task.questions]}


def _export(tasks: list[Task], path: Path) -> None:
    lines = (json.dumps(task_record(task), ensure_ascii=False) + "\n" for task in tasks)
    if str(path) == "-":
        sys.stdout.writelines(lines)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    with part.open("w", encoding="utf-8") as file:
        file.writelines(lines)
    os.replace(part, path)
    typer.echo(f"Written: {path} ({len(tasks)} tasks)", err=True)
