"""Small facts of the world as tables, and questions about them."""

from __future__ import annotations

from tamis.train.chats.draw import Draw

_COUNTRIES = """
France:Paris:Europe:French|Germany:Berlin:Europe:German|Italy:Rome:Europe:Italian|Spain:Madrid:Europe:Spanish
Portugal:Lisbon:Europe:Portuguese|Austria:Vienna:Europe:German|Greece:Athens:Europe:Greek|Poland:Warsaw:Europe:Polish
Sweden:Stockholm:Europe:Swedish|Norway:Oslo:Europe:Norwegian|Denmark:Copenhagen:Europe:Danish|Finland:Helsinki:Europe:Finnish
Ireland:Dublin:Europe:English|Hungary:Budapest:Europe:Hungarian|Romania:Bucharest:Europe:Romanian|Bulgaria:Sofia:Europe:Bulgarian
Croatia:Zagreb:Europe:Croatian|Ukraine:Kyiv:Europe:Ukrainian|Iceland:Reykjavik:Europe:Icelandic|England:London:Europe:English
Scotland:Edinburgh:Europe:English|the Netherlands:Amsterdam:Europe:Dutch|Russia:Moscow:Europe:Russian|Serbia:Belgrade:Europe:Serbian
Japan:Tokyo:Asia:Japanese|China:Beijing:Asia:Chinese|India:New Delhi:Asia:Hindi|South Korea:Seoul:Asia:Korean
Thailand:Bangkok:Asia:Thai|Vietnam:Hanoi:Asia:Vietnamese|Turkey:Ankara:Asia:Turkish|Iran:Tehran:Asia:Persian
Iraq:Baghdad:Asia:Arabic|Nepal:Kathmandu:Asia:Nepali|Mongolia:Ulaanbaatar:Asia:Mongolian|Indonesia:Jakarta:Asia:Indonesian
Saudi Arabia:Riyadh:Asia:Arabic|Egypt:Cairo:Africa:Arabic|Kenya:Nairobi:Africa:Swahili|Morocco:Rabat:Africa:Arabic
Nigeria:Abuja:Africa:English|Ghana:Accra:Africa:English|Ethiopia:Addis Ababa:Africa:Amharic|Tunisia:Tunis:Africa:Arabic
Algeria:Algiers:Africa:Arabic|Senegal:Dakar:Africa:French|Canada:Ottawa:North America:English|Mexico:Mexico City:North America:Spanish
Cuba:Havana:North America:Spanish|the United States:Washington:North America:English|Brazil:Brasilia:South America:Portuguese
Argentina:Buenos Aires:South America:Spanish|Chile:Santiago:South America:Spanish|Peru:Lima:South America:Spanish
Colombia:Bogota:South America:Spanish|Uruguay:Montevideo:South America:Spanish|Venezuela:Caracas:South America:Spanish
Australia:Canberra:Oceania:English|New Zealand:Wellington:Oceania:English
"""
COUNTRIES = [tuple(entry.split(":")) for line in _COUNTRIES.split("\n") for entry in line.split("|") if entry]

