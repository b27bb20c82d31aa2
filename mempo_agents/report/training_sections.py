"""Sections 8 and 9: ablations, as far as the runs hold both sides, and training curves."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mempo_agents.report.collect import Run
from mempo_agents.report.comparisons import Comparison
from mempo_agents.report.figures import Palette, interval_bars, label, layout
from mempo_agents.report.parts import Column, Figure, Section, Table
from mempo_agents.report.text import join_words
from mempo_agents.run_folder import read_json

# Drawn first, in this order; whatever else is numeric follows.
USUAL = ("reward_mean", "reward", "f1", "eval_f1", "em", "eval_em", "loss", "kl", "entropy", "grad_norm",
         "peak_tokens", "total_tokens", "steps")  # fmt: skip
_SEED = re.compile(r"[-_./ ]?seed[-_=]?\d+", re.IGNORECASE)
_CURVES = 12
_FREE = {"rangemode": "normal", "zeroline": True}
SETTINGS = "settings.json"


def ablation_section(compared: Sequence[Comparison], runs: Sequence[Run], no_grades: str) -> Section:
    figures: list[Figure] = []
    tables: list[Table] = []
    missing: list[str] = []
    contexts = _context_ablation(compared)
    figures += contexts[0]
    tables += contexts[1]
    if not contexts[0]:
        missing.append(
            "Full history against last step: these runs hold no protocol under two context rules. Play one policy "
            "under "
            "both (a policy may set `default_context`) and give both runs to the report."
        )
    rewards = _reward_ablation(runs)
    figures += rewards[0]
    tables += rewards[1]
    if not rewards[0]:
        missing.append(
            "Memory reward on against off: these runs hold no two trainings that differ in it. Train one with the "
            "estimator mempo and one with grpo, and give both folders to the report."
        )
    drift = _drift(runs)
    figures += drift[0]
    tables += drift[1]
    if not drift[0]:
        missing.append(f"Early against late steps: {no_grades}")
    return Section(
        id="ablations",
        number=8,
        title="What each part does",
        explanation=(
            "An ablation changes one thing and keeps the rest: how much of the history stays in view, and whether the "
            "memory is rewarded. The last figure shows how far a memory's grade depends on when it was written: the "
            "history gains a result at every step, so if the memories gain less than that, late ones are graded lower "
            "for being late, and if they gain more, higher. Whatever the step explains is no merit of the memory."
        ),
        figures=figures,
        tables=tables,
        missing=missing,
    )


def _context_ablation(compared: Sequence[Comparison]) -> tuple[list[Figure], list[Table]]:
    figures: list[Figure] = []
    rows: list[dict[str, Any]] = []
    for c, comparison in enumerate(compared):
        protocols: dict[str, list[Any]] = {}
        for series in comparison.series:
            protocols.setdefault(str(series.cells[0]["protocol"]), []).append(series)
        for protocol, members in protocols.items():
            if len({series.context for series in members}) < 2:
                continue
            palette = Palette([series.context for series in members])
            traces, told = [], []
            for series in members:
                cells = series.by_objectives()
                f1 = [cell["f1"] for cell in cells.values()]
                intervals = [cell["intervals"].get("f1") for cell in cells.values()]
                for k, cell in cells.items():
                    rows.append(
                        {
                            "comparison": comparison.label,
                            "protocol": protocol,
                            "context": series.context,
                            "objectives": k,
                            "f1": cell["f1"],
                            "interval": cell["intervals"].get("f1"),
                            "total_tokens": cell["total_tokens"],
                        }
                    )
                traces.append(
                    {
                        "type": "scatter", "mode": "lines+markers", "name": label(series.context),
                        "x": list(cells), "y": f1,
                        "error_y": interval_bars(f1, intervals), "line": palette.line(series.context),
                        "marker": palette.marker(series.context),
                        "hovertemplate": f"<b>{label(series.context)}</b>, %{{x}} objectives<br>"
                        f"F1 %{{y:.3f}}<extra></extra>",
                    }
                )  # fmt: skip
                known = [f"{v:.2f} at {k}" for k, v in zip(cells, f1, strict=True) if v is not None]
                told.append(f"{series.context} {join_words(known) or 'unknown'}")
            figures.append(
                Figure(
                    id=f"ablation-context-{c}-{len(figures)}",
                    title=f"Full history or less: protocol {protocol}, {comparison.label}",
                    alt=f"F1 by objectives under each context rule: {'; '.join(told)}.",
                    spec={"data": traces, "layout": _f1_layout(comparison)},
                    height=300,
                )
            )
    columns = [
        Column("comparison", "comparison"),
        Column("protocol", "protocol"),
        Column("context", "context rule"),
        Column("objectives", "objectives", "d"),
        Column("f1", "F1", ".3f"),
        Column("interval", "95% interval", ".3f"),
        Column("total_tokens", "total", ",.0f", "tokens"),
    ]
    return figures, [Table("ablation-context-table", "Context rules", columns, rows)] if figures else []


def _f1_layout(comparison: Comparison) -> dict[str, Any]:
    return layout("objectives", "F1 (0 to 1)", xaxis={"tickvals": comparison.objectives}, yaxis={"range": [0, 1.05]})


def _reward_ablation(runs: Sequence[Run]) -> tuple[list[Figure], list[Table]]:
    sides: dict[str, list[Run]] = {}
    for run in runs:
        estimator = run_settings(run).get("estimator") if run.metrics else None
        if isinstance(estimator, str):
            sides.setdefault("memory reward on" if estimator.startswith("mempo") else "memory reward off", []).append(
                run
            )
    measure = next((m for m in ("eval_f1", "f1", "reward_mean", "reward") if _has(sides, m)), None)
    if len(sides) < 2 or measure is None:
        return [], []
    palette = Palette(list(sides))
    traces, rows, told = [], [], []
    for side, members in sides.items():
        curve = _curve(members, measure)
        traces += _curve_traces(side, curve, palette, measure)
        rows += [{"side": side, "seeds": len(members), **point} for point in curve]
        told.append(f"{side} ends at {curve[-1]['mean']:.3f} ({len(members)} runs)")
    figure = Figure(
        id="ablation-reward",
        title=f"Memory reward on or off: {measure} in training",
        alt=f"{measure} by training step: {join_words(told)}.",
        spec={"data": traces, "layout": layout("training step", label(measure))},
        height=300,
    )
    columns = [Column("side", "memory reward"), Column("seeds", "runs", "d"), *_CURVE_COLUMNS]
    return [figure], [Table("ablation-reward-table", "Memory reward on or off", columns, rows)]


def _has(sides: Mapping[str, Sequence[Run]], measure: str) -> bool:
    return all(any(r.get(measure) is not None for run in members for r in run.metrics) for members in sides.values())


def _drift(runs: Sequence[Run]) -> tuple[list[Figure], list[Table]]:
    figures, rows = [], []
    names = (("memory_reward", "R_M", 2, "solid", "circle"), ("memory_advantage", "A_M", 0, "dash", "square"))
    for number, run in enumerate(runs):
        steps = [s for s in (run.credit or {}).get("figures", {}).get("by_step", ()) if s["memory_reward"]["count"]]
        if not steps:
            continue
        x = [step["step"] + 1 for step in steps]
        traces = []
        for key, name, colour, dash, symbol in names:
            means = [step[key]["mean"] for step in steps]
            traces.append(
                {
                    "type": "scatter", "mode": "lines+markers", "name": name, "x": x, "y": means,
                    "customdata": [step[key]["count"] for step in steps],
                    "error_y": interval_bars(means, [step[key]["interval"] for step in steps]),
                    "line": {"color": f"@{colour}", "width": 2.5, "dash": dash},
                    "marker": {"color": f"@{colour}", "size": 7, "symbol": symbol},
                    "hovertemplate": f"<b>{name}</b>, step %{{x}}<br>"
                    f"mean %{{y:.4g}}<br>%{{customdata}} memories<extra></extra>",
                }
            )  # fmt: skip
        for step in steps:
            rows.append(
                {
                    "run": run.name,
                    "step": step["step"] + 1,
                    "count": step["memory_reward"]["count"],
                    **{key: step[key]["mean"] for key, *_ in names},
                    **{f"{key}_interval": step[key]["interval"] for key, *_ in names},
                }
            )
        share = run.credit["figures"].get("step_share") if run.credit else None
        explained = (
            "" if share is None else f" The step number alone explains {100 * share:.1f}% of the variance of A_M."
        )
        figures.append(
            Figure(
                id=f"drift-{number}",
                title=f"Early and late memories: {run.name}",
                alt=(
                    f"Mean memory reward R_M by step: {steps[0]['memory_reward']['mean']:+.3g} at step {x[0]}, "
                    f"{steps[-1]['memory_reward']['mean']:+.3g} at step {x[-1]}.{explained}"
                ),
                spec={"data": traces, "layout": layout("step", "R_M and A_M", yaxis=_FREE)},
                height=300,
            )
        )  # fmt: skip
    columns = [
        Column("run", "run"),
        Column("step", "step", "d"),
        Column("count", "memories", "d"),
        Column("memory_reward", "R_M", "+.4g"),
        Column("memory_reward_interval", "95% interval", "+.4g"),
        Column("memory_advantage", "A_M", "+.4f"),
        Column("memory_advantage_interval", "95% interval", "+.4f"),
    ]
    return figures, [Table("drift-table", "Memory reward and advantage by step", columns, rows)] if figures else []


_CURVE_COLUMNS = (
    Column("step", "training step", ",d"),
    Column("mean", "mean", ".4f"),
    Column("spread", "lowest to highest run", ".4f"),
)


def training_section(runs: Sequence[Run]) -> Section:
    trained = [run for run in runs if run.metrics]
    families = _families(trained)
    palette = Palette(list(families))
    numeric = sorted(
        {
            key
            for run in trained
            for record in run.metrics
            for key, value in record.items()
            if key != "step" and isinstance(value, (int, float)) and not isinstance(value, bool)
        }
    )
    chosen = [name for name in USUAL if name in numeric]
    chosen += [name for name in numeric if name not in chosen]
    figures: list[Figure] = []
    rows: list[dict[str, Any]] = []
    for name in chosen:
        traces, told = [], []
        for family, members in families.items():
            curve = _curve(members, name)
            if not curve:
                continue
            rows += [{"metric": name, "run": family, "seeds": len(members), **point} for point in curve]
            traces += _curve_traces(family, curve, palette, name)
            told.append(f"{family} from {curve[0]['mean']:.4g} to {curve[-1]['mean']:.4g} at step {curve[-1]['step']}")
        if traces and len(figures) < _CURVES:
            figures.append(
                Figure(
                    id=f"training-{len(figures)}",
                    title=name,
                    alt=f"{name} by training step: {join_words(told)}.",
                    spec={
                        "data": traces,
                        "layout": layout("training step", label(name), yaxis=_FREE),
                    },
                    height=280,
                )
            )
    more = len(chosen) - len(figures)
    columns = [Column("metric", "metric"), Column("run", "run"), Column("seeds", "seeds", "d"), *_CURVE_COLUMNS]
    return Section(
        id="training",
        number=9,
        title="Training",
        explanation=(
            "What a training run logged at each update. Runs whose names differ only in their seed are drawn as one "
            "line, "
            "their mean, with a band from the lowest to the highest of them: a difference smaller than the band may "
            "be luck."
        ),
        figures=figures,
        tables=[Table("training-table", "All curves", columns, rows)] if rows else [],
        missing=[] if figures else ["These folders hold no training run (no metrics.jsonl)."],
        notes=[f"{more} more metrics are in the table below."] if figures and more else [],
    )


def _curve(runs: Sequence[Run], name: str) -> list[dict[str, Any]]:
    """At each step that any run logged: the mean and [lowest, highest] over the runs that logged `name` there."""
    at: dict[int, list[float]] = {}
    for run in runs:
        for record in run.metrics:
            value = record.get(name)
            if isinstance(value, (int, float)) and "step" in record:
                at.setdefault(record["step"], []).append(float(value))
    return [
        {"step": step, "mean": float(np.mean(values)), "spread": [min(values), max(values)]}
        for step, values in sorted(at.items())
    ]


def _curve_traces(name: str, curve: list[dict[str, Any]], palette: Palette, measure: str) -> list[dict[str, Any]]:
    x = [point["step"] for point in curve]
    band = {
        "type": "scatter", "mode": "lines", "hoverinfo": "skip", "showlegend": False, "fill": "toself",
        "line": {"width": 0}, "fillcolor": palette.colour(name, 0.18), "x": x + x[::-1],
        "y": [p["spread"][1] for p in curve] + [p["spread"][0] for p in curve][::-1],
    }  # fmt: skip
    line = {
        "type": "scatter", "mode": "lines", "name": label(name), "x": x, "y": [p["mean"] for p in curve],
        "line": palette.line(name), "customdata": [p["spread"] for p in curve],
        "hovertemplate": f"<b>{label(name)}</b>, training step %{{x}}<br>{label(measure)} %{{y:.5g}}<br>runs from "
        "%{customdata[0]:.5g} to %{customdata[1]:.5g}<extra></extra>",
    }  # fmt: skip
    return [band, line]


def _families(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Runs that are the same but for their seed, by their name without it."""
    families: dict[str, list[Run]] = {}
    keys: dict[str, str] = {}
    for run in runs:
        name = (
            _SEED.sub("", run.name).strip("/_-. ") or _SEED.sub("", run.files.folder.resolve().parent.name) or run.name
        )
        settings = {key: value for key, value in run_settings(run).items() if key != "seed"}
        key = f"{name} {json.dumps(settings, sort_keys=True)}"
        if key not in keys:
            number = sum(label.partition(" (")[0] == name for label in families)
            keys[key] = f"{name} ({number + 1})" if number else name
        families.setdefault(keys[key], []).append(run)
    return families


def run_settings(run: Run) -> dict[str, Any]:
    """What a training run says about its settings; {} when it says nothing."""
    path = run.files.folder / SETTINGS
    return read_json(path) if path.is_file() else {}
