"""Trackers: every step once, whatever dies; no secrets; the real packages where they are installed, offline."""

from __future__ import annotations

import dataclasses
import json
import os
import sqlite3
import struct
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from test_trainer import SETTINGS, KilledError, kill_at, trainer  # noqa: E402

from mempo_agents.commands.training import trackers_from  # noqa: E402
from mempo_agents.learners import trackers  # noqa: E402
from mempo_agents.learners.metrics_log import MetricsLog, read_metrics  # noqa: E402
from mempo_agents.learners.trackers import Trackers, plain, usable  # noqa: E402
from mempo_env.errors import DataError, MissingExtraError, UnknownNameError  # noqa: E402

STUB = "json"  # a tracker must be importable by its name


class Stub:
    """Writes what it is given into a list that outlives it."""

    def __init__(self, folder, run_id, about):
        self.run_id = run_id
        if self.broken:
            raise OSError(101, "Network is unreachable")
        if about.get("retriever", "bm25") != "bm25":
            self.told.append(("about", about))
        self.told.append(("open", run_id))

    def log(self, values, step):
        if self.broken:
            raise OSError(28, "No space left on device")
        self.told.append((step, values))

    def finish(self):
        self.told.append(("finish", self.run_id))


@pytest.fixture
def stub(monkeypatch):
    kind = type("Stub", (Stub,), {"told": [], "broken": False})
    monkeypatch.setitem(trackers.TRACKERS, STUB, kind)
    return kind


def steps(kind) -> list[int]:
    return [step for step, _ in kind.told if isinstance(step, int)]


def test_a_run_that_died_gives_every_step_once_to_one_run(tmp_path, stub):
    settings = dataclasses.replace(SETTINGS, save_every=2)
    for step in (1, 3, 3):  # each is redone from the checkpoint before
        with pytest.raises(KilledError):
            trainer(tmp_path, settings, watch=kill_at(step), track=(STUB,)).run()
    trainer(tmp_path, settings, track=(STUB,)).run()
    assert steps(stub) == [0, 1, 2, 3, 4]
    runs = {run for word, run in stub.told if word in ("open", "finish")}
    assert len(runs) == 1, "one run, continued"
    assert [word for word, _ in stub.told if not isinstance(word, int)] == ["open", "finish"] * 3, (
        "the third start had nothing to tell, as step 3 was known"
    )
    for step, values in stub.told:
        if isinstance(step, int):
            record = next(r for r in read_metrics(tmp_path / "metrics.jsonl") if r["step"] == step)
            timed = {name for name in record if name.endswith("seconds")}
            numbers = {k: v for k, v in record.items() if isinstance(v, int | float) and k != "step"}
            assert {k: v for k, v in values.items() if k not in timed} == {
                k: v for k, v in numbers.items() if k not in timed
            }


def test_a_tracker_that_is_named_later_gets_the_steps_before(tmp_path, stub):
    settings = dataclasses.replace(SETTINGS, updates=2)
    trainer(tmp_path, settings, track=()).run()
    assert not stub.told
    trainer(tmp_path, settings, track=(STUB,)).run()
    assert steps(stub) == [0, 1, 2]
    trainer(tmp_path, settings, track=(STUB,)).run()
    assert [word for word, _ in stub.told].count("open") == 1, "a finished run has nothing to say again"


def test_two_runs_have_two_names(tmp_path, stub):
    for name in ("one", "two", "other/one"):
        (tmp_path / name).mkdir(parents=True)
        with Trackers((STUB,), tmp_path / name) as told:
            told.catch_up([{"step": 1, "f1": 0.5}])
    names = [run for word, run in stub.told if word == "open"]
    assert len(set(names)) == 3
    assert [name.rpartition("-")[0] for name in names] == ["one", "two", "one"]


