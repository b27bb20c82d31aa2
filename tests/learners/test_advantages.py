"""Advantages: every number that can be worked on paper, the relations between them, and the edge cases."""

import math
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from mempo_agents.learners.advantages import (
    discounted_returns,
    gae,
    information_gains,
    leave_one_out_advantages,
    length_costs,
    memory_advantages,
    token_advantages,
    trajectory_advantages,
    whiten,
)

NAN = math.nan
finite = st.floats(-10, 10, allow_nan=False, width=32)


# ------------------------------------------------------------------------------------------------ trajectories


def test_sixteen_scores_ten_of_them_right():
    # 10 of 16 right: mean 10/16 = 0.625. Squares about it: 10 * 0.375^2 + 6 * 0.625^2 = 1.40625 + 2.34375 = 3.75.
    # Sample variance 3.75 / 15 = 0.25, deviation 0.5: right 0.375 / 0.5 = +0.75, wrong -0.625 / 0.5 = -1.25.
    rewards = [1] * 10 + [0] * 6
    advantages = trajectory_advantages(rewards)
    np.testing.assert_allclose(advantages, [0.75] * 10 + [-1.25] * 6, atol=1e-5)
    # Without the deviation the centred rewards stay: +0.375 and -0.625.
    np.testing.assert_allclose(trajectory_advantages(rewards, std=False), [0.375] * 10 + [-0.625] * 6)
    # The population's deviation is sqrt(3.75 / 16) = 0.4841: +0.7746 and -1.2910.
    np.testing.assert_allclose(trajectory_advantages(rewards, ddof=0)[[0, -1]], [0.7746, -1.2910], atol=1e-4)


def test_two_trajectories():
    # mean 0.5, sample deviation sqrt((0.25 + 0.25) / 1) = 0.7071: 0.5 / 0.7071 = 0.7071
    np.testing.assert_allclose(trajectory_advantages([1, 0]), [0.7071, -0.7071], atol=1e-4)


def test_a_failed_trajectory_takes_no_part():
    np.testing.assert_allclose(trajectory_advantages([1, NAN, 0]), [0.7071, 0, -0.7071], atol=1e-4)
    np.testing.assert_array_equal(trajectory_advantages([1, NAN, 0])[[0, 2]], trajectory_advantages([1, 0]))


@pytest.mark.parametrize("rewards", [[0.7], [1, 1, 1], [0.1] * 7, [NAN, NAN], [0.3, NAN], []])
def test_nothing_to_compare_gives_exactly_zero(rewards):
    for function in (trajectory_advantages, leave_one_out_advantages):
        assert function(rewards).tolist() == [0.0] * len(rewards)


def test_leave_one_out():
    # others of the first: (0 + 0.5) / 2 = 0.25, so 1 - 0.25 = 0.75; of the second: 0.75, so -0.75; of the third 0.5: 0
    np.testing.assert_allclose(leave_one_out_advantages([1, 0, 0.5]), [0.75, -0.75, 0.0])
    np.testing.assert_allclose(leave_one_out_advantages([1, NAN, 0]), [1.0, 0.0, -1.0])


@settings(deadline=None)
@given(hnp.arrays(np.float64, st.integers(2, 16), elements=finite), finite, st.floats(0.1, 10), st.randoms())
def test_relations_of_trajectory_advantages(rewards, shift, scale, random):
    advantages = trajectory_advantages(rewards)
    assert abs(advantages.sum()) < 1e-6 * (1 + abs(advantages).sum())
    order = list(range(len(rewards)))
    random.shuffle(order)
    np.testing.assert_allclose(trajectory_advantages(rewards[order]), advantages[order], atol=1e-9)
    np.testing.assert_allclose(
        trajectory_advantages(rewards + shift, std=False), trajectory_advantages(rewards, std=False), atol=1e-5
    )
    if rewards.std() > 1e-2:
        np.testing.assert_allclose(trajectory_advantages(rewards * scale + shift), advantages, atol=1e-2)
    np.testing.assert_allclose(
        leave_one_out_advantages(rewards),
        [r - np.delete(rewards, i).mean() for i, r in enumerate(rewards)],
        atol=1e-9,
    )


# ---------------------------------------------------------------------------------------------------- memories


