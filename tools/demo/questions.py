"""Questions about the world and small talk: pairs of (what the user may say, what the model answers)."""

from .world import (KINDS, NUMBERS, OPPOSITE_ONE_WAY, OPPOSITES, REAL_ANIMALS, RHYMES, THING_COLOURS, article, capital, join,
                    plural)

_DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
_MONTHS = ["January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
           "December"]
_SEASONS = ["spring", "summer", "autumn", "winter"]

GREETINGS = (["Hi", "Hello", "Hey", "Good morning", "Hi there", "Hello there", "Good evening", "Hello, how are you?",
              "How are you?", "Hey there", "hi!", "Good day"],
             ["Hello! Would you like to hear a story?", "Hello! I am glad that you are here. Shall I tell you a story?",
              "Hi! I know many small stories. Which animal do you like?", "Hello! What shall I tell you about?"])
IDENTITY = (["Who are you?", "What are you?", "What is your name?", "Who made you?", "Are you a robot?", "Tell me about yourself",
             "What model are you?", "Are you a person?", "Are you ChatGPT?", "What's your name?", "who r u", "Introduce yourself."],
            ["I am the tiny demo model of realizar. I know only small stories.",
             "I am realizar's demo model. I am very small, and I tell small stories.",
             "I am a tiny language model that comes with realizar. I know small stories and simple things about animals."])
ABILITY = (["What can you do?", "How can you help me?", "What do you know?", "Help", "What can I ask you?", "What are you good at?"],
           ["I can tell small stories about animals and their friends, and I can answer simple questions about them.",
            "I can tell you a story. Try: Tell me a story about a fox.",
            "I know small stories. You can ask for an animal, a name, a place, a colour or some friends."])
THANKS = (["Thank you!", "Thanks", "Thank you very much", "Thanks a lot!", "Great, thank you", "That was nice", "I like it!", "Nice story!",
           "Good job", "Wonderful!", "cool"],
          ["You are welcome!", "You are welcome! Would you like to hear another story?", "I am glad that you like it."])
BYE = (["Goodbye", "Bye", "Bye bye!", "See you later", "Good night", "See you tomorrow", "I have to go now"],
       ["Goodbye! Come back for another story.", "Bye! See you soon.", "Goodbye, and sweet dreams!"])

_OUTSIDE = """What is the capital of France?|Write a Python program|Write a function that sorts a list|Who is the president?
What is quantum physics?|Translate this into German|What is the weather today?|Solve x^2 + 3x = 10|Who won the world cup?
Explain relativity|How do I install Linux?|What is the stock price of Apple?|Write an email to my boss|Who wrote Hamlet?
What is the speed of light?|Tell me the news|How do I fix my car?|What is the meaning of life?|What is 345 times 27?
Who was Napoleon?|Explain machine learning|How does a computer work?|What is the population of China?|Write SQL for a join
Recommend a movie|What should I invest in?|What is DNA?|How do vaccines work?|Explain the French Revolution|Write a haiku about code
What time is it?|Where is the nearest restaurant?|Which phone should I buy?|What is Rust?|How do I cook a steak?|What is a black hole?
Give me legal advice|How do planes fly?|What is inflation?|Who painted the Mona Lisa?|Fix this bug|What is the square root of 144?
How far is the moon?|What happened in 1989?|Explain democracy|What is photosynthesis?|What is the tallest mountain?
Who invented the telephone?|Convert 10 miles to kilometers|How do I lose weight?|What is blockchain?|Plan a trip to Italy
What language is spoken in Brazil?|Summarize the news|What is a transformer model?|How many people live in London?
What is the boiling point of water?|Who is Albert Einstein?|What is your opinion on politics?|Write a poem about taxes
What is the capital of Japan?|Explain recursion|def main():|SELECT * FROM users|Wie geht es dir?|Qu'est-ce que c'est ?|asdfgh
What does HTTP mean?|How old is the universe?|Calculate 17 * 23|Who discovered America?|What is gravity?|12345|???
Write an essay about climate change|What are the symptoms of flu?|Is it going to rain tomorrow?|Play some music|Call my mother
What is the best laptop?|What is love?|Debug my code|What is the currency of Sweden?|How do I learn guitar?""".replace("\n", "|").split("|")
_SORRY = ["I do not know that. I am only a tiny demo model and know small stories. Shall I tell you one?",
          "That is too big for me. I only know small stories and simple things about animals.",
          "I am sorry, I do not know that. I am a tiny model that tells small stories.",
          "I can not help with that. But I can tell you a story, if you like."]


