"""Prefix-shared scoring: the plain values, no leaks, and no token twice, on several families of models."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from mempo_agents.engines import prefix  # noqa: E402
from mempo_agents.engines.base import ScoreRow  # noqa: E402
from mempo_agents.engines.prefix import ScoreStats, choose_method, score_rows  # noqa: E402
from mempo_agents.engines.prefix_tree import build_tree  # noqa: E402

VOCAB = 97
SMALL = {"vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
SPECIAL = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1}


def _make(name):
    from transformers import (
        BloomConfig,
        BloomForCausalLM,
        Gemma3ForCausalLM,
        Gemma3TextConfig,
        GPT2Config,
        GPT2LMHeadModel,
        GPTNeoXConfig,
        GPTNeoXForCausalLM,
        LlamaConfig,
        LlamaForCausalLM,
        MambaConfig,
        MambaForCausalLM,
        Qwen2Config,
        Qwen2ForCausalLM,
    )

    grouped = {"num_key_value_heads": 2, "intermediate_size": 48}
    torch.manual_seed(0)
    model = {
        "llama": lambda: LlamaForCausalLM(LlamaConfig(**SMALL, **SPECIAL, **grouped)),
        "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SMALL, **SPECIAL, **grouped)),
        "gpt2": lambda: GPT2LMHeadModel(GPT2Config(vocab_size=VOCAB, n_embd=32, n_layer=2, n_head=4, **SPECIAL)),
        "gpt_neox": lambda: GPTNeoXForCausalLM(GPTNeoXConfig(**SMALL, **SPECIAL, intermediate_size=48)),
        # Windows of 16 tokens, shorter than the rows; positions by ALiBi; a recurrent state.
        "gemma3": lambda: Gemma3ForCausalLM(
            Gemma3TextConfig(**SMALL, **SPECIAL, **grouped, head_dim=8, sliding_window=16)
        ),
        "bloom": lambda: BloomForCausalLM(
            BloomConfig(vocab_size=VOCAB, hidden_size=32, n_layer=2, n_head=4, **SPECIAL)
        ),
        "mamba": lambda: MambaForCausalLM(
            MambaConfig(vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2, **SPECIAL)
        ),
    }[name]()
    with torch.no_grad():  # larger weights, so that what leaks or stands at a wrong position is seen
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(4)
    return model.eval()


@pytest.fixture(scope="module")
def models():
    cache = {}

    def get(name):
        if name not in cache:
            cache[name] = _make(name)
        return cache[name]

    return get


METHODS = {
    "llama": "packed", "qwen2": "packed", "gpt2": "packed", "gpt_neox": "packed",
    "gemma3": "branched", "bloom": "branched", "mamba": "plain",
}  # fmt: skip


def task_rows(seed=0, groups=2, steps=4):
    """The rows of a credit call: histories that grow, memories behind the head, some answers with aliases."""
    rng = np.random.default_rng(seed)
    ids = lambda n: rng.integers(0, VOCAB, n)  # noqa: E731
    head, opening, answers = ids(12), ids(2), [ids(3), ids(1)]
    rows = []
    for _ in range(groups):
        history = head
        for _ in range(steps):
            memory = np.concatenate([head, ids(6), opening])
            for answer in answers:
                rows.append(ScoreRow(np.concatenate([history, opening]), answer))
                rows.append(ScoreRow(memory, answer))
            history = np.concatenate([history, ids(9)])
    return rows


def one_by_one(model, rows):
    """The plain definition, nothing of the code under test: one full forward a row."""
    out = []
    for row in rows:
        ids = torch.as_tensor(np.concatenate([row.context_ids, row.target_ids]))[None]
        with torch.no_grad():
            logp = model(ids).logits[0].float().log_softmax(-1)
        at = range(len(row.context_ids) - 1, len(row.context_ids) + len(row.target_ids) - 1)
        out.append(np.array([logp[i, t] for i, t in zip(at, row.target_ids, strict=True)], dtype=np.float32))
    return out


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("method", ["auto", "branched", "plain"])
def test_the_plain_values(models, name, method):
    if name == "mamba" and method == "branched":
        pytest.skip("a recurrent state cannot be cut back; `auto` does not try")
    model, rows, stats = models(name), task_rows(), ScoreStats()
    got = score_rows(model, rows, method=method, max_tokens=64, stats=stats)
    for a, b in zip(one_by_one(model, rows), got, strict=True):
        np.testing.assert_allclose(b, a, atol=1e-5, rtol=0)
        assert b.dtype == np.float32
    assert stats.method == (METHODS[name] if method == "auto" else method)


@pytest.mark.parametrize("name", ["llama", "gpt2"])
@pytest.mark.parametrize("max_tokens", [1, 7, 40, 4096])
def test_any_budget(models, name, max_tokens):
    rows = task_rows(1)
    for a, b in zip(one_by_one(models(name), rows), score_rows(models(name), rows, max_tokens=max_tokens), strict=True):
        np.testing.assert_allclose(b, a, atol=1e-5, rtol=0)


@pytest.mark.parametrize("logits", [1, 3])
def test_any_number_of_scored_positions_at_a_time(models, monkeypatch, logits):
    monkeypatch.setattr(prefix, "_MAX_LOGIT_BYTES", 4 * VOCAB * logits)
    rng = np.random.default_rng(0)
    rows = [*task_rows(2), ScoreRow(rng.integers(0, VOCAB, 5), rng.integers(0, VOCAB, 30))]
    for a, b in zip(one_by_one(models("llama"), rows), score_rows(models("llama"), rows), strict=True):
        np.testing.assert_allclose(b, a, atol=1e-5, rtol=0)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.lists(st.integers(0, 2), min_size=1, max_size=7), st.lists(st.integers(0, 2), max_size=4)),
             max_size=12),
    st.integers(1, 12),
)  # fmt: skip
def test_any_rows_at_all(models, pairs, max_tokens):
    """Three ids only, so that rows repeat, nest and branch in every way."""
    rows = [ScoreRow(np.array(c), np.array(t, dtype=np.int64)) for c, t in pairs]
    got = score_rows(models("llama"), rows, max_tokens=max_tokens)
    for a, b in zip(one_by_one(models("llama"), rows), got, strict=True):
        np.testing.assert_allclose(b, a, atol=1e-5, rtol=0)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.lists(st.integers(0, 1), min_size=1, max_size=8), st.lists(st.integers(0, 1), max_size=3)),
             max_size=15)
)  # fmt: skip
def test_the_tree_holds_each_prefix_once(pairs):
    contexts, targets = [np.array(c) for c, _ in pairs], [np.array(t, dtype=np.int64) for _, t in pairs]
    roots = build_tree(contexts, targets)
    paths = [(*c, *t[:-1]) for c, t in pairs if t]
    prefixes = {path[:n] for path in paths for n in range(1, len(path) + 1)}
    assert sum(root.total for root in roots) == len(prefixes)
    found, asked = set(), []

    def walk(chain, before):
        path = (*before[: chain.start], *chain.ids.tolist())
        for depth in range(chain.start, chain.end):
            assert path[: depth + 1] not in found
            found.add(path[: depth + 1])
        for depth, target, row, place in chain.queries:
            asked.append((row, place, target, path[: depth + 1]))
        for child in chain.children:
            assert child.parent is chain
            assert chain.start < child.start <= chain.end
            walk(child, path)

    for root in roots:
        walk(root, ())
    assert found == prefixes
    want = [(r, i, t[i], (*c, *t[:i])) for r, (c, t) in enumerate(pairs) for i in range(len(t))]
    assert sorted(asked) == sorted(want)


@pytest.mark.parametrize("name", METHODS)
def test_leak_what_a_row_does_not_hold_changes_nothing(models, name):
    model, rows = models(name), task_rows(3)
    base = score_rows(model, rows, max_tokens=64)
    rng = np.random.default_rng(9)
    for changed in range(0, len(rows), 3):
        other = list(rows)
        context = rows[changed].context_ids.copy()
        context[len(context) // 2 :] = rng.integers(0, VOCAB, len(context) - len(context) // 2)
        other[changed] = ScoreRow(context, rng.integers(0, VOCAB, len(rows[changed].target_ids)))
        for i, (a, b) in enumerate(zip(base, score_rows(model, other, max_tokens=64), strict=True)):
            if i != changed:
                np.testing.assert_allclose(b, a, atol=1e-5, rtol=0)


def test_order_and_company_do_not_matter(models):
    model, rows = models("llama"), task_rows(4)
    base = score_rows(model, rows)
    order = np.random.default_rng(0).permutation(len(rows))
    for place, i in enumerate(order):
        got = score_rows(model, [rows[j] for j in order])[place]
        np.testing.assert_allclose(got, base[i], atol=1e-5, rtol=0)
        break
    np.testing.assert_allclose(score_rows(model, rows[5:6])[0], base[5], atol=1e-5, rtol=0)


@pytest.mark.parametrize("method", ["packed", "branched", "plain"])
def test_equal_rows_agree_exactly(models, method):
    rows = task_rows(5)
    got = score_rows(models("llama"), [*rows, *rows], method=method, max_tokens=64)
    for a, b in zip(got[: len(rows)], got[len(rows) :], strict=True):
        np.testing.assert_array_equal(a, b)


def test_nothing_survives_a_change_of_weights():
    model, rows = _make("llama"), task_rows(6)
    before = score_rows(model, rows)
    with torch.no_grad():
        model.lm_head.weight.mul_(0.5)
    for a, b, old in zip(one_by_one(model, rows), score_rows(model, rows), before, strict=True):
        np.testing.assert_allclose(b, a, atol=1e-5, rtol=0)
        assert abs(b - old).max() > 1e-3


def test_each_token_goes_through_the_model_once(models):
    rows, stats = task_rows(), ScoreStats()
    score_rows(models("llama"), rows, stats=stats)
    paths = [(*row.context_ids, *row.target_ids[:-1]) for row in rows]
    assert stats.tokens == len({path[:n] for path in paths for n in range(1, len(path) + 1)})


def test_tokens_grow_linearly_with_steps(models):
    counts = []
    for steps in (4, 8, 16):
        stats = ScoreStats()
        score_rows(models("llama"), task_rows(0, 1, steps), stats=stats)
        counts.append(stats.tokens)
    assert counts[2] - counts[1] == pytest.approx(2 * (counts[1] - counts[0]), rel=0.1)


def test_dropout_is_off_and_the_mode_restored():
    config = transformers.GPT2Config(vocab_size=VOCAB, n_embd=32, n_layer=2, n_head=4, resid_pdrop=0.5, **SPECIAL)
    model = transformers.GPT2LMHeadModel(config).train()
    rows = task_rows(0, 1, 2)
    first, second = score_rows(model, rows), score_rows(model, rows)
    assert model.training
    for a, b in zip(first, second, strict=True):
        np.testing.assert_array_equal(a, b)


def test_only_scored_positions_reach_the_head(models, monkeypatch):
    """A context of 400 tokens with an answer of 8 asks for 8 rows of logits, not 408."""
    model, seen = _make("llama"), []
    choose_method(model, 408)
    model.lm_head.register_forward_hook(lambda _m, _i, out: seen.append(out.shape[-2]))
    rng = np.random.default_rng(0)
    score_rows(model, [ScoreRow(rng.integers(0, VOCAB, 400), rng.integers(0, VOCAB, 8))], max_tokens=512)
    assert sum(seen) == 8


def test_a_model_that_ignores_masks_is_found_out(models):
    class Ignoring(type(models("llama"))):
        def forward(self, input_ids=None, attention_mask=None, **kwargs):
            if attention_mask is not None and attention_mask.dim() == 4:
                attention_mask = None
            return super().forward(input_ids=input_ids, attention_mask=attention_mask, **kwargs)

    model = Ignoring(models("llama").config)
    model.load_state_dict(models("llama").state_dict())
    assert choose_method(model.eval(), 50) == "branched"
    rows = task_rows()
    for a, b in zip(one_by_one(models("llama"), rows), score_rows(model, rows), strict=True):
        np.testing.assert_allclose(b, a, atol=1e-5, rtol=0)


def test_half_precision_keeps_the_fast_way(models):
    model = _make("llama").to(torch.bfloat16)
    assert choose_method(model, 50) == "packed"


def test_bad_rows(models):
    model = models("llama")
    with pytest.raises(ValueError, match="Row 1: the context is empty"):
        score_rows(model, [ScoreRow(np.array([1]), np.array([2])), ScoreRow(np.zeros(0, int), np.array([2]))])
    with pytest.raises(ValueError, match="must be vectors"):
        score_rows(model, [ScoreRow(np.array([[1]]), np.array([2]))])
    with pytest.raises(ValueError, match="must not be negative"):
        score_rows(model, [ScoreRow(np.array([-1]), np.array([2]))])
    with pytest.raises(ValueError, match="max_tokens"):
        score_rows(model, [], max_tokens=0)
    assert score_rows(model, []) == []
    assert [len(x) for x in score_rows(model, [ScoreRow(np.array([1]), np.zeros(0, int))])] == [0]
