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


# How many items a sequence remembers: all of a small world's, and a bounded memory for a large one.
_REMEMBERED = 8_192


class Lazy(Sequence[_Item]):
    """A sequence whose items are computed when they are read. The last few thousand read by index are remembered.

    Iterating over a long one remembers nothing, so memory stays flat.
    """

    def __init__(self, length: int, item: Callable[[int], _Item]) -> None:
        self._length, self._item = length, item
        self._memory: dict[int, _Item] = {}

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> _Item: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[_Item]: ...

    def __getitem__(self, index: int | slice) -> _Item | Sequence[_Item]:
        if isinstance(index, slice):
            return [self[i] for i in range(self._length)[index]]
        index = range(self._length)[index]
        item = self._memory.get(index)
        if item is None:
            if len(self._memory) >= _REMEMBERED:
                self._memory.clear()  # forgetting all at once is safe where threads share the world
            item = self._memory[index] = self._item(index)
        return item

    def __iter__(self) -> Iterator[_Item]:
        return map(self._item if self._length > _REMEMBERED else self.__getitem__, range(self._length))

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_memory": {}}
