"""From sampled ids to the text of each token, and from character spans to token ranges. Nothing is encoded again.

Credit is given to tokens, but the parser reads text. The bridge is `token_ends`: for every sampled id, where its own
text ends in the decoded text. It works from what the tokenizer's decoder makes of these very ids, so it is exact where
encoding the text again would choose other merges, and where one token holds the end of one tag and the start of the
next.

Two rules, stated once:

* A character that is split over several tokens belongs to the token that completes it; the tokens before it have empty
  text there.
* A token belongs to a span when at least one of its characters lies in it; a token that touches two spans belongs to
  the earlier one. A token with empty text goes with the character that follows it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

_PATIENCE = 8  # tokens held back before trying less often; a character is at most four bytes in UTF-8
_BROKEN = "\ufffd"  # what decoders write for bytes that are no character
_TOO_LONG = 64  # tokens held back before the window is given up for the plain definition


def decode_text(tokenizer: Any, ids: Sequence[int] | np.ndarray) -> str:
    """The text of `ids`: special tokens kept, no clean-up of spaces. The text that `token_ends` refers to."""
    return _decoder(tokenizer)([int(i) for i in ids])


def token_ends(tokenizer: Any, ids: Sequence[int] | np.ndarray) -> np.ndarray:
    """Where each token's text ends in `decode_text(tokenizer, ids)`: int64 [T], non-decreasing, the last is its length.

    `tokenizer` is a transformers tokenizer, a `tokenizers.Tokenizer`, or anything whose `decode(ids)` gives text.
    Cost grows linearly with T: each token is decoded in a window of the last few tokens, which supplies what decoders
    look back for (the blank before a word, the first bytes of a character).
    """
    ids = [int(i) for i in ids]
    return _ends(_decoder(tokenizer), ids)


def decode_with_ends(tokenizer: Any, ids: Sequence[int] | np.ndarray) -> tuple[str, np.ndarray]:
    """`decode_text` and `token_ends` of the same ids."""
    return decode_text(tokenizer, ids), token_ends(tokenizer, ids)


def token_spans(token_ends: np.ndarray, char_spans: Mapping[str, tuple[int, int]]) -> dict[str, tuple[int, int]]:
    """Half-open token ranges of half-open character ranges, by the rules at the top of this module.

    token_ends: int64 [T], non-decreasing. char_spans: disjoint ranges, in any order. Ranges of different spans never
    share a token; a span whose only token belongs to an earlier span comes back empty (start == end).
    Raises ValueError for unordered ends, a span that ends before it starts, or spans that overlap.
    """
    ends = np.asarray(token_ends, dtype=np.int64)
    if ends.ndim != 1 or (len(ends) > 1 and bool(np.any(np.diff(ends) < 0))):
        raise ValueError(f"token_ends must be a non-decreasing vector, got shape {ends.shape}.")
    spans: dict[str, tuple[int, int]] = {}
    last_char = last_token = 0
    for name, (begin, end) in sorted(char_spans.items(), key=lambda item: item[1]):
        if not 0 <= begin <= end:
            raise ValueError(f"Span {name!r}: expected 0 <= start <= end, got ({begin}, {end}).")
        if begin < last_char and end > begin:
            raise ValueError(f"Span {name!r} starts at {begin}, inside another span that ends at {last_char}.")
        if begin == end:
            at = max(int(np.searchsorted(ends, begin, side="left")), last_token)
            spans[name] = (at, at)
            continue
        # The first token whose text reaches past `begin`, with the empty ones that lead up to it. Those end at `begin`,
        # as does the last token outside, hence the search from the left and one step on.
        first = int(np.searchsorted(ends, begin, side="left"))
        if first < len(ends) and ends[first] == begin and begin > 0:
            first += 1
        stop = int(np.searchsorted(ends, end, side="left")) + 1  # the token that holds character end - 1
        stop = min(stop, len(ends))
        first = min(max(first, last_token), max(stop, last_token))
        stop = max(stop, first)
        spans[name] = (first, stop)
        last_char, last_token = end, stop
    return {name: spans[name] for name in char_spans}


def _decoder(tokenizer: Any) -> Callable[[list[int]], str]:
    kind = type(tokenizer).__module__.partition(".")[0]
    if hasattr(tokenizer, "clean_up_tokenization_spaces"):
        return lambda ids: tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    if kind == "tokenizers":
        return lambda ids: tokenizer.decode(ids, skip_special_tokens=False)
    return lambda ids: tokenizer.decode(ids)


def _ends(decode: Callable[[list[int]], str], ids: list[int]) -> np.ndarray:
    """Decode each token behind the few before it; the full text decides what may be accepted."""
    text = decode(ids)
    ends = np.zeros(len(ids), dtype=np.int64)
    done = read = 0  # characters of `text`, and tokens, that are accounted for
    context: list[int] = []  # the tokens before ids[read], as far back as decoding needs
    known = ""  # what they decode to
    retry = 0  # do not look again before this token
    for k in range(len(ids)):
        held = k - read
        ends[k] = done
        if held > _TOO_LONG:
            return _ends_by_prefix(decode, ids, text)
        if k < retry and k < len(ids) - 1:
            continue
        new = ids[read : k + 1]
        window = decode(context + new)
        if not window.startswith(known):
            continue
        piece = window[len(known) :]
        if text.startswith(piece, done):
            done += len(piece)
            ends[k] = done
            alone = decode(new)
            # Bytes that make no character are read together with their neighbours, so the context grows over them;
            # a token that decodes to nothing (an unknown id, a blank that is stripped) is no context either.
            if not alone or _BROKEN in alone or _BROKEN in piece:
                context, known = context + new, window
                if len(context) > _TOO_LONG:
                    context = context[-_TOO_LONG // 2 :]
                    known = decode(context)
            else:
                context, known = new, alone
            read = k + 1
            continue
        ends[k] = done + _common(piece, text[done : done + len(piece)])  # whole characters before half a one
        if held >= _PATIENCE:
            retry = k + held // 2
    if ids:
        if len(ids) - read > _PATIENCE:
            return _ends_by_prefix(decode, ids, text)
        ends[-1] = len(text)
    return np.maximum.accumulate(ends) if ids else ends


def _ends_by_prefix(decode: Callable[[list[int]], str], ids: list[int], text: str) -> np.ndarray:
    """The plain definition, at quadratic cost: how much of `text` the first tokens alone already give."""
    ends = np.zeros(len(ids), dtype=np.int64)
    for k in range(len(ids)):
        prefix = decode(ids[: k + 1])
        agree = len(prefix) if text.startswith(prefix) else _common(prefix, text)
        ends[k] = max(agree, ends[k - 1] if k else 0)
    if len(ids):
        ends[-1] = len(text)
    return ends


def _common(a: str, b: str) -> int:
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return i
    return min(len(a), len(b))
