"""Named things that users may add to: protocols, context rules, rewards, normalisers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

from mempo_env.errors import UnknownNameError

T = TypeVar("T")


class Registry(Generic[T]):
    """A dictionary from name to object that refuses to overwrite and that answers an unknown name with the known ones.

    `what` names the kind of thing in error messages ("protocol").
    """

    def __init__(self, what: str) -> None:
        self.what = what
        self._items: dict[str, T] = {}

    def add(self, name: str, item: T) -> T:
        """Register `item` and return it. Raises ValueError when the name is empty or taken by another object."""
        if not isinstance(name, str) or not name:
            raise ValueError(f"A {self.what} needs a non-empty name, got {name!r}.")
        if name in self._items and self._items[name] != item:
            raise ValueError(f"The {self.what} {name!r} is already registered. Choose another name.")
        self._items[name] = item
        return item

    def get(self, name: str) -> T:
        """The object of that name. Raises `UnknownNameError`, which lists the known names and the nearest one."""
        try:
            return self._items[name]
        except (KeyError, TypeError):
            raise UnknownNameError(self.what, name, self._items) from None

    def __contains__(self, name: object) -> bool:
        return name in self._items

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._items))
