"""Models behind a server: exact tokens where the server has them, honest NaN where not, failures that fail alone."""

import dataclasses
import json
import logging
import math
import pickle
import re
import subprocess
import sys
import time

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("httpx")

from agents_world import QUESTIONS, env_kwargs  # noqa: E402
from model_stand_in import MODEL, ModelStandIn, Script  # noqa: E402
from tiny import tiny_model, tiny_tokenizer  # noqa: E402

from mempo_agents.engines.base import Request, Sampling, ScoreRow  # noqa: E402
from mempo_agents.engines.chat_text import close_action  # noqa: E402
from mempo_agents.engines.openai import OpenAIEngine  # noqa: E402
from mempo_agents.files import read_trajectories, write_trajectories  # noqa: E402
from mempo_agents.policies import get_policy  # noqa: E402
from mempo_agents.rollout import rollout  # noqa: E402
from mempo_agents.spans import decode_text  # noqa: E402
from mempo_agents.tokenizers import WordTokenizer  # noqa: E402
from mempo_env.errors import DataError, EngineError, UnknownNameError  # noqa: E402
from mempo_env.protocols import get_protocol  # noqa: E402
from mempo_env.retrieval.json_client import Patience  # noqa: E402
from mempo_env.types import StopReason, Task  # noqa: E402

FAST = Patience(connect_seconds=2, read_seconds=20, total_seconds=30, retries=2, backoff_seconds=0.01)
HASTY = Patience(connect_seconds=1, read_seconds=0.3, total_seconds=0.6, retries=3, backoff_seconds=0.01)
MEMPO = get_protocol("mempo")
STEP = "<mem>m</mem><think>t</think>"


def requests(lengths=(1, 12, 7), seed=0):
    return [
        Request(({"role": "user", "content": "Who wrote it? " * n},), seed=seed + index)
        for index, n in enumerate(lengths)
    ]


@pytest.fixture(scope="module")
def server():
    with ModelStandIn(tiny_model(), tiny_tokenizer()) as running:
        yield running


def connect(server, **kwargs):
    return OpenAIEngine(server.url, MODEL, **{"tokenizer": tiny_tokenizer(), "patience": FAST, **kwargs})


def plain_logprobs(model, generation, temperature=1.0):
    ids = torch.tensor(np.concatenate([generation.prompt_ids, generation.response_ids]))[None]
    with torch.inference_mode():
        logprobs = torch.log_softmax(model(ids).logits[0].double() / temperature, dim=-1)
    at = len(generation.prompt_ids) - 1 + np.arange(len(generation.response_ids))
    return logprobs[at, generation.response_ids].numpy()


def says(tokens, *, protocol="mempo", max_new_tokens=200, **kwargs):
    """The engine's generation, and the requests, of a model that says exactly these tokens."""
    tokenizer = tiny_tokenizer()
    request = Request(({"role": "user", "content": "Q"},), 3)
    text = tokenizer.apply_chat_template(request.messages, tokenize=False, add_generation_prompt=True)
    prompt = len(tokenizer.encode(text, add_special_tokens=False))
    with ModelStandIn(Script(tokens, prompt, len(tokenizer)), tokenizer, vllm=kwargs.pop("vllm", True)) as server:
        engine = connect(server, **kwargs)
        (made,) = engine.generate([request], get_protocol(protocol), Sampling(max_new_tokens, 0.0))
        return made, [body for route, body in server.bodies if route != "models"]


def encode(text):
    return tiny_tokenizer().encode(text, add_special_tokens=False)


def test_it_is_the_engine_of_this_process_at_the_other_end_of_a_wire(server, tiny_engine):
    engine = connect(server)
    assert (engine.name, engine.api, engine.window_tokens) == ("openai", "completions", 4095)
    mine = engine.generate(requests(), MEMPO, Sampling(40, 0.0))
    theirs = tiny_engine.generate(requests(), MEMPO, Sampling(40, 0.0))
    for a, b in zip(mine, theirs, strict=True):
        for name in ("prompt_ids", "response_ids", "token_ends", "policy_mask"):
            assert getattr(a, name).tolist() == getattr(b, name).tolist()
            assert getattr(a, name).dtype == getattr(b, name).dtype
        assert (a.text, a.finish_reason, a.error) == (b.text, b.finish_reason, None)
        assert a.logprobs.dtype == np.float32
        assert np.allclose(a.logprobs, b.logprobs, atol=2e-4)


