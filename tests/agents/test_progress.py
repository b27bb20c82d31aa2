"""Bars: what they show on a terminal, and that they say nothing elsewhere."""

from __future__ import annotations

import io
import re

from rich.console import Console

from mempo_agents.progress import training_bar


def terminal(clock: list[float]) -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=140, get_time=lambda: clock[0])


def shown(console: Console) -> str:
    """The last state of the bar."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", console.file.getvalue())  # type: ignore[attr-defined]
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "\r", text)
    return [line.strip() for line in text.split("\r") if line.strip()][-1]


def test_a_bar_shows_share_figures_and_time_left():
    clock = [0.0]
    console = terminal(clock)
    with training_bar(console) as bar:
        for done, at in ((0.1, 60.0), (0.2, 120.0)):
            clock[0] = at
            bar(done, f"update {done * 100:.0f}/100", "f1 0.750")
    # A tenth a minute, eight tenths to go.
    assert re.search(r"update 20/100 .* 20% f1 0\.750 0:02:00 left 0:08:00", shown(console))


def test_what_was_done_before_does_not_count_for_the_speed():
    clock = [0.0]
    console = terminal(clock)
    with training_bar(console, begun=0.5) as bar:
        clock[0] = 1.0
        for done, at in ((0.6, 600.0), (0.7, 1200.0)):
            clock[0] = at
            bar(done, "update", "")
    # A tenth in ten minutes, three to go: half an hour, though the bar stood at a half from the start.
    assert re.search(r"70% +0:20:00 left 0:30:0[01]", shown(console))


def test_a_run_that_goes_on_is_shown_where_it_stands():
    console = terminal([0.0])
    with training_bar(console, begun=0.5):
        pass
    assert re.search(r"continuing .* 50%", shown(console))


def test_nothing_is_drawn_where_nobody_watches():
    console = Console(file=io.StringIO())
    with training_bar(console) as bar:
        bar(0.5, "update 1/2", "f1 0.750")
    assert console.file.getvalue() == ""  # type: ignore[attr-defined]
