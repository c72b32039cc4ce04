"""The things people do: verb, who may do it, to what, and where. Selection restrictions live in these rows.

A row reads: topic; base, past, participle, ing form; agent groups; objects with their article; places.
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
    ing: str
    agents: tuple[Agent, ...]
    objects: tuple[str, ...]
    places: tuple[str, ...]
    active_only: bool = False


_ROWS = """
kitchen; cook cooked cooked cooking; people chef sailors soldiers
    ; some soup, some rice, some pasta, a stew, an omelet, a chicken, some beans, a steak
    ; in the kitchen, over the fire, at the camp, in the cabin
kitchen; bake baked baked baking; people baker girl
    ; a cake, some bread, an apple pie, some cookies, a pizza; in the kitchen, at the bakery, at the school
kitchen; cut cut cut cutting; people chef boy
    ; an onion, a carrot, a lemon, some mushrooms, a melon, a cabbage; in the kitchen, at the camp, on the terrace
food; eat ate eaten eating; people kids tourists students nurse taxi_driver guard judge
    ; a sandwich, an apple, a banana, an orange, some ice cream, a salad, some grapes, a pancake, some chocolate
    ; in the park, at the cafe, on the train, on the beach, at the office
food; drink drank drunk drinking; people pilot nurse journalist judge sailors
    ; some coffee, some tea, some wine; at the cafe, on the balcony, at the airport, on the train
food; drink drank drunk drinking; kids students dancer
    ; some lemonade, some milk, some orange juice; in the kitchen, on the balcony, at the zoo, on the beach
food; serve served served serving; waiter aunt grandmother chef
    ; some soup, some coffee, a pudding, a salad, some fish, some pasta, some wine
    ; at the restaurant, on the terrace, at the wedding, in the hotel
cleaning; wash washed washed washing; people boy waiter students
    ; the dishes, the cups, the plates, the pots; in the kitchen, at the camp, at the school
cleaning; wash washed washed washing; people boy soldiers mechanic
    ; the car, the truck, the dog, the motorcycle, the tractor; in the yard, behind the house, near the river
cleaning; clean cleaned cleaned cleaning; people children guard students
    ; the windows, the floor, the stairs, the bathroom, the mirror; at the hotel, in the hospital, at the school, in the castle
cleaning; fold folded folded folding; people girl nurse soldiers
    ; some shirts, some towels, some blankets, some socks; in the bedroom, at the hotel, in the hospital, in the tent
garden; plant planted planted planting; people children farmer gardener
    ; a tree, some roses, some tulips, some tomatoes, some potatoes, some corn
    ; in the garden, behind the house, in the field, near the church
garden; water watered watered watering; people children gardener
    ; the flowers, the roses, the tomatoes, the tulips, the lawn; in the garden, on the balcony, in the greenhouse, in the park
garden; pick picked picked picking; people kids farmer tourists
    ; some apples, some cherries, some strawberries, some pears, some lemons
    ; in the orchard, in the garden, on the farm, in the valley
garden; dig dug dug digging; farmer gardener builder grandfather uncle soldiers brother
    ; a hole, a well, a tunnel; in the garden, in the desert, in the yard, near the castle
reading; read read read reading; people kids students librarian pilot judge actor
    ; a novel, a newspaper, a letter, a poem, a magazine, a recipe, a comic book
    ; in the library, at the cafe, on the train, on the sofa, in the park
reading; write wrote written writing; people girl boy journalist teacher scientist singer
    ; a letter, a poem, a song, an essay, a report, a story, an email; in the library, at the hotel, on the balcony, at the office
school; study studied studied studying; names girl boy students brother sister
    ; history, math, biology, chemistry, law; at the university, in the library, at the school, on the train; active_only
music; play played played playing; people kids musician students teacher
    ; the piano, the guitar, the violin, the drums, the flute, the trumpet
    ; on the stage, in the church, at the wedding, at the party, at the school
music; sing sang sung singing; people kids singer actor sailors
    ; a song, a lullaby; on the stage, in the church, in the bedroom, at the party
sport; play played played playing; people kids students soldiers
    ; football, tennis, basketball, volleyball; at the school, in the park, in the gym, on the beach; active_only
sport; play played played playing; people kids sailors guard firefighter
    ; chess, cards; at the cafe, in the kitchen, on the train, in the garden; active_only
sport; win won won winning; names kids brother sister students dancer pilot
    ; a race, a medal, a prize, a game, a trophy; at the stadium, at the festival, at the school
water; catch caught caught catching; people boy fisherman sailors
    ; a trout, a crab, an eel, a salmon, an octopus; in the river, in the lake, near the harbor, in the bay
water; sail sailed sailed sailing; fisherman sailors tourists uncle father names
    ; a boat, a ship, a raft; across the lake, down the river, around the island, along the coast
shopping; buy bought bought buying; people kids actor pilot tourists
    ; a coat, a scarf, a hat, a dress, some shoes, a sweater, some gloves, a jacket; at the market, at the airport, in the city
shopping; buy bought bought buying; people artist tailor
    ; a lamp, a carpet, a chair, a mirror, a clock, a camera, a bicycle, a guitar, a vase
    ; at the market, in the village, in the city
shopping; buy bought bought buying; people chef baker students
    ; some bread, some cheese, some apples, some eggs, some fish, some honey
    ; at the market, at the supermarket, on the farm, in the village
