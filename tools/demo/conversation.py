"""Turns stories and questions into conversations: the documents that the demo model learns from.

`document(rng)` returns the messages of one conversation (or one bare story). `story_request(rng)` makes a request for a
story together with the `Spec` that its answer has to fulfil; the evaluation in `train_demo.py` uses the same function.
"""

import re

from .generator import EXTRA_KINDS, PLOTS, Spec, invented_name, invented_word, kind_of, tell
from .questions import outside_question, small_talk, world_question
from .world import (ANIMALS, COLOURS, GENDER_OF, ITEMS, KINDS, LATE_TRAITS, NAMES, NUMBERS, OBJECTS, PEOPLE, PERSON_GENDER,
                    PLACES, PRONOUNS, TRAITS, article, capital, join, plural)

_FRAMES = ["Tell me {s}.", "Tell me {s}.", "Tell me {s}.", "Please tell me {s}.", "Can you tell me {s}?", "Write {s}.", "Write me {s}.",
           "Please write {s}.", "Could you tell me {s}?", "I would like to hear {s}.", "I want to hear {s}.", "I want {s}.",
           "Make up {s}.", "Give me {s}.", "Do you know {s}?", "{S}, please.", "{S}.", "Let's hear {s}.", "Can you write {s}?",
           "Create {s}.", "May I hear {s}?", "Would you tell me {s}?", "Could you please write {s}?", "Hi, can you tell me {s}?",
           "Tell us {s}.", "Hello! Please tell me {s}.", "I'd love to hear {s}.", "Invent {s}."]
_PLOT_PHRASES = {
    "lost": ["who loses something", "who lost something", "who is looking for something"],
    "found": ["who finds something"],
    "dark": ["who is afraid of the dark", "that is afraid of the dark"],
    "lonely": ["who finds a friend", "who has no friends", "who is looking for a friend"],
    "stormhome": ["whose house is broken by a storm", "and a big storm", "in a storm"],
    "baking": ["who wants to cook something", "who likes to cook", "who bakes"],
    "race": ["and a race", "in a race"],
    "bridge": ["who must cross a river", "and a broken bridge"],
    "winterfood": ["in winter", "in the snow who shares food"],
    "treasure": ["who finds a treasure", "and a treasure", "with a treasure map"],
    "stuck": ["who gets stuck in the mud"],
    "swim": ["who learns to swim", "who can not swim", "that wants to swim"],
    "music": ["who makes music", "who learns to play an instrument", "who likes music"],
    "birthday": ["who has a birthday", "and a birthday party", "on {his} birthday"],
    "lie": ["who tells a lie"],
    "seed": ["who plants a seed", "and a flower", "who grows a flower"],
    "moon": ["who wants to touch the moon", "and the moon"],
    "babybird": ["who helps a baby bird", "and a baby bird"],
    "sick": ["whose friend is ill"],
    "noise": ["who hears a strange noise"],
    "neighbour": ["who gets a new neighbour", "and a new neighbour"],
    "letter": ["who must bring a letter", "and a letter"],
    "boat": ["who builds a boat", "who sails to an island"],
    "band": ["who starts a band"],
    "fog": ["who gets lost", "who is lost in the fog"],
    "paint": ["who paints {his} house"],
    "broken": ["who breaks something"],
    "sleepless": ["who can not sleep", "that can't sleep"],
    "quarrel": ["who has a fight with a friend", "who is angry with a friend"],
    "well": ["and a well", "who needs water"],
    "kite": ["and a kite", "who flies a kite"],
    "hideseek": ["who plays hide and seek"],
    "wish": ["who makes a wish", "and a falling star"],
    "small": ["who thinks that {he} is too small"],
    "stars": ["who counts the stars", "and the stars"],
    "play": ["who is nervous"],
}
_WEATHER_PHRASES = {"sunny": ["on a sunny day", "in summer"], "rainy": ["on a rainy day", "in the rain"],
                    "windy": ["on a windy day"], "snowy": ["on a snowy day", "in winter"], "foggy": ["on a foggy day"]}
