"""Which files a report is made of: run folders, found where the reader points, read again only where they grew."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mempo_agents.files import read_line
from mempo_agents.learners.metrics_log import METRICS
from mempo_agents.run_folder import RESULTS, TRAJECTORIES, read_json
from mempo_agents.trajectory import Trajectory
from mempo_env.errors import DataError


@dataclass(frozen=True, slots=True)
class RunFiles:
    """One run: its name on the page and the files it has; None where there is none."""

    name: str
    folder: Path
    results: Path | None = None
    trajectories: Path | None = None
    metrics: Path | None = None
    credit: Path | None = None

    def read_results(self) -> dict[str, Any] | None:
        return read_json(self.results) if self.results else None


def find_runs(paths: Iterable[Path]) -> list[RunFiles]:
    """The runs at `paths`: a run's folder, a folder of such folders (at any depth), or a file of trajectories.

    Raises DataError for a path that does not exist or holds no run.
    """
    found: dict[Path, RunFiles] = {}
    for path in paths:
        if path.is_file():
            folders = {path.parent: path}
        elif path.is_dir():
            names = (RESULTS, TRAJECTORIES, METRICS)
            hits = {file.parent for name in names for file in path.rglob(name) if file.is_file()}
            folders = {folder: folder / TRAJECTORIES for folder in sorted(hits)}
        else:
            raise DataError(f"{path}: expected a run's folder or a file of trajectories, found neither.")
        if not folders:
            raise DataError(f"{path}: expected {RESULTS}, {TRAJECTORIES} or {METRICS} in it or below it, found none.")
        for folder, trajectories in folders.items():
            found.setdefault(trajectories.resolve(), _run(folder, trajectories))
    return _named_apart(list(found.values()))


def _run(folder: Path, trajectories: Path) -> RunFiles:
    def there(name: str) -> Path | None:
        return folder / name if (folder / name).is_file() else None

    own = trajectories.name == TRAJECTORIES
    return RunFiles(
        name=(folder.resolve().name or "run") if own else trajectories.stem,
        folder=folder,
        results=there(RESULTS) if own else None,
        trajectories=trajectories if trajectories.is_file() else None,
        metrics=there(METRICS) if own else None,
        credit=_credit_file(folder, trajectories.name),
    )


def _credit_file(folder: Path, trajectories: str) -> Path | None:
    """The newest file in `folder` that `mempo credit --json` wrote about this file of trajectories."""
    found = []
    for path in folder.glob("*.json"):
        if path.name != RESULTS:
            with path.open("rb") as file:
                start = file.read(4096)
            # The source stands at the front of the file: what it is shows without reading megabytes.
            if b'"source"' in start and b'"file": ' + json.dumps(trajectories).encode() in start:
                found.append(path)
    return max(found, key=lambda path: path.stat().st_mtime_ns, default=None)


def _named_apart(runs: list[RunFiles]) -> list[RunFiles]:
    """Equal names get their parents' in front, and a number where that does not help."""
    names = [run.name for run in runs]
    longer = [
        f"{run.folder.resolve().parent.name}/{run.name}" if names.count(run.name) > 1 else run.name for run in runs
    ]
    unique: list[str] = []
    for name in longer:
        candidate, number = name, 2
        while candidate in unique:
            candidate, number = f"{name} ({number})", number + 1
        unique.append(candidate)
    return [
        RunFiles(name, run.folder, run.results, run.trajectories, run.metrics, run.credit)
        for name, run in zip(unique, runs, strict=True)
    ]


class GrowingFile:
    """Trajectories of a file that may still grow: `new()` gives those whose lines ended since the last call.

    A last line without an end is left for later. A file that shrank or was replaced starts anew: `restarted` is True
    after the call that saw it, and what earlier calls gave is void.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.restarted = False
        self._offset = 0
        self._line = 0
        self._inode: int | None = None

    def new(self) -> list[Trajectory]:
        with self.path.open("rb") as file:
            status = self.path.stat()
            self.restarted = self._inode is not None and (status.st_ino != self._inode or status.st_size < self._offset)
            if self.restarted:
                self._offset = self._line = 0
            self._inode = status.st_ino
            file.seek(self._offset)
            rows = []
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._offset += len(line)
                self._line += 1
                if line.strip():
                    rows.append(read_line(line, f"{self.path}, line {self._line}"))
        return rows


def fingerprint(runs: Sequence[RunFiles]) -> str:
    """Changes when any file of the runs does."""
    parts = []
    for run in runs:
        for path in (run.results, run.trajectories, run.metrics, run.credit):
            if path is not None and path.exists():
                status = path.stat()
                parts.append(f"{path}:{status.st_size}:{status.st_mtime_ns}")
    return "|".join(parts)
