"""The lexicon: who there is, what things are like, when and where things happen.

Two rules keep a sentence recoverable from an embedding: no two entries of a slot mean the same (``huge`` but not
``big``), and no entry is told apart from its neighbours by spelling alone (a dozen names, no digits).
"""

from dataclasses import dataclass

# -------------------------------------------------------------------------------------------- agents


# Each agent is one object, compared by identity: membership is asked a million times.
@dataclass(frozen=True, eq=False)
class Agent:
    """Somebody who acts: ``text`` is the noun phrase inside a sentence, ``pronoun`` empty where the gender is open."""

    text: str
    pronoun: str = ""
    plural: bool = False

    @property
    def was(self) -> str:
        return "were" if self.plural else "was"

    @property
    def want(self) -> str:
        return "want" if self.plural else "wants"

    @property
    def noun(self) -> str:
        return self.text.split(" ", 1)[1] if " " in self.text else self.text

    @property
    def possessive(self) -> str:
        return f"{self.text}'s"


def _agents(texts: str, *, pronoun: str = "", plural: bool = False, prefix: str = "") -> tuple[Agent, ...]:
    return tuple(Agent(prefix + text, pronoun, plural) for text in texts.split(", "))


NAMES = _agents("Anna, Clara, Emma, Grace, Maria, Rosa", pronoun="she") + _agents(
    "Ahmed, David, Felix, Oscar, Peter, Tom", pronoun="he"
)
FAMILY = _agents("mother, sister, grandmother, aunt", pronoun="she", prefix="my ") + _agents(
    "father, brother, grandfather, uncle", pronoun="he", prefix="my "
)
KIDS = (Agent("the girl", "she"), Agent("the boy", "he"), Agent("the children", "they", plural=True))
PEOPLE = NAMES + FAMILY
CROWDS = _agents("tourists, students, soldiers, sailors", pronoun="they", plural=True, prefix="the ")
JOBS = _agents(
    "actor, artist, baker, carpenter, chef, dancer, dentist, doctor, farmer, firefighter, fisherman, gardener, guide, "
    "journalist, mechanic, musician, nurse, pilot, plumber, scientist, singer, tailor, teacher, vet, waiter",
    prefix="the ",
)
THIEF = Agent("the thief")

AGENT_GROUPS: dict[str, tuple[Agent, ...]] = {
    "names": NAMES,
    "people": PEOPLE,
    "kids": KIDS,
    **{agent.noun: (agent,) for agent in (*CROWDS, *JOBS, *KIDS, *FAMILY, THIEF)},
}


def agents_of(groups: str) -> tuple[Agent, ...]:
    """The agents of a blank-separated list of groups, each agent once, in the order of the list."""
    return tuple(dict.fromkeys(agent for group in groups.split() for agent in AGENT_GROUPS[group]))


# --------------------------------------------------------------------- things and what they are like

COLORS = "red, blue, green, yellow, black, white"

