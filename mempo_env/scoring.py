"""Is it right? The one definition of exact match, F1 and of how an answer is split over the objectives.

A text is normalised before it is compared. Two normalisers are known by name, and results name the one they used:

- "squad": as published with SQuAD and used by HotpotQA, FlashRAG, Search-R1 and MEM1's training code: lower case, ASCII
  punctuation deleted, the articles a, an, the deleted, white space squeezed. Known limits, kept so that scores compare:
  "3.5" equals "35", "-5" equals "5", "C++" equals "C#", typographic quotes and dashes stay. `numeric_conflict` flags
  the first kind.
- "careful": Unicode compatibility forms are unified first and every punctuation character is deleted, but numbers keep
  their sign and decimal point, and lose commas only where these mark thousands.
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from mempo_env.registry import Registry
from mempo_env.types import Task

Normaliser = Callable[..., str]
"""`normalise(text, articles=False) -> str`; with `articles=True` the words a, an, the stay."""

_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_ASCII_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ASCII_SET = frozenset(string.punctuation)
_DELETED_CATEGORIES = frozenset({"Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "Cf"})


def normalise_squad(text: str, *, articles: bool = False) -> str:
    """SQuAD's normalisation: lower, delete ASCII punctuation, delete articles (unless told), squeeze spaces."""
    text = text.lower().translate(_ASCII_PUNCTUATION)
    if not articles:
        text = _ARTICLES.sub(" ", text)
    return " ".join(text.split())


# A sign counts only where no word or number ends before it: "-5" and "(-5)", but not "1914-1918" or "covid-19".
_NUMBER = re.compile(r"(?:(?<!\w)[-+])?(?:\d+(?:[.,]\d+)*|(?<!\w)\.\d+)")
_THOUSANDS = re.compile(r"\d{1,3}(?:,\d{3})+(?:\.\d+)?")
_DECIMAL = re.compile(r"\d*(?:\.\d+)?")
_DASHES = str.maketrans(dict.fromkeys("‐‑‒–—―−﹣－", "-"))


def normalise_careful(text: str, *, articles: bool = False) -> str:
    """A normalisation that respects numbers and Unicode.

    NFKC and case folding; punctuation (ASCII's and every character of category P) and invisible format characters are
    deleted; accents stay. A number keeps its sign and decimal point; commas go where they mark thousands ("1,250.50" is
    "1250.50"); any other mark between digits separates ("0,1" is "0 1", "1914–1918" is "1914 1918"). Articles go unless
    `articles`.
    """
    text = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold()).translate(_DASHES)
    pieces: list[str] = []
    position = 0
    for number in _NUMBER.finditer(text):
        gap = text[position : number.start()]
        kept = _delete_punctuation(gap)
        pieces += [" " if gap and not kept and position else kept, _canonical_number(number[0])]
        position = number.end()
    pieces.append(_delete_punctuation(text[position:]))
    text = "".join(pieces)
    if not articles:
        text = _ARTICLES.sub(" ", text)
    return " ".join(text.split())


def _delete_punctuation(text: str) -> str:
    return "".join(c for c in text if c not in _ASCII_SET and unicodedata.category(c) not in _DELETED_CATEGORIES)


def _canonical_number(number: str) -> str:
    sign, digits = ("-" if number[0] == "-" else ""), number.lstrip("+-")
    if _THOUSANDS.fullmatch(digits):
        digits = digits.replace(",", "")
    if not _DECIMAL.fullmatch(digits):
        digits = digits.replace(",", " ").replace(".", " ")
    return sign + ("0" + digits if digits[0] == "." else digits)


_NORMALISERS: Registry[Normaliser] = Registry("normaliser")
_NORMALISERS.add("squad", normalise_squad)
_NORMALISERS.add("careful", normalise_careful)


def get_normaliser(name: str) -> Normaliser:
    """ "squad" or "careful". Raises `UnknownNameError` otherwise."""
    return _NORMALISERS.get(name)


def normaliser_names() -> tuple[str, ...]:
    return tuple(_NORMALISERS)