def test_the_seed_alone_decides_and_the_support_is_full(server):
    engine = connect(server, max_concurrent=3)
    together = engine.generate(requests(), MEMPO, Sampling(12, 1.0))
    for request, made in zip(requests(), together, strict=True):
        (alone,) = engine.generate([request], MEMPO, Sampling(12, 1.0))
        assert alone.response_ids.tolist() == made.response_ids.tolist()
        assert np.allclose(made.logprobs, plain_logprobs(server.model, made), atol=1e-4)
    other = engine.generate(requests(seed=50), MEMPO, Sampling(12, 1.0))
    assert all(a.text != b.text for a, b in zip(other, together, strict=True))
    firsts = engine.generate([dataclasses.replace(requests()[0], seed=s) for s in range(24)], MEMPO, Sampling(1, 1.0))
    assert len({int(made.response_ids[0]) for made in firsts}) > 2  # the server's own default keeps two


def test_logprobs_are_those_of_the_sampling_temperature_or_unknown(server):
    (unknown,) = connect(server).generate(requests((2,)), MEMPO, Sampling(10, 0.5))
    assert np.isnan(unknown.logprobs).all()
    assert unknown.policy_mask.all()
    with ModelStandIn(tiny_model(), tiny_tokenizer(), processed=True) as other:
        engine = connect(other, logprobs_at="processed")
        (made,) = engine.generate(requests((2,)), MEMPO, Sampling(10, 0.5))
        assert np.allclose(made.logprobs, plain_logprobs(other.model, made, 0.5), atol=1e-4)


def test_sampling_stops_behind_the_token_that_completes_the_action():
    tokens = encode(STEP + "<answer>Oslo</answer>")
    made, bodies = says(tokens + encode(" and so on"))
    assert (made.text, made.finish_reason) == (STEP + "<answer>Oslo</answer>", "stop")
    assert made.response_ids.tolist() == tokens
    assert bodies[0]["stop"] == ["</tool_call>", "</answer>"]
    tokenizer = tiny_tokenizer()
    straddler = next(i for i in range(len(tokenizer)) if decode_text(tokenizer, [i]) == "><")
    tokens = [*encode(STEP + "<answer>Oslo"), *encode("</answer"), straddler]
    made, _ = says(tokens + encode("information> made up"))
    assert made.response_ids.tolist() == tokens
    assert made.text.endswith("</answer><")
    assert made.token_ends[-1] == len(made.text)


def test_a_draft_in_the_reasoning_is_written_on():
    text = "<think>maybe <search>draft</search> no</think><search>real</search>"
    made, bodies = says(encode(text) + encode("<search>again</search>"), protocol="mem1", max_new_tokens=150)
    assert (made.text, made.finish_reason) == (text, "stop")
    assert made.response_ids.tolist() == encode(text)
    assert len(bodies) == 2
    written = len(bodies[1]["prompt"]) - len(bodies[0]["prompt"])
    assert decode_text(tiny_tokenizer(), bodies[1]["prompt"][-written:]).endswith("draft</search>")
    assert bodies[1]["max_tokens"] == 150 - written
    assert bodies[1]["seed"] != bodies[0]["seed"]


def test_end_tokens_end_and_are_kept():
    body = encode("Hello")
    made, _ = says([*body, 2, *body])
    assert (made.text, made.finish_reason) == ("Hello", "eos")
    assert made.response_ids.tolist() == [*body, 2]
    assert made.token_ends[-1] == 5
    made, bodies = says(body * 20, max_new_tokens=9)
    assert (len(made.response_ids), made.finish_reason) == (9, "length")
    assert len(bodies) == 1


def test_the_window_is_the_servers(server):
    with ModelStandIn(server.model, tiny_tokenizer(), max_model_len=80) as small:
        engine = connect(small)
        made = engine.generate(requests((1, 40, 5)), MEMPO, Sampling(60, 1.0))
        assert [len(g.response_ids) > 0 for g in made] == [True, False, True]
        assert (made[1].finish_reason, made[1].text, made[1].error) == ("length", "", None)
        assert all(len(g.prompt_ids) + len(g.response_ids) <= 79 for g in (made[0], made[2]))
        # A server that does not say its window refuses, and the episode ends the same way.
        chat = connect(small, api="chat", window_tokens=4096)
        (refused,) = chat.generate(requests((40,)), MEMPO, Sampling(60, 1.0))
        assert (refused.finish_reason, refused.text, refused.error) == ("length", "", None)


