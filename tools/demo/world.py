"""The small world of the demo model: who lives in it, what things look like, and what is true there.

Everything here is plain data plus the few grammar helpers that turn data into English. Stories
(`generator.py`, `plots.txt`) and questions about the world (`questions.py`) both read it, so the two never disagree.
"""

from dataclasses import dataclass

NUMBERS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
           "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen", "twenty"]


def article(phrase):
    """`phrase` with "a" or "an" before it, by its first sound."""
    first = phrase.split()[0].lower()
    if first.startswith(("uni", "use", "one")):
        return "a " + phrase
    return ("an " if first[0] in "aeiou" or first.startswith(("hour", "honest")) else "a ") + phrase


def join(words, last="and"):
    """["a", "b", "c"] becomes "a, b and c"."""
    words = list(words)
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + f" {last} " + words[-1]


def capital(text):
    return text[:1].upper() + text[1:]


def plural(noun):
    irregular = {"mouse": "mice", "goose": "geese", "wolf": "wolves", "fish": "fish", "sheep": "sheep", "deer": "deer",
                 "butterfly": "butterflies", "octopus": "octopuses", "donkey": "donkeys", "monkey": "monkeys",
                 "turkey": "turkeys", "leaf": "leaves", "loaf": "loaves", "cherry": "cherries", "berry": "berries",
                 "strawberry": "strawberries", "penny": "pennies", "daisy": "daisies", "child": "children",
                 "ladybird": "ladybirds", "puppy": "puppies"}
    if noun in irregular:
        return irregular[noun]
    return noun + ("es" if noun.endswith(("s", "sh", "ch", "x")) else "s")


@dataclass
class Kind:
    """A kind of character. `can`: abilities that decide what it may do in a story. `realm`: L land, W water, B both."""

    name: str
    colours: list
    cover: str
    eats: str
    lives: str
    can: set
    legs: int
    sound: str
    baby: str
    size: int
    realm: str
    person: bool = False


