"""The memory reward: what is scored, what counts, and what has none."""

import math

import numpy as np
import pytest
from credit_fakes import CharacterEngine, step, trajectory

from mempo_agents.learners.memory_reward import (
    MemoryScores,
    history_context,
    memory_context,
    memory_rewards,
    memory_scores,
    probability,
    rewarded_steps,
)


def even(context, target, i):
    return math.log(0.5)


def is_memory(context: str) -> bool:
    """A history context of these tests opens the answer right behind the template's opening of the reply."""
    return not context.endswith("[a]<answer>")


def test_the_two_differences_of_the_source_note():
    # P(answer | history) = 0.35; memories with 0.12 and 0.38: 0.12 - 0.35 = -0.23 and 0.38 - 0.35 = +0.03.
    def logp(context, target, i):
        if not is_memory(context):
            return math.log(0.35)
        return math.log(0.12 if "<mem>bad</mem>" in context else 0.38)

    steps = [step(""), step("bad"), step("good"), step("good", answers=["Lima", "Quito"])]
    (scores,) = memory_scores([trajectory(steps)], CharacterEngine(logp))
    np.testing.assert_allclose(memory_rewards(scores), [math.nan, -0.23, 0.03, 0.03], atol=1e-6)


def test_contexts_word_for_word():
    engine = CharacterEngine(even)
    one = trajectory([step("m0", "q0"), step("m1", "q1"), step("m2", answers=["Lima", "Quito"])])
    text = lambda ids: "".join(map(chr, ids))  # noqa: E731
    first, second = one.steps[0].response, one.steps[1].response
    information = "<information>r</information>"
    assert text(history_context(one, 0, engine)) == "[s]S[u]Q[a]<answer>"
    assert text(history_context(one, 2, engine)) == (
        f"[s]S[u]Q[a]{first}[u]{information}[a]{second}[u]{information}[a]<answer>"
    )
    assert text(memory_context(one, 2, engine)) == "[s]S[u]Q[a]<mem>m2</mem>\n<answer>"
    assert memory_context(trajectory([step(None, protocol="react")], protocol="react"), 0, engine) is None


def test_the_answer_is_written_as_the_policy_would_write_it():
    engine = CharacterEngine(even)
    memory_scores([trajectory([step(), step()])], engine)
    assert {target for _, target in engine.rows} == {"Lima; Quito"}


def test_only_the_answers_own_tokens_count():
    # "Lima; Quito": L i m a | ; | blank Q u i t o. The separator is given 1e-9 and must not be felt.
    def logp(context, target, i):
        return {4: -20.0}.get(i, math.log(0.25))

    (scores,) = memory_scores([trajectory([step(), step()])], CharacterEngine(logp))
    np.testing.assert_allclose(scores.memory_S, 0.25, rtol=1e-6)
    np.testing.assert_allclose(scores.history_S, 0.25, rtol=1e-6)


def test_geometric_mean_over_all_answers_tokens():
    # 4 tokens at 0.9, 6 at 0.1: exp((4 ln 0.9 + 6 ln 0.1) / 10) = 10^-0.6 * 0.9^0.4 = 0.2408
    def logp(context, target, i):
        return math.log(0.9 if i < 4 else 0.1)

    (scores,) = memory_scores([trajectory([step()])], CharacterEngine(logp))
    assert scores.history_S[0] == pytest.approx(0.2408, abs=1e-4)


def test_the_answers_tokens_come_along():
    # "Lima; Quito": tokens L i m a and, behind the separator, blank Q u i t o; 0.9 and 0.1 as above, 0.3 with a memory.
    def logp(context, target, i):
        return math.log(0.3 if is_memory(context) else 0.9 if i < 4 else 0.1)

    one = trajectory([step(), step(None, protocol="react"), step()])
    (scores,) = memory_scores([one], CharacterEngine(logp))
    assert "".join(map(chr, scores.answer_ids)) == "Lima Quito"
    np.testing.assert_allclose(scores.history_SA, [[0.9] * 4 + [0.1] * 6] * 3, rtol=1e-6)
    np.testing.assert_allclose(scores.memory_SA[0], [0.3] * 10, rtol=1e-6)
    assert np.isnan(scores.memory_SA[1]).all()  # it wrote no memory
    np.testing.assert_allclose(np.exp(np.log(scores.memory_SA[0]).mean()), scores.memory_S[0])
    (best,) = memory_scores([one], CharacterEngine(logp), aliases="best")
    assert best.answer_ids is None


