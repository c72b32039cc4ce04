"""The sentence shapes, each a function from a `Draw` to a text; `SHAPES` names them all."""

from collections.abc import Callable, Sequence

from . import facts
from .activities import Activity
from .scenes import Draw, passive, sentence, with_article
from .words import CROWDS, FAMILY, FRONTED_TIMES, FUTURE_TIMES, JOBS, KIDS, NAMES, PEOPLE, TIMES, Agent, predicates_for

Shape = Callable[[Draw], str]
OWNERS = NAMES + FAMILY + JOBS
EVERYBODY = PEOPLE + KIDS + CROWDS + JOBS
GENDERED = PEOPLE + KIDS + CROWDS
THEIR = {"she": "her", "he": "his", "they": "their"}
HOMELY = ("kitchen", "cleaning", "garden", "reading", "music", "clothes", "animals", "food", "film")
UNPLANNED = ("losing", "rescue")


def texts_of(agents: tuple[Agent, ...]) -> tuple[str, ...]:
    return tuple(agent.text for agent in agents)


def _passive_possible(row: Activity) -> bool:
    return not row.active_only


def told(
    template: str, options: Sequence[str] = ("",), *, end: str = ".", without: tuple[str, ...] = (),
    adjective: float = 0.6,
) -> Shape:  # fmt: skip
    """Make the shape that describes an event ({0} of the template), with one of the options for {1}."""

    def shape(draw: Draw) -> str:
        event = draw.event(keep=lambda row: row.topic not in without, adjective=adjective)
        option = draw.choice(options) if "{1}" in template else ""
        return sentence(template.format(event, option), end=end)

    return shape


def filled(template: str, table: Sequence[Sequence[Sequence[str]]], *slots: int | Sequence[str]) -> Shape:
    """Make the shape that fills the places of the template from a row of a table."""

    def shape(draw: Draw) -> str:
        return sentence(template.format(*draw.fill(table, *slots)))

    return shape


# ----------------------------------------------------------------------------------------- one event


def passive_place(draw: Draw) -> str:
    event = draw.event(keep=_passive_possible)
    return passive(event, *filter(None, (draw.maybe((event.place,)),)))


def relative_object(draw: Draw) -> str:
    event = draw.event(keep=_passive_possible, adjective=0)
    while not (predicates := predicates_for(event.noun)):
        draw.combinations.clear()
        event = draw.event(keep=_passive_possible, adjective=0)
    return sentence(
        f"the {event.noun} that {event.agent.text} {event.activity.past} {event.object_was} {draw.choice(predicates)}"
    )


def question_who(draw: Draw) -> str:
    def make() -> tuple[str, ...]:
        event = Draw(draw.rng, lambda _: True).event(keep=_passive_possible, adjective=0)
        return ("who", event.activity.past, event.definite_object, event.place)

    who, verb, thing, place = draw.parts(make)
    return sentence(f"{who} {verb} {thing} {place}", end="?")


def before_going(draw: Draw) -> str:
    event = draw.event(agents=PEOPLE + KIDS, keep=lambda row: row.topic in HOMELY)
    destinations = facts.KIDS_DESTINATIONS if event.agent in KIDS else facts.DESTINATIONS
    return sentence(f"before going to {draw.choice(destinations)}, {event.clause}")


def weather(draw: Draw) -> str:
    event = draw.event(keep=lambda row: any(place in facts.INDOORS for place in row.places), adjective=0.3)
    place = draw.choice([place for place in event.activity.places if place in facts.INDOORS])
    return sentence(f"it was {draw.choice(facts.WEATHER)}, so {event.clause} {place}")


# ---------------------------------------------------------------------------------------- two events


def coordinated(draw: Draw) -> str:
    first = draw.event(agents=JOBS, adjective=0)
    second = draw.event(agents=PEOPLE + KIDS, keep=lambda row: row.topic != first.activity.topic, adjective=0)
    return sentence(f"{first.clause}, and {second.clause}")


def meanwhile(draw: Draw) -> str:
    first = draw.event(agents=JOBS, adjective=0, keep=lambda row: row.topic not in ("losing", "rescue"))
    second = draw.event(agents=PEOPLE + KIDS, keep=lambda row: row.topic in HOMELY, adjective=0)
    return sentence(f"while {first.clause}, {second.clause}")


# --------------------------------------------------------------------------------------- other facts