@pytest.mark.parametrize("echo_only", [False, True])
def test_scores_are_those_of_a_plain_forward(tiny_engine, echo_only):
    rng = np.random.default_rng(0)
    rows = [ScoreRow(rng.integers(3, 400, c), rng.integers(3, 400, t)) for c, t in ((9, 4), (30, 1), (2, 12))]
    rows += [rows[0], ScoreRow(np.concatenate([rows[0].context_ids, rows[0].target_ids[:1]]), rows[0].target_ids[1:])]
    rows.append(ScoreRow(rows[1].context_ids, np.array([], dtype=np.int64)))
    with ModelStandIn(tiny_model(), tiny_tokenizer(), echo_only=echo_only) as server:
        engine = connect(server)
        scored = engine.score(rows)
        expected = tiny_engine.score(rows)
        for mine, theirs in zip(scored, expected, strict=True):
            assert mine.dtype == np.float32
            assert np.allclose(mine, theirs, atol=2e-4)
        asked = sum(route == "completions" for route, _ in server.bodies)
        assert asked == (3 if not echo_only else 6)  # equal sequences once; an unknown field is tried before echo
        engine.score(rows)
        assert sum(route == "completions" for route, _ in server.bodies) == asked + 3
        with pytest.raises(ValueError, match="context of at least one token"):
            engine.score([ScoreRow(np.array([], dtype=np.int64), np.array([5]))])
        with pytest.raises(ValueError, match="4100 tokens, more than the window of 4095"):
            engine.score([ScoreRow(np.full(4000, 5), np.full(100, 6))])
        assert engine.score([]) == []


def tampered(change):
    """A fault that alters the right answer of the completions route."""

    def fault(route, body, number):
        if route == "models":
            return None
        status, value = SOUND.serve(route, body)
        return change(status, value)

    return fault


SOUND = ModelStandIn(tiny_model(), tiny_tokenizer())


def put(**fields):
    def change(status, value):
        value["choices"][0].update(fields)
        return status, value

    return change


ROW = [ScoreRow(np.array([5, 6, 7]), np.array([8, 9]))]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (put(prompt_token_ids=[5, 6, 7, 8, 10]), "other tokens than were sent"),
        (put(prompt_logprobs=[None, {"6": {"logprob": -1.0}}]), "of 5 prompt tokens, got 2"),
        (put(prompt_logprobs=[None, *[{"1": {"logprob": -1.0}}] * 4]), r"prompt token 1 \(id 6\)"),
        (put(prompt_logprobs=[None] * 5), r"prompt token 1 \(id 6\), got None"),
        (lambda *_: (500, {}), "status 500"),
    ],
)
def test_scores_that_are_not_those_of_the_row_are_refused(change, message):
    with ModelStandIn(tiny_model(), tiny_tokenizer(), fault=tampered(change)) as server:
        engine = connect(server)
        with pytest.raises(EngineError, match=message):
            engine.score(ROW)


def test_servers_that_cannot_score_say_so(server):
    with ModelStandIn(tiny_model(), tiny_tokenizer(), scores=False) as other:
        engine = connect(other)
        with pytest.raises(NotImplementedError, match="neither by prompt_logprobs nor by echo"):
            engine.score(ROW)
    with pytest.raises(NotImplementedError, match="a chat server gives no log-probabilities"):
        connect(server, api="chat").score(ROW)


def test_chat_knows_the_text_and_says_that_it_knows_no_tokens():
    made, (body,) = says(
        encode(STEP + "<answer>Oslo</answer>") + encode(" and so on"), vllm=False, tokenizer=None, max_new_tokens=90
    )
    assert (made.text, made.finish_reason) == (STEP + "<answer>Oslo</answer>", "stop")
    assert np.isnan(made.logprobs).all()
    assert len(made.logprobs) == len(made.response_ids) == len(made.token_ends) == made.policy_mask.sum() > 5
    assert made.token_ends[-1] == len(made.text)
    assert body == {
        "model": MODEL, "messages": [{"role": "user", "content": "Q"}], "max_tokens": 90, "temperature": 0.0,
        "top_p": 1.0, "seed": 3, "stop": ["</tool_call>", "</answer>"],
    }  # fmt: skip
    made, (body,) = says(encode(STEP + "<answer>Oslo</answer>"), api="chat")
    assert (made.text, made.finish_reason) == (STEP + "<answer>Oslo</answer>", "stop")
    assert body["include_stop_str_in_output"] is True
    assert made.response_ids.tolist() == encode(made.text)
    for text, reason in (("Hello", "eos"), (STEP + "<answer>Os", "eos")):
        made, _ = says([*encode(text), 2], api="chat")
        assert (made.text, made.finish_reason) == (text, reason)
    made, _ = says(encode("on and on " * 9), vllm=False, max_new_tokens=6)
    assert made.finish_reason == "length"


