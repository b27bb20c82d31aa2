"""vLLM as an engine: against a stand-in with vLLM's own names, and, marked `peer`, against vLLM itself."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from model_stand_in import Script  # noqa: E402
from tiny import make_tiny_engine, tiny_model, tiny_tokenizer  # noqa: E402
from vllm_stand_in import LLM, install  # noqa: E402

from mempo_agents.engines import get_engine  # noqa: E402
from mempo_agents.engines.base import Request, Sampling, ScoreRow  # noqa: E402
from mempo_agents.engines.vllm import VLLMEngine  # noqa: E402
from mempo_env.errors import DataError, EngineError, MissingExtraError  # noqa: E402
from mempo_env.protocols import get_protocol  # noqa: E402

MEMPO = get_protocol("mempo")


@pytest.fixture
def vllm(monkeypatch):
    install(monkeypatch)


def save(folder: Path, seed=0) -> Path:
    tiny_model(seed=seed).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


def requests(lengths=(1, 12, 7), seed=0):
    return [
        Request(({"role": "user", "content": "Who wrote it? " * n},), seed=seed + index)
        for index, n in enumerate(lengths)
    ]


def test_it_equals_the_engine_for_transformers(vllm, tmp_path, tiny_engine):
    engine = get_engine("vllm", save(tmp_path / "m"), dtype="float32")
    assert LLM.made[0].options["logprobs_mode"] == "processed_logprobs"
    assert engine.window_tokens == 4095
    mine = engine.generate(requests(), MEMPO, Sampling(30, 0.0))
    theirs = tiny_engine.generate(requests(), MEMPO, Sampling(30, 0.0))
    for a, b in zip(mine, theirs, strict=True):
        for name in ("prompt_ids", "response_ids", "token_ends", "policy_mask"):
            assert getattr(a, name).tolist() == getattr(b, name).tolist()
        assert (a.text, a.finish_reason) == (b.text, b.finish_reason)
        assert np.allclose(a.logprobs, b.logprobs, atol=2e-4)
    assert len(LLM.made[0].calls) == 1  # all in one batch
    (half,) = engine.generate(requests((2,)), MEMPO, Sampling(8, 0.5))
    assert np.isfinite(half.logprobs).all()
    ids = torch.tensor(np.concatenate([half.prompt_ids, half.response_ids]))[None]
    with torch.inference_mode():
        expected = torch.log_softmax(tiny_engine.model(ids).logits[0] / 0.5, -1)
    at = len(half.prompt_ids) - 1 + np.arange(len(half.response_ids))
    assert np.allclose(half.logprobs, expected[at, half.response_ids].numpy(), atol=2e-4)
    rows = [ScoreRow(g.prompt_ids, g.response_ids) for g in mine]
    rows += [rows[0], ScoreRow(rows[0].context_ids, [])]
    for a, b in zip(engine.score(rows), tiny_engine.score(rows), strict=True):
        assert a.dtype == np.float32
        assert np.allclose(a, b, atol=2e-4)
    assert len(LLM.made[0].calls[-1][0]) == 3  # equal rows once


def test_a_draft_in_the_reasoning_is_written_on(vllm, tmp_path):
    engine = VLLMEngine(save(tmp_path / "m"))
    tokenizer = tiny_tokenizer()
    text = "<think>maybe <search>draft</search> no</think><search>real</search>"
    request = Request(({"role": "user", "content": "Q"},), 3)
    tokens = tokenizer.encode(text + " and so on", add_special_tokens=False)
    LLM.made[0].model = Script(tokens, len(engine.encode(request.messages)), len(tokenizer))
    (made,) = engine.generate([request], get_protocol("mem1"), Sampling(150, 0.0))
    assert (made.text, made.finish_reason) == (text, "stop")
    first, second = (params[0].seed for _, params in LLM.made[0].calls)
    assert first == 3 != second


def test_the_window_is_kept(vllm, tmp_path):
    engine = VLLMEngine(save(tmp_path / "m"), window_tokens=79)
    assert (engine.window_tokens, LLM.made[0].options["max_model_len"]) == (79, 80)
    made = engine.generate(requests((1, 40)), MEMPO, Sampling(60, 1.0))
    assert len(made[0].prompt_ids) + len(made[0].response_ids) <= 79
    assert (made[1].text, made[1].finish_reason, len(made[1].response_ids)) == ("", "length", 0)
    assert len(engine.score([ScoreRow(np.full(78, 5), [6])])[0]) == 1  # the longest row there may be
    with pytest.raises(ValueError, match="80 tokens, more than the window of 79"):
        engine.score([ScoreRow(np.full(79, 5), [6])])


def test_new_weights_are_used_and_nothing_old_is_left(vllm, tmp_path):
    engine = VLLMEngine(save(tmp_path / "a"), dtype="float32")
    before, name = engine.generate(requests(), MEMPO, Sampling(16, 0.0)), engine.fingerprint
    new = save(tmp_path / "b", seed=1)
    engine.update_weights(new)
    after = engine.generate(requests(), MEMPO, Sampling(16, 0.0))
    cold = make_tiny_engine(seed=1).generate(requests(), MEMPO, Sampling(16, 0.0))
    assert [g.text for g in after] == [g.text for g in cold] != [g.text for g in before]
    assert engine.fingerprint != name
    assert engine.fingerprint.rpartition("/")[2] == VLLMEngine(new).fingerprint.rpartition("/")[2]
    engine.update_weights(tmp_path / "a")
    assert engine.fingerprint == name
    with pytest.raises(DataError, match="found none"):
        engine.update_weights(tmp_path)
    LLM.made[0].resets = False
    with pytest.raises(EngineError, match="prefix cache"):
        engine.update_weights(new)


def test_tensors_in_memory_are_used_and_nothing_old_is_left(vllm, tmp_path):
    engine = VLLMEngine(save(tmp_path / "m"), dtype="float32")
    name = engine.fingerprint
    before = engine.generate(requests(), MEMPO, Sampling(16, 0.0))
    engine.load_weights(tiny_model(seed=1).named_parameters(), digest="second")
    after = engine.generate(requests(), MEMPO, Sampling(16, 0.0))
    cold = make_tiny_engine(seed=1).generate(requests(), MEMPO, Sampling(16, 0.0))
    assert [g.text for g in after] == [g.text for g in cold] != [g.text for g in before]
    assert engine.fingerprint.endswith("/second")
    assert name != engine.fingerprint
    LLM.made[0].resets = False
    with pytest.raises(EngineError, match="prefix cache"):
        engine.load_weights(tiny_model(seed=1).named_parameters(), digest="third")


def test_what_goes_wrong_is_named(vllm, tmp_path, monkeypatch):
    engine = VLLMEngine(save(tmp_path / "m"))
    with pytest.raises(ValueError, match="cannot force the protocol's tags"):
        engine.generate(requests(), MEMPO, Sampling(40, 1.0, guided=True))
    with pytest.raises(ValueError, match=r"temperature must be in \[0, 2\]"):
        engine.generate(requests(), MEMPO, Sampling(40, 3.0))
    assert engine.generate([], MEMPO, Sampling()) == []
    assert engine.score([]) == []

    def dies(*args, **kwargs):
        raise RuntimeError("engine core died")

    monkeypatch.setattr(LLM, "generate", dies)
    with pytest.raises(EngineError, match="RuntimeError: engine core died"):
        engine.generate(requests(), MEMPO, Sampling(4))
    with pytest.raises(ValueError, match="device: vLLM takes"):
        get_engine("vllm", "m", device="cpu")
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(MissingExtraError, match=r"mempo-gym\[vllm\]"):
        VLLMEngine("m")


REAL = """
import sys; sys.path[:0] = {paths!r}
import numpy as np
from mempo_agents.engines.base import Request, Sampling, ScoreRow
from mempo_agents.engines.hf import HFEngine
from mempo_agents.engines.vllm import VLLMEngine
from mempo_env.protocols import get_protocol

