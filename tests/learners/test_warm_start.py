"""Supervised training: which steps are learnt from, the loss however it is cut, and a run that died."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from test_trainer import KilledError, forgetful, kill_at  # noqa: E402

from mempo_agents.engines.scripted import OracleEngine  # noqa: E402
from mempo_agents.learners.batches import TrainRow  # noqa: E402
from mempo_agents.learners.checkpoint import checkpoints, load_checkpoint  # noqa: E402
from mempo_agents.learners.metrics_log import read_metrics  # noqa: E402
from mempo_agents.learners.optim import MasterOptimizer, OptimizerSettings  # noqa: E402
from mempo_agents.learners.warm_start import WarmStartSettings, shards, teacher_rows, warm_start  # noqa: E402
from mempo_agents.nano.model import nano_model  # noqa: E402
from mempo_agents.nano.tokenizer import nano_tokenizer  # noqa: E402
from mempo_agents.policies import get_policy  # noqa: E402
from mempo_agents.rollout import rollout  # noqa: E402
from mempo_agents.run_folder import write_json  # noqa: E402
from mempo_env.errors import DataError  # noqa: E402
from mempo_env.tasks import compose, load_dataset  # noqa: E402
from mempo_env.types import StopReason  # noqa: E402

SETTINGS = WarmStartSettings(OptimizerSettings("adamw", lr=1e-2), batch_tokens=60, save_every=3)


def make_rows(count: int = 24, seed: int = 0) -> list[TrainRow]:
    """Random tokens of unequal lengths; about a third of the response's tokens carry no loss."""
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(count):
        prompt, response = rng.integers(5, 100, int(rng.integers(2, 12))), rng.integers(5, 100, int(rng.integers(2, 9)))
        mask = rng.random(len(response)) < 0.7
        mask[0] = True
        rows.append(TrainRow(prompt, response, mask))
    return rows


def run(folder, settings=SETTINGS, rows=None, **kwargs):
    """The trained model and the log."""
    tokenizer = nano_tokenizer()
    model = nano_model(tokenizer, width=64, layers=1, dtype="float32")
    chunk, chunks = shards(rows or make_rows(), epochs=2, shard_rows=16)
    warm_start(model, tokenizer, chunk, chunks, settings, folder, track=(), **kwargs)
    log = [{k: v for k, v in record.items() if k != "seconds"} for record in read_metrics(folder / "metrics.jsonl")]
    return model, log


def test_a_run_that_died_ends_as_if_it_had_not(tmp_path):
    whole, log = run(tmp_path / "whole")
    assert len(log) > 10
    for step in (5, 5, 8):  # between checkpoints, in the middle of a chunk
        with pytest.raises(KilledError):
            run(tmp_path / "dead", watch=kill_at(step))
    last, again = run(tmp_path / "dead")
    assert again == log
    state = whole.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in last.state_dict().items())


def test_nothing_is_dropped_out(tmp_path, monkeypatch):
    """Dropout would draw from torch's generator, whose state no checkpoint holds."""
    made = nano_model
    monkeypatch.setitem(globals(), "nano_model", lambda *args, **kwargs: forgetful(made(*args, **kwargs)))
    torch.manual_seed(0)
    _, log = run(tmp_path / "one")
    torch.manual_seed(1)
    assert run(tmp_path / "two")[1] == log


def test_other_rows_are_another_run(tmp_path):
    """One token, or whether it is trained, far behind the first chunk."""
    _, log = run(tmp_path)
    for name in ("prompt_ids", "response_ids", "mask"):
        rows = make_rows()
        array = getattr(rows[-1], name).copy()
        array[-1] = 1 - array[-1]
        rows[-1] = dataclasses.replace(rows[-1], **{name: array})
        with pytest.raises(DataError, match=r"holds another run, with other rows\."):
            run(tmp_path, rows=rows)
    written = json.loads((tmp_path / "settings.json").read_text(encoding="utf-8"))
    del written["rows"]
    write_json(tmp_path / "settings.json", written)
    assert run(tmp_path)[1] == log, "a folder from before rows were told apart"


def test_smaller_passes_and_other_checkpoints_go_on(tmp_path):
    _, log = run(tmp_path / "whole")
    with pytest.raises(KilledError):
        run(tmp_path / "dead", watch=kill_at(5))
    _, again = run(tmp_path / "dead", dataclasses.replace(SETTINGS, micro_tokens=30, save_every=2, keep=1))
    assert [record["loss"] for record in again] == pytest.approx([record["loss"] for record in log], abs=1e-3)
    with pytest.raises(DataError, match=r"with other batch_tokens, optimizer\.weight_decay\."):
        run(tmp_path / "dead", WarmStartSettings(OptimizerSettings(lr=1e-2, weight_decay=0.1), 61))


