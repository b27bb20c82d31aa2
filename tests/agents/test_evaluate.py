"""Evaluation: what is written, that a killed run continues to the same end, that another run's folder is safe."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mempo_agents.evaluate import Settings, evaluate
from mempo_agents.files import read_trajectories
from mempo_env.errors import DataError, RetrievalError, UnknownNameError

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture
def settings(tiny_data: tuple[Path, Path]) -> Settings:
    questions, corpus = tiny_data
    return Settings(dataset=str(questions), corpus=str(corpus), objectives=(2, 4), tasks=5, seed=3)


def without_seconds(value: Any) -> Any:
    """`value` without what differs between two runs of the same settings: times."""
    if isinstance(value, dict):
        return {k: without_seconds(v) for k, v in value.items() if k not in ("seconds", "started_at")}
    return [without_seconds(v) for v in value] if isinstance(value, list) else value


def test_results_file(settings: Settings, tmp_path: Path) -> None:
    results = evaluate(settings, tmp_path / "run")
    assert json.loads((tmp_path / "run/results.json").read_text()) == results
    assert results["schema_version"] == 1
    run = results["run"]
    assert run["complete"] is True
    assert run["arguments"]["objectives"] == [2, 4]
    assert run["versions"]["numpy"]
    assert run["dataset"]["fingerprint"]
    assert run["retriever"]["fingerprint"]
    assert [(c["policy"], c["objectives"]) for c in results["cells"]] == [
        (policy, k) for policy in ("react", "mem1", "mempo") for k in (2, 4)
    ]
    promised = (
        "policy objectives tasks f1 em all_correct format_valid failed steps total_tokens peak_tokens dependency "
    )
    promised += (
        "prompt_tokens_by_step seconds intervals engine guided prompt_tokens generated_tokens observation_tokens "
    )
    promised += "compression_by_step"
    for cell in results["cells"]:
        assert set(promised.split()) <= set(cell)
        # Each question is answered by a passage that its own words find, so the oracle knows all of them. It searches
        # once a question and answers in the step after: k + 1 steps.
        assert (cell["f1"], cell["em"], cell["all_correct"], cell["format_valid"]) == (1.0, 1.0, 1.0, 1.0)
        assert cell["steps"] == cell["objectives"] + 1
        assert len(cell["prompt_tokens_by_step"]) == cell["objectives"] + 1
        assert cell["failed"] == 0
        assert cell["tasks"] == 5


def test_every_episode_is_on_disk_with_its_tokens(settings: Settings, tmp_path: Path) -> None:
    results = evaluate(settings, tmp_path)
    trajectories = list(read_trajectories(tmp_path / "trajectories.jsonl"))
    assert len(trajectories) == 3 * 2 * 5
    cell = next(c for c in results["cells"] if (c["policy"], c["objectives"]) == ("mempo", 4))
    mine = [t for t in trajectories if (t.policy, t.objectives) == ("mempo", 4)]
    # Recomputed from the definition: the largest prompt plus response of each episode, averaged.
    peaks = [max(len(s.prompt_ids) + len(s.response_ids) for s in t.steps) for t in mine]
    assert cell["peak_tokens"] == pytest.approx(sum(peaks) / 5)


def test_policies_play_the_same_tasks(settings: Settings, tmp_path: Path) -> None:
    evaluate(settings, tmp_path)
    tasks: dict[tuple[str, int], set[str]] = {}
    for trajectory in read_trajectories(tmp_path / "trajectories.jsonl"):
        tasks.setdefault((trajectory.policy, trajectory.objectives), set()).add(trajectory.task_id)
    assert tasks["react", 4] == tasks["mem1", 4] == tasks["mempo", 4]
    assert len(tasks["react", 4]) == 5
    assert tasks["react", 2] != tasks["react", 4]


def test_the_seed_chooses_the_tasks(settings: Settings, tmp_path: Path) -> None:
    settings = replace(settings, policies=("mempo",), objectives=(3,))
    asked = []
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        evaluate(replace(settings, seed=seed), tmp_path / name)
        asked.append({t.questions for t in read_trajectories(tmp_path / name / "trajectories.jsonl")})
    assert asked[0] == asked[1] != asked[2]


def test_the_whole_history_grows_and_the_last_step_does_not(settings: Settings, tmp_path: Path) -> None:
    results = evaluate(replace(settings, objectives=(2, 8)), tmp_path)
    cells = {(c["policy"], c["objectives"]): c for c in results["cells"]}
    by_step = cells["react", 8]["prompt_tokens_by_step"]
    assert by_step == sorted(by_step)
    assert all(ratio == 1 for ratio in cells["react", 8]["compression_by_step"])
    assert cells["mempo", 8]["compression_by_step"][-1] < 0.8
    growth = {p: cells[p, 8]["peak_tokens"] / cells[p, 2]["peak_tokens"] for p in ("react", "mempo")}
    assert growth["react"] > growth["mempo"] > 1


SLOW_RUN = """
import sys, time, json
from pathlib import Path
from mempo_agents.engines.scripted import OracleEngine
from mempo_agents.evaluate import Settings, evaluate

write = OracleEngine.respond
def slowly(self, request, protocol):
    time.sleep(0.02)
    return write(self, request, protocol)
