"""The sentences that plain articles are written in. Data only; `articles.py` chooses and fills them."""

from __future__ import annotations

# Relations that one sentence states together, and its wordings. Words in braces are relations of the subject or the
# words that `articles.py` adds (pronouns, the trade with its article, ...).
Block = tuple[tuple[str, ...], tuple[str, ...]]

# What each kind's articles are made of. The first block opens the article, the others follow in any order. A block is
# left out where one of its relations does not hold.
BLOCKS: dict[str, tuple[Block, ...]] = {
    "person": (
        (
            ("born_in", "birth_date"),
            (
                "{self} was {a_trade} who was born in {born_in} on {birth_date}.",
                "Born in {born_in} on {birth_date}, {self} became {a_trade}.",
                "{self}, {a_trade}, was born on {birth_date} in {born_in}.",
                "On {birth_date}, {self} was born in {born_in}, where {he} trained as {a_trade}.",
            ),
        ),
        (
            ("died_in", "death_date"),
            (
                "{self} died in {died_in} on {death_date}.",
                "{self} spent {his} last years in {died_in} and died there on {death_date}.",
                "On {death_date}, {self} died at home in {died_in}.",
            ),
        ),
        (
            ("father", "mother"),
            (
                "{self} had {father} as {his} father and {mother} as {his} mother.",
                "The father of {self} was {father}, and {his} mother was {mother}.",
                "{self} was the {child} of {father}, {his} father, and {mother}, {his} mother.",
            ),
        ),
        (
            ("spouse",),
            (
                "{self} was married to {spouse}.",
                "{self} married {spouse} after a long engagement.",
                "{spouse} was the {other_spouse} of {self}.",
            ),
        ),
        (
            ("teacher",),
            (
                "{self} studied under {teacher}.",
                "{teacher} was the teacher of {self}.",
                "As a young {man}, {self} was taught by {teacher}.",
            ),
        ),
        (
            ("employer",),
            (
                "{self} worked for {employer}.",
                "For most of {his} career, {self} was employed by {employer}.",
                "{self} spent eleven years in the service of {employer}, {his} only employer.",
            ),
        ),
        (
            ("founded",),
            (
                "{self} founded {founded}.",
                "{founded} was founded by {self}.",
                "{self} is remembered as the founder of {founded}.",
            ),
        ),
        (
            ("mayor_of",),
            (
                "{self} was the first mayor of {mayor_of}.",
                "{mayor_of} elected {self} as its first mayor.",
            ),
        ),
        (
            ("president_of",),
            (
                "{self} was the first president of {president_of}.",
                "{president_of} chose {self} as its first president.",
            ),
        ),
        (
            ("won",),
            (
                "{self} won {won}.",
                "{self} was the winner of {won}.",
                "To general surprise, {self} won {won}.",
            ),
        ),
        (
            ("known_for",),
            (
                "{self} is best known for the {known_noun} {known_for}.",
                "The best-known work of {self} is the {known_noun} {known_for}.",
            ),
        ),
    ),
    "city": (
        (
            ("country", "river"),
            (
                "{self} is a city in {country}, on the banks of {river}.",
                "{self} is a city on {river} in {country}.",
                "Built along {river}, {self} is a city in {country}.",
            ),
        ),
        (
            ("mayor",),
            (
                "The first mayor of {self} was {mayor}.",
                "{mayor} was the first mayor of {self}.",
                "The citizens of {self} elected {mayor} as their first mayor.",
            ),
        ),
        (
            ("population",),
            (
                "{self} has {population} inhabitants.",
                "At the last census, {self} counted {population} inhabitants.",
                "The population of {self} stands at {population} people.",
            ),
        ),
        (
            ("founding_year",),
            (
                "{self} was founded in {founding_year}.",
                "The oldest charter of {self} dates its founding to {founding_year}.",
                "{self} traces its founding to the year {founding_year}.",
            ),
        ),
    ),
    "country": (
        (
            ("capital",),
            (
                "{self} is a country whose capital is {capital}.",
                "{self} is a country governed from {capital}, its capital.",
                "The country of {self} has {capital} as its capital.",
            ),
        ),
        (
            ("president",),
            (
                "The first president of {self} was {president}.",
                "{president} was the first president of {self}.",
            ),
        ),
        (
            ("independence",),
            (
                "{self} became independent on {independence}.",
                "On {independence}, {self} declared its independence.",
            ),
        ),
        (
            ("currency",),
            (
                "The currency of {self} is the {currency}.",
                "In {self}, goods are paid for in the national currency, the {currency}.",
            ),
        ),
        (
            ("area",),
            (
                "{self} covers an area of {area} square kilometres.",
                "The area of {self} is {area} square kilometres.",
            ),
        ),
    ),
    "river": (
        (
            ("length",),
            (
                "{self} is a river {length} kilometres long.",
                "With a length of {length} kilometres, {self} is a river of some renown.",
                "{self} is a river that runs for {length} kilometres.",
            ),
        ),
        (
            ("source",),
            (
                "{self} rises in {source}.",
                "The springs of {self} lie in {source}, where it rises.",
            ),
        ),
        (
            ("joins",),
            (
                "{self} flows into {joins}.",
                "After its last rapids, {self} flows into {joins}.",
            ),
        ),
        (
            ("surveyor",),
            (
                "{self} was first surveyed by {surveyor}.",
                "{surveyor} was the first to survey {self}.",
            ),
        ),
    ),
    "organisation": (
        (
            ("founder", "founding_date"),
            (
                "{self} was founded by {founder} on {founding_date}.",
                "Founded on {founding_date}, {self} owes its existence to {founder}, its founder.",
                "On {founding_date}, {founder} founded {self}.",
            ),
        ),
        (
            ("headquarters",),
            (
                "{self} has its headquarters in {headquarters}.",
                "The headquarters of {self} stand in {headquarters}.",
                "{self} is run from its headquarters in {headquarters}.",
            ),
        ),
        (
            ("director",),
            (
                "The first director of {self} was {director}.",
                "{director} was the first director of {self}.",
                "{self} appointed {director} as its first director.",
            ),
        ),
        (
            ("staff",),
            (
                "{self} employs {staff} people.",
                "{self} has {staff} people on its payroll.",
            ),
        ),
    ),
    "work": (
        (
            ("creator",),
            (
                "{self} is {a_noun} {made} by {creator}.",
                "{self}, {a_noun}, was {made} by {creator}.",
                "The {noun} {self} was {made} by {creator}.",
            ),
        ),
        (
            ("release",),
            (
                "{self} was first {shown} on {release}.",
                "On {release}, {self} was first {shown}.",
            ),
        ),
        (
            ("setting",),
            (
                "{self} {depicts} the city of {setting}.",
                "{self} {depicts} {setting} in a year of drought.",
            ),
        ),
        (
            ("commissioner",),
            (
                "{self} was commissioned by {commissioner}.",
                "{commissioner} commissioned {self}.",
            ),
        ),
        (
            ("dedicatee",),
            (
                "{self} is dedicated to {dedicatee}.",
                "{self} bears a dedication to {dedicatee}.",
            ),
        ),
        (
            ("extent",),
            (
                "{self} {lasts}.",
                "In its first version, {self} {lasts}.",
            ),
        ),
    ),
    "event": (
        (
            ("venue", "event_date"),
            (
                "{self} was held in {venue} on {event_date}.",
                "On {event_date}, {self} was held in {venue}.",
                "{self} took place in {venue} on {event_date}.",
            ),
        ),
        (
            ("winner",),
            (
                "{winner} won {self}.",
                "{self} was won by {winner}.",
                "The winner of {self} was {winner}.",
            ),
        ),
        (
            ("organiser",),
            (
                "{self} was organised by {organiser}.",
                "{organiser} organised {self}.",
            ),
        ),
        (
            ("attendance",),
            (
                "{self} drew {attendance} spectators.",
                "In all, {attendance} spectators came to {self}.",
            ),
        ),
    ),
}

