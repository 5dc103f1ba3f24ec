"""docs/api.md promises to be complete."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tamis.server.metrics import Metrics
from tamis.server.openai.messages import FunctionCall, Message, TextPart, ToolCall
from tamis.server.openai.protocol import ChatRequest, CompletionRequest, StreamOptions
from tamis.server.openai.tools import Tool, ToolFunction

API = (Path(__file__).parents[2] / "docs" / "api.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "request_type",
    [ChatRequest, CompletionRequest, StreamOptions, Message, TextPart, ToolCall, FunctionCall, Tool, ToolFunction],
)
def test_every_request_field_is_documented(request_type: type) -> None:
    code = set(re.findall(r"(?<!`)`([^`\n]+)`(?!`)", API))
    named = {name for name in code if name.isidentifier()} | {key for c in code for key in re.findall(r'"(\w+)"', c)}
    assert set(request_type.__struct_fields__) <= named


def test_every_metric_is_documented() -> None:
    names = set(re.findall(r"^# TYPE (\S+) ", Metrics().exposition().decode(), re.MULTILINE))
    names = {name for name in names if not name.endswith("_created")}
    assert names <= set(re.findall(r"`((?:vllm|tamis):\w+)`", API))