_ANIMALS = """
fox;red,orange,brown;fur;berries, eggs and mice;in a den in the forest;run,dig;4;barks;kit;5;L
owl;brown,white,grey;feathers;mice and small insects;in a hollow tree;fly;2;hoots;owlet;3;L
rabbit;brown,white,grey;fur;grass, carrots and clover;in a burrow in the meadow;hop,dig;4;squeaks;bunny;3;L
bear;brown,black;fur;honey, berries and fish;in a cave in the forest;climb,dig,swim;4;growls;cub;8;L
mouse;grey,brown,white;fur;seeds, grain and cheese;in a small hole;run,climb;4;squeaks;pup;1;L
hedgehog;brown,grey;spines;worms, snails and beetles;under a pile of leaves;dig;4;snuffles;hoglet;2;L
squirrel;red,grey,brown;fur;nuts, acorns and seeds;in a nest in a tree;climb,run;4;chatters;kit;2;L
deer;brown,golden;fur;grass, leaves and bark;in the forest;run;4;calls softly;fawn;7;L
wolf;grey,white,black;fur;meat;in a den in the mountains;run,dig;4;howls;cub;6;L
badger;grey,black;fur;worms, roots and berries;in a sett under the ground;dig;4;grunts;cub;4;L
frog;green,brown;skin;flies and other insects;by a pond;hop,swim;4;croaks;tadpole;1;B
toad;brown,green;skin;slugs and insects;in damp places near ponds;hop,swim;4;croaks;tadpole;1;B
duck;white,brown,yellow;feathers;water plants, seeds and snails;on a pond;fly,swim;2;quacks;duckling;3;B
goose;white,grey;feathers;grass and grain;near a lake;fly,swim;2;honks;gosling;4;B
swan;white,black;feathers;water plants;on a lake;fly,swim;2;hisses;cygnet;5;B
turtle;green,brown;shell;leaves, fruit and water plants;near the water;swim;4;makes almost no sound;hatchling;3;B
otter;brown,grey;fur;fish and crabs;in a den by the river;swim,run;4;whistles;pup;4;B
beaver;brown;fur;bark, twigs and leaves;in a lodge on the river;swim,dig;4;slaps its tail on the water;kit;4;B
cat;black,white,orange,grey;fur;fish and meat;in a house with people;climb,run;4;meows;kitten;3;L
dog;brown,black,white,golden;fur;meat, bones and dog food;in a house with people;run,dig,swim;4;barks;puppy;5;L
cow;brown,white,black;hair;grass and hay;on a farm;run;4;moos;calf;8;L
sheep;white,black;wool;grass and clover;on a farm;run;4;bleats;lamb;6;L
pig;pink,black;skin;roots, apples and grain;on a farm;run,dig;4;oinks;piglet;6;L
horse;brown,black,white,grey;hair;grass, hay and oats;in a stable;run;4;neighs;foal;8;L
pony;brown,white,grey;hair;grass, hay and apples;in a stable;run;4;neighs;foal;7;L
goat;white,brown,grey;hair;grass, leaves and bushes;in the hills;climb,run;4;bleats;kid;6;L
hen;brown,white,red;feathers;grain, seeds and worms;in a hen house;run;2;clucks;chick;3;L
rooster;red,golden,brown;feathers;grain and seeds;on a farm;run;2;crows;chick;3;L
donkey;grey,brown;hair;grass and hay;on a farm;run;4;brays;foal;7;L
lion;golden,yellow;fur;meat;on the wide grassland;run;4;roars;cub;8;L
tiger;orange,white;fur;meat;in the jungle;run,swim,climb;4;roars;cub;8;L
elephant;grey;skin;grass, leaves and fruit;on the wide grassland;run,swim;4;trumpets;calf;10;L
monkey;brown,black,golden;fur;bananas, fruit and nuts;in the jungle;climb,run;2;chatters;baby monkey;4;L
giraffe;yellow,brown;fur;leaves from tall trees;on the wide grassland;run;4;hums;calf;9;L
zebra;black and white;hair;grass;on the wide grassland;run;4;barks;foal;7;L
hippo;grey,purple;skin;grass;in a river;swim;4;grunts;calf;9;B
crocodile;green,brown;scales;fish and meat;in a river;swim;4;hisses;hatchling;8;B
parrot;green,red,blue;feathers;seeds, nuts and fruit;in the jungle;fly;2;squawks;chick;2;L
penguin;black and white;feathers;fish;on the ice by the cold sea;swim;2;calls loudly;chick;4;B
seal;grey,white;fur;fish;by the cold sea;swim;0;barks;pup;6;B
whale;blue,grey;skin;tiny sea animals;in the sea;swim;0;sings;calf;10;W
dolphin;grey,blue;skin;fish;in the sea;swim;0;clicks and whistles;calf;7;W
fish;orange,silver,blue;scales;water plants and tiny animals;in the water;swim;0;makes no sound;fry;2;W
octopus;red,orange,purple;skin;crabs and fish;in the sea;swim;8;makes no sound;hatchling;4;W
crab;red,orange,blue;shell;tiny plants and animals;on the beach;swim,dig;10;clicks its claws;baby crab;2;B
snail;brown,yellow;shell;leaves and flowers;in the garden;slow;0;makes no sound;baby snail;1;L
bee;yellow,golden;fuzz;nectar and honey;in a hive;fly;6;buzzes;larva;1;L
butterfly;blue,yellow,orange;wings;nectar from flowers;in the meadow;fly;6;makes no sound;caterpillar;1;L
ant;black,red;shell;seeds, crumbs and sweet things;in an ant hill;dig,climb;6;makes no sound;larva;1;L
spider;black,brown;hair;flies and other insects;in a web;climb;8;makes no sound;spiderling;1;L
ladybird;red,yellow;wings;tiny green insects;in the garden;fly,climb;6;makes no sound;larva;1;L
cricket;green,brown;shell;leaves and grass;in the meadow;hop;6;chirps;nymph;1;L
camel;brown,golden;hair;grass and thorny plants;in the desert;run;4;grunts;calf;8;L
lizard;green,brown;scales;insects;on warm stones;climb,run;4;makes almost no sound;hatchling;2;L
snake;green,brown,yellow;scales;mice and eggs;in the grass;slow;0;hisses;snakelet;4;L
bat;black,brown;fur;insects and fruit;in a dark cave;fly;2;squeaks;pup;2;L
crow;black;feathers;seeds, fruit and insects;in a nest in a tall tree;fly;2;caws;chick;3;L
sparrow;brown,grey;feathers;seeds and crumbs;in a nest under the roof;fly;2;chirps;chick;1;L
robin;brown,red;feathers;worms, berries and seeds;in a nest in the hedge;fly;2;sings;chick;1;L
eagle;brown,golden;feathers;fish and small animals;high in the mountains;fly;2;screeches;eaglet;5;L
kangaroo;brown,grey,red;fur;grass and leaves;on the dry plains;hop,run;2;grunts;joey;7;L
koala;grey;fur;leaves;in a tall tree;climb;4;grunts;joey;4;L
panda;black and white;fur;bamboo;in the bamboo forest;climb;4;bleats;cub;7;L
mole;black,brown;fur;worms;under the ground;dig;4;squeaks;pup;2;L
raccoon;grey,brown;fur;fruit, nuts and eggs;in a hollow tree;climb,run;4;chatters;kit;4;L
moose;brown;fur;leaves, twigs and water plants;in the cold forest;run,swim;4;bellows;calf;9;L
llama;white,brown;wool;grass and hay;in the mountains;run;4;hums;cria;7;L
flamingo;pink;feathers;tiny shrimps;by a warm lake;fly;2;honks;chick;4;B
peacock;blue,green;feathers;seeds, fruit and insects;in a big garden;fly;2;screams;chick;4;L
dragon;green,red,blue,golden;scales;nuts, soup and hot peppers;in a cave on the mountain;fly;4;roars;baby dragon;10;L
unicorn;white,silver;hair;grass, flowers and apples;in a magic forest;run;4;neighs;foal;8;L
"""