def test_chat_fields_are_added_renamed_and_left_out():
    with ModelStandIn(
        tiny_model(), tiny_tokenizer(), fault=lambda r, b, n: None if r == "models" else CANNED
    ) as server:
        engine = connect(
            server, api="chat", chat_limit_field="max_completion_tokens", chat_fields={"stop": None, "user": "me"}
        )
        (made,) = engine.generate(requests((1,)), MEMPO, Sampling(33, 1.0))
        body = server.bodies[-1][1]
        assert body["max_completion_tokens"] == 33
        assert body["user"] == "me"
        assert not {"stop", "max_tokens"} & set(body)
        assert made.text == "Hi \ufffd."
        assert made.finish_reason == "eos"


CANNED = (200, {"choices": [{"message": {"role": "assistant", "content": "Hi \ud800."}, "finish_reason": "stop"}]})


@pytest.mark.parametrize(
    ("text", "closed", "reason"),
    [
        ("<answer>Oslo", "<answer>Oslo</answer>", "stop"),
        ("<tool_call>{}", "<tool_call>{}</tool_call>", "stop"),
        ("<think><answer>no</think><tool_call>{}", "<think><answer>no</think><tool_call>{}</tool_call>", "stop"),
        ("<answer>Oslo</answer>", "<answer>Oslo</answer>", "stop"),
        ("<answer>Oslo</answer>\n", "<answer>Oslo</answer>\n", "stop"),
        ("<answer>Oslo</answer> there", "<answer>Oslo</answer> there", "eos"),
        ("I do not know.", "I do not know.", "eos"),
        ("", "", "eos"),
    ],
)
def test_a_stop_string_that_was_cut_off_is_put_back(text, closed, reason):
    assert close_action(text, MEMPO.stop, complete=False) == (closed, reason)
    if closed != text:
        assert close_action(text, MEMPO.stop, complete=True) == (text, "eos")


def answer(**choice):
    return lambda *_: (200, {"choices": [choice]})


@pytest.mark.parametrize(
    ("api", "change", "message"),
    [
        ("completions", lambda *_: (500, {"error": "out of memory"}), r"status 500: .*out of memory.*attempt 3 of 3"),
        ("completions", lambda *_: (200, b"<html>"), "no JSON"),
        ("completions", lambda *_: (200, {"choices": []}), "expected one choice"),
        ("completions", lambda *_: (200, []), "expected one choice"),
        ("completions", put(token_ids=[5, 6, 7, 8]), "one log-probability per token"),
        ("completions", put(token_ids=[], logprobs={"tokens": [], "token_logprobs": []}), "at least one token"),
        ("completions", put(token_ids=None, logprobs={"tokens": ["a"], "token_logprobs": [-1]}), "ids of the sampled"),
        ("completions", put(logprobs=None), "a log-probability for each"),
        ("completions", put(logprobs={"token_logprobs": [None] * 3}), "a log-probability for each"),
        ("completions", put(finish_reason="abort"), "got 'abort'"),
        ("chat", answer(message={"content": "x"}, finish_reason="content_filter"), "content_filter"),
        ("chat", answer(message={"content": 7}, finish_reason="stop"), "Expected a text"),
        ("chat", answer(finish_reason="stop"), "Expected a text"),
    ],
)
def test_answers_that_make_no_sense_are_typed_errors(api, change, message):
    """Of one request: the others of the batch are not touched."""
    with ModelStandIn(tiny_model(), tiny_tokenizer()) as server:
        engine = connect(server, api=api)
        broken = requests()[1].messages[0]["content"]

        def fault(route, body, number):
            if route != "models" and broken in (
                str(body.get("messages")) + decode_text(tiny_tokenizer(), body.get("prompt", []))
            ):
                return tampered(change)(route, body, number)

        server.fault = fault
        made = engine.generate(requests(), MEMPO, Sampling(3, 1.0))
        assert [g.error is None for g in made] == [True, False, True]
        assert re.search(message, made[1].error)
        assert (made[1].text, made[1].finish_reason, len(made[1].response_ids)) == ("", "error", 0)
        assert len(made[1].prompt_ids) > 0