shopping; sell sold sold selling; shopkeeper farmer aunt uncle grandmother children
    ; some eggs, some flowers, some honey, some cheese, some melons, some strawberries
    ; at the market, in the village, on the street, at the festival
shopping; sell sold sold selling; shopkeeper tailor uncle artist
    ; a carpet, a hat, a lamp, a painting, a clock, a vase, a necklace; at the market, in the village, on the street, at the festival
crime; steal stole stolen stealing; thief
    ; a necklace, a painting, a bicycle, a wallet, a diamond, some coins
    ; at the hotel, in the museum, at the station, in the castle
lost; find found found finding; people kids tourists guide
    ; a wallet, a ring, a passport, a phone, an umbrella, some coins, a key
    ; on the beach, at the airport, on the bus, in the forest
lost; lose lost lost losing; people girl boy guide actor
    ; a wallet, a ring, a passport, a phone, an umbrella, a ticket; on the beach, at the airport, on the bus, in the forest
lost; hide hid hidden hiding; people kids thief
    ; a key, a letter, a present, a necklace, some coins; under the bed, behind the clock, in the attic, in the cellar
road; drive drove driven driving; people taxi_driver builder doctor firefighter
    ; a truck, a car, a van; through the city, across the bridge, along the coast, through the tunnel; active_only
road; drive drove driven driving; farmer uncle grandfather
    ; a tractor; across the field, through the village, across the bridge; active_only
road; ride rode ridden riding; people kids farmer vet
    ; a horse, a bicycle, a donkey; along the beach, through the forest, across the field, through the village; active_only
repair; repair repaired repaired repairing; mechanic uncle father names
    ; an engine, a car, a truck, a motorcycle, a bus, a tractor; in the garage, at the airport, on the farm, on the street
repair; repair repaired repaired repairing; plumber father aunt; a sink, a pipe, a shower, a toilet
    ; in the bathroom, at the hotel, at the school, in the hospital
repair; repair repaired repaired repairing; people carpenter
    ; a chair, a door, a roof, a bed, a bench, a shelf; in the cabin, at the school, in the castle, at the church
repair; repair repaired repaired repairing; people scientist
    ; a radio, a clock, a camera, a computer, a lamp; at the office, in the attic, on the ship, in the garage
building; build built built building; builder carpenter farmer soldiers uncle father grandfather
    ; a house, a bridge, a wall, a cabin, a boat, a fence, a tower, a stable
    ; near the river, on the hill, on the island, in the valley
building; build built built building; names kids tourists brother sister; a sandcastle, a tower, a wall
    ; on the beach, near the lake, on the island
health; examine examined examined examining; doctor nurse dentist
    ; a patient, a baby, a child, a dancer, a soldier, a tourist; at the hospital, at the clinic, on the ship, at the camp
health; examine examined examined examining; vet farmer
    ; a horse, a dog, a cow, a parrot, a sheep, a rabbit; at the clinic, on the farm, at the zoo, in the stable
travel; visit visited visited visiting; people kids tourists students journalist guide
    ; a museum, a castle, a temple, a zoo, a factory, a lighthouse; in the city, in the mountains, on the coast, on the island
art; paint painted painted painting; people artist girl
    ; a picture, a portrait, a sunset, a waterfall, a volcano; in the garden, at the school, on the balcony, near the lake
art; paint painted painted painting; people carpenter students
    ; a fence, a door, a wall, a boat, a chair, a gate; in the yard, at the harbor, on the farm, at the school
art; draw drew drawn drawing; people kids artist teacher
    ; a horse, a face, a map, a castle, a dragon, a flower, a bird; on the wall, on the blackboard, in the sand
art; photograph photographed photographed photographing; photographer journalist tourists scientist people
    ; a bird, a bear, a waterfall, a sunset, a bridge, an owl; in the forest, near the lake, in the mountains, in the valley
clothes; sew sewed sewn sewing; tailor grandmother mother aunt actor names
    ; a dress, a shirt, a coat, a costume, a jacket; in the theater, in the workshop, in the bedroom
clothes; knit knitted knitted knitting; people girl nurse
    ; a sweater, a scarf, some socks, a hat, a blanket; on the train, on the sofa, at the hospital, near the fire
film; watch watched watched watching; people kids students actor
    ; a movie, a play, a match, a parade, a documentary; at the theater, at the school, at the hotel, in the city
animals; feed fed fed feeding; people kids farmer vet
    ; the chickens, the ducks, the cats, the pigs, the goats, the horses, the rabbits
    ; on the farm, behind the house, in the park, at the zoo
load; carry carried carried carrying; people kids tourists mechanic carpenter sailors
    ; a box, a suitcase, a ladder, a basket, a bag, a bucket; up the stairs, across the street, through the station, to the car
rescue; rescue rescued rescued rescuing; firefighter police_officer soldiers sailors
    ; a cat, a child, a dog, a baby, a tourist, a sheep; from the river, from the fire, from the roof, from the mountain
"""


def _parse(rows: str) -> tuple[Activity, ...]:
    joined = rows.replace("\n    ", " ").strip().splitlines()
    activities = []
    for row in joined:
        topic, forms, groups, objects, places, *flags = (field.strip() for field in row.split(";"))
        activities.append(
            Activity(
                topic, *forms.split(), agents=agents_of(groups), objects=tuple(objects.split(", ")),
                places=tuple(places.split(", ")), active_only="active_only" in flags,
            )
        )
    return tuple(activities)


ACTIVITIES = _parse(_ROWS)