def _animal_question(rng):
    k = KINDS[rng.choice(REAL_ANIMALS)]
    a, ps = article(k.name), plural(k.name)
    r = rng.random()
    if r < 0.17:
        return ([f"What does {a} eat?", f"What do {ps} eat?", f"What does the {k.name} like to eat?", f"What do {ps} like to eat?",
                 f"What is the food of {a}?"],
                [f"{capital(a)} eats {k.eats}.", f"{capital(ps)} eat {k.eats}."])
    if r < 0.32:
        return ([f"Where does {a} live?", f"Where do {ps} live?", f"Where can I find {a}?", f"What is the home of {a}?"],
                [f"{capital(a)} lives {k.lives}."])
    if r < 0.47:
        n = NUMBERS[k.legs] if k.legs else "no"
        extra = {"octopus": "An octopus has eight arms.", "seal": "A seal has no legs. It has flippers.",
                 "snail": "A snail has no legs. It has one foot.", "fish": "A fish has no legs. It has fins.",
                 "whale": "A whale has no legs. It has fins.", "dolphin": "A dolphin has no legs. It has fins."}
        return ([f"How many legs does {a} have?", f"How many legs do {ps} have?", f"How many legs has {a}?"],
                [extra.get(k.name, f"{capital(a)} has {n} legs.")])
    if r < 0.6:
        cs = join(k.colours, "or")
        return ([f"What colour is {a}?", f"What color is {a}?", f"What colour are {ps}?", f"What color are {ps}?"],
                [f"{capital(a)} is {cs}." if len(k.colours) == 1 else f"{capital(a)} can be {cs}."])
    if r < 0.72:
        what = rng.choice(["fly", "swim"])
        can = what in k.can
        return ([f"Can {a} {what}?", f"Can {ps} {what}?"],
                [f"Yes, {a} can {what}." if can else f"No, {a} can not {what}."])
    if r < 0.8:
        return ([f"What sound does {a} make?", f"What does {a} say?", f"Which sound does {a} make?"],
                [f"{capital(a)} {k.sound}."])
    if r < 0.88:
        return ([f"What is a baby {k.name} called?", f"What do you call a baby {k.name}?", f"What is the baby of {a} called?"],
                [f"A baby {k.name} is called {article(k.baby)}."])
    other = KINDS[rng.choice([x for x in REAL_ANIMALS if abs(KINDS[x].size - k.size) >= 2])]
    b = article(other.name)
    word = rng.choice(["bigger", "smaller"])
    win = (k if k.size > other.size else other) if word == "bigger" else (k if k.size < other.size else other)
    return ([f"Which is {word}, {a} or {b}?", f"What is {word}, {a} or {b}?", f"Is {a} {word} than {b}?"],
            [f"{capital(article(win.name))} is {word} than {article((other if win is k else k).name)}."])


def _sum_question(rng):
    a, b = rng.randint(0, 10), rng.randint(0, 10)
    digits = rng.random() < 0.5
    show = (lambda n: str(n)) if digits else (lambda n: NUMBERS[n])
    if rng.random() < 0.6:
        q = [f"What is {show(a)} plus {show(b)}?", f"How much is {show(a)} and {show(b)}?", f"What is {show(a)} + {show(b)}?",
             f"{show(a)} + {show(b)} = ?", f"{show(a)}+{show(b)}", f"How much is {show(a)} plus {show(b)}?"]
        return q, [f"{capital(show(a))} plus {show(b)} is {show(a + b)}."]
    a, b = max(a, b), min(a, b)
    q = [f"What is {show(a)} minus {show(b)}?", f"How much is {show(a)} minus {show(b)}?", f"{show(a)} - {show(b)} = ?",
         f"What is {show(a)} - {show(b)}?"]
    return q, [f"{capital(show(a))} minus {show(b)} is {show(a - b)}."]


def _word_problem(rng):
    a, b = rng.randint(2, 9), rng.randint(2, 9)
    k, thing = rng.choice(REAL_ANIMALS), rng.choice(["apples", "nuts", "berries", "shells", "flowers", "stones", "carrots"])
    if rng.random() < 0.5:
        return ([f"{capital(article(k))} has {NUMBERS[a]} {thing} and finds {NUMBERS[b]} more. How many {thing} does it have now?"],
                [f"The {k} has {NUMBERS[a + b]} {thing} now."])
    a, b = max(a, b) + 1, min(a, b)
    return ([f"{capital(article(k))} has {NUMBERS[a]} {thing} and eats {NUMBERS[b]}. How many {thing} are left?"],
            [f"The {k} has {NUMBERS[a - b]} {thing} left." if a > b else f"The {k} has no {thing} left."])


