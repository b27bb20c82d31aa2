"""What the questions of a plain world ask: plans over its facts, drawn so that each has exactly one answer.

A plan has no words yet; `questions.py` finds them. Four shapes:

- `Chain`: follow 1 to 4 relations from a named entity. Every relation holds at most once per subject, so there is one
  answer; chains that return to where they have been are refused, for their answer stands in the question.
- `Intersection`: the one entity of which two things hold, then perhaps further relations of it. All candidates are
  enumerated through the inverse of the first relation; plans with a second match are refused.
- `Comparison`: which of two entities has more of something. Ties are refused.
- `SameValue`: whether two chains end in the same entity. The answer is yes or no.
"""

from __future__ import annotations

from typing import NamedTuple

from mempo_env.tasks.world.articles import article
from mempo_env.tasks.world.atlas import Atlas
from mempo_env.tasks.world.phrases import COMPARE, COMPARE_PLACES
from mempo_env.tasks.world.schema import KINDS, RELATIONS, RELATIONS_OF, Date, Entity, Number, Value, Year

PER_ARTICLE = 2
_HOP_WEIGHTS = (2, 4, 3, 2)  # of chains with 1, 2, 3 and 4 links


class Chain(NamedTuple):
    """Follow `relations` from `start`."""

    start: Entity
    relations: tuple[str, ...]


class Intersection(NamedTuple):
    """The only `kind` for which every (relation, value) holds; then follow `relations` from it."""

    kind: str
    conditions: tuple[tuple[str, Entity], ...]
    relations: tuple[str, ...] = ()


class Comparison(NamedTuple):
    """Of the ends of two chains, the one whose `attribute` is greatest (or least)."""

    left: Chain
    right: Chain
    attribute: str
    greatest: bool


class SameValue(NamedTuple):
    """Whether two chains end in the same entity."""

    left: Chain
    right: Chain


Plan = Chain | Intersection | Comparison | SameValue


_FINDABLE_LENGTH = 480  # characters
_ENTITY_RELATIONS = {kind: tuple(r for r in RELATIONS_OF[kind] if RELATIONS[r][1] in KINDS) for kind in KINDS}
_INTERSECTIONS: dict[str, tuple[tuple[str, str], ...]] = {
    "person": (("born_in", "employer"), ("born_in", "died_in"), ("employer", "died_in")),
    "work": (("creator", "setting"), ("creator", "commissioner")),
    "event": (("venue", "organiser"),),
}


