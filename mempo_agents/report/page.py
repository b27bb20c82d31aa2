"""The page: one HTML file with everything in it, or the same page fed by the live server."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

from mempo_agents.provenance import package_version
from mempo_agents.report.collect import Collection, Run, episodes_with_credit, grade_of, packed
from mempo_agents.report.comparisons import comparisons
from mempo_agents.report.episode_sections import (
    credit_section,
    grade_section,
    group_section,
    life_section,
    no_grades,
    step_section,
)
from mempo_agents.report.failure_section import failures_section
from mempo_agents.report.figures import POLICY_NAMES
from mempo_agents.report.overview import overviews
from mempo_agents.report.parts import Section
from mempo_agents.report.runs_sections import context_section, scores_section
from mempo_agents.report.text import join_words
from mempo_agents.report.training_sections import ablation_section, training_section
from mempo_env.errors import MissingExtraError
from mempo_env.rendering import visible

BUDGET_BYTES = 15_000_000
_SCRIPTS = ("base.js", "charts.js", "episodes.js", "panels.js", "start.js")
# Of an episode's index row, what the page's own script reads.
_LISTED = ("run", "task", "trajectory", "policy", "objectives", "f1", "em", "reward", "stop_reason", "steps",
           "total_tokens", "advantage", "group_size", "graded")  # fmt: skip


@dataclass
class Page:
    """What one state of a collection shows. `blocks` are the viewer records by the page's episode numbers."""

    runs: Sequence[Run]
    sections: list[Section]
    overview: list[Any]
    episodes: list[dict[str, Any]]
    blocks: list[Any]
    grades: dict[int, dict[str, Any]] = field(default_factory=dict)

    @classmethod
    def of(cls, collection: Collection) -> Page:
        runs = collection.runs
        episodes: list[dict[str, Any]] = []
        blocks: list[Any] = []
        first: dict[str, int] = {}
        grades: dict[int, dict[str, Any]] = {}
        for run in runs:
            first[run.name] = len(episodes)
            for i in range(len(run.episodes)):
                if (grade := grade_of(run, i)) is not None:
                    grades[len(episodes) + i] = grade
            episodes += episodes_with_credit(run)
            blocks += run.blocks
        compared = comparisons(runs, first)
        gap = "" if grades else no_grades(runs)
        sections = [
            context_section(compared, episodes),
            scores_section(compared),
            step_section(compared, episodes),
            group_section(runs, first),
            grade_section(runs, len(grades)),
            credit_section(episodes, len(grades), runs),
            life_section(episodes),
            ablation_section(compared, runs, gap),
            training_section(runs),
            failures_section(compared, episodes),
        ]
        return cls(runs, sections, overviews(compared), episodes, blocks, grades)

    def data(self) -> dict[str, Any]:
        """What the page's script works on, but for the blocks."""
        return {
            "episodes": [{name: row[name] for name in _LISTED} | _marks(row) for row in self.episodes],
            "several_runs": len({row["run"] for row in self.episodes}) > 1,
            "sections": {section.id: section.data() for section in self.sections},
            "overview": {table.id: table.data() for one in self.overview for table in (one.headline, one.choice)},
            "names": POLICY_NAMES,
        }


def _marks(row: dict[str, Any]) -> dict[str, Any]:
    return {"lost": len(row["lost"]), "invalid": sum(kind is not None for kind in row["invalid"])}


def write_report(
    paths: Sequence[Path], out: Path, *, trajectories: int | None = None, budget_bytes: int = BUDGET_BYTES
) -> dict[str, Any]:
    """Read the runs at `paths` and write one HTML file; returns episodes, embedded, bytes.

    trajectories: how many episodes can be opened in the page; None = as many as fit `budget_bytes`. All of them are in
    the figures and tables whatever this says. Raises DataError where there is no run, MissingExtraError without the
    extra `report`.
    """
    collection = Collection(paths)
    collection.refresh()
    page = Page.of(collection)
    html, embedded = static_html(page, collection, trajectories=trajectories, budget_bytes=budget_bytes)
    out.parent.mkdir(parents=True, exist_ok=True)
    part = out.with_name(out.name + ".part")
    part.write_bytes(html)
    part.replace(out)
    return {"episodes": len(page.episodes), "embedded": embedded, "bytes": len(html)}


