"""Rollouts: the batch decides the speed and nothing else, and every way an episode can end is recorded as it was."""

import dataclasses
import math

import numpy as np
import pytest
from agents_world import QUESTIONS, TASK, env_kwargs
from test_trajectory_files import equal

from mempo_agents.engines import get_engine
from mempo_agents.engines.base import Sampling
from mempo_agents.engines.scripted import OracleEngine, RandomEngine, ReplayEngine, ScriptedEngine
from mempo_agents.policies import Policy, ReAct, get_policy, policy_names, register_policy
from mempo_agents.rollout import rollout, step_seed
from mempo_env.errors import DataError, RetrievalError, UnknownNameError
from mempo_env.types import StopReason, Task

TASKS = [Task(f"w/test/{i}", tuple(QUESTIONS[(i + j) % 4] for j in range(1 + i % 3)), "test") for i in range(7)]


def timeless(trajectory):
    steps = tuple(dataclasses.replace(step, seconds=0.0) for step in trajectory.steps)
    return dataclasses.replace(trajectory, seconds=0.0, steps=steps)


def play(policy, tasks, **kwargs):
    rows = rollout(policy, tasks, **{"env_kwargs": env_kwargs(), **kwargs})
    return {(row.task_id, row.sample): timeless(row) for row in rows}


def same(a, b) -> bool:
    return a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)


@pytest.mark.parametrize("spec", ["oracle", "random"])
@pytest.mark.parametrize("name", ["react", "mem1", "mempo"])
def test_batch_size_changes_nothing(spec, name):
    policy = get_policy(name, get_engine(spec))
    alone = play(policy, TASKS, samples=2, batch_size=1)
    assert len(alone) == 14
    for batch_size in (3, 64):
        assert same(alone, play(policy, TASKS, samples=2, batch_size=batch_size))
    assert same(alone, play(policy, TASKS[::-1], samples=2, batch_size=4))


@pytest.mark.parametrize("guided", [False, True])
def test_batch_size_changes_nothing_for_a_language_model(tiny_engine, guided):
    policy = get_policy("mempo", tiny_engine, Sampling(80, 1.0, guided))
    kwargs = {"env_kwargs": env_kwargs(max_steps=3), "samples": 2}
    alone = play(policy, TASKS[:3], batch_size=1, **kwargs)
    together = play(policy, TASKS[:3], batch_size=4, **kwargs)
    assert alone.keys() == together.keys()
    for key, row in alone.items():
        for mine, theirs in zip(row.steps, together[key].steps, strict=True):
            assert mine.response_ids.tolist() == theirs.response_ids.tolist()
            assert np.allclose(mine.logprobs, theirs.logprobs, atol=1e-4, equal_nan=True)
    assert row.guided is guided
    if guided:
        assert all(step.format_valid for row in alone.values() for step in row.steps)


def test_the_engine_is_called_once_per_step_with_all_running_episodes():
    calls = []

    class Counting(OracleEngine):
        def generate(self, requests, protocol, sampling):
            calls.append(len(requests))
            return super().generate(requests, protocol, sampling)

    rows = play(get_policy("mempo", Counting()), TASKS, batch_size=3)
    assert calls[0] == 3
    assert max(calls) == 3
    assert sum(calls) == sum(len(row.steps) for row in rows.values())
    assert calls.count(3) >= len(calls) - 6  # a free row is filled at once; only the end runs short


def test_samples_steps_tasks_and_runs_have_seeds_of_their_own():
    seeds = {step_seed(r, t, s, i) for r in (0, 1) for t in ("a", "b", "a0") for s in range(3) for i in range(4)}
    assert len(seeds) == 2 * 3 * 3 * 4
    assert step_seed(0, "a", 1, 2) == step_seed(0, "a", 1, 2)
    assert 0 <= step_seed(0, "a", 1, 2) < 2**63
    policy = get_policy("mempo", RandomEngine(answer=0.0))
    first, again, other = (play(policy, TASKS[:1], samples=4, seed=s) for s in (7, 7, 8))
    assert same(first, again)
    assert not same(first, other)
    texts = {(row.sample, index): step.sampled_text for row in first.values() for index, step in enumerate(row.steps)}
    assert len(set(texts.values())) > 0.8 * len(texts)


def test_pairs_name_single_episodes():
    policy = get_policy("mempo", RandomEngine())
    everything = play(policy, TASKS, samples=3)
    some = play(policy, [(TASKS[1], 2), (TASKS[0], 0)])
    assert same(some, {key: everything[key] for key in [("w/test/1", 2), ("w/test/0", 0)]})


