"""Scoring: published small cases, golden values worked on paper, and the relations that must hold for any text."""

from __future__ import annotations

import re
import string
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mempo_env.errors import UnknownNameError
from mempo_env.scoring import (
    count_note,
    exact_match,
    f1,
    get_normaliser,
    normalise_careful,
    normalise_squad,
    normaliser_names,
    numeric_conflict,
    score,
    split_answers,
)
from mempo_env.types import Question, Task


def make_task(*golds: tuple[str, ...]) -> Task:
    return Task("t", tuple(Question(f"q{i}", f"Question {i}?", gold) for i, gold in enumerate(golds)))


# ---- normalisation ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The Beatles", "beatles"),
        ("U.S.", "us"),
        ("don't", "dont"),
        ("state-of-the-art", "stateoftheart"),
        ("The-End", "theend"),  # the article is no word of its own once the hyphen is deleted
        ("Vitamin A", "vitamin"),
        ("A", ""),
        ("The", ""),
        ("1,000", "1000"),
        ("$3.5", "35"),
        ("C++", "c"),
        ("C#", "c"),
        ("“Hello”", "“hello”"),  # ASCII punctuation only
        ("’tis", "’tis"),
        ("–", "–"),
        ("Ｔｏｋｙｏ", "ｔｏｋｙｏ"),
        ("New  York\tCity", "new york city"),
        ("İ", "i̇"),  # lower() yields two code points
        ("", ""),
    ],
)
def test_squad_normalisation_is_the_published_one(text: str, expected: str) -> None:
    assert normalise_squad(text) == expected


def _published_squad(text: str) -> str:
    """An independent writing of the four published steps, in their order, character by character."""
    lowered = text.lower()
    unpunctuated = "".join(character for character in lowered if character not in set(string.punctuation))
    without_articles = re.sub(r"\b(a|an|the)\b", " ", unpunctuated)
    return " ".join(without_articles.split())


@given(st.text())
def test_squad_normalisation_agrees_with_an_independent_writing(text: str) -> None:
    assert normalise_squad(text) == _published_squad(text)


def test_articles_can_be_kept() -> None:
    assert normalise_squad("The A-Team", articles=True) == "the ateam"
    assert normalise_careful("The Who", articles=True) == "the who"
    assert normalise_careful("The Who") == "who"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1,250", "1250"),
        ("1,250,000.5", "1250000.5"),
        ("12,34", "12 34"),  # no thousands: a list, or a decimal comma; never 1234
        ("0,1", "0 1"),
        ("1,2345", "1 2345"),
        ("-5", "-5"),
        ("−5", "-5"),  # U+2212
        ("(-5)", "-5"),
        ("+5", "5"),
        (".5", "0.5"),
        ("-.5", "-0.5"),
        ("3.5.", "3.5"),  # the full stop of a sentence
        ("$3.50", "3.50"),
        ("1914–1918", "1914 1918"),
        ("1914 - 1918", "1914 1918"),
        ("12:30", "12 30"),
        ("1.2.3", "1 2 3"),
        ("covid-19", "covid19"),
        ("Apollo 11.", "apollo 11"),
        ("U.S.", "us"),
        ("Ana Bele\u0301n", "ana belén"),
        ("“Dune”", "dune"),
        ("STRASSE", "strasse"),
        ("Straße", "strasse"),
        ("soft\u00adhyphen", "softhyphen"),
        ("２０２４年", "2024年"),
        ("the", ""),
    ],
)
def test_careful_normalisation(text: str, expected: str) -> None:
    assert normalise_careful(text) == expected


@given(st.text())
def test_careful_normalisation_is_total_and_leaves_no_outer_or_double_space(text: str) -> None:
    assert normalise_careful(text) == " ".join(normalise_careful(text).split())


