"""One way to count and encode, for engines with a real tokenizer and for those without.

A `TokenCodec` turns messages into prompt ids and texts into ids with the end of each token's text. `WordTokenizer`
needs no model: scripted engines count with it. `HFTokenizer` wraps a transformers tokenizer, chat template included.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Protocol

import numpy as np

from mempo_agents.spans import decode_text, token_ends
from mempo_env.types import Message

_PIECE = re.compile(r"\s*\w+|\s*[^\w\s]|\s+")


class LossyTokenizerError(ValueError):
    """Decoding does not give back the text that was encoded."""


class TokenCodec(Protocol):
    """encode: int64 [T] of a bare text. encode_with_ends: the same, and int64 [T] where each token's text ends, the
    last at `len(text)`. encode_messages: int64 [P], the prompt that ends where the assistant's words begin."""

    name: str

    def encode(self, text: str) -> np.ndarray: ...

    def encode_with_ends(self, text: str) -> tuple[np.ndarray, np.ndarray]: ...

    def encode_messages(self, messages: Sequence[Message]) -> np.ndarray: ...


class WordTokenizer:
    """Words and punctuation marks, each with the white space before it; an id is the CRC-32 of the piece's UTF-8 bytes.

    About 1.1 tokens per English word. Every character belongs to exactly one piece, so the ends are exact. Ids cannot
    be decoded: the texts are kept beside them. A message costs its content and two marks, one for the role and one
    for the end; the open assistant turn costs one more.
    """

    name = "word"

    def encode(self, text: str) -> np.ndarray:
        return _word_ids(text).copy()

    def encode_with_ends(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        ends = np.fromiter((match.end() for match in _PIECE.finditer(text)), dtype=np.int64)
        return self.encode(text), ends

    def encode_messages(self, messages: Sequence[Message]) -> np.ndarray:
        parts: list[np.ndarray] = []
        for message in messages:
            parts += [_mark(f"<|{message['role']}|>"), _word_ids(message["content"]), _mark("<|end|>")]
        return np.concatenate([*parts, _mark("<|assistant|>")])


class HFTokenizer:
    """A transformers tokenizer. Prompts use its chat template where it has one, else the plain text of the messages.

    The plain form is the environment's observation: the contents joined by a blank line, then a line break; a beginning
    token stands in front where the tokenizer's own rule puts one.

    Some templates rewrite what they are given (they drop the reasoning of earlier turns, which for MEM1 is the memory).
    What the policy sees is the context rule's business, so such a template supplies the frame and the contents are
    put in unchanged.
    """

    def __init__(self, tokenizer: Any, name: str | None = None) -> None:
        self.tokenizer = tokenizer
        self.name = name or str(getattr(tokenizer, "name_or_path", "")) or type(tokenizer).__name__

    def encode(self, text: str) -> np.ndarray:
        return np.asarray(self.tokenizer.encode(text, add_special_tokens=False), dtype=np.int64)

    def encode_with_ends(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        """Raises ValueError where decoding does not give the text back, because the ends would be wrong.

        A tokenizer may drop white space (as that of `mempo_agents.nano` does): then the offsets of the encoding count.
        """
        ids = self.encode(text)
        decoded = decode_text(self.tokenizer, ids)
        if decoded == text:
            return ids, token_ends(self.tokenizer, ids)
        if "".join(decoded.split()) != "".join(text.split()):
            raise LossyTokenizerError(
                f"The tokenizer {self.name!r} does not give back the text {text[:80]!r} that it encoded."
            )
        offsets = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
        ends = np.array([end for _, end in offsets], dtype=np.int64)
        ends[-1:] = len(text)
        return ids, ends

    def encode_messages(self, messages: Sequence[Message]) -> np.ndarray:
        if getattr(self.tokenizer, "chat_template", None):
            return self.encode(self.render(messages))
        ids = self.encode("\n\n".join(message["content"] for message in messages) + "\n")
        begin = getattr(self.tokenizer, "bos_token_id", None)
        if begin is not None and self.tokenizer.encode("a", add_special_tokens=True)[:1] == [begin]:
            ids = np.concatenate([np.array([begin], dtype=np.int64), ids])
        return ids

    def render(self, messages: Sequence[Message]) -> str:
        """The chat template's text, generation prompt included, with every message's content in it word for word."""
        text = self._template([message["content"] for message in messages], messages)
        contents = [message["content"] for message in messages]
        if _in_order(text, contents):
            return text
        marks = [f"content{index}of{len(messages)}" for index in range(len(messages))]
        frame = self._template(marks, messages)
        if not _in_order(frame, marks):
            raise ValueError(
                f"The chat template of {self.name!r} drops or reorders messages; give it another template."
            )
        pieces: list[str] = []
        for mark, content in zip(marks, contents, strict=True):
            before, _, frame = frame.partition(mark)
            pieces += [before, content]
        return "".join([*pieces, frame])

    def _template(self, contents: Sequence[str], messages: Sequence[Message]) -> str:
        chat = [{"role": m["role"], "content": content} for m, content in zip(messages, contents, strict=True)]
        return self.tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)


def _in_order(text: str, pieces: Sequence[str]) -> bool:
    at = 0
    for piece in pieces:
        at = text.find(piece, at)
        if at < 0:
            return False
        at += len(piece)
    return True


@lru_cache(maxsize=4096)
def _word_ids(text: str) -> np.ndarray:
    pieces = _PIECE.findall(text)
    return np.fromiter(
        (zlib.crc32(piece.encode("utf-8", "surrogatepass")) for piece in pieces), dtype=np.int64, count=len(pieces)
    )


@lru_cache(maxsize=64)
def _mark(text: str) -> np.ndarray:
    return np.array([zlib.crc32(text.encode())], dtype=np.int64)