def test_a_tracker_that_fails_stops_nothing_and_catches_up(tmp_path, stub):
    with MetricsLog(tmp_path, track=(STUB,)) as log:
        log.cut(-1)
        stub.broken = True
        with pytest.warns(UserWarning, match=r"The tracker json failed .*No space left"):
            log.write({"step": 1, "f1": 0.5})
        log.write({"step": 2, "f1": 0.5})
    with MetricsLog(tmp_path, track=(STUB,)) as log, pytest.warns(UserWarning, match="does not start: .*unreachable"):
        log.cut(2)
    stub.broken = False
    with MetricsLog(tmp_path, track=(STUB,)) as log:
        log.cut(2)
        log.write({"step": 3, "f1": 0.5, "kl": float("nan"), "stopped": "collapse", "epoch": 7})
    assert steps(stub) == [2, 3], "step 1 was given before it failed"
    assert stub.told[-2] == (3, {"f1": 0.5, "epoch": 7}), "numbers only, and none that is unknown"
    assert [record["step"] for record in read_metrics(tmp_path / "metrics.jsonl")] == [1, 2, 3]


def test_notes_that_cannot_be_written_stop_nothing(tmp_path, stub):
    """Without them a step could be given twice, so it is not given."""
    with MetricsLog(tmp_path, track=(STUB,)) as log:
        log.cut(-1)
        log.write({"step": 1, "f1": 0.5})
        (tmp_path / ".trackers.json.part").mkdir()
        with pytest.warns(UserWarning, match=r"The tracker json failed .*Is a directory"):
            log.write({"step": 2, "f1": 0.5})
        log.write({"step": 3, "f1": 0.5})
    assert steps(stub) == [1]
    with MetricsLog(tmp_path / "new", track=(STUB,)) as log:
        (tmp_path / "new" / ".trackers.json.part").mkdir(parents=True)
        with pytest.warns(UserWarning, match="The tracker json failed"):
            log.cut(-1)
        log.write({"step": 1, "f1": 0.5})
    (tmp_path / ".trackers.json.part").rmdir()
    with MetricsLog(tmp_path, track=(STUB,)) as log:
        log.cut(3)
    assert steps(stub) == [1, 2, 3]


@pytest.mark.parametrize("state", ['{"json": "a-run"}', '{"json": {"run": "a-run", "step": "1"}}'])
def test_notes_of_another_shape_are_named(tmp_path, stub, state):
    (tmp_path / "trackers.json").write_text(state, encoding="utf-8")
    log = MetricsLog(tmp_path, track=(STUB,))
    with pytest.raises(DataError, match=r"trackers\.json: expected .* for json, got .*Remove the file"):
        log.cut(-1)


def test_a_tracker_that_does_not_start_ends_the_run_before_it_begins(tmp_path, stub):
    stub.broken = True
    with pytest.raises(DataError, match=r"The tracker json does not start: .*Network is unreachable"):
        trainer(tmp_path, track=(STUB,)).run()
    assert not (tmp_path / "metrics.jsonl").exists()


def test_names(tmp_path, monkeypatch):
    with pytest.raises(UnknownNameError, match=r"Unknown tracker 'wandv'. Did you mean 'wandb'\?"):
        trainer(tmp_path, track=("wandv",))
    assert not list(tmp_path.iterdir())
    for name, extra in (("wandb", "wandb"), ("trackio", "trackio"), ("torch.utils.tensorboard", "train")):
        monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(MissingExtraError, match=rf"pip install 'mempo-gym\[{extra}\]'"):
            usable(("tensorboard" if extra == "train" else name,))
    assert usable(None) == ()
    assert usable(()) == ()
    assert [trackers_from(text) for text in (None, "none", "wandb, trackio", "")] == [
        None, (), ("wandb", "trackio"), ()
    ]  # fmt: skip


def test_addresses_are_cut_to_what_is_public(tmp_path, stub):
    given = {
        "retriever": "http://user:secret@search:8000/retrieve?key=secret#secret",
        "deep": [{"x": ("https://secret@h/",)}],
        "dataset": "world:size=3",
        "lr": 1e-3,
    }
    public = {
        "retriever": "http://search:8000/retrieve",
        "deep": [{"x": ["https://h/"]}],
        "dataset": "world:size=3",
        "lr": 1e-3,
    }
    assert plain(given) == public
    with Trackers((STUB,), tmp_path, given) as told:
        told.catch_up([])
    assert stub.told[0] == ("about", public)


