"""The lexicon: who there is, what things are like, when and where things happen.

Two rules keep a sentence recoverable from its embedding: no two entries of one slot mean the same (``big`` but not ``large``),
and no entry is told apart from its neighbours by spelling alone (a dozen names, no digits).
"""

from dataclasses import dataclass

# ---------------------------------------------------------------------------------------------------------------- agents


@dataclass(frozen=True)
class Agent:
    """Somebody who acts. ``text`` is the noun phrase inside a sentence; ``pronoun`` is empty where the gender is open."""

    text: str
    pronoun: str = ""
    plural: bool = False

    @property
    def was(self) -> str:
        return "were" if self.plural else "was"

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
    "actor, artist, baker, builder, butcher, carpenter, chef, dancer, dentist, doctor, farmer, firefighter, fisherman, "
    "gardener, guard, guide, journalist, judge, librarian, mechanic, musician, nurse, photographer, pilot, "
    "plumber, police officer, scientist, shopkeeper, singer, tailor, taxi driver, teacher, thief, vet, waiter",
    prefix="the ",
)

AGENT_GROUPS: dict[str, tuple[Agent, ...]] = {
    "names": NAMES,
    "people": PEOPLE,
    "kids": KIDS,
    **{agent.noun.replace(" ", "_"): (agent,) for agent in CROWDS + JOBS + KIDS + FAMILY},
}


def agents_of(groups: str) -> tuple[Agent, ...]:
    """The agents of a blank-separated list of groups, each agent once, in the order of the list."""
    return tuple(dict.fromkeys(agent for group in groups.split() for agent in AGENT_GROUPS[group]))


# ---------------------------------------------------------------------------------------------- things and what they are like

# class: (nouns, adjectives that stand before them, adjectives for "was ..." after a relative clause)
_CLASSES: dict[str, tuple[str, str, str]] = {
    "dish": (
        "soup, rice, pasta, stew, omelet, chicken, eggs, pancake, salad, fish, sandwich, beans, steak, pudding",
        "hot, cold, spicy, simple",
        "delicious, salty, cold, spicy",
    ),
    "baked": ("cake, bread, apple pie, cookies, pizza", "big, fresh, burnt, sweet", "delicious, burnt, dry, sweet"),
    "fruit": (
        "apple, banana, orange, melon, lemon, grapes, apples, cherries, strawberries, pears, lemons, melons",
        "ripe, sweet, sour, rotten",
        "ripe, sour, sweet, rotten",
    ),
    "vegetable": (
        "onion, carrot, mushrooms, tomatoes, potatoes, cabbage, vegetables, corn",
        "fresh, big, tiny, cheap",
        "fresh, bitter, rotten, tiny",
    ),
    "drink": ("coffee, tea, lemonade, milk, orange juice, wine", "cold, warm, sweet", "cold, bitter, sweet"),
    "snack": ("ice cream, chocolate, cheese, honey", "cheap, delicious, expensive", "delicious, expensive, bitter"),
    "text": (
        "novel, newspaper, letter, poem, magazine, recipe, email, comic book, essay, report, story, diary, song, movie, "
        "documentary, lullaby",
        "long, short, funny, sad, boring, famous",
        "long, short, funny, sad, boring, famous",
    ),
    "clothing": (
        "coat, scarf, hat, dress, shirt, sweater, jacket, gloves, shoes, boots, socks, towels, blankets, hats, costume, blanket",
        "red, blue, green, yellow, black, white, wool, expensive",
        "red, blue, green, yellow, black, white, expensive, dirty",
    ),
    "furniture": (
        "lamp, carpet, chair, table, mirror, clock, door, wall, fence, gate, shelf, bed, carpets, sofa, bench",
        "red, blue, green, white, wooden, round, antique, broken",
        "heavy, broken, cheap, green, white, dusty",
    ),
    "vehicle": (
        "car, truck, bus, taxi, tractor, van, ambulance, bicycle, motorcycle, boat, canoe, ship, raft",
        "red, blue, green, yellow, black, white, rusty, fast",
        "slow, rusty, red, expensive, dirty",
    ),
    "instrument": ("piano, guitar, violin, drums, flute, trumpet", "", ""),
    "device": ("camera, phone, radio, computer, engine, watch", "broken, expensive, modern, antique", "broken, expensive, noisy"),
    "valuable": (
        "necklace, painting, wallet, ring, diamond, coins, passport, ticket, keys, glasses, present, treasure, medal, trophy",
        "golden, lost, stolen, tiny",
        "expensive, valuable, stolen, tiny",
    ),
    "container": (
        "box, suitcase, basket, bag, bucket, ladder, umbrella, vase, dishes, cups, plates, pots, bottle",
        "heavy, empty, red, blue, broken, plastic",
        "heavy, empty, broken, dirty",
    ),
    "animal": (
        "dog, cat, horse, cow, parrot, donkey, camel, elephant, sheep, rabbit, chickens, ducks, cats, pigs, goats, horses, "
        "rabbits, bird, bear, lion, monkey, owl, snake, goat, duck, mouse, wolf, fox, frog, turtle, squirrel",
        "brown, black, white, gray, hungry, wild",
        "hungry, tame, wild, sick, sleepy",
    ),
    "catch": ("trout, crab, eel, salmon, shark, octopus", "huge, tiny, strange", "huge, tiny, heavy"),
    "plant": (
        "tree, roses, tulips, apple tree, flowers, lawn, flower, sunflowers",
        "tall, yellow, red, white, tiny",
        "tall, dry, beautiful, yellow",
    ),
    "building": (
        "house, bridge, cabin, tower, museum, castle, temple, zoo, factory, roof, stairs, floor, windows, bathroom, "
        "sandcastle, snowman, tent, stable, curtains, lighthouse, hole, well, tunnel",
        "tall, tiny, famous, ancient, modern, strange",
        "tall, dirty, ancient, beautiful",
    ),
    "picture": (
        "picture, portrait, map, dragon, face, waterfall, sunset, volcano, rainbow",
        "beautiful, strange, colorful, huge",
        "beautiful, strange, colorful, huge",
    ),
    "plumbing": ("sink, pipe, shower, toilet", "broken, rusty, dirty", "broken, rusty, old"),
    "person": ("patient, baby, child, dancer, soldier, tourist", "sick, tired, young, frightened", ""),
}

