"""Small arithmetic in words and signs."""

from __future__ import annotations

from tamis.train.chats.draw import Draw
from tamis.train.chats.names import people
from tamis.train.chats.split import held_out_operation

_NUMBER_WORDS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen twenty"
).split()
_THINGS = (
    "apples books coins cookies eggs pencils balls cups stones cards flowers sweets stamps keys cats oranges".split()
)


def operands(draw: Draw, low: int, high: int, sign: str = "+") -> tuple[int, int]:
    """Two numbers of [low, high] for `a sign b`, which is none of the problems kept for tests."""
    while True:
        a, b = draw.number(low, high), draw.number(low, high)
        if sign == "-":
            a, b = max(a, b), min(a, b)
        if not held_out_operation(sign, a, b):
            return a, b


def arithmetic(draw: Draw) -> tuple[str, str, str]:
    """A question, its answer, and one line of reasoning."""
    kind = draw.number(0, 9)
    if kind <= 3:
        a, b = operands(draw, 0, 99)
        if draw.chance(0.3):
            a, b = operands(draw, 0, 999)
        sign, word, result = "+", "plus", a + b
    elif kind <= 6:
        a, b = operands(draw, 0, 99, "-")
        sign, word, result = "-", "minus", a - b
    elif kind <= 8:
        a, b = draw.number(0, 12), draw.number(0, 12)
        sign, word, result = draw.one("*×x"), "times", a * b
    else:
        b, result = draw.number(1, 12), draw.number(0, 12)
        a, sign, word = b * result, "/", "divided by"
    shown = draw.one((sign, sign, word))
    expression = f"{a}{sign}{b}" if draw.chance(0.15) and shown == sign else f"{a} {shown} {b}"
    question = draw.say(
        (
            "What is {e}?",
            "What's {e}?",
            "How much is {e}?",
            "[Calculate|Compute|Work out] {e}[.|]",
            "{e}",
            "{e} =",
            "{e} = ?",
            "[Can|Could] you [calculate|tell me what is] {e}?",
            "[Please c|C]ompute {e}.",
            "Tell me {e}.",
        ),
        e=expression,
    )
    # One form of answer for all, as `train/skills` has it: what is exact can be scored.
    full = f"{a} {'*' if sign in '×x' else sign} {b} = {result}"
    return question, full, f"{full}."


def story_problem(draw: Draw) -> tuple[str, str, str]:
    """A sum in a small story, with one line of reasoning."""
    thing, name, other = draw.one(_THINGS), *people(draw, 2)
    kind = draw.number(0, 3)
    a, b = operands(draw, 2, 20, "-" if kind == 1 else "+")
    if kind == 0:
        text = draw.say(
            "{n} has {a} {t}[ and| and then|. {n}] [buys|finds|gets] {b} more. How many {t} does {n} have[| now]?",
            n=name,
            a=a,
            b=b,
            t=thing,
        )
        sign, result = "+", a + b
    elif kind == 1:
        text = draw.say(
            "{n} has {a} {t}[ and| and then|. {n}] [loses|gives away|sells|gives {o}] {b}. How many {t} does {n} have [left|now]?",
            n=name,
            a=a,
            b=b,
            t=thing,
            o=other,
        )
        sign, result = "-", a - b
    elif kind == 2:
        a, b = draw.number(2, 10), draw.number(2, 10)
        text = draw.say(
            "There are {a} [boxes|bags] with {b} {t} each. How many {t} are there[| in all]?", a=a, b=b, t=thing
        )
        sign, result = "*", a * b
    else:
        text = draw.say(
            "{n} has {a} {t} and {o} has {b} {t}. How many {t} do they have [together|in all]?",
            n=name,
            o=other,
            a=a,
            b=b,
            t=thing,
        )
        sign, result = "+", a + b
    subject = "They have" if kind == 3 else "There are" if kind == 2 else f"{name} has"
    noun = thing[:-1] if result == 1 else thing
    left = " left" if kind == 1 and "left" in text else ""
    return text, f"{a} {sign} {b} = {result}. {subject} {result} {noun}{left}.", f"{a} {sign} {b} = {result}."


def compare(draw: Draw) -> tuple[str, str]:
    """Larger, smaller, even, odd, next, number words."""
    kind = draw.number(0, 4)
    a, b = draw.some(range(100), 2)
    if kind == 0:
        return draw.say(
            "Which [number |]is [larger|bigger|greater], {a} or {b}?", a=a, b=b
        ), f"{max(a, b)} is larger than {min(a, b)}."
    if kind == 1:
        return draw.say(
            "Which [number |]is [smaller|less], {a} or {b}?", a=a, b=b
        ), f"{min(a, b)} is smaller than {max(a, b)}."
    if kind == 2:
        odd = "odd" if a % 2 else "even"
        asked = draw.one(("odd", "even"))
        return draw.say(
            "Is {a} [{x}|an {x} number|{x} or not]?", a=a, x=asked
        ), f"{'Yes' if asked == odd else 'No'}, {a} is {odd}."
    if kind == 3:
        return draw.say("[What|Which] number comes after {a}?", a=a), f"After {a} comes {a + 1}."
    n = draw.number(0, 20)
    return draw.say(("[How do you write|Write] {n} [as a word|in words][?|]", "What is {n} in words?"), n=n).replace(
        "[?|]", "?"
    ), f"{n} in words is {_NUMBER_WORDS[n]}."


def count_up(draw: Draw) -> tuple[str, str]:
    """Count from a to b, or the next terms of a row."""
    if draw.chance(0.5):
        a = draw.number(0, 20)
        b = a + draw.number(2, 12)
        if draw.chance(0.3):
            shown = draw.one((str(b), _NUMBER_WORDS[min(b, 20)]))
            b = min(b, 20) if not shown.isdigit() else b
            return draw.say("[Count|Please count|Can you count] to {b}.", b=shown), ", ".join(
                map(str, range(1, b + 1))
            ) + "."
        if draw.chance(0.2):
            return draw.say("Count [down |backwards ]from {b} to {a}.", a=a, b=b), ", ".join(
                str(i) for i in range(b, a - 1, -1)
            ) + "."
        return draw.say("[Count|Please count|Can you count] from {a} to {b}.", a=a, b=b), ", ".join(
            str(i) for i in range(a, b + 1)
        ) + "."
    step, start = draw.number(1, 10), draw.number(0, 30)
    row = [start + step * i for i in range(5)]
    question = draw.say(
        ("What [is the next number|comes next|number comes next]: {r}?", "[Continue|Go on]: {r}, ..."),
        r=", ".join(map(str, row[:4])),
    )
    return question, f"The next number is {row[4]}."
