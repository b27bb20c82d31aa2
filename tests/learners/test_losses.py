"""Losses: values worked by hand, gradients, masked garbage, and independence from how a batch is cut up."""

import math

import pytest

torch = pytest.importorskip("torch")

from mempo_agents.learners.losses import (  # noqa: E402
    aggregate,
    clip_fraction,
    clipped_surrogate,
    kl_divergence,
    row_scales,
    token_entropy,
    token_logprobs,
)


def t(values):
    return torch.tensor(values, dtype=torch.float32)


def test_surrogate_by_hand():
    # ratios 1.5, 1.5, 0.5, 0.5 with A = 1, -1, 1, -1 and clip 0.2 / 0.28:
    # -min(1.5, 1.28) = -1.28; -min(-1.5, -1.28) = 1.5; -min(0.5, 0.8) = -0.5; -min(-0.5, -0.8) = 0.8
    logp = t([[1.5, 1.5, 0.5, 0.5]]).log()
    got = clipped_surrogate(
        logp, torch.zeros(1, 4), t([[1, -1, 1, -1]]), torch.ones(1, 4), clip_low=0.2, clip_high=0.28
    )
    torch.testing.assert_close(got, t([[-1.28, 1.5, -0.5, 0.8]]))
    # dual clip bounds the second at 1.2 * 1
    got = clipped_surrogate(logp, torch.zeros(1, 4), t([[1, -1, 1, -1]]), torch.ones(1, 4), dual_clip=1.2)
    torch.testing.assert_close(got, t([[-1.2, 1.2, -0.5, 0.8]]))
    shares = clip_fraction(logp, torch.zeros(1, 4), t([[1, -1, 1, -1]]), torch.ones(1, 4), clip_low=0.2, clip_high=0.2)
    assert shares == 0.5  # the first and the last


def test_clipped_tokens_have_no_gradient():
    logp = t([[1.5, 1.5, 0.5, 0.5]]).log().requires_grad_()
    clipped_surrogate(logp, torch.zeros(1, 4), t([[1, -1, 1, -1]]), torch.ones(1, 4)).sum().backward()
    # d(-ratio A)/d logp = -ratio A where unclipped
    torch.testing.assert_close(logp.grad, t([[0, 1.5, -0.5, 0]]))


def test_one_advantage_a_row():
    a = clipped_surrogate(torch.zeros(2, 3), torch.zeros(2, 3), t([1, -2]), torch.ones(2, 3))
    torch.testing.assert_close(a, t([[-1] * 3, [2] * 3]))


def test_masked_garbage_touches_neither_value_nor_gradient():
    # logp [0, 0], old [0, NaN], A 1, mask [1, 0]: loss -1, gradient [-1, 0]
    logp = torch.zeros(1, 2, requires_grad=True)
    mask = torch.tensor([[True, False]])
    terms = clipped_surrogate(logp, t([[0, math.nan]]), t([[1, math.inf]]), mask)
    loss = aggregate(terms, mask, row_scales(mask, aggregation="token"))
    loss.backward()
    assert loss.item() == -1
    assert logp.grad.tolist() == [[-1, 0]]


@pytest.mark.parametrize("kind", ["k1", "k2", "k3"])
def test_masked_garbage_in_the_kl(kind):
    logp = t([[0.0, math.nan]]).requires_grad_()
    mask = torch.tensor([[True, False]])
    kl_divergence(logp, t([[-1.0, -math.inf]]), mask, kind).sum().backward()
    assert torch.isfinite(logp.grad).all()
    assert logp.grad[0, 1] == 0


def test_empty_rows_contribute_nothing():
    mask = torch.tensor([[True, True], [False, False]])
    terms = t([[1, 2], [math.nan, 5]])
    trajectory = torch.tensor([0, 1])
    for aggregation in ("token", "sequence", "trajectory"):
        assert aggregate(terms, mask, row_scales(mask, trajectory, aggregation)).item() == 1.5
    assert aggregate(terms, mask, row_scales(mask, aggregation="constant", constant=4)).item() == 0.75
    empty = torch.zeros(2, 2, dtype=torch.bool)
    for aggregation in ("token", "sequence", "trajectory"):
        assert aggregate(terms, empty, row_scales(empty, trajectory, aggregation)).item() == 0


