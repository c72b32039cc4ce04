"""Scenes and how they are told: an `Event`, its renderings, and the `Draw` that fills the shapes of `shapes.py`.

A *combination* names the content that makes a sentence what it is (agent | verb | object, and the like; modifiers are
left out). A `Draw` hands out only combinations of its own split, so a held-out sentence is a new combination of known
words.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from mm_ldlm.core import SourceError

from .activities import ACTIVITIES, Activity
from .words import Agent, adjectives_for

T = TypeVar("T")

# ------------------------------------------------------------------------------------- small grammar


def with_article(phrase: str) -> str:
    """``phrase`` behind "a" or "an". The lexicon has no word whose first letter and first sound disagree ("hour")."""
    return f"an {phrase}" if phrase[0] in "aeiou" else f"a {phrase}"


def sentence(text: str, *, end: str = ".") -> str:
    return text[0].upper() + text[1:] + end


def add_adjective(noun_phrase: str, adjective: str) -> str:
    """ "an apple", "ripe" -> "a ripe apple"; an empty adjective changes nothing."""
    if not adjective:
        return noun_phrase
    article, noun = noun_phrase.split(" ", 1)
    return with_article(f"{adjective} {noun}") if article in ("a", "an") else f"{article} {adjective} {noun}"


# -------------------------------------------------------------------------------------------- events


@dataclass(frozen=True)
class Event:
    """Somebody does something to something, somewhere. ``thing`` has its article ("some bread") if it takes one."""

    agent: Agent
    activity: Activity
    thing: str
    place: str
    adjective: str = ""

    @property
    def noun(self) -> str:
        head, _, rest = self.thing.partition(" ")
        return rest if head in ("a", "an", "some", "the") else self.thing

    @property
    def combination(self) -> str:
        return f"{self.agent.text}|{self.activity.base}|{self.noun}"

    @property
    def object(self) -> str:
        return add_adjective(self.thing, self.adjective)

    @property
    def definite_object(self) -> str:
        return " ".join(filter(None, ("the", self.adjective, self.noun)))

    @property
    def object_was(self) -> str:
        plural = self.thing.startswith(("some ", "the ")) and self.noun.endswith("s")
        return "were" if plural else "was"

    @property
    def clause(self) -> str:
        return f"{self.agent.text} {self.activity.past} {self.object}"


def active(event: Event, *rest: str) -> str:
    return sentence(" ".join((event.clause, *rest)))


def fronted(event: Event, time: str, *rest: str) -> str:
    return sentence(f"{time}, " + " ".join((event.clause, *rest)))


def passive(event: Event, *rest: str) -> str:
    verb = f"{event.object_was} {event.activity.participle} by {event.agent.text}"
    return sentence(" ".join((event.definite_object, verb, *rest)))


# --------------------------------------------------------------------------------------- the drawing


class Draw:
    """Draws fillers whose combinations belong to one split; remembers them for the sentence under construction."""

    def __init__(self, rng: random.Random, belongs: Callable[[str], bool]) -> None:
        self.rng = rng
        self.belongs = belongs
        self.combinations: list[str] = []

    def choice(self, options: Sequence[T]) -> T:
        return options[int(self.rng.random() * len(options))]

    def maybe(self, options: Sequence[str], *, fraction: float = 0.6) -> str:
        return self.choice(options) if options and self.rng.random() < fraction else ""

    def until(self, make: Callable[[], T], combination: Callable[[T], str]) -> T:
        for _ in range(20_000):
            made = make()
            name = combination(made)
            if self.belongs(name):
                self.combinations.append(name)
                return made
        raise SourceError(
            f"no combination of this split in 20,000 draws (the last one was {name!r}); give the shape more fillers"
        )

    def event(
        self, *, agents: Sequence[Agent] = (), keep: Callable[[Activity], bool] = lambda _: True, adjective: float = 0.6
    ) -> Event:
        options = [row for row in ACTIVITIES if keep(row)]

        def make() -> Event:
            while True:
                row = self.choice(options)
                doers = [agent for agent in row.agents if agent in agents] if agents else row.agents
                if doers:
                    return Event(self.choice(doers), row, self.choice(row.objects), self.choice(row.places))

        bare = self.until(make, lambda event: event.combination)
        chosen = self.maybe(adjectives_for(bare.noun), fraction=adjective)
        return Event(bare.agent, bare.activity, bare.thing, bare.place, chosen)

    def parts(self, make: Callable[[], tuple[str, ...]]) -> tuple[str, ...]:
        return self.until(make, "|".join)

    def fill(self, table: Sequence[Sequence[Sequence[str]]], *slots: int | Sequence[str]) -> tuple[str, ...]:
        """Draw a row of a table, then one option for each slot: of a field of the row, by its number, or of a list."""

        def make() -> tuple[str, ...]:
            row = self.choice(table)
            return tuple(self.choice(row[slot] if isinstance(slot, int) else slot) for slot in slots)

        return self.parts(make)
