"""Estimators by name: which token gets what, in groups with failures, forced tokens and missing memories."""

import math

import numpy as np
import pytest
from credit_fakes import step, trajectory

from mempo_agents.learners import estimators
from mempo_agents.learners.advantages import memory_advantages, trajectory_advantages
from mempo_agents.learners.estimators import estimator_names, get_estimator, register_estimator, spread
from mempo_agents.learners.groups import GroupBatch, group_batch, loss_masks
from mempo_agents.learners.memory_reward import MemoryScores
from mempo_agents.trajectory import Group
from mempo_env.errors import UnknownNameError

NAN = math.nan


def scores(memory, history, rewarded):
    return MemoryScores(np.array(memory, float), np.array(history, float), np.array(rewarded, bool))


@pytest.fixture
def batch() -> GroupBatch:
    """Three trajectories: right in three steps, wrong in two, failed. R_M: -0.1, 0.2 | 0.5 | (of the failed: none)."""
    group = Group(
        "t/0",
        (
            trajectory([step("aa"), step("bb", forced=range(5)), step("cc", answers=["x", "y"])], 1.0),
            trajectory([step("aa"), step("bb")], 0.0),
            trajectory([step("aa"), step("bb")], NAN),
        ),
    )
    values = [
        scores([0.3, 0.4, 0.9], [0.2, 0.5, 0.7], [False, True, True]),
        scores([0.3, 0.8], [0.2, 0.3], [False, True]),
        scores([0.3, 0.9], [0.2, 0.1], [False, True]),
    ]
    rng = np.random.default_rng(0)
    critic = [[rng.normal(size=len(s.response_ids)) for s in t.steps] for t in group.trajectories]
    return group_batch(group, values, critic)


def memory(batch, g, s):
    return slice(*batch.memory_spans[g][s])


@pytest.mark.parametrize("name", estimator_names())
def test_every_estimator_keeps_the_contract(batch, name):
    tokens = get_estimator(name)(batch)
    assert [[len(t) for t in steps] for steps in tokens] == [[len(m) for m in masks] for masks in batch.policy_masks]
    for steps, masks, allowed in zip(tokens, batch.policy_masks, loss_masks(batch), strict=True):
        for t, m, a in zip(steps, masks, allowed, strict=True):
            assert t.dtype == np.float32
            assert np.isfinite(t).all()
            assert not t[~m].any(), "a forced token has credit"
            assert not t[~a].any(), "a failed trajectory has credit"
    assert any(t.any() for steps in tokens[:2] for t in steps)


def test_grpo(batch):
    tokens = get_estimator("grpo")(batch)
    # rewards 1 and 0 (the failed one aside): +-0.7071, the same on all steps however many there are
    for s in (0, 2):
        np.testing.assert_allclose(tokens[0][s], 0.7071, atol=1e-4)
    np.testing.assert_allclose(tokens[0][1], [0] * 5 + [0.7071] * (len(tokens[0][1]) - 5), atol=1e-4)
    np.testing.assert_allclose(np.concatenate(tokens[1]), -0.7071, atol=1e-4)


def test_mempo(batch):
    tokens = get_estimator("mempo")(batch)
    # R_M pool -0.1, 0.2, 0.5: mean 0.2, deviation 0.3: A_M = -1, 0, +1
    got = tokens[0][1][memory(batch, 0, 1)]
    np.testing.assert_allclose(got, [0] * 5 + [0.7071 - 1] * (len(got) - 5), atol=1e-4)
    np.testing.assert_allclose(tokens[0][2][memory(batch, 0, 2)], 0.7071, atol=1e-4)
    np.testing.assert_allclose(tokens[1][1][memory(batch, 1, 1)], -0.7071 + 1, atol=1e-4)
    # First steps have a memory but no reward for it; thought, call and answer never have.
    np.testing.assert_allclose(tokens[1][0], -0.7071, atol=1e-4)
    rest = np.delete(tokens[1][1], np.arange(*batch.memory_spans[1][1]))
    np.testing.assert_allclose(rest, -0.7071, atol=1e-4)


