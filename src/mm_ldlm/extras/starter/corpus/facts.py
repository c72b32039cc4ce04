"""Rows for the shapes that are not a plain event: who lives where, what lies where, what is bigger than what.

Each table is a tuple of rows that read as English; `shapes.py` joins them into sentences.
"""


def _rows(text: str) -> tuple[tuple[tuple[str, ...], ...], ...]:
    """Lines of ``a, b; c, d`` as tuples of tuples of strings; an indented line continues the one above."""
    return tuple(
        tuple(tuple(cell.strip() for cell in field.split(",")) for field in line.split(";"))
        for line in text.replace("\n    ", " ").strip().splitlines()
    )


# "The nurse who lives near the harbor plays the violin."
HOMES = ("near the harbor", "on the hill", "in the old tower", "on the island", "behind the station", "in the village",
         "across the street", "above the bakery")  # fmt: skip
HABITS = (
    "plays the violin", "plays the guitar", "plays the drums", "plays chess", "plays tennis", "collects coins",
    "collects clocks", "speaks French", "speaks Arabic", "drives a taxi", "drives a truck", "grows tomatoes",
    "grows roses", "never eats fish", "never drinks wine", "rides a horse", "keeps bees", "has three dogs",
    "has a noisy parrot", "is afraid of dogs",
)  # fmt: skip

# "Oscar's bicycle is red and dirty.": things; colors; qualities
POSSESSIONS = _rows("""
bicycle, car, truck, motorcycle, boat; red, blue, green, yellow, black, white; old, fast, expensive, dirty
coat, scarf, hat, sweater, jacket; red, blue, green, yellow, black, white; warm, beautiful, expensive, wet
cat, dog, rabbit, horse, goat; black, brown, white; hungry, lazy, noisy
house, kitchen, cabin, bathroom; blue, green, yellow, white; warm, dark, tiny, dirty
sofa, umbrella, suitcase, tent; red, blue, green, black; heavy, cheap, wet, dirty
""")

# "There is a black cat under the table.": things; adjectives; places
PRESENCES = _rows("""
cat, dog, rabbit, parrot; black, white, hungry, lazy; under the table, on the sofa, in the basket, on the roof,
    behind the door
mouse, spider, snake, frog; tiny, strange, brown, huge; under the bed, in the bathroom, in the cellar,
    behind the clock, in the bucket
turtle, frog; white, tiny, sick, strange; in the lake, near the bridge, on the island, in the river
owl, bird, parrot, monkey; tiny, noisy, strange, sick; in the tree, on the roof, in the park, on the balcony
cow, horse, sheep, goat, donkey; black, white, hungry, sick; in the field, behind the barn, on the hill, on the street
wolf, bear; hungry, young, huge; in the forest, on the mountain, near the camp, in the valley
letter, novel, map, ticket; old, strange, wet; on the table, under the bed, in the suitcase, on the chair
vase, lamp, cup; broken, red, blue, expensive, empty; on the table, in the cellar, near the window, on the floor
bus, truck, taxi, motorcycle, bicycle; red, green, white, broken;
    at the station, on the bridge, behind the school, near the hotel, in the garage
key, ring, diamond, painting; golden, tiny, strange; on the table, in the bucket, under the chair, in the box
child, soldier, tourist; tired, angry, young, hungry; at the door, in the kitchen, on the stairs
chair, carpet, guitar, umbrella; old, red, blue, wet, broken;
    in the cellar, on the balcony, behind the door, near the fire
""")

# "The teacher gave the girl a short poem.": givers; verbs; receivers; gifts
GIFTS = _rows("""
the teacher, the scientist; gave, lent; the girl, the boy, the students, the children;
    a novel, a map, a short poem, a computer
the doctor, the nurse; gave; the patient, the soldier, the child;
    a ticket, a warm sweater, some milk, a clean shirt, an old map
the waiter, the chef; brought; the guests, the tourists, the singer, the doctor;
    some hot soup, a chocolate cake, a fresh salad, some fish
my grandmother, my grandfather, my aunt, my uncle; gave, promised; my cousin, my sister, my brother, the children;
    a golden ring, a rabbit, a warm sweater, a bicycle, a violin, a chocolate cake, a camera
the tailor, the artist; showed, sold; the actor, the pilot, the dancer, the journalist;
    a scarf, a black jacket, a hat, a carpet, a red umbrella, a portrait
the farmer, the fisherman; gave, sold; the chef, the neighbors, the vet, the baker;
    a goat, some eggs, a huge salmon, some potatoes, a ladder, an old boat
Anna, Oscar, Maria, David, Grace, Ahmed; lent, sent, showed; the mechanic, the musician, the guide, the neighbors;
    a camera, a guitar, a red bicycle, a tent, a long letter, a ticket
""")

