"""Folders of adapters that cannot be used as they are: each is named, none loads in part."""

from __future__ import annotations

import json
import warnings

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
peft = pytest.importorskip("peft")

from safetensors.torch import load_file, save_file  # noqa: E402

from mempo_agents.engines.hf import HFEngine  # noqa: E402
from mempo_agents.learners.checkpoint import save_model  # noqa: E402
from mempo_agents.learners.lora import add_adapters, trainable  # noqa: E402
from mempo_env.errors import DataError  # noqa: E402

WEIGHTS = "adapter_model.safetensors"


@pytest.fixture
def folder(tmp_path):
    base = HFEngine("nano-mempo", dtype="float32", device="cpu").model
    add_adapters(base, 2, base="nano-mempo").save_pretrained(tmp_path / "adapters")
    return tmp_path / "adapters"


def set_base(folder, base):
    config = folder / "adapter_config.json"
    value = {**json.loads(config.read_text(encoding="utf-8")), "base_model_name_or_path": str(base)}
    config.write_text(json.dumps(value), encoding="utf-8")


def test_adapters_of_adapters_are_refused(folder):
    set_base(folder, folder)
    with pytest.raises(DataError, match=r"adapters: expected adapters of a whole model, but their base .* holds"):
        HFEngine(folder, device="cpu")


def test_adapters_that_are_there_in_part_are_refused(folder):
    tensors = load_file(folder / WEIGHTS)
    half = sorted(tensors)[::2]
    save_file({name: tensors[name] for name in half}, folder / WEIGHTS)
    missing = len(tensors) - len(half)
    with pytest.raises(DataError, match=rf"expected {len(tensors)} tensors .*; {missing} are missing, base_model\S+ "):
        HFEngine(folder, device="cpu")


def test_the_missing_file_is_named(folder):
    (folder / WEIGHTS).unlink()
    with pytest.raises(DataError, match=r"expected the adapters' weights in adapter_model\.safetensors, found no such"):
        HFEngine(folder, device="cpu")


def test_adapters_without_a_rank_are_trained_only_merged(tmp_path):
    base = HFEngine("nano-mempo", dtype="float32", device="cpu").model
    config = peft.IA3Config(target_modules=["k_proj", "down_proj"], feedforward_modules=["down_proj"])
    peft.get_peft_model(base, config).save_pretrained(tmp_path)
    set_base(tmp_path, "nano-mempo")
    with pytest.raises(ValueError, match=r"lora_rank: the model has adapters of the kind IA3, .*; got 4\. Give 0"):
        trainable(HFEngine(tmp_path, dtype="float32", device="cpu").model, 4)
    assert not getattr(trainable(HFEngine(tmp_path, dtype="float32", device="cpu").model, 0), "peft_config", None)


def test_making_saving_and_loading_say_nothing(tmp_path):
    base = HFEngine("nano-mempo", dtype="float32", device="cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        save_model(tmp_path / "adapters", add_adapters(base.model, 2, base="nano-mempo"), base.tokenizer)
        HFEngine(tmp_path / "adapters", dtype="float32", device="cpu")
