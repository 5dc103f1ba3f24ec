"""What the bundled model is to be able to do: problems with right answers, made from seeds, some kept for tests."""

from tamis.train.skills.item import Check, Item, PassesTests, SameCalls, SameJson, SameText, Skill
from tamis.train.skills.mixture import SKILLS, skill_chat, skill_text
from tamis.train.skills.needles import (
    NeedleText,
    needle_document,
    needle_filler,
    needle_text,
    random_document,
)

__all__ = [
    "SKILLS",
    "Check",
    "Item",
    "NeedleText",
    "PassesTests",
    "SameCalls",
    "SameJson",
    "SameText",
    "Skill",
    "needle_document",
    "needle_filler",
    "needle_text",
    "random_document",
    "skill_chat",
    "skill_text",
]
