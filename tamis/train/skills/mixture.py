"""The table of skills, and the mixture of them that is trained on."""

from __future__ import annotations

import bisect
import itertools
from dataclasses import replace

from tamis.train.chats.draw import Draw
from tamis.train.chats.render import Chat, ThinkingMode, Turn, render
from tamis.train.skills.arithmetic import three_numbers, two_numbers, two_numbers_thinking
from tamis.train.skills.counting import counting, counting_thinking
from tamis.train.skills.item import Skill
from tamis.train.skills.json_objects import json_extraction, json_reading
from tamis.train.skills.python_functions import python_function
from tamis.train.skills.sorting import sorting, sorting_thinking
from tamis.train.skills.system_rules import system_rule
from tamis.train.skills.tool_calls import no_tool, tool_call, tool_result

_ALL = (
    Skill("arithmetic", two_numbers, 20, max_tokens=32),
    Skill("sorting", sorting, 14),
    Skill("counting", counting, 11, max_tokens=24),
    Skill("json_extraction", json_extraction, 11, max_tokens=96),
    Skill("json_reading", json_reading, 4, max_tokens=32),
    Skill("tool_call", tool_call, 20, max_tokens=128),
    Skill("tool_result", tool_result, 6, max_tokens=48),
    Skill("no_tool", no_tool, 5, max_tokens=48),
    Skill("system_rule", system_rule, 11),
    Skill("python_function", python_function, 18, max_tokens=96),
    Skill("arithmetic_thinking", two_numbers_thinking, 6, max_tokens=96),
    Skill("sorting_thinking", sorting_thinking, 3, max_tokens=128),
    Skill("counting_thinking", counting_thinking, 4, max_tokens=160),
    Skill("arithmetic_three", three_numbers, 0.25, max_tokens=32),
)
SKILLS = {skill.name: skill for skill in _ALL}

_LIMITS = list(itertools.accumulate(skill.parts for skill in _ALL))
_MORE_EXCHANGES = 0.35  # of the chats go on, and each goes on so often again
_LONGEST_CHAT_CHARS = 2500


def _skill(draw: Draw) -> Skill:
    return _ALL[bisect.bisect(_LIMITS, draw.random.random() * _LIMITS[-1])]


def skill_chat(draw: Draw) -> Chat:
    """A conversation to train on: one item of a random skill, or several plain ones after each other.

    No problem of it is a test problem (`Skill.test_item`).
    """
    chat = _skill(draw).train_item(draw).chat
    if chat.thinking_mode:
        return chat
    turns: tuple[Turn, ...] = chat.turns
    if not chat.tools and not chat.developer:
        while draw.chance(_MORE_EXCHANGES) and sum(len(turn.content) for turn in turns) < _LONGEST_CHAT_CHARS:
            other = _skill(draw).train_item(draw).chat
            if other.thinking_mode or other.tools or other.developer:
                break
            turns += other.turns
    mode: ThinkingMode | None = None
    if draw.chance(0.5):
        mode = "disabled" if draw.chance(0.8) else "adaptive"
    return replace(chat, turns=turns, thinking_mode=mode)


def skill_text(draw: Draw) -> str:
    """A `skill_chat`, rendered."""
    return render(skill_chat(draw))