_PEOPLE = """
girl;she;runs;3
boy;he;runs;3
princess;she;runs;1
prince;he;runs;1
queen;she;runs;1
king;he;runs;1
knight;any;runs;1
wizard;he;runs;1
witch;she;runs;1
baker;any;runs;1
farmer;any;runs;1
sailor;any;runs;1
pirate;any;runs;1
gardener;any;runs;1
robot;any;runs;2
giant;any;runs;1
fairy;she;fly;1
"""

KINDS = {}
for _line in _ANIMALS.strip().splitlines():
    _f = _line.split(";")
    KINDS[_f[0]] = Kind(_f[0], _f[1].split(","), _f[2], _f[3], _f[4], set(_f[5].split(",")), int(_f[6]), _f[7], _f[8],
                        int(_f[9]), _f[10])
ANIMALS = [k for k in KINDS]
REAL_ANIMALS = [k for k in KINDS if k not in ("dragon", "unicorn")]
PERSON_GENDER = {}
for _line in _PEOPLE.strip().splitlines():
    _f = _line.split(";")
    PERSON_GENDER[_f[0]] = _f[1]
    KINDS[_f[0]] = Kind(_f[0], ["blue", "red", "green", "yellow", "purple", "white"], "coat", "", "", {"run"}, 2, "", "",
                        6, "L", person=True)
KINDS["fairy"].can = {"fly"}
PEOPLE = list(PERSON_GENDER)

NAMES = {
    "he": """Finn Milo Oscar Leo Max Sam Tom Ben Jack Felix Hugo Otto Theo Charlie Toby Alfie Bruno Rufus Jasper Barney
Gus Ned Percy Walter Henry Arthur George Louis Simon Peter Oliver Archie Teddy Rusty Sunny Pip Basil Cosmo Dexter Edgar
Frank Harvey Ivan Joey Kit Lenny Monty Noah Patrick Quentin Robin Silas Tim Victor Wally Bobby Danny Eddie Freddie
Caspar Elmo Fergus Gilbert Humphrey""".split(),
    "she": """Luna Ruby Daisy Bella Lily Rosie Molly Ella Mia Zoe Lucy Poppy Hazel Ivy Clara Nina Olive Pearl Stella
Tilly Willow Wanda Flora Greta Hannah Iris June Kitty Lola Maya Nora Polly Queenie Sally Tessa Una Vera Winnie Anna Betty
Coco Dora Emma Fay Gina Holly Jenny Lottie Maggie Nelly Penny Sophie Trixie Violet Amy Ada Bonnie Cleo Dolly Elsie
Freya Ginger Honey Martha Matilda""".split(),
}
NAMES["he"].remove("Robin")  # also a kind of bird
GENDER_OF = {name: g for g, names in NAMES.items() for name in names}