def test_what_is_recorded_is_what_was_seen_and_said():
    (row,) = play(get_policy("mempo", OracleEngine()), [TASK]).values()
    engine = OracleEngine()
    for index, step in enumerate(row.steps):
        assert step.prompt_ids.tolist() == engine.encode(step.messages).tolist()
        assert step.messages[: len(row.head)] == row.head
        assert step.response == step.sampled_text
        assert len(step.response_ids) == len(step.token_ends)
        begin, end = step.spans["memory"]
        text = step.sampled_text[(0 if begin == 0 else step.token_ends[begin - 1]) : step.token_ends[end - 1]]
        assert text == f"<mem>{step.memory}</mem>"
        if index:
            before = row.steps[index - 1]
            assert step.messages[len(row.head) :] == (
                {"role": "assistant", "content": before.response},
                {"role": "user", "content": before.observation},
            )
            assert step.history_tokens > len(step.prompt_ids) if index > 1 else True
        assert step.observation_tokens == len(engine.encode_text(step.observation))
    assert row.steps[-1].observation == ""
    assert row.stop_reason == StopReason.ANSWERED
    (full,) = play(get_policy("mempo", OracleEngine(), context="full"), [TASK]).values()
    assert full.context == "full"
    assert [len(step.prompt_ids) for step in full.steps] == [step.history_tokens for step in row.steps]


class Canned(ScriptedEngine):
    """Says the same at every step, cut where the sampler would have stopped it."""

    name = "canned"

    def __init__(self, text: str, finish_reason: str = "stop"):
        super().__init__()
        self.text, self.finish_reason = text, finish_reason

    def generate(self, requests, protocol, sampling):
        made = [self._generation(request, self.text) for request in requests]
        return [dataclasses.replace(generation, finish_reason=self.finish_reason) for generation in made]


def test_tokens_behind_the_action_are_not_the_policys():
    act = "<think>t</think><answer>a; b; c</answer>"
    (row,) = play(get_policy("react", Canned(act + " and more <answer>d</answer>")), [TASK]).values()
    (step,) = row.steps
    assert step.response == act
    assert row.answer == "a; b; c"
    inside = len(OracleEngine().encode_text(act))
    assert step.policy_mask.tolist() == [True] * inside + [False] * (len(step.response_ids) - inside)


def test_a_cut_off_response_is_said_to_be_one():
    (row,) = play(
        get_policy("react", Canned("<think>on and on", "length")), [TASK], env_kwargs=env_kwargs(max_steps=2)
    ).values()
    assert [step.invalid_reason for step in row.steps] == ["length", "length"]
    assert row.stop_reason == StopReason.MAX_STEPS
    assert row.reward == 0.0
    assert row.answer is None
    assert row.steps[0].observation
    assert not row.steps[1].observation


class Windowed(OracleEngine):
    """The oracle with a window: like a language model, it makes no request that does not fit."""

    def __init__(self, window_tokens: int):
        super().__init__()
        self.window_tokens = window_tokens

    def generate(self, requests, protocol, sampling):
        made = super().generate(requests, protocol, sampling)
        return [g if len(g.prompt_ids) < self.window_tokens else self._empty(g) for g in made]

    def _empty(self, g):
        nothing = {name: getattr(g, name)[:0] for name in ("response_ids", "logprobs", "policy_mask", "token_ends")}
        return dataclasses.replace(g, **nothing, text="", finish_reason="length")


def test_a_full_window_truncates_its_own_episode_only():
    tasks = [TASKS[2], Task("short", (QUESTIONS[2],), "test")]
    head = len(OracleEngine().encode(next(iter(play(ReAct(OracleEngine()), tasks).values())).head))
    rows = play(ReAct(Windowed(head + 250)), tasks, batch_size=2)
    long, short = rows["w/test/2", 0], rows["short", 0]
    assert short.stop_reason == StopReason.ANSWERED
    assert short.reward == 1.0
    assert long.stop_reason == StopReason.CONTEXT_LENGTH
    assert long.reward == 0.0
    assert not math.isnan(long.reward)
    assert long.em == (0.0, 0.0, 0.0)
    assert 0 < len(long.steps) < 8
    assert long.steps[-1].observation == ""
    assert long.steps[-1].observation_tokens == 0
    assert all(len(step.prompt_ids) < head + 250 for step in long.steps)
    nothing = play(ReAct(Windowed(10)), tasks, batch_size=1)
    assert all(row.steps == () and row.stop_reason == StopReason.CONTEXT_LENGTH for row in nothing.values())


