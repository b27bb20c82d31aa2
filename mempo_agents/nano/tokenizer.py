"""The tokenizer of the compact register: one token a word, and one for each fixed piece of a protocol.

Everything that a compact episode can show (passages, questions, results, complaints of the environment) and everything
that its teacher writes has tokens, so the unknown token never occurs. White space carries no meaning: it is dropped in
encoding, and decoding puts a blank or a line break where a reader expects it. What was sampled therefore reads back as
the same ids, and what was encoded parses the same after decoding.
"""

from __future__ import annotations

import re
from typing import Any

from mempo_env.protocols import get_protocol
from mempo_env.protocols.render import NO_RESULTS, NO_ROOM
from mempo_env.tasks.world import compact_vocabulary
from mempo_env.types import Action, ActionKind, InvalidReason

PAD, END, UNKNOWN = "<pad>", "<eos>", "<unk>"
SPECIAL = (PAD, END, UNKNOWN)
PROTOCOLS = ("mempo", "mem1", "react", "search_r1")
TAGS = tuple(
    f"<{slash}{name}>"
    for name in ("mem", "think", "tool_call", "search", "answer", "information")
    for slash in ("", "/")
)
CALL_OPENING, CALL_CLOSING = '{"name": "search", "arguments": {"query": "', '"}}'
# Pieces that are one token although they hold several words or marks.
PIECES = (*TAGS, CALL_OPENING, CALL_CLOSING, "(Title:", "[HINT]You have", "turns left.[/HINT]", "turn left.")
# What the teacher writes in its notes besides the world's words; see `mempo_agents.engines.oracle`.
NOTES = "Question fact tried answer unknown - :"
_WORD = re.compile(r"[^\W\d]+|\d|[^\w\s]")


def fixed_texts() -> list[str]:
    """Every text that the environment can write around the words of a compact world."""
    texts = ["Answer this question. Answer these questions. Question Doc ( ) : ; ?", NO_RESULTS, NO_ROOM, "..."]
    texts.append("[HINT]You have 1 turn left. You must answer now.[/HINT]")
    for name in PROTOCOLS:
        protocol = get_protocol(name)
        for reason in (None, *InvalidReason):
            texts.append(protocol.render_invalid(Action(ActionKind.INVALID, "", "", reason=reason)))
    return texts


def vocabulary() -> list[str]:
    """All tokens in the order of their ids."""
    words: list[str] = [*SPECIAL, *compact_vocabulary(), *PIECES]
    for text in (*fixed_texts(), NOTES):
        for piece in PIECES:
            text = text.replace(piece, " ")  # a piece must not be spelt by other tokens as well
        words += _WORD.findall(text)
    return list(dict.fromkeys(words))


def nano_tokenizer() -> Any:
    """A `transformers.PreTrainedTokenizerFast`, the same at every call."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = vocabulary()
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(_WORD.pattern), "removed", invert=True)
    # A blank before every token, but for closing marks, and a new line for what begins one.
    marks = [decoders.Replace(f" {mark}", mark) for mark in (":", "?", ")", "(Title:", CALL_CLOSING)]
    marks += [decoders.Replace(f" {tag}", tag) for tag in TAGS if tag.startswith("</")]
    marks += [decoders.Replace(f" {word}", f"\n{word}") for word in ("Question", "Doc", "<think>", "<tool_call>",
                                                                    "<search>", "<answer>")]  # fmt: skip
    tokenizer.decoder = decoders.Sequence([decoders.WordPiece(prefix="##", cleanup=False), *marks])
    tokenizer.add_tokens([AddedToken(piece, normalized=False) for piece in PIECES])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        unk_token=UNKNOWN,
        clean_up_tokenization_spaces=False,
        name_or_path="nano",
    )
