"""The plain register: an encyclopedia in ordinary English."""

from __future__ import annotations

from mempo_env.tasks.world.articles import article
from mempo_env.tasks.world.atlas import Atlas
from mempo_env.tasks.world.hashing import Permutation, key_of
from mempo_env.tasks.world.plans import PER_ARTICLE, Plan, Planner
from mempo_env.tasks.world.questions import Questioner, aliases, passage_id
from mempo_env.tasks.world.volume import Fact
from mempo_env.types import Passage, Question


class PlainVolume:
    """One split of a plain world. `name` opens the ids of its passages and questions."""

    def __init__(self, name: str, split: str, size: int, seed: int, min_hops: int, max_hops: int) -> None:
        self.articles = size
        self.questions = PER_ARTICLE * size
        self.atlas = Atlas(size, seed, split)
        self._name, self._ids = name, f"{name}/{split}"
        self._planner = Planner(self.atlas, min_hops, max_hops)
        self._questioner = Questioner(self.atlas, self._planner, self._ids)
        self._order = Permutation(key_of("world", seed, split, "questions"), self.questions)

    def passage(self, index: int) -> Passage:
        entity = self.atlas.entity(index)
        page = article(self.atlas, entity)
        return Passage(passage_id(self._ids, entity), page.title, page.text)

    def facts(self, index: int) -> tuple[Fact, ...]:
        entity = self.atlas.entity(index)
        page = article(self.atlas, entity)
        found = []
        for relation, sentence in page.facts.items():
            value = self.atlas.value(entity, relation)
            assert value is not None
            said = aliases(self.atlas, value)[0]
            found.append(Fact(page.title, relation, said, passage_id(self._ids, entity), sentence))
        return tuple(found)

    def plan(self, index: int) -> Plan:
        """What question `index` asks, without words."""
        return self._planner.plan(*divmod(self._order(index), PER_ARTICLE))

    def question(self, index: int) -> Question:
        asked = self._questioner.ask(self.plan(index), self.atlas.draw("question wording", index))
        return Question(
            id=f"{self._ids}/question-{index}",
            text=asked.text,
            answers=asked.answers,
            evidence=asked.evidence,
            kind=asked.kind,
            dataset=self._name,
        )