def test_a_budget_of_the_environment_drops_the_reply_that_does_not_fit():
    kwargs = env_kwargs(max_context_tokens=500, count_tokens=lambda text: len(OracleEngine().encode_text(text)))
    (row,) = play(ReAct(OracleEngine()), [TASK], env_kwargs=kwargs).values()
    assert row.stop_reason == StopReason.CONTEXT_LENGTH
    assert row.steps[-1].observation_tokens == 0


def test_a_broken_search_fails_its_episodes_and_the_rest_go_on():
    class Breaking:
        name = fingerprint = "breaking"

        def search(self, queries, k):
            if any("Rome" in query for query in queries):
                raise RetrievalError("the server is gone")
            return [[] for _ in queries]

    rows = play(
        get_policy("mempo", OracleEngine()), [TASKS[0], Task("rome", (QUESTIONS[1],), "test")], batch_size=1,
        env_kwargs=env_kwargs(retriever=Breaking()),
    )  # fmt: skip
    failed, fine = rows["rome", 0], rows["w/test/0", 0]
    assert failed.stop_reason == StopReason.FAILED
    assert failed.failed
    assert math.isnan(failed.reward)
    assert failed.em == failed.f1 == ()
    assert "the server is gone" in failed.error
    assert len(failed.steps) == 1
    assert failed.steps[0].observation == ""
    assert fine.stop_reason == StopReason.ANSWERED
    assert fine.answer == "unknown"


class Unlucky(OracleEngine):
    """The oracle behind a wire: requests for one task are lost from its second step on."""

    def generate(self, requests, protocol, sampling):
        made = super().generate(requests, protocol, sampling)
        lost = [r.task.id == "rome" and len(r.messages) > 2 for r in requests]
        return [dataclasses.replace(g, error="timed out") if bad else g for g, bad in zip(made, lost, strict=True)]


def test_a_request_that_could_not_be_answered_fails_its_own_episode():
    tasks = [TASKS[1], Task("rome", (QUESTIONS[1],), "test")]
    rows = play(get_policy("mempo", Unlucky()), tasks, batch_size=2)
    failed, fine = rows["rome", 0], rows["w/test/1", 0]
    assert (failed.stop_reason, failed.error) == (StopReason.FAILED, "timed out")
    assert math.isnan(failed.reward)
    assert (failed.em, failed.f1, failed.reward_parts, failed.answer) == ((), (), {}, None)
    assert len(failed.steps) == 1
    assert fine.stop_reason == StopReason.ANSWERED
    assert same({("w/test/1", 0): fine}, play(get_policy("mempo", OracleEngine()), tasks[:1]))


def test_replay_gives_every_token_back(tmp_path):
    from mempo_agents.files import read_trajectories, write_trajectories

    rows = play(get_policy("mem1", RandomEngine()), TASKS, samples=2, seed=5)
    write_trajectories(tmp_path / "t.jsonl", rows.values())
    replay = get_engine(f"replay:{tmp_path / 't.jsonl'}")
    again = play(get_policy("mem1", replay), TASKS, samples=2, seed=5, batch_size=3)
    relabelled = {
        key: dataclasses.replace(row, metadata={"engine": "random", "tokenizer": "word"}) for key, row in again.items()
    }
    assert same(rows, relabelled)
    read = {(row.task_id, row.sample): row for row in read_trajectories(tmp_path / "t.jsonl")}
    assert same(rows, read)


def test_replay_of_a_run_of_several_policies_plays_each_its_own():
    """Policies share the seeds of their steps; the oracle's messages differ from policy to policy."""
    rows = {name: play(get_policy(name, OracleEngine()), [TASK], seed=5) for name in ("react", "mem1", "mempo")}
    replay = ReplayEngine([row for played in rows.values() for row in played.values()])
    for name, played in rows.items():
        again = play(get_policy(name, replay), [TASK], seed=5)
        assert [s.sampled_text for r in again.values() for s in r.steps] == [
            s.sampled_text for r in played.values() for s in r.steps
        ]


def test_replay_refuses_another_past():
    rows = list(play(get_policy("mem1", OracleEngine()), [TASK], seed=5).values())
    with pytest.raises(DataError, match="No recorded step"):
        play(get_policy("mem1", ReplayEngine(rows)), [TASK], seed=6)
    with pytest.raises(DataError, match=r"step 0 parts from the recording at message 0"):
        play(get_policy("mempo", ReplayEngine(rows)), [TASK], seed=5)
    with pytest.raises(DataError, match=r"step 2 parts from the recording at message 3"):
        play(get_policy("mem1", ReplayEngine(rows)), [TASK], seed=5, env_kwargs=env_kwargs(top_k=1))
    strange = [dataclasses.replace(rows[0], metadata={"tokenizer": "other"})]
    with pytest.raises(DataError, match="recorded with the tokenizer 'other'"):
        ReplayEngine(strange)


