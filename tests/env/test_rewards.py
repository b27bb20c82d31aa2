"""Rewards: totals by hand, all parts always, and plugs of one's own."""

from __future__ import annotations

import pickle
from types import SimpleNamespace

import pytest

from mempo_env.errors import UnknownNameError
from mempo_env.rewards import PARTS, PartReward, RewardResult, get_reward, register_reward, reward_names
from mempo_env.scoring import score
from mempo_env.types import Question, Task

TASK = Task("t", (Question("a", "A?", ("Paris",)), Question("b", "B?", ("New York",))))

BUILT_IN = ("paper", "em", "f1", "sum_em")


@pytest.mark.parametrize(
    ("answer", "format_valid", "expected"),
    [
        # answer, every step well-formed -> paper, em, f1, sum_em, all_correct, format_valid
        ("Paris; New York", True, (1, 1, 1, 2, 1, 1)),
        ("Paris; New York", False, (0, 1, 1, 2, 1, 0)),
        # f1 of "New York New York" is 2*2/6
        ("Paris; New York New York", True, (0, 0.5, (1 + 2 / 3) / 2, 1, 0, 1)),
        # one answer too many: each slot is right, the whole is not
        ("Paris; New York; Rome", True, (0, 1, 1, 2, 0, 1)),
        (None, True, (0, 0, 0, 0, 0, 1)),
    ],
)
def test_totals_and_parts(answer: str | None, format_valid: bool, expected: tuple[float, ...]) -> None:
    for name in BUILT_IN:
        result = get_reward(name)(score(TASK, answer), format_valid)
        assert tuple(result.parts) == PARTS
        assert tuple(result.parts.values()) == pytest.approx(expected)
        assert result.total == pytest.approx(dict(zip(PARTS, expected, strict=True))[name])
        assert type(result.total) is float


def test_every_reward_pays_its_most_for_the_gold_answers() -> None:
    for name in BUILT_IN:
        assert get_reward(name)(score(TASK, "Paris; New York"), True).total == pytest.approx(
            TASK.objectives if name == "sum_em" else 1.0
        )


def test_rewards_pickle() -> None:
    assert set(BUILT_IN) <= set(reward_names())
    for name in BUILT_IN:
        assert pickle.loads(pickle.dumps(get_reward(name))) == get_reward(name)


def test_a_result_pickles() -> None:
    result = get_reward("f1")(score(TASK, "Paris; York"), True)
    again = pickle.loads(pickle.dumps(result))
    assert again.total == result.total
    assert dict(again.parts) == dict(result.parts)
    with pytest.raises(TypeError):
        again.parts["f1"] = 1.0


class HalfAndHalf:
    name = "half_and_half"

    def __call__(self, score, format_valid):
        return RewardResult(0.5 * score.f1_mean + 0.5 * format_valid, {"f1": score.f1_mean})


def test_a_reward_of_ones_own() -> None:
    reward = HalfAndHalf()
    assert get_reward(reward) is reward
    register_reward(reward)
    assert get_reward("half_and_half") is reward
    assert get_reward("half_and_half")(score(TASK, "Paris; Rome"), True).total == 0.75
    with pytest.raises(ValueError, match="'half_and_half' is already registered"):
        register_reward(HalfAndHalf())


def test_errors_name_what_is_known() -> None:
    with pytest.raises(UnknownNameError, match=r"Unknown reward 'papr'. Did you mean 'paper'\? Known: em, f1, "):
        get_reward("papr")
    with pytest.raises(TypeError, match="expected a registered name or an object"):
        get_reward(SimpleNamespace(name="x"))
    with pytest.raises(ValueError, match="expected one of paper, em"):
        PartReward("length")