def static_html(
    page: Page, collection: Collection, *, trajectories: int | None = None, budget_bytes: int = BUDGET_BYTES
) -> tuple[bytes, int]:
    """The self-contained page, and how many episodes can be opened in it."""
    frame = len(render(page, blocks=[], lines=b"", grades=b"", hidden=""))
    grades = packed(page.grades)
    chosen = _that_fit(page, collection, budget_bytes - frame - _base64_length(len(grades)), trajectories)
    hidden = ""
    if len(chosen) < len(page.episodes):
        hidden = (
            f"{len(chosen):,} of {len(page.episodes):,} episodes can be opened in this file"
            + (f", to keep it under {budget_bytes / 1e6:.0f} MB" if trajectories is None else "")
            + "; the figures and tables count all of them. To open the rest, make the page with "
            "`--trajectories N`, or look at all of them with `mempo report --serve`."
        )
    used = {line for number in chosen for line in page.blocks[number].lines}
    lines = [text if n in used else "" for n, text in enumerate(collection.lines.texts)]
    blocks = [_base64(page.blocks[n].data) if n in chosen else None for n in range(len(page.blocks))]
    html = render(page, blocks=blocks, lines=packed(lines), grades=grades, hidden=hidden)
    return html, len(chosen)


def _that_fit(page: Page, collection: Collection, room_bytes: int, wanted: int | None) -> set[int]:
    """Episode numbers to embed: the first ones of every cell in turn, so that all policies and objectives are there."""
    place: dict[tuple[str, str, int], int] = {}
    order = []
    for number, row in enumerate(page.episodes):
        cell = (row["run"], row["policy"], row["objectives"])
        place[cell] = place.get(cell, -1) + 1
        order.append((place[cell], number))
    chosen: set[int] = set()
    lines: set[int] = set()
    spent = 0.0
    for _, number in sorted(order):
        block = page.blocks[number]
        new = set(block.lines) - lines
        # Lines compress to about a third together; half is a bound that holds for ordinary text.
        cost = _base64_length(len(block.data)) + 3 + sum(len(collection.lines.texts[n]) for n in new) * 0.7
        if (wanted is None and spent + cost > room_bytes) or len(chosen) == wanted:
            break
        spent += cost
        lines |= new
        chosen.add(number)
    return chosen


def live_html(page: Page, state: str) -> bytes:
    """The page as the live server gives it: blocks are fetched from there when an episode is opened."""
    return render(page, blocks=None, lines=b"", grades=b"", hidden="", state=state)


def render(
    page: Page, *, blocks: list[str | None] | None, lines: bytes, grades: bytes, hidden: str, state: str = ""
) -> bytes:
    """The template, filled. `blocks` None: a live page, which fetches them."""
    live = blocks is None
    html = _template().render(
        page=page,
        overview=page.overview,
        sections=page.sections,
        live=live,
        state=state,
        hidden=hidden,
        version=package_version(),
        runs=page.runs,
        names=join_words([run.name for run in page.runs]),
        commands=_commands(page.runs),
        css=_asset("report.css"),
        js="\n".join(map(_asset, _SCRIPTS)),
        plotly=_plotly(),
        data=script_json(page.data()),
        blocks=script_json(blocks),
        lines=_base64(lines),
        grades=_base64(grades),
    )
    return str(html).encode("utf-8", errors="replace")


def script_json(value: Any) -> str:
    """JSON that can stand in a script element: nothing in it ends the element or starts a comment."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _commands(runs: Sequence[Run]) -> list[tuple[str, str]]:
    return [(run.name, run.describe()["command"]) for run in runs if run.describe().get("command")]


@lru_cache
def _template() -> Any:
    try:
        import jinja2
    except ImportError:
        raise MissingExtraError("jinja2", "report", "The report") from None
    source = (resources.files("mempo_agents.report") / "templates" / "page.html.j2").read_text(encoding="utf-8")
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    environment.filters["show"] = lambda text: visible(str(text))
    environment.filters["code"] = _code
    return environment.from_string(source)


def _code(text: str) -> Any:
    """`words` between back-ticks as code, everything escaped."""
    from markupsafe import Markup, escape

    pieces = visible(str(text)).split("`")
    return Markup("").join(
        Markup("<code>{}</code>").format(piece) if n % 2 else escape(piece) for n, piece in enumerate(pieces)
    )


@lru_cache
def _asset(name: str) -> str:
    return (resources.files("mempo_agents.report") / "assets" / name).read_text(encoding="utf-8")


@lru_cache
def _plotly() -> str:
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise MissingExtraError("plotly", "report", "The report") from None
    return _base64(gzip.compress(get_plotlyjs().encode(), 9, mtime=0))


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _base64_length(size: int) -> int:
    return (size + 2) // 3 * 4
