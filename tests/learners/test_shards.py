"""Weights in shards: the updates that one process makes, whoever holds rows, and checkpoints for any number of them."""

from __future__ import annotations

import copy
import dataclasses
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

sys.path.insert(0, str(Path(__file__).parent))
from test_trainer import SETTINGS, timeless, trainer, weights  # noqa: E402
from test_trainer_update import make_rows  # noqa: E402
from tiny import tiny_model  # noqa: E402

from mempo_agents.learners.checkpoint import checkpoints, load_checkpoint  # noqa: E402
from mempo_agents.learners.optim import MasterOptimizer, OptimizerSettings  # noqa: E402
from mempo_agents.learners.processes import Processes  # noqa: E402
from mempo_agents.learners.shards import check_shards, copy_weights, shard  # noqa: E402
from mempo_agents.learners.update import UpdateSettings, update_policy  # noqa: E402

SHARDED = dataclasses.replace(SETTINGS, shard=True, updates=2, optimizer=OptimizerSettings("adamw", lr=1e-3))
READ_AGAIN = UpdateSettings(old_logprobs="recomputed", kl_coefficient=0.1, micro_tokens=99)
# By name: what a run of two processes does, and one process, too.
RUNS = {
    "unequal": {"tasks": 3},
    "idle": {"tasks": 1},  # the second process has no rows at all
    "read again": {
        "tasks": 3,
        "update": UpdateSettings(old_logprobs="recomputed", kl_coefficient=0.1, micro_tokens=99),
    },
    "adapters": {"tasks": 3, "lora_rank": 2},
}


@pytest.fixture
def alone(tmp_path):
    """A process group of one."""
    from torch import distributed

    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield Processes("cpu")
    distributed.destroy_process_group()


@pytest.mark.parametrize(("dtype", "close"), [(torch.float32, 1e-4), (torch.bfloat16, 0.05)])
def test_an_update_in_shards_is_the_plain_one(alone, dtype, close):
    plain, rows = tiny_model().to(dtype), make_rows()
    rows[0].mask[:] = False  # a pass without a trained token
    settings = UpdateSettings(micro_tokens=20, epochs=2)
    adamw = OptimizerSettings("adamw", lr=1e-2)
    read = copy.deepcopy(plain)
    sharded = shard(read, alone)
    assert type(next(sharded.parameters())).__name__ == "DTensor"
    told, optimizers = [], []
    for model in (plain, sharded):
        alone.sharded = model is sharded
        optimizers.append(MasterOptimizer(model, adamw))
        told.append(update_policy(model, optimizers[-1], rows, settings, processes=alone))
    assert told[0]["gradient_norm"] == pytest.approx(told[1]["gradient_norm"], rel=close)
    mine, theirs = (optimizer.state() for optimizer in optimizers)
    assert mine.keys() == theirs.keys()
    for name, value in mine.items():
        assert type(theirs[name]) is torch.Tensor, name
        assert (value - theirs[name]).norm() <= close * value.norm(), name
    copy_weights(sharded, read)
    for name, value in read.named_parameters():
        assert value.dtype == dtype
        assert torch.equal(value, theirs[f"master/{name}"].to(dtype)), name
    other = MasterOptimizer(shard(tiny_model(seed=1), alone), adamw)
    other.load(mine)
    assert all(torch.equal(value, mine[name]) for name, value in other.state().items())
    assert optimizers[1].state(keep=False) == {}


def test_muon_is_refused():
    with pytest.raises(ValueError, match="the optimizer must be 'adamw', got 'muon': Muon needs whole matrices"):
        dataclasses.replace(SETTINGS, shard=True)


def test_an_older_torch_is_named(monkeypatch):
    from torch.distributed.fsdp import FSDPModule

    monkeypatch.delattr(FSDPModule, "set_force_sum_reduction_for_comms")
    with pytest.raises(ValueError, match=r"shard: needs torch 2\.8 or newer, got \d"):
        check_shards("adamw")


def test_one_process_trains_as_without_shards(tmp_path):
    runs = [trainer(tmp_path / str(on), dataclasses.replace(SHARDED, shard=on)) for on in (True, False)]
    for run in runs:
        run.run()
    assert all(torch.equal(value, weights(runs[1])[name]) for name, value in weights(runs[0]).items())