def test_every_row_is_learnt_from_once_an_epoch(tmp_path):
    rows = make_rows()
    _, log = run(tmp_path, rows=rows)
    read = [record["tokens"] for record in log]
    assert read == sorted(read)
    assert read[-1] >= 2 * sum(row.length for row in rows)  # and the padding


def test_micro_batches_do_not_change_the_loss_or_the_step(tmp_path):
    """The mean is over the update's trained tokens, in however many passes they are read."""
    whole, log = run(tmp_path / "whole")
    cut, same = run(tmp_path / "cut", dataclasses.replace(SETTINGS, micro_tokens=25))
    assert [record["loss"] for record in same] == pytest.approx([record["loss"] for record in log], rel=1e-4)
    norms = [[record["gradient_norm"] for record in records] for records in (same, log)]
    assert norms[0] == pytest.approx(norms[1], rel=1e-3)
    state = whole.state_dict()
    assert all(torch.allclose(value, state[name], atol=1e-4) for name, value in cut.state_dict().items())


def test_the_first_loss_is_the_mean_over_masked_tokens(tmp_path):
    """Against a plain reading of one row at a time in float64."""
    rows = make_rows(4)
    settings = dataclasses.replace(SETTINGS, batch_tokens=10_000)
    _, log = run(tmp_path, settings, rows)
    model = nano_model(nano_tokenizer(), width=64, layers=1, dtype="float64")
    terms = []
    for row in rows:
        ids = torch.tensor(np.concatenate([row.prompt_ids, row.response_ids]))[None]
        table = torch.log_softmax(model(ids).logits[0], dim=-1)
        start = len(row.prompt_ids)
        terms += [-float(table[start + t - 1, row.response_ids[t]]) for t in np.flatnonzero(row.mask)]
    assert log[0]["loss"] == pytest.approx(sum(terms) / len(terms), rel=1e-4)


def test_epochs_hold_all_rows_each_in_an_order_of_its_own():
    rows = make_rows(40)
    chunk, chunks = shards(rows, epochs=2, shard_rows=16)
    assert chunks == 6  # 16, 16 and 8 rows, twice
    told = [[id(row) for c in part for row in chunk(c)] for part in (range(3), range(3, 6))]
    assert sorted(told[0]) == sorted(told[1]) == sorted(map(id, rows))
    assert told[0] != told[1]


def test_steps_are_scaled_by_the_schedule(tmp_path, monkeypatch):
    rates = []
    step = MasterOptimizer.step

    def watched(optimizer, rate):
        rates.append(rate)
        return step(optimizer, rate)

    monkeypatch.setattr(MasterOptimizer, "step", watched)
    _, log = run(tmp_path, dataclasses.replace(SETTINGS, warmup=0.25, decay=0.5))
    assert rates[0] == 0.01, "the first update has a rate, too"
    assert rates[1:] == pytest.approx([record["rate"] for record in log[1:]])
    assert max(rates) == 1.0
    assert rates[-1] < 0.5


def test_a_loss_that_is_no_number_ends_the_run_and_the_last_checkpoint_is_good(tmp_path):
    def poison(record):
        if record["step"] == 5:
            with torch.no_grad():
                model.get_input_embeddings().weight.fill_(float("nan"))

    tokenizer = nano_tokenizer()
    model = nano_model(tokenizer, width=64, layers=1, dtype="float32")
    chunk, chunks = shards(make_rows(), epochs=2, shard_rows=16)
    with pytest.raises(FloatingPointError, match=r"Update 6: loss nan.*last checkpoint"):
        warm_start(model, tokenizer, chunk, chunks, SETTINGS, tmp_path, watch=poison, track=())
    (saved,) = checkpoints(tmp_path / "checkpoints")
    assert saved.name == "step-00000003"
    assert all(tensor.isfinite().all() for tensor in load_checkpoint(saved)[1].values())


def test_only_right_and_whole_episodes_teach():
    loaded = load_dataset("world-compact:size=200")
    tasks = list(compose(loaded.questions("train"), 2, seed=0, split="train", name=loaded.name, length=1))
    (right,) = rollout(get_policy("mempo", OracleEngine()), tasks, env_kwargs={"dataset": loaded, "split": "train"})
    assert len(teacher_rows([right])) == len(right.steps) > 1
    assert min(right.f1) == 1.0
    malformed = (dataclasses.replace(right.steps[0], format_valid=False), *right.steps[1:])
    for changes in (
        {"stop_reason": StopReason.FAILED},
        {"f1": (1.0, 0.5)},
        {"f1": ()},
        {"steps": malformed},
    ):
        assert teacher_rows([dataclasses.replace(right, **changes)]) == []
    half = dataclasses.replace(right, f1=(1.0, 0.5))
    assert len(teacher_rows([half], least_f1=0.5)) == len(right.steps)


def test_nothing_to_learn_from_is_said():
    with pytest.raises(DataError, match="nothing to train on"):
        shards([])
