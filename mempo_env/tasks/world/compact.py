"""The compact register: a world that a model of about a million parameters can learn to read.

A name is two syllables ("ba ko"), three in larger worlds. A fact is a subject, two words of relation and a value, and
an article is its facts: "ba ko born in ti ru ; ba ko works at su ne". A question is facts with holes: "ba ko works at
what based in where ?" asks where the firm is based at which ba ko works. Two links of evidence ("ba ko works at su ne",
"su ne based in ti ru") fill its two holes in order.

No name is made of another's syllables in another order, so that a search by bag of words can tell them apart. Two
syllables give 4,005 names: train has seven of ten, dev and test have the rest; three syllables give 117,480.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from functools import lru_cache
from math import comb
from typing import NamedTuple

from mempo_env.errors import DataError
from mempo_env.tasks.world.hashing import Permutation, draw, key_of
from mempo_env.tasks.world.names import SPLITS
from mempo_env.tasks.world.volume import Fact
from mempo_env.types import Evidence, Passage, Question

# 90 syllables, without those that are English words: search engines leave the common ones out.
_WORDS = ("be", "do", "go", "he", "hi", "me", "no", "so", "to", "we")
SYLLABLES = tuple(s for s in (c + v for c in "bcdfghjklmnpqrstvwyz" for v in "aeiou") if s not in _WORDS)
_CHOOSE = [[comb(c, k) for c in range(len(SYLLABLES) + 1)] for k in range(4)]  # [k][c]
PER_ARTICLE = 4
_SHARES = {"train": (0, 70), "dev": (70, 85), "test": (85, 100)}  # per cent of the names
_SMALLER = 5  # dev and test have a fifth of train's articles
_DIGITS = tuple("0123456789")

# relation -> (kind of its subject, kind of its value, its words, the word that asks for its value)
_RELATIONS: dict[str, tuple[str, str, str, str]] = {
    "born_in": ("person", "city", "born in", "where"),
    "employer": ("person", "firm", "works at", "what"),
    "teacher": ("person", "person", "taught by", "who"),
    "headquarters": ("firm", "city", "based in", "where"),
    "director": ("firm", "person", "led by", "who"),
    "mayor": ("city", "person", "has mayor", "who"),
    "river": ("city", "river", "lies on", "what"),
    "finder": ("river", "person", "found by", "who"),
    "length": ("river", "number", "runs for", "how"),
}
_KINDS = ("person", "firm", "city", "river")
_OF = {kind: tuple(r for r, (k, *_) in _RELATIONS.items() if k == kind) for kind in _KINDS}
_ONWARD = {kind: tuple(r for r in rs if _RELATIONS[r][1] in _KINDS) for kind, rs in _OF.items()}


def compact_vocabulary() -> list[str]:
    """Every word of compact passages, questions and answers, split at white space; syllables first."""
    words = [word for _, _, said, hole in _RELATIONS.values() for word in (*said.split(), hole)]
    return list(dict.fromkeys((*SYLLABLES, *words, *_DIGITS, ";", "?")))


def check_compact_size(size: int) -> None:
    """Raise DataError where even three syllables give too few names."""
    largest = _capacity(3, "train")
    if size > largest:
        raise DataError(
            f"A compact world has at most {largest:,} articles, got size={size:,}. Plain worlds go further."
        )


def _capacity(syllables: int, split: str) -> int:
    low, high = _bounds(syllables, split)
    return high - low


def _bounds(syllables: int, split: str) -> tuple[int, int]:
    names = comb(len(SYLLABLES), syllables)
    return tuple(names * share // 100 for share in _SHARES[split])  # type: ignore[return-value]


class _Names:
    """The names of a split: `names(i)` is a set of different syllables in one order, never repeated."""

    def __init__(self, syllables: int, split: str, seed: int) -> None:
        self._syllables = syllables
        self._low, high = _bounds(syllables, split)
        self._deal = Permutation(key_of("compact names", syllables), comb(len(SYLLABLES), syllables))
        self._shuffle = Permutation(key_of("compact names", syllables, split, seed), high - self._low)
        self._turn = key_of("compact order", syllables)

    def __call__(self, i: int) -> str:
        number = self._deal(self._low + self._shuffle(i))
        chosen = []
        rest = number
        for k in range(self._syllables, 0, -1):  # the combinatorial number system: largest c with comb(c, k) <= rest
            c = bisect_right(_CHOOSE[k], rest) - 1
            rest -= _CHOOSE[k][c]
            chosen.append(c)
        turn = draw(self._turn, number) % self._syllables
        return " ".join(SYLLABLES[c] for c in (*chosen[turn:], *chosen[:turn]))


class _Entity(NamedTuple):
    kind: str
    number: int


class CompactVolume:
    """One split of a compact world. `name` opens the ids of its passages and questions."""

    def __init__(self, name: str, split: str, size: int, seed: int, min_hops: int, max_hops: int) -> None:
        self.articles = size if split == "train" else size // _SMALLER
        two = all(_capacity(2, s) >= (size if s == "train" else size // _SMALLER) for s in SPLITS)
        names = _Names(2 if two else 3, split, seed)
        self._dataset, self._ids = name, f"{name}/{split}"
        firms = self.articles // 5
        cities = self.articles // 5
        rivers = self.articles // 10
        self._counts = {
            "person": self.articles - firms - cities - rivers,
            "firm": firms,
            "city": cities,
            "river": rivers,
        }
        self._before = {kind: sum(self._counts[k] for k in _KINDS[:at]) for at, kind in enumerate(_KINDS)}
        self._name_of = lru_cache(maxsize=8192)(names)  # bounded, so memory stays flat
        self._key = key_of("compact", seed, split)
        self._keys = {r: key_of(self._key, r) for r in _RELATIONS}
        self._plans = key_of(self._key, "plans")
        self._hops = range(min_hops, max_hops + 1)
        fewest = min(len(list(_paths(kind, min_hops))) for kind in _KINDS)
        self._slots = PER_ARTICLE if max_hops > min_hops else min(PER_ARTICLE, fewest)
        self._paths = {kind: {h: tuple(_paths(kind, h)) for h in self._hops} for kind in _KINDS}
        # Slot s of every article asks a chain of this length; the slots of one length share out its paths.
        self._lengths = [self._hops[s % len(self._hops)] for s in range(self._slots)]
        self.questions = self._slots * self.articles
        self._order = Permutation(key_of(self._key, "questions"), self.questions)

    def passage(self, index: int) -> Passage:
        entity = self._entity(index)
        text = " ; ".join(self._sentence(entity, relation) for relation in _OF[entity.kind])
        return Passage(self._id(entity), self._title(entity), text)

    def facts(self, index: int) -> tuple[Fact, ...]:
        entity = self._entity(index)
        return tuple(
            Fact(self._title(entity), r, self._written(entity, r), self._id(entity), self._sentence(entity, r))
            for r in _OF[entity.kind]
        )

    def plan(self, index: int) -> tuple[str, tuple[str, ...]]:
        """What question `index` asks, without words: the title it starts from and the relations to follow."""
        entity, relations = self._plan(index)
        return self._title(entity), relations

    def question(self, index: int) -> Question:
        entity, relations = self._plan(index)
        words = [self._title(entity)]
        links = []
        for relation in relations:
            _, value_kind, said, hole = _RELATIONS[relation]
            words += (said, hole)
            answer = self._written(entity, relation)
            links.append(
                Evidence(
                    self._title(entity), self._id(entity), self._title(entity), self._sentence(entity, relation), answer
                )
            )
            if value_kind in _KINDS:
                entity = self._value(entity, relation)
        sort = "numeric" if _RELATIONS[relations[-1]][1] == "number" else "bridge"
        return Question(
            id=f"{self._ids}/question-{index}",
            text=" ".join((*words, "?")),
            answers=(links[-1].answer,),
            evidence=tuple(links),
            kind=f"{sort}-{len(links)}",
            dataset=self._dataset,
        )

    def _plan(self, index: int) -> tuple[_Entity, tuple[str, ...]]:
        number, slot = divmod(self._order(index), self._slots)
        entity = self._entity(number)
        hops = self._lengths[slot]
        paths = self._paths[entity.kind][hops]
        step = self._lengths.count(hops)
        turn = draw(self._plans, number)
        mine = [paths[(turn + k) % len(paths)] for k in range(self._lengths[:slot].count(hops), len(paths), step)]
        # A path that comes back to where it has been would ask for what it says.
        return entity, next((path for path in mine if self._is_simple(entity, path)), mine[0])

    def _is_simple(self, entity: _Entity, relations: tuple[str, ...]) -> bool:
        seen = [entity]
        for relation in relations:
            if _RELATIONS[relation][1] in _KINDS:
                seen.append(self._value(seen[-1], relation))
        return len(set(seen)) == len(seen)

    def _entity(self, article: int) -> _Entity:
        for kind in _KINDS:
            if article < self._counts[kind]:
                return _Entity(kind, article)
            article -= self._counts[kind]
        raise IndexError(f"This world has {self.articles} articles.")

    def _title(self, entity: _Entity) -> str:
        return self._name_of(entity.number + self._before[entity.kind])

    def _id(self, entity: _Entity) -> str:
        return f"{self._ids}/{entity.kind}-{entity.number}"

    def _value(self, entity: _Entity, relation: str) -> _Entity:
        kind = _RELATIONS[relation][1]
        n = self._counts[kind]
        h = draw(self._keys[relation], entity.number)
        if kind == entity.kind:  # never oneself
            return _Entity(kind, (entity.number + 1 + h % (n - 1)) % n)
        return _Entity(kind, h % n)

    def _written(self, entity: _Entity, relation: str) -> str:
        if _RELATIONS[relation][1] in _KINDS:
            return self._title(self._value(entity, relation))
        return " ".join(str(100 + draw(self._keys[relation], entity.number) % 900))

    def _sentence(self, entity: _Entity, relation: str) -> str:
        return f"{self._title(entity)} {_RELATIONS[relation][2]} {self._written(entity, relation)}"


def _paths(kind: str, hops: int) -> Iterator[tuple[str, ...]]:
    """All ways to follow `hops` relations from an entity of `kind`."""
    for relation in _OF[kind] if hops == 1 else _ONWARD[kind]:
        if hops == 1:
            yield (relation,)
        else:
            yield from ((relation, *rest) for rest in _paths(_RELATIONS[relation][1], hops - 1))
