"""Checks of numbers that several parts take as arguments."""

from __future__ import annotations

import operator
from typing import Any


def whole_number(name: str, value: Any, least: int | None = 1) -> int:
    """`value` as an int, numpy's integers included.

    Raises:
        TypeError: it is no integer (a bool is none either). ValueError: it is below `least`. Both name it.
    """
    expected = f"Expected {name} to be an integer" + ("" if least is None else f" of at least {least}")
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{expected}, got {value!r}.")
    number = operator.index(value)
    if least is not None and number < least:
        raise ValueError(f"{expected}, got {value}.")
    return number


def limit(name: str, value: Any, least: int = 1) -> int | None:
    """The same where None means that there is no limit."""
    return None if value is None else whole_number(name, value, least)