_NEUTRAL_SYSTEM = ["You are a helpful assistant.", "You are a friendly assistant.", "You tell stories.", "You are a storyteller.",
                   "You are a kind storyteller for children.", "Be helpful.", "You are a helpful AI assistant.",
                   "Answer the user's questions.", "You are realizar's demo model.", "You are a helpful, honest assistant."]


def random_kind(rng, land_only=False):
    r = rng.random()
    if r < 0.78:
        kind = rng.choice(ANIMALS)
    elif r < 0.87:
        kind = rng.choice(PEOPLE)
    elif r < 0.94:
        kind = rng.choice(EXTRA_KINDS)
    else:
        kind = invented_word(rng)
    if land_only and kind_of(kind).realm == "W":
        return random_kind(rng, True)
    return kind


def random_name(rng, gender=None):
    if rng.random() < 0.5:
        return invented_name(rng), None
    gender = gender or rng.choice(["he", "she"])
    return rng.choice(NAMES[gender]), gender


def _place_phrase(rng, place):
    inside = PLACES[place][1]
    definite = re.sub(r"\b(a|an) ", "the ", inside)
    preposition = inside.split()[0] if not inside.startswith("at the edge") else "in"
    return rng.choice([inside, definite, f"{preposition} the {place}", f"{preposition} the {place}"])


def _number(rng, n):
    return NUMBERS[n] if rng.random() < 0.75 else str(n)


