"""Questions about a plain world: drawn as plans over its facts, proven to have one answer, then put into words.

A plan says what is asked without words. Four shapes:

- `Chain`: follow 1 to 4 relations from a named entity. Every relation holds at most once per subject, so there is one
  answer; chains that return to where they have been are refused, for their answer stands in the question.
- `Intersection`: the one entity of which two things hold, then perhaps further relations of it. All candidates are
  enumerated through the inverse of the first relation; plans with a second match are refused.
- `Comparison`: which of two entities has more of something. Ties are refused.
- `SameValue`: whether two chains end in the same entity. The answer is yes or no.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from typing import NamedTuple

from mempo_env.tasks.world.articles import article, mention, written
from mempo_env.tasks.world.atlas import KINDS, RELATIONS, RELATIONS_OF, Atlas, Date, Entity, Number, Value, Year
from mempo_env.tasks.world.phrases import ASK, COMPARE, COMPARE_PLACES, CONDITION, NOUN, SAME, THE_ONE, UNITS, WHO
from mempo_env.types import Evidence

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


class Asked(NamedTuple):
    """A plan in words, with its answers (canonical first) and its chain of evidence."""

    text: str
    answers: tuple[str, ...]
    evidence: tuple[Evidence, ...]
    kind: str


_FINDABLE_LENGTH = 480  # characters
_ENTITY_RELATIONS = {kind: tuple(r for r in RELATIONS_OF[kind] if RELATIONS[r][1] in KINDS) for kind in KINDS}
_INTERSECTIONS: dict[str, tuple[tuple[str, str], ...]] = {
    "person": (("born_in", "employer"), ("born_in", "died_in"), ("employer", "died_in")),
    "work": (("creator", "setting"), ("creator", "commissioner")),
    "event": (("venue", "organiser"),),
}


class Questioner:
    """Draws the questions of one split. `plan(index)` and `ask(plan)` are pure functions of the world."""

    def __init__(self, atlas: Atlas, passage_ids: str, min_hops: int, max_hops: int) -> None:
        self._atlas = atlas
        self._ids = passage_ids
        self._article = lru_cache(maxsize=1024)(partial(article, atlas))
        self._hops = [h for h in range(min_hops, max_hops + 1) for _ in range(_HOP_WEIGHTS[h - 1])]
        self._range = range(min_hops, max_hops + 1)

    # -- drawing ---------------------------------------------------------------------------------------------------

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
        ends = self._end(left), self._end(right)
        sizes = [self._measure(end, attribute) for end in ends]
        return plan if ends[0] != ends[1] and None not in sizes and sizes[0] != sizes[1] else None

    def _measure(self, entity: Entity, attribute: str) -> tuple[int, ...] | None:
        value = self._atlas.value(entity, attribute)
        if isinstance(value, Date):
            return value[:1]  # a year apart at least, so that no reader has to weigh days
        return value if isinstance(value, (Number, Year)) else None

    def _intersection(self, entity: Entity, h: int) -> Intersection | None:
        pairs = _INTERSECTIONS.get(entity.kind, ())
        # Lexical search counts a mention for less in a long article; two mentions must outweigh one in a short one.
        if not pairs or self._range[-1] < 2 or len(self._article(entity).text) > _FINDABLE_LENGTH:
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
        candidates = self._inverse(pair[0])(first.number)
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

    def _end(self, chain: Chain) -> Entity:
        entity: Value | None = chain.start
        for relation in chain.relations:
            assert isinstance(entity, Entity)
            entity = self._atlas.value(entity, relation)
        assert isinstance(entity, Entity)
        return entity

    # -- asking ----------------------------------------------------------------------------------------------------

    def ask(self, plan: Plan, h: int) -> Asked:
        """Put a plan into words; `h` chooses among wordings."""
        links = self._evidence(plan)
        if isinstance(plan, Comparison):
            return self._ask_comparison(plan, links, h)
        if isinstance(plan, SameValue):
            words = [mention(self._atlas, c.start) for c in (plan.left, plan.right)]
            wordings = SAME[plan.left.relations]
            text = wordings[h % len(wordings)].format(*words)
            same = self._end(plan.left) == self._end(plan.right)
            return Asked(text, ("yes" if same else "no",), links, f"yesno-{len(links)}")
        if isinstance(plan, Chain):
            text = self._in_words(mention(self._atlas, plan.start), plan.relations, h)
            sort = self._sort(plan.relations)
            return Asked(text, self._answers(plan.start, plan.relations), links, f"{sort}-{len(links)}")
        clauses = [CONDITION[r].format(x=mention(self._atlas, v)) for r, v in plan.conditions]
        if plan.relations:
            subject = f"{THE_ONE[plan.kind]} {' and '.join(clauses)}"
            text = self._in_words(subject, plan.relations, h)
        else:
            text = f"{WHO[plan.kind]} {' and '.join(clauses)}?"
        answers = self._answers(self._only(plan), plan.relations)
        return Asked(text, answers, links, f"intersection-{len(links)}")

    def _ask_comparison(self, plan: Comparison, links: tuple[Evidence, ...], h: int) -> Asked:
        sides = (plan.left, plan.right)
        ends = [self._end(side) for side in sides]
        words = [mention(self._atlas, side.start) for side in sides]
        if plan.left.relations:
            nouns = NOUN[plan.left.relations[0]]
            words = [nouns[h % len(nouns)].format(x=word) for word in words]
        text = COMPARE[ends[0].kind][plan.attribute][0 if plan.greatest else 1].format(*words)
        sizes = [self._measure(end, plan.attribute) or () for end in ends]
        best = ends[sizes.index(max(sizes) if plan.greatest else min(sizes))]
        return Asked(text, aliases(self._atlas, best), links, f"comparison-{len(links)}")

    @staticmethod
    def _in_words(subject: str, relations: tuple[str, ...], h: int) -> str:
        for relation in relations[:-1]:
            nouns = NOUN[relation]
            h, pick = divmod(h, len(nouns))
            subject = nouns[pick].format(x=subject)
        asks = ASK[relations[-1]]
        return asks[h % len(asks)].format(x=subject)

    @staticmethod
    def _sort(relations: tuple[str, ...]) -> str:
        return {"date": "date", "year": "date", "number": "numeric"}.get(RELATIONS[relations[-1]][1], "bridge")

    def _answers(self, start: Entity, relations: tuple[str, ...]) -> tuple[str, ...]:
        value: Value | None = start
        for relation in relations:
            assert isinstance(value, Entity)
            value = self._atlas.value(value, relation)
        assert value is not None
        return aliases(self._atlas, value, relations[-1] if relations else "")

    def _only(self, plan: Intersection) -> Entity:
        """The entity that an intersection describes; the plan was drawn so that there is exactly one."""
        (first, a), (second, b) = plan.conditions
        candidates = (Entity(plan.kind, i) for i in self._inverse(first)(a.number))
        (entity,) = (e for e in candidates if self._atlas.value(e, second) == b)
        return entity

    def _inverse(self, relation: str) -> Callable[[int], list[int]]:
        atlas = self._atlas
        return {"born_in": atlas.natives, "employer": atlas.employees, "creator": atlas.works, "venue": atlas.events}[
            relation
        ]

    def _evidence(self, plan: Plan) -> tuple[Evidence, ...]:
        if isinstance(plan, Chain):
            return tuple(self._links(plan))
        if isinstance(plan, SameValue):
            return (*self._links(plan.left), *self._links(plan.right))
        if isinstance(plan, Comparison):
            sides = (plan.left, plan.right)
            chains = (Chain(side.start, (*side.relations, plan.attribute)) for side in sides)
            return tuple(link for chain in chains for link in self._links(chain))
        entity = self._only(plan)
        title = self._atlas.title(entity)
        both = " and ".join(CONDITION[r].format(x=self._atlas.title(value)) for r, value in plan.conditions)
        proofs = (
            self._link(entity, relation, query, title)
            for (relation, _), query in zip(plan.conditions, (both, title), strict=True)
        )
        return (*proofs, *self._links(Chain(entity, plan.relations)))

    def _links(self, chain: Chain) -> Iterator[Evidence]:
        value: Value | None = chain.start
        for relation in chain.relations:
            assert isinstance(value, Entity)
            entity, value = value, self._atlas.value(value, relation)
            assert value is not None
            yield self._link(entity, relation, self._atlas.title(entity), aliases(self._atlas, value, relation)[0])

    def _link(self, entity: Entity, relation: str, query: str, answer: str) -> Evidence:
        page = self._article(entity)
        return Evidence(query, passage_id(self._ids, entity), page.title, page.facts[relation], answer)


def passage_id(prefix: str, entity: Entity) -> str:
    """The id of the article about `entity`."""
    return f"{prefix}/{entity.kind}-{entity.number}"


def aliases(atlas: Atlas, value: Value, relation: str = "") -> tuple[str, ...]:
    """The accepted spellings of a value, the canonical one first.

    A shared name counts without its parenthesis only where its other bearer is of another kind (a river named like a
    city), so that the question tells which is meant. Dates have three forms; numbers go with and without commas, and
    with the unit of `relation`.
    """
    if isinstance(value, Date):
        return value.forms()
    if isinstance(value, Number):
        forms = dict.fromkeys((written(atlas, value), str(value.value)))
        return (*forms, *(f"{form} {unit}" for unit in UNITS.get(relation, ()) for form in forms))
    if not isinstance(value, Entity):
        return (written(atlas, value),)
    title, name, twin = atlas.title(value), atlas.name(value), atlas.namesake(value)
    forms = dict.fromkeys((title, mention(atlas, value)))
    if twin is not None and twin.kind != value.kind:
        forms |= dict.fromkeys((name, f"the {name}") if value.kind == "river" else (name,))
    if value.kind == "river":
        forms |= dict.fromkeys((f"{name} River", f"the {name} River", f"River {name}"))
    return tuple(forms)