SECRET = "5ecre7" * 7
CHILD = """
import sys, json
sys.path[:0] = [{tests!r}, {learners!r}]
from pathlib import Path
from test_trainer import *
settings = dataclasses.replace(SETTINGS, save_every=2)
for step in (3, None):
    try:
        trainer(Path({folder!r}), settings, track={track!r}, watch=kill_at(step)).run()
    except KilledError:
        pass
print("the curve")
"""


def tracked(tmp_path: Path, name: str) -> tuple[Path, subprocess.CompletedProcess]:
    """A run that died after step 3 and went on from step 2, with this tracker; secrets lie about."""
    folder, here = tmp_path / "run", Path(__file__).parent
    code = CHILD.format(tests=str(here.parent), learners=str(here), folder=str(folder), track=(name,))
    environment = {
        **os.environ, "WANDB_MODE": "offline", "WANDB_API_KEY": SECRET[:40], "HF_TOKEN": SECRET,
        "OPENAI_API_KEY": SECRET, "TRACKIO_DIR": str(tmp_path / "trackio"), "WANDB_SILENT": "true",
    }  # fmt: skip
    command = [sys.executable, "-c", code, f"--key={SECRET}"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout == "the curve\n", "stdout is not the tracker's"
    for path in tmp_path.rglob("*"):
        if path.is_file():
            assert SECRET[:20].encode() not in path.read_bytes(), path
    return folder, done


def the_name(folder: Path, tracker: str) -> str:
    return json.loads((folder / trackers.STATE).read_text(encoding="utf-8"))[tracker]["run"]


def test_tensorboard_itself(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder, _ = tracked(tmp_path, "tensorboard")
    board = EventAccumulator(str(folder / "tensorboard"))
    board.Reload()
    assert [event.step for event in board.Scalars("reward_mean")] == [1, 2, 3, 4]
    assert [event.step for event in board.Scalars("eval_f1")] == [0, 2, 4]


def wandb_records(path: Path):
    """The records of an offline run: LevelDB's log format, blocks of 32768 bytes behind a header of 7."""
    from wandb.proto import wandb_internal_pb2

    data, at, whole = path.read_bytes(), 7, b""
    while at + 7 <= len(data):
        if (left := 32768 - at % 32768) < 7:
            at += left
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + 7])
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # full, or the last part
            record = wandb_internal_pb2.Record()
            record.ParseFromString(whole)
            whole = b""
            yield record


def test_wandb_itself(tmp_path):
    pytest.importorskip("wandb")
    folder, _ = tracked(tmp_path, "wandb")
    steps, names, settings, said = [], set(), {}, ""
    for file in sorted((folder / "wandb").glob("offline-run-*/*.wandb")):
        for record in wandb_records(file):
            said += str(record)
            if record.HasField("run"):
                names.add(record.run.run_id)
                assert record.run.host == "-"
                assert record.run.resume, "online, the run goes on where there is one"
                settings |= {item.key: json.loads(item.value_json) for item in record.run.config.update if item.key}
            if record.HasField("history"):
                items = {".".join(item.nested_key) or item.key: item.value_json for item in record.history.item}
                steps.append(int(items["_step"]))
    assert sorted(steps) == [0, 1, 2, 3, 4]
    assert names == {the_name(folder, "wandb")}
    assert (settings["group_size"], settings["estimator"]) == (2, "grpo")
    assert sys.executable not in said, "nothing about the machine"


def test_trackio_itself(tmp_path):
    pytest.importorskip("trackio")
    folder, _ = tracked(tmp_path, "trackio")
    (file,) = (tmp_path / "trackio").glob("*.db")
    base = sqlite3.connect(file)
    rows = base.execute("select run_name, step, metrics from metrics order by step").fetchall()
    assert [step for _, step, _ in rows] == [0, 1, 2, 3, 4]
    assert {name for name, _, _ in rows} == {the_name(folder, "trackio")}
    assert "reward_mean" in json.loads(rows[1][2])
    (config,) = base.execute("select config from configs").fetchall()
    assert json.loads(config[0])["group_size"] == 2
