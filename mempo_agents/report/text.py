"""Text of unknown origin, made fit to be read: what would act on the page or on the reader's eye is shown as a sign."""

from __future__ import annotations

import re

# Signs that turn the direction of what follows, join it, or are invisible: shown by name. Blanks and line breaks stay.
_NAMED = {
    0x200B: "ZWSP", 0x200E: "LRM", 0x200F: "RLM", 0x061C: "ALM", 0x202A: "LRE", 0x202B: "RLE", 0x202C: "PDF",
    0x202D: "LRO", 0x202E: "RLO", 0x2060: "WJ", 0x2066: "LRI", 0x2067: "RLI", 0x2068: "FSI", 0x2069: "PDI",
    0xFEFF: "BOM", 0x2028: "LS", 0x2029: "PS",
}  # fmt: skip
_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028\u2029\u202a-\u202e\u2060\u2066-\u2069\ufeff\ud800-\udfff]"
)


def visible(text: str) -> str:
    """`text` with control characters, marks of direction and lone surrogates shown as signs.

    >>> visible("a\\x00b\\u202ec")
    'a␀b⟦RLO⟧c'
    """
    return _HIDDEN.sub(_sign, text)


def _sign(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x20:
        return chr(0x2400 + code)
    if code == 0x7F:
        return "\u2421"
    return f"\u27e6{_NAMED.get(code, f'U+{code:04X}')}\u27e7"


def utf16_length(text: str) -> int:
    """How many units JavaScript counts in `text`."""
    return len(text) + sum(ord(c) > 0xFFFF for c in text) if not text.isascii() else len(text)


def plural(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def join_words(words: list[str], last: str = "and") -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} {last} {words[-1]}" if words else ""
