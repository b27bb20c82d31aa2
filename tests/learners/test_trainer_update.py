"""One policy update against an independent computation in float64, and against itself cut in other ways."""

from __future__ import annotations

import copy

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from tiny import tiny_model  # noqa: E402

from mempo_agents.learners.batches import TrainRow, collate, micro_batches, response_logits  # noqa: E402
from mempo_agents.learners.optim import MasterOptimizer, OptimizerSettings, rate_at  # noqa: E402
from mempo_agents.learners.update import UpdateSettings, update_policy  # noqa: E402

LR = 1e-2


def make_rows(seed: int = 0, count: int = 9) -> list[TrainRow]:
    """Rows of three trajectories, of unequal lengths; some tokens are not the policy's."""
    rng = np.random.default_rng(seed)
    rows = []
    for number in range(count):
        length = int(rng.integers(1, 14))
        mask = rng.random(length) < 0.8
        rows.append(
            TrainRow(
                prompt_ids=rng.integers(0, 300, int(rng.integers(1, 20))),
                response_ids=rng.integers(0, 300, length),
                mask=mask,
                advantages=rng.normal(size=length).astype(np.float32),
                logprobs=(-5 + 0.3 * rng.normal(size=length)).astype(np.float32),
                trajectory=number // 3,
            )
        )
    return rows


def plain_update(
    model, rows: list[TrainRow], *, clip: float, kl: float = 0.0, reference=None
) -> dict[str, torch.Tensor]:
    """The weights after one step of plain gradient descent on the clipped objective, in float64, row by row.

    mean over trajectories of the mean over their trained tokens; PPO's clip; k3 to the reference.
    """
    model = copy.deepcopy(model).double()
    reference = None if reference is None else copy.deepcopy(reference).double()

    def read(network, row):
        ids = torch.tensor(np.concatenate([row.prompt_ids, row.response_ids]))[None]
        table = torch.log_softmax(network(ids).logits[0], dim=-1)
        start = len(row.prompt_ids)
        return torch.stack([table[start + t - 1, row.response_ids[t]] for t in range(len(row.response_ids))])

    per_trajectory: dict[int, list[torch.Tensor]] = {}
    for row in rows:
        new = read(model, row)
        back = None if reference is None else read(reference, row).detach()
        for t in np.flatnonzero(row.mask):
            ratio = torch.exp(new[t] - float(row.logprobs[t]))
            advantage = float(row.advantages[t])
            term = -torch.minimum(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage)
            if back is not None:
                gap = back[t] - new[t]
                term = term + kl * (torch.exp(gap) - gap - 1)
            per_trajectory.setdefault(row.trajectory, []).append(term)
    loss = torch.stack([torch.stack(terms).mean() for terms in per_trajectory.values()]).mean()
    loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters()}


def our_gradients(model, rows, settings, reference=None) -> dict[str, torch.Tensor]:
    """The gradients that `update_policy` hands to the optimizer."""
    model = copy.deepcopy(model)
    optimizer = MasterOptimizer(model, OptimizerSettings("adamw", lr=LR, clip_norm=None))
    seen: dict[str, torch.Tensor] = {}
    step = optimizer.step

    def spy(rate: float = 1.0) -> float:
        seen.update({name: p.grad.clone() for name, p in model.named_parameters()})
        return step(rate)

    optimizer.step = spy  # type: ignore[method-assign]
    update_policy(model, optimizer, rows, settings, reference=reference)
    return seen


def assert_same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor], tolerance: float) -> None:
    assert left.keys() == right.keys()
    scale = max(float(value.abs().max()) for value in right.values())
    for name in left:
        assert float((left[name].double() - right[name].double()).abs().max()) < tolerance * scale, name


def test_gradient_equals_a_plain_float64_computation():
    model, rows = tiny_model(), make_rows()
    assert_same(our_gradients(model, rows, UpdateSettings(clip_low=0.1)), plain_update(model, rows, clip=0.1), 1e-5)


def test_gradient_with_a_reference_equals_a_plain_float64_computation():
    model, reference, rows = tiny_model(), tiny_model(seed=1), make_rows(1)
    ours = our_gradients(model, rows, UpdateSettings(kl_coefficient=0.3), reference)
    assert_same(ours, plain_update(model, rows, clip=0.2, kl=0.3, reference=reference), 1e-5)


