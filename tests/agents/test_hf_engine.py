"""Language models as engines: exact tokens, honest log-probabilities, stops at the right token, guided steps."""

import itertools
import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from tiny import make_tiny_engine, tiny_model, tiny_tokenizer  # noqa: E402

from mempo_agents.engines import decoding, get_engine  # noqa: E402
from mempo_agents.engines.base import Request, Sampling, ScoreRow  # noqa: E402
from mempo_agents.engines.guided import GuidedRow, GuidedVocabulary, cost  # noqa: E402
from mempo_agents.engines.hf import HFEngine  # noqa: E402
from mempo_agents.spans import decode_text  # noqa: E402
from mempo_env.errors import DataError, UnknownNameError  # noqa: E402
from mempo_env.protocols import get_protocol, protocol_names  # noqa: E402

LENGTHS = (1, 40, 7, 150, 15)  # of the prompts, in repetitions of a sentence


def requests(lengths=LENGTHS, seed=0):
    return [
        Request(({"role": "user", "content": "Who wrote it? " * n},), seed=seed + index)
        for index, n in enumerate(lengths)
    ]


def true_logprobs(model, generation, temperature=1.0):
    """Of every response token, by one plain forward over prompt and response."""
    ids = torch.tensor(np.concatenate([generation.prompt_ids, generation.response_ids]))[None]
    with torch.inference_mode():
        logprobs = torch.log_softmax(model(ids).logits[0].float() / temperature, dim=-1)
    at = len(generation.prompt_ids) - 1 + np.arange(len(generation.response_ids))
    return logprobs[at, generation.response_ids].numpy()


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
@pytest.mark.parametrize("guided", [False, True])
@pytest.mark.parametrize("temperature", [1.0, 0.5, 0.0])
def test_logprobs_are_those_of_a_plain_forward(kind, guided, temperature, monkeypatch):
    # Unequal prompts (padding), prefill in several pieces, rows that leave, forced chunks, tokens taken back.
    monkeypatch.setattr(decoding, "_PREFILL_TOKENS", 64)
    engine = make_tiny_engine(kind)
    engine.end_ids = frozenset({2, *range(300, 320)})
    made = engine.generate(requests(), get_protocol("mempo"), Sampling(90, temperature, guided))
    assert len({len(g.response_ids) for g in made}) > 1
    for generation in made:
        expected = true_logprobs(engine.model, generation, temperature or 1.0)
        mask = generation.policy_mask
        assert mask.any()
        assert np.allclose(generation.logprobs[mask], expected[mask], atol=2e-4)
        assert np.isnan(generation.logprobs[~mask]).all()


@pytest.mark.parametrize("guided", [False, True])
def test_the_seed_alone_decides(tiny_engine, guided):
    sampling, protocol = Sampling(48, 1.0, guided), get_protocol("mem1")
    together = tiny_engine.generate(requests(), protocol, sampling)
    for index, request in enumerate(requests()):
        (alone,) = tiny_engine.generate([request], protocol, sampling)
        assert alone.response_ids.tolist() == together[index].response_ids.tolist()
    backwards = tiny_engine.generate(requests()[::-1], protocol, sampling)[::-1]
    assert [g.text for g in backwards] == [g.text for g in together]
    torch.manual_seed(123)  # nobody else's randomness is used, or disturbed
    before = torch.get_rng_state()
    again = tiny_engine.generate(requests(), protocol, sampling)
    assert torch.equal(before, torch.get_rng_state())
    assert [g.text for g in again] == [g.text for g in together]
    other = tiny_engine.generate(requests(seed=50), protocol, sampling)
    assert all(a.text != b.text for a, b in zip(other, together, strict=True))


def test_the_samples_follow_the_models_distribution(tiny_engine):
    # First tokens of 600 seeds against the model's probabilities: chi-squared over the 20 likeliest and the rest.
    request = requests((3,))[0]
    count = 600
    rows = [Request(request.messages, seed) for seed in range(count)]
    made = tiny_engine.generate(rows, get_protocol("react"), Sampling(1, 1.0))
    with torch.inference_mode():
        p = torch.softmax(tiny_engine.model(torch.tensor(made[0].prompt_ids)[None]).logits[0, -1].double(), -1).numpy()
    seen = np.bincount([g.response_ids[0] for g in made], minlength=len(p))
    top = np.argsort(-p)[:20]
    expected = np.append(p[top], 1 - p[top].sum()) * count
    observed = np.append(seen[top], count - seen[top].sum())
    assert ((observed - expected) ** 2 / expected).sum() < 45.3  # 99.9 % point of chi-squared with 20 degrees


