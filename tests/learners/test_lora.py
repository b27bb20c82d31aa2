"""Adapters: what trains, what is saved, that it loads again on its base, and that a killed run goes on with them."""

from __future__ import annotations

import dataclasses
import json
import shutil
import sys

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("peft")

from test_trainer import NOISE, SETTINGS, KilledError, kill_at, timeless  # noqa: E402

from mempo_agents import cli  # noqa: E402
from mempo_agents.engines import get_engine  # noqa: E402
from mempo_agents.engines.base import ScoreRow  # noqa: E402
from mempo_agents.engines.hf import HFEngine, load_tokenizer  # noqa: E402
from mempo_agents.learners.checkpoint import checkpoints, load_checkpoint  # noqa: E402
from mempo_agents.learners.lora import add_adapters, trainable  # noqa: E402
from mempo_agents.learners.trainer import Trainer, TrainSettings  # noqa: E402
from mempo_agents.nano.tokenizer import nano_tokenizer  # noqa: E402
from mempo_env.errors import DataError, MissingExtraError  # noqa: E402

RANK = 2


@pytest.fixture(scope="module")
def base(nano_folder):
    return nano_folder


def run_of(folder, model, **kwargs) -> Trainer:
    changes = kwargs.pop("changes", {})
    settings: TrainSettings = dataclasses.replace(SETTINGS, model=str(model), lora_rank=RANK, updates=2, **changes)
    return Trainer(settings, folder, estimator=NOISE, device="cpu", **kwargs)


@pytest.fixture(scope="module")
def whole(base, tmp_path_factory):
    """A run to its end: (its folder, the trainer)."""
    folder = tmp_path_factory.mktemp("whole")
    run = run_of(folder, base)
    run.run()
    return folder, run


def weights(model) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def read(engine) -> torch.Tensor:
    ids = torch.arange(3, 40)[None]
    with torch.no_grad():
        return engine.model.eval()(ids).logits


def test_only_adapters_change(base, tmp_path):
    run = run_of(tmp_path, base)
    before = weights(run.model)
    run.run()
    changed = {name for name, value in weights(run.model).items() if not torch.equal(value, before[name])}
    assert changed
    assert all(".lora_" in name for name in changed)
    # All seven linear layers of the one block, and not the head: each has two factors, both moved.
    assert len(changed) == 2 * 7
    # Rank 2 on 64 to 64 is 2 x 64 x 2 numbers: the four of attention. The three of the MLP are 64 to 192 or back.
    trained = sum(p.numel() for p in run.model.parameters() if p.requires_grad)
    assert trained == 4 * (RANK * 2 * 64) + 3 * (RANK * (64 + 192))


def test_a_run_with_adapters_that_died_ends_as_if_it_had_not(base, whole, tmp_path):
    folder, run = whole
    for step in (1, 2):
        with pytest.raises(KilledError):
            run_of(tmp_path, base, watch=kill_at(step)).run()
    last = run_of(tmp_path, base)
    last.run()
    assert timeless(tmp_path) == timeless(folder)
    mine, theirs = weights(last.model), weights(run.model)
    assert all(torch.equal(mine[name], theirs[name]) for name in theirs)
    state = load_checkpoint(checkpoints(tmp_path / "checkpoints")[-1])[1]
    assert all(".lora_" in name for name in state), "the base is not saved again at every checkpoint"


def test_saved_adapters_load_again_and_read_the_same(whole, base):
    folder, run = whole
    saved = checkpoints(folder / "checkpoints")[-1] / "model"
    assert not (saved / "model.safetensors").exists()
    engine = HFEngine(saved, dtype="float32", device="cpu")
    assert torch.equal(read(engine), read(run.engine))
    assert not torch.equal(read(engine), read(HFEngine(base, dtype="float32", device="cpu")))
    named = get_engine("hf", str(saved), dtype="float32", device="cpu")
    row = ScoreRow(engine.encode_text("Question 1"), engine.encode_text("answer"))
    assert named.score([row])[0].tolist() == run.engine.score([row])[0].tolist()


