"""The table of a results file, for a terminal (rich) and for a page (Markdown). Nothing is computed here but ratios."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

Cell = Mapping[str, Any]

UNKNOWN = "-"
_HEADINGS = ("objectives", "F1", "EM", "correct", "format", "steps", "peak", "total", "failed")
_FOOTNOTE = (
    "Means over tasks [95% bootstrap interval]. F1, EM: mean over objectives. correct: all objectives right. "
    "format: all steps well-formed. peak: tokens of the largest prompt plus response. total: tokens of all of them."
)


def print_results(results: Mapping[str, Any], console: Console | None = None) -> None:
    """Print the cells of `results`, a section per policy, then how the peak grows from fewest to most objectives."""
    from rich.console import Console
    from rich.measure import Measurement
    from rich.text import Text

    if console is None:
        # A pipe has no width of its own: give it more than the table needs, or rich would fold it at 80 columns.
        console = Console() if sys.stdout.isatty() else Console(width=200)
    console.print(Text(title(results)), soft_wrap=True)
    # Each interval beside its value, or below it on a narrower screen, or not at all.
    for before_interval in (" [", "\n[", None):
        table = _table(results, before_interval)
        if Measurement.get(console, console.options.update(width=10_000), table).maximum <= console.width:
            break
    console.print(table)
    for line in growth_lines(results):
        console.print(Text(line), soft_wrap=True)
    console.print(Text(_FOOTNOTE), style="dim", soft_wrap=True)


def _table(results: Mapping[str, Any], before_interval: str | None) -> Table:
    """The cells; `before_interval` stands between a value and its interval, None leaves the intervals out."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True)
    table.add_column("policy", no_wrap=True)
    for heading in _HEADINGS:
        table.add_column(heading, justify="right", no_wrap=True)
    for cells in by_policy(results).values():
        for number, cell in enumerate(cells):
            parts = [text.partition(" [") for text in row(cell)]
            texts = [a + before_interval + c if b and before_interval else a for a, b, c in parts]
            table.add_row(cell["policy"] if number == 0 else "", *texts, end_section=number == len(cells) - 1)
    return table


def markdown(results: Mapping[str, Any]) -> str:
    """The same table in Markdown, the command that made it above it."""
    commands = [f"    {command}" for command in results["run"]["command"].splitlines()]
    lines = [title(results), "", *commands, "", origin(results), ""]
    lines += ["| policy | " + " | ".join(_HEADINGS) + " |", "|---" + "|---:" * len(_HEADINGS) + "|"]
    for cells in by_policy(results).values():
        lines += ["| " + " | ".join([cell["policy"], *row(cell)]) + " |" for cell in cells]
    return "\n".join([*lines, "", *(f"- {line}" for line in growth_lines(results)), "", _FOOTNOTE, ""])


def title(results: Mapping[str, Any]) -> str:
    """What was run, in one line."""
    run = results["run"]
    engine, arguments = run["engine"], run["arguments"]
    name = f"language model {engine['tokenizer']}" if engine["name"] == "hf" else f"scripted {engine['name']}"
    guided = ", guided (tags forced, text sampled between them)" if arguments["guided"] else ""
    return (
        f"{name}{guided} on {run['dataset']['name']}/{run['dataset']['split']}, {run['retriever']['name']} top "
        f"{arguments['top_k']}, {arguments['tasks']} tasks a cell, tokens counted by {engine['tokenizer']}"
    )


def origin(results: Mapping[str, Any]) -> str:
    """Seed, versions and machine class of a run, in one line: what a number needs to be made again."""
    run = results["run"]
    versions = ", ".join(f"{name} {version}" for name, version in run["versions"].items() if version)
    machine = run["machine"]
    gpu = f", {machine['gpu']}" if machine["gpu"] else ""
    return (
        f"Seed {run['arguments']['seed']}. {machine['system']} {machine['architecture']}, {machine['cpus']} processors"
        f", {machine['memory_gib']} GiB{gpu}. {versions}."
    )


def by_policy(results: Mapping[str, Any]) -> dict[str, list[Cell]]:
    """The cells of each policy, fewest objectives first, policies in the order of the run."""
    grouped: dict[str, list[Cell]] = {}
    for cell in results["cells"]:
        grouped.setdefault(cell["policy"], []).append(cell)
    return {policy: sorted(cells, key=lambda cell: cell["objectives"]) for policy, cells in grouped.items()}


def row(cell: Cell) -> list[str]:
    """The texts of one row, without the policy."""
    interval = cell["intervals"]
    return [
        str(cell["objectives"]),
        _with_interval(cell["f1"], interval.get("f1"), ".2f"),
        _with_interval(cell["em"], interval.get("em"), ".2f"),
        _number(cell["all_correct"], ".2f"),
        _number(cell["format_valid"], ".2f"),
        _number(cell["steps"], ".1f"),
        _with_interval(cell["peak_tokens"], interval.get("peak_tokens"), ",.0f"),
        _with_interval(cell["total_tokens"], interval.get("total_tokens"), ",.0f"),
        str(cell["failed"]),
    ]


def growth_lines(results: Mapping[str, Any]) -> list[str]:
    """For each policy, how often its peak and total tokens at the fewest objectives go into those at the most."""
    lines = []
    for policy, cells in by_policy(results).items():
        first, last = cells[0], cells[-1]
        if first is not last:
            lines.append(
                f"{policy}: from {first['objectives']} to {last['objectives']} objectives the peak grows "
                f"{_ratio(last['peak_tokens'], first['peak_tokens'])} and the total "
                f"{_ratio(last['total_tokens'], first['total_tokens'])}"
            )
    return lines


def _with_interval(value: float | None, interval: Sequence[float] | None, form: str) -> str:
    if value is None or interval is None:
        return _number(value, form)
    return f"{value:{form}} [{interval[0]:{form}}, {interval[1]:{form}}]"


def _number(value: float | None, form: str) -> str:
    return UNKNOWN if value is None else f"{value:{form}}"


def _ratio(after: float | None, before: float | None) -> str:
    return f"{after / before:.1f} times" if after is not None and before else "an unknown number of times"
