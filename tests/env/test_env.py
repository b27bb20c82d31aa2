"""The environment over a tiny world: choosing tasks, options, seeds, failures, rendering, and every refusal's words."""

from __future__ import annotations

import math
import pickle
import random
import subprocess
import sys

import cloudpickle
import gymnasium as gym
import numpy as np
import pytest
from env_fakes import PASSAGES, QUESTIONS, BrokenRetriever, CountingRetriever, NullRetriever, tiny
from gymnasium.wrappers import RecordEpisodeStatistics, TimeLimit

import mempo_env
from mempo_env import SearchQAEnv
from mempo_env.errors import DataError, EpisodeOverError, MissingExtraError, RetrievalError, UnknownNameError
from mempo_env.types import Hit, Question, StopReason, Task


def make(**kwargs):
    return SearchQAEnv(**tiny(**kwargs))


def search_text(env, query="oslo", memory="m"):
    return env.protocol.compose(memory=memory, thought="t", query=query)


def right_text(env):
    gold = [question.answers[0] for question in env.episode.task.questions]
    return env.protocol.compose(memory="m", thought="t", answers=gold)


def test_a_whole_episode():
    env = make()
    observation, info = env.reset(seed=0)
    assert "Question 1: " in observation
    assert "Question 2: " in observation
    assert info["step"] == 0
    observation, reward, terminated, truncated, info = env.step(search_text(env, "rome"))
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert info["hit_ids"] == ("p4",)
    assert info["observation"] in observation
    assert type(reward) is float
    _, reward, terminated, truncated, info = env.step(right_text(env))
    assert (reward, terminated, truncated) == (1.0, True, False)
    assert info["stop_reason"] == "answered"


def test_info_says_what_is_odd_about_an_answer():
    env = make(retriever="bm25")
    _, info = env.reset(options={"task": Task("t", (Question("a", "How much?", ("3.5",)), QUESTIONS[2]))})
    assert (info["answer_note"], info["numeric_conflict"]) == (None, None)
    info = env.step("<answer>35, Rome</answer>")[4]
    assert info["answer_note"] == "expected 2 answers separated by ';', got 1 (found instead: commas)"
    env.reset(options={"task": info["task"]})
    info = env.step("<answer>35; Rome</answer>")[4]
    assert (info["em"], info["numeric_conflict"], info["answer_note"]) == ((1.0, 1.0), (True, False), "")


def test_default_steps_grow_with_the_questions():
    for k in (1, 2, 3):
        env = make(objectives=k)
        env.reset(seed=0)
        assert env.episode.max_steps == 4 * k + 4
    env = make(max_steps=3)
    env.reset(seed=0)
    assert env.episode.max_steps == 3


def test_a_range_of_objectives():
    env = make(objectives=(1, 3))
    env.reset(seed=1)
    sizes = {env.reset()[1]["objectives"] for _ in range(40)}
    assert sizes == {1, 2, 3}


# -- choosing the task ---------------------------------------------------------------------------------------------


def test_index_names_a_task_whatever_the_seed():
    env = make()
    for index in range(4):
        ids = {env.reset(seed=seed, options={"index": index})[1]["task_id"] for seed in (None, 1, 2)}
        assert ids == {f"tiny/train/k2-s0/{index:06d}"}
    assert env.reset(options={"index": np.int64(1)})[1]["task_id"].endswith("/000001")


def test_split_index_and_id_agree():
    env = make()
    _, by_index = env.reset(options={"split": "test", "index": 2})
    assert by_index["split"] == "test"
    for options in ({"task": by_index["task_id"]}, {"task": by_index["task_id"], "split": "test"}):
        _, by_id = env.reset(options=options)
        assert by_id["task"] == by_index["task"]
        assert by_id["split"] == "test"
    # The split of one reset does not stick.
    assert env.reset()[1]["split"] == "train"


def test_a_task_of_question_ids_and_a_task_of_ones_own():
    env = make()
    _, info = env.reset(options={"task": ("tiny:3", "tiny:1")})
    assert [question.id for question in info["task"].questions] == ["tiny:3", "tiny:1"]
    own = Task("mine", (QUESTIONS[3],), "elsewhere")
    _, info = env.reset(options={"task": own})
    assert info["task"] is own
    assert info["split"] == "train"


