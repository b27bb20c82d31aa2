"""Invented names. A name is a number written in syllables, so names never repeat and are never stored.

Each kind of entity has a name space. A fixed permutation (the same for every seed) scrambles it and deals it out to the
splits, name by name: so no train world, of any seed or size, shares a name with any dev or test world.
"""

# ruff: noqa: SIM905 (word lists read better as one string)
from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from math import prod

from mempo_env.tasks.world.hashing import Permutation, key_of

SPLITS = ("train", "dev", "test")

_ONSETS = "b br ch d dr f fl g gr h j k kl l m n p pr qu r s sk t th tr v w y z".split()
_VOWELS = "a e i o u".split()
_MIDS = "l r m n v d b g s t k th sh nd rr ll mp lt".split()
_CLUSTERS = "lv ndw rv zh nv lqu sv ldr mr thr vr dw lth vl rzh lst dl nz zm rq".split()
_JOINS = "r l m n v d g s th k".split()


class Words:
    """Words spelt by one choice from each list of parts, numbered in mixed radix. `len` is their number.

    `real` lists the spellings that are real names or words; they are left out and the numbering closes over them.
    """

    def __init__(self, *parts: Sequence[str], real: str = "") -> None:
        self.parts = parts
        self.real = frozenset(real.split())
        # The i-th kept word is the (i + r)-th of all, where r real words have at most i kept words before them.
        self._skips = [at - rank for rank, at in enumerate(sorted(map(self._number, self.real)))]
        self._len = prod(map(len, parts)) - len(self.real)

    def __len__(self) -> int:
        return self._len

    def __getitem__(self, i: int) -> str:
        i += bisect_right(self._skips, i)
        spelt = ""
        for part in self.parts:
            i, j = divmod(i, len(part))
            spelt += part[j]
        return spelt.capitalize()

    def _number(self, word: str) -> int:
        """The place of `word` among all spellings: a search over the parts, which are few."""

        def rest(text: str, depth: int) -> int | None:
            if depth == len(self.parts):
                return None if text else 0
            for j, piece in enumerate(self.parts[depth]):
                if text.startswith(piece) and (after := rest(text[len(piece) :], depth + 1)) is not None:
                    return j + len(self.parts[depth]) * after
            return None

        place = rest(word, 0)
        if place is None:
            raise ValueError(f"{word!r} cannot be spelt from these parts, so it need not be left out.")
        return place


