"""Protocols: the tables of small cases, hostile input, and the relations between parse, compose and plan."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mempo_env.errors import UnknownNameError
from mempo_env.protocols import (
    TAG_NAMES,
    Choice,
    Forced,
    Free,
    Protocol,
    TagProtocol,
    get_protocol,
    neutralise,
    protocol_names,
    register_protocol,
    replace_surrogates,
)
from mempo_env.protocols import parser as parser_module
from mempo_env.types import Action, ActionKind, InvalidReason, Question, Task

MEMPO, MEM1, REACT, SEARCH_R1 = (get_protocol(name) for name in ("mempo", "mem1", "react", "search_r1"))
ALL = (MEMPO, MEM1, REACT, SEARCH_R1)
BOTH_TOOLS = tuple(get_protocol(p, tools=("search", "visit")) for p in ALL)
S, A, V, X = ActionKind.SEARCH, ActionKind.ANSWER, ActionKind.VISIT, ActionKind.INVALID
R = InvalidReason


def call(arguments: object, name: object = "search") -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def seen(action: Action) -> tuple:
    return action.kind, action.argument, action.reason


# ---- tags ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<search> a </search>", (S, "a", None)),
        ("<search>\n a \n</search>", (S, "a", None)),
        ("<search></search>", (X, "", R.EMPTY)),
        ("<search> \n </search>", (X, "", R.EMPTY)),
        ("<answer></answer>", (X, "", R.EMPTY)),
        ("<search>a", (X, "", R.UNCLOSED)),
        ("a</search>", (X, "", R.MISMATCHED)),
        ("<search>a</answer>", (X, "", R.MISMATCHED)),
        ("<search>a</think></search>", (X, "", R.MISMATCHED)),
        ("<search><search>a</search></search>", (X, "", R.NESTED)),
        ("<search>a<answer>b</answer></search>", (X, "", R.NESTED)),
        ("<answer>a<answer>b</answer></answer>", (X, "", R.NESTED)),
        ("<answer>foo <think>..</think><answer>bar</answer>", (X, "", R.NESTED)),
        ("<think>I could use <search>foo</search></think><answer>x</answer>", (A, "x", None)),
        ("<answer>x</answer><search>q</search>", (A, "x", None)),
        ("<search>q1</search> ok <answer>Rome</answer>", (S, "q1", None)),
        ("<answer>A1</answer> hmm <answer>A2</answer>", (A, "A1", None)),
        ("<Answer>x</Answer>", (X, "", R.NO_ACTION)),
        ("<ANSWER>x</ANSWER>", (X, "", R.NO_ACTION)),
        ("<answer id=1>x</answer>", (X, "", R.MISMATCHED)),
        ("< answer>x</ answer>", (X, "", R.NO_ACTION)),
        ("<answer >x</answer >", (X, "", R.NO_ACTION)),
        ("<answer>x", (X, "", R.UNCLOSED)),
        ("I ran out of room", (X, "", R.NO_ACTION)),
        ("no idea", (X, "", R.NO_ACTION)),
        ("", (X, "", R.NO_ACTION)),
        # a draft inside the reasoning never acts, opened by the policy or by the prompt
        ("<think>maybe <search>draft</search></think><search>real</search>", (S, "real", None)),
        ("maybe <search>draft</search></think><search>real</search>", (S, "real", None)),
        ("<think>never closed <answer>x</answer>", (X, "", R.UNCLOSED)),
        # two closing tags: everything is kept, the action is found, the format is not
        ("<think>a</think> b </think><answer>x</answer>", (A, "x", None)),
        # what the policy writes as a result is its own text: the first action in it acts
        ("<think>t</think><information>fake</information><answer>x</answer>", (A, "x", None)),
        ("a \x00 <answer>\x00x</answer>", (A, "\x00x", None)),
        ("<answer>\ud800x</answer>", (A, "\ufffdx", None)),
    ],
)
@pytest.mark.parametrize("protocol", [MEM1, SEARCH_R1], ids=lambda p: p.name)
def test_small_cases_of_the_tag_protocols(protocol: Protocol, text: str, expected: tuple) -> None:
    assert seen(protocol.parse(text)) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (call({"query": "a"}), (S, "a", None)),
        ("<tool_call>\n" + call({"query": " a "})[11:-12] + "\n</tool_call>", (S, "a", None)),
        # arguments encoded once more are unwrapped, once
        (call('{"query": "capital of Peru"}'), (S, "capital of Peru", None)),
        (call(json.dumps('{"query": "a"}')), (X, "", R.BAD_ARGUMENTS)),
        (call('{"query": "capital of Pe'), (X, "", R.BAD_ARGUMENTS)),
        (call('{"query": "a"} x'), (X, "", R.BAD_ARGUMENTS)),
        (call(["capital of Peru"]), (X, "", R.BAD_ARGUMENTS)),
        (call(42), (X, "", R.BAD_ARGUMENTS)),
        (call(None), (X, "", R.BAD_ARGUMENTS)),
        (call({"query": ["a", "b"]}), (X, "", R.BAD_ARGUMENTS)),
        (call({"query": 3}), (X, "", R.BAD_ARGUMENTS)),
        (call({"q": "a"}), (X, "", R.BAD_ARGUMENTS)),
        (call({"query": ""}), (X, "", R.EMPTY)),
        (call({"query": " \n"}), (X, "", R.EMPTY)),
        (call({"query": "a"}, "lookup"), (X, "", R.UNKNOWN_TOOL)),
        (call({"query": "a"}, None), (X, "", R.UNKNOWN_TOOL)),
        (call({"query": "a"}, ["search"]), (X, "", R.UNKNOWN_TOOL)),
        (call({"url": "a"}, "visit"), (X, "", R.UNKNOWN_TOOL)),  # not offered
        ('<tool_call>{"arguments": {"query": "a"}}</tool_call>', (X, "", R.UNKNOWN_TOOL)),
        ('<tool_call>{"name": "search"}</tool_call>', (X, "", R.BAD_ARGUMENTS)),
        # further keys are ignored
        ('<tool_call>{"id": 1, "name": "search", "arguments": {"query": "a", "k": 3}}</tool_call>', (S, "a", None)),
        # strict JSON
        ('<tool_call>{"name": "search", "arguments": {"query": "a",}}</tool_call>', (X, "", R.MALFORMED_JSON)),
        ("<tool_call>{'name': 'search', 'arguments': {'query': 'a'}}</tool_call>", (X, "", R.MALFORMED_JSON)),
        ('<tool_call>{"name": "search", "arguments": {"query": NaN}}</tool_call>', (X, "", R.MALFORMED_JSON)),
        ('<tool_call>{"name": "search", "arguments": {"k": -Infinity}}</tool_call>', (X, "", R.MALFORMED_JSON)),
        ('<tool_call>{"name": "search", "arguments": {"query": "a\nb"}}</tool_call>', (X, "", R.MALFORMED_JSON)),
        ('<tool_call>{"name": "search", "arguments": {"query": "a"}</tool_call>', (X, "", R.MALFORMED_JSON)),
        ('<tool_call>{"name": "search", "name": "search", "arguments": {}}</tool_call>', (X, "", R.MALFORMED_JSON)),
        (
            '<tool_call>{"name": "search", "arguments": {"query": "a", "query": "b"}}</tool_call>',
            (X, "", R.MALFORMED_JSON),
        ),
        ("<tool_call>```json\n" + call({"query": "a"})[11:-12] + "\n```</tool_call>", (X, "", R.MALFORMED_JSON)),
        ('<tool_call>["search", "a"]</tool_call>', (X, "", R.MALFORMED_JSON)),
        ("<tool_call>42</tool_call>", (X, "", R.MALFORMED_JSON)),
        ("<tool_call></tool_call>", (X, "", R.MALFORMED_JSON)),
        (call({"query": "a"})[:-12] + " x</tool_call>", (X, "", R.MALFORMED_JSON)),
        # closing tags inside a string are text
        (call({"query": "a </tool_call> b"}), (S, "a </tool_call> b", None)),
        (call({"query": "a <answer>x</answer>"}), (S, "a <answer>x</answer>", None)),
        (call({"query": "\ud83d"}), (S, "\ufffd", None)),
        (call({"query": "é \U0001f9e0 \x00"}), (S, "é \U0001f9e0 \x00", None)),
        # tags around it
        (call({"query": "a"})[:-12], (X, "", R.UNCLOSED)),
        ('<tool_call>{"name": "sea', (X, "", R.UNCLOSED)),
        (call({"query": "a"})[:-12] + "</answer>", (X, "", R.MISMATCHED)),
        ("<tool_call>" + call({"query": "a"}) + "</tool_call>", (X, "", R.NESTED)),
        (call({"query": "a"})[:-12] + call({"query": "b"}), (X, "", R.NESTED)),
        # three calls: the first acts, the rest is cut
        (call({"query": "a"}) + call({"query": "b"}) + call({"query": "c"}), (S, "a", None)),
        ("<answer>x; y</answer>", (A, "x; y", None)),
        # another protocol's call is no action here
        ("<search>a</search>", (X, "", R.NO_ACTION)),
    ],
)
@pytest.mark.parametrize("protocol", [MEMPO, REACT], ids=lambda p: p.name)
def test_small_cases_of_the_json_protocols(protocol: Protocol, text: str, expected: tuple) -> None:
    assert seen(protocol.parse(text)) == expected


def test_both_tools_are_read_where_offered() -> None:
    for protocol in BOTH_TOOLS:
        action = protocol.parse(protocol.compose(memory="m", thought="t", query="https://a.b/c", tool="visit"))
        assert (*seen(action), action.format_valid) == (V, "https://a.b/c", None, True)
    mempo = BOTH_TOOLS[0]
    assert seen(mempo.parse(call({"query": "a"}, "visit"))) == (X, "", R.BAD_ARGUMENTS)
    assert seen(SEARCH_R1.parse("<visit>a</visit>")) == (X, "", R.NO_ACTION)


@pytest.mark.parametrize(
    ("text", "finish_reason", "expected"),
    [
        ("long thoughts", "length", R.LENGTH),
        ("<think>long", "length", R.LENGTH),
        ("<answer>long", "length", R.LENGTH),
        ("<answer>a<answer>b", "length", R.NESTED),
        ("<answer></answer>", "length", R.EMPTY),
        ("<answer>x</answer>", "length", None),
        ("<search>a", "stop", R.UNCLOSED),  # engines keep the stop string; its absence is the policy's fault
        ("a", "eos", R.NO_ACTION),
    ],
)
def test_finish_reasons(text: str, finish_reason: str, expected: InvalidReason | None) -> None:
    assert SEARCH_R1.parse(text, finish_reason).reason == expected


# ---- format and what is kept -----------------------------------------------------------------------------------------

CALL = call({"query": "q"})


@pytest.mark.parametrize(
    ("text", "valid", "memory", "thought"),
    [
        (f"<mem>m</mem><think>t</think>{CALL}", True, "m", "t"),
        (f"\n<mem> m\n</mem>\n<think>\nt</think>\n\n{CALL}", True, "m", "t"),
        (f"<mem></mem><think></think>{CALL}", True, "", ""),  # blocks may be empty
        (f"m</mem><think>t</think>{CALL}", True, "m", "t"),  # the prompt opened the first block
        (f"<mem>draft {CALL}</mem><think>t</think>{CALL}", True, f"draft {CALL}", "t"),
        (f"<mem>m</mem>{CALL}", False, "m", None),
        (f"<think>t</think>{CALL}", False, None, "t"),
        (f"t</think>{CALL}", False, None, "t"),
        (f"<think>t</think><mem>m</mem>{CALL}", False, "m", "t"),
        (f"t</think><mem>m</mem>{CALL}", False, "m", "t"),
        (f"<mem>m</mem><mem>n</mem><think>t</think>{CALL}", False, "m", "t"),  # the first one counts
        (f"well <mem>m</mem><think>t</think>{CALL}", False, "m", "t"),
        (f"<mem>m</mem>, <think>t</think>{CALL}", False, "m", "t"),
        (f"<mem>m</mem><think>t</think>so {CALL}", False, "m", "t"),
        (f"<mem>m</mem>t</think>{CALL}", False, "m", None),
        (f"<mem>m<mem>n</mem><think>t</think>{CALL}", False, "m<mem>n", "t"),
        (f"<mem>m</mem><think><information>i</information></think>{CALL}", False, "m", "<information>i</information>"),
        (f'<mem>page shows "</mem>" ; Lima</mem><think>t</think>{CALL}', False, 'page shows "', "t"),
        (f"<mem>m</mem><think>t</think><information>i</information>{CALL}", False, "m", "t"),
        (f"{CALL}<mem>m</mem><think>t</think>", False, None, None),  # cut behind the action
        (f"<mem>m</mem><think>t</think>{CALL} and more", True, "m", "t"),  # what is cut is not judged
        (f"<mem>m</mem><think>t</think>{CALL}<|im_end|>", True, "m", "t"),
    ],
)
def test_format_and_blocks_of_mempo(text: str, valid: bool, memory: str | None, thought: str | None) -> None:
    action = MEMPO.parse(text)
    assert seen(action) == (S, "q", None)
    assert (action.format_valid, action.memory, action.thought) == (valid, memory, thought)


def test_an_invalid_action_is_never_well_formed_but_keeps_its_memory() -> None:
    action = MEMPO.parse("<mem>m</mem><think>t</think><tool_call>{</tool_call> junk")
    assert (action.reason, action.format_valid, action.memory, action.thought) == (R.MALFORMED_JSON, False, "m", "t")
    assert action.response == "<mem>m</mem><think>t</think><tool_call>{</tool_call>"
    assert set(action.spans) == {"memory", "think"}


def test_spans_hold_the_blocks_with_their_tags() -> None:
    text = "<mem> m</mem>\n<think>t</think>\n" + CALL
    action = MEMPO.parse(text + " junk")
    assert action.response == text
    assert {name: text[a:b] for name, (a, b) in action.spans.items()} == {
        "memory": "<mem> m</mem>",
        "think": "<think>t</think>",
        "call": CALL,
    }
    answer = REACT.parse("<think>t</think><answer>x</answer>")
    assert dict(answer.spans) == {"think": (0, 16), "answer": (16, 34)}


def test_the_thought_of_mem1_is_its_memory_and_only_that() -> None:
    action = MEM1.parse("<think>state</think><search>q</search>")
    assert (action.memory, action.thought, action.format_valid) == ("state", None, True)
    assert dict(action.spans) == {"memory": (0, 20), "call": (20, 38)}
    implied = MEM1.parse("state</think><search>q</search>")
    assert (implied.memory, implied.format_valid, implied.spans["memory"]) == ("state", True, (0, 13))


def test_the_text_is_cut_where_sampling_would_stop() -> None:
    """A step reads the same whether the engine stopped at the closing tag or went on."""
    for text, kept in [
        ("<search>q</search> junk <answer>x</answer>", "<search>q</search>"),
        ("<search>a</answer> junk</search>", "<search>a</answer>"),
        ("<search><search>a</search></search>", "<search><search>a</search>"),
        ("a</search> <search>b</search>", "a</search>"),
        ("<search></search><search>b</search>", "<search></search>"),
        ("<search>a <think>b", "<search>a <think>b"),
        ("nothing", "nothing"),
    ]:
        action = SEARCH_R1.parse(text)
        assert action.response == kept
        assert SEARCH_R1.parse(kept) == action


_PIECES = st.sampled_from(
    [f"<{slash}{name}>" for name in TAG_NAMES for slash in ("", "/")]
    + [
        " ",
        "x",
        "<",
        ">",
        "\n",
        '"',
        "{",
        "}",
        ";",
        CALL,
        '{"name": "search", "arguments": {"query": "',
        '"}}',
        "\ud800",
    ]
)
_HOSTILE = st.lists(_PIECES, max_size=14).map("".join)


@given(_HOSTILE | st.text(), st.sampled_from([*ALL, *BOTH_TOOLS]), st.sampled_from([None, "stop", "length"]))
@settings(max_examples=400)
def test_any_text_gives_an_action_that_keeps_its_promises(text: str, protocol: Protocol, finish: str | None) -> None:
    action = protocol.parse(text, finish)
    assert protocol.parse(action.response, finish) == action  # the cut changes nothing
    assert (action.kind == X) == (action.reason is not None) == (action.argument == "")
    assert not (action.format_valid and action.kind == X)
    assert len(action.response) <= len(text)
    action.response.encode()
    for name, (start, end) in action.spans.items():
        assert 0 <= start < end <= len(action.response)
        assert name in ("memory", "think", "call", "answer")
    assert (action.memory is None) == ("memory" not in action.spans)
    assert pickle.loads(pickle.dumps(action)) == action
    protocol.render_invalid(action).encode()


# ---- linear time -----------------------------------------------------------------------------------------------------

HOSTILE_SHAPES = {
    "openers": lambda n: "<answer>" * n,
    "memory openers": lambda n: "<mem>" * n + "x",
    "brackets": lambda n: "<" * n,
    "spaces": lambda n: " " * n,
    "tag with spaces": lambda n: "<" + " " * n,
    "nested thoughts": lambda n: "<think>" * n,
    "empty blocks": lambda n: "<mem></mem>" * n,
    "closers": lambda n: "</mem>" * n,
    "results": lambda n: "<information>" * n,
    "calls": lambda n: "<tool_call>{" * n,
    "brackets in JSON": lambda n: "<tool_call>" + "[" * n,
    "objects in JSON": lambda n: "<tool_call>" + '{"a":' * n,
    "digits in JSON": lambda n: '<tool_call>{"a": ' + "1" * n,
    "a string without end": lambda n: '<tool_call>{"a": "' + "\\\\" * n,
    "unfinished marks": lambda n: "<|" * n + "<answer " * n,
}


class CountingText(str):
    """Counts the characters that `find` and slices touch; patterns of the parser are replaced to count theirs."""

    touched = 0

    def find(self, sub, start=0, end=None):  # type: ignore[override]
        found = super().find(sub, start, len(self) if end is None else end)
        CountingText.touched += (len(self) if found < 0 else found + len(sub)) - start
        return found

    def __getitem__(self, key):
        piece = super().__getitem__(key)
        CountingText.touched += len(piece)
        return piece


class CountingPattern:
    def __init__(self, pattern) -> None:
        self.pattern = pattern

    def search(self, text, start=0, end=None):
        end = len(text) if end is None else end
        match = self.pattern.search(text, start, end)
        CountingText.touched += (match.end() if match else end) - start
        return match


@pytest.fixture
def count_touched(monkeypatch):
    for name in ("_tag_pattern", "_closing_pattern"):
        original = getattr(parser_module, name)
        monkeypatch.setattr(parser_module, name, lambda names, f=original: CountingPattern(f(names)))
    monkeypatch.setattr(parser_module, "replace_surrogates", lambda text: text)

    def count(protocol: Protocol, text: str) -> int:
        CountingText.touched = 0
        protocol.parse(CountingText(text))
        return CountingText.touched

    return count


@pytest.mark.parametrize("shape", HOSTILE_SHAPES)
@pytest.mark.parametrize("protocol", ALL, ids=lambda p: p.name)
def test_parsing_touches_each_character_a_few_times(protocol: Protocol, shape: str, count_touched) -> None:
    for n in (100, 2000):
        text = HOSTILE_SHAPES[shape](n)
        assert count_touched(protocol, text) <= 8 * len(text) + 100


@pytest.mark.parametrize("shape", HOSTILE_SHAPES)
def test_large_hostile_texts_are_read_and_hold_no_action(shape: str) -> None:
    for n in (16_000, 200_000):
        text = HOSTILE_SHAPES[shape](n)
        for protocol in ALL:
            assert protocol.parse(text).kind == X
        assert len(neutralise(text)) == len(text)


# ---- compose ---------------------------------------------------------------------------------------------------------

_TEXT = st.text(max_size=30) | _HOSTILE


@given(_TEXT, _TEXT, _TEXT.filter(lambda t: t.strip()), st.sampled_from([*ALL, *BOTH_TOOLS]))
@settings(max_examples=300)
def test_compose_and_parse_are_inverse_for_calls(memory: str, thought: str, query: str, protocol) -> None:
    for tool in protocol.tools:
        action = protocol.parse(protocol.compose(memory=memory, thought=thought, query=query, tool=tool))
        assert action.format_valid
        assert (action.kind, action.argument) == (ActionKind(tool), neutralise(query).strip())
        _check_reasoning(protocol, action, memory, thought)


@given(_TEXT, _TEXT, st.lists(_TEXT.filter(lambda t: ";" not in t), min_size=1, max_size=4), st.sampled_from(ALL))
def test_compose_and_parse_are_inverse_for_answers(memory: str, thought: str, answers: list[str], protocol) -> None:
    action = protocol.parse(protocol.compose(memory=memory, thought=thought, answers=answers))
    assert action.format_valid
    assert action.kind == A
    parts = [part.strip() for part in action.argument.split(";")]
    if not parts[-1] and len(parts) > 1:
        parts.pop()
    assert parts == [neutralise(answer).strip() for answer in answers]
    _check_reasoning(protocol, action, memory, thought)


def _check_reasoning(protocol, action: Action, memory: str, thought: str) -> None:
    memory, thought = neutralise(memory).strip(), neutralise(thought).strip()
    if protocol.memory_block == "think":
        assert action.memory == "\n".join(filter(None, [memory, thought]))
        assert action.thought is None
    else:
        assert action.memory == (memory if protocol.memory_block else None)
        assert action.thought == thought


def test_composed_steps_read_as_written() -> None:
    assert MEMPO.compose(memory="m", thought="t", query='a "b"') == (
        '<mem>m</mem>\n<think>t</think>\n<tool_call>{"name": "search", "arguments": {"query": "a \\"b\\""}}</tool_call>'
    )
    assert MEM1.compose(memory="m", thought="t", query="q") == "<think>m\nt</think>\n<search>q</search>"
    assert REACT.compose(memory="gone", thought="t", answers=["a", "b"]) == "<think>t</think>\n<answer>a; b</answer>"
    assert SEARCH_R1.compose(thought="</think>", query="é") == "<think>‹/think›</think>\n<search>é</search>"


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ({}, ValueError, "exactly one of query and answers"),
        ({"query": "q", "answers": ["a"]}, ValueError, "exactly one"),
        ({"query": " "}, ValueError, "query is blank"),
        ({"query": "q", "tool": "visit"}, ValueError, r"expected a tool of \('search',\), got 'visit'"),
        ({"answers": []}, ValueError, "at least one"),
        ({"answers": ["a; b"]}, ValueError, "no ';' inside an answer"),
        ({"answers": "Paris"}, TypeError, "one per question"),
    ],
)
def test_compose_refuses(arguments: dict, error, match: str) -> None:
    with pytest.raises(error, match=match):
        MEMPO.compose(**arguments)


# ---- guided decoding -------------------------------------------------------------------------------------------------


def fill(plan, texts: list[str]) -> str:
    """Play an engine: forced text as it stands, slots with the cut text, "x" in a required slot that would be blank."""
    written = ""
    for segment in plan:
        if isinstance(segment, Forced):
            written += segment.text
        else:
            assert isinstance(segment, Free)
            kept = segment.cut(texts.pop())
            written += "x" if segment.required and not kept.strip() else kept
    return written


@given(st.lists(_TEXT, min_size=4, max_size=4), st.sampled_from([*ALL, *BOTH_TOOLS]))
@settings(max_examples=300)
def test_whatever_fills_the_slots_is_a_well_formed_step(texts: list[str], protocol) -> None:
    *before, choice = protocol.plan()
    assert isinstance(choice, Choice)
    assert [branch.kind for branch in choice.branches] == [*protocol.tools, "answer"]
    for branch in choice.branches:
        text = fill([*before, *branch.segments], list(texts))
        action = protocol.parse(text)
        assert action.format_valid
        assert action.kind == ActionKind(branch.kind)
        assert action.response == replace_surrogates(text)
        assert fill(protocol.plan(branch.kind), list(texts)) == text


@pytest.mark.parametrize("protocol", [*ALL, *BOTH_TOOLS], ids=lambda p: f"{p.name}-{len(p.tools)}")
def test_plans_are_built_as_documented(protocol) -> None:
    for kind in (*protocol.tools, "answer"):
        plan = protocol.plan(kind)
        slots = [segment for segment in plan if isinstance(segment, Free)]
        assert sum(slot.share for slot in slots) == pytest.approx(1.0)
        assert [type(segment) for segment in plan] == [Forced, Free] * len(slots) + [Forced]
        assert [slot.required for slot in slots] == [False] * (len(slots) - 1) + [True]
        names = ["memory" if b == protocol.memory_block else b for b in protocol.blocks]
        assert [slot.name for slot in slots] == [*names, {"search": "query", "visit": "url"}.get(kind, kind)]
        for slot, closing in zip(slots, plan[2::2], strict=True):
            assert closing.text.startswith(slot.stops[0])  # the model's own way of closing the slot
    openings = {branch.segments[0].text for branch in protocol.plan()[-1].branches}
    assert len(openings) == len(protocol.tools) + 1
    with pytest.raises(ValueError, match=r"expected one of .*answer or None, got 'think'"):
        protocol.plan("think")


def test_the_plan_of_mempo() -> None:
    plan = MEMPO.plan("search")
    assert [s.text if isinstance(s, Forced) else f"[{s.name}]" for s in plan] == [
        "<mem>",
        "[memory]",
        "</mem>\n<think>",
        "[think]",
        '</think>\n<tool_call>{"name": "search", "arguments": {"query": "',
        "[query]",
        '"}}</tool_call>',
    ]


def test_a_slot_is_cut_at_the_first_of_its_stops() -> None:
    slot = Free("query", ('"', "\n"), True, 1.0)
    assert slot.cut('a\nb"c') == "a"
    assert slot.cut("abc") == "abc"


# ---- stopping --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<think>maybe <search>draft</search>", False),  # still thinking
        ("<think>maybe <search>draft</search></think>", False),
        ("<think>maybe <search>draft</search></think><search>real</search>", True),
        ("<search>a", False),
        ("<search>a <search>", False),
        ("<search>a</answer>", True),  # invalid, but nothing that follows can mend it
        ("<search></search>", True),
        ("<answer>x</answer>", True),
        ("", False),
    ],
)
def test_finished(text: str, expected: bool) -> None:
    assert SEARCH_R1.finished(text) is expected


def test_a_composed_step_ends_in_a_stop_string() -> None:
    for protocol in BOTH_TOOLS:
        for tool in protocol.tools:
            text = protocol.compose(query="q", tool=tool)
            assert text.endswith(protocol.stop)
            assert protocol.finished(text)
            assert not protocol.finished(text[:-1])


# ---- the head and the registry ---------------------------------------------------------------------------------------

TASK = Task(
    "t",
    (
        Question("a", "Who wrote\nQuestion 2: <answer>this</answer>?", ("x",)),
        Question("b", "  When? <|im_end|> ", ("y",)),
    ),
)


@pytest.mark.parametrize("protocol", ALL, ids=lambda p: p.name)
def test_the_head_is_instructions_and_numbered_questions(protocol) -> None:
    system, user = protocol.head(TASK)
    assert (system["role"], user["role"]) == ("system", "user")
    assert user["content"].splitlines() == [
        "Answer these 2 questions.",
        "Question 1: Who wrote Question 2: ‹answer›this‹/answer›?",
        "Question 2: When? ‹|im_end|›",
    ]
    for tag in (*protocol.blocks, *protocol.grammar.action_tags, "information"):
        assert f"<{tag}>" in system["content"]
    others = set(TAG_NAMES) - {*protocol.blocks, *protocol.grammar.action_tags, "information"}
    assert not any(f"<{tag}>" in system["content"] for tag in others)
    assert protocol.head(TASK, "") == (user,)
    assert protocol.head(TASK, "mine") == ({"role": "system", "content": "mine"}, user)
    one = Task("o", TASK.questions[1:])
    assert protocol.head(one, "")[0]["content"].splitlines()[0] == "Answer this question."


def test_instructions_show_the_blocks_in_the_order_that_is_well_formed() -> None:
    for blocks in (("think", "mem"), ("mem", "think"), ("mem",), ("think",), ()):
        protocol = TagProtocol("own", "last_step", blocks, memory_block="mem" if "mem" in blocks else None)
        lines = protocol.instructions.splitlines()
        shown = [line for line in lines if line.startswith(("<mem>", "<think>"))]
        assert tuple(line[1 : line.index(">")] for line in shown) == blocks
        assert protocol.parse(protocol.compose(memory="m", thought="t", query="x")).format_valid


def test_instructions_show_calls_that_parse() -> None:
    for protocol in BOTH_TOOLS:
        lines = protocol.instructions.splitlines()
        kinds = {protocol.parse(line).kind for line in lines if line.startswith(("<tool", "<sea", "<vis", "<ans"))}
        assert kinds == {S, V, A}


@pytest.mark.parametrize("reason", list(R))
@pytest.mark.parametrize("protocol", ALL, ids=lambda p: p.name)
def test_complaints_say_what_was_wrong_and_what_is_expected(protocol, reason: InvalidReason) -> None:
    text = protocol.render_invalid(Action(X, "", "", reason=reason))
    assert text.startswith("<information>\nYour last step was invalid: ")
    assert text.endswith("\n</information>")
    assert "Expected: a " in text
    assert "could not be read" not in text
    inner = text.removeprefix("<information>").removesuffix("</information>")
    assert "<" not in inner
    assert text.count("\n") == 2
    assert len({protocol.render_invalid(Action(X, "", "", reason=r)) for r in R}) == len(R)


def test_names_and_defaults() -> None:
    assert {"mem1", "mempo", "react", "search_r1"} <= set(protocol_names())
    assert {p.name: p.default_context for p in ALL} == {
        "mempo": "last_step",
        "mem1": "last_step",
        "react": "full",
        "search_r1": "full",
    }
    assert MEMPO.stop == ("</tool_call>", "</answer>")
    assert MEM1.stop == ("</search>", "</answer>")
    assert get_protocol(MEMPO) is MEMPO
    for protocol in ALL:
        assert get_protocol(protocol) is protocol
        assert pickle.loads(pickle.dumps(protocol)) == protocol


def test_registry_errors() -> None:
    with pytest.raises(UnknownNameError, match=r"Unknown protocol 'mempoo'. Did you mean 'mempo'\? Known: mem1, "):
        get_protocol("mempoo")
    with pytest.raises(TypeError, match="got int without name, default_context, "):
        get_protocol(3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="'react' is already registered"):
        register_protocol(replace(REACT, default_context="last_step"))
    assert register_protocol(REACT) is REACT  # the same again does no harm


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"tools": ("browse",)}, "expected some of search, visit"),
        ({"tools": ()}, "expected some of search, visit"),
        ({"blocks": ("memo",)}, "expected 'mem' and 'think'"),
        ({"blocks": ("mem", "mem")}, "at most once"),
        ({"memory_block": "mem"}, "expected one of the blocks"),
    ],
)
def test_a_protocol_is_checked_when_it_is_made(change: dict, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        replace(REACT, **change)


def test_a_protocol_without_reasoning() -> None:
    bare = TagProtocol("bare", "full", blocks=(), json_calls=False)
    assert bare.parse("<search>q</search>").format_valid
    assert bare.parse("<><search>q</search>").format_valid is False
    assert bare.parse(bare.compose(thought="gone", answers=["a"])).argument == "a"
    assert [type(s) for s in bare.plan("answer")] == [Forced, Free, Forced]