def story_request(rng, strict=False):
    """A request for a story, as (text, Spec). `strict`: only the constraints that the evaluation can check."""
    spec = Spec()
    n_wishes = rng.choices([0, 1, 2, 3], [0.32, 0.36, 0.22, 0.10])[0]
    if rng.random() < 0.9 or strict:
        spec.kind = random_kind(rng)
    fixed = PERSON_GENDER.get(spec.kind)
    spec.gender = fixed if fixed in ("he", "she") else None
    wishes = rng.sample(["trait", "trait", "trait", "colour", "name", "name", "name", "friends", "friends", "friends", "friendkinds", "place", "place",
                         "object", "number", "plot", "plot", "weather", "theme"], n_wishes + 3) if n_wishes else []
    wishes = list(dict.fromkeys(wishes))[:n_wishes]
    if strict:
        wishes = [w for w in wishes if w not in ("plot", "weather", "theme", "number", "object")]
    if "friends" in wishes and "friendkinds" in wishes:
        wishes.remove("friendkinds")
    land = spec.kind is None or kind_of(spec.kind).realm != "W"
    phrases = []

    if "name" in wishes:
        spec.name, gender = random_name(rng, spec.gender)
        spec.gender = spec.gender or gender
    if "trait" in wishes:
        spec.trait = rng.choice(list(TRAITS))
        if rng.random() < 0.15:
            spec.trait2 = rng.choice([t for t in TRAITS if t != spec.trait])
            if (spec.trait in LATE_TRAITS) == (spec.trait2 in LATE_TRAITS) == True:
                spec.trait2 = None
    if "colour" in wishes:
        spec.colour = rng.choice(COLOURS)
    gender_word = spec.gender or (rng.choice(["he", "she"]) if rng.random() < 0.3 else None)
    possessive = PRONOUNS[gender_word][2] if gender_word else rng.choice(["its", "its", "the"])
    if "friends" in wishes:
        spec.n_friends = rng.choices([1, 2, 3, 4], [0.25, 0.4, 0.25, 0.1])[0]
        n = spec.n_friends
        count = _number(rng, n)
        noun = "friend" if n == 1 else "friends"
        options = [f"with {count} {noun}", f"with {count} {noun}", f"and {possessive if possessive != 'the' else 'its'} {count} {noun}",
                   f"who has {count} {noun}", f"that has {count} {noun}", f"and {count} {noun}"]
        if n == 1:
            options += ["with a friend", "who has a friend", "and a friend", "and its best friend"]
        phrase = rng.choice(options)
        if phrase.startswith(("and his", "and her")):
            spec.gender = "he" if "his" in phrase else "she"
        phrases.append(phrase)
    if "friendkinds" in wishes:
        k = rng.choice([1, 1, 2])
        spec.friend_kinds = [random_kind(rng, True) for _ in range(k)]
        if len({*spec.friend_kinds, spec.kind}) < k + 1:
            return story_request(rng, strict)
        if rng.random() < 0.35:
            names = [random_name(rng)[0] for _ in range(k)]
            if len({*names, spec.name}) == k + 1:
                spec.friend_names = names
        spec.n_friends = k
        if spec.friend_names:
            told = join([f"{n} the {f}" for n, f in zip(spec.friend_names, spec.friend_kinds)])
            phrases.append(rng.choice([f"and {told}", f"and {'its friend' if k == 1 else 'its friends'} {told}", f"with {told}"]))
        else:
            told = join([article(f) for f in spec.friend_kinds])
            phrases.append(rng.choice([f"and {told}", f"and {told}", f"with {told}", f"who is friends with {told}",
                                       f"and its friend{'s' if k > 1 else ''}, {told}"]))
    if "place" in wishes:
        realm_ok = [p for p, v in PLACES.items() if v[2] != "W"] if land else ["sea", "bay", "reef", "ocean"]
        spec.place = rng.choice(realm_ok)
        where = _place_phrase(rng, spec.place)
        phrases.append(rng.choice([f"who lives {where}", f"that lives {where}", where, where]))
    if "object" in wishes:
        spec.obj = rng.choice([o for o, r in OBJECTS.items() if land or "W" in r])
        if rng.random() < 0.6:
            spec.obj_colour = rng.choice(COLOURS)
        thing = f"{spec.obj_colour} {spec.obj}" if spec.obj_colour else spec.obj
        if rng.random() < 0.3:
            spec.plot = rng.choice(["lost", "lost", "found"])
            spec.n_friends = spec.n_friends if (spec.n_friends or 0) < 4 else None
            phrases.append(rng.choice(["who lost {t}", "who loses {t}", "who is looking for {t}"] if spec.plot == "lost" else
                                      ["who finds {t}", "who found {t}"]).format(t=article(thing)))
            if spec.plot == "found" and (spec.n_friends or 0) > 3:
                spec.plot = None
        else:
            phrases.append(rng.choice(["and {t}", "with {t}", "who has {t}", "and {t}"]).format(t=article(thing)))
    if "number" in wishes:
        spec.number, spec.item = rng.randint(2, 12), rng.choice(ITEMS["L" if land else "W"])
        phrases.append(rng.choice(["and {c}", "with {c}", "who has {c}"]).format(c=f"{_number(rng, spec.number)} {plural(spec.item)}"))
    if "plot" in wishes and spec.plot is None:
        choices = [p for p in _PLOT_PHRASES if spec.n_friends is None or PLOTS[p]["friends"][0] <= spec.n_friends <= PLOTS[p]["friends"][1]]
        spec.plot = rng.choice(choices)
        g = spec.gender or "he"
        phrase = rng.choice(_PLOT_PHRASES[spec.plot]).format(he=g if spec.gender else "it", his=PRONOUNS[g][2] if spec.gender else "its")
        phrases.append(phrase)
    if "weather" in wishes and land and spec.plot is None:
        spec.weather = rng.choice(["sunny", "rainy", "windy", "snowy", "foggy"])
        phrases.append(rng.choice(_WEATHER_PHRASES[spec.weather]))
    if "theme" in wishes and spec.plot is None and spec.weather is None:
        spec.theme = rng.choice(sorted({p["theme"] for p in PLOTS.values()}))

    # Put the story's frame together.
    adjective = ""
    if not strict or rng.random() < 0.3:
        spec.length = rng.choices(["normal", "short", "long"], [0.8, 0.12, 0.08])[0]
    if spec.length != "normal":
        adjective = rng.choice({"short": ["short ", "little ", "very short "], "long": ["long ", "longer ", "very long "]}[spec.length])
    elif rng.random() < 0.05:
        adjective = "bedtime "
        spec.bedtime = True
    elif rng.random() < 0.06:
        adjective = rng.choice(["nice ", "good ", "new ", "funny ", "beautiful ", "small ", "sweet "])
        spec.length = "short" if adjective == "small " else spec.length
    noun = rng.choice(["story"] * 8 + ["tale", "fairy tale"])
    words = [t for t in sorted([t for t in (spec.trait, spec.trait2) if t], key=lambda t: t in LATE_TRAITS)]
    if spec.colour:
        words.append(spec.colour)
    rng.shuffle(phrases)
    phrases.sort(key=lambda p: not p.startswith(("and its friend", "and a ", "and an ")) and p.startswith(("who", "that")))
    # "in the forest" stands last, where it can not be read as part of another phrase.
    phrases.sort(key=lambda p: p.split()[0] in ("in", "on", "by", "near", "at"))
    if len([p for p in phrases if p.startswith(("who", "that"))]) > 1:
        seen = False
        for i, p in enumerate(phrases):
            if p.startswith(("who", "that")):
                if seen:
                    phrases[i] = "and " + p
                seen = True
    if spec.kind:
        hero = article(" ".join(words + [spec.kind]))
        if spec.name:
            hero = rng.choice([f"{hero} named {spec.name}", f"{hero} called {spec.name}", f"{spec.name} the {' '.join(words + [spec.kind])}"])
        about = " about " + " ".join([hero] + phrases)
    elif phrases or words or spec.name:
        hero = (article(" ".join(words + ["animal"])) if words else spec.name if spec.name else "an animal")
        if words and spec.name:
            hero += f" named {spec.name}"
        about = " about " + " ".join([hero] + phrases)
    else:
        about = ""
    if spec.theme:
        about = (about + " and " if about else " about ") + spec.theme
    s = article(adjective + noun) + about
    extra = ""
    if rng.random() < 0.05:
        spec.moral = True
        extra = rng.choice([" with a moral", " and end with a moral"]) if not about else ""
        if about:
            extra = rng.choice([". It should have a moral", ". Add a moral at the end", ". End with a moral"])
    elif rng.random() < 0.04:
        spec.title = True
        extra = rng.choice([". Give it a title", ". It needs a title", ". Add a title"])
    frame = rng.choice(_FRAMES)
    if extra.startswith("."):
        frame = frame if frame.endswith(".") else "Tell me {s}."
    text = frame.replace("{s}", s + extra).replace("{S}", capital(s + extra))
    if rng.random() < 0.04 and spec.kind and not words and not phrases and not spec.theme and spec.length == "normal" and not extra:
        text = rng.choice([f"{capital(spec.kind)}", f"{article(spec.kind)}", f"{spec.kind} story", f"story about {plural(spec.kind)}",
                           f"A {spec.kind} story please"]) if not spec.name else text
        spec.bedtime = False
    return text, spec


