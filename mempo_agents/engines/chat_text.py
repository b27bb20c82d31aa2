"""The end of a chat server's text: which stop string it cut off, where it does not say."""

from __future__ import annotations

from collections.abc import Sequence


def close_action(text: str, stop: Sequence[str], *, complete: bool) -> tuple[str, str]:
    """A text that ended by itself or at a stop string, and which of the two it was: (text, "stop" or "eos").

    complete: the server keeps stop strings, or was given none. Else the one that it cut off is put back: that of the
    tag which was opened last and is still open. A model that ended by itself inside that tag cannot be told from one
    that was stopped there, and is closed too.
    """
    if text.rstrip().endswith(tuple(stop)):
        return text, "stop"
    if complete:
        return text, "eos"
    opened = {tag: text.rfind(tag.replace("</", "<", 1)) for tag in stop}
    last = max(opened, key=lambda tag: opened[tag], default="")
    if not last or opened[last] < 0 or text.rfind(last) > opened[last]:
        return text, "eos"
    return text + last, "stop"
