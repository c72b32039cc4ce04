"""Rows for the shapes that are not a plain event: who lives where, what lies where, what is bigger than what.

Each table is a tuple of rows that read as English; `scenes.py` joins them into sentences.
"""


def _rows(text: str) -> tuple[tuple[tuple[str, ...], ...], ...]:
    """Lines of ``a, b; c, d`` as tuples of tuples of strings."""
    return tuple(
        tuple(tuple(cell.strip() for cell in field.split(",")) for field in line.split(";"))
        for line in text.strip().splitlines()
    )


# "The nurse who lives near the harbor plays the violin."
HOMES = (
    "near the harbor", "on the hill", "in the old tower", "next to the church", "on the island", "behind the station",
    "in the village", "across the street",
)  # fmt: skip
HABITS = (
    "plays the violin", "plays the piano", "plays the trumpet", "plays chess", "plays tennis", "paints portraits",
    "bakes cakes", "collects stamps", "collects clocks", "raises goats", "raises rabbits", "writes poems",
    "speaks French", "speaks Arabic", "sings in the choir", "drives a taxi", "grows tomatoes", "grows roses",
    "repairs bicycles", "never eats fish", "rides a horse", "keeps bees", "has three daughters", "has a parrot",
)  # fmt: skip

# "Oscar's bicycle is red and rusty.": things; colors; qualities
POSSESSIONS = _rows("""
bicycle, car, truck, motorcycle, boat; red, blue, green, yellow, black, white; rusty, fast, expensive, dirty
coat, scarf, hat, sweater, dress, jacket; red, blue, green, yellow, black, white; warm, elegant, expensive, wet
cat, dog, rabbit, horse, goat; black, brown, white, gray; hungry, lazy, friendly, thin
house, kitchen, bedroom, cabin; blue, green, yellow, white; warm, dark, noisy, dusty
sofa, umbrella, suitcase, tent; red, blue, green, black; heavy, cheap, wet, dirty
""")

# "There is a black cat under the table.": things; adjectives; places
PRESENCES = _rows("""
cat, dog, rabbit; black, white, brown, hungry; under the table, on the sofa, in the basket, on the roof, behind the door
mouse, spider, snake, frog; tiny, strange, brown; under the bed, in the bathtub, in the cellar, behind the clock, in the bucket
duck, turtle, swan; white, tiny, sick; in the pond, near the bridge, on the island
owl, squirrel, parrot, monkey; tiny, noisy, strange; in the tree, on the roof, in the attic
cow, horse, sheep, goat; brown, white, hungry, sick; in the field, behind the barn, on the hill, on the road
wolf, bear, fox; hungry, wild, huge; in the forest, on the mountain, near the camp, in the valley
letter, book, map, photograph; torn, secret, strange; on the desk, in the drawer, under the bed, in the suitcase
bottle, vase, lamp, cup, mirror; broken, red, blue, expensive; on the table, on the shelf, in the cellar, near the window
bus, truck, taxi, motorcycle; red, green, empty; in front of the station, on the bridge, behind the school, near the hotel
hole, stain; huge, tiny, strange; in the wall, in the carpet, in the curtain, on the ceiling
statue, fountain, clock; golden, broken, tall; in the park, in the museum, near the church, at the station
child, soldier, stranger, guest; sleepy, angry, young; on the bench, at the door, in the kitchen, on the stairs
""")

# "The teacher gave the girl a blue notebook.": givers; verbs; receivers; gifts
GIFTS = _rows("""
the teacher, the librarian; gave, showed, lent; the girl, the boy, the students; a novel, a map, a dictionary, a blue notebook, a poem, an old atlas
the doctor, the nurse, the dentist; gave, showed; the patient, the soldier, the child; a pill, a bandage, a glass of water, a mirror, a warm blanket
the waiter, the chef; gave, brought, showed; the guests, the tourists, the judge; a menu, a spoon, a bottle of wine, a hot soup, a chocolate cake, a lemon
my grandmother, my grandfather, my aunt, my uncle; gave, sent, promised; my cousin, my sister, my brother, the twins; a golden watch, a puppy, a wool sweater, a wooden toy, a postcard, a chess set
the shopkeeper, the tailor; showed, sold, sent; the actor, the pilot, the bride, the king; a silk scarf, a leather jacket, a hat, a carpet, a black umbrella, a green dress
the farmer, the fisherman; gave, sold, brought; the chef, the neighbors, the widow, the vet; a goat, a basket of eggs, a fresh trout, a bag of potatoes, a jar of honey, a ladder
Anna, Oscar, Maria, David, Grace, Ahmed; gave, lent, sent, showed; the mechanic, the musician, the photographer, the neighbors; a camera, a guitar, a red bicycle, a hammer, a tent, a letter, a ticket
""")  # noqa: E501

