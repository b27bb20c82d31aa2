"""Where episodes come from: a copy of the weights that is never out of date, in a stand-in and in vLLM itself."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

sys.path.insert(0, str(Path(__file__).parents[1] / "agents"))
from test_trainer import SETTINGS, KilledError, kill_at, trainer, weights  # noqa: E402
from tiny import make_tiny_engine, tiny_model  # noqa: E402
from vllm_stand_in import LLM, install  # noqa: E402

from mempo_agents.engines.base import Request, Sampling, ScoreRow  # noqa: E402
from mempo_agents.learners.metrics_log import read_metrics  # noqa: E402
from mempo_agents.learners.optim import MasterOptimizer, OptimizerSettings  # noqa: E402
from mempo_agents.learners.samplers import Sampler, plain_weights  # noqa: E402
from mempo_env.errors import EngineError  # noqa: E402
from mempo_env.protocols import get_protocol  # noqa: E402

VLLM = dataclasses.replace(SETTINGS, sampler="vllm", updates=2, evaluate_every=1)
MEMPO = get_protocol("mempo")


@pytest.fixture
def vllm(monkeypatch):
    install(monkeypatch)


def same_weights(run) -> bool:
    """Whether the stand-in answers with the weights in training; what it cached is read, too."""
    (made,) = LLM.made
    theirs = dict(made.model.named_parameters())
    return all(torch.equal(theirs[name], p) for name, p in run.model.named_parameters())


def test_every_update_is_played_by_its_own_weights(vllm, tmp_path):
    run = trainer(tmp_path, VLLM)
    seen = []
    generate = run.sampler.engine.generate

    def watched(*arguments):
        seen.append(same_weights(run))
        return generate(*arguments)

    run.sampler.engine.generate = watched
    run.run()
    assert all(seen)
    assert len(seen) > 5
    (made,) = LLM.made
    assert made.reloads == 3  # the weights at the start, and after each of two updates; evaluations change none
    lines = read_metrics(tmp_path / "metrics.jsonl")
    assert [line["step"] for line in lines] == [0, 1, 2]
    assert max(line["mismatch_max"] for line in lines[1:]) < 1e-4


def test_without_the_push_nothing_is_sampled(vllm, tmp_path, monkeypatch):
    run = trainer(tmp_path, dataclasses.replace(VLLM, evaluate_every=0))
    groups = run.play(0)
    run.learn(groups, run.credit(groups)[0])
    monkeypatch.setattr(Sampler, "follow", lambda self: None)
    with pytest.raises(EngineError, match=r"holds version 0 of the weights, the model in training is at 4"):
        run.play(1)
    with pytest.raises(EngineError, match="holds version 0"):
        run.evaluate()


def test_episodes_of_other_weights_are_not_learnt_from(vllm, tmp_path):
    run = trainer(tmp_path, VLLM)
    groups = run.play(0)
    advantages = run.credit(groups)[0]
    run.learn(groups, advantages)
    before = weights(run)
    with pytest.raises(EngineError, match="sampled with version 0 of the weights, and version 4 would be trained"):
        run.learn(groups, advantages)
    assert all(torch.equal(value, before[name]) for name, value in weights(run).items())


def test_stale_weights_would_show_in_the_log(vllm, tmp_path):
    """The figure that watches what no version number can: whether what was pushed is what samples."""
    run = trainer(tmp_path, VLLM)
    run.sampler.engine.load_weights = lambda weights, digest: None  # says that it did
    groups = run.play(0)
    run.learn(groups, run.credit(groups)[0])
    groups = run.play(1)
    assert run.learn(groups, run.credit(groups)[0])["mismatch_max"] > 1e-3


def test_a_resumed_run_pushes_the_restored_weights_first(vllm, tmp_path):
    with pytest.raises(KilledError):
        trainer(tmp_path, VLLM, watch=kill_at(2)).run()
    LLM.made.clear()
    run = trainer(tmp_path, VLLM)
    assert run._resume() is False
    assert run.update == 1
    assert not same_weights(run)
    run.play(run.update)
    assert same_weights(run)


def test_a_push_that_fails_half_way_leaves_no_sampler():
    engine, version = make_tiny_engine(), [0]

    def push(_):
        if version[0]:
            raise EngineError("half-way")

    sampler = Sampler(engine, lambda: version[0], push)
    row = ScoreRow(np.array([3, 4]), np.array([5]))
    with pytest.raises(EngineError, match="holds version None"):
        sampler.score([row])
    sampler.follow()
    assert sampler.score([row])[0] == engine.score([row])[0]
    version[0] = 1
    with pytest.raises(EngineError, match="half-way"):
        sampler.follow()
    version[0] = 0  # even where the number comes back
    with pytest.raises(EngineError, match="holds version None"):
        sampler.generate([Request(({"role": "user", "content": "Q"},), 1)], MEMPO, Sampling(4))


def test_the_optimizer_counts_every_change_of_the_weights():
    model = tiny_model()
    optimizer = MasterOptimizer(model, OptimizerSettings("adamw", lr=1e-3))
    assert optimizer.version == 0
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    state = {name: value.clone() for name, value in optimizer.state().items()}
    optimizer.step()
    assert optimizer.version == 1
    for p in model.parameters():
        p.grad = torch.full_like(p, torch.nan)
    optimizer.step()
    assert optimizer.version == 1  # nothing changed
    optimizer.load(state)
    assert optimizer.version == 2


def test_adapters_are_added_into_the_weights():
    pytest.importorskip("peft")
    from mempo_agents.learners.lora import add_adapters

    plain = tiny_model()
    adapted = add_adapters(tiny_model(), 2)
    with torch.no_grad():
        for name, p in adapted.named_parameters():
            if "lora_B" in name:
                p.normal_(std=0.1)
    told = dict(plain_weights(adapted))
    assert told.keys() == dict(plain.named_parameters()).keys()
    plain.load_state_dict(told, strict=False)
    ids = torch.arange(3, 40)[None]
    assert torch.allclose(plain(ids).logits, adapted(ids).logits, atol=1e-4)
    assert not torch.allclose(tiny_model()(ids).logits, adapted(ids).logits, atol=1e-2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sampler": "vlm"}, r"sampler: expected 'hf' or 'vllm', got 'vlm'\."),
        ({"sampler": "hf", "sampler_options": {"seed": 1}}, "the sampler 'hf' has none"),
        ({"guided": True}, "cannot force the protocol's tags"),
        ({"sampler_options": {"tensor_parallel_size": 2}}, "tensor_parallel_size must be 1, got 2"),
    ],
)
def test_settings_that_no_sampler_has_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(VLLM, **changes)


def test_a_run_that_is_older_than_a_setting_goes_on(tmp_path):
    settings = dataclasses.replace(SETTINGS, updates=1)
    trainer(tmp_path, settings).run()
    path = tmp_path / "settings.json"
    known = json.loads(path.read_text())
    del known["sampler"], known["sampler_options"]
    path.write_text(json.dumps(known))
    assert trainer(tmp_path, settings).run()["step"] == 1


REAL = """
import sys; sys.path[:0] = {paths!r}
import dataclasses
from pathlib import Path
from test_trainer import NOISE, SETTINGS, kill_at, KilledError, timeless
from mempo_agents.learners.trainer import Trainer
settings = dataclasses.replace(
    SETTINGS, model="nano-mempo", dtype="float32", updates=3, max_new_tokens=24, sampler="vllm",
    sampler_options=dict(enforce_eager=True, max_num_seqs=16, max_model_len=1024), lora_rank={rank},
    optimizer=dataclasses.replace(SETTINGS.optimizer, kind="adamw", lr=1e-3),
)
folder = Path({folder!r})
def run(**more):
    return Trainer(settings, folder, estimator=NOISE, device="cpu", **more)