def test_aggregations_by_hand():
    # Trajectory 7: rows of 1 and 3 tokens with terms 4 | 0 0 0; trajectory 9: a row of 2 tokens with terms 1 1.
    terms, trajectory = t([[4, 0, 0], [0, 0, 0], [1, 1, 0]]), torch.tensor([7, 7, 9])
    mask = torch.tensor([[1, 0, 0], [1, 1, 1], [1, 1, 0]])
    want = {
        "token": (4 + 0 + 2) / 6,  # 6 tokens
        "sequence": (4 + 0 + 1) / 3,  # row means 4, 0, 1
        "trajectory": (4 / 4 + 2 / 2) / 2,  # trajectory means 1 and 1
    }
    for aggregation, value in want.items():
        assert aggregate(terms, mask, row_scales(mask, trajectory, aggregation)).item() == pytest.approx(value)
    scale = row_scales(mask, aggregation="constant", constant=10)
    assert aggregate(terms, mask, scale).item() == pytest.approx(6 / 30)


def test_trajectory_mean_does_not_see_how_many_steps_there_are():
    terms, mask = torch.arange(12.0).reshape(1, 12), torch.ones(1, 12)
    other = torch.ones(1, 12) * 3
    whole = aggregate(torch.cat([terms, other]), torch.ones(2, 12), row_scales(torch.ones(2, 12), torch.tensor([0, 1])))
    rows = torch.cat([terms.reshape(4, 3), torch.ones(4, 3) * 3])
    split = aggregate(rows, torch.ones(8, 3), row_scales(torch.ones(8, 3), torch.tensor([0] * 4 + [1] * 4)))
    uneven = torch.cat([terms.reshape(4, 3), torch.ones(1, 3) * 3])
    lopsided = aggregate(uneven, torch.ones(5, 3), row_scales(torch.ones(5, 3), torch.tensor([0] * 4 + [1])))
    assert whole.item() == pytest.approx(split.item())
    assert whole.item() == pytest.approx(lopsided.item())
    assert mask.sum() == 12


@pytest.mark.parametrize("aggregation", ["token", "sequence", "trajectory", "constant"])
@pytest.mark.parametrize("cuts", [[10], [2, 8], [1, 2, 3, 4], [1] * 10, [3, 0, 7]])
def test_micro_batches_do_not_matter(aggregation, cuts):
    torch.manual_seed(0)
    mask = torch.rand(10, 6) > 0.4
    mask[3] = False
    trajectory = torch.tensor([0, 0, 0, 1, 1, 2, 3, 3, 3, 3])
    weights = torch.randn(10, 6)
    scale = row_scales(mask, trajectory, aggregation, constant=5.0)

    def gradient(parts):
        x = weights.clone().requires_grad_()
        total = 0.0
        for part in torch.split(torch.arange(10), parts):
            terms = clipped_surrogate(x[part], weights[part] - 0.1, weights[part], mask[part])
            loss = aggregate(terms, mask[part], scale[part])
            loss.backward()
            total += loss.item()
        return total, x.grad

    whole, cut = gradient([10]), gradient(cuts)
    assert cut[0] == pytest.approx(whole[0], abs=1e-6)
    torch.testing.assert_close(cut[1], whole[1], atol=1e-6, rtol=0)


def test_two_tokens_at_one_and_eight_at_zero():
    # mean 0.2; the mean of the two micro-batches' means would be 0.5
    terms, mask = torch.cat([torch.ones(1, 2), torch.zeros(4, 2)]), torch.ones(5, 2)
    scale = row_scales(mask, aggregation="token")
    parts = [aggregate(terms[i:j], mask[i:j], scale[i:j]).item() for i, j in ((0, 1), (1, 5))]
    assert sum(parts) == pytest.approx(0.2)


def test_only_policy_tokens_get_a_gradient():
    # prompt 3, policy 4, observation 3, policy 5: the gradient is non-zero at exactly those 9
    mask = torch.tensor([[0] * 3 + [1] * 4 + [0] * 3 + [1] * 5])
    logp = torch.zeros(1, 15, requires_grad=True)
    kl = kl_divergence(logp, torch.full((1, 15), -0.5), mask)
    terms = clipped_surrogate(logp, torch.zeros(1, 15), t([1.0]), mask) + 0.1 * kl
    aggregate(terms, mask, row_scales(mask, aggregation="token")).backward()
    assert (logp.grad != 0).int().tolist() == mask.tolist()


