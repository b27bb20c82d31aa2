"""The compact register: its closed vocabulary, its names, and that its questions have the answers they claim."""

from __future__ import annotations

from collections import Counter, defaultdict

import pytest

from mempo_env.tasks.world import World, compact_vocabulary
from mempo_env.tasks.world.compact import SYLLABLES, CompactVolume
from mempo_env.tasks.world.names import SPLITS


def test_the_vocabulary_is_small_and_closed() -> None:
    words = compact_vocabulary()
    assert len(words) == len(set(words)) <= 150
    known = set(words)
    used: Counter[str] = Counter()
    for world in (World(500, 0, "compact"), World(2804, 1, "compact", max_hops=4)):
        for split in SPLITS:
            for p in world.iter_passages(split):
                used.update(f"{p.title} {p.text}".split())
            for q in world.iter_questions(split):
                used.update(f"{q.text} {' '.join(q.answers)}".split())
                for link in q.evidence:
                    used.update(f"{link.query} {link.title} {link.fact} {link.answer}".split())
    assert set(used) == known, "every word is used and every used word is known"


@pytest.mark.parametrize(("size", "syllables"), [(200, 2), (2803, 2), (2804, 3), (9000, 3)])
def test_no_name_is_another_in_a_different_order(size: int, syllables: int) -> None:
    world = World(size=size, register="compact")
    bags = Counter(frozenset(p.title.split()) for split in SPLITS for p in world.iter_passages(split))
    assert max(bags.values()) == 1
    assert {len(bag) for bag in bags} == {syllables}
    assert all(bag <= set(SYLLABLES) for bag in bags)


def test_sizes() -> None:
    world = World(size=1000, register="compact")
    assert [len(world.passages(s)) for s in SPLITS] == [1000, 200, 200]
    assert [len(world.questions(s)) for s in SPLITS] == [4000, 800, 800]


@pytest.mark.parametrize("max_hops", [1, 2, 4])
def test_brute_force_reads_each_question_and_finds_its_answer(max_hops: int) -> None:
    world = World(size=600, register="compact", max_hops=max_hops)
    for split in SPLITS:
        # What the articles say, read from their text alone: words of relation sit between a name and its value.
        said: dict[tuple[str, str], set[str]] = defaultdict(set)
        for p in world.iter_passages(split):
            for sentence in p.text.split(" ; "):
                words = sentence.split()
                said[" ".join(words[:2]), " ".join(words[2:4])].add(" ".join(words[4:]))
        simple = 0
        for q in world.iter_questions(split):
            words = q.text.removesuffix(" ?").split()
            assert len(words) == 2 + 3 * len(q.evidence)
            subjects, seen = {" ".join(words[:2])}, [" ".join(words[:2])]
            for at in range(2, len(words), 3):  # two words of relation and a hole
                subjects = {v for s in subjects for v in said[s, " ".join(words[at : at + 2])]}
                seen += subjects
            assert subjects == set(q.answers)
            simple += len(set(seen)) == len(seen)
        assert simple == len(world.questions(split)), "a chain returned to where it had been"


def test_hops_are_balanced() -> None:
    kinds = Counter(len(q.evidence) for q in World(register="compact").iter_questions("train"))
    assert kinds[1] == kinds[2]


def test_plans_match_the_evidence() -> None:
    world = World(size=300, register="compact", max_hops=3)
    volume = world.volume("train")
    assert isinstance(volume, CompactVolume)
    facts = {(f.subject, f.relation): f for i in range(volume.articles) for f in volume.facts(i)}
    for i, q in enumerate(world.iter_questions("train")):
        title, relations = volume.plan(i)
        for relation, link in zip(relations, q.evidence, strict=True):
            fact = facts[title, relation]
            assert (link.query, link.title, link.passage_id) == (title, title, fact.passage_id)
            assert (link.fact, link.answer) == (fact.sentence, fact.value)
            title = fact.value
