"""The diagnostics of memory credit, and `mempo credit` on files."""

import json
import math
from itertools import chain

import numpy as np
import pytest
import typer
from credit_fakes import CharacterEngine, step, trajectory
from typer.testing import CliRunner

from mempo_agents.commands import credit
from mempo_agents.files import write_trajectories
from mempo_agents.learners.credit_files import read_scores, write_report
from mempo_agents.learners.diagnostics import diagnose, explained_share
from mempo_agents.learners.groups import group_batch, groups_of
from mempo_agents.learners.memory_reward import MemoryScores, memory_scores
from mempo_env.errors import DataError

NAN = math.nan


def batch(rewards_GS, outcomes, task="t/0"):
    """A group whose memory rewards are given, against a history probability of 0.5."""
    members, scores = [], []
    for g, (row, outcome) in enumerate(zip(rewards_GS, outcomes, strict=True)):
        row = np.array(row, dtype=float)
        members.append(trajectory([step() for _ in row], outcome, task_id=task, sample=g))
        scores.append(MemoryScores(0.5 + np.nan_to_num(row), np.full(len(row), 0.5), ~np.isnan(row)))
    return group_batch(members, scores)


def test_the_predicted_bias_is_measured():
    # Rewards fall with the step in both trajectories: 0.2, 0.0, -0.2. The step index explains everything.
    report = diagnose([batch([[NAN, 0.2, 0.0, -0.2], [NAN, 0.2, 0.0, -0.2]], [1.0, 0.0])])
    assert report.step_share == pytest.approx(1.0)
    # Pool of six: deviation sqrt(4 * 0.04 / 5) = 0.1789; 0.2 / 0.1789 = 1.118
    means = [row["memory_advantage"]["mean"] for row in report.by_step]
    assert means[0] is None
    np.testing.assert_allclose(means[1:], [1.118, 0, -1.118], atol=1e-3)
    assert report.early_late == pytest.approx(2.236, abs=1e-3)
    assert [row["memory_reward"]["count"] for row in report.by_step] == [0, 2, 2, 2]
    # A_T = +-0.7071. The right one's last memory: 0.7071 - 1.118 < 0; the wrong one's first: -0.7071 + 1.118 > 0.
    # Of the four with A_M != 0, two are reversed, and the same two are opposed.
    assert report.reversal_rate == pytest.approx(0.5)
    assert report.opposition_rate == pytest.approx(0.5)
    assert report.rewarded_steps == 6
    # One pool per step index has nothing left.
    alone = diagnose([batch([[NAN, 0.2, 0.0, -0.2], [NAN, 0.2, 0.0, -0.2]], [1.0, 0.0])], per_step=True)
    assert alone.step_share is None
    assert alone.degenerate_memories == 1.0


def test_a_small_weight_opposes_without_reversing():
    group = batch([[NAN, 0.2, 0.0, -0.2], [NAN, 0.2, 0.0, -0.2]], [1.0, 0.0])
    report = diagnose([group], weight=0.5)  # 0.5 * 1.118 < 0.7071
    assert (report.reversal_rate, report.opposition_rate) == (0.0, pytest.approx(0.5))


def test_degenerate_and_failed():
    report = diagnose(
        [batch([[NAN, 0.1], [NAN, 0.3], [NAN, 0.9]], [1.0, 1.0, NAN]), batch([[NAN], [NAN]], [0.0, 1.0], "t/1")]
    )
    assert report.degenerate_outcomes == 0.5
    assert report.degenerate_memories == 0.5
    assert (report.trajectories, report.failed, report.rewarded_steps) == (5, 1, 2)
    assert report.reversal_rate is None
    assert report.early_late is None


def test_explained_share():
    # classes (0, 2) and (4, 6): means 1 and 5 about 3: between 4 * 4 = 16, all 9 + 1 + 1 + 9 = 20
    assert explained_share([0, 2, 4, 6], [0, 0, 1, 1]) == pytest.approx(0.8)
    assert explained_share([0, 2, 0, 2], [0, 0, 1, 1]) == pytest.approx(0.0)
    assert explained_share([1, 1], [0, 1]) is None
    assert explained_share([1], [0]) is None


def test_scores_are_needed():
    with pytest.raises(ValueError, match="no group"):
        diagnose([])
    with pytest.raises(ValueError, match="Groups without scores: t/0"):
        diagnose([group_batch([trajectory([step()])])])


