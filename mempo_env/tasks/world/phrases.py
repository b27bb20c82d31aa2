"""How questions about a plain world are worded, `{x}` being the subject.

Data only; `questions.py` chooses and fills it.
"""

from __future__ import annotations

# Noun phrases that stand for the value of a relation whose value is an entity: the inner links of a chain. Each ends in
# `{x}`, so that a chain of them branches to the right and can be read.
NOUN: dict[str, tuple[str, ...]] = {
    "born_in": ("the birthplace of {x}", "the city of birth of {x}"),
    "died_in": ("the place of death of {x}", "the city of death of {x}"),
    "father": ("the father of {x}",),
    "mother": ("the mother of {x}",),
    "spouse": ("the spouse of {x}", "the person married to {x}"),
    "teacher": ("the teacher of {x}", "the person who taught {x}"),
    "employer": ("the employer of {x}", "the organisation that employed {x}"),
    "founded": ("the organisation founded by {x}",),
    "mayor_of": ("the city whose first mayor was {x}",),
    "president_of": ("the country whose first president was {x}",),
    "won": ("the event won by {x}",),
    "known_for": ("the best-known work of {x}",),
    "country": ("the country of {x}",),
    "river": ("the river that flows through {x}", "the river of {x}"),
    "mayor": ("the first mayor of {x}",),
    "capital": ("the capital of {x}",),
    "president": ("the first president of {x}",),
    "source": ("the country that holds the source of {x}",),
    "joins": ("the river that receives {x}",),
    "surveyor": ("the first surveyor of {x}", "the person who first surveyed {x}"),
    "founder": ("the founder of {x}", "the person who founded {x}"),
    "headquarters": ("the city that holds the headquarters of {x}",),
    "director": ("the first director of {x}",),
    "creator": ("the creator of {x}", "the person who created {x}"),
    "setting": ("the setting of {x}",),
    "commissioner": ("the organisation that commissioned {x}",),
    "dedicatee": ("the dedicatee of {x}",),
    "venue": ("the host city of {x}", "the city that hosted {x}"),
    "winner": ("the winner of {x}", "the person who won {x}"),
    "organiser": ("the organiser of {x}", "the organisation that organised {x}"),
}

# Questions for the value of a relation: the last link of a chain.
ASK: dict[str, tuple[str, ...]] = {
    "born_in": ("In which city was {x} born?", "What is the birthplace of {x}?"),
    "birth_date": ("On what date was {x} born?", "What is the date of birth of {x}?"),
    "died_in": ("In which city did {x} die?",),
    "death_date": ("On what date did {x} die?", "What is the date of death of {x}?"),
    "father": ("Who was the father of {x}?",),
    "mother": ("Who was the mother of {x}?",),
    "spouse": ("Who was married to {x}?", "Whom did {x} marry?"),
    "teacher": ("Under whom did {x} study?", "Who was the teacher of {x}?"),
    "employer": ("Which organisation employed {x}?", "For which organisation did {x} work?"),
    "founded": ("Which organisation did {x} found?", "Which organisation was founded by {x}?"),
    "mayor_of": ("Of which city was {x} the first mayor?",),
    "president_of": ("Of which country was {x} the first president?",),
    "won": ("Which event did {x} win?", "Which event was won by {x}?"),
    "known_for": ("For which work is {x} best known?", "What is the best-known work of {x}?"),
    "country": ("In which country does {x} lie?", "Which country does {x} belong to?"),
    "river": ("On which river does {x} lie?", "Which river flows through {x}?"),
    "mayor": ("Who was the first mayor of {x}?",),
    "population": ("How many inhabitants does {x} have?", "What is the population of {x}?"),
    "founding_year": ("In which year was {x} founded?",),
    "capital": ("What is the capital of {x}?", "Which city is the capital of {x}?"),
    "president": ("Who was the first president of {x}?",),
    "currency": ("What is the currency of {x}?", "Which currency is used in {x}?"),
    "area": ("How many square kilometres does {x} cover?", "What is the area of {x} in square kilometres?"),
    "independence": ("On what date did {x} become independent?",),
    "source": ("In which country does {x} rise?",),
    "joins": ("Into which river does {x} flow?",),
    "surveyor": ("Who first surveyed {x}?", "Who was the first to survey {x}?"),
    "length": ("How many kilometres long is {x}?", "What is the length of {x} in kilometres?"),
    "founder": ("Who founded {x}?", "Who was the founder of {x}?"),
    "founding_date": ("On what date was {x} founded?",),
    "headquarters": ("In which city does {x} have its headquarters?", "Where are the headquarters of {x}?"),
    "director": ("Who was the first director of {x}?",),
    "staff": ("How many people does {x} employ?",),
    "creator": ("Who created {x}?", "Who is the creator of {x}?"),
    "release": ("On what date was {x} first presented to the public?",),
    "setting": ("Which city is the setting of {x}?",),
    "commissioner": ("Which organisation commissioned {x}?", "By which organisation was {x} commissioned?"),
    "dedicatee": ("To whom is {x} dedicated?",),
    "extent": ("How long is {x}, in pages or minutes?",),
    "venue": ("In which city was {x} held?",),
    "event_date": ("On what date was {x} held?",),
    "winner": ("Who won {x}?", "Who was the winner of {x}?"),
    "organiser": ("Which organisation organised {x}?",),
    "attendance": ("How many spectators did {x} draw?",),
}