# Blocks that may take the place of two of the above.
MERGED: dict[str, tuple[Block, ...]] = {
    "person": (
        (
            ("teacher", "employer"),
            (
                "{self} studied under {teacher} and later worked for {employer}.",
                "Having studied under {teacher}, {self} worked for {employer} until {his} hair was white.",
            ),
        ),
        (
            ("spouse", "died_in", "death_date"),
            (
                "{self}, who was married to {spouse}, died in {died_in} on {death_date}.",
                "{self} married {spouse} and died in {died_in} on {death_date}.",
            ),
        ),
        (
            ("employer", "known_for"),
            (
                "While working for {employer}, {self} finished the {known_noun} {known_for}, {his} best-known work.",
                "{self} worked for {employer} and is best known for the {known_noun} {known_for}.",
            ),
        ),
        (
            ("teacher", "spouse"),
            (
                "{self} studied under {teacher} and married {spouse} soon after.",
                "A pupil of {teacher}, who taught {him} at home, {self} was married to {spouse}.",
            ),
        ),
        (
            ("employer", "died_in", "death_date"),
            ("{self} worked for {employer} and died in {died_in} on {death_date}.",),
        ),
    ),
    "city": (
        (
            ("mayor", "population"),
            ("{self}, whose first mayor was {mayor}, has {population} inhabitants.",),
        ),
        (
            ("founding_year", "population"),
            (
                "Founded in {founding_year}, {self} now has {population} inhabitants.",
                "{self} was founded in {founding_year} and has grown to {population} inhabitants.",
            ),
        ),
        (
            ("founding_year", "mayor"),
            ("{self} was founded in {founding_year}, long before {mayor} became its first mayor.",),
        ),
    ),
    "country": (
        (
            ("independence", "president"),
            (
                "{self} became independent on {independence}, and {president} was its first president.",
                "When {self} became independent on {independence}, {president} was its first president.",
            ),
        ),
        (
            ("area", "currency"),
            ("{self} covers an area of {area} square kilometres and has a currency of its own, the {currency}.",),
        ),
    ),
    "river": (
        (
            ("source", "joins"),
            (
                "{self} rises in {source} and flows into {joins}.",
                "Rising in {source}, {self} flows into {joins}.",
            ),
        ),
    ),
    "organisation": (
        (
            ("headquarters", "staff"),
            ("{self} employs {staff} people and has its headquarters in {headquarters}.",),
        ),
        (
            ("director", "headquarters"),
            ("{self}, whose first director was {director}, has its headquarters in {headquarters}.",),
        ),
    ),
    "work": (
        (
            ("release", "extent"),
            ("{self}, which was first {shown} on {release}, {lasts}.",),
        ),
        (
            ("commissioner", "dedicatee"),
            ("{self} was commissioned by {commissioner} and is dedicated to {dedicatee}.",),
        ),
        (
            ("setting", "release"),
            ("{self}, which {depicts} the city of {setting}, was first {shown} on {release}.",),
        ),
    ),
    "event": (
        (
            ("organiser", "attendance"),
            (
                "{self} was organised by {organiser} and drew {attendance} spectators.",
                "Organised by {organiser}, {self} drew {attendance} spectators.",
            ),
        ),
        (
            ("winner", "attendance"),
            ("Before {attendance} spectators, {winner} won {self}.",),
        ),
    ),
}