class Planner:
    """Draws the plans of one split, and follows them."""

    def __init__(self, atlas: Atlas, min_hops: int, max_hops: int) -> None:
        self._atlas = atlas
        self._hops = [h for h in range(min_hops, max_hops + 1) for _ in range(_HOP_WEIGHTS[h - 1])]
        self._range = range(min_hops, max_hops + 1)

    def plan(self, article_number: int, slot: int) -> Plan:
        """The plan for slot 0 or 1 of an article. No two (article, slot) give the same plan."""
        atlas = self._atlas
        entity = atlas.entity(article_number)
        h = atlas.draw(f"plan-{slot}", article_number)
        style, h = h % 8, h >> 3
        plan: Plan | None = None
        if slot == 0 and style < 2:
            plan = self._comparison(entity, h)
        elif slot == 1 and style < 4:
            plan = self._intersection(entity, h)
        elif slot == 1 and style < 6:
            plan = self._same_value(entity, h)
        return plan or self._chain(entity, slot, h)

    def _chain(self, entity: Entity, slot: int, h: int) -> Chain:
        wanted = self._hops[h % len(self._hops)]
        h >>= 8
        by_preference = sorted(self._range, key=lambda hops: (abs(hops - wanted), hops))
        for hops in by_preference:
            # The slots of an article share out its first relations, so that their chains differ.
            names = RELATIONS_OF[entity.kind] if hops == 1 else _ENTITY_RELATIONS[entity.kind]
            firsts = [r for r in names if self._atlas.value(entity, r) is not None]
            turn = self._atlas.draw(f"turn-{entity.kind}", entity.number) % len(firsts)
            mine = [firsts[(turn + slot + 2 * t) % len(firsts)] for t in range(len(firsts) // 2)]
            relations = self._walk(entity, hops, mine, h >> 8, (entity,))
            if relations is not None:
                return Chain(entity, relations)
        raise AssertionError(f"No chain of {self._range} hops starts from {entity}.")

    def _walk(
        self, entity: Entity, hops: int, choices: list[str], h: int, seen: tuple[Entity, ...]
    ) -> tuple[str, ...] | None:
        """The first way, in random order, to follow `hops` relations without meeting an entity twice."""
        for relation in choices:
            value = self._atlas.value(entity, relation)
            if value is None or value in seen:
                continue
            if hops == 1:
                return (relation,)
            if not isinstance(value, Entity):
                continue
            following = RELATIONS_OF[value.kind] if hops == 2 else _ENTITY_RELATIONS[value.kind]
            turn = h % len(following)
            rest = self._walk(value, hops - 1, [*following[turn:], *following[:turn]], h >> 4, (*seen, value))
            if rest is not None:
                return (relation, *rest)
        return None

    def _comparison(self, entity: Entity, h: int) -> Comparison | None:
        other = self._atlas.follower(entity)
        deep = entity.kind in COMPARE_PLACES and 4 in self._range and (h & 1 or 2 not in self._range)
        if not deep and 2 not in self._range:
            return None
        path: tuple[str, ...] = ()
        attributes = tuple(COMPARE[entity.kind])
        attribute = attributes[(h >> 1) % len(attributes)]
        if deep:
            path, attribute = (COMPARE_PLACES[entity.kind],), "population"
        left, right = Chain(entity, path), Chain(other, path)
        if h >> 8 & 1:
            left, right = right, left
        plan = Comparison(left, right, attribute, bool(h >> 9 & 1))
        ends = self.end(left), self.end(right)
        sizes = [self.measure(end, attribute) for end in ends]
        return plan if ends[0] != ends[1] and None not in sizes and sizes[0] != sizes[1] else None

    def _intersection(self, entity: Entity, h: int) -> Intersection | None:
        pairs = _INTERSECTIONS.get(entity.kind, ())
        # Lexical search counts a mention for less in a long article; two mentions must outweigh one in a short one.
        if not pairs or self._range[-1] < 2 or len(article(self._atlas, entity).text) > _FINDABLE_LENGTH:
            return None
        turn = h % len(pairs)
        conditions = next(filter(None, (self._conditions(entity, p) for p in (*pairs[turn:], *pairs[:turn]))), None)
        if conditions is None:
            return None
        (first, _), (second, _) = conditions
        extra = [n for n in range(3) if 2 + n in self._range]
        hops = extra[(h >> 4) % len(extra)]
        relations: tuple[str, ...] | None = ()
        if hops:
            choices = RELATIONS_OF[entity.kind] if hops == 1 else _ENTITY_RELATIONS[entity.kind]
            turn = (h >> 8) % len(choices)
            order = [r for r in (*choices[turn:], *choices[:turn]) if r not in (first, second)]
            relations = self._walk(entity, hops, order, h >> 12, (entity, *(value for _, value in conditions)))
        return None if relations is None else Intersection(entity.kind, conditions, relations)

    def _conditions(
        self, entity: Entity, pair: tuple[str, str]
    ) -> tuple[tuple[str, Entity], tuple[str, Entity]] | None:
        """Two things that hold of `entity` and of nothing else together, though other entities share the first."""
        atlas = self._atlas
        first, second = (atlas.value(entity, r) for r in pair)
        if not isinstance(first, Entity) or not isinstance(second, Entity) or first == second:
            return None
        candidates = self._atlas.subjects(pair[0], first)
        matches = [i for i in candidates if atlas.value(Entity(entity.kind, i), pair[1]) == second]
        if matches != [entity.number] or len(candidates) < 2:
            return None
        # Where one of the named entities' articles already leads to the other, the question would be a chain.
        for named, other in ((first, second), (second, first)):
            if any(atlas.value(named, r) in (other, entity) for r in _ENTITY_RELATIONS[named.kind]):
                return None
        return (pair[0], first), (pair[1], second)

    def _same_value(self, entity: Entity, h: int) -> SameValue | None:
        """Half of them true: a partner is sought among those who share the value, then among the others."""
        atlas = self._atlas
        if entity.kind != "person":
            return None
        deep = 4 in self._range and (h & 1 or 2 not in self._range)
        if not deep and 2 not in self._range:
            return None
        city = atlas.value(entity, "born_in")
        assert isinstance(city, Entity)
        other = atlas.follower(entity)
        if h >> 1 & 1:
            home = city
            if deep:  # another city of the same country
                country = atlas.value(city, "country")
                assert isinstance(country, Entity)
                cities = [c for c in atlas.cities(country.number) if c != city.number]
                home = Entity("city", cities[(h >> 2) % len(cities)]) if cities else city
            natives = [p for p in atlas.natives(home.number) if p != entity.number]
            if not natives:
                return None
            other = Entity("person", natives[(h >> 8) % len(natives)])
        path = ("born_in", "country") if deep else ("born_in",)
        if deep and atlas.value(other, "born_in") == city:
            return None
        return SameValue(Chain(entity, path), Chain(other, path))

    def end(self, chain: Chain) -> Entity:
        """The entity that a chain of entities leads to."""
        entity: Value | None = chain.start
        for relation in chain.relations:
            assert isinstance(entity, Entity)
            entity = self._atlas.value(entity, relation)
        assert isinstance(entity, Entity)
        return entity

    def measure(self, entity: Entity, attribute: str) -> tuple[int, ...] | None:
        """What is compared, as a sortable tuple; None where the attribute does not hold."""
        value = self._atlas.value(entity, attribute)
        if isinstance(value, Date):
            return value[:1]  # a year apart at least, so that no reader has to weigh days
        return value if isinstance(value, (Number, Year)) else None

    def only(self, plan: Intersection) -> Entity:
        """The entity that an intersection describes; the plan was drawn so that there is exactly one."""
        (first, a), (second, b) = plan.conditions
        candidates = (Entity(plan.kind, i) for i in self._atlas.subjects(first, a))
        (entity,) = (e for e in candidates if self._atlas.value(e, second) == b)
        return entity
