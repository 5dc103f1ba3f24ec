"""Small Python functions: as plain source to be continued, and as answers to requests."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tamis.train.chats.draw import Draw

_TABLE = """
add|a, b|add two numbers;add a and b;return the sum of two numbers|return {0} + {1}
sum_two|a, b|sum two numbers|return {0} + {1}
subtract|a, b|subtract b from a;subtract two numbers|return {0} - {1}
sub|a, b|take one number from another|return {0} - {1}
multiply|a, b|multiply two numbers;return the product of two numbers|return {0} * {1}
mul|a, b|compute a product of two numbers|return {0} * {1}
divide|a, b|divide a by b;divide two numbers|return {0} / {1}
div|a, b|compute a quotient|return {0} / {1}
mod|a, b|return the remainder of a divided by b|return {0} % {1}
power|base, exponent|raise a base to an exponent;compute a power|return {0} ** {1}
square|x|square a number;return the square of a number|return {0} * {0}
cube|x|cube a number;return the cube of a number|return {0} ** 3
double|x|double a number;return twice a number|return {0} * 2
half|x|halve a number;return half of a number|return {0} / 2
triple|x|triple a number|return {0} * 3
negate|x|negate a number|return -{0}
increment|x|add one to a number|return {0} + 1
decrement|x|subtract one from a number|return {0} - 1
is_even|n|check whether a number is even;tell if a number is even|return {0} % 2 == 0
is_odd|n|check whether a number is odd;tell if a number is odd|return {0} % 2 == 1
is_positive|n|check whether a number is positive|return {0} > 0
is_negative|n|check whether a number is negative|return {0} < 0
is_zero|n|check whether a number is zero|return {0} == 0
is_divisible|a, b|check whether a is divisible by b|return {0} % {1} == 0
absolute|x|return the absolute value of a number|return {0} if {0} >= 0 else -{0}
maximum|a, b|return the larger of two numbers;find the maximum of two numbers|return {0} if {0} > {1} else {1}
minimum|a, b|return the smaller of two numbers;find the minimum of two numbers|return {0} if {0} < {1} else {1}
max_of_three|a, b, c|return the largest of three numbers|return max({0}, {1}, {2})
average|a, b|return the average of two numbers|return ({0} + {1}) / 2
mean|numbers|compute the mean of a list;return the average of a list of numbers|return sum({0}) / len({0})
total|numbers|sum a list of numbers;add up all numbers in a list|return sum({0})
sum_list|numbers|sum a list;return the sum of a list|result = 0\\nfor number in {0}:\\n    result += number\\nreturn result
product|numbers|multiply all numbers in a list|result = 1\\nfor number in {0}:\\n    result *= number\\nreturn result
largest|numbers|find the largest number in a list;return the maximum of a list|return max({0})
smallest|numbers|find the smallest number in a list;return the minimum of a list|return min({0})
first|items|return the first item of a list|return {0}[0]
last|items|return the last item of a list|return {0}[-1]
length|items|return the length of a list;count the items of a list|return len({0})
is_empty|items|check whether a list is empty|return len({0}) == 0
reverse|text|reverse a string;turn a string around|return {0}[::-1]
reverse_string|text|reverse a string|return {0}[::-1]
reverse_list|items|reverse a list|return {0}[::-1]
sort_list|items|sort a list;return a sorted list|return sorted({0})
sort_descending|items|sort a list from large to small|return sorted({0}, reverse=True)
unique|items|remove duplicates from a list;return the unique items of a list|return list(set({0}))
contains|items, item|check whether a list contains an item|return {1} in {0}
count_item|items, item|count how often an item is in a list|return {0}.count({1})
append|items, item|append an item to a list|{0}.append({1})\\nreturn {0}
concat|a, b|join two strings;concatenate two strings|return {0} + {1}
join_words|words|join words with spaces|return " ".join({0})
split_words|text|split a text into words|return {0}.split()
count_words|text|count the words of a text;return the number of words in a text|return len({0}.split())
upper|text|make a string upper case;convert text to upper case|return {0}.upper()
lower|text|make a string lower case;convert text to lower case|return {0}.lower()
capitalize|text|capitalize a string|return {0}.capitalize()
strip|text|remove spaces around a string|return {0}.strip()
repeat|text, n|repeat a string n times|return {0} * {1}
starts_with|text, prefix|check whether a text starts with a prefix|return {0}.startswith({1})
is_palindrome|text|check whether a string is a palindrome;tell if a word is a palindrome|return {0} == {0}[::-1]
count_vowels|text|count the vowels in a string|return sum(1 for c in {0} if c in "aeiou")
count_letter|text, letter|count a letter in a text|return {0}.count({1})
greet|name|greet a person by name;return a greeting|return f"Hello, {{0}}!"
hello||return "Hello, world!"|return "Hello, world!"
say_hello||print a greeting|print("Hello, world!")
factorial|n|compute the factorial of n;return the factorial of a number|if {0} <= 1:\\n    return 1\\nreturn {0} * factorial({0} - 1)
fibonacci|n|compute the n-th Fibonacci number;return the Fibonacci number|if {0} < 2:\\n    return {0}\\nreturn fibonacci({0} - 1) + fibonacci({0} - 2)
fib|n|compute the n-th Fibonacci number|if {0} < 2:\\n    return {0}\\nreturn fib({0} - 1) + fib({0} - 2)
gcd|a, b|compute the greatest common divisor of two numbers|while {1}:\\n    {0}, {1} = {1}, {0} % {1}\\nreturn {0}
is_prime|n|check whether a number is prime;tell if a number is prime|if {0} < 2:\\n    return False\\nfor i in range(2, {0}):\\n    if {0} % i == 0:\\n        return False\\nreturn True
sum_digits|n|sum the digits of a number|return sum(int(digit) for digit in str({0}))
sum_to|n|sum the numbers from 1 to n|return sum(range(1, {0} + 1))
count_to|n|return the numbers from 1 to n|return list(range(1, {0} + 1))
squares|n|return the squares of the numbers below n|return [i * i for i in range({0})]
evens|numbers|keep the even numbers of a list;filter the even numbers|return [n for n in {0} if n % 2 == 0]
odds|numbers|keep the odd numbers of a list|return [n for n in {0} if n % 2 == 1]
positives|numbers|keep the positive numbers of a list|return [n for n in {0} if n > 0]
double_all|numbers|double every number of a list|return [2 * n for n in {0}]
area|width, height|compute the area of a rectangle|return {0} * {1}
perimeter|width, height|compute the perimeter of a rectangle|return 2 * ({0} + {1})
circle_area|radius|compute the area of a circle|return 3.14159 * {0} ** 2
to_fahrenheit|celsius|convert Celsius to Fahrenheit|return {0} * 9 / 5 + 32
to_celsius|fahrenheit|convert Fahrenheit to Celsius|return ({0} - 32) * 5 / 9
clamp|x, low, high|clamp a number between two limits|return max({1}, min({0}, {2}))
swap|a, b|swap two values|return {1}, {0}
identity|x|return its argument|return {0}
both|a, b|check whether two values are both true|return {0} and {1}
either|a, b|check whether one of two values is true|return {0} or {1}
invert|x|return the opposite of a truth value|return not {0}
equal|a, b|check whether two values are equal|return {0} == {1}
keys|table|return the keys of a dictionary|return list({0}.keys())
values|table|return the values of a dictionary|return list({0}.values())
get|table, key|get a value from a dictionary by its key|return {0}[{1}]
has_key|table, key|check whether a dictionary has a key|return {1} in {0}
flatten|rows|flatten a list of lists|return [item for row in {0} for item in row]
count_lines|path|count the lines of a file|with open({0}) as file:\\n    return len(file.readlines())
read_file|path|read a file;return the text of a file|with open({0}) as file:\\n    return file.read()
write_file|path, text|write text to a file|with open({0}, "w") as file:\\n    file.write({1})
print_all|items|print every item of a list|for item in {0}:\\n    print(item)
bubble_sort|items|sort a list with bubble sort|for i in range(len({0})):\\n    for j in range(len({0}) - 1 - i):\\n        if {0}[j] > {0}[j + 1]:\\n            {0}[j], {0}[j + 1] = {0}[j + 1], {0}[j]\\nreturn {0}
linear_search|items, target|find the index of a target in a list|for i, item in enumerate({0}):\\n    if item == {1}:\\n        return i\\nreturn -1
"""
# Other names of a parameter; those at one place of the lists go together.
_OTHER_NAMES = {
    "a": ("x", "m", "first", "left", "num1"),
    "b": ("y", "n", "second", "right", "num2"),
    "c": ("z", "k", "third", "other", "num3"),
    "x": ("n", "value", "number", "num", "a"),
    "n": ("x", "value", "number", "num", "k"),
    "text": ("s", "string", "word", "value", "t"),
    "numbers": ("values", "nums", "items", "xs", "data"),
    "items": ("values", "lst", "elements", "data", "xs"),
    "words": ("parts", "strings", "items", "tokens", "values"),
    "item": ("value", "element", "x", "target", "key"),
}


@dataclass(frozen=True)
class Function:
    """A small function.

    Attributes:
        name, parameters: as in its header.
        task: what it does, as an imperative.
        body: its lines, indented.
    """

    name: str
    parameters: tuple[str, ...]
    task: str
    body: str

    @property
    def header(self) -> str:
        return f"def {self.name}({', '.join(self.parameters)}):"

    @property
    def source(self) -> str:
        return f"{self.header}\n{self.body}"


def _rows() -> list[tuple[str, list[str], list[str], str]]:
    rows = []
    for line in _TABLE.strip().split("\n"):
        name, parameters, tasks, body = line.split("|", 3)
        rows.append((name, [p for p in parameters.split(", ") if p], tasks.split(";"), body.replace("\\n", "\n")))
    return rows


_ROWS = _rows()


def function(draw: Draw) -> Function:
    """One of a hundred functions, often with other parameter names."""
    name, parameters, tasks, body = draw.one(_ROWS)
    own = list(parameters)
    if draw.chance(0.3):
        place = draw.number(0, 4)
        others = [_OTHER_NAMES[p][place] if p in _OTHER_NAMES else p for p in parameters]
        # A name that the body uses itself, or a parameter twice, would change the function.
        used = set(re.findall(r"[a-z_]+", body))
        if len(set(others)) == len(others) and not used & set(others):
            own = others
    for index, parameter in enumerate(own):
        body = body.replace("{" + str(index) + "}", parameter)
    lines = [f"    {line}" for line in body.split("\n")]
    return Function(name, tuple(own), draw.one(tasks), "\n".join(lines))


def source_text(draw: Draw) -> str:
    """Some functions as a file would hold them; often with docstrings, sometimes with a comment or a call."""
    parts = []
    functions = {one.name: one for one in (function(draw) for _ in range(draw.one((1, 1, 1, 1, 2, 2, 3, 4))))}
    for one in functions.values():
        style = draw.number(0, 5)
        if style == 0:
            doc = one.task[0].upper() + one.task[1:]
            parts.append(f'{one.header}\n    """{doc}."""\n{one.body}\n')
        elif style == 1:
            parts.append(f"# {one.task[0].upper()}{one.task[1:]}.\n{one.source}\n")
        else:
            parts.append(f"{one.source}\n")
    return draw.one(("\n\n", "\n\n", "\n")).join(parts)


def write_function(draw: Draw) -> tuple[str, str]:
    """A request for a function, answered by code in a fence."""
    one = function(draw)
    named = f" called {one.name}" if draw.chance(0.3) else ""
    question = draw.say(
        (
            "Write a [Python |]function{n} [to {t}|that can {t}].",
            "[Please write|Can you write|Could you write|Give me|I need|Show me] a [Python |]function{n} to {t}.",
            "[Write|Give me] Python code to {t}.",
            "How do I {t} in Python?",
            "Write a [Python |]function{n} in order to {t}.",
            "Write [the|a] [Python |]function {h}.",
            "Write a [Python |]function{n} that {s}.",
            "[Please write|Can you write|Give me] a [Python |]function{n} that {s}.",
        ),
        n=named,
        h=one.header[4:-1],
        t=one.task,
        s=_third_person(one.task),
    )
    lead = draw.say("[|||Here it is:\n|Here is a function to {t}:\n|Here you are:\n]", t=one.task)
    return question, f"{lead}```python\n{one.source}\n```"


def _third_person(task: str) -> str:
    """ "add two numbers" → "adds two numbers"."""
    verb, _, rest = task.partition(" ")
    ending = "es" if verb.endswith(("s", "sh", "ch", "x")) else "s"
    changed = verb[:-1] + "ies" if verb.endswith("y") else verb + ending
    return f"{changed} {rest}".strip()


def complete_function(draw: Draw) -> tuple[str, str]:
    """Code without its body, completed; or a question on what code does."""
    one = function(draw)
    if draw.chance(0.5):
        return draw.say(
            ("[Complete|Finish] this [function|code|Python function]:\n{h}", "[Complete|Finish]: {h}"), h=one.header
        ), f"```python\n{one.source}\n```"
    return draw.say(
        ("What does this [function|code] do?\n{c}", "[Explain|Describe] this [function|code]:\n{c}"), c=one.source
    ), f"The function {one.name} can be used to {one.task}."


_PRINTS = (
    ("print({a} + {b})", lambda a, b: str(a + b)),
    ("print({a} * {b})", lambda a, b: str(a * b)),
    ("print({a} > {b})", lambda a, b: str(a > b)),
    ("print({a} == {b})", lambda a, b: str(a == b)),
    ("print([{a}, {b}][0])", lambda a, b: str(a)),
    ("print(len([{a}, {b}]))", lambda a, b: "2"),
    ("print(max({a}, {b}))", lambda a, b: str(max(a, b))),
    ('print("{a}" + "{b}")', lambda a, b: f"{a}{b}"),
)


def what_prints(draw: Draw) -> tuple[str, str]:
    """What one line prints."""
    pattern, result = draw.one(_PRINTS)
    a, b = draw.number(0, 12), draw.number(0, 12)
    line = pattern.replace("{a}", str(a)).replace("{b}", str(b))
    return draw.say(
        ("What does this print? {c}", "What is printed by {c}?", "What is the output of {c}?"), c=line
    ), f"It prints {result(a, b)}."
