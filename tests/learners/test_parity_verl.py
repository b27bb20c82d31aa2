"""verl's own functions as an independent implementation, on random input.

pip install torch==2.13.0 && pip install verl==0.9.1 && pytest -m peer tests/learners/test_parity_verl.py
"""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
core_algos = pytest.importorskip("verl.trainer.ppo.core_algos")

from mempo_agents.learners.advantages import gae, leave_one_out_advantages, trajectory_advantages, whiten  # noqa: E402
from mempo_agents.learners.losses import aggregate, clipped_surrogate, kl_divergence, row_scales  # noqa: E402

pytestmark = pytest.mark.peer
GROUPS, SIZE, LENGTH = 5, 6, 11


@pytest.fixture(params=range(3))
def batch(request):
    """Rewards on the last response token of each row, groups interleaved."""
    rng = np.random.default_rng(request.param)
    lengths = rng.integers(1, LENGTH + 1, GROUPS * SIZE)
    mask = torch.as_tensor(np.arange(LENGTH)[None] < lengths[:, None]).float()
    outcome = rng.normal(size=GROUPS * SIZE)
    rewards = torch.zeros(GROUPS * SIZE, LENGTH)
    rewards[torch.arange(len(lengths)), torch.as_tensor(lengths - 1)] = torch.as_tensor(outcome).float()
    index = np.array([f"task{i % GROUPS}" for i in range(GROUPS * SIZE)])
    return rng, outcome, rewards, mask, index


def by_group(function, outcome, index):
    out = np.zeros(len(outcome))
    for name in np.unique(index):
        out[index == name] = function(outcome[index == name])
    return out


@pytest.mark.parametrize("std", [True, False])
def test_grpo(batch, std):
    _, outcome, rewards, mask, index = batch
    theirs, _ = core_algos.compute_grpo_outcome_advantage(rewards, mask, index, norm_adv_by_std_in_grpo=std)
    ours = by_group(lambda r: trajectory_advantages(r, std=std), outcome, index)
    np.testing.assert_allclose(ours[:, None] * mask.numpy(), theirs.numpy(), atol=1e-5)


def test_rloo(batch):
    _, outcome, rewards, mask, index = batch
    theirs, _ = core_algos.compute_rloo_outcome_advantage(rewards, mask, index)
    ours = by_group(leave_one_out_advantages, outcome, index)
    np.testing.assert_allclose(ours[:, None] * mask.numpy(), theirs.numpy(), atol=1e-5)


@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 1.0), (0.97, 0.9), (0.9, 0.0)])
def test_gae(batch, gamma, lam):
    rng, _, rewards, mask, _ = batch
    values = torch.as_tensor(rng.normal(size=mask.shape)).float()
    inside = torch.as_tensor(rng.random(mask.shape) < 0.7).float() * mask  # observations between the policy's tokens
    theirs, their_returns = core_algos.compute_gae_advantage_return(rewards * inside, values, inside, gamma, lam)
    ours, our_returns = gae(rewards * inside, values, inside, gamma=gamma, lam=lam)
    kept = inside.numpy() > 0
    np.testing.assert_allclose(whiten(ours, inside)[kept], theirs.numpy()[kept], atol=1e-4)
    np.testing.assert_allclose(our_returns[kept], their_returns.numpy()[kept], atol=1e-4)


@pytest.mark.parametrize(("ours", "theirs"), [("token", "token-mean"), ("sequence", "seq-mean-token-mean")])
def test_aggregation(batch, ours, theirs):
    rng, _, _, mask, _ = batch
    terms = torch.as_tensor(rng.normal(size=mask.shape)).float()
    got = aggregate(terms, mask, row_scales(mask, aggregation=ours))
    torch.testing.assert_close(got, core_algos.agg_loss(terms, mask, theirs), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("ours", "theirs"), [("k1", "kl"), ("k2", "mse"), ("k3", "low_var_kl")])
def test_kl(batch, ours, theirs):
    rng, _, _, mask, _ = batch
    logp, ref = (torch.as_tensor(rng.normal(size=mask.shape)).float() * 0.5 for _ in range(2))
    got = kl_divergence(logp, ref, mask, ours)
    torch.testing.assert_close(got, core_algos.kl_penalty(logp, ref, theirs) * mask, atol=1e-5, rtol=1e-5)


def test_policy_loss(batch):
    rng, _, _, mask, _ = batch
    old, logp, advantages = (torch.as_tensor(rng.normal(size=mask.shape)).float() * 0.5 for _ in range(3))
    theirs = core_algos.compute_policy_loss(
        old, logp, advantages, mask, cliprange=0.2, cliprange_low=0.2, cliprange_high=0.28, clip_ratio_c=3.0
    )[0]
    terms = clipped_surrogate(logp, old, advantages, mask, clip_low=0.2, clip_high=0.28, dual_clip=3.0)
    got = aggregate(terms, mask, row_scales(mask, aggregation="token"))
    torch.testing.assert_close(got, theirs, atol=1e-5, rtol=1e-5)