BAD_OPTIONS = [
    ({"indx": 1}, UnknownNameError, r"Unknown reset option 'indx'. Did you mean 'index'\?"),
    (
        {"index": 4},
        IndexError,
        r"index 4 is out of range: split 'train' of data set 'tiny' has 4 tasks here, expected 0 to 3",
    ),
    ({"index": -1}, IndexError, "index -1 is out of range"),
    ({"index": "first"}, TypeError, "Expected the option 'index' to be an integer, got 'first'"),
    ({"index": 1.0}, TypeError, "Expected the option 'index' to be an integer, got 1.0"),
    ({"index": True}, TypeError, "Expected the option 'index' to be an integer, got True"),
    ({"split": ""}, UnknownNameError, "Known: test, train"),
    (["split"], TypeError, "Expected options to be a dictionary or None"),
    (5, TypeError, "Expected options to be a dictionary or None, got 5"),
    (
        {"split": "tset"},
        UnknownNameError,
        r"'tset'. Did you mean 'test'\? Known: test, train",
    ),
    ({"task": "tiny/train/k2-s0/000009"}, DataError, "Expected tiny/train/k2-s0/000000 to tiny/train/k2-s0/000003"),
    ({"task": ("tiny:1", "tiny:9")}, DataError, "Unknown question id 'tiny:9'"),
    ({"task": 3}, TypeError, "Expected the option 'task' to be a Task, a task id, or a tuple of question ids"),
    ({"task": ()}, DataError, "at least one question"),
    ({"index": 1, "task": "x"}, ValueError, "Expected options to hold 'index' or 'task', got both"),
]


@pytest.mark.parametrize(("options", "error", "message"), BAD_OPTIONS)
def test_bad_options_are_refused_and_change_nothing(options, error, message):
    env, other = make(), make()
    env.reset(seed=0)
    other.reset(seed=0)
    episode = env.episode
    with pytest.raises(error, match=message):
        env.reset(seed=5, options=options)
    assert env.episode is episode
    assert env.reset()[1]["task_id"] == other.reset()[1]["task_id"]


def test_the_separator_in_an_answer_does_not_make_a_task_unanswerable():
    own = Task("mine", (Question("q", "Who made it?", ("Smith; Wesson",)), QUESTIONS[3]))
    env = make()
    _, info = env.reset(options={"task": own})
    assert info["task"].questions[0].answers == ("Smith, Wesson",)
    assert info["task"].questions[1] == QUESTIONS[3]
    assert env.step(env.protocol.compose(memory="m", thought="t", answers=["Smith, Wesson", "1911"]))[1] == 1.0


