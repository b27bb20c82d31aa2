"""Which runs may stand in one figure: those with the same engine, data and retriever. And who did best there."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mempo_agents.report.collect import Run
from mempo_agents.report.figures import Palette, policy_name
from mempo_agents.report.text import join_words

SCRIPTED = {"oracle", "random", "replay"}


@dataclass
class Series:
    """One line of the figures: a policy under one context rule (of one run, where several runs have the same)."""

    name: str
    policy: str
    context: str
    cells: list[Mapping[str, Any]] = field(default_factory=list)
    episodes: list[int] = field(default_factory=list)

    def by_objectives(self) -> dict[int, Mapping[str, Any]]:
        return {cell["objectives"]: cell for cell in sorted(self.cells, key=lambda cell: cell["objectives"])}


@dataclass
class Comparison:
    """Runs that differ in policy, context rule, objectives and seed only. `series` are in the order of the runs."""

    label: str
    engine: str
    series: list[Series]
    runs: list[Run]
    facts: str

    @property
    def objectives(self) -> list[int]:
        return sorted({cell["objectives"] for series in self.series for cell in series.cells})

    @property
    def scripted(self) -> bool:
        return self.engine in SCRIPTED

    @property
    def palette(self) -> Palette:
        # A policy that stands alone under its name keeps the name's own colour.
        single = [s.policy for s in self.series]
        return Palette([s.policy if single.count(s.policy) == 1 else s.name for s in self.series])

    def colour_key(self, series: Series) -> str:
        return series.policy if sum(s.policy == series.policy for s in self.series) == 1 else series.name

    def default_objectives(self) -> int | None:
        numbers = self.objectives
        return None if not numbers else 8 if 8 in numbers else numbers[-1]


def comparisons(runs: Sequence[Run], first_episode: Mapping[str, int]) -> list[Comparison]:
    """`first_episode`: the page's number of each run's first episode."""
    grouped: dict[str, list[Run]] = {}
    for run in runs:
        if run.episodes or run.cells():
            grouped.setdefault(_identity(run), []).append(run)
    found = []
    for members in grouped.values():
        info = members[0].describe()
        engine = info.get("engine", {}).get("name") or (members[0].episodes or [{}])[0].get("engine") or "unknown"
        found.append(
            Comparison(_label(members, engine), engine, _series(members, first_episode), members, _facts(members))
        )
    labels = [c.label for c in found]
    for comparison in found:
        if labels.count(comparison.label) > 1:
            comparison.label += f" ({join_words([run.name for run in comparison.runs])})"
    return found


def _identity(run: Run) -> str:
    info = run.describe()
    if not info:
        first = run.slim[0] if run.slim else None
        return json.dumps(["bare", first and dict(first.metadata), first and first.guided], sort_keys=True)
    arguments = info.get("arguments", {})
    settings = [arguments.get(name) for name in ("guided", "top_k", "temperature")]
    return json.dumps([info.get("engine"), info.get("dataset"), info.get("retriever"), settings], sort_keys=True)


def _label(runs: Sequence[Run], engine: str) -> str:
    info = runs[0].describe()
    name = info.get("engine", {}).get("tokenizer") if engine == "hf" else None
    label = f"Language model {name}" if name else f"Scripted {engine}" if engine in SCRIPTED else f"Engine {engine}"
    guided = info.get("arguments", {}).get("guided") or any(t.guided for t in runs[0].slim[:1])
    return label + (", guided" if guided else "")


def _facts(runs: Sequence[Run]) -> str:
    info = runs[0].describe()
    if not info:
        return (
            f"{sum(len(run.episodes) for run in runs):,} episodes; no results.json beside them says how they were made"
        )
    arguments = info.get("arguments", {})
    unfinished = "" if all(run.describe().get("complete") for run in runs) else "; not finished yet"
    return (
        f"data {info['dataset']['name']}/{info['dataset']['split']}, {info['retriever']['name']} top "
        f"{arguments.get('top_k')}, tokens counted by {info['engine']['tokenizer']}, "
        f"{sum(len(run.episodes) for run in runs):,} episodes{unfinished}"
    )


def _series(runs: Sequence[Run], first_episode: Mapping[str, int]) -> list[Series]:
    found: dict[tuple[str, str, str], Series] = {}
    taken: dict[tuple[str, str, int], str] = {}
    for run in runs:
        for cell in run.cells():
            # Cells of several runs join one line unless they would stand on one another.
            place = (cell["policy"], cell["context"], cell["objectives"])
            part = run.name if taken.setdefault(place, run.name) != run.name else ""
            key = (cell["policy"], cell["context"], part)
            series = found.setdefault(key, Series("", cell["policy"], cell["context"]))
            series.cells.append(cell)
            start = first_episode.get(run.name, 0)
            series.episodes += [
                start + i
                for i, row in enumerate(run.episodes)
                if (row["policy"], row["context"], row["objectives"]) == place
            ]
    contexts: dict[str, set[str]] = {}
    for policy, context, _ in found:
        contexts.setdefault(policy, set()).add(context)
    for (policy, context, part), series in found.items():
        name = policy_name(policy)
        name += f", {context}" if len(contexts[policy]) > 1 else ""
        series.name = name + (f", {part}" if part else "")
    return list(found.values())


@dataclass(frozen=True, slots=True)
class Choice:
    """Who to take at one number of objectives, and how sure that is."""

    objectives: int
    name: str
    f1: float | None
    interval: Sequence[float] | None
    total_tokens: float | None
    peak_tokens: float | None
    why: str


def choose(comparison: Comparison) -> list[Choice]:
    """Per number of objectives the highest F1; of equal ones the fewest tokens; overlapping intervals are said."""
    choices = []
    for objectives in comparison.objectives:
        rows = [(s.name, s.by_objectives()[objectives]) for s in comparison.series if objectives in s.by_objectives()]
        rows = [(name, cell) for name, cell in rows if cell["f1"] is not None]
        if not rows:
            continue
        best = max(cell["f1"] for _, cell in rows)
        equal = sorted((r for r in rows if r[1]["f1"] == best), key=lambda r: r[1]["total_tokens"])
        name, cell = equal[0]
        choices.append(
            Choice(
                objectives=objectives,
                name=name,
                f1=cell["f1"],
                interval=cell["intervals"].get("f1"),
                total_tokens=cell["total_tokens"],
                peak_tokens=cell["peak_tokens"],
                why=_why(cell, [n for n, _ in equal[1:]], [r for r in rows if r[1]["f1"] < best]),
            )
        )
    return choices


def _why(cell: Mapping[str, Any], equal: list[str], lower: list[tuple[str, Mapping[str, Any]]]) -> str:
    low = cell["intervals"].get("f1")
    overlapping = [n for n, other in lower if low and (i := other["intervals"].get("f1")) and i[1] >= low[0]]
    words = (
        [f"the same F1 as {join_words(equal)}, with fewer tokens" if equal else "the highest F1"]
        if equal or lower
        else ["no rival here"]
    )
    if overlapping:
        words.append(f"not settled: the interval overlaps with that of {join_words(overlapping)}")
    elif lower:
        words.append(f"clear of {join_words([n for n, _ in lower])}")
    return "; ".join(words)
