"""What a section is made of: an explanation, figures with their text alternatives, tables, sentences for gaps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mempo_env.rendering import visible

UNKNOWN = "–"
_LONG_ROWS = 60


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table. `form` is a format of Python's for numbers; `unit` stands in the heading."""

    key: str
    heading: str
    form: str = ""
    unit: str = ""

    @property
    def title(self) -> str:
        return f"{self.heading} ({self.unit})" if self.unit else self.heading

    @property
    def is_number(self) -> bool:
        return bool(self.form)

    def show(self, row: Mapping[str, Any]) -> str:
        """The cell's text. None is unknown. A pair of numbers is an interval."""
        value = row.get(self.key)
        if value is None:
            return UNKNOWN
        if isinstance(value, (list, tuple)):
            return f"{value[0]:{self.form}} to {value[1]:{self.form}}"
        if self.form and isinstance(value, (int, float)):
            return f"{value:{self.form}}"
        return visible(str(value))


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of plain values; downloads get these, the page their texts. `open`: stands on the page unfolded.

    A row's `episode`, the number of an episode on this page, makes its first cell a link.
    """

    id: str
    caption: str
    columns: Sequence[Column]
    rows: Sequence[Mapping[str, Any]]
    open: bool = False
    note: str = ""

    @property
    def is_long(self) -> bool:
        """Built by the page's script when it is unfolded: thousands of rows would slow the opening of the page."""
        return not self.open and len(self.rows) > _LONG_ROWS

    def data(self) -> dict[str, Any]:
        """Columns as [key, title, format], and the rows as they are."""
        return {
            "columns": [[c.key, c.title, c.form] for c in self.columns],
            "rows": list(self.rows),
            "caption": self.caption,
            "note": self.note,
        }


@dataclass(frozen=True, slots=True)
class Figure:
    """A plotly figure as plain values, and the sentence that says the same. Colours have names (figures.py).

    `choice`: of the figures of a section that have one, the page shows those of the chosen one.
    """

    id: str
    title: str
    alt: str
    spec: Mapping[str, Any]
    choice: str = ""
    height: int = 360


@dataclass(frozen=True, slots=True)
class Section:
    """One numbered part of the page. `missing`: what a run lacks, and how to get it. `widget`: drawn by the script."""

    id: str
    number: int
    title: str
    explanation: str
    figures: Sequence[Figure] = ()
    tables: Sequence[Table] = ()
    missing: Sequence[str] = ()
    widget: str = ""
    notes: Sequence[str] = ()
    default_choice: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def choices(self) -> list[str]:
        return list(dict.fromkeys(figure.choice for figure in self.figures if figure.choice))

    def data(self) -> dict[str, Any]:
        """What the page keeps of it for drawing and for download."""
        return {
            "figures": {figure.id: {"title": figure.title, **figure.spec} for figure in self.figures},
            "tables": {table.id: table.data() for table in self.tables},
            **self.extra,
        }