BAD_ARGUMENTS = [
    ({"objectives": 0}, DataError, "expected a whole number from 1"),
    ({"objectives": (3, 2)}, DataError, "low <= high"),
    ({"objectives": 2.5}, DataError, "got 2.5"),
    ({"objectives": 5}, DataError, "A task of 5 objectives needs 5 questions, but tiny/train has 4"),
    ({"dataset": "wrld"}, UnknownNameError, r"'wrld'. Did you mean 'world'\?"),
    ({"dataset": "no/such/file.jsonl"}, DataError, "no/such/file.jsonl"),
    ({"dataset": 7}, DataError, "Expected a data set, a name, a path"),
    ({"split": "trian"}, UnknownNameError, "Did you mean 'train'"),
    ({"composition": "smple"}, UnknownNameError, "Did you mean 'sample'"),
    ({"protocol": "memp"}, UnknownNameError, r"Unknown protocol 'memp'. Did you mean 'mempo'\?"),
    ({"context": "fulll"}, UnknownNameError, r"Unknown context rule 'fulll'. Did you mean 'full'\?"),
    ({"context": "last_k"}, ValueError, "'last_k:3'"),
    ({"reward": "pape"}, UnknownNameError, r"Unknown reward 'pape'. Did you mean 'paper'\?"),
    ({"normaliser": "sqad"}, UnknownNameError, r"Unknown normaliser 'sqad'. Did you mean 'squad'\?"),
    ({"retriever": "bm52"}, UnknownNameError, r"Unknown retriever 'bm52'. Did you mean 'bm25'\?"),
    ({"retriever": 5}, TypeError, "Expected a retriever"),
    ({"top_k": 0}, ValueError, "Expected top_k to be an integer of at least 1, got 0"),
    ({"top_k": "3"}, TypeError, "Expected top_k to be an integer of at least 1, got '3'"),
    ({"max_steps": 0}, ValueError, "Expected max_steps to be an integer of at least 1, got 0"),
    ({"max_steps": 2.5}, TypeError, "Expected max_steps to be an integer of at least 1, got 2.5"),
    ({"task_seed": "x"}, TypeError, "the seed of the tasks to be an integer, got 'x'"),
    ({"instructions": 5}, TypeError, "Expected instructions to be a str or None, got int"),
    ({"count_tokens": 5}, TypeError, "Expected count_tokens to be a function"),
    ({"count_tokens": str.split}, TypeError, r"Expected count_tokens\(text\) to be an integer"),
    ({"tools": "search"}, TypeError, "tools: expected a sequence of names such as"),
    ({"tools": 5}, TypeError, "tools: expected a sequence of names such as"),
    ({"dataset": ""}, DataError, "expected a name or a path, got ''"),
    ({"dataset": "world", "corpus": "x.jsonl"}, DataError, "corpus applies to files"),
    (
        {"tools": ("search", "visit")},
        TypeError,
        "'visit', but the retriever 'counting' cannot open pages",
    ),
    ({"render_mode": "rgb_array"}, UnknownNameError, "Unknown render mode 'rgb_array'. .*Known: ansi, human"),
    ({"max_context_tokens": 900}, ValueError, "max_context_tokens=900 counts tokens, so count_tokens is needed"),
    ({"max_passage_tokens": 90}, ValueError, "max_passage_tokens=90 counts tokens, so count_tokens is needed"),
    ({"max_observation_tokens": 90}, ValueError, "max_observation_tokens=90 counts tokens"),
    ({"max_passage_chars": 0}, ValueError, "expected at least 1"),
    ({"objektives": 2}, TypeError, "unexpected keyword argument 'objektives'"),
]


@pytest.mark.parametrize(("arguments", "error", "message"), BAD_ARGUMENTS)
def test_bad_arguments_are_refused_when_the_environment_is_made(arguments, error, message):
    with pytest.raises(error, match=message):
        make(**arguments)


def test_numpy_integers_are_integers():
    env = make(objectives=np.int64(1), top_k=np.int64(2), max_steps=np.int32(3), max_observation_chars=np.int64(200))
    _, info = env.reset(seed=0)
    assert (info["objectives"], env.episode.max_steps) == (1, 3)


def test_no_more_than_top_k_hits_whatever_the_retriever_gives():
    class Generous(CountingRetriever):
        def search(self, queries, k):
            return [[Hit(passage) for passage in PASSAGES] for _ in queries]

    env = make(retriever=Generous(), top_k=2)
    env.reset(seed=0)
    assert env.step(search_text(env))[4]["hit_ids"] == ("p1", "p2")


def test_gymnasium_passes_our_words_on():
    with pytest.raises(UnknownNameError, match="Did you mean 'mempo'"):
        gym.make("MemPO-WikiQA-v0", **tiny(protocol="memp"))
    with pytest.raises(gym.error.NameNotFound, match="MemPO-WikiQA"):
        gym.make("MemPO-WikQA-v0")
    with pytest.raises(gym.error.VersionNotFound):
        gym.make("MemPO-WikiQA-v7")


@pytest.mark.parametrize(
    "error",
    [
        UnknownNameError("protocol", "memp", ["mempo", "react"]),
        MissingExtraError("torch", "hf", "The language model"),
        DataError("row 3"),
        RetrievalError("dead"),
        EpisodeOverError("over"),
    ],
)
def test_errors_survive_pickling(error):
    # Worker processes send their errors home by pickle.
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)


def test_step_needs_a_running_episode():
    env = make()
    with pytest.raises(EpisodeOverError, match=r"No episode has begun. Call reset\(\) first"):
        env.step("x")
    env.reset(seed=0)
    env.step(right_text(env))
    with pytest.raises(EpisodeOverError, match="has ended"):
        env.step("x")
    env.reset()
    env.step("x")


@pytest.mark.parametrize("action", [None, 1, b"bytes", ["a"]])
def test_a_wrong_action_type_is_refused_and_costs_no_step(action):
    env = make()
    env.reset(seed=0)
    with pytest.raises(TypeError, match="Expected the action to be a str"):
        env.step(action)
    assert env.episode.turns == ()


