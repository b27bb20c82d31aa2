"""`mempo train`, `warm-start` and `nano` from the command line: options, files, and what they refuse."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

pytest.importorskip("torch")
pytest.importorskip("transformers")

from mempo_agents import cli
from mempo_agents.learners.metrics_log import read_metrics

CONFIGS = sorted((Path(__file__).parents[2] / "configs").glob("*.toml"))


@pytest.fixture(scope="module")
def model(nano_folder):
    return str(nano_folder)


def mempo(monkeypatch, capsys, *words: str) -> tuple[int, str]:
    """Exit code and stderr of a command, through `main`, which words the errors."""
    monkeypatch.setattr("sys.argv", ["mempo", *words])
    try:
        cli.main()
        code = 0
    except SystemExit as end:
        code = int(end.code or 0)
    captured = capsys.readouterr()
    return code, captured.err


SMALL = ("--dataset", "world-compact:size=200", "--objectives", "1", "--max-steps", "2", "--max-new-tokens", "5",
         "--tasks", "2", "--group-size", "2", "--updates", "1", "--eval-tasks", "2", "--device", "cpu")  # fmt: skip


@pytest.mark.parametrize("command", ["train", "warm-start", "nano"])
def test_help_names_every_option_with_a_sentence(command):
    shown = CliRunner().invoke(cli.app, [command, "--help"], env={"COLUMNS": "200", "TERM": "dumb"})
    assert shown.exit_code == 0
    assert "interrupted" in shown.output or "killed continues" in shown.output


def test_a_config_is_read_and_the_command_line_wins(monkeypatch, capsys, tmp_path, model):
    config = tmp_path / "small.toml"
    config.write_text('objectives = 1\nreward = "f1"\nseed = 5\n', encoding="utf-8")
    code, error = mempo(
        monkeypatch, capsys, "train", "--out", str(tmp_path / "run"), "--model", model, "--config", str(config),
        "--seed", "6", *SMALL,
    )  # fmt: skip
    assert code == 0, error
    import json

    settings = json.loads((tmp_path / "run" / "settings.json").read_text())
    assert (settings["reward"], settings["seed"], settings["instructions"]) == ("f1", 6, "")
    assert [line["step"] for line in read_metrics(tmp_path / "run" / "metrics.jsonl")] == [0, 1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--estimator", "mempp"), "Unknown estimator 'mempp'. Did you mean 'mempo'?"),
        (("--policy", "memp"), "Unknown policy 'memp'. Did you mean 'mempo'?"),
        (("--split", "trian"), "Did you mean 'train'?"),
        (("--temperature", "0"), "temperature: expected a positive number"),
        (("--optimizer", "sgd"), "optimizer: expected 'adamw' or 'muon', got 'sgd'."),
        (("--old-logprobs", "guess"), "old_logprobs: expected one of sampler, recomputed, got 'guess'."),
        (("--reward", "bleu"), "Unknown reward 'bleu'"),
        (("--estimator", "gae"), "needs a critic"),
    ],
)
def test_wrong_arguments_are_one_line(monkeypatch, capsys, tmp_path, model, words, message):
    out = tmp_path / "run"
    code, error = mempo(monkeypatch, capsys, "train", "--out", str(out), "--model", model, *SMALL, *words)
    assert code == 2
    assert message in error
    assert len(error.strip().splitlines()) == 1
    assert not (out / "metrics.jsonl").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("learning_rate = 1e-6\n", "Unknown option in"),
        ('updates = "many"\n', "updates: expected a whole number of at least 1, got 'many'"),
        ("updates = [\n", "expected TOML"),
    ],
)
def test_wrong_configs_are_one_line(monkeypatch, capsys, tmp_path, text, message):
    config = tmp_path / "wrong.toml"
    config.write_text(text, encoding="utf-8")
    code, error = mempo(monkeypatch, capsys, "train", "--out", str(tmp_path / "run"), "--config", str(config))
    assert code == 2
    assert message in error


def test_a_model_that_is_not_there(monkeypatch, capsys, tmp_path):
    code, error = mempo(
        monkeypatch, capsys, "train", "--out", str(tmp_path / "run"), "--model", "no/such-model", *SMALL
    )
    assert code == 2
    assert "Could not load the language model 'no/such-model'" in error


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.name)
def test_shipped_configs_hold_known_options_and_legal_values(config):
    import inspect

    from mempo_agents.commands.train import run
    from mempo_agents.commands.training import merged, settings_from

    options = {
        name: p.default for name, p in inspect.signature(run).parameters.items() if name not in ("out", "context")
    }
    chosen = merged(run, options, config, skip=("out", "config"))
    settings = settings_from(chosen)
    given = tomllib.loads(config.read_text(encoding="utf-8"))
    assert settings.optimizer.lr == given["lr"]
    open_lines = [line for line in config.read_text(encoding="utf-8").splitlines() if "OPEN" in line]
    assert len(open_lines) > 5, "what the paper leaves open is marked"


def test_warm_start_teaches_and_continues(monkeypatch, capsys, tmp_path, model):
    words = ("warm-start", "--out", str(tmp_path), "--model", model, "--dataset", "world-compact:size=200", "--tasks",
             "8", "--objectives", "1", "--quote", "--terse", "--lr", "1e-3", "--epochs", "2", "--batch-tokens", "4000",
             "--dtype", "float32", "--device", "cpu")  # fmt: skip
    code, error = mempo(monkeypatch, capsys, *words)
    assert code == 0, error
    assert re.search(r"\d+ steps to learn from, 0 longer", error)
    lines = read_metrics(tmp_path / "metrics.jsonl")
    assert lines[-1]["loss"] < lines[0]["loss"]
    assert mempo(monkeypatch, capsys, *words)[0] == 0
    assert read_metrics(tmp_path / "metrics.jsonl") == lines


def test_one_warm_start_teaches_several_policies_on_several_data_sets(monkeypatch, capsys, tmp_path, model):
    """As many steps as the four warm starts of one policy on one data set have together, 2 tasks each."""
    worlds = ("world-compact:size=200", "world:size=300,register=compact")  # the second name has a comma of its own

    def steps(folder: str, policy: str, *datasets: str) -> int:
        words = ("warm-start", "--out", str(tmp_path / folder), "--model", model, "--tasks", "2", "--objectives", "1",
                 "--policy", policy, "--terse", "--quote", "--device", "cpu")  # fmt: skip
        code, error = mempo(monkeypatch, capsys, *words, *(w for name in datasets for w in ("--dataset", name)))
        assert code == 0, error
        return int(re.search(r"(\d+) steps to learn from", error)[1])

    alone = [steps(f"{p}-{n}", p, world) for p in ("react", "mempo") for n, world in enumerate(worlds)]
    assert min(alone) > 0
    assert steps("all", "react, mempo", *worlds) == sum(alone)
    code, error = mempo(monkeypatch, capsys, "warm-start", "--out", str(tmp_path / "none"), "--policy", ",")
    assert code == 2
    assert "expected a policy" in error


@pytest.mark.parametrize(
    ("spec", "instructions"), [("world-compact", ""), ("world:size=200,register=compact", ""), ("world:size=200", None)]
)
def test_compact_worlds_need_no_instructions_however_they_are_named(monkeypatch, tmp_path, spec, instructions):
    seen = []

    class Listening:
        def __init__(self, settings, *_, **__):
            seen.append(settings.instructions)
            raise ValueError("enough")

    monkeypatch.setattr("mempo_agents.learners.trainer.Trainer", Listening)
    monkeypatch.setattr("sys.argv", ["mempo", "train", "--out", str(tmp_path / "run"), "--dataset", spec])
    with pytest.raises(SystemExit):
        cli.main()
    assert seen == [instructions]


def test_arguments_of_vllm_are_a_table_or_json(monkeypatch, capsys, tmp_path):
    seen = []

    class Listening:
        def __init__(self, settings, *_, **__):
            seen.append((settings.sampler, settings.sampler_options))
            raise ValueError("enough")

    monkeypatch.setattr("mempo_agents.learners.trainer.Trainer", Listening)
    config = tmp_path / "vllm.toml"
    config.write_text('sampler = "vllm"\n[sampler_options]\ngpu_memory_utilization = 0.5\n', encoding="utf-8")
    out = str(tmp_path / "run")
    mempo(monkeypatch, capsys, "train", "--out", out, "--config", str(config))
    words = ("--sampler", "vllm", "--sampler-options", '{"max_model_len": 512}')
    mempo(monkeypatch, capsys, "train", "--out", out, *words)
    assert seen == [("vllm", {"gpu_memory_utilization": 0.5}), ("vllm", {"max_model_len": 512})]
    for text, message in (("[1]", "expected a JSON object"), ("{", "expected JSON")):
        code, error = mempo(monkeypatch, capsys, "train", "--out", out, "--sampler-options", text)
        assert code == 2
        assert message in error


def test_a_bar_on_the_terminal_and_the_lines_in_the_pipe(tmp_path, model):
    """stderr is a terminal, stdout a file: the bar goes to one, every line of the curve to the other."""
    import os
    import pty
    import subprocess
    import sys

    ours, theirs = pty.openpty()
    words = ("train", "--out", str(tmp_path / "run"), "--model", model, *SMALL, "--estimator", "grpo", "--updates", "3")
    command = [sys.executable, "-m", "mempo_agents.cli", *words, "--evaluate-every", "0", "--track", "none"]
    environment = {**os.environ, "COLUMNS": "120", "TERM": "xterm"}
    with (tmp_path / "curve").open("w") as curve:
        process = subprocess.Popen(command, stdout=curve, stderr=theirs, env=environment)
    os.close(theirs)
    seen = b""
    try:
        while part := os.read(ours, 1 << 16):
            seen += part
    except OSError:  # the other end is closed
        pass
    assert process.wait(timeout=120) == 0, seen[-2000:]
    lines = (tmp_path / "curve").read_text().splitlines()
    assert [line.split()[0] for line in lines] == ["1/3", "2/3", "3/3"]
    # The bar is drawn ten times a second, so quick updates may be passed over; the last is always drawn.
    assert "update 3/3" in re.sub(r"\x1b\[[0-9;]*m", "", seen.decode()), seen
    assert not (tmp_path / "run" / "tensorboard").exists()


def test_where_a_run_goes_on_is_read_from_its_newest_checkpoint(tmp_path):
    from mempo_agents.commands.training import record_to_go_on_from

    assert record_to_go_on_from(tmp_path) == {}
    text = "".join(f'{{"step": {step}, "done": {step / 4}}}\n' for step in (1, 2, 3))
    (tmp_path / "metrics.jsonl").write_text(text, encoding="utf-8")
    assert record_to_go_on_from(tmp_path) == {}, "without a checkpoint it begins anew"
    for step in (1, 2):
        folder = tmp_path / "checkpoints" / f"step-{step:08d}"
        folder.mkdir(parents=True)
        (folder / "state.json").write_text("{}", encoding="utf-8")
    assert record_to_go_on_from(tmp_path) == {"step": 2, "done": 0.5}


def test_a_config_that_cannot_be_read_is_named(monkeypatch, capsys, tmp_path):
    for path in (tmp_path / "nosuch.toml", tmp_path):
        code, error = mempo(monkeypatch, capsys, "train", "--out", str(tmp_path / "run"), "--config", str(path))
        assert code == 2
        assert f"--config {path}: expected a TOML file with options of this command" in error
    (tmp_path / "latin.toml").write_bytes(b'reward = "caf\xe9"\n')
    code, error = mempo(
        monkeypatch, capsys, "train", "--out", str(tmp_path / "run"), "--config", str(tmp_path / "latin.toml")
    )
    assert (code, "expected TOML" in error) == (2, True)


def test_nano_names_the_protocols_that_it_can_teach(monkeypatch, capsys, tmp_path):
    code, error = mempo(monkeypatch, capsys, "nano", "--out", str(tmp_path / "run"), "--protocol", "mempp")
    assert code == 2
    assert "Unknown protocol for a nano model 'mempp'. Did you mean 'mempo'? Known: mem1, mempo, react." in error
    assert not (tmp_path / "run").exists()


def test_nano_in_little_writes_its_curve(monkeypatch, capsys, tmp_path):
    words = ("nano", "--out", str(tmp_path), "--tokens", "65536", "--eval-tasks", "1", "--track", "none")
    code, error = mempo(monkeypatch, capsys, *words)
    assert code == 0, error
    lines = read_metrics(tmp_path / "metrics.jsonl")
    assert lines[-1]["done"] == 1.0
    assert [line["done"] for line in lines] == sorted(line["done"] for line in lines)
    assert lines[0]["done"] == pytest.approx(1 / len(lines))
    assert "Done: F1" in error
