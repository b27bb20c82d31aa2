"""Full disks, killed writers, damaged files: said in one line, and nothing that was saved is lost."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import re
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from test_train_commands import SMALL, mempo  # noqa: E402
from test_trainer import SETTINGS, KilledError, kill_at, timeless, trainer, weights  # noqa: E402

from mempo_agents.learners.checkpoint import (  # noqa: E402
    checkpoints,
    load_checkpoint,
    put_back,
    save_checkpoint,
    save_model,
)
from mempo_agents.learners.metrics_log import MetricsLog, read_metrics  # noqa: E402
from mempo_env.errors import DataError  # noqa: E402

CHILD = """
import resource, sys
sys.path[:0] = [{tests!r}, {learners!r}]
from pathlib import Path
from test_trainer import *
from mempo_agents import cli

def watch(record):
    if record["step"] == {step} and {limit}:
        resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, resource.RLIM_INFINITY))

def run():
    trainer(Path({folder!r}), SETTINGS, watch=watch, track=()).run()

cli.app = run  # `main` words the errors
cli.main()
"""


def run_until(folder: Path, step: int, limit: int) -> subprocess.CompletedProcess:
    """A run in a process of its own, which may write no file of more than `limit` bytes once `step` is logged."""
    here = Path(__file__).parent
    code = CHILD.format(tests=str(here.parent), learners=str(here), folder=str(folder), step=step, limit=limit)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    run = trainer(folder, track=())
    run.run()
    return folder, run


# The optimizer's state takes 600 kB, the model 270 kB: which of them no longer fits, or nothing at all.
@pytest.mark.parametrize("limit", [400_000, 100_000, 1])
def test_a_disk_that_fills_up_ends_the_run_in_one_line_and_it_goes_on_later(tmp_path, whole, limit):
    stopped = run_until(tmp_path, 3, limit)
    assert stopped.returncode == 2
    (line,) = [line for line in stopped.stderr.splitlines() if line.startswith("Error")]
    assert "checkpoints/step-00000003: " in line
    assert "File too large" in line
    assert "What was saved before is whole: make room, and give the same command again" in line
    assert "Traceback" not in stopped.stderr
    names = {path.name for path in (tmp_path / "checkpoints").iterdir()}
    assert names == {"step-00000001", "step-00000002"}, "the part is gone, the others are there"
    for kept in checkpoints(tmp_path / "checkpoints"):
        load_checkpoint(kept)
    again = run_until(tmp_path, 9, 0)
    assert again.returncode == 0, again.stderr[-2000:]
    folder, run = whole
    assert timeless(tmp_path) == timeless(folder)
    newest = load_checkpoint(checkpoints(tmp_path / "checkpoints")[-1])[1]
    assert all(torch.equal(newest[f"master/{name}"], value) for name, value in run.model.named_parameters())


def test_a_log_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    (tmp_path / "metrics.jsonl").mkdir()
    with pytest.raises(OSError, match=r"metrics\.jsonl"):
        MetricsLog(tmp_path).write({"step": 1})


@pytest.mark.skipif(not hasattr(resource, "RLIMIT_FSIZE"), reason="no limits here")
def test_a_log_line_that_does_not_fit_names_its_file(tmp_path):
    code = (
        "import resource; from pathlib import Path; from mempo_agents.learners.metrics_log import MetricsLog\n"
        f"log = MetricsLog(Path({str(tmp_path)!r}))\n"
        "log.write({'step': 1, 'f1': 0.5})\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (30, 30))\n"
        "log.write({'step': 2, 'f1': 0.5})\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert f"File too large: '{tmp_path / 'metrics.jsonl'}'" in done.stderr
    assert read_metrics(tmp_path / "metrics.jsonl") == [{"step": 1, "f1": 0.5}], "the torn line is no record"
    MetricsLog(tmp_path).cut(1)
    assert (tmp_path / "metrics.jsonl").read_text().endswith("}\n")


@pytest.mark.parametrize(
    ("bad", "line"),
    [
        (b'{"step": 1}\n{"st', 2),
        (b"\n[]", 2),
        (b'{"f1": 1}', 1),
        (b'{"step": "1"}', 1),
        (b'{"step": 1, "x": "\xff"}', 1),
    ],
)
def test_a_bad_line_of_the_log_is_named(tmp_path, bad, line):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(bad + b'\n{"step": 2}\n')
    with pytest.raises(
        DataError, match=rf'metrics\.jsonl, line {line}: expected a JSON object with a whole number "step"'
    ):
        MetricsLog(tmp_path).cut(2)
    assert path.read_bytes() == bad + b'\n{"step": 2}\n'


def test_a_full_disk_names_the_file_whatever_is_written(tmp_path):
    """Descriptors give errors without a name; open ones with that of a part."""
    log = MetricsLog(tmp_path)
    log.write({"step": 1})
    written = log.path.read_bytes()
    code = (
        "import resource, sys; from pathlib import Path; from mempo_agents.learners.metrics_log import MetricsLog\n"
        "from mempo_env.json_files import write_json\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (5, 5))\n"
        f"folder = Path({str(tmp_path)!r})\n"
        "try: MetricsLog(folder).cut(1)\n"
        "except OSError as error: print(error)\n"
        "try: write_json(folder / 'settings.json', {'a': 'b' * 99})\n"
        "except OSError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    names = [str(tmp_path / name) for name in ("metrics.jsonl", "settings.json")]
    assert done.stdout.splitlines() == [f"[Errno 27] File too large: {name!r}" for name in names], done.stderr
    assert log.path.read_bytes() == written


def test_a_better_model_replaces_the_best_only_when_it_is_whole(tmp_path, whole, monkeypatch):
    _, run = whole
    save_model(tmp_path / "best", run.model, run.engine.tokenizer)
    before = {path.name: path.read_bytes() for path in (tmp_path / "best").iterdir()}

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(type(run.engine.tokenizer), "save_pretrained", full)
        with pytest.raises(OSError, match="No space left on device") as raised:
            save_model(tmp_path / "best", run.model, run.engine.tokenizer)
    assert (raised.value.errno, raised.value.filename) == (errno.ENOSPC, str(tmp_path / "best"))
    assert {path.name: path.read_bytes() for path in (tmp_path / "best").iterdir()} == before
    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", full)
        with pytest.raises(OSError, match="No space left on device"):
            save_model(tmp_path / "best", run.model, run.engine.tokenizer)
    assert {path.name: path.read_bytes() for path in (tmp_path / "best").iterdir()} == before
    (tmp_path / "best" / "mark").write_text("old", encoding="utf-8")
    save_model(tmp_path / "best", run.model, run.engine.tokenizer)
    assert {path.name: path.read_bytes() for path in (tmp_path / "best").iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["best"]


def killed(*_, **__):
    raise KilledError


def test_a_kill_between_two_moves_leaves_a_best_model(tmp_path, whole, monkeypatch):
    shutil.copytree(whole[0], tmp_path / "run")
    best = tmp_path / "run" / "best"
    before = {path.name: path.read_bytes() for path in best.iterdir()}
    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", killed)
        with pytest.raises(KilledError):
            save_model(best, whole[1].model, whole[1].engine.tokenizer)
    assert not best.exists()
    trainer(tmp_path / "run", track=()).run()  # it has finished; nothing is written anew
    assert {path.name: path.read_bytes() for path in best.iterdir()} == before
    with monkeypatch.context() as patched:  # killed once the new one was there
        patched.setattr("mempo_agents.learners.checkpoint._remove", killed)
        with pytest.raises(KilledError):
            save_model(best, whole[1].model, whole[1].engine.tokenizer)
    (best / "mark").write_text("the newer", encoding="utf-8")
    put_back(best)
    assert (best / "mark").exists()
    save_model(best, whole[1].model, whole[1].engine.tokenizer)
    assert {path.name for path in best.iterdir()} == set(before)
    assert not list((tmp_path / "run").glob(".*"))


def test_an_old_checkpoint_goes_whole(tmp_path, whole, monkeypatch):
    run = whole[1]

    def save(step: int) -> None:
        save_checkpoint(tmp_path, step, run.model, run.engine.tokenizer, {"w": torch.ones(2)}, {}, keep=1)

    def half(folder, *args, **kwargs):
        (folder / "state.json").unlink()
        raise KilledError

    save(1)
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", half)
        with pytest.raises(KilledError):
            save(2)
    assert [path.name for path in tmp_path.glob("step-*")] == ["step-00000002"]
    save(3)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000003"]


def test_what_a_killed_writer_left_is_cleared_away_first(tmp_path, monkeypatch):
    left = tmp_path / "checkpoints" / ".part-killed" / "model"
    left.mkdir(parents=True)
    (left / "model.safetensors").write_bytes(b"half")
    seen = []

    def save(engine_tokenizer, folder, *_, **__):
        seen.append(left.exists())  # its room may be what the new one needs

    monkeypatch.setattr("transformers.PreTrainedTokenizerBase.save_pretrained", save)
    trainer(tmp_path, dataclasses.replace(SETTINGS, updates=1, evaluate_every=0), track=()).run()
    assert seen == [False]
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["step-00000001"]


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda path: (path / "state.json").write_text('{"step": 3', encoding="utf-8"), "expected JSON"),
        (lambda path: (path / "state.json").write_bytes(b'{"st\xff'), "unreadable checkpoint: 'utf-8'"),
        (lambda path: (path / "state.json").write_text("[]", encoding="utf-8"), "expected a JSON object"),
        (lambda path: (path / "state.json").write_text("{}", encoding="utf-8"), "expected schema version 1, got None"),
        (lambda path: (path / "optimizer.safetensors").unlink(), "No such file"),
        (lambda path: os.truncate(path / "optimizer.safetensors", 1000), "not the file that was written"),
    ],
)
def test_a_damaged_checkpoint_is_named_and_the_one_before_serves(tmp_path, whole, spoil, message):
    folder, run = whole
    shutil.copytree(folder, tmp_path / "run")
    newest = checkpoints(tmp_path / "run" / "checkpoints")[-1]
    spoil(newest)
    files = {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*") if path.is_file()}
    with pytest.raises(DataError, match=rf"step-00000004: unreadable checkpoint: .*Remove \S*{newest.name}") as error:
        trainer(tmp_path / "run", track=()).run()
    assert message in str(error.value)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*") if path.is_file()} == files
    shutil.rmtree(newest)  # as the message says
    last = trainer(tmp_path / "run", track=())
    last.run()
    assert timeless(tmp_path / "run") == timeless(folder)
    assert all(torch.equal(value, weights(run)[name]) for name, value in weights(last).items())


def test_a_damaged_model_beside_a_good_state_is_written_again(tmp_path, whole):
    """The run goes on from the master weights; what others load is written anew with the next checkpoint."""
    _, run = whole
    with pytest.raises(KilledError):
        trainer(tmp_path, watch=kill_at(3), track=()).run()
    for path in (tmp_path / "checkpoints").glob("*/model/model.safetensors"):
        path.write_bytes(b"spoilt")
    last = trainer(tmp_path, track=())
    last.run()
    assert all(torch.equal(value, weights(run)[name]) for name, value in weights(last).items())


def test_the_folder_of_another_kind_of_run_is_refused(tmp_path, whole, monkeypatch, capsys):
    folder, _ = whole
    shutil.copytree(folder, tmp_path / "run")
    words = ("warm-start", "--out", str(tmp_path / "run"), "--model", str(folder / "best"), "--tasks", "4", "--dataset",
             "world-compact:size=200", "--objectives", "1", "--quote", "--terse", "--track", "none")  # fmt: skip
    code, error = mempo(monkeypatch, capsys, *words)
    assert code == 2
    assert re.search(r"run holds another run, with other batch_size, .* and \d+ more\. Name another folder", error)
    with pytest.raises(DataError, match=r"expected a checkpoint of warm_start, got one of train. Name another folder"):
        load_checkpoint(checkpoints(tmp_path / "run" / "checkpoints")[-1], "warm_start")


def test_checkpoints_that_no_file_names_are_not_gone_on_from(tmp_path, whole):
    shutil.copytree(whole[0], tmp_path / "run")
    (tmp_path / "run" / "settings.json").unlink()
    files = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    with pytest.raises(
        DataError, match=r"run has checkpoints, but no settings\.json .*Put that file back, or name another"
    ):
        trainer(tmp_path / "run", dataclasses.replace(SETTINGS, seed=5), track=()).run()
    assert {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()} == files


def test_what_does_not_decide_the_weights_may_change_on_the_way(tmp_path, whole):
    """As after running out of memory. Other batches agree up to rounding only."""
    with pytest.raises(KilledError):
        trainer(tmp_path, watch=kill_at(3), track=()).run()
    written = (tmp_path / "settings.json").read_bytes()
    smaller = dataclasses.replace(SETTINGS.update, micro_tokens=100)
    trainer(tmp_path, dataclasses.replace(SETTINGS, batch_size=2, update=smaller, save_every=2, keep=1), track=()).run()
    assert [line["step"] for line in timeless(tmp_path)] == [line["step"] for line in timeless(whole[0])]
    assert timeless(tmp_path)[-1]["loss"] == pytest.approx(timeless(whole[0])[-1]["loss"], abs=1e-4)
    assert (tmp_path / "settings.json").read_bytes() == written
    other = dataclasses.replace(SETTINGS, update=dataclasses.replace(smaller, epochs=3, clip_low=0.1))
    with pytest.raises(DataError, match=r"other update\.clip_low, update\.epochs\. Name"):
        trainer(tmp_path, other, track=()).run()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--retriever", "foo"), "Unknown retriever 'foo'"),
        (("--aggregation", "foo"), "aggregation: expected one of token, sequence, trajectory, constant, got 'foo'."),
        (("--aggregation", "constant"), "aggregation: 'constant' needs a positive constant, got None."),
        (("--clip-low", "0"), "clip_low: expected a number in (0, 1], got 0.0."),
    ],
)
def test_a_wrong_setting_claims_no_folder(tmp_path, whole, monkeypatch, capsys, words, message):
    command = ("train", "--out", str(tmp_path / "run"), "--model", str(whole[0] / "best"), *SMALL, "--track", "none")
    code, error = mempo(monkeypatch, capsys, *command, *words)
    assert (code, message in error) == (2, True), error
    assert not (tmp_path / "run").exists()


def test_a_warm_start_with_other_settings_is_another_run(tmp_path, whole, monkeypatch, capsys):
    words = ("warm-start", "--out", str(tmp_path), "--model", str(whole[0] / "best"), "--tasks", "4", "--dataset",
             "world-compact:size=200", "--objectives", "1", "--quote", "--terse", "--track", "none")  # fmt: skip
    assert mempo(monkeypatch, capsys, *words)[0] == 0
    assert json.loads((tmp_path / "settings.json").read_text(encoding="utf-8"))["kind"] == "warm_start"
    code, error = mempo(monkeypatch, capsys, *words, "--lr", "0.5", "--seed", "3")
    assert code == 2
    assert "holds another run, with other optimizer.lr, rows, seed." in error
    code, error = mempo(monkeypatch, capsys, *words, "--policy", "mem1", "--dataset", "world-compact:size=300")
    assert code == 2
    assert "holds another run, with other dataset, policy." in error
    assert mempo(monkeypatch, capsys, *words)[0] == 0
    code, error = mempo(monkeypatch, capsys, "train", "--out", str(tmp_path), "--model", str(whole[0] / "best"), *SMALL)
    assert (code, "holds another run" in error) == (2, True)


def test_a_course_in_another_protocol_is_another_run(tmp_path, monkeypatch, capsys):
    words = ("nano", "--out", str(tmp_path), "--tokens", "1", "--eval-tasks", "1", "--track", "none")
    assert mempo(monkeypatch, capsys, *words)[0] == 0
    code, error = mempo(monkeypatch, capsys, *words, "--protocol", "react")
    assert code == 2
    assert "holds another run, with other protocol." in error
    code, error = mempo(monkeypatch, capsys, *words, "--stop-at", "0.5", "--eval-tasks", "2")
    assert code == 2
    assert "holds another run, with other eval_tasks, stop_at." in error
    (tmp_path / "metrics.jsonl").unlink()
    code, error = mempo(monkeypatch, capsys, *words)
    assert (code, "Done. Models: " in error) == (0, True), error