# -- searches that break down --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [RetrievalError("index is damaged"), ConnectionRefusedError("refused"), TimeoutError("slow"), OSError("disk")],
)
def test_an_infrastructure_failure_ends_the_episode_unscored(error):
    env = make(retriever=BrokenRetriever(after=1, error=error))
    env.reset(seed=0)
    env.step(search_text(env))
    observation, reward, terminated, truncated, info = env.step(search_text(env))
    assert (terminated, truncated, info["stop_reason"]) == (False, True, "failed")
    assert math.isnan(reward)
    assert info["error"] == f"{type(error).__name__}: {error}"
    assert str(error) not in observation
    assert info["em"] is None
    # The next episode starts clean.
    assert env.reset()[1]["error"] is None


def test_a_bug_in_a_retriever_is_not_hidden():
    env = make(retriever=BrokenRetriever(error=ZeroDivisionError("bug")))
    env.reset(seed=0)
    with pytest.raises(ZeroDivisionError):
        env.step(search_text(env))


def test_a_retriever_that_loses_a_query_fails_the_episode():
    class Lossy(NullRetriever):
        def search(self, queries, k):
            return []

    env = make(retriever=Lossy())
    env.reset(seed=0)
    info = env.step(search_text(env))[4]
    assert info["stop_reason"] == "failed"
    assert "Expected one list of hits per query, 1 in all, got 0" in info["error"]


def test_a_retriever_that_opens_pages_serves_visits():
    class Web(CountingRetriever):
        def visit(self, urls):
            return [[Hit(PASSAGES[4])] for _ in urls]

    env = make(retriever=Web(), tools=("search", "visit"))
    env.reset(seed=0)
    info = env.step(env.protocol.compose(query="http://tiber", tool="visit"))[4]
    assert info["action"] == "visit"
    assert info["hit_ids"] == ("p5",)


# -- determinism and copies ----------------------------------------------------------------------------------------


def play(env, resets=3, seed=3):
    """Observations and facts of a few short episodes."""
    trace = []
    for number in range(resets):
        observation, info = env.reset(seed=seed if number == 0 else None)
        trace.append((observation, info["task_id"]))
        for text in (search_text(env, "rome"), "nonsense", right_text(env)):
            observation, reward, terminated, truncated, info = env.step(text)
            trace.append((observation, reward, terminated, truncated, info["hit_ids"], info["stop_reason"]))
    return trace


def test_seeded_resets_repeat_and_ignore_global_generators():
    first = play(make(objectives=(1, 3)))
    random.seed(0)
    np.random.seed(0)
    assert play(make(objectives=(1, 3))) == first
    assert play(make(objectives=(1, 3)), seed=4) != first
    state = np.random.get_state()[1].tolist()
    play(make())
    assert np.random.get_state()[1].tolist() == state


def test_unseeded_environments_differ():
    tasks = {tuple(env.reset()[1]["task_id"] for _ in range(8)) for env in (make() for _ in range(6))}
    assert len(tasks) > 1


def test_interleaving_two_environments_changes_nothing():
    alone = [make().reset(seed=seed)[1]["task_id"] for seed in (1, 2)]
    one, two = make(), make()
    mixed = [one.reset(seed=1)[1]["task_id"], two.reset(seed=2)[1]["task_id"]]
    assert mixed == alone
    one.step(search_text(one, "oslo"))
    two.step(search_text(two, "rome"))
    one.step(search_text(one, "tiber"))
    lone = make()
    lone.reset(seed=1)
    lone.step(search_text(lone, "oslo"))
    assert lone.step(search_text(lone, "tiber"))[0] == one.episode.observation


SCRIPT = """
import sys
sys.path.insert(0, {folder!r})
from test_env import make, play
import hashlib
print(hashlib.sha256(repr(play(make(objectives=(1, 3), retriever="bm25"))).encode()).hexdigest())
"""


