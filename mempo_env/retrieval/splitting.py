"""Long articles into overlapping windows, by words or by a model's tokens."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from mempo_env.errors import DataError, MissingExtraError

# A unit is a half-open character range of the text: a word, or what one token covers.
Units = Callable[[str], list[tuple[int, int]]]

_WORD = re.compile(r"\S+")


def word_units(text: str) -> list[tuple[int, int]]:
    """The character ranges of the words of `text`: what stands between white space."""
    return [match.span() for match in _WORD.finditer(text)]


def token_units(model: str) -> Units:
    """A function that gives the character ranges of a Hugging Face tokenizer's tokens (special tokens left out)."""
    try:
        from transformers import AutoTokenizer
    except ImportError:
        raise MissingExtraError("transformers", "retrieval", "Splitting by tokens") from None
    tokenizer = AutoTokenizer.from_pretrained(model)
    if not tokenizer.is_fast:
        raise DataError(f"The tokenizer of {model!r} gives no character offsets. Split by words instead.")

    def units(text: str) -> list[tuple[int, int]]:
        # The length warning is meant for models; here the text is cut afterwards.
        offsets = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        return [(start, end) for start, end in offsets["offset_mapping"] if end > start]

    return units


@dataclass(frozen=True, slots=True)
class Windows:
    """Windows of `size` units of which neighbours share `overlap`. `name` goes into the corpus' manifest.

    A text of at most `size` units stays whole, character for character. No window is contained in another: the last
    one ends at the text's end and starts where the rule puts it.
    """

    size: int
    overlap: int
    units: Units = word_units
    name: str = "words"

    def __post_init__(self) -> None:
        if self.size < 1 or not 0 <= self.overlap < self.size:
            raise ValueError(
                f"Windows: expected size >= 1 and 0 <= overlap < size, got size {self.size} and overlap {self.overlap}."
            )

    @property
    def description(self) -> str:
        return f"{self.name}:{self.size}:{self.overlap}"

    def __call__(self, text: str) -> Iterator[str]:
        units = self.units(text)
        if len(units) <= self.size:
            yield text
            return
        step = self.size - self.overlap
        for first in range(0, len(units) - self.overlap, step):
            last = min(first + self.size, len(units)) - 1
            yield text[units[first][0] : units[last][1]]


def parse_windows(spec: str) -> Windows | None:
    """ "words:100:20", "tokens:180:30:intfloat/e5-base-v2", or "none"."""
    if spec == "none":
        return None
    unit, _, rest = spec.partition(":")
    parts = rest.split(":", 2)
    try:
        size, overlap = int(parts[0]), int(parts[1])
        if unit == "words" and len(parts) == 2:
            return Windows(size, overlap)
        if unit == "tokens" and len(parts) == 3:
            return Windows(size, overlap, token_units(parts[2]), f"tokens[{parts[2]}]")
    except (IndexError, ValueError):
        pass
    raise ValueError(f"Split {spec!r}: expected 'none', 'words:SIZE:OVERLAP' or 'tokens:SIZE:OVERLAP:MODEL'.")