def test_progress_is_told_each_trajectory_and_tasks_are_read_lazily():
    seen, read = [], []

    def tasks():
        for task in TASKS:
            read.append(task.id)
            yield task

    rows = rollout(
        get_policy("mempo", OracleEngine()), tasks(), env_kwargs=env_kwargs(), batch_size=2, progress=seen.append
    )
    first = next(rows)
    assert seen == [first]
    assert len(read) < len(TASKS)
    rest = list(rows)
    assert seen == [first, *rest]
    assert len(read) == len(TASKS)
    assert list(rollout(get_policy("mempo", OracleEngine()), [], env_kwargs=env_kwargs())) == []


def test_seconds_add_up_to_the_time_it_took():
    import time

    began = time.perf_counter()
    rows = list(rollout(get_policy("mempo", OracleEngine()), TASKS, env_kwargs=env_kwargs(), batch_size=4))
    took = time.perf_counter() - began
    assert 0 < sum(row.seconds for row in rows) <= took
    assert all(row.seconds == pytest.approx(sum(step.seconds for step in row.steps)) for row in rows)


def test_bad_arguments_are_refused():
    policy = get_policy("mempo", OracleEngine())
    with pytest.raises(ValueError, match="it is the policy's"):
        next(rollout(policy, TASKS, env_kwargs={"protocol": "react"}))
    with pytest.raises(ValueError, match="at least 1"):
        next(rollout(policy, TASKS, samples=0))
    with pytest.raises(UnknownNameError, match="Did you mean 'mempo'"):
        get_policy("mempoo", OracleEngine())
    for spec in ("sripted", "smollm2:x", "hff:x"):
        with pytest.raises(UnknownNameError, match="Unknown engine"):
            get_engine(spec)
    with pytest.raises(NotImplementedError, match="no probabilities"):
        OracleEngine().score([])
    with pytest.raises(ValueError, match="between 0 and 1"):
        RandomEngine(answer=2)


def test_policies_differ_in_protocol_and_context_rule_only():
    engine = OracleEngine()
    facts = {name: (p.protocol, p.context) for name in policy_names() for p in [get_policy(name, engine)]}
    assert facts.items() >= {
        "react": ("react", "full"), "mem1": ("mem1", "last_step"), "mempo": ("mempo", "last_step"),
    }.items()  # fmt: skip
    for name in ("react", "mem1", "mempo"):
        assert type(get_policy(name, engine)).act is Policy.act

    class Taken(Policy):
        name = "react"

    with pytest.raises(ValueError, match="already registered"):
        register_policy(Taken)
    assert register_policy(ReAct) is ReAct
    assert get_engine(engine) is engine


def test_random_steps_come_in_many_forms():
    rows = play(get_policy("mempo", RandomEngine(well_formed=0.5)), TASKS, samples=4)
    steps = [step for row in rows.values() for step in row.steps]
    assert {step.action for step in steps} == {"search", "answer", "invalid"}
    assert 0.3 < np.mean([step.format_valid for step in steps]) < 0.8
    tidy = play(get_policy("mempo", RandomEngine(well_formed=1.0)), TASKS, samples=2)
    assert all(step.format_valid for row in tidy.values() for step in row.steps)


def test_the_engine_is_told_which_step_is_the_last():
    seen = []

    class Listening(OracleEngine):
        def respond(self, request, protocol):
            seen.append(request.last_step)
            return super().respond(request, protocol)

    (trajectory,) = rollout(get_policy("react", Listening()), [TASK], env_kwargs=env_kwargs(max_steps=2))
    assert seen == [False, True][: len(trajectory.steps)]
    assert len(trajectory.steps) == 2


def test_every_public_name_is_there_and_none_is_a_module():
    import types

    import mempo_agents

    for name in mempo_agents.__all__:
        assert not isinstance(getattr(mempo_agents, name), types.ModuleType), name
    assert set(mempo_agents.__all__) == set(mempo_agents._EXPORTS) <= set(dir(mempo_agents))
    with pytest.raises(AttributeError, match="no attribute 'rollin'"):
        mempo_agents.rollin  # noqa: B018
