"""The trainer: resumption, several processes, monitors, folders. A random model of one layer plays in a small world."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
import zlib
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from mempo_agents.engines.base import Generation  # noqa: E402
from mempo_agents.engines.hf import HFEngine  # noqa: E402
from mempo_agents.learners.checkpoint import checkpoints, load_checkpoint, save_checkpoint  # noqa: E402
from mempo_agents.learners.estimators import Estimator  # noqa: E402
from mempo_agents.learners.metrics_log import MetricsLog, read_metrics  # noqa: E402
from mempo_agents.learners.monitors import CollapseRule, rollout_figures  # noqa: E402
from mempo_agents.learners.optim import OptimizerSettings  # noqa: E402
from mempo_agents.learners.trainer import Trainer, TrainSettings  # noqa: E402
from mempo_agents.learners.update import UpdateSettings, train_rows  # noqa: E402
from mempo_agents.learners.warm_start import WarmStartSettings  # noqa: E402
from mempo_agents.nano.course import CourseSettings  # noqa: E402
from mempo_agents.nano.model import nano_model  # noqa: E402
from mempo_agents.nano.tokenizer import nano_tokenizer  # noqa: E402
from mempo_env.errors import DataError, MempoError, RetrievalError, UnknownNameError  # noqa: E402
from mempo_env.types import StopReason  # noqa: E402

SETTINGS = TrainSettings(
    dataset="world-compact:size=200",
    instructions="",
    estimator="grpo",
    updates=4,
    tasks=4,
    group_size=2,
    batch_size=8,
    objectives=1,
    max_steps=2,
    max_new_tokens=6,
    optimizer=OptimizerSettings("muon", lr=1e-2, matrix_lr=1e-2),
    update=UpdateSettings(mini_batches=2, epochs=2, micro_tokens=200),
    evaluate_every=2,
    eval_tasks=4,
    save_every=1,
)


def noise(batch, **_):
    """Advantages that depend on nothing but the row, so that a random model is trained, too."""
    return [
        [np.full(len(mask), (zlib.crc32(f"{batch.task_id}/{g}/{s}".encode()) % 9 - 4) / 2, np.float32)
         for s, mask in enumerate(masks)]
        for g, masks in enumerate(batch.policy_masks)
    ]  # fmt: skip


NOISE = Estimator("noise", noise, frozenset(), {}, "")


def trainer(folder: Path, settings: TrainSettings = SETTINGS, **kwargs) -> Trainer:
    tokenizer = nano_tokenizer()
    model = nano_model(tokenizer, width=64, layers=1, dtype="float32")
    return Trainer(settings, folder, model=model, tokenizer=tokenizer, estimator=NOISE, device="cpu", **kwargs)


def weights(run: Trainer) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in run.model.state_dict().items()}


def timeless(folder: Path) -> list[dict]:
    lines = read_metrics(folder / "metrics.jsonl")
    return [{name: value for name, value in line.items() if not name.endswith("seconds")} for line in lines]


class KilledError(Exception):
    pass


def kill_at(step: int):
    def watch(record):
        if record["step"] == step:
            raise KilledError  # behind the log line, before the checkpoint

    return watch


def test_a_run_that_died_ends_as_if_it_had_not(tmp_path):
    whole = trainer(tmp_path / "whole")
    whole.run()
    for step in (1, 3, 3, 4):  # twice at the same place, and at the very end
        with pytest.raises(KilledError):
            trainer(tmp_path / "dead", watch=kill_at(step)).run()
    last = trainer(tmp_path / "dead")
    last.run()
    assert timeless(tmp_path / "dead") == timeless(tmp_path / "whole")
    assert all(torch.equal(value, weights(whole)[name]) for name, value in weights(last).items())
    moved = trainer(tmp_path / "other")
    assert not all(torch.equal(value, weights(whole)[name]) for name, value in weights(moved).items())


def test_a_finished_run_is_not_run_again(tmp_path):
    record = trainer(tmp_path).run()
    before = (tmp_path / "metrics.jsonl").read_bytes()
    assert trainer(tmp_path).run()["step"] == record["step"] == 4
    assert (tmp_path / "metrics.jsonl").read_bytes() == before


def test_a_folder_with_another_run_is_refused(tmp_path):
    trainer(tmp_path, dataclasses.replace(SETTINGS, updates=1)).run()
    with pytest.raises(DataError, match=r"other seed, updates\."):
        trainer(tmp_path, dataclasses.replace(SETTINGS, updates=2, seed=1)).run()


def test_seeds_and_updates_have_episodes_of_their_own(tmp_path):
    run = trainer(tmp_path)

    def told(groups):
        return [[t.steps[0].sampled_text for t in group] for group in groups]

    first = told(run.play(0))
    assert first == told(run.play(0))
    assert first != told(run.play(1))
    assert all(one != two for one, two in first), "the members of a group are no copies"
    other = trainer(tmp_path, dataclasses.replace(SETTINGS, seed=1))
    assert first != told(other.play(0))


def test_the_sampler_reads_the_weights_of_now(tmp_path):
    """No copy of the weights can be stale: the engine's are the trainer's, and its fingerprint says when they move."""
    run = trainer(tmp_path)
    before, groups = run.engine.fingerprint, run.play(0)
    run.learn(groups, run.credit(groups)[0])
    assert run.engine.fingerprint != before
    assert run.engine.model is run.model
    figures = run.learn(run.play(1), run.credit(run.play(1))[0])
    assert figures["mismatch_max"] < 1e-4


def test_metrics_hold_every_figure_that_is_documented(tmp_path):
    trainer(tmp_path, dataclasses.replace(SETTINGS, updates=2)).run()
    start, *_, last = timeless(tmp_path)
    assert start["step"] == 0
    assert "eval_f1" in start
    text = (Path(__file__).parents[2] / "docs" / "training.md").read_text(encoding="utf-8")
    undocumented = [name for name in last if f"`{name}`" not in text]
    assert not undocumented


def test_best_is_the_model_with_the_best_evaluation(tmp_path):
    run = trainer(tmp_path, dataclasses.replace(SETTINGS, updates=1, evaluate_every=1))
    run.run()
    assert HFEngine(tmp_path / "best", dtype="float32").model.config.hidden_size == 64


def test_best_is_not_the_last_where_that_is_worse(tmp_path, monkeypatch):
    scores = iter((0.2, 0.5, 0.5, 0.3))  # before any update, then after each; equal is not better

    def evaluate(run, *_, **__):
        return {"eval_f1": next(scores)}

    kept = {}
    monkeypatch.setattr(Trainer, "evaluate", evaluate)
    settings = dataclasses.replace(SETTINGS, updates=3, evaluate_every=1)
    run = trainer(tmp_path, settings, watch=lambda record: kept.update({record["step"]: weights(run)}))
    run.run()
    best = HFEngine(tmp_path / "best", dtype="float32", device="cpu").model.state_dict()
    same = [step for step, then in kept.items() if all(torch.equal(best[name], value) for name, value in then.items())]
    assert same == [1]


def test_updates_play_the_tasks_in_turn(tmp_path):
    run = trainer(tmp_path)
    played = [[group[0].task_id for group in run.play(update)] for update in (0, 1, 2)]
    assert [sorted(ids) for ids in played] == [
        sorted(run.tasks[i].id for i in range(4 * u, 4 * u + 4)) for u in (0, 1, 2)
    ]


def test_a_task_that_comes_again_is_sampled_anew(tmp_path):
    """Every update and every seed has a sampling seed of its own."""
    run = trainer(tmp_path)
    seeds = {run.play(update)[0][0].seed for update in range(5)}
    other = trainer(tmp_path, dataclasses.replace(SETTINGS, seed=1))
    assert len(seeds | {other.play(update)[0][0].seed for update in range(5)}) == 10


def test_the_collapse_rule_goes_on_where_it_was(tmp_path):
    whole = trainer(tmp_path / "whole")
    whole.run()
    with pytest.raises(KilledError):
        trainer(tmp_path / "dead", watch=kill_at(3)).run()
    last = trainer(tmp_path / "dead")
    last.run()
    assert len(whole.collapse.state()["recent"]) == 4
    assert last.collapse.state() == whole.collapse.state()


def test_a_collapse_ends_the_run_and_says_so(tmp_path, monkeypatch):
    said = iter((None, None, "collapse: made up"))
    monkeypatch.setattr(CollapseRule, "__call__", lambda rule, share: next(said))
    record = trainer(tmp_path).run()
    assert (record["step"], record["stopped"]) == (3, "collapse: made up")
    assert [path.name for path in checkpoints(tmp_path / "checkpoints")][-1] == "step-00000003"
    assert trainer(tmp_path).run()["step"] == 3, "it does not go on"


class Mortal:
    """Finds nothing; while it is dead it raises, as a search server that is gone."""

    name, fingerprint, dead = "mortal", "mortal", False

    def search(self, queries, k):
        if self.dead:
            raise RetrievalError("http://127.0.0.1:8000/search cannot be reached.")
        return [[] for _ in queries]


class Asks(HFEngine):
    """Searches in every step, whatever the weights say."""

    def generate(self, requests, protocol, sampling):
        text = protocol.compose(memory="-", thought="-", query="ba ko")
        ids, ends = self.codec.encode_with_ends(text)
        ids, ends, known = np.array(ids), np.array(ends), np.full(len(ids), -5.0, np.float32)
        return [
            Generation(self.encode(request.messages), ids, known, np.ones(len(ids), bool), ends, text, "stop")
            for request in requests
        ]


@pytest.mark.parametrize(
    ("after", "what"), [(None, "4 episodes of the evaluation after update 0"), (1, "8 episodes of update 2")]
)
def test_a_search_server_that_is_gone_is_no_collapse(tmp_path, monkeypatch, after, what):
    server = Mortal()
    monkeypatch.setattr("mempo_agents.learners.trainer.get_retriever", lambda *_: server)
    monkeypatch.setattr("mempo_agents.learners.trainer.HFEngine", Asks)

    def watch(record):
        server.dead = record["step"] == after

    whole = trainer(tmp_path / "whole")
    whole.run()
    server.dead = after is None
    with pytest.raises(MempoError, match=rf"All {what} failed.*8000/search cannot be reached.*give the same command"):
        trainer(tmp_path / "dead", watch=watch).run()
    assert len(checkpoints(tmp_path / "dead" / "checkpoints")) == (after or 0)
    server.dead = False
    last = trainer(tmp_path / "dead")
    last.run()
    assert timeless(tmp_path / "dead") == timeless(tmp_path / "whole")
    assert all(torch.equal(value, weights(whole)[name]) for name, value in weights(last).items())


def test_the_learning_rate_follows_the_schedule(tmp_path):
    """4 updates, warmup over half: shares done 1/4, 2/4, 3/4, 1, of which the first is half-way up."""
    trainer(tmp_path, dataclasses.replace(SETTINGS, warmup=0.5)).run()
    rates = [line["learning_rate"] for line in read_metrics(tmp_path / "metrics.jsonl") if line["step"]]
    assert rates == pytest.approx([0.5e-2, 1e-2, 1e-2, 1e-2])


def test_a_failed_episode_is_in_no_loss(tmp_path):
    run = trainer(tmp_path)
    group = run.play(0)[0]
    failed = [dataclasses.replace(group[0], stop_reason=StopReason.FAILED), *group[1:]]
    advantages = [[np.ones(len(step.response_ids), np.float32) for step in t.steps] for t in group]
    trained = [[int(row.mask.sum()) for row in train_rows([g], [advantages])] for g in (group, failed)]
    steps = len(group[0].steps)
    assert all(trained[0][:steps])
    assert not any(trained[1][:steps])
    assert trained[1][steps:] == trained[0][steps:]


def test_unknown_names_are_refused_before_anything_runs(tmp_path):
    with pytest.raises(UnknownNameError, match=r"'tset'.*Did you mean 'test'"):
        trainer(tmp_path, dataclasses.replace(SETTINGS, eval_split="tset"))
    with pytest.raises(ValueError, match="greedy"):
        dataclasses.replace(SETTINGS, update=UpdateSettings(temperature=0.0))
    with pytest.raises(UnknownNameError, match=r"Unknown reward 'papper'.*Did you mean 'paper'"):
        dataclasses.replace(SETTINGS, reward="papper")
    with pytest.raises(ValueError, match="critic"):
        Trainer(dataclasses.replace(SETTINGS, estimator="gae"), tmp_path)


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (TrainSettings, {"seed": -1, "eval_tasks": 0, "max_steps": 0, "lora_rank": -1, "evaluate_every": -1,
                         "save_every": -1, "keep": 0, "tasks": 0, "warmup": 1.5, "decay": -0.1}),
        (WarmStartSettings, {"seed": -1, "batch_tokens": 0, "micro_tokens": 0, "save_every": 0, "evaluate_every": 0,
                             "keep": 0, "warmup": float("nan"), "decay": 2.0}),
        (UpdateSettings, {"aggregation": "tokn", "constant": None, "clip_low": 0.0, "clip_high": -0.1, "dual_clip": 1.0,
                          "kl": "k4", "kl_coefficient": -0.1, "entropy_coefficient": float("nan"), "micro_tokens": 0,
                          "temperature": -1.0, "old_logprobs": "new"}),
        (OptimizerSettings, {"kind": "sgd", "lr": float("nan"), "matrix_lr": -1.0, "weight_decay": -0.1,
                             "clip_norm": 0.0}),
        (CourseSettings, {"seed": -1, "tokens": 0, "eval_tasks": 0, "evaluate_every": 0, "batch_tokens": 0,
                          "save_every": 0, "stop_at": 1.5}),
    ],
)  # fmt: skip
def test_settings_that_cannot_be_are_refused_by_name(kind, values):
    kind()
    for name, value in values.items():
        said = {"kind": "optimizer", "constant": "aggregation"}.get(name, name)
        rest = {"aggregation": "constant"} if name == "constant" else {}
        with pytest.raises(ValueError, match=f"^{said}: .*{value}"):
            kind(**{name: value}, **rest)


def test_a_full_disk_loses_nothing(tmp_path, monkeypatch):
    run = trainer(tmp_path, dataclasses.replace(SETTINGS, updates=1))
    run.run()
    (kept,) = checkpoints(tmp_path / "checkpoints")

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("safetensors.torch.save_file", full)
    with pytest.raises(OSError, match="No space left"):
        save_checkpoint(tmp_path / "checkpoints", 2, run.model, run.engine.tokenizer, {}, {}, 2)
    assert sorted((tmp_path / "checkpoints").iterdir()) == [kept]
    assert load_checkpoint(kept)[0]["step"] == 1


def test_a_spoilt_checkpoint_is_named(tmp_path):
    trainer(tmp_path, dataclasses.replace(SETTINGS, updates=1)).run()
    (kept,) = checkpoints(tmp_path / "checkpoints")
    data = bytearray((kept / "optimizer.safetensors").read_bytes())
    data[-1] ^= 1
    (kept / "optimizer.safetensors").write_bytes(data)
    with pytest.raises(DataError, match=r"step-00000001: unreadable checkpoint.*not the file that was written.*Remove"):
        trainer(tmp_path, dataclasses.replace(SETTINGS, updates=1)).run()


def test_log_is_cut_to_the_checkpoint_and_writes_null_for_unknown(tmp_path):
    log = MetricsLog(tmp_path)
    for step in (1, 2, 3):
        log.write({"step": step, "kl": float("nan")})
    with log.path.open("a") as file:
        file.write('{"step": 4, "k')
    log.cut(2)
    assert read_metrics(log.path) == [{"step": 1, "kl": None}, {"step": 2, "kl": None}]


def test_collapse_is_a_fall_of_the_mean_of_five():
    rule = CollapseRule(0.3)
    assert [rule(1.0) for _ in range(9)] == [None] * 9
    # Means of the last five: 0.8, 0.6, 0.4, 0.2 < 0.3 x 1.0.
    assert [rule(0.0) is None for _ in range(4)] == [True, True, True, False]
    never = CollapseRule(0.0)
    assert [never(x) for x in (1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)] == [None] * 7


def test_an_update_of_which_nothing_is_known_is_no_sign_of_collapse():
    rule = CollapseRule(0.3)
    assert [rule(x) for x in (1.0, *[float("nan")] * 9, 1.0, 1.0, 1.0, 1.0)] == [None] * 14
    assert rule.state() == {"recent": [1.0] * 5, "best": 1.0}


def test_figures_of_a_group(tmp_path):
    run = trainer(tmp_path)
    groups = run.play(0)
    figures = rollout_figures(groups)
    steps = [step for group in groups for t in group for step in t.steps]
    assert figures["steps"] == len(steps) / 8
    assert figures["response_tokens"] == pytest.approx(np.mean([len(step.response_ids) for step in steps]))
    assert figures["truncated_share"] == pytest.approx(np.mean([step.finish_reason == "length" for step in steps]))
    assert figures["degenerate_groups"] == 1.0  # a random model earns nothing
    assert np.isnan(figures["right_logprob"])


def test_failed_episodes_are_in_no_figure_but_their_own(tmp_path):
    group = trainer(tmp_path).play(0)[0]
    right = [dataclasses.replace(t, reward=1.0) for t in group]
    failed = dataclasses.replace(group[0], reward=float("nan"), f1=(), em=(), stop_reason=StopReason.FAILED)
    figures = rollout_figures([[failed, *right]])
    assert figures["failed"] == pytest.approx(1 / 3)
    assert figures["reward_mean"] == 1.0
    assert figures["degenerate_groups"] == 1.0, "the two that count are equal"
    unlike = [failed, right[0], dataclasses.replace(right[1], reward=0.0)]
    assert rollout_figures([unlike])["degenerate_groups"] == 0.0


@pytest.mark.parametrize("temperature", [0.6, 1.7])
def test_the_update_reads_at_the_temperature_that_sampled(tmp_path, temperature):
    settings = dataclasses.replace(SETTINGS, update=dataclasses.replace(SETTINGS.update, temperature=temperature))
    run = trainer(tmp_path, settings)
    groups = run.play(0)
    assert run.learn(groups, run.credit(groups)[0])["mismatch_max"] < 1e-4


def forgetful(model):
    """The model with dropout in its attention, as the configurations of some have it."""
    for module in model.modules():
        if hasattr(module, "attention_dropout"):
            module.attention_dropout = 0.3
    return model


def test_an_update_drops_nothing_out(tmp_path):
    """It reads as the sampler did, and nothing in it is random."""
    run = trainer(tmp_path)
    forgetful(run.model).train()
    groups = run.play(0)
    assert run.learn(groups, run.credit(groups)[0])["mismatch_max"] < 1e-4


CHILD = """
import sys, json
sys.path[:0] = [{tests!r}, {learners!r}]
from pathlib import Path
from test_trainer import *
settings = dataclasses.replace(SETTINGS, **json.loads({changes!r}))
run = trainer(Path({folder!r}), settings)
run.run()
"""


def child(folder: Path, **changes) -> str:
    here = Path(__file__).parent
    return CHILD.format(tests=str(here.parent), learners=str(here), folder=str(folder), changes=json.dumps(changes))


@pytest.mark.slow
def test_kill_9_at_any_moment_then_resume_bit_for_bit(tmp_path):
    whole = trainer(tmp_path / "whole", dataclasses.replace(SETTINGS, updates=12))
    whole.run()
    rng = np.random.default_rng(0)
    killed = 0
    for _ in range(40):
        process = subprocess.Popen([sys.executable, "-c", child(tmp_path / "dead", updates=12)])
        begun = time.monotonic()
        metrics = tmp_path / "dead" / "metrics.jsonl"
        seen = metrics.stat().st_size if metrics.exists() else 0
        while process.poll() is None and time.monotonic() - begun < 120:
            if metrics.exists() and metrics.stat().st_size != seen:
                break
            time.sleep(0.01)
        time.sleep(float(rng.random()) * 0.3)
        if process.poll() is not None:
            assert process.returncode == 0
            break
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        killed += 1
    assert killed >= 3
    assert timeless(tmp_path / "dead") == timeless(tmp_path / "whole")
    last = checkpoints(tmp_path / "dead" / "checkpoints")[-1]
    theirs = checkpoints(tmp_path / "whole" / "checkpoints")[-1]
    mine, reference = load_checkpoint(last)[1], load_checkpoint(theirs)[1]
    assert mine.keys() == reference.keys()
    assert all(torch.equal(mine[name], reference[name]) for name in mine)


@pytest.mark.slow
@pytest.mark.parametrize("tasks", [3, 1])  # unequal shares; one rank with nothing at all
def test_two_processes_train_as_one(tmp_path, tasks):
    changes = {"tasks": tasks, "updates": 2, "group_size": 2}
    trainer(tmp_path / "one", dataclasses.replace(SETTINGS, **changes)).run()
    script = tmp_path / "child.py"
    script.write_text(child(tmp_path / "two", **changes), encoding="utf-8")
    pytest.importorskip("accelerate")
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--standalone", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    one, two = timeless(tmp_path / "one"), timeless(tmp_path / "two")
    assert len(one) == len(two) == 3
    for left, right in zip(one, two, strict=True):
        assert left.keys() == right.keys()
        for name in left.keys() - {"train_tokens"}:
            same = left[name] is None and right[name] is None
            assert same or left[name] == pytest.approx(right[name], rel=1e-3, abs=1e-4), name
    # Running means of the gradients, after the first update (four optimizer steps). The weights themselves cannot be
    # held together: Adam divides by |g| and Muon lifts every singular value to 1, so where a gradient is nearly 0, the
    # order of a sum decides the direction of a whole step.
    mine = load_checkpoint(checkpoints(tmp_path / "one" / "checkpoints")[0])[1]
    theirs = load_checkpoint(checkpoints(tmp_path / "two" / "checkpoints")[0])[1]
    gradients = [name for name in mine if name.startswith(("exp_avg/", "momentum_buffer/"))]
    assert len(gradients) > 5
    for name in gradients:
        assert (mine[name] - theirs[name]).norm() <= 0.01 * mine[name].norm(), name