def roughen(rng, text):
    """Users do not always write with care: no final period, lower case, sometimes upper case."""
    r = rng.random()
    if r < 0.25:
        text = text.rstrip(".!?")
    r = rng.random()
    if r < 0.15:
        text = text.lower()
    elif r < 0.165 and len(text) < 80:
        text = text.upper()
    return text


def request_and_story(rng, **changes):
    while True:
        text, spec = story_request(rng)
        for key, value in changes.items():
            setattr(spec, key, value)
        try:
            return text, tell(rng, spec)
        except ValueError:
            continue


def _question(rng, story, done):
    left = [q for q in story.questions if q[0][0] not in done]
    questions, answers = rng.choice(left)
    done.add(questions[0])
    return rng.choice(questions), rng.choice(answers)


_ANOTHER = ["Tell me another story.", "Another one, please.", "One more story!", "Can you tell me another one?", "Tell me one more.", "More!"]
_ANOTHER_ABOUT = ["Now tell me a story about {k}.", "Now one about {k}, please.", "And now a story about {k}.", "Tell me one about {k}."]


def _story_chat(rng):
    text, story = request_and_story(rng)
    messages = [("user", roughen(rng, text)), ("assistant", story.text)]
    done = set()
    turns = rng.choices([0, 1, 2, 3, 4], [0.5, 0.2, 0.14, 0.1, 0.06])[0]
    for _ in range(turns):
        r = rng.random()
        if r < 0.8:
            q, a = _question(rng, story, done)
            messages += [("user", roughen(rng, q)), ("assistant", a)]
        elif r < 0.88:
            from .questions import THANKS
            messages += [("user", roughen(rng, rng.choice(THANKS[0]))), ("assistant", rng.choice(THANKS[1]))]
        elif r < 0.93:
            q, a = world_question(rng)
            messages += [("user", roughen(rng, rng.choice(q))), ("assistant", rng.choice(a))]
        else:
            if rng.random() < 0.4:
                text, story = rng.choice(_ANOTHER), tell(rng, Spec(length=rng.choice(["normal", "short"])))
            else:
                kind = random_kind(rng)
                text, story = rng.choice(_ANOTHER_ABOUT).format(k=article(kind)), tell(rng, Spec(kind=kind))
            messages += [("user", roughen(rng, text)), ("assistant", story.text)]
            done = set()
    return messages