def test_round_means_of_the_source_note():
    # Three rounds with mean rewards -0.10, -0.22, -0.33: pool mean -0.21667. Divided by a deviation of 0.13:
    # 0.11667 / 0.13 = +0.90, -0.00333 / 0.13 = -0.03, -0.11333 / 0.13 = -0.87.
    # A pool of three values whose deviation is 0.13 about these means is made by spreading each round over G
    # trajectories: 48 values, where the spread inside a round supplies what the round means alone (0.115) lack.
    means = np.array([-0.10, -0.22, -0.33])
    inner = np.tile([1.0, -1.0], 8)  # 16 trajectories around each mean
    between = 16 * np.sum((means - means.mean()) ** 2)  # 16 * 0.026467 = 0.42347
    width = math.sqrt((47 * 0.13**2 - between) / 48)  # so that 48 * width^2 + between = 47 * 0.13^2
    pool = means[None, :] + width * inner[:, None]
    assert pool.shape == (16, 3)
    assert pool.std(ddof=1) == pytest.approx(0.13)
    by_round = memory_advantages(pool).mean(axis=0)
    np.testing.assert_allclose(by_round, [0.90, -0.03, -0.87], atol=5e-3)
    # One pool per step index removes exactly this.
    np.testing.assert_allclose(memory_advantages(pool, per_step=True).mean(axis=0), 0, atol=1e-12)


def test_the_pool_is_one_for_all_steps_of_all_trajectories():
    # Pool 0.1, 0.3, 0.5, 0.7: mean 0.4; squares 0.09 + 0.01 + 0.01 + 0.09 = 0.2, / 3 = 0.0667, deviation 0.2582.
    rewards = [[NAN, 0.1, 0.3], [NAN, 0.5, 0.7]]
    np.testing.assert_allclose(memory_advantages(rewards), [[NAN, -1.1619, -0.3873], [NAN, 0.3873, 1.1619]], atol=1e-4)
    np.testing.assert_allclose(memory_advantages(rewards, std=False), [[NAN, -0.3, -0.1], [NAN, 0.1, 0.3]], atol=1e-12)
    # Per step index: (0.1, 0.5) and (0.3, 0.7), two values each, so -+0.7071.
    np.testing.assert_allclose(
        memory_advantages(rewards, per_step=True), [[NAN, -0.7071, -0.7071], [NAN, 0.7071, 0.7071]], atol=1e-4
    )
    np.testing.assert_allclose(memory_advantages(rewards, clip=1.0), [[NAN, -1, -0.3873], [NAN, 0.3873, 1]], atol=1e-4)


def test_unknown_is_not_zero():
    with_gap = memory_advantages([[NAN, 0.1, 0.3], [0.5, 0.7, NAN]])
    without = memory_advantages([[0.1, 0.3, 0.5, 0.7]])
    np.testing.assert_allclose(with_gap[~np.isnan(with_gap)], without[0])
    assert np.isnan(with_gap[0, 0])
    assert np.isnan(with_gap[1, 2])


@pytest.mark.parametrize("pool", [[[0.4]], [[NAN, 0.4]], [[0.2, 0.2], [0.2, NAN]]])
def test_a_pool_with_nothing_to_compare_gives_zero(pool):
    advantages = memory_advantages(pool)
    known = ~np.isnan(np.array(pool))
    assert np.all(advantages[known] == 0)
    assert np.all(np.isnan(advantages[~known]))
    assert np.isnan(memory_advantages([[NAN, NAN]])).all()


def test_the_gate_shuts_in_trajectories_that_did_worse():
    rewards = [[0.1, 0.3], [0.5, NAN], [0.7, 0.2]]
    free, gated = memory_advantages(rewards), memory_advantages(rewards, gate_G=[0.5, -0.5, 0.0])
    np.testing.assert_array_equal(gated[[0, 2]], free[[0, 2]])
    np.testing.assert_array_equal(gated[1], [0.0, NAN])


def test_length_costs():
    np.testing.assert_allclose(length_costs([50, 100, 150, NAN], budget_tokens=100, weight=0.2), [0, 0, 0.1, NAN])
    with pytest.raises(ValueError, match="at least 1"):
        length_costs([1], budget_tokens=0, weight=1)


# ------------------------------------------------------------------------------------------------------ tokens


def test_memory_tokens_get_the_sum_and_all_others_the_outcome():
    #  row 0:  <mem> x </mem> | think think call        row 1: no memory        row 2: a memory without a reward
    tokens = token_advantages([0.75, 0.75, -1.25], [0.5, NAN, NAN], [6, 2, 3], [(0, 3), None, (0, 2)])
    np.testing.assert_allclose(tokens[0], [1.25, 1.25, 1.25, 0.75, 0.75, 0.75])
    np.testing.assert_allclose(tokens[1], [0.75, 0.75])
    np.testing.assert_allclose(tokens[2], [-1.25, -1.25, -1.25])
    assert all(row.dtype == np.float32 for row in tokens)


def test_wrong_answer_good_memory_is_partly_offset():
    # One of the six wrong answers (A_T = -1.25), its memory at +0.90 of the pool: -0.35 on the memory, -1.25 elsewhere.
    (tokens,) = token_advantages([-1.25], [0.90], [5], [(1, 3)])
    np.testing.assert_allclose(tokens, [-1.25, -0.35, -0.35, -1.25, -1.25], atol=1e-6)


