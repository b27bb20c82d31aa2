"""Sections 1 and 2: what a step's prompt costs, and scores and tokens by the number of objectives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mempo_agents.report.comparisons import Comparison, Series
from mempo_agents.report.figures import interval_bars, label, layout
from mempo_agents.report.parts import Column, Figure, Section, Table
from mempo_agents.report.published import published_rows
from mempo_agents.report.text import join_words

Episodes = Sequence[dict[str, Any]]


def context_section(compared: Sequence[Comparison], episodes: Episodes) -> Section:
    figures: list[Figure] = []
    rows: list[dict[str, Any]] = []
    default = ""
    for comparison in compared:
        for objectives in comparison.objectives:
            choice = f"{comparison.label}: {objectives} objectives"
            found = _context_rows(comparison, objectives, episodes)
            if not found:
                continue
            rows += [{"comparison": comparison.label, "objectives": objectives, **row} for row in found]
            if not default and objectives == comparison.default_objectives():
                default = choice
            figures.append(_context_figure(comparison, objectives, episodes, found, choice, len(figures)))
    columns = [
        Column("comparison", "comparison"),
        Column("objectives", "objectives", "d"),
        Column("policy", "policy"),
        Column("step", "step", "d"),
        Column("episodes", "episodes that reached it", "d"),
        Column("median", "median", ",.0f", "tokens"),
        Column("middle_half", "middle half", ",.0f", "tokens"),
        Column("range", "smallest to largest", ",.0f", "tokens"),
    ]
    return Section(
        id="context",
        number=1,
        title="How the prompt grows",
        explanation=(
            "Each point is the size of the prompt that the policy was given at one step. A policy that keeps the whole "
            "history reads everything again at every step, so its line climbs. One that keeps only its memory and the "
            "last step stays flat, however long the task. The bold line is the median over the episodes that reached "
            "the step, the band holds the middle half of them, thin lines are single episodes: click one to read it."
        ),
        figures=figures,
        tables=[Table("context-table", "Prompt tokens by step", columns, rows)] if rows else [],
        missing=[] if rows else ["These runs hold no trajectories, so nothing is known about single steps."],
        default_choice=default,
    )


def _context_rows(comparison: Comparison, objectives: int, episodes: Episodes) -> list[dict[str, Any]]:
    rows = []
    for series in comparison.series:
        prompts = [episodes[i]["prompt_tokens_by_step"] for i in _members(series, objectives, episodes)]
        for step in range(max((len(p) for p in prompts), default=0)):
            values = np.array([p[step] for p in prompts if len(p) > step])
            low, middle, high = np.quantile(values, [0.25, 0.5, 0.75]).tolist()
            rows.append(
                {
                    "policy": series.name,
                    "step": step + 1,
                    "episodes": len(values),
                    "median": middle,
                    "middle_half": [low, high],
                    "range": [int(values.min()), int(values.max())],
                }
            )
    return rows


def _members(series: Series, objectives: int, episodes: Episodes) -> list[int]:
    return [i for i in series.episodes if episodes[i]["objectives"] == objectives]


def _context_figure(
    comparison: Comparison,
    objectives: int,
    episodes: Episodes,
    rows: list[dict[str, Any]],
    choice: str,
    number: int,
) -> Figure:
    traces: list[dict[str, Any]] = []
    palette, told = comparison.palette, []
    for series in comparison.series:
        own = [row for row in rows if row["policy"] == series.name]
        if not own:
            continue
        key = comparison.colour_key(series)
        x: list[int | None] = []
        y: list[int | None] = []
        numbers: list[int | None] = []
        for i in _members(series, objectives, episodes):
            prompts = episodes[i]["prompt_tokens_by_step"]
            x += [*range(1, len(prompts) + 1), None]
            y += [*prompts, None]
            numbers += [i] * len(prompts) + [None]
        traces.append(
            {
                "type": "scatter", "mode": "lines", "x": x, "y": y, "episodes": numbers, "name": label(series.name),
                "legendgroup": label(series.name), "showlegend": False, "connectgaps": False,
                "line": {"color": palette.colour(key, 0.25), "width": 1},
                "hovertemplate": "%{text}<br>step %{x}: %{y:,} tokens<extra></extra>",
            }
        )  # fmt: skip
        steps = [row["step"] for row in own]
        traces.append(
            {
                "type": "scatter", "mode": "lines", "hoverinfo": "skip", "showlegend": False, "fill": "toself",
                "legendgroup": label(series.name), "line": {"width": 0}, "fillcolor": palette.colour(key, 0.18),
                "x": steps + steps[::-1],
                "y": [row["middle_half"][1] for row in own] + [row["middle_half"][0] for row in own][::-1],
            }
        )  # fmt: skip
        traces.append(
            {
                "type": "scatter", "mode": "lines+markers", "name": label(series.name),
                "legendgroup": label(series.name),
                "x": steps, "y": [row["median"] for row in own],
                "customdata": [[*row["middle_half"], row["episodes"]] for row in own],
                "line": palette.line(key), "marker": palette.marker(key, 6),
                "hovertemplate": f"<b>{label(series.name)}</b>, step %{{x}}<br>median %{{y:,}} tokens<br>middle half "
                "%{customdata[0]:,.0f} to %{customdata[1]:,.0f}<br>%{customdata[2]} episodes<extra></extra>",
            }
        )  # fmt: skip
        told.append(
            f"{series.name} from {own[0]['median']:,.0f} at step 1 to {own[-1]['median']:,.0f} at step {len(own)}"
        )
    more: dict[str, Any] = {}
    window = comparison.runs[0].window_tokens()
    top = max(row["range"][1] for row in rows)
    limit = "No window limit is recorded for this engine."
    if window:
        limit = f"The engine's window is {window:,} tokens."
        inside = window < 3 * top
        more["annotations"] = [
            {
                "xref": "paper", "x": 1, "xanchor": "right", "showarrow": False,
                "font": {"color": "@muted", "size": 12},
                "yref": "y" if inside else "paper", "y": window if inside else 1, "yanchor": "bottom",
                "text": f"window: {window:,} tokens" + ("" if inside else " (above this chart)"),
            }
        ]  # fmt: skip
        if inside:
            more["shapes"] = [
                {
                    "type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": window, "y1": window,
                    "line": {"color": "@muted", "width": 1.5, "dash": "dash"},
                }
            ]  # fmt: skip
    return Figure(
        id=f"context-{number}",
        title=f"Prompt size by step, {objectives} objectives",
        alt=f"Lines of the median prompt size in tokens by step: {join_words(told)}. {limit}",
        spec={
            "data": traces,
            "layout": layout("step", "prompt (tokens)", xaxis=_steps(rows), yaxis={"tickformat": ","}, **more),
        },
        choice=choice,
        height=400,
    )


def _steps(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {"range": [0.5, max(row["step"] for row in rows) + 0.5]}


MEASURES = (
    ("f1", "F1", "mean over objectives, 0 to 1", ".3f"),
    ("em", "Exact match", "mean over objectives, 0 to 1", ".3f"),
    ("total_tokens", "All tokens of an episode", "tokens", ",.0f"),
    ("peak_tokens", "Largest step of an episode", "tokens", ",.0f"),
)
SCORE_COLUMNS = (
    Column("policy", "policy"),
    Column("objectives", "objectives", "d"),
    Column("f1", "F1", ".3f"),
    Column("f1_interval", "95% interval", ".3f"),
    Column("em", "EM", ".3f"),
    Column("em_interval", "95% interval", ".3f"),
    Column("all_correct", "all right", ".3f"),
    Column("format_valid", "well-formed", ".3f"),
    Column("steps", "steps", ".1f"),
    Column("peak_tokens", "peak", ",.0f", "tokens"),
    Column("peak_tokens_interval", "95% interval", ",.0f", "tokens"),
    Column("total_tokens", "total", ",.0f", "tokens"),
    Column("total_tokens_interval", "95% interval", ",.0f", "tokens"),
    Column("tasks", "tasks", "d"),
    Column("episodes", "episodes", "d"),
    Column("failed", "failed", "d"),
)


def score_rows(comparison: Comparison) -> list[dict[str, Any]]:
    """The cells of a comparison as rows of `SCORE_COLUMNS`."""
    rows = []
    for series in comparison.series:
        for cell in series.by_objectives().values():
            row = {column.key: cell.get(column.key) for column in SCORE_COLUMNS}
            row["policy"] = series.name
            for name, interval in cell["intervals"].items():
                row[f"{name}_interval"] = interval
            rows.append({column.key: row.get(column.key) for column in SCORE_COLUMNS})
    return rows


def scores_section(compared: Sequence[Comparison]) -> Section:
    figures, tables = [], []
    for c, comparison in enumerate(compared):
        figures += [_score_figure(comparison, measure, c) for measure in MEASURES]
        tables.append(
            Table(
                f"scores-table-{c}",
                comparison.label,
                SCORE_COLUMNS,
                score_rows(comparison),
                open=True,
                note=comparison.facts
                + (
                    ". The scripted oracle plays perfectly by construction: its scores prove the environment, its "
                    "token counts compare the context rules. It says nothing about a trained model."
                    if comparison.engine == "oracle"
                    else ""
                ),
            )
        )
    columns = (
        Column("policy", "policy"),
        Column("model", "model"),
        Column("objectives", "objectives"),
        Column("f1", "F1", ".3f"),
        Column("em", "EM", ".3f"),
        Column("peak_tokens", "peak", ",.0f", "tokens"),
        Column("source", "source"),
    )
    tables.append(
        Table(
            "published-table",
            "Published figures: not ours",
            columns,
            published_rows(),
            note=(
                "From the papers, as far as they are known to us: other models, other corpora, other token counts "
                "(MEM1 "
                "leaves the prompt out of its peak), so read them as a neighbourhood, not as a comparison. MEM1's sums "
                "over objectives are divided by the objectives here."
            ),
        )
    )
    return Section(
        id="scores",
        number=2,
        title="Scores and tokens by objectives",
        explanation=(
            "An objective is one question of a task. More of them make a longer episode. F1 (shared words) and exact "
            "match "
            "(EM) compare each answer with the right one, in [0, 1]. Total tokens are all prompts and responses of an "
            "episode; the peak is the largest single step and decides how much memory a server needs. Bars are 95% "
            "bootstrap intervals over tasks: where two of them overlap, the order of the two is not settled."
        ),
        figures=figures,
        tables=tables,
        missing=[] if compared else ["These runs hold no results of an evaluation: `mempo eval` makes them."],
        default_choice=compared[0].label if compared else "",
    )


def _score_figure(comparison: Comparison, measure: tuple[str, str, str, str], c: int) -> Figure:
    name, title, unit, form = measure
    traces, told = [], []
    for series in comparison.series:
        cells = series.by_objectives()
        key = comparison.colour_key(series)
        values = [cell[name] for cell in cells.values()]
        intervals = [cell["intervals"].get(name) for cell in cells.values()]
        traces.append(
            {
                "type": "scatter", "mode": "lines+markers", "name": label(series.name),
                "x": list(cells), "y": values, "error_y": interval_bars(values, intervals),
                "customdata": [
                    [*(i or (None, None)), cell["tasks"]] for i, cell in zip(intervals, cells.values(), strict=True)
                ],
                "line": comparison.palette.line(key), "marker": comparison.palette.marker(key),
                "hovertemplate": f"<b>{label(series.name)}</b>, %{{x}} objectives<br>"
                f"{title} %{{y:{form}}} ({unit})<br>95% interval "
                f"%{{customdata[0]:{form}}} to %{{customdata[1]:{form}}}<br>%{{customdata[2]}} tasks<extra></extra>",
            }
        )  # fmt: skip
        known = [(k, v) for k, v in zip(cells, values, strict=True) if v is not None]
        if known:
            told.append(f"{series.name} {join_words([f'{v:{form}} at {k}' for k, v in known])}")
    axes: dict[str, Any] = {"xaxis": {"tickvals": comparison.objectives}}
    if name in ("f1", "em"):
        axes["yaxis"] = {"range": [0, 1.05]}
    else:
        axes["yaxis"] = {"tickformat": ","}
    return Figure(
        id=f"scores-{c}-{name}",
        title=title,
        alt=f"{title} by number of objectives: {'; '.join(told)}.",
        spec={"data": traces, "layout": layout("objectives", unit, **axes)},
        choice=comparison.label,
        height=300,
    )
