"""Figures of the papers, for reference beside our own. They were measured by others, with other models and corpora.

MemPO: arXiv 2603.00680 (Findings of ACL 2026), local Wikipedia; F1 stands there in percent. MEM1: arXiv 2506.15841,
table 1; EM and F1 stand there as sums over the objectives, peaks in hundreds of tokens. Here F1 and EM are means over
objectives in [0, 1], and peaks are tokens. Unknown is None.
"""

from __future__ import annotations

from typing import Any

MEMPO = "MemPO paper (2603.00680)"
MEM1 = "MEM1 paper (2506.15841)"


def published_rows() -> list[dict[str, Any]]:
    """One row per figure: policy, model, objectives, f1, em, peak_tokens, source."""
    return [*_mempo_rows(), *_mem1_rows()]


def _mempo_rows() -> list[dict[str, Any]]:
    figures = [
        ("ReAct", "2", 33.73),
        ("ReAct", "10", 2.63),
        ("MemPO", "2", 56.47),
        ("GRPO without memory reward", "2 to 10, mean", 30.53),
        ("MEM1", "2 to 10, mean", 26.34),
        ("MemPO", "2 to 10, mean", 37.63),
    ]
    return [_row(policy, "Qwen2.5-7B", objectives, f1 / 100, None, None, MEMPO) for policy, objectives, f1 in figures]


def _mem1_rows() -> list[dict[str, Any]]:
    # policy, then per number of objectives: sum of EM, sum of F1, peak in hundreds of tokens
    table: list[tuple[str, str, dict[int, tuple[float, float | None, float]]]] = [
        (
            "ReAct-style prompt",
            "Qwen2.5-14B-Instruct",
            {2: (0.732, 0.902, 15.6), 8: (1.55, 1.87, 44.7), 16: (0.567, 0.703, 38.4)},
        ),
        (
            "ReAct-style prompt",
            "Qwen2.5-7B-Instruct",
            {2: (0.268, None, 19.6), 8: (0.87, None, 49.5), 16: (0.165, 0.213, 43.3)},
        ),
        ("Search-R1", "as released", {2: (0.452, None, 13.0), 8: (0.064, None, 24.7), 16: (0.009, None, 20.9)}),
        (
            "DeepResearcher",
            "as released",
            {2: (0.536, 0.650, 22.0), 8: (0.73, None, 51.8), 16: (0.071, 0.106, 48.9)},
        ),
        ("MEM1", "Qwen2.5-7B", {2: (0.709, 0.838, 6.40), 8: (1.87, 2.31, 8.01), 16: (1.97, 2.39, 10.4)}),
    ]
    return [
        _row(policy, model, str(k), None if f1 is None else f1 / k, em / k, round(peak * 100), MEM1)
        for policy, model, figures in table
        for k, (em, f1, peak) in figures.items()
    ]


def _row(
    policy: str, model: str, objectives: str, f1: float | None, em: float | None, peak: int | None, source: str
) -> dict[str, Any]:
    return {
        "policy": policy,
        "model": model,
        "objectives": objectives,
        "f1": f1,
        "em": em,
        "peak_tokens": peak,
        "source": source,
    }