def test_one_adamw_step_equals_torch_on_the_plain_gradient():
    model, rows = tiny_model(), make_rows(2)
    expected = copy.deepcopy(model).double()
    gradients = plain_update(model, rows, clip=0.2)
    norm = torch.sqrt(sum((g**2).sum() for g in gradients.values()))
    for name, p in expected.named_parameters():
        p.grad = gradients[name] / max(1.0, float(norm))  # clipped to norm 1
    torch.optim.AdamW(expected.parameters(), lr=LR, betas=(0.9, 0.95), weight_decay=0.0).step()
    optimizer = MasterOptimizer(model, OptimizerSettings("adamw", lr=LR))
    figures = update_policy(model, optimizer, rows, UpdateSettings())
    assert figures["gradient_norm"] == pytest.approx(float(norm), rel=1e-4)
    for (name, ours), (_, theirs) in zip(model.named_parameters(), expected.named_parameters(), strict=True):
        # Adam divides by |g|: where a gradient is nearly 0, float32 rounding decides its sign.
        differs = (ours.double() - theirs).abs() > 1e-2 * LR
        assert differs.float().mean() < 0.01, name


@pytest.mark.parametrize("aggregation", ["trajectory", "token", "sequence"])
def test_micro_batches_do_not_change_the_gradient(aggregation):
    model, rows = tiny_model(), make_rows(3, count=16)
    longest = max(row.length for row in rows)
    settings = [
        UpdateSettings(micro_tokens=tokens, aggregation=aggregation) for tokens in (1, 4 * longest, 16 * longest)
    ]
    sizes = [max(map(len, micro_batches([row.length for row in rows], s.micro_tokens))) for s in settings]
    assert sizes[0] == 1
    assert sizes[-1] == 16
    whole = our_gradients(model, rows, settings[-1])
    for other in settings[:-1]:
        assert_same(our_gradients(model, rows, other), whole, 1e-5)


def test_rows_without_trained_tokens_change_nothing():
    model, rows = tiny_model(), make_rows(4)
    ids = np.arange(5)
    empty = TrainRow(ids, ids, np.zeros(5, dtype=bool), np.full(5, 9.0, np.float32), np.full(5, np.nan, np.float32), 77)
    assert_same(
        our_gradients(model, [*rows, empty], UpdateSettings()), our_gradients(model, rows, UpdateSettings()), 1e-6
    )


def still(row: TrainRow, trajectory: int) -> TrainRow:
    """The row without a trained token, as that of an episode that failed."""
    return TrainRow(row.prompt_ids, row.response_ids, row.mask & False, row.advantages, row.logprobs, trajectory)


def test_without_a_trained_token_there_is_no_step():
    model, rows = tiny_model(), make_rows(4)
    optimizer = MasterOptimizer(model, OptimizerSettings(lr=LR, weight_decay=0.1))
    update_policy(model, optimizer, rows, UpdateSettings())
    before = copy.deepcopy(model.state_dict())
    for none in ([], [still(row, row.trajectory) for row in rows]):
        figures = update_policy(model, optimizer, none, UpdateSettings())
        assert optimizer.version == 1
        assert np.isnan([figures["loss"], figures["gradient_norm"], figures["mismatch"]]).all()
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


@pytest.mark.parametrize("failed", [False, True])
def test_a_mini_batch_without_a_trained_token_makes_no_step(failed):
    """Of three trajectories there are at most three parts; one that failed takes its part's step with it."""
    rows = [still(row, row.trajectory) if failed and row.trajectory == 2 else row for row in make_rows(4)]
    optimizer = MasterOptimizer(tiny_model(), OptimizerSettings(lr=LR))
    figures = update_policy(tiny_model(), optimizer, rows, UpdateSettings(mini_batches=8, epochs=2))
    assert optimizer.version == (4 if failed else 6)
    assert figures["mismatch_max"] > 0, "measured in the first step that is made"


def test_mismatch_is_measured_against_the_sampler():
    model, rows = tiny_model(), make_rows(5)
    exact = []
    with torch.no_grad():
        for row in rows:
            ids = torch.tensor(np.concatenate([row.prompt_ids, row.response_ids]))[None]
            table = torch.log_softmax(model(ids).logits[0], -1)
            at = len(row.prompt_ids) - 1 + np.arange(len(row.response_ids))
            values = table[torch.tensor(at), torch.tensor(row.response_ids)].numpy()
            exact.append(TrainRow(row.prompt_ids, row.response_ids, row.mask, row.advantages, values, row.trajectory))
    for how in ("sampler", "recomputed"):
        off = [
            TrainRow(r.prompt_ids, r.response_ids, r.mask, r.advantages, r.logprobs + 0.25, r.trajectory) for r in exact
        ]
        for given, gap in ((exact, 0.0), (off, 0.25)):
            student = copy.deepcopy(model)
            optimizer = MasterOptimizer(student, OptimizerSettings(lr=LR))
            figures = update_policy(student, optimizer, given, UpdateSettings(old_logprobs=how))
            assert figures["mismatch"] == pytest.approx(gap, abs=1e-4)
            # Recomputed, the ratio starts at 1 whatever the sampler said.
            expected = 0.0 if how == "recomputed" else np.exp(-gap) - 1 + gap if gap else 0.0
            assert figures["policy_kl"] == pytest.approx(
                expected if how == "recomputed" else np.expm1(gap) - gap, abs=1e-3
            )