CLASS_OF = {noun: name for name, (nouns, _, _) in _CLASSES.items() for noun in nouns.split(", ")}


def adjectives_for(noun: str) -> tuple[str, ...]:
    """Adjectives that may stand before ``noun``; empty where none is natural."""
    name = CLASS_OF.get(noun)
    if name is None or not _CLASSES[name][1]:
        return ()
    plain = _CLASSES[name][1].split(", ")
    return tuple(word for word in plain if (word, noun) not in _CLASHES and (word, name) not in _CLASHES)


def predicates_for(noun: str) -> tuple[str, ...]:
    """Adjectives for "the ``noun`` was ..."; empty where none is natural."""
    name = CLASS_OF.get(noun)
    return tuple(word for word in _CLASSES[name][2].split(", ") if (word, noun) not in _CLASHES) if name and _CLASSES[name][2] else ()


_CLASHES = {
    (adjective, noun)
    for adjective, nouns in {
        "hot": "salad, sandwich",
        "cold": "steak, stew, omelet",
        "spicy": "pancake, pudding, eggs",
        "salty": "pudding, pancake",
        "sweet": "bread, pizza, onion, wine, coffee",
        "burnt": "",
        "warm": "lemonade, orange juice, wine",
        "sour": "banana, melon, melons, pears",
        "bitter": "milk, lemonade, cheese, honey, tomatoes, potatoes, corn, carrot, vegetables, wine",
        "cold ": "",
        "wool": "shoes, boots, shirt, dress, costume, towels",
        "wooden": "lamp, mirror, carpet, carpets, wall, sofa",
        "round": "door, wall, fence, gate, shelf, sofa, bench, bed, chair",
        "broken": "carpet, carpets, wall, basket, bag, dishes, keys",
        "antique": "wall, fence, gate, shelf, door, engine, computer, phone, bench",
        "modern": "watch, castle, temple, hole, well, sandcastle, snowman, tent, stairs, floor, windows, curtains, bathroom, "
        "stable, lighthouse, cabin, roof, tunnel",
        "ancient": "sandcastle, snowman, tent, factory, zoo, bathroom, curtains, windows, floor, roof, cabin, house, hole, "
        "stairs, stable",
        "famous": "email, essay, report, diary, letter, recipe, newspaper, stairs, floor, windows, bathroom, sandcastle, snowman, "
        "tent, hole, cabin, roof, stable, curtains, well, house",
        "tall": "stairs, floor, windows, bathroom, hole, well, zoo, museum, factory, roses, tulips, lawn, flowers, flower, "
        "tent, temple, bridge, roof, cabin, stable, curtains, tunnel",
        "tiny": "roof, stairs, floor, windows, castle, factory, zoo, lawn, tower, bridge, tunnel",
        "strange": "roof, stairs, floor, windows, hole, well, bathroom",
        "rusty": "canoe, raft, ambulance, toilet",
        "fast": "tractor, raft, canoe, van, bus, truck, taxi",
        "yellow": "tree, apple tree, lawn",
        "red": "tree, apple tree, lawn, sunflowers, ladder, dishes",
        "white": "tree, apple tree, lawn, sunflowers",
        "blue": "dishes, ladder, mirror, taxi",
        "empty": "ladder, umbrella, dishes, cups, plates",
        "plastic": "ladder, suitcase, umbrella, dishes, vase, pots",
        "heavy": "umbrella, cups, plates, dishes, vase",
        "golden": "passport, ticket, wallet, painting, glasses, present",
        "lost": "medal, trophy, painting, present",
        "stolen": "ticket, glasses, keys, present, treasure, medal, trophy",
        "tiny ": "",
        "gray": "chickens, lion, camel, cow, parrot, bear, pigs, fox, frog, snake, bird, goats, lion",
        "brown": "elephant, parrot, wolf, pigs, sheep, frog, lion, fox, camel",
        "black": "lion, camel, elephant, parrot, donkey, turtle, pigs, chickens, ducks, fox, frog, owl, squirrel, taxi, ambulance, tractor",
        "wild": "chickens, cow, dog, cat, cats, bear, lion, wolf, fox, owl, snake, frog, squirrel, sheep, pigs, mouse",
        "hungry": "snake, turtle",
        "tame": "chickens, cow, dog, cat, cats, ducks, pigs, goats, sheep",
        "colorful": "map, face, sunset, rainbow, portrait",
        "huge": "face, portrait, sunset",
        "cheap": "honey, door, wall, gate, fence",
        "simple": "chicken, fish, steak, eggs",
        "young": "baby, child, patient",
        "frightened": "patient, dancer",
        "long": "recipe, newspaper, magazine, comic book, diary, newspaper",
        "short": "newspaper, magazine, diary",
        "sad": "newspaper, magazine, recipe, report, essay, comic book, documentary, email",
        "funny": "newspaper, recipe, report, diary, lullaby, documentary, essay, letter",
        "boring": "recipe, diary, song, poem, lullaby",
        "dusty": "door, wall, fence, gate",
        "beautiful": "stairs, factory, bathroom, roof, hole, well, map, lawn",
        "noisy": "camera, watch, phone, computer",
        "old": "",
        "dirty": "gloves",
        "expensive": "eggs",
    }.items()
    for noun in nouns.split(", ")
}
_CLASHES |= {(colour, noun) for colour in ("red", "green", "yellow", "black", "white", "blue") for noun in ("taxi", "ambulance", "clock", "lamp", "mirror", "raft", "basket", "umbrella plant") if (colour, noun) != ("red", "lamp")}
_CLASHES |= {("white", noun) for noun in ("bear", "lion", "camel", "elephant", "parrot", "donkey", "monkey", "snake", "turtle", "fox", "frog", "wolf", "squirrel")}

# ----------------------------------------------------------------------------------------------------------- times and weather

TIMES = ("yesterday", "this morning", "last night", "on Sunday", "on Friday", "after lunch", "before dinner", "last week")
DAY_TIMES = tuple(time for time in TIMES if time != "last night")
FRONTED_TIMES = (
    "on a hot day",
    "one cold morning",
    "after the storm",
    "during the holidays",
    "one quiet afternoon",
    "before sunrise",
    "late in the evening",
    "on the first day of spring",
)
FUTURE_TIMES = ("tomorrow", "next week", "next summer", "on Saturday", "tonight")