@pytest.fixture
def files(tmp_path):
    members = [
        trajectory(
            [step("a"), step(f"b{g}"), step("c", answers=["Lima", "Quito"])], float(g % 2), sample=g, task_id=task
        )
        for task in ("t/0", "t/1")
        for g in range(3)
    ]
    path = tmp_path / "trajectories.jsonl"
    write_trajectories(path, members)
    groups = groups_of(members)
    engine = CharacterEngine(lambda context, target, i: -0.1 * (len(context) % 7 + 1))
    scored = [memory_scores(group.trajectories, engine) for group in groups]
    report = diagnose([group_batch(g, s) for g, s in zip(groups, scored, strict=True)])
    write_report(tmp_path / "scores.json", report, groups, scored, {"model": "characters"})
    return path, tmp_path / "scores.json", groups, scored


def invoke(*arguments):
    app = typer.Typer()
    app.command()(credit.run)
    return CliRunner().invoke(app, [str(a) for a in arguments])


def test_scores_round_trip(files):
    _, path, groups, scored = files
    again, source = read_scores(path, groups)
    assert source["model"] == "characters"
    for a, b in zip(chain(*scored), chain(*again), strict=True):
        np.testing.assert_array_equal(a.memory_S, b.memory_S)
        np.testing.assert_array_equal(a.history_S, b.history_S)
        np.testing.assert_array_equal(a.rewarded_S, b.rewarded_S)


def test_the_command_reads_scores_and_writes_figures(files, tmp_path):
    path, scores, *_ = files
    result = invoke(path, "--scores", scores, "--json", tmp_path / "out" / "credit.json")
    assert result.exit_code == 0, result.output
    assert "2 groups, 6 trajectories (0 failed)" in result.output
    assert "explained by the step index alone" in result.output
    record = json.loads((tmp_path / "out" / "credit.json").read_text())
    assert record["report"]["rewarded_steps"] == 12
    assert len(record["scores"]) == 6
    assert record["report"] == json.loads(scores.read_text())["report"]


def test_what_cannot_be_done_is_said(files, tmp_path):
    path, scores, *_ = files
    message = lambda *a: str(invoke(*a).exception)  # noqa: E731
    assert "must come from somewhere" in message(path)
    assert "not both" in message(path, "--scores", scores, "--model", "smollm2")
    assert "of policy 'react'" in message(path, "--scores", scores, "--policy", "react")
    assert "--baseline: expected one of history, previous, none" in message(path, "--baseline", "x", "--scores", scores)
    other = tmp_path / "other.json"
    other.write_text("{}")
    assert "is not a file that `mempo credit --json` wrote" in message(path, "--scores", other)
    with pytest.raises(DataError, match="no scores for sample 0 of task 't/9'"):
        read_scores(scores, groups_of([trajectory([step()], task_id="t/9")]))


def test_the_command_scores_with_a_language_model(files, tmp_path):
    """End to end on a folder with a tiny random model."""
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = {c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tok = Tokenizer(models.BPE({**alphabet, "<|end|>": 256}, []))
    tok.pre_tokenizer, tok.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=tok, eos_token="<|end|>", pad_token="<|end|>")
    tokenizer.chat_template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant: "
    config = transformers.LlamaConfig(
        vocab_size=257, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        bos_token_id=256, eos_token_id=256, pad_token_id=256,
    )  # fmt: skip
    folder = tmp_path / "model"
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    path, *_ = files
    result = invoke(path, "--model", folder, "--json", tmp_path / "credit.json", "--device", "cpu")
    assert result.exit_code == 0, repr(result.exception)
    record = json.loads((tmp_path / "credit.json").read_text())
    assert record["report"]["rewarded_steps"] == 12
    assert all(0 < p < 1 for row in record["scores"] for p in row["p_history"])
    assert record["source"]["fingerprint"]


class CharacterTokenizer:
    def decode(self, ids, **_):
        return "".join(map(chr, ids))


def test_the_answers_tokens_are_written_where_a_tokenizer_names_them(tmp_path):
    engine = CharacterEngine(lambda context, target, i: math.log(0.5 if context.endswith("[a]<answer>") else 0.25))
    groups = groups_of([trajectory([step("m"), step("n")])])
    scored = [memory_scores(groups[0].trajectories, engine)]
    report = diagnose([group_batch(groups[0], scored[0])])
    write_report(tmp_path / "a.json", report, groups, scored, {}, CharacterTokenizer())
    write_report(tmp_path / "b.json", report, groups, scored, {})
    (row,) = json.loads((tmp_path / "a.json").read_text())["scores"]
    assert row["tokens"]["text"] == list("Lima Quito")
    assert row["tokens"]["p_memory"] == [[0.25] * 10] * 2
    assert row["tokens"]["p_history"][0] == [0.5] * 10
    assert "tokens" not in json.loads((tmp_path / "b.json").read_text())["scores"][0]
    assert read_scores(tmp_path / "a.json", groups)[0][0][0].memory_S[0] == pytest.approx(0.25)
