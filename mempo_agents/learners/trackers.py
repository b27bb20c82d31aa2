"""Trackers: where the figures of metrics.jsonl can be watched too: TensorBoard, Weights & Biases, Trackio.

    with Trackers(("wandb",), folder, about) as trackers:
        trackers.catch_up(records_so_far)
        trackers.log(record)

FOLDER/trackers.json holds the name of the run in each tracker and the last step that it was given. A run that continues
goes on in the same one, no step is given twice, and a tracker that is named later gets the steps before.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import uuid
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit, urlunsplit

from mempo_env.errors import DataError, MissingExtraError, UnknownNameError
from mempo_env.json_files import read_json

STATE = "trackers.json"
PROJECT = "mempo-gym"


class Trackers:
    """names: of `TRACKERS`; None is TensorBoard where it is installed. about: the settings, shown beside the figures;
    what an address in them holds besides the server (a user's name, a password, a query) is left out.

    Raises UnknownNameError, and MissingExtraError for a package that is not installed. A tracker that fails later (its
    server is gone, the disk is full) is left alone with a warning: the figures are in metrics.jsonl, and the next start
    hands them in.
    """

    def __init__(self, names: Sequence[str] | None, folder: Path, about: Mapping[str, Any] | None = None) -> None:
        self.names = usable(names)
        self.folder, self.about = folder, plain(about or {})
        self._runs: dict[str, Any] = {}
        self._failed: set[str] = set()
        self._known: dict[str, Any] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for name, run in self._runs.items():
            self._try(name, run.finish)
        self._runs.clear()

    def catch_up(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Opens the trackers that are new to this run, and hands in the records that any of them lacks."""
        for name in self.names:
            if name not in self._state():
                self._open(name)
        for record in records:
            self.log(record)

    def log(self, record: Mapping[str, Any]) -> None:
        """The record's numbers, to each tracker that has not had its step. Unknown is None, as in metrics.jsonl."""
        step = record["step"]
        values = {k: v for k, v in record.items() if isinstance(v, int | float) and k != "step"}
        for name in self.names:
            if name not in self._failed and self._state().get(name, {}).get("step", -1) < step:
                if name not in self._runs:
                    self._try(name, self._open, name)
                if name not in self._failed:
                    self._try(name, self._send, name, values, step)

    def _send(self, name: str, values: Mapping[str, float], step: int) -> None:
        self._note(name, step=step)  # before it is sent: a kill in between may lose a step, never double it
        self._runs[name].log(values, step=step)

    def _open(self, name: str) -> None:
        known = self._state().get(name, {}).get("run")
        run_id = known or f"{self.folder.resolve().name}-{uuid.uuid4().hex[:8]}"
        try:
            self._runs[name] = TRACKERS[name](self.folder, run_id, self.about)
        except Exception as error:
            raise DataError(f"The tracker {name} does not start: {error} {_ADVICE.get(name, '')}") from error
        self._try(name, self._note, name, run=run_id)

    def _try(self, name: str, call: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        try:
            call(*args, **kwargs)
        except Exception as error:
            self._failed.add(name)
            warnings.warn(
                f"The tracker {name} failed and gets nothing more until the next start: {error}", stacklevel=3
            )

    def _state(self) -> dict[str, Any]:
        if self._known is None:
            path = self.folder / STATE
            known = read_json(path) if path.exists() else {}
            for name, state in known.items():
                if not isinstance(state, dict) or not isinstance(state.get("step", -1), int):
                    raise DataError(
                        f'{path}: expected {{"run": NAME, "step": NUMBER}} for {name}, got {state!r}. Remove the file '
                        "to begin new runs in the trackers."
                    )
            self._known = known
        return self._known

    def _note(self, name: str, **values: Any) -> None:
        state = {**self._state(), name: {**self._state().get(name, {}), **values}}
        part = self.folder / f".{STATE}.part"
        part.write_text(json.dumps(state, indent=1) + "\n", encoding="utf-8")  # no fsync: once an update
        part.replace(self.folder / STATE)
        self._known = state


def usable(names: Sequence[str] | None) -> tuple[str, ...]:
    """The names, each checked to be known and installed; None is TensorBoard where it is installed."""
    if names is None:
        return ("tensorboard",) if _installed("tensorboard") else ()
    for name in names:
        if name not in TRACKERS:
            raise UnknownNameError("tracker", name, TRACKERS)
        if not _installed(name):
            extra = "train" if name == "tensorboard" else name
            raise MissingExtraError(name, extra, f"The tracker {name!r}")
    return tuple(dict.fromkeys(names))


def _installed(name: str) -> bool:
    try:
        import_module("torch.utils.tensorboard" if name == "tensorboard" else name)
    except ImportError:
        return False
    return True


def plain(value: Any) -> Any:
    """The value with every address in it cut down to server, port and path: the rest may hold a password or a key."""
    if isinstance(value, Mapping):
        return {str(name): plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if isinstance(value, str) and "://" in value:
        parts = urlsplit(value)
        return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
    return value


class _Board:
    def __init__(self, folder: Path, run_id: str, about: Mapping[str, Any]) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder / "tensorboard"))

    def log(self, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def finish(self) -> None:
        self._writer.close()


def _wandb(folder: Path, run_id: str, about: Mapping[str, Any]) -> Any:
    """Online where the user has logged in; WANDB_MODE=offline writes into `folder` only. Nothing about the machine, the
    command line or the source code is sent: it could hold a key."""
    import wandb

    settings = wandb.Settings(
        console="off", host="-", disable_code=True, disable_git=True, save_code=False, x_disable_machine_info=True,
        x_disable_meta=True, x_disable_stats=True, x_save_requirements=False,
    )  # fmt: skip
    return wandb.init(
        project=os.environ.get("WANDB_PROJECT", PROJECT), id=run_id, name=run_id, dir=str(folder),
        config=dict(about), resume="allow", reinit="create_new", settings=settings,
    )  # fmt: skip


class _Trackio:
    """On this machine, where `trackio show` finds it, or in the Space that $TRACKIO_SPACE_ID names. What trackio says
    on stdout, which belongs to the curve, goes to stderr."""

    def __init__(self, folder: Path, run_id: str, about: Mapping[str, Any]) -> None:
        import trackio

        self._trackio = trackio
        with contextlib.redirect_stdout(sys.stderr):
            self._run = trackio.init(
                project=os.environ.get("TRACKIO_PROJECT", PROJECT), name=run_id, config=dict(about), resume="allow",
                embed=False, auto_log_gpu=False, auto_log_cpu=False,
            )  # fmt: skip

    def log(self, values: Mapping[str, float], step: int) -> None:
        self._run.log(dict(values), step=step)

    def finish(self) -> None:
        with contextlib.redirect_stdout(sys.stderr):
            self._trackio.finish()


TRACKERS: dict[str, Callable[[Path, str, Mapping[str, Any]], Any]] = {
    "tensorboard": _Board,
    "wandb": _wandb,
    "trackio": _Trackio,
}
_ADVICE = {"wandb": "Log in with `wandb login`, or set WANDB_MODE=offline to keep the figures here."}
