"""Trajectories on disk: JSON lines, one trajectory a line, exact in both directions.

Two things keep the files small without losing a bit. A message that several steps show is written once per
trajectory, and a step names it by its number. A prompt is written as `shared`, the number of ids it has in common
with the front of the step before (prompt, then response), and `ids`, the rest. NaN is written as null; text is
escaped to ASCII, so that any Python string survives.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Iterator
from io import TextIOWrapper
from pathlib import Path
from typing import Any

import numpy as np

from mempo_agents.engines.prefix_tree import common_prefix
from mempo_agents.trajectory import SCHEMA_VERSION, Step, Trajectory
from mempo_env.errors import DataError
from mempo_env.types import Message, StopReason

# Fields that are plain JSON values as they stand; the others have a form of their own below.
_STEP_FIELDS = ("sampled_text", "response", "memory", "action", "argument", "invalid_reason", "format_valid",
                "observation", "observation_tokens", "finish_reason", "seconds", "history_tokens")  # fmt: skip
_TRAJECTORY_FIELDS = ("task_id", "sample", "policy", "protocol", "context", "objectives", "answer", "error",
                      "seed", "guided", "seconds")  # fmt: skip
# Those of both that must be texts: a number there would be read back as one.
_TEXT_FIELDS = frozenset({"sampled_text", "response", "action", "argument", "observation", "finish_reason",
                          "task_id", "policy", "protocol", "context"})  # fmt: skip


class TrajectoryWriter:
    """Appends trajectories to a file, each line flushed as it is written. A context manager.

    After a kill the last line may be torn; `resume_trajectories` drops it before more is appended.
    """

    def __init__(self, path: str | Path, *, append: bool = False) -> None:
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if append and self.path.exists() and not _ends_with_newline(self.path):
            raise DataError(f"{self.path}: the last line is torn; call resume_trajectories(path) before appending.")
        self._file: TextIOWrapper = self.path.open("a" if append else "w", encoding="ascii", newline="\n")

    def write(self, trajectory: Trajectory) -> None:
        self._file.write(json.dumps(to_record(trajectory), allow_nan=False, separators=(",", ":")) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> TrajectoryWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def write_trajectories(path: str | Path, trajectories: Iterable[Trajectory], *, append: bool = False) -> int:
    """Writes them as they come and returns how many there were."""
    count = 0
    with TrajectoryWriter(path, append=append) as writer:
        for trajectory in trajectories:
            writer.write(trajectory)
            count += 1
    return count


def read_trajectories(path: str | Path) -> Iterator[Trajectory]:
    """The trajectories of a file, one at a time. Raises DataError, with the line number, at a line that is none."""
    path = Path(path)
    if not path.is_file():
        raise DataError(f"{path}: expected a file of trajectories (JSON lines), found none.")
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                torn = " The line has no end: a run was killed while writing. `mempo eval` drops it and goes on."
                yield read_line(line, f"{path}, line {number}", "" if line.endswith(b"\n") else torn)


def resume_trajectories(path: str | Path) -> list[Trajectory]:
    """What a killed run left: its whole lines, read; a last line without an end is cut from the file.

    A missing file gives []. A corrupt line anywhere else is an error, as in `read_trajectories`.
    """
    path = Path(path)
    if not path.exists():
        return []
    with path.open("r+b") as file:
        data_end = file.seek(0, os.SEEK_END)
        if data_end and not _ends_with_newline(path):
            file.truncate(_last_newline(file, data_end) + 1)
    return list(read_trajectories(path))


def to_record(trajectory: Trajectory) -> dict[str, Any]:
    """The trajectory as plain JSON values."""
    messages: dict[tuple[str, str], int] = {}

    def number(message: Message) -> int:
        return messages.setdefault((message["role"], message["content"]), len(messages))

    steps, before = [], np.zeros(0, dtype=np.int64)
    head = [number(message) for message in trajectory.head]
    for step in trajectory.steps:
        shared = common_prefix(before, step.prompt_ids)
        steps.append(
            {
                "messages": [number(message) for message in step.messages],
                "prompt": {"shared": shared, "ids": step.prompt_ids[shared:].tolist()},
                "response_ids": step.response_ids.tolist(),
                "logprobs": [_null(x) for x in step.logprobs.astype(np.float64).tolist()],
                "policy_mask": step.policy_mask.astype(int).tolist(),
                "token_ends": step.token_ends.tolist(),
                "spans": {name: list(span) for name, span in step.spans.items()},
                "hit_ids": list(step.hit_ids),
                **{name: getattr(step, name) for name in _STEP_FIELDS},
            }
        )
        before = np.concatenate([step.prompt_ids, step.response_ids])
    return {
        "schema_version": SCHEMA_VERSION,
        **{name: getattr(trajectory, name) for name in _TRAJECTORY_FIELDS},
        "questions": list(trajectory.questions),
        "answers": [list(aliases) for aliases in trajectory.answers],
        "reward": _null(trajectory.reward),
        "reward_parts": {name: _null(value) for name, value in trajectory.reward_parts.items()},
        "em": [_null(value) for value in trajectory.em],
        "f1": [_null(value) for value in trajectory.f1],
        "stop_reason": str(trajectory.stop_reason),
        "metadata": dict(trajectory.metadata),
        "head": head,
        "messages": [list(message) for message in messages],
        "steps": steps,
    }


def from_record(record: dict[str, Any]) -> Trajectory:
    """The inverse of `to_record`. Raises KeyError, TypeError or ValueError where the record is not one."""
    messages: list[Message] = [{"role": _text(role), "content": _text(content)} for role, content in record["messages"]]

    def message(number: int) -> Message:
        if not isinstance(number, int) or not 0 <= number < len(messages):
            raise ValueError(f"message {number!r} is not among the {len(messages)} messages")
        return messages[number]

    steps, before = [], np.zeros(0, dtype=np.int64)
    for row in record["steps"]:
        shared = row["prompt"]["shared"]
        if not 0 <= shared <= len(before):
            raise ValueError(f"prompt.shared is {shared}, but the step before has {len(before)} ids")
        prompt_ids = np.concatenate([before[:shared], _ids(row["prompt"]["ids"])])
        response_ids = _ids(row["response_ids"])
        arrays: dict[str, Any] = {
            "logprobs": np.array([_nan(x) for x in row["logprobs"]], dtype=np.float32),
            "policy_mask": np.array(row["policy_mask"], dtype=bool),
            "token_ends": _ids(row["token_ends"]),
        }
        for name, array in arrays.items():
            if len(array) != len(response_ids):
                raise ValueError(f"{name} has {len(array)} values for {len(response_ids)} response ids")
        steps.append(
            Step(
                messages=tuple(message(number) for number in row["messages"]),
                prompt_ids=prompt_ids,
                response_ids=response_ids,
                spans={name: _span(name, span, len(response_ids)) for name, span in row["spans"].items()},
                hit_ids=tuple(_text(hit_id) for hit_id in row["hit_ids"]),
                **arrays,
                **_fields(row, _STEP_FIELDS),
            )
        )
        before = np.concatenate([prompt_ids, response_ids])
    return Trajectory(
        questions=tuple(_text(question) for question in record["questions"]),
        answers=tuple(_aliases(aliases) for aliases in record["answers"]),
        head=tuple(message(number) for number in record["head"]),
        steps=tuple(steps),
        reward=_nan(record["reward"]),
        reward_parts={name: _nan(value) for name, value in record["reward_parts"].items()},
        em=tuple(_nan(value) for value in record["em"]),
        f1=tuple(_nan(value) for value in record["f1"]),
        stop_reason=StopReason(record["stop_reason"]),
        metadata=dict(record["metadata"]),
        **_fields(record, _TRAJECTORY_FIELDS),
    )


def read_line(line: bytes, where: str, hint: str = "") -> Trajectory:
    """One line as a trajectory. DataError begins with `where` and ends with `hint`."""
    try:
        record = json.loads(line)
    except ValueError as error:  # bad JSON or bad UTF-8
        raise DataError(
            f"{where}: expected a trajectory as one JSON object, got a line that is no JSON.{hint}"
        ) from error
    if not isinstance(record, dict) or "schema_version" not in record:
        raise DataError(f"{where}: expected a trajectory with a schema_version, got another JSON value.{hint}")
    if record["schema_version"] != SCHEMA_VERSION:
        raise DataError(f"{where}: expected schema_version {SCHEMA_VERSION}, got {record['schema_version']!r}.")
    try:
        return from_record(record)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        what = f"the key {error} is missing" if isinstance(error, KeyError) else str(error)
        raise DataError(f"{where}: not a whole trajectory: {what}.{hint}") from error


def _ends_with_newline(path: Path) -> bool:
    if path.stat().st_size == 0:
        return True
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"


def _last_newline(file: Any, end: int, block: int = 1 << 16) -> int:
    """The position of the last line break before `end`, -1 where there is none."""
    while end > 0:
        start = max(0, end - block)
        file.seek(start)
        found = file.read(end - start).rfind(b"\n")
        if found >= 0:
            return start + found
        end = start
    return -1


def _fields(row: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return {name: _text(row[name]) if name in _TEXT_FIELDS else row[name] for name in names}


def _ids(values: Any) -> np.ndarray:
    array = np.array(values)
    if array.ndim != 1 or (array.size and array.dtype.kind != "i"):
        raise ValueError(f"expected a list of whole numbers, got {str(values)[:60]}")
    return array.astype(np.int64)


def _span(name: str, span: Any, length: int) -> tuple[int, int]:
    start, end = span
    if not isinstance(start, int) or not isinstance(end, int) or not 0 <= start <= end <= length:
        raise ValueError(f"the span {name!r} is {span}, outside the {length} response ids")
    return start, end


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected a text, got {str(value)[:60]}")
    return value


def _aliases(values: Any) -> tuple[str, ...]:
    if not isinstance(values, list):  # a bare text would come apart into its letters
        raise TypeError(f"expected a list of accepted answers, got {str(values)[:60]!r}")
    return tuple(_text(value) for value in values)


def _null(value: float | None) -> float | None:
    return None if value is None or math.isnan(value) else float(value)


def _nan(value: float | None) -> float:
    return math.nan if value is None else float(value)
