"""The state machine: what ends an episode, what the policy sees, what is scored, and what never is."""

from __future__ import annotations

import math
import pickle

import pytest
from env_fakes import PASSAGES, QUESTIONS

from mempo_env.context import get_context
from mempo_env.episode import Episode
from mempo_env.errors import EpisodeOverError
from mempo_env.protocols import Budget, get_protocol
from mempo_env.rewards import PARTS, get_reward
from mempo_env.types import Action, ActionKind, Hit, InvalidReason, StopReason, Task

TASK = Task("tiny/1", QUESTIONS[:2], "train")
HITS = [Hit(PASSAGES[0]), Hit(PASSAGES[2])]
RIGHT = ["Oslo", "405 km"]


def begin(protocol="mempo", context=None, reward="paper", max_steps=8, **kwargs):
    rules = get_protocol(protocol)
    return Episode(
        TASK,
        protocol=rules,
        context=get_context(context or rules.default_context),
        reward=get_reward(reward),
        max_steps=max_steps,
        **kwargs,
    )


def search(episode, query="Oslo", hits=HITS, memory="nothing yet"):
    episode.act(episode.protocol.compose(memory=memory, thought="look", query=query))
    episode.observe(hits)


def answer(episode, answers=RIGHT):
    episode.act(episode.protocol.compose(memory="all known", thought="done", answers=answers))


def test_a_search_waits_for_its_hits_and_then_shows_them():
    episode = begin()
    action = episode.act(episode.protocol.compose(memory="m", thought="t", query="Oslo"))
    assert action.kind == ActionKind.SEARCH
    assert episode.pending is action
    assert episode.turns == ()
    episode.observe(HITS)
    assert episode.pending is None
    assert [message["role"] for message in episode.messages] == ["system", "user", "assistant", "user"]
    assert "Doc 1(Title: Oslo) Oslo is the capital" in episode.messages[-1]["content"]
    assert episode.observation == "\n\n".join(message["content"] for message in episode.messages)
    assert not episode.done
    assert episode.reward == 0.0


def test_the_right_answers_in_a_well_formed_episode_earn_one():
    episode = begin()
    search(episode)
    answer(episode)
    assert (episode.terminated, episode.truncated, episode.reward) == (True, False, 1.0)
    assert episode.stop_reason is StopReason.ANSWERED
    assert episode.answer == "Oslo; 405 km"
    info = episode.info()
    assert info["em"] == info["f1"] == (1.0, 1.0)
    assert set(info["reward_parts"]) == set(PARTS)
    # The action that ends the episode has no reply.
    assert info["observation"] == ""
    assert episode.messages[-1]["role"] == "assistant"


@pytest.mark.parametrize(("reward", "total"), [("paper", 0.0), ("em", 0.5), ("sum_em", 1.0), ("f1", 0.5)])
def test_a_half_right_answer(reward, total):
    episode = begin(reward=reward)
    answer(episode, ["Oslo", "Bergen"])
    assert episode.reward == total
    assert episode.info()["reward_parts"][reward] == total


def test_one_malformed_step_costs_the_papers_reward_but_not_the_match():
    episode = begin()
    episode.act("I would rather chat.")
    answer(episode)
    assert not episode.format_valid
    assert episode.reward == 0.0
    assert episode.result.parts["em"] == 1.0
    assert episode.result.parts["format_valid"] == 0.0


# The table of ends: two steps at most. (actions, terminated, truncated, reason)
ENDS = [
    ("search answer", True, False, StopReason.ANSWERED),
    ("search search", False, True, StopReason.MAX_STEPS),
    ("search invalid", False, True, StopReason.MAX_STEPS),
    ("invalid answer", True, False, StopReason.ANSWERED),
    ("answer", True, False, StopReason.ANSWERED),
]


@pytest.mark.parametrize(("actions", "terminated", "truncated", "reason"), ENDS)
def test_ends_on_the_last_step(actions, terminated, truncated, reason):
    episode = begin(max_steps=2, reward="em")
    for name in actions.split():
        assert not episode.done
        if name == "invalid":
            episode.act("<nothing>")
        elif name == "answer":
            answer(episode)
        else:
            episode.act(episode.protocol.compose(query="Oslo"))
            if episode.pending:
                episode.observe(HITS)
    assert (episode.terminated, episode.truncated, episode.stop_reason) == (terminated, truncated, reason)
    assert episode.reward == (1.0 if terminated else 0.0)
    assert episode.info()["em"] == ((1.0, 1.0) if terminated else (0.0, 0.0))