def test_mempo_variants(batch):
    b = trajectory_advantages([1, 0])[1]
    at = memory(batch, 1, 1)

    def memory_credit(name, **options):
        return get_estimator(name, **options)(batch)[1][1][at][0] - b

    assert memory_credit("mempo", weight=0.25) == pytest.approx(0.25, abs=1e-4)
    assert memory_credit("mempo_gated") == pytest.approx(0, abs=1e-6), "the second trajectory did worse"
    assert memory_credit("mempo_clipped", clip=0.5) == pytest.approx(0.5, abs=1e-4)
    # Step index 1 alone: -0.1 and 0.5, so +0.7071
    assert memory_credit("mempo_per_step") == pytest.approx(0.7071, abs=1e-4)
    # Without deviations: outcome -0.5, memory 0.5 - 0.2 = 0.3
    assert get_estimator("mempo_nostd")(batch)[1][1][at][0] == pytest.approx(-0.5 + 0.3, abs=1e-6)
    # Against the memory before: pool 0.1, 0.5 | 0.5, mean 0.3667, deviation 0.2309: +0.5774
    assert memory_credit("mempo_previous") == pytest.approx(0.5774, abs=1e-4)
    # P(answer | memory) itself: 0.4, 0.9, 0.8: mean 0.7, deviation 0.2646: +0.3780
    assert memory_credit("mempo_none") == pytest.approx(0.3780, abs=1e-4)


def test_long_memories_cost(batch):
    # Memories of <mem>bb</mem> are 13 tokens. Budget 10, weight 1: 0.3 off R_M where the memory is that long.
    tokens = get_estimator("mempo", length_weight=1.0, budget_tokens=10)(batch)
    # all three are equally long, so the pool's differences stay
    np.testing.assert_allclose(tokens[1][1][memory(batch, 1, 1)], -0.7071 + 1, atol=1e-4)
    batch.memory_spans[1][1, 1] -= 3  # now 10 tokens: pool -0.4, -0.1, 0.5: mean 0, deviation 0.4583: +1.0911
    tokens = get_estimator("mempo", length_weight=1.0, budget_tokens=10)(batch)
    np.testing.assert_allclose(tokens[1][1][memory(batch, 1, 1)], -0.7071 + 1.0911, atol=1e-4)


def test_a_failed_trajectory_changes_nothing_for_the_others(batch):
    without = GroupBatch(
        batch.task_id, batch.rewards_G[:2], batch.policy_masks[:2], batch.memory_spans[:2],
        {k: v[:2] for k, v in batch.parts_G.items()}, batch.scores[:2], batch.values[:2],
    )  # fmt: skip
    for name in estimator_names():
        for with_one, alone in zip(get_estimator(name)(batch)[:2], get_estimator(name)(without), strict=True):
            for x, y in zip(with_one, alone, strict=True):
                np.testing.assert_allclose(x, y, atol=1e-6, err_msg=name)


def test_equal_memories_leave_grpo(batch):
    """Relation: where all memory rewards are equal, or weigh nothing, MemPO is GRPO."""
    grpo = np.concatenate([t for steps in get_estimator("grpo")(batch) for t in steps])
    for options in ({"weight": 0.0}, {"clip": 1e-12}):
        got = np.concatenate([t for steps in get_estimator("mempo", **options)(batch) for t in steps])
        np.testing.assert_allclose(got, grpo, atol=1e-6)


def test_group_of_one_gives_zero():
    one = group_batch([trajectory([step(), step()], 1.0)], [scores([0.3, 0.4], [0.2, 0.5], [False, True])])
    for name in ("grpo", "mempo", "rloo", "dr_grpo", "mem1"):
        assert not np.concatenate(get_estimator(name)(one)[0]).any(), name


def test_simple_ones(batch):
    first = lambda name, **o: [steps[0][0] for steps in get_estimator(name, **o)(batch)]  # noqa: E731
    np.testing.assert_allclose(first("rloo"), [1, -1, 0])
    np.testing.assert_allclose(first("dr_grpo"), [0.5, -0.5, 0])
    np.testing.assert_allclose(first("reinforce"), [1, 0, 0])
    np.testing.assert_allclose(first("reinforce", baseline=0.25), [0.75, -0.25, 0])
    # the sum of EM is 2 and 0; standardised it is the same as any other two rewards
    np.testing.assert_allclose(first("mem1"), [0.7071, -0.7071, 0], atol=1e-4)
    np.testing.assert_allclose(first("dr_grpo", reward="sum_em"), [1, -1, 0])


