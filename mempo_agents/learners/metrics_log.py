"""metrics.jsonl: one line an update, written as it happens; TensorBoard beside it where that is installed.

A run that continues cuts what was logged after its checkpoint, so the file reads as if nothing had happened.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

METRICS = "metrics.jsonl"


class MetricsLog:
    """Appends records to `folder/metrics.jsonl`. A record has a "step"; NaN is written as null."""

    def __init__(self, folder: Path, *, tensorboard: bool = False) -> None:
        self.path = folder / METRICS
        self._board: Any = _board(folder) if tensorboard else None

    def write(self, record: Mapping[str, Any]) -> None:
        clean = {name: _clean(value) for name, value in record.items()}
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(clean, allow_nan=False) + "\n")
        if self._board is not None:
            for name, value in clean.items():
                if isinstance(value, int | float) and name != "step":
                    self._board.add_scalar(name, value, clean["step"])
            self._board.flush()

    def cut(self, step: int) -> None:
        """Drops the records after `step`, and a torn last line."""
        if not self.path.exists():
            return
        kept = [record for record in read_metrics(self.path) if record["step"] <= step]
        part = self.path.with_name(METRICS + ".part")
        part.write_text("".join(json.dumps(record) + "\n" for record in kept), encoding="utf-8")
        part.replace(self.path)

    def last(self) -> dict[str, Any]:
        """The newest record, {} when there is none."""
        records = read_metrics(self.path) if self.path.exists() else []
        return records[-1] if records else {}


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The records of a file; a torn last line, which a kill leaves, is not among them."""
    lines = path.read_text(encoding="utf-8").split("\n")
    return [json.loads(line) for line in lines[:-1] if line]


def _board(folder: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(str(folder / "tensorboard"))


def _clean(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
