"""`mempo report` and `mempo show` as a shell sees them."""

from __future__ import annotations

from pathlib import Path

import pytest
from report_runs import group_run, make_episode, write_run
from typer.testing import CliRunner

from mempo_agents.cli import app
from mempo_agents.show import episode_lines, list_lines, pick
from mempo_env.errors import DataError


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    other = make_episode("world/test/k2/000002", 0, ["m", "m"], ["r"], right=True)
    return write_run(tmp_path / "run", [*group_run(), other])


def mempo(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def test_show_prints_an_episode_as_plain_text_in_a_pipe(run_folder: Path) -> None:
    text = mempo("show", run_folder, "--task", "000001", "--trajectory", "mempo/1")
    assert "\x1b" not in text
    assert text.startswith(
        "Task world/test/k2/000001  mempo/1, context last_step\n  Question 1: Who founded Harrow Mill?"
    )
    for line in (
        "Step 2 of 3",
        "    [-nothing yet-] {+The founder is unknown.+}",
        "    next",
        "  Search query 1",
        "    Doc 1(Title: Harrow) Harrow lies near Lima, in a bend of a slow and rather muddy river.",
        "Ended: answered, reward 0",
        "  2. wrong: expected 'Lima'  F1 0.00",
    ):
        assert line in text
    one = mempo("show", run_folder, "--task", "000001", "--trajectory", "mempo/1", "--step", "3")
    assert "Step 3 of 3" in one
    assert "Step 2 of 3" not in one


def test_show_colours_and_keeps_hostile_text_harmless() -> None:
    one = make_episode("t", 0, ["old \x1b[2J", "new"], ["r\x1b]0;title\x07"], right=True)
    coloured = "\n".join(episode_lines(one, colour=True))
    assert "\x1b[32m" in coloured
    assert "\x1b[2J" not in coloured
    assert "\x1b]0;" not in coloured
    assert "\u241b[2J" in coloured


def test_show_lists_where_several_fit(run_folder: Path) -> None:
    lines = mempo("show", run_folder).splitlines()
    assert lines[0] == "task\ttrajectory\tsteps\treward\tended"
    assert lines[1] == "world/test/k2/000001\tmempo/0\t3\t1\tanswered"
    assert len(lines) == 6
    assert len(mempo("show", run_folder / "trajectories.jsonl", "--trajectory", "react").splitlines()) > 10
    assert len(list(list_lines(group_run()))) == 5


def test_show_says_what_there_is(run_folder: Path) -> None:
    with pytest.raises(DataError, match=r"No task .k9.\. There are 2, such as world/test/k2/000001"):
        mempo("show", run_folder, "--task", "k9")
    with pytest.raises(DataError, match=r"No trajectory 'mempo/7'\. There are mempo/0, mempo/1"):
        mempo("show", run_folder, "--trajectory", "mempo/7")
    with pytest.raises(ValueError, match="--step needs one trajectory, got 5"):
        mempo("show", run_folder, "--step", "1")
    with pytest.raises(ValueError, match="expected 1 to 3, got 4"):
        mempo("show", run_folder, "--task", "000001", "--trajectory", "mempo/0", "--step", "4")
    with pytest.raises(DataError, match="empty file"):
        pick([], None, None)


def test_a_policy_means_its_first_sample_and_an_exact_name_wins() -> None:
    rows = group_run()
    assert [t.sample for t in pick(rows, None, "mempo")] == [0]
    longer = make_episode("world/test/k2/0000010", 0, ["m", "m"], ["r"], right=True)
    assert {t.task_id for t in pick([*rows, longer], "world/test/k2/000001", None)} == {"world/test/k2/000001"}


def test_report_writes_the_page(run_folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("plotly")
    out = tmp_path / "deep" / "page.html"
    said = mempo("report", run_folder, "-o", out, "--trajectories", "2")
    assert "2 of 5 episodes to open" in said
    assert out.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert not list(out.parent.glob("*.part"))
    with pytest.raises(DataError, match="found neither"):
        mempo("report", tmp_path / "nowhere")
