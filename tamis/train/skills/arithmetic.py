"""Sums, differences and products of two numbers; rarely of three."""

from __future__ import annotations

from tamis.train.chats.draw import Draw
from tamis.train.chats.split import operation_key
from tamis.train.skills.item import Item, SameText, exchange

_QUESTIONS = (
    "What is {e}?",
    "What is {e}?",
    "How much is {e}?",
    "[Calculate|Compute|Work out] {e}.",
    "{e} =",
)
_WORDS = {"+": "plus", "-": "minus", "*": "times"}


def _numbers(draw: Draw) -> tuple[str, int, int]:
    sign = draw.one("++--*")
    if sign == "*":
        a, b = draw.number(2, 99), draw.number(2, 12)
        return (sign, a, b) if draw.chance(0.5) else (sign, b, a)
    highest = draw.one((99, 999, 999))
    a, b = draw.number(0, highest), draw.number(0, highest)
    return (sign, max(a, b), min(a, b)) if sign == "-" else (sign, a, b)


def two_numbers(draw: Draw) -> Item:
    """a + b and a - b up to three digits, a * b with one factor up to twelve."""
    sign, a, b = _numbers(draw)
    return _item(draw, sign, a, b, thinking=False)


def two_numbers_thinking(draw: Draw) -> Item:
    """The same with digit by digit work before the answer."""
    sign, a, b = _numbers(draw)
    while sign == "*":
        sign, a, b = _numbers(draw)
    return _item(draw, sign, a, b, thinking=True)


def _item(draw: Draw, sign: str, a: int, b: int, *, thinking: bool) -> Item:
    result = a + b if sign == "+" else a - b if sign == "-" else a * b
    shown = _WORDS[sign] if draw.chance(0.2) else sign
    question = draw.say(_QUESTIONS, e=f"{a} {shown} {b}")
    answer = f"{a} {sign} {b} = {result}"
    reasoning = "" if not thinking else carry(a, b) if sign == "+" else borrow(a, b)
    chat = exchange(question, answer, reasoning=reasoning)
    return Item(operation_key(sign, a, b), chat, SameText(answer))


def carry(a: int, b: int) -> str:
    """The work of a sum, from the units up: "5+7=12 2 carry 1, 4+2+1=7"."""
    steps: list[str] = []
    over = 0
    while a or b or not steps:
        x, y = a % 10, b % 10
        total = x + y + over
        a, b = a // 10, b // 10
        step = f"{x}+{y}{f'+{over}' if over else ''}={total}"
        over = total // 10
        if over and (a or b):
            step += f" {total % 10} carry {over}"
        steps.append(step)
    return ", ".join(steps)


def borrow(a: int, b: int) -> str:
    """The work of a difference, from the units up: "13-7=6 borrow 1, 4-2-1=1"."""
    steps: list[str] = []
    over = 0
    while a or b or not steps:
        x, y = a % 10, b % 10
        short = x - y - over < 0
        a, b = a // 10, b // 10
        left = f"{x + 10 if short else x}-{y}{f'-{over}' if over else ''}={x - y - over + 10 * short}"
        steps.append(left + (" borrow 1" if short else ""))
        over = int(short)
    return ", ".join(steps)


def three_numbers(draw: Draw) -> Item:
    """a ± b ± c, drawn so rarely that it is not expected to be learnt: scored to show the limit."""
    a, b, c = (draw.number(10, 99) for _ in range(3))
    first, second = draw.one("+-"), draw.one("+-")
    if first == "-":
        a, b = max(a, b), min(a, b)
    middle = a + b if first == "+" else a - b
    if second == "-":
        c = min(c, middle)
    result = middle + c if second == "+" else middle - c
    expression = f"{a} {first} {b} {second} {c}"
    answer = f"{expression} = {result}"
    return Item(expression, exchange(draw.say(_QUESTIONS, e=expression), answer), SameText(answer))
