"""metrics.jsonl: one line an update, written as it happens, and handed to the trackers.

A run that continues cuts what was logged after its checkpoint, so the file reads as if nothing had happened.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from mempo_agents.learners.trackers import Trackers
from mempo_env.errors import DataError

METRICS = "metrics.jsonl"


class MetricsLog:
    """Appends records to `folder/metrics.jsonl`. A record has a "step"; NaN is written as null.

    track, about: the names and the settings of `Trackers` that get the records as well; leaving the `with` block closes
    them.
    """

    def __init__(
        self, folder: Path, *, track: Sequence[str] | None = (), about: Mapping[str, Any] | None = None
    ) -> None:
        self.path = folder / METRICS
        self._trackers = Trackers(track, folder, about)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *end: object) -> None:
        self._trackers.__exit__(*end)

    def write(self, record: Mapping[str, Any]) -> None:
        clean = {name: _clean(value) for name, value in record.items()}
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(clean, allow_nan=False) + "\n")
        except OSError as error:
            error.filename = str(self.path)
            raise
        self._trackers.log(clean)

    def cut(self, step: int) -> None:
        """Drops the records after `step`, and a torn last line; the trackers get what they lack of the others."""
        kept = []
        if self.path.exists():
            kept = [record for record in read_metrics(self.path) if record["step"] <= step]
            part = self.path.with_name(METRICS + ".part")
            try:
                part.write_text("".join(json.dumps(record) + "\n" for record in kept), encoding="utf-8")
                part.replace(self.path)
            except OSError as error:
                error.filename = str(self.path)
                raise
        self._trackers.catch_up(kept)

    def last(self) -> dict[str, Any]:
        """The newest record, {} when there is none."""
        records = read_metrics(self.path) if self.path.exists() else []
        return records[-1] if records else {}


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The records of a file; a torn last line, which a kill leaves, is not among them.

    DataError names the file and the line where another is no JSON object with a whole number "step".
    """
    records = []
    for number, line in enumerate(path.read_bytes().split(b"\n")[:-1], start=1):
        if not line:
            continue
        try:
            record = json.loads(line)
        except ValueError:  # bytes that are no text, too
            record = None
        if not isinstance(record, dict) or not isinstance(record.get("step"), int):
            raise DataError(
                f'{path}, line {number}: expected a JSON object with a whole number "step", got '
                f"{line[:60].decode(errors='replace')!r}. Mend or remove the line."
            )
        records.append(record)
    return records


def _clean(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