def test_logprobs_are_at_the_sampling_temperature_with_full_support():
    # Logits [2, 0] at T = 0.5 are log-odds of 4: p0 = 1 / (1 + e^-4), log p0 = -0.0181; log p1 = -4.0181.
    row = FakeRow(seed=0)
    decoding.decode(FakeModel([[2.0, 0.0]] * 40), [row], 0.5)
    values = dict(zip(row.ids, row.logprobs, strict=True))
    assert values[0] == pytest.approx(-0.0181, abs=1e-4)
    assert all(value == pytest.approx(-0.0181 if token == 0 else -4.0181, abs=1e-4) for token, value in values.items())


class FakeRow:
    def __init__(self, seed, length=40):
        self.seed, self.length = seed, length
        self.prompt_ids = np.array([0, 1])
        self.pending, self.unread, self.ids, self.logprobs = [], 0, [], []
        self.policy_mask, self.finish_reason, self.done = [], "length", False

    def restriction(self):
        return None

    def take(self, token, logprob):
        self.ids.append(token)
        self.logprobs.append(logprob)
        self.pending = [token]
        self.done = len(self.ids) == self.length


class FakeModel(torch.nn.Module):
    """Gives the logits of a table, by how many tokens were sampled so far; reads nothing."""

    def __init__(self, table, prompt=2):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.table, self.prompt = torch.tensor(table, dtype=torch.float32), prompt
        self.config = SimpleNamespace(name_or_path="fake")
        self.generation_config = SimpleNamespace(eos_token_id=None)

    def forward(self, input_ids, attention_mask=None, past_key_values=None, use_cache=None):
        sampled = attention_mask.sum(dim=1) - self.prompt
        return SimpleNamespace(logits=self.table[sampled.clamp(max=len(self.table) - 1)][:, None])


def says(tokens, end_ids=None, max_new_tokens=200, protocol="mempo", prompt=None):
    """What an engine makes of a model that says exactly these tokens."""
    tokenizer = tiny_tokenizer()
    messages = ({"role": "user", "content": "Q"},)
    size = len(HFEngine(tiny_model(), tokenizer).encode(messages))
    table = np.full((len(tokens), len(tokenizer)), -50.0)
    table[np.arange(len(tokens)), tokens] = 50.0
    engine = HFEngine(FakeModel(table.tolist(), prompt=size), tokenizer)
    if end_ids is not None:
        engine.end_ids = frozenset(end_ids)
    return engine.generate([Request(messages, 0)], get_protocol(protocol), Sampling(max_new_tokens, 0.0))[0]


def encode(text):
    return tiny_tokenizer().encode(text, add_special_tokens=False)


STEP = "<mem>m</mem><think>t</think>"


def test_sampling_stops_behind_the_closing_tag():
    tokens = encode(STEP + "<answer>Oslo</answer>")
    made = says(tokens + encode(" and so on"))
    assert made.text == STEP + "<answer>Oslo</answer>"
    assert made.finish_reason == "stop"
    assert made.response_ids.tolist() == tokens


def test_a_token_that_straddles_the_end_is_kept_whole():
    tokenizer = tiny_tokenizer()
    straddler = next(i for i in range(len(tokenizer)) if decode_text(tokenizer, [i]) == "><")
    tokens = [*encode(STEP + "<answer>Oslo"), *encode("</answer"), straddler]
    made = says(tokens + encode("information> made up"))
    assert made.response_ids.tolist() == tokens
    assert made.finish_reason == "stop"
    assert made.text.endswith("</answer><")
    assert made.token_ends[-1] == len(made.text)
    assert get_protocol("mempo").parse(made.text).response == made.text[:-1]


def test_a_draft_in_the_reasoning_does_not_stop():
    text = "<think>maybe <search>draft</search> no</think><search>real</search>"
    made = says(encode(text) + encode("<search>again</search>"), protocol="mem1")
    assert made.text == text
    assert made.finish_reason == "stop"