def test_a_server_that_shows_ids_the_older_way_is_understood():
    with ModelStandIn(tiny_model(), tiny_tokenizer(), fault=tampered(put(token_ids=None))) as server:
        (made,) = connect(server).generate(requests((2,)), MEMPO, Sampling(12, 0.0))
        assert np.allclose(made.logprobs, plain_logprobs(server.model, made), atol=1e-4)


def test_patience_has_an_end_and_trouble_that_passes_is_waited_out():
    with ModelStandIn(tiny_model(), tiny_tokenizer()) as server:
        engine = connect(server, patience=HASTY)
        server.fault = lambda route, body, number: route != "models" and time.sleep(1.5)
        began = time.perf_counter()
        with pytest.raises(EngineError, match=r"ReadTimeout|total deadline|total_seconds"):
            engine.generate(requests((1,)), MEMPO, Sampling(4, 0.0))
        assert time.perf_counter() - began < 10
        patient = connect(server)
        seen = [n for n, (route, _) in enumerate(server.bodies) if route == "completions"]
        server.fault = lambda route, body, number: (503, {}) if route != "models" and number < len(seen) + 2 else None
        (made,) = patient.generate(requests((1,)), MEMPO, Sampling(4, 0.0))
        assert made.error is None


def test_a_server_that_is_gone_ends_the_run_and_one_that_never_worked_too():
    def play(engine):
        return list(rollout(get_policy("mempo", engine), [Task("a", QUESTIONS[2:3], "test")], env_kwargs=env_kwargs()))

    with ModelStandIn(tiny_model(), tiny_tokenizer()) as server:
        engine = connect(server)
        assert engine.generate(requests(), MEMPO, Sampling(4, 0.0))[0].error is None
        server.fault = lambda route, body, number: None if route == "models" else (400, {"error": "no such field"})
        made = engine.generate(requests(), MEMPO, Sampling(4, 0.0))  # it worked before and lives: these fail alone
        assert all("no such field" in g.error for g in made)
        with pytest.raises(EngineError, match="no such field"):
            play(connect(server))
    with pytest.raises(EngineError):
        play(engine)


def test_a_failed_request_fails_its_episode_and_no_other(tmp_path):
    tasks = [Task("fine", QUESTIONS[2:3], "test"), Task("unlucky", QUESTIONS[1:2], "test")]

    def fault(route, body, number):
        return (500, {"error": "lost"}) if "Rome" in str(body) and "How long" in str(body) else None

    with ModelStandIn(tiny_model(), tiny_tokenizer(), fault=fault) as server:
        policy = get_policy("mempo", connect(server, api="chat", tokenizer=None), Sampling(12, 1.0))
        rows = {row.task_id: row for row in rollout(policy, tasks, env_kwargs=env_kwargs(max_steps=2), batch_size=2)}
    failed, fine = rows["unlucky"], rows["fine"]
    assert failed.stop_reason == StopReason.FAILED
    assert math.isnan(failed.reward)
    assert (failed.em, failed.f1, failed.steps, failed.reward_parts) == ((), (), (), {})
    assert "lost" in failed.error
    assert fine.stop_reason == StopReason.MAX_STEPS
    assert fine.reward == 0.0
    assert len(fine.steps) == 2
    assert fine.metadata == {"engine": "openai-chat", "tokenizer": "word"}
    write_trajectories(tmp_path / "t.jsonl", rows.values())
    assert {row.task_id: row.stop_reason for row in read_trajectories(tmp_path / "t.jsonl")} == {
        "unlucky": "failed", "fine": "max_steps",
    }  # fmt: skip


def test_requests_run_side_by_side_up_to_a_bound():
    with ModelStandIn(tiny_model(), tiny_tokenizer()) as server:
        server.pause = 0.05
        connect(server, max_concurrent=3).generate(requests(range(1, 9)), MEMPO, Sampling(1, 0.0))
        assert server.most == 3


SECRET = "sk-very-secret-0123456789"


