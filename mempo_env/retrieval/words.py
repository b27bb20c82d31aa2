"""The one tokenizer of lexical search: text in, search words out. Index and query go through the same function."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection
from functools import cache

# "will" and "may" are missing on purpose: they are names too.
_STOP = """
a an and are as at be but by did do does for from had has have he her his how i if in into is it its of on or she
such that the their then there these they this to was we were what when where which who whom whose why with you
"""
ENGLISH_STOP_WORDS = frozenset(_STOP.split())

_ASCII_WORD = re.compile(r"[a-z0-9]+")
_POSSESSIVE = re.compile(r"['\u2019]s\b")
# Scripts written without spaces: each character is a word of its own, as no dictionary is at hand.
_UNSPACED = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_ACCENT = re.compile("[\u0300-\u036f]")


@cache
def _any_word() -> re.Pattern[str]:
    # `\w` leaves out combining marks, which would cut Hindi or Thai words at every vowel sign.
    marks = [chr(c) for c in range(0x0370, 0x20000) if unicodedata.category(chr(c)) in ("Mn", "Mc")]
    return re.compile(f"[{_UNSPACED}]|(?:(?![{_UNSPACED}_])[\\w{re.escape(''.join(marks))}])+")


def words(text: str, stop_words: Collection[str] = ENGLISH_STOP_WORDS) -> list[str]:
    """The search words of `text`, in order, repeats kept.

    Case is folded, Latin, Greek and Cyrillic accents are dropped ("Lilû" and "lilu" meet), compatibility forms are
    unified (full-width letters), possessive 's goes, punctuation and underscores separate. Letters, digits and marks of
    any script stay; Han, Hiragana and Katakana give one word per character. No stemming: a ranking must not depend on
    which optional packages are installed.
    """
    text = _POSSESSIVE.sub("", text.lower())
    if text.isascii():
        found = _ASCII_WORD.findall(text)
    else:
        folded = _ACCENT.sub("", unicodedata.normalize("NFKD", text).casefold())
        found = _any_word().findall(unicodedata.normalize("NFC", folded))
    return [word for word in found if word not in stop_words]