def test_the_last_steps_search_is_not_run():
    episode = begin(max_steps=1)
    episode.act(episode.protocol.compose(query="Oslo"))
    assert episode.pending is None
    assert episode.done
    assert episode.turns[-1].hits == ()


def test_a_step_after_the_end_asks_for_a_reset():
    episode = begin()
    answer(episode)
    with pytest.raises(EpisodeOverError, match=r"has ended \(answered\). Call reset\(\) first"):
        episode.act("x")
    with pytest.raises(EpisodeOverError, match="No search is pending"):
        episode.observe(HITS)


def test_act_observe_and_fail_keep_their_order():
    episode = begin()
    with pytest.raises(EpisodeOverError, match="No search is pending"):
        episode.observe(HITS)
    episode.act(episode.protocol.compose(query="Oslo"))
    with pytest.raises(EpisodeOverError, match="A search is pending"):
        episode.act(episode.protocol.compose(query="Oslo"))
    episode.fail("x")
    with pytest.raises(EpisodeOverError, match="Only a running episode can fail"):
        episode.fail("y")
    assert episode.error == "x"


def test_a_policy_that_could_not_be_asked_fails_the_episode_without_a_step():
    episode = begin()
    episode.fail("EngineError: no answer")
    assert (episode.terminated, episode.truncated, episode.stop_reason) == (False, True, StopReason.FAILED)
    assert math.isnan(episode.reward)
    assert (episode.turns, episode.score) == ((), None)


@pytest.mark.parametrize("action", [None, 3, b"<answer>x</answer>", ["a"], {"text": "a"}])
def test_an_action_that_is_no_text_is_refused(action):
    episode = begin()
    with pytest.raises(TypeError, match="Expected the action to be a str, the policy's text, got"):
        episode.act(action)
    assert episode.turns == ()


def test_a_failed_search_is_never_scored_and_never_shown():
    episode = begin()
    search(episode)
    before = episode.observation
    episode.act(episode.protocol.compose(query="Rome"))
    episode.fail("RetrievalError: the server did not answer")
    assert (episode.terminated, episode.truncated, episode.stop_reason) == (False, True, StopReason.FAILED)
    assert math.isnan(episode.reward)
    info = episode.info()
    assert info["error"] == "RetrievalError: the server did not answer"
    assert info["em"] is info["f1"] is info["answer"] is None
    assert "reward_parts" not in info
    assert "did not answer" not in episode.observation
    assert before != episode.observation  # the failed step's own text is there, as the last thing said


def test_finish_reason_reaches_the_parser():
    episode = begin()
    action = episode.act("<mem>I remember that", finish_reason="length")
    assert action.reason is InvalidReason.LENGTH
    assert episode.info()["invalid_reason"] == "length"


@pytest.mark.parametrize(
    ("protocol", "context", "expected"),
    [
        # After two searches: how many messages there are, and whether the first search's text is among them.
        ("react", "full", (6, True)),
        ("mempo", "last_step", (4, False)),
        ("mempo", "last_k:2", (6, True)),
        ("mempo", "memory_only", (4, False)),
        ("mem1", "last_step", (4, False)),
    ],
)
def test_the_context_rule_decides_what_is_seen(protocol, context, expected):
    episode = begin(protocol, context)
    search(episode, "first-query")
    search(episode, "second-query")
    assert (len(episode.messages), "first-query" in episode.observation) == expected
    assert all(question.text in episode.observation for question in TASK.questions)
    # memory_only keeps the memory and the result; the thought and the call are gone.
    assert ("second-query" in episode.observation) == (context != "memory_only")


def test_infos_share_nothing_that_can_be_changed():
    episode = begin("react")
    search(episode)
    first, second = episode.info(), episode.info()
    first["messages"][0]["content"] = "overwritten"
    assert second["messages"][0]["content"] == episode.messages[0]["content"] != "overwritten"
    answer(episode)
    episode.info()["reward_parts"]["em"] = 9.0
    assert episode.info()["reward_parts"]["em"] == 1.0


def count_words(text):
    return len(text.split())


