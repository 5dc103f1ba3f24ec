"""Tools that requests are made for: names, parameters and words of each from short lists.

A tool's name and its parameters' names are drawn from synonyms, so that a call must be written from the definition in
the prompt and not from memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tamis.train.chats.draw import Draw
from tamis.train.skills.lexicon import CITIES, COLOURS, DAYS, EVENTS, FIRST_NAMES, THINGS


@dataclass(frozen=True)
class Parameter:
    """One parameter.

    Attributes:
        names: synonyms.
        kind: JSON type; "array" holds strings.
        values: what it is drawn from; a range for numbers. An enum's choices are in its schema.
        enum: whether the schema lists the values.
    """

    names: tuple[str, ...]
    kind: str
    values: Sequence[Any]
    enum: bool = False

    def schema(self) -> dict[str, Any]:
        """Its JSON schema."""
        if self.kind == "array":
            return {"type": "array", "items": {"type": "string"}}
        return {"type": self.kind, **({"enum": list(self.values)} if self.enum else {})}

    def value(self, draw: Draw) -> Any:
        """A value of its type."""
        if self.kind == "array":
            return draw.some(self.values, draw.number(2, 3))
        return draw.one(self.values)


@dataclass(frozen=True)
class Tool:
    """One tool.

    Attributes:
        names: synonyms.
        description: for the definition.
        parameters: in order.
        request: a pattern of `Draw.say` with a slot {0}, {1}, … for each parameter.
        optional: request for the part that may be left out, with the last parameter; "" when all are required.
        results: fields of its answer, in the order of `reply`'s slots {r0}, {r1}, …; empty when none is asked for.
        reply: what the assistant says of the answer.
    """

    names: tuple[str, ...]
    description: str
    parameters: tuple[Parameter, ...]
    request: str
    optional: str = ""
    results: tuple[Parameter, ...] = ()
    reply: str = ""


def said(value: Any) -> str:
    """A value as a request has it: lists with commas and "and", truth as on or off."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, list):
        return f"{', '.join(value[:-1])} and {value[-1]}"
    return str(value)


def definition(name: str, tool: Tool, names: Sequence[str]) -> Mapping[str, Any]:
    """The OpenAI definition of `tool` under `name`, its parameters under `names`."""
    required = names[:-1] if tool.optional else names
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": tool.description,
            "parameters": {
                "type": "object",
                "properties": {n: p.schema() for n, p in zip(names, tool.parameters, strict=True)},
                "required": list(required),
            },
        },
    }


_CITY = Parameter(("city", "place", "location"), "string", CITIES)
_DAY = Parameter(("day", "date"), "string", DAYS)
_PERSON = Parameter(("to", "person", "name"), "string", FIRST_NAMES)
_ITEM = Parameter(("item", "thing", "product"), "string", THINGS)
_ITEMS = Parameter(("items", "things", "list"), "array", THINGS)
_TEXTS = ("hello", "good morning", "see you soon", "I am late", "thank you")
_SMALL = range(2, 100)
_PRICES = tuple(n + part for n in range(1, 60) for part in (0.25, 0.5, 0.75))
_SKY = Parameter(("sky",), "string", ("sunny", "cloudy", "rainy", "windy", "snowy"))
_DONE = Parameter(("status",), "string", ("done", "failed"))

