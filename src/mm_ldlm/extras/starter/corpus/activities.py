"""The things people do: verb, who may do it, to what, and where. Selection restrictions live in these rows.

A row reads: topic; base, past, participle; agent groups; objects with their article; places.
``active_only`` marks verbs whose passive nobody says.
"""

from dataclasses import dataclass

from .words import Agent, agents_of


@dataclass(frozen=True)
class Activity:
    topic: str
    base: str
    past: str
    participle: str
    agents: tuple[Agent, ...]
    objects: tuple[str, ...]
    places: tuple[str, ...]
    active_only: bool = False


_ROWS = """
kitchen; cook cooked cooked; people chef sailors soldiers ; some soup, some rice, some pasta, a chicken, some fish,
    some eggs; in the kitchen, near the fire, at the camp, in the cabin
kitchen; bake baked baked; people baker girl boy ; a cake, some bread, an apple pie, some cookies, a pizza;
    in the kitchen, at the bakery, at the school
food; eat ate eaten; people kids tourists students nurse firefighter dancer;
    an apple, an orange, a salad, some cherries, some chocolate, some cheese;
    in the park, at the cafe, on the train, on the beach, at the office
food; drink drank drunk; people pilot nurse journalist sailors dentist ; some coffee, some tea, some wine;
    at the cafe, on the balcony, at the airport, on the train
food; drink drank drunk; kids students dancer; some lemonade, some milk, some orange juice ;
    in the kitchen, on the balcony, at the zoo, on the beach
food; serve served served; waiter chef aunt grandmother ; some soup, some coffee, a salad, some fish, some pasta,
    some wine; at the restaurant, on the balcony, at the wedding, at the hotel
cleaning; wash washed washed; people boy waiter students ; the cups, the plates, the pots;
    in the kitchen, at the camp, at the restaurant
cleaning; wash washed washed; people boy soldiers mechanic ; the car, the truck, the dog, the motorcycle,
    the tractor; in the garage, behind the house, near the river
cleaning; clean cleaned cleaned; people children students ; the windows, the floor, the stairs, the bathroom,
    the mirror; at the hotel, at the hospital, at the school, in the castle
garden; plant planted planted; people children farmer gardener ;
    a tree, some roses, some tulips, some tomatoes, some potatoes, an apple tree ;
    in the garden, behind the house, in the field, near the church
garden; water watered watered; people children gardener ; the flowers, the roses, the tomatoes, the tulips;
    in the garden, on the balcony, near the church, in the park
garden; pick picked picked; people kids farmer tourists ; some apples, some cherries, some strawberries, some pears;
    behind the house, in the garden, on the farm, in the valley
garden; pick picked picked; people kids chef guide; some mushrooms, some flowers;
    in the forest, in the valley, on the hill
digging; dig dug dug; farmer gardener grandfather uncle soldiers brother ; a hole, a well, a tunnel;
    in the garden, in the desert, behind the house, near the castle
reading; read read read; people kids students pilot actor ; a novel, a newspaper, a letter, a poem, a story,
    a report; in the library, at the cafe, on the train, on the sofa, in the park
reading; write wrote written; people girl boy journalist teacher scientist singer ;
    a letter, a poem, a song, a report, a story, an email; in the library, at the hotel, on the balcony, at the office
music; play played played; people kids musician students teacher ;
    the piano, the guitar, the violin, the drums, the trumpet ;
    on the stage, in the church, at the wedding, at the party, at the school
music; sing sang sung; people kids singer actor sailors; a song;
    on the stage, in the church, in the bathroom, at the party
sport; play played played; people kids students soldiers firefighter ; football, tennis, basketball;
    at the school, in the park, at the stadium, on the beach; active_only
sport; play played played; people kids sailors doctor; chess, cards;
    at the cafe, in the kitchen, on the train, in the garden; active_only
sport; win won won; names kids brother sister students dancer pilot ; a race, a medal, a prize, a game;
    at the stadium, at the festival, at the school
water; catch caught caught; people boy fisherman sailors ; a salmon, a crab, an octopus;
    near the island, near the harbor, on the coast
shopping; buy bought bought; people kids actor pilot tourists;
    a coat, a scarf, a hat, a dress, a sweater, some gloves, a jacket; at the market, at the airport, in the city
shopping; buy bought bought; people artist scientist ; a lamp, a carpet, a chair, a mirror, a clock, a camera,
    a bicycle, a guitar, a vase; at the market, in the village, in the city
shopping; buy bought bought; people chef baker students ; some bread, some cheese, some apples, some eggs,
    some fish, some potatoes; at the market, on the farm, in the village
shopping; sell sold sold; farmer aunt uncle grandmother children ;
    some eggs, some flowers, some cheese, some tomatoes, some strawberries ;
    at the market, in the village, on the street, at the festival
shopping; sell sold sold; tailor uncle artist ; a carpet, a hat, a lamp, a painting, a vase, a necklace;
    at the market, in the village, on the street, at the festival
losing; steal stole stolen; thief; a necklace, a painting, a bicycle, a wallet, a diamond, some coins ;
    at the hotel, in the museum, at the station, in the castle
losing; find found found; people kids tourists guide; a wallet, a ring, a phone, an umbrella, some coins, a key;
    on the beach, at the airport, on the bus, in the forest
losing; lose lost lost; people girl boy guide actor; a wallet, a ring, a phone, an umbrella, a ticket;
    on the beach, at the airport, on the bus, in the forest
losing; hide hid hidden; people kids thief; a key, a letter, a present, a necklace, some coins ;
    under the bed, behind the clock, in the cellar, in the garden
road; drive drove driven; people doctor firefighter plumber ; a truck, a car, a bus;
    through the city, across the bridge, along the coast, through the tunnel; active_only
road; drive drove driven; farmer uncle grandfather; a tractor;
    across the field, through the village, across the bridge; active_only
road; ride rode ridden; people kids farmer vet ; a horse, a bicycle, a donkey;
    along the coast, through the forest, across the field, through the village; active_only
repair; repair repaired repaired; mechanic uncle father names; a car, a truck, a motorcycle, a bus, a tractor;
    in the garage, at the airport, on the farm, on the street
repair; repair repaired repaired; plumber father aunt; a sink, a pipe, a shower;
    in the bathroom, at the hotel, at the hospital
repair; repair repaired repaired; people carpenter; a chair, a door, a roof, a bed;
    in the cabin, at the school, in the castle, at the church
repair; repair repaired repaired; people scientist; a radio, a clock, a camera, a computer, a lamp ;
    at the office, in the kitchen, on the ship, in the garage
building; build built built; carpenter farmer soldiers uncle father grandfather ;
    a house, a bridge, a wall, a cabin, a boat, a fence, a tower;
    near the river, on the hill, on the island, in the valley
health; examine examined examined; doctor nurse; a patient, a child, a tourist, a soldier;
    at the hospital, on the ship, at the camp
health; examine examined examined; dentist scientist; a patient, a child, a soldier;
    at the hospital, on the ship, at the camp
health; examine examined examined; vet farmer ; a horse, a dog, a cow, a parrot, a sheep, a rabbit;
    on the farm, at the zoo, in the barn
travel; visit visited visited; people kids tourists students journalist guide;
    a museum, a castle, a zoo, a factory, a lighthouse; in the city, in the mountains, on the coast, on the island
art; paint painted painted; people artist girl ; a portrait, a sunset, a dragon;
    in the garden, at the school, on the balcony, near the lake
art; paint painted painted; people carpenter students; a fence, a door, a wall, a boat, a chair;
    behind the house, at the harbor, on the farm, at the school
art; draw drew drawn; people kids artist teacher ; a horse, a map, a castle, a dragon, a flower, a bird;
    on the wall, at the school, in the library
clothes; sew sewed sewed; tailor grandmother mother aunt names ; a dress, a shirt, a coat, a jacket;
    at the theater, in the kitchen, at the hotel
clothes; knit knitted knitted; people girl nurse ; a sweater, a scarf, some socks, a hat;
    on the train, on the sofa, at the hospital, near the fire
film; watch watched watched; people kids students actor; a movie, a play, a game;
    at the theater, at the school, at the hotel, in the city
animals; feed fed fed; people kids farmer vet ; the ducks, the cat, the dog, the goat, the horse, the rabbit,
    the parrot; on the farm, behind the house, in the park, at the zoo
load; carry carried carried; people kids tourists mechanic carpenter sailors;
    a box, a suitcase, a ladder, a basket, a bucket; up the stairs, across the street, through the station, to the car
rescue; rescue rescued rescued; firefighter soldiers sailors; a cat, a child, a dog, a tourist, a sheep;
    from the river, from the fire, from the roof, from the mountain
"""


def _parse(rows: str) -> tuple[Activity, ...]:
    activities = []
    for row in rows.replace("\n    ", " ").strip().splitlines():
        topic, forms, groups, objects, places, *flags = (field.strip() for field in row.split(";"))
        base, past, participle = forms.split()
        activities.append(
            Activity(
                topic=topic,
                base=base,
                past=past,
                participle=participle,
                agents=agents_of(groups),
                objects=tuple(objects.split(", ")),
                places=tuple(places.split(", ")),
                active_only="active_only" in flags,
            )
        )
    return tuple(activities)


ACTIVITIES = _parse(_ROWS)
