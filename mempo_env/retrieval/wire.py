"""Search-R1's HTTP protocol, `POST /retrieve`: what a passage looks like on the wire, for server and client alike.

    request   {"queries": [str, ...], "topk": int | null, "return_scores": bool = false}
    response  {"result": [[{"document": {"id": str, "contents": str}, "score": float}, ...], ...]}
              with return_scores false the documents stand bare: {"result": [[{"id", "contents"}, ...], ...]}

`contents` is the title, a line break, and the text; the text alone where there is neither title nor line break.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import Any

from mempo_env.types import Hit, Passage

FINGERPRINT_HEADER = "X-Index-Fingerprint"


def contents_of(passage: Passage) -> str:
    """`passage` as one string, from which `split_contents` gives title and text back."""
    if not passage.title and "\n" not in passage.text:
        return passage.text
    return f"{passage.title}\n{passage.text}"


def split_contents(contents: str) -> tuple[str, str]:
    """Title and text. A single line is a text without a title.

    >>> split_contents('"Oslo"\\nThe capital of Norway.')
    ('"Oslo"', 'The capital of Norway.')
    """
    title, newline, text = contents.partition("\n")
    return (title, text) if newline else ("", contents)


def result_of(hits: Sequence[Hit], return_scores: bool) -> list[dict[str, Any]]:
    """One query's hits as the protocol writes them."""
    documents = [{"id": hit.passage.id, "contents": contents_of(hit.passage)} for hit in hits]
    if not return_scores:
        return documents
    return [{"document": document, "score": hit.score} for document, hit in zip(documents, hits, strict=True)]


def hits_of(result: Any, k: int) -> list[Hit]:
    """Read one query's result, of our server or of another that speaks the protocol.

    Understood beside the form above: documents with "title" and "text" in place of contents, plain strings, no id (the
    content's hash then), no score, more than `k` entries (web proxies send their answer box as well), and the same
    passage twice (kept once). Raises ValueError for anything else.
    """
    if not isinstance(result, list):
        raise ValueError(f"expected a list of documents, got {_shown(result)}")
    hits: list[Hit] = []
    seen: set[str] = set()
    for item in result:
        document, score = (item["document"], item.get("score")) if _is_scored(item) else (item, None)
        if score is not None:
            if isinstance(score, bool) or not isinstance(score, (int, float)) or not math.isfinite(score):
                raise ValueError(f"expected a finite number as score, got {_shown(score)}")
            score = float(score)
        passage = _passage(document)
        if passage.id not in seen:
            seen.add(passage.id)
            hits.append(Hit(passage, score))
    return hits[:k]


def _is_scored(item: Any) -> bool:
    return isinstance(item, Mapping) and "document" in item


def _passage(document: Any) -> Passage:
    if isinstance(document, str):
        document = {"contents": document}
    if not isinstance(document, Mapping):
        raise ValueError(f"expected a document, got {_shown(document)}")
    if isinstance(document.get("contents"), str):
        title, text = split_contents(document["contents"])
    elif isinstance(document.get("text"), str):
        title, text = str(document.get("title") or ""), document["text"]
    else:
        raise ValueError(f"expected a document with contents or text, got the keys {sorted(map(str, document))}")
    own_id = document.get("id")
    if own_id is None or isinstance(own_id, (dict, list)):
        own_id = hashlib.sha256(f"{title}\n{text}".encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return Passage(str(own_id), title, text)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
