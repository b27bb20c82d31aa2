"""Small operations on text of unknown origin that several parts need."""

from __future__ import annotations

import re

_SURROGATE = re.compile("[\ud800-\udfff]")


def replace_surrogates(text: str) -> str:
    """Replace each lone surrogate by U+FFFD, so that the text can be encoded as UTF-8. Lengths and offsets stay."""
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)
