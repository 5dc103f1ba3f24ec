"""The questions of each skill, in groups that share their beginning."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from tamis.errors import ConfigError
from tamis.train.chats.draw import Draw
from tamis.train.corpus import library_sources, prose_paragraphs, reference_topics
from tamis.train.skills import SKILLS, Item, needle_filler, needle_text

NEEDLES = {f"needle_{size}k": size * 1000 for size in (2, 8, 32, 64)}
PYTHON = "python"
ALL = (*NEEDLES, *SKILLS, PYTHON)

# Far above the seeds of training. The split is by content; this only keeps the drawings apart.
_SEED = 900_000_000
_NEEDLE_TOKENS = 32
_FACTS_NOT_ASKED = 14


@dataclass(frozen=True)
class Questions:
    """What is asked for one skill.

    Attributes:
        groups: items that share a long text stand together; else one group.
        max_tokens: room for an answer.
        min_tokens: no prompt is shorter than this many tokens; 0 when it does not matter.
    """

    groups: list[list[Item]]
    max_tokens: int
    min_tokens: int = 0


def chosen_skills(names: str) -> list[str]:
    """The skills that `--skills` names, in the order of `ALL`.

    Raises:
        ConfigError: a name that is none, with those that are.
    """
    wanted = [name for name in re.split(r"[,\s]+", names) if name]
    if wanted == ["all"]:
        return list(ALL)
    unknown = [name for name in wanted if name not in ALL]
    if unknown or not wanted:
        raise ConfigError(
            f"--skills is {names!r}, but {unknown[0] + ' is no skill' if unknown else 'names none'}.",
            param="skills",
            hint=f"Known: all, {', '.join(ALL)}.",
        )
    return [name for name in ALL if name in wanted]


def plain_questions(name: str, count: int, *, seed: int) -> Questions:
    """`count` held-out items of a skill of `train/skills`."""
    skill = SKILLS[name]
    items: dict[str, Item] = {}
    number = _SEED + seed * 1_000_000
    # Different wordings of one problem are one question. Where there are too few problems, they repeat.
    for attempt in range(4 * count):
        item = skill.test_item(Draw(number + attempt))
        key = str(item.key) if attempt < 2 * count else f"{item.key} again {attempt}"
        items.setdefault(key, item)
        if len(items) == count:
            break
    group = list(items.values())
    # Plain items say that no reasoning is wanted, as a client that wants answers at once does.
    return Questions([[_at_once(item) for item in group]], skill.max_tokens)


def _at_once(item: Item) -> Item:
    if item.thinking_mode is not None:
        return item
    return replace(item, chat=replace(item.chat, thinking_mode="disabled"))


def needle_questions(
    name: str,
    count: int,
    *,
    questions_a_text: int | None,
    seed: int,
    num_tokens: Callable[[str], int],
) -> Questions:
    """Texts of at least the skill's length in tokens, each with some of the `count` questions.

    Texts are made of library files that training leaves out, of prose and of stories.

    Args:
        questions_a_text: how many share a text; None: 10, and more for the longest, which take long to read.
        num_tokens: of a text, by the model's tokenizer.
    """
    target = NEEDLES[name]
    together = questions_a_text or max(10, target // 1600)
    filler = needle_filler(prose_paragraphs(reference_topics()), library_sources(held_out=True))
    sizes: dict[int, int] = {}
    groups: list[list[Item]] = []
    while count > 0:
        draw = Draw(_SEED + seed * 1_000_000 + target * 100 + len(groups))
        # Each piece once, as long as there are enough.
        order: list[int] = []
        pieces: list[str] = []
        size = 0
        while size < target:
            order = order or draw.some(range(len(filler)), len(filler))
            index = order.pop()
            if index not in sizes:
                sizes[index] = num_tokens(filler[index])
            pieces.append(filler[index])
            size += sizes[index]
        asked = min(together, count)
        groups.append(needle_text(draw, pieces, asked + _FACTS_NOT_ASKED, asked).items())
        count -= asked
    return Questions(groups, _NEEDLE_TOKENS, target)