TOOLS = (
    Tool(
        ("get_weather", "weather", "fetch_weather"), "Get the weather of a city", (_CITY, _DAY),
        "[What is the weather in {0}|How is the weather in {0}|Tell me the weather in {0}]", " on {1}",
        (_SKY, Parameter(("degrees",), "integer", range(-9, 36))), "It is {r0} in {0} at {r1} degrees.",
    ),
    Tool(
        ("send_message", "message", "send_text"), "Send a message to a person",
        (_PERSON, Parameter(("text", "message"), "string", _TEXTS)),
        "[Send|Write] {0} the message: {1}", results=(_DONE,), reply="The message to {0} is {r0}.",
    ),
    Tool(
        ("set_timer", "start_timer", "timer"), "Start a timer",
        (Parameter(("minutes", "duration"), "integer", _SMALL),),
        "[Set|Start] a timer [of|for] {0} minutes", results=(_DONE,), reply="The timer of {0} minutes is {r0}.",
    ),
    Tool(
        ("create_event", "add_event", "new_event"), "Put an event into the calendar",
        (Parameter(("title", "event"), "string", EVENTS), _DAY, Parameter(("guests", "people"), "array", FIRST_NAMES)),
        "[Plan|Add] a {0} on {1}", " with {2}", results=(_DONE,), reply="The {0} on {1} is {r0}.",
    ),
    Tool(
        ("set_light", "switch_light", "light"), "Switch a light on or off",
        (Parameter(("room", "where"), "string", ("kitchen", "garden", "office", "hall", "bathroom"), enum=True),
         Parameter(("on", "state"), "boolean", (True, False))),
        "[Turn|Switch] the light in the {0} {1}", results=(_DONE,), reply="The light in the {0} is {r0}.",
    ),
    Tool(
        ("order_food", "order", "buy_food"), "Order food",
        (_ITEM, Parameter(("count", "quantity"), "integer", _SMALL),
         Parameter(("size",), "string", ("small", "medium", "large"), enum=True)),
        "[Order|Get me] {1} times {0}", ", size {2}",
        (Parameter(("minutes",), "integer", _SMALL),), "Your {0} comes in {r0} minutes.",
    ),
    Tool(
        ("convert_money", "convert", "exchange"), "Convert an amount of money",
        (Parameter(("amount", "value"), "number", _PRICES),
         Parameter(("source", "from"), "string", ("EUR", "USD", "GBP", "JPY"), enum=True),
         Parameter(("target", "into"), "string", ("CHF", "SEK", "CAD", "INR"), enum=True)),
        "[Convert|Change] {0} {1} to {2}", results=(Parameter(("amount",), "number", _PRICES),),
        reply="{0} {1} are {r0} {2}.",
    ),
    Tool(
        ("add_to_list", "shopping_list", "add_items"), "Add items to the shopping list", (_ITEMS,),
        "[Add|Put] {0} [to|on] my shopping list", results=(Parameter(("total",), "integer", _SMALL),),
        reply="Your list has {r0} items now.",
    ),
    Tool(
        ("search_shop", "find_product", "search"), "Search products in the shop",
        (_ITEM, Parameter(("max_price", "limit"), "number", _PRICES)),
        "[Find|Search] a {0} in the shop", " for at most {1} dollars",
        (Parameter(("price",), "number", _PRICES),), "There is a {0} for {r0} dollars.",
    ),
    Tool(
        ("find_route", "route", "get_route"), "Find a route between two cities",
        (Parameter(("start", "origin"), "string", CITIES[:10]), Parameter(("end", "goal"), "string", CITIES[10:]),
         Parameter(("mode", "by"), "string", ("car", "train", "bus", "plane"), enum=True)),
        "[Find|Show me] a route from {0} to {1} by {2}", results=(Parameter(("hours",), "integer", _SMALL),),
        reply="From {0} to {1} it takes {r0} hours by {2}.",
    ),
    Tool(
        ("play_music", "play", "start_music"), "Play music",
        (Parameter(("kind", "style"), "string", ("jazz", "rock", "pop", "folk", "opera"), enum=True),
         Parameter(("loud", "volume"), "integer", _SMALL)),
        "Play [some |]{0}", " at volume {1}", results=(_DONE,), reply="The {0} music is {r0}.",
    ),
    Tool(
        ("roll_dice", "dice", "roll"), "Roll dice",
        (Parameter(("count", "dice"), "integer", range(2, 10)),
         Parameter(("sides", "faces"), "integer", (4, 6, 8, 10, 12, 20))),
        "Roll {0} dice with {1} sides", results=(Parameter(("sum",), "integer", _SMALL),),
        reply="The dice show {r0} in all.",
    ),
    Tool(
        ("paint_wall", "paint", "set_colour"), "Paint a wall in a colour",
        (Parameter(("colour", "paint"), "string", COLOURS), Parameter(("width", "metres"), "number", _PRICES)),
        "Paint {1} metres of the wall {0}", results=(_DONE,), reply="The {0} wall is {r0}.",
    ),
    Tool(
        ("book_table", "reserve_table", "reservation"), "Book a table in a restaurant",
        (Parameter(("people", "seats"), "integer", range(2, 30)), _DAY, _CITY),
        "Book a table for {0} people on {1} in {2}", results=(_DONE,), reply="The table for {0} on {1} is {r0}.",
    ),
)  # fmt: skip
