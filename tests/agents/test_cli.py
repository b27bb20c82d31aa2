"""The command line as a shell sees it: exit codes, one-line errors, output that others can script against."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mempo_agents.cli import COMMANDS, app


def mempo(*arguments: str, stdin: str = "", cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run `mempo` as a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "mempo_agents.cli", *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=120,
        cwd=cwd,
        env={**os.environ, "NO_COLOR": "1"},
    )


@pytest.fixture
def data(tiny_data: tuple[Path, Path]) -> list[str]:
    questions, corpus = tiny_data
    return ["--dataset", str(questions), "--corpus", str(corpus)]


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_command_has_help(command: str) -> None:
    result = CliRunner().invoke(app, [command, "--help"])
    assert result.exit_code == 0
    assert "Usage" in result.output
    run = COMMANDS[command]
    assert run.__doc__
    assert " ".join(run.__doc__.split())[:20] in " ".join(result.output.split())


def test_help_lists_every_command_and_loads_nothing_heavy() -> None:
    script = (
        "import sys; from typer.testing import CliRunner; from mempo_agents.cli import app; "
        "out = CliRunner().invoke(app, ['--help']).output; print(out); "
        "print('heavy:', sorted({'numpy', 'gymnasium', 'torch', 'transformers'} & set(sys.modules)))"
    )
    output = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert "heavy: []" in output
    for command in COMMANDS:
        assert f" {command} " in output


def test_version() -> None:
    done = mempo("--version")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("mempo-gym ")


def test_eval_writes_files_and_prints_the_table(data: list[str], tmp_path: Path) -> None:
    arguments = ["eval", *data, "--objectives", "2,3", "--tasks", "4", "--policies", "mempo,react", "--out", "run"]
    done = mempo(*arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "run/results.json").read_text())
    assert [(c["policy"], c["objectives"], c["f1"]) for c in results["cells"]] == [
        ("mempo", 2, 1.0),
        ("mempo", 3, 1.0),
        ("react", 2, 1.0),
        ("react", 3, 1.0),
    ]
    assert "\x1b" not in done.stdout
    assert "1.00 [1.00, 1.00]" in done.stdout
    assert "from 2 to 3 objectives the peak grows" in done.stdout
    assert "Written: run/results.json" in done.stderr
    # The recorded command gives the same numbers again.
    command = results["run"]["command"].split()
    assert command[:2] == ["mempo", "eval"]
    assert mempo(*command[1:], "--out", "again", cwd=tmp_path).returncode == 0
    again = json.loads((tmp_path / "again/results.json").read_text())
    assert [c["total_tokens"] for c in again["cells"]] == [c["total_tokens"] for c in results["cells"]]


BAD_INPUT: list[tuple[Sequence[str], str]] = [
    (["eval", "--out", "run", "--policies", "mempoo"], "Unknown policy 'mempoo'. Did you mean 'mempo'?"),
    (["eval", "--out", "run", "--objectives", "2,x"], "--objectives: expected"),
    (["eval", "--out", "run", "--objectives", "20"], "20"),
    (["eval", "--out", "run", "--engine", "gtp"], "Unknown engine 'gtp'"),
    (["eval", "--out", "run", "--engine", "replay"], "engine: expected replay:FILE"),
    (["eval", "--out", "run", "--retriever", "bm26"], "Unknown retriever 'bm26'"),
    (["eval", "--out", "run", "--split", "tset"], "Unknown split"),
    (["eval", "--out", "/dev/null/run"], "/dev/null/run: Not a directory"),
    (["eval", "--out", "/dev/null"], "/dev/null: expected a folder to write to, found a file"),
    (["play", "--index", "500"], "--index: expected 0 to 11, got 500"),
    (["play", "--protocol", "mempoo"], "Unknown protocol 'mempoo'. Did you mean 'mempo'?"),
    (["play", "--policy", "mempoo"], "Unknown policy 'mempoo'. Did you mean 'mempo'?"),
    (["tasks", "--index", "500"], "--index: expected 0 to 11, got 500"),
    (["tasks", "--objectives", "3-x"], "--objectives: expected"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD_INPUT, ids=[" ".join(a[:1] + a[-2:]) for a, _ in BAD_INPUT])
def test_bad_input_is_one_line_and_exit_code_2(
    data: list[str], tmp_path: Path, arguments: list[str], message: str
) -> None:
    done = mempo(*arguments, *(data[:2] if arguments[0] == "tasks" else data), cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.startswith("Error: ")
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr


def test_missing_file_and_unknown_dataset(tmp_path: Path) -> None:
    for name, message in (("nowhere.jsonl", "nowhere.jsonl"), ("wrold", "Did you mean 'world'?")):
        done = mempo("tasks", "--dataset", name, cwd=tmp_path)
        assert done.returncode == 2
        assert message in done.stderr
        assert "Traceback" not in done.stderr


def test_corrupt_line_names_its_place(tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_text(
        '{"id": "a", "question": "Who?", "golden_answers": ["X"]}\n{"id": "b", "quest\n'
    )
    done = mempo("tasks", "--dataset", "bad.jsonl", "--objectives", "1", cwd=tmp_path)
    assert done.returncode == 2
    assert "bad.jsonl" in done.stderr
    assert "2" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_defect_keeps_its_traceback() -> None:
    script = (
        "import mempo_agents.cli as cli, mempo_agents.commands.tasks as tasks\n"
        "def broken(): raise KeyError('a defect')\n"
        "cli.app.command('broken')(broken)\n"
        "import sys; sys.argv = ['mempo', 'broken']; cli.main()"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 1
    assert "Traceback" in done.stderr


def test_traceback_on_request(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mempo_agents.cli", "tasks", "--dataset", "nowhere.jsonl"],
        capture_output=True,
        text=True,
        env={**os.environ, "MEMPO_TRACEBACK": "1"},
    )
    assert done.returncode == 1
    assert "Traceback" in done.stderr


def test_tasks_shows_and_exports(data: list[str], tmp_path: Path) -> None:
    shown = mempo("tasks", *data[:2], "--objectives", "2", "--count", "2")
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.count("  1. Who founded") == 2
    assert (
        mempo("tasks", *data[:2], "--objectives", "2-3", "--count", "5", "--export", str(tmp_path / "t.jsonl")).stdout
        == ""
    )
    rows = [json.loads(line) for line in (tmp_path / "t.jsonl").read_text().splitlines()]
    assert len(rows) == 5
    assert {len(row["questions"]) for row in rows} <= {2, 3}
    assert all(question["answers"] for row in rows for question in row["questions"])
    to_stdout = mempo("tasks", *data[:2], "--objectives", "2-3", "--count", "5", "--export", "-")
    assert [json.loads(line) for line in to_stdout.stdout.splitlines()] == rows


def test_tasks_into_a_closed_pipe_is_quiet(data: list[str]) -> None:
    command = f"{sys.executable} -m mempo_agents.cli tasks {' '.join(data[:2])} --count 12 --export - | head -n 1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert done.stdout.count("\n") == 1
    assert done.stderr == ""


def test_watch_a_policy(data: list[str]) -> None:
    done = mempo("play", *data, "--policy", "mempo", "--objectives", "2")
    assert done.returncode == 0, done.stderr
    assert "Step 1 of at most 12" in done.stdout
    assert "Ended: answered, reward 1" in done.stdout
    assert "\x1b" not in done.stdout


def test_play_by_hand_through_a_pipe(data: list[str]) -> None:
    lines = ["s Northbank Library", "m Question 1: Ada Quill", "a Ada Quill; nobody"]
    done = mempo("play", *data, "--objectives", "2", stdin="\n".join(lines) + "\n")
    assert done.returncode == 0, done.stderr
    assert "Question 2: Who founded" in done.stdout
    assert "Northbank Library was founded by Ada Quill" in done.stdout
    assert "{+Question 1: Ada Quill+}" in done.stdout
    assert "Ended: answered, reward 0" in done.stdout
    assert "\x1b" not in done.stdout


def test_play_says_what_it_understands(data: list[str]) -> None:
    done = mempo("play", *data, "--protocol", "react", stdin="hello\nm note\na only; one; more\nc\nr <answer>\nq\n")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("s WORDS") == 2  # at the start, and for the line that it did not understand
    assert "react has no memory" in done.stdout
    assert "Expected 2 answers joined by ';', got 3." in done.stdout
    assert "[system]" in done.stdout  # c shows all that a policy sees, the instructions included
    assert "step 2 of at most 12>" in done.stdout  # the unreadable answer cost a step and was answered
    assert "Given up; the answers were:" in done.stdout


def test_play_ends_with_its_input(data: list[str]) -> None:
    done = mempo("play", *data, stdin="s Harrow Mill\n")
    assert done.returncode == 0
    assert "The input ended before the episode did." in done.stdout