_COLOURS = """
the sky:blue|grass:green|blood:red|snow:white|coal:black|a banana:yellow|a lemon:yellow|a tomato:red|a cucumber:green|a carrot:orange
an orange:orange|milk:white|chocolate:brown|the sun:yellow|the sea:blue|a leaf:green|a strawberry:red|a frog:green|a polar bear:white
a raven:black|a flamingo:pink|an elephant:grey|a mouse:grey|gold:yellow|a plum:purple|salt:white|a cherry:red|the night:black
a swan:white|a pig:pink|a fire engine:red|a ripe apple:red|coffee:brown|an egg yolk:yellow|a lime:green|a pumpkin:orange
"""
_OPPOSITES = """
hot:cold|big:small|tall:short|fast:slow|day:night|up:down|left:right|old:young|new:old|good:bad|happy:sad|rich:poor|hard:soft|wet:dry
light:dark|early:late|open:closed|full:empty|high:low|long:short|strong:weak|clean:dirty|loud:quiet|true:false|love:hate|win:lose
start:stop|buy:sell|push:pull|inside:outside|first:last|always:never|black:white|yes:no|near:far|thick:thin|wide:narrow|easy:difficult
awake:asleep|cheap:expensive|friend:enemy|laugh:cry|give:take|heavy:light|top:bottom|brave:afraid|summer:winter|war:peace
"""
_SOUNDS = """
dog:barks|cat:meows|cow:moos|duck:quacks|lion:roars|sheep:bleats|horse:neighs|pig:grunts|frog:croaks|bee:buzzes|snake:hisses
wolf:howls|owl:hoots|rooster:crows|bird:sings|mouse:squeaks
"""
_LEGS = "dog:four|cat:four|bird:two|spider:eight|ant:six|bee:six|snake:no|fish:no|horse:four|cow:four|human:two|chicken:two|butterfly:six|frog:four"
_BABIES = "dog:puppy|cat:kitten|cow:calf|sheep:lamb|horse:foal|duck:duckling|lion:cub|bear:cub|pig:piglet|chicken:chick|goat:kid|goose:gosling"
_SYMBOLS = """
hydrogen:H|helium:He|carbon:C|nitrogen:N|oxygen:O|sodium:Na|iron:Fe|gold:Au|silver:Ag|copper:Cu|lead:Pb|calcium:Ca|potassium:K|tin:Sn
zinc:Zn|neon:Ne|sulfur:S|chlorine:Cl|mercury:Hg|silicon:Si|uranium:U|nickel:Ni|magnesium:Mg|phosphorus:P
"""
_UNITS = """
seconds are in a minute:60|minutes are in an hour:60|hours are in a day:24|days are in a week:7|months are in a year:12
days are in a year:365|weeks are in a year:52|centimetres are in a metre:100|metres are in a kilometre:1000|grams are in a kilogram:1000
years are in a century:100|years are in a decade:10|bits are in a byte:8|sides does a triangle have:3|sides does a square have:4
wheels does a car have:4|wheels does a bicycle have:2|fingers does a hand have:5|letters are in the English alphabet:26
planets are in the solar system:8|continents are there:7|players are in a football team:11|strings does a violin have:4|eggs are in a dozen:12
millimetres are in a centimetre:10|colours does a rainbow have:7|legs does a tripod have:3|days are in June:30|days are in January:31
"""
_WORDS = """
hello:bonjour:hallo:hola|thank you:merci:danke:gracias|yes:oui:ja:si|no:non:nein:no|cat:chat:Katze:gato|dog:chien:Hund:perro
house:maison:Haus:casa|water:eau:Wasser:agua|bread:pain:Brot:pan|milk:lait:Milch:leche|sun:soleil:Sonne:sol|moon:lune:Mond:luna
book:livre:Buch:libro|red:rouge:rot:rojo|blue:bleu:blau:azul|green:vert:gruen:verde|one:un:eins:uno|two:deux:zwei:dos|three:trois:drei:tres
friend:ami:Freund:amigo|day:jour:Tag:dia|night:nuit:Nacht:noche|tree:arbre:Baum:arbol|fish:poisson:Fisch:pez|good:bon:gut:bueno
goodbye:au revoir:auf Wiedersehen:adios|apple:pomme:Apfel:manzana|cheese:fromage:Kaese:queso|mother:mere:Mutter:madre|father:pere:Vater:padre
"""
_PLURALS = """
child:children|mouse:mice|man:men|woman:women|foot:feet|tooth:teeth|goose:geese|leaf:leaves|box:boxes|city:cities|baby:babies|cat:cats
dog:dogs|house:houses|bus:buses|wolf:wolves|knife:knives|sheep:sheep|fish:fish|book:books|tree:trees|party:parties|dish:dishes
"""
_PASTS = """
go:went|eat:ate|see:saw|run:ran|write:wrote|take:took|come:came|give:gave|find:found|buy:bought|think:thought|make:made|say:said|know:knew
sing:sang|swim:swam|drink:drank|sleep:slept|speak:spoke|break:broke|walk:walked|play:played|jump:jumped|work:worked|teach:taught|bring:brought
"""
_DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
_MONTHS = "January February March April May June July August September October November December".split()
_PLANETS = "Mercury Venus Earth Mars Jupiter Saturn Uranus Neptune".split()
GROUPS = {
    "fruits": "apple banana pear plum cherry grape orange lemon mango peach melon kiwi".split(),
    "animals": "dog cat horse cow lion tiger wolf fox rabbit elephant bear monkey".split(),
    "colours": "red blue green yellow orange purple black white pink brown grey".split(),
    "vegetables": "carrot potato onion cabbage bean pea tomato leek spinach pumpkin".split(),
    "planets": _PLANETS,
    "days of the week": _DAYS,
    "months": _MONTHS,
    "programming languages": ["Python", "C", "Java", "Rust", "Go", "Ruby", "JavaScript", "Swift", "Haskell"],
    "birds": "sparrow eagle owl raven swan duck robin parrot penguin".split(),
    "trees": "oak birch pine maple willow beech ash elm".split(),
    "instruments": "piano violin guitar flute drum trumpet cello harp".split(),
    "drinks": "water tea coffee milk juice lemonade cocoa".split(),
    "European countries": ["France", "Germany", "Italy", "Spain", "Greece", "Poland", "Sweden", "Norway", "Austria"],
    "capital cities": ["Paris", "Berlin", "Rome", "Madrid", "Athens", "Tokyo", "Cairo", "Ottawa", "Vienna", "Oslo"],
}


