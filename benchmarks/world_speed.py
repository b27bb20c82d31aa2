"""Articles and questions per second of the procedural encyclopedia, and the memory that a world takes.

Every cell runs in a process of its own, on one core. Memory is how far the process grew while it wrote the whole world
as a stream; flat means that it grows no further with the number of articles. The figure to beat: 100,000 articles in
under a minute.
"""

from __future__ import annotations

import json as json_module
import multiprocessing
import resource
import shlex
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer

from mempo_agents.provenance import git_revision, machine_class, versions
from mempo_env.tasks.world import World

SEED = 0
SPLIT = "train"
CELLS = (
    ("plain", 200),
    ("plain", 10_000),
    ("plain", 100_000),
    ("compact", 200),
    ("compact", 10_000),
    ("compact", 80_000),
)
QUESTIONS = 10_000


@dataclass
class Row:
    """One world. Rates are per second of processor time; `seconds` is the wall clock of writing all articles."""

    register: str
    articles: int
    articles_per_second: float
    questions_per_second: float
    seconds: float
    characters_per_article: float
    grown_mb: float


def run(
    json: Annotated[Path | None, typer.Option(help="Write the results to this file too.")] = None,
    quick: Annotated[bool, typer.Option(help="Leave out the worlds of more than 10,000 articles.")] = False,
) -> None:
    """Write worlds of growing size as streams and measure."""
    rows = []
    print(f"{'register':10}{'articles':>10}{'articles/s':>12}{'questions/s':>13}{'seconds':>9}{'MB grown':>10}")
    for register, size in CELLS:
        if quick and size > 10_000:
            continue
        row = _apart(register, size)
        rows.append(row)
        print(
            f"{row.register:10}{row.articles:>10,}{row.articles_per_second:>12,.0f}{row.questions_per_second:>13,.0f}"
            f"{row.seconds:>9.1f}{row.grown_mb:>10.1f}"
        )
    if json is not None:
        report = {
            "schema_version": 1,
            "benchmark": "world",
            "command": "python -m benchmarks.performance " + shlex.join(["world", *sys.argv[2:]]),
            "seed": SEED,
            "quick": quick,
            "versions": versions(),
            "revision": git_revision(),
            "machine": machine_class(),
            "rows": [asdict(row) for row in rows],
        }
        json.parent.mkdir(parents=True, exist_ok=True)
        json.write_text(json_module.dumps(report, indent=2) + "\n", encoding="utf-8")
        print(f"Written: {json}")


def measure(register: str, size: int) -> Row:
    """Write one world in this process."""
    world = World(size=size, seed=SEED, register=register)
    next(world.iter_questions(SPLIT))  # what is built once is not the stream's
    before = _peak_mb()
    start = time.perf_counter()
    characters, seconds = _timed(lambda: sum(len(p.text) for p in world.iter_passages(SPLIT)))
    wall = time.perf_counter() - start
    asked, asking = _timed(lambda: sum(1 for _ in islice(world.iter_questions(SPLIT), QUESTIONS)))
    return Row(
        register=register,
        articles=size,
        articles_per_second=size / seconds,
        questions_per_second=asked / asking,
        seconds=wall,
        characters_per_article=characters / size,
        grown_mb=_peak_mb() - before,
    )


def _apart(register: str, size: int) -> Row:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(measure, (register, size))


def _timed(work: Callable[[], int]) -> tuple[int, float]:
    start = time.process_time()
    result = work()
    return result, max(time.process_time() - start, 1e-9)


def _peak_mb() -> float:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1024 * 1024 if sys.platform == "darwin" else 1024)  # bytes on macOS, kilobytes on Linux


if __name__ == "__main__":
    typer.run(run)