def test_the_key_is_sent_and_nowhere_else(monkeypatch, caplog, tmp_path):
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("SOME_KEY", SECRET)
    with ModelStandIn(tiny_model(), tiny_tokenizer(), key=SECRET) as server:
        engine = connect(server, api_key_env="SOME_KEY")
        made = engine.generate(requests((1,)), MEMPO, Sampling(4, 0.0))
        copy = pickle.loads(pickle.dumps(engine))
        assert copy.generate(requests((1,)), MEMPO, Sampling(4, 0.0))[0].text == made[0].text
        for shown in (repr(engine), repr(engine.server), engine.fingerprint, repr(made), caplog.text):
            assert SECRET not in shown
        assert SECRET.encode() not in pickle.dumps(engine)
        server.key = "another"  # it echoes what it was sent, as some do
        server.fault = None
        with pytest.raises(EngineError, match=r"Bearer \[key\]") as refused:
            engine.generate(requests((1,)), MEMPO, Sampling(4, 0.0))
        assert SECRET not in str(refused.value)
        with pytest.raises(EngineError, match=r"\$SOME_KEY holds one that it refuses"):
            connect(server, api_key_env="SOME_KEY")
        with pytest.raises(EngineError, match=r"\$UNSET_KEY is not set"):
            connect(server, api_key_env="UNSET_KEY")
    for url in ("http://me:pass@host/v1", "http://host/v1?key=pass"):
        with pytest.raises(ValueError, match="without password, query or fragment") as refused:
            OpenAIEngine(url, MODEL)
        assert "pass@" not in str(refused.value)
        assert "key=pass" not in str(refused.value)


def test_wrong_arguments_are_named(server, monkeypatch):
    engine = connect(server)
    with pytest.raises(ValueError, match="cannot force the protocol's tags"):
        engine.generate(requests(), MEMPO, Sampling(40, 1.0, guided=True))
    with pytest.raises(ValueError, match="temperature >= 0"):
        engine.generate(requests(), MEMPO, Sampling(40, -1.0))
    assert engine.generate([], MEMPO, Sampling()) == []
    with pytest.raises(UnknownNameError, match="Known: tiny"):
        OpenAIEngine(server.url, "tinny", tokenizer=tiny_tokenizer(), patience=FAST)
    with pytest.raises(DataError, match=r"--tokenizer.*openai-chat"):
        OpenAIEngine(server.url, MODEL, patience=FAST)
    with pytest.raises(DataError, match="needs the model's own tokenizer"):
        connect(server, tokenizer=WordTokenizer())
    with pytest.raises(EngineError, match="does the address end in /v1"):
        OpenAIEngine("http://127.0.0.1:9/v1", MODEL, patience=HASTY)
    with pytest.raises(ValueError, match="such as 'http://127"):
        OpenAIEngine("localhost:8000", MODEL)
    with pytest.raises(UnknownNameError, match="Unknown api"):
        connect(server, api="responses")
    with pytest.raises(UnknownNameError, match="Unknown logprobs_at"):
        connect(server, logprobs_at="cooked")


def test_chat_needs_no_torch(server):
    code = (
        "import sys; sys.modules['torch'] = None; sys.modules['transformers'] = None\n"
        "from mempo_agents.engines import Request, Sampling, get_engine\n"
        "from mempo_env.protocols import get_protocol\n"
        f"engine = get_engine('openai-chat', {MODEL!r}, base_url={server.url!r})\n"
        "request = Request(({'role': 'user', 'content': 'Q'},), 1)\n"
        "print(engine.generate([request], get_protocol('mempo'), Sampling(5))[0].error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "None", done.stderr


def test_mempo_eval_asks_the_server_and_writes_down_which(server, tmp_path, monkeypatch):
    from typer.testing import CliRunner

    from mempo_agents.cli import app

    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    tokenizer = tmp_path / "tokenizer"
    tiny_tokenizer().save_pretrained(tokenizer)
    arguments = [
        "eval", "--engine", "openai", "--base-url", server.url, "--model", MODEL, "--tokenizer", str(tokenizer),
        "--policies", "mempo", "--objectives", "1", "--tasks", "2", "--max-steps", "1", "--max-new-tokens", "8",
        "--out", str(tmp_path / "out"),
    ]  # fmt: skip
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    written = (tmp_path / "out" / "results.json").read_text()
    run = json.loads(written)["run"]
    assert run["arguments"]["base_url"] == server.url
    assert run["arguments"]["model"] == MODEL
    assert run["engine"]["fingerprint"] == f"{server.url}/completions/{MODEL}"
    assert f"--base-url {server.url}" in run["command"]
    for path in (tmp_path / "out").iterdir():
        assert SECRET not in path.read_text(errors="replace")
    (cell,) = json.loads(written)["cells"]
    assert (cell["engine"], cell["failed"]) == ("openai", 0)
    played = list(read_trajectories(tmp_path / "out" / "trajectories.jsonl"))
    assert all(len(row.steps) == 1 and len(row.steps[0].response_ids) <= 8 for row in played)
    assert not any(np.isnan(row.steps[0].logprobs).any() for row in played)
