"""Makes small stories that stay true to themselves.

A `Spec` says what the story must contain (kind, name, friends, colour, object, ...); every field that is None is chosen
at random. `tell(rng, spec)` returns a `Story`: its sentences, and the facts from which questions are asked later.

A story is: opening, friends, a shown trait, then the stages of one plot of `plots.txt` (want, try, turn, fix, end), then a
closing. All names, pronouns, colours and counts come from one table of slots, so they can not contradict each other.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path

from .world import (ANIMALS, COLOURS, DAYS, DISHES, GENDER_OF, ITEMS, KINDS, LATE_TRAITS, NAMES, NUMBERS, OBJECTS, PEOPLE,
                    PERSON_GENDER, PLACES, PRONOUNS, SEARCHED, SPOTS, TRAITS, Kind, article, capital, join, plural)

# Kinds that users may name although the world knows nothing special about them.
EXTRA_KINDS = """hamster kitten puppy lamb chick bunny shark dinosaur ghost monster snowman cloud tree train car tractor
chicken starfish jellyfish lobster worm beetle dragonfly moth firefly hare weasel ferret lynx leopard panther jaguar cheetah
rhino gorilla lemur sloth ostrich pigeon dove seagull pelican stork heron woodpecker magpie turkey buffalo ox bull
caterpillar grasshopper elf dwarf mermaid troll teddy doll clown king's cook chef teacher doctor painter shepherd
fisherman baby grandmother grandfather mermaid star teapot duckling piglet puppet walrus reindeer porcupine skunk
chipmunk salamander""".replace("king's cook ", "").split()
EXTRA_KINDS = list(dict.fromkeys(EXTRA_KINDS))

_ONSETS = "b bl br c ch cl cr d dr f fl fr g gl gr h j k kl kr l m n p pl pr qu r s sh sk sl sm sn sp st sw t th tr v w wh y z".split()
_VOWELS = ["a", "a", "e", "e", "i", "i", "o", "o", "u", "ai", "ee", "ou", "ia", "oo", "ea", "au", "y"]
_CODAS = ["", "", "", "", "b", "ck", "d", "f", "g", "l", "ll", "m", "mp", "n", "nd", "ng", "nt", "p", "r", "rd", "rn", "rt", "s", "sk", "st",
          "t", "th", "x", "z"]
_NAME_TAILS = ["", "", "", "a", "o", "y", "ie", "er", "us", "el", "en", "in", "on", "ina", "ella", "bert", "mond", "rick", "son", "wen", "lyn"]

# Names that only users give, so that the model meets names which it would not choose itself.
RARE_NAMES = """Mortimer Xavier Priya Ahmed Yuki Ingrid Bartholomew Cassandra Dmitri Esmeralda Fatima Giovanni Henrietta Ignatius Jamila
Kazuo Leonora Mustafa Nikolai Ophelia Pavel Quincy Rosalind Sebastian Theodora Ulrich Valentina Wilhelm Ximena Yasmin Zelda Abigail Benedict
Clementine Desmond Eleanor Ferdinand Gwendolyn Harold Isabella Jonathan Katherine Leopold Magnolia Nathaniel Octavia Penelope Raphael
Seraphina Tobias Ursula Vincent Winifred Yolanda Zachary Bjorn Chloe Diego Elena Fritz Gustav Hiro Ines Jorge Keiko Lars Mei Nadia Olga Pablo
Rashid Sven Tariq Umar Vikram Wei Ying Zara Snowball Whiskers Patches Cinnamon Nutmeg Biscuit Pepper Marble Thunder Shadow Copper Maple
Button Pudding Muffin Waffles Pickles Sparkle Twinkle Flash Blaze Rocket Ziggy Max Bubbles Fluffy Snuggles Mittens Pebble""".split()

# Syllables thrown together can spell what no story should hold; a word with one of these pieces in it is thrown again.
_UNWANTED = re.compile("fu[ck]|cu[mn]|co[ckox]|tit|di[cek]|dyk|pis|pe[nd]|pu[st]|sex|sh[ia]|ass|an[au]|rap|naz|n[ei]+g|ki[kl]|ka[ck]|go[od]|"
                       "da[gm]|hel|ho[emr]|who|vag|gin|fag|por|sl[ua]|wan|twa|bit|b?oob|poo|cra|ars|re[ct]|mor|gun|jap|jew|pak|qu[ey]|spi")


def invented_word(rng, tails=("",)):
    """A word that no list holds, so that the model learns to copy what it is given."""
    while True:
        n = rng.choice([1, 1, 2, 2, 2, 2, 3])
        word = "".join(rng.choice(_ONSETS) + rng.choice(_VOWELS) + (rng.choice(_CODAS) if i == n - 1 or rng.random() < 0.2 else "")
                       for i in range(n)) + rng.choice(tails)
        if 3 <= len(word) <= 11 and not _UNWANTED.search(word):
            return word


def invented_name(rng):
    """A name that the story itself would not choose."""
    return rng.choice(RARE_NAMES) if rng.random() < 0.3 else capital(invented_word(rng, _NAME_TAILS))


def kind_of(name):
    """The `Kind` called `name`; an unknown one gets modest defaults."""
    if name in KINDS:
        return KINDS[name]
    realm = "W" if name in ("shark", "starfish", "jellyfish", "lobster") else "L"
    return Kind(name, ["brown", "grey", "white", "blue", "green", "red"], "coat", "", "", {"run"}, 4, "", "", 4, realm)


@dataclass
class Character:
    kind: Kind
    name: str
    gender: str

    def titled(self):
        return f"{self.name} the {self.kind.name}"

    def introduced(self, rng, adjectives=()):
        return article(" ".join([*adjectives, self.kind.name])) + f" {rng.choice(['named', 'called'])} {self.name}"


@dataclass
class Spec:
    kind: str = None
    name: str = None
    gender: str = None
    trait: str = None
    trait2: str = None
    colour: str = None
    place: str = None
    n_friends: int = None
    friend_kinds: list = None
    friend_names: list = None
    obj: str = None  # "kite"
    obj_colour: str = None
    number: int = None
    item: str = None
    plot: str = None
    theme: str = None
    feel: str = None  # feeling at the start
    weather: str = None
    length: str = "normal"  # short, normal, long
    moral: bool = None
    title: bool = False
    bedtime: bool = False


@dataclass
class Story:
    text: str
    sentences: list
    title: str
    spec: Spec
    hero: Character
    friends: list
    helper: Character
    plot: str
    theme: str
    lesson: str
    summary: str
    slots: dict
    questions: list = field(default_factory=list)  # [(questions, answers)]


# ---------------------------------------------------------------------------------------------- plots

def read_plots(path):
    plots, plot, key = {}, None, None
    for line in Path(path).read_text().splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        if line.startswith("- "):
            plot[key].append(line[2:].strip())
            continue
        key, _, value = line.partition(":")
        value = value.strip()
        if key == "plot":
            plot = {"id": value, "realm": "LBW", "friends": "0-3", "uses": "", "ban": "", "kinds": "", "gather": "yes"}
            plots[value] = plot
        elif not value:
            plot[key] = []
        else:
            plot[key] = value
    for plot in plots.values():
        low, high = plot["friends"].split("-")
        plot["friends"] = (int(low), int(high))
        plot["feel"] = tuple(x.strip() for x in plot["feel"].split(">"))
        for key in ("uses", "ban", "kinds"):
            plot[key] = plot[key].split()
        if "work" in plot and plot["work"] != "search":
            plot["work"] = [w.strip() for w in plot["work"].split("|")]
        plot["qa"] = [tuple([x.strip() for x in side.split(" / ")] for side in line.split("=>")) for line in plot["qa"]]
    return plots


PLOTS = read_plots(Path(__file__).with_name("plots.txt"))
THEMES = sorted({p["theme"] for p in PLOTS.values()})
FEELINGS = sorted({p["feel"][0] for p in PLOTS.values()})

_SEARCH_WORK = {
    "fly": ["flew up and looked from above", "looked down from the sky", "flew over the whole place"],
    "dig": ["dug in the soft ground", "looked into every hole"],
    "swim": ["looked in the water", "dived down and looked under the water"],
    "climb": ["climbed up and looked around from above", "looked between the branches"],
    "hop": ["hopped from place to place and looked everywhere"],
    "run": ["ran up and down the path", "looked behind every bush"],
    "slow": ["looked slowly under every leaf"],
    "": ["looked behind every stone", "asked everyone on the way", "looked in every corner", "searched the whole path"],
}
_OTHERS_HELP = ["{names} helped, too.", "{names} came along and helped.", "And {names} helped as well."]
_OTHERS_GLAD = ["{names} joined them.", "{names} sat down with them, too.", "And {names} got a part, too."]
_OTHERS_THERE = ["{names} came to see, too.", "{names} came running, too.", "And {names} smiled, too."]


def _work(rng, plot, cast, hero, slots):
    """One sentence in which every member of the cast does something useful."""
    used, parts = set(), []
    for c in cast:
        if plot["work"] == "search":
            options = [w for a in sorted(c.kind.can) for w in _SEARCH_WORK.get(a, [])] + _SEARCH_WORK[""]
            if hero.kind.realm == "W":
                options = ["looked between the rocks", "looked behind every stone", "asked everyone on the way",
                           "searched in every corner", "looked in the seaweed", "swam in a big circle and looked around"]
        else:
            options = plot["work"]
        options = [o for o in options if o not in used]
        chosen = rng.choice(options)
        used.add(chosen)
        parts.append(f"{c.name} {_fill_lower(chosen, slots)}")
    if len(parts) == 1:
        return parts[0] + rng.choice([".", f", and {hero.name} helped."])
    if rng.random() < 0.25:
        return " ".join(p + "." for p in parts)
    return (", ".join(parts[:-1]) + ", and " + parts[-1] + ".")


# ---------------------------------------------------------------------------------------------- choosing

def _choose_name(rng, gender, taken):
    if rng.random() < 0.06:
        return invented_name(rng)
    for _ in range(20):
        name = rng.choice(NAMES[gender])
        if name not in taken:
            return name
    return invented_name(rng)


def make_character(rng, kind_name, taken, name=None, gender=None):
    kind = kind_of(kind_name)
    fixed = PERSON_GENDER.get(kind_name)
    gender = gender or (fixed if fixed in ("he", "she") else None) or GENDER_OF.get(name) or rng.choice(["he", "she"])
    name = name or _choose_name(rng, gender, taken)
    taken.add(name)
    return Character(kind, name, gender)


def _pick_kind(rng, realm, taken):
    pool = [k for k in ANIMALS if k not in taken and _fits(KINDS[k], realm)]
    if realm != "W" and rng.random() < 0.06:
        pool = [k for k in PEOPLE if k not in taken]
    return rng.choice(pool)


def _fits(kind, realm):
    if realm == "W":
        return kind.realm == "W" or kind.name in ("turtle", "seal", "crab", "otter", "penguin")
    return kind.realm in "LB"


def _allowed(plot, realm, hero, spec, n_friends):
    low, high = plot["friends"]
    if n_friends is not None and not low <= n_friends <= high:
        return False
    if ("L" if realm == "B" else realm) not in plot["realm"]:
        return False
    traits = {spec.trait, spec.trait2}
    if traits & set(plot["ban"]):
        return False
    if "lonely" in traits and low > 0:
        return False
    if "sad" in traits and plot["feel"][0] not in ("sad", "lonely", "worried"):
        return False
    for rule in plot["kinds"]:
        if rule[1:] == hero.kind.name or rule[1:] in hero.kind.can:
            return False
    if plot["id"] == "snowday" or plot["id"] == "winterfood":
        if spec.place in ("desert", "jungle", "beach") or spec.weather not in (None, "", "snowy"):
            return False
    if spec.weather and plot.get("day") not in (None, spec.weather):
        return False
    if spec.weather and not any(w.startswith("{Day}") for w in plot["want"]):
        return False
    if spec.feel and plot["feel"][0] != spec.feel:
        return False
    if spec.theme and plot["theme"] != spec.theme:
        return False
    return True


_INSTRUMENTS = ["the drum", "the flute", "the trumpet", "the fiddle", "the piano", "the guitar", "the harp"]
_PAINTS = [("red", "yellow", "orange"), ("blue", "yellow", "green"), ("red", "blue", "purple"), ("red", "white", "pink"),
           ("black", "white", "grey")]
_TREES = ["apple", "pear", "plum", "fig", "nut", "orange"]
_ELDERS = ["bear", "turtle", "owl", "goat", "badger", "donkey", "goose", "toad", "hen", "horse", "beaver"]


def _plot_slots(rng, spec, realm, taken_kinds):
    """Fresh values for what one plot may mention: object, count, places to look, ..."""
    water = "W" if realm == "W" else "L"
    obj = spec.obj or rng.choice([o for o, r in OBJECTS.items() if water in r])
    objc = spec.obj_colour or rng.choice(COLOURS)
    number = spec.number or rng.choice([2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7, 8, 9, 10, 12])
    item = spec.item or rng.choice(ITEMS[water])
    elder_pool = [e for e in (["turtle", "crab", "seal", "whale"] if water == "W" else _ELDERS) if e not in taken_kinds]
    elder = f"the {rng.choice(['old', 'old', 'big', 'grey'])} {rng.choice(elder_pool or ['starfish'])}"
    searched = rng.sample(SEARCHED[water], 2)
    spot = rng.choice(SPOTS[water])
    paint = rng.choice(_PAINTS)
    s = {
        "obj": f"{objc} {obj}", "aobj": article(f"{objc} {obj}"), "objn": obj, "objc": objc, "num": NUMBERS[number],
        "Num": capital(NUMBERS[number]), "item": item, "items": plural(item), "elder": elder, "Elder": capital(elder),
        "searched1": searched[0], "searched2": searched[1], "spot": spot, "Spot": capital(spot),
        "dish": rng.choice(DISHES), "instrument": rng.choice(_INSTRUMENTS), "paint1": paint[0], "paint2": paint[1],
        "paint3": paint[2], "flowerc": rng.choice(["red", "yellow", "blue", "white", "pink", "purple"]),
        "boatc": rng.choice(COLOURS[:7]), "kitec": rng.choice(COLOURS[:7]), "tree": rng.choice(_TREES),
        "home": "cave" if water == "W" else "house",
    }
    # What the user asked for belongs to whatever the plot has of that sort.
    if spec.obj == "kite" and spec.obj_colour:
        s["kitec"] = spec.obj_colour
    if spec.obj == "boat" and spec.obj_colour:
        s["boatc"] = spec.obj_colour
    if spec.item in _TREES:
        s["tree"] = spec.item
    return s


# ---------------------------------------------------------------------------------------------- sentences

_OPENINGS = [
    "Once upon a time, there was {hero} named {H}. {He} lived {inplace}.",
    "Once upon a time, {inplace}, there lived {hero} called {H}.",
    "{Inplace}, there lived {hero}. {His} name was {H}.",
    "There once was {hero} whose name was {H}. {He} lived {inplace}.",
    "{H} was {hero}. {He} lived {inplace}.",
    "Long ago, {hero} named {H} lived {inplace}.",
    "This is the story of {H}, {hero} who lived {inplace}.",
    "{Inplace} lived {hero} called {H}.",
    "Once there was {hero}. Everyone called {him} {H}. {H} lived {inplace}.",
    "Not so long ago, there lived {hero} {inplace}. {His} name was {H}.",
]
_COLOUR_LINES = ["{He} had {a_cover}.", "{His} {cover} {waswere} {colour}.", "{He} had {a_beautiful_cover}."]
_SCARF_LINES = ["{He} always wore {ascarf}.", "Everyone knew {him} by {his} {scarf}."]
_FRIENDS_1 = ["{His} best friend was {f1}.", "{He} had a friend, {f1}.", "{He} had one good friend, {f1}.",
              "{H} had a best friend, {f1}."]
_FRIENDS_N = ["{He} had {n} good friends: {fs}.", "{He} had {n} friends, {fs}.", "{His} {n} best friends were {fs}.",
              "{H} had {n} friends: {fs}."]
_FRIENDS_MORE = ["They did everything together.", "They played together every day.", "They were always together.",
                 "They liked each other very much."]
_MEET = ["Just then, {p} came by.", "Then {p} came along.", "Soon {p} came down the path.", "At that moment, {p} came by.",
         "{H} met {p}.", "Then {H} met {p}.", "After a while, {p} came along."]
_MEET_W = ["Just then, {p} came by.", "Then {p} came along.", "At that moment, {p} swam by.", "{H} met {p}.",
           "After a while, {p} swam along."]
_GATHER_1 = ["{H} went to {P} and told {phim} about it.", "Then {P} came.", "{H} told {P} about it.", "Soon {P} came by."]
_GATHER_N = ["{H} told {cast} about it.", "{cast} came at once.", "{H} called {his} friends, and {cast} came.",
             "Soon {cast} came by.", "{H} went to {his} friends {cast} and told them about it."]
_TRAIT_MID = {
    "brave": ["{H} was brave, and {he} did not give up.", "But a brave {hk} does not give up."],
    "curious": ["{H} was too curious to stop there."],
    "clever": ["{H} thought hard.", "{H} was clever, but {he} did not know what to do."],
    "kind": ["Even now, {H} was kind to everyone {he} met."],
    "shy": ["{H} was too shy to ask anyone.", "{H} did not dare to ask anyone, because {he} was so shy."],
    "stubborn": ["But {H} was stubborn and did not give up."],
    "patient": ["{H} stayed calm. {He} was patient."],
    "sleepy": ["{H} yawned."],
    "hungry": ["{His} tummy rumbled."],
    "grumpy": ["\"Hmpf,\" grumbled {H}."],
    "silly": ["{H} even made a silly face, but it did not help."],
    "old": ["{H} was old and needed a little rest."],
    "proud": ["{H} was too proud to ask for help."],
    "cheerful": ["{H} sang a little song to keep {his} spirits up."],
    "strong": ["{H} was strong, but this time {he} needed more than that."],
    "polite": ["\"Please, can someone help me?\" {H} said politely."],
}
_CLOSINGS = ["The end.", "", "", "", "And they all lived happily ever after.", "And so the day ended well.", "The end."]
_TRAIT_CLOSE = ["Everyone {inplace} talked about the {trait} {hk}.", "What a {trait} {hk}!", "{H} was still {atrait} {hk}, and everyone liked {him} that way."]
_MORAL_CLOSE = ["{lesson}", "And {H} learned: {lesson}", "The moral of the story: {lesson}", "That day, {H} learned something. {lesson}"]
_SCENERY = {
    "L": ["The birds were singing in the trees.", "There were flowers everywhere.", "A little stream ran past {his} house.",
          "In the morning, the sun shone through the window.", "The air smelled of grass and honey."],
    "W": ["The water was clear and warm.", "Little bubbles danced in the light.", "Colourful plants grew everywhere."],
}
_PETS = ["{He} liked to eat {eats}.", "{He} liked {eats} best."]
_OBJ_EXTRA = ["{He} had {aobj} that {he} liked very much.", "{He} always had {aobj} with {him}.",
              "{His} favourite thing was {aobj}."]
_OBJ_EXTRA_END = ["That night, {H} fell asleep with the {obj} next to {him}.", "{H} looked at {his} {obj} and smiled."]
_ITEM_EXTRA = ["At home, {he} had {num} {items}.", "{He} owned {num} {items} and counted them every day.",
               "In {his} basket there were {num} {items}."]
_TITLES = ["{H} the {Hk}", "{H} and {P}", "The {Trait} {Hk}", "A Day with {H}", "How {H} Found Help", "{H}'s Big Day"]
_INTERLUDE = ["A week later, something else happened.", "But that is not the whole story.", "A few days went by.",
              "Some time later, there was a new adventure.", "Soon after that, something new happened."]


def _fill(template, slots):
    """The template with its slots filled; a sentence may begin with a slot, so the first letter becomes a capital."""
    return capital(re.sub(r"\s+", " ", _fill_lower(template, slots)).strip())


_IN_WATER = [(r"\bran\b", "swam"), (r"\brun\b", "swim"), (r"\brunning\b", "swimming"), (r"\bwalked\b", "swam"),
             (r"\bwent for a walk\b", "went for a swim"), (r"\bjumped\b", "swam in circles"), (r"\bpath\b", "way"),
             (r"\bstood\b", "was"), (r"\bsat\b", "stayed"), (r"\bclouds\b", "waves"), (r"\bin the garden\b", "in the seaweed"),
             (r"\bfell down\b", "sank"), (r"\bdug in the soft ground\b", "dug in the soft sand")]


def _character_slots(hero):
    he, him, his = PRONOUNS[hero.gender]
    return {"H": hero.name, "he": he, "him": him, "his": his, "He": capital(he), "His": capital(his),
            "himself": "himself" if he == "he" else "herself", "hk": hero.kind.name, "Hk": hero.kind.name.title()}


def _cast_slots(rng, hero, cast):
    slots = {}
    if cast:
        p = cast[0]
        he, him, his = PRONOUNS[p.gender]
        names = [c.name for c in cast]
        others = names[1:]
        slots.update({"P": p.name, "pk": p.kind.name, "phe": he, "phim": him, "phis": his, "Phe": capital(he),
                      "Phis": capital(his), "cast": join(names), "all": join([hero.name] + names),
                      "others": rng.choice(_OTHERS_HELP).format(names=join(others)) if others else "",
                      "came": rng.choice(_OTHERS_THERE).format(names=join(others)) if others else "",
                      "cast2": rng.choice(_OTHERS_GLAD).format(names=join(others)) if others else ""})
    else:
        slots.update({"P": "", "all": hero.name, "cast": "", "others": "", "came": "", "cast2": ""})
    return slots


def _stages(rng, plot, spec, hero, cast, helper, slots, realm, short, trait):
    """The sentences of one plot. Returns them and the cast, which from `turn` on is never empty."""
    slots["work"] = _work(rng, plot, cast, hero, slots) if "work" in plot and cast else ""
    out = [_fill(rng.choice(plot["want"]), slots)]
    if not short:
        out.append(_fill(rng.choice(plot["try"]), slots))
        if trait in _TRAIT_MID and rng.random() < 0.6 and trait not in plot["ban"] and plot["gather"] == "yes":
            out.append(_fill(rng.choice(_TRAIT_MID[trait]), slots))
    if not cast:
        cast = [helper]
        slots.update(_cast_slots(rng, hero, cast))
        adjectives = rng.choice([[], [], ["old"], ["friendly"], ["small"], ["young"]])
        slots["p"] = helper.introduced(rng, [a for a in adjectives if a != trait])
        out.append(_fill(rng.choice(_MEET_W if realm == "W" else _MEET), slots))
    elif plot["gather"] == "yes" and not short:
        out.append(_fill(rng.choice(_GATHER_1 if len(cast) == 1 else _GATHER_N), slots))
    if "work" in plot and not slots["work"]:
        slots["work"] = _work(rng, plot, cast, hero, slots)
    out.append(_fill(rng.choice(plot["turn"]), slots))
    fix = rng.choice(plot["fix"])
    out.append(_fill(fix, slots))
    if len(cast) > 1 and not any(k in "".join(plot["fix"] + plot["try"]) for k in ("{work}", "{others}", "{came}", "{cast", "{all}")):
        out.append(rng.choice(_OTHERS_THERE).format(names=join([c.name for c in cast[1:]])))
    out.append(_fill(rng.choice(plot["end"]), slots))
    return out, cast


def tell(rng, spec=None):
    """A story that fulfils `spec`."""
    spec = spec or Spec()
    for _ in range(200):
        story = _try_tell(rng, Spec(**vars(spec)))
        if story:
            return story
        if spec.theme or spec.feel:
            continue
    raise ValueError(f"no plot fits {spec}")


def _try_tell(rng, spec):
    asked = Spec(**vars(spec))
    taken_names = {spec.name} | set(spec.friend_names or [])
    # Realm: from the place or the kind asked for, else mostly land.
    if spec.place:
        realm = PLACES[spec.place][2]
    elif spec.kind:
        r = kind_of(spec.kind).realm
        realm = r if r != "B" else rng.choice("LB")
    else:
        realm = "W" if rng.random() < 0.06 else "L"
    if spec.friend_kinds and realm == "W" and not all(_fits(kind_of(k), "W") for k in spec.friend_kinds):
        realm = "L"
    if spec.place is None:
        spec.place = rng.choice([p for p, v in PLACES.items() if v[2] == realm or (realm == "L" and v[2] == "B" and rng.random() < 0.5)])
    if spec.kind is None:
        spec.kind = _pick_kind(rng, realm, set(spec.friend_kinds or []))
    hero = make_character(rng, spec.kind, taken_names, spec.name, spec.gender)
    if spec.trait is None and rng.random() < 0.85:
        spec.trait = rng.choice(list(TRAITS))
        if spec.n_friends and spec.trait == "lonely":
            spec.trait = "kind"
    if (spec.trait in LATE_TRAITS and spec.trait2 in LATE_TRAITS) or spec.trait == spec.trait2:
        spec.trait2 = None
    n = spec.n_friends
    if n is None and spec.friend_kinds:
        n = len(spec.friend_kinds)
    if n is None and spec.friend_names:
        n = len(spec.friend_names)
    if n is None and not spec.plot and not spec.theme and not spec.feel:
        n = rng.choice([None, 0, 1, 1, 2, 2, 3])
        if spec.trait == "lonely":
            n = 0
    if spec.trait == "lonely" and asked.trait is None and n:
        return None
    candidates = [p for p in PLOTS.values() if _allowed(p, realm, hero, spec, n) and (spec.plot in (None, p["id"]))]
    # A plot that has the asked object or item in it is better than one where it is only mentioned.
    if asked.obj and rng.random() < 0.7:
        candidates = [p for p in candidates if "obj" in p["uses"] or asked.obj + "c" in p["uses"]] or candidates
    if asked.item and rng.random() < 0.7:
        candidates = [p for p in candidates if "items" in p["uses"]] or candidates
    if not candidates:
        return None
    plot = rng.choice(candidates)
    low, high = plot["friends"]
    if n is None:
        n = rng.randint(low, min(high, 3))
    taken_kinds = {hero.kind.name} | set(spec.friend_kinds or [])
    friends = []
    for i in range(n):
        kind = (spec.friend_kinds or [None] * n)[i] if i < len(spec.friend_kinds or []) else None
        if kind is None:
            kind = _pick_kind(rng, realm, taken_kinds)
        taken_kinds.add(kind)
        name = spec.friend_names[i] if spec.friend_names and i < len(spec.friend_names) else None
        friends.append(make_character(rng, kind, taken_names, name))
    helper = friends[0] if friends else make_character(rng, _pick_kind(rng, realm, taken_kinds), taken_names)
    taken_kinds.add(helper.kind.name)

    colour = spec.colour or (rng.choice(hero.kind.colours) if rng.random() < 0.35 and not hero.kind.person else None)
    slots = _character_slots(hero)
    slots.update(_plot_slots(rng, spec, realm, taken_kinds))
    slots.update(_cast_slots(rng, hero, friends))
    place_name, inplace, _ = PLACES[spec.place]
    slots.update({"place": place_name, "inplace": inplace, "Inplace": capital(inplace), "trait": spec.trait or "",
                  "atrait": article(spec.trait) if spec.trait else "", "Trait": (spec.trait or "little").title()})
    weather = plot.get("day") or spec.weather or (rng.choice(["sunny", "rainy", "windy"]) if rng.random() < 0.15 else "")
    if realm == "W":
        weather = ""
    slots["day"] = rng.choice(DAYS[weather])
    slots["Day"] = capital(slots["day"])

    # The opening. The colour is part of the noun phrase, or of a sentence of its own.
    traits = [t for t in (spec.trait, spec.trait2) if t]
    traits.sort(key=lambda t: t in LATE_TRAITS)
    colour_in_phrase = colour and (hero.kind.person or asked.colour and rng.random() < 0.7 or rng.random() < 0.3)
    shown = hero.kind.name
    if colour and hero.kind.person:
        colour_in_phrase = False
    adjectives = traits + ([colour] if colour_in_phrase else [])
    slots["hero"] = article(" ".join(adjectives + [shown]))
    sentences = [_fill(rng.choice(_OPENINGS), slots)]
    short = spec.length == "short"
    scarf = None
    if colour and not colour_in_phrase:
        slots.update({"colour": colour, "cover": hero.kind.cover,
                      "waswere": "were" if hero.kind.cover in ("feathers", "spines", "scales", "wings") else "was"})
        single = article if hero.kind.cover in ("coat", "shell") else str
        slots["a_cover"] = single(f"{colour} {hero.kind.cover}")
        slots["a_beautiful_cover"] = single(f"beautiful {colour} {hero.kind.cover}")
        sentences.append(_fill(rng.choice(_COLOUR_LINES), slots))
    elif not short and rng.random() < 0.12 and realm != "W":
        scarf = f"{rng.choice(COLOURS[:7])} {rng.choice(['scarf', 'hat', 'ribbon', 'bow'])}"
        slots.update({"scarf": scarf, "ascarf": article(scarf)})
        sentences.append(_fill(rng.choice(_SCARF_LINES), slots))
    for t in traits if asked.trait2 else traits[:1]:
        if asked.trait or (not short and rng.random() < 0.8):
            sentences.append(_fill(rng.choice(TRAITS[t]), slots))
    if not short:
        if rng.random() < (0.6 if spec.length == "long" else 0.12):
            sentences.append(_fill(rng.choice(_SCENERY["W" if realm == "W" else "L"]), slots))
        if hero.kind.eats and rng.random() < (0.4 if spec.length == "long" else 0.08):
            slots["eats"] = hero.kind.eats
            sentences.append(_fill(rng.choice(_PETS), slots))
    if friends:
        slots["f1"] = friends[0].introduced(rng)
        slots["fs"] = join([f.introduced(rng) for f in friends])
        slots["n"] = NUMBERS[n]
        sentences.append(_fill(rng.choice(_FRIENDS_1 if n == 1 else _FRIENDS_N), slots))
        if not short and rng.random() < 0.3:
            sentences.append(rng.choice(_FRIENDS_MORE))
    extra_object = asked.obj and not ("obj" in plot["uses"] or asked.obj + "c" in plot["uses"])
    if extra_object:
        sentences.append(_fill(rng.choice(_OBJ_EXTRA), slots))
    extra_item = asked.item and not ("items" in plot["uses"] or plot["id"] == "pick" and asked.item in _TREES)
    if extra_item:
        sentences.append(_fill(rng.choice(_ITEM_EXTRA), slots))

    intro = len(sentences)
    # Once told, the place is known: "in a small village" becomes "in the small village".
    slots["inplace"] = re.sub(r"\b(a|an) ", "the ", inplace)
    body, cast = _stages(rng, plot, spec, hero, friends, helper, slots, realm, short, spec.trait)
    if asked.item and not extra_item and not any(slots["items"] in s or slots["tree"] in s for s in body):
        return None
    if asked.number and not any(slots["num"] in s.lower() for s in sentences + body):
        return None
    if asked.obj and not any(asked.obj in s for s in sentences + body):
        return None
    if asked.obj_colour and not any(f"{asked.obj_colour} {asked.obj}" in s or f"{slots['objc']}" in s for s in sentences + body):
        return None
    if asked.weather and not any(slots["day"].lower() in s.lower() for s in body):
        return None
    sentences += body
    main_slots = dict(slots)

    if spec.length == "long":
        others = [p for p in PLOTS.values() if p["id"] not in (plot["id"], "lonely", "neighbour") and not p.get("day") and
                  _allowed(p, realm, hero, Spec(trait=spec.trait if spec.trait != "lonely" else None), len(cast)) and
                  any("{Day}" in w for w in p["want"])]
        if others:
            second = rng.choice(others)
            slots.update(_plot_slots(rng, Spec(), realm, taken_kinds))
            slots.update(_cast_slots(rng, hero, cast))
            slots["day"] = rng.choice(DAYS[""])
            slots["Day"] = capital(slots["day"])
            sentences.append(rng.choice(_INTERLUDE))
            sentences += _stages(rng, second, Spec(), hero, cast, helper, slots, realm, False, None)[0]

    lesson = rng.choice(plot["lesson"])
    main_slots["lesson"] = slots["lesson"] = lesson
    if extra_object and rng.random() < 0.6:
        sentences.append(_fill(rng.choice(_OBJ_EXTRA_END), main_slots))
    if spec.trait and not short and rng.random() < 0.15 and spec.trait not in ("sad", "lonely", "hungry"):
        sentences.append(_fill(rng.choice(_TRAIT_CLOSE[:2] if spec.trait in ("lazy", "grumpy", "proud") else _TRAIT_CLOSE), main_slots))
    moral = asked.moral if asked.moral is not None else rng.random() < 0.3
    if moral:
        sentences.append(_fill(rng.choice(_MORAL_CLOSE[1:] if asked.moral else _MORAL_CLOSE), main_slots))
    closing = rng.choice(_CLOSINGS)
    if spec.bedtime:
        closing = rng.choice(["Then everyone went to sleep. Good night!", "Good night and sweet dreams!",
                              f"{hero.name} closed {PRONOUNS[hero.gender][2]} eyes and slept. Good night!"])
    if closing:
        sentences.append(closing)
    if realm == "W":
        for pattern, new in _IN_WATER:
            sentences = [re.sub(pattern, new, s) for s in sentences]
    # Characters are named with their kind now and then, so that nobody is forgotten.
    text_sentences = []
    tail = sentences[1:]
    named = False
    for s in tail:
        if not named and rng.random() < 0.12 and s.startswith(hero.name + " "):
            s = f"{hero.name} the {hero.kind.name}" + s[len(hero.name):]
            named = True
        text_sentences.append(s)
    sentences = sentences[:1] + text_sentences

    title = _fill(rng.choice(_TITLES), {**main_slots, "P": cast[0].name})
    text = (f"{title}\n\n" if spec.title else "") + _paragraphs(rng, sentences, intro)
    story = Story(text, sentences, title, spec, hero, friends, helper, plot["id"], plot["theme"], lesson,
                  _fill(plot["sum"], main_slots) + ".", main_slots)
    story.questions = _questions(rng, story, plot, colour, colour_in_phrase, scarf, cast, weather)
    return story


def _paragraphs(rng, sentences, intro):
    """One paragraph, or two or three: the introduction, the plot, and what follows."""
    if len(sentences) < 8 or rng.random() < 0.35:
        return " ".join(sentences)
    cuts = [intro] + ([rng.randint(intro + 3, len(sentences) - 2)] if len(sentences) - intro > 6 else [])
    bounds = [0, *cuts, len(sentences)]
    return "\n\n".join(" ".join(sentences[a:b]) for a, b in zip(bounds, bounds[1:]))


# ---------------------------------------------------------------------------------------------- questions about it

def _questions(rng, story, plot, colour, colour_in_phrase, scarf, cast, weather):
    s, hero, friends, spec = story.slots, story.hero, story.friends, story.spec
    he, him, his = PRONOUNS[hero.gender]
    He, His = capital(he), capital(his)
    H, k = hero.name, hero.kind.name
    q = [
        (["Who is the story about?", "Who is the hero of the story?", "Who is the main character?", "Who is the story about"],
         [f"The story is about {H}, {article(k)}.", f"It is about {article(k)} named {H}.", f"The hero is {H} the {k}."]),
        ([f"What is the name of the {k}?", f"What was the {k} called?", f"What is the {k}'s name?", "What is the hero's name?",
          f"What was the {k}'s name?"],
         [f"The {k} is called {H}.", f"{His} name is {H}.", f"The name of the {k} is {H}."]),
        ([f"What kind of animal is {H}?" if not hero.kind.person and k in ANIMALS else f"Who is {H}?", f"What is {H}?", f"Who is {H}?"],
         [f"{H} is {article(k)}.", f"{He} is {article(k)}."]),
        ([f"Where did {H} live?", f"Where does {H} live?", "Where does the story happen?", f"Where did the {k} live?"],
         [f"{H} lived {s['inplace']}.", f"{He} lived {s['inplace']}.", f"The {k} lived {s['inplace']}."]),
        ([f"How did {H} feel at the end?", f"How did {H} feel in the end?", f"How does {H} feel at the end of the story?"],
         [f"{H} felt {plot['feel'][1]}.", f"{He} felt {plot['feel'][1]} in the end.", f"In the end, {H} was {plot['feel'][1]}."]),
        ([f"How did {H} feel at the beginning?", f"How did {H} feel at first?"],
         [f"At first, {H} felt {plot['feel'][0]}.", f"{He} felt {plot['feel'][0]}."]),
        ([f"Why was {H} {plot['feel'][0]}?", f"Why did {H} feel {plot['feel'][0]}?"],
         [f"{H} was {plot['feel'][0]} because {_fill_lower(plot['why'], s)}.", f"Because {_fill_lower(plot['why'], s)}."]),
        (["What can we learn from the story?", "What is the moral of the story?", "What is the lesson?", "What is the moral?",
          "What does the story teach us?"],
         [story.lesson, f"The moral is: {story.lesson}"]),
        (["What is the story about?", "Can you sum up the story?", "What happened in the story?", "Sum it up in one sentence.",
          "Summarize the story."],
         [story.summary]),
        (["How does the story end?", "What happened at the end?", "How did it end?"],
         [f"It ends well: {H} was {plot['feel'][1]}.", f"In the end, {H} was {plot['feel'][1]}."]),
    ]
    if spec.trait and (story.spec.trait in story.text):
        q.append(([f"What was {H} like?", f"What kind of {k} was {H}?", f"How was {H}?"],
                  [f"{H} was {spec.trait}.", f"{H} was {article(spec.trait)} {k}.", f"{He} was very {spec.trait}."]))
    if colour:
        if colour_in_phrase:
            q.append(([f"What colour is {H}?", f"What color is {H}?", f"What colour was the {k}?", f"What color was the {k}?"],
                      [f"{H} is {colour}.", f"The {k} was {colour}.", f"{He} is {colour}."]))
        else:
            verb = "are" if s.get("waswere") == "were" else "is"
            c = s["cover"]
            q.append(([f"What colour {verb} {H}'s {c}?", f"What color {verb} {H}'s {c}?", f"What colour was {H}?"],
                      [f"{H}'s {c} {verb} {colour}.", f"{His} {c} {s['waswere']} {colour}."]))
    if scarf:
        q.append(([f"What did {H} wear?", f"What was {H} wearing?"], [f"{H} wore {article(scarf)}.", f"{He} wore {article(scarf)}."]))
    n = len(friends)
    if n:
        names = join([f.name for f in friends])
        noun = "friend" if n == 1 else "friends"
        q.append(([f"How many friends did {H} have?", f"How many friends does {H} have?", f"How many friends are in the story?"],
                  [f"{H} had {NUMBERS[n]} {noun}.", f"{He} had {NUMBERS[n]} {noun}, {names}.", f"{capital(NUMBERS[n])}."]))
        q.append(([f"What {'is' if n == 1 else 'are'} the name{'' if n == 1 else 's'} of the {noun}?", f"Who {'is' if n == 1 else 'are'} {H}'s {noun}?",
                   f"What {'was' if n == 1 else 'were'} {H}'s {noun} called?"],
                  [f"{H}'s {noun} {'was' if n == 1 else 'were'} {names}.",
                   f"{His} {noun} {'is' if n == 1 else 'are'} {join([f.titled() for f in friends])}."]))
    for c in cast:
        q.append(([f"What kind of animal is {c.name}?" if c.kind.name in ANIMALS else f"Who is {c.name}?", f"Who is {c.name}?",
                   f"What is {c.name}?"],
                  [f"{c.name} is {article(c.kind.name)}."]))
        wrong = rng.choice([x for x in ANIMALS if x != c.kind.name])
        q.append(([f"Is {c.name} {article(wrong)}?", f"Was {c.name} {article(wrong)}?"],
                  [f"No, {c.name} is {article(c.kind.name)}.", f"No. {c.name} is {article(c.kind.name)}, not {article(wrong)}."]))
    if plot["gather"] == "yes":
        q.append(([f"Who helped {H}?", f"Who had an idea?"] if "idea" in story.text else [f"Who helped {H}?", f"Who came to help {H}?"],
                  [f"{join([c.name for c in cast])} helped {H}.", f"{cast[0].titled()} helped {him}." if len(cast) == 1 else
                   f"{join([c.name for c in cast])} helped {him}."]))
    wrong = rng.choice([x for x in ANIMALS if x != k])
    q.append(([f"Is {H} {article(wrong)}?", f"Was {H} {article(wrong)}?"],
              [f"No, {H} is {article(k)}.", f"No. {H} is {article(k)}, not {article(wrong)}."]))
    q.append(([f"Is {H} {article(k)}?", f"Was {H} {article(k)}?"], [f"Yes, {H} is {article(k)}.", f"Yes. {H} is {article(k)}."]))
    unknown = rng.choice([f"What is the name of {H}'s mother?", f"How old is {H}?" if story.plot != "birthday" else f"What did {H}'s mother say?",
                          f"What did {H} eat for breakfast?" if story.plot != "winterfood" else "What was the name of the snowman?",
                          f"Who is {H}'s teacher?", f"When was {H} born?", f"What is {H}'s favourite song?", f"How tall is {H}?"])
    q.append(([unknown], ["The story does not say that.", "I do not know. The story does not tell us.", "That is not in the story."]))
    if weather and any(s["day"].lower() in x.lower() for x in story.sentences):
        q.append((["What was the weather like?", "How was the weather?"], [f"It was {weather}.", f"It was {article(weather)} day."]))
    for questions, answers in plot["qa"]:
        filled_q = [_fill(x, s) for x in questions]
        filled_a = [_fill(x, s) for x in answers]
        # Ask only for what the chosen sentences have told.
        key = _key_words(answers[0], s)
        if all(w in story.text for w in key):
            q += [(filled_q, filled_a)] * 2
    return q


def _fill_lower(template, slots):
    return re.sub(r"\{(\w+)\}", lambda m: str(slots[m.group(1)]), template)


def _key_words(answer, slots):
    """The values that an answer gives away; they must occur in the text."""
    keys = re.findall(r"\{(spot|num|items|objc|elder|Elder|flowerc|kitec|boatc|paint1|paint3|dish|instrument|tree|objn)\}", answer)
    return [slots[k] for k in keys if k != "Elder"] + ([slots["elder"][4:]] if "Elder" in keys else [])