def _aliases(golds: Iterable[str]) -> tuple[str, ...]:
    if isinstance(golds, str | bytes) or not isinstance(golds, Iterable):
        raise TypeError(f"gold answers: expected a list of strings, got {golds!r}. One answer is written ['Paris'].")
    aliases = tuple(golds)
    if not aliases:
        raise ValueError("gold answers: expected at least one, got an empty list.")
    for alias in aliases:
        if not isinstance(alias, str):
            raise TypeError(f"gold answers: expected strings, got {alias!r}.")
    return aliases


def _comparable(prediction: str, gold: str, normalise: Normaliser) -> tuple[str, str]:
    """Both texts normalised.

    A gold that normalises to nothing ("A", "The", "!!!") is compared with its articles, and if that is nothing too, by
    its bare lower-case characters. So the gold's form is never empty, and nothing never equals nothing.
    """
    if form := normalise(gold):
        return normalise(prediction), form
    if form := normalise(gold, articles=True):
        return normalise(prediction, articles=True), form
    return " ".join(prediction.lower().split()), " ".join(gold.lower().split())


def exact_match(prediction: str | None, golds: Iterable[str], normalise: Normaliser = normalise_squad) -> float:
    """1.0 if the prediction equals an alias after normalisation, else 0.0; None and "" are 0.0.

    Raises TypeError when `golds` is a bare string or holds anything but strings, ValueError when it is empty.
    """
    aliases = _aliases(golds)
    if not prediction:
        return 0.0
    pairs = (_comparable(prediction, gold, normalise) for gold in aliases)
    return float(any(got == gold != "" for got, gold in pairs))


_CLOSED_ANSWERS = frozenset({"yes", "no", "noanswer"})


def f1(prediction: str | None, golds: Iterable[str], normalise: Normaliser = normalise_squad) -> float:
    """Word F1 of the multisets of words, in [0, 1], the best over the aliases; None and "" are 0.0.

    As in HotpotQA's and FlashRAG's scorers, a "yes", "no" or "noanswer" on either side earns nothing unless both sides
    are equal: "no one" is no partial credit for "no". Never below `exact_match`. Raises as `exact_match` does.
    """
    aliases = _aliases(golds)
    if not prediction:
        return 0.0
    return max(_f1_of_forms(*_comparable(prediction, gold, normalise)) for gold in aliases)


def _f1_of_forms(got: str, gold: str) -> float:
    if got == gold:
        return float(got != "")
    if got in _CLOSED_ANSWERS or gold in _CLOSED_ANSWERS:
        return 0.0
    got_words, gold_words = got.split(), gold.split()
    common = sum((Counter(got_words) & Counter(gold_words)).values())
    # 2PR / (P + R) with P = common / got and R = common / gold, simplified.
    return 2 * common / (len(got_words) + len(gold_words)) if common else 0.0


def numeric_conflict(prediction: str | None, golds: Iterable[str]) -> bool:
    """Whether "squad" calls the prediction right only because it deletes signs and points: "35" for "3.5"."""
    aliases = _aliases(golds)
    if not prediction or not any(c.isdigit() for c in prediction) or not exact_match(prediction, aliases):
        return False
    numbers = _NUMBER_WORDS.findall(normalise_careful(prediction))
    matching = [gold for gold in aliases if exact_match(prediction, [gold])]
    return all(_NUMBER_WORDS.findall(normalise_careful(gold)) != numbers for gold in matching)


_NUMBER_WORDS = re.compile(r"-?\d+(?:\.\d+)?")


def without_separator(answers: Iterable[str]) -> tuple[str, ...]:
    """The accepted answers with "," for ";", which no part of an answer can hold; repeats left out.

    To the normalisers both marks are nothing, so the same predictions are right.
    """
    return tuple(dict.fromkeys(answer.replace(";", ",") for answer in answers))


class AnswerParts(NamedTuple):
    """An answer split at ";". `parts`: as found, "" where one is empty. `count_ok`: as many as there are objectives."""

    parts: tuple[str, ...]
    count_ok: bool


_ORDINAL = re.compile(r"\(?(\d{1,4})[.):](?:\s+|$)")