PRONOUNS = {"he": ("he", "him", "his"), "she": ("she", "her", "her")}

COLOURS = ["red", "blue", "green", "yellow", "orange", "purple", "pink", "brown", "black", "white", "grey", "golden",
           "silver"]

# Where a story happens: the noun phrase, the phrase that follows "lived", and the realm it belongs to.
PLACES = {
    "forest": ("the forest", "in the forest", "L"), "meadow": ("the meadow", "in the meadow", "L"),
    "village": ("the village", "in a small village", "L"), "farm": ("the farm", "on a farm", "L"),
    "mountains": ("the mountains", "in the mountains", "L"), "hill": ("the hill", "on a green hill", "L"),
    "garden": ("the garden", "in a big garden", "L"), "valley": ("the valley", "in a quiet valley", "L"),
    "jungle": ("the jungle", "in the jungle", "L"), "city": ("the city", "in a busy city", "L"),
    "castle": ("the castle", "in an old castle", "L"), "desert": ("the desert", "at the edge of the desert", "L"),
    "orchard": ("the orchard", "in an apple orchard", "L"), "park": ("the park", "in the park", "L"),
    "lake": ("the lake", "by a blue lake", "B"), "river": ("the river", "by the river", "B"),
    "pond": ("the pond", "by a little pond", "B"), "island": ("the island", "on a small island", "B"),
    "beach": ("the beach", "by the beach", "B"), "swamp": ("the swamp", "near a green swamp", "B"),
    "sea": ("the sea", "in the sea", "W"), "bay": ("the bay", "in a quiet bay", "W"),
    "reef": ("the reef", "near a bright reef", "W"), "ocean": ("the ocean", "in the wide ocean", "W"),
}
SPOTS = {
    "L": ["under an old log", "behind a big rock", "in a hollow tree", "under a pile of leaves", "in the tall grass",
          "behind the old mill", "under the wooden bridge", "next to the well", "in a thorny bush",
          "on top of the stone wall", "between the roots of an oak tree", "in an empty basket", "under the garden bench",
          "inside an old boot"],
    "W": ["under a flat stone", "behind a big rock", "inside an empty shell", "in the tall seaweed", "in an old shipwreck",
          "under the white sand", "between two corals", "in a little cave"],
}
SEARCHED = {
    "L": ["under the bed", "behind the door", "in the garden", "by the path", "near the stream", "in the kitchen",
          "under the apple tree", "behind the house", "in the barn", "in the long grass", "on the hill"],
    "W": ["in the seaweed", "under the sand", "near the rocks", "behind the corals", "in the dark cave",
          "near the old anchor", "next to the big shell"],
}

OBJECTS = {  # noun: realms in which it makes sense
    "ball": "LW", "kite": "L", "lantern": "L", "map": "LW", "book": "L", "bell": "LW", "drum": "L", "shell": "LW",
    "hat": "L", "umbrella": "L", "flute": "L", "blanket": "L", "basket": "L", "crown": "LW", "coin": "LW", "feather": "L",
    "button": "LW", "balloon": "L", "mirror": "LW", "ring": "LW", "box": "LW", "key": "LW", "scarf": "L", "spoon": "LW",
    "cup": "LW", "ribbon": "LW", "stone": "LW", "pearl": "LW", "pencil": "L", "backpack": "L", "wagon": "L", "boat": "L",
    "teapot": "L", "star": "LW", "toy boat": "L", "paintbrush": "L", "marble": "LW", "necklace": "LW", "trumpet": "L",
    "watch": "LW",
}
ITEMS = {"L": ["apple", "berry", "nut", "acorn", "pear", "flower", "cherry", "mushroom", "plum", "carrot", "egg", "leaf",
               "stone", "strawberry", "cookie", "pumpkin", "coin", "candle"],
         "W": ["shell", "pearl", "stone", "coin", "starfish"]}