OracleEngine.respond = slowly
arguments = json.loads(sys.argv[1])
arguments.update({k: tuple(arguments[k]) for k in ("policies", "objectives")})
evaluate(Settings(**arguments), Path(sys.argv[2]), batch_size=2)
"""


@pytest.mark.parametrize("lines_before_kill", [1, 12])
def test_killed_run_continues_to_the_same_end(settings: Settings, tmp_path: Path, lines_before_kill: int) -> None:
    arguments = {name: getattr(settings, name) for name in Settings.__slots__}
    child = subprocess.Popen([sys.executable, "-c", SLOW_RUN, json.dumps(arguments), str(tmp_path / "killed")])
    file = tmp_path / "killed/trajectories.jsonl"
    deadline = time.monotonic() + 60
    while not file.exists() or file.read_bytes().count(b"\n") < lines_before_kill:
        assert child.poll() is None, "the run ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.005)
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    # A kill in the middle of a line, made certain: half of a line more.
    whole = file.read_bytes()
    half = whole.splitlines()[0][:100]
    file.write_bytes(whole[: whole.rindex(b"\n") + 1] + half)
    assert json.loads((tmp_path / "killed/results.json").read_text())["run"]["complete"] is False

    played: list[tuple[str, int, int]] = []
    results = evaluate(settings, tmp_path / "killed", batch_size=2, watch=lambda *event: played.append(event))
    assert played[0][1] >= lines_before_kill  # begins with what was done, and does not play it again
    assert played[-1][1:] == (30, 30)
    expected = evaluate(settings, tmp_path / "whole", batch_size=3)
    assert without_seconds(results) == without_seconds(expected)
    keys = [(t.policy, t.task_id, t.sample) for t in read_trajectories(file)]
    assert len(keys) == len(set(keys)) == 30


def test_finished_run_is_not_played_again(settings: Settings, tmp_path: Path) -> None:
    first = evaluate(settings, tmp_path)
    size = (tmp_path / "trajectories.jsonl").stat().st_size
    assert evaluate(settings, tmp_path) == first
    assert (tmp_path / "trajectories.jsonl").stat().st_size == size


def test_samples_of_a_half_played_task(settings: Settings, tmp_path: Path) -> None:
    settings = replace(settings, policies=("mempo",), objectives=(2,), samples=3, temperature=1.0, engine="random")
    whole = evaluate(settings, tmp_path / "a")
    evaluate(settings, tmp_path / "b")
    file = tmp_path / "b/trajectories.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[:4] + lines[6:9]))  # gaps inside tasks
    again = evaluate(settings, tmp_path / "b")
    assert without_seconds(again) == without_seconds(whole)
    assert len(list(read_trajectories(file))) == 15


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"seed": 4}, "arguments.seed was 3 and is now 4"),
        ({"objectives": (2, 6)}, "arguments.objectives was 2,4 and is now 2,6"),
        ({"engine": "random"}, "engine.name was oracle and is now random"),
    ],
)
def test_folder_of_another_run_is_refused(
    settings: Settings, tmp_path: Path, change: dict[str, Any], named: str
) -> None:
    evaluate(settings, tmp_path / "run")
    before = {path: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    with pytest.raises(DataError, match=named):
        evaluate(replace(settings, **change), tmp_path / "run")
    assert {path: path.read_bytes() for path in (tmp_path / "run").iterdir()} == before


def test_changed_data_is_another_run(settings: Settings, tmp_path: Path) -> None:
    evaluate(settings, tmp_path / "run")
    corpus = Path(str(settings.corpus))
    corpus.write_text(corpus.read_text().replace("river", "sea"))
    with pytest.raises(DataError, match=r"fingerprint was .* and is now"):
        evaluate(settings, tmp_path / "run")


def test_second_writer_is_refused(settings: Settings, tmp_path: Path) -> None:
    def again(*_: Any) -> None:
        with pytest.raises(DataError, match="another process is writing here"):
            evaluate(settings, tmp_path)

    evaluate(settings, tmp_path, watch=again)


def test_trajectories_without_their_results_are_refused(settings: Settings, tmp_path: Path) -> None:
    (tmp_path / "trajectories.jsonl").write_text("{}\n")
    with pytest.raises(DataError, match=r"expected results\.json beside"):
        evaluate(settings, tmp_path)


def test_failed_searches_are_counted_and_not_scored(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mempo_env.retrieval.bm25 import BM25Retriever

    def broken(self: BM25Retriever, queries: Any, k: int) -> Any:
        raise RetrievalError("the index is gone")

    monkeypatch.setattr(BM25Retriever, "search", broken)
    settings = replace(settings, policies=("mempo",), objectives=(2,))
    (cell,) = evaluate(settings, tmp_path)["cells"]
    assert cell["failed"] == 5
    assert cell["f1"] is None
    assert cell["intervals"]["f1"] is None
    assert cell["stop_reasons"]["failed"] == 5


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"policies": ("mempo", "mem2")}, "Unknown policy 'mem2'. Did you mean 'mem1'"),
        ({"policies": ()}, "policies: expected at least one, each once, got none"),
        ({"objectives": (2, 2)}, "objectives: expected at least one, each once, got 2,2"),
        ({"objectives": (0,)}, "objectives: expected numbers of at least 1, got 0"),
        ({"tasks": 0}, "tasks: expected at least 1, got 0"),
        ({"samples": 2}, "samples: expected 1 at temperature 0"),
    ],
)
def test_settings_are_checked(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message.replace(".", r"\.")):
        Settings(**change)


def test_unknown_engine_and_split(settings: Settings, tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="Unknown engine 'gpt'"):
        evaluate(replace(settings, engine="gpt"), tmp_path)
    with pytest.raises(UnknownNameError, match="Unknown split of data set"):
        evaluate(replace(settings, split="tset"), tmp_path)


def test_command_names_what_differs_from_the_defaults() -> None:
    assert Settings().command() == "mempo eval"
    settings = Settings(policies=("mempo",), objectives=(2, 4), guided=True, dataset="a file.json", temperature=0.5)
    assert settings.command() == (
        "mempo eval --policies mempo --dataset 'a file.json' --objectives 2,4 --temperature 0.5 --guided"
    )