def _pairs(table: str) -> list[tuple[str, ...]]:
    return [tuple(entry.split(":")) for line in table.split("\n") for entry in line.split("|") if entry]


_TRANSLATIONS = _pairs(_WORDS)
_TABLES = (
    (
        _pairs(_COLOURS),
        ("What colo[u|]r is {0}?", "Which colo[u|]r [is|has] {0}?", "[Tell me|Name] the colo[u|]r of {0}."),
        ("{0} is {1}.",),
    ),
    (
        _pairs(_OPPOSITES),
        (
            "What is the opposite of {0}?",
            "What's the opposite of {0}?",
            "[Give me|Tell me|Name] the opposite of {0}.",
            "Opposite of {0}?",
        ),
        ("The opposite of {0} is {1}.",),
    ),
    (
        _pairs(_SOUNDS),
        ("What sound does a {0} make?", "What does a {0} do?", "What noise does a {0} make?"),
        ("A {0} {1}.",),
    ),
    (_pairs(_LEGS), ("How many legs does a {0} have?", "How many legs has a {0}?"), ("A {0} has {1} legs.",)),
    (
        _pairs(_BABIES),
        ("What is a [young|baby] {0} called?", "What do you call a [young|baby] {0}?", "What is the baby of a {0}?"),
        ("A young {0} is called a {1}.",),
    ),
    (
        _pairs(_SYMBOLS),
        ("What is the [chemical |]symbol [of|for] {0}?", "Which symbol has {0}?"),
        ("The symbol of {0} is {1}.",),
    ),
    (_pairs(_UNITS), ("How many {0}?",), ("{1}.",)),
    (
        _pairs(_PLURALS),
        ("What is the plural of {0}?", "[Give me|Tell me] the plural of {0}.", "Plural of {0}?"),
        ("The plural of {0} is {1}.",),
    ),
    (
        _pairs(_PASTS),
        ("What is the past tense of {0}?", "[Give me|Tell me] the past tense of {0}.", "Past tense of {0}?"),
        ("The past tense of {0} is {1}.",),
    ),
)


def table_fact(draw: Draw) -> tuple[str, str]:
    """A question answered by one row of a table."""
    rows, questions, answers = draw.one(_TABLES)
    row = draw.one(rows)
    slots = {str(i): value for i, value in enumerate(row)}
    answer = draw.say(answers, **slots)
    return draw.say(questions, **slots), answer[0].upper() + answer[1:]