SCRIPT = """
import sys; sys.path[:0] = {paths!r}
from pathlib import Path
from test_shards import *
from test_trainer import KilledError

folder = Path({folder!r})
for name, changes in RUNS.items():
    run = trainer(folder / name, dataclasses.replace(SHARDED, **changes))
    run.run()
    own = sum(p.to_local().numel() for p in run.model.parameters())
    assert own < 0.6 * sum(p.numel() for p in run.model.parameters())  # a part, not the whole
    assert run.engine.model is not run.model

def dies(run):
    one = run._one_update
    def update():
        if run.update == 1:
            raise KilledError
        return one()
    run._one_update = update
    try:
        run.run()
    except KilledError:
        return
dies(trainer(folder / "killed", dataclasses.replace(SHARDED, tasks=3)))
if run.processes.is_main:
    shutil.copytree(folder / "killed", folder / "killed for one")
run.processes.wait()
trainer(folder / "killed", dataclasses.replace(SHARDED, tasks=3)).run()
trainer(folder / "begun by one", dataclasses.replace(SHARDED, tasks=3)).run()

# A loss that is no number in one process only.
run = trainer(folder / "nan", dataclasses.replace(SHARDED, tasks=2))
groups = run.play(0)
advantages = run.credit(groups)[0]
before = [p.to_local().clone() for p in run.model.parameters()]
wrong = [[[a * float("nan") for a in t] for t in group] for group in advantages]
try:
    run.learn(groups, wrong if run.processes.rank == 1 else advantages)
    raise SystemExit("a NaN went through")
except FloatingPointError:
    pass
assert all(torch.equal(p.to_local(), b) for p, b in zip(run.model.parameters(), before, strict=True))
assert run.optimizer.version == 0
assert abs(run.learn(groups, advantages)["loss"]) < 1e9
assert not all(torch.equal(p.to_local(), b) for p, b in zip(run.model.parameters(), before, strict=True))
print("ALL WELL")
"""


def same_run(one: Path, two: Path) -> None:
    """The figures of every update, and after the first the optimizer's state, from the same episodes."""
    left, right = timeless(one), timeless(two)
    assert [line["step"] for line in left] == [line["step"] for line in right] == [0, 1, 2]
    for a, b in zip(left, right, strict=True):
        for name in a.keys() - {"train_tokens"}:
            assert a[name] == b[name] or a[name] == pytest.approx(b[name], rel=1e-3, abs=1e-4), name
    mine, theirs = (load_checkpoint(checkpoints(folder / "checkpoints")[0])[1] for folder in (one, two))
    assert mine.keys() == theirs.keys()
    for name, value in mine.items():
        assert value.shape == theirs[name].shape
        bound = 1e-4 if name.startswith("master/") else 0.01
        assert (value - theirs[name]).norm() <= bound * value.norm(), name


@pytest.mark.slow
def test_two_processes_in_shards_train_as_one(tmp_path):
    pytest.importorskip("accelerate")
    pytest.importorskip("peft")
    from safetensors.torch import load_file

    for name, changes in RUNS.items():
        trainer(tmp_path / "one" / name, dataclasses.replace(SHARDED, **changes)).run()
    begun = tmp_path / "two" / "begun by one"
    shutil.copytree(tmp_path / "one" / "unequal", begun)
    shutil.rmtree(checkpoints(begun / "checkpoints")[-1])
    here = Path(__file__).parent
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(paths=[str(here.parent), str(here)], folder=str(tmp_path / "two")))
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--standalone", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("ALL WELL") == 2
    for name in RUNS:  # the weights that are saved to play with are those that were trained
        for path in checkpoints(tmp_path / "two" / name / "checkpoints"):
            masters, (file,) = load_checkpoint(path)[1], (path / "model").glob("*.safetensors")
            saved = load_file(file)
            assert len(saved) > 4
            for key, value in saved.items():
                inner = key.replace("lora_A.", "lora_A.default.").replace("lora_B.", "lora_B.default.")
                assert torch.equal(value, masters[f"master/{inner}"]), key
        same_run(tmp_path / "one" / name, tmp_path / "two" / name)
    trainer(tmp_path / "two" / "killed for one", dataclasses.replace(SHARDED, tasks=3)).run()
    for name in ("killed", "killed for one", "begun by one"):
        same_run(tmp_path / "one" / "unequal", tmp_path / "two" / name)
        last = load_checkpoint(checkpoints(tmp_path / "two" / name / "checkpoints")[-1])[1]
        whole = load_checkpoint(checkpoints(tmp_path / "one" / "unequal" / "checkpoints")[-1])[1]
        assert all((last[n] - v).norm() <= 1e-3 * v.norm() for n, v in whole.items() if n.startswith("master/"))
