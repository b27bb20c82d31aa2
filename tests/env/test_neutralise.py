"""Foreign text can neither open nor close a tag, nor a chat turn; and nothing else of it changes."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mempo_env.protocols import TAG_NAMES, get_protocol, neutralise, replace_surrogates
from mempo_env.types import ActionKind

INERT = str.maketrans("<>[]", "‹›‹›")


@pytest.mark.parametrize(
    "mark",
    [
        *(f"<{slash}{name}>" for name in TAG_NAMES for slash in ("", "/")),
        "<ANSWER>",
        "</Information>",
        "< answer>",
        "</ answer>",
        "< / Think >",
        "<answer >",
        "<answer/>",
        '<mem id="1" x=2>',
        "<answer\n>",
        "<\u00a0answer>",
        "<|im_start|>",
        "<|im_end|>",
        "<|endoftext|>",
        "<| im_end |>",
        "<|START_OF_TURN_TOKEN|>",
        "<｜User｜>",
        "<s>",
        "</s>",
        "<bos>",
        "<start_of_turn>",
        "<end_of_turn>",
        "<tool_response>",
        "[INST]",
        "[/INST]",
        "<<SYS>>",
        "<</SYS>>",
        "[TOOL_CALLS]",
        "[HINT]",
        "[/hint]",
        "<|[INST]|>",
    ],
)
def test_marks_become_inert_in_any_surrounding(mark: str) -> None:
    assert neutralise(mark) == mark.translate(INERT)
    for before, after in [("a ", " b"), ("<", ">"), ("x<y", "y>z"), ("<b>", "</b>"), ("[", "]")]:
        assert neutralise(before + mark + after) == before + mark.translate(INERT) + after


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a < b and c > d",
        "<b>bold</b>",
        "<p class='x'>",
        "<i>think</i>",
        "if x <y then mem",
        "<answers>",
        "<memory>",
        "<rethink>",
        "<answer",
        "answer>",
        "< answer",
        "<|>",
        "[1] [note] [INSTALL]",
        "‹answer›",
        "Crème – 東京 🧠\u200d\x00",
        "x <- c(1, 2); y -> z",
        "&lt;answer&gt;",
    ],
)
def test_other_text_stays(text: str) -> None:
    assert neutralise(text) == text


def test_an_inner_mark_does_not_complete_an_outer_one() -> None:
    for text in ["<answer <mem> >", "<|a<mem>b|>", "<<mem>answer>", "<an<mem>swer>", "<</answer>answer>"]:
        once = neutralise(text)
        assert neutralise(once) == once
        assert "<mem>" not in once
        assert "<answer>" not in once


_PIECES = st.sampled_from(
    ["<", ">", "/", " ", "|", "[", "]", "‹", "›", "\n", "x", "=", "\ud800", "<|", "|>", "INST", "SYS", "s", "｜"]
    + list(TAG_NAMES)
    + [f"<{slash}{name.upper()}" for name in TAG_NAMES for slash in ("", "/")]
    + [f"<{slash}{name}>" for name in TAG_NAMES for slash in ("", "/")]
)
_HOSTILE = st.lists(_PIECES, max_size=20).map("".join) | st.text()

# Written apart from the product's pattern: a tag as a loose reader would see it, its inside free of brackets.
_LOOSE = re.compile(r"<[\s/]*(mem|think|tool_call|search|visit|answer|information)([\s/][^<>‹›]*)?>", re.IGNORECASE)
_CHAT = re.compile(r"<\|[^<>‹›]*\|>|\[/?INST\]", re.IGNORECASE)


@given(_HOSTILE)
@settings(max_examples=500)
def test_nothing_is_left_that_a_reader_could_take_for_a_mark(text: str) -> None:
    result = neutralise(text)
    assert _LOOSE.search(result) is None
    assert _CHAT.search(result.replace("<||>", "")) is None
    assert neutralise(result) == result
    assert len(result) == len(text)
    result.encode()
    for name in ("mempo", "mem1", "react", "search_r1"):
        protocol = get_protocol(name, tools=("search", "visit"))
        assert protocol.parse(result).kind == ActionKind.INVALID
        assert not protocol.parse(result).spans


@given(_HOSTILE)
def test_only_brackets_change(text: str) -> None:
    for before, after in zip(replace_surrogates(text), neutralise(text), strict=True):
        assert before == after or (before in "<>[]" and after == before.translate(INERT))


@given(_HOSTILE, _HOSTILE)
def test_inert_pieces_stay_inert_between_tags(left: str, right: str) -> None:
    """What is written around inert text cannot join with it into a mark."""
    joined = f"<mem>{neutralise(left)}</mem><think>{neutralise(right)}</think>"
    marks = [m[0] for m in _LOOSE.finditer(joined)]
    assert marks == ["<mem>", "</mem>", "<think>", "</think>"]


def test_lone_surrogates_are_replaced() -> None:
    assert neutralise("a\ud800b\udfffc") == "a\ufffdb\ufffdc"
    assert replace_surrogates("plain") == "plain"
    assert replace_surrogates("é🧠") == "é🧠"