@pytest.mark.parametrize(
    ("prediction", "gold", "careful", "squad"),
    [
        ("1,250", "1250", 1, 1),
        ("3.5", "35", 0, 1),
        ("-5", "5", 0, 1),
        ("0,1", "01", 0, 1),
        ("$1,250.50", "1250.50", 1, 1),
        ("1914–1918", "1914-1918", 1, 0),
        ("Ana Bele\u0301n", "Ana Belén", 1, 0),
        ("“Dune”", "Dune", 1, 0),
        ("Ｔｏｋｙｏ", "Tokyo", 1, 0),
        ("resume", "résumé", 0, 0),
    ],
)
def test_exact_match_under_both_normalisers(prediction: str, gold: str, careful: int, squad: int) -> None:
    assert exact_match(prediction, [gold], normalise_careful) == careful
    assert exact_match(prediction, [gold]) == squad


def test_normalisers_have_names() -> None:
    assert normaliser_names() == ("careful", "squad")
    assert get_normaliser("squad") is normalise_squad
    with pytest.raises(UnknownNameError, match=r"Unknown normaliser 'sqad'. Did you mean 'squad'"):
        get_normaliser("sqad")


# ---- exact match and F1 ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prediction", "golds", "em", "expected_f1"),
    [
        ("...", ["A"], 0, 0),
        ("A", ["A"], 1, 1),  # the gold is compared with its article
        ("'A'.", ["A"], 1, 1),  # and still without its punctuation
        ("the", ["A"], 0, 0),
        (" ", [" "], 0, 0),  # nothing never equals nothing
        ("The Who", ["Who"], 1, 1),
        ("!!!", ["!!!"], 1, 1),
        ("???", ["!!!"], 0, 0),
        ("", ["A"], 0, 0),
        ("", ["!!!"], 0, 0),
        (None, ["Quito"], 0, 0),
        ("1,000", ["1000"], 1, 1),
        ("new york city", ["NYC", "New York City"], 1, 1),
        # multiset: common 2, 4 words against 2: 2*2/6
        ("New York New York", ["New York"], 0, 4 / 6),
        # "the" is gone: 2 words against 1: 2*1/3
        ("the cat sat", ["cat"], 0, 2 / 3),
        ("yes it is", ["yes"], 0, 0),
        ("no", ["no one"], 0, 0),
        ("no one", ["no"], 0, 0),
        ("noanswer here", ["noanswer"], 0, 0),
        ("Yes.", ["yes"], 1, 1),
        # 5 words (or, and so on are words) against 1: 2*1/6
        ("Lima or Quito or Bogota", ["Quito"], 0, 1 / 3),
        # the better of two aliases: 2*1/3 and 2*1/2
        ("Paris", ["Paris France", "Paris"], 1, 1),
        ("Paris", ["Paris France", "City of Light"], 0, 2 / 3),
    ],
)
def test_exact_match_and_f1(prediction: str | None, golds: list[str], em: float, expected_f1: float) -> None:
    assert exact_match(prediction, golds) == em
    assert f1(prediction, golds) == pytest.approx(expected_f1)


@pytest.mark.parametrize("metric", [exact_match, f1])
def test_golds_must_be_a_list_of_strings(metric) -> None:
    with pytest.raises(TypeError, match=r"expected a list of strings, got 'Paris'. One answer is written \['Paris'\]"):
        metric("P", "Paris")
    with pytest.raises(ValueError, match="at least one"):
        metric("P", [])
    with pytest.raises(TypeError, match="expected strings, got 35"):
        metric("35", [35])
    assert metric("Lutetia", np.array(["Paris", "Lutetia"], dtype=object)) == 1.0


_words = st.lists(st.sampled_from(["a", "the", "yes", "no", "cat", "3.5", "-5", "1,000", "é", "!", "New"]), max_size=5)
_answers = st.one_of(st.text(max_size=12), _words.map(" ".join))


@given(_answers, st.lists(_answers, min_size=1, max_size=3), st.sampled_from([normalise_squad, normalise_careful]))
def test_f1_is_never_below_exact_match(prediction: str, golds: list[str], normalise) -> None:
    value = f1(prediction, golds, normalise)
    assert 0.0 <= exact_match(prediction, golds, normalise) <= value <= 1.0