FEMALE = Words(
    *(_ONSETS, _VOWELS, _CLUSTERS, "ane ive eth ith une elle ira yse".split()),
    real="survive rethrive midwive bindwith ledwith volvelle vervelle luzmira",
)
MALE = Words(
    *(_ONSETS, _VOWELS, _CLUSTERS, "am or ek ul ev os aik ivo".split()),
    real="waltham feltham bedlam salvor solvor fervor hervor gunvor devrek hanzek bothros panzos",
)
SURNAMES = Words(
    *(_ONSETS, _VOWELS, _MIDS, _VOWELS, "sk lm rth nsk lv rvik stov mbel quin lder rzen vosk".split()),
    real="dorask damask bemask remask sisask betask moresk morisk kerrisk bemusk bedusk predusk putusk mollusk kenelm"
    " dishelm samarth penarth rebirth benorth saransk yaransk zarinsk turinsk leninsk kodinsk labinsk noginsk lakinsk"
    " makinsk totaquin ramequin manequin brodequin maroquin marroquin diselder premolder devolder resolder hutholder"
    " gasholder",
)
# The last letters of cities (d k t), rivers (n l s) and countries (a) differ: one-word names are never equal.
CITIES = Words(
    *(_ONSETS, _VOWELS, _MIDS, _VOWELS, _JOINS, "und ard olk ost eld amk isk ort unt asht".split()),
    real="baselard foremost bunemost hondeveld heregeld danegeld wodegeld tamarisk basilisk semidisk preresort sederunt"
    " minudasht",
)
RIVERS = Words(
    *(_ONSETS, _VOWELS, _MIDS, _VOWELS, "ren vin sul zel vas nors wen thal dis quel hain mes".split()),
    real="beveren lokeren besiren davoren josavin quinovin lundasul kekavas nikanors merithal zenithal paradis manadis"
    " magadis balodis betimes",
)
COUNTRIES = Words(_ONSETS, _VOWELS, _MIDS, _VOWELS, "lvaria nthia rrenia zhana mbara ssora vonda ldea".split())
COINS = Words(_ONSETS, _VOWELS, _CLUSTERS, "ip ot".split(), real="sandwip")
_BRANDS = Words(
    *(_ONSETS, _VOWELS, _MIDS, _VOWELS, "dral quist bray tham vex nell sten zor".split()),
    real="sebesten relisten korosten",
)
_ORGANISATIONS = (
    "Observatory Foundry Academy Company Institute Society Railway Bank Museum Theatre Shipyard Press Archive Hospital"
    " Laboratory Mill"
).split()
_CONTESTS = (
    "Regatta,Marathon,Chess Tournament,Air Race,Archery Cup,Ski Race,Song Contest,Bicycle Race,Horse Race,Sailing Cup,"
    "Fencing Cup,Poetry Prize"
).split(",")
_THINGS = (
    "Lantern Orchard Winter Harbour Mirror Garden Bridge Letter Clock Island Feather Shadow Ladder Voyage Promise Tower"
    " Kettle Violin Map Storm Window Candle Well Key Meadow Ferry Crown Anchor Ribbon Quarry"
).split()
_WORKS = (
    "The {0} of {1}",
    "{1} and the {0}",
    "A {0} for {1}",
    "The Last {0} of {1}",
    "{1} at the {0}",
    "The Silent {0} of {1}",
    "No {0} in {1}",
    "{1} Without a {0}",
)


class NameSpace:
    """The names of one kind: `name(split, i)` is a bijection from (split, i) into `spell(0..size-1)`.

    `seed` shuffles which names of the split's share come first; `capacity` is the size of each split's share.
    """

    def __init__(self, label: str, size: int, spell: Callable[[int], str], split: str, seed: int) -> None:
        self._spell = spell
        self._deal = Permutation(key_of("names", label), size)
        self.capacity = size // len(SPLITS)
        self._shuffle = Permutation(key_of("names", label, split, seed), self.capacity)
        self._offset = SPLITS.index(split)

    def __call__(self, i: int) -> str:
        return self._spell(self._deal(self._shuffle(i) * len(SPLITS) + self._offset))


def _pair(first: Words, second: Words) -> tuple[int, Callable[[int], str]]:
    return len(first) * len(second), lambda i: f"{first[i % len(first)]} {second[i // len(first)]}"


def _branded(kinds: Sequence[str]) -> tuple[int, Callable[[int], str]]:
    return len(_BRANDS) * len(kinds), lambda i: f"{_BRANDS[i // len(kinds)]} {kinds[i % len(kinds)]}"


def _titled() -> tuple[int, Callable[[int], str]]:
    frames = [(frame, thing) for frame in _WORKS for thing in _THINGS]

    def spell(i: int) -> str:
        frame, thing = frames[i % len(frames)]
        return frame.format(thing, _BRANDS[i // len(frames)])

    return len(_BRANDS) * len(frames), spell


def _plain(words: Words) -> tuple[int, Callable[[int], str]]:
    return len(words), words.__getitem__


_SPACES: dict[str, Callable[[], tuple[int, Callable[[int], str]]]] = {
    "woman": lambda: _pair(FEMALE, SURNAMES),
    "man": lambda: _pair(MALE, SURNAMES),
    "city": lambda: _plain(CITIES),
    "river": lambda: _plain(RIVERS),
    "country": lambda: _plain(COUNTRIES),
    "coin": lambda: _plain(COINS),
    "organisation": lambda: _branded(_ORGANISATIONS),
    "event": lambda: _branded(_CONTESTS),
    "work": _titled,
}


def name_spaces(split: str, seed: int) -> dict[str, NameSpace]:
    """The name space of every kind for one split of one world."""
    return {label: NameSpace(label, *space(), split, seed) for label, space in _SPACES.items()}
