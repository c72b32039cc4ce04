"""The sentence shapes, each a function from a `Draw` to a text; `SHAPES` names them all."""

from collections.abc import Callable

from . import facts
from .activities import Activity
from .scenes import Draw, active, fronted, passive, sentence, with_article
from .words import CROWDS, FAMILY, FRONTED_TIMES, FUTURE_TIMES, JOBS, KIDS, NAMES, PEOPLE, TIMES, Agent, predicates_for

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


# ----------------------------------------------------------------------------------------- one event


def svo_place(draw: Draw) -> str:
    event = draw.event()
    return active(event, event.place)


def svo_time(draw: Draw) -> str:
    return active(draw.event(), draw.choice(TIMES))


def fronted_time(draw: Draw) -> str:
    event = draw.event(adjective=0.3)
    return fronted(event, draw.choice(FRONTED_TIMES), event.place)


def passive_place(draw: Draw) -> str:
    event = draw.event(keep=_passive_possible)
    return passive(event, *filter(None, (draw.maybe((event.place,)),)))


def relative_object(draw: Draw) -> str:
    while True:
        del draw.combinations[:]
        event = draw.event(keep=_passive_possible, adjective=0)
        predicates = predicates_for(event.noun)
        if predicates:
            break
    return sentence(
        f"the {event.noun} that {event.agent.text} {event.activity.past} {event.object_was} {draw.choice(predicates)}"
    )


def question_yes_no(draw: Draw) -> str:
    event = draw.event(adjective=0.4)
    return sentence(f"did {event.agent.text} {event.activity.base} {event.object} {draw.choice(TIMES)}", end="?")


def question_where(draw: Draw) -> str:
    event = draw.event(keep=lambda row: row.topic not in ("travel", "road", "load", "rescue"))
    return sentence(f"where did {event.agent.text} {event.activity.base} {event.object}", end="?")


def question_who(draw: Draw) -> str:
    def make() -> tuple[str, ...]:
        event = Draw(draw.rng, lambda _: True).event(keep=_passive_possible, adjective=0)
        return ("who", event.activity.past, event.definite_object, event.place)

    who, verb, thing, place = draw.parts(make)
    return sentence(f"{who} {verb} {thing} {place}", end="?")


def plan(draw: Draw) -> str:
    event = draw.event(keep=lambda row: row.topic not in (*UNPLANNED, "food"))
    wants = "want" if event.agent.plural else "wants"
    return sentence(f"{event.agent.text} {wants} to {event.activity.base} {event.object} {draw.choice(FUTURE_TIMES)}")


def before_going(draw: Draw) -> str:
    event = draw.event(agents=PEOPLE + KIDS, keep=lambda row: row.topic in HOMELY)
    destinations = facts.KIDS_DESTINATIONS if event.agent in KIDS else facts.DESTINATIONS
    return sentence(f"before going to {draw.choice(destinations)}, {event.clause}")


def weather(draw: Draw) -> str:
    event = draw.event(keep=lambda row: any(place in facts.INDOORS for place in row.places), adjective=0.3)
    place = draw.choice([place for place in event.activity.places if place in facts.INDOORS])
    return sentence(f"it was {draw.choice(facts.WEATHER)}, so {event.clause} {place}")


def conditional(draw: Draw) -> str:
    event = draw.event(keep=lambda row: row.topic not in (*UNPLANNED, "food", "sport", "health"), adjective=0.3)
    return sentence(f"{draw.choice(facts.CONDITIONS)}, {event.agent.text} will {event.activity.base} {event.object}")


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


def giving(draw: Draw) -> str:
    return sentence(" ".join(draw.fill(facts.GIFTS, 0, 1, 2, 3)))


def because(draw: Draw) -> str:
    who, feeling, cause = draw.fill(facts.CAUSES, texts_of(GENDERED), 0, 1)
    agent = next(agent for agent in GENDERED if agent.text == who)
    cause = cause.format(they=agent.pronoun, their=THEIR[agent.pronoun])
    return sentence(f"{who} {agent.was} {feeling} because {cause}")


def request(draw: Draw) -> str:
    verb, adjective, thing, place = draw.fill(facts.REQUESTS, 0, 2, 1, 3)
    return sentence(f"please {verb} the {adjective} {thing} {place}")


def comparison(draw: Draw) -> str:
    def make() -> tuple[str, ...]:
        word, order = draw.choice(facts.COMPARISONS)
        low, high = sorted(draw.rng.sample(range(len(order)), 2))
        return (draw.choice(OWNERS).possessive, order[high], word, order[low])

    owner, more, word, less = draw.parts(make)
    return sentence(f"{owner} {more} is {word} than our {less}")


def speech(draw: Draw) -> str:
    who, subject, state, time = draw.fill(facts.NEWS, texts_of(EVERYBODY), 0, 1, 2)
    return sentence(f"{who} said that {subject} {state} {time}")


def journey(draw: Draw) -> str:
    who, destination, transport = draw.fill(facts.JOURNEYS, texts_of(EVERYBODY), 0, 1)
    company = draw.maybe(facts.COMPANIONS)
    return sentence(f"{who} traveled to {destination} by {transport} {company}".rstrip())


def animal(draw: Draw) -> str:
    return sentence("the " + " ".join(draw.fill(facts.ANIMAL_ACTS, 1, 0, 2, 3)))


def wearing(draw: Draw) -> str:
    who, color, item, occasion = draw.fill(facts.OUTFITS, texts_of(OWNERS), 1, 0, 2)
    outfit = f"{color} {item}" if item in facts.WITHOUT_ARTICLE else with_article(f"{color} {item}")
    return sentence(f"{who} wore {outfit} {occasion}")


def full_of(draw: Draw) -> str:
    place, region, crowd = draw.fill(facts.CROWDED, 0, 2, 1)
    return sentence(f"the {place} {region} was full of {crowd} {draw.choice(facts.CROWD_TIMES)}")


def too_much(draw: Draw) -> str:
    thing, much, who, verb = draw.fill(facts.TOO_MUCH, 0, 1, texts_of(EVERYBODY), 2)
    return sentence(f"the {thing} was too {much} for {who} to {verb}")


SHAPES: dict[str, Callable[[Draw], str]] = {
    shape.__name__: shape
    for shape in (
        svo_place, svo_time, fronted_time, passive_place, relative_object, question_yes_no, question_where,
        question_who, plan, before_going, weather, conditional, coordinated, meanwhile, relative_subject, possession,
        there_is, giving, because, request, comparison, speech, journey, animal, wearing, full_of, too_much,
    )
}  # fmt: skip
