"""What the report computes from run files, against values worked out by hand."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from report_runs import OBSERVATIONS, group_run, make_episode, make_step, write_credit, write_run, write_training

from mempo_agents.files import to_record, write_trajectories
from mempo_agents.metrics import summarise
from mempo_agents.report.collect import Collection, Lines
from mempo_agents.report.comparisons import Comparison, Series, choose, comparisons
from mempo_agents.report.episodes import index_row, piece_lengths, step_parts, viewer_record, without_tokens
from mempo_agents.report.page import Page
from mempo_agents.report.presence import losses, presence_by_step
from mempo_agents.report.published import published_rows
from mempo_agents.report.runs import GrowingFile, find_runs, fingerprint
from mempo_agents.report.text import utf16_length
from mempo_env.errors import DataError
from mempo_env.rendering import visible
from mempo_env.types import StopReason


def page_of(*folders: Path) -> Page:
    collection = Collection(folders)
    collection.refresh()
    return Page.of(collection)


def section(page: Page, name: str):
    return next(s for s in page.sections if s.id == name)


# --- where the answers are ---


def test_presence_and_loss() -> None:
    kept, lost, _, react = group_run()
    found = presence_by_step(kept)
    # Result 1 names Tomas Beck; memory 2 keeps it; result 2 names Lima; memory 3 keeps both.
    assert [p.memory for p in found] == [(False, False), (True, False), (True, True)]
    assert [p.reply for p in found] == [(True, False), (False, True), (False, False)]
    assert [p.view for p in found] == [(False, False), (True, False), (True, True)]
    assert losses(found) == []
    # Memory 2 of sample 1 left the founder out: in the prompt of step 2 (as result 1), not in that of step 3.
    (loss,) = losses(presence_by_step(lost))
    assert (loss.objective, loss.step) == (0, 2)
    found = presence_by_step(react)
    assert [p.memory for p in found] == [None, None, None]
    assert [p.view for p in found] == [(False, False), (True, False), (True, True)]


def test_answers_are_found_as_words_and_yes_is_not_traced() -> None:
    one = make_episode("t", 0, ["The Limavady line", "x"], ["near LIMA!"], right=True, answers=(("Lima",), ("yes",)))
    found = presence_by_step(one)
    assert found[0].memory == (False, None)  # "Limavady" is another word
    assert found[0].reply == (True, None)
    aliases = make_episode("t", 0, ["by T. Beck", "x"], ["nothing"], right=True)
    assert presence_by_step(aliases)[0].memory == (True, False)


def test_the_task_itself_is_no_presence() -> None:
    """An answer that stands in the question is not known for that."""
    one = make_episode("t", 0, ["m", "m"], ["r"], right=True, answers=(("Harrow Mill",),))
    assert [p.view for p in presence_by_step(one)] == [(False,), (False,)]


# --- an episode for the viewer ---


def test_pieces_are_the_tokens_texts_in_javascript_units() -> None:
    step = make_step("a \U0001f600b", query="q")
    record_lengths = piece_lengths(step)
    utf16 = step.sampled_text.encode("utf-16-le")
    pieces, at = [], 0
    for length in record_lengths:
        pieces.append(utf16[2 * at : 2 * (at + length)].decode("utf-16-le"))
        at += length
    starts = [0, *step.token_ends[:-1]]
    assert pieces == [step.sampled_text[a:b] for a, b in zip(starts, step.token_ends, strict=True)]
    assert any("\U0001f600" in piece for piece in pieces)
    assert utf16_length("a\U0001f600") == 3


def test_parts_add_up() -> None:
    for step in group_run()[0].steps:
        parts = step_parts(step)
        assert sum(parts.values()) - parts["result"] == len(step.response_ids)
        assert parts["memory"] > 0


def test_viewer_record_rebuilds_every_message() -> None:
    for trajectory in group_run():
        record = viewer_record(trajectory)

        def content(message, record=record):
            if len(message) == 2:
                return message[1]
            step = record["steps"][message[1]]
            return step["observation"] if message[2] == "observation" else step["text"][: step["kept"]]

        rebuilt = [{"role": m[0], "content": content(m)} for m in record["messages"]]
        for step, row in zip(trajectory.steps, record["steps"], strict=True):
            assert [rebuilt[n] for n in row["messages"]] == list(step.messages)


def test_memory_changes_are_those_of_the_terminal() -> None:
    record = viewer_record(group_run()[1])
    assert record["steps"][0]["diff"] == [["a", "nothing yet"]]
    assert "".join(text for kind, text in record["steps"][1]["diff"] if kind != "d") == "The founder is unknown."
    assert ["d", "The founder is unknown."] in record["steps"][2]["diff"] or record["steps"][2]["diff"][0][0] == "d"


def test_without_tokens_the_figures_are_the_same() -> None:
    rows = group_run()
    assert summarise([without_tokens(t) for t in rows]) == summarise(rows)


def test_lines_are_written_once() -> None:
    lines = Lines()
    folded = [lines.fold(text) for text in (*OBSERVATIONS, OBSERVATIONS[0], "a\nb", "")]
    assert len(lines.texts) == 2
    assert folded[0] == folded[2] == ["<information>", 0, "</information>"]
    unfold = lambda parts: "\n".join(p if isinstance(p, str) else lines.texts[p] for p in parts)  # noqa: E731
    assert [unfold(f) for f in folded] == [*OBSERVATIONS, OBSERVATIONS[0], "a\nb", ""]


def test_index_row_says_unknown_as_none() -> None:
    failed = make_episode("t", 0, ["m"], [], right=False, stop=StopReason.FAILED, error="no server")
    row = index_row(failed, "run", [])
    assert (row["f1"], row["reward"], row["error"]) == (None, None, "no server")
    json.dumps(row, allow_nan=False)


# --- groups and grades ---


def test_group_worked_by_hand(tmp_path: Path) -> None:
    page = page_of(write_run(tmp_path / "run", group_run()))
    group = next(g for g in section(page, "group").extra["groups"] if g["policy"] == "mempo")
    # Rewards 1, 0, 0: mean 1/3; squared differences 4/9 + 1/9 + 1/9 = 2/3, over n - 1 = 2:
    # deviation sqrt(1/3) = 0.57735.
    assert group["rewards"] == [1.0, 0.0, 0.0]
    assert group["mean"] == pytest.approx(1 / 3)
    assert group["deviation"] == pytest.approx(0.57735, abs=1e-5)
    # (1 - 1/3) / 0.57735 = 1.1547; (0 - 1/3) / 0.57735 = -0.57735
    np.testing.assert_allclose(group["advantages"], [1.1547, -0.57735, -0.57735], atol=1e-4)
    assert [page.episodes[n]["trajectory"] for n in group["episodes"]] == ["mempo/0", "mempo/1", "mempo/2"]
    assert [row["advantage"] for row in page.episodes] == pytest.approx([*group["advantages"], 0.0])


def test_grades_worked_by_hand(tmp_path: Path) -> None:
    rows = group_run()
    write_credit(write_run(tmp_path / "run", rows), rows)
    page = page_of(tmp_path / "run")
    assert sorted(page.grades) == [0, 1, 2]
    # R_M at steps 2 and 3: 0.7 - 0.5, 0.9 - 0.8 | 0.2 - 0.5, 0.4 - 0.8 | 0.6 - 0.5, 0.8 - 0.8
    expected = [[None, 0.2, 0.1], [None, -0.3, -0.4], [None, 0.1, 0.0]]
    for n, values in enumerate(expected):
        assert page.grades[n]["reward"][0] is None
        assert page.grades[n]["reward"][1:] == pytest.approx(values[1:])
    # Pool 0.2, 0.1, -0.3, -0.4, 0.1, 0: mean -0.05; squares 0.0625 0.0225 0.0625 0.1225 0.0225 0.0025, sum 0.295,
    # over 5: deviation 0.242899. A_M of 0.2: 0.25 / 0.242899 = 1.02923
    assert page.grades[0]["pool_mean"] == pytest.approx(-0.05)
    assert page.grades[0]["pool_deviation"] == pytest.approx(0.242899, abs=1e-6)
    assert page.grades[0]["advantage"][1] == pytest.approx(1.02923, abs=1e-4)
    assert page.grades[0]["tokens"]["text"] == list("Tomas Beck Lima")
    assert [row["graded"] for row in page.episodes] == [True, True, True, False]
    assert section(page, "grade").missing == []


def test_a_group_that_is_scored_in_part_has_no_grades(tmp_path: Path) -> None:
    rows = group_run()
    write_credit(write_run(tmp_path / "run", rows), rows)
    more = make_episode("world/test/k2/000001", 3, ["m", "m"], ["r"], right=True)
    with (tmp_path / "run/trajectories.jsonl").open("a") as file:
        file.write(json.dumps(to_record(more)) + "\n")
    assert page_of(tmp_path / "run").grades == {}


# --- figures against the lines of the files ---


def test_context_section_against_the_json_lines(tmp_path: Path) -> None:
    # Three MemPO episodes whose memories differ in length, so that at step 3 no two prompts are equal.
    longer = make_episode("world/test/k2/000001", 3, ["much " * 9, "more " * 9, "m"], OBSERVATIONS, right=True)
    kept, lost, _, react = group_run()
    page = page_of(write_run(tmp_path / "run", [kept, lost, longer, react]))
    prompts: dict[str, list[list[int]]] = {}
    for line in (tmp_path / "run/trajectories.jsonl").read_text().splitlines():
        record, lengths = json.loads(line), []
        for step in record["steps"]:
            lengths.append(step["prompt"]["shared"] + len(step["prompt"]["ids"]))
        prompts.setdefault(record["policy"], []).append(lengths)
    (table,) = section(page, "context").tables
    for row in table.rows:
        values = [lengths[row["step"] - 1] for lengths in prompts[row["policy"].lower()]]
        assert row["episodes"] == len(values)
        assert row["median"] == np.median(values)
        assert row["middle_half"] == [np.quantile(values, 0.25), np.quantile(values, 0.75)]
        assert row["range"] == [min(values), max(values)]
    assert len(table.rows) == 6
    (figure,) = section(page, "context").figures
    singles = [trace for trace in figure.spec["data"] if "episodes" in trace]
    for trace in singles:
        drawn = [value for value in trace["y"] if value is not None]
        assert drawn == [n for lengths in prompts[trace["name"].lower()] for n in lengths]


def test_scores_section_shows_the_cells_of_the_results(tmp_path: Path) -> None:
    rows = group_run()
    page = page_of(write_run(tmp_path / "run", rows))
    table = next(t for t in section(page, "scores").tables if t.id == "scores-table-0")
    by_policy = {row["policy"]: row for row in table.rows}
    # F1 of the episodes: (1 + 1) / 2, (1 + 0) / 2, (1 + 0) / 2: mean 2/3.
    assert by_policy["MemPO"]["f1"] == pytest.approx(2 / 3)
    assert by_policy["ReAct"]["f1"] == 1.0
    assert by_policy["MemPO"]["total_tokens"] == pytest.approx(
        np.mean([sum(len(s.prompt_ids) + len(s.response_ids) for s in t.steps) for t in rows[:3]])
    )
    figure = next(f for f in section(page, "scores").figures if f.id == "scores-0-f1")
    assert [(trace["name"], trace["y"]) for trace in figure.spec["data"]] == [
        ("MemPO", [pytest.approx(2 / 3)]),
        ("ReAct", [1.0]),
    ]


def test_an_unfinished_cell_is_computed_from_its_episodes(tmp_path: Path) -> None:
    rows = group_run()
    cell = {"policy": "react", "objectives": 2, "context": "full", **summarise(rows[3:])}
    stale = {"policy": "mempo", "objectives": 2, "context": "last_step", **summarise(rows[:2])}
    cells = [{**cell, "f1": 0.25}, {**stale, "f1": 0.9}]
    folder = write_run(tmp_path / "run", rows, {"schema_version": 1, "run": {}, "cells": cells})
    collection = Collection([folder])
    collection.refresh()
    found = {c["policy"]: c for c in collection.runs[0].cells()}
    assert found["react"]["f1"] == 0.25  # as many episodes as there are: the file's
    assert found["mempo"]["f1"] == pytest.approx(2 / 3)  # counted two of three


# --- which policy ---


def cell(f1: float | None, interval: list[float] | None, tokens: float, objectives: int = 8) -> dict:
    return {
        "objectives": objectives,
        "f1": f1,
        "intervals": {"f1": interval},
        "total_tokens": tokens,
        "peak_tokens": tokens / 10,
    }


@pytest.mark.parametrize(
    ("cells", "name", "words"),
    [
        ({"A": cell(0.5, [0.4, 0.6], 9), "B": cell(0.3, [0.2, 0.35], 1)}, "A", "the highest F1; clear of B"),
        ({"A": cell(0.5, [0.4, 0.6], 9), "B": cell(0.3, [0.2, 0.45], 1)}, "A", "overlaps with that of B"),
        ({"A": cell(0.5, [0.4, 0.6], 9), "B": cell(0.5, [0.4, 0.6], 8)}, "B", "the same F1 as A, with fewer tokens"),
        ({"A": cell(None, None, 9), "B": cell(0.1, [0, 0.2], 8)}, "B", "no rival"),
    ],
)
def test_choice(cells: dict, name: str, words: str) -> None:
    series = [Series(key, key, "full", [value]) for key, value in cells.items()]
    (choice,) = choose(Comparison("c", "hf", series, [], ""))
    assert choice.name == name
    assert words in choice.why


def test_only_like_runs_are_compared(tmp_path: Path) -> None:
    first = group_run()
    other = [replace(t, metadata={"engine": "random", "tokenizer": "word"}) for t in first]
    for name, rows in (("a", first), ("b", other), ("c", first)):
        write_run(tmp_path / name, rows)
    collection = Collection([tmp_path])
    collection.refresh()
    found = comparisons(collection.runs, {"a": 0, "b": 4, "c": 8})
    assert [[run.name for run in c.runs] for c in found] == [["a", "c"], ["b"]]
    # The same cells twice stand side by side, each under its run's name.
    assert [s.name for s in found[0].series] == ["MemPO", "ReAct", "MemPO, c", "ReAct, c"]
    assert found[0].series[2].episodes == [8, 9, 10]


# --- training and ablations ---


def test_training_joins_seeds_and_ablation_joins_estimators(tmp_path: Path) -> None:
    for name, estimator, seed, values in (
        ("mempo-seed0", "mempo", 0, [0.1, 0.4]),
        ("mempo-seed1", "mempo", 1, [0.3, 0.8]),
        ("grpo-seed0", "grpo", 0, [0.1, 0.2]),
    ):
        write_training(tmp_path / name, estimator=estimator, seed=seed, values=values)
    page = page_of(tmp_path)
    rows = [row for row in section(page, "training").tables[0].rows if row["metric"] == "reward_mean"]
    joined = [row for row in rows if row["run"] == "mempo"]
    assert [(row["step"], row["mean"], row["spread"]) for row in joined] == [
        (1, pytest.approx(0.2), [0.1, 0.3]),
        (2, pytest.approx(0.6), [0.4, 0.8]),
    ]
    assert [f.title for f in section(page, "training").figures] == ["reward_mean", "eval_f1"]
    figure = next(f for f in section(page, "ablations").figures if f.id == "ablation-reward")
    lines = {trace["name"]: trace["y"] for trace in figure.spec["data"] if "name" in trace}
    assert lines == {
        "memory reward on": [pytest.approx(0.1), pytest.approx(0.3)],  # eval_f1 is half the reward
        "memory reward off": [0.05, 0.1],
    }


def test_context_ablation_needs_one_protocol_under_two_rules(tmp_path: Path) -> None:
    rows = group_run()
    full = [replace(t, policy="mempo_full", context="full") for t in rows[:3]]
    page = page_of(write_run(tmp_path / "both", [*rows, *full]))
    (figure,) = [f for f in section(page, "ablations").figures if f.id.startswith("ablation-context")]
    assert [trace["name"] for trace in figure.spec["data"]] == ["last_step", "full"]
    page = page_of(write_run(tmp_path / "one", rows))
    assert not [f for f in section(page, "ablations").figures if f.id.startswith("ablation-context")]
    assert any("Full history against last step" in gap for gap in section(page, "ablations").missing)


def test_failures_are_counted_and_linked(tmp_path: Path) -> None:
    good = group_run()[0]
    bad_step = make_step(None, text="I do not know.", observation="That was no action.")
    invalid = replace(good, sample=1, steps=(bad_step, *good.steps[1:]))
    cut = replace(good, sample=2, stop_reason=StopReason.MAX_STEPS)
    failed = make_episode("t9", 0, ["m"], [], right=False, stop=StopReason.FAILED, error="server gone")
    page = page_of(write_run(tmp_path / "run", [good, invalid, cut, failed]))
    counts, rows = section(page, "failures").tables
    assert {(row["kind"], row["count"]) for row in counts.rows} == {
        ("no call and no answer", 1),
        ("ran out of steps", 1),
        ("infrastructure failed (not scored)", 1),
    }
    assert [(row["episode"], row["step"], row["error"]) for row in rows.rows] == [
        (1, 1, None),
        (2, 3, None),
        (3, 1, "server gone"),
    ]
    clean = page_of(write_run(tmp_path / "clean", [good]))
    assert section(clean, "failures").notes[0].startswith("Nothing failed")


def test_every_section_is_there_and_says_what_it_lacks(tmp_path: Path) -> None:
    page = page_of(write_run(tmp_path / "run", [group_run()[0]]))
    assert [s.number for s in page.sections] == list(range(1, 11))
    gaps = {s.id: " ".join(s.missing) for s in page.sections}
    assert "mempo credit trajectories.jsonl --model" in gaps["grade"]
    assert "played once" in gaps["group"]
    assert "no metrics.jsonl" in gaps["training"]
    only_training = page_of(write_training(tmp_path / "t", estimator="mempo", seed=0, values=[0.1]))
    assert all(s.missing for s in only_training.sections if s.id in ("context", "step", "group", "grade", "life"))


def test_published_rows_are_means_over_objectives() -> None:
    rows = {(r["policy"], r["objectives"], r["source"][:4]): r for r in published_rows()}
    assert rows["MEM1", "8", "MEM1"]["em"] == pytest.approx(1.87 / 8)
    assert rows["MEM1", "8", "MEM1"]["peak_tokens"] == 801
    assert rows["MemPO", "2 to 10, mean", "MemP"]["f1"] == pytest.approx(0.3763)
    assert all(0 <= r["f1"] <= 1 for r in rows.values() if r["f1"] is not None)


# --- files ---


def test_a_growing_file_is_read_on(tmp_path: Path) -> None:
    path, rows = tmp_path / "trajectories.jsonl", group_run()
    lines = [json.dumps(to_record(t)) + "\n" for t in rows]
    path.write_text(lines[0] + lines[1][:100])
    source = GrowingFile(path)
    assert [t.sample for t in source.new()] == [0]
    assert source.new() == []
    with path.open("a") as file:
        file.write(lines[1][100:] + lines[2])
    assert [t.sample for t in source.new()] == [1, 2]
    write_trajectories(path, rows[:1])  # replaced by a shorter one
    assert len(source.new()) == 1
    assert source.restarted
    path.write_text("{}\n")
    with pytest.raises(DataError, match="line 1"):
        GrowingFile(path).new()


def test_finding_runs(tmp_path: Path) -> None:
    write_run(tmp_path / "x/a", group_run())
    write_run(tmp_path / "y/a", group_run())
    write_training(tmp_path / "y/t", estimator="mempo", seed=0, values=[1.0])
    runs = find_runs([tmp_path, tmp_path / "x"])
    assert [run.name for run in runs] == ["x/a", "y/a", "t"]
    assert runs[2].trajectories is None
    assert [run.name for run in find_runs([tmp_path / "x/a/trajectories.jsonl"])] == ["a"]
    before = fingerprint(runs)
    with (tmp_path / "x/a/trajectories.jsonl").open("a") as file:
        file.write("\n")
    assert fingerprint(runs) != before
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="found none"):
        find_runs([tmp_path / "empty"])
    with pytest.raises(DataError, match="found neither"):
        find_runs([tmp_path / "nowhere"])


def test_blocks_hold_the_whole_episode(tmp_path: Path) -> None:
    page = page_of(write_run(tmp_path / "run", group_run()))
    record = json.loads(gzip.decompress(page.blocks[1].data))
    assert record["steps"][1]["text"] == group_run()[1].steps[1].sampled_text
    assert record["lost"] == [[0, 2]]


def test_visible() -> None:
    assert visible("a\x00b\u202ec\ud800\x7f\n\t") == "a\u2400b\u27e6RLO\u27e7c\u27e6U+D800\u27e7\u2421\n\t"
    assert visible("\u05e9\u05dc\u05d5\u05dd") == "\u05e9\u05dc\u05d5\u05dd"
