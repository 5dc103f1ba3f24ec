"""Whole conversations: a mix of skills, noise in the questions, turns that lean on each other."""

from __future__ import annotations

from collections.abc import Callable

from tamis.train.chats import code, facts, identity, maths, recall, stories, trivia, words
from tamis.train.chats.draw import Draw
from tamis.train.chats.render import Chat, ThinkingMode, Turn

Skill = Callable[[Draw], tuple[str, str]]


def _sum(draw: Draw) -> tuple[str, str]:
    question, answer, _ = maths.arithmetic(draw)
    return question, answer


def _problem(draw: Draw) -> tuple[str, str]:
    question, answer, _ = maths.story_problem(draw)
    return question, answer


# How often each skill is drawn, in parts.
SKILLS: dict[str, tuple[Skill, int]] = {
    "who": (identity.who, 12),
    "small_talk": (identity.small_talk, 9),
    "unknown": (identity.unknown, 3),
    "arithmetic": (_sum, 14),
    "story_problem": (_problem, 6),
    "compare": (maths.compare, 4),
    "count_up": (maths.count_up, 3),
    "capital": (facts.capital, 8),
    "table_fact": (facts.table_fact, 8),
    "sequence": (facts.sequence, 3),
    "translate": (facts.translate, 4),
    "name_some": (facts.name_some, 3),
    "explain": (facts.explain, 7),
    "trivia": (trivia.trivia, 6),
    "not_known": (trivia.not_known, 6),
    "sort_things": (words.sort_things, 6),
    "pick": (words.pick, 5),
    "letters": (words.letters, 6),
    "person_json": (words.person_json, 5),
    "belongs": (words.belongs, 2),
    "short_text": (recall.short_text, 9),
    "write_function": (code.write_function, 12),
    "complete_function": (code.complete_function, 5),
    "what_prints": (code.what_prints, 2),
    "story": (stories.story, 5),
    "poem": (stories.poem, 1),
    "letter": (stories.letter, 1),
}
_BAG = [skill for skill, (_, parts) in SKILLS.items() for _ in range(parts)]
# Skills whose questions carry text that must be taken as it stands.
_EXACT = frozenset(
    {"letters", "sort_things", "write_function", "complete_function", "what_prints", "person_json", "short_text"}
)
_SYSTEM = (
    "You are a helpful assistant.",
    "You are a helpful assistant. Answer briefly.",
    "You are Tamis nano, a small and friendly assistant.",
    "Be [kind|polite|friendly|brief].",
    "Answer [in short sentences|briefly|in English|clearly].",
    "You are a [friendly|helpful|polite|kind] [assistant|chatbot|AI].",
    "You help with [Python|sums|questions|words].",
    "You are a helpful AI assistant. [Be brief.|Be polite.|Answer in English.]",
    "Keep your answers short.",
)
_SHOUT = ("Answer in [upper case|capital letters].", "[Write|Say] everything in [capital letters|upper case].")
_PREFIXES = (
    "[Hello|Hi|Hey][!|,|.] ",
    "Please tell me: ",
    "I have a question: ",
    "[Okay|Ok|Now|Good], ",
    "A question: ",
    "[Quick|Next|One more] question: ",
)


def question_and_answer(draw: Draw) -> tuple[str, str]:
    """One exchange of a random skill, its question a little noisy."""
    name = draw.one(_BAG)
    question, answer = SKILLS[name][0](draw)
    return _noisy(draw, question, free=name not in _EXACT), answer


def _noisy(draw: Draw, question: str, *, free: bool) -> str:
    """What people do to a question: greet, forget capitals or the mark at the end."""
    kind = draw.number(0, 19)
    if kind == 0 and "\n" not in question:
        question = draw.say(_PREFIXES) + question
    elif kind == 1 and free:
        question = question.lower()
    elif kind == 2 and question.endswith(("?", ".")) and free:
        question = question[:-1]
    elif kind == 3 and question.endswith((".", "?")):
        question = question[:-1] + draw.one((", please", " please")) + question[-1]
    elif kind == 4:
        question = question[0].lower() + question[1:]
    return question