_READ = ["{t}\n\n{q}", "{t}\n\nQuestion: {q}", "Story: {t}\n\nQuestion: {q}", "Read this story: {t}\n\n{q}", "{q}\n\n{t}",
         "Here is a story. {t} {q}", "Read the story and answer the question.\n\n{t}\n\n{q}", "{t} {q}"]


def _reading(rng):
    _, story = request_and_story(rng)
    done = set()
    q, a = _question(rng, story, done)
    messages = [("user", rng.choice(_READ).format(t=story.text, q=roughen(rng, q))), ("assistant", a)]
    for _ in range(rng.choices([0, 1, 2, 3], [0.4, 0.25, 0.2, 0.15])[0]):
        q, a = _question(rng, story, done)
        messages += [("user", roughen(rng, q)), ("assistant", a)]
    return messages


def _world_chat(rng):
    messages = []
    for _ in range(rng.choices([1, 2, 3, 4], [0.6, 0.2, 0.12, 0.08])[0]):
        q, a = world_question(rng)
        messages += [("user", roughen(rng, rng.choice(q))), ("assistant", rng.choice(a))]
    return messages


def _talk(rng):
    messages = []
    for _ in range(rng.choice([1, 1, 2])):
        q, a = small_talk(rng) if rng.random() < 0.55 else outside_question(rng)
        messages += [("user", roughen(rng, rng.choice(q))), ("assistant", rng.choice(a))]
    last = messages[-1][1]
    if ("Shall I tell you" in last or "Would you like to hear" in last or "if you like" in last) and rng.random() < 0.5:
        messages += [("user", roughen(rng, rng.choice(["Yes, please.", "Yes!", "Okay", "Sure", "Yes please", "That would be nice.", "ok"]))),
                     ("assistant", tell(rng).text)]
    elif "Which animal" in last and rng.random() < 0.5:
        kind = random_kind(rng)
        messages += [("user", roughen(rng, rng.choice([f"{capital(plural(kind))}!", f"I like {plural(kind)}.", f"The {kind}", f"{article(kind)}"]))),
                     ("assistant", tell(rng, Spec(kind=kind)).text)]
    return messages


_CONTINUE = ["Continue this story: {t}", "Continue the story: {t}", "How does this story go on? {t}", "Finish this story: {t}",
             "Please continue: {t}", "{t}\n\nContinue the story.", "What happens next? {t}", "Go on: {t}"]


def _continuation(rng):
    _, story = request_and_story(rng, title=False)
    cut = rng.randint(1, min(4, len(story.sentences) - 3))
    first, rest = " ".join(story.sentences[:cut]), " ".join(story.sentences[cut:])
    return [("user", rng.choice(_CONTINUE).format(t=first)), ("assistant", rest)]


def _one_sentence(story):
    """The whole story in a sentence."""
    start = f"Once upon a time, {article((story.spec.trait + ' ' if story.spec.trait else '') + story.hero.kind.name)} named {story.hero.name}"
    if story.summary.startswith(story.hero.name + " ") and not story.summary.startswith(story.hero.name + " and"):
        return start + story.summary[len(story.hero.name):]
    return start + f" lived {story.slots['inplace']}, and {story.summary if story.summary[0].isupper() and story.summary.split()[0].strip(',') in (story.hero.name, story.helper.name) else story.summary[0].lower() + story.summary[1:]}"


