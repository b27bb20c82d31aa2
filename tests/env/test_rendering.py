"""An episode as a person reads it: what changed in the memory, what was found, how it ended."""

from __future__ import annotations

import io
import re
import time

import pytest
from env_fakes import BrokenRetriever, tiny
from hypothesis import given
from hypothesis import strategies as st

from mempo_env import SearchQAEnv
from mempo_env.rendering import render_episode, render_lines, show_lines, visible, wants_colour, word_diff
from mempo_env.types import Hit, Passage, Question, Task

COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def play(*texts, **kwargs):
    env = SearchQAEnv(**tiny(**kwargs))
    env.reset(options={"task": ("tiny:1", "tiny:2")})
    for text in texts:
        env.step(text(env.protocol) if callable(text) else text)
    return env.episode


def step(memory, query=None, answers=None):
    return lambda protocol: protocol.compose(memory=memory, thought="why", query=query, answers=answers)


@pytest.mark.parametrize(
    ("before", "after", "runs"),
    [
        (
            "born in Oslo",
            "born in Rome in 1900",
            [("same", "born in "), ("dropped", "Oslo"), ("added", "Rome in 1900")],
        ),
        ("", "a b", [("added", "a b")]),
        ("a b", "", [("dropped", "a b")]),
        ("a  b\n", "a b", [("same", "a b")]),  # blanks alone are no change
        ("a b c", "a c", [("same", "a "), ("dropped", "b "), ("same", "c")]),
        ("", "", []),
    ],
)
def test_word_diff(before, after, runs):
    assert word_diff(before, after) == runs


@given(st.text(), st.text())
def test_word_diff_gives_both_texts_back(before, after):
    runs = word_diff(before, after)
    assert "".join(text for change, text in runs if change != "dropped") == after
    kept = "".join(text for change, text in runs if change != "added")
    assert kept.split() == before.split()


def test_word_diff_of_long_hostile_memories_is_quick():
    start = time.process_time()
    word_diff("a b " * 20_000, "b a " * 20_000)
    assert time.process_time() - start < 2


def test_plain_text_shows_the_whole_episode():
    episode = play(
        step("Nothing known.", query="rome"),
        "chat",
        step("Nothing missing: the Tiber.", answers=["Bergen", "405 km"]),
    )
    text = render_episode(episode, colour=False)
    assert text.splitlines()[0] == "Task tiny:1+tiny:2  2 questions, mempo, context last_step"
    for line in (
        "  Question 1: Where was the author of Winter Light born?",
        "Step 1 of at most 12",
        "    {+Nothing known.+}",
        "  Search rome",
        "    1. Rome Rome is the capital of Italy. The river Tiber flows through Rome.",
        "  No valid action: no_action",
        "    Nothing [-known.-] {+missing: the Tiber.+}",
        "  Answer Bergen; 405 km",
        "Ended: answered, reward 0",
        "  1. wrong: said 'Bergen', expected 'Oslo'  F1 0.00",
        "  2. right: said '405 km', expected '405 km'  F1 1.00",
    ):
        assert line in text.splitlines()
    assert "\x1b" not in text


def test_colour_adds_escapes_and_changes_no_words():
    episode = play(step("Oslo is known.", query="oslo"), step("Rome is known.", query="zzz"))
    coloured = render_episode(episode)
    assert "\x1b[32mRome\x1b[0m" in coloured or "\x1b[32mRome \x1b[0m" in coloured
    assert "\x1b[9;31m" in coloured
    bare = COLOUR.sub("", coloured)
    plain = re.sub(r"\{\+|\+\}|\[-|-\]", "", render_episode(episode, colour=False))
    assert bare.split() == plain.split()
    assert "nothing found" in bare


def test_a_memory_is_compared_with_the_last_one_there_was():
    episode = play(step("alpha beta", query="rome"), "no memory here", step("alpha gamma", query="rome"))
    assert "alpha [-beta-] {+gamma+}" in render_episode(episode, colour=False)
    # The same when only the last step is asked for.
    assert "alpha [-beta-] {+gamma+}" in "\n".join(render_lines(episode, colour=False, from_turn=2))
    assert "Question" not in "\n".join(render_lines(episode, colour=False, from_turn=2))


def test_the_wrong_number_of_answers_is_explained():
    episode = play(step("m", answers=["Oslo"]))
    assert "Answer: expected 2 answers separated by ';', got 1" in render_episode(episode, colour=False)


def test_a_failure_is_named():
    episode = play(step("m", query="rome"), retriever=BrokenRetriever())
    assert "Failed, not scored: RetrievalError: the server" in render_episode(episode, colour=False)


def test_foreign_text_cannot_drive_the_terminal():
    evil = "\x1b]0,title\x07 \x1b[2J \x9b31m \r overwritten \x08"
    task = Task("evil\x1b[2J", (Question("q", f"What {evil}?", (f"answer {evil}",)),))
    env = SearchQAEnv(**tiny(retriever="bm25", dataset=EvilDataset(evil)))
    env.reset(options={"task": task})
    env.step(env.protocol.compose(memory=evil, thought=evil, query=f"word {evil}"))
    env.step(f"<mem>{evil}</mem>")
    env.step(env.protocol.compose(memory=evil, answers=[f"x {evil}"]))
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", COLOUR.sub("", render_episode(env.episode)))
    assert visible("a\tb\nc") == "a\tb\nc"
    assert visible("\x1b\x7f\x9b") == "␛␡⟦U+009B⟧"
    # Marks of direction would turn the rest of the line around; a lone surrogate could not be printed at all.
    assert visible("a\u202eb\u2066\ud800") == "a⟦RLO⟧b⟦LRI⟧⟦U+D800⟧"


def test_a_narrow_terminal_gets_question_marks_instead_of_an_error():
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii", newline="")
    show_lines(["Crème", "東京 \U0001f9e0"], stream)
    assert stream.buffer.getvalue() == b"Cr?me\n?? ?\n"


def test_lone_surrogates_anywhere_do_not_stop_the_rendering(capsys):
    task = Task("t\ud800", (Question("q", "why \ud801?", ("a\udfff",)),))
    env = SearchQAEnv(**tiny(objectives=1, render_mode="human", retriever=Surrogates()))
    env.reset(options={"task": task})
    env.step(env.protocol.compose(memory="m", thought="t", query="x"))
    env.step("<answer>\ud800</answer>")
    shown = capsys.readouterr().out
    assert "⟦U+D801⟧" in shown
    assert "t⟦U+DC00⟧" in shown


class Surrogates:
    name = fingerprint = "surrogates"

    def search(self, queries, k):
        return [[Hit(Passage("p", "t\udc00", "x\ud800"))] for _ in queries]


class EvilDataset:
    name = "evil"
    splits = ("train",)
    fingerprint = "evil"

    def __init__(self, text):
        self.text = text

    def questions(self, split):
        return [Question(f"evil:{i}", "Why?", ("so",)) for i in range(2)]

    def passages(self, split):
        return [Passage("p", f"title {self.text}", f"word {self.text}")]


def test_colour_is_for_terminals(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.delenv("NO_COLOR", raising=False)
    assert wants_colour(Terminal())
    assert not wants_colour(io.StringIO())
    monkeypatch.setenv("NO_COLOR", "1")
    assert not wants_colour(Terminal())
