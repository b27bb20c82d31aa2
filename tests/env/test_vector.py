"""The vector environment equals Gymnasium's synchronous one, step by step, and searches once per step."""

from __future__ import annotations

import math
import pickle

import gymnasium as gym
import numpy as np
import pytest
from env_fakes import QUESTIONS, BrokenRetriever, CountingRetriever, tiny
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.wrappers.vector import RecordEpisodeStatistics

from mempo_env import SearchQAEnv, SearchQAVectorEnv
from mempo_env.errors import EpisodeOverError
from mempo_env.types import Task
from mempo_env.vector import stack_infos

MODES = [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED]


def make(num_envs=3, mode=AutoresetMode.NEXT_STEP, **kwargs):
    return SearchQAVectorEnv(num_envs, autoreset_mode=mode, **tiny(**kwargs))


def compose(envs, **kwargs):
    return envs.envs[0].protocol.compose(memory="m", thought="t", **kwargs)


def assert_same(ours, theirs):
    """Equal values of equal types, through nested dictionaries, tuples and arrays."""
    assert type(ours) is type(theirs), (ours, theirs)
    if isinstance(ours, dict):
        assert ours.keys() == theirs.keys()
        for key in ours:
            assert_same(ours[key], theirs[key])
    elif isinstance(ours, tuple):
        assert len(ours) == len(theirs)
        for mine, other in zip(ours, theirs, strict=True):
            assert_same(mine, other)
    elif isinstance(ours, np.ndarray):
        assert ours.dtype == theirs.dtype
        assert ours.shape == theirs.shape
        for a, b in zip(ours.tolist(), theirs.tolist(), strict=True):
            assert_same(a, b)
    elif ours != ours:  # NaN
        assert theirs != theirs
    else:
        assert ours == theirs


def scripted(protocol, random, row_done):
    """A text for one row: searches, invalid texts and answers in seeded disorder."""
    kind = random.choice(["search", "search", "invalid", "answer"])
    if kind == "search":
        return protocol.compose(memory="m", thought="t", query=str(random.choice(["oslo", "rome", "tiber", "zzz"])))
    if kind == "answer":
        return protocol.compose(memory="m", thought="t", answers=["Oslo", "405 km"])
    return "no tags here" if not row_done else "ignored"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("protocol", ["mempo", "react"])
def test_it_equals_gymnasiums_synchronous_vector_environment(mode, protocol):
    arguments = {"protocol": protocol, "objectives": (1, 2), "max_steps": 3}
    ours = make(4, mode, **arguments)
    theirs = SyncVectorEnv([lambda: SearchQAEnv(**tiny(**arguments))] * 4, autoreset_mode=mode)
    assert ours.metadata["autoreset_mode"] is mode
    assert_same(ours.reset(seed=11), theirs.reset(seed=11))
    random = np.random.default_rng(5)
    done = np.zeros(4, dtype=bool)
    finished = 0
    for _ in range(40):
        if mode is AutoresetMode.DISABLED and done.any():
            # Theirs takes the mask out of the dictionary, so each gets its own.
            assert_same(ours.reset(options={"reset_mask": done}), theirs.reset(options={"reset_mask": done.copy()}))
        texts = tuple(scripted(ours.envs[0].protocol, random, d) for d in done)
        mine, gymnasiums = ours.step(texts), theirs.step(texts)
        assert_same(mine, gymnasiums)
        done = mine[2] | mine[3]
        finished += int(done.sum())
    assert finished > 10


def test_one_search_per_step_for_all_rows():
    retriever = CountingRetriever()
    envs = make(4, retriever=retriever)
    envs.reset(seed=0)
    search = compose(envs, query="rome")
    envs.step([search, "nonsense", compose(envs, query="oslo"), compose(envs, answers=["a", "b"])])
    assert retriever.batches == [["rome", "oslo"]]
    envs.step(["nonsense"] * 4)
    assert len(retriever.batches) == 1  # nobody searched