def _with_system(rng):
    """Conversations that are changed by their system prompt."""
    r = rng.random()
    text, story = request_and_story(rng, title=False, length=rng.choice(["normal", "short"]))
    if r < 0.3:
        system = rng.choice(["Answer in one sentence.", "Answer in one sentence only.", "Always answer in one sentence.", "Use only one sentence.",
                             "Reply with a single sentence."])
        if rng.random() < 0.5:
            plain = Spec(kind=random_kind(rng), length="normal")
            story = tell(rng, plain)
            text = rng.choice(["Tell me a story about {k}.", "A story about {k}, please.", "Tell me about {k}."]).format(k=article(plain.kind))
            return [("system", system), ("user", roughen(rng, text)), ("assistant", _one_sentence(story))]
        q, a = world_question(rng)
        return [("system", system), ("user", roughen(rng, rng.choice(q))), ("assistant", rng.choice(a))]
    if r < 0.5:
        pirate = rng.random() < 0.5
        system = rng.choice(["You are a pirate.", "You are a pirate. Talk like a pirate.", "Speak like a pirate."] if pirate else
                            ["You are a cheerful assistant.", "You are very cheerful.", "Be cheerful.", "You are cheerful."])
        before = rng.choice(["Arr! ", "Ahoy! ", "Arr, matey! "] if pirate else ["Hooray! ", "What fun! ", "Yippee! ", "Wonderful! "])
        after = rng.choice([" Arr!", "", " Yo ho ho!"]) if pirate else ""
        if rng.random() < 0.5:
            q, a = world_question(rng) if rng.random() < 0.7 else small_talk(rng)
            text, answer = rng.choice(q), rng.choice(a)
        else:
            answer = story.text
        return [("system", system), ("user", roughen(rng, text)), ("assistant", before + answer + after)]
    if r < 0.65:
        system = rng.choice(["Be brief.", "Keep your answers short.", "You are brief.", "Tell only short stories.", "Short answers only."])
        text, story = request_and_story(rng, title=False, length="short")
        return [("system", system), ("user", roughen(rng, text)), ("assistant", story.text)]
    if r < 0.75:
        name = random_name(rng)[0]
        system = rng.choice([f"Your name is {name}.", f"You are {name}, a storyteller.", f"You are {name}."])
        q = rng.choice(["What is your name?", "Who are you?", "What's your name?", "Tell me your name."])
        return [("system", system), ("user", roughen(rng, q)), ("assistant", rng.choice([f"My name is {name}. I tell small stories.", f"I am {name}. I tell small stories."]))]
    if r < 0.87:
        word = rng.choice(["Good night!", "The end.", "Moo!", "Quack!", "Sweet dreams!", "Bye!", capital(invented_word(rng)) + "!", "Thank you!"])
        system = rng.choice([f"End every answer with: {word}", f"Always end with \"{word}\"", f"Finish every answer with {word}"])
        if rng.random() < 0.6:
            q, a = world_question(rng)
            return [("system", system), ("user", roughen(rng, rng.choice(q))), ("assistant", rng.choice(a) + " " + word)]
        return [("system", system), ("user", roughen(rng, text)), ("assistant", story.text + " " + word)]
    kind = random_kind(rng)
    system = rng.choice([f"You only tell stories about {plural(kind)}.", f"All your stories are about {article(kind)}.",
                         f"You love {plural(kind)} and always tell stories about {plural(kind)}."])
    text = rng.choice(["Tell me a story.", "A story, please.", "Tell me something.", "Can you tell me a story?", "I want a story."])
    return [("system", system), ("user", roughen(rng, text)), ("assistant", tell(rng, Spec(kind=kind)).text)]


def document(rng):
    """The messages of one document, as [(role, text)]; the role "text" marks a bare story outside of any chat."""
    r = rng.random()
    if r < 0.05:
        return [("text", request_and_story(rng)[1].text)]
    if r < 0.12:
        return _with_system(rng)
    for limit, make in ((0.50, _story_chat), (0.70, _reading), (0.87, _world_chat), (0.94, _talk), (1.0, _continuation)):
        if r < limit:
            messages = make(rng)
            break
    if rng.random() < 0.15:
        messages = [("system", rng.choice(_NEUTRAL_SYSTEM))] + messages
    return messages