DISHES = ["vegetable soup", "an apple pie", "a berry cake", "a honey cake", "pancakes", "a carrot pie", "pumpkin soup",
          "mushroom soup", "a nut cake", "jam"]

# Openings of the day, with the weather they imply.
DAYS = {
    "sunny": ["one sunny morning", "one bright summer day", "one warm afternoon", "one sunny day"],
    "rainy": ["one rainy day", "one rainy afternoon", "one wet and rainy morning"],
    "windy": ["one windy day", "one windy morning", "one windy autumn day"],
    "snowy": ["one snowy morning", "one cold winter day", "one snowy day"],
    "foggy": ["one foggy morning", "one foggy day"],
    "": ["one day", "one morning", "one afternoon", "one day in spring", "early one morning", "one fine day"],
}

# What a character is like. Each line may appear after the opening, so the trait is shown and not only named.
TRAITS = {
    "brave": ["{He} was not afraid of anything.", "When others ran away, {H} stayed.",
              "Everyone knew that {H} had a brave heart."],
    "shy": ["{He} spoke very softly and often hid behind the bushes.", "{He} blushed when others looked at {him}.",
            "{H} did not like to speak in front of others."],
    "curious": ["{He} wanted to know everything.", "{He} asked questions all day long.",
                "{H} looked into every hole and under every stone."],
    "kind": ["{He} was good to everyone.", "{He} always had a nice word for others.", "{H} liked to help others."],
    "clever": ["{He} could solve almost any puzzle.", "{He} always had good ideas.", "Others came to {him} for advice."],
    "gentle": ["{He} never hurt anyone.", "{He} moved softly and spoke kindly."],
    "cheerful": ["{He} sang from morning to night.", "{He} smiled all day long.", "{H} made everybody laugh."],
    "grumpy": ["{He} grumbled about the weather every day.", "{He} did not smile very often.",
               "But deep inside, {H} had a good heart."],
    "sleepy": ["{He} yawned all day long.", "{He} could fall asleep anywhere.", "{H} loved long naps."],
    "silly": ["{He} told funny jokes and walked backwards for fun.", "{He} made funny faces all day."],
    "honest": ["{He} always told the truth.", "{H} never told a lie."],
    "patient": ["{He} never hurried.", "{H} knew how to wait."],
    "quiet": ["{He} liked to sit still and listen.", "{He} did not talk much, but {he} listened well."],
    "playful": ["{He} loved games more than anything.", "{He} jumped and played all day long."],
    "careful": ["{He} always looked twice before {he} did anything.", "{H} took good care of all {his} things."],
    "proud": ["{He} thought that nobody was as fine as {him}.", "{He} held {his} head very high."],
    "lazy": ["{He} liked to lie in the sun and do nothing.", "{He} always said, \"I will do it tomorrow.\""],
    "hungry": ["{He} thought about food all day long.", "{His} tummy was always rumbling."],
    "stubborn": ["When {he} wanted something, {he} never gave up.", "Nobody could change {his} mind."],
    "polite": ["{He} always said please and thank you.", "{H} had very good manners."],
    "friendly": ["{He} said hello to everyone.", "{He} liked everyone, and everyone liked {him}."],
    "tiny": ["{He} was so tiny that {he} could sleep in a teacup.", "{He} was smaller than all the others."],
    "little": ["{He} was still very little, but {he} had big dreams.", "{He} was the smallest in {his} family."],
    "big": ["{He} was bigger than all the others.", "{He} was so big that everyone could see {him} from far away."],
    "old": ["{He} had seen many summers and many winters.", "{He} knew many old songs."],
    "young": ["{He} still had a lot to learn.", "Every day, {he} learned something new."],
    "fast": ["Nobody was as fast as {him}.", "{He} was as quick as the wind."],
    "slow": ["{He} did everything slowly.", "{He} was never in a hurry."],
    "lonely": ["{He} often felt lonely.", "On most days, {he} had nobody to talk to."],
    "sad": ["{He} had not smiled for a long time.", "Lately {he} felt sad, and {he} did not know why."],
    "happy": ["{He} woke up with a smile every day.", "{He} was happy about small things."],
    "wise": ["{He} thought before {he} spoke.", "Many came to ask {him} for advice."],
    "strong": ["{He} could lift heavy stones.", "{He} was stronger than all the others."],
    "funny": ["{He} knew a hundred jokes.", "Everyone laughed when {he} told a joke."],
    "clumsy": ["{He} often tripped over {his} own feet.", "{He} bumped into things all the time."],
    "forgetful": ["{He} often forgot where {he} had put things.", "{He} sometimes even forgot what day it was."],
    "generous": ["{He} liked to give things to others.", "{He} shared everything {he} had."],
    "lucky": ["Good things always happened to {him}.", "{He} had once found a clover with four leaves."],
}
# Traits that describe size or age stand nearer to the noun ("a brave little fox", "a kind old owl").
LATE_TRAITS = {"tiny", "little", "old", "young", "big"}