def capital(draw: Draw) -> tuple[str, str]:
    """Capitals, continents and languages of countries."""
    country, city, continent, language = draw.one(COUNTRIES)
    kind = draw.number(0, 9)
    if kind <= 5:
        question = draw.say(
            (
                "What is the capital [city |]of {c}?",
                "What's the capital of {c}?",
                "[Tell me|Name|Give me] the capital of {c}.",
                "Which city is the capital of {c}?",
                "Capital of {c}?",
                "Do you know the capital of {c}?",
            ),
            c=country,
        )
        return question, f"The capital of {country} is {city}."
    if kind == 6:
        return draw.say(
            (
                "{x} is the capital of which country?",
                "Of which country is {x} the capital?",
                "In which country is {x}?",
            ),
            x=city,
        ), f"{city} is the capital of {country}."
    if kind == 7:
        return draw.say(
            ("[On which|Which|What] continent is {c}[| on]?", "Where is {c}?"), c=country
        ), f"{country[0].upper()}{country[1:]} is in {continent}."
    return draw.say(
        ("[What|Which] language do [people|they] speak in {c}?", "[What|Which] language is spoken in {c}?"), c=country
    ), f"In {country} people speak {language}."


def sequence(draw: Draw) -> tuple[str, str]:
    """What comes after or before a day, month, planet, letter."""
    names, kind = draw.one(((_DAYS, "day"), (_MONTHS, "month"), ([*"ABCDEFGHIJKLMNOPQRSTUVWXYZ"], "letter")))
    index = draw.number(0, len(names) - 1)
    if draw.chance(0.5):
        return draw.say(
            ("Which {k} comes after {x}?", "What {k} comes after {x}?", "What is the {k} after {x}?"),
            k=kind,
            x=names[index],
        ), f"After {names[index]} comes {names[(index + 1) % len(names)]}."
    return draw.say(
        ("Which {k} comes before {x}?", "What {k} comes before {x}?", "What is the {k} before {x}?"),
        k=kind,
        x=names[index],
    ), f"Before {names[index]} comes {names[index - 1]}."


def translate(draw: Draw) -> tuple[str, str]:
    """One word into French, German or Spanish."""
    row = draw.one(_TRANSLATIONS)
    column = draw.number(1, 3)
    language = ("French", "German", "Spanish")[column - 1]
    question = draw.say(
        (
            "What is {w} in {l}?",
            'What is "{w}" in {l}?',
            'How do you say "{w}" in {l}?',
            "How do you say {w} in {l}?",
            "Translate {w} [in|]to {l}.",
            'Translate "{w}" [in|]to {l}.',
        ),
        w=row[0],
        l=language,
    )
    return question, f'"{row[0]}" in {language} is "{row[column]}".'


def name_some(draw: Draw) -> tuple[str, str]:
    """Name three fruits, and whether something is one."""
    group = draw.one(list(GROUPS))
    count = draw.number(1, 5)
    word = ("", "one", "two", "three", "four", "five")[count]
    chosen = draw.some(GROUPS[group], count)
    if count == 1:
        single = {
            "days of the week": "day of the week",
            "European countries": "European country",
            "capital cities": "capital city",
        }
        kind = single.get(group, group[:-1])
        article = "an" if kind[0] in "aeiouE" else "a"
        question = draw.say(
            "[Name|Tell me|Give me|Please name|Say] {a} {k}.", a=draw.one((article, article, "one")), k=kind
        )
        return question, chosen[0][0].upper() + chosen[0][1:] + "."
    question = draw.say(
        "[Name|List|Tell me|Give me|Can you name|Please name] {n} {g}", n=draw.one((word, word, count)), g=group
    )
    mark = "?" if question.startswith("Can") else "."
    if draw.chance(0.3):
        return question + mark, "\n".join(f"{i}. {name}" for i, name in enumerate(chosen, 1))
    text = f"{', '.join(chosen[:-1])} and {chosen[-1]}."
    return question + mark, text[0].upper() + text[1:]


