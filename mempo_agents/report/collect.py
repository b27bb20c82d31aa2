"""From run files to what the sections are drawn from: episodes, cells, groups, grades. What was read is kept.

A `Collection` keeps no text in memory as text: an episode's viewer record is compressed as soon as it is read.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mempo_agents.learners.metrics_log import read_metrics
from mempo_agents.metrics import summarise
from mempo_agents.report.episodes import index_row, viewer_record, without_tokens
from mempo_agents.report.grades import key_of, memory_grades, outcome_groups
from mempo_agents.report.runs import GrowingFile, RunFiles, find_runs
from mempo_agents.trajectory import Trajectory

_SHARED_CHARS = 40  # lines of this length or more are written once for all episodes


@dataclass
class Run:
    """One run as read so far. `episodes`: index rows; `slim`: the same for metrics; `blocks`: for the viewer."""

    files: RunFiles
    results: dict[str, Any] | None = None
    metrics: list[dict[str, Any]] = field(default_factory=list)
    episodes: list[dict[str, Any]] = field(default_factory=list)
    slim: list[Trajectory] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)
    groups: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    grades: dict[tuple[str, str, int], dict[str, Any]] = field(default_factory=dict)
    credit: dict[str, Any] | None = None

    @property
    def name(self) -> str:
        return self.files.name

    def describe(self) -> Mapping[str, Any]:
        """The `run` part of the results, {} where there are none."""
        return (self.results or {}).get("run", {})

    def window_tokens(self) -> int | None:
        return self.describe().get("engine", {}).get("window_tokens")

    def cells(self) -> list[dict[str, Any]]:
        """One summary per policy and objectives: the file's where it counts the same episodes, else computed here."""
        members: dict[tuple[str, str, int], list[Trajectory]] = {}
        for trajectory in self.slim:
            members.setdefault((trajectory.policy, trajectory.context, trajectory.objectives), []).append(trajectory)
        written = {(c["policy"], c["context"], c["objectives"]): c for c in (self.results or {}).get("cells", ())}
        if not self.files.trajectories:
            return list(written.values())
        seed = self.describe().get("arguments", {}).get("seed", 0)
        cells = []
        for key, rows in members.items():
            cell = written.get(key)
            if cell is None or cell["episodes"] != len(rows):
                first = rows[0]
                cell = {
                    "policy": key[0],
                    "objectives": key[2],
                    "engine": first.metadata.get("engine", ""),
                    "guided": first.guided,
                    "protocol": first.protocol,
                    "context": key[1],
                    **summarise(rows, seed=seed),
                }
            cells.append(cell)
        return cells


@dataclass(frozen=True, slots=True)
class Block:
    """One episode's viewer record, compressed; `lines` are the numbers of the shared lines that it refers to."""

    data: bytes
    lines: tuple[int, ...]


class Lines:
    """Lines that replies are made of, each kept once, by number."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._numbers: dict[str, int] = {}

    def number(self, line: str) -> int:
        if line not in self._numbers:
            self._numbers[line] = len(self.texts)
            self.texts.append(line)
        return self._numbers[line]

    def fold(self, text: str) -> list[int | str]:
        """`text` cut at line breaks, long lines as numbers, neighbouring short ones together; the page unfolds it."""
        parts: list[int | str] = []
        for line in text.split("\n"):
            if len(line) >= _SHARED_CHARS:
                parts.append(self.number(line))
            elif parts and isinstance(parts[-1], str):
                parts[-1] += "\n" + line
            else:
                parts.append(line)
        return parts


class Collection:
    """All runs of a report. `refresh()` reads what is new since the last call."""

    def __init__(self, paths: Iterable[Path]) -> None:
        self.paths = list(paths)
        self.runs: list[Run] = []
        self.lines = Lines()
        self._files: dict[Path, GrowingFile] = {}

    def refresh(self) -> None:
        """Raises DataError for a path without a run, or a file that is not what its name says."""
        known = {(run.files.folder, run.files.trajectories): run for run in self.runs}
        self.runs = []
        for files in find_runs(self.paths):
            run = known.get((files.folder, files.trajectories)) or Run(files)
            run.files = files
            self._read(run)
            self.runs.append(run)

    def _read(self, run: Run) -> None:
        files = run.files
        run.results = files.read_results()
        run.metrics = read_metrics(files.metrics) if files.metrics else []
        if files.trajectories:
            source = self._files.setdefault(files.trajectories, GrowingFile(files.trajectories))
            new = source.new()
            if source.restarted:
                run.episodes, run.slim, run.blocks = [], [], []
            for trajectory in new:
                record = viewer_record(trajectory)
                run.episodes.append(index_row(trajectory, run.name, record["lost"]))
                run.slim.append(without_tokens(trajectory))
                run.blocks.append(self._block(record))
        run.groups = outcome_groups(run.slim)
        run.grades, run.credit = memory_grades(files.credit, run.slim) if files.credit else ({}, None)

    def _block(self, record: dict[str, Any]) -> Block:
        used: set[int] = set()
        for step in record["steps"]:
            step["observation"] = self.lines.fold(step["observation"])
            used.update(part for part in step["observation"] if isinstance(part, int))
        for message in record["messages"]:
            if len(message) == 2:
                message[1] = self.lines.fold(message[1])
                used.update(part for part in message[1] if isinstance(part, int))
        return Block(packed(record), tuple(sorted(used)))


def packed(value: Any) -> bytes:
    """Compressed JSON, ASCII: any Python string survives, lone surrogates too."""
    return gzip.compress(json.dumps(value, separators=(",", ":"), allow_nan=False).encode("ascii"), 6, mtime=0)


def episodes_with_credit(run: Run) -> list[dict[str, Any]]:
    """The index rows of a run, each with its A_T, the size of its group, and whether its memories are graded."""
    rows = []
    for row, trajectory in zip(run.episodes, run.slim, strict=True):
        group = run.groups[trajectory.task_id, trajectory.policy]
        place = group["samples"].index(trajectory.sample)
        rows.append(
            {
                **row,
                "advantage": group["advantages"][place],
                "group_size": len(group["samples"]),
                "graded": key_of(trajectory) in run.grades,
            }
        )
    return rows


def grade_of(run: Run, number: int) -> dict[str, Any] | None:
    """The memory grades of the run's episode `number`."""
    return run.grades.get(key_of(run.slim[number]))