def test_a_malformed_action_stops_too():
    text = STEP + "<tool_call>{broken}</tool_call>"
    assert says(encode(text) + encode("<answer>x</answer>")).text == text


def test_every_end_token_ends_and_is_kept():
    body = encode("Hello")
    for end in (2, 300):
        made = says([*body, end, *body], end_ids={2, 300})
        assert made.finish_reason == "eos"
        assert made.response_ids.tolist() == [*body, end]
        assert made.text == "Hello"
        assert made.token_ends[-1] == made.token_ends[-2] == 5
        assert made.policy_mask.all()
    made = says([*body, 2, *body], end_ids={300}, max_new_tokens=len(body) + 2)
    assert made.finish_reason == "length"
    assert made.response_ids[len(body)] == 2


def test_end_tokens_come_from_the_generation_config_and_the_tokenizer():
    model = tiny_model()
    model.generation_config.eos_token_id = [0, 9]
    assert HFEngine(model, tiny_tokenizer()).end_ids == {0, 9, 2}


def test_the_budget_is_what_the_window_leaves():
    engine = make_tiny_engine(window_tokens=64)
    fits = next(n for n in itertools.count(1) if len(engine.encode(requests((n + 1,))[0].messages)) > 60)
    made = engine.generate(requests((fits, 40, 1)), get_protocol("mempo"), Sampling(32, 1.0))
    room = 64 - len(made[0].prompt_ids)
    assert 0 < room < 32
    assert len(made[0].response_ids) <= room
    assert len(made[1].prompt_ids) > 64
    assert made[1].finish_reason == "length"
    for name in ("response_ids", "logprobs", "policy_mask", "token_ends"):
        assert len(getattr(made[1], name)) == 0
    assert made[1].text == ""
    assert len(made[2].response_ids) > 0
    assert all(len(g.prompt_ids) + len(g.response_ids) <= 64 for g in (made[0], made[2]))


@pytest.mark.parametrize("name", protocol_names())
@pytest.mark.parametrize("temperature", [1.0, 3.0, 0.0])
def test_guided_steps_are_always_well_formed(tiny_engine, name, temperature):
    protocol = get_protocol(name)
    made = tiny_engine.generate(requests((2, 5) * 6), protocol, Sampling(100, temperature, guided=True))
    for generation in made:
        action = protocol.parse(generation.text, generation.finish_reason)
        assert action.format_valid
        assert action.response == generation.text
        assert len(generation.response_ids) <= 100
        assert decode_text(tiny_engine.tokenizer, generation.response_ids) == generation.text
    if temperature == 1.0:
        assert {str(protocol.parse(g.text).kind) for g in made} == {"search", "answer"}


@pytest.mark.parametrize("name", protocol_names())
def test_guided_last_steps_are_answers(tiny_engine, name):
    protocol = get_protocol(name)
    last = [replace(request, last_step=True) for request in requests((2, 5) * 6)]
    for generation in tiny_engine.generate(last, protocol, Sampling(100, 1.0, guided=True)):
        action = protocol.parse(generation.text, generation.finish_reason)
        assert (str(action.kind), action.format_valid) == ("answer", True)


def test_what_guidance_forces_is_not_the_policys(tiny_engine):
    protocol = get_protocol("mempo")
    for generation in tiny_engine.generate(requests(), protocol, Sampling(100, 1.0, guided=True)):
        starts = np.concatenate([[0], generation.token_ends[:-1]])
        pieces = [generation.text[a:b] for a, b in zip(starts, generation.token_ends, strict=True)]
        forced = "".join(p for p, mine in zip(pieces, generation.policy_mask, strict=True) if not mine)
        for tag in ("<mem>", "</mem>", "<think>", "</think>"):
            assert forced.count(tag) == 1
        free = "".join(p for p, mine in zip(pieces, generation.policy_mask, strict=True) if mine)
        action = protocol.parse(generation.text)
        assert action.argument in free or action.argument.strip() in free


def guided_row(plan_of="mempo", max_new_tokens=120):
    vocabulary = GuidedVocabulary(tiny_tokenizer(), {2})
    return GuidedRow(vocabulary, get_protocol(plan_of).plan(), np.array([1]), 0, max_new_tokens)


def write(row, *texts):
    for text in texts:
        for token in encode(text):
            row.take(token, -1.0)


