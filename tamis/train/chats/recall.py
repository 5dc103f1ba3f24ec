"""Reading: facts that stand in the prompt, near or far."""

from __future__ import annotations

from tamis.train.chats.draw import Draw
from tamis.train.chats.facts import COUNTRIES, GROUPS
from tamis.train.chats.names import invented, people, person
from tamis.train.chats.render import Turn

_PLACES = (
    "the kitchen|the garden|the office|the school|the library|the park|the garage|the cellar|the hall|the shop".split(
        "|"
    )
)
_OBJECTS = "key book lamp box cup ball letter phone hat coin bag map ring pen clock".split()
_CODES = "code password number secret".split()
_COLOUR = GROUPS["colours"]


def _code(draw: Draw) -> str:
    return str(draw.number(100, 99999))


def short_text(draw: Draw) -> tuple[str, str]:
    """A few sentences, then a question on one of them."""
    kind = draw.number(0, 3)
    count = draw.number(2, 5)
    names = people(draw, count)
    target = draw.number(0, count - 1)
    if kind == 0:
        places = draw.some(_PLACES, count)
        facts = [
            draw.say("{n} [is in|went to|walked to|is at] {p}.", n=n, p=p) for n, p in zip(names, places, strict=True)
        ]
        question, answer = f"Where is {names[target]}?", f"{names[target]} is in {places[target]}."
    elif kind == 1:
        objects, colours = draw.some(_OBJECTS, count), draw.some(_COLOUR, count)
        facts = [f"The {o} is {c}." for o, c in zip(objects, colours, strict=True)]
        question = draw.say("[What|Which] colour is the {o}?", o=objects[target])
        answer = f"The {objects[target]} is {colours[target]}."
    elif kind == 2:
        word = draw.one(_CODES)
        codes = [_code(draw) for _ in names]
        facts = [f"The {word} of {n} is {c}." for n, c in zip(names, codes, strict=True)]
        question = draw.say(("What is the {w} of {n}?", "[Tell me|Give me] the {w} of {n}."), w=word, n=names[target])
        answer = f"The {word} of {names[target]} is {codes[target]}."
    else:
        objects = draw.some(_OBJECTS, count)
        facts = [draw.say("{n} [has|holds|carries] the {o}.", n=n, o=o) for n, o in zip(names, objects, strict=True)]
        if draw.chance(0.5):
            question, answer = f"Who has the {objects[target]}?", f"{names[target]} has the {objects[target]}."
        else:
            question, answer = f"What does {names[target]} have?", f"{names[target]} has the {objects[target]}."
    text = " ".join(facts)
    return draw.say(
        (
            "{t} {q}",
            "{q} {t}",
            "Read this: {t} {q}",
            "{t}\n{q}",
            "Text: {t}\nQuestion: {q}",
            "[Remember|Note]: {t} {q}",
        ),
        t=text,
        q=question,
    ), answer


def personal(draw: Draw) -> tuple[Turn, ...]:
    """The user tells something, talks on, and asks for it later."""
    name, city = person(draw), invented(draw).capitalize() if draw.chance(0.3) else draw.one(COUNTRIES)[1]
    colour, animal, number = draw.one(_COLOUR), draw.one(GROUPS["animals"]), draw.number(2, 99)
    tell, told, ask, answer = draw.one(
        (
            (
                "[My name is|I am|I'm|Call me] {n}[.|!|, nice to meet you.]",
                "[Nice to meet you|Hello], {n}! [How can I help you?|What can I do for you?]",
                "[What is my name?|What's my name?|Who am I?|Do you remember my name?|Do you know my name?]",
                "Your name is {n}.",
            ),
            (
                "I live in {c}.",
                "{c} is a nice place. How can I help you?",
                "[Where do I live?|In which city do I live?|Do you remember where I live?]",
                "You live in {c}.",
            ),
            (
                "My favourite colour is {x}.",
                "{x} is a [nice|good] colour[!|.]",
                "What is my favourite colour?",
                "Your favourite colour is {x}.",
            ),
            ("I have a {a}.", "A {a}, how nice[!|.]", "[Which|What] animal do I have?", "You have a {a}."),
            (
                "I am {m} years old.",
                "[Thank you for telling me.|Good to know.]",
                "How old am I?",
                "You are {m} years old.",
            ),
            (
                "[Remember|Please remember|Keep in mind] the number {m}.",
                "[I will remember|Okay, I will remember] the number {m}.",
                "[Which|What] number did I [tell you|ask you to remember|say]?",
                "The number is {m}.",
            ),
            (
                "[Remember|Please remember|Keep in mind]: the {w} is {m}.",
                "[Okay, I|I] will remember it.",
                "What is the {w}?",
                "The {w} is {m}.",
            ),
        )
    )
    slots = {"n": name, "c": city, "x": colour, "a": animal, "m": number, "w": draw.one(_CODES)}
    told_text = draw.say(told, **slots)
    return (
        Turn("user", draw.say(tell, **slots)),
        Turn("assistant", told_text[0].upper() + told_text[1:]),
        Turn("user", draw.say(ask, **slots)),
        Turn("assistant", draw.say(answer, **slots)),
    )
