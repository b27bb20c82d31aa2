"""The text space holds real text, and behaves as Gymnasium's own spaces do."""

import json
import pickle
import time

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv
from gymnasium.vector.utils import batch_space
from gymnasium.wrappers import DelayObservation, FrameStackObservation

from mempo_env.spaces import SAMPLE_CHARS, Unicode

REAL_TEXTS = ["hello world", "", "Crème – 東京 🧠", "<mem>a\tb\n</mem>", "x" * 200_000, "שלום \u202e \x00"]


class EchoEnv(gym.Env):
    """Says back what it is told."""

    def __init__(self) -> None:
        self.observation_space = Unicode(100)
        self.action_space = Unicode(100)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return "début – 東京", {}

    def step(self, action):
        return action, 0.0, False, False, {}


@pytest.mark.parametrize("text", REAL_TEXTS)
def test_any_real_text_is_in_the_space(text):
    assert Unicode().contains(text)
    assert text in Unicode(max_length=len(text))


@pytest.mark.parametrize("thing", ["\ud800", "a\udfffb", b"bytes", 3, None, ["a"], ("a",)])
def test_what_is_no_encodable_text_is_not(thing):
    assert not Unicode().contains(thing)


def test_length_is_counted_in_characters_and_inclusive():
    # 3 characters: U+1F9E0 takes four bytes but is one code point.
    assert "🧠🧠🧠" in Unicode(max_length=3)
    assert "🧠🧠🧠🧠" not in Unicode(max_length=3)
    assert "" in Unicode(max_length=0)
    assert "a" not in Unicode(max_length=0)


def test_samples_are_in_the_space_encodable_and_seeded():
    space = Unicode(max_length=7, seed=5)
    samples = [space.sample() for _ in range(300)]
    assert all(sample in space and len(sample.encode("utf-8")) >= len(sample) for sample in samples)
    assert {len(sample) for sample in samples} == set(range(8))
    again = Unicode(max_length=7, seed=5)
    assert samples == [again.sample() for _ in range(300)]
    assert samples != [Unicode(max_length=7, seed=6).sample() for _ in range(300)]
    assert len(Unicode(seed=1).sample()) <= SAMPLE_CHARS


def test_a_mask_is_refused_and_its_absence_is_not():
    assert isinstance(Unicode(seed=0).sample(mask=None, probability=None), str)
    with pytest.raises(ValueError, match="takes no mask and no probability"):
        Unicode().sample(mask=(3, None))
    with pytest.raises(ValueError, match="takes no mask and no probability"):
        Unicode().sample(probability=(3, None))


def test_equality_repr_pickle_and_json():
    space = Unicode(max_length=12, seed=3)
    copy = pickle.loads(pickle.dumps(space))
    assert copy == space == Unicode(max_length=12)
    assert space != Unicode(max_length=13)
    assert space != gym.spaces.Text(12)
    assert copy.sample() == space.sample()
    assert repr(space) == "Unicode(max_length=12)"
    assert space.from_jsonable(json.loads(json.dumps(space.to_jsonable(REAL_TEXTS)))) == REAL_TEXTS
    assert not space.is_np_flattenable
    assert space.shape is None
    assert space.dtype == np.dtype(str)


@pytest.mark.parametrize(("length", "error"), [(-1, ValueError), (1.5, TypeError), ("9", TypeError), (True, TypeError)])
def test_a_bad_length_is_refused(length, error):
    with pytest.raises(error, match="Expected max_length"):
        Unicode(max_length=length)


def test_it_is_made_in_no_time():
    start = time.process_time()
    for _ in range(100):
        Unicode()
    assert time.process_time() - start < 0.1


def test_batches_sample_independently():
    batched = batch_space(Unicode(max_length=30, seed=1), 3)
    batched.seed(7)
    sample = batched.sample()
    assert sample in batched
    assert len(set(sample)) == 3


def test_wrappers_that_stack_and_delay_observations_take_texts():
    assert FrameStackObservation(EchoEnv(), 2).reset()[0] == ("début – 東京",) * 2
    delayed = DelayObservation(EchoEnv(), 1)
    assert delayed.reset()[0] == ""
    assert delayed.step("next")[0] == "début – 東京"


@pytest.mark.parametrize("make", [SyncVectorEnv, lambda fns: AsyncVectorEnv(fns, shared_memory=False)])
def test_gymnasiums_vector_environments_carry_it(make):
    envs = make([EchoEnv] * 3)
    try:
        assert envs.reset()[0] == ("début – 東京",) * 3
        texts = ("a", "Crème 🧠", "")
        assert envs.step(texts)[0] == texts
        assert envs.step(envs.action_space.sample())[0] in envs.observation_space
    finally:
        envs.close()


def test_shared_memory_is_refused_with_the_mend():
    with pytest.raises(ValueError, match=r"shared_memory=False.*vectorization_mode out"):
        AsyncVectorEnv([EchoEnv] * 2)
