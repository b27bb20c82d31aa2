"""Metrics: golden values worked by hand, and the relations between them."""

import math

import numpy as np
import pytest
from agents_world import make_step, make_trajectory

from mempo_agents.metrics import bootstrap_interval, dependency, measure, summarise
from mempo_env.types import StopReason


def test_two_turns_counted_by_hand():
    # Turn 0: prompt 30, output 15, reply 20. Turn 1: prompt 30 + 15 + 20 = 65, output 12.
    row = measure(make_trajectory([make_step(30, 15, 20), make_step(65, 12)]))
    assert row.prompt_tokens_by_step == (30, 65)
    assert row.peak_tokens == 77  # 65 + 12
    assert row.total_tokens == 45 + 77
    assert row.dependency == 555 + 846  # 15*30 + 15*14/2 = 450 + 105; 12*65 + 12*11/2 = 780 + 66
    assert (row.prompt_tokens, row.generated_tokens, row.observation_tokens) == (95, 27, 20)


def test_a_third_turn_shows_what_a_context_rule_saves():
    # History before turn 2: 30 + (15 + 20) + (12 + 20) = 97. MEM1 sees 30 + 12 + 20 = 62 of it. Output 9.
    first = [make_step(30, 15, 20, history_tokens=30), make_step(65, 12, 20, history_tokens=65)]
    mem1 = measure(make_trajectory([*first, make_step(62, 9, history_tokens=97)]))
    react = measure(make_trajectory([*first, make_step(97, 9, history_tokens=97)]))
    assert (mem1.peak_tokens, react.peak_tokens) == (77, 106)
    assert mem1.compression_by_step == pytest.approx((1, 1, 62 / 97))
    assert react.compression_by_step == (1, 1, 1)


@pytest.mark.parametrize(
    ("prompts", "peak", "processed"),
    [((100, 180, 260), 270 + 0, 600), ((100, 120, 110), 150, 390)],
    ids=["append-only", "memory"],
)
def test_peak_processed_and_generated_are_different_things(prompts, peak, processed):
    # Outputs 20, 30, 10. Append-only: peak 260 + 10; 540 + 60. Memory: peak 120 + 30; 330 + 60.
    row = measure(make_trajectory([make_step(p, o) for p, o in zip(prompts, (20, 30, 10), strict=True)]))
    assert (row.peak_tokens, row.total_tokens, row.generated_tokens) == (peak, processed, 60)


def test_dependency_equals_the_pairs_counted_one_by_one():
    prompts, outputs = [3, 7, 0], [4, 1, 5]
    pairs = sum(1 for p, o in zip(prompts, outputs, strict=True) for t in range(o) for _ in range(p + t))
    assert dependency(prompts, outputs) == pairs


def test_more_than_ten_turns_all_count():
    row = measure(make_trajectory([make_step(10, 1) for _ in range(25)]))
    assert (row.steps, row.total_tokens, len(row.prompt_tokens_by_step)) == (25, 275, 25)


def test_a_failed_episode_is_counted_and_not_scored():
    good = make_trajectory([make_step(10, 5)])
    failed = make_trajectory(
        [make_step(30, 5)], task_id="u", reward=math.nan, em=(0.0,), f1=(0.0,), reward_parts={}, answer=None,
        stop_reason=StopReason.FAILED, error="no server",
    )  # fmt: skip
    cell = summarise([good, failed])
    assert (cell["tasks"], cell["episodes"], cell["failed"]) == (2, 2, 1)
    assert (cell["f1"], cell["em"], cell["all_correct"], cell["reward"]) == (0.75, 0.5, 1.0, 1.0)
    assert cell["total_tokens"] == (15 + 35) / 2  # costs were paid all the same
    assert cell["stop_reasons"]["failed"] == 1
    alone = summarise([failed])
    assert alone["f1"] is None
    assert alone["em"] is None
    assert alone["reward"] is None
    assert alone["intervals"]["f1"] is None
    assert alone["total_tokens"] == 35
    assert alone["intervals"]["total_tokens"] is None  # one task has no spread


def test_an_unfinished_episode_scores_zero_rather_than_nothing():
    cell = summarise(
        [make_trajectory([make_step(1, 1)], em=(0.0, 0.0), f1=(0.0, 0.0), stop_reason=StopReason.MAX_STEPS)]
    )
    assert cell["f1"] == 0.0
    assert cell["failed"] == 0


def test_one_invalid_step_spoils_the_format_but_is_counted():
    bad = make_step(1, 1, format_valid=False, invalid_reason="no_action", action="invalid")
    row = measure(make_trajectory([make_step(1, 1), bad]))
    assert row.format_valid == 0.0
    assert row.invalid_steps == 1
    assert measure(make_trajectory([])).format_valid == 0.0


def test_means_by_step_are_over_the_episodes_that_got_there():
    cell = summarise([make_trajectory([make_step(10, 1), make_step(20, 1)]), make_trajectory([make_step(30, 1)])])
    assert cell["prompt_tokens_by_step"] == [20, 20]
    assert cell["compression_by_step"] == [None, None]  # nobody counted the history


def test_summary_of_nothing_is_unknown():
    cell = summarise([])
    assert cell["tasks"] == 0
    assert cell["f1"] is None
    assert cell["steps"] is None
    assert cell["prompt_tokens_by_step"] == []


def test_bootstrap_of_two_values_by_hand():
    # Means of two draws from {0, 1}: 0, 1/2, 1 with probabilities 1/4, 1/2, 1/4, so the 60 % interval is all of [0, 1]
    # (20 % lies below 0's share of 25 %), and the 40 % interval is the point 1/2.
    assert bootstrap_interval([0.0, 1.0], confidence=0.6) == [0.0, 1.0]
    assert bootstrap_interval([0.0, 1.0], confidence=0.4) == [0.5, 0.5]


def test_bootstrap_agrees_with_the_normal_interval_on_many_values():
    values = np.random.default_rng(1).normal(3.0, 2.0, 400).tolist()
    low, high = bootstrap_interval(values)
    half = 1.96 * np.std(values, ddof=1) / math.sqrt(400)
    assert low == pytest.approx(np.mean(values) - half, abs=0.04)
    assert high == pytest.approx(np.mean(values) + half, abs=0.04)


def test_bootstrap_relations():
    values = [0.1, 0.9, 0.4, 0.4, 0.7]
    low, high = bootstrap_interval(values)
    assert min(values) <= low <= sum(values) / 5 <= high <= max(values)
    assert bootstrap_interval([v + 10 for v in values]) == pytest.approx([low + 10, high + 10])
    assert bootstrap_interval([*values, None, math.nan]) == [low, high]  # unknown is left out
    assert bootstrap_interval([0.3] * 4) == pytest.approx([0.3, 0.3])
    assert bootstrap_interval([]) is None
    assert bootstrap_interval([None]) is None
    assert bootstrap_interval([0.3, 0.4], ["a", "a"]) is None  # one task: its spread is unknown
    # Copies of a task's value carry no news: with groups the interval stays, without it shrinks.
    groups = [str(i) for i in range(5) for _ in range(8)]
    copies = [v for v in values for _ in range(8)]
    assert bootstrap_interval(copies, groups) == pytest.approx([low, high])
    tight = bootstrap_interval(copies)
    assert tight[1] - tight[0] < (high - low) / 2
    with pytest.raises(ValueError, match="between 0 and 1"):
        bootstrap_interval(values, confidence=95)