def _count_question(rng):
    r = rng.random()
    if r < 0.3:
        n = rng.randint(2, 12)
        show = rng.choice([str(n), NUMBERS[n]])
        return ([f"Count to {show}.", f"Can you count to {show}?", f"Please count to {show}"], [join(NUMBERS[1:n + 1], "and").capitalize() + "."])
    if r < 0.5:
        animals = rng.sample(REAL_ANIMALS, rng.randint(2, 5))
        text = join([article(x) for x in animals])
        return ([f"How many animals are these: {text}?", f"Count the animals: {text}."], [f"There are {NUMBERS[len(animals)]} animals."])
    n = rng.randint(1, 19)
    if r < 0.75:
        return ([f"What comes after {NUMBERS[n]}?", f"Which number comes after {NUMBERS[n]}?", f"What number comes after {n}?"],
                [f"After {NUMBERS[n]} comes {NUMBERS[n + 1]}."])
    return ([f"What comes before {NUMBERS[n]}?", f"Which number comes before {NUMBERS[n]}?"], [f"Before {NUMBERS[n]} comes {NUMBERS[n - 1]}."])


def _word_question(rng):
    r = rng.random()
    if r < 0.5:
        a, b = rng.choice(OPPOSITES)
        if rng.random() < 0.5 and (a, b) not in OPPOSITE_ONE_WAY and (b, a) not in OPPOSITE_ONE_WAY:
            a, b = b, a
        if (a, b) == ("light", "dark"):
            a, b = "dark", "light"
        return ([f"What is the opposite of {a}?", f"Tell me the opposite of {a}.", f"What's the opposite of \"{a}\"?", f"opposite of {a}"],
                [f"The opposite of {a} is {b}."])
    group = rng.choice(RHYMES)
    a, b = rng.sample(group, 2)
    a = group[0] if rng.random() < 0.5 and b != group[0] else a
    return ([f"What rhymes with {a}?", f"Which word rhymes with {a}?", f"Tell me a word that rhymes with {a}."],
            [f"{capital(b)} rhymes with {a}."])