def test_a_slot_ends_where_the_model_closes_it():
    row = guided_row()
    write(row, "Oslo.", "</mem>")
    # The tokens of the tag were read one by one as they came, all but the last; now they are taken back.
    assert row.unread == len(encode("</mem>")) - 1 > 0
    assert decode_text(tiny_tokenizer(), row.ids) == "<mem>Oslo.</mem>\n<think>"
    assert row.policy_mask.count(True) == len(encode("Oslo."))
    row.take(2, -1.0)  # an end token closes a slot as well; a blank thought is allowed
    assert decode_text(tiny_tokenizer(), row.ids).endswith("<think></think>\n<")
    assert row.unread == 0


class Led(GuidedRow):
    """Samples the given tokens first, then freely."""

    script = ()

    def restriction(self):
        if self.script and not self._branches:
            token, self.script = self.script[0], self.script[1:]
            return decoding.Restriction(allow=(token,))
        return super().restriction()


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_what_is_taken_back_is_as_if_it_had_never_been_read(kind):
    engine = make_tiny_engine(kind)
    vocabulary = GuidedVocabulary(engine.tokenizer, engine.end_ids)
    rows = []
    for seed, text in enumerate(["Oslo", "Ada Berg was born", ""]):
        row = Led(vocabulary, get_protocol("mempo").plan(), engine.encode(requests()[seed].messages), seed, 100)
        row.script = (*encode(text), *encode("</mem>"))
        rows.append(row)
    decoding.decode(engine.model, rows, 1.0)
    for row, text in zip(rows, ["Oslo", "Ada Berg was born", ""], strict=True):
        made = engine._generation(row)
        assert made.text.startswith(f"<mem>{text}</mem>\n<think>")
        expected = true_logprobs(engine.model, made)
        assert np.allclose(made.logprobs[made.policy_mask], expected[made.policy_mask], atol=2e-4)


def test_a_required_slot_cannot_begin_with_its_end():
    row = guided_row()
    row.take(2, -1.0)
    row.take(2, -1.0)
    allowed = row.restriction().allow
    tool = next(token for token in allowed if decode_text(tiny_tokenizer(), [token]).startswith("t"))
    assert len(allowed) == 2
    row.take(tool, -0.7)
    assert row.logprobs[-1] != row.logprobs[-1]
    assert -0.7 in row.logprobs
    forbid = row.restriction().forbid
    for token, text in enumerate(GuidedVocabulary(tiny_tokenizer(), {2}).texts):
        assert forbid[token] == (not text.strip() or any(c in '"\\' or c < " " for c in text) or token < 3), text
    write(row, "river")
    assert row.restriction() is None
    write(row, '"')
    assert row.done
    assert get_protocol("mempo").parse(decode_text(tiny_tokenizer(), row.ids)).argument == "river"


def test_slots_keep_to_their_share_of_the_budget():
    row = guided_row(max_new_tokens=120)
    vocabulary = GuidedVocabulary(tiny_tokenizer(), {2})
    forced, slots = cost(vocabulary, get_protocol("mempo").plan())
    memory_share = get_protocol("mempo").plan()[1].share
    a = encode("a")[0]
    count = 0
    while "</mem>" not in decode_text(tiny_tokenizer(), row.ids):
        row.take(a, -1.0)
        count += 1
    assert count == int(memory_share * (120 - forced))
    with pytest.raises(ValueError, match=f"at least {forced + slots} tokens per response"):
        guided_row(max_new_tokens=forced + slots - 1)


def test_guided_in_a_window_that_is_nearly_full_makes_no_request():
    engine = make_tiny_engine(window_tokens=96)
    made = engine.generate(requests((1, 10)), get_protocol("mempo"), Sampling(80, 1.0, guided=True))
    assert made[0].finish_reason == "stop"
    assert made[1].finish_reason == "length"
    assert made[1].text == ""
    with pytest.raises(ValueError, match="Guided decoding needs at least"):
        engine.generate(requests((1,)), get_protocol("mempo"), Sampling(10, 1.0, guided=True))