def test_rows_on_two_splits_with_one_retriever_share_a_batch():
    retriever = CountingRetriever()
    envs = make(2, retriever=retriever)
    tasks = [Task("a", QUESTIONS[:1], "train"), Task("b", QUESTIONS[1:2], "test")]
    _, infos = envs.reset(options={"tasks": tasks})
    assert infos["split"].tolist() == ["train", "test"]
    envs.step([compose(envs, query="rome"), compose(envs, query="oslo")])
    assert retriever.batches == [["rome", "oslo"]]


@pytest.mark.parametrize("text", ["", "<answer>", "\x00\ud800", "<tool_call>{" * 1000, "</information>" * 50])
def test_a_hostile_row_leaves_the_others_alone(text):
    def others(hostile):
        envs = make(3)
        envs.reset(seed=2)
        step = envs.step([compose(envs, query="rome"), hostile, compose(envs, query="tiber")])
        return [(step[0][i], step[1][i], step[2][i], step[3][i], step[4]["hit_ids"][i]) for i in (0, 2)]

    assert others(text) == others("plain nonsense")


def test_a_broken_search_fails_the_rows_that_searched_and_no_other():
    envs = make(3, retriever=BrokenRetriever())
    envs.reset(seed=0, options={"tasks": [("tiny:1", "tiny:2")] * 3})
    _, rewards, terminations, truncations, infos = envs.step(
        [compose(envs, query="rome"), compose(envs, answers=["Oslo", "405 km"]), "nonsense"]
    )
    assert terminations.tolist() == [False, True, False]
    assert truncations.tolist() == [True, False, False]
    assert math.isnan(rewards[0])
    assert rewards[1:].tolist() == [1.0, 0.0]
    assert infos["stop_reason"].tolist() == ["failed", "answered", None]
    assert "did not answer" in infos["error"][0]
    assert infos["_reward_parts"].tolist() == [False, True, False]
    assert infos["reward_parts"]["paper"][1] == 1.0
    # The next step begins a new episode in the failed row.
    assert envs.step(["x"] * 3)[4]["step"].tolist() == [0, 0, 2]


def test_seeds_and_options_per_row():
    envs = make(3)
    by_int = envs.reset(seed=7)[1]["task_id"].tolist()
    assert by_int == envs.reset(seed=[7, 8, 9])[1]["task_id"].tolist()
    singles = [SearchQAEnv(**tiny()).reset(seed=7 + row)[1]["task_id"] for row in range(3)]
    assert by_int == singles
    _, infos = envs.reset(options={"indices": [2, None, 0], "split": "test"})
    assert infos["task_id"][[0, 2]].tolist() == ["tiny/test/k2-s0/000002", "tiny/test/k2-s0/000000"]
    assert infos["split"].tolist() == ["test"] * 3
    _, infos = envs.reset(options={"tasks": [("tiny:1",), "tiny/train/k2-s0/000001", None]})
    assert infos["objectives"].tolist() == [1, 2, 2]


def test_disabled_rows_may_stay_ended():
    envs = make(2, AutoresetMode.DISABLED)
    envs.reset(seed=0)
    envs.step([compose(envs, answers=["a", "b"]), "nonsense"])
    last = envs.episodes[0].observation
    observations, rewards, terminations, truncations, infos = envs.step([None, "nonsense"])
    assert observations[0] == last
    assert (rewards[0], terminations[0], truncations[0]) == (0.0, True, False)
    assert infos["_step"].tolist() == [False, True]
    with pytest.raises(EpisodeOverError, match=r"Row 0 has ended \(answered\).*reset_mask"):
        envs.step(["text", "nonsense"])
    assert len(envs.episodes[1].turns) == 2  # the refused step touched nothing
    mask = np.array([True, False])
    options = {"reset_mask": mask, "indices": [1, None]}
    observations, infos = envs.reset(options=options)
    assert infos["task_id"][0] == "tiny/train/k2-s0/000001"
    assert infos["_task_id"].tolist() == [True, False]
    assert observations[1] == envs.episodes[1].observation
    assert options["reset_mask"] is mask  # the caller's dictionary is left as it was
    assert len(envs.episodes[1].turns) == 2