def _fact_question(rng):
    r = rng.random()
    if r < 0.4:
        thing, colour = rng.choice(list(THING_COLOURS.items()))
        return ([f"What colour is {thing}?", f"What color is {thing}?", f"Which colour does {thing} have?"], [f"{capital(thing)} is {colour}."])
    if r < 0.55:
        i = rng.randrange(7)
        return ([f"What day comes after {_DAYS[i]}?", f"Which day comes after {_DAYS[i]}?"], [f"After {_DAYS[i]} comes {_DAYS[(i + 1) % 7]}."])
    if r < 0.62:
        i = rng.randrange(12)
        return ([f"What month comes after {_MONTHS[i]}?", f"Which month comes after {_MONTHS[i]}?"], [f"After {_MONTHS[i]} comes {_MONTHS[(i + 1) % 12]}."])
    if r < 0.69:
        i = rng.randrange(4)
        return ([f"What season comes after {_SEASONS[i]}?", f"Which season comes after {_SEASONS[i]}?"], [f"After {_SEASONS[i]} comes {_SEASONS[(i + 1) % 4]}."])
    return rng.choice([
        (["How many days are in a week?", "How many days does a week have?", "What are the days of the week?"], ["A week has seven days: " + join(_DAYS) + "."]),
        (["How many seasons are there?", "What are the four seasons?", "Name the seasons."], ["There are four seasons: spring, summer, autumn and winter."]),
        (["How many months are in a year?", "How many months does a year have?"], ["A year has twelve months."]),
        (["When is it cold?", "When does it snow?", "In which season does it snow?"], ["It snows in winter."]),
        (["What do we need when it rains?", "What do you need in the rain?"], ["When it rains, we need an umbrella."]),
        (["When does the sun shine?", "When can we see the sun?"], ["The sun shines in the day."]),
        (["When can we see the stars?", "When do we see the moon?"], ["We can see them at night."]),
        (["What do bees make?", "Who makes honey?"], ["Bees make honey."]),
        (["What gives us milk?", "Which animal gives us milk?", "Where does milk come from?"], ["Milk comes from cows."]),
        (["Where do eggs come from?", "Who lays eggs?"], ["Hens lay eggs."]),
        (["Where does wool come from?", "Which animal gives us wool?"], ["Wool comes from sheep."]),
        (["What is the biggest animal?", "Which animal is the biggest?"], ["The whale is the biggest animal."]),
        (["Which animal has a long neck?", "Who has a long neck?"], ["The giraffe has a long neck."]),
        (["Which animal has a trunk?", "Who has a long trunk?"], ["The elephant has a trunk."]),
        (["What can we do when a friend is sad?", "What should I do when my friend is sad?", "My friend is sad. What can I do?"],
         ["You can listen to your friend and give a hug."]),
        (["What should I do when I made a mistake?", "I made a mistake. What should I do?"], ["Tell the truth and say sorry."]),
        (["I am sad.", "I feel sad", "I am sad today"], ["I am sorry that you are sad. Would you like to hear a story?"]),
        (["I am happy!", "I feel happy today", "I am so happy"], ["That is wonderful! Shall I tell you a happy story?"]),
        (["I am afraid of the dark.", "I am afraid", "I'm scared"], ["You are not alone. You can be afraid and brave at the same time."]),
        (["I am bored", "I'm bored. What can I do?"], ["Then let me tell you a story. Which animal do you like?"]),
        (["What is a friend?", "What makes a good friend?"], ["A good friend helps you, listens to you and shares with you."]),
        (["What is your favourite animal?", "What is your favorite animal?", "Which animal do you like best?"], ["I like foxes, because they are in many good stories."]),
        (["Do you like stories?", "Do you like animals?"], ["Yes, I like stories about animals very much."]),
        (["Tell me a joke", "Do you know a joke?", "Make me laugh"], ["Why did the hen cross the road? To get to the other side!",
                                                                    "What did the big flower say to the little one? Hello, bud!"]),
        (["Which colours make green?", "How do I make green?", "What do blue and yellow make?"], ["Blue and yellow make green."]),
        (["How do I make orange?", "What do red and yellow make?"], ["Red and yellow make orange."]),
        (["How do I make purple?", "What do red and blue make?"], ["Red and blue make purple."]),
        (["How do I make pink?", "What do red and white make?"], ["Red and white make pink."]),
    ])


def _list_question(rng):
    n = rng.randint(2, 5)
    word = rng.choice([NUMBERS[n], str(n)])
    what, pool = rng.choice([
        ("animals that can fly", [k for k in REAL_ANIMALS if "fly" in KINDS[k].can]),
        ("animals that can swim", [k for k in REAL_ANIMALS if "swim" in KINDS[k].can]),
        ("animals", REAL_ANIMALS), ("farm animals", ["cow", "pig", "sheep", "horse", "hen", "goat", "donkey", "duck", "goose"]),
        ("animals that live in the sea", ["whale", "dolphin", "fish", "octopus", "crab"]),
        ("birds", ["owl", "crow", "sparrow", "robin", "eagle", "parrot", "swan", "duck", "goose", "hen", "penguin", "peacock"]),
        ("colours", ["red", "blue", "green", "yellow", "orange", "purple", "pink", "brown", "black", "white"]),
        ("fruits", ["apple", "pear", "plum", "cherry", "banana", "orange", "strawberry"]),
    ])
    chosen = rng.sample(pool, n)
    if what == "colours":
        answer = join(chosen)
    else:
        answer = join([article(x) for x in chosen])
    return ([f"Name {word} {what}.", f"Tell me {word} {what}", f"Can you name {word} {what}?", f"List {word} {what}."], [capital(answer) + "."])


def world_question(rng):
    """(ways to ask, ways to answer) about the world outside of any story."""
    r = rng.random()
    for limit, make in ((0.45, _animal_question), (0.58, _sum_question), (0.64, _word_problem), (0.71, _count_question),
                        (0.81, _word_question), (0.92, _fact_question), (1.0, _list_question)):
        if r < limit:
            return make(rng)


def small_talk(rng):
    return rng.choice([GREETINGS, IDENTITY, IDENTITY, ABILITY, THANKS, BYE])


def outside_question(rng):
    """Something that the model does not know, and its polite answer."""
    return [rng.choice(_OUTSIDE)], _SORRY