def test_adapters_without_a_tokenizer_use_their_bases(whole, tmp_path):
    folder, _ = whole
    saved = shutil.copytree(checkpoints(folder / "checkpoints")[-1] / "model", tmp_path / "bare")
    for file in saved.glob("tokenizer*"):
        file.unlink()
    assert load_tokenizer(saved).tokenizer.get_vocab() == nano_tokenizer().get_vocab()
    assert HFEngine(saved, device="cpu").tokenizer.get_vocab() == nano_tokenizer().get_vocab()


def test_adapters_of_a_packaged_model_name_it_as_the_project_does(tmp_path, monkeypatch):
    """Trained here, loaded anywhere: no folder of this machine is written down, not even one of the same name."""
    (tmp_path / "nano-mempo").mkdir()
    monkeypatch.chdir(tmp_path)
    changes = {"updates": 1, "evaluate_every": 0, "tasks": 1}
    settings = dataclasses.replace(SETTINGS, model="nano-mempo", lora_rank=RANK, **changes)
    run = Trainer(settings, tmp_path, estimator=NOISE, device="cpu")
    run.run()
    saved = checkpoints(tmp_path / "checkpoints")[-1] / "model"
    config = json.loads((saved / "adapter_config.json").read_text(encoding="utf-8"))
    assert config["base_model_name_or_path"] == "nano-mempo"
    assert torch.equal(read(HFEngine(saved, dtype="float32", device="cpu")), read(run.engine))
    here = str(tmp_path.parent).encode()
    assert not any(here in file.read_bytes() or b"/weights/" in file.read_bytes() for file in saved.iterdir())


def test_a_folder_is_written_down_in_full(base, tmp_path, monkeypatch):
    monkeypatch.chdir(base.parent)
    adapted = add_adapters(HFEngine(base.name, dtype="float32", device="cpu").model, RANK, base=base.name)
    adapted.save_pretrained(tmp_path)
    monkeypatch.chdir(tmp_path)
    config = HFEngine(tmp_path, dtype="float32", device="cpu").model.peft_config["default"]
    assert (config.r, config.lora_alpha) == (RANK, 2 * RANK)


def test_adapters_are_trained_on_or_merged(whole):
    folder, run = whole
    saved = checkpoints(folder / "checkpoints")[-1] / "model"

    def loaded():
        return HFEngine(saved, dtype="float32", device="cpu").model

    assert not any(p.requires_grad for p in loaded().parameters()), "a loaded model is for reading"
    on = trainable(loaded(), RANK)
    assert {name for name, p in on.named_parameters() if p.requires_grad} == {
        name for name, p in run.model.named_parameters() if p.requires_grad
    }
    mine, theirs = weights(on), weights(run.model)
    assert all(torch.equal(mine[name], theirs[name]) for name in theirs)
    merged = trainable(loaded(), 0)
    assert not getattr(merged, "peft_config", None)
    assert all(p.requires_grad for p in merged.parameters())
    ids = torch.arange(3, 40)[None]
    torch.testing.assert_close(merged(ids).logits, read(run.engine), rtol=1e-4, atol=1e-4)
    with pytest.raises(ValueError, match=r"adapters of rank 2, got 5\. Give 2"):
        trainable(loaded(), 5)


def test_a_run_goes_on_from_adapters(whole, base, tmp_path):
    """Warm-started adapters are reinforced: one set of adapters on the first base, not adapters on adapters."""
    folder, run = whole
    saved = checkpoints(folder / "checkpoints")[-1] / "model"
    again = run_of(tmp_path, saved)
    mine, theirs = weights(again.model), weights(run.model)
    assert all(torch.equal(mine[name], theirs[name]) for name in theirs)
    again.run()
    end = checkpoints(tmp_path / "checkpoints")[-1] / "model"
    config = json.loads((end / "adapter_config.json").read_text(encoding="utf-8"))
    assert config["base_model_name_or_path"] == str(base)
    engine = HFEngine(end, dtype="float32", device="cpu")
    assert torch.equal(read(engine), read(again.engine))
    assert not torch.equal(read(engine), read(run.engine))