def test_finish_reasons_reach_the_rows():
    envs = make(2)
    envs.reset(seed=0)
    infos = envs.step(["<mem>cut", "<mem>cut"], finish_reasons=["length", None])[4]
    assert infos["invalid_reason"].tolist() == ["length", "unclosed"]


def test_a_row_can_be_truncated_between_steps():
    envs = make(2, AutoresetMode.DISABLED)
    envs.reset(seed=0)
    envs.step([compose(envs, query="rome"), "nonsense"])
    envs.truncate(0)
    with pytest.raises(EpisodeOverError):
        envs.truncate(0)
    _, rewards, terminations, truncations, infos = envs.step([None, "nonsense"])
    assert (rewards[0], terminations[0], truncations[0]) == (0.0, False, True)
    assert infos["_step"].tolist() == [False, True]
    assert envs.episodes[0].stop_reason == "context_length"
    following = make(1, AutoresetMode.NEXT_STEP)
    following.reset(seed=0)
    following.truncate(0)
    assert following.step(["ignored"])[4]["step"].tolist() == [0]
    with pytest.raises(ValueError, match="truncate needs autoreset mode NEXT_STEP or DISABLED"):
        make(1, AutoresetMode.SAME_STEP).truncate(0)


def test_a_row_can_fail_between_steps():
    envs = make(2, AutoresetMode.DISABLED)
    envs.reset(seed=0)
    envs.step([compose(envs, query="rome"), "nonsense"])
    envs.fail(0, "the model is gone")
    with pytest.raises(EpisodeOverError, match="Only a running episode can fail"):
        envs.fail(0, "again")
    _, rewards, terminations, truncations, _ = envs.step([None, "nonsense"])
    assert (rewards[0], terminations[0], truncations[0]) == (0.0, False, True)
    episode = envs.episodes[0]
    assert (episode.stop_reason, episode.error, episode.score, len(episode.turns)) == (
        "failed", "the model is gone", None, 1,
    )  # fmt: skip
    assert np.isnan(episode.reward)
    assert envs.episodes[1].stop_reason is None
    with pytest.raises(ValueError, match="fail needs autoreset mode NEXT_STEP or DISABLED"):
        make(1, AutoresetMode.SAME_STEP).fail(0, "")


BAD_STEPS = [
    (["a", "b"], ValueError, "Expected 3 actions, one per row, got 2"),
    ("abc", TypeError, "Expected 3 actions, one per row, in a sequence, got 'abc'"),
    (None, TypeError, "Expected 3 actions, one per row, in a sequence, got None"),
    (iter("abc"), TypeError, "Expected 3 actions, one per row, in a sequence"),
    (["a", None, "b"], TypeError, "Expected the action of row 1 to be a str, got NoneType"),
    (["a", 3, "b"], TypeError, "Expected the action of row 1 to be a str, got int"),
]


@pytest.mark.parametrize(("actions", "error", "message"), BAD_STEPS)
def test_a_refused_step_touches_no_row(actions, error, message):
    envs = make()
    envs.reset(seed=0)
    with pytest.raises(error, match=message):
        envs.step(actions)
    with pytest.raises(ValueError, match="Expected 3 finish_reasons"):
        envs.step(["a"] * 3, finish_reasons=["stop"])
    assert [len(episode.turns) for episode in envs.episodes] == [0, 0, 0]


BAD_RESETS = [
    ({"seed": [1, 2]}, ValueError, "Expected 3 seeds, one per row, got 2"),
    ({"seed": 1.5}, TypeError, "Expected 3 seeds, one per row, in a sequence, got 1.5"),
    ({"seed": [1, -1, 2]}, ValueError, "Expected a seed to be an integer of at least 0, got -1"),
    ({"seed": [1, "a", 2]}, TypeError, "Expected a seed to be an integer of at least 0, got 'a'"),
    ({"options": 5}, TypeError, "Expected options to be a dictionary or None, got 5"),
    ({"options": {"indices": 5}}, TypeError, r"Expected 3 options\['indices'\], one per row, in a sequence, got 5"),
    ({"options": {"indices": [0, True, 1]}}, TypeError, "to be an integer, got True"),
    ({"options": {"indices": [1]}}, ValueError, r"Expected 3 options\['indices'\], one per row, got 1"),
    ({"options": {"indices": [0, 1, 99]}}, IndexError, "index 99 is out of range"),
    ({"options": {"indicse": [1, 2, 3]}}, ValueError, "Unknown reset option 'indicse'. Did you mean 'index'"),
    ({"options": {"reset_mask": [True, False, True]}}, TypeError, "bool array of shape .3,., got list"),
    ({"options": {"reset_mask": np.array([1, 0, 1])}}, TypeError, "got int64 .3,."),
    ({"options": {"reset_mask": np.zeros(3, dtype=bool)}}, ValueError, "at least one row, got none"),
]


