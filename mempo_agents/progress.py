"""Progress bars on stderr, for whatever runs episodes or trains; silent where nobody watches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

# Called with what is running now, the episodes done, and the episodes in all.
Watch = Callable[[str, int, int], None]


@contextmanager
def episode_bar(console: Console, *, lines: bool = False) -> Iterator[Watch]:
    """Yield a `Watch` that draws a bar with the remaining time on a terminal.

    Elsewhere it is silent, or with `lines` prints a line whenever the label changes, so that a log shows where it is.

    Episodes that were done before (a run that continues) set the bar's start and do not count for its speed.
    """
    if not console.is_terminal:
        yield _line_printer(console) if lines else lambda label, done, total: None
        return
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("episodes"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = None

        def watch(label: str, done: int, total: int) -> None:
            nonlocal task
            if task is None:
                task = progress.add_task(label, total=total, completed=done)
            progress.update(task, description=label, completed=done, total=total)

        yield watch


@contextmanager
def training_bar(console: Console, begun: float = 0.0) -> Iterator[Callable[[float, str, str], None]]:
    """Yield a function of (share of the run that is done, label, figures) that draws a bar with the remaining time on a
    terminal, and does nothing elsewhere.

    begun: the share that was done when this process began. It is drawn, and does not count for the speed.
    """
    if not console.is_terminal:
        yield lambda done, label, figures: None
        return
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TaskProgressColumn(),
        TextColumn("{task.fields[figures]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with _live(console, *columns) as progress:
        task = progress.add_task("loading" if not begun else "continuing", total=1.0, completed=begun, figures="")

        def watch(done: float, label: str, figures: str) -> None:
            progress.update(task, completed=done, description=label, figures=figures)

        yield watch


def _live(console: Console, *columns: Any) -> Any:
    """A rich progress display that takes lines on stdout only where stdout is a terminal, too: into a file or a pipe
    they go as they are. The speed is that of the last hour: an update may take minutes."""
    import sys

    from rich.progress import Progress

    return Progress(
        *columns, console=console, transient=True, redirect_stdout=sys.stdout.isatty(), speed_estimate_period=3600
    )


def _line_printer(console: Console) -> Watch:
    last = None

    def watch(label: str, done: int, total: int) -> None:
        nonlocal last
        if label != last:
            console.print(f"{label} ({done} of {total} episodes done)", highlight=False)
            last = label

    return watch
