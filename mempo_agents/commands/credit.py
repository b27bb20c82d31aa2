"""`mempo credit`: what the memory advantage does on recorded trajectories."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from mempo_agents.learners.diagnostics import CreditReport


def run(
    file: Annotated[Path, typer.Argument(help="Trajectories, as `mempo eval` writes them (trajectories.jsonl).")],
    model: Annotated[
        str | None,
        typer.Option(help="Language model that scores: a folder, a hub name, smollm2 (embedded), or a server's name."),
    ] = None,
    engine: Annotated[str, typer.Option(help="What runs it: hf, vllm, or openai (a vLLM server).")] = "hf",
    base_url: Annotated[
        str | None, typer.Option(help="Server of openai, such as http://127.0.0.1:8000/v1; key: $OPENAI_API_KEY.")
    ] = None,
    scores: Annotated[Path | None, typer.Option(help="Read P(answer | ...) from this file instead of scoring.")] = None,
    dtype: Annotated[
        str | None, typer.Option(help="Weights: auto, float32, bfloat16 or float16; default: float32, a server's own.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, ...; default: what there is.")] = None,
    policy: Annotated[str | None, typer.Option(help="Only this policy's trajectories.")] = None,
    baseline: Annotated[str, typer.Option(help="What R_M subtracts: history, previous (memory), or none.")] = "history",
    threshold: Annotated[
        float | None, typer.Option(min=0.0, max=0.999, help="Count only answer tokens more probable than this.")
    ] = None,
    aliases: Annotated[str, typer.Option(help="Gold answers: first, or best (of each objective).")] = "first",
    weight: Annotated[float, typer.Option(help="Weight of the memory advantage.")] = 1.0,
    per_step: Annotated[bool, typer.Option("--per-step", help="Standardise each step index by itself.")] = False,
    json: Annotated[Path | None, typer.Option(help="Write the figures and all probabilities to this file.")] = None,
) -> None:
    """Show memory rewards and advantages by step, and how far the step index alone explains them.

    Needs a model to score with, or the file of an earlier run (--json) as --scores. Only steps that have a memory and
    an earlier search result have a memory reward, so trajectories of policies without memory have none.
    """
    from rich.console import Console

    from mempo_agents.files import read_trajectories
    from mempo_agents.learners.credit_files import read_scores, write_report
    from mempo_agents.learners.diagnostics import diagnose
    from mempo_agents.learners.groups import group_batch, groups_of
    from mempo_agents.learners.memory_reward import memory_scores

    for name, value, known in (
        ("baseline", baseline, ("history", "previous", "none")),
        ("aliases", aliases, ("first", "best")),
    ):
        if value not in known:
            raise ValueError(f"--{name}: expected one of {', '.join(known)}, got {value!r}.")
    if engine not in ("hf", "vllm", "openai"):
        raise ValueError(f"--engine: expected one that can score, hf, vllm or openai; got {engine!r}.")
    if (model is None) == (scores is None):
        raise ValueError(
            "P(answer | memory) must come from somewhere: give --model (for example --model smollm2) to score the "
            "trajectories, or --scores FILE with the --json output of an earlier run; not both."
        )
    groups = groups_of(t for t in read_trajectories(file) if policy is None or t.policy == policy)
    if not groups:
        raise ValueError(f"{file} has no trajectories" + (f" of policy {policy!r}." if policy else "."))
    console = Console() if sys.stdout.isatty() else Console(width=120)  # the table has whole intervals
    tokenizer = None
    if scores is not None:
        scored, source = read_scores(scores, groups)
    else:
        from rich.progress import track

        from mempo_agents.engines import get_engine

        own = "auto" if engine == "openai" else "float32"
        scorer: Any = get_engine(engine, model, dtype=dtype or own, device=device, base_url=base_url)
        tokenizer = scorer.codec.tokenizer
        source = {"model": model, "fingerprint": scorer.fingerprint, "threshold": threshold, "aliases": aliases}
        scored = [
            memory_scores(group.trajectories, scorer, threshold=threshold, aliases=aliases)  # type: ignore[arg-type]
            for group in track(groups, "Scoring groups", console=console, transient=True)
        ]
    batches = [group_batch(group, one) for group, one in zip(groups, scored, strict=True)]
    report = diagnose(batches, baseline=baseline, weight=weight, per_step=per_step)  # type: ignore[arg-type]
    _print(console, report, file)
    if json is not None:
        settings = {**source, "file": file.name, "weight": weight, "per_step": per_step}
        write_report(json, report, groups, scored, settings, tokenizer)
        console.print(f"Written: {json}")


def _print(console: Any, report: CreditReport, file: Path) -> None:
    from rich.table import Table

    from mempo_agents.learners.diagnostics import QUANTITIES

    table = Table(title=f"Memory credit by step: {file.name}")
    for heading in ("step", "n", "R_M", "P(answer | memory)", "P(answer | history)", "A_M"):
        table.add_column(heading, justify="right")
    for row in report.by_step:
        cells = [_mean(row[name]) for name in QUANTITIES]
        table.add_row(str(row["step"]), str(row["memory_reward"]["count"]), *cells)
    console.print(table)
    console.print(
        f"{report.groups} groups, {report.trajectories} trajectories ({report.failed} failed), "
        f"{report.rewarded_steps} of {report.steps} steps with a memory reward; brackets are 95 % intervals over tasks."
    )
    figures = [
        ("A_M explained by the step index alone", _percent(report.step_share)),
        ("memory tokens pushed against the outcome (A_T + A_M)", _percent(report.reversal_rate)),
        ("A_M of the other sign than A_T", _percent(report.opposition_rate)),
        ("groups whose outcomes are all equal", _percent(report.degenerate_outcomes)),
        ("groups whose memory rewards are all equal, or fewer than two", _percent(report.degenerate_memories)),
        ("A_M, first minus last step", _mean({"mean": report.early_late, "interval": report.early_late_interval})),
    ]
    for name, value in figures:
        console.print(f"  {name}: {value}")


def _mean(cell: dict[str, Any]) -> str:
    if cell["mean"] is None:
        return "-"
    interval = "" if cell["interval"] is None else " [{:+.3f}, {:+.3f}]".format(*cell["interval"])
    return f"{cell['mean']:+.3f}{interval}"


def _percent(share: float | None) -> str:
    return "unknown" if share is None else f"{100 * share:.1f} %"
