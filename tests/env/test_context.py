"""Context rules: exactly what each lets the policy see."""

from __future__ import annotations

import pickle
from types import MappingProxyType

import pytest

from mempo_env.context import Full, LastK, LastStep, context_names, get_context, register_context
from mempo_env.errors import UnknownNameError
from mempo_env.protocols import get_protocol
from mempo_env.types import Action, ActionKind, Message, Turn

HEAD = (Message(role="system", content="rules"), Message(role="user", content="Question 1: Who?"))
MEMPO = get_protocol("mempo")


def make_turn(number: int, observation: str | None = None) -> Turn:
    text = MEMPO.compose(memory=f"memory {number}", thought=f"thought {number}", query=f"query {number}")
    return Turn(MEMPO.parse(text), (), f"result {number}" if observation is None else observation)


TURNS = tuple(make_turn(n) for n in (1, 2, 3, 4))
ALL_RULES = ("full", "last_step", "last_k:2", "memory_only")


def said(messages) -> list[tuple[str, str]]:
    return [(m["role"], m["content"]) for m in messages]


def pair(number: int) -> list[tuple[str, str]]:
    return [("assistant", TURNS[number - 1].action.response), ("user", f"result {number}")]


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("full", pair(1) + pair(2) + pair(3) + pair(4)),
        ("last_step", pair(4)),
        ("last_k:1", pair(4)),
        ("last_k:3", pair(2) + pair(3) + pair(4)),
        ("last_k:9", pair(1) + pair(2) + pair(3) + pair(4)),
        ("memory_only", [("assistant", "<mem>memory 4</mem>"), ("user", "result 4")]),
    ],
)
def test_what_is_seen(rule: str, expected: list[tuple[str, str]]) -> None:
    assert said(get_context(rule).messages(HEAD, TURNS)) == said(HEAD) + expected


@pytest.mark.parametrize("rule", ALL_RULES)
def test_before_the_first_step_there_is_the_task_alone(rule: str) -> None:
    assert get_context(rule).messages(HEAD, ()) == HEAD


@pytest.mark.parametrize("rule", ALL_RULES)
@pytest.mark.parametrize("count", [0, 1, 2, 4])
def test_the_task_comes_first_and_roles_alternate(rule: str, count: int) -> None:
    messages = get_context(rule).messages(HEAD, TURNS[:count])
    assert messages[: len(HEAD)] == HEAD
    roles = [m["role"] for m in messages[1:]]
    assert roles == ["user", "assistant"] * (len(roles) // 2) + ["user"]


@pytest.mark.parametrize("rule", ["last_step", "last_k:2", "memory_only"])
def test_what_is_older_is_gone(rule: str) -> None:
    seen = "\n".join(m["content"] for m in get_context(rule).messages(HEAD, TURNS))
    assert "1" not in seen.replace("Question 1", "")
    assert ("memory 3" in seen) == (rule == "last_k:2")


@pytest.mark.parametrize("rule", ALL_RULES)
def test_the_last_turn_of_an_episode_brings_no_empty_message(rule: str) -> None:
    messages = get_context(rule).messages(HEAD, (*TURNS, make_turn(5, observation="")))
    assert messages[-1]["role"] == "assistant"
    assert "memory 5" in messages[-1]["content"]


def test_memory_only_falls_back_to_the_last_memory_there_was() -> None:
    invalid = Turn(MEMPO.parse("no tags"), (), "complaint")
    rule = get_context("memory_only")
    assert said(rule.messages(HEAD, (TURNS[0], invalid)))[2:] == [
        ("assistant", "<mem>memory 1</mem>"),
        ("user", "complaint"),
    ]
    assert said(rule.messages(HEAD, (invalid,)))[2:] == [("assistant", ""), ("user", "complaint")]


def test_memory_only_shows_the_state_of_mem1_with_its_own_tag() -> None:
    mem1 = get_protocol("mem1")
    turn = Turn(mem1.parse(mem1.compose(memory="state", query="q")), (), "result")
    assert said(get_context("memory_only").messages(HEAD, (turn,)))[2:] == [
        ("assistant", "<think>state</think>"),
        ("user", "result"),
    ]


def test_last_step_equals_last_k_of_one() -> None:
    for count in range(5):
        assert LastStep().messages(HEAD, TURNS[:count]) == LastK(1).messages(HEAD, TURNS[:count])


def test_what_was_cut_behind_the_action_is_never_seen() -> None:
    action = MEMPO.parse(MEMPO.compose(memory="m", query="q") + " and then <answer>junk</answer>")
    for rule in ALL_RULES:
        assert "junk" not in str(get_context(rule).messages(HEAD, (Turn(action, (), "result"),)))


@pytest.mark.parametrize("rule", ALL_RULES)
def test_rules_are_named_pure_and_pickle(rule: str) -> None:
    context = get_context(rule)
    assert context.name == rule
    assert get_context(context) is context
    again = pickle.loads(pickle.dumps(context))
    assert again == context
    assert again.messages(HEAD, TURNS) == context.messages(HEAD, TURNS) == context.messages(list(HEAD), list(TURNS))
    with pytest.raises(AttributeError):
        context.name = "other"


@pytest.mark.parametrize(
    ("name", "error", "match"),
    [
        ("last_stp", UnknownNameError, "Unknown context rule 'last_stp'. Did you mean 'last_step'"),
        ("", UnknownNameError, "Known: full, last_k, last_step, memory_only"),
        ("last_k", ValueError, "expected a whole number after 'last_k', as in 'last_k:3', got 'last_k'"),
        ("last_k:0", ValueError, "at least 1, got 0"),
        ("last_k:-1", ValueError, "whole number after"),
        ("last_k:two", ValueError, "as in 'last_k:3', got 'last_k:two'"),
        ("last_k:" + "9" * 5000, ValueError, "whole number"),
        ("last_k:²", ValueError, "whole number"),
        ("full:2", ValueError, "expected 'full' without a number, got 'full:2'"),
        (3, TypeError, "expected a registered name or a ContextRule, got int"),
    ],
)
def test_errors_say_what_is_expected(name, error, match: str) -> None:
    with pytest.raises(error, match=match):
        get_context(name)


def test_last_k_needs_a_positive_integer() -> None:
    for bad in (0, -1, True, 1.0):
        with pytest.raises(ValueError, match="at least 1"):
            LastK(bad)


def test_a_rule_of_ones_own() -> None:
    register_context("every", Every, number=True)
    assert said(get_context("every:2").messages(HEAD, TURNS))[2:] == pair(1) + pair(3)
    assert "every" in context_names()
    with pytest.raises(ValueError, match="'every' is already registered"):
        register_context("every", Full)
    with pytest.raises(ValueError, match="without ':'"):
        register_context("a:b", Full)


class Every:
    def __init__(self, step: int) -> None:
        self.step, self.name = step, f"every:{step}"

    def messages(self, head, turns):
        return Full().messages(head, turns[:: self.step])


def test_a_turn_without_spans_has_no_memory() -> None:
    bare = Turn(Action(ActionKind.SEARCH, "q", "text", memory="x", spans=MappingProxyType({})), (), "r")
    assert said(get_context("memory_only").messages(HEAD, (bare,)))[2:] == [("assistant", ""), ("user", "r")]