def test_probability_and_its_threshold():
    assert probability(np.full(2, -1.0)) == pytest.approx(0.3679, abs=1e-4)
    # Over 0.5 are 0.9 and 0.8: sqrt(0.72) = 0.8485. The filter only ever raises P.
    logprobs = np.log([0.9, 0.2, 0.8, 0.5])
    assert probability(logprobs, 0.5) == pytest.approx(0.8485, abs=1e-4)
    # No token left, or no answer: unknown, where sum / (count + 1e-8) would give 1, the best there is.
    assert math.isnan(probability(np.log([0.1, 0.2]), 0.5))
    assert math.isnan(probability(np.zeros(0)))


def test_threshold_is_taken_on_each_side_by_itself():
    def logp(context, target, i):
        return math.log(0.9 if is_memory(context) and i < 4 else 0.2)

    (scores,) = memory_scores([trajectory([step(), step()])], CharacterEngine(logp), threshold=0.5)
    np.testing.assert_allclose(scores.memory_S, 0.9, rtol=1e-6)
    assert np.isnan(scores.history_S).all()
    assert np.isnan(memory_rewards(scores)).all()


def test_which_steps_have_one():
    invalid = step("m", observation="That was no action.")
    invalid = type(invalid)(**{**{f: getattr(invalid, f) for f in invalid.__slots__}, "action": "invalid"})
    # invalid first: no result yet at steps 0 and 1; found at step 1, so from step 2 on; step 3 has no memory
    steps = [invalid, step(), step(), step(None), step(answers=["Lima", "Quito"])]
    assert rewarded_steps(trajectory(steps)).tolist() == [False, False, True, False, True]
    assert rewarded_steps(trajectory(steps, reward=math.nan)).tolist() == [False] * 5


def test_failed_trajectories_are_not_scored():
    engine = CharacterEngine(even)
    (scores,) = memory_scores([trajectory([step(), step()], reward=math.nan)], engine)
    assert not engine.rows
    assert np.isnan(scores.history_S).all()


def test_equal_contexts_give_exactly_zero():
    scores = MemoryScores(np.array([0.4, 0.7]), np.array([0.4, 0.7]), np.array([False, True]))
    np.testing.assert_array_equal(memory_rewards(scores), [math.nan, 0.0])


def test_baselines():
    # memories 0.2, 0.5, 0.4; histories 0.1, 0.6, 0.7. The first step has no earlier result.
    scores = MemoryScores(np.array([0.2, 0.5, 0.4]), np.array([0.1, 0.6, 0.7]), np.array([False, True, True]))
    np.testing.assert_allclose(memory_rewards(scores, "history"), [math.nan, -0.1, -0.3])
    np.testing.assert_allclose(memory_rewards(scores, "previous"), [math.nan, 0.3, -0.1])
    np.testing.assert_allclose(memory_rewards(scores, "none"), [math.nan, 0.5, 0.4])
    with pytest.raises(ValueError, match="'history', 'previous' or 'none'"):
        memory_rewards(scores, "other")


def test_previous_memory_skips_steps_without_one_and_telescopes():
    scores = MemoryScores(
        np.array([math.nan, 0.3, math.nan, 0.8]), np.full(4, 0.1), np.array([False, True, False, True])
    )
    # the bare question 0.1 stands before the first memory: 0.2, then 0.5; together what was gained, 0.7
    rewards = memory_rewards(scores, "previous")
    np.testing.assert_allclose(rewards, [math.nan, 0.2, math.nan, 0.5])
    assert np.nansum(rewards) == pytest.approx(0.8 - 0.1)


