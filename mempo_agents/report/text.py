"""Small pieces of text for the page: counts, plurals, lists of words."""

from __future__ import annotations


def utf16_length(text: str) -> int:
    """How many units JavaScript counts in `text`."""
    return len(text) + sum(ord(c) > 0xFFFF for c in text) if not text.isascii() else len(text)


def plural(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def join_words(words: list[str], last: str = "and") -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} {last} {words[-1]}" if words else ""
