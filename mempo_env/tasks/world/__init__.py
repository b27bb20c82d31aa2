"""The embedded data set: a procedural encyclopedia of people, places, organisations, works and events.

Nothing is downloaded and nothing can have been read before: every name, article and question is computed from a seed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from functools import partial

from mempo_env.errors import DataError, UnknownNameError
from mempo_env.tasks.world.compact import CompactVolume, check_compact_size, compact_vocabulary
from mempo_env.tasks.world.names import SPLITS
from mempo_env.tasks.world.plain import PlainVolume
from mempo_env.tasks.world.volume import Fact, Lazy, Volume
from mempo_env.types import Passage, Question

__all__ = ["Fact", "World", "compact_vocabulary"]

# Part of every fingerprint: raise it whenever the same arguments would give other texts.
GENERATOR_VERSION = 1
_MAX_HOPS = 4
_SMALLEST, _LARGEST = 200, 1_000_000
_DEFAULTS = {"plain": {"size": 500, "max_hops": 4}, "compact": {"size": 2000, "max_hops": 2}}
_NAMES = {"plain": "world", "compact": "world-compact"}


class World:
    """An invented world as a data set: articles to search, and questions with one right answer each.

    Args:
        size: articles per split, 200 to 1,000,000. Default 500 (plain) or 2,000 (compact). The dev and test splits of
            a compact world have a fifth of that, for their share of the short names is smaller.
        seed: any whole number. Equal arguments give equal texts, in any process, on any machine.
        register: "plain" is ordinary, varied English. "compact" has a closed vocabulary (`compact_vocabulary`), names
            of two or three syllables and sentences that repeat their subject, for models of about a million parameters.
        min_hops, max_hops: how many links of evidence a question needs, 1 to 4. Default 1 to 4 (plain) and 1 to 2
            (compact).

    Splits are separate worlds: no name of "train", with any seed and size, occurs in "dev" or "test", with any seed
    and size. Articles and questions are computed when read, each from its number alone, so a world of a million
    articles takes no more memory than one of 200. Two plain questions are asked per article, and up to four compact
    ones.

    A question's `kind` names its sort and its number of links: "bridge-2", "numeric-3", "date-1" (chains that end in
    an entity, a number, a date), "comparison-2", "intersection-2", "yesno-4". Compact worlds have the first two sorts.
    In plain worlds about 2% of people and cities and 3% of works share their name with another entity; titles then
    carry a parenthesis, "Nidleth Flithalv (composer)".
    """

    splits = SPLITS

    def __init__(
        self,
        size: int | None = None,
        seed: int = 0,
        register: str = "plain",
        *,
        min_hops: int = 1,
        max_hops: int | None = None,
    ) -> None:
        if register not in _NAMES:
            raise UnknownNameError("register of a world", register, _NAMES)
        defaults = _DEFAULTS[register]
        self.size = defaults["size"] if size is None else size
        self.seed = seed
        self.register = register
        self.min_hops = min_hops
        self.max_hops = max(defaults["max_hops"], min_hops) if max_hops is None else max_hops
        for what, value in (("size", self.size), ("seed", seed), ("min_hops", min_hops), ("max_hops", self.max_hops)):
            if isinstance(value, bool) or not isinstance(value, int):
                raise DataError(f"A world's {what} must be a whole number, got {value!r}.")
        if not _SMALLEST <= self.size <= _LARGEST:
            raise DataError(f"A world has {_SMALLEST:,} to {_LARGEST:,} articles per split, got size={self.size:,}.")
        if not 1 <= min_hops <= self.max_hops <= _MAX_HOPS:
            raise DataError(
                f"Expected 1 <= min_hops <= max_hops <= {_MAX_HOPS}, got min_hops={min_hops}, max_hops={self.max_hops}."
            )
        if register == "compact":
            check_compact_size(self.size)
        given = {"size": self.size, "seed": seed, "min_hops": min_hops, "max_hops": self.max_hops}
        usual = {"seed": 0, "min_hops": 1, **defaults}
        options = ",".join(f"{key}={value}" for key, value in given.items() if value != usual[key])
        self.name = _NAMES[register] + (f":{options}" if options else "")
        self._volumes: dict[str, Volume] = {}
        self._passages: dict[str, Lazy[Passage]] = {}
        self._questions: dict[str, Lazy[Question]] = {}

    @property
    def fingerprint(self) -> str:
        """Equal for equal content: the generator's version and all arguments, hashed."""
        content = (GENERATOR_VERSION, self.register, self.size, self.seed, self.min_hops, self.max_hops)
        return hashlib.blake2b(repr(content).encode(), digest_size=16).hexdigest()

    def volume(self, split: str) -> Volume:
        """The articles and questions of one split, by number."""
        if split not in self._volumes:
            if split not in SPLITS:
                raise UnknownNameError(f"split of {self.name}", split, SPLITS)
            make = PlainVolume if self.register == "plain" else CompactVolume
            self._volumes[split] = make(self.name, split, self.size, self.seed, self.min_hops, self.max_hops)
        return self._volumes[split]

    def passage(self, split: str, index: int) -> Passage:
        return self.volume(split).passage(index)

    def question(self, split: str, index: int) -> Question:
        return self.volume(split).question(index)

    def passages(self, split: str) -> Sequence[Passage]:
        """The articles of a split: a sequence that computes items when they are read and keeps a bounded number."""
        if split not in self._passages:
            self._passages[split] = Lazy(self.volume(split).articles, partial(self.passage, split))
        return self._passages[split]

    def questions(self, split: str) -> Sequence[Question]:
        """The questions of a split, of all kinds in random order: computed when read, like `passages`."""
        if split not in self._questions:
            self._questions[split] = Lazy(self.volume(split).questions, partial(self.question, split))
        return self._questions[split]

    def iter_passages(self, split: str) -> Iterator[Passage]:
        """The articles of a split, one after the other, none of them kept."""
        return map(self.volume(split).passage, range(self.volume(split).articles))

    def iter_questions(self, split: str) -> Iterator[Question]:
        """The questions of a split, one after the other, none of them kept."""
        return map(self.volume(split).question, range(self.volume(split).questions))

    def iter_facts(self, split: str) -> Iterator[Fact]:
        """Every statement of the split's articles as a triple, with the sentence that makes it."""
        volume = self.volume(split)
        for index in range(volume.articles):
            yield from volume.facts(index)

    def __repr__(self) -> str:
        return f"World({self.name!r})"

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_volumes": {}, "_passages": {}, "_questions": {}}


def default_instructions(name: str) -> str | None:
    """The system message for a data set of that name: "" for a compact world, None (the protocol's own) for others.

    The compact register is a language of its own, in which there is nothing to instruct with.
    """
    return "" if name.startswith("world-compact") else None
