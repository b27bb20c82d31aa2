"""Plotly figures as plain values. Colours are "@0" to "@6" (with "/0.2" for opacity), "@ink", "@grid", "@muted".

The page puts in the colours of its light or dark look. They are Okabe and Ito's, told apart by people with any of the
usual colour blindnesses; lines differ in dash and marker as well, so that a grey print can be read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mempo_env.rendering import visible

POLICY_NAMES = {"react": "ReAct", "mem1": "MEM1", "mempo": "MemPO", "search_r1": "Search-R1"}
_FIXED = {"react": 0, "mem1": 1, "mempo": 2}
_DASHES = ("dash", "dot", "solid", "longdash", "dashdot", "solid", "dot")
_SYMBOLS = ("square", "diamond", "circle", "triangle-up", "cross", "star", "x")
COLOURS = 7
_ORDER = (2, 0, 1, 4, 3, 5, 6)


def policy_name(policy: str) -> str:
    return POLICY_NAMES.get(policy, policy)


def label(text: str) -> str:
    """`text` as plotly shows it unchanged: plotly reads some tags, entities and %{...} in its labels."""
    return visible(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("%{", "%\u200a{")


class Palette:
    """One colour, dash and marker per series, the well-known policies always the same ones."""

    def __init__(self, names: Sequence[str]) -> None:
        fixed = {name: _FIXED[name] for name in names if name in _FIXED}
        free = [n for n in _ORDER if n not in fixed.values()]
        others = [name for name in dict.fromkeys(names) if name not in fixed]
        self._numbers = {**fixed, **{name: free[n % len(free)] for n, name in enumerate(others)}}

    def number(self, name: str) -> int:
        return self._numbers.get(name, COLOURS - 1)

    def colour(self, name: str, opacity: float | None = None) -> str:
        return f"@{self.number(name)}" + (f"/{opacity}" if opacity is not None else "")

    def line(self, name: str, width: float = 2.5) -> dict[str, Any]:
        return {"color": self.colour(name), "width": width, "dash": _DASHES[self.number(name)]}

    def marker(self, name: str, size: int = 8) -> dict[str, Any]:
        return {"color": self.colour(name), "size": size, "symbol": _SYMBOLS[self.number(name)]}


def layout(x: str, y: str, **more: Any) -> dict[str, Any]:
    """Axes with titles; everything else about the look is the page's."""
    axes: dict[str, Any] = {"xaxis": {"title": {"text": x}}, "yaxis": {"title": {"text": y}, "rangemode": "tozero"}}
    for name, value in more.items():
        axes[name] = {**axes.get(name, {}), **value} if isinstance(value, Mapping) else value
    return axes


def interval_bars(values: Sequence[float | None], intervals: Sequence[Sequence[float] | None]) -> dict[str, Any]:
    """Error bars from [low, high] pairs, none where unknown."""
    plus = [None if v is None or i is None else i[1] - v for v, i in zip(values, intervals, strict=True)]
    minus = [None if v is None or i is None else v - i[0] for v, i in zip(values, intervals, strict=True)]
    return {"type": "data", "symmetric": False, "array": plus, "arrayminus": minus, "thickness": 1.5, "width": 5}