def _two_at_once(draw: Draw) -> tuple[str, str]:
    """Two short questions in one message."""
    pairs = [draw.one((_sum, facts.capital, facts.table_fact))(draw) for _ in range(2)]
    (first, one), (second, two) = pairs
    return (
        f"{first}{'' if first.endswith(('?', '.')) else '.'} {draw.one(('', '', 'And '))}{second}",
        f"{one}{'' if one.endswith('.') else '.'} {two}",
    )


def _follow_up(draw: Draw) -> list[Turn]:
    """A question and one that means nothing without it."""
    kind = draw.number(0, 3)
    if kind == 0:
        (first, city, *_), (second, other, *_) = draw.some(facts.COUNTRIES, 2)
        return [
            Turn("user", f"What is the capital of {first}?"),
            Turn("assistant", f"The capital of {first} is {city}."),
            Turn(
                "user",
                draw.say(
                    ("And [of|the capital of|what about] {c}?", "[What about|How about] {c}?", "And {c}?"), c=second
                ),
            ),
            Turn("assistant", f"The capital of {second} is {other}."),
        ]
    if kind == 1:
        a, b = maths.operands(draw, 1, 50)
        c = draw.number(1, 12)  # so small that no sum with it is kept for tests
        return [
            Turn("user", f"What is {a} + {b}?"),
            Turn("assistant", f"{a} + {b} = {a + b}"),
            Turn("user", draw.say(("[And|Now] add {c}[.| to it.| to that.]", "[Plus|And plus] {c}?"), c=c)),
            Turn("assistant", f"{a + b} + {c} = {a + b + c}"),
        ]
    question, answer = question_and_answer(draw)
    turns = [Turn("user", question), Turn("assistant", answer)]
    if kind == 2:
        return [
            *turns,
            Turn(
                "user",
                draw.say(
                    (
                        "[Repeat|Say] that[ again|], please.",
                        "[Can|Could] you repeat that?",
                        "What did you say?",
                        "Repeat your [last |]answer.",
                        "Again[, please|].",
                    )
                ),
            ),
            Turn("assistant", answer),
        ]
    return [
        *turns,
        Turn(
            "user", draw.say(("What did I [ask|say][| you|]?", "What was my [last |]question?", "Repeat my question."))
        ),
        Turn("assistant", f'You said: "{question}"'),
    ]


def _thinking(draw: Draw) -> Chat:
    """A conversation whose last answer is reasoned first."""
    if draw.chance(0.7):
        question, answer, reasoning = draw.one((maths.arithmetic, maths.story_problem))(draw)
    else:
        question, answer = question_and_answer(draw)
        reasoning = draw.say(
            (
                "[The user asks|This is a question]. I [know the answer|can answer this].",
                "This is [easy|simple]. I [can answer|know it].",
            )
        )
    return Chat((Turn("user", question), Turn("assistant", answer, reasoning)), thinking_mode="enabled")


def conversation(draw: Draw) -> Chat:
    """One training conversation."""
    if draw.chance(0.06):
        return _thinking(draw)
    turns: list[Turn] = []
    length = draw.one((1, 1, 1, 1, 1, 2, 2, 3, 4))
    personal = length > 1 and draw.chance(0.3)
    if personal:
        turns += recall.personal(draw)
        between: list[Turn] = []
        for _ in range(draw.number(0, length - 1)):
            question, answer = question_and_answer(draw)
            between += [Turn("user", question), Turn("assistant", answer)]
        turns[2:2] = between
    elif length == 2 and draw.chance(0.4):
        turns += _follow_up(draw)
    else:
        for _ in range(length):
            question, answer = _two_at_once(draw) if draw.chance(0.04) else question_and_answer(draw)
            turns += [Turn("user", question), Turn("assistant", answer)]
        if length > 1 and draw.chance(0.15):
            question, answer = identity.small_talk(draw)
            turns += [Turn("user", question), Turn("assistant", answer)]
    developer = ""
    if draw.chance(0.3):
        developer = draw.say(_SYSTEM)
    elif draw.chance(0.03) and not any("```" in turn.content for turn in turns):
        developer = draw.say(_SHOUT)
        turns = [Turn("assistant", turn.content.upper()) if turn.role == "assistant" else turn for turn in turns]
    mode: ThinkingMode | None = None
    if draw.chance(0.25):
        mode = "disabled" if draw.chance(0.6) else "adaptive"
    return Chat(tuple(turns), developer, mode)