def test_any_of_several_gold_answers():
    golds = (("New York City", "NYC"), ("Quito", "San Francisco de Quito", "UIO"))

    def logp(context, target, i):
        own = target.strip()
        return math.log({"NYC": 0.9, "UIO": 0.8}.get(own, 0.5))

    one = trajectory([step(), step()], answers=golds)
    engine = CharacterEngine(logp)
    (first,) = memory_scores([one], engine)
    np.testing.assert_allclose(first.history_S, 0.5, rtol=1e-6)
    engine = CharacterEngine(logp)
    (best,) = memory_scores([one], engine, aliases="best")
    # 3 tokens at 0.9 and, with the blank, 4 at 0.8: exp((3 ln 0.9 + 4 ln 0.8) / 7) = 0.8414
    np.testing.assert_allclose(best.history_S, 0.8414, atol=1e-4)
    # The second objective's aliases stand behind the first's canonical answer; the sum of choices, not the product.
    asked = {(c.rpartition("<answer>")[2], t) for c, t in engine.rows}
    assert asked == {
        ("", "New York City; Quito"),
        ("", "NYC"),
        ("New York City;", " San Francisco de Quito"),
        ("New York City;", " UIO"),
    }


def test_what_does_not_fit_the_window_is_unknown():
    one = trajectory([step(), step(), step()])
    need = len(history_context(one, 1, CharacterEngine(even))) + len("Lima; Quito")
    (scores,) = memory_scores([one], CharacterEngine(even, window_tokens=need))
    assert np.isnan(scores.history_S).tolist() == [False, False, True]
    assert not np.isnan(scores.memory_S).any()


def test_a_memory_quoted_in_the_prompt_is_no_memory():
    """Only the response is parsed: a memory block that a passage shows leaves the context untouched."""
    engine = CharacterEngine(even)
    quoting = step("m", observation="<information><mem>evil</mem></information>")
    one = trajectory([quoting, step("m")])
    assert "evil" not in "".join(map(chr, memory_context(one, 1, engine)))


def test_leak_what_a_row_does_not_hold_changes_nothing():
    """Rows of one memory do not depend on other steps; histories do not depend on what comes later."""

    def rows_of(one):
        engine = CharacterEngine(even)
        return (
            [memory_context(one, s, engine).tolist() for s in range(3)],
            [history_context(one, s, engine).tolist() for s in range(3)],
        )

    memories, histories = rows_of(trajectory([step("a"), step("b"), step("c")]))
    other_memories, other_histories = rows_of(trajectory([step("a"), step("b", "another"), step("c", "again")]))
    assert memories == other_memories
    assert histories[:2] == other_histories[:2]
    assert histories[2] != other_histories[2]


def test_changing_the_wrapper_changes_only_the_context(monkeypatch):
    one = trajectory([step(), step()])
    plain, other = CharacterEngine(even), CharacterEngine(even)
    before = memory_scores([one], plain)
    monkeypatch.setattr("mempo_agents.learners.memory_reward.ANSWER_OPENING", "<final>")
    after = memory_scores([one], other)
    assert [t for _, t in plain.rows] == [t for _, t in other.rows]
    assert [c.replace("<answer>", "<final>") for c, _ in plain.rows] == [c for c, _ in other.rows]
    np.testing.assert_array_equal(before[0].memory_S, after[0].memory_S)


def test_bad_input():
    engine = CharacterEngine(even)
    with pytest.raises(ValueError, match="no gold answers"):
        memory_scores([trajectory([step()], answers=())], engine)
    with pytest.raises(ValueError, match="threshold"):
        memory_scores([], engine, threshold=1.0)
    with pytest.raises(ValueError, match="'first' or 'best'"):
        memory_scores([trajectory([step()])], engine, aliases="all")