def test_a_choice_follows_the_models_own_preference():
    # Whatever else is likelier, only the two openings count: logits 1 and 0 give 73 % to 27 %.
    table = [[5.0, 1.0, 0.0]]
    picked = []
    for seed in range(400):
        row = FakeRow(seed, length=1)
        row.restriction = lambda: decoding.Restriction(allow=(1, 2))
        decoding.decode(FakeModel(table), [row], 1.0)
        picked.append(row.ids[0])
        assert row.logprobs[0] == pytest.approx(
            math.log(math.exp(2 - row.ids[0]) / (math.exp(5) + math.e + 1)), abs=1e-4
        )
    assert set(picked) == {1, 2}
    assert picked.count(1) / 400 == pytest.approx(1 / (1 + math.exp(-1)), abs=0.07)


def test_the_prompts_logits_are_never_materialised(tiny_engine, monkeypatch):
    rows = []
    head = tiny_engine.model.lm_head
    original = type(head).forward
    monkeypatch.setattr(head, "forward", lambda x: (rows.append(x.shape[1]), original(head, x))[1])
    tiny_engine.generate(requests(), get_protocol("mempo"), Sampling(5, 1.0))
    assert set(rows) == {1}


def test_score_is_a_plain_forwards_logprob(tiny_engine):
    (generation,) = tiny_engine.generate(requests((9,)), get_protocol("mempo"), Sampling(30, 1.0))
    (scored,) = tiny_engine.score([ScoreRow(generation.prompt_ids, generation.response_ids)])
    assert scored.dtype == np.float32
    assert np.allclose(scored, generation.logprobs, atol=2e-4)


def test_the_fingerprint_is_that_of_the_weights():
    a, b = make_tiny_engine(), make_tiny_engine()
    assert a.fingerprint == b.fingerprint != make_tiny_engine(seed=1).fingerprint
    before = a.fingerprint
    with torch.no_grad():
        a.model.lm_head.weight[0, 0] += 1
    assert a.fingerprint != before
    assert HFEngine(tiny_model().bfloat16(), tiny_tokenizer()).fingerprint != before


def test_weights_may_change_between_calls():
    engine = make_tiny_engine()
    sampling = Sampling(20, 0.0)
    before = engine.generate(requests(), get_protocol("mempo"), sampling)
    other = tiny_model(seed=1)
    engine.model.load_state_dict(other.state_dict())
    after = engine.generate(requests(), get_protocol("mempo"), sampling)
    cold = HFEngine(other, tiny_tokenizer()).generate(requests(), get_protocol("mempo"), sampling)
    assert [g.text for g in after] == [g.text for g in cold] != [g.text for g in before]


def test_it_leaves_the_model_in_the_mode_it_was_in():
    engine = make_tiny_engine()
    engine.model.train()
    engine.generate(requests((1,)), get_protocol("mempo"), Sampling(2))
    assert engine.model.training


def test_a_folder_loads_and_bad_names_are_explained(tmp_path):
    tiny_model().save_pretrained(tmp_path / "m")
    tiny_tokenizer().save_pretrained(tmp_path / "m")
    engine = get_engine("hf", str(tmp_path / "m"), dtype="float32", device="cpu")
    made, known = (
        e.generate(requests(), get_protocol("mempo"), Sampling(10, 0.0)) for e in (engine, make_tiny_engine())
    )
    assert [g.text for g in made] == [g.text for g in known]
    counted = get_engine("scripted", str(tmp_path / "m"))
    assert counted.encode_text("Oslo").tolist() == encode("Oslo")
    assert counted.tokenizer_name == str(tmp_path / "m")
    with pytest.raises(DataError, match=r"nothing': there is no such folder, and a hub name is .*Embedded: .*smollm2"):
        get_engine(f"hf:{tmp_path / 'nothing'}")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="expected a folder with a transformers model"):
        get_engine(f"hf:{tmp_path / 'empty'}")
    with pytest.raises(UnknownNameError, match="Did you mean 'bfloat16'"):
        get_engine("hf", str(tmp_path / "m"), dtype="bfloat61")
    with pytest.raises(ValueError, match="needs its tokenizer"):
        HFEngine(tiny_model())
    with pytest.raises(ValueError, match="4096 positions"):
        make_tiny_engine(window_tokens=5000)
    with pytest.raises(ValueError, match="temperature >= 0"):
        engine.generate([], get_protocol("mempo"), Sampling(10, -1.0))
    assert engine.generate([], get_protocol("mempo"), Sampling()) == []