if sys.argv[1] == "first":  # vLLM starts once in a process
    try:
        run(watch=kill_at(2)).run()
    except KilledError:
        sys.exit()
second = run()
second.run()
lines = timeless(folder)
assert [line["step"] for line in lines] == [0, 1, 2, 3]
assert max(line["mismatch_max"] for line in lines[1:]) < 1e-3, lines
groups = second.play(9)
good = second.learn(groups, second.credit(groups)[0])["mismatch"]
second.sampler.engine.load_weights = lambda weights, digest: None
groups = second.play(10)
stale = second.learn(groups, second.credit(groups)[0])["mismatch"]
assert stale > 100 * good, (good, stale)
print("ALL FRESH", good, stale)
"""


def vllm_python() -> str:
    """The interpreter with vLLM: this one, or that which $MEMPO_VLLM_PYTHON names."""
    python = os.environ.get("MEMPO_VLLM_PYTHON", sys.executable)
    if python == sys.executable and importlib.util.find_spec("vllm") is None:
        pytest.skip("vLLM is not installed, and MEMPO_VLLM_PYTHON names no interpreter that has it")
    return python


def run_vllm(*command: str) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ, "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    }  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200, env=environment)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done


@pytest.mark.peer
@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 2])
def test_vllm_itself_in_the_trainer(tmp_path, rank):
    python, root = vllm_python(), Path(__file__).parents[2]
    paths = [str(root), str(root / "tests"), str(Path(__file__).parent)]
    script = tmp_path / "check.py"
    script.write_text(REAL.format(paths=paths, folder=str(tmp_path / "run"), rank=rank), encoding="utf-8")
    run_vllm(python, str(script), "first")
    assert "ALL FRESH" in run_vllm(python, str(script), "second").stdout


@pytest.mark.peer
@pytest.mark.slow
@pytest.mark.parametrize("more", [("--tasks", "1"), ("--tasks", "3", "--shard")])  # one process has no task; shards
def test_vllm_itself_in_two_processes(tmp_path, more):
    run_vllm(
        vllm_python(), "-m", "torch.distributed.run", "--nproc_per_node=2", "--standalone", "-m", "mempo_agents.cli",
        "train", "--out", str(tmp_path), "--model", "nano-mempo", "--sampler", "vllm", "--sampler-options",
        '{"enforce_eager": true, "max_num_seqs": 16, "max_model_len": 1024}', "--updates", "2", "--group-size", "4",
        "--lr", "1e-3", "--evaluate-every", "0", *more,
    )  # fmt: skip
    lines = read_metrics(tmp_path / "metrics.jsonl")
    assert [line["step"] for line in lines] == [1, 2]
    assert max(line["mismatch_max"] for line in lines) < 1e-3
