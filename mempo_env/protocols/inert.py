"""Text that is not the policy's must never open or close a tag, nor a chat turn. One function makes it inert."""

from __future__ import annotations

import re

from mempo_env.text import replace_surrogates

TAG_NAMES = ("mem", "think", "tool_call", "search", "visit", "answer", "information")
"""Every tag name that any built-in protocol gives a meaning."""

# Marks with which chat templates and tokenizers delimit turns and sequences, besides the `<|...|>` family.
_ANGLE_MARKS = ("tool_response", "start_of_turn", "end_of_turn", "s", "bos", "eos", "pad", "unk")
_SQUARE_MARKS = ("INST", "SYSTEM_PROMPT", "AVAILABLE_TOOLS", "TOOL_CALLS", "TOOL_RESULTS", "HINT")

# Every part is bounded by the next bracket and the quantifiers are possessive, so that the scan is linear. The inert
# brackets are excluded inside a mark: otherwise making an inner mark inert could complete an outer one.
_MARK = re.compile(
    r"<[\s/]*+(?:" + "|".join(TAG_NAMES + _ANGLE_MARKS) + r")(?:[\s/][^<>‹›]*+)?>"
    r"|<[|｜][^<>‹›]++(?<=[|｜])>"
    r"|<</?SYS>>"
    r"|\[/?(?:" + "|".join(_SQUARE_MARKS) + r")\]",
    re.IGNORECASE,
)
_INERT = str.maketrans("<>[]", "‹›‹›")


def neutralise(text: str) -> str:
    """Return `text` with our tags and chat-template marks made inert: their brackets become `‹` and `›`.

    Our tags are caught in any case, with inner spaces, slashes or attributes (`< /Answer id="1">`); chat marks are
    `<|im_end|>` and its kin, `<s>`, `<end_of_turn>`, `[INST]` and `[HINT]`. All other text, such as `a < b` or `<b>`,
    stays as it is. Idempotent, length-preserving, linear in time; lone surrogates are replaced on the way.
    """
    return _MARK.sub(lambda mark: mark[0].translate(_INERT), replace_surrogates(text))