def test_weight():
    (tokens,) = token_advantages([1.0], [2.0], [2], [(0, 1)], weight=0.25)
    np.testing.assert_allclose(tokens, [1.5, 1.0])


def test_no_rows_and_empty_rows():
    assert token_advantages([], [], [], []) == []
    assert [len(t) for t in token_advantages([1, 1], [NAN, 1], [0, 2], [None, (2, 2)])] == [0, 2]


def test_shapes_are_checked():
    with pytest.raises(ValueError, match="one axis"):
        trajectory_advantages([[1.0]])
    with pytest.raises(ValueError, match="two axes"):
        memory_advantages([1.0])
    with pytest.raises(ValueError, match="one value per row"):
        token_advantages([1.0], [1.0, 2.0], [3], [None])
    with pytest.raises(ValueError, match="outside its 3 tokens"):
        token_advantages([1.0], [1.0], [3], [(1, 4)])
    with pytest.raises(ValueError, match="infinite"):
        trajectory_advantages([1.0, math.inf])
    with pytest.raises(ValueError, match="clip must be positive"):
        memory_advantages([[1.0]], clip=0)
    with pytest.raises(ValueError, match="gate_G has 2 values"):
        memory_advantages([[1.0]], gate_G=[1, 2])


# ------------------------------------------------------------------------------------- gains, returns, values


def test_information_gains_telescope():
    # P before each step 0.1, 0.3, 0.2 and an F1 of 0.8: +0.2, -0.1, then the outcome
    np.testing.assert_allclose(information_gains([0.1, 0.3, 0.2], 0.8), [0.2, -0.1, 0.8])
    np.testing.assert_allclose(information_gains([0.1, NAN, 0.2], 0.8), [0.0, 0.0, 0.8])
    assert information_gains([], 1.0).tolist() == []


def test_discounted_returns():
    # 1 + 0.5 * (2 + 0.5 * 4) = 3, 2 + 0.5 * 4 = 4, 4
    np.testing.assert_allclose(discounted_returns([1, 2, 4], 0.5), [3, 4, 4])


def test_gae_by_hand():
    # gamma 0.5, lam 0.5, reward 1 at the end, values 0.2, 0.4, 0.6.
    # d2 = 1 - 0.6 = 0.4; d1 = 0.5 * 0.6 - 0.4 = -0.1, A1 = -0.1 + 0.25 * 0.4 = 0; d0 = 0.5 * 0.4 - 0.2 = 0, A0 = 0.
    advantages, returns = gae([0, 0, 1], [0.2, 0.4, 0.6], [True] * 3, gamma=0.5, lam=0.5)
    np.testing.assert_allclose(advantages, [0, 0, 0.4], atol=1e-12)
    np.testing.assert_allclose(returns, [0.2, 0.4, 1.0])


def test_gae_steps_over_tokens_that_are_not_the_policys():
    full = gae([0, 0, 1], [0.2, 0.4, 0.6], [True] * 3, gamma=0.9, lam=0.8)
    masked = gae([0, NAN, 0, 99, 1], [0.2, NAN, 0.4, -7, 0.6], [True, False, True, False, True], gamma=0.9, lam=0.8)
    for a, b in zip(full, masked, strict=True):
        np.testing.assert_allclose(b[[0, 2, 4]], a)
        np.testing.assert_array_equal(b[[1, 3]], 0)


def test_gae_limits():
    rng = np.random.default_rng(0)
    rewards, values, mask = rng.normal(size=(4, 9)), rng.normal(size=(4, 9)), np.ones((4, 9), bool)
    # lam = 1: the discounted return minus the value; lam = 0: the one-step error
    want = np.stack([discounted_returns(r, 0.9) for r in rewards]) - values
    np.testing.assert_allclose(gae(rewards, values, mask, gamma=0.9, lam=1.0)[0], want)
    following = np.concatenate([values[:, 1:], np.zeros((4, 1))], axis=1)
    np.testing.assert_allclose(gae(rewards, values, mask, gamma=0.9, lam=0.0)[0], rewards + 0.9 * following - values)


def test_whiten():
    values, mask = np.array([1.0, 99.0, 3.0]), np.array([True, False, True])
    # mean 2, sample variance 2: -+1 / sqrt(2)
    np.testing.assert_allclose(whiten(values, mask), [-0.7071, 0, 0.7071], atol=1e-4)
    np.testing.assert_array_equal(whiten([5.0], [True]), [0.0])


def test_neither_advantages_nor_estimators_import_torch():
    code = "import sys, mempo_agents.learners.estimators; sys.exit(bool({'torch', 'transformers'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
