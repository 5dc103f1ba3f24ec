"""JSON out of sentences, and values out of JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from tamis.train.chats.draw import Draw
from tamis.train.skills.item import Item, SameJson, exchange, text_item
from tamis.train.skills.lexicon import CITIES, COLOURS, DAYS, EVENTS, FIRST_NAMES, JOBS, THINGS

_EXTRACT = (
    "[Extract|Give me|Write] JSON with the keys {k}: {s}",
    "Turn this into JSON with the keys {k}: {s}",
    "{s}\nAnswer with JSON. Keys: {k}",
)


def _person(draw: Draw) -> tuple[str, dict[str, Any], dict[str, Any]]:
    name, age, city, job = draw.one(FIRST_NAMES), draw.number(5, 90), draw.one(CITIES), draw.one(JOBS)
    sentence = draw.say(
        (
            "{n} is {a} years old, lives in {c} and works as a {j}.",
            "{n}, a {j} from {c}, is {a} years old.",
            "The {j} {n} is {a} years old and lives in {c}.",
        ),
        n=name, a=age, c=city, j=job,
    )  # fmt: skip
    flat = {"name": name, "age": age, "city": city, "job": job}
    return sentence, flat, {"person": {"name": name, "age": age}, "city": city, "job": job}


def _order(draw: Draw) -> tuple[str, dict[str, Any], dict[str, Any]]:
    name, count, thing, price = draw.one(FIRST_NAMES), draw.number(2, 99), draw.one(THINGS), draw.number(1, 500)
    colour = draw.one(COLOURS)
    sentence = draw.say(
        (
            "{n} ordered {q} of the {c} {t} for {p} dollars.",
            "An order of {n}: {q} of the {c} {t}, {p} dollars in all.",
            "{n} pays {p} dollars for {q} of the {c} {t}.",
        ),
        n=name, q=count, c=colour, t=thing, p=price,
    )  # fmt: skip
    flat = {"customer": name, "item": thing, "colour": colour, "quantity": count, "price": price}
    nested = {"customer": name, "item": {"name": thing, "colour": colour}, "quantity": count, "price": price}
    return sentence, flat, nested


def _event(draw: Draw) -> tuple[str, dict[str, Any], dict[str, Any]]:
    event, city, day, hour = draw.one(EVENTS), draw.one(CITIES), draw.one(DAYS), draw.number(1, 12)
    first, second = draw.some(FIRST_NAMES, 2)
    sentence = draw.say(
        (
            "The {e} with {x} and {y} is in {c} on {d} at {h}.",
            "On {d} at {h} there is a {e} with {x} and {y} in {c}.",
            "{x} and {y} come to the {e} in {c}, {d} at {h}.",
        ),
        e=event, x=first, y=second, c=city, d=day, h=hour,
    )  # fmt: skip
    flat = {"event": event, "city": city, "day": day, "hour": hour, "guests": [first, second]}
    return sentence, flat, {"event": event, "city": city, "time": {"day": day, "hour": hour}, "guests": [first, second]}


_KINDS: tuple[Callable[[Draw], tuple[str, dict[str, Any], dict[str, Any]]], ...] = (_person, _order, _event)


def json_extraction(draw: Draw) -> Item:
    """A sentence about a person, an order or an event becomes an object with the keys asked for, one level or two."""
    sentence, flat, nested = draw.one(_KINDS)(draw)
    record = nested if draw.chance(0.3) else flat
    # A choice of keys in a random order, so that the answer follows the question and not a habit.
    keys = draw.some(list(record), draw.number(2, len(record)))
    value = {key: record[key] for key in keys}
    question = draw.say(_EXTRACT, k=", ".join(_shown(key, value[key]) for key in keys), s=sentence)
    return Item(_record_key(flat), exchange(question, json.dumps(value)), SameJson(value))


def _shown(key: str, value: Any) -> str:
    """A key as the question names it: `time (day, hour)` when it holds an object."""
    return f"{key} ({', '.join(value)})" if isinstance(value, dict) else key


def json_reading(draw: Draw) -> Item:
    """A value from an object that stands in the question, one level or two down."""
    _, flat, nested = draw.one(_KINDS)(draw)
    record = nested if draw.chance(0.4) else flat
    key = draw.one(list(record))
    path, value = key, record[key]
    if isinstance(value, dict):
        inner = draw.one(list(value))
        path, value = f"{key}.{inner}", value[inner]
    question = draw.say(
        ("What is {p} in this JSON? {j}", "Read {p} from this JSON: {j}", "{j}\nWhat is {p}?"),
        p=path,
        j=json.dumps(record),
    )
    shown = ", ".join(value) if isinstance(value, list) else value
    return text_item(_record_key(flat), question, f"{path} is {shown}.")


def _record_key(flat: dict[str, Any]) -> str:
    """The same for every choice of keys, and for reading and writing."""
    return f"record {json.dumps(flat, sort_keys=True)}"
