"""A strict reading of one tool-call block, for scoring: whatever is not exactly the template's form is an error.

]<]minimax[>[<tool_call>
]<]minimax[>[<invoke name="f">]<]minimax[>[<x>1]<]minimax[>[</x>]<]minimax[>[</invoke>
]<]minimax[>[</tool_call>
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from tamis.train.chats.render import NAMESPACE, ToolCall

_INVOKE = re.compile(r'<invoke name="([^"<>]+)">')
_TAG = re.compile(r"<([A-Za-z_][\w.-]*)>", re.ASCII)
_KINDS: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
    "array": (list,),
    "object": (dict,),
}


class NotAToolBlock(ValueError):
    """The text is no tool-call block of these tools; the message says where it stops being one."""


def parse_tool_block(text: str, tools: Sequence[Mapping[str, Any]]) -> tuple[ToolCall, ...]:
    """The calls of a text that is one block and nothing else, checked against the tools' schemas.

    Args:
        text: an answer; white space around it is nothing.
        tools: OpenAI definitions.

    Raises:
        NotAToolBlock: for any other text, an unknown tool or parameter, a missing one, a value of another type or
            outside its enum.
    """
    schemas = {}
    for tool in tools:
        function = tool.get("function", tool)
        schemas[function["name"]] = function.get("parameters", {})
    return _Reader(text.strip()).block(schemas)


class _Reader:
    def __init__(self, text: str) -> None:
        # Between two namespace tokens stands one tag and the text after it.
        before, *self._parts = text.split(NAMESPACE)
        if before or not self._parts:
            raise NotAToolBlock(f"the text begins with {text[:40]!r}, not with {NAMESPACE}")
        self._at = 0

    def block(self, schemas: Mapping[str, Any]) -> tuple[ToolCall, ...]:
        self._take("<tool_call>\n")
        calls = []
        while not self._follows("</tool_call>"):
            calls.append(self._invoke(schemas))
        self._take("</tool_call>")
        if self._at < len(self._parts):
            raise NotAToolBlock("there is text after the block")
        if not calls:
            raise NotAToolBlock("the block calls nothing")
        return tuple(calls)

    def _invoke(self, schemas: Mapping[str, Any]) -> ToolCall:
        part = self._next()
        match = _INVOKE.fullmatch(part)
        if not match:
            raise NotAToolBlock(f"{part[:60]!r} stands where an invoke should")
        name = match.group(1)
        if name not in schemas:
            raise NotAToolBlock(f"there is no tool {name!r}")
        schema = schemas[name]
        arguments: dict[str, Any] = {}
        while not self._follows("</invoke>"):
            parameter, value = self._element(schema.get("properties", {}), f"{name}.")
            if parameter in arguments:
                raise NotAToolBlock(f"{name}.{parameter} stands twice")
            arguments[parameter] = value
        self._take("</invoke>\n")
        missing = [p for p in schema.get("required", []) if p not in arguments]
        if missing:
            raise NotAToolBlock(f"{name} lacks {', '.join(missing)}")
        return ToolCall(name, arguments)

    def _element(self, properties: Mapping[str, Any], where: str) -> tuple[str, Any]:
        part = self._next()
        match = _TAG.match(part)
        if not match:
            raise NotAToolBlock(f"{part[:60]!r} stands where a tag should")
        name, text = match.group(1), part[match.end() :]
        if name not in properties:
            raise NotAToolBlock(f"{where}{name} is in no schema")
        value = self._value(text, properties[name], name, f"{where}{name}")
        self._take(f"</{name}>")
        return name, value

    def _value(self, text: str, schema: Mapping[str, Any], name: str, where: str) -> Any:
        kind = schema.get("type", "string")
        value: Any
        if kind in ("array", "object") and not self._follows(f"</{name}>"):
            if text:
                raise NotAToolBlock(f"{where} mixes text and tags")
            value = self._nested(kind, schema, name, where)
        elif not self._follows(f"</{name}>"):
            raise NotAToolBlock(f"{self._next()[:60]!r} stands where {f'</{name}>'!r} should")
        elif kind == "string":
            value = text
        else:
            try:
                value = json.loads(text)
            except ValueError:
                raise NotAToolBlock(f"{where} is {text[:40]!r}, no {kind}") from None
        if not isinstance(value, _KINDS.get(kind, (object,))) or (isinstance(value, bool) and kind != "boolean"):
            raise NotAToolBlock(f"{where} is {value!r}, no {kind}")
        if "enum" in schema and value not in schema["enum"]:
            raise NotAToolBlock(f"{where} is {value!r}, none of {schema['enum']}")
        return value

    def _nested(self, kind: str, schema: Mapping[str, Any], name: str, where: str) -> Any:
        elements = []
        properties = {"item": schema.get("items", {})} if kind == "array" else schema.get("properties", {})
        while not self._follows(f"</{name}>"):
            elements.append(self._element(properties, f"{where}."))
        return dict(elements) if kind == "object" else [value for _, value in elements]

    def _follows(self, part: str) -> bool:
        return self._at < len(self._parts) and self._parts[self._at].rstrip("\n") == part

    def _next(self) -> str:
        if self._at == len(self._parts):
            raise NotAToolBlock("the text ends inside the block")
        self._at += 1
        return self._parts[self._at - 1]

    def _take(self, part: str) -> None:
        found = self._next()
        if found != part:
            raise NotAToolBlock(f"{found[:60]!r} stands where {part!r} should")