# Sentences that no question asks about. Their pronouns stand for the article's subject.
COLOUR: dict[str, tuple[str, ...]] = {
    "person": (
        "{He} kept bees and wrote long letters about them.",
        "{He} spoke four languages and sang badly in all of them.",
        "In winter {he} taught neighbours to read.",
        "{He} disliked travelling by sea.",
        "{His} notebooks were found in an attic many years later.",
        "{He} was known for {his} patience and {his} enormous hats.",
        "Friends remembered {him} as a quiet talker and a loud whistler.",
        "{He} never learnt to ride a horse.",
        "A bronze bust of {him} was melted down in a hard year.",
        "{He} collected maps of places that do not exist.",
        "{He} lost most of {his} savings in a failed canal.",
        "{He} walked to work every day of {his} life.",
        "{His} handwriting was so small that few could read it.",
        "{He} grew prize pears behind the house.",
    ),
    "city": (
        "Its covered market is famous for cheese and rope.",
        "Fog hangs over its roofs for much of the autumn.",
        "Two fires and one flood have shaped its narrow streets.",
        "It is known for blue tiles and very strong tea.",
        "Its trams were painted yellow by popular vote.",
        "The old walls now carry a public footpath.",
        "Its bakers mix rye with chestnut flour.",
        "A clock without hands hangs above its main square.",
    ),
    "country": (
        "Its hills are grazed by long-haired sheep.",
        "It exports copper, honey and dried fish.",
        "Its coast is low and full of herons.",
        "Most of its villages keep a common oven.",
        "Its flag shows three reeds on a white field.",
        "Snow closes its mountain passes until late spring.",
    ),
    "river": (
        "Its water is brown in spring and green in summer.",
        "Flat-bottomed barges once carried salt along it.",
        "Otters returned to its upper reaches after the mills closed.",
        "It freezes only in the hardest winters.",
        "Pilgrims used to wash their boots in it.",
        "Its floods are announced by bells.",
    ),
    "organisation": (
        "Its archive survived two moves and a leaking roof.",
        "It is proud of a staircase that leads nowhere.",
        "Its motto is printed on every spoon in the canteen.",
        "It closed its doors for one year and then reopened them.",
        "Its first building was a converted barn.",
        "It publishes a yearly report that few people finish.",
    ),
    "work": (
        "Critics praised its last part and ignored the rest.",
        "An early draft was left on a train.",
        "It was forgotten for decades before it was rediscovered.",
        "Its opening became a popular proverb.",
        "It was made in a single rainy summer.",
        "Schoolchildren know it in a shortened form.",
    ),
    "event": (
        "Heavy rain delayed the start by three hours.",
        "It was the first of its kind to be lit by electric lamps.",
        "The prize was a silver kettle.",
        "A brass band played until the last visitor had left.",
        "It is still remembered for a disputed finish.",
        "Nobody had expected so many people to come.",
    ),
}

# How a work of each medium meets its public.
SHOWN = {"novel": "published", "opera": "performed", "painting": "exhibited", "play": "performed", "film": "screened"}