@given(_answers, st.lists(_answers, min_size=1, max_size=3), st.sampled_from([normalise_squad, normalise_careful]))
def test_more_aliases_never_hurt_and_order_does_not_matter(prediction, golds, normalise) -> None:
    assert f1(prediction, golds, normalise) == max(f1(prediction, [gold], normalise) for gold in golds)
    assert f1(prediction, golds, normalise) == f1(prediction, golds[::-1], normalise)
    assert exact_match(prediction, golds, normalise) == max(exact_match(prediction, [g], normalise) for g in golds)


@given(_answers.filter(lambda t: t.strip()), st.sampled_from([normalise_squad, normalise_careful]))
def test_a_gold_answer_always_earns_full_marks(gold: str, normalise) -> None:
    assert exact_match(gold, [gold], normalise) == f1(gold, [gold], normalise) == 1.0


@given(_words, _words.filter(bool))
def test_f1_agrees_with_precision_and_recall(prediction: list[str], gold: list[str]) -> None:
    """The textbook form, over words that normalisation does not change."""
    prediction = [w for w in prediction if w in ("cat", "é")]
    gold = [w for w in gold if w in ("cat", "é")]
    if not gold or not prediction:
        return
    common = sum((Counter(prediction) & Counter(gold)).values())
    precision, recall = common / len(prediction), common / len(gold)
    expected = 2 * precision * recall / (precision + recall) if common else 0.0
    assert f1(" ".join(prediction), [" ".join(gold)]) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("prediction", "golds", "expected"),
    [
        ("35", ["3.5"], True),
        ("5", ["-5"], True),
        ("01", ["0,1"], True),
        ("1250", ["1,250"], False),
        ("35", ["3.5", "35"], False),  # another alias has the same number
        ("36", ["3.5"], False),  # not called right, so nothing conflicts
        ("Paris", ["paris"], False),
        (None, ["3.5"], False),
    ],
)
def test_numeric_conflict(prediction: str | None, golds: list[str], expected: bool) -> None:
    assert numeric_conflict(prediction, golds) is expected


# ---- splitting over the objectives -----------------------------------------------------------------------------------

PARIS_ROME = (("Paris",), ("Rome",))


@pytest.mark.parametrize(
    ("body", "strict", "lenient", "count_ok"),
    [
        ("Paris; Rome", 1.0, 1.0, True),
        ("Rome; Paris", 0.0, 0.0, True),  # order counts
        ("Paris", 0.0, 0.5, False),
        ("; Rome", 0.0, 0.5, True),  # an empty slot is an unanswered objective
        ("Rome", 0.0, 0.0, False),
        ("Paris; Rome; Oslo", 0.0, 1.0, False),
        ("Paris; Rome;", 1.0, 1.0, True),  # one empty tail is dropped
        ("Paris; Rome; ;", 0.0, 1.0, False),  # but only one
        ("1. Paris; 2. Rome", 1.0, 1.0, True),  # every part carries its own number
        ("(1) Paris; (2) Rome", 1.0, 1.0, True),
        ("1) Paris; Rome", 0.0, 0.5, True),  # not every part does
        ("2. Paris; 1. Rome", 0.0, 0.0, True),  # nor its own
        ("Paris\nRome", 0.0, 0.0, False),
        ("Paris, Rome", 0.0, 0.0, False),
        ("Paris； Rome", 0.0, 0.0, False),
        ("Paris;Rome", 1.0, 1.0, True),
        (None, 0.0, 0.0, False),
        ("", 0.0, 0.0, False),
        ("   ", 0.0, 0.0, False),
    ],
)
def test_two_objectives(body: str | None, strict: float, lenient: float, count_ok: bool) -> None:
    result = score(make_task(*PARIS_ROME), body)
    assert result.count_ok is count_ok
    assert float(result.all_correct) == strict
    assert result.em_mean == lenient
    assert result.em_sum == 2 * lenient