def test_igpo(batch):
    tokens = get_estimator("igpo")(batch)
    # P(answer | history): 0.2, 0.5, 0.7 | 0.2, 0.3. Gains 0.3, 0.2 | 0.1: mean 0.2, deviation 0.1: +1, 0, -1.
    # Outcomes +-0.7071 on the last steps. Returns: 1.7071, 0.7071, 0.7071 | -1.7071, -0.7071.
    np.testing.assert_allclose([t[-1] for t in tokens[0]], [1.7071, 0.7071, 0.7071], atol=1e-4)
    np.testing.assert_allclose([t[-1] for t in tokens[1]], [-1.7071, -0.7071], atol=1e-4)
    discounted = get_estimator("igpo", gamma=0.5)(batch)
    # 1 + 0.5 * (0 + 0.5 * 0.7071) = 1.1768
    assert discounted[0][0][0] == pytest.approx(1.1768, abs=1e-4)
    # Jointly: 0.3, 0.2, 1 | 0.1, 0: mean 0.32, deviation 0.3962; the last step (1 - 0.32) / 0.3962 = 1.7162
    assert get_estimator("igpo_joint")(batch)[0][2][-1] == pytest.approx(1.7162, abs=1e-4)


def test_gae_runs_across_steps_and_over_policy_tokens_only(batch):
    plain = get_estimator("gae", whiten=False, gamma=1.0, lam=1.0)(batch)
    # gamma = lam = 1: reward minus value at every token, whatever stands between
    for g, reward in ((0, 1.0), (1, 0.0)):
        for tokens, values, mask in zip(plain[g], batch.values[g], batch.policy_masks[g], strict=True):
            np.testing.assert_allclose(tokens[mask], (reward - values)[mask], atol=1e-6)
    batch.values[0][1][:5] = np.nan  # garbage where tokens were forced
    again = get_estimator("gae", whiten=False, gamma=1.0, lam=1.0)(batch)
    for x, y in zip(plain[0], again[0], strict=True):
        np.testing.assert_array_equal(x, y)


def test_what_is_missing_is_named(batch):
    bare = GroupBatch(batch.task_id, batch.rewards_G, batch.policy_masks, batch.memory_spans)
    with pytest.raises(ValueError, match="'mempo' needs scores, but group 't/0'"):
        get_estimator("mempo")(bare)
    with pytest.raises(ValueError, match="'gae' needs values"):
        get_estimator("gae")(bare)
    with pytest.raises(ValueError, match=r"no reward 'sum_em'\. It has: none"):
        get_estimator("mem1")(bare)
    with pytest.raises(UnknownNameError, match="Did you mean 'mempo'"):
        get_estimator("menpo")
    with pytest.raises(TypeError, match="Its options: reward, std, ddof, eps"):
        get_estimator("grpo", clip=1.0)
    with pytest.raises(ValueError, match="already registered"):
        register_estimator("grpo")
    with pytest.raises(ValueError, match="'scores' or 'values'"):
        register_estimator("new", needs=("memory",))


def test_a_new_estimator(batch, monkeypatch):
    monkeypatch.setattr(estimators, "_REGISTRY", dict(estimators._REGISTRY))

    @register_estimator("best_only", margin=0.5)
    def best_only(batch, *, margin):
        """Reward what is above the margin."""
        return spread(batch, np.nan_to_num(batch.rewards_G - margin).clip(min=0))

    assert get_estimator("best_only").description == "Reward what is above the margin."
    assert [s[0][0] for s in get_estimator("best_only")(batch)] == [0.5, 0.0, 0.0]
    assert [s[0][0] for s in get_estimator("best_only", margin=0.25)(batch)] == [0.75, 0.0, 0.0]


def test_groups_are_checked():
    with pytest.raises(ValueError, match="at least one"):
        group_batch([])
    with pytest.raises(ValueError, match="shares one task, got 2"):
        group_batch([trajectory([step()]), trajectory([step()], task_id="t/1")])
    with pytest.raises(ValueError, match="scores for 1 trajectories, got 2"):
        group_batch([trajectory([step()])], [None, None])


def test_the_pool_of_sixteen_trajectories_of_three_rewards():
    """16 x 3 = 48 values share one mean and one deviation."""
    rng = np.random.default_rng(0)
    rewards = rng.normal(size=(16, 3)).round(3)
    group = [trajectory([step(), step(), step(), step()], float(g < 10), sample=g) for g in range(16)]
    values = [scores([0, *row], [0, 0, 0, 0], [False, True, True, True]) for row in rewards]
    tokens = get_estimator("mempo")(group_batch(group, values))
    pool = rewards.ravel().tolist()
    mean = sum(pool) / 48
    deviation = math.sqrt(sum((x - mean) ** 2 for x in pool) / 47)
    for g in range(16):
        outcome = 0.75 if g < 10 else -1.25
        for s in range(3):
            want = outcome + (rewards[g, s] - mean) / deviation
            assert tokens[g][s + 1][0] == pytest.approx(want, abs=1e-4)
    assert memory_advantages(rewards).shape == (16, 3)
