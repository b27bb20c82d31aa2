"""The first screen: what was compared, the headline table, and which policy to take at each number of objectives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mempo_agents.report.comparisons import Comparison, choose
from mempo_agents.report.parts import Column, Table

_HARDLY = 0.05
_SEES = {
    "full": "the whole history",
    "last_step": "its memory and the last step",
    "memory_only": "its memory and the last result",
}


@dataclass(frozen=True, slots=True)
class Overview:
    """One comparison on the first screen."""

    title: str
    facts: str
    warning: str
    headline: Table
    choice: Table
    advice: str


def overviews(compared: Sequence[Comparison]) -> list[Overview]:
    """One per comparison, in the order of the runs."""
    return [_overview(comparison, c) for c, comparison in enumerate(compared)]


def _overview(comparison: Comparison, c: int) -> Overview:
    low, high = comparison.objectives[0], comparison.objectives[-1]
    choices = choose(comparison)
    chosen = next((x for x in choices if x.objectives == comparison.default_objectives()), None)
    advice = "Nothing was scored here, so there is no policy to choose."
    if chosen:
        advice = (
            f"At {chosen.objectives} objectives take {chosen.name}: F1 {chosen.f1:.3f}, {chosen.total_tokens:,.0f} "
            "tokens "
            f"an episode, {chosen.peak_tokens:,.0f} at its largest step. It has {chosen.why}."
        )
    warning = ""
    if comparison.engine == "oracle":
        warning = (
            "Played by a scripted oracle that finds and keeps every fact, so F1 is 1 by construction and only the "
            "tokens "
            "compare the policies. A trained model's scores can order them otherwise."
        )
    elif comparison.scripted:
        warning = "Played by a script, not by a model: read the tokens, not the scores."
    best = max((x.f1 for x in choices if x.f1 is not None), default=None)
    if best is not None and best < _HARDLY:
        warning += (" " if warning else "") + (
            f"Hardly anything was answered here (F1 at most {best:.3f}), so no policy has been shown to be better."
        )
    headline_columns = [
        Column("policy", "policy"),
        Column("sees", "sees at each step"),
        *(
            column
            for k in dict.fromkeys((low, high))
            for column in (
                Column(f"f1_{k}", f"F1 at {k}", ".3f"),
                Column(f"peak_{k}", f"peak at {k}", ",.0f", "tokens"),
                Column(f"total_{k}", f"total at {k}", ",.0f", "tokens"),
            )
        ),
    ]
    choice_columns = [
        Column("objectives", "objectives", "d"),
        Column("policy", "take"),
        Column("f1", "F1", ".3f"),
        Column("interval", "95% interval", ".3f"),
        Column("total_tokens", "total", ",.0f", "tokens"),
        Column("why", "because"),
    ]
    return Overview(
        title=comparison.label,
        facts=comparison.facts,
        warning=warning,
        headline=Table(
            f"headline-{c}",
            f"At {low} and {high} objectives" if low != high else f"At {low} objectives",
            headline_columns,
            _headline_rows(comparison, low, high),
            open=True,
        ),
        choice=Table(
            f"choice-{c}",
            "Which policy to choose",
            choice_columns,
            [
                {
                    "objectives": x.objectives,
                    "policy": x.name,
                    "f1": x.f1,
                    "interval": x.interval,
                    "total_tokens": x.total_tokens,
                    "why": x.why,
                }
                for x in choices
            ],
            open=True,
            note="The highest F1; of equal ones the fewest tokens. Computed from the runs on this page.",
        ),
        advice=advice,
    )


def _headline_rows(comparison: Comparison, low: int, high: int) -> list[dict[str, Any]]:
    rows = []
    for series in comparison.series:
        cells = series.by_objectives()
        row: dict[str, Any] = {"policy": series.name, "sees": _SEES.get(series.context, series.context)}
        for k in (low, high):
            cell = cells.get(k, {})
            row |= {
                f"f1_{k}": cell.get("f1"),
                f"peak_{k}": cell.get("peak_tokens"),
                f"total_{k}": cell.get("total_tokens"),
            }
        rows.append(row)
    return rows