# "Rosa was sad because she had lost her ring.": feelings; causes, with {they} and {their} left open
CAUSES = _rows("""
sad, angry; {they} had lost {their} ring, {they} had missed the train, {their} bicycle was broken,
    the thief had stolen {their} coat, the concert was canceled,
    the bus was late
happy; {they} had won the race, {they} had found {their} wallet, {their} cousin had sent a letter,
    {their} soup was delicious, the holidays were near, {they} had seen a dolphin
tired; {they} had carried heavy boxes, {they} had worked all night, {they} had cleaned the house,
    {they} had washed the truck, {they} had dug a tunnel
afraid; {they} had seen a snake, the exam was difficult, the dog was hungry, the plane was late,
    the cellar was dark, the bridge was dangerous
hungry; {they} had missed lunch, the restaurant was closed, the cafe was closed, {they} had worked all night
proud; {their} cousin had won a medal, {they} had built a boat, {their} painting was in the museum,
    {they} had rescued a child, {they} had won the game
late; {their} car was broken, {they} had missed the bus, the snow was deep, {their} clock was broken,
    the bridge was closed
""")

DESTINATIONS = ("work", "bed", "church", "the airport", "the party", "the museum")
KIDS_DESTINATIONS = ("school", "bed", "church", "the party", "the museum")

# "Please put the clean plates on the table.": verbs; things; adjectives; places
REQUESTS = _rows("""
put; plates, cups, pots; clean, dirty, blue, new; on the table, in the kitchen, near the window, in the basket
put; novel, letter, map, newspaper, ticket; old, new, strange; on the table, near the door, in the suitcase
wash; shirt, socks, sweater, dress; dirty, white, red, blue; in the kitchen, in the bathroom, in the river
hang; coat, dress, jacket, shirt, scarf; wet, black, red, warm;
    behind the door, in the bathroom, near the window, on the balcony
park; car, truck, bicycle, motorcycle; red, old, black, new; in the garage, behind the house, near the station,
    on the street
carry; chair, boxes, suitcase, basket, ladder; heavy, old, green, wet, empty;
    to the kitchen, to the cellar, to the car, to the tent
hide; key, ring, present, diamond; golden, stolen, tiny; under the bed, in the cellar, behind the mirror
plant, water; roses, tulips, tomatoes, flowers; yellow, red, tall;
    near the fence, on the balcony, behind the house, near the church
take; dog, cat, rabbit, parrot; sick, hungry, noisy, tired; to the vet, to the garden, to the barn, to the balcony
""")

# always true, so that the order need not be guessed: "The tailor's horse is bigger than our goat."
COMPARISONS = (
    ("bigger", ("mouse", "parrot", "cat", "goat", "donkey", "horse")),
    ("faster", ("turtle", "donkey", "bicycle", "horse", "motorcycle")),
    ("more expensive", ("hat", "camera", "piano", "car", "house")),
    ("heavier", ("scarf", "guitar", "chair", "piano", "truck")),
)

# "The guide said that the museum was closed on Monday.": subjects; states; times
NEWS = _rows("""
the museum, the library, the bakery, the zoo; would be closed, would be empty, would open;
    on Monday, during the holidays, after lunch, at noon
the train, the bus, the ship, the plane; would be late, would be empty, would leave;
    on Monday, at noon, in the evening, after the storm
the bridge, the tunnel; was dangerous, was closed; after the storm, at night, in winter
the concert, the wedding, the exam, the game; would be canceled, would begin;
    on Monday, at noon, in the evening, after lunch
the lake, the harbor, the river; was dangerous, was dirty; in winter, at night, after the storm
""")