def test_the_context_limit_truncates_and_drops_the_reply():
    free = begin(count_tokens=count_words)
    start = free.context_tokens
    search(free)
    limit = free.context_tokens - 1
    assert limit > start

    episode = begin(count_tokens=count_words, max_context_tokens=limit, reward="em")
    search(episode)
    assert (episode.terminated, episode.truncated) == (False, True)
    assert episode.stop_reason is StopReason.CONTEXT_LENGTH
    assert episode.turns[-1].observation == ""
    assert episode.turns[-1].hits  # kept for the record
    assert all(question.text in episode.observation for question in TASK.questions)
    assert episode.reward == 0.0

    exact = begin(count_tokens=count_words, max_context_tokens=limit + 1)
    search(exact)
    assert not exact.done


def test_an_answer_beats_the_context_limit():
    start = begin(count_tokens=count_words).context_tokens
    episode = begin(count_tokens=count_words, max_context_tokens=start)
    answer(episode)
    assert episode.terminated
    assert episode.context_tokens > start


def test_a_task_over_the_context_limit_is_refused_not_cut():
    with pytest.raises(ValueError, match=r"more than max_context_tokens=20\. The task is never cut"):
        begin(count_tokens=count_words, max_context_tokens=20)


def test_truncation_from_outside_drops_the_unread_reply_and_scores():
    episode = begin(reward="em")
    search(episode)
    episode.truncate()
    assert (episode.terminated, episode.truncated) == (False, True)
    assert episode.stop_reason is StopReason.CONTEXT_LENGTH
    assert episode.turns[-1].observation == ""
    assert "<information>\nDoc 1" not in episode.observation
    assert episode.info()["em"] == (0.0, 0.0)
    with pytest.raises(EpisodeOverError, match="Only a running episode"):
        episode.truncate()
    waiting = begin()
    waiting.act(waiting.protocol.compose(query="Oslo"))
    with pytest.raises(EpisodeOverError, match="no search pending"):
        waiting.truncate()


def test_budgets_reach_the_renderer():
    episode = begin(budgets=[Budget(max_passage=40, max_observation=100)])
    search(episode)
    reply = episode.turns[-1].observation
    assert len(reply) <= 100
    assert reply.startswith("<information>")
    assert reply.endswith("</information>")


def test_mem1_is_told_how_many_turns_are_left():
    episode = begin("mem1", max_steps=3)
    search(episode)
    assert "[HINT]You have 2 turns left.[/HINT]" in episode.turns[-1].observation
    search(episode)
    assert "[HINT]You have 1 turn left." in episode.turns[-1].observation


def test_an_action_pickles_where_dataclasses_put_a_state_of_their_own(monkeypatch):
    """Python 3.11.0 to 3.11.2 do so for frozen classes with slots: the values of the fields, one after the other."""
    monkeypatch.setattr(Action, "__getstate__", lambda self: [getattr(self, name) for name in self.__slots__])
    action = get_protocol("mempo").parse("<mem>m</mem><think>t</think><answer>Oslo; 405 km</answer>")
    copy = pickle.loads(pickle.dumps(action))
    assert copy == action
    assert copy.spans["memory"] == (0, len("<mem>m</mem>"))
    with pytest.raises(TypeError):
        copy.spans["memory"] = (0, 1)


@pytest.mark.parametrize("stage", ["start", "pending", "running", "ended"])
def test_it_pickles_at_any_moment(stage):
    episode = begin()
    if stage == "pending":
        episode.act(episode.protocol.compose(query="Oslo"))
    elif stage != "start":
        search(episode)
    if stage == "ended":
        answer(episode)
    copy = pickle.loads(pickle.dumps(episode))
    assert copy.info() == episode.info()
    for one in (copy, episode):
        if one.pending:
            one.observe(HITS)
        if not one.done:
            answer(one)
    assert copy.info() == episode.info()
    assert copy.reward == episode.reward == 1.0


def test_lone_surrogates_never_reach_an_observation():
    episode = begin()
    episode.act("<mem>\ud800</mem> \udfff")
    episode.observation.encode("utf-8")
    search(episode, query="Os\udc00lo", hits=[Hit(PASSAGES[0])])
    episode.observation.encode("utf-8")


def test_max_steps_must_be_positive():
    with pytest.raises(ValueError, match="Expected max_steps to be at least 1, got 0"):
        begin(max_steps=0)
