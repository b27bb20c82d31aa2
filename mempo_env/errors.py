"""The errors that users can catch. Each is also a standard error, so that plain `except ValueError` works."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any


class MempoError(Exception):
    """Base of all errors raised on purpose by this project."""

    def __reduce__(self) -> tuple[Any, ...]:
        # Worker processes send errors home by pickle, which would call a subclass with nothing but its message.
        return _restore, (type(self), self.args)


def _restore(kind: type[MempoError], args: tuple[Any, ...]) -> MempoError:
    return kind.__new__(kind, *args)


class DataError(MempoError, ValueError):
    """A file, row, question or task is not what was expected."""


class UnknownNameError(MempoError, ValueError):
    """A name is not registered. The message lists what is, and the nearest match."""

    def __init__(self, what: str, got: object, known: Iterable[str]) -> None:
        names = sorted(known)
        near = difflib.get_close_matches(str(got), names, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        super().__init__(f"Unknown {what} {got!r}.{hint} Known: {', '.join(names)}.")


class MissingExtraError(MempoError, ImportError):
    """An optional package is missing. The message gives the install line."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(f"{purpose} needs {package}. Install it with: pip install 'mempo-gym[{extra}]'")


class RetrievalError(MempoError, RuntimeError):
    """A search failed for reasons that are not the policy's: a dead server, a timeout, a broken index.

    The environment ends such an episode as FAILED; it is never scored and never shown to the policy as text.
    """


class EngineError(MempoError, RuntimeError):
    """A language model could not be asked for reasons that are not the policy's: a dead server, a timeout, an answer
    that makes no sense.

    The episode in which it happens ends as FAILED; it is never scored.
    """


class EpisodeOverError(MempoError, RuntimeError):
    """`step` was called before `reset`, or after the episode ended."""