# "Rosa was sad because she had lost her ring.": feelings; causes, with {they} and {their} left open
CAUSES = _rows("""
sad, angry; {they} had lost {their} ring, {they} had missed the last train, {their} bicycle had been stolen, {their} parrot had flown away, nobody had answered {their} letter, the concert had been canceled
happy, excited; {they} had won the race, {they} had found {their} wallet, {their} cousin had come home, {they} had passed the exam, the holidays had begun, {they} had seen a dolphin
tired; {they} had carried heavy boxes, {they} had worked all night, {they} had climbed the mountain, the baby had cried all night, {they} had danced at the wedding
afraid, nervous; {they} had heard a strange noise, {they} had seen a snake, {their} exam was difficult, the dog was barking, the plane was late, the lights had gone out
hungry; {they} had forgotten {their} lunch, the restaurant was closed, {they} had missed breakfast, {their} soup had burnt
proud; {their} daughter had won a medal, {they} had built a boat, {they} had learned Arabic, {their} painting was in the museum, {they} had saved a child
late; {their} car had broken down, {they} had missed the bus, the road was covered with snow, {their} alarm was broken, the bridge was closed
""")  # noqa: E501

DESTINATIONS = ("school", "work", "bed", "church", "the airport", "the dentist", "the party", "the museum")

# "Please put the clean plates on the shelf.": verbs; things; adjectives; places
REQUESTS = _rows("""
put; plates, cups, spoons, pots; clean, dirty, blue; on the shelf, in the sink, on the table, in the basket
put, leave; books, letters, maps, newspapers; old, torn, new; on the desk, in the drawer, on the shelf, near the door
hang; coat, dress, jacket, shirt; wet, black, red, dirty; behind the door, in the bathroom, near the window, on the balcony
leave, park; car, truck, bicycle, motorcycle; red, rusty, black; in the garage, behind the house, near the station, in the yard
bring, carry; chairs, boxes, suitcases, blankets; heavy, empty, green, wooden; to the kitchen, to the attic, to the car, to the tent
hide, keep; money, keys, ring, present; golden, stolen, tiny; under the bed, in the drawer, in the cellar, behind the mirror
plant, water; roses, tulips, tomatoes, sunflowers; yellow, red, tall; near the fence, on the balcony, behind the house, in the greenhouse
take; dog, cat, rabbit, parrot; sick, hungry, noisy; to the vet, to the garden, to the barn, to the balcony
""")

# animals by size, small to big: "The tailor's horse is bigger than our goat."
ANIMALS_BY_SIZE = ("mouse", "frog", "parrot", "rabbit", "cat", "goat", "donkey", "horse", "elephant")
COMPARISONS = (("bigger", ANIMALS_BY_SIZE), ("heavier", ANIMALS_BY_SIZE), ("faster", (
    "turtle", "donkey", "bicycle", "horse", "motorcycle")), ("more expensive", (
    "hat", "watch", "bicycle", "piano", "car", "house")))  # fmt: skip

# "The guide said that the museum was closed on Monday.": subjects; states; times
NEWS = _rows("""
the museum, the library, the bakery, the zoo, the bank; would be closed, would be crowded, would open; on Monday, during the holidays, after lunch, at noon
the train, the bus, the ferry, the plane; would be late, would be empty, would leave; on Monday, at noon, at midnight, tomorrow
the bridge, the road, the tunnel; was dangerous, was blocked; after the storm, at night, in winter
the concert, the wedding, the exam, the meeting; would be canceled, would begin; on Monday, at noon, tomorrow, after lunch
the lake, the harbor, the river; was frozen, was dangerous, was dirty; in winter, at night, last year
""")  # noqa: E501

