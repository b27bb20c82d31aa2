"""The printed table: the right numbers in the right places, unknown ones as a dash."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console

from mempo_agents.results_table import growth_lines, markdown, print_results, row, title


def cell(policy: str, objectives: int, peak: float | None, f1: float | None = 0.5) -> dict[str, Any]:
    return {
        "policy": policy, "objectives": objectives, "f1": f1, "em": 0.25, "all_correct": 0.125, "format_valid": 1.0,
        "steps": 3.0, "peak_tokens": peak, "total_tokens": 10_000.0, "failed": 1,
        "intervals": {"f1": None if f1 is None else [0.4, 0.6], "em": [0.1, 0.3], "peak_tokens": [900.0, 1100.0],
                      "total_tokens": None},
    }  # fmt: skip


def results(*cells: dict[str, Any]) -> dict[str, Any]:
    return {
        "run": {
            "command": "mempo eval --seed 1",
            "arguments": {"engine": "scripted", "guided": False, "top_k": 3, "tasks": 32, "seed": 1},
            "engine": {"name": "oracle", "tokenizer": "word"},
            "dataset": {"name": "world", "split": "test"},
            "retriever": {"name": "bm25"},
            "versions": {"python": "3.11.7", "torch": None},
            "machine": {"system": "Linux", "architecture": "x86_64", "cpus": 2, "memory_gib": 24, "gpu": None},
        },
        "cells": list(cells),
    }


def test_title_says_who_played() -> None:
    table = results(cell("mempo", 2, 1000.0))
    assert title(table) == "scripted oracle on world/test, bm25 top 3, 32 tasks a cell, tokens counted by word"
    table["run"]["engine"] = {"name": "hf", "tokenizer": "smollm2"}
    table["run"]["arguments"]["guided"] = True
    assert title(table).startswith("language model smollm2, guided (tags forced")


def test_row() -> None:
    assert row(cell("mempo", 2, 1000.0)) == [
        "2", "0.50 [0.40, 0.60]", "0.25 [0.10, 0.30]", "0.12", "1.00", "3.0", "1,000 [900, 1,100]", "10,000", "1",
    ]  # fmt: skip


def test_unknown_is_a_dash() -> None:
    texts = row(cell("mempo", 2, None, f1=None))
    assert texts[1] == "-"
    assert texts[6] == "-"


def test_growth_is_from_fewest_to_most_objectives() -> None:
    lines = growth_lines(results(cell("mempo", 10, 2500.0), cell("mempo", 2, 1000.0), cell("react", 2, 1000.0)))
    assert lines == ["mempo: from 2 to 10 objectives the peak grows 2.5 times and the total 1.0 times"]


def test_markdown_says_seed_machine_and_versions() -> None:
    assert "\nSeed 1. Linux x86_64, 2 processors, 24 GiB. python 3.11.7.\n" in markdown(results(cell("mempo", 2, 1.0)))


def test_markdown_holds_command_and_cells() -> None:
    text = markdown(results(cell("mempo", 2, 1000.0), cell("react", 2, 4000.0)))
    assert "    mempo eval --seed 1\n" in text
    assert "| react | 2 | 0.50 [0.40, 0.60] | 0.25 [0.10, 0.30] | 0.12 | 1.00 | 3.0 | 4,000 [900, 1,100] |" in text
    widths = {line.count("|") for line in text.splitlines() if line.startswith("|")}
    assert len(widths) == 1


def test_printed_table_is_not_folded() -> None:
    screen = io.StringIO()
    print_results(results(cell("mempo", 2, 123_456.0)), Console(file=screen, width=140))
    line = next(line for line in screen.getvalue().splitlines() if line.split()[:2] == ["mempo", "2"])
    assert "123,456 [900, 1,100]" in line


def test_narrower_screen_shows_intervals_below_or_not_at_all() -> None:
    for width, below in ((110, "[900, 1,100]"), (80, "")):
        screen = io.StringIO()
        print_results(results(cell("mempo", 2, 123_456.0)), Console(file=screen, width=width))
        lines = screen.getvalue().splitlines()
        at = next(i for i, line in enumerate(lines) if line.split()[:2] == ["mempo", "2"])
        assert "123,456" in lines[at]
        assert "…" not in lines[at]
        assert below in lines[at + 1]
        assert ("[" in lines[at + 1]) == bool(below) or lines[at + 1].startswith("Means")
        assert len(lines[at].rstrip()) <= width
