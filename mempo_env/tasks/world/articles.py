"""From facts to English: one article per entity, and for each relation the sentence that states it.

A sentence that states a relation names its subject in full, so that it can be quoted alone. Sentences of colour, which
no question asks about, use pronouns; they follow only sentences in which no other person is named.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from mempo_env.tasks.world.atlas import Atlas
from mempo_env.tasks.world.schema import ARTS, RELATIONS_OF, Date, Entity, Number, Value, Year
from mempo_env.tasks.world.wordings import BLOCKS, COLOUR, MERGED, SHOWN, Block

_HER = ("he=she", "his=her", "him=her", "He=She", "His=Her", "man=woman", "child=daughter", "other_spouse=husband")
_HIS = ("he=he", "his=his", "him=him", "He=He", "His=His", "man=man", "child=son", "other_spouse=wife")
_SHE, _HE = (dict(pair.split("=", 1) for pair in words) for words in (_HER, _HIS))


class Article(NamedTuple):
    """An article: its title, its text, and for each relation that it states the sentence that states it."""

    title: str
    text: str
    facts: dict[str, str]


def mention(atlas: Atlas, entity: Entity) -> str:
    """The entity's title as it stands inside a sentence: rivers, organisations and events take "the"."""
    title = atlas.title(entity)
    return f"the {title}" if entity.kind in ("river", "organisation", "event") else title


def written(atlas: Atlas, value: Value) -> str:
    """A value as articles write it."""
    if isinstance(value, Entity):
        return mention(atlas, value)
    if isinstance(value, Date):
        return value.forms()[0]
    if isinstance(value, Number):
        return f"{value.value:,}"
    return str(value.year) if isinstance(value, Year) else value


def article(atlas: Atlas, entity: Entity) -> Article:
    """The article about `entity`. A pure function of the world and the entity."""
    kind, i = entity
    words = {"self": mention(atlas, entity)}
    if kind in _EXTRA:
        words |= _EXTRA[kind](atlas, i)
    values = {r: v for r in RELATIONS_OF[kind] if (v := atlas.value(entity, r)) is not None}
    words |= {r: written(atlas, v) for r, v in values.items()}
    facts: dict[str, str] = {}
    sentences: list[tuple[str, bool]] = []  # with whether a pronoun right after it is clear
    h = atlas.draw(f"wording-{kind}", i)
    blocks, h = _chosen(kind, values, h)
    for relations, wordings in blocks:
        h, pick = divmod(h, len(wordings))
        sentence = wordings[pick].format_map(words)
        sentence = sentence[0].upper() + sentence[1:]
        facts.update(dict.fromkeys(relations, sentence))
        named = any(isinstance(v := values[r], Entity) and v.kind == kind for r in relations)
        sentences.append((sentence, not named and (not sentences or wordings[pick].startswith("{self}"))))
    lines = _arranged(sentences, COLOUR[kind], words, atlas.draw(f"order-{kind}", i))
    return Article(atlas.title(entity), " ".join(lines), facts)


def _chosen(kind: str, values: Mapping[str, Value], h: int) -> tuple[list[Block], int]:
    """The blocks that apply, some of them merged, and what is left of the random number `h`."""
    merged: list[Block] = []
    taken: set[str] = set()
    options = MERGED[kind]
    h, turn = divmod(h, len(options))
    for option in options[turn:] + options[:turn]:
        h, coin = divmod(h, 4)
        if coin and taken.isdisjoint(option[0]) and all(r in values for r in option[0]):
            merged.append(option)
            taken.update(option[0])
    single = [b for b in BLOCKS[kind] if taken.isdisjoint(b[0]) and all(r in values for r in b[0])]
    return [single[0], *merged, *single[1:]], h


def _arranged(sentences: list[tuple[str, bool]], colour: Sequence[str], words: Mapping[str, str], h: int) -> list[str]:
    """The opening, the other sentences in random order, and up to two of colour where their pronouns are clear."""
    h, first = divmod(h, len(colour))
    h, step = divmod(h, len(colour) - 1)
    spare = [colour[first], colour[(first + 1 + step) % len(colour)]]
    rest = sentences[1:]
    for k in range(len(rest) - 1, 0, -1):
        h, j = divmod(h, k + 1)
        rest[k], rest[j] = rest[j], rest[k]
    lines = []
    for sentence, clear in [sentences[0], *rest]:
        lines.append(sentence)
        h, coin = divmod(h, 3)
        if spare and clear and coin:
            lines.append(spare.pop().format_map(words))
    return lines


def _person(atlas: Atlas, i: int) -> dict[str, str]:
    trade = atlas.trade(i)
    words = dict(_SHE if atlas.woman(i) else _HE)
    words["a_trade"] = _with_article(trade)
    known = atlas.value(Entity("person", i), "known_for")
    if isinstance(known, Entity):
        words["known_noun"] = ARTS[atlas.medium(known.number)][1]
    return words


def _with_article(noun: str) -> str:
    return f"an {noun}" if noun[0] in "aeiou" else f"a {noun}"


def _work(atlas: Atlas, i: int) -> dict[str, str]:
    _, noun, made = ARTS[atlas.medium(i)]
    extent = atlas.value(Entity("work", i), "extent")
    words = {
        "noun": noun,
        "a_noun": _with_article(noun),
        "made": made,
        "shown": SHOWN[noun],
        "depicts": "depicts" if noun == "painting" else "is set in",
    }
    if isinstance(extent, Number):
        words["lasts"] = f"has {extent.value} pages" if noun == "novel" else f"lasts {extent.value} minutes"
    return words


_EXTRA: dict[str, Callable[[Atlas, int], dict[str, str]]] = {"person": _person, "work": _work}