# "The tourists traveled to the island by boat.": destinations; transport
JOURNEYS = _rows("""
the island, the coast, the harbor, the lighthouse; boat, helicopter, plane
the mountains, the village, the castle, the lake; bus, bicycle, train, taxi
the city, the desert, the festival, the valley; plane, train, truck, bus
the airport, the hospital, the stadium, the factory; taxi, bicycle, bus, train
""")
COMPANIONS = ("with an old friend", "with a heavy suitcase", "without a map", "with my cousin")

# "The brown dog slept under the table.": animals; adjectives; what they did; where
ANIMAL_ACTS = _rows("""
dog, cat; brown, black, lazy, old; slept, hid, waited; under the table, behind the sofa, near the fire, on the stairs
dog, wolf; brown, hungry, young; chased a rabbit, chased a mouse, dug a hole, ate a bird;
    in the park, behind the barn, in the forest, on the beach
cat, owl; brown, hungry, young, lazy; caught a mouse, watched a bird, slept, ate a frog;
    on the roof, in the garden, in the barn, near the river
horse, cow, goat, donkey; white, brown, old, young; ate some grass, drank some water, waited, slept;
    in the field, near the river, behind the barn, under a tree
frog, turtle; white, tiny, lazy, hungry; swam, slept, ate a spider;
    in the river, near the bridge, under the bridge, in the lake
bird, parrot; yellow, black, noisy, tiny; sang, waited, ate some cherries;
    in the tree, on the roof, near the window, in the garden
monkey, elephant, bear; young, old, hungry; drank some water, slept, waited, played;
    at the zoo, in the park, near the camp
dolphin; young, huge, old; swam, chased some fish, caught an octopus; near the island, near the ship, along the coast
""")

WEATHER = ("raining", "snowing", "windy", "foggy", "dark")
INDOORS = (
    "in the kitchen", "in the library", "on the sofa", "in the cabin", "at the theater", "in the garage",
    "at the hotel", "at the cafe", "at the school", "in the church", "at the office", "at the restaurant",
)  # fmt: skip

OUTFITS = _rows("""
dress, hat, scarf; red, blue, green, yellow, black, white; to the wedding, to the concert, to the party,
    at the restaurant
gloves, coat, sweater, scarf; red, blue, green, yellow, black, white; on the mountain, on the ship, in the barn
helmet, jacket; red, blue, green, yellow, black, white; on the motorcycle, on the bus, on the train, at the festival
crown, hat; red, blue, green, golden, black; on the stage, at the festival, to the party, at the theater
""")
WITHOUT_ARTICLE = ("gloves",)

CONDITIONS = (
    "if it snows", "if the sun shines", "if the train is late", "if the guests arrive early", "if there is enough time",
    "if the museum is closed",
)  # fmt: skip

# "The market was full of tourists on Sunday.": places; crowds
CROWDED = _rows("""
market, street, station; tourists, soldiers, children, students, birds, flowers;
    in the city, in the village, near the castle, near the harbor
beach, harbor, lake; tourists, boats, birds, sailors, children;
    on the island, in the valley, near the village, near the lighthouse
hospital, hotel, restaurant; soldiers, tourists, children, sailors, students;
    near the harbor, in the city, in the mountains, on the island
garden, park, field; flowers, children, birds, bees, mushrooms;
    near the river, behind the school, near the castle, behind the church
theater, stadium, church, museum; students, tourists, flowers, children, soldiers;
    in the city, on the island, in the mountains, near the lake
cellar, garage, barn; boxes, birds, flowers, boats; behind the house, near the river, on the farm, behind the bakery
""")
CROWD_TIMES = ("on Sunday", "at night", "after the storm", "at noon", "yesterday")

# "The suitcase was too heavy for the girl to carry.": things; what they were too much of; verbs
TOO_MUCH = _rows("""
suitcase, box, ladder, piano; heavy; carry
wall, tower, mountain, tree, fence; tall, dangerous; climb
coffee, tea, milk; hot, sweet; drink
soup, rice, pasta; hot, spicy; eat
novel, letter, report, poem, story; long, difficult, boring, sad; read
river, lake; cold, deep, dangerous; cross
car, camera, necklace, house, horse, diamond; expensive; buy
truck, bus, tractor; fast, heavy, old; drive
song; difficult, sad, fast; play, sing
""")
