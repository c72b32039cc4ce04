"""Graded sentence pairs: the gold score counts the changes to the scene, without a model.

| score | kind | what the second sentence does |
| --- | --- | --- |
| 5 | reworded | tells the same scene in another shape: active/passive, time in front, clauses exchanged |
| 4 | detail | changes the adjective or the time |
| 3 | one_element | changes one of agent, object, place |
| 2 | two_elements | changes two of them; the verb stays |
| 1 | topic | shares nothing but the topic (two scenes of the kitchen) |
| 0 | unrelated | shares neither topic nor agent, object, place |
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations, cycle, islice

from mm_ldlm.core import SourceError

from .activities import ACTIVITIES
from .generate import split_of
from .scenes import Draw, Event, active, fronted, passive, sentence
from .words import FRONTED_TIMES, TIMES, adjectives_for

_ATTEMPTS_PER_PAIR = 5_000
_MAIN_ELEMENTS = ("agent", "thing", "place")
_SEVERAL_VERBS = tuple(
    sorted({row.topic for row in ACTIVITIES if any(r.topic == row.topic and r.base != row.base for r in ACTIVITIES)})
)
Pair = tuple[str, str]


@dataclass(frozen=True)
class STSPair:
    sentence1: str
    sentence2: str
    score: float  # 0 unrelated ... 5 the same scene
    kind: str


# --------------------------------------------------------------------------- one scene, then another


def _changed(draw: Draw, event: Event, elements: tuple[str, ...]) -> Event | None:
    """``event`` with other values in ``elements``; None if that is not a held-out scene."""
    row = event.activity
    agents = [agent for agent in row.agents if ("agent" in elements) == (agent != event.agent)]
    things = [thing for thing in row.objects if ("thing" in elements) == (thing != event.thing)]
    places = [place for place in row.places if ("place" in elements) == (place != event.place)]
    if not (agents and things and places):
        return None
    other = replace(event, agent=draw.choice(agents), thing=draw.choice(things), place=draw.choice(places))
    if other.adjective not in ("", *adjectives_for(other.noun)):
        return None
    return other if draw.belongs(other.combination) else None


def _tell(draw: Draw) -> Callable[[Event], str]:
    """One manner of telling, for both sentences of a pair."""
    time = draw.choice(FRONTED_TIMES)
    return draw.choice(
        (lambda e: active(e, e.place), lambda e: passive(e, e.place), lambda e: fronted(e, time, e.place))
    )


def _scene(draw: Draw, *, adjective: float = 0.5) -> Event:
    return draw.event(keep=lambda row: not row.active_only, adjective=adjective)


# ---------------------------------------------------------------------------------------- the grades


def _reworded(draw: Draw) -> Pair | None:
    manner = draw.choice(("passive", "time", "clauses", "while"))
    event = _scene(draw)
    if manner == "passive":
        return active(event, event.place), passive(event, event.place)
    if manner == "time":
        time = draw.choice(TIMES)
        return active(event, time), fronted(event, time)
    other = _scene(draw, adjective=0)
    if other.activity.topic == event.activity.topic or other.agent == event.agent:
        return None
    if manner == "clauses":
        return sentence(f"{event.clause}, and {other.clause}"), sentence(f"{other.clause}, and {event.clause}")
    return sentence(f"while {event.clause}, {other.clause}"), sentence(f"{other.clause} while {event.clause}")


def _detail(draw: Draw) -> Pair | None:
    event = _scene(draw, adjective=1.0)
    if draw.rng.random() < 0.5:
        first, second = draw.rng.sample(TIMES, 2)
        return active(event, first), active(event, second)
    others = [word for word in adjectives_for(event.noun) if word != event.adjective]
    if not event.adjective or not others:
        return None
    tell = _tell(draw)
    return tell(event), tell(replace(event, adjective=draw.choice(others)))


def _elements_changed(number: int) -> Callable[[Draw], Pair | None]:
    choices = tuple(combinations(_MAIN_ELEMENTS, number))

    def change(draw: Draw) -> Pair | None:
        event = _scene(draw, adjective=0.3)
        other = _changed(draw, event, draw.choice(choices))
        tell = _tell(draw)
        return (tell(event), tell(other)) if other else None

    return change


def _share_nothing(first: Event, second: Event) -> bool:
    return first.agent != second.agent and first.noun != second.noun and first.place != second.place


def _topic(draw: Draw) -> Pair | None:
    topic = draw.choice(_SEVERAL_VERBS)
    first, second = (draw.event(keep=lambda row: row.topic == topic, adjective=0.3) for _ in range(2))
    if first.activity.base == second.activity.base or not _share_nothing(first, second):
        return None
    return active(first, first.place), active(second, second.place)


def _unrelated(draw: Draw) -> Pair | None:
    first, second = _scene(draw), _scene(draw)
    if first.activity.topic == second.activity.topic or not _share_nothing(first, second):
        return None
    return active(first, first.place), fronted(second, draw.choice(FRONTED_TIMES), second.place)


GRADES: tuple[tuple[float, str, Callable[[Draw], Pair | None]], ...] = (
    (5.0, "reworded", _reworded),
    (4.0, "detail", _detail),
    (3.0, "one_element", _elements_changed(1)),
    (2.0, "two_elements", _elements_changed(2)),
    (1.0, "topic", _topic),
    (0.0, "unrelated", _unrelated),
)


@cache  # the check of the parameters and the suite read the same set
def generate_starter_sts(*, seed: int, num_pairs: int = 480) -> tuple[STSPair, ...]:
    """Pairs in turn from the six grades, deterministic, no pair twice.

    Every scene belongs to the test combinations of ``generate_starter_corpus(seed=seed)``: give both the same seed.
    """
    rng = random.Random(seed)
    pairs: list[STSPair] = []
    seen: set[frozenset[str]] = set()
    for score, kind, make in islice(cycle(GRADES), num_pairs):
        for _ in range(_ATTEMPTS_PER_PAIR):
            pair = make(Draw(rng, lambda combination: split_of(combination, seed=seed) == "test"))
            if pair and pair[0] != pair[1] and frozenset(pair) not in seen:
                break
        else:
            raise SourceError(
                f"no more {kind!r} pairs: {num_pairs} were asked for, {len(pairs)} are made; ask for fewer"
            )
        seen.add(frozenset(pair))
        pairs.append(STSPair(*pair, score, kind))
    return tuple(pairs)
