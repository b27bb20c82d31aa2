"""Every question of a small plain world, answered again by brute force.

Two independent solvers see the world only as the list of triples that its articles state: one evaluates the plan of a
question over all of them, the other reads the words of the question. Both must find the gold answer and nothing else.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from datetime import datetime

import pytest

from mempo_env.tasks.world import World
from mempo_env.tasks.world.articles import mention
from mempo_env.tasks.world.phrases import ASK, COMPARE, CONDITION, NOUN, SAME, THE_ONE, WHO
from mempo_env.tasks.world.plain import PlainVolume
from mempo_env.tasks.world.plans import Chain, Comparison, Intersection, Plan, SameValue
from mempo_env.tasks.world.schema import RELATIONS

WORLDS = [(200, 0), (317, 1), (500, 0)]


class Triples:
    """All statements of a split, by subject and relation. Values are sets: nothing is assumed to be unique."""

    def __init__(self, world: World, split: str) -> None:
        self.values: dict[tuple[str, str], set[str]] = defaultdict(set)
        self.kind: dict[str, str] = {}
        for fact in world.iter_facts(split):
            self.values[fact.subject, fact.relation].add(fact.value)
            self.kind[fact.subject] = fact.passage_id.rsplit("/", 1)[1].split("-")[0]

    def follow(self, subjects: set[str], relations: tuple[str, ...]) -> set[str]:
        for relation in relations:
            subjects = {v for s in subjects for v in self.values.get((s, relation), ())}
        return subjects

    def described(self, kind: str, conditions: list[tuple[str, set[str]]]) -> set[str]:
        """Everything of `kind` that fits the conditions, by looking at everything there is."""
        return {
            s
            for s, k in self.kind.items()
            if k == kind and all(self.values.get((s, r), set()) & values for r, values in conditions)
        }

    def size(self, subject: str, attribute: str) -> float:
        (value,) = self.values[subject, attribute]
        if RELATIONS[attribute][1] == "date":
            return datetime.strptime(value, "%d %B %Y").toordinal()
        return float(value.replace(",", ""))


def by_plan(facts: Triples, plan: Plan, volume: PlainVolume) -> set[str]:
    title = volume.atlas.title
    if isinstance(plan, Chain):
        return facts.follow({title(plan.start)}, plan.relations)
    if isinstance(plan, Intersection):
        found = facts.described(plan.kind, [(r, {title(v)}) for r, v in plan.conditions])
        assert len(found) == 1, "a description fits exactly one"
        return facts.follow(found, plan.relations)
    assert isinstance(plan, (SameValue, Comparison))
    left, right = (facts.follow({title(c.start)}, c.relations) for c in (plan.left, plan.right))
    assert len(left) == len(right) == 1
    if isinstance(plan, SameValue):
        return {"yes" if left == right else "no"}
    sizes = {s: facts.size(s, plan.attribute) for s in left | right}
    assert len(set(sizes.values())) == 2, "a tie"
    best = (max if plan.greatest else min)(sizes.values())
    return {s for s, size in sizes.items() if size == best}


GREATER, LESSER = {"later", "more", "larger", "longer", "younger"}, {"earlier", "fewer", "smaller", "shorter", "older"}


class Reader:
    """Reads questions by their wording alone and returns the answers of every possible reading."""

    def __init__(self, facts: Triples, volume: PlainVolume) -> None:
        self.facts = facts
        self.said = {mention(volume.atlas, e): volume.atlas.title(e) for e in volume.atlas.entities()}

    def answers(self, text: str) -> set[str]:
        found = self.compared(text) | self.same(text)
        for relation, asks in ASK.items():
            for ask in asks:
                before, after = ask.split("{x}")
                if text.startswith(before) and text.endswith(after):
                    for subjects in self.phrase(text[len(before) : len(text) - len(after)]):
                        found |= self.facts.follow(subjects, (relation,))
        for kind, who in WHO.items():
            if text.startswith(f"{who} ") and text.endswith("?"):
                for subjects in self.conditions(kind, text[len(who) + 1 : -1]):
                    found |= subjects
        return found

    def compared(self, text: str) -> set[str]:
        found: set[str] = set()
        words = set(text.replace(",", "").split(" ")[:9])
        for kind, attributes in COMPARE.items():
            for attribute, wordings in attributes.items():
                for wording in wordings:
                    before, after = wording.split("{0} or {1}")
                    if not (text.startswith(before) and text.endswith(after)):
                        continue
                    both = text[len(before) : len(text) - len(after)].split(" or ")
                    ends = [e for side in both for subjects in self.phrase(side) for e in subjects]
                    assert len(ends) == 2
                    assert all(self.facts.kind[e] == kind for e in ends)
                    assert bool(words & GREATER) != bool(words & LESSER)
                    sizes = [self.facts.size(e, attribute) for e in ends]
                    # The younger of two cities was founded later; all other words follow the number.
                    best = max(sizes) if words & GREATER else min(sizes)
                    found |= {e for e, size in zip(ends, sizes, strict=True) if size == best}
        return found

    def same(self, text: str) -> set[str]:
        found = set()
        for relations, wordings in SAME.items():
            for wording in wordings:
                before, after = wording.split("{0} and {1}")
                if text.startswith(before) and text.endswith(after):
                    names = text[len(before) : len(text) - len(after)].split(" and ")
                    left, right = (self.facts.follow({self.said[n]}, relations) for n in names)
                    found.add("yes" if left == right else "no")
        return found

    def phrase(self, text: str) -> Iterator[set[str]]:
        if text in self.said:
            yield {self.said[text]}
        for relation, nouns in NOUN.items():
            for noun in nouns:
                before = noun.removesuffix("{x}")
                if text.startswith(before):
                    for subjects in self.phrase(text[len(before) :]):
                        yield self.facts.follow(subjects, (relation,))
        for kind, the_one in THE_ONE.items():
            if text.startswith(f"{the_one} "):
                yield from self.conditions(kind, text[len(the_one) + 1 :])

    def conditions(self, kind: str, text: str) -> Iterator[set[str]]:
        """Readings of "A and B", where names may hold an "and" of their own."""
        parts = text.split(" and ")
        for cut in range(1, len(parts)):
            sides = (" and ".join(parts[:cut]), " and ".join(parts[cut:]))
            for first in self.condition(sides[0]):
                for second in self.condition(sides[1]):
                    yield self.facts.described(kind, [first, second])

    def condition(self, text: str) -> Iterator[tuple[str, set[str]]]:
        for relation, clause in CONDITION.items():
            before = clause.removesuffix("{x}")
            if text.startswith(before):
                for subjects in self.phrase(text[len(before) :]):
                    yield relation, subjects


@pytest.mark.parametrize(("size", "seed"), WORLDS)
@pytest.mark.parametrize("split", ["train", "test"])
def test_brute_force_finds_the_one_right_answer(size: int, seed: int, split: str) -> None:
    world = World(size=size, seed=seed)
    volume = world.volume(split)
    assert isinstance(volume, PlainVolume)
    facts, reader = Triples(world, split), Reader(Triples(world, split), volume)
    for i, question in enumerate(world.iter_questions(split)):
        assert by_plan(facts, volume.plan(i), volume) == {question.answers[0]}, question
        assert reader.answers(question.text) == {question.answers[0]}, question


@pytest.mark.parametrize(("size", "seed"), WORLDS)
def test_no_article_contradicts_another(size: int, seed: int) -> None:
    facts = Triples(World(size=size, seed=seed), "train")
    assert all(len(values) == 1 for values in facts.values.values())
    both_ways = {
        "founded": "founder",
        "mayor_of": "mayor",
        "president_of": "president",
        "won": "winner",
        "spouse": "spouse",
    }
    seen = set()
    for (subject, relation), (value,) in facts.values.items():
        if relation in both_ways:
            assert facts.values[value, both_ways[relation]] == {subject}
            seen.add(relation)
        if relation == "known_for":
            assert facts.values[value, "creator"] == {subject}
        for forward, back in (("founder", "founded"), ("mayor", "mayor_of"), ("winner", "won")):
            if relation == forward:
                assert facts.values[value, back] == {subject}
        if RELATIONS[relation][1] in facts.kind.values():
            assert facts.kind[value] == RELATIONS[relation][1]
    assert seen == set(both_ways)


def test_the_inverse_of_each_relation_is_complete() -> None:
    world = World(size=317, seed=1)
    volume = world.volume("train")
    assert isinstance(volume, PlainVolume)
    atlas, facts = volume.atlas, Triples(world, "train")
    for inverse, relation, kind in (
        (atlas.natives, "born_in", "city"),
        (atlas.employees, "employer", "organisation"),
        (atlas.works, "creator", "person"),
        (atlas.events, "venue", "city"),
        (atlas.cities, "country", "country"),
    ):
        subject_kind = RELATIONS[relation][0]
        for e in atlas.entities():
            if e.kind == kind:
                found = {atlas.title(type(e)(subject_kind, i)) for i in inverse(e.number)}
                assert found == facts.described(subject_kind, [(relation, {atlas.title(e)})])


def test_pronouns_are_clear() -> None:
    """A sentence that does not name its subject follows only sentences that name no other of its kind."""
    world = World(size=500)
    volume = world.volume("train")
    assert isinstance(volume, PlainVolume)
    atlas = volume.atlas
    titles = {kind: {atlas.title(e) for e in atlas.entities() if e.kind == kind} for kind in atlas.counts}
    unnamed = 0
    for entity, passage in zip(atlas.entities(), world.iter_passages("train"), strict=True):
        before = ""
        for sentence in re.split(r"(?<=\.) (?=[A-Z])", passage.text):
            if passage.title in sentence:
                before = sentence
            else:
                unnamed += 1
                others = titles[entity.kind] - {passage.title}
                assert before
                assert not any(other in before for other in others), passage
    assert unnamed > 500


def test_statements_stand_in_their_articles() -> None:
    world = World(size=317, seed=1)
    passages = {p.id: p for p in world.iter_passages("train")}
    relations = set()
    for fact in world.iter_facts("train"):
        passage = passages[fact.passage_id]
        assert passage.title == fact.subject
        assert fact.sentence in passage.text
        assert fact.subject in fact.sentence
        assert fact.value in fact.sentence or f"{fact.value.replace(',', '')} " in fact.sentence
        relations.add(fact.relation)
    assert relations == set(RELATIONS)