def test_kl_values():
    # d = 0.5: k1 0.5, k2 0.125, k3 exp(-0.5) - 1 + 0.5 = 0.1065
    values = [kl_divergence(t([[0.5]]), t([[0.0]]), t([[1]]), kind).item() for kind in ("k1", "k2", "k3")]
    assert values == pytest.approx([0.5, 0.125, 0.1065], abs=1e-4)


def test_kl_expectations_and_gradients():
    """Exact, by summing over a vocabulary of 5 instead of sampling."""
    torch.manual_seed(0)
    logits, ref = torch.randn(5, requires_grad=True), torch.randn(5)
    logp, log_ref = logits.log_softmax(-1), ref.log_softmax(-1)
    true = (logp.exp() * (logp - log_ref)).sum()
    forward = (log_ref.exp() * (log_ref - logp)).sum()
    (true_gradient,) = torch.autograd.grad(true, logits, retain_graph=True)
    (forward_gradient,) = torch.autograd.grad(forward, logits, retain_graph=True)
    probabilities = logp.exp().detach()
    old = logp.detach()[None]
    expected = [
        ("k1", None, torch.zeros(5)),
        ("k2", None, true_gradient),
        ("k3", None, forward_gradient),
        ("k1", old, true_gradient),
        ("k3", old, true_gradient),
    ]
    for kind, sampled_with, want in expected:
        terms = kl_divergence(logp[None], log_ref[None], torch.ones(1, 5), kind, old_logprobs=sampled_with)[0]
        (gradient,) = torch.autograd.grad((probabilities * terms).sum(), logits, retain_graph=True)
        torch.testing.assert_close(gradient, want, atol=1e-6, rtol=0)
        if kind != "k2":
            assert (probabilities * terms).sum().item() == pytest.approx(true.item(), abs=1e-6)


def test_entropy_and_logprobs():
    torch.manual_seed(0)
    logits = torch.randn(3, 700, 11, requires_grad=True)
    ids = torch.randint(11, (3, 700))
    want = logits.log_softmax(-1)
    got = token_logprobs(logits, ids, chunk_tokens=64)
    torch.testing.assert_close(got, want.gather(-1, ids[..., None])[..., 0])
    torch.testing.assert_close(token_entropy(logits), -(want.exp() * want).sum(-1))
    (a,) = torch.autograd.grad(got.sum(), logits, retain_graph=True)
    (b,) = torch.autograd.grad(want.gather(-1, ids[..., None]).sum(), logits, retain_graph=True)
    torch.testing.assert_close(a, b)


def test_entropy_of_forbidden_tokens():
    logits = t([[0.0, 0.0, -math.inf]]).requires_grad_()
    entropy = token_entropy(logits)
    entropy.sum().backward()
    assert entropy.item() == pytest.approx(math.log(2))
    assert torch.isfinite(logits.grad).all()


def test_temperature():
    # logits [2, 0] at 0.5 are [4, 0]: log p = -log(1 + exp(-4)) = -0.01815, and -4.01815
    logits = t([[2.0, 0.0]] * 2)
    got = token_logprobs(logits, torch.tensor([0, 1]), temperature=0.5)
    torch.testing.assert_close(got, t([-0.01815, -4.01815]), atol=1e-4, rtol=0)


def test_bad_input():
    ones = torch.ones(2, 3)
    with pytest.raises(ValueError, match="clip_low"):
        clipped_surrogate(ones, ones, ones, ones, clip_low=0)
    with pytest.raises(ValueError, match="dual_clip"):
        clipped_surrogate(ones, ones, ones, ones, dual_clip=0.5)
    with pytest.raises(ValueError, match=r"advantages of shape \(2, 3\), got \(3, 2\)"):
        clipped_surrogate(ones, ones, torch.ones(3, 2), ones)
    with pytest.raises(ValueError, match=r"Expected \[R, T\]"):
        clipped_surrogate(ones, ones, ones, torch.ones(2, 2))
    with pytest.raises(ValueError, match="needs trajectory_R"):
        row_scales(ones)
    with pytest.raises(ValueError, match="positive constant"):
        row_scales(ones, aggregation="constant")
    with pytest.raises(ValueError, match="aggregation must be"):
        row_scales(ones, aggregation="mean")
    with pytest.raises(ValueError, match="kind must be"):
        kl_divergence(ones, ones, ones, "k4")
    with pytest.raises(ValueError, match="scale_R of shape"):
        aggregate(ones, ones, torch.ones(3))
    with pytest.raises(ValueError, match="temperature"):
        token_logprobs(torch.ones(1, 2), torch.zeros(1, dtype=torch.long), temperature=0)