# Two entities of a kind compared: attribute -> (asking for the greater, asking for the lesser).
COMPARE: dict[str, dict[str, tuple[str, str]]] = {
    "person": {
        "birth_date": ("Who was born later, {0} or {1}?", "Who was born earlier, {0} or {1}?"),
        "death_date": ("Who died later, {0} or {1}?", "Who died earlier, {0} or {1}?"),
    },
    "city": {
        "population": ("Which city has more inhabitants, {0} or {1}?", "Which city has fewer inhabitants, {0} or {1}?"),
        "founding_year": ("Which city is younger, {0} or {1}?", "Which city is older, {0} or {1}?"),
    },
    "country": {
        "area": ("Which country is larger, {0} or {1}?", "Which country is smaller, {0} or {1}?"),
        "independence": (
            "Which country became independent later, {0} or {1}?",
            "Which country became independent earlier, {0} or {1}?",
        ),
    },
    "river": {"length": ("Which river is longer, {0} or {1}?", "Which river is shorter, {0} or {1}?")},
    "organisation": {
        "founding_date": ("Which was founded later, {0} or {1}?", "Which was founded earlier, {0} or {1}?"),
        "staff": ("Which employs more people, {0} or {1}?", "Which employs fewer people, {0} or {1}?"),
    },
    "work": {
        "release": (
            "Which was first presented to the public later, {0} or {1}?",
            "Which was first presented to the public earlier, {0} or {1}?",
        )
    },
    "event": {
        "event_date": ("Which was held later, {0} or {1}?", "Which was held earlier, {0} or {1}?"),
        "attendance": ("Which drew more spectators, {0} or {1}?", "Which drew fewer spectators, {0} or {1}?"),
    },
}

# The relation to a city through which entities of a kind are compared by that city's population.
COMPARE_PLACES = {"person": "born_in", "organisation": "headquarters", "work": "setting", "event": "venue"}

# Whether two chains end in the same place.
SAME: dict[tuple[str, ...], tuple[str, ...]] = {
    ("born_in",): ("Were {0} and {1} born in the same city?", "Did {0} and {1} have the same birthplace?"),
    ("born_in", "country"): (
        "Were {0} and {1} born in the same country?",
        "Do the birthplaces of {0} and {1} lie in the same country?",
    ),
}

# Two conditions on one entity: how each is said, and how the entity is asked for and referred to.
CONDITION = {
    "born_in": "was born in {x}",
    "died_in": "died in {x}",
    "employer": "worked for {x}",
    "teacher": "studied under {x}",
    "creator": "was created by {x}",
    "setting": "is set in or depicts {x}",
    "commissioner": "was commissioned by {x}",
    "venue": "was held in {x}",
    "organiser": "was organised by {x}",
}
WHO = {"person": "Who", "work": "Which work", "event": "Which event"}
THE_ONE = {"person": "the person who", "work": "the work that", "event": "the event that"}

# The unit that may follow a number in an answer.
UNITS = {
    "population": ("inhabitants", "people"),
    "area": ("square kilometres", "km²"),
    "length": ("kilometres", "km"),
    "staff": ("people",),
    "attendance": ("spectators", "people"),
}