# nouns : adjectives that may stand before any of them : adjectives for "the ... was ..."; either list may be empty
_LIKENESSES = f"""
soup, pasta, rice : hot, spicy : delicious, cold, spicy
cake, pizza, cookies, apple pie : huge, delicious : delicious, sweet
bread : fresh : fresh
apple, apples, cherries, pears, strawberries : ripe, sweet : sweet, rotten
orange, salad, chocolate, chicken : : delicious, expensive
fish, eggs, cheese, mushrooms : fresh, cheap : fresh, expensive, delicious, rotten
tomatoes, potatoes : : fresh, cheap, rotten
coffee, tea, milk : hot, cold : hot, cold, sweet
lemonade, orange juice : cold, sweet : cold, sweet
wine : cheap, expensive : sweet, cheap, expensive
novel, letter, poem, story, song, movie, email : long, short, sad, funny : long, short, sad, funny, boring
newspaper, report, play : : long, boring, strange
coat, scarf, hat, dress, sweater, jacket, shirt, gloves, socks : {COLORS} : {COLORS}, expensive
car, truck, bicycle, boat, chair, door, carpet : {COLORS}, old : {COLORS}, old, dirty
motorcycle, tractor, fence, umbrella, vase, bus, bed : {COLORS} : {COLORS}, old, expensive
clock, camera, radio, computer, guitar, lamp, mirror : old, new, expensive : old, expensive, broken
phone, wallet, ticket, present : : expensive, strange, lost
sink, pipe, shower : old, dirty, broken : old, dirty, new
necklace, ring, key, coins, crown : golden, tiny, strange : golden, tiny, strange
painting, diamond : strange, tiny : strange, expensive
suitcase, box, basket, bucket : heavy, empty, red, black : heavy, empty, dirty
cups, plates, pots : dirty, blue, white : old, dirty, broken, blue
windows, floor, stairs, bathroom : dirty : dirty, old
horse, dog, cat, rabbit, goat, cow, donkey : white, brown, black, old : hungry, old, sick, white, black
parrot, ducks, sheep : hungry, noisy : hungry, noisy
bird, bear, owl : strange, huge, tiny : strange, hungry
salmon, crab, octopus : huge, tiny, strange : huge, tiny, heavy
tree, apple tree, roof, ladder : tall, old : tall, old
roses, tulips, flowers, flower : red, yellow, white : beautiful, tall, red, white
house, bridge, cabin, tower, wall : tiny, strange : tall, tiny, strange, dangerous
museum, castle, zoo, lighthouse, factory : old, strange : old, strange, beautiful
portrait, dragon, sunset, map : beautiful, strange : beautiful, strange
hole, tunnel, well : deep : deep, dangerous, dark
patient, child, tourist, soldier : sick, tired : sick, tired, hungry
"""

_ATTRIBUTES: dict[str, tuple[str, ...]] = {}
_PREDICATES: dict[str, tuple[str, ...]] = {}
for _line in _LIKENESSES.strip().splitlines():
    _nouns, _before, _after = ([word.strip() for word in part.split(",") if word.strip()] for part in _line.split(":"))
    _ATTRIBUTES.update(dict.fromkeys(_nouns, tuple(_before)))
    _PREDICATES.update(dict.fromkeys(_nouns, tuple(_after)))
_CLASHES = {
    "roof": ("tall",), "ladder": ("old",), "bridge": ("tiny", "tall"), "wall": ("tiny",), "tower": ("tiny",),
    "motorcycle": ("white",), "tractor": ("black", "white"), "bicycle": ("old",), "goat": ("old",), "rabbit": ("old",),
    "owl": ("huge",), "bird": ("huge",), "bear": ("tiny",), "cow": ("white",),
    "map": ("sad",), "sunset": ("strange",), "milk": ("sweet",), "diamond": ("strange",),
}  # fmt: skip


def adjectives_for(noun: str) -> tuple[str, ...]:
    """Adjectives that may stand before ``noun``; empty where none is natural."""
    return tuple(word for word in _ATTRIBUTES.get(noun, ()) if word not in _CLASHES.get(noun, ()))


def predicates_for(noun: str) -> tuple[str, ...]:
    """Adjectives for "the ``noun`` was ..."; empty where none is natural."""
    return tuple(word for word in _PREDICATES.get(noun, ()) if word not in _CLASHES.get(noun, ()))


# --------------------------------------------------------------------------------------------- times

# Not one time stands in two places: an embedding hardly tells "yesterday, Anna ..." from "Anna ... yesterday".
TIMES = (
    "yesterday",
    "this morning",
    "on Monday",
    "on Sunday",
    "on Friday",
    "after lunch",
    "before dinner",
    "last week",
)
FRONTED_TIMES = (
    "on a hot day", "one cold morning", "after the storm", "during the holidays", "before sunrise",
    "late in the evening", "on my birthday",
)  # fmt: skip
FUTURE_TIMES = ("tomorrow", "on Saturday", "after work", "this evening", "next week")
