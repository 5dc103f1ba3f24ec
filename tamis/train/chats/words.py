"""Work on words and lists: sort, reverse, count, spell; JSON in and out."""

from __future__ import annotations

import json

from tamis.train.chats.draw import Draw
from tamis.train.chats.facts import COUNTRIES, GROUPS
from tamis.train.chats.names import invented, person
from tamis.train.chats.split import held_out, length_key, sorting_key

_PLAIN = (
    "table chair window door house garden river mountain street bread water letter paper stone cloud rain light music "
    "summer winter train car ship road bridge city school book pencil lamp clock mirror basket bottle candle feather "
    "blanket pillow button ladder hammer engine sieve token model block cache python code"
).split()
_WORDS = sorted(
    {*_PLAIN, *GROUPS["fruits"], *GROUPS["animals"], *GROUPS["colours"], *GROUPS["birds"], *GROUPS["vegetables"]}
)


def _listing(words: list[str]) -> str:
    return ", ".join(words)


def sort_things(draw: Draw) -> tuple[str, str]:
    """Sort numbers or words, ascending or descending."""
    count = draw.number(3, 7)
    if draw.chance(0.6):
        numbers = draw.some(range(100), count)
        while held_out(sorting_key([str(n) for n in numbers])):
            numbers = draw.some(range(100), count)
        if draw.chance(0.25):
            return draw.say(
                "Sort [these numbers |]from [large to small|high to low|largest to smallest]: {l}",
                l=_listing([str(n) for n in numbers]),
            ), _listing([str(n) for n in sorted(numbers, reverse=True)])
        return draw.say(
            "[Sort|Please sort|Order|Can you sort] [these numbers|the numbers|][| in ascending order| from small to large]: {l}",
            l=_listing([str(n) for n in numbers]),
        ).replace("  ", " ").replace(" :", ":"), _listing([str(n) for n in sorted(numbers)])
    words = draw.some(_WORDS, min(count, 5))
    while held_out(sorting_key(words)):
        words = draw.some(_WORDS, min(count, 5))
    return draw.say(
        "[Sort|Please sort|Order] [these words|the words][| alphabetically| by the alphabet]: {l}", l=_listing(words)
    ), _listing(sorted(words))


def pick(draw: Draw) -> tuple[str, str]:
    """Largest, smallest, first, last, longest, count, sum of a list."""
    kind = draw.number(0, 5)
    numbers = draw.some(range(100), draw.number(3, 6))
    words = draw.some(_WORDS, draw.number(3, 6))
    while held_out(length_key(words)):
        words = draw.some(_WORDS, draw.number(3, 6))
    if kind == 0:
        return draw.say(
            "[What|Which] is the [largest|biggest|greatest] number [in|of]: {l}?", l=_listing([str(n) for n in numbers])
        ), f"The largest number is {max(numbers)}."
    if kind == 1:
        return draw.say(
            "[What|Which] is the smallest number [in|of]: {l}?", l=_listing([str(n) for n in numbers])
        ), f"The smallest number is {min(numbers)}."
    if kind == 2:
        return draw.say(
            "[What|Which] is the first word [in|of]: {l}?", l=_listing(words)
        ), f"The first word is {words[0]}."
    if kind == 3:
        return draw.say(
            "[What|Which] is the last word [in|of]: {l}?", l=_listing(words)
        ), f"The last word is {words[-1]}."
    if kind == 4:
        return draw.say("How many words are in this list: {l}?", l=_listing(words)), f"There are {len(words)} words."
    small = [draw.number(1, 9) for _ in range(3)]
    return draw.say(
        "[What is the sum of|Add|Add up|Sum] {l}[?|.]", l=_listing([str(n) for n in small])
    ), f"{' + '.join(str(n) for n in small)} = {sum(small)}"


