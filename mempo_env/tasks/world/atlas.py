"""The structured facts of one split of one plain world: who was born where, who wrote what, and the reverse.

Every value is computed from the entity's number alone. Relations that questions invert (the natives of a city, the
staff of an organisation) run through keyed permutations, so that both directions cost a few multiplications.
People come in cohorts 30 years apart: parents, teachers and founders belong to an earlier cohort than those who follow
them, so no article contradicts another's dates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache

from mempo_env.tasks.world.hashing import Permutation, draw, key_of
from mempo_env.tasks.world.names import name_spaces
from mempo_env.tasks.world.schema import ARTS, KINDS, RELATIONS, TRADES, Date, Entity, Number, Value, Year, shares

COHORTS = 6
_FIRST_YEAR = 1760
_COHORT_YEARS = 30
_WORKING = COHORTS - 1  # cohorts 1..5 have employers, teachers, works and victories; organisations have cohorts 0..4
_FILM = 4
_FIRST_FILM_COHORT = 4


class Atlas:
    """The facts of one split. `value(entity, relation)` is the heart; `None` means that the relation does not hold."""

    def __init__(self, size: int, seed: int, split: str) -> None:
        self.size = size
        self.counts = shares(size)
        self._key = key_of("world", seed, split)
        self._keys: dict[str, int] = {}
        self._names = name_spaces(split, seed)
        # Names are read over and over; the cache is bounded, so memory stays flat in worlds of any size.
        self._cached_title = lru_cache(maxsize=4096)(self._title)
        n = self.counts
        people = n["person"]
        self._cohort = [(people - c + COHORTS - 1) // COHORTS for c in range(COHORTS)]
        self._class = [(n["organisation"] - k + _WORKING - 1) // _WORKING for k in range(_WORKING)]
        couples = [size_c // 2 for size_c in self._cohort]
        self._married = [c // 5 * 3 + min(3, c % 5) for c in couples]
        full = min(self._cohort[1:])
        # Two of five people of the working cohorts are artists, the same number in each cohort.
        self._artists_per_cohort = full // 5 * 2 + (full % 5 > 1) + (full % 5 > 3)
        self._artists = _WORKING * self._artists_per_cohort
        self._winners = _WORKING * full

        def shuffle(label: str, size_: int) -> Permutation:
            return Permutation(key_of("world", seed, split, label), size_)

        self._natives = shuffle("natives", people)
        self._workforce = [shuffle(f"workforce{c}", self._cohort[c]) for c in range(COHORTS)]
        self._founders = [shuffle(f"founders{k}", self._cohort[k]) for k in range(_WORKING)]
        self._mayors = shuffle("mayors", people)
        self._presidents = shuffle("presidents", people)
        self._victors = shuffle("victors", self._winners)
        self._works = shuffle("works", n["work"])
        self._venues = shuffle("venues", n["event"])
        self._lands = shuffle("lands", n["city"])
        self._next = {kind: shuffle(f"next-{kind}", count) for kind, count in n.items()}
        self._rules: dict[str, Callable[[int], Value | None]] = {r: getattr(self, f"_{r}") for r in RELATIONS}

    # -- what others call ------------------------------------------------------------------------------------------

    def entities(self) -> Iterator[Entity]:
        """Every entity, in the order of the articles."""
        for kind in KINDS:
            for i in range(self.counts[kind]):
                yield Entity(kind, i)

    def entity(self, article: int) -> Entity:
        """The entity that article number `article` (0..size-1) is about."""
        for kind in KINDS:
            if article < self.counts[kind]:
                return Entity(kind, article)
            article -= self.counts[kind]
        raise IndexError(f"A world of {self.size} articles has no article {self.size + article}.")

    def value(self, entity: Entity, relation: str) -> Value | None:
        """What `relation` of `entity` is; None where it does not hold (no spouse, no employer, ...)."""
        return self._rules[relation](entity.number)

    def draw(self, label: str, i: int) -> int:
        """A 64-bit random number for (world, label, i)."""
        key = self._keys.get(label)
        if key is None:
            key = self._keys[label] = key_of(self._key, label)
        return draw(key, i)

    def follower(self, entity: Entity) -> Entity:
        """The next entity of the same kind on a random ring through them all: a partner for comparisons."""
        ring = self._next[entity.kind]
        return Entity(entity.kind, ring((ring.inverse(entity.number) + 1) % ring.n))

    def trade(self, i: int) -> str:
        """The occupation of person `i`."""
        art = self._art(i)
        return ARTS[art][0] if art is not None else TRADES[self.draw("trade", i) % len(TRADES)]

    def medium(self, work: int) -> int:
        """Which of ARTS work `work` is."""
        art = self._art(self._creator(work).number)
        assert art is not None, "only artists create works"
        return art

    def woman(self, i: int) -> bool:
        return (i // COHORTS) % 2 == 0

    # -- names -----------------------------------------------------------------------------------------------------

    def title(self, entity: Entity) -> str:
        """The unique name: the bare one, with a parenthesis where two entities share it."""
        return self._cached_title(entity)

    def name(self, entity: Entity) -> str:
        """The bare name, which two entities may share."""
        kind, i = self.owner_of_name(entity)
        if kind == "person":
            kind = "woman" if self.woman(i) else "man"
        return self._names[kind](i)

    def _title(self, entity: Entity) -> str:
        name = self.name(entity)
        return name if self.namesake(entity) is None else f"{name} ({self._epithet(entity)})"

    def owner_of_name(self, entity: Entity) -> Entity:
        """Whose name space number the entity's name comes from: itself, or the namesake it was named like."""
        kind, i = entity
        older = None
        if kind == "person" and i % 102 == 38:  # twelve back: the same sex and cohort
            older = Entity("person", i - 2 * COHORTS)
        elif kind == "work" and i % 64 == 33:
            older = Entity("work", i - 1)
        elif kind == "river" and i % 16 == 5 and i < self.counts["city"]:
            older = Entity("city", i)
        if older is None or self._epithet(older) == self._epithet(entity):
            return entity
        return older

    def namesake(self, entity: Entity) -> Entity | None:
        """The other entity that bears the same name. About 2% of people and cities and 3% of works have one."""
        owner = self.owner_of_name(entity)
        if owner != entity:
            return owner
        kind, i = entity
        younger = None
        if kind == "person" and i % 102 == 38 - 2 * COHORTS:
            younger = Entity("person", i + 2 * COHORTS)
        elif kind == "work" and i % 64 == 32:
            younger = Entity("work", i + 1)
        elif kind == "city" and i % 16 == 5:
            younger = Entity("river", i)
        if younger is None or younger.number >= self.counts[younger.kind] or self.owner_of_name(younger) != entity:
            return None
        return younger

    def _epithet(self, entity: Entity) -> str:
        if entity.kind == "person":
            return self.trade(entity.number)
        if entity.kind == "work":
            return ARTS[self.medium(entity.number)][1]
        return entity.kind

    # -- the reverse of relations, for proofs that an answer is the only one ------------------------------------------

    def natives(self, city: int) -> list[int]:
        """The people born in `city`."""
        return self._inverse(self._natives, city, self.counts["city"])

    def cities(self, country: int) -> list[int]:
        """The cities of `country`; the first is its capital."""
        return self._inverse(self._lands, country, self.counts["country"])

    def employees(self, organisation: int) -> list[int]:
        """The people who worked for `organisation`."""
        k, m = organisation % _WORKING, organisation // _WORKING
        c = k + 1
        return [j * COHORTS + c for j in self._inverse(self._workforce[c], m, self._class[k])]

    def works(self, person: int) -> list[int]:
        """The works that `person` created."""
        rank = self._artist_rank(person)
        return [] if rank is None else self._inverse(self._works, rank, self._artists)

    def events(self, city: int) -> list[int]:
        """The events held in `city`."""
        return self._inverse(self._venues, city, self.counts["city"])

    def subjects(self, relation: str, value: Entity) -> list[int]:
        """All entities, by number, of which `relation` is `value`. For the relations above only."""
        inverse = {"born_in": self.natives, "employer": self.employees, "creator": self.works, "venue": self.events}
        return inverse[relation](value.number)

    @staticmethod
    def _inverse(shuffle: Permutation, i: int, modulus: int) -> list[int]:
        return [shuffle.inverse(q) for q in range(i, shuffle.n, modulus)]

    # -- people ----------------------------------------------------------------------------------------------------

    def _artist_rank(self, i: int) -> int | None:
        j, c = divmod(i, COHORTS)
        fives, rest = divmod(j, 5)
        if c == 0 or rest not in (1, 3):
            return None
        t = fives * 2 + (rest == 3)
        return t * _WORKING + c - 1 if t < self._artists_per_cohort else None

    def _artist(self, rank: int) -> int:
        t, c = divmod(rank, _WORKING)
        return (t // 2 * 5 + (3 if t % 2 else 1)) * COHORTS + c + 1

    def _art(self, i: int) -> int | None:
        if self._artist_rank(i) is None:
            return None
        arts = len(ARTS) if i % COHORTS >= _FIRST_FILM_COHORT else _FILM
        return self.draw("art", i) % arts

    def _day(self, label: str, i: int, year: int) -> Date:
        h = self.draw(label, i)
        return Date(year, h % 12 + 1, h // 12 % 28 + 1)

    def _birth_date(self, i: int) -> Date:
        return self._day("birth date", i, self._birth_year(i))

    def _birth_year(self, i: int) -> int:
        return _FIRST_YEAR + i % COHORTS * _COHORT_YEARS + self.draw("birth year", i) % 12

    def _death_date(self, i: int) -> Date:
        return self._day("death date", i, self._birth_year(i) + 55 + self.draw("age", i) % 35)

    def _born_in(self, i: int) -> Entity:
        return Entity("city", self._natives(i) % self.counts["city"])

    def _died_in(self, i: int) -> Entity:
        return Entity("city", self.draw("died in", i) % self.counts["city"])

    def _spouse(self, i: int) -> Entity | None:
        j, c = divmod(i, COHORTS)
        if j // 2 % 5 >= 3 or j ^ 1 >= self._cohort[c]:
            return None
        return Entity("person", (j ^ 1) * COHORTS + c)

    def _parents(self, i: int) -> int | None:
        """The rank of the married couple of the cohort before that are the parents; spouses have different ones."""
        j, c = divmod(i, COHORTS)
        if c == 0 or self.draw("orphan", i) % 4 == 3:
            return None
        couples = self._married[c - 1]
        first = self.draw("parents", i - j % 2 * COHORTS) % couples
        if j % 2 == 0:
            return first
        return (first + 1 + self.draw("in-laws", i) % (couples - 1)) % couples

    def _mother(self, i: int) -> Entity | None:
        rank = self._parents(i)
        return None if rank is None else Entity("person", self._wife(rank) * COHORTS + i % COHORTS - 1)

    def _father(self, i: int) -> Entity | None:
        rank = self._parents(i)
        return None if rank is None else Entity("person", (self._wife(rank) + 1) * COHORTS + i % COHORTS - 1)

    @staticmethod
    def _wife(rank: int) -> int:
        return (rank // 3 * 5 + rank % 3) * 2

    def _teacher(self, i: int) -> Entity | None:
        c = i % COHORTS
        if c == 0:
            return None
        return Entity("person", self.draw("teacher", i) % self._cohort[c - 1] * COHORTS + c - 1)

    def _employer(self, i: int) -> Entity | None:
        j, c = divmod(i, COHORTS)
        if c == 0:
            return None
        return Entity("organisation", self._workforce[c](j) % self._class[c - 1] * _WORKING + c - 1)

    def _founded(self, i: int) -> Entity | None:
        j, c = divmod(i, COHORTS)
        if c == _WORKING:
            return None
        m = self._founders[c].inverse(j)
        return Entity("organisation", m * _WORKING + c) if m < self._class[c] else None

    def _mayor_of(self, i: int) -> Entity | None:
        city = self._mayors.inverse(i)
        return Entity("city", city) if city < self.counts["city"] else None

    def _president_of(self, i: int) -> Entity | None:
        country = self._presidents.inverse(i)
        return Entity("country", country) if country < self.counts["country"] else None

    def _won(self, i: int) -> Entity | None:
        j, c = divmod(i, COHORTS)
        rank = j * _WORKING + c - 1
        if c == 0 or rank >= self._winners:
            return None
        event = self._victors.inverse(rank)
        return Entity("event", event) if event < self.counts["event"] else None

    def _known_for(self, i: int) -> Entity | None:
        rank = self._artist_rank(i)
        if rank is None or rank >= self.counts["work"]:
            return None
        return Entity("work", self._works.inverse(rank))

    # -- places ----------------------------------------------------------------------------------------------------

    def _country(self, i: int) -> Entity:
        return Entity("country", self._lands(i) % self.counts["country"])

    def _river(self, i: int) -> Entity:
        return Entity("river", self.draw("river", i) % self.counts["river"])

    def _mayor(self, i: int) -> Entity:
        return Entity("person", self._mayors(i))

    def _population(self, i: int) -> Number:
        h = self.draw("population", i)
        return Number(2_000 * 2 ** (h % 9) + (h >> 8) % (2_000 * 2 ** (h % 9)))

    def _founding_year(self, i: int) -> Year:
        return Year(900 + self.draw("founding year", i) % 800)

    def _capital(self, i: int) -> Entity:
        return Entity("city", self._lands.inverse(i))

    def _president(self, i: int) -> Entity:
        return Entity("person", self._presidents(i))

    def _currency(self, i: int) -> str:
        return self._names["coin"](i % self._names["coin"].capacity).lower()

    def _area(self, i: int) -> Number:
        return Number(9_000 + self.draw("area", i) % 800_000)

    def _independence(self, i: int) -> Date:
        year = self._birth_year(self._presidents(i)) + 35 + self.draw("independence year", i) % 15
        return self._day("independence", i, year)

    def _source(self, i: int) -> Entity:
        return Entity("country", self.draw("source", i) % self.counts["country"])

    def _joins(self, i: int) -> Entity | None:
        return Entity("river", self.draw("joins", i) % i) if i else None

    def _surveyor(self, i: int) -> Entity:
        return Entity("person", self.draw("surveyor", i) % self.counts["person"])

    def _length(self, i: int) -> Number:
        return Number(60 + self.draw("length", i) % 2_400)

    # -- organisations, works, events ------------------------------------------------------------------------------

    def _founder(self, i: int) -> Entity:
        m, k = divmod(i, _WORKING)
        return Entity("person", self._founders[k](m) * COHORTS + k)

    def _founding_date(self, i: int) -> Date:
        year = self._birth_year(self._founder(i).number) + 25 + self.draw("foundation", i) % 13
        return self._day("founding", i, year)

    def _headquarters(self, i: int) -> Entity:
        return Entity("city", self.draw("headquarters", i) % self.counts["city"])

    def _director(self, i: int) -> Entity:
        """A contemporary of the founder, never the founder."""
        founder, k = divmod(self._founder(i).number, COHORTS)
        step = 1 + self.draw("director", i) % (self._cohort[k] - 1)
        return Entity("person", (founder + step) % self._cohort[k] * COHORTS + k)

    def _staff(self, i: int) -> Number:
        return Number(12 + self.draw("staff", i) % 9_000)

    def _creator(self, i: int) -> Entity:
        return Entity("person", self._artist(self._works(i) % self._artists))

    def _release(self, i: int) -> Date:
        year = self._birth_year(self._creator(i).number) + 25 + self.draw("release year", i) % 28
        return self._day("release", i, year)

    def _setting(self, i: int) -> Entity:
        return Entity("city", self.draw("setting", i) % self.counts["city"])

    def _commissioner(self, i: int) -> Entity:
        """An organisation that was founded before the artist was grown up."""
        k = self._creator(i).number % COHORTS - 1
        return Entity("organisation", self.draw("commissioner", i) % self._class[k] * _WORKING + k)

    def _dedicatee(self, i: int) -> Entity:
        """A person of the cohort before the artist's."""
        c = self._creator(i).number % COHORTS - 1
        return Entity("person", self.draw("dedicatee", i) % self._cohort[c] * COHORTS + c)

    def _extent(self, i: int) -> Number | None:
        """Pages of a novel, minutes of what is performed; a painting has neither."""
        noun = ARTS[self.medium(i)][1]
        if noun == "painting":
            return None
        return Number((120 if noun == "novel" else 70) + self.draw("extent", i) % (700 if noun == "novel" else 150))

    def _venue(self, i: int) -> Entity:
        return Entity("city", self._venues(i) % self.counts["city"])

    def _winner(self, i: int) -> Entity:
        j, c = divmod(self._victors(i), _WORKING)
        return Entity("person", j * COHORTS + c + 1)

    def _event_date(self, i: int) -> Date:
        year = self._birth_year(self._winner(i).number) + 23 + self.draw("event year", i) % 22
        return self._day("event", i, year)

    def _organiser(self, i: int) -> Entity:
        """An organisation founded before the winner was grown up."""
        k = self._winner(i).number % COHORTS - 1
        return Entity("organisation", self.draw("organiser", i) % self._class[k] * _WORKING + k)

    def _attendance(self, i: int) -> Number:
        return Number(300 + self.draw("attendance", i) % 60_000)