_EXPLAIN = """
Python:Python is a programming language that is easy to read.
a list:A list is a row of values in Python, for example [1, 2, 3]. It can be changed.
a tuple:A tuple is a fixed row of values in Python, for example (1, 2). It cannot be changed.
a dictionary:A dictionary maps keys to values, for example {"a": 1}.
a set:A set holds different values without an order, for example {1, 2, 3}.
a string:A string is text in quotes, for example "hello".
a function:A function is a named piece of code. It takes arguments and returns a value.
a loop:A loop repeats a piece of code, for example once for every value of a list.
a variable:A variable is a name for a value.
a class:A class describes objects: their data and their methods.
recursion:Recursion means that a function calls itself.
a computer:A computer is a machine that follows the instructions of programs.
a program:A program is a list of instructions for a computer.
a bug:A bug is a mistake in a program.
a GPU:A GPU is a chip that does many small calculations at the same time.
a CPU:A CPU is the main chip of a computer. It runs the programs.
memory:Memory is where a computer keeps the data it works on.
a token:A token is a piece of text, such as a short word, that a language model reads and writes.
a language model:A language model is a program that guesses the next token of a text, again and again.
attention:Attention is how a language model looks back at the tokens it has read.
a KV cache:A KV cache keeps the keys and values of earlier tokens, so that they are not computed again.
a block:A block is 128 tokens of the context. Sparse attention chooses whole blocks.
an API:An API is the way in which programs talk to each other.
JSON:JSON is a text format for data, for example {"name": "Ann", "age": 30}.
the internet:The internet is a net of computers all over the world.
a file:A file is data with a name, kept on a disk.
a server:A server is a program that answers requests over a network.
an algorithm:An algorithm is a list of clear steps that solve a problem.
a prime number:A prime number can be divided only by one and by itself, for example 7.
an even number:An even number can be divided by two, for example 4.
a triangle:A triangle is a shape with three sides.
gravity:Gravity is the force that pulls things towards the ground.
water:Water is a clear liquid that all living things need.
rain:Rain is water that falls from clouds.
the sun:The sun is the star in the middle of our solar system.
the moon:The moon goes around the Earth and shines at night.
a planet:A planet is a large ball that goes around a star.
a tree:A tree is a tall plant with a trunk and leaves.
a book:A book is a set of pages with text to read.
music:Music is sound with rhythm and melody.
a friend:A friend is a person whom you like and trust.
bread:Bread is food made from flour and water, baked in an oven.
winter:Winter is the cold time of the year.
a bird:A bird is an animal with feathers and wings.
an exception:An exception is an error that a Python program can catch with try and except.
an integer:An integer is a whole number, such as 3 or -7.
a compiler:A compiler turns source code into a program that a machine can run.
Linux:Linux is a free operating system.
a keyboard:A keyboard is what you type letters with.
machine learning:Machine learning means that a program learns from examples instead of rules.
artificial intelligence:Artificial intelligence is software that does things for which people need to think.
AI:AI is software that does things for which people need to think.
a neural network:A neural network is a program of many small sums that learns from examples.
an expert:An expert is a part of a layer. A router chooses a few experts for each token.
a module:A module is a Python file that other files can import.
an operating system:An operating system runs the programs of a computer.
a database:A database keeps data so that it can be found again.
a network:A network joins computers so that they can talk to each other.
"""
_EXPLANATIONS = [tuple(line.split(":", 1)) for line in _EXPLAIN.strip().split("\n")]


def explain(draw: Draw) -> tuple[str, str]:
    """What a thing is, in a sentence or two."""
    thing, text = draw.one(_EXPLANATIONS)
    return draw.say(
        (
            "What is {t}?",
            "What's {t}?",
            "[Explain|Describe] {t}.",
            "[Can|Could] you [explain|tell me] what {t} is?",
            "[Please explain|Explain to me] what {t} is.",
            "Tell me [what {t} is|about {t}].",
            "Explain {t} in simple words.",
        ),
        t=thing,
    ), text