def letters(draw: Draw) -> tuple[str, str]:
    """Spell, reverse, count letters, change case."""
    word = draw.one(_WORDS)
    kind = draw.number(0, 6)
    if kind == 0:
        return draw.say(("Spell [the word |]{w}.", 'Spell "{w}".', "How do you spell {w}?"), w=word), "-".join(word)
    if kind == 1:
        return draw.say(
            ("How many letters [are in|has] [the word |]{w}?", 'How many letters are in "{w}"?'), w=word
        ), f"{'-'.join(word)}: {len(word)} letters."
    if kind == 2:
        return draw.say(
            "What is the first letter of [the word |]{w}?", w=word
        ), f"The first letter of {word} is {word[0]}."
    if kind == 3:
        return draw.say(
            "What is the last letter of [the word |]{w}?", w=word
        ), f"The last letter of {word} is {word[-1]}."
    if kind == 4:
        text = " ".join(draw.some(_WORDS, draw.number(1, 3)))
        return draw.say(
            ("[Write|Put] {w} in [upper case|capital letters|capitals].", "Make {w} upper case."), w=text
        ), text.upper()
    if kind == 5:
        words = draw.some(_WORDS, draw.number(3, 5))
        return draw.say("[Reverse|Turn round] [the order of |]these words: {l}", l=" ".join(words)), " ".join(
            words[::-1]
        )
    words = [invented(draw) if draw.chance(0.3) else draw.one(_WORDS) for _ in range(draw.number(1, 6))]
    return draw.say(
        ("[Repeat|Say] after me: {l}", "[Repeat|Copy] this: {l}", "Repeat: {l}", "Say: {l}"), l=" ".join(words)
    ), " ".join(words)


def person_json(draw: Draw) -> tuple[str, str]:
    """A small JSON object from a description, or a value read from one."""
    city = invented(draw).capitalize() if draw.chance(0.2) else draw.one(COUNTRIES)[1]
    record: dict[str, str | int] = {"name": person(draw), "age": draw.number(5, 90), "city": city}
    keys = sorted(draw.some(list(record), draw.number(2, 3)), key=list(record).index)
    record = {key: record[key] for key in keys}
    text = json.dumps(record)
    kind = draw.number(0, 3)
    if kind == 0:
        key = draw.one(keys)
        return draw.say(
            "[What is the {k} in|Read the {k} from|Give me the {k} in] this JSON[:|?] {j}", k=key, j=text
        ), f"The {key} is {record[key]}."
    if kind == 1:
        described = " and ".join(f"{key} {value}" for key, value in record.items())
        return draw.say(
            (
                "[Write|Give me|Make|Create] [a JSON object|JSON|the JSON|a JSON] [|for a person |for a user |for someone ]with {d}.",
                "[Write|Make] a JSON object: {d}.",
            ),
            d=described,
        ), text
    if kind == 2 and {"name", "age"} <= set(keys):
        sentence = f"{record['name']} is {record['age']} years old" + (
            f" and lives in {record['city']}" if "city" in record else ""
        )
        return draw.say(
            (
                "[Turn|Convert|Put] this [into|to] JSON: {s}.",
                "[Write|Give me] this as JSON: {s}.",
                "Extract JSON from: {s}.",
            ),
            s=sentence,
        ), text
    described = ", ".join(f"{key} = {value}" for key, value in record.items())
    return draw.say("[Write|Give me|Answer with] JSON for {d}[|.]", d=described), text


def _group_of(draw: Draw) -> tuple[str, str]:
    return draw.one(
        [
            (word, group)
            for group in ("fruits", "animals", "vegetables", "birds", "trees", "instruments")
            for word in GROUPS[group]
        ]
    )


def belongs(draw: Draw) -> tuple[str, str]:
    """Which word is of another kind; whether a thing is of a kind."""
    first, second = draw.some(["fruits", "animals", "birds", "trees", "instruments"], 2)
    if draw.chance(0.5):
        group = draw.some(GROUPS[first], 3)
        odd = draw.one([word for word in GROUPS[second] if word not in GROUPS[first]])
        words = [*group, odd]
        draw.random.shuffle(words)
        return draw.say(
            "Which word does not [fit|belong]: {l}?", l=_listing(words)
        ), f"{odd.capitalize()} does not fit: the others are {first}."
    word, group_name = _group_of(draw)
    asked = draw.one((group_name, first))
    is_it = word in GROUPS[asked]
    kind = asked[:-1]
    article = "an" if kind[0] in "aeiou" else "a"
    word_article = "an" if word[0] in "aeiou" else "a"
    real = group_name[:-1]
    real_article = "an" if real[0] in "aeiou" else "a"
    if is_it:
        real, real_article = kind, article
    return (
        f"Is {word_article} {word} {article} {kind}?",
        f"{'Yes' if is_it else 'No'}, {word_article} {word} is {real_article} {real}.",
    )