def adapters(folder, **changes):
    nano = HFEngine("nano-mempo", dtype="float32", device="cpu").model
    add_adapters(nano, RANK, base="nano-mempo").save_pretrained(folder)
    config = folder / "adapter_config.json"
    value = {**json.loads(config.read_text(encoding="utf-8")), **changes}
    config.write_text(json.dumps(value), encoding="utf-8")
    return folder


def test_a_missing_base_is_named(tmp_path):
    folder = adapters(tmp_path / "lost", base_model_name_or_path="/no/such/model")
    with pytest.raises(DataError, match=r"lost holds adapters of the model '/no/such/model', which is needed, too\."):
        HFEngine(folder)
    with pytest.raises(DataError, match=r"expected the name of the base model in base_model_name_or_path, got None\."):
        HFEngine(adapters(tmp_path / "nameless", base_model_name_or_path=None))


def test_adapters_that_do_not_fit_or_are_torn_are_named(tmp_path, base):
    folder = adapters(tmp_path / "other", base_model_name_or_path=str(base))
    with pytest.raises(DataError, match=r"other: the adapters do not load onto"):
        HFEngine(folder, device="cpu")
    torn = adapters(tmp_path / "torn")
    (torn / "adapter_model.safetensors").write_bytes(b"torn")
    with pytest.raises(DataError, match=r"torn: the adapters do not load onto 'nano-mempo'"):
        HFEngine(torn, device="cpu")


def test_without_peft_the_extra_is_named(tmp_path, monkeypatch, base):
    folder = adapters(tmp_path)
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(MissingExtraError, match=r"A folder of adapters needs peft.*mempo-gym\[hf\]"):
        HFEngine(folder, device="cpu")
    with pytest.raises(MissingExtraError, match=r"LoRA needs peft.*mempo-gym\[hf\]"):
        run_of(tmp_path / "run", base)


def mempo(monkeypatch, *words: str) -> None:
    monkeypatch.setattr("sys.argv", ["mempo", *words])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert not ended.value.code


def test_warm_start_trains_adapters_that_play(monkeypatch, tmp_path):
    small = ("--dataset", "world-compact:size=200", "--objectives", "1", "--device", "cpu", "--dtype", "float32")
    words = ("warm-start", "--out", str(tmp_path / "warm"), "--model", "nano-mempo", "--tasks", "6", "--quote",
             "--terse", "--lr", "1e-2", "--epochs", "2", "--lora-rank", "2", *small)  # fmt: skip
    for _ in range(2):  # the second finds the run at its end
        mempo(monkeypatch, *words)
    (saved,) = [path / "model" for path in checkpoints(tmp_path / "warm" / "checkpoints")]
    assert (saved / "adapter_model.safetensors").stat().st_size < 100_000
    config = json.loads((saved / "adapter_config.json").read_text(encoding="utf-8"))
    assert (config["base_model_name_or_path"], config["r"]) == ("nano-mempo", 2)
    engine = HFEngine(saved, dtype="float32", device="cpu")
    assert not torch.equal(read(engine), read(HFEngine("nano-mempo", dtype="float32", device="cpu")))
    words = ("eval", "--out", str(tmp_path / "eval"), "--engine", "hf", "--model", str(saved), "--policies", "mempo",
             "--tasks", "1", "--max-steps", "2", "--max-new-tokens", "4", *small)  # fmt: skip
    mempo(monkeypatch, *words)
    results = json.loads((tmp_path / "eval" / "results.json").read_text(encoding="utf-8"))
    assert results["run"]["engine"]["name"] == "hf"
