"""Short Python functions from a header and a docstring, composed from parts so that no two problems need be alike.

A problem is a composition (what is filtered, what is done to each, what is made of all); those of the tests never occur
in training, their parts do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tamis.train.chats.draw import Draw
from tamis.train.skills.item import Item, PassesTests, exchange
from tamis.train.skills.lexicon import THINGS

_NAMES = "solve compute result answer process work run build find make get apply".split()
_LISTS = "numbers values xs nums data".split()
_WORDS = "words items parts tokens names".split()
_NUMBERS = ("a b", "x y", "m n", "first second", "left right")
_TEXTS = "text word s string line".split()
_LETTERS = "aeorstlnpc"
_NUM_TESTS = 5


@dataclass(frozen=True)
class Function:
    """One problem and its solution.

    Attributes:
        name, parameters: as in its header.
        task: the docstring.
        expression: what it returns.
        key: the composition, without names.
        inputs: a draw to arguments it can be tried with.
    """

    name: str
    parameters: tuple[str, ...]
    task: str
    expression: str
    key: str
    inputs: Callable[[Draw], tuple[Any, ...]]

    @property
    def header(self) -> str:
        """Its first line."""
        return f"def {self.name}({', '.join(self.parameters)}):"

    @property
    def source(self) -> str:
        """The solution."""
        return f"{self.header}\n    return {self.expression}\n"

    def asserts(self, draw: Draw) -> tuple[str, ...]:
        """Statements that hold for the solution, with drawn arguments."""
        scope: dict[str, Any] = {}
        exec(self.source, scope)
        statements: list[str] = []
        while len(statements) < _NUM_TESTS:
            arguments = self.inputs(draw)
            try:
                expected = scope[self.name](*arguments)
            except ValueError:
                continue  # the largest of nothing
            statements.append(f"assert {self.name}({', '.join(map(repr, arguments))}) == {expected!r}")
        return tuple(statements)


def _comprehension(each: str, name: str, variable: str, condition: str) -> str:
    return f"{each} for {variable} in {name}" + (f" if {condition}" if condition else "")


def _numbers(draw: Draw) -> Function:
    """Filter, map and sum a list of numbers."""
    name, k, j = draw.one(_LISTS), draw.number(2, 9), draw.number(2, 9)
    which, condition = draw.one(
        (
            ("numbers", ""), ("even numbers", "n % 2 == 0"), ("odd numbers", "n % 2 == 1"),
            ("positive numbers", "n > 0"), ("negative numbers", "n < 0"),
            (f"numbers greater than {k}", f"n > {k}"), (f"numbers less than {k}", f"n < {k}"),
            (f"numbers divisible by {k}", f"n % {k} == 0"), (f"numbers not equal to {k}", f"n != {k}"),
        )
    )  # fmt: skip
    phrase, each = draw.one(
        (
            ("the {w} in {x}", "n"), ("the squares of the {w} in {x}", "n * n"), ("the {w} in {x} doubled", "2 * n"),
            (f"the {{w}} in {{x}} plus {j}", f"n + {j}"), (f"the {{w}} in {{x}} minus {j}", f"n - {j}"),
            (f"the {{w}} in {{x}} times {j}", f"{j} * n"),
        )
    )  # fmt: skip
    of_all, wrap = draw.one(
        (
            ("a list of", "[{c}]"), ("the sum of", "sum({c})"), ("the largest of", "max({c})"),
            ("the smallest of", "min({c})"), ("the sorted list of", "sorted({c})"), ("the number of", "len([{c}])"),
        )
    )  # fmt: skip
    phrase = phrase.replace("{w}", which).replace("{x}", name)
    expression = wrap.replace("{c}", _comprehension(each, name, "n", condition))

    def inputs(draw: Draw) -> tuple[Any, ...]:
        return ([draw.number(-20, 30) for _ in range(draw.number(3, 8))],)

    return _named(draw, (name,), f"Return {of_all} {phrase}.", expression, f"{wrap} {each} {condition}", inputs)


def _words(draw: Draw) -> Function:
    """Filter, map and join a list of words."""
    name, k, letter = draw.one(_WORDS), draw.number(2, 6), draw.one(_LETTERS)
    which, condition = draw.one(
        (
            ("words", ""), (f"words longer than {k} letters", f"len(w) > {k}"),
            (f"words shorter than {k} letters", f"len(w) < {k}"), (f"words of {k} letters", f"len(w) == {k}"),
            (f"words that start with '{letter}'", f"w.startswith('{letter}')"),
            (f"words that end with '{letter}'", f"w.endswith('{letter}')"),
            (f"words with '{letter}'", f"'{letter}' in w"),
        )
    )  # fmt: skip
    phrase, each = draw.one(
        (
            ("the {w} in {x}", "w"), ("the {w} in {x} in upper case", "w.upper()"),
            ("the {w} in {x} reversed", "w[::-1]"), ("the first letters of the {w} in {x}", "w[0]"),
            ("the last letters of the {w} in {x}", "w[-1]"),
        )
    )  # fmt: skip
    of_all, wrap = draw.one(
        (
            ("a list of", "[{c}]"), ("the sorted list of", "sorted({c})"), ("a string of", "''.join({c})"),
            ("a line of", "' '.join({c})"), ("the number of", "len([{c}])"), ("a tuple of", "tuple({c})"),
        )
    )  # fmt: skip
    phrase = phrase.replace("{w}", which).replace("{x}", name)
    expression = wrap.replace("{c}", _comprehension(each, name, "w", condition))

    def inputs(draw: Draw) -> tuple[Any, ...]:
        return (draw.some(THINGS, draw.number(4, 9)),)

    return _named(draw, (name,), f"Return {of_all} {phrase}.", expression, f"{wrap} {each} {condition}", inputs)


def _formula(draw: Draw) -> Function:
    """A formula of two numbers and a constant or two."""
    a, b = draw.one(_NUMBERS).split()
    k, j = draw.number(2, 20), draw.number(2, 20)
    first, one = draw.one(
        (
            ("the sum of {a} and {b}", "({a} + {b})"), ("the product of {a} and {b}", "{a} * {b}"),
            ("the difference of {a} and {b}", "({a} - {b})"), ("the larger of {a} and {b}", "max({a}, {b})"),
            ("the smaller of {a} and {b}", "min({a}, {b})"),
        )
    )  # fmt: skip
    second, two = draw.one(
        (
            ("", ""),
            (f" times {k}", f" * {k}"),
            (f" modulo {k}", f" % {k}"),
            (f" divided by {k} without rest", f" // {k}"),
        )
    )
    third, three = draw.one((("", ""), (f", plus {j}", f" + {j}"), (f", minus {j}", f" - {j}")))
    expression = (one + two + three).replace("{a}", a).replace("{b}", b)
    if not two and not three and expression.startswith("("):
        expression = expression[1:-1]
    task = f"Return {first}{second}{third}.".replace("{a}", a).replace("{b}", b)

    def inputs(draw: Draw) -> tuple[Any, ...]:
        return draw.number(-30, 60), draw.number(-30, 60)

    return _named(draw, (a, b), task, expression, one + two + three, inputs)


def _question(draw: Draw) -> Function:
    """Two conditions on a number, joined."""
    name = draw.one(("n", "x", "number", "value", "num"))
    k, j, d = draw.number(2, 30), draw.number(2, 30), draw.number(3, 9)
    conditions = (
        ("even", "{n} % 2 == 0"), ("odd", "{n} % 2 == 1"), (f"greater than {k}", f"{{n}} > {k}"),
        (f"less than {j}", f"{{n}} < {j}"), (f"divisible by {d}", f"{{n}} % {d} == 0"), ("positive", "{n} > 0"),
        (f"equal to {k}", f"{{n}} == {k}"),
    )  # fmt: skip
    (first, one), (second, two) = draw.some(conditions, 2)
    word = draw.one(("and", "or"))
    pattern = f"{one} {word} {two}"

    def inputs(draw: Draw) -> tuple[Any, ...]:
        return (draw.number(-10, 40),)

    return _named(
        draw, (name,), f"Tell whether {name} is {first} {word} {second}.", pattern.replace("{n}", name), pattern, inputs
    )


def _text(draw: Draw) -> Function:
    """A piece of a text, changed."""
    name, k, letter = draw.one(_TEXTS), draw.number(2, 6), draw.one(_LETTERS)
    piece, one = draw.one(
        (
            ("{t}", "{t}"), (f"the first {k} letters of {{t}}", f"{{t}}[:{k}]"),
            (f"the last {k} letters of {{t}}", f"{{t}}[-{k}:]"),
            (f"{{t}} without its first {k} letters", f"{{t}}[{k}:]"),
            (f"{{t}} without its last {k} letters", f"{{t}}[:-{k}]"),
        )
    )  # fmt: skip
    change, two = draw.one(
        (
            (" in upper case", "{o}.upper()"), (" backwards", "{o}[::-1]"), (f" {k} times", f"{{o}} * {k}"),
            (f" without every '{letter}'", f"{{o}}.replace('{letter}', '')"),
            (f" and '{letter}'", f"{{o}} + '{letter}'"), (f" with '{letter}' in front", f"'{letter}' + {{o}}"),
        )
    )  # fmt: skip
    pattern = two.replace("{o}", one)

    def inputs(draw: Draw) -> tuple[Any, ...]:
        return (draw.one(THINGS) + draw.one(THINGS),)

    return _named(
        draw, (name,), f"Return {piece}{change}.".replace("{t}", name), pattern.replace("{t}", name), pattern, inputs
    )


def _named(
    draw: Draw,
    parameters: tuple[str, ...],
    task: str,
    expression: str,
    composition: str,
    inputs: Callable[[Draw], tuple[Any, ...]],
) -> Function:
    name = draw.one(_NAMES)
    if draw.chance(0.4):
        name += "_" + draw.one(("value", "all", "it", "this", "list", "thing"))
    return Function(name, parameters, task, expression, f"function {composition}", inputs)


_FAMILIES = (_numbers, _numbers, _words, _words, _formula, _question, _text)


def composed_function(draw: Draw) -> Function:
    """One problem of any family."""
    return draw.one(_FAMILIES)(draw)


def python_function(draw: Draw) -> Item:
    """Header and docstring are given, the function is to be written."""
    one = composed_function(draw)
    question = draw.say("[Complete|Finish|Write] this function:\n")
    question += f'```python\n{one.header}\n    """{one.task}"""\n```'
    answer = f"```python\n{one.source}```"
    return Item(one.key, exchange(question, answer), PassesTests(one.asserts(draw)))