def test_a_loss_that_is_no_number_changes_no_weight():
    model, rows = tiny_model(), make_rows(6)
    before = copy.deepcopy(model.state_dict())
    rows[0] = TrainRow(
        rows[0].prompt_ids, rows[0].response_ids, np.ones(len(rows[0].mask), bool),
        np.full(len(rows[0].mask), np.nan, np.float32), rows[0].logprobs, 0,
    )  # fmt: skip
    optimizer = MasterOptimizer(model, OptimizerSettings(lr=LR))
    with pytest.raises(FloatingPointError, match="not changed"):
        update_policy(model, optimizer, rows, UpdateSettings())
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(weight.grad is None for weight in model.parameters()), "what was no number is in no later sum"


def test_a_loss_that_is_no_number_later_in_an_update_says_what_was_done(monkeypatch):
    model, rows = tiny_model(), make_rows(6)
    optimizer = MasterOptimizer(model, OptimizerSettings(lr=LR))
    norms = iter((1.0, 1.0, 1.0, 1.0, float("inf")))  # asked for twice a step
    monkeypatch.setattr(optimizer, "gradient_norm", lambda: next(norms))
    with pytest.raises(FloatingPointError, match="norm inf; the weights are those after 2 steps of this update"):
        update_policy(model, optimizer, rows, UpdateSettings(epochs=3))


def test_a_gradient_that_is_no_number_moves_nothing():
    model = tiny_model()
    before = copy.deepcopy(model.state_dict())
    optimizer = MasterOptimizer(model, OptimizerSettings(lr=LR))
    for gradient in optimizer.gather_gradients():
        gradient.fill_(np.inf)
    assert optimizer.step() == np.inf
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert optimizer.version == 0


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_a_rate_scales_the_step(kind):
    """Without a past and without decay, AdamW's and Muon's steps are proportional to the learning rate."""

    def moved(rate):
        model = tiny_model()
        optimizer = MasterOptimizer(model, OptimizerSettings(kind, lr=LR))
        before = copy.deepcopy(model.state_dict())
        for number, gradient in enumerate(optimizer.gather_gradients()):
            gradient.copy_(torch.linspace(-1, 1, gradient.numel()).view_as(gradient) + 0.1 * number)
        optimizer.step(rate)
        return {name: value - before[name] for name, value in model.state_dict().items()}

    whole, half = moved(1.0), moved(0.5)
    assert any(step.abs().max() > 1e-3 for step in whole.values())
    for name, step in whole.items():
        torch.testing.assert_close(half[name], 0.5 * step, rtol=1e-3, atol=1e-6)


def test_only_trained_positions_pass_the_head_and_give_the_same_logits():
    for kind in ("llama", "gpt2"):
        model, rows = tiny_model(kind), make_rows(7)
        batch = collate(rows)
        with torch.no_grad():
            ours = response_logits(model, batch)
            whole = model(batch.ids).logits[batch.row, batch.column]
        assert ours.shape == (sum(int(row.mask.sum()) for row in rows), whole.shape[-1])
        torch.testing.assert_close(ours, whole, rtol=1e-4, atol=1e-4)


def test_bfloat16_weights_follow_a_float32_sum():
    """A thousand steps of 1e-4 move a weight of 1 by 0.1, though no single one can be seen in bfloat16."""
    model = torch.nn.Linear(1, 1, bias=False).bfloat16()
    model.get_input_embeddings = model.get_output_embeddings = lambda: None  # type: ignore[method-assign]
    with torch.no_grad():
        model.weight.fill_(1.0)
    optimizer = MasterOptimizer(model, OptimizerSettings(lr=1e-4, clip_norm=None))
    for _ in range(1000):
        model(torch.ones(1, 1, dtype=torch.bfloat16)).sum().backward()
        optimizer.gather_gradients()
        optimizer.step()
    assert float(model.weight.detach()) == pytest.approx(0.9, abs=0.01)


def test_optimizer_state_survives_a_round_trip():
    for kind in ("adamw", "muon"):
        first, second = tiny_model(), tiny_model(seed=3)
        one = MasterOptimizer(first, OptimizerSettings(kind, lr=LR))
        update_policy(first, one, make_rows(8), UpdateSettings())
        two = MasterOptimizer(second, OptimizerSettings(kind, lr=LR))
        two.load({name: tensor.clone() for name, tensor in one.state().items()})
        for model, optimizer in ((first, one), (second, two)):
            update_policy(model, optimizer, make_rows(9), UpdateSettings())
        for left, right in zip(first.parameters(), second.parameters(), strict=True):
            assert torch.equal(left, right)


def test_the_rate_rises_stays_and_falls():
    assert [rate_at(x, warmup=0.1, decay=0.5, floor=0.2) for x in (0.05, 0.1, 0.5, 0.75, 1.0)] == pytest.approx(
        [0.5, 1.0, 1.0, 0.6, 0.2]
    )