@pytest.mark.parametrize(("arguments", "error", "message"), BAD_RESETS)
def test_a_refused_reset_touches_no_row(arguments, error, message):
    envs = make()
    envs.reset(seed=0)
    before = envs.episodes
    with pytest.raises(error, match=message):
        envs.reset(**arguments)
    assert envs.episodes == before


def test_a_step_before_the_first_reset_is_refused():
    with pytest.raises(EpisodeOverError, match=r"Call reset\(\) first"):
        make().step(["a"] * 3)


@pytest.mark.parametrize(("number", "mode"), [(0, "NextStep"), ("3", "NextStep"), (True, "NextStep"), (2, "sometimes")])
def test_bad_construction(number, mode):
    with pytest.raises((TypeError, ValueError), match=r"Expected num_envs|not a valid AutoresetMode"):
        make(number, mode)


def test_make_vec_gives_ours_and_the_async_one_works_without_shared_memory():
    arguments = tiny(max_steps=2)
    ours = gym.make_vec("MemPO-WikiQA-v0", num_envs=2, **arguments)
    assert type(ours) is SearchQAVectorEnv
    assert ours.spec.id == "MemPO-WikiQA-v0"
    ours.reset(seed=3)
    theirs = AsyncVectorEnv([lambda: SearchQAEnv(**arguments)] * 2, shared_memory=False)
    try:
        assert_same(ours.reset(seed=3), theirs.reset(seed=3))
        for text in (compose(ours, query="rome"), "nonsense", "ignored"):
            assert_same(ours.step([text] * 2), theirs.step([text] * 2))
    finally:
        theirs.close()
    with pytest.raises(ValueError, match="shared_memory=False"):
        gym.make_vec("MemPO-WikiQA-v0", num_envs=2, vectorization_mode="async", **arguments)


def test_vector_wrappers_and_spaces():
    envs = RecordEpisodeStatistics(make(2))
    observations, _ = envs.reset(seed=0)
    assert observations in envs.observation_space
    assert envs.action_space.sample() in envs.action_space
    infos = envs.step([compose(envs.unwrapped, answers=["a", "b"]), "x"])[4]
    assert infos["episode"]["l"].tolist() == [1, 0]


def test_it_pickles_mid_episode():
    envs = make(2, retriever="bm25")
    envs.reset(seed=0)
    envs.step([compose(envs, query="rome"), "x"])
    copy = pickle.loads(pickle.dumps(envs))
    for texts in ([compose(envs, query="oslo"), "x"], [compose(envs, answers=["a", "b"]), "x"], ["x", "x"]):
        assert_same(copy.step(texts), envs.step(texts))


def test_rendering_row_by_row():
    envs = make(2, render_mode="ansi")
    envs.reset(seed=0)
    assert [type(text) for text in envs.render()] == [str, str]


def test_stacked_infos_are_gymnasiums():
    rows = [
        None,
        {"n": 1, "x": 1.5, "flag": True, "s": "a", "t": (1, 2), "d": {"p": 0.5}, "none": None},
        {"n": 2, "late": 3, "d": {"p": 1.0, "q": 2.0}, "s": None},
    ]
    vector = make(3)
    theirs: dict = {}
    for row, info in enumerate(rows):
        if info is not None:
            theirs = vector._add_info(theirs, info, row)
    assert_same(stack_infos(rows), theirs)
