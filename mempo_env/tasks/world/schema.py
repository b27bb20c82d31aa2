"""What a plain world is made of: kinds of entities, values, and the relations between them. Nothing is drawn here."""

from __future__ import annotations

# ruff: noqa: SIM905 (word lists read better as one string)
from typing import NamedTuple

KINDS = ("person", "city", "country", "river", "organisation", "work", "event")

TRADES = (
    "engineer botanist physician geologist judge astronomer cartographer chemist locksmith shipbuilder clockmaker"
    " librarian gardener beekeeper printer glassblower"
).split()
# Artist, what the artist makes, and the verb of making.
ARTS = (
    ("novelist", "novel", "written"),
    ("composer", "opera", "composed"),
    ("painter", "painting", "painted"),
    ("playwright", "play", "written"),
    ("film director", "film", "directed"),
)
_MONTHS = "January February March April May June July August September October November December".split()


class Entity(NamedTuple):
    """An entity of a world: its kind and its number within the kind."""

    kind: str
    number: int


class Date(NamedTuple):
    """A day of the calendar. Ordered as dates are."""

    year: int
    month: int
    day: int

    def forms(self) -> tuple[str, ...]:
        """The accepted written forms, the one that articles use first."""
        month = _MONTHS[self.month - 1]
        return (f"{self.day} {month} {self.year}", f"{month} {self.day}, {self.year}", self.iso())

    def iso(self) -> str:
        return f"{self.year:04d}-{self.month:02d}-{self.day:02d}"


class Year(NamedTuple):
    """A year alone."""

    year: int


class Number(NamedTuple):
    """A count or a measure."""

    value: int


Value = Entity | Date | Year | Number | str

# relation -> (kind of its subject, kind of its value). A relation holds at most once per subject.
RELATIONS: dict[str, tuple[str, str]] = {
    "born_in": ("person", "city"),
    "birth_date": ("person", "date"),
    "died_in": ("person", "city"),
    "death_date": ("person", "date"),
    "father": ("person", "person"),
    "mother": ("person", "person"),
    "spouse": ("person", "person"),
    "teacher": ("person", "person"),
    "employer": ("person", "organisation"),
    "founded": ("person", "organisation"),
    "mayor_of": ("person", "city"),
    "president_of": ("person", "country"),
    "won": ("person", "event"),
    "known_for": ("person", "work"),
    "country": ("city", "country"),
    "river": ("city", "river"),
    "mayor": ("city", "person"),
    "population": ("city", "number"),
    "founding_year": ("city", "year"),
    "capital": ("country", "city"),
    "president": ("country", "person"),
    "currency": ("country", "coin"),
    "area": ("country", "number"),
    "independence": ("country", "date"),
    "source": ("river", "country"),
    "joins": ("river", "river"),
    "surveyor": ("river", "person"),
    "length": ("river", "number"),
    "founder": ("organisation", "person"),
    "founding_date": ("organisation", "date"),
    "headquarters": ("organisation", "city"),
    "director": ("organisation", "person"),
    "staff": ("organisation", "number"),
    "creator": ("work", "person"),
    "release": ("work", "date"),
    "setting": ("work", "city"),
    "commissioner": ("work", "organisation"),
    "dedicatee": ("work", "person"),
    "extent": ("work", "number"),
    "venue": ("event", "city"),
    "event_date": ("event", "date"),
    "winner": ("event", "person"),
    "organiser": ("event", "organisation"),
    "attendance": ("event", "number"),
}
RELATIONS_OF = {kind: tuple(r for r, (k, _) in RELATIONS.items() if k == kind) for kind in KINDS}


def shares(size: int) -> dict[str, int]:
    """How many entities of each kind make a world of `size` articles."""
    counts = {
        "city": size * 14 // 100,
        "country": max(3, size // 50),
        "river": max(3, size * 4 // 100),
        "organisation": size * 14 // 100,
        "work": size * 18 // 100,
        "event": size * 8 // 100,
    }
    return {"person": size - sum(counts.values()), **counts}