# "The tourists traveled to the island by boat.": destinations; transport
JOURNEYS = _rows("""
the island, the coast, the harbor, the lighthouse; boat, helicopter, ferry
the mountains, the village, the castle, the lake; bus, bicycle, train, taxi
the capital, the desert, the festival, the border; plane, train, truck, bus
the airport, the hospital, the stadium, the factory; taxi, subway, bicycle, bus
""")
COMPANIONS = ("alone", "with an old friend", "with three cousins", "with a noisy dog", "with heavy suitcases", "without a map")

# "The brown dog slept under the table.": animals; adjectives; what they did; where
ANIMAL_ACTS = _rows("""
dog, cat, puppy; brown, black, lazy, old; slept, hid, waited; under the table, behind the sofa, near the fire, in front of the door
dog, puppy, wolf; brown, hungry, young; chased a rabbit, chased a squirrel, barked at a stranger, dug a hole; in the park, behind the barn, in the forest, on the beach
cat, kitten, owl; gray, hungry, young; caught a mouse, watched a bird, slept; on the roof, in the attic, in the barn
horse, cow, goat, donkey; white, brown, old, young; ate some grass, drank some water, waited, slept; in the field, near the river, behind the barn, under a tree
duck, swan, frog, turtle; white, tiny, lazy; swam, rested, ate a worm; in the pond, near the bridge, under the bridge, in the lake
bird, parrot, crow; yellow, black, noisy; sang, built a nest, ate some cherries; in the tree, on the roof, near the window, in the garden
monkey, elephant, bear, lion; young, old, hungry; ate some bananas, slept, roared, rested; at the zoo, at the circus, in the cage
whale, dolphin, shark; gray, young, huge; swam, chased some fish, jumped; in the bay, near the ship, along the coast
""")  # noqa: E501

WEATHER = ("raining", "snowing", "windy", "foggy", "freezing", "hot outside", "dark outside")
INDOORS = (
    "in the kitchen", "in the bedroom", "in the library", "on the sofa", "in the cabin", "in the gym", "at the theater",
    "in the workshop", "in the garage", "at the hotel", "at the cafe", "in the attic", "in the tent", "at the school",
    "in the church",
)  # fmt: skip

OUTFITS = _rows("""
dress, hat, suit, scarf; red, blue, green, yellow, black, white; to the wedding, to the concert, to the funeral, to the party, at the restaurant
boots, gloves, coat, sweater, scarf; red, blue, green, yellow, black, white; in the snow, on the mountain, on the ship, in the stable
helmet, jacket, uniform; red, blue, green, yellow, black, white; on the motorcycle, at the airport, at the parade, in the cockpit
costume, mask, crown; red, blue, green, golden, black; on the stage, at the festival, to the party, at the parade
""")  # noqa: E501
WITHOUT_ARTICLE = ("boots", "gloves")

CONDITIONS = (
    "if it snows", "if the sun shines", "if the train is late", "if the guests arrive early", "if there is enough time",
    "if nobody helps", "if the money is enough",
)  # fmt: skip

# "The market was full of tourists on Sunday.": places; crowds
CROWDED = _rows("""
market, square, street, station; tourists, soldiers, musicians, children, pigeons, dancers, flowers, bicycles
beach, harbor, lake, bay; tourists, fishermen, boats, seagulls, sailors, jellyfish, children
hospital, clinic, waiting room; patients, nurses, soldiers, children, old people
garden, park, valley, field; flowers, butterflies, children, rabbits, birds, bees, mushrooms, tents
theater, stadium, concert hall, church; students, singers, tourists, candles, flowers, journalists, old people
attic, cellar, garage, workshop; spiders, boxes, mice, tools, broken chairs, old newspapers, bicycles
""")
CROWD_TIMES = ("on Sunday", "in the summer", "at night", "after the storm", "at noon", "during the war", "yesterday")

# "The suitcase was too heavy for the girl to carry.": things; what they were too much of; verbs; who
TOO_MUCH = _rows("""
suitcase, box, ladder, sack, piano; heavy; carry, lift, move
wall, tower, mountain, tree, fence; tall, dangerous; climb
coffee, tea, milk; hot, cold, bitter; drink
soup, stew, rice, pasta, pudding; hot, salty, spicy; eat
novel, letter, report, poem; long, difficult, boring, sad; read
river, lake, bay; cold, wide, dangerous; cross
car, camera, necklace, house, horse; expensive; buy
truck, bus, tractor, ship; wide, heavy, old; drive
song, melody; difficult, sad, fast; play, sing
""")
