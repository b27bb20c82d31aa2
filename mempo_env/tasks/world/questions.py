"""Plans put into words: the text of a question, its accepted answers and its chain of evidence."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache, partial
from typing import NamedTuple

from mempo_env.tasks.world.articles import article, mention, written
from mempo_env.tasks.world.atlas import Atlas
from mempo_env.tasks.world.phrases import ASK, COMPARE, CONDITION, NOUN, SAME, THE_ONE, UNITS, WHO
from mempo_env.tasks.world.plans import Chain, Comparison, Plan, Planner, SameValue
from mempo_env.tasks.world.schema import RELATIONS, Date, Entity, Number, Value
from mempo_env.types import Evidence


class Asked(NamedTuple):
    """A plan in words, with its answers (canonical first) and its chain of evidence."""

    text: str
    answers: tuple[str, ...]
    evidence: tuple[Evidence, ...]
    kind: str


class Questioner:
    """Asks the plans of one split. `passage_ids` opens the ids of its articles."""

    def __init__(self, atlas: Atlas, planner: Planner, passage_ids: str) -> None:
        self._atlas = atlas
        self._planner = planner
        self._ids = passage_ids
        self._article = lru_cache(maxsize=1024)(partial(article, atlas))  # bounded, so memory stays flat

    def ask(self, plan: Plan, h: int) -> Asked:
        """Put a plan into words; `h` chooses among wordings."""
        links = self._evidence(plan)
        if isinstance(plan, Comparison):
            return self._ask_comparison(plan, links, h)
        if isinstance(plan, SameValue):
            words = [mention(self._atlas, c.start) for c in (plan.left, plan.right)]
            wordings = SAME[plan.left.relations]
            text = wordings[h % len(wordings)].format(*words)
            same = self._planner.end(plan.left) == self._planner.end(plan.right)
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
        answers = self._answers(self._planner.only(plan), plan.relations)
        return Asked(text, answers, links, f"intersection-{len(links)}")

    def _ask_comparison(self, plan: Comparison, links: tuple[Evidence, ...], h: int) -> Asked:
        sides = (plan.left, plan.right)
        ends = [self._planner.end(side) for side in sides]
        words = [mention(self._atlas, side.start) for side in sides]
        if plan.left.relations:
            nouns = NOUN[plan.left.relations[0]]
            words = [nouns[h % len(nouns)].format(x=word) for word in words]
        text = COMPARE[ends[0].kind][plan.attribute][0 if plan.greatest else 1].format(*words)
        sizes = [self._planner.measure(end, plan.attribute) or () for end in ends]
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

    def _evidence(self, plan: Plan) -> tuple[Evidence, ...]:
        if isinstance(plan, Chain):
            return tuple(self._links(plan))
        if isinstance(plan, SameValue):
            return (*self._links(plan.left), *self._links(plan.right))
        if isinstance(plan, Comparison):
            sides = (plan.left, plan.right)
            chains = (Chain(side.start, (*side.relations, plan.attribute)) for side in sides)
            return tuple(link for chain in chains for link in self._links(chain))
        entity = self._planner.only(plan)
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