def test_two_processes_with_different_hash_seeds_agree(request):
    script = SCRIPT.format(folder=str(request.path.parent))
    prints = {
        subprocess.run(
            [sys.executable, "-c", script], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(prints) == 1
    assert len(prints.pop().strip()) == 64


@pytest.mark.parametrize("pickler", [pickle, cloudpickle])
@pytest.mark.parametrize("protocol", ["mempo", "react"])
def test_a_copy_made_mid_episode_goes_on_alike(pickler, protocol):
    env = make(protocol=protocol, retriever="bm25")
    env.reset(seed=5)
    env.step(search_text(env, "oslo"))
    copy = pickle.loads(pickler.dumps(env))
    for text in (search_text(env, "tiber"), "nonsense", right_text(env)):
        assert copy.step(text) == env.step(text)
    # The generator goes along: the next tasks agree as well.
    assert [copy.reset()[1]["task_id"] for _ in range(5)] == [env.reset()[1]["task_id"] for _ in range(5)]


def test_a_pickle_holds_names_not_indexes():
    env = SearchQAEnv(objectives=1)
    env.reset(seed=0)
    env.step(search_text(env, "city"))
    assert len(pickle.dumps(env)) < 20_000


def test_a_sibling_shares_what_was_loaded_and_nothing_else():
    env = make()
    env.reset(seed=0)
    state = env.np_random.bit_generator.state
    twin = env.sibling()
    with pytest.raises(EpisodeOverError):
        twin.step("x")
    twin.reset()
    assert twin.library is env.library
    assert env.np_random.bit_generator.state == state
    assert twin.np_random is not env.np_random
    assert twin.action_space is not env.action_space


# -- wrappers, limits, rendering -----------------------------------------------------------------------------------


def test_time_limit_and_statistics_wrappers():
    env = RecordEpisodeStatistics(TimeLimit(make(max_steps=5), 2))
    env.reset(seed=0)
    env.step("x")
    _, _, terminated, truncated, info = env.step("x")
    assert (terminated, truncated) == (False, True)
    assert info["episode"]["l"] == 2
    assert info["stop_reason"] is None  # the wrapper's limit, not ours
    inner = TimeLimit(make(max_steps=2), 5)
    inner.reset(seed=0)
    inner.step("x")
    _, _, terminated, truncated, info = inner.step("x")
    assert (terminated, truncated, info["stop_reason"]) == (False, True, StopReason.MAX_STEPS)


def test_token_budgets_with_a_counter():
    env = make(count_tokens=lambda text: len(text.split()), max_observation_tokens=25, max_context_tokens=2000)
    _, info = env.reset(seed=0)
    assert info["context_tokens"] == len(env.episode.observation.split())
    info = env.step(search_text(env, "is"))[4]
    assert 2 < len(info["observation"].split()) <= 25


def test_character_budgets():
    info_by_budget = {}
    for budget in (None, 120):
        env = make(max_observation_chars=budget)
        env.reset(seed=0)
        info_by_budget[budget] = env.step(search_text(env, "is"))[4]
    assert len(info_by_budget[None]["observation"]) > 120 >= len(info_by_budget[120]["observation"])
    assert info_by_budget[120]["observation"].endswith("</information>")


def test_ansi_rendering_is_the_episode_in_colour():
    env = make(render_mode="ansi")
    env.reset(seed=0)
    env.step(search_text(env, memory="first note"))
    text = env.render()
    assert "Step 1" in text
    assert "\x1b[" in text
    assert "first note" in text


def test_human_rendering_prints_each_step_once(capsys):
    env = make(render_mode="human")
    env.reset(seed=0)
    assert env.render() is None
    first = capsys.readouterr().out
    assert first.count("Question 1:") == 1
    env.step(search_text(env, memory="first note"))
    env.render()
    second = capsys.readouterr().out
    assert "Question 1:" not in second
    assert second.count("Step 1 of at most 12") == 1
    assert second.count("first note") == 1
    assert "\x1b[" not in second  # not a terminal
    env.step(right_text(env))
    assert "Ended: answered, reward 1" in capsys.readouterr().out


def test_render_without_a_mode_says_what_to_do():
    env = make()
    env.reset(seed=0)
    with pytest.warns(UserWarning, match="render_mode"):
        assert env.render() is None


def test_public_names():
    for name in mempo_env.__all__:
        assert getattr(mempo_env, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        mempo_env.nonsense  # noqa: B018
    assert set(mempo_env.__all__) <= set(dir(mempo_env))


def test_import_is_light():
    script = (
        "import sys, mempo_env; "
        "heavy = {'torch', 'transformers', 'bm25s', 'faiss', 'datasets', 'pandas', 'numba'} & set(sys.modules); "
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