def split_answers(text: str | None, objectives: int) -> AnswerParts:
    """Split the text of an answer block into the answers of the objectives, by position from the left.

    Parts are separated by ";" and stripped. One empty part at the end is dropped ("a; b;" are two); an empty part
    inside is an unanswered objective. Parts never move to another slot: with too many or too few, `count_ok` is False
    and the i-th part still belongs to the i-th objective. A numbering ("1. Paris; 2. Rome", also "1)", "(1)", "1:") is
    stripped when there are at least two parts and every one carries its own number. Line breaks, commas and the
    full-width semicolon do not separate; `count_note` names them. Raises ValueError when `objectives` is below 1.
    """
    if objectives < 1:
        raise ValueError(f"objectives: expected at least 1, got {objectives}.")
    if text is None or not text.strip():
        return AnswerParts((), False)
    parts = [part.strip() for part in text.split(";")]
    if len(parts) > 1 and not parts[-1]:
        parts.pop()
    ordinals = [_ORDINAL.match(part) for part in parts]
    if len(parts) > 1 and all(m and m[1] == str(i) for i, m in enumerate(ordinals, start=1)):
        parts = [part[m.end() :] for part, m in zip(parts, ordinals, strict=True) if m]
    return AnswerParts(tuple(parts), len(parts) == objectives)


_NO_SEPARATORS = (("；", "a full-width semicolon"), ("\n", "line breaks"), (",", "commas"))


def count_note(text: str | None, objectives: int) -> str:
    """Why `count_ok` is False, in words; "" when it is True."""
    parts, count_ok = split_answers(text, objectives)
    if count_ok:
        return ""
    if not parts:
        return "unanswered"
    note = f"expected {objectives} answers separated by ';', got {len(parts)}"
    held = [words for mark, words in _NO_SEPARATORS if text and mark in text.strip()]
    if held and len(parts) < objectives:
        note += f" (found instead: {', '.join(held)})"
    return note


@dataclass(frozen=True, slots=True)
class Score:
    """How right an answer is; `em` and `f1` are per objective, [K], each in [0, 1].

    parts: the answers as found; where there are none everything is 0, for a missing answer is a wrong one. count_ok:
    exactly one part per objective. em_mean, f1_mean: mean over objectives (0..1). em_sum: sum
    (0..K), as MEM1 reports it. all_correct: every objective matches and count_ok. numeric_conflict: per objective, see
    the function. note: why count_ok is False. normaliser: the name of the normalisation.
    """

    em: tuple[float, ...]
    f1: tuple[float, ...]
    parts: tuple[str, ...]
    count_ok: bool
    numeric_conflict: tuple[bool, ...]
    note: str
    normaliser: str

    @property
    def em_sum(self) -> float:
        return sum(self.em)

    @property
    def em_mean(self) -> float:
        return sum(self.em) / len(self.em)

    @property
    def f1_mean(self) -> float:
        return sum(self.f1) / len(self.f1)

    @property
    def all_correct(self) -> bool:
        return self.count_ok and all(value == 1.0 for value in self.em)


def score(task: Task, answer: str | None, normaliser: str = "squad") -> Score:
    """Score the text of an answer block (None: the episode ended without one) against the task's gold answers.

    The i-th part is compared with the aliases of the i-th question. Raises `UnknownNameError` for the normaliser.
    """
    normalise = get_normaliser(normaliser)
    parts, count_ok = split_answers(answer, task.objectives)
    slots = [parts[i] if i < len(parts) else None for i in range(task.objectives)]
    pairs = [(slot, question.answers) for slot, question in zip(slots, task.questions, strict=True)]
    return Score(
        em=tuple(exact_match(slot, golds, normalise) for slot, golds in pairs),
        f1=tuple(f1(slot, golds, normalise) for slot, golds in pairs),
        parts=parts,
        count_ok=count_ok,
        numeric_conflict=tuple(numeric_conflict(slot, golds) for slot, golds in pairs),
        note=count_note(answer, task.objectives),
        normaliser=normaliser,
    )
