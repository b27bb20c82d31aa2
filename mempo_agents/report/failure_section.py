"""Section 10: what failed, by kind, each with the episodes where it happened."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from mempo_agents.report.comparisons import Comparison
from mempo_agents.report.figures import label, layout
from mempo_agents.report.parts import Column, Figure, Section, Table
from mempo_agents.report.text import join_words

KINDS = {
    "no_action": "no call and no answer",
    "unclosed": "a tag was not closed",
    "mismatched": "tags do not match",
    "nested": "a tag inside another",
    "empty": "an empty call or answer",
    "malformed_json": "the call is no JSON",
    "unknown_tool": "a tool that does not exist",
    "bad_arguments": "wrong arguments",
    "length": "the response hit its length limit",
    "max_steps": "ran out of steps",
    "context_length": "ran out of context",
    "failed": "infrastructure failed (not scored)",
}
_PAGE_ROWS = 500


def failures_section(compared: Sequence[Comparison], episodes: Sequence[dict[str, Any]]) -> Section:
    rows: list[dict[str, Any]] = []
    figures = []
    for c, comparison in enumerate(compared):
        counts: dict[str, Counter[str]] = {}
        for series in comparison.series:
            found = [(kind, n, step) for n in series.episodes for kind, step in _failures(episodes[n])]
            counts[series.name] = Counter(kind for kind, _, _ in found)
            rows += [
                {
                    "comparison": comparison.label,
                    "policy": series.name,
                    "kind": KINDS.get(kind, kind),
                    "task": episodes[number]["task"],
                    "trajectory": episodes[number]["trajectory"],
                    "step": step + 1 if step is not None else None,
                    "error": episodes[number]["error"] if kind == "failed" else None,
                    "episode": number,
                    "at_step": step or 0,
                }
                for kind, number, step in found
            ]
        if any(counts.values()):
            figures.append(_figure(comparison, counts, c))
    columns = [
        Column("task", "task"),
        Column("trajectory", "trajectory"),
        Column("kind", "what"),
        Column("step", "step", "d"),
        Column("comparison", "comparison"),
        Column("error", "error"),
    ]
    shown = rows[:_PAGE_ROWS]
    summary = Counter((row["comparison"], row["policy"], row["kind"]) for row in rows)
    table = Table(
        "failures-table",
        "Every failure, with its episode",
        columns,
        shown,
        note="" if len(shown) == len(rows) else f"The first {len(shown):,} of {len(rows):,}; the counts are complete.",
    )
    totals = Table(
        "failure-counts",
        "Counts",
        [
            Column("comparison", "comparison"),
            Column("policy", "policy"),
            Column("kind", "what"),
            Column("count", "times", ",d"),
        ],
        [{"comparison": c, "policy": p, "kind": k, "count": n} for (c, p, k), n in summary.most_common()],
    )
    nothing = "Nothing failed: every action was valid, every episode ended with an answer, no search broke down."
    return Section(
        id="failures",
        number=10,
        title="What failed",
        explanation=(
            "A step without a valid action costs the policy that step and is answered with what was wrong. An "
            "episode that "
            "runs out of steps or context is cut off and scored as it stands. One whose search engine broke is not the "
            "policy's fault: it is counted here and left out of every score."
        ),
        figures=figures,
        tables=[totals, table] if rows else [],
        missing=[] if episodes else ["These runs hold no trajectories, so failures are not known one by one."],
        notes=[nothing] if episodes and not rows else [],
        default_choice=figures[0].choice if figures else "",
    )


def _failures(episode: dict[str, Any]) -> list[tuple[str, int | None]]:
    """(kind, step) of every invalid action and of an ending that is no answer."""
    found: list[tuple[str, int | None]] = [(kind, s) for s, kind in enumerate(episode["invalid"]) if kind]
    if episode["stop_reason"] != "answered":
        found.append((episode["stop_reason"], max(episode["steps"] - 1, 0) if episode["steps"] else None))
    return found


def _figure(comparison: Comparison, counts: dict[str, Counter[str]], c: int) -> Figure:
    kinds = [kind for kind in KINDS if any(counter[kind] for counter in counts.values())]
    kinds += sorted({kind for counter in counts.values() for kind in counter} - set(KINDS))
    traces = [
        {
            "type": "bar", "orientation": "h", "name": label(series.name),
            "y": [label(KINDS.get(kind, kind)) for kind in kinds], "x": [counts[series.name][kind] for kind in kinds],
            "marker": {"color": comparison.palette.colour(comparison.colour_key(series))},
            "hovertemplate": f"<b>{label(series.name)}</b><br>%{{y}}: %{{x:,}} times<extra></extra>",
        }
        for series in comparison.series
    ]  # fmt: skip
    told = [
        f"{name}: {join_words([f'{KINDS.get(k, k)} {n} times' for k, n in counter.most_common()])}"
        for name, counter in counts.items()
        if counter
    ]
    return Figure(
        id=f"failures-{c}",
        title=f"Failures by kind: {comparison.label}",
        alt=f"Bars of how often each kind of failure happened. {'; '.join(told)}.",
        spec={
            "data": traces,
            "layout": layout("times", "", barmode="group", yaxis={"autorange": "reversed", "automargin": True}),
        },
        choice=comparison.label,
        height=160 + 46 * len(kinds),
    )