@pytest.mark.parametrize(
    ("body", "em", "parts", "count_ok"),
    [
        ("Paris; Smith; Wesson; 1999", (1, 0, 0), 4, False),
        ("Paris; Smith and Wesson; 1999; ", (1, 0, 1), 3, True),
        ("Paris; ; 1999", (1, 0, 1), 3, True),
        ("Paris", (1, 0, 0), 1, False),
    ],
)
def test_parts_never_shift(body: str, em: tuple[float, ...], parts: int, count_ok: bool) -> None:
    result = score(make_task(("Paris",), ("Smith; Wesson",), ("1999",)), body)
    assert result.em == em
    assert len(result.parts) == parts
    assert result.count_ok is count_ok


def test_an_empty_part_scores_nothing_even_against_a_gold_that_normalises_to_nothing() -> None:
    assert score(make_task(("The",), ("Rome",)), "; Rome").em == (0.0, 1.0)


def test_numbers_that_open_an_answer_are_no_numbering() -> None:
    assert split_answers("1.5; 2.5", 2) == (("1.5", "2.5"), True)
    assert split_answers("1. FC Köln", 1) == (("1. FC Köln",), True)
    assert split_answers("1. Paris; 2.; 3. Rome", 3) == (("Paris", "", "Rome"), True)


@pytest.mark.parametrize(
    ("body", "objectives", "note"),
    [
        ("Paris; Rome", 2, ""),
        (None, 2, "unanswered"),
        ("Paris； Rome", 2, "expected 2 answers separated by ';', got 1 (found instead: a full-width semicolon)"),
        ("Paris\nRome", 2, "expected 2 answers separated by ';', got 1 (found instead: line breaks)"),
        ("Paris, Rome", 2, "expected 2 answers separated by ';', got 1 (found instead: commas)"),
        ("a, b; c; d", 2, "expected 2 answers separated by ';', got 3"),
    ],
)
def test_the_note_names_why_the_count_is_wrong(body: str | None, objectives: int, note: str) -> None:
    assert count_note(body, objectives) == note


def test_objectives_must_be_positive() -> None:
    with pytest.raises(ValueError, match="expected at least 1, got 0"):
        split_answers("x", 0)


@given(st.lists(st.text(alphabet="ab c", max_size=4).map(str.strip), min_size=1, max_size=5))
def test_joined_answers_split_back(answers: list[str]) -> None:
    if not any(answers):
        return
    body = "; ".join(answers) + ("" if answers[-1] else ";")
    assert split_answers(body, len(answers)) == (tuple(answers), True)


# ---- the whole score -------------------------------------------------------------------------------------------------


def test_score_reports_every_number_under_its_own_name() -> None:
    result = score(make_task(("Paris",), ("New York",), ("35",)), "paris; New York New York; 3.5")
    # em 1, 0, 1 (squad deletes the point); f1 1, 2*2/6, 1
    assert result.em == (1.0, 0.0, 1.0)
    assert result.f1 == pytest.approx((1.0, 2 / 3, 1.0))
    assert result.em_sum == 2.0
    assert result.em_mean == pytest.approx(2 / 3)
    assert result.f1_mean == pytest.approx((1 + 2 / 3 + 1) / 3)
    assert result.numeric_conflict == (False, False, True)
    assert not result.all_correct
    assert result.normaliser == "squad"
    assert score(make_task(("35",)), "3.5", normaliser="careful").em == (0.0,)


def test_no_answer_is_a_wrong_answer_and_says_so() -> None:
    result = score(make_task(*PARIS_ROME), None)
    assert result.em == result.f1 == (0.0, 0.0)
    assert result.note == "unanswered"


def test_every_alias_is_accepted_per_objective() -> None:
    assert score(make_task(("NYC", "New York City"), ("Rome", "Roma")), "new york city; Roma").all_correct
