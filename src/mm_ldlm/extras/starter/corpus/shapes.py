"""The sentence shapes, each a function from a `Draw` to a text; `SHAPES` names them all."""

from collections.abc import Callable

from . import facts
from .activities import Activity
from .scenes import Draw, active, fronted, passive, sentence, with_article
from .words import CROWDS, FAMILY, FRONTED_TIMES, FUTURE_TIMES, JOBS, KIDS, NAMES, PEOPLE, TIMES, predicates_for

OWNERS = NAMES + FAMILY + JOBS
EVERYBODY = PEOPLE + KIDS + CROWDS + JOBS
GENDERED = PEOPLE + KIDS + CROWDS
THEIR = {"she": "her", "he": "his", "they": "their"}
HOMELY = ("kitchen", "cleaning", "garden", "reading", "music", "clothes", "animals", "food", "film")
UNPLANNED = ("losing", "rescue")


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
    def make() -> tuple[str, ...]:
        things, adjectives, places = draw.choice(facts.PRESENCES)
        return (draw.choice(adjectives), draw.choice(things), draw.choice(places))

    adjective, thing, place = draw.parts(make)
    return sentence(f"there is {with_article(f'{adjective} {thing}')} {place}")


def giving(draw: Draw) -> str:
    def make() -> tuple[str, ...]:
        givers, verbs, receivers, gifts = draw.choice(facts.GIFTS)
        return (draw.choice(givers), draw.choice(verbs), draw.choice(receivers), draw.choice(gifts))

    return sentence(" ".join(draw.parts(make)))


def because(draw: Draw) -> str:
    def make() -> tuple[str, ...]:
        feelings, causes = draw.choice(facts.CAUSES)
        return (draw.choice(GENDERED).text, draw.choice(feelings), draw.choice(causes))

    who, feeling, cause = draw.parts(make)
    agent = next(agent for agent in GENDERED if agent.text == who)
    cause = cause.format(they=agent.pronoun, their=THEIR[agent.pronoun])
    return sentence(f"{who} {agent.was} {feeling} because {cause}")


def request(draw: Draw) -> str:
    def make() -> tuple[str, ...]:
        verbs, things, adjectives, places = draw.choice(facts.REQUESTS)
        return (draw.choice(verbs), draw.choice(adjectives), draw.choice(things), draw.choice(places))

    verb, adjective, thing, place = draw.parts(make)
    return sentence(f"please {verb} the {adjective} {thing} {place}")


def comparison(draw: Draw) -> str:
    def make() -> tuple[str, ...]:
        word, order = draw.choice(facts.COMPARISONS)
        low, high = sorted(draw.rng.sample(range(len(order)), 2))
        return (draw.choice(OWNERS).possessive, order[high], word, order[low])

    owner, more, word, less = draw.parts(make)
    return sentence(f"{owner} {more} is {word} than our {less}")


def speech(draw: Draw) -> str:
    def make() -> tuple[str, ...]:
        subjects, states, times = draw.choice(facts.NEWS)
        return (draw.choice(EVERYBODY).text, draw.choice(subjects), draw.choice(states), draw.choice(times))

    who, subject, state, time = draw.parts(make)
    return sentence(f"{who} said that {subject} {state} {time}")


def journey(draw: Draw) -> str:
    def make() -> tuple[str, ...]:
        destinations, transports = draw.choice(facts.JOURNEYS)
        return (draw.choice(EVERYBODY).text, draw.choice(destinations), draw.choice(transports))

    who, destination, transport = draw.parts(make)
    company = draw.maybe(facts.COMPANIONS)
    return sentence(f"{who} traveled to {destination} by {transport} {company}".rstrip())


def animal(draw: Draw) -> str:
    def make() -> tuple[str, ...]:
        animals, adjectives, acts, places = draw.choice(facts.ANIMAL_ACTS)
        return (draw.choice(adjectives), draw.choice(animals), draw.choice(acts), draw.choice(places))

    return sentence("the " + " ".join(draw.parts(make)))


def wearing(draw: Draw) -> str:
    def make() -> tuple[str, ...]:
        items, colors, occasions = draw.choice(facts.OUTFITS)
        return (draw.choice(OWNERS).text, draw.choice(colors), draw.choice(items), draw.choice(occasions))

    who, color, item, occasion = draw.parts(make)
    outfit = f"{color} {item}" if item in facts.WITHOUT_ARTICLE else with_article(f"{color} {item}")
    return sentence(f"{who} wore {outfit} {occasion}")


def full_of(draw: Draw) -> str:
    def make() -> tuple[str, ...]:
        places, crowds, regions = draw.choice(facts.CROWDED)
        return (draw.choice(places), draw.choice(regions), draw.choice(crowds))

    place, region, crowd = draw.parts(make)
    return sentence(f"the {place} {region} was full of {crowd} {draw.choice(facts.CROWD_TIMES)}")


def too_much(draw: Draw) -> str:
    def make() -> tuple[str, ...]:
        things, much, verbs = draw.choice(facts.TOO_MUCH)
        return (draw.choice(things), draw.choice(much), draw.choice(EVERYBODY).text, draw.choice(verbs))

    thing, much, who, verb = draw.parts(make)
    return sentence(f"the {thing} was too {much} for {who} to {verb}")


SHAPES: dict[str, Callable[[Draw], str]] = {
    shape.__name__: shape
    for shape in (
        svo_place, svo_time, fronted_time, passive_place, relative_object, question_yes_no, question_where,
        question_who, plan, before_going, weather, conditional, coordinated, meanwhile, relative_subject, possession,
        there_is, giving, because, request, comparison, speech, journey, animal, wearing, full_of, too_much,
    )
}  # fmt: skip
