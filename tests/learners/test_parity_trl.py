"""TRL's own GRPO trainer as an independent implementation: its advantages and its loss, on a tiny random model."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
trl = pytest.importorskip("trl")
transformers = pytest.importorskip("transformers")
datasets = pytest.importorskip("datasets")

from mempo_agents.learners.advantages import trajectory_advantages  # noqa: E402
from mempo_agents.learners.losses import (  # noqa: E402
    aggregate,
    clipped_surrogate,
    kl_divergence,
    row_scales,
    token_entropy,
    token_logprobs,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(int(trl.__version__.split(".")[0]) != 1, reason="written for TRL 1.x"),
]
REWARDS = [1.0, 0.0, 0.5, 0.25, 1.0, 1.0, 0.0, 0.0]


def _tokenizer():
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {w: i for i, w in enumerate(["<pad>", "<eos>", "<unk>", *"abcdefghijklmnopqrstuvwxyz"])}
    tok = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tok.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tok, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
    )


@pytest.fixture(scope="module")
def make_trainer(tmp_path_factory):
    def make(**options):
        torch.manual_seed(0)
        model = transformers.LlamaForCausalLM(
            transformers.LlamaConfig(
                vocab_size=32, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
                bos_token_id=1, eos_token_id=1, pad_token_id=0,
            )
        )  # fmt: skip
        config = trl.GRPOConfig(
            output_dir=str(tmp_path_factory.mktemp("trl")), use_cpu=True, bf16=False, report_to=[], save_strategy="no",
            per_device_train_batch_size=8, num_generations=4, max_completion_length=6, max_steps=1, **options,
        )  # fmt: skip
        rewards = iter(lambda: REWARDS, None)
        return trl.GRPOTrainer(
            model,
            reward_funcs=lambda completions, **_: next(rewards)[: len(completions)],
            args=config,
            train_dataset=datasets.Dataset.from_dict({"prompt": ["abc", "xyz"]}),
            processing_class=_tokenizer(),
        )

    return make


def rows(seed=0):
    rng = torch.Generator().manual_seed(seed)
    mask = (torch.arange(6)[None] < torch.tensor([6, 3, 1, 5, 6, 2, 4, 6])[:, None]).long()
    return {
        "prompt_ids": torch.randint(3, 29, (8, 4), generator=rng),
        "prompt_mask": torch.ones(8, 4, dtype=torch.long),
        "completion_ids": torch.randint(3, 29, (8, 6), generator=rng),
        "completion_mask": mask,
        "advantages": torch.randn(8, 6, generator=rng),
        "old_per_token_logps": -3.4 + 0.4 * torch.randn(8, 6, generator=rng),
        "ref_per_token_logps": -3.4 + 0.4 * torch.randn(8, 6, generator=rng),
        "num_items_in_batch": mask.sum(),
    }


@pytest.mark.parametrize("scale", ["group", "none"])
def test_advantages(make_trainer, scale):
    trainer = make_trainer(scale_rewards=scale)
    trainer.model.train()
    inputs = [{"prompt": p} for p in ["abc"] * 4 + ["xyz"] * 4]
    got = trainer._generate_and_score_completions(inputs)["advantages"]
    want = [trajectory_advantages(group, std=scale == "group", eps=1e-4) for group in (REWARDS[:4], REWARDS[4:])]
    np.testing.assert_allclose(got.reshape(-1).numpy(), np.concatenate(want), atol=1e-5)


@pytest.mark.parametrize("weighed_kl", [False, True])
@pytest.mark.parametrize(
    ("loss_type", "aggregation"), [("dapo", "token"), ("grpo", "sequence"), ("dr_grpo", "constant")]
)
def test_loss_and_gradient(make_trainer, loss_type, aggregation, weighed_kl):
    trainer = make_trainer(
        loss_type=loss_type, beta=0.0, use_bias_correction_kl=weighed_kl, epsilon=0.2, epsilon_high=0.28
    )
    trainer.beta = 0.05  # set afterwards: the constructor would look for the reference model on the hub
    trainer.current_gradient_accumulation_steps = 1
    model, data = trainer.model.train(), rows()
    theirs = trainer._compute_loss(model, data)
    theirs.backward()
    their_gradient = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()

    ids = torch.cat([data["prompt_ids"], data["completion_ids"]], dim=1)
    logp = token_logprobs(model(ids).logits[:, 3:-1], data["completion_ids"])
    mask = data["completion_mask"].bool()
    old = data["old_per_token_logps"] if weighed_kl else None
    terms = clipped_surrogate(logp, data["old_per_token_logps"], data["advantages"], mask, clip_low=0.2, clip_high=0.28)
    terms = terms + 0.05 * kl_divergence(logp, data["ref_per_token_logps"], mask, "k3", old_logprobs=old)
    ours = aggregate(terms, mask, row_scales(mask, aggregation=aggregation, constant=6))
    ours.backward()
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)
    for a, b in zip((p.grad for p in model.parameters()), their_gradient, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-3)


def test_logprobs_and_entropy(make_trainer):
    trainer, data = make_trainer(), rows(1)
    ids = torch.cat([data["prompt_ids"], data["completion_ids"]], dim=1)
    got = trainer._get_per_token_logps_and_entropies(trainer.model, ids, torch.ones_like(ids), 6, compute_entropy=True)
    logits = trainer.model(ids).logits[:, 3:-1]
    torch.testing.assert_close(token_logprobs(logits, data["completion_ids"]), got[0], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(token_entropy(logits), got[1], atol=1e-5, rtol=1e-4)
