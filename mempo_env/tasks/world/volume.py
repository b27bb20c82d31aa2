"""One split of a world, whichever its register: what `World` needs to know about it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar, overload

from mempo_env.types import Passage, Question


@dataclass(frozen=True, slots=True)
class Fact:
    """One statement: `relation` of `subject` is `value`, as `sentence`, a verbatim piece of the passage, says.

    `subject` is the title of the passage. `value` is a title, a date, a year or a number, in its canonical spelling.
    """

    subject: str
    relation: str
    value: str
    passage_id: str
    sentence: str


class Volume(Protocol):
    """The articles and questions of one split, each computed from its number alone."""

    articles: int
    questions: int

    def passage(self, index: int) -> Passage: ...

    def question(self, index: int) -> Question: ...

    def facts(self, index: int) -> tuple[Fact, ...]: ...


_Item = TypeVar("_Item", covariant=True)


# Items that a sequence remembers: some megabytes at most, whatever the size of the world.
_KEPT = 10_000


class Lazy(Sequence[_Item]):
    """A sequence whose items are computed when they are read. Up to 10,000 of those read by index are remembered."""

    def __init__(self, length: int, item: Callable[[int], _Item]) -> None:
        self._length, self._item = length, item
        self._kept: dict[int, _Item] = {}

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> _Item: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[_Item]: ...

    def __getitem__(self, index: int | slice) -> _Item | Sequence[_Item]:
        if isinstance(index, slice):
            return [self._item(i) for i in range(self._length)[index]]
        number = range(self._length)[index]
        item = self._kept.get(number)
        if item is None:
            item = self._item(number)
            # Searches and resets return to the same items; forgetting all at once is safe when threads share this.
            if len(self._kept) >= _KEPT:
                self._kept.clear()
            self._kept[number] = item
        return item

    def __iter__(self) -> Iterator[_Item]:
        return map(self._item, range(self._length))

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_kept": {}}