def relative_subject(draw: Draw) -> str:
    who, home, habit = draw.parts(lambda: (draw.choice(JOBS).text, draw.choice(facts.HOMES), draw.choice(facts.HABITS)))
    return sentence(f"{who} who lives {home} {habit}")


def possession(draw: Draw) -> str:
    things, colors, qualities = draw.choice(facts.POSSESSIONS)
    owner, thing, color = draw.parts(lambda: (draw.choice(OWNERS).possessive, draw.choice(things), draw.choice(colors)))
    return sentence(f"{owner} {thing} is {color} and {draw.choice(qualities)}")


def there_is(draw: Draw) -> str:
    adjective, thing, place = draw.fill(facts.PRESENCES, 1, 0, 2)
    return sentence(f"there is {with_article(f'{adjective} {thing}')} {place}")


def because(draw: Draw) -> str:
    who, feeling, cause = draw.fill(facts.CAUSES, texts_of(GENDERED), 0, 1)
    agent = next(agent for agent in GENDERED if agent.text == who)
    cause = cause.format(they=agent.pronoun, their=THEIR[agent.pronoun])
    return sentence(f"{who} {agent.was} {feeling} because {cause}")


def comparison(draw: Draw) -> str:
    def make() -> tuple[str, ...]:
        word, order = draw.choice(facts.COMPARISONS)
        low, high = sorted(draw.rng.sample(range(len(order)), 2))
        return (draw.choice(OWNERS).possessive, order[high], word, order[low])

    owner, more, word, less = draw.parts(make)
    return sentence(f"{owner} {more} is {word} than our {less}")


def journey(draw: Draw) -> str:
    who, destination, transport = draw.fill(facts.JOURNEYS, texts_of(EVERYBODY), 0, 1)
    company = draw.maybe(facts.COMPANIONS)
    return sentence(f"{who} traveled to {destination} by {transport} {company}".rstrip())


def wearing(draw: Draw) -> str:
    who, color, item, occasion = draw.fill(facts.OUTFITS, texts_of(OWNERS), 1, 0, 2)
    outfit = f"{color} {item}" if item in facts.WITHOUT_ARTICLE else with_article(f"{color} {item}")
    return sentence(f"{who} wore {outfit} {occasion}")


def full_of(draw: Draw) -> str:
    place, region, crowd = draw.fill(facts.CROWDED, 0, 2, 1)
    return sentence(f"the {place} {region} was full of {crowd} {draw.choice(facts.CROWD_TIMES)}")


SHAPES: dict[str, Shape] = {
    "svo_place": told("{0.clause} {0.place}"),
    "svo_time": told("{0.clause} {1}", TIMES),
    "fronted_time": told("{1}, {0.clause} {0.place}", FRONTED_TIMES, adjective=0.3),
    "passive_place": passive_place,
    "relative_object": relative_object,
    "question_yes_no": told("did {0.agent.text} {0.activity.base} {0.object} {1}", TIMES, end="?", adjective=0.4),
    "question_where": told(
        "where did {0.agent.text} {0.activity.base} {0.object}", end="?", without=("travel", "road", "load", "rescue")
    ),
    "question_who": question_who,
    "plan": told(
        "{0.agent.text} {0.agent.want} to {0.activity.base} {0.object} {1}", FUTURE_TIMES, without=(*UNPLANNED, "food")
    ),
    "before_going": before_going,
    "weather": weather,
    "conditional": told(
        "{1}, {0.agent.text} will {0.activity.base} {0.object}", facts.CONDITIONS, adjective=0.3,
        without=(*UNPLANNED, "food", "sport", "health"),
    ),
    "coordinated": coordinated,
    "meanwhile": meanwhile,
    "relative_subject": relative_subject,
    "possession": possession,
    "there_is": there_is,
    "giving": filled("{0} {1} {2} {3}", facts.GIFTS, 0, 1, 2, 3),
    "because": because,
    "request": filled("please {0} the {1} {2} {3}", facts.REQUESTS, 0, 2, 1, 3),
    "comparison": comparison,
    "speech": filled("{0} said that {1} {2} {3}", facts.NEWS, texts_of(EVERYBODY), 0, 1, 2),
    "journey": journey,
    "animal": filled("the {0} {1} {2} {3}", facts.ANIMAL_ACTS, 1, 0, 2, 3),
    "wearing": wearing,
    "full_of": full_of,
    "too_much": filled("the {0} was too {1} for {2} to {3}", facts.TOO_MUCH, 0, 1, texts_of(EVERYBODY), 2),
}  # fmt: skip