old, new = {folders!r}
engine = VLLMEngine(old, dtype="float32", window_tokens=1023, enforce_eager=True, max_num_seqs=8)
plain = HFEngine(old, dtype="float32", device="cpu")
asked = [Request(({{"role": "user", "content": "Who wrote it? " * n}},), n) for n in (1, 40, 7)]
mempo = get_protocol("mempo")
for temperature in (1.0, 0.5, 0.0):
    made = engine.generate(asked, mempo, Sampling(32, temperature))
    if temperature == 1.0:
        rows = [ScoreRow(g.prompt_ids, g.response_ids) for g in made]
        assert all(np.allclose(a, g.logprobs, atol=1e-3) for a, g in zip(plain.score(rows), made, strict=True))
        for order in (1, -1):
            scores = engine.score(rows[::order])[::order]
            assert all(np.allclose(a, b, atol=1e-3) for a, b in zip(scores, plain.score(rows), strict=True))
greedy = [g.response_ids.tolist() for g in plain.generate(asked, mempo, Sampling(32, 0.0))]
assert [g.response_ids.tolist() for g in made] == greedy
engine.update_weights(new)
fresh = HFEngine(new, dtype="float32", device="cpu")
made = engine.generate(asked, mempo, Sampling(32, 0.0))
assert [g.response_ids.tolist() for g in made] == [
    g.response_ids.tolist() for g in fresh.generate(asked, mempo, Sampling(32, 0.0))
] != greedy
assert all(np.allclose(a, b, atol=1e-3) for a, b in zip(engine.score(rows), fresh.score(rows), strict=True))
engine.load_weights(plain.model.named_parameters(), digest="old")
assert all(np.allclose(a, b, atol=1e-3) for a, b in zip(engine.score(rows), plain.score(rows), strict=True))
assert [g.response_ids.tolist() for g in engine.generate(asked, mempo, Sampling(32, 0.0))] == greedy
engine.close()
print("ALL EQUAL")
"""


@pytest.mark.peer
@pytest.mark.slow
@pytest.mark.parametrize("tied", [False, True])
def test_vllm_itself(tmp_path, tied):
    """Needs vLLM in this environment, or in that of the interpreter which $MEMPO_VLLM_PYTHON names."""
    python = os.environ.get("MEMPO_VLLM_PYTHON", sys.executable)
    if python == sys.executable and importlib.util.find_spec("vllm") is None:
        pytest.skip("vLLM is not installed, and MEMPO_VLLM_PYTHON names no interpreter that has it")
    from transformers import AutoModelForCausalLM, LlamaConfig

    folders = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        config = LlamaConfig(
            vocab_size=len(tiny_tokenizer()),
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            head_dim=64,
            num_attention_heads=2,
            num_key_value_heads=1,
            max_position_embeddings=4096,
            initializer_range=0.2,
            bos_token_id=1,
            eos_token_id=2,
            pad_token_id=2,
            tie_word_embeddings=tied,
        )  # fmt: skip  (head_dim: vLLM's kernels on the CPU know no smaller one)
        folders.append(str(tmp_path / f"m{seed}"))
        AutoModelForCausalLM.from_config(config).float().save_pretrained(folders[-1])
        tiny_tokenizer().save_pretrained(folders[-1])
    script = tmp_path / "check.py"
    root = Path(__file__).parents[2]
    body = REAL.format(paths=[str(root), str(root / "tests")], folders=folders)
    script.write_text("def main():\n    " + body.replace("\n", "\n    ") + "\nif __name__ == '__main__':\n    main()\n")
    environment = {
        **os.environ, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    }  # fmt: skip
    done = subprocess.run([python, str(script)], capture_output=True, text=True, timeout=1800, env=environment)
    assert "ALL EQUAL" in done.stdout, done.stdout[-2000:] + done.stderr[-4000:]
