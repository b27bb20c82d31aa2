"""A progress bar on stderr for whatever runs episodes; silent where nobody watches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

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


def _line_printer(console: Console) -> Watch:
    last = None

    def watch(label: str, done: int, total: int) -> None:
        nonlocal last
        if label != last:
            console.print(f"{label} ({done} of {total} episodes done)", highlight=False)
            last = label

    return watch