OPPOSITES = [("big", "small"), ("hot", "cold"), ("happy", "sad"), ("fast", "slow"), ("up", "down"), ("day", "night"),
             ("old", "young"), ("open", "closed"), ("light", "dark"), ("wet", "dry"), ("full", "empty"), ("high", "low"),
             ("long", "short"), ("hard", "soft"), ("loud", "quiet"), ("good", "bad"), ("early", "late"), ("left", "right"),
             ("strong", "weak"), ("heavy", "light"), ("brave", "afraid"), ("clean", "dirty"), ("near", "far"),
             ("thick", "thin"), ("sweet", "sour"), ("first", "last"), ("inside", "outside"), ("awake", "asleep"),
             ("rich", "poor"), ("easy", "difficult"), ("yes", "no"), ("begin", "end"), ("push", "pull"), ("give", "take"),
             ("win", "lose"), ("summer", "winter"), ("friend", "enemy"), ("tall", "short"), ("warm", "cool"),
             ("true", "false")]
OPPOSITE_ONE_WAY = {("light", "dark"), ("heavy", "light"), ("long", "short"), ("tall", "short")}
RHYMES = [["cat", "hat", "bat", "mat"], ["dog", "log", "frog", "fog"], ["fox", "box", "socks"], ["bear", "pear", "chair", "hair"],
          ["mouse", "house"], ["bee", "tree", "sea", "key"], ["moon", "spoon", "balloon", "soon"], ["star", "car", "jar"],
          ["cake", "lake", "snake", "wake"], ["night", "light", "kite", "bright"], ["day", "play", "hay", "say"],
          ["ring", "sing", "king", "wing"], ["boat", "goat", "coat"], ["duck", "truck", "luck"], ["hen", "ten", "pen"],
          ["pig", "big", "dig", "wig"], ["snow", "crow", "grow"], ["rain", "train", "chain"], ["sun", "fun", "run"],
          ["bed", "red", "bread"], ["ball", "tall", "wall", "fall"], ["shell", "bell", "well"], ["owl", "growl", "towel"],
          ["rock", "clock", "sock"], ["blue", "shoe", "two", "new"], ["nose", "rose", "toes"], ["sheep", "sleep", "deep"],
          ["hill", "mill", "still"], ["tail", "snail", "whale", "pail"], ["book", "look", "cook"]]
THING_COLOURS = {
    "the sky": "blue", "the grass": "green", "snow": "white", "a banana": "yellow", "a lemon": "yellow", "the sun": "yellow",
    "a strawberry": "red", "a tomato": "red", "a carrot": "orange", "an orange": "orange", "a pumpkin": "orange",
    "coal": "black", "milk": "white", "a cloud": "white", "the night sky": "black", "a plum": "purple", "chocolate": "brown",
    "a cherry": "red", "a leaf in summer": "green", "the sea": "blue", "a fire truck": "red", "a cucumber": "green",
    "the moon": "white", "wood": "brown", "gold": "golden", "honey": "golden",
}
